"""Minari: HDF5 files of offline datasets (`atari/<game>/expert-v0` and others).

A dataset is a folder with `data/main_data.hdf5` and `data/metadata.json`; in the file every episode
is a group `episode_<i>` of observations (one more than actions), actions, rewards, terminations and
truncations.  Atari observations are whole RGB screens every 4 emulator frames, JPEG-coded unless
they were written without; the frame before each is not there, so no maximum of two is taken.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.demos.importing import actions, games, screens
from bqfd_jax.demos.importing.arrays import check_atari_frames, frames_per_step
from bqfd_jax.demos.importing.build import SKIP, Builder, Imported, Wanted
from bqfd_jax.demos.importing.takes import Take

_FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")


def read_minari(path: Path, wanted: Wanted) -> Imported:
    """Reads a dataset with discrete actions.

    Args:
      path: a dataset's folder, its `data` folder, or the `.hdf5` file.
      wanted: what is asked for.
        `game`: the environment; needed if the dataset does not tell.
        `only`: episodes to use, by their number; all unless given.
    """
    file_path = _find_file(path)
    h5py = _h5py()
    try:
        file = h5py.File(file_path, "r")
    except OSError as error:
        raise DemonstrationError(f"{file_path} is damaged or no HDF5 file: {error}") from error
    try:
        with file:
            metadata = _metadata(file_path, file)
            named, frame_skip = _environment(file_path, metadata, wanted.game)
            env, is_atari = games.environment(named)
            groups = _episodes(file_path, file, wanted.only)
            num_actions = _num_actions(file_path, metadata, groups)
            remarks: list[str] = []
            if is_atari:
                meaning = actions.action_set(env)
                own = _action_meaning(file_path, num_actions, meaning)
                skip = frames_per_step(frame_skip, f"{file_path}: frameskip")
                mapped = actions.by_meaning(meaning, source=own)
                num_actions = len(meaning)
                if skip == 1:
                    remarks.append("observations are single screens, not the maximum of two")
            else:
                meaning, skip, mapped = None, 1, actions.same_actions(num_actions)
            builder = Builder(mapped, skip=skip, max_steps=wanted.max_steps)
            for group in groups:
                if builder.is_full:
                    break
                wanted.tell(group.name.lstrip("/"))
                take = _take(f"{file_path}: {group.name.lstrip('/')}", group, is_atari)
                builder.counts["frames told of"] += take.num_frames
                builder.add(take)
            dataset = str(metadata.get("dataset_id", file_path.name))
            return builder.finish(
                game=env,
                num_actions=num_actions,
                name=wanted.name or dataset.replace("/", "-"),
                source={"from": "Minari", "file": path.name, "dataset": dataset},
                nothing=f"{file_path}: no step could be used",
                action_meaning=meaning,
                remarks=remarks,
            )
    # All that h5py raises for contents that are damaged or of another kind than they should be.
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise DemonstrationError(f"{file_path} is damaged or of another layout: {error}") from error


def _find_file(path: Path) -> Path:
    for file in (path, path / "main_data.hdf5", path / "data" / "main_data.hdf5"):
        if file.is_file():
            return file
    raise DemonstrationError(f"{path} is no dataset: there is no main_data.hdf5 in it or in data/")


def _metadata(path: Path, file: Any) -> dict[str, Any]:
    """Of the file beside it, or, in older datasets, of the file itself."""
    found = {
        key: value.decode() if isinstance(value, bytes) else value
        for key, value in file.attrs.items()
    }
    beside = path.with_name("metadata.json")
    if beside.is_file():
        try:
            found |= json.loads(beside.read_text())
        except (ValueError, TypeError) as error:
            raise DemonstrationError(f"{beside} is no JSON object: {error}") from error
    return found


def _nested(path: Path, metadata: dict[str, Any], field: str) -> dict[str, Any]:
    """A field that holds JSON as text."""
    value = metadata.get(field) or "{}"
    try:
        parsed = json.loads(value) if isinstance(value, str) else value
    except ValueError as error:
        raise DemonstrationError(f"{path}: the metadata's {field} is no JSON: {error}") from error
    return parsed if isinstance(parsed, dict) else {}


def _environment(path: Path, metadata: dict[str, Any], game: str | None) -> tuple[str, int]:
    """Its name, and the emulator frames between two observations."""
    spec = _nested(path, metadata, "env_spec")
    named = spec.get("id") or game
    if named is None:
        raise DemonstrationError(f"{path} does not tell its environment; give it (game)")
    games.check_same(path, spec.get("id"), game)
    frame_skip = (spec.get("kwargs") or {}).get("frameskip", SKIP)
    if not isinstance(frame_skip, int):
        raise DemonstrationError(f"{path}: frameskip is {frame_skip}, but must be one number")
    return named, frame_skip


def _episodes(path: Path, file: Any, only: Sequence[str]) -> list[Any]:
    numbered = {
        int(match[1]): file[key] for key in file if (match := re.fullmatch(r"episode_(\d+)", key))
    }
    chosen = [numbered[n] for n in sorted(numbered) if not only or str(n) in only]
    if not chosen:
        raise DemonstrationError(f"{path} has no such episode; it has {len(numbered)} in all")
    for group in chosen:
        missing = [field for field in _FIELDS if field not in group]
        if missing:
            raise DemonstrationError(f"{path}: {group.name[1:]} has no {', '.join(missing)}")
    return chosen


def _num_actions(path: Path, metadata: dict[str, Any], groups: list[Any]) -> int:
    space = _nested(path, metadata, "action_space")
    if space.get("type", "Discrete") != "Discrete" or space.get("start", 0) != 0:
        raise DemonstrationError(
            f"{path}: actions are of a {space.get('type')} space; only Discrete ones from 0 on can "
            "be learnt from here"
        )
    most = 0
    for group in groups:
        values = group["actions"]
        if not hasattr(values, "dtype") or values.dtype.kind not in "iu" or values.ndim != 1:
            raise DemonstrationError(
                f"{path}: {group.name[1:]}/actions are no whole numbers; only discrete actions can "
                "be learnt from"
            )
        if not len(values):
            raise DemonstrationError(f"{path}: {group.name[1:]}/actions is empty")
        most = max(most, int(values[()].max()) + 1)
    num_actions = int(space.get("n", most))
    if most > num_actions:
        raise DemonstrationError(
            f"{path}: action {most - 1} is used, but action_space has only {num_actions}"
        )
    return num_actions


def _action_meaning(path: Path, num_actions: int, meaning: tuple[int, ...]) -> Sequence[int]:
    """What a dataset's actions mean, numbers among the 18: the game's own set, or all."""
    if num_actions <= len(meaning):
        return meaning
    if num_actions <= len(actions.NAMES):
        return range(len(actions.NAMES))
    raise DemonstrationError(f"{path}: there are {num_actions} actions, but a console has 18")


def _take(where: str, group: Any, is_atari: bool) -> Take:
    observations, T = group["observations"], len(group["actions"])
    if not hasattr(observations, "dtype"):
        raise DemonstrationError(f"{where}/observations is a group; only plain arrays can be used")
    for field, expected in (
        ("observations", T + 1),
        ("rewards", T),
        ("terminations", T),
        ("truncations", T),
    ):
        if len(group[field]) != expected:
            raise DemonstrationError(
                f"{where}/{field} has {len(group[field])} entries, but {T} actions need {expected}"
            )
    rewards = group["rewards"][()].reshape(T).astype(np.float64)
    if not np.isfinite(rewards).all():
        at = int(np.flatnonzero(~np.isfinite(rewards))[0])
        raise DemonstrationError(f"{where}/rewards[{at}] is {rewards[at]}, which is not finite")
    for field in ("terminations", "truncations"):
        ends = group[field][()].reshape(T) != 0
        if ends[:-1].any():
            at = int(np.flatnonzero(ends)[0])
            raise DemonstrationError(f"{where}/{field}[{at}] is set, but the episode goes on")
    terminations = group["terminations"][()].reshape(T) != 0
    acts = group["actions"][()]
    if acts.min() < 0:
        at = int(acts.argmin())
        raise DemonstrationError(f"{where}/actions[{at}] is {acts[at]}, which is negative")
    return Take(
        frame=_reader(where, observations, is_atari),
        num_frames=T + 1,
        actions=acts.tolist(),
        rewards=rewards.tolist(),
        terminated=bool(terminations[-1]),
        lives=_lives(group, T + 1),
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


def _lives(group: Any, expected: int) -> list[int] | None:
    infos = group.get("infos")
    values = infos.get("lives") if hasattr(infos, "get") else None
    if values is None or getattr(values, "shape", None) != (expected,):
        return None
    return [int(value) for value in values[()]]


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as error:
        raise ImportError("Minari files need h5py: pip install 'bqfd-jax[demos]'") from error
    return h5py
