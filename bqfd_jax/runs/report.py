"""What a run tells in the end: summary, table, curve, film, policy."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import files
from bqfd_jax.demos import Demonstration
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.policy import save_policy
from bqfd_jax.runs import best, folder, plots, text, video
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import RunError
from bqfd_jax.runs.host_run import HostRun
from bqfd_jax.runs.job import Evaluator, Job
from bqfd_jax.runs.machine import duration, peak_memory_gb
from bqfd_jax.types import Params

Summary = dict[str, Any]


def finish(run: HostRun) -> Summary:
    """Tells what came of a run, and writes it; what cannot be written does not hinder the rest."""
    summary = summarise_run(run)
    run.sink.say(f"\n{table(summary)}\n")
    out = run.journal.folder
    if out is None:
        return summary
    made, failed = [], []
    for name, write in _files(run, out, summary).items():
        try:
            write()
            made.append(name)
        except (OSError, ImportError, ValueError, HostEnvironmentError) as error:
            failed.append(f"{name}: {error}")
    if not run.is_saved and not run.save():
        failed.insert(0, f"the network of step {run.loop.step}, which exists in no checkpoint")
    run.journal.close()
    if failed:
        way_on = f"then `bqfd resume {out}` goes on from the last checkpoint"
        if folder.is_at_its_end(out):
            way_on = "and train anew in another folder: there is no checkpoint to go on from"
        raise RunError(
            f"NOT SAVED: {'; '.join(failed)}. Mend that (a full disk: make room in {out}), {way_on}"
        )
    run.sink.say(f"{', '.join(made)} in {out}")
    return summary


def summarise_run(run: HostRun) -> Summary:
    """What came of a run so far."""
    summary = summarise(
        run.config,
        run.job.demonstrations,
        run.journal.evaluations,
        steps=min(run.loop.step, run.config.steps),
        updates=run.updates,
        seconds=run.journal.seconds,
        etas=run.etas,
    )
    summary |= best.beside_last(summary["evaluations"], run.best.chosen)
    return summary | counted(run.journal.rows)


def counted(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """What rows of `metrics.jsonl` add up to.

    Steps that a guard took in the agent's place; training episodes that began in a demonstration,
    and the steps up to there, which are no agent steps.
    """

    def total(name: str) -> int:
        return sum(row.get(name, 0) for row in rows)

    return {
        "guarded_steps": {"training": total("guarded"), "evaluations": total("eval_guarded")},
        "demo_starts": {"episodes": total("demo_starts"), "steps": total("demo_start_steps")},
    }


def _files(run: HostRun, out: Path, summary: Summary) -> dict[str, Callable[[], None]]:
    """Name of each file -> what writes it."""
    job, params = run.job, run.played_params
    writes: dict[str, Callable[[], None]] = {
        "metrics.jsonl": run.journal.flush,
        "policy.npz": lambda: save_policy(job.policy(params), out / "policy.npz"),
    }
    if run.config.only_copies:
        writes["learning_curve.png"] = lambda: draw_losses(out, summary, run.journal.rows)
    elif summary["evaluations"]:
        writes["learning_curve.png"] = lambda: draw(out, summary)
    if run.config.video and (trouble := job.world.no_film()) is None:
        writes["episode.mp4"] = lambda: film(job, params, out / "episode.mp4", run.loop.step)
    elif run.config.video:
        run.sink.say(f"note: no film, because {run.config.title} cannot be rendered: {trouble}")
    # The last, so that a run that has it is whole.
    writes["summary.json"] = lambda: files.write_json(out / "summary.json", summary)
    return writes


def film(job: Job, params: Params, path: Path, step: int) -> None:
    """Plays one episode and writes a film of it, at the speed that people play."""
    env = job.world.evaluation(film=True)
    with video.Mp4(path, fps=job.world.fps, scale=job.world.film_scale) as mp4:
        Evaluator(job, env)(params, step, lambda _: mp4.add(env.render()))


def summarise(
    config: RunConfig,
    demonstrations: Sequence[Demonstration],
    evaluations: Sequence[dict[str, Any]],
    *,
    steps: int,
    updates: int,
    seconds: float,
    etas: Mapping[str, float] | None = None,
) -> Summary:
    """The content of `summary.json`; `evaluations` are rows of `metrics.jsonl`.

    `etas` are what was learnt of each demonstration, by its name.
    """
    etas = etas or {}
    short = [
        {
            "step": row["step"],
            "mean": row["eval_mean"],
            "std": row["eval_std"],
            "episodes": row["episodes"],
        }
        # One that went wrong at first may have come after later ones.
        for row in sorted(evaluations, key=lambda row: row["step"])
    ]
    demo = None
    if demonstrations:
        scores = [score for demonstration in demonstrations for score in demonstration.scores]
        demo = {
            "score": float(np.mean(scores)),
            "steps": sum(len(demonstration.actions) for demonstration in demonstrations),
            "scores": scores,
            "name": " + ".join(demonstration.name for demonstration in demonstrations),
        }
    return {
        "game": config.title,
        "agent": config.agent,
        "seed": config.seed,
        "preset": config.preset_name,
        "steps": steps,
        "final_steps": config.final_steps,
        "updates": updates,
        "seconds": round(seconds, 1),
        "steps_per_second": round(steps / seconds, 2),
        "demo": demo,
        "demos": [
            {
                "name": demonstration.name,
                "score": float(np.mean(demonstration.scores)),
                "steps": len(demonstration.actions),
            }
            | ({"eta": etas[demonstration.name]} if demonstration.name in etas else {})
            for demonstration in demonstrations
        ],
        "evaluations": short,
        "final": final_score(short, steps, config.final_steps, slack=config.envs),
        "peak_memory_gb": round(peak_memory_gb(), 2),
    }


def final_score(
    evaluations: list[dict[str, Any]], steps: int, final_steps: int, *, slack: int = 1
) -> dict[str, float | int | None]:
    """Mean and standard deviation of all episodes in evaluations of the last part of training.

    Args:
      evaluations: as in `summary.json`.
      steps: length of the training.
      final_steps: length of its last part, of which a fifth of the training counts at most.
      slack: steps that an evaluation may be late, so that one due before it does not count.
    """
    # With some numbers of games an evaluation comes a few steps later than its period says.  That
    # of step 0 counts only for a clone, whose training is over then: others have only pre-trained.
    last_part = min(final_steps, max(steps // 5, 1))
    first = min(steps - last_part + slack, steps)
    late = [e for e in evaluations if e["step"] >= first]
    if not late:
        return {"mean": None, "std": None, "evaluations": 0, "episodes": 0}
    count = np.array([e["episodes"] for e in late])
    mean = np.array([e["mean"] for e in late])
    std = np.array([e["std"] for e in late])
    total = float(np.average(mean, weights=count))
    # The variance of all episodes: within evaluations and between them.
    variance = np.average(std**2 + (mean - total) ** 2, weights=count)
    return {
        "mean": total,
        "std": math.sqrt(float(variance)),
        "evaluations": len(late),
        "episodes": int(count.sum()),
    }


def table(summary: Summary) -> str:
    """A run's evaluations as text."""
    lines = [f"{'step':>10}  {'score':>10}  {'std':>8}  episodes"]
    means = [e["mean"] for e in summary["evaluations"]]
    for e in summary["evaluations"]:
        mean, std = (text.score(e[name], *means) for name in ("mean", "std"))
        lines.append(f"{e['step']:>10,}  {mean:>10}  {std:>8}  {e['episodes']}")
    final, demo = summary["final"], summary["demo"]
    score = "none: no evaluation lies in the last part of the training"
    if final["mean"] is not None:
        of = "the last evaluation"
        if final["evaluations"] > 1:
            of = f"the last {final['evaluations']} evaluations"
        mean, std = (text.score(final[name], *means) for name in ("mean", "std"))
        score = f"{mean} +- {std} ({of}, {final['episodes']} episodes)"
    lines.append(
        f"\nfinal score {score}"
        + (f"; the demonstration's {text.score(demo['score'])}" if demo else "")
        + f"\n{summary['updates']:,} updates, {duration(summary['seconds'])}, "
        + (f"{summary['steps_per_second']:.0f} steps/s, " if summary["steps"] else "")
        + f"{summary['peak_memory_gb']:.1f} GB at most"
    )
    if (words := best.fall(summary)) is not None:
        lines.append(f"\nnote: {words}")
    return "\n".join(lines)


def draw(out: Path, summary: Summary) -> None:
    """The learning curve of one run."""
    draw_curves(
        out / "learning_curve.png",
        {summary["game"]: {f"{summary['agent']}, seed {summary['seed']}": [summary]}},
    )


def draw_losses(out: Path, summary: Summary, rows: Sequence[Mapping[str, Any]]) -> None:
    """The learning curve of a clone, from its rows of metrics."""
    rows = [row for row in rows if "accuracy" in row]
    updates = np.array([row["updates"] for row in rows])
    shown = {"loss": "rows that are learnt from", "held_out_loss": "held-out rows"}
    curves = {
        label: plots.Line(updates, np.array([row[name] for row in rows]))
        for name, label in shown.items()
        if all(name in row for row in rows)
    }
    title = f"{summary['game']}, clone, seed {summary['seed']}"
    plots.lines(
        out / "learning_curve.png",
        {title: curves},
        x_label="updates",
        y_label="cross-entropy (nats)",
    )


def draw_curves(
    path: Path,
    panels: Mapping[str, Mapping[str, Sequence[Summary]]],
    *,
    spread: Callable[[np.ndarray], np.ndarray] = lambda means: means.std(axis=0),
) -> None:
    """Evaluation scores over training, beside those of the demonstrations.

    Args:
      path: of the picture.
      panels: panel title -> label -> runs that differ by their seed; their mean is drawn.
      spread: from means of runs `[runs, points]` to the band around the mean, half of its width.
    """
    plots.lines(
        path,
        {
            title: {label: curve(runs, spread) for label, runs in labelled.items()}
            for title, labelled in panels.items()
        },
        x_label="agent steps",
        y_label="evaluation score",
        references={
            title: references([run for runs in labelled.values() for run in runs])
            for title, labelled in panels.items()
        },
    )


def curve(runs: Sequence[Summary], spread: Callable[[np.ndarray], np.ndarray]) -> plots.Line:
    """The mean over runs and its spread; of a single run, the deviation of its episodes."""
    read = {
        name: [np.array([e[name] for e in run["evaluations"]], float) for run in runs]
        for name in ("step", "mean", "std")
    }
    # Runs may have been evaluated a few steps apart, or not all of them at step 0.
    steps = max(read["step"], key=len)
    means = np.stack(
        [np.interp(steps, *points) for points in zip(read["step"], read["mean"], strict=True)]
    )
    around = spread(means) if len(runs) > 1 else read["std"][0]
    middle = means.mean(axis=0)
    return plots.Line(steps, middle, middle - around, middle + around)


def references(runs: Sequence[Summary]) -> dict[str, float]:
    """Scores of the demonstrations, as dashed lines; several are told apart by name and score."""
    shown = dict.fromkeys((r["demo"]["name"], r["demo"]["score"]) for r in runs if r.get("demo"))
    if len(shown) == 1:
        ((_, score),) = shown
        return {"demonstration": score}
    return {f"demonstration {name}, {score:.4g}": score for name, score in shown}
