"""What the player is told about single games; one without an entry is played by score and lives.

A player looks at the game, wants something, and judges by it where imagined futures lead.  What is
wanted counts in rewards of the usual size, and little enough that rewards decide where there are
any.
"""

import dataclasses
from collections import deque
from collections.abc import Callable

import numpy as np

from bqfd_jax.demos.making import shaping
from bqfd_jax.demos.making.shaping import (
    DEPTH,
    DIVERS,
    FULL,
    LANE_DEPTHS,
    LANE_HAS_DIVER,
    LANE_X,
    OXYGEN,
    SURFACE,
    X,
)
from bqfd_jax.envs.ale import Ale

# Rewards of the usual size that a console's memory is worth.
Potential = Callable[[np.ndarray], float]
_UP, _RIGHT, _LEFT, _DOWN = 2, 3, 4, 5
_FIRE, _UP_FIRE, _RIGHT_FIRE, _LEFT_FIRE, _DOWN_FIRE = 1, 10, 11, 12, 13


@dataclasses.dataclass(frozen=True)
class Hints:
    """What a player knows of a game, and the pace that suits it."""

    # Says what is wanted now; may play on, because the emulator is put back.
    look: Callable[[Ale], Potential] = lambda emulator: lambda ram: 0.0
    # Among the console's 18 actions, the usual one first; (): all that the game has.
    keys: tuple[int, ...] = ()
    rests: bool = True  # the usual key is preferred to the one that is held
    pace: int = 4  # agent steps between decisions
    horizon: int = 30  # agent steps that are imagined
    continuations: int = 4  # second holds that are imagined after a promising first one
    hope: float = 0.5  # weight of the best future; the mean of all gets the rest
    margin: float = 0.03  # rewards of the usual size by which another key must be better
    unit: float | None = None  # points of a reward of the usual size; None: found on the way
    life: float = 30.0  # rewards of the usual size that a life is worth; 0: do not count lives


def of(game: str) -> Hints:
    """A game's entry, or one that says nothing."""
    return TABLE.get(game, Hints())


_BALL_X, _BALL_Y, _PADDLE_X = 99, 101, 72
_FLOOR = 189  # where the ball meets the paddle


def _breakout(emulator: Ale) -> Potential:
    """The paddle where the ball comes down; a ball that rises asks for nothing."""
    x = _landing(emulator)

    def potential(ram: np.ndarray) -> float:
        if ram[_BALL_Y] == 0:
            return -20.0  # no ball is in play
        return 0.0 if x is None else -abs(int(ram[_PADDLE_X]) + 8 - x) / 10  # it is 16 wide

    return potential


def _landing(emulator: Ale) -> int | None:
    """Where the ball is when it stops falling, None if it does not fall."""
    landing, y = None, int(emulator.ram()[_BALL_Y])
    while 0 < y < _FLOOR:
        emulator.step(0)
        ram = emulator.ram()
        if ram[_BALL_Y] <= y:
            break
        landing, y = int(ram[_BALL_X]), int(ram[_BALL_Y])
    return landing


def _freeway(emulator: Ale) -> Potential:
    """The way across the road that is behind the chicken."""
    return lambda ram: float(ram[14]) / 170


_MS_PACMAN_LIFE = 300.0
_PLACES = slice(6, 17)  # of Ms Pac-Man and the ghosts
_PAUSE = 6  # steps; what is eaten halts the game for less, death for 20 steps before it counts
_FEW_DOTS = 6  # the end of a maze halts the game as well


def _ms_pacman(emulator: Ale) -> Potential:
    """The nearest dot."""
    wall, dot = shaping.maze(emulator.screen())
    ways = ways_to(wall, dot)
    H, W = ways.shape
    is_safe = dot.sum() <= _FEW_DOTS
    last, halted = None, 0

    def potential(ram: np.ndarray) -> float:
        nonlocal last, halted
        places = bytes(ram[_PLACES])
        halted = halted + 1 if places == last else 0
        last = places
        y, x = shaping.square(ram)
        way = float(ways[min(max(y, 0), H - 1), x % W])
        return -0.1 * way - _MS_PACMAN_LIFE * (halted > _PAUSE and not is_safe)

    return potential


def ways_to(wall: np.ndarray, goal: np.ndarray) -> np.ndarray:
    """Squares from everywhere to the nearest goal, `[H, W]`, 0 without a way; sides are joined."""
    H, W = wall.shape
    ways = np.where(goal & ~wall, 0, -1)
    queue = deque(zip(*np.nonzero(ways == 0), strict=True))
    while queue:
        y, x = queue.popleft()
        for next_y, next_x in ((y - 1, x), (y + 1, x), (y, (x - 1) % W), (y, (x + 1) % W)):
            if 0 <= next_y < H and ways[next_y, next_x] < 0 and not wall[next_y, next_x]:
                ways[next_y, next_x] = ways[y, x] + 1
                queue.append((next_y, next_x))
    return np.maximum(ways, 0)


_SCARCE = 14
_SEAQUEST_LIFE = 100.0


def _seaquest(emulator: Ale) -> Potential:
    """Up, when all divers are aboard or the air runs out; else divers."""
    ram = emulator.ram().astype(int)
    short = ram[OXYGEN] < _SCARCE and ram[DEPTH] > SURFACE
    # Without a diver there is no air to be had.
    goes_up = ram[DIVERS] == FULL or (short and ram[DIVERS])

    def potential(ram: np.ndarray) -> float:
        ram = ram.astype(int)
        if ram[OXYGEN] == 0 and ram[DEPTH] > SURFACE:
            return -_SEAQUEST_LIFE  # the game takes the life a second later
        if goes_up:
            return -float(ram[DEPTH]) / 10
        there = (ram[LANE_HAS_DIVER] == 1) & (ram[LANE_X] != 0)
        ways = np.abs(ram[LANE_X] - ram[X]) + np.abs(LANE_DEPTHS - ram[DEPTH])
        return 5.0 * ram[DIVERS] + max(0, 200 - min(ways[there], default=200)) / 66

    return potential


def _video_pinball(emulator: Ale) -> Potential:
    """A ball that is not in the lane where it starts, and where it ends when it is lost."""
    return lambda ram: -20.0 * bool(ram[67] == 149)


_SHOOTING = {
    "keys": (_FIRE, _UP_FIRE, _RIGHT_FIRE, _LEFT_FIRE, _DOWN_FIRE),
    "horizon": 24,
    "continuations": 5,
    "margin": 0.05,
}

TABLE = {
    "Breakout": Hints(
        look=_breakout,
        # With a finger on the button, the next ball comes by itself.
        keys=(_FIRE, _RIGHT, _LEFT),
        # One step moves the paddle by more than its width.
        pace=1,
        horizon=12,
        continuations=0,
        margin=0.4,
        unit=1.0,
    ),
    "ChopperCommand": Hints(**_SHOOTING, unit=100.0),
    "Freeway": Hints(
        look=_freeway,
        keys=(_UP, 0, _DOWN),
        # What is about to happen, not the whole road: a longer look dodges cars that are far away.
        pace=2,
        horizon=7,
        continuations=3,
        margin=0.01,
        unit=1.0,
    ),
    "MsPacman": Hints(
        look=_ms_pacman,
        # She goes on by herself, but somebody who plays keeps the stick where she goes.
        keys=(_UP, _RIGHT, _LEFT, _DOWN),
        rests=False,
        hope=0.7,
        margin=0.05,
        unit=10.0,
        life=_MS_PACMAN_LIFE,
    ),
    "Seaquest": Hints(look=_seaquest, **_SHOOTING, hope=0.85, unit=20.0, life=_SEAQUEST_LIFE),
    "VideoPinball": Hints(
        look=_video_pinball,
        # The stick moves a flipper, and with the button it nudges the table.
        keys=(0, _DOWN, _FIRE, _RIGHT_FIRE, _LEFT_FIRE, _UP_FIRE),
        horizon=26,
        continuations=3,
        # The game counts a ball as lost when the next one is launched.
        life=0.0,
        unit=100.0,
    ),
}
