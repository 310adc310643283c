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

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.demos.importing import actions as atari_actions
from bqfd_jax.demos.importing import games, screens
from bqfd_jax.demos.importing.build import SKIP, Builder, Imported, Wanted
from bqfd_jax.demos.importing.takes import Take
from bqfd_jax.demos.schema import (
    MAX_ACTIONS,
    MAX_LIVES,
    MAX_REWARD,
    DemonstrationError,
    check_array,
)
from bqfd_jax.envs.atari import FRAME_SHAPE
from bqfd_jax.files import check_fields, read_npz

_REQUIRED = ("actions", "rewards", "terminated", "truncated")
_OPTIONAL = (
    *("frames", "observations"),  # one of them is needed
    *("env", "lives", "frame_skip", "action_meaning", "num_actions"),
)
_SCREEN_SHAPES = (FRAME_SHAPE, screens.SCREEN_SHAPE, (*screens.SCREEN_SHAPE, 3))


def read_arrays(path: Path, wanted: Wanted) -> Imported:
    """Reads an `.npz` of arrays; `only` counts its episodes from 0."""
    if not path.is_file():
        raise DemonstrationError(f"there is no file {path}")
    wanted.tell(path.name)
    arrays = read_npz(path, _REQUIRED, optional=_OPTIONAL, error=DemonstrationError)
    wanted = wanted._replace(name=wanted.name or path.stem)
    return _build(arrays, path, wanted, {"from": "arrays", "file": path.name})


def from_arrays(arrays: Mapping[str, np.ndarray], **wanted: Any) -> Imported:
    """What `read_arrays` makes of a file, of arrays in memory; see `importing.read`."""
    return _build(arrays, "the arrays", Wanted(**wanted), {"from": "arrays"})


def _build(
    arrays: Mapping[str, np.ndarray], path: object, wanted: Wanted, source: dict[str, Any]
) -> Imported:
    arrays, game, max_steps = dict(arrays), wanted.game, wanted.max_steps
    _check_arrays(path, arrays)
    told = str(arrays["env"]) if "env" in arrays else None
    check_fields({"env": told}, env=(str, None))
    if game is None and told is None:
        raise DemonstrationError(f"{path} has no array env; give its game or environment (game)")
    env, is_atari = games.environment(told or game)
    games.check_same(path, told, game)
    num_actions = _num_actions(path, arrays)
    if is_atari:
        check_atari_frames(arrays["observations"].shape[1:], arrays["observations"].dtype, path)
        skip = frames_per_step(int(arrays.get("frame_skip", SKIP)), f"{path}: frame_skip")
        own = _action_meaning(path, arrays, atari_actions.action_set(env))
        builder = Builder(env, own, skip=skip, max_steps=max_steps)
    else:
        builder = Builder(env, num_actions=num_actions, skip=1, max_steps=max_steps)
    for number, take in enumerate(_takes(path, arrays, builder)):
        if not wanted.only or str(number) in wanted.only:
            builder.add(take)
    nothing = f"{path}: no step could be used"
    return builder.finish(name=wanted.name, source=source, nothing=nothing)


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
    missing = {"observations", *_REQUIRED} - set(arrays)
    if missing:
        raise DemonstrationError(f"{path} has no array {', '.join(sorted(missing))}")
    T, frames = arrays["actions"].size, arrays["observations"]
    if not T or not frames.ndim or not frames.size:
        raise DemonstrationError(
            f"{path}: there are {T} actions, and observations {frames.dtype}{list(frames.shape)}"
        )
    n = len(frames)
    for field, kinds, shape, low, high in (
        ("actions", "iu", (T,), 0, MAX_ACTIONS - 1),
        ("rewards", "iuf", (T,), -MAX_REWARD, MAX_REWARD),
        ("terminated", "biu", (T,), 0, 1),
        ("truncated", "biu", (T,), 0, 1),
        ("observations", "iuf", frames.shape, -np.inf, np.inf),
        ("env", "U", (), -np.inf, np.inf),
        ("lives", "iu", (n,), 0, MAX_LIVES),
        ("frame_skip", "iu", (), 1, SKIP),
        ("action_meaning", "iu", (np.size(arrays.get("action_meaning")),), 0, 17),
        ("num_actions", "iu", (), 1, MAX_ACTIONS),
    ):
        if field in arrays:
            check_array(f"{path}: {field}", arrays[field], kinds, shape, low=low, high=high)
    both = (arrays["terminated"] != 0) & (arrays["truncated"] != 0)
    if both.any():
        at = int(np.flatnonzero(both)[0])
        raise DemonstrationError(f"{path}: truncated[{at}] is set, and terminated too")


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
    own = tuple(arrays.get("action_meaning", np.array(meaning)).tolist())
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
