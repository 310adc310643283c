"""What the search is told about single games; one without an entry is planned by score alone.

Addresses are of the console's 128 bytes of memory.  Potentials are small, so that they decide only
between candidates of about equal score; a gain may be as large as what it leads to later.
"""

import dataclasses
from collections import deque
from collections.abc import Callable

import numpy as np

from bqfd_jax.envs.ale import Ale


@dataclasses.dataclass(frozen=True)
class Shaping:
    """What counts in a game beside score and lives, and the pace that suits it."""

    # Points for where the game stands; asked once per generation.
    potential: Callable[[Ale], float] = lambda emulator: 0.0
    # Points for what happened between two steps' memories; they are kept.
    gain: Callable[[np.ndarray, np.ndarray], float] = lambda before, after: 0.0
    generation_steps: int = 8
    change_probability: float = 0.2
    rollback_generations: int = 12


def of(game: str) -> Shaping:
    """A game's entry, or one that adds nothing."""
    return TABLE.get(game, Shaping())


def _breakout(emulator: Ale) -> float:
    """The paddle under the ball, and a ball in play."""
    ram = emulator.ram().astype(int)
    ball_x, ball_y, paddle_x = ram[99], ram[101], ram[72]
    if ball_y == 0:
        return -1.0
    return -abs(paddle_x + 8 - ball_x) / 200  # the paddle is 16 wide


def _freeway(emulator: Ale) -> float:
    """How far across the road the chicken is."""
    return float(emulator.ram()[14]) / 200


DIVERS, OXYGEN = 62, 102
X, DEPTH, SURFACE = 70, 97, 13
LANE_X, LANE_HAS_DIVER = slice(71, 75), slice(113, 117)  # the deepest of the four lanes first
LANE_DEPTHS = np.array([108, 84, 57, 32])
FULL, _SCARCE = 6, 10
_DIVER_WORTH = 200.0  # delivered they pay 50 each and more every time; what is shot pays less


def _seaquest(emulator: Ale) -> float:
    """Up, when all divers are aboard or the air runs out; else to the nearest diver."""
    ram = emulator.ram().astype(int)
    short = max(0, _SCARCE - ram[OXYGEN])
    # Without a diver there is no air to be had.
    if ram[DIVERS] == FULL or (short and ram[DIVERS]):
        return -float(ram[DEPTH] - SURFACE + short)
    there = (ram[LANE_HAS_DIVER] == 1) & (ram[LANE_X] != 0)
    ways = np.abs(ram[LANE_X] - ram[X]) + np.abs(LANE_DEPTHS - ram[DEPTH])
    return 0.3 * max(0, 200 - min(ways[there], default=200))


def _seaquest_gain(before: np.ndarray, after: np.ndarray) -> float:
    """Divers that came aboard; kept when they are delivered, or nobody would deliver them."""
    change = int(after[DIVERS]) - int(before[DIVERS])
    # They are delivered after the air is counted down; one that is lost otherwise paid for air.
    delivered = change < 0 and after[OXYGEN] == 0 and after[DEPTH] <= SURFACE
    return 0.0 if delivered else _DIVER_WORTH * change


_PIXELS = 4  # the maze is made of squares of that size, in rows three squares high
_TOP, _ROWS = 2, 14


def _ms_pacman(emulator: Ale) -> float:
    """The way to the nearest dot, less than what a dot pays."""
    wall, dot = maze(emulator.screen())
    return -0.1 * way(wall, dot, square(emulator.ram()))


def square(ram: np.ndarray) -> tuple[int, int]:
    """Row and column of the square that Ms Pac-Man is on."""
    return (int(ram[16]) + 4) // _PIXELS, (int(ram[10]) - 8) // _PIXELS


def maze(screen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which squares are walls, and which have dots; both `[rows, columns]`."""
    colour = screen[1, 0]
    rows = _TOP + 3 * _PIXELS * np.arange(_ROWS)
    columns = np.arange(1, screen.shape[1], _PIXELS)
    # Dots have the colour of walls, but do not reach the upper edge of their row.
    wall = np.all(screen[rows[:, None], columns] == colour, axis=-1)
    dot = np.all(screen[rows[:, None] + 5, columns] == colour, axis=-1) & ~wall
    return np.repeat(wall, 3, axis=0), np.repeat(dot, 3, axis=0)


def way(wall: np.ndarray, goal: np.ndarray, start: tuple[int, int]) -> int:
    """Squares from the start to the nearest goal, 0 if there is none; sides are joined."""
    H, W = wall.shape
    start = (min(max(start[0], 0), H - 1), start[1] % W)
    seen = wall.copy()
    seen[start] = True
    queue = deque([(*start, 0)])
    while queue:
        y, x, distance = queue.popleft()
        if goal[y, x]:
            return distance
        for next_y, next_x in ((y - 1, x), (y + 1, x), (y, (x - 1) % W), (y, (x + 1) % W)):
            if 0 <= next_y < H and not seen[next_y, next_x]:
                seen[next_y, next_x] = True
                queue.append((next_y, next_x, distance + 1))
    return 0


TABLE = {
    "Breakout": Shaping(
        potential=_breakout, generation_steps=3, change_probability=0.6, rollback_generations=20
    ),
    "Freeway": Shaping(potential=_freeway, change_probability=0.1),
    "MsPacman": Shaping(potential=_ms_pacman),
    "Seaquest": Shaping(potential=_seaquest, gain=_seaquest_gain),
}
