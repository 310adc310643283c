"""A person plays: with pause, undo and restart, to a demonstration.

Knows no network and no clock: whoever calls `Session.step` at a steady pace makes it a game.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from bqfd_jax import checks
from bqfd_jax.demos.demonstration import ActionDemonstration
from bqfd_jax.demos.making.keys import action_of
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.envs import ale, atari

STEPS_PER_SECOND = 60 / atari.EMULATOR["frame_skip"]  # as fast as the console
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0)
UNDO_STEPS = 45  # three seconds
_MARK_EVERY = 15  # steps between kept states; the most that an undo plays again


@dataclasses.dataclass
class _Game:
    actions: list[int] = dataclasses.field(default_factory=list)
    rewards: list[float] = dataclasses.field(default_factory=list)
    marks: list[Any] = dataclasses.field(default_factory=list)  # states every `_MARK_EVERY` steps
    is_over: bool = False  # as the game says
    is_cut: bool = False  # at the longest an episode may be

    @property
    def score(self) -> float:
        return float(sum(self.rewards))

    @property
    def has_ended(self) -> bool:
        return self.is_over or self.is_cut


class Session:
    """One person's play of one game, episode after episode.

    It begins paused, and pauses by itself when a game is over, after an undo, and when there are
    as many steps as wanted.
    """

    def __init__(
        self,
        game: str,
        *,
        wanted_steps: int,
        max_episode_steps: int = atari.MAX_EPISODE_STEPS,
    ):
        """Starts the emulator; more steps than wanted may be played."""
        checks.at_least(1, wanted_steps=wanted_steps, max_episode_steps=max_episode_steps)
        atari.check_game(game)
        self.game = game
        self.wanted_steps = wanted_steps
        self.paused = True
        self.note = "Press a key to begin."  # what the player is told while it is paused
        self.speed = 1.0
        self._max_episode_steps = max_episode_steps
        self._emulator = ale.Ale(game)
        # Later resets of an emulator may begin differently: every game begins from this state.
        self._start = (self._emulator.save_state(), self._emulator.lives, self._emulator.screen())
        self._finished: list[_Game] = []
        self._dropped: list[_Game] = []  # by restarts of the running game, for an undo
        self._speeds: set[float] = set()
        self._undone_steps = 0
        self._begin()

    @property
    def action_meaning(self) -> tuple[int, ...]:
        """The game's actions, by their numbers among the console's 18."""
        return self._emulator.action_meaning

    @property
    def score(self) -> float:
        """Of the running game."""
        return self._game.score

    @property
    def lives(self) -> int | None:
        """Left in the running game; None in games without lives."""
        return self._lives if self._start[1] else None

    @property
    def num_steps(self) -> int:
        """Agent steps of all games together."""
        return sum(len(game.actions) for game in self._games())

    @property
    def played(self) -> list[list[int]]:
        """The actions of every game, the running one last; for `go_on_with`."""
        return [game.actions for game in self._games()]

    def go_on_with(self, games: Sequence[Sequence[int]]) -> None:
        """Plays what somebody played before, up to where a game ends that should not."""
        for number, actions in enumerate(games):
            if number:
                self._finish()
            for action in actions:
                if self._game.has_ended:
                    break
                self._advance(action)
        self.pause("Here you were. Press a key to go on.")

    @property
    def game_number(self) -> int:
        """Of the running game, from 1."""
        return len(self._finished) + 1

    @property
    def finished_scores(self) -> tuple[float, ...]:
        """Of the games before the running one."""
        return tuple(game.score for game in self._finished)

    @property
    def can_undo(self) -> bool:
        """Whether there is anything to go back to."""
        return bool(self._game.actions or self._dropped or self._finished)

    @property
    def screen(self) -> np.ndarray:
        """What is to be seen now, `[210, 160, 3]` uint8."""
        return self._screens[-1]

    def step(self, pressed: Sequence[str]) -> list[np.ndarray]:
        """Plays one agent step with `keys.KEYS`, in the order they were pressed.

        Returns:
          What is to be seen, frame by frame: 4 pictures, fewer where the game ends.
        """
        if self.paused:
            raise RuntimeError("the game is paused; call play first")
        screens = self._advance(action_of(pressed, self.action_meaning))
        self._speeds.add(self.speed)
        if self._game.has_ended:
            reason = "Game over" if self._game.is_over else "This game is as long as it may be"
            self.pause(f"{reason}: {self.score:,.0f} points. Press a key for the next game.")
        elif self.num_steps == self.wanted_steps:
            self.pause("That is all that was wanted: save it, or press a key to play on.")
        return screens

    def play(self) -> None:
        """Goes on after a pause, with a new game if the last one has ended."""
        if self._game.has_ended:
            self._finish()
        self.paused = False
        self.note = ""

    def pause(self, note: str = "Paused. Press a key to go on.") -> None:
        """Stops until `play`."""
        self.paused = True
        self.note = note

    def change_speed(self, by: int) -> None:
        """Takes a neighbour in `SPEEDS`, if there is one."""
        at = SPEEDS.index(self.speed) + by
        self.speed = SPEEDS[min(max(at, 0), len(SPEEDS) - 1)]

    def undo(self, steps: int = UNDO_STEPS) -> None:
        """Takes back the last steps of a game.

        At the beginning of a game it goes back to the end of the one before, or brings back the
        one that a restart dropped.
        """
        if not self.can_undo:
            return
        if self._game.actions:
            self._undone_steps += min(steps, len(self._game.actions))
            self._go_to(max(0, len(self._game.actions) - steps))
        else:
            self._game = (self._dropped or self._finished).pop()
            self._go_to(len(self._game.actions))
        self.pause("Taken back. Press a key to go on from here.")

    def restart(self) -> None:
        """Begins the running game anew; games that were played to their end are kept."""
        if self._game.has_ended:
            self._finish()
        elif self._game.actions:
            self._dropped.append(self._game)
            self._begin()
        back = " Undo brings the dropped game back." if self._dropped else ""
        self.pause(f"A new game. Press a key to begin.{back}")

    def demonstration(self, *, name: str = "") -> ActionDemonstration:
        """All that was played, not checked; see `demos.verified`.

        Raises:
          DemonstrationError: nothing was played yet.
        """
        games = [game for game in self._games() if game.actions]
        if not games:
            raise DemonstrationError("nothing was played yet")
        return ActionDemonstration(
            game=self.game,
            actions=np.array([action for game in games for action in game.actions], np.uint8),
            episode_lengths=np.array([len(game.actions) for game in games], np.int32),
            scores=tuple(game.score for game in games),
            game_over=tuple(game.is_over for game in games),
            configuration=atari.EMULATOR
            | {"noop_max": 1, "max_episode_steps": self._max_episode_steps},
            action_meaning=self.action_meaning,
            name=name,
            origin={
                "made_by": "a person at the keyboard",
                # Whoever could take back mistakes, or had more time, played better for it.
                "undone_steps": self._undone_steps,
                "speeds": sorted(self._speeds),
            },
        )

    def _games(self) -> list[_Game]:
        return [*self._finished, self._game]

    def _finish(self) -> None:
        self._finished.append(self._game)
        self._dropped = []
        self._begin()

    def _begin(self) -> None:
        self._game = _Game()
        self._go_to(0)

    def _advance(self, action: int) -> list[np.ndarray]:
        game = self._game
        if len(game.actions) % _MARK_EVERY == 0:
            game.marks.append(self._emulator.save_state())
        frames: list[np.ndarray] = []
        step = self._emulator.step(action, screens=frames)
        game.actions.append(action)
        game.rewards.append(step.reward)
        game.is_over = step.is_over
        game.is_cut = not step.is_over and len(game.actions) >= self._max_episode_steps
        self._lives = step.lives
        # Two frames at a time, as the agent sees them: many things are drawn in every second one.
        before = [frames[0] if self._last_frame is None else self._last_frame, *frames[:-1]]
        self._screens = [np.maximum(a, b) for a, b in zip(before, frames, strict=True)]
        self._last_frame = frames[-1]
        return self._screens

    def _go_to(self, length: int) -> None:
        """Goes to where the running game had that many steps."""
        # A state has no screen, so that at least one step is played again.
        mark = max(0, (length - 1) // _MARK_EVERY)
        again = self._game.actions[mark * _MARK_EVERY : length]
        start, self._lives, screen = self._start
        self._screens = [screen]
        self._last_frame = None if again else screen
        self._emulator.load_state(self._game.marks[mark] if again else start)
        self._game = _Game(
            actions=self._game.actions[: mark * _MARK_EVERY],
            rewards=self._game.rewards[: mark * _MARK_EVERY],
            marks=self._game.marks[:mark],
        )
        for action in again:
            self._advance(action)


def continues(later: ActionDemonstration, earlier: ActionDemonstration) -> bool:
    """Whether all that was played in one was played in the other, from its beginning."""
    length, games = len(earlier.actions), len(earlier.episode_lengths)
    return bool(
        later.game == earlier.game
        and np.array_equal(later.actions[:length], earlier.actions)
        and np.array_equal(later.episode_lengths[: games - 1], earlier.episode_lengths[:-1])
        and len(later.episode_lengths) >= games
        and later.episode_lengths[games - 1] >= earlier.episode_lengths[-1]
    )
