"""Plain arrays: the layout for whoever has something else.

An `.npz` (no pickled objects) of T steps in N episodes, one after the other:

| array | shape | what it is |
|---|---|---|
| `frames` or `observations` | `[T + N, ...]` | every observation, the last of each episode included |
| | or `[T, ...]` | only those that were acted on |
| `actions` | `[T]` integers | taken at each |
| `rewards` | `[T]` numbers | received for each, neither clipped nor scaled |
| `terminated` | `[T]` true or false | the episode ended there, and nothing follows |
| `truncated` | `[T]` true or false | it was cut off there, and its value goes on |
| `env` | a string, optional | the environment or game |
| `lives` | like the observations, optional | left at each |
| `frame_skip` | 1 or 4, optional | Atari: emulator frames from one observation to the next; 4 unless given |
| `action_meaning` | `[A]`, optional | Atari: each action's number among the console's 18; the game's own set unless given |
| `num_actions` | a number, optional | of the environment; one more than the largest unless given |

Atari observations are single frames: 84 x 84 grey as the agents see them, or whole screens, 210 x
160 grey or RGB.  With `[T, ...]` observations a cut episode's last action is left out, for what it
led to is not there.  A last step that is neither terminated nor truncated is a cut.
"""  # noqa: E501

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.demos.importing import actions as atari_actions
from bqfd_jax.demos.importing import games, screens
from bqfd_jax.demos.importing.build import SKIP, Builder, Imported, Wanted
from bqfd_jax.demos.importing.takes import Take
from bqfd_jax.envs.atari import FRAME_SHAPE
from bqfd_jax.files import read_npz

_MOST = float(np.finfo(np.float32).max)
_SCREEN_SHAPES = (FRAME_SHAPE, screens.SCREEN_SHAPE, (*screens.SCREEN_SHAPE, 3))


def read_arrays(path: Path, wanted: Wanted) -> Imported:
    """Reads an `.npz` of arrays.

    Args:
      path: the file; see this module's text for its layout.
      wanted: what is asked for.
        `game`: the environment; needed if the file does not tell.
        `only`: episodes to use, counted from 0; all unless given.
    """
    if not path.is_file():
        raise DemonstrationError(f"there is no file {path}")
    wanted.tell(path.name)
    return from_arrays(
        read_npz(path, error=DemonstrationError),
        path,
        game=wanted.game,
        only=wanted.only,
        max_steps=wanted.max_steps,
        name=wanted.name or path.stem,
        source={"from": "arrays", "file": path.name},
    )


def from_arrays(
    arrays: Mapping[str, np.ndarray],
    where: object = "the arrays",
    *,
    game: str | None = None,
    only: Sequence[str] = (),
    max_steps: int = 0,
    name: str = "",
    source: Mapping[str, Any] | None = None,
) -> Imported:
    """What `read_arrays` makes of a file, of arrays in memory.

    Args:
      arrays: see this module's text.
      where: they come from, for errors.
      game: the environment; needed if the arrays do not tell.
      only: episodes to use, counted from 0; all unless given.
      max_steps: agent steps after which no more is read; 0: all.
      name: of the demonstration.
      source: kept with it, JSON.
    """
    path, arrays = where, dict(arrays)
    _check_arrays(path, arrays)
    told = str(arrays["env"][()]) if "env" in arrays else None
    if game is None and told is None:
        raise DemonstrationError(f"{path} has no array env; give its game or environment (game)")
    env, is_atari = games.environment(told or game)
    games.check_same(path, told, game)
    num_actions = _num_actions(path, arrays)
    if is_atari:
        meaning = atari_actions.action_set(env)
        own = _action_meaning(path, arrays, meaning)
        check_atari_frames(arrays["observations"].shape[1:], arrays["observations"].dtype, path)
        skip = frames_per_step(int(arrays.get("frame_skip", SKIP)), f"{path}: frame_skip")
        builder = Builder(
            atari_actions.by_meaning(meaning, source=own), skip=skip, max_steps=max_steps
        )
        num_actions = len(meaning)
    else:
        meaning = None
        builder = Builder(atari_actions.same_actions(num_actions), max_steps=max_steps)
    for number, take in enumerate(_takes(path, arrays, builder)):
        if not only or str(number) in only:
            builder.add(take)
    return builder.finish(
        game=env,
        num_actions=num_actions,
        name=name,
        source=dict(source or {"from": "arrays"}),
        nothing=f"{path}: no step could be used",
        action_meaning=meaning,
    )


def frames_per_step(frame_skip: int, where: str) -> int:
    """Observations per agent step, from the emulator frames between two of them."""
    if frame_skip not in (1, SKIP):
        raise DemonstrationError(f"{where} is {frame_skip}, but must be 1 or {SKIP}")
    return SKIP // frame_skip


def check_atari_frames(shape: tuple[int, ...], dtype: Any, where: object) -> None:
    """Refuses what is no single frame of the console."""
    if shape not in _SCREEN_SHAPES or dtype != np.uint8:
        raise DemonstrationError(
            f"{where}: observations are {np.dtype(dtype)}{list(shape)}; for Atari they must be "
            "uint8 [84, 84], [210, 160] or [210, 160, 3], one frame each and no stacks"
        )


def _check_arrays(path: object, arrays: dict[str, np.ndarray]) -> None:
    """Checks lengths, types and values; `frames` is called `observations` from here on."""
    if "frames" in arrays:
        arrays["observations"] = arrays.pop("frames")
    missing = {"observations", "actions", "rewards", "terminated", "truncated"} - set(arrays)
    if missing:
        raise DemonstrationError(f"{path} has no array {', '.join(sorted(missing))}")
    T = len(np.atleast_1d(arrays["actions"]))
    for field, kinds in (
        ("actions", "iu"),
        ("rewards", "iuf"),
        ("terminated", "bui"),
        ("truncated", "bui"),
    ):
        value = arrays[field]
        if value.shape != (T,) or value.dtype.kind not in kinds:
            raise DemonstrationError(
                f"{path}: {field} is {value.dtype}{list(value.shape)}, but must be [{T}] "
                f"{'integers' if field == 'actions' else 'like the actions'}"
            )
    if not T:
        raise DemonstrationError(f"{path}: actions is empty")
    observations = arrays["observations"]
    if observations.dtype.kind not in "uif" or not observations.ndim or not observations.size:
        raise DemonstrationError(
            f"{path}: observations are {observations.dtype}{list(observations.shape)}, but must be "
            "numbers, one row or image per observation"
        )
    _check_optional(path, arrays)
    both = (arrays["terminated"] != 0) & (arrays["truncated"] != 0)
    for field, wrong, what in (
        ("rewards", ~(np.abs(arrays["rewards"]) <= _MOST), "is no finite 32-bit number"),
        ("actions", arrays["actions"] < 0, "is negative"),
        ("truncated", both, "is set, and terminated too"),
    ):
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise DemonstrationError(f"{path}: {field}[{at}] is {arrays[field][at]}, which {what}")
    flat = observations.reshape(len(observations), -1)
    if observations.dtype.kind == "f" and not np.isfinite(flat).all():
        at = int(np.flatnonzero(~np.isfinite(flat).all(axis=1))[0])
        raise DemonstrationError(f"{path}: observations[{at}] holds values that are not finite")


def _check_optional(path: object, arrays: dict[str, np.ndarray]) -> None:
    for field, kinds, rank, expected in (
        ("env", "U", 0, "a string"),
        ("lives", "iu", 1, "a list of integers"),
        ("frame_skip", "iu", 0, "an integer"),
        ("action_meaning", "iu", 1, "a list of integers"),
        ("num_actions", "iu", 0, "an integer"),
    ):
        value = arrays.get(field)
        if value is not None and (value.dtype.kind not in kinds or value.ndim != rank):
            raise DemonstrationError(
                f"{path}: {field} is {value.dtype}{list(value.shape)}, but must be {expected}"
            )


def _num_actions(path: object, arrays: dict[str, np.ndarray]) -> int:
    most = int(arrays["actions"].max()) + 1
    num_actions = int(arrays.get("num_actions", most))
    if most > num_actions:
        at = int(arrays["actions"].argmax())
        raise DemonstrationError(
            f"{path}: actions[{at}] is {most - 1}, but num_actions says there are {num_actions}"
        )
    return num_actions


def _action_meaning(
    path: object, arrays: dict[str, np.ndarray], meaning: tuple[int, ...]
) -> tuple[int, ...]:
    """What the file's actions mean, numbers among the 18."""
    own = tuple(int(number) for number in arrays.get("action_meaning", meaning))
    if not all(0 <= number < len(atari_actions.NAMES) for number in own):
        raise DemonstrationError(f"{path}: action_meaning is {list(own)}, but must lie in 0 .. 17")
    if arrays["actions"].max() >= len(own):
        at = int(arrays["actions"].argmax())
        raise DemonstrationError(
            f"{path}: actions[{at}] is {arrays['actions'][at]}, but there are only {len(own)}; "
            "give action_meaning if they are not the game's own"
        )
    return own


def _takes(path: object, arrays: dict[str, np.ndarray], builder: Builder) -> Iterator[Take]:
    terminated = arrays["terminated"] != 0
    ends = np.flatnonzero(terminated | (arrays["truncated"] != 0)) + 1
    T, observations, lives = len(terminated), arrays["observations"], arrays.get("lives")
    if not len(ends) or ends[-1] < T:
        builder.counts["episodes without an end"] += 1
        ends = np.append(ends, T)
    if len(observations) not in (T, T + len(ends)):
        raise DemonstrationError(
            f"{path}: there are {len(observations)} observations for {T} actions in {len(ends)} "
            f"episodes; {T + len(ends)} or {T} are needed"
        )
    if lives is not None and lives.shape != (len(observations),):
        raise DemonstrationError(
            f"{path}: lives is {list(lives.shape)}, but must be [{len(observations)}] like the "
            "observations"
        )
    builder.counts["frames told of"] += len(observations)
    extra = int(len(observations) > T)
    begin = 0
    for number, end in enumerate(ends):
        first = begin + extra * number
        num_frames = end - begin + extra
        yield Take(
            frame=lambda index, first=first: _observation(observations[first + index]),
            num_frames=int(num_frames),
            actions=arrays["actions"][begin:end].tolist(),
            rewards=arrays["rewards"][begin:end].tolist(),
            terminated=bool(terminated[end - 1]),
            lives=None if lives is None else lives[first : first + num_frames].tolist(),
        )
        begin = end


def _observation(value: np.ndarray) -> np.ndarray:
    return screens.to_grey(value) if value.shape == (*screens.SCREEN_SHAPE, 3) else value
