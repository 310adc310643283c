"""From demonstrations of either kind to the rows of an environment that they fit."""

import dataclasses
import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from bqfd_jax.demos.demonstration import ActionDemonstration, Demonstration
from bqfd_jax.demos.frames import FrameDemonstration
from bqfd_jax.demos.playback import to_rows
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.envs import atari
from bqfd_jax.envs.gymnasium import FRAME_DTYPES
from bqfd_jax.types import HostEnvironment, Row


def as_list(demonstrations: Demonstration | Iterable[Demonstration] | None) -> list[Demonstration]:
    """None, one or several demonstrations as a list; raises `DemonstrationError` for others."""
    if demonstrations is None:
        return []
    if isinstance(demonstrations, str | os.PathLike) or not isinstance(demonstrations, Iterable):
        demonstrations = [demonstrations]
    found = list(demonstrations)
    for demonstration in found:
        if not isinstance(demonstration, Demonstration):
            raise DemonstrationError(
                "a demonstration is what demos.load, demonstration_from_arrays or record gives, "
                f"not a {type(demonstration).__name__}"
            )
    return found


def with_unique_names(demonstrations: Sequence[Demonstration]) -> tuple[Demonstration, ...]:
    """The same demonstrations; the second one of name `a` is called `a-2`, and so on."""
    taken: list[str] = []
    for demonstration in demonstrations:
        numbered = (f"{demonstration.name}-{number}" for number in itertools.count(2))
        taken.append(
            next(n for n in itertools.chain([demonstration.name], numbered) if n not in taken)
        )
    return tuple(
        dataclasses.replace(demonstration, name=name)
        for demonstration, name in zip(demonstrations, taken, strict=True)
    )


def sizes(demonstrations: Sequence[Demonstration]) -> dict[str, int]:
    """Name -> rows, in the order of the rows that `rows_for` gives; names must differ."""
    return {demonstration.name: demonstration.num_rows for demonstration in demonstrations}


def rows_for(
    env: HostEnvironment,
    demonstrations: Demonstration | Iterable[Demonstration] | None,
    *,
    gamma: float,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Row | None:
    """Rows of all demonstrations, one after the other, as if they had been seen in `env`.

    Lists of actions are played back, which only `envs.atari.Atari` can do, and kept in `cache_dir`:
    see `to_rows`.  Rewards are transformed and lost lives are counted as the environment does it,
    if it has the attributes `transform_reward` (from rewards to those that are learnt from) and
    `life_loss_is_terminal`.

    Returns:
      Rows `[E, ...]`, numpy; None if there are no demonstrations.

    Raises:
      DemonstrationError: one of them does not fit the environment or the others.
    """
    found = as_list(demonstrations)
    for demonstration in found:
        _check_fits(env, demonstration)
    _check_meanings(found)
    parts = [_rows(env, demonstration, gamma, cache_dir) for demonstration in found]
    if not parts:
        return None
    return jax.tree.map(lambda *fields: np.concatenate(fields), *parts)


def _rows(env: HostEnvironment, demonstration: Demonstration, gamma: float, cache_dir: Any) -> Row:
    transform = getattr(env, "transform_reward", None)
    # Then what is played back can be read from the disk the next time.
    by_log = transform is atari.log_reward
    rows = to_rows(
        _with_frames_of(env, demonstration),
        gamma=gamma,
        log_rewards=by_log,
        life_loss_is_terminal=getattr(env, "life_loss_is_terminal", True),
        cache_dir=cache_dir,
    )
    if transform is None or by_log:
        return rows
    return rows.replace(reward=np.asarray(transform(rows.reward), np.float32))


def _with_frames_of(env: HostEnvironment, demonstration: Demonstration) -> Demonstration:
    """The demonstration with frames of the environment's dtype, which may be narrower."""
    if isinstance(demonstration, ActionDemonstration):
        return demonstration
    frames = demonstration.frames.astype(env.frame_dtype, copy=False)
    return dataclasses.replace(demonstration, frames=frames)


# --- What fits, and what does not ---


def _check_fits(env: HostEnvironment, demonstration: Demonstration) -> None:
    title = f"the demonstration {demonstration.name!r}" if demonstration.name else "it"
    is_game = isinstance(env, atari.Atari)
    if isinstance(demonstration, ActionDemonstration) and not is_game:
        raise DemonstrationError(
            f"{title} is a list of actions of the Atari game {demonstration.game}, which can be "
            "played back only in envs.atari.Atari; this environment needs a demonstration that "
            "has frames: see record, demonstration_from_arrays and demos.importing"
        )
    if is_game and demonstration.game != env.name:
        raise DemonstrationError(f"{title} shows {demonstration.game}, not {env.name}")
    num_actions = num_actions_of(demonstration)
    if num_actions != env.num_actions:
        raise DemonstrationError(
            f"{title} knows {num_actions} actions, but the environment has {env.num_actions}"
        )
    if isinstance(demonstration, FrameDemonstration):
        _check_frames(env, demonstration, title)


def _check_frames(env: HostEnvironment, demonstration: FrameDemonstration, title: str) -> None:
    given, wanted = demonstration.frames.dtype, np.dtype(env.frame_dtype)
    dtype = np.dtype(FRAME_DTYPES.get(given.name, given))
    if demonstration.frame_shape != tuple(env.frame_shape) or dtype != wanted:
        raise DemonstrationError(
            f"{title} has observations {given}{list(demonstration.frame_shape)}, but the "
            f"environment shows {wanted}{list(env.frame_shape)}"
        )


def num_actions_of(demonstration: Demonstration) -> int:
    """Actions that the demonstration's environment has."""
    if isinstance(demonstration, ActionDemonstration):
        return len(demonstration.action_meaning)
    return demonstration.num_actions


def _check_meanings(demonstrations: Sequence[Demonstration]) -> None:
    meanings = {demonstration.action_meaning for demonstration in demonstrations} - {None}
    if len(meanings) > 1:
        listed = " and ".join(str(list(meaning)) for meaning in sorted(meanings))
        raise DemonstrationError(
            f"the actions of the demonstrations mean different things: {listed}"
        )
