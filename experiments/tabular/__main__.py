"""The paper's first two algorithms on DeepSea: tables, and the exact filter.

    python -m experiments.tabular
    python -m experiments.tabular --size 20 --episodes 500 --out runs/mine

Trains tabular BQfD with both correction rules, and Q-learning beside them, with a treasure and with
a bomb at the end of the expert's path; then compares the visit weight w_n with the exact variances
of Algorithm 1.  Writes a folder with `summary.json` and pictures.
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import tyro
from tqdm import tqdm

from bqfd_jax import gekf, posterior, tabular
from bqfd_jax.envs import deep_sea
from bqfd_jax.files import write_json
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs import plots
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.training import on_device
from experiments.deep_sea.report import is_optimal

CASES = {"treasure": deep_sea.treasure, "bomb": deep_sea.bomb}
# name -> options of `tabular.run`; the demonstration may also be learnt from, as an episode 0.
VARIANTS: dict[str, dict[str, Any]] = {
    "correction in the target": {"correction": "target"},
    "as printed": {"correction": "posterior"},
    "in the target, episode 0": {"correction": "target", "replay_demonstrations": True},
    "as printed, episode 0": {"correction": "posterior", "replay_demonstrations": True},
    "Q-learning": {"correction": "none"},
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Tabular BQfD on DeepSea, with the correction in the target and as the paper prints it."""

    size: int = 50
    """Rows and columns of the grid, and steps of an episode; at least 2."""
    seeds: int = 10
    """How many seeds, 0 up to this number less one."""
    episodes: int = 3000
    """Episodes per seed."""
    eta: float = 3.0
    """How sharply the expert is taken to prefer better actions."""
    beta: float = 4.0
    """Pseudo-count of the prior: how many visits the expert is listened to."""
    variance: float = 0.6
    """Prior variance of a Q-value."""
    gamma: float = 1.0
    """Discount per step."""
    filter_size: int = 6
    """Size of the DeepSea that Algorithm 1 is run on; its covariances have 4 N^3 entries."""
    out: Path | None = None
    """Folder; a new one below runs/ unless given."""


def deep_sea_problem(size: int, case: str) -> tabular.Problem:
    """DeepSea as arrays; the step is the row, and a state is a column."""
    params = CASES[case](size)
    rewards = np.zeros((size, size, 2), np.float32)
    rewards[:, :, 1] = -float(params.move_cost)
    rewards[-1, -1, 1] = float(params.corner_reward)
    return grid_problem(rewards)


def grid_problem(rewards: np.ndarray) -> tabular.Problem:
    """A problem that falls through a grid as DeepSea does, action 1 being right: `[N, N, 2]`."""
    size = rewards.shape[0]
    column = np.arange(size)
    transitions = np.zeros((size, size, 2, size), np.float32)
    transitions[:, column, 0, np.maximum(column - 1, 0)] = 1
    transitions[:, column, 1, np.minimum(column + 1, size - 1)] = 1
    start = np.zeros(size, np.float32)
    start[0] = 1
    return tabular.Problem(rewards, transitions, start)


def right_all_the_way(size: int) -> tabular.Demonstrations:
    """The one demonstration: to the corner."""
    return tabular.Demonstrations(np.arange(size)[None], np.ones((1, size), np.int32))


def check(config: Config) -> None:
    """Raises `UsageError` for values that cannot be meant."""
    run_folder.require_at_least(2, config, "size", "filter_size")
    run_folder.require_at_least(1, config, "seeds", "episodes")
    if config.filter_size > 100:
        raise UsageError(
            f"--filter-size is {config.filter_size}, but must be at most 100: every step of the "
            "exact filter solves systems of 2 N equations"
        )
    if config.variance == 0:
        raise UsageError("--variance is 0.0, but must be greater than 0")
    for name in ("eta", "beta", "variance", "gamma"):
        value = getattr(config, name)
        if not 0 <= value < np.inf:
            raise UsageError(f"--{name} is {value}, but must be at least 0")
    if config.gamma > 1:
        raise UsageError(f"--gamma is {config.gamma}, but must be at most 1")


# --- Algorithm 2 ---


def train(config: Config, **options: Any) -> dict[str, np.ndarray]:
    """Returns of one variant, case -> `[seeds, episodes]`; all cases and seeds side by side."""
    problems = [deep_sea_problem(config.size, case) for case in CASES]
    problems = jax.tree.map(lambda *x: np.repeat(np.stack(x), config.seeds, axis=0), *problems)
    keys = jax.vmap(jax.random.key)(jnp.tile(jnp.arange(config.seeds), len(CASES)))
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
    optimal = is_optimal(returns, case, best)
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
    return scipy.optimize.brentq(lambda q: c / (1 + np.exp(2 * config.eta * q)) - q, 0.0, c)


# --- Algorithm 1 ---


def exact_variances(config: Config, visits: int) -> tuple[float, np.ndarray]:
    """The weight `w_n`, and the exact variances of the expert's actions on its path, `[N]`.

    The filter's noise is `w_n`, the variance that Algorithm 2 takes a value to have after n visits
    if nothing else were known.  Exactly, a value also inherits the uncertainty of those that follow
    it, and the expert's choice takes some away.
    """
    size = config.filter_size
    problem = deep_sea_problem(size, "treasure")
    next_states = problem.transitions.argmax(-1)
    expert = np.full((size, size), gekf.NO_EXPERT)
    expert[np.arange(size), np.arange(size)] = 1
    weight = float(
        posterior.visit_weight(jnp.float32(visits), beta=config.beta, variance=config.variance)
    )
    beliefs = gekf.backward_filter(
        problem.rewards, next_states, expert, eta=config.eta, gamma=config.gamma, noise=weight
    )
    variances = np.diagonal(beliefs.covariance, axis1=1, axis2=2).reshape(size, size, 2)
    return weight, variances[np.arange(size), np.arange(size), 1]


def filter_error(*, problems: int = 20, eta: float = 2.0) -> dict[str, float]:
    """How far the filter ends from a minimum of the whole objective, on small random problems.

    Differences are the largest among the Q-values of the first step, medians over the problems;
    3 steps, 3 states, 2 actions, an expert in about two of three states, noise 0.7, gamma 0.9.
    The minimum is the one that a general minimiser finds from where the filter ended.
    """
    options = {"eta": eta, "gamma": 0.9, "noise": 0.7}
    shape = (3, 3, 2)

    @jax.jit
    def filtered(*problem: jax.Array) -> jax.Array:
        belief = gekf.backward_filter(*problem, correction="full", iterations=20, **options)
        return belief.mean

    @jax.jit
    @jax.value_and_grad
    def objective(q: jax.Array, *problem: jax.Array) -> jax.Array:
        return gekf.objective(q.reshape(shape), *problem, **options)

    errors, sizes, failures = [], [], 0
    with jax.enable_x64(True):
        for seed in range(problems):
            random = np.random.default_rng(seed)
            rewards = random.normal(size=shape)
            next_states = random.integers(0, 3, shape)
            expert = random.integers(0, 2, (3, 3))
            expert[random.uniform(size=expert.shape) > 2 / 3] = gekf.NO_EXPERT
            found = filtered(rewards, next_states, expert)
            alone = filtered(rewards, next_states, np.full_like(expert, gekf.NO_EXPERT))
            best = scipy.optimize.minimize(
                objective,
                np.asarray(found).reshape(-1),
                args=(rewards, next_states, expert),
                jac=True,
                method="BFGS",
            )
            failures += not best.success
            best = best.x.reshape(shape)
            errors.append(np.abs(found[0] - best[0]).max())
            sizes.append(np.abs(alone[0] - best[0]).max())
    return {
        "problems": problems,
        "minimiser_failed": failures,
        "median_error": float(np.median(errors)),
        "largest_error": float(np.max(errors)),
        "median_size_of_the_correction": float(np.median(sizes)),
    }


# --- The run ---


def main(config: Config | None = None) -> None:
    """Runs everything and writes the folder."""
    config = config or tyro.cli(Config, description=__doc__, prog="python -m experiments.tabular")
    check(config)
    stored = run_folder.config_dict(config, without=("out",))
    out = run_folder.prepare(config.out, stored, name="tabular", resume=False, can_resume=False)
    print(
        f"DeepSea {config.size} x {config.size}, {config.episodes} episodes, {config.seeds} seeds; "
        f"writing to {out}"
    )
    started = time.perf_counter()
    returns: dict[str, dict[str, np.ndarray]] = {}
    for name, options in tqdm(VARIANTS.items(), unit="variant"):
        returns[name] = train(config, **options)
    seconds = time.perf_counter() - started
    best = {
        case: float(deep_sea.optimal_return(params(config.size), config.size))
        for case, params in CASES.items()
    }
    exact = {n: exact_variances(config, n) for n in (1, 10, 100)}
    memory = forgetting(config)
    draw(config, out, returns, best, exact, memory)
    summary = {
        "size": config.size,
        "episodes": config.episodes,
        "seeds": config.seeds,
        "seconds": round(seconds, 1),
        "optimal_return": best,
        "results": {
            case: {
                name: {
                    "settled_after": settled_after(returns[name][case], case, best[case]),
                    "mean_return": float(returns[name][case].mean()),
                    "last_return": returns[name][case][:, -1],
                }
                for name in VARIANTS
            }
            for case in CASES
        },
        "resting_value_as_printed": {
            "closed_form": resting_value(config),
            "measured": float(memory["as printed"][-1]),
        },
        "filter": filter_error(),
        "variance": {
            str(n): {"w_n": weight, "exact_by_row": variances}
            for n, (weight, variances) in exact.items()
        },
    }
    write_json(out / "summary.json", summary)
    print(f"\n{table(summary)}\n\n{seconds:.0f} s of training; pictures and summary in {out}")


def table(summary: dict[str, Any]) -> str:
    """The results as text, one line per case and variant."""
    lines = [f"{'case':9}  {'variant':26}  good for good after episode (per seed)"]
    for case, variants in summary["results"].items():
        for name, result in variants.items():
            shown = " ".join("never" if e is None else str(e) for e in result["settled_after"])
            lines.append(f"{case:9}  {name:26}  {shown}")
    return "\n".join(lines)


def draw(
    config: Config,
    out: Path,
    returns: dict[str, dict[str, np.ndarray]],
    best: dict[str, float],
    exact: dict[int, tuple[float, np.ndarray]],
    memory: dict[str, np.ndarray],
) -> None:
    """The pictures of the folder."""
    # What happens, happens early; the rest is in summary.json.
    first = min(config.episodes, 150)
    plots.curves(
        out / "returns.png",
        {case: {name: returns[name][case][:, :first] for name in VARIANTS} for case in CASES},
        x_label="episode",
        y_label="return",
        references=best,
    )
    rule = {
        name: (memory["visits"], memory[name])
        for name in ("correction in the target", "as printed")
    }
    plots.lines(
        out / "forgetting.png",
        {"the expert's bonus, all rewards being 0": rule},
        x_label="visits",
        y_label="Q(expert's action)",
        references={"closed form, as printed": resting_value(config), "the truth": 0.0},
        log_x=True,
    )
    rows = np.arange(config.filter_size)
    plots.lines(
        out / "variances.png",
        {
            "exact variance / w_n on the expert's path": {
                f"n = {n}": (rows, variances / weight) for n, (weight, variances) in exact.items()
            }
        },
        x_label="row",
        y_label="ratio",
        references={"w_n": 1.0},
    )


if __name__ == "__main__":
    run_folder.use_all_cores()
    run_folder.run_main(main)
