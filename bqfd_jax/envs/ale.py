"""One game on ale-py: the same game as `envs.atari` plays, but its states can be kept.

The only module that knows ale-py.  What envpool does to the emulator is done here to the bit, so
that actions found or played here play back there: a reset, one frame of FIRE where there is such an
action and else of no action, then every action for 4 frames.
"""

from typing import Any, NamedTuple

import numpy as np

from bqfd_jax import extras
from bqfd_jax.envs import atari

_ALE = ("ale_py", "demos", "this")
_ROMS = ("ale_py.roms", "demos", "this")

FIRE = 1  # its number among the console's 18 actions


class AleStep(NamedTuple):
    """What came of one agent step."""

    reward: float  # as the game counts it
    lives: int  # left
    is_over: bool  # the game is over; no action may follow


class Ale:
    """A game from its first reset, without chance."""

    def __init__(self, game: str):
        """Starts an emulator of one of `games()`."""
        ale_py = extras.load(*_ALE)
        check_game(game)
        rom = extras.load(*_ROMS).get_rom_path(_rom_names()[game])
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.game = game
        self._ale = ale_py.ALEInterface()
        self._ale.setFloat("repeat_action_probability", 0.0)
        self._ale.setInt("frame_skip", 1)
        self._ale.loadROM(rom)
        self._actions = self._ale.getMinimalActionSet()
        self.action_meaning = tuple(int(action.value) for action in self._actions)
        self.num_actions = len(self._actions)  # of the minimal set
        self._ale.reset_game()
        self._ale.act(ale_py.Action(FIRE if FIRE in self.action_meaning else 0))
        # Later resets of the same emulator may begin differently: this one is kept.
        self._first = self.save_state()

    def reset(self) -> int:
        """Begins the game, always the same way; returns the lives there are."""
        self.load_state(self._first)
        return self.lives

    def step(self, action: int, *, screens: list[np.ndarray] | None = None) -> AleStep:
        """Repeats an action of the minimal set for 4 frames; `screens` gets what each shows."""
        reward = 0.0
        for _ in range(atari.EMULATOR["frame_skip"]):
            reward += self._ale.act(self._actions[action])
            if screens is not None:
                screens.append(self.screen())
            if self._ale.game_over():
                break
        return AleStep(reward, self.lives, self._ale.game_over())

    @property
    def lives(self) -> int:
        """Lives left; 0 throughout where there are none."""
        return self._ale.lives()

    def screen(self) -> np.ndarray:
        """The screen as people see it, `[210, 160, 3]` uint8."""
        return self._ale.getScreenRGB()

    def ram(self) -> np.ndarray:
        """The console's memory, `[128]` uint8."""
        return self._ale.getRAM()

    def save_state(self) -> Any:
        """The state of the game, for `load_state`; it stays what it is while the game goes on."""
        return self._ale.cloneState()

    def load_state(self, state: Any) -> None:
        """Goes back (or on) to a state that `save_state` returned."""
        self._ale.restoreState(state)


def version() -> str:
    """Version of the installed ale-py; raises `ImportError` if there is none."""
    return extras.load(*_ALE).__version__


def games() -> tuple[str, ...]:
    """Names of all games that the installed ale-py has, in order; spelt as in `envs.atari`."""
    return tuple(sorted(_rom_names()))


def check_game(game: str) -> None:
    """Raises `ValueError` if there is no such game; the message names those it may mean."""
    if game not in _rom_names():
        raise ValueError(atari.no_such_game(game, games()))


def _rom_names() -> dict[str, str]:
    """`MsPacman` -> `ms_pacman`."""
    return {atari.game_name(rom): rom for rom in extras.load(*_ROMS).get_all_rom_ids()}
