"""What a DeepSea run tells in the end: its summary, a table and the pictures."""

from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.envs.deep_sea_values import is_optimal
from bqfd_jax.runs import plots, text

from .config import Config
from .training import Result

TITLES = {name: kind.title for name, kind in AGENTS.items()}


def summarise(config: Config, best: dict[str, float], results: dict[str, Result]) -> dict[str, Any]:
    """The content of `summary.json`; `best` is the optimal return of each case."""
    seconds = sum(result.seconds for result in results.values())
    steps = len(results) * config.num_runs * config.size * config.episodes
    return {
        "size": config.size,
        "episodes": config.episodes,
        "seeds": config.seeds,
        "observation": config.observation,
        "optimal_return": best,
        "seconds": round(seconds, 2),
        "steps_per_second": round(steps / seconds, 1),
        "results": {
            case: {
                name: _case_summary(result.returns[i], case, best[case])
                for name, result in results.items()
            }
            for i, case in enumerate(config.cases)
        },
    }


def _case_summary(returns: np.ndarray, case: str, best: float) -> dict[str, Any]:
    optimal = is_optimal(returns, case, best)
    late = optimal[:, 10:]
    return {
        "returns": returns.astype(float).tolist(),
        "first_optimal_episode": [int(o.argmax()) + 1 if o.any() else None for o in optimal],
        "share_optimal_after_10": [float(o.mean()) if o.size else None for o in late],
    }


def table(summary: dict[str, Any]) -> str:
    """The results as text, one line per case and agent."""
    head = ("case", "agent", "first optimal (median, worst)", "share after 10 (mean, worst)")
    rows = [(*head, "mean return")]
    for case, agents in summary["results"].items():
        for name, result in agents.items():
            first = [np.inf if e is None else e for e in result["first_optimal_episode"]]
            share = [s for s in result["share_optimal_after_10"] if s is not None]
            rows.append(
                (
                    case,
                    name,
                    f"{_episode(np.median(first))}, {_episode(max(first))}",
                    f"{np.mean(share):.3f}, {min(share):.3f}" if share else "-",
                    f"{np.mean(result['returns']):+.4f}",
                )
            )
    return text.columns(rows)


def _episode(number: float) -> str:
    return "never" if np.isinf(number) else f"{number:g}"


def draw(config: Config, best: dict[str, float], results: dict[str, Result], out: Path) -> None:
    """The pictures of the run folder."""

    def curves(per_agent: dict[str, np.ndarray]) -> dict[str, dict[str, plots.Line]]:
        return {
            case: {TITLES[name]: plots.over_seeds(values[i]) for name, values in per_agent.items()}
            for i, case in enumerate(config.cases)
        }

    plots.lines(
        out / "returns.png",
        curves({name: result.returns for name, result in results.items()}),
        x_label="episode",
        y_label="training return",
        references={case: {"best possible": height} for case, height in best.items()},
    )
    plots.grids(
        out / "learnt.png",
        {
            case: {
                TITLES[name]: ((q[i, ..., 1] - q[i, ..., 0]).mean(0), paths(q[i]))
                for name, (_, _, q, _) in results.items()
            }
            for i, case in enumerate(config.cases)
        },
        colour_label="Q(right) - Q(left), mean of seeds; lines: the greedy path of every seed",
        goals={case: case for case in config.cases},
    )
    weights = {n: r.visit_weights for n, r in results.items() if r.visit_weights is not None}
    if weights:
        plots.lines(
            out / "visit_weight.png",
            curves(weights),
            x_label="episode",
            y_label="visit weight, mean of the demonstration",
        )


def paths(q: np.ndarray) -> np.ndarray:
    """Columns that the greedy policy of each seed visits, `[seeds, N]`, from `[seeds, N, N, 2]`."""
    seeds, size = q.shape[:2]
    column = np.zeros(seeds, int)
    visited = [column]
    for row in range(size - 1):
        goes_right = q[np.arange(seeds), row, column].argmax(-1) == 1
        column = np.clip(np.where(goes_right, column + 1, column - 1), 0, size - 1)
        visited.append(column)
    return np.stack(visited, axis=1)
