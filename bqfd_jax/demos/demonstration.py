"""The two kinds of demonstrations, and the file that keeps one.

A game without chance is its configuration and its actions: the first kind is the list of actions, a
few kilobytes, and what must come of it.  It is played back from the first reset of new emulators.
What was recorded elsewhere cannot be played back and is kept as frames: see `frames`.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.demos.frames import FrameDemonstration
from bqfd_jax.demos.schema import (
    DemonstrationError,
    check_array,
    check_lengths,
    check_meaning,
)
from bqfd_jax.files import FileError, check_fields, read_record, write_record

FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False)
class ActionDemonstration:
    """Actions of whole or cut episodes of one game, and what they must lead to."""

    game: str
    actions: np.ndarray  # [T] uint8, all episodes one after the other
    episode_lengths: np.ndarray  # [N] int32, actions of each; they sum to T
    scores: tuple[float, ...]  # N, sum of the game's own rewards
    game_over: tuple[bool, ...]  # N, False: the episode was cut off and its value goes on
    configuration: Mapping[str, Any]  # settings of the emulator, by envpool's names
    action_meaning: tuple[int, ...]  # A, each action's number among the 18 of the console
    frame_hash: str | None = None  # sha256 of all frames, N + T of them; None: not known
    envpool: str | None = None  # version that `frame_hash` was made with
    name: str = ""
    origin: Any = None  # where it came from, JSON

    def __post_init__(self):
        """Checks all that can be checked without playing."""
        T, N = check_lengths(self.actions, self.episode_lengths)
        num_actions = len(self.action_meaning)
        check_meaning(self.action_meaning, num_actions)
        check_array("actions", self.actions, "u", (T,), low=0, high=num_actions - 1)
        if self.actions.dtype != np.uint8:
            raise DemonstrationError(f"actions are {self.actions.dtype}, not uint8")
        for field in ("scores", "game_over"):
            if len(getattr(self, field)) != N:
                raise DemonstrationError(
                    f"{field} has {len(getattr(self, field))} entries for {N} episodes"
                )

    @property
    def num_rows(self) -> int:
        """Rows of the demonstration, played back: every observation, the last ones included."""
        return len(self.actions) + len(self.episode_lengths)

    def episodes(self) -> list[np.ndarray]:
        """The actions of each episode."""
        return np.split(self.actions, np.cumsum(self.episode_lengths)[:-1])

    @property
    def checksum(self) -> str:
        """sha256 of all that decides what is played back, and of what must come of it."""
        digest = hashlib.sha256(json.dumps(_facts(self), sort_keys=True).encode())
        digest.update(self.actions.tobytes())
        digest.update(self.episode_lengths.astype("<i4").tobytes())
        return digest.hexdigest()


Demonstration = ActionDemonstration | FrameDemonstration


def save(demonstration: Demonstration, path: str | os.PathLike[str]) -> None:
    """Writes a demonstration as `.npz`; `path` holds the old file or all of the new, never less."""
    common = {
        "format": FORMAT,
        "checksum": demonstration.checksum,
        "name": demonstration.name,
        "origin": demonstration.origin,
    }
    if isinstance(demonstration, FrameDemonstration):
        meta, arrays = demonstration.facts(), demonstration.arrays()
    else:
        meta = _facts(demonstration) | {"envpool": demonstration.envpool}
        arrays = {
            "actions": demonstration.actions,
            "episode_lengths": demonstration.episode_lengths.astype(np.int32),
        }
    write_record(path, meta | common, arrays)


def load(path: str | os.PathLike[str], *, game: str | None = None) -> Demonstration:
    """Reads a demonstration, of a `game` if one is wanted; executes nothing that is in the file.

    That is what `save` wrote, or a file with the same arrays and no checksum or hash.

    Raises:
      FileNotFoundError: there is no such file.
      DemonstrationError: it is damaged, was changed, or shows another game.
    """
    path = Path(path)
    meta, arrays = read_record(
        path,
        ("actions", "episode_lengths"),
        optional=("frames", "rewards", "lives"),
        error=DemonstrationError,
    )
    try:
        check_fields({"name": None} | meta, name=(str, None))
        if meta.get("format", FORMAT) != FORMAT:
            raise DemonstrationError(f"it is of format {meta['format']}, but {FORMAT} can be read")
        name = meta.get("name") or path.stem
        # Files of the first kind do not name it.
        kind = meta.get("kind", "actions")
        if kind == "actions":
            found = _from_file(meta, arrays, name)
        elif kind == FrameDemonstration.kind:
            found = FrameDemonstration.from_file(meta, arrays, name)
        else:
            raise DemonstrationError(f"it is of the kind {kind!r}, which is not known here")
    except FileError as error:
        raise DemonstrationError(f"{path} is no demonstration: {error}") from error
    if meta.get("checksum", found.checksum) != found.checksum:
        raise DemonstrationError(
            f"{path} was changed after it was saved: its contents do not fit its checksum"
        )
    if game is not None and found.game != game:
        raise DemonstrationError(f"{path} is a demonstration of {found.game}, not of {game}")
    return found


def _from_file(
    meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], name: str
) -> ActionDemonstration:
    text = (str, None)
    check_fields(meta, env=str, config=dict, action_meaning=[int], scores=[float], game_over=[bool])
    # Only what `save` writes has these.
    check_fields({"frame_hash": None, "envpool": None} | meta, frame_hash=text, envpool=text)
    return ActionDemonstration(
        game=meta["env"].removesuffix("-v5"),
        actions=arrays["actions"],
        episode_lengths=arrays["episode_lengths"],
        scores=tuple(float(score) for score in meta["scores"]),
        game_over=tuple(meta["game_over"]),
        configuration=dict(meta["config"]),
        action_meaning=tuple(meta["action_meaning"]),
        frame_hash=meta.get("frame_hash"),
        envpool=meta.get("envpool"),
        name=name,
        origin=meta.get("origin", meta.get("planner")),
    )


def _facts(demonstration: ActionDemonstration) -> dict[str, Any]:
    return {
        "env": f"{demonstration.game}-v5",
        "config": dict(demonstration.configuration),
        "action_meaning": list(demonstration.action_meaning),
        "scores": list(demonstration.scores),
        "game_over": list(demonstration.game_over),
        "frame_hash": demonstration.frame_hash,
    }
