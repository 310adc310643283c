"""The paper's idea as small functions of one state's Q-values; the caller vmaps.

Che, Zhu, Precup, Meger, Dudek: "Bayesian Q-learning With Imperfect Expert Demonstrations" (2022).
The expert is taken to be Boltzmann in the optimal Q-values, eq. (2): it prefers better actions but
errs.  Seeing its action therefore says something about the Q-values, and how far they should move
for it depends on how uncertain they still are.
"""

import functools

import chex
import jax
import jax.numpy as jnp

from bqfd_jax.types import Array


def boltzmann_policy(q: Array, *, eta: float) -> Array:
    """Action probabilities `exp(eta q(a)) / sum_b exp(eta q(b))`, `[A]`, eq. (2).

    Args:
      q: Q-values of one state, `[A]`.
      eta: how sharply the expert prefers better actions; 0 is uniform play.
    """
    chex.assert_rank(q, 1)
    chex.assert_type(q, float)
    return jax.nn.softmax(eta * q)


def expert_log_likelihood(q: Array, expert_a: Array, *, eta: float) -> Array:
    """Log-probability, `[]`, of the expert's action under `boltzmann_policy`.

    Its gradient in `q` is `eta (1[a = expert_a] - pi(a))`, which is what `expert_correction` adds
    to a Q-value after scaling by the posterior variance.

    Args:
      q: Q-values of one state, `[A]`.
      expert_a: the expert's action, `[]` integer.
      eta: Boltzmann parameter of the expert, here and below.
    """
    chex.assert_rank([q, expert_a], [1, 0])
    chex.assert_type([q, expert_a], [float, int])
    return jax.nn.log_softmax(eta * q)[expert_a]


def visit_weight(count: Array, *, beta: float, variance: float, noise_ratio: float = 4.0) -> Array:
    """Approximate posterior variance of a Q-value after `count` updates (Algorithm 2's `w_n`).

    With step sizes `1 / (beta + k)` the estimate after n updates is
    `(beta q_0 + sum_k target_k) / (beta + n)`.  If `q_0` has variance `variance` and every target
    `noise_ratio * variance`, the estimate has variance

        w_n = variance (beta^2 + noise_ratio n) / (beta + n)^2.

    The paper prints it with `noise_ratio = 4`: targets four times as noisy as the prior.  It falls
    like 1/n; with `beta < noise_ratio / 2` it rises first, as one target is then worth less than
    the prior.

    Args:
      count: number of visits n, any shape, integer or float.
      beta: pseudo-count of the prior, greater than 0.
      variance: variance of the prior (the paper's lambda).
      noise_ratio: variance of one target as a multiple of `variance`.
    """
    n = jnp.asarray(count, jnp.float32)
    return variance * (beta**2 + noise_ratio * n) / (beta + n) ** 2


def ensemble_weight(q: Array, a: Array, *, initial: Array | float, variance: float) -> Array:
    """Posterior variance of `Q(s, a)`, `[]`, as the members of an ensemble disagree about it.

    Members that begin as samples of the prior and learn from the data are samples of the posterior.
    How much of their first disagreement is left is how much of the prior's variance is left:

        w = variance min(Var_k Q_k(s, a) / initial, 1).

    So it begins where `visit_weight` begins, and what makes it fall is not how often a row was
    replayed but what is known of its action.

    Args:
      q: Q-values of one state by every member, `[K, A]`.
      a: action, `[]` integer.
      initial: the members' variance before anything was learnt, greater than 0.
      variance: variance of the prior (the paper's lambda), which is the most that comes out.
    """
    chex.assert_rank([q, a], [2, 0])
    chex.assert_type([q, a], [float, int])
    return variance * jnp.minimum(jnp.var(q[:, a]) / initial, 1.0)


def predictive_log_likelihood(q: Array, expert_a: Array, *, eta: Array | float) -> Array:
    """Log-probability, `[]`, of the expert's action if all that is known of Q is in the members.

    `log mean_k pi_k(expert_a)`: the likelihood of eq. (2), averaged over the posterior.

    Args:
      q: Q-values of one state by every member, `[K, A]`.
      expert_a: the expert's action, `[]` integer.
      eta: Boltzmann parameter of the expert.
    """
    chex.assert_rank([q, expert_a], [2, 0])
    each = jax.vmap(functools.partial(expert_log_likelihood, eta=eta), in_axes=(0, None))
    return jax.nn.logsumexp(each(q, expert_a)) - jnp.log(q.shape[0])


def expert_correction(
    q_tm1: Array, a_tm1: Array, expert_a_tm1: Array, weight: Array, *, eta: float
) -> Array:
    """What the expert's choice adds to `Q(s, a)`: `eta w (1[a = a_exp] - pi(a))` (Algorithm 1).

    Positive for the action the expert took, negative for any other.  Gradients flow through
    `q_tm1`; the losses decide where to stop them.

    Args:
      q_tm1: Q-values of the state, `[A]`.
      a_tm1: action whose value is corrected, `[]` integer.
      expert_a_tm1: action the expert took in this state, `[]` integer.
      weight: variance of the Q-value, e.g. from `visit_weight`, `[]`.
      eta: Boltzmann parameter.
    """
    chex.assert_rank([q_tm1, a_tm1, expert_a_tm1, weight], [1, 0, 0, 0])
    chex.assert_type([q_tm1, a_tm1, expert_a_tm1, weight], [float, int, int, float])
    probability = boltzmann_policy(q_tm1, eta=eta)[a_tm1]
    agrees = (a_tm1 == expert_a_tm1).astype(q_tm1.dtype)
    return eta * weight * (agrees - probability)


def path_correction(q: Array, a: Array, discount: Array, weight: Array, *, eta: float) -> Array:
    """Expert corrections of K steps of an expert's path, as one n-step target holds them.

    If every Bellman target on the way holds its own correction `c_k`, unrolling the recursion
    leaves `sum_k discount_k c_k`, where `discount_k` is the product of the discounts before step k.

    Args:
      q: Q-values of the K states, `[K, A]`.
      a: the expert's actions, `[K]` integer.
      discount: what each step's correction is worth, `[K]`; 0 past the episode's end.
      weight: variances, `[K]`.
      eta: Boltzmann parameter.
    """
    chex.assert_rank([q, a, discount, weight], [2, 1, 1, 1])
    corrections = jax.vmap(functools.partial(expert_correction, eta=eta))(q, a, a, weight)
    return jnp.sum(discount * corrections)


def off_policy_weight(q_tm1: Array, a_tm1: Array, *, eta: float, zeta: float) -> Array:
    """Loss weight `pi(a)^zeta` of an expert sample (section 5), in place of an importance ratio.

    Args:
      q_tm1: Q-values of the state, `[A]`.
      a_tm1: action taken, `[]` integer.
      eta: Boltzmann parameter.
      zeta: power that keeps weights from vanishing; 0 weighs all samples alike.
    """
    # Not pi ** zeta, whose gradient is infinite where pi underflows.
    return jnp.exp(zeta * expert_log_likelihood(q_tm1, a_tm1, eta=eta))


def path_off_policy_weight(
    q: Array, a: Array, discount: Array, *, eta: float, zeta: float
) -> Array:
    """Loss weight of an expert's path: the product of `off_policy_weight` over its K steps.

    Args:
      q: Q-values of the K states, `[K, A]`.
      a: actions taken, `[K]` integer.
      discount: `[K]`; where it is 0 the episode is over, and there is no choice to explain.
      eta: Boltzmann parameter.
      zeta: power of each step's probability.
    """
    chex.assert_rank([q, a, discount], [2, 1, 1])
    weights = jax.vmap(functools.partial(off_policy_weight, eta=eta, zeta=zeta))(q, a)
    return jnp.prod(jnp.where(discount > 0, weights, 1.0))
