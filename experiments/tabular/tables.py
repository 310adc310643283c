"""Algorithm 2 on DeepSea, and why the rule as the paper prints it does not forget."""

from typing import Any

import jax
import numpy as np
import scipy.optimize
from scipy.special import expit

from bqfd_jax import tabular
from bqfd_jax.envs import deep_sea_values
from bqfd_jax.runs import deep_sea
from bqfd_jax.training import on_device

from .config import Config

CASES = ("treasure", "bomb")
# name -> options of `tabular.run`; the demonstration may also be learnt from, as an episode 0.
VARIANTS: dict[str, dict[str, Any]] = {
    "correction in the target": {"correction": "target"},
    "as printed": {"correction": "posterior"},
    "in the target, episode 0": {"correction": "target", "replay_demonstrations": True},
    "as printed, episode 0": {"correction": "posterior", "replay_demonstrations": True},
    "Q-learning": {"correction": "none"},
}


def deep_sea_problem(size: int, case: str) -> tabular.Problem:
    """DeepSea as arrays; the step is the row, and a state is a column."""
    rewards = np.asarray(deep_sea_values.reward_table(deep_sea.CASES[case](size), size))
    return tabular.Problem(rewards, *deep_sea_values.dynamics(size))


def right_all_the_way(size: int) -> tabular.Demonstrations:
    """The one demonstration: to the corner."""
    return tabular.Demonstrations(np.arange(size)[None], np.ones((1, size), np.int32))


def train(config: Config, **options: Any) -> dict[str, np.ndarray]:
    """Returns of one variant, case -> `[seeds, episodes]`; all cases and seeds side by side."""
    problems = [deep_sea_problem(config.size, case) for case in CASES]
    problems = jax.tree.map(lambda *x: np.repeat(np.stack(x), config.seeds, axis=0), *problems)
    keys = deep_sea.seed_keys(config.seeds, len(CASES))
    demonstrations = right_all_the_way(config.size)

    def one(key: jax.Array, problem: tabular.Problem) -> jax.Array:
        return tabular.run(
            key,
            problem,
            demonstrations,
            episodes=config.episodes,
            eta=config.eta,
            beta=config.beta,
            variance=config.variance,
            gamma=config.gamma,
            **options,
        ).returns

    returns = on_device.over_runs(one, len(keys))(keys, problems)
    return dict(zip(CASES, np.asarray(returns).reshape(len(CASES), config.seeds, -1), strict=True))


def settled_after(returns: np.ndarray, case: str, best: float) -> list[int | None]:
    """For each seed, after how many episodes all that follow are good; None: not even the last is.

    With the treasure that is to take it at no needless cost, with the bomb to keep clear of it.
    """
    optimal = deep_sea_values.is_optimal(returns, case, best)
    after = [int(np.flatnonzero(~row).max(initial=-1)) + 1 for row in optimal]
    return [None if number == returns.shape[1] else number for number in after]


# --- Why the printed rule does not forget ---


def forgetting(config: Config) -> dict[str, np.ndarray]:
    """One state, two actions that pay nothing, an expert who prefers one: its value, by visits.

    All that is seen is the expert's bonus.  In the target it fades like `log(n) / n`; as printed it
    comes to rest at `q = 4 variance eta (1 - pi)`.
    """
    problem = tabular.Problem(np.zeros((1, 1, 2)), np.ones((1, 1, 2, 1)), np.ones(1))
    demonstrations = tabular.Demonstrations(np.zeros((1, 1), int), np.ones((1, 1), int))
    curves = {}
    for name in ("correction in the target", "as printed"):
        result = tabular.run(
            jax.random.key(0),
            problem,
            demonstrations,
            episodes=10_000,
            eta=config.eta,
            beta=config.beta,
            variance=config.variance,
            epsilon=1.0,
            **VARIANTS[name],
        )
        curves[name] = np.asarray(result.values)[np.asarray(result.actions) == 1]
    length = min(len(curve) for curve in curves.values())
    visits = np.unique(np.geomspace(1, length, 40).astype(int))
    return {"visits": visits, **{name: curve[visits - 1] for name, curve in curves.items()}}


def resting_value(config: Config) -> float:
    """Where the printed rule leaves the expert's action: `q = c (1 - pi)`, the other one at -q."""
    c = 4 * config.variance * config.eta
    return scipy.optimize.brentq(lambda q: c * expit(-2 * config.eta * q) - q, 0.0, c)
