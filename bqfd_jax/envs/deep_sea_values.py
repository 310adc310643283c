"""DeepSea as arrays: rewards, dynamics, and optimal values by exact backward induction."""

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.envs import deep_sea
from bqfd_jax.types import Array


def optimal_q(params: deep_sea.Params, size: int, *, gamma: float) -> Array:
    """Optimal values of row, column and action id, `[N, N, 2]` float32, by backward induction.

    With deterministic dynamics these are the best returns themselves; with slips they are
    expectations over them.  Noise in the corners has mean 0 and does not enter.  Columns beyond
    the row cannot be reached from the start.
    """
    deep_sea.check_table(params.right_action, size)
    column = jnp.arange(size)
    to_left = jnp.maximum(column - 1, 0)
    to_right = jnp.minimum(column + 1, size - 1)

    def backup(value_below: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        row, right_action = inputs
        slip = params.slip_probability
        left = gamma * value_below[to_left]
        right = deep_sea.right_reward(params, row, column, size) + gamma * (
            (1.0 - slip) * value_below[to_right] + slip * value_below[column]
        )
        means_right = right_action[:, None] == jnp.arange(2)[None, :]
        q = jnp.where(means_right, right[:, None], left[:, None])
        return jnp.max(q, axis=1), q

    below_the_grid = jnp.zeros((size,), jnp.float32)
    inputs = (jnp.arange(size), params.right_action)
    _, q = jax.lax.scan(backup, below_the_grid, inputs, reverse=True)
    return q


def optimal_return(params: deep_sea.Params, size: int) -> Array:
    """The best undiscounted return from the start, `[]` float32; see `optimal_q`."""
    return jnp.max(optimal_q(params, size, gamma=1.0)[0, 0])


def reward_table(params: deep_sea.Params, size: int) -> Array:
    """Reward of every cell's actions, without noise, `[N, N, 2]` float32 indexed as `optimal_q`."""
    deep_sea.check_table(params.right_action, size)
    row, column = jnp.indices((size, size))
    right = deep_sea.right_reward(params, row, column, size)
    means_right = params.right_action[..., None] == jnp.arange(2)[None, None]
    return jnp.where(means_right, right[..., None], 0.0)


def dynamics(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Where moves lead if action 1 is right and none slips, for `tabular.Problem`.

    The step is the row, and a state is a column.  Returns transitions, `[N, N, 2, N]` float32
    indexed by row, column, action and the next column, and the first column's probabilities, `[N]`.
    """
    column = np.arange(size)
    transitions = np.zeros((size, size, 2, size), np.float32)
    transitions[:, column, 0, np.maximum(column - 1, 0)] = 1
    transitions[:, column, 1, np.minimum(column + 1, size - 1)] = 1
    return transitions, np.eye(1, size, dtype=np.float32)[0]


def is_optimal(returns: np.ndarray, case: str, best: float) -> np.ndarray:
    """Which episodes take the treasure at no needless cost, or keep clear of the bomb.

    Of undiscounted returns of any shape; in the case `bomb` all right moves but the one onto it are
    forgiven.
    """
    return returns >= (best - 1e-4 if case == "treasure" else -0.0101)
