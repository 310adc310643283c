"""MinAtar's Breakout, Freeway and Seaquest in jnp: Atari games on a grid of 10 x 10 cells.

Young and Tian: "MinAtar: An Atari-Inspired Testbed for Thorough and Reproducible Reinforcement
Learning Experiments" (2019).  The games themselves are gymnax's; what is added here are MinAtar's
sticky actions, and time limits that are told apart from an episode's end.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import checks, extras
from bqfd_jax.types import Array, Environment, EnvStep

# Steps after which an episode is cut; Freeway's is MinAtar's own, the others have none there.
TIME_LIMITS = {"Breakout": 1_000, "Freeway": 2_500, "Seaquest": 1_000}
GAMES = tuple(TIME_LIMITS)
# Bullets, fish, submarines and divers that Seaquest has room for, of each kind.
_ROOM = 25


class Params(NamedTuple):
    """What may vary under vmap."""

    sticky: Array  # [] float32, probability that the action before is taken again
    time_limit: Array  # [] int32, steps after which an episode is truncated


@chex.dataclass(frozen=True)
class State:
    """A game, and what its stickiness and its time limit need."""

    game: Any  # gymnax's
    action: Array  # [] int32, the last that was taken
    time: Array  # [] int32, steps of the episode


def default_params(game: str, *, sticky: float = 0.1) -> Params:
    """MinAtar's: one action in ten is the one before once more."""
    checks.one_of(TIME_LIMITS, game=game)
    checks.within(0, 1, sticky=sticky)
    return Params(jnp.float32(sticky), jnp.int32(TIME_LIMITS[game]))


def make(game: str) -> Environment:
    """A game; an observation is `[10, 10, C]` uint8 of zeros and ones, a channel per kind of thing.

    The actions are those that do something in the game.  The step never resets.
    """
    checks.one_of(TIME_LIMITS, game=game)
    gymnax = extras.load("gymnax", "minatar", f"MinAtar's {game}")
    made, theirs = gymnax.make(f"{game}-MinAtar")

    def observe(observation: Array) -> Array:
        return observation.astype(jnp.uint8)

    def reset(key: Array, params: Params) -> tuple[State, Array]:
        del params
        with _quick_seaquest():
            observation, state = made.reset_env(key, theirs)
        # Strong types: a reset is put in the place of what a step has left.
        state = jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), state)
        return State(game=state, action=jnp.int32(0), time=jnp.int32(0)), observe(observation)

    def step(key: Array, params: Params, state: State, action: Array) -> tuple[State, EnvStep]:
        chex.assert_rank(action, 0)
        sticky_key, game_key = jax.random.split(key)
        sticks = jax.random.uniform(sticky_key) < params.sticky
        action = jnp.where(sticks, state.action, action).astype(jnp.int32)
        with _quick_seaquest():
            observation, game, reward, terminated, _ = made.step_env(
                game_key, state.game, action, theirs
            )
        time = state.time + 1
        return State(game=game, action=action, time=time), EnvStep(
            observation=observe(observation),
            reward=reward,
            terminated=terminated,
            truncated=(time >= params.time_limit) & ~terminated,
        )

    return Environment(
        reset=reset,
        step=step,
        frame_shape=tuple(made.obs_shape),
        frame_dtype=jnp.uint8,
        num_actions=made.num_actions,
    )


def compact(entities: Array, keep: Array) -> tuple[Array, Array]:
    """What Seaquest removes things with: the kept rows `[n, F]` first, then zeros; how many.

    By a matrix, because a CPU scatters one row at a time.
    """
    place = jnp.cumsum(keep) - 1
    goes = keep[None, :] & (place[None, :] == jnp.arange(keep.shape[0])[:, None])
    moved = jnp.sum(jnp.where(goes[..., None], entities[None], 0), axis=1)
    return moved.astype(entities.dtype), jnp.sum(keep, dtype=jnp.int32)


@contextlib.contextmanager
def _quick_seaquest() -> Iterator[None]:
    """While Seaquest is traced: room for as many things as there can be, and our `compact`.

    gymnax has room for 100 of each kind, which takes most of the time (BUILD_NOTES).
    """
    names = [f"gymnax.environments.minatar.{name}" for name in ("seaquest", "seaquest_helpers")]
    modules = [extras.load(name, "minatar", "MinAtar's Seaquest") for name in names]
    ours = {"MAX_ENTITIES": _ROOM, "compact": compact}
    theirs = [{name: getattr(module, name) for name in ours} for module in modules]
    try:
        for module in modules:
            vars(module).update(ours)
        yield
    finally:
        for module, values in zip(modules, theirs, strict=True):
            vars(module).update(values)
