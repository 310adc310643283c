"""What the map of expert quality tells: regrets, their statistics, a table and the pictures."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.agents import AGENTS
from bqfd_jax.runs import plots, text
from bqfd_jax.runs.statistics import Interval, bootstrap_interval, is_best, share_best

from .config import Config

TITLES = {
    **{name: kind.title for name, kind in AGENTS.items()},
    "dqn_alone": "PDD DQN alone",
    "tabular": "tabular BQfD",
}
# Two agents whose regrets differ by no more than what all right moves together cost are equal.
TOLERANCE = 0.01


class Maps(NamedTuple):
    """Regrets of every agent: the best possible return less the mean of a run's episodes.

    Those of agents that see no demonstrations are the same in all cells of a case.
    """

    optimal_return: dict[str, float]  # case -> best possible return
    whole: dict[str, np.ndarray]  # agent -> [cases, qualities, quantities, seeds], all episodes
    late: dict[str, np.ndarray]  # the same, of the second half of the episodes
    repeated: frozenset[str]  # agents whose cells are copies


def make_maps(config: Config, optimal: dict[str, float], returns: dict[str, np.ndarray]) -> Maps:
    """From returns `[cells, seeds, episodes]` of every agent to maps of regrets."""
    shape = (len(config.cases), len(config.qualities), len(config.quantities))
    best = np.array([optimal[case] for case in config.cases])[:, None, None, None, None]
    repeated = frozenset(agent for agent in returns if not config.sees_demonstrations(agent))
    whole, late = {}, {}
    for agent, values in returns.items():
        cells = (shape[0], 1, 1) if agent in repeated else shape
        regret = best - values.reshape(*cells, *values.shape[1:]).astype(float)
        regret = np.broadcast_to(regret, (*shape, *values.shape[1:]))
        whole[agent] = regret.mean(-1)
        late[agent] = regret[..., regret.shape[-1] // 2 :].mean(-1)
    return Maps(optimal, whole, late, repeated)


def summarise(config: Config, maps: Maps, seconds: dict[str, float]) -> dict[str, Any]:
    """The content of `summary.json`."""
    return {
        "size": config.size,
        "episodes": config.episodes,
        "seeds": config.seeds,
        "cases": config.cases,
        "qualities": config.qualities,
        "quantities": config.quantities,
        "optimal_return": maps.optimal_return,
        "seconds": round(sum(seconds.values()), 1),
        "seconds_by_agent": {agent: round(value, 1) for agent, value in seconds.items()},
        "tolerance": TOLERANCE,
        "regret": _describe(config, maps, maps.whole),
        "late_regret": _describe(config, maps, maps.late),
    }


def _describe(config: Config, maps: Maps, regret: dict[str, np.ndarray]) -> dict[str, Any]:
    """All that is said of one kind of regret; `by_cell` has what the rest is made of."""
    parts = {"all": slice(None)} | {case: slice(i, i + 1) for i, case in enumerate(config.cases)}
    agents = tuple(regret)
    losses = np.stack([regret[agent].mean(-1) for agent in agents])  # [agents, cases, ., .]
    described: dict[str, Any] = {"iqm": {}, "share_best": {}, "share_worse_than_alone": {}}
    for name, cases in parts.items():
        flat = losses[:, cases].reshape(len(agents), -1)
        shares = share_best(flat, tolerance=TOLERANCE)
        described["iqm"][name] = {
            agent: _iqm(regret[agent][cases], agent in maps.repeated)._asdict() for agent in agents
        }
        described["share_best"][name] = dict(zip(agents, shares.tolist(), strict=True))
        described["share_worse_than_alone"][name] = _share_worse_than_alone(maps, agents, flat)
    best = is_best(losses.reshape(len(agents), -1), tolerance=TOLERANCE).reshape(losses.shape)

    def cell(*place: int) -> dict[str, Any]:
        return {
            "best": [agent for k, agent in enumerate(agents) if best[k, *place]],
            "regret": {agent: regret[agent][place].tolist() for agent in agents},
        }

    described["by_cell"] = {
        case: {
            quality: {quantity: cell(c, i, j) for j, quantity in enumerate(config.quantities)}
            for i, quality in enumerate(config.qualities)
        }
        for c, case in enumerate(config.cases)
    }
    return described


def _iqm(regret: np.ndarray, repeated: bool) -> Interval:
    """Of `[cases, qualities, quantities, seeds]`; copies are no further evidence."""
    _, qualities, quantities, seeds = regret.shape
    tasks = regret[:, 0, 0] if repeated else regret.reshape(-1, seeds)
    copies = qualities * quantities if repeated else 1
    # The same draws for all, so that the same numbers have the same interval.
    return bootstrap_interval(tasks, np.random.default_rng(0), copies=copies)


def _share_worse_than_alone(
    maps: Maps, agents: tuple[str, ...], losses: np.ndarray
) -> dict[str, float]:
    """In what share of the cells an agent would have done better as plain DQN, nothing shown."""
    if "dqn_alone" not in agents:
        return {}
    alone = losses[agents.index("dqn_alone")]
    return {
        agent: float((values > alone + TOLERANCE).mean())
        for agent, values in zip(agents, losses, strict=True)
        if agent not in maps.repeated
    }


def table(summary: dict[str, Any]) -> str:
    """The results as text, one line per agent."""
    regret, late = summary["regret"], summary["late_regret"]
    parts = ("all", *summary["cases"])
    head = ("agent", *(f"regret, {part}" for part in parts), "late, all", "best in", "late best in")
    rows = [head]
    for agent in regret["iqm"]["all"]:
        estimates = [regret["iqm"][part][agent] for part in parts] + [late["iqm"]["all"][agent]]
        shares = [kind["share_best"]["all"][agent] for kind in (regret, late)]
        rows.append((TITLES[agent], *map(_shown, estimates), *(f"{share:.0%}" for share in shares)))
    note = "" if summary["seeds"] == 1 else ", 95 % intervals"
    return f"{text.columns(rows)}\n(interquartile means over cells and seeds{note})"


def _shown(interval: dict[str, float]) -> str:
    if np.isnan(interval["low"]):
        return f"{interval['value']:.3f}"
    return f"{interval['value']:.3f} [{interval['low']:.3f}, {interval['high']:.3f}]"


def quality_name(quality: str) -> str:
    """A quality as people read it."""
    kind, _, value = quality.partition("=")
    if quality in ("eta=inf", "eta=-inf", "eta=0"):
        return {"inf": "always right", "-inf": "always wrong", "0": "any action"}[value]
    if kind == "eta":
        return f"eta {value}"
    if kind == "errs":
        return f"errs {_percent(value)}"
    return "two experts" if kind == "two" else f"right until {_percent(value)}"


def quantity_name(quantity: str) -> str:
    """A quantity as people read it."""
    count, cut, share = quantity.partition("x")
    return f"{count} x {_percent(share)}" if cut else count


def _percent(share: str) -> str:
    """No digit is lost: 0.001 and 0.004 are different rows of a map."""
    return f"{100 * float(share):g}%"


def draw(config: Config, maps: Maps, out: Path) -> None:
    """The pictures of the run folder."""
    names = {
        "row_names": [quality_name(quality) for quality in config.qualities],
        "column_names": [quantity_name(quantity) for quantity in config.quantities],
        "x_label": "trajectories",
        "y_label": "expert",
    }
    for name, regret, label in (
        ("regret", maps.whole, "regret, all episodes"),
        ("late_regret", maps.late, "regret, second half of the episodes"),
    ):
        means = {agent: values.mean(-1) for agent, values in regret.items()}
        seeing = [agent for agent in means if agent not in maps.repeated]
        overview = [agent for agent in seeing if agent in ("bqfd", "ensemble_bqfd", "dqfd", "dqn")]
        for suffix, agents in (("", seeing), ("_overview", overview)):
            if agents:
                plots.heat_maps(
                    out / f"{name}{suffix}.png",
                    {
                        case: {TITLES[agent]: means[agent][c] for agent in agents}
                        for c, case in enumerate(config.cases)
                    },
                    colour_label=f"{label}, mean of seeds",
                    limits=(0.0, 1.0),
                    numbers=not suffix,
                    note=_shown_nothing(config, maps, means),
                    **names,
                )
        others = [values for agent, values in means.items() if agent != "bqfd"]
        if "bqfd" in means and others:
            lead = np.min(others, axis=0) - means["bqfd"]
            plots.heat_maps(
                out / f"{name}_lead.png",
                {"": dict(zip(config.cases, lead, strict=True))},
                colour_label=f"BQfD's lead over the best other\n({label})",
                limits=(-1.0, 1.0),
                **names,
            )
        for axis, along in enumerate(("row_names", "column_names")):
            plots.intervals(
                out / f"{name}_by_{('quality', 'quantity')[axis]}.png",
                _slices(config, maps, regret, axis),
                x_names=names[along],
                x_label=("expert", "trajectories")[axis],
                y_label=f"{label}\n(interquartile mean, 95 % interval)",
            )


def _shown_nothing(config: Config, maps: Maps, means: dict[str, np.ndarray]) -> str:
    """The one number per case of the agents that see no demonstrations."""
    told = [
        f"{TITLES[agent]} "
        + ", ".join(f"{means[agent][c, 0, 0]:.2f} ({case})" for c, case in enumerate(config.cases))
        for agent in means
        if agent in maps.repeated
    ]
    return "\n".join(("Shown nothing, and so the same in all cells:", *told)) if told else ""


def _slices(
    config: Config, maps: Maps, regret: dict[str, np.ndarray], axis: int
) -> dict[str, dict[str, plots.Line]]:
    """Interquartile means and intervals along one axis of the map, over all of the other."""
    panels: dict[str, dict[str, plots.Line]] = {case: {} for case in config.cases}
    for c, case in enumerate(config.cases):
        for agent, values in regret.items():
            repeated = agent in maps.repeated
            along = np.moveaxis(values[c], axis, 0)[: 1 if repeated else None]
            points = np.array([_iqm(place[None, None], repeated) for place in along])
            panels[case][TITLES[agent]] = plots.Line(np.arange(len(points)), *points.T)
    return panels
