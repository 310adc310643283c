"""The planner that plays like a person: it looks a little ahead, and changes keys for a reason.

Every few steps it imagines what would come of each key: held for a moment, then followed by another
hold until the end of its horizon.  A key is worth the mean of the best of these futures and of all
of them, so a place with many ways out is better than one with a single way.  It takes another key
only if that is better by a margin.  Lapses of attention and late reactions make it imperfect.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.demos.making.hints import Hints, Potential
from bqfd_jax.demos.making.search import Game, Judge
from bqfd_jax.envs import ale


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a game is played."""

    pace: int  # agent steps between decisions
    horizon: int  # agent steps that are imagined
    continuations: int  # second holds that are imagined after a promising first one
    hope: float  # weight of the best future; the mean of all gets the rest
    margin: float  # rewards of the usual size by which another key must be better
    lapse_probability: float  # that attention lapses at a decision
    lapse_steps: int  # how long what is held is held on then, in the mean
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

    def decide(self, held: int) -> int:
        """The key for the next steps; leaves the emulator as it was."""
        how = self._how
        state, lives = self._emulator.save_state(), self._emulator.lives
        potential = self._hints.look(self._emulator)
        here = Future((), (), 0.0, lives, state)
        firsts = {key: self._imagine(here, [key] * how.pace, potential) for key in self.keys}
        futures = {
            key: [
                self._to_the_end(first, (second,), potential)
                for second in dict.fromkeys((key, self.keys[0]))
            ]
            for key, first in firsts.items()
        }
        intent = self._intent[how.pace :]
        if len(intent) > how.pace:
            first = intent[0]
            futures[first].append(self._to_the_end(firsts[first], intent[how.pace :], potential))
        promising = sorted(self.keys, key=lambda key: -self._worth(futures[key]))[:4]
        seconds = self._seconds()
        for key in promising:
            futures[key] += [
                self._to_the_end(firsts[key], (second,), potential)
                for second in seconds
                if second not in (key, self.keys[0])
            ]
        chosen = self._choose({key: self._worth(futures[key]) for key in promising}, held)
        self._intent = max(futures[chosen], key=lambda future: future.worth).keys
        self._emulator.load_state(state)
        return chosen

    def _worth(self, futures: list[Future]) -> float:
        worths = [future.worth for future in futures]
        hope = self._how.hope
        return hope * max(worths) + (1 - hope) * sum(worths) / len(worths)

    def _choose(self, worth: dict[int, float], held: int) -> int:
        """The best key, or rather the one at rest or held if they are hardly worse."""
        best = max(worth, key=worth.__getitem__)
        for calm in (self.rest, held):
            if calm in worth and worth[best] - worth[calm] <= self._how.margin:
                return calm
        return best

    def _seconds(self) -> Sequence[int]:
        """Keys that may follow the first, the same ones whichever it is."""
        count = min(self._how.continuations, len(self.keys))
        return [self.keys[k] for k in self._rng.permutation(len(self.keys))[:count]]

    def _to_the_end(self, first: Future, keys: tuple[int, ...], potential: Potential) -> Future:
        left = self._how.horizon - len(first.keys)
        return self._imagine(first, (*keys, *[keys[-1]] * left)[:left], potential)

    def _imagine(self, start: Future, keys: Sequence[int], potential: Potential) -> Future:
        keys_there = (*start.keys, *keys)
        if start.state is None:
            return start._replace(
                keys=keys_there, values=start.values + start.values[-1:] * len(keys)
            )
        emulator, judge = self._emulator, self._judge
        emulator.load_state(start.state)
        values, rewards, gained = list(start.values), [], start.gained
        for key in keys:
            step = emulator.step(key)
            rewards.append(step.reward)
            gained += step.reward / judge.unit
            dies = judge.has_lives and (step.lives < start.lives or step.is_over)
            if dies:
                gained -= self._hints.life
            values.append(gained + potential(emulator.ram()))
            if dies or step.is_over:
                break
        self.simulated += len(rewards)
        judge.see(rewards)
        ended = dies or step.is_over
        values += [values[-1]] * (len(keys_there) - len(values))
        state = None if ended else emulator.save_state()
        return Future(keys_there, tuple(values), gained, step.lives, state)


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
    judge = Judge(has_lives=lives > 0, unit=hints.unit)
    mind = Mind(emulator, how, hints, judge, rng)
    held = mind.keys[0]
    waiting = deque([held] * how.late_steps)
    actions: list[int] = []
    score, is_over, absent = 0.0, False, 0
    while len(actions) < steps and not is_over:
        if actions and on_decision(len(actions), score, mind.simulated):
            break
        if absent <= 0 and rng.random() < how.lapse_probability:
            absent = int(rng.integers(how.lapse_steps // 2, how.lapse_steps * 3 // 2 + 1))
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
    return Game(np.array(actions, np.uint8), score, is_over, mind.simulated, 0)
