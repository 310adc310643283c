"""How far an expert can be trusted, as it is learnt: eta over time, on DeepSea with a treasure.

    python -m experiments.trust
    python -m experiments.trust --agents bqfd --trajectories 3 --out runs/mine

Experts that are always right, err in a fifth of their actions, take any action or are always wrong
show some trajectories each; and two that contradict each other do so in one run.  Every expert is a
demonstration with an eta of its own.  Writes a folder with `summary.json` and `eta.png`.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import console, files
from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.runs import plots, text
from bqfd_jax.runs.sinks import Sink, Terminal

from .. import commands
from .config import Config
from .training import SCENES, Watched, watch

Found = dict[str, dict[str, Watched]]  # agent -> scene


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs everything and writes the folder."""
    # Without a stop by request: nothing of such a run can be saved, so Ctrl-C ends it at once.
    config = commands.parse(Config, arguments, __package__, description=__doc__)
    start(config, Terminal())


def start(config: Config, sink: Sink) -> None:
    """A whole run in its folder."""
    config.check()
    started = time.perf_counter()
    with config.opened(sink, f"{' '.join(config.agents)}; {len(SCENES)} scenes") as out:
        found: Found = {}
        with sink.bar("training", unit="scene", total=len(SCENES) * len(config.agents)) as bar:
            for name in config.agents:
                found[name] = {}
                for scene, experts in SCENES.items():
                    found[name][scene] = watch(config, getattr(config, name), experts)
                    bar.at(sum(map(len, found.values())))
        summary = summarise(config, found) | {"seconds": round(time.perf_counter() - started, 1)}
        draw(found, out)
        files.write_json(out / "summary.json", summary)
    sink.say(f"\n{table(summary)}\n\n{summary['seconds']:.0f} s; eta.png and summary in {out}")


def summarise(config: Config, found: Found) -> dict[str, Any]:
    """The content of `summary.json`: etas in the end, and mean returns, of every seed."""

    def told(scene: str, watched: Watched) -> dict[str, Any]:
        last = {
            expert: watched.eta[:, number, -1].tolist()
            for number, expert in enumerate(SCENES[scene])
        }
        return {"eta": last, "mean_return": watched.returns.mean(1).tolist()}

    return {
        "size": config.size,
        "episodes": config.episodes,
        "seeds": config.seeds,
        "trajectories": config.trajectories,
        "initial_eta": {name: getattr(config, name).eta for name in config.agents},
        "results": {
            name: {scene: told(scene, watched) for scene, watched in scenes.items()}
            for name, scenes in found.items()
        },
    }


def table(summary: dict[str, Any]) -> str:
    """The results as text, one line per agent and expert."""
    rows = [("agent", "scene", "expert", "eta in the end (median, least, most)", "mean return")]
    for name, scenes in summary["results"].items():
        for scene, told in scenes.items():
            for expert, etas in told["eta"].items():
                shown = f"{np.median(etas):.2f}, {min(etas):.2f}, {max(etas):.2f}"
                mean = f"{np.mean(told['mean_return']):+.3f}"
                rows.append((name, scene, expert, shown, mean))
    return text.columns(rows)


def draw(found: Found, out: Path) -> None:
    """Eta over episodes, a panel per scene."""
    plots.lines(
        out / "eta.png",
        {
            scene: {
                f"{expert}: {AGENTS[name].title}": over_seeds(scenes[scene].eta[:, number])
                for name, scenes in found.items()
                for number, expert in enumerate(experts)
            }
            for scene, experts in SCENES.items()
        },
        x_label="episode",
        y_label="eta (median, middle half of the seeds)",
        log_y=True,
    )


def over_seeds(eta: np.ndarray) -> plots.Line:
    """The median of `[seeds, episodes]`, as a mean says little of what is drawn in logarithms."""
    low, middle, high = np.quantile(eta, (0.25, 0.5, 0.75), axis=0)
    return plots.Line(np.arange(1, eta.shape[1] + 1), middle, low, high)


if __name__ == "__main__":
    console.use_all_cores()
    console.run_main(main)
