"""The planner that plays like a person: it looks a little ahead, and changes keys for a reason.

It has a habit: what somebody does in such a place without thinking.  Every few steps it imagines
what would come of each key: held for a moment, then followed by its habit or by another hold until
the end of its horizon.  A key is worth the mean of the best of these futures and of all of them, so
a place with many ways out is better than one with a single way.  It leaves its habit, and the key
that it holds, only for a key that is better by a margin.  Lapses of attention and late reactions
make it imperfect.
"""

import dataclasses
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

    def simulated(self, num_keys: int) -> float:
        """Agent steps that are imagined per step of the game, about."""
        promising = min(_PROMISING, num_keys)
        # A key that is followed by itself is imagined once, though it is asked for twice.
        others = min(self.continuations, num_keys - 1) * (1 - 1 / num_keys)
        # Each key followed by the habit and by itself, the others, and what was intended.
        futures = 2 * num_keys + promising * others + 1
        decision = num_keys * self.pace + futures * (self.horizon - self.pace)
        attention = 1 / (1 + self.lapse_probability * self.lapse_steps / self.pace)
        return attention * decision / self.pace


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


class Imagination:
    """Plays on in the emulator from where futures lead; counts the steps that it takes."""

    def __init__(self, emulator: ale.Ale, how: Settings, hints: Hints, judge: Judge):
        self._emulator, self._how, self._hints, self._judge = emulator, how, hints, judge
        meaning = emulator.action_meaning
        self.keys = [meaning.index(key) for key in hints.keys or meaning]
        self.simulated = 0
        self._unit = 1.0  # points of a usual reward
        self._potential: Potential = lambda ram: 0.0

    def begin(self) -> Future:
        """Looks around, which may play on; the future in which nothing has happened yet."""
        # What a reward is worth is learnt on the way; futures are compared on one scale.
        self._unit = self._judge.unit
        here = Future((), (), 0.0, self._emulator.lives, self._emulator.save_state())
        self._potential = self._hints.look(self._emulator)
        return here

    def habit(self) -> int:
        """What somebody does in the emulator's place without thinking, one of `keys`."""
        if self._hints.habit is None:
            return self.keys[0]
        ram = self._emulator.ram().astype(int)
        return self._emulator.action_meaning.index(self._hints.habit(ram))

    def to_the_end(self, first: Future, keys: Sequence[int | None]) -> Future:
        """Goes on to the end of the horizon; the last of the keys is held."""
        left = self._how.horizon - len(first.keys)
        return self.play(first, (*keys, *[keys[-1]] * left)[:left])

    def play(self, start: Future, keys: Sequence[int | None]) -> Future:
        """Goes on from a future; None among the keys is what the habit does there."""
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
            pressed.append(self.habit() if key is None else key)
            step = emulator.step(pressed[-1])
            rewards.append(step.reward)
            gained += step.reward / self._unit
            dies = judge.has_lives and (step.lives < start.lives or step.is_over)
            if dies:
                gained -= self._hints.life
            values.append(gained + self._potential(emulator.ram()))
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


class Outlook:
    """What may come of each key from one place.

    A future is imagined when it is first asked for, and only then: what is wanted may depend on
    what was imagined before.
    """

    def __init__(
        self, imagination: Imagination, how: Settings, here: Future, intent: tuple[int, ...]
    ):
        self._imagination, self._hope = imagination, how.hope
        self._firsts = {key: imagination.play(here, [key] * how.pace) for key in imagination.keys}
        self._futures: dict[tuple[int, int | None], Future] = {}
        # What is left of the future that was wanted last time, if it is long enough.
        self._intended: Future | None = None
        left = intent[how.pace :]
        if len(left) > how.pace:
            self._intended = imagination.to_the_end(self._firsts[left[0]], left[how.pace :])

    def future(self, key: int, second: int | None) -> Future:
        """A key for one pace, then another one, or None: the habit, to the end of the horizon."""
        if (key, second) not in self._futures:
            imagined = self._imagination.to_the_end(self._firsts[key], (second,))
            self._futures[key, second] = imagined
        return self._futures[key, second]

    def best(self, key: int, seconds: Sequence[int | None]) -> Future:
        """The best future of a key: followed by one of these, held on, or as it was intended."""
        futures = [self.future(key, second) for second in (*seconds, key)]
        if self._intended is not None and self._intended.keys[0] == key:
            futures.append(self._intended)
        return max(futures, key=lambda future: future.worth)

    def worth(self, key: int, seconds: Sequence[int | None]) -> float:
        """Of a key: the mean, weighed by hope, of its best future and of all that it shares."""
        mean = sum(self.future(key, second).worth for second in seconds) / len(seconds)
        return self._hope * self.best(key, seconds).worth + (1 - self._hope) * mean


class Mind:
    """Decides; all chance comes from `rng`."""

    def __init__(
        self, emulator: ale.Ale, how: Settings, hints: Hints, judge: Judge, rng: np.random.Generator
    ):
        self._emulator, self._how, self._hints, self._rng = emulator, how, hints, rng
        self._imagination = Imagination(emulator, how, hints, judge)
        self.keys = self._imagination.keys
        self.rest = self.keys[0] if hints.rests else None
        self._intent: tuple[int, ...] = ()

    @property
    def simulated(self) -> int:
        """Agent steps that were imagined so far."""
        return self._imagination.simulated

    def decide(self, held: int) -> int:
        """The key for the next steps; leaves the emulator as it was."""
        reflex = self._hints.reflex(self._emulator.ram().astype(int))
        if reflex is not None:
            self._intent = ()
            return self._emulator.action_meaning.index(reflex)
        # Before the look, which may play on.
        calm = (self._imagination.habit() if self._hints.rests else None, held)
        here = self._imagination.begin()
        chosen = self._think(Outlook(self._imagination, self._how, here, self._intent), calm)
        self._emulator.load_state(here.state)
        return chosen

    def _think(self, outlook: Outlook, calm: Sequence[int | None]) -> int:
        """A closer look at promising keys; what is chosen becomes what is intended."""
        seconds = self._seconds()
        promising = sorted(self.keys, key=lambda key: -outlook.worth(key, seconds[:1]))[:_PROMISING]
        chosen = self._choose({key: outlook.worth(key, seconds) for key in promising}, calm)
        self._intent = outlook.best(chosen, seconds).keys
        return chosen

    def _choose(self, worth: dict[int, float], calm: Sequence[int | None]) -> int:
        """The best key, or rather the habit's or the one held if they are hardly worse."""
        best = max(worth, key=worth.__getitem__)
        for key in calm:
            if key in worth and worth[best] - worth[key] <= self._how.margin:
                return key
        return best

    def _seconds(self) -> list[int | None]:
        """What may follow the first key, whichever it is: None, the habit; and some other keys."""
        others = self.keys[1:]
        count = min(self._how.continuations, len(others))
        return [None, *(others[k] for k in self._rng.permutation(len(others))[:count])]


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
