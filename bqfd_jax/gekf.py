"""The exact filter for small problems: the paper's Algorithm 1 (GEKF) with a full covariance.

A finite-horizon problem is given as arrays.  The filter goes backwards: from the Gaussian belief
about Q-values at step h + 1 to a prediction for step h by the Bellman equation, then to a posterior
given the expert's actions there.  Beliefs are about all `S * A` values of a step at once, in the
order of `q.reshape(-1)`.
"""

from typing import Literal, NamedTuple, get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks, posterior
from bqfd_jax.types import Array

Correction = Literal["diagonal", "full"]

NO_EXPERT = -1
_STEP_LENGTHS = 2.0 ** -np.arange(20)


class Belief(NamedTuple):
    """A Gaussian belief about the Q-values of a step (or, stacked, of all steps)."""

    mean: Array  # [S, A]
    covariance: Array  # [S * A, S * A]


def predict(
    following: Belief, reward: Array, next_state: Array, *, gamma: float, noise: float
) -> Belief:
    """What the Bellman equation says of step h, `q_h = r + gamma max q_{h+1}(s') + noise`.

    The maximum is treated as linear around the mean, as in the paper: `T` picks, for every (s, a),
    the best action of the state that it leads to, and carries the discount.  The covariance is
    `T W T' + noise I` (the paper prints `T' W T`).

    Args:
      following: belief about step h + 1.
      reward: sampled rewards, `[S, A]`.
      next_state: sampled next states, `[S, A]` integer.
      gamma: discount per step.
      noise: variance of the Bellman equation (the paper's lambda).
    """
    chex.assert_rank([reward, next_state], 2)
    num_actions = reward.shape[1]
    next_state = jnp.asarray(next_state, jnp.int32)
    best = jnp.argmax(following.mean, axis=1)
    chosen = (next_state * num_actions + best[next_state]).reshape(-1)
    mean = reward + gamma * following.mean.reshape(-1)[chosen].reshape(reward.shape)
    covariance = gamma**2 * following.covariance[chosen][:, chosen]
    return Belief(mean, covariance + noise * jnp.eye(chosen.shape[0], dtype=mean.dtype))


def correct(
    predicted: Belief,
    expert_action: Array,
    *,
    eta: float,
    correction: Correction = "diagonal",
    iterations: int = 1,
) -> Belief:
    """What the expert's actions say on top of a prediction.

    The posterior covariance is `(W^-1 + U)^-1` with U minus the Hessian of the expert
    log-likelihood; it is computed without an inverse of W or U, either of which may be singular,
    and stays symmetric and positive semi-definite as long as `eta^2 W` is within float precision.
    It is the curvature where the last step began.

    Args:
      predicted: the belief before.
      expert_action: what the expert did in every state, `[S]` integer; `NO_EXPERT` where unknown.
      eta: Boltzmann parameter of the expert.
      correction: how the mean moves along the gradient of the log-likelihood: by the covariance's
        diagonal (the paper's algorithm box), or by all of it (its derivation), which is exactly one
        Newton step on the negative log posterior.
      iterations: Newton steps of the full correction; with enough of them the mean is the
        posterior's mode.  The second and later ones are shortened where they would overshoot.
    """
    checks.one_of(get_args(Correction), correction=correction)
    checks.require(
        iterations == 1 or (iterations > 1 and correction == "full"),
        "iterations",
        iterations,
        "at least 1, and 1 unless correction='full'",
    )
    if correction == "diagonal":
        return _diagonal_step(predicted, expert_action, eta)
    start = jnp.zeros_like(predicted.mean.reshape(-1))
    first = _newton_step(predicted, expert_action, eta, start)
    (z, covariance), _ = jax.lax.scan(
        lambda carry, _: (_shortened_step(predicted, expert_action, eta, carry[0]), None),
        first,
        length=iterations - 1,
    )
    moved = _at(predicted, z)
    return Belief(moved.reshape(predicted.mean.shape), covariance)


def _diagonal_step(predicted: Belief, expert_action: Array, eta: float) -> Belief:
    """The mean moves along the gradient, each value by its own variance."""
    mean, covariance = predicted
    updated = _update_covariance(covariance, _curvature_factor(mean, expert_action, eta=eta))
    gradient = jax.grad(expert_log_likelihood)(mean, expert_action, eta=eta).reshape(-1)
    moved = mean.reshape(-1) + jnp.diagonal(updated) * gradient
    return Belief(moved.reshape(mean.shape), updated)


def _at(predicted: Belief, z: Array) -> Array:
    """The Q-values `mean + W z` of all (s, a), in which Newton's steps need no inverse of W."""
    return predicted.mean.reshape(-1) + predicted.covariance @ z


def _newton_step(
    predicted: Belief, expert_action: Array, eta: float, z: Array
) -> tuple[Array, Array]:
    """One step on z, and the covariance where it began."""
    mean, covariance = predicted
    q = _at(predicted, z)
    factor = _curvature_factor(q.reshape(mean.shape), expert_action, eta=eta)
    gradient = jax.grad(expert_log_likelihood)(q.reshape(mean.shape), expert_action, eta=eta)
    pull = factor @ (factor.T @ (q - mean.reshape(-1))) + gradient.reshape(-1)
    inner = _inner(covariance, factor)
    z = pull - factor @ jnp.linalg.solve(inner, factor.T @ (covariance @ pull))
    return z, _update_covariance(covariance, factor)


def _shortened_step(
    predicted: Belief, expert_action: Array, eta: float, z: Array
) -> tuple[Array, Array]:
    """A Newton step of that length, of `_STEP_LENGTHS`, which leads deepest down."""

    def energy(z: Array) -> Array:
        """The negative log posterior, but for a constant."""
        moved = predicted.covariance @ z
        q = (predicted.mean.reshape(-1) + moved).reshape(predicted.mean.shape)
        return 0.5 * z @ moved - expert_log_likelihood(q, expert_action, eta=eta)

    step, covariance = _newton_step(predicted, expert_action, eta, z)
    lengths = jnp.asarray(_STEP_LENGTHS, z.dtype)
    candidates = jax.vmap(lambda length: z + length * (step - z))(lengths)
    return candidates[jnp.argmin(jax.vmap(energy)(candidates))], covariance


def backward_filter(
    rewards: Array,
    next_states: Array,
    expert_actions: Array,
    *,
    eta: float,
    gamma: float = 1.0,
    noise: float = 1.0,
    correction: Correction = "diagonal",
    iterations: int = 1,
) -> Belief:
    """Algorithm 1: beliefs about all steps, from the last to the first.

    Args:
      rewards: sampled rewards, `[H, S, A]`.
      next_states: sampled next states, `[H, S, A]` integer.
      expert_actions: `[H, S]` integer, `NO_EXPERT` where unknown.
      eta: Boltzmann parameter of the expert, at least 0.
      gamma: discount per step, in [0, 1].
      noise: variance of the Bellman equation, greater than 0.
      correction: see `correct`.
      iterations: see `correct`.

    Returns:
      Beliefs stacked along a leading axis of H.
    """
    steps = check(rewards, next_states, expert_actions, eta=eta, gamma=gamma, noise=noise)
    _, num_states, num_actions = steps[0].shape
    dtype = jnp.result_type(float)

    def backward(following: Belief, step: tuple[Array, Array, Array]) -> tuple[Belief, Belief]:
        reward, next_state, expert_action = step
        predicted = predict(following, reward, next_state, gamma=gamma, noise=noise)
        belief = correct(
            predicted, expert_action, eta=eta, correction=correction, iterations=iterations
        )
        return belief, belief

    end = Belief(
        jnp.zeros((num_states, num_actions), dtype),
        jnp.zeros((num_states * num_actions,) * 2, dtype),
    )
    rewards, next_states, expert_actions = steps
    steps = (
        jnp.asarray(rewards, dtype),
        jnp.asarray(next_states, jnp.int32),
        jnp.asarray(expert_actions, jnp.int32),
    )
    return jax.lax.scan(backward, end, steps, reverse=True)[1]


def objective(
    q: Array,
    rewards: Array,
    next_states: Array,
    expert_actions: Array,
    *,
    eta: float,
    gamma: float = 1.0,
    noise: float = 1.0,
) -> Array:
    """The paper's J: minus the log posterior of all steps' Q-values, but for a constant, `[]`.

    Its minimum is what the filter approximates, step by step and without looking back.  `q` has
    the Q-values of all steps, `[H, S, A]`; the other arguments are those of `backward_filter`.
    """
    value = jnp.concatenate([jnp.max(q[1:], axis=-1), jnp.zeros_like(q[:1, :, 0])])
    target = rewards + gamma * jax.vmap(lambda v, s: v[s])(value, next_states)
    fit = jax.vmap(lambda q, a: expert_log_likelihood(q, a, eta=eta))(q, expert_actions)
    return 0.5 * jnp.sum((q - target) ** 2) / noise - jnp.sum(fit)


def expert_log_likelihood(q: Array, expert_action: Array, *, eta: float) -> Array:
    """Log-probability of the expert's actions in all states of a step, `[]`."""
    known = expert_action != NO_EXPERT
    action = jnp.where(known, expert_action, 0)
    log_p = jax.vmap(lambda q, a: posterior.expert_log_likelihood(q, a, eta=eta))(q, action)
    return jnp.sum(jnp.where(known, log_p, 0.0))


def _curvature_factor(q: Array, expert_action: Array, *, eta: float) -> Array:
    """G with `G G' = U`, minus the Hessian of the expert log-likelihood, `[S * A, S * A]`.

    U has the block `eta^2 (diag(pi) - pi pi')` for every state with an expert action.
    """
    num_states, num_actions = q.shape
    pi = jax.vmap(lambda q: posterior.boltzmann_policy(q, eta=eta))(q)
    root = jnp.sqrt(pi)
    blocks = root[:, :, None] * jnp.eye(num_actions)[None] - pi[:, :, None] * root[:, None, :]
    blocks = eta * jnp.where((expert_action != NO_EXPERT)[:, None, None], blocks, 0.0)
    whole = jnp.zeros((num_states, num_actions, num_states, num_actions), q.dtype)
    state = jnp.arange(num_states)
    whole = whole.at[state, :, state, :].set(blocks)
    return whole.reshape(num_states * num_actions, -1)


def _inner(covariance: Array, factor: Array) -> Array:
    return jnp.eye(factor.shape[1], dtype=factor.dtype) + factor.T @ covariance @ factor


def _update_covariance(covariance: Array, factor: Array) -> Array:
    """`(W^-1 + G G')^-1` in Joseph's form, a sum of squares, so that it stays positive."""
    gain = jnp.linalg.solve(_inner(covariance, factor), factor.T @ covariance).T
    rest = jnp.eye(covariance.shape[0], dtype=covariance.dtype) - gain @ factor.T
    updated = rest @ covariance @ rest.T + gain @ gain.T
    return 0.5 * (updated + updated.T)


def check(
    rewards: Array,
    next_states: Array,
    expert_actions: Array,
    *,
    eta: float,
    gamma: float,
    noise: float,
) -> tuple[Array, Array, Array]:
    """Raises `ValueError` for arrays that do not fit each other and for values out of range.

    Values that are being traced are not looked at; their shapes are.  Returns the first three as
    arrays.
    """
    arrays = tuple(map(checks.as_array, (rewards, next_states, expert_actions)))
    rewards, next_states, expert_actions = arrays
    checks.shape(("H", "S", "A"), rewards=rewards)
    horizon, num_states, num_actions = rewards.shape
    checks.at_least(1, H=horizon, S=num_states, A=num_actions)
    checks.finite(rewards=rewards)
    checks.shape(rewards.shape, next_states=next_states)
    checks.shape(rewards.shape[:2], expert_actions=expert_actions)
    checks.integers(0, num_states - 1, next_states=next_states)
    checks.integers(NO_EXPERT, num_actions - 1, expert_actions=expert_actions)
    checks.at_least(0, eta=eta)
    checks.within(0, 1, gamma=gamma)
    # Less than the smallest normal number counts as 0.
    enough = checks.is_traced(noise) or np.finfo(np.float32).tiny <= noise < np.inf
    checks.require(enough, "noise", noise, "greater than 0")
    return arrays
