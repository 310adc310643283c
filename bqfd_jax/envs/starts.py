"""Episodes that begin at a random point of a demonstration, which an emulator plays up to.

envpool can neither set a state nor step a lane without the others, and only a new emulator begins
as demonstrations do.  So every lane here is a pool of its own, and each episode that begins in a
demonstration is played in a new one.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bqfd_jax import checks
from bqfd_jax.envs.atari import Atari
from bqfd_jax.types import HostStep


class DemoStarts:
    """One lane, of whose episodes a share begins in a demonstration; a `HostEnvironment`.

    What is learnt begins at that point: it is the first observation of its episode, and what the
    demonstration scored before does not count.

    Args:
      usual: plays all other episodes; a single lane.
      make: a new emulator that begins as the demonstrations do.
      episodes: actions of each demonstrated episode.
      share: probability that an episode begins in one of them.
      random: decides which do, and where; every demonstrated action is as likely to be the next.
    """

    num_lanes = 1

    def __init__(
        self,
        usual: Atari,
        make: Callable[[], Atari],
        episodes: Sequence[np.ndarray],
        share: float,
        random: np.random.Generator,
    ):
        checks.within(0, 1, share=share)
        self._usual, self._make, self._share, self._random = usual, make, share, random
        self._episodes, self._ends = list(episodes), np.cumsum([len(e) for e in episodes])
        self.num_actions = usual.num_actions
        self.frame_shape, self.frame_dtype = usual.frame_shape, usual.frame_dtype
        # Name -> [1] int64: such episodes, and steps that were played before they began.
        self.tallies = {name: np.zeros(1, np.int64) for name in ("demo_starts", "demo_start_steps")}
        self._playing = usual
        self._ended = False

    def reset(self) -> HostStep:
        """Begins a new episode."""
        self._ended = False
        if self._random.random() >= self._share:
            self._playing = self._usual
            return self._usual.reset()
        point = int(self._random.integers(self._ends[-1]))
        number = int(np.searchsorted(self._ends, point, side="right"))
        actions = self._episodes[number]
        actions = actions[: len(actions) - (self._ends[number] - point)]
        self.tallies["demo_starts"] += 1
        self.tallies["demo_start_steps"] += len(actions)
        self._playing = self._make()
        return self._playing.begin_after(actions)

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes an action, `[1]` integers; after an episode's end a new one begins."""
        if self._ended:
            step = self.reset()
            # None was taken, so none was replaced.
            return step if step.action is None else step._replace(action=actions)
        step = self._playing.step(actions)
        self._ended = bool(step.is_last[0])
        return step
