"""Games that stand still until somebody starts them: when that is seen, and what is pressed then.

Some games wait for FIRE after every lost life.  An agent whose best action there is another one
would look at the same picture until the time limit.
"""

import numpy as np

from bqfd_jax.types import HostStep

FIRE_AFTER = 30  # two seconds of play

# Games whose minimal set of actions has no FIRE.
_WITHOUT_FIRE = frozenset({
    "Asterix", "CrazyClimber", "Freeway", "Frogger", "JourneyEscape", "Koolaid", "KungFuMaster",
    "LostLuggage", "MsPacman", "Pacman", "Skiing", "Surround", "Tutankham",
})  # fmt: skip
# Their sets begin with FIRE, because they have no NOOP.
_FIRE_FIRST = frozenset({"Backgammon", "VideoCheckers"})
_FIRE, _DOWN = 1, 5  # of VideoPinball's nine actions
# What starts a game that FIRE alone does not: here the plunger is drawn, then released.
_STARTS = {"VideoPinball": (_DOWN,) * 8 + (_FIRE,)}
# Where pictures change while a game waits, what of the console's memory does not.
_CELLS = {"VideoPinball": (67, 68)}  # the ball's place; flippers move whether it waits or not


def start_of(game: str) -> tuple[int, ...]:
    """The actions, of the minimal set, that start a game; none if it has no FIRE."""
    if game in _WITHOUT_FIRE:
        return ()
    return _STARTS.get(game, (0 if game in _FIRE_FIRST else 1,))


def cells_of(game: str) -> tuple[int, ...]:
    """Cells of the console's memory by which a game stands still; none: it is the picture."""
    return _CELLS.get(game, ())


class Guard:
    """Watches lanes, and starts the games that stand still.

    A picture that blinks stands still, too: frames count as unchanged if they are those of one or
    two steps before.

    Args:
      start: actions that start a game, one per step.
      num_lanes: games side by side.
      after: unchanged frames until it is done.
      cells: of the console's memory, which are watched instead of frames; none: frames are.
    """

    def __init__(
        self,
        start: tuple[int, ...],
        num_lanes: int,
        after: int = FIRE_AFTER,
        cells: tuple[int, ...] = (),
    ):
        self._start, self._after, self._cells = np.array(start, np.int32), after, list(cells)
        self._before: list[np.ndarray] = []  # what was watched in the last two steps, each [L, ...]
        self._unchanged = np.zeros(num_lanes, np.int64)  # [L], steps in a row
        self._at = np.full(num_lanes, len(start))  # [L], next of `start`; past its end: none

    def see(self, step: HostStep, memory: np.ndarray) -> None:
        """Takes the newest step into account, and the console's memory `[L, 128]` after it."""
        watched = memory[:, self._cells] if self._cells else step.frame
        same = np.zeros(len(self._unchanged), bool)
        for before in self._before:
            same |= (watched == before).reshape(len(same), -1).all(axis=1)
        self._unchanged = np.where(same & ~step.is_first, self._unchanged + 1, 0)
        self._at[step.is_first | step.is_last] = len(self._start)
        self._before = [*self._before[-1:], watched]
        begins = (self._unchanged >= self._after) & (self._at == len(self._start)) & ~step.is_last
        self._at[begins], self._unchanged[begins] = 0, 0

    def replace(self, actions: np.ndarray) -> np.ndarray:
        """Actions `[L]` as they are to be taken: what starts a game where it is being started."""
        is_starting = self._at < len(self._start)
        taken = actions.copy()
        taken[is_starting] = self._start[self._at[is_starting]]
        self._at[is_starting] += 1
        return taken
