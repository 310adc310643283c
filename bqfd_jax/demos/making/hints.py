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
    # Which of them somebody takes without thinking, by the memory `[128]` int; None: the usual one.
    habit: Callable[[np.ndarray], int] | None = None
    rests: bool = True  # the habit is preferred to the key that is held
    # What is done there without looking ahead, by the memory `[128]` int; None: look ahead.
    reflex: Callable[[np.ndarray], int | None] = lambda ram: None
    # The action that a step looks like, by the memories before and after it; None: like no other.
    shown: Callable[[np.ndarray, np.ndarray], int | None] = lambda before, after: None
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


_BALL_X, _BALL_Y, _BALL_DOWN, _BALL_LEFT, _PADDLE_X = 99, 101, 103, 105, 72
_LOW = 130
_AHEAD = 4  # pixels that a ball goes to the side in a step; the paddle follows a step later
_ANY_LIFE = 10.0  # rewards; more than a ball can earn in a moment, less than a life


def _follow_the_ball(ram: np.ndarray) -> int:
    """The paddle below a falling ball, the closer the lower it is; one that rises can wait."""
    # With a finger on the button, the next ball comes by itself.
    if ram[_BALL_Y] == 0 or ram[_BALL_DOWN] > 127:
        return _FIRE
    side = (ram[_BALL_LEFT] > 127) * 2 - 1
    apart = ram[_BALL_X] + _AHEAD * side - (ram[_PADDLE_X] + 8)  # the paddle is 16 wide
    if abs(apart) <= (10 if ram[_BALL_Y] >= _LOW else 16):
        return _FIRE
    return _RIGHT if apart > 0 else _LEFT


_CHICKEN_Y, _CARS = 14, slice(108, 118)  # one car per lane, from the bottom
_CAR_SPEED = np.array([4, 5, 20 / 3, 10, 20, -20, -10, -20 / 3, -5, -4]) / 5  # pixels per step
_LANE_HEIGHT, _FIRST_LANE, _STRIDE = 16, 12, 4  # pixels; the chicken goes a stride per step
_ROAD_WIDTH = 160
_IN_THE_WAY = (38, 50)  # where a car is when it hits the chicken


def _freeway(emulator: Ale) -> Potential:
    """The way across the road that is behind the chicken."""
    return lambda ram: float(ram[_CHICKEN_Y]) / 170


def _cross(ram: np.ndarray) -> int:
    """Goes up, but waits below a lane whose car would hit the chicken on its way across it."""
    y = ram[_CHICKEN_Y]
    lane = (y - _FIRST_LANE + _LANE_HEIGHT // 2) // _LANE_HEIGHT + 1  # the next one
    if lane >= len(_CAR_SPEED):
        return _UP
    there = (_FIRST_LANE + _LANE_HEIGHT * (lane - 0.5) - y) / _STRIDE  # steps
    if there > 2 or not _passes(ram, lane, there, there + _LANE_HEIGHT / _STRIDE + 1):
        return _UP
    # Nor does anybody wait where a car comes.
    return _UP if lane and _passes(ram, lane - 1, 0, 4) else 0


def _passes(ram: np.ndarray, lane: int, start: float, stop: float) -> bool:
    """Whether a lane's car is in the way between two times, in steps from now."""
    way = ram[_CARS][lane] + _CAR_SPEED[lane] * np.array([start, stop])
    left, right = _IN_THE_WAY
    around = np.array([-_ROAD_WIDTH, 0, _ROAD_WIDTH])
    return bool(np.any((way.max() + around >= left) & (way.min() + around <= right)))


_MS_PACMAN_LIFE = 300.0
_PLACES = slice(6, 17)  # of Ms Pac-Man and the ghosts
_PAUSE = 6  # steps; what is eaten halts the game for less, death for 20 steps before it counts
_FEW_DOTS = 6  # the end of a maze halts the game as well
_TUNNEL = 40  # pixels; who goes further in a step went through the tunnel
_ACROSS, _BELOW = 10, 16  # where Ms Pac-Man is, in pixels from the left and from above


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


def _direction(before: np.ndarray, after: np.ndarray) -> int | None:
    """Where Ms Pac-Man goes: whoever plays keeps the stick there."""
    right, down = (int(after[place]) - int(before[place]) for place in (_ACROSS, _BELOW))
    if abs(right) > _TUNNEL:
        right = -right
    if not right and not down:
        return None
    if abs(right) >= abs(down):
        return _RIGHT if right > 0 else _LEFT
    return _DOWN if down > 0 else _UP


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


_PINBALL_X, _PINBALL_Y, _PLUNGER = 67, 68, 70
_LANE, _AT_REST = 149, 132  # across and down, where a ball starts and where it ends when it is lost
_NUDGED = 4  # pixels by which a blow against the table moves it there
_KEPT = 4  # steps; a ball that stays in one place for longer counts as lost
_DRAWN = 83  # how far the plunger is drawn after four steps; five are all that it can be


def _video_pinball(emulator: Ale) -> Potential:
    """A ball in play: not in its lane, and not kept in one place by a flipper or by blows."""
    place, kept = np.zeros(2, int), 0

    def potential(ram: np.ndarray) -> float:
        nonlocal place, kept
        ball = ram[[_PINBALL_X, _PINBALL_Y]].astype(int)
        kept = kept + 1 if np.abs(ball - place).max() <= _NUDGED else 0
        place = place if kept else ball
        return -20.0 * (abs(ball[0] - _LANE) <= _NUDGED or kept > _KEPT)

    return potential


def _launch(ram: np.ndarray) -> int | None:
    """Draws the plunger and lets it go; always alike, because what comes of it is chance."""
    if abs(ram[_PINBALL_X] - _LANE) > _NUDGED or ram[_PINBALL_Y] != _AT_REST:
        return None
    return _DOWN if ram[_PLUNGER] < _DRAWN else _FIRE


_LOW_BALL = 150  # pixels from above; from there a ball is at the flippers within a few steps
_FLIPPED, _LONG = 12, 128  # what the memory says of a flipper that has been up for four steps


def _flip(ram: np.ndarray) -> int:
    """Works both flippers as long as the ball is low, but holds no ball there for good."""
    is_low = ram[_PINBALL_Y] >= _LOW_BALL and abs(ram[_PINBALL_X] - _LANE) > _NUDGED
    return _UP if is_low and ram[_FLIPPED] != _LONG else 0


_SHOOTING = {
    "keys": (_FIRE, _UP_FIRE, _RIGHT_FIRE, _LEFT_FIRE, _DOWN_FIRE),
    "horizon": 24,
    "continuations": 5,
    "margin": 0.05,
}

TABLE = {
    "Breakout": Hints(
        keys=(_FIRE, _RIGHT, _LEFT),
        habit=_follow_the_ball,
        # One step moves the paddle by more than its width.
        pace=1,
        horizon=8,
        continuations=0,
        # Only to save a ball: which brick it hits is chance to somebody who plays.
        margin=_ANY_LIFE,
        unit=1.0,
    ),
    "ChopperCommand": Hints(**_SHOOTING, unit=100.0),
    "Freeway": Hints(
        look=_freeway,
        keys=(_UP, 0, _DOWN),
        habit=_cross,
        # What is about to happen, not the whole road: a longer look dodges cars that are far away.
        pace=2,
        horizon=7,
        continuations=3,
        # Only to escape a car that the habit did not see coming.
        margin=0.1,
        unit=1.0,
    ),
    "MsPacman": Hints(
        look=_ms_pacman,
        # She goes on by herself, but somebody who plays keeps the stick where she goes.
        keys=(_UP, _RIGHT, _LEFT, _DOWN),
        shown=_direction,
        rests=False,
        hope=0.7,
        margin=0.05,
        unit=10.0,
        life=_MS_PACMAN_LIFE,
    ),
    "Seaquest": Hints(look=_seaquest, **_SHOOTING, hope=0.85, unit=20.0, life=_SEAQUEST_LIFE),
    "VideoPinball": Hints(
        look=_video_pinball,
        habit=_flip,
        reflex=_launch,
        # The stick moves the flippers, and with the button it nudges the table, which tilts if that
        # lasts: nobody does it for a few points.
        keys=(0, _UP, _RIGHT_FIRE, _LEFT_FIRE),
        # The ball passes the flippers in three steps.
        pace=1,
        horizon=16,
        continuations=0,
        margin=1.5,
        # The game counts a ball as lost when the next one is launched.
        life=0.0,
        unit=100.0,
    ),
}
