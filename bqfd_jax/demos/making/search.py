"""The planner's search of one game: it plays many copies and keeps the lucky ones.

A population of emulator states advances together, a generation of a few steps at a time, by random
actions that persist for a while.  Then random pairs are compared on score, lives and a little
shaping, and the strictly worse becomes a copy of the better.  Where even the best has lost a life,
the population goes back some generations and tries again.
"""

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.demos.making.shaping import Shaping
from bqfd_jax.envs import ale

# A life is worth that many rewards of the usual size, which fits games that count by ones and games
# that count by thousands.
_REWARDS_PER_LIFE = 30


@dataclasses.dataclass(frozen=True)
class Settings:
    """How a game is searched."""

    population: int  # states that advance together
    compare_probability: float  # that a pair is compared, every generation
    retries: int  # times that a lost life is tried to be avoided before it is accepted
    generation_steps: int  # agent steps between comparisons
    change_probability: float  # that an action is replaced by a random one, every step
    rollback_generations: int  # how far a retry goes back


class Game(NamedTuple):
    """One planned episode."""

    actions: np.ndarray  # [T] uint8
    score: float
    is_over: bool  # False: it was cut off
    simulated: int  # agent steps that were simulated to find it
    retries: int  # times the population went back


@dataclasses.dataclass(frozen=True)
class Candidate:
    """One of the population; never changed, so that copies cost nothing."""

    state: Any  # of the emulator
    ram: np.ndarray  # [128] uint8
    lives: int
    is_over: bool = False
    score: float = 0.0
    credit: float = 0.0  # shaping that is kept
    potential: float = 0.0  # shaping of where it stands
    action: int = 0  # that goes on until it is replaced
    steps: int = 0
    path: tuple | None = None  # (path before, actions of a generation)


def plan_game(
    emulator: ale.Ale,
    how: Settings,
    *,
    shape: Shaping,
    steps: int,
    rng: np.random.Generator,
    on_generation: Callable[[Candidate, int], bool] = lambda best, simulated: False,
) -> Game:
    """Plans one episode, from the emulator's reset to its end or for so many steps.

    All chance comes from `rng`.  `on_generation` is told the best candidate and the steps that were
    simulated; it ends the episode by returning True.
    """
    lives = emulator.reset()
    start = Candidate(emulator.save_state(), emulator.ram().copy(), lives)
    population = [start] * how.population
    judge = Judge(has_lives=lives > 0)
    # Populations to go back to, the oldest first.
    history: deque[list[Candidate]] = deque(maxlen=how.rollback_generations)
    failures, frontier = 0, 0  # retries of one place, and how far the first of them came
    simulated = retries = 0
    while True:
        # Those whose game goes on are all equally far.
        so_far = max(candidate.steps for candidate in population)
        # Not after a retry that went back to the very beginning: an episode has at least one step.
        if so_far and on_generation(max(population, key=judge.value), simulated):
            break
        if so_far >= steps or all(candidate.is_over for candidate in population):
            break
        history.append(population)
        lives_before = max(map(judge.lives, population))
        count = min(how.generation_steps, steps - so_far)
        population, taken = advance(population, emulator, how, shape, judge, count, rng)
        simulated += taken
        if max(map(judge.lives, population)) < lives_before:
            if so_far > frontier + how.rollback_generations * how.generation_steps:
                failures, frontier = 0, so_far
            if failures < how.retries:
                failures += 1
                retries += 1
                population = history[0]
                history.clear()
                continue
            # Nothing helped: a life is lost, and what was before it is no way out any more.
            history.clear()
        population = compare(population, judge, how.compare_probability, rng)
    # Shaping has done its work: what counts now is the score.
    best = max(population, key=lambda candidate: (candidate.score, judge.value(candidate)))
    return Game(_actions(best), best.score, best.is_over, simulated, retries)


class Judge:
    """Values candidates; learns on the way how large the game's rewards are."""

    def __init__(self, *, has_lives: bool, unit: float | None = None):
        self.has_lives = has_lives
        self._unit = unit
        self._sum, self._count = 0.0, 0

    @property
    def unit(self) -> float:
        """The usual size of a reward."""
        if self._unit:
            return self._unit
        return self._sum / self._count if self._count else 1.0

    def see(self, rewards: Sequence[float]) -> None:
        """Takes note of rewards that were paid."""
        sizes = [abs(reward) for reward in rewards if reward]
        self._sum += sum(sizes)
        self._count += len(sizes)

    @property
    def life_worth(self) -> float:
        """Points that a life is worth."""
        return _REWARDS_PER_LIFE * self._sum / self._count if self._count else 1.0

    def lives(self, candidate: Candidate) -> int:
        """Lives left; one less than none once the game is over, if it is a game of lives."""
        if not self.has_lives:
            return 0
        return -1 if candidate.is_over else candidate.lives

    def value(self, candidate: Candidate) -> float:
        """What candidates are compared on."""
        return (
            candidate.score
            + self.life_worth * self.lives(candidate)
            + candidate.credit
            + candidate.potential
        )


def advance(
    population: list[Candidate],
    emulator: ale.Ale,
    how: Settings,
    shape: Shaping,
    judge: Judge,
    count: int,
    rng: np.random.Generator,
) -> tuple[list[Candidate], int]:
    """Plays every candidate on for `count` steps; returns them and the steps that it took."""
    K = len(population)
    changes = rng.random((K, count)) < how.change_probability
    fresh = rng.integers(emulator.num_actions, size=(K, count))
    advanced = [
        candidate
        if candidate.is_over
        else _play(candidate, changes[k], fresh[k], emulator, shape, judge)
        for k, candidate in enumerate(population)
    ]
    taken = sum(
        after.steps - before.steps for before, after in zip(population, advanced, strict=True)
    )
    return advanced, taken


def compare(
    population: list[Candidate], judge: Judge, probability: float, rng: np.random.Generator
) -> list[Candidate]:
    """Compares random pairs; the strictly worse of a pair becomes a copy of the better."""
    population = list(population)
    order = rng.permutation(len(population))
    half = len(population) // 2
    chosen = rng.random(half) < probability
    for one, other in zip(order[:half][chosen], order[half : 2 * half][chosen], strict=True):
        difference = judge.value(population[one]) - judge.value(population[other])
        if difference > 0:
            population[other] = population[one]
        elif difference < 0:
            population[one] = population[other]
    return population


def _play(
    candidate: Candidate,
    changes: np.ndarray,  # [L] bool
    fresh: np.ndarray,  # [L] actions
    emulator: ale.Ale,
    shape: Shaping,
    judge: Judge,
) -> Candidate:
    emulator.load_state(candidate.state)
    action, ram, credit = candidate.action, candidate.ram, candidate.credit
    actions, rewards = [], []
    for change, other in zip(changes, fresh, strict=True):
        action = int(other) if change else action
        step = emulator.step(action)
        actions.append(action)
        rewards.append(step.reward)
        before, ram = ram, emulator.ram().copy()
        credit += shape.gain(before, ram)
        if step.is_over:
            break
    judge.see(rewards)
    return Candidate(
        state=emulator.save_state(),
        ram=ram,
        lives=step.lives,
        is_over=step.is_over,
        score=candidate.score + sum(rewards),
        credit=credit,
        potential=shape.potential(emulator),
        action=action,
        steps=candidate.steps + len(actions),
        path=(candidate.path, actions),
    )


def _actions(candidate: Candidate) -> np.ndarray:
    generations, path = [], candidate.path
    while path is not None:
        path, actions = path
        generations.append(actions)
    return np.array([a for actions in reversed(generations) for a in actions], np.uint8)
