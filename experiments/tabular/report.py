"""What the tabular experiment tells in the end: its summary, a table and the pictures."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.runs import plots, text

from .config import Config
from .tables import CASES, VARIANTS, resting_value, settled_after


class Findings(NamedTuple):
    """All that was computed."""

    returns: dict[str, dict[str, np.ndarray]]  # variant -> case -> [seeds, episodes]
    best: dict[str, float]  # case -> optimal return
    seconds: float  # of training
    memory: dict[str, np.ndarray]  # see `forgetting`
    exact: dict[int, tuple[float, np.ndarray]]  # visits -> see `exact_variances`
    filter_error: dict[str, float]


def summarise(config: Config, found: Findings) -> dict[str, Any]:
    """The content of `summary.json`."""
    return {
        "size": config.size,
        "episodes": config.episodes,
        "seeds": config.seeds,
        "seconds": round(found.seconds, 1),
        "optimal_return": found.best,
        "results": {
            case: {
                name: _describe(found.returns[name][case], case, found.best[case])
                for name in VARIANTS
            }
            for case in CASES
        },
        "resting_value_as_printed": {
            "closed_form": resting_value(config),
            "measured": float(found.memory["as printed"][-1]),
        },
        "filter": found.filter_error,
        "variance": {
            str(n): {"w_n": weight, "exact_by_row": variances}
            for n, (weight, variances) in found.exact.items()
        },
    }


def _describe(returns: np.ndarray, case: str, best: float) -> dict[str, Any]:
    return {
        "settled_after": settled_after(returns, case, best),
        "mean_return": float(returns.mean()),
        "last_return": returns[:, -1],
    }


def table(summary: dict[str, Any]) -> str:
    """The results as text, one line per case and variant."""
    rows = [("case", "variant", "good for good after episode (per seed)")]
    for case, variants in summary["results"].items():
        for name, result in variants.items():
            shown = ("never" if e is None else str(e) for e in result["settled_after"])
            rows.append((case, name, " ".join(shown)))
    return text.columns(rows)


def draw(config: Config, found: Findings, out: Path) -> None:
    """The pictures of the folder."""
    # What happens, happens early; the rest is in summary.json.
    first = min(config.episodes, 150)
    returns = {
        case: {name: plots.over_seeds(found.returns[name][case][:, :first]) for name in VARIANTS}
        for case in CASES
    }
    plots.lines(
        out / "returns.png",
        returns,
        x_label="episode",
        y_label="return",
        references={case: {"best possible": best} for case, best in found.best.items()},
    )
    title = "the expert's bonus, all rewards being 0"
    rules = ("correction in the target", "as printed")
    plots.lines(
        out / "forgetting.png",
        {title: {name: plots.Line(found.memory["visits"], found.memory[name]) for name in rules}},
        x_label="visits",
        y_label="Q(expert's action)",
        references={title: {"closed form, as printed": resting_value(config), "the truth": 0.0}},
        log_x=True,
    )
    title, rows = "exact variance / w_n on the expert's path", np.arange(config.filter_size)
    ratios = {
        f"n = {n}": plots.Line(rows, variances / weight)
        for n, (weight, variances) in found.exact.items()
    }
    plots.lines(
        out / "variances.png",
        {title: ratios},
        x_label="row",
        y_label="ratio",
        references={title: {"w_n": 1.0}},
    )
