"""The best network of a run: chosen by its evaluations, so its score flatters."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bqfd_jax.files import FileError, check_fields, read_record
from bqfd_jax.policy import Policy, load_policy, save_policy
from bqfd_jax.runs import text
from bqfd_jax.runs.sinks import Sink

FILE = "policy-best.npz"
# Below this share of the best, a last evaluation is told of.
_FALL = 0.5


class Best:
    """Keeps the network of the highest evaluation, in memory or in the run folder.

    Args:
      folder: of the run; None keeps it in memory alone.
      sink: what is told of troubles.
      network: of somebody's own, of which files hold the parameters only.
    """

    def __init__(self, folder: Path | None, sink: Sink, network: Any = None):
        self._path = None if folder is None else folder / FILE
        self._sink, self._network = sink, network
        self._policy: Policy | None = None
        # What is known of its evaluation.  A kill may have cost the row of metrics, not the file.
        self.chosen = None if self._path is None else _read_chosen(self._path)

    @property
    def policy(self) -> Policy | None:
        """Acts by that network, which may be of an earlier sitting."""
        if self._policy is None and self._path is not None and self._path.exists():
            return load_policy(self._path, network=self._network)
        return self._policy

    def is_reached(self, row: Mapping[str, Any], earlier: Iterable[Mapping[str, Any]]) -> bool:
        """Whether an evaluation is the highest; of equals the last, whose network knows most."""
        means = [other["eval_mean"] for other in earlier]
        means += [] if self.chosen is None else [self.chosen["mean"]]
        return row["eval_mean"] >= max(means, default=row["eval_mean"])

    def keep(self, row: Mapping[str, Any], policy: Policy) -> None:
        """Writes a policy down, marked as chosen by the evaluation of a row."""
        chosen = {"by": "evaluation", "step": row["step"], "mean": float(row["eval_mean"])}
        self.chosen = chosen | {"episodes": row["episodes"]}
        self._policy = dataclasses.replace(policy, chosen=self.chosen)
        if self._path is None:
            return
        try:
            save_policy(self._policy, self._path)
        except OSError as error:
            self._sink.warn(f"{FILE} could not be written: {error}")


def _read_chosen(path: Path) -> dict[str, Any] | None:
    """By what a file says that it was chosen; None if it does not, or there is none."""
    try:
        chosen = read_record(path)[0].get("chosen")
        check_fields(chosen, step=int, mean=float, episodes=int)
    except (OSError, FileError):
        return None
    return chosen


def beside_last(
    evaluations: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any] | None
) -> dict[str, Any]:
    """What `summary.json` tells of the best evaluation.

    Args:
      evaluations: as in `summary.json`, in order.
      chosen: what is known of the best network; its row may be lost.
    """
    names = ("step", "mean", "episodes")
    known = [{name: row[name] for name in names} for row in evaluations]
    if chosen is not None:
        known.insert(0, {name: chosen[name] for name in names})
    if not evaluations:
        return {"best": None, "last_to_best": None}
    best = max(known, key=lambda row: (row["mean"], row["step"]))
    # What would half of a loss be?
    ratio = evaluations[-1]["mean"] / best["mean"] if best["mean"] > 0 else None
    return {"best": best, "last_to_best": ratio}


def fall(summary: Mapping[str, Any]) -> str | None:
    """Words about a run whose last evaluation is below half of its best; None for others."""
    ratio, best = summary.get("last_to_best"), summary.get("best")
    if ratio is None or ratio >= _FALL:
        return None
    last = summary["evaluations"][-1]["mean"]
    shown = [text.score(mean, last, best["mean"]) for mean in (last, best["mean"])]
    return (
        f"the last evaluation ({shown[0]}) fell below half of the best ({shown[1]} at step "
        f"{best['step']:,}); {FILE} is the network of that one, chosen by evaluation, so that its "
        "score flatters"
    )
