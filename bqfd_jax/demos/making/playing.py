"""The planner that plays like a person: it looks a little ahead, and changes keys for a reason.

It has a habit: what somebody does in such a place without thinking.  Every few steps it imagines
what would come of each key: held for a moment, then followed by its habit or by another hold until
the end of its horizon.  A key is worth the mean of the best of these futures and of all of them, so
a place with many ways out is better than one with a single way.  It leaves its habit, and the key
that it holds, only for a key that is better by a margin.  Lapses of attention and late reactions
make it imperfect.
"""

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.demos.making import calming
from bqfd_jax.demos.making.hints import Hints, Potential
from bqfd_jax.demos.making.search import Game, Judge
from bqfd_jax.envs import ale

NOOP = 0  # its number among the console's 18 actions
# First keys that get a closer look.
_PROMISING = 4


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a game is played."""

    pace: int  # agent steps between decisions
    horizon: int  # agent steps that are imagined
    continuations: int  # second holds that are imagined after a promising first one
    hope: float  # weight of the best future; the mean of all gets the rest
    margin: float  # rewards of the usual size by which another key must be better
    lapse_probability: float  # that attention lapses at a decision
    lapse_steps: int  # how long that lasts, in the mean; what is held is held on
    lets_go: bool  # of what is held instead
    late_steps: int  # between seeing and doing


class Future(NamedTuple):
    """An imagined path from here."""

    keys: tuple[int, ...]  # one per step
    values: tuple[float, ...]  # one per step: rewards so far and potential there, less lives lost
    gained: float  # rewards so far, less lives lost
    lives: int
    state: Any  # where it leads; None: to a lost life or the end of the game

    @property
    def worth(self) -> float:
        """Half for what comes of it, half for how soon."""
        return (self.values[-1] + sum(self.values) / len(self.values)) / 2


class Mind:
    """Imagines and decides; all chance comes from `rng`."""

    def __init__(
        self, emulator: ale.Ale, how: Settings, hints: Hints, judge: Judge, rng: np.random.Generator
    ):
        self._emulator, self._how, self._hints = emulator, how, hints
        self._judge, self._rng = judge, rng
        meaning = emulator.action_meaning
        self.keys = [meaning.index(key) for key in hints.keys or meaning]
        self.rest = self.keys[0] if hints.rests else None
        self.simulated = 0
        self._intent: tuple[int, ...] = ()
        self._unit = 1.0  # points of a usual reward

    def decide(self, held: int) -> int:
        """The key for the next steps; leaves the emulator as it was."""
        reflex = self._hints.reflex(self._emulator.ram().astype(int))
        if reflex is not None:
            self._intent = ()
            return self._emulator.action_meaning.index(reflex)
        state = self._emulator.save_state()
        # What a reward is worth is learnt on the way; futures are compared on one scale.
        self._unit = self._judge.unit
        here = Future((), (), 0.0, self._emulator.lives, state)
        # Before the look, which may play on.
        calm = (self._usual(self._emulator.ram()) if self._hints.rests else None, held)
        potential = self._hints.look(self._emulator)
        firsts = {key: self._imagine(here, [key] * self._how.pace, potential) for key in self.keys}
        intended = self._intended(firsts, potential)

        @functools.cache
        def future(first: int, second: int | None) -> Future:
            return self._to_the_end(firsts[first], (second,), potential)

        def best(key: int, seconds: Sequence[int | None]) -> Future:
            futures = [future(key, second) for second in (*seconds, key)]
            plans = [plan for plan in intended if plan.keys[0] == key]
            return max([*futures, *plans], key=lambda future: future.worth)

        def worth(key: int, seconds: Sequence[int | None]) -> float:
            hope = self._how.hope
            mean = sum(future(key, second).worth for second in seconds) / len(seconds)
            return hope * best(key, seconds).worth + (1 - hope) * mean

        seconds = self._seconds()
        promising = sorted(self.keys, key=lambda key: -worth(key, seconds[:1]))[:_PROMISING]
        chosen = self._choose({key: worth(key, seconds) for key in promising}, calm)
        self._intent = best(chosen, seconds).keys
        self._emulator.load_state(state)
        return chosen

    def _intended(self, firsts: dict[int, Future], potential: Potential) -> list[Future]:
        """What is left of the best future that was imagined last time, if it is long enough."""
        left = self._intent[self._how.pace :]
        if len(left) <= self._how.pace:
            return []
        return [self._to_the_end(firsts[left[0]], left[self._how.pace :], potential)]

    def _choose(self, worth: dict[int, float], calm: Sequence[int | None]) -> int:
        """The best key, or rather the habit's or the one held if they are hardly worse."""
        best = max(worth, key=worth.__getitem__)
        for key in calm:
            if key in worth and worth[best] - worth[key] <= self._how.margin:
                return key
        return best

    def _usual(self, ram: np.ndarray) -> int:
        """What the habit does, one of `keys`."""
        if self._hints.habit is None:
            return self.keys[0]
        return self._emulator.action_meaning.index(self._hints.habit(ram.astype(int)))

    def _seconds(self) -> list[int | None]:
        """What may follow the first key, whichever it is: None, the habit; and some other keys."""
        others = self.keys[1:]
        count = min(self._how.continuations, len(others))
        return [None, *(others[k] for k in self._rng.permutation(len(others))[:count])]

    def _to_the_end(
        self, first: Future, keys: Sequence[int | None], potential: Potential
    ) -> Future:
        left = self._how.horizon - len(first.keys)
        return self._imagine(first, (*keys, *[keys[-1]] * left)[:left], potential)

    def _imagine(self, start: Future, keys: Sequence[int | None], potential: Potential) -> Future:
        """Plays on from a future; None among the keys is what the habit does there."""
        if start.state is None or not keys:
            there = [self.keys[0] if key is None else key for key in keys]
            return start._replace(
                keys=(*start.keys, *there), values=start.values + start.values[-1:] * len(keys)
            )
        emulator, judge = self._emulator, self._judge
        emulator.load_state(start.state)
        pressed, values = list(start.keys), list(start.values)
        rewards, gained = [], start.gained
        for key in keys:
            pressed.append(self._usual(emulator.ram()) if key is None else key)
            step = emulator.step(pressed[-1])
            rewards.append(step.reward)
            gained += step.reward / self._unit
            dies = judge.has_lives and (step.lives < start.lives or step.is_over)
            if dies:
                gained -= self._hints.life
            values.append(gained + potential(emulator.ram()))
            if dies or step.is_over:
                break
        self.simulated += len(rewards)
        judge.see(rewards)
        ended = dies or step.is_over
        missing = len(keys) - len(rewards)
        pressed += pressed[-1:] * missing
        values += values[-1:] * missing
        state = None if ended else emulator.save_state()
        return Future(tuple(pressed), tuple(values), gained, step.lives, state)


def play_game(
    emulator: ale.Ale,
    how: Settings,
    *,
    hints: Hints,
    steps: int,
    rng: np.random.Generator,
    on_decision: Callable[[int, float, int], bool] = lambda steps, score, simulated: False,
) -> Game:
    """Plays one episode, from the emulator's reset to its end or for so many steps."""
    lives = emulator.reset()
    judge = Judge(has_lives=lives > 0 and hints.life > 0, unit=hints.unit)
    mind = Mind(emulator, how, hints, judge, rng)
    held = mind.keys[0]
    waiting = deque([held] * how.late_steps)
    actions: list[int] = []
    score, is_over, absent = 0.0, False, 0
    while len(actions) < steps and not is_over:
        if actions and on_decision(len(actions), score, mind.simulated):
            break
        # Nobody dozes off in the middle of a move.
        is_calm = absent <= 0 and mind.rest in (held, None)
        if rng.random() < how.lapse_probability and is_calm:
            absent = int(rng.integers(how.lapse_steps // 2, how.lapse_steps * 3 // 2 + 1))
            held = emulator.action_meaning.index(NOOP) if how.lets_go else held
        wanted = held if absent > 0 else mind.decide(held)
        absent -= how.pace
        for _ in range(min(how.pace, steps - len(actions))):
            waiting.append(wanted)
            held = waiting.popleft()
            step = emulator.step(held)
            actions.append(held)
            score += step.reward
            is_over = step.is_over
            if is_over:
                break
    calmed = calming.calm(emulator, actions, shown=hints.shown, rest=mind.rest)
    return Game(calmed, score, is_over, mind.simulated, 0)
