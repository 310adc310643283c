"""MinAtar's games together: interquartile means of returns on a scale that all games share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bqfd_jax.runs import text
from bqfd_jax.runs.statistics import bootstrap_interval

_SEED = 0
Scales = Mapping[str, Mapping[str, float]]  # game -> `random` and `best`


def normalise(returns: np.ndarray, scale: Mapping[str, float]) -> np.ndarray:
    """0 is random play, 1 the best that the teacher came to; any shape."""
    span = scale["best"] - scale["random"]
    if span <= 0:
        raise ValueError(
            f"the teacher's best return ({scale['best']}) is not above random play's "
            f"({scale['random']}): it has learnt nothing, so nothing can be measured by it; train "
            "for more steps"
        )
    return (np.asarray(returns, float) - scale["random"]) / span


def aggregate(rows: Sequence[Mapping[str, Any]], scales: Scales) -> list[dict[str, Any]]:
    """For each demonstration and agent the interquartile mean over games and seeds, and over all.

    Args:
      rows: a case each, with `env`, `agent`, `demonstration` and the `final` returns of its seeds.
      scales: of each game.
    """
    groups: dict[tuple[str | None, str], list[np.ndarray]] = {}
    for row in rows:
        scores = normalise(row["final"], scales[row["env"]])
        groups.setdefault((row["demonstration"], row["agent"]), []).append(scores)
        if row["demonstration"] is not None:
            groups.setdefault(("all three", row["agent"]), []).append(scores)
    return [
        {"demonstration": quality, "agent": agent}
        | bootstrap_interval(np.stack(scores), np.random.default_rng(_SEED))._asdict()
        for (quality, agent), scores in groups.items()
    ]


def table(aggregates: Sequence[Mapping[str, Any]], scales: Scales) -> str:
    """Markdown, and below it what returns are measured by."""
    lines = [("demonstration", "agent", "interquartile mean", "95 % interval")]
    for one in aggregates:
        interval = f"{one['low']:.2f} to {one['high']:.2f}"
        lines.append(
            (one["demonstration"] or "none", one["agent"], f"{one['value']:.2f}", interval)
        )
    measured = "; ".join(
        f"{game} {text.score(scale['random'])} and {text.score(scale['best'])}"
        for game, scale in scales.items()
    )
    return f"{text.markdown(lines)}\n\nReturns that count as 0 and 1: {measured}."
