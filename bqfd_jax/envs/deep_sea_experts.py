"""Experts for DeepSea, good, bad and in between, and the demonstrations that they give.

An expert is a table: the probability of action 1 in every cell, `[N, N]` float32.  So experts of
every kind have one shape, and a batch of them is one array.
"""

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.envs import deep_sea
from bqfd_jax.types import Array, Environment, Row


def boltzmann(q: Array, eta: float) -> Array:
    """An expert that takes actions in proportion to `exp(eta q)`.

    `q`, `[N, N, 2]`, is what it takes the actions to be worth, e.g. `deep_sea_values.optimal_q`.
    With an eta of infinity it always takes the best action, with 0 any, with minus infinity the
    worst.
    """
    checks.require(not np.isnan(eta), "eta", eta, "a number; it may be infinite")
    gap = q[..., 1] - q[..., 0]
    if np.isinf(eta):
        return (gap * np.sign(eta) > 0).astype(jnp.float32)
    return jax.nn.sigmoid(eta * gap)


def erring(q: Array, probability: float) -> Array:
    """An expert that takes the worse action with this probability, whatever it costs.

    The action values `q` are `[N, N, 2]`.
    """
    checks.within(0, 1, probability=probability)
    return jnp.where(q[..., 1] > q[..., 0], 1.0 - probability, probability)


def right_until(q: Array, row: int) -> Array:
    """An expert that takes the best action above this row, and the worst from there on.

    The action values `q` are `[N, N, 2]`.
    """
    above = jnp.arange(q.shape[0])[:, None] < row
    return jnp.where(above, boltzmann(q, np.inf), boltzmann(q, -np.inf))


def show(
    key: Array,
    env: Environment,
    params: deep_sea.Params,
    experts: Array,
    *,
    first: Array,
    trajectories: Array,
    rows: Array,
    max_trajectories: int,
    size: int,
    gamma: float,
) -> Row:
    """Demonstrations, as many rows whatever is shown, so that their number may be traced.

    Each trajectory has a slot of N rows.  What is not shown is filled with rows that start no
    transition (`is_last`): a replay never draws them, and no path leads there.

    Args:
      key: consumed.  With the same key, fewer trajectories are the first of more.
      env: `deep_sea.make(size)`.
      params: which DeepSea.
      experts: `[M, N, N]`; they take turns.
      first: which expert begins.
      trajectories: how many are shown, at most `max_trajectories`.
      rows: how many transitions of each, at most N.  Of a trajectory that is cut off, the frame
        where that happened is kept, and the last transition bootstraps from it.
      max_trajectories: slots.
      size: number N of rows of the grid.
      gamma: discount per step.

    Returns:
      Rows of shape `[max_trajectories * N]`.
    """
    experts = jnp.asarray(experts)
    num_experts = experts.shape[0]
    number = jnp.arange(max_trajectories)

    def play(key: Array, number: Array) -> Row:
        expert = experts[(first + number) % num_experts]

        def rule(key: Array, frame: Array, params: deep_sea.Params) -> Array:
            del params
            return jax.random.bernoulli(key, expert[frame[0], frame[1]])

        return deep_sea.demonstrate(key, env, params, rule, size=size, gamma=gamma)

    played = jax.vmap(play)(jax.random.split(key, max_trajectories), number)
    is_there = (number < trajectories)[:, None]
    step = jnp.arange(size)[None]
    starts = is_there & (step < rows)  # a transition
    is_seen = is_there & (step <= rows)

    def only(where: Array, values: Array) -> Array:
        """Zeros elsewhere."""
        where = where.reshape(where.shape + (1,) * (values.ndim - where.ndim))
        return jnp.where(where, values, jnp.zeros_like(values))

    shown = Row(
        frame=only(is_seen, played.frame),
        action=only(starts, played.action),
        reward=only(starts, played.reward),
        discount=only(starts, played.discount),
        is_first=played.is_first | ~is_seen,
        is_last=~starts,
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), shown)
