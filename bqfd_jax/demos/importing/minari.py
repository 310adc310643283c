"""Minari: HDF5 files of offline datasets (`atari/<game>/expert-v0` and others).

A dataset is a folder with `data/main_data.hdf5` and `data/metadata.json`; in the file every episode
is a group `episode_<i>` of observations (one more than actions), actions, rewards, terminations and
truncations.  Atari observations are whole RGB screens every 4 emulator frames, JPEG-coded unless
they were written without; the frame before each is not there, so no maximum of two is taken.
"""

import math
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import extras
from bqfd_jax.demos.importing import actions, games, screens
from bqfd_jax.demos.importing.arrays import check_atari_frames, frames_per_step
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
from bqfd_jax.files import check_fields, parse_json, read_json
from bqfd_jax.limits import check_size, max_bytes

_H5PY = ("h5py", "demos", "a Minari file")

# Type, least and largest value of what every step has.
_STEPS = {
    "actions": ("iu", 0, MAX_ACTIONS - 1),
    "rewards": ("iuf", -MAX_REWARD, MAX_REWARD),
    "terminations": ("biu", 0, 1),
    "truncations": ("biu", 0, 1),
}
# Seconds, and bytes a second, in which a file must have been read.
_PATIENCE, _SPEED = 60.0, 10e6


def read_minari(path: Path, wanted: Wanted) -> Imported:
    """Reads a dataset with discrete actions: its folder, its `data` folder, or the `.hdf5`."""
    file_path = _find_file(path)
    h5py = extras.load(*_H5PY)
    _check_readable(file_path)
    try:
        with h5py.File(file_path, "r") as file:
            return _read_file(file_path, file, wanted)
    except DemonstrationError:
        raise
    # Whatever contents that are damaged or of another layout make h5py raise.
    except Exception as error:
        raise DemonstrationError(
            f"{file_path} is damaged or no HDF5 file of this layout: {error}"
        ) from error


def _check_readable(path: Path) -> None:
    """Has another process read the file, because damage may make the HDF5 library never end."""
    seconds = _PATIENCE + path.stat().st_size / _SPEED
    walk = Path(__file__).with_name("hdf5_walk.py")
    told = f"{path}\n{max_bytes()}"
    try:
        subprocess.run(
            [sys.executable, "-P", str(walk)],
            input=told,
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        raise DemonstrationError(
            f"{path} is damaged: reading it did not end within {seconds:.0f} s"
        ) from None
    except subprocess.CalledProcessError as error:
        said = (error.stderr.strip().splitlines() or [str(error)])[-1]
        raise DemonstrationError(f"{path} is damaged or no HDF5 file: {said}") from None


def _read_file(path: Path, file: Any, wanted: Wanted) -> Imported:
    metadata = _metadata(path, file)
    named, frame_skip = _environment(path, metadata, wanted.game)
    env, is_atari = games.environment(named)
    episodes = _episodes(path, file, wanted.only)
    _check_memory(path, episodes, is_atari)
    num_actions = _num_actions(path, metadata, episodes)
    if is_atari:
        own = _action_meaning(path, num_actions, actions.action_set(env))
        skip = frames_per_step(frame_skip, f"{path}: frameskip")
        builder = Builder(env, own, skip=skip, max_steps=wanted.max_steps)
        if skip == 1:
            builder.remarks.append("observations are single screens, not the maximum of two")
    else:
        builder = Builder(env, num_actions=num_actions, skip=1, max_steps=wanted.max_steps)
    for name, episode in episodes.items():
        if builder.is_full:
            break
        wanted.tell(name)
        take = _take(f"{path}: {name}", episode, is_atari)
        builder.counts["frames told of"] += take.num_frames
        builder.add(take)
    dataset = metadata.get("dataset_id", path.name)
    return builder.finish(
        name=wanted.name or dataset.replace("/", "-"),
        source={"from": "Minari", "file": path.name, "dataset": dataset},
        nothing=f"{path}: no step could be used",
    )


def _find_file(path: Path) -> Path:
    for file in (path, path / "main_data.hdf5", path / "data" / "main_data.hdf5"):
        if file.is_file():
            return file
    raise DemonstrationError(f"{path} is no dataset: there is no main_data.hdf5 in it or in data/")


def _metadata(path: Path, file: Any) -> dict[str, Any]:
    """Of the file beside it, or, in older datasets, of the file itself."""
    found = dict(file.attrs)
    beside = path.with_name("metadata.json")
    if beside.is_file():
        told = read_json(beside, error=DemonstrationError)
        if not isinstance(told, dict):
            raise DemonstrationError(f"{beside} is no JSON object")
        found |= told
    found = {
        name: value.decode() if isinstance(value, bytes) else value for name, value in found.items()
    }
    check_fields({"dataset_id": ""} | found, dataset_id=str)
    return found


def _nested(path: Path, metadata: dict[str, Any], field: str) -> dict[str, Any]:
    """A field that holds JSON as text."""
    value = metadata.get(field) or "{}"
    if isinstance(value, str):
        where = f"{path}: the metadata's {field}"
        value = parse_json(value, where, error=DemonstrationError)
    return value if isinstance(value, dict) else {}


def _environment(path: Path, metadata: dict[str, Any], game: str | None) -> tuple[str, int]:
    """Its name, and the emulator frames between two observations."""
    spec = {"id": None, "kwargs": None} | _nested(path, metadata, "env_spec")
    check_fields(spec, id=(str, None), kwargs=(dict, None))
    named = spec["id"] or game
    if named is None:
        raise DemonstrationError(f"{path} does not tell its environment; give it (game)")
    games.check_same(path, spec["id"], game)
    frame_skip = (spec["kwargs"] or {}).get("frameskip", SKIP)
    if type(frame_skip) is not int:
        raise DemonstrationError(f"{path}: frameskip is {frame_skip}, but must be one number")
    return named, frame_skip


def _episodes(path: Path, file: Any, only: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Name -> field -> dataset, of the episodes that are wanted."""
    numbered = {
        int(match[1]): name for name in file if (match := re.fullmatch(r"episode_(\d{1,9})", name))
    }
    chosen = [numbered[n] for n in sorted(numbered) if not only or str(n) in only]
    if not chosen:
        raise DemonstrationError(f"{path} has no such episode; it has {len(numbered)} in all")
    found = {}
    for name in chosen:
        group = _own(f"{path}: {name}", file, name)
        missing = [field for field in ("observations", *_STEPS) if field not in group]
        if missing:
            raise DemonstrationError(f"{path}: {name} has no {', '.join(missing)}")
        found[name] = {
            field: _dataset(f"{path}: {name}/{field}", group, field)
            for field in ("observations", *_STEPS)
        }
        if "infos" in group and "lives" in (infos := _own(f"{path}: {name}/infos", group, "infos")):
            found[name]["lives"] = _dataset(f"{path}: {name}/infos/lives", infos, "lives")
    return found


def _check_memory(path: Path, episodes: dict[str, dict[str, Any]], is_atari: bool) -> None:
    """Refuses what would not fit; screens are read one by one, and kept as small as agents see."""
    size = 0
    for episode in episodes.values():
        for field, data in episode.items():
            shrinks = is_atari and field == "observations" and data.ndim
            size += len(data) * math.prod(FRAME_SHAPE) if shrinks else data.nbytes
    check_size(path, size, error=DemonstrationError)


def _own(where: str, group: Any, name: str) -> Any:
    """What lies in the file itself; links could lead to any other file of this machine."""
    if not isinstance(group.get(name, getlink=True), extras.load(*_H5PY).HardLink):
        raise DemonstrationError(f"{where} is a link, which may lead out of the file")
    return group[name]


def _dataset(where: str, group: Any, name: str) -> Any:
    found = _own(where, group, name)
    if not hasattr(found, "dtype") or found.shape is None:
        raise DemonstrationError(f"{where} is a group; only plain arrays can be used")
    if found.external or found.is_virtual:
        raise DemonstrationError(f"{where} keeps its data in another file")
    if found.size and not found.id.get_storage_size():
        raise DemonstrationError(f"{where} was never written")
    return found


def _num_actions(path: Path, metadata: dict[str, Any], episodes: dict[str, dict[str, Any]]) -> int:
    space = {"type": "Discrete", "start": 0, "n": None} | _nested(path, metadata, "action_space")
    if space["type"] != "Discrete" or space["start"] != 0:
        raise DemonstrationError(
            f"{path}: actions are of a {space['type']} space; only Discrete ones from 0 on can "
            "be learnt from here"
        )
    most = 0
    for name, episode in episodes.items():
        if not episode["actions"].size:
            raise DemonstrationError(f"{path}: {name}/actions is empty")
        most = max(most, int(_steps(f"{path}: {name}", episode, "actions").max()) + 1)
    check_fields(space, n=(int, None))
    num_actions = most if space["n"] is None else space["n"]
    if not most <= num_actions <= MAX_ACTIONS:
        raise DemonstrationError(
            f"{path}: action {most - 1} is used, but action_space says there are {num_actions}"
        )
    return num_actions


def _steps(where: str, episode: dict[str, Any], field: str) -> np.ndarray:
    """One value per action, checked."""
    kinds, low, high = _STEPS[field]
    values = episode[field][()]
    check_array(f"{where}/{field}", values, kinds, (episode["actions"].size,), low=low, high=high)
    return values


def _action_meaning(path: Path, num_actions: int, meaning: tuple[int, ...]) -> Sequence[int]:
    """What a dataset's actions mean, numbers among the 18: the game's own set, or all."""
    if num_actions <= len(meaning):
        return meaning
    if num_actions <= len(actions.NAMES):
        return range(len(actions.NAMES))
    raise DemonstrationError(f"{path}: there are {num_actions} actions, but a console has 18")


def _take(where: str, episode: dict[str, Any], is_atari: bool) -> Take:
    steps = {field: _steps(where, episode, field) for field in _STEPS}
    T, observations, lives = len(steps["actions"]), episode["observations"], episode.get("lives")
    if not observations.ndim or len(observations) != T + 1:
        raise DemonstrationError(
            f"{where}/observations is {list(observations.shape)}, but {T} actions need {T + 1}"
        )
    for field in ("terminations", "truncations"):
        if steps[field][:-1].any():
            at = int(np.flatnonzero(steps[field])[0])
            raise DemonstrationError(f"{where}/{field}[{at}] is set, but the episode goes on")
    if lives is not None:
        lives = lives[()]
        check_array(f"{where}/infos/lives", lives, "iu", (T + 1,), low=0, high=MAX_LIVES)
    return Take(
        frame=_reader(where, observations, is_atari),
        num_frames=T + 1,
        actions=steps["actions"].tolist(),
        rewards=steps["rewards"].tolist(),
        terminated=bool(steps["terminations"][-1]),
        lives=None if lives is None else lives.tolist(),
    )


def _reader(where: str, observations: Any, is_atari: bool) -> Any:
    """Index -> observation, read and decoded when it is wanted."""
    # Encoded ones are strings of bytes, each of its own length.
    if observations.dtype.kind in "OSV":

        def decode(index: int) -> np.ndarray:
            data = observations[index]
            data = data.tobytes() if hasattr(data, "tobytes") else bytes(data)
            return screens.decode_screen(data, f"{where}/observations[{index}]")

        return decode
    if is_atari:
        check_atari_frames(observations.shape[1:], observations.dtype, where)
    elif observations.dtype.kind not in "uif":
        raise DemonstrationError(f"{where}/observations are {observations.dtype}, not numbers")

    def read(index: int) -> np.ndarray:
        value = np.asarray(observations[index])
        return screens.to_grey(value) if is_atari else value

    return read
