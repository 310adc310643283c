"""A grid with walls, a goal and pits, in jnp; on ice an agent may slip aside.

One compiled program serves every map of a size, since the map is a parameter.
"""

from collections.abc import Sequence
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.types import Array, Environment, EnvStep

UP, RIGHT, DOWN, LEFT = range(4)
_MOVES = np.array([[-1, 0], [0, 1], [1, 0], [0, -1]], np.int32)  # by action
_CELLS = ".#GPS"  # free, wall, goal, pit, start


class GridParams(NamedTuple):
    """What a map says; all of it may vary under vmap."""

    wall: Array  # [H, W] bool, cannot be entered
    goal: Array  # [H, W] bool, pays 1 and ends the episode
    pit: Array  # [H, W] bool, costs 1 and ends the episode
    start: Array  # [2] int32, row and column
    slip: Array  # [] float32, probability of going aside, half of it to each side
    step_cost: Array  # [] float32
    time_limit: Array  # [] int32, steps after which an episode is truncated


@chex.dataclass(frozen=True)
class GridState:
    """Where the agent is."""

    place: Array  # [2] int32, row and column
    time: Array  # [] int32, steps of the episode


def parse(
    rows: Sequence[str], *, slip: float = 0.0, step_cost: float = 0.01, time_limit: int = 100
) -> GridParams:
    """Parameters of a drawn map.

    Args:
      rows: equally long strings of `.` free, `#` wall, `G` goal, `P` pit and one `S` start.
      slip: probability of going aside instead of ahead.
      step_cost: paid by every step.
      time_limit: steps after which an episode is truncated.
    """
    if not rows or len({len(row) for row in rows}) != 1:
        raise ValueError("the rows of a map must be equally long, and there must be some")
    unknown = sorted(set("".join(rows)) - set(_CELLS))
    if unknown:
        raise ValueError(f"a map has {unknown}, but may have only {', '.join(_CELLS)}")
    if "".join(rows).count("S") != 1:
        raise ValueError("a map must have one start S")
    checks.within(0, 1, slip=slip)
    checks.at_least(1, time_limit=time_limit)
    cells = np.array([list(row) for row in rows])
    return GridParams(
        wall=jnp.asarray(cells == "#"),
        goal=jnp.asarray(cells == "G"),
        pit=jnp.asarray(cells == "P"),
        start=jnp.asarray(np.argwhere(cells == "S")[0], jnp.int32),
        slip=jnp.float32(slip),
        step_cost=jnp.float32(step_cost),
        time_limit=jnp.int32(time_limit),
    )


def make(height: int, width: int) -> Environment:
    """The environment of all maps of that size; an observation is (row, column) in [0, 1]."""
    if height * width < 2 or min(height, width) < 1:
        raise ValueError(f"a grid of {height} x {width} has no room to move")
    sides = np.maximum(np.array([height, width], np.int32) - 1, 1)

    def check(params: GridParams) -> None:
        # Places beyond a smaller map would silently be those at its border.
        if params.wall.shape != (height, width):
            raise ValueError(
                f"a map of {' x '.join(map(str, params.wall.shape))} does not fit an environment "
                f"of {height} x {width}"
            )

    def observe(place: Array) -> Array:
        return place / jnp.asarray(sides, jnp.float32)

    def reset(key: Array, params: GridParams) -> tuple[GridState, Array]:
        del key
        check(params)
        return GridState(place=params.start, time=jnp.int32(0)), observe(params.start)

    def step(
        key: Array, params: GridParams, state: GridState, action: Array
    ) -> tuple[GridState, EnvStep]:
        draw = jax.random.uniform(key)
        aside = jnp.where(draw < params.slip / 2, -1, jnp.where(draw < params.slip, 1, 0))
        ahead = state.place + jnp.asarray(_MOVES)[(action + aside) % 4]
        inside = jnp.clip(ahead, 0, jnp.array([height - 1, width - 1]))
        blocked = params.wall[inside[0], inside[1]]
        place = jnp.where(blocked, state.place, inside)
        at = (place[0], place[1])
        terminated = params.goal[at] | params.pit[at]
        time = state.time + 1
        reward = jnp.float32(params.goal[at]) - jnp.float32(params.pit[at]) - params.step_cost
        return GridState(place=place, time=time), EnvStep(
            observation=observe(place),
            reward=reward,
            terminated=terminated,
            truncated=(time >= params.time_limit) & ~terminated,
        )

    return Environment(
        reset=reset, step=step, frame_shape=(2,), frame_dtype=jnp.float32, num_actions=4
    )
