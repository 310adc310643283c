"""TD errors and losses of ONE transition, in rlax's style: the caller vmaps and reduces.

All of them return a scalar, `[]`.  `discount_t` already holds gamma and termination.  What carries
gradients: every TD error here is differentiable in `q_tm1[a_tm1]` only; targets, the expert
correction included, are constants, unless a switch says otherwise.  `large_margin_loss` is
differentiable in all of `q`.
"""

import chex
import jax
import jax.numpy as jnp
import rlax

from bqfd_jax import posterior
from bqfd_jax.types import Array


def double_q_td_error(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_t_value: Array,
    q_t_selector: Array,
) -> Array:
    """Double Q-learning TD error, `r + discount q_value[argmax q_selector] - q_tm1[a_tm1]`.

    van Hasselt, Guez, Silver: "Deep Reinforcement Learning with Double Q-learning" (2015).
    The same function serves n-step targets: pass the n-step return, the product of discounts and
    the Q-values n steps on.

    Args:
      q_tm1: Q-values of the state, `[A]`.
      a_tm1: action taken, `[]` integer.
      r_t: reward, `[]`.
      discount_t: discount, `[]`.
      q_t_value: Q-values of the next state that are bootstrapped from (target network), `[A]`.
      q_t_selector: Q-values of the next state that choose the action (online network), `[A]`.
    """
    return rlax.double_q_learning(q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector)


def bqfd_td_error(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_t_value: Array,
    q_t_selector: Array,
    is_expert: Array,
    weight: Array,
    *,
    eta: float,
    stop_correction_gradient: bool = True,
) -> Array:
    """Double Q-learning TD error whose target holds the expert correction (`J_exp`).

    The action taken in a demonstration is the expert's, so its target gains `eta w (1 - pi(a))`.
    For any other sample this is `double_q_td_error`, whose arguments are the first six.

    Args:
      is_expert: whether the sample is a demonstration's, `[]` bool.
      weight: variance of the Q-value, e.g. from `posterior.visit_weight`, `[]`.
      eta: Boltzmann parameter of the expert.
      stop_correction_gradient: treat the correction as the constant it is in a target.  False
        lets gradients through `pi(a)`, as the paper's formula literally reads.
    """
    chex.assert_rank([is_expert, weight], 0)
    td_error = double_q_td_error(q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector)
    correction = posterior.expert_correction(q_tm1, a_tm1, a_tm1, weight, eta=eta)
    if stop_correction_gradient:
        correction = jax.lax.stop_gradient(correction)
    return td_error + jnp.where(is_expert, correction, 0.0)


def bqfd_path_td_error(
    q_tm1: Array,
    a_tm1: Array,
    r_t: Array,
    discount_t: Array,
    q_t_value: Array,
    q_t_selector: Array,
    is_expert: Array,
    weight: Array,
    q_later: Array,
    a_later: Array,
    discount_later: Array,
    weight_later: Array,
    *,
    eta: float,
    stop_correction_gradient: bool = True,
) -> Array:
    """`bqfd_td_error` over n steps, of which the first K are corrected and not the first alone.

    The first eight arguments are those of `bqfd_td_error`, with n-step targets.

    Args:
      q_later: Q-values of steps 1 .. K-1, `[K - 1, A]`.
      a_later: actions taken there, `[K - 1]` integer.
      discount_later: product of discounts before each, `[K - 1]`; 0 past the episode's end.
      weight_later: their variances, `[K - 1]`.
      eta: as for `bqfd_td_error`, like the next.
      stop_correction_gradient: for all corrections.
    """
    transition = (q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector, is_expert, weight)
    td_error = bqfd_td_error(
        *transition, eta=eta, stop_correction_gradient=stop_correction_gradient
    )
    later = posterior.path_correction(q_later, a_later, discount_later, weight_later, eta=eta)
    if stop_correction_gradient:
        later = jax.lax.stop_gradient(later)
    return td_error + jnp.where(is_expert, later, 0.0)


def expert_likelihood_loss(
    q: Array, a: Array, is_expert: Array, weight: Array, *, eta: float
) -> Array:
    """`-w log pi(a)`, whose descent corrects the values of all actions as Algorithm 1 does.

    Its gradient is minus the correction, `eta w (1[b = a] - pi(b))`, for every action b.  For the
    action taken that is what `bqfd_td_error` adds to the target of a squared loss; the others are
    corrected only here.  Say an expert does now one thing and now another in states that look
    alike, and takes `a` with frequency `f(a)`.  This loss matches it in how often it does either:
    `Q(a) = target(a) + eta w (1 - pi(a) / f(a))`.  With the target's correction alone it is
    `Q(a) = target(a) + eta w (1 - pi(a))` whatever the frequency, so that what the expert does
    rarely is praised as much as what it does often.

    Args:
      q: Q-values of the state, `[A]`.
      a: action taken, `[]` integer.
      is_expert: whether the expert took it, `[]` bool.
      weight: variance of the Q-value, `[]`.
      eta: Boltzmann parameter of the expert.
    """
    chex.assert_rank([is_expert, weight], 0)
    return -jnp.where(is_expert, weight, 0.0) * posterior.expert_log_likelihood(q, a, eta=eta)


def large_margin_loss(q: Array, expert_a: Array, *, margin: float) -> Array:
    """DQfD's classification loss: the expert's action should lead by `margin`.

    `max_a (q(a) + margin 1[a != expert_a]) - q(expert_a)`; the margin is inside the maximum.
    Hester et al.: "Deep Q-learning from Demonstrations" (2017), eq. (2).

    Args:
      q: Q-values of the state, `[A]`.
      expert_a: the expert's action, `[]` integer.
      margin: how far it should lead.
    """
    chex.assert_rank([q, expert_a], [1, 0])
    chex.assert_type([q, expert_a], [float, int])
    margins = jnp.where(jnp.arange(q.shape[0]) == expert_a, 0.0, margin)
    return jnp.max(q + margins) - q[expert_a]
