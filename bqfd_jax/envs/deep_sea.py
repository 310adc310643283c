"""DeepSea: an N x N grid that the agent falls through, one row a step, moving left or right.

Right moves cost a little and only the path that never goes left reaches the bottom-right corner,
so that the one large reward is found by luck with probability 2^-N.  Three variants:

  * the paper's (`treasure`, `bomb`): the corner pays +1 or -1 INSTEAD of the move's cost and
    action 1 is right everywhere;
  * ours (`decoy`): as the paper's, but the corner pays half, and a cell beside its path pays all;
  * bsuite's (`bsuite`): the corner pays +1 ON TOP of the move's cost, the meaning of the actions
    may differ from cell to cell, and optionally right moves slip and corners pay noisily.

Osband, Van Roy, Russo, Wen: "Deep Exploration via Randomized Value Functions" (2019).

The corner pays for moving right in the last COLUMN, whatever the row, as in bsuite.  From the
start only its bottom cell can be reached (a column never exceeds its row), so this shows nowhere
but in the entries of `deep_sea_values.optimal_q` that no episode visits.
"""

from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.types import Array, Environment, EnvStep, Row


@chex.dataclass(frozen=True)
class Params:
    """What may vary under vmap, or between calls of one compiled function."""

    corner_reward: Array  # [] float32, for moving right in the last column
    move_cost: Array  # [] float32, of one right move; subtracted, slipped or not
    corner_pays_move_cost: Array  # [] bool, False: the corner's reward replaces the cost
    right_action: Array  # [N, N] int32, which action (0 or 1) means right in that cell
    slip_probability: Array  # [] float32, a right move goes straight down instead
    corner_noise: Array  # [] float32, standard deviation, paid in both bottom corners
    side_column: Array  # [] int32, of a second treasure in the last row; -1: there is none
    side_reward: Array  # [] float32, for moving right there, instead of the move's cost


@chex.dataclass(frozen=True)
class State:
    """Where the agent is."""

    row: Array  # [] int32, 0 .. N; N is below the grid, the episode is over
    column: Array  # [] int32, 0 .. N-1


Rule = Callable[[Array, Array, Params], Array]  # (key, frame [2], params) -> action [] int32


def treasure(size: int) -> Params:
    """The paper's DeepSea with +1 in the corner: the path all the way right is the best one."""
    return _paper(size, corner_reward=1.0)


def bomb(size: int) -> Params:
    """The paper's DeepSea with -1 in the corner: an expert who goes right all the way misleads."""
    return _paper(size, corner_reward=-1.0)


def decoy(size: int) -> Params:
    """A small treasure in the corner, a large one beside it: heading for the corner does half well.

    The corner pays 0.5.  Moving right in the middle of the last row pays 1: an agent on the way to
    the corner gets there by N / 4 moves to the left.
    """
    checks.require(size >= 3, "size", size, "at least 3: there must be room beside the corner")
    # From the diagonal, row + column stays even: an odd distance could not be reached from there.
    return _paper(size, corner_reward=0.5).replace(
        side_column=jnp.int32(size - 1 - 2 * max(size // 4, 1)), side_reward=jnp.float32(1.0)
    )


def bsuite(
    size: int,
    *,
    right_action: Array | None = None,
    stochastic: bool = False,
    unscaled_move_cost: float = 0.01,
) -> Params:
    """DeepSea by the rules of `bsuite.environments.deep_sea`.

    Args:
      size: number N of rows and columns, as for all that follows.
      right_action: which action, 0 or 1, means right in each cell, `[N, N]`; bsuite draws it from
        fair coins.  None: action 1 everywhere.
      stochastic: right moves slip with probability 1/N (and cost all the same), and any action in
        a bottom corner, left or right, adds N(0, 1) to its reward.
      unscaled_move_cost: cost of N right moves.
    """
    check_size(size)
    if right_action is None:
        right_action = jnp.ones((size, size), jnp.int32)
    check_table(right_action, size)
    if not checks.is_traced(right_action):
        zero_or_one = np.isin(right_action, (0, 1))
        checks.require(zero_or_one, "right_action", np.unique(right_action), "0 or 1 in every cell")
    return Params(
        corner_reward=jnp.float32(1.0),
        move_cost=jnp.float32(unscaled_move_cost / size),
        corner_pays_move_cost=jnp.bool_(True),
        right_action=jnp.asarray(right_action, jnp.int32),
        slip_probability=jnp.float32(1 / size if stochastic else 0.0),
        corner_noise=jnp.float32(1.0 if stochastic else 0.0),
        side_column=jnp.int32(-1),
        side_reward=jnp.float32(0.0),
    )


def make(size: int) -> Environment:
    """The environment for grids of one size; which DeepSea it is, `Params` says.

    An observation is the position `(row, column)`, `[2]` int32; after the last step it is
    `(N, column)`, below the grid.  The step never resets.  Stepping on after the end stays there,
    still terminated and with reward 0.  `reset` ignores its key; `step` consumes it.
    """
    check_size(size)

    def reset(key: Array, params: Params) -> tuple[State, Array]:
        del key
        check_table(params.right_action, size)
        state = State(row=jnp.int32(0), column=jnp.int32(0))
        return state, _observe(state)

    def step(key: Array, params: Params, state: State, action: Array) -> tuple[State, EnvStep]:
        check_table(params.right_action, size)
        chex.assert_rank([state.row, state.column, action], 0)
        slip_key, noise_key = jax.random.split(key)
        row, column = state.row, state.column
        running = row < size
        goes_right = action == params.right_action[row, column]

        at_bottom_corner = (row == size - 1) & ((column == 0) | (column == size - 1))
        noise = params.corner_noise * jax.random.normal(noise_key)
        reward = jnp.where(goes_right, right_reward(params, row, column, size), 0.0)
        reward = reward + jnp.where(at_bottom_corner, noise, 0.0)

        slips = jax.random.uniform(slip_key) < params.slip_probability
        # A slipped move keeps its column; it does not drift left.
        shift = jnp.where(goes_right, jnp.where(slips, 0, 1), -1)
        next_column = jnp.clip(column + shift, 0, size - 1)

        state = State(
            row=jnp.where(running, row + 1, row),
            column=jnp.where(running, next_column, column),
        )
        return state, EnvStep(
            observation=_observe(state),
            reward=jnp.where(running, reward, 0.0),
            terminated=state.row >= size,
            truncated=jnp.bool_(False),
        )

    return Environment(
        reset=reset, step=step, frame_shape=(2,), frame_dtype=jnp.int32, num_actions=2
    )


def encode_position(size: int) -> Callable[[Array], Array]:
    """Features for networks: row and column, each scaled so that the grid spans [-1, 1].

    From frames, `[..., 2]` integer, to `[..., 2]` float32.  The position below the grid is scaled
    alike and so lies one row beyond 1.
    """
    check_size(size)
    return lambda frame: 2.0 * jnp.asarray(frame, jnp.float32) / (size - 1) - 1.0


def encode_one_hot(size: int) -> Callable[[Array], Array]:
    """Features for networks: bsuite's observation, one of N*N cells, flattened row by row.

    From frames, `[..., 2]` integer, to `[..., N * N]` float32, all zeros for the position below the
    grid.
    """
    check_size(size)

    def encode(frame: Array) -> Array:
        frame = jnp.asarray(frame)
        # Row N gives indices of N * N and above, for which one_hot returns zeros.
        return jax.nn.one_hot(frame[..., 0] * size + frame[..., 1], size * size, dtype=jnp.float32)

    return encode


def always_right(key: Array, frame: Array, params: Params) -> Array:
    """The rule that heads for the corner: the paper's expert, be there a treasure or a bomb."""
    del key
    return params.right_action[frame[0], frame[1]]


def demonstrate(
    key: Array, env: Environment, params: Params, rule: Rule, *, size: int, gamma: float
) -> Row:
    """One whole episode of an action rule in `make(size)`, as rows `[N]` for a replay.

    The last row's discount is 0, and so none has `is_last` set.  The key is consumed.
    """
    reset_key, scan_key = jax.random.split(key)
    start = env.reset(reset_key, params)

    def advance(carry: tuple[State, Array], step_key: Array) -> tuple[tuple[State, Array], Row]:
        state, frame = carry
        rule_key, env_key = jax.random.split(step_key)
        action = jnp.asarray(rule(rule_key, frame, params), jnp.int32)
        state, env_step = env.step(env_key, params, state, action)
        row = Row(
            frame=frame,
            action=action,
            reward=env_step.reward,
            discount=jnp.where(env_step.terminated, 0.0, jnp.float32(gamma)),
            is_first=frame[0] == 0,
            is_last=jnp.bool_(False),
        )
        return (state, env_step.observation), row

    _, rows = jax.lax.scan(advance, start, jax.random.split(scan_key, size))
    return rows


def right_reward(params: Params, row: Array, column: Array, size: int) -> Array:
    """Reward of a right move from `row` and `column`, without noise; shaped like `column`."""
    corner_cost = jnp.where(params.corner_pays_move_cost, params.move_cost, 0.0)
    reward = jnp.where(column == size - 1, params.corner_reward - corner_cost, -params.move_cost)
    is_side = (row == size - 1) & (column == params.side_column)
    return jnp.where(is_side, params.side_reward, reward)


def check_size(size: int) -> None:
    """Raises `ValueError` unless there is room for a corner besides the start."""
    expected = "at least 2: on fewer columns the start is the corner"
    checks.require(size >= 2, "size", size, expected)


def check_table(right_action: Array, size: int) -> None:
    """Raises `ValueError` unless the parameters are for grids of this size."""
    if jnp.shape(right_action) != (size, size):
        raise ValueError(
            f"right_action has shape {jnp.shape(right_action)}, expected ({size}, {size}): "
            "use the same size for the parameters and the environment."
        )


def _paper(size: int, *, corner_reward: float) -> Params:
    return bsuite(size).replace(
        corner_reward=jnp.float32(corner_reward), corner_pays_move_cost=jnp.bool_(False)
    )


def _observe(state: State) -> Array:
    return jnp.stack([state.row, state.column])
