"""From runs of frames to a demonstration: agent steps, whole episodes, and what was left out."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.demos.frames import FrameDemonstration
from bqfd_jax.demos.importing import actions, screens, takes
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.envs.atari import EMULATOR

# Emulator frames of one agent step.
SKIP = EMULATOR["frame_skip"]


_REMARKABLE = {
    takes.UNTOLD: "a part of the table may be missing",
    takes.CONTRADICTED: "see whether the table is right",
}


class Wanted(NamedTuple):
    """What is asked of whoever reads a layout."""

    game: str | None = None  # or environment; needed if the files do not tell
    only: Sequence[str] = ()  # trials, recordings or episodes, by their numbers; all unless given
    max_steps: int = 0  # agent steps after which no more is read; 0: all
    name: str = ""  # of the demonstration; made of the file's name unless given
    tell: Callable[[str], None] = lambda progress: None  # called with what is being read


class Imported(NamedTuple):
    """A demonstration, and what was and was not used for it."""

    demonstration: FrameDemonstration
    counts: dict[str, int]  # what happened -> how often
    remarks: tuple[str, ...]  # what else should be known


class _Episode(NamedTuple):
    frames: list[np.ndarray]  # length + 1
    actions: list[int]
    rewards: list[float]
    terminated: bool
    lives: list[int] | None  # length + 1


class Builder:
    """Collects takes; every agent step is `skip` of their frames.

    A step's action is the one that was pressed most often in it, the latest of equals.  If the game
    has no action that does the same, the episode is cut there and goes on after it.  Observations
    of screens are the maximum of the step's last two frames, 84 x 84; all else stays as it is.

    Args:
      game: the environment's name.
      source_actions: of an Atari game, what the source's actions mean, numbers among the 18.
      num_actions: of any other environment, whose actions are counted as the source does.
      skip: frames of the source per agent step.
      max_steps: agent steps after which no more is taken; 0: all.
    """

    def __init__(
        self,
        game: str,
        source_actions: Sequence[int] = range(len(actions.NAMES)),
        *,
        num_actions: int | None = None,
        skip: int = SKIP,
        max_steps: int = 0,
    ):
        self.counts: Counter[str] = Counter()
        self.remarks: list[str] = []  # what else should be known
        self._game, self._skip, self._max_steps = game, skip, max_steps
        self._meaning = None if num_actions else actions.action_set(game)
        if self._meaning is None:
            self._actions, self._num_actions = actions.same_actions(num_actions), num_actions
        else:
            self._actions = actions.by_meaning(self._meaning, source_actions)
            self._num_actions = len(self._meaning)
        self._episodes: list[_Episode] = []
        self._num_steps = 0

    @property
    def is_full(self) -> bool:
        """No more will be taken."""
        return 0 < self._max_steps <= self._num_steps

    def add(self, take: takes.Take) -> None:
        """Makes steps of a take; frames that fill no step are counted."""
        if self.is_full:
            return
        steps = self._count_steps(take)
        chosen = [self._action(take.actions[k * self._skip :][: self._skip]) for k in range(steps)]
        begin = 0
        while begin < steps:
            if chosen[begin] is None:
                begin += 1
                continue
            end = begin
            while end < steps and chosen[end] is not None:
                end += 1
            self._add_episode(take, chosen, begin, end, steps)
            begin = end + 1

    def finish(self, *, name: str, source: dict[str, Any], nothing: str) -> Imported:
        """The demonstration, with where it came from; `nothing` is said if it would be empty."""
        episodes = self._episodes
        if not episodes:
            told = ", ".join(f"{count} {what}" for what, count in self.counts.items())
            raise DemonstrationError(f"{nothing}{f' ({told})' if told else ''}")
        lives = None
        if all(episode.lives is not None for episode in episodes):
            lives = np.concatenate([episode.lives for episode in episodes]).astype(np.int32)
        elif self._meaning is not None:
            self.remarks.append("lives are not told: a lost life does not end what is learnt from")
        for what, why in _REMARKABLE.items():
            if self.counts[what]:
                self.remarks.append(f"{self.counts[what]:,} {what}: {why}")
        self.counts["steps"] = self._num_steps
        self.counts["episodes that ended"] = sum(episode.terminated for episode in episodes)
        self.counts["episodes that were cut"] = sum(not episode.terminated for episode in episodes)
        counts = {what: int(count) for what, count in self.counts.items() if count}
        demonstration = FrameDemonstration(
            game=self._game,
            frames=_stack([frame for episode in episodes for frame in episode.frames]),
            actions=np.concatenate([episode.actions for episode in episodes]).astype(np.int32),
            rewards=np.concatenate([episode.rewards for episode in episodes]).astype(np.float32),
            episode_lengths=np.array([len(episode.actions) for episode in episodes], np.int32),
            terminated=tuple(episode.terminated for episode in episodes),
            num_actions=self._num_actions,
            lives=lives,
            action_meaning=self._meaning,
            name=name,
            origin=source | {"counts": counts, "remarks": self.remarks},
        )
        return Imported(demonstration, counts, tuple(self.remarks))

    def _count_steps(self, take: takes.Take) -> int:
        """How many steps a take has; the last may be short only if the game ended in it."""
        if take.terminated:
            return -(-len(take.actions) // self._skip)
        steps = min(len(take.actions) // self._skip, (take.num_frames - 1) // self._skip)
        left = len(take.actions) - steps * self._skip
        if left:
            self.counts["frames at a cut that fill no step"] += left
        return steps

    def _action(self, pressed: Sequence[int]) -> int | None:
        if len(set(pressed)) > 1:
            self.counts["steps within which the action changed"] += 1
        for action in pressed:
            if action in self._actions.remark:
                self.counts[self._actions.remark[action]] += 1
        mapped = [self._actions.number[action] for action in pressed]
        often = Counter(mapped)
        most = max(often.values())
        chosen = next(action for action in reversed(mapped) if often[action] == most)
        if chosen is None:
            self.counts["steps left out because of their action"] += 1
        return chosen

    def _add_episode(
        self, take: takes.Take, chosen: list[int], begin: int, end: int, steps: int
    ) -> None:
        """Steps `begin` to `end` of a take's as an episode of their own."""
        if self._max_steps and end - begin > self._max_steps - self._num_steps:
            end = begin + self._max_steps - self._num_steps
            self.counts["episodes that the limit of steps cut"] += 1
        if end == begin:
            return
        at = [self._boundary(take, step) for step in range(begin, end + 1)]
        self._episodes.append(
            _Episode(
                frames=[self._observation(take, index) for index in at],
                actions=chosen[begin:end],
                rewards=[
                    float(sum(take.rewards[step * self._skip :][: self._skip]))
                    for step in range(begin, end)
                ],
                # What follows a step that was left out is another episode.
                terminated=take.terminated and end == steps,
                lives=None if take.lives is None else [int(take.lives[index]) for index in at],
            )
        )
        self._num_steps += end - begin

    def _boundary(self, take: takes.Take, step: int) -> int:
        # A game's very last frame is often not told; nothing is learnt from it.
        return min(step * self._skip, take.num_frames - 1)

    def _observation(self, take: takes.Take, index: int) -> np.ndarray:
        frame = take.frame(index)
        if frame.shape[:2] != screens.SCREEN_SHAPE:
            return frame
        if self._skip > 1 and index > 0:
            frame = np.maximum(frame, take.frame(index - 1))
        return screens.shrink(frame)


def _stack(frames: list[np.ndarray]) -> np.ndarray:
    shapes = {frame.shape for frame in frames}
    if len(shapes) > 1:
        raise DemonstrationError(f"observations have different shapes: {sorted(shapes)}")
    return np.stack(frames)
