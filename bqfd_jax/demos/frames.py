"""The second kind of demonstration: frames.

What was recorded elsewhere (by other people, with other emulators, in other environments) has no
list of actions that would play again.  So the frames themselves are kept, one per observation and
never a stack, with what was done and what came of it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.envs.atari import log_reward
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
        T, N = len(self.actions), len(self.episode_lengths)
        lengths = self.episode_lengths
        if lengths.ndim != 1 or lengths.dtype.kind not in "iu" or not N:
            raise DemonstrationError("episode_lengths is not a list of integers")
        if self.actions.ndim != 1 or self.actions.dtype.kind not in "iu":
            raise DemonstrationError(
                f"actions are {self.actions.dtype}{list(self.actions.shape)}, not integers [T]"
            )
        if lengths.min() < 1 or lengths.sum() != T:
            raise DemonstrationError(f"there are {T} actions, but episodes of {lengths.tolist()}")
        for field, expected in (("rewards", T), ("frames", T + N), ("lives", T + N)):
            value = getattr(self, field)
            if value is not None and len(value) != expected:
                raise DemonstrationError(
                    f"{field} has {len(value)} entries, but {T} actions in {N} episodes need "
                    f"{expected}"
                )
        if len(self.terminated) != N:
            raise DemonstrationError(f"terminated has {len(self.terminated)} entries, not {N}")
        if self.frames.dtype.kind not in "uif" or self.rewards.dtype.kind not in "uif":
            raise DemonstrationError(
                f"frames are {self.frames.dtype} and rewards {self.rewards.dtype}; both must be "
                "numbers"
            )
        for field in ("frames", "rewards"):
            value = getattr(self, field)
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise DemonstrationError(f"{field} hold values that are not finite")
        if self.actions.min() < 0 or self.actions.max() >= self.num_actions:
            raise DemonstrationError(
                f"actions reach from {self.actions.min()} to {self.actions.max()}, but there are "
                f"only {self.num_actions}"
            )
        if self.action_meaning is not None and len(self.action_meaning) != self.num_actions:
            raise DemonstrationError(
                f"action_meaning has {len(self.action_meaning)} entries for {self.num_actions}"
            )

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
        digest = hashlib.sha256(json.dumps(self.facts(), sort_keys=True).encode())
        for name, array in sorted(self.arrays().items()):
            digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return digest.hexdigest()

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
        meaning = meta.get("action_meaning")
        return cls(
            game=str(meta["env"]),
            frames=arrays["frames"],
            actions=arrays["actions"],
            rewards=arrays["rewards"],
            episode_lengths=arrays["episode_lengths"],
            terminated=tuple(bool(over) for over in meta["terminated"]),
            num_actions=int(meta["num_actions"]),
            lives=arrays.get("lives"),
            action_meaning=None if meaning is None else tuple(int(action) for action in meaning),
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
    """A demonstration as rows, ready for a replay.

    Args:
      demonstration: frames.
      gamma: discount of one step.
      log_rewards: rewards become their `envs.atari.log_reward`.
      life_loss_is_terminal: losing a life is discount 0, if lives are known.

    Returns:
      Rows with leading axis `demonstration.num_rows`, numpy; frames are not copied.
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
