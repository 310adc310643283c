"""Run folders as runs leave them, made by hand in no time."""

import json

ROWS = (0, 500, 1000)


def write_run(
    folder, *, game="Freeway", agent="bqfd", seed=0, final=20.0, done=True, film=b"", **options
):
    """A run whose evaluations rise to its final score."""
    folder.mkdir(parents=True)
    own = {"learning_rate": 1e-3, "eta": 3.0} if agent == "bqfd" else {"learning_rate": 1e-3}
    kind = {"experiment": "atari", "game": game}
    config = {**kind, "agent": agent, "seed": seed, "steps": 1000, "hidden": 8, agent: own}
    (folder / "config.json").write_text(json.dumps(config | options))
    scores = [final * step / 1000 for step in ROWS]
    rows = []
    for step, score in list(zip(ROWS, scores, strict=True))[: None if done else 2]:
        rows.append({"step": step, "steps_per_second": 50.0, "expert_share": 0.5})
        if agent == "bqfd":
            rows[-1] |= {"visit_weight": 1 - step / 2000, "demo/default/eta": 2.0}
        rows.append({"step": step, "eval_mean": score, "eval_std": 1.0, "episodes": 10})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    machine = {"jax": "0.1", "processor": "an abacus"}
    (folder / "machine.json").write_text(json.dumps(machine))
    if film:
        (folder / "episode.mp4").write_bytes(film)
    if not done:
        return
    evaluations = [
        {"step": step, "mean": score, "std": 1.0, "episodes": 10}
        for step, score in zip(ROWS, scores, strict=True)
    ]
    summary = {
        "game": game,
        "agent": agent,
        "seed": seed,
        "preset": "laptop",
        "steps": 1000,
        "updates": 500,
        "seconds": 60.0,
        "steps_per_second": 16.7,
        "demo": {"score": 15.0, "steps": 100, "scores": [15.0], "name": "default"},
        "evaluations": evaluations,
        "final": {"mean": final, "std": 2.0, "evaluations": 1, "episodes": 10},
        "peak_memory_gb": 0.5,
    }
    (folder / "summary.json").write_text(json.dumps(summary))
