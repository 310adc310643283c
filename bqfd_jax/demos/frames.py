"""The second kind of demonstration: frames.

What was recorded elsewhere (by other people, with other emulators, in other environments) has no
list of actions that would play again.  So the frames themselves are kept, one per observation and
never a stack, with what was done and what came of it.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bqfd_jax.demos.schema import (
    MAX_ACTIONS,
    MAX_LIVES,
    MAX_REWARD,
    DemonstrationError,
    check_array,
    check_lengths,
    check_meaning,
)
from bqfd_jax.envs.atari import log_reward
from bqfd_jax.files import check_fields, digest
from bqfd_jax.replay import check_demonstrations
from bqfd_jax.types import Row


@dataclasses.dataclass(frozen=True, eq=False)
class FrameDemonstration:
    """Whole or cut episodes of one environment as they were seen.

    Every episode has one frame more than actions: the one where it ended or was cut off.
    """

    kind: ClassVar[str] = "frames"

    game: str  # an Atari game, or any environment's name
    frames: np.ndarray  # [N + T, *frame_shape], uint8 [84, 84] for Atari, floats elsewhere
    actions: np.ndarray  # [T] int32, all episodes one after the other
    rewards: np.ndarray  # [T] float32, as the game counts them
    episode_lengths: np.ndarray  # [N] int32, actions of each; they sum to T
    terminated: tuple[bool, ...]  # N, False: the episode was cut off and its value goes on
    num_actions: int  # of the environment
    lives: np.ndarray | None = None  # [N + T] int32, left at each frame; None: not known
    action_meaning: tuple[int, ...] | None = None  # A, numbers among the console's 18; Atari only
    name: str = ""
    origin: Any = None  # where it came from, JSON

    def __post_init__(self):
        """Checks that everything fits together."""
        T, N = check_lengths(self.actions, self.episode_lengths)
        check_array("num_actions", np.array(self.num_actions), "iu", (), low=1, high=MAX_ACTIONS)
        check_array("actions", self.actions, "iu", (T,), low=0, high=self.num_actions - 1)
        check_array("rewards", self.rewards, "iuf", (T,), low=-MAX_REWARD, high=MAX_REWARD)
        check_array("frames", self.frames, "iuf", (N + T,), tail=True)
        if self.lives is not None:
            check_array("lives", self.lives, "iu", (N + T,), low=0, high=MAX_LIVES)
        if len(self.terminated) != N:
            raise DemonstrationError(f"terminated has {len(self.terminated)} entries, not {N}")
        if self.action_meaning is not None:
            check_meaning(self.action_meaning, self.num_actions)

    @classmethod
    def join(
        cls, parts: "Sequence[FrameDemonstration]", *, name: str, origin: Any
    ) -> "FrameDemonstration":
        """One demonstration of the episodes of several."""
        fields = {
            field: np.concatenate([getattr(part, field) for part in parts])
            for field in ("frames", "actions", "rewards", "episode_lengths")
        }
        knows_lives = all(part.lives is not None for part in parts)
        return dataclasses.replace(
            parts[0],
            **fields,
            terminated=sum((part.terminated for part in parts), ()),
            lives=np.concatenate([part.lives for part in parts]) if knows_lives else None,
            name=name,
            origin=origin,
        )

    @property
    def num_rows(self) -> int:
        """Rows that come of it: every observation, the last ones included."""
        return len(self.frames)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return self.frames.shape[1:]

    @property
    def scores(self) -> tuple[float, ...]:
        """Sum of the rewards of each episode, as far as it is shown."""
        starts = np.cumsum(self.episode_lengths) - self.episode_lengths
        return tuple(np.add.reduceat(self.rewards.astype(np.float64), starts).tolist())

    @property
    def game_over(self) -> tuple[bool, ...]:
        """The same as `terminated`, by the name that lists of actions have for it."""
        return self.terminated

    @property
    def checksum(self) -> str:
        """sha256 of all but name and origin."""
        return digest(json.dumps(self.facts(), sort_keys=True), self.arrays())

    def facts(self) -> dict[str, Any]:
        """What a file holds as JSON."""
        meaning = self.action_meaning
        return {
            "kind": self.kind,
            "env": self.game,
            "terminated": list(self.terminated),
            "num_actions": self.num_actions,
            "action_meaning": None if meaning is None else list(meaning),
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """What a file holds as arrays."""
        arrays = {
            "frames": self.frames,
            "actions": self.actions.astype(np.int32),
            "rewards": self.rewards.astype(np.float32),
            "episode_lengths": self.episode_lengths.astype(np.int32),
        }
        return arrays if self.lives is None else arrays | {"lives": self.lives.astype(np.int32)}

    @classmethod
    def from_file(
        cls, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray], name: str
    ) -> "FrameDemonstration":
        """What `facts` and `arrays` were written of."""
        missing = [field for field in ("frames", "rewards") if field not in arrays]
        if missing:
            raise DemonstrationError(f"it has no array {', '.join(missing)}")
        check_fields(
            meta, env=str, terminated=[bool], num_actions=int, action_meaning=([int], None)
        )
        meaning = meta["action_meaning"]
        return cls(
            **{field: arrays[field] for field in ("frames", "actions", "rewards")},
            episode_lengths=arrays["episode_lengths"],
            lives=arrays.get("lives"),
            game=meta["env"],
            terminated=tuple(meta["terminated"]),
            num_actions=meta["num_actions"],
            action_meaning=None if meaning is None else tuple(meaning),
            name=name,
            origin=meta.get("origin"),
        )


def frame_rows(
    demonstration: FrameDemonstration,
    *,
    gamma: float,
    log_rewards: bool = True,
    life_loss_is_terminal: bool = True,
) -> Row:
    """A demonstration as rows `[N + T, ...]`, ready for a replay; frames are not copied.

    Losing a life is discount 0, if it shall be so and lives are known.
    """
    lengths = demonstration.episode_lengths.astype(np.int64)
    last = np.cumsum(lengths + 1) - 1  # [N]
    is_last = np.zeros(demonstration.num_rows, bool)
    is_last[last] = True
    action = np.zeros(demonstration.num_rows, np.int32)
    action[~is_last] = demonstration.actions
    reward = np.zeros(demonstration.num_rows, np.float32)
    reward[~is_last] = demonstration.rewards
    discount = np.where(is_last, 0, gamma).astype(np.float32)
    discount[last[np.array(demonstration.terminated)] - 1] = 0
    if life_loss_is_terminal and demonstration.lives is not None:
        lost = np.flatnonzero(np.diff(demonstration.lives) < 0)
        discount[lost] = 0
    rows = Row(
        frame=demonstration.frames,
        action=action,
        reward=log_reward(reward) if log_rewards else reward,
        discount=discount,
        is_first=np.concatenate([[True], is_last[:-1]]),
        is_last=is_last,
    )
    check_demonstrations(rows, lives=life_loss_is_terminal)
    return rows
