"""The report: what it finds, its numbers by hand, its files, and names that mean harm."""

import base64
import csv
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from report_runs import write_run

from bqfd_jax.runs import folder
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.page import numbers, tables
from bqfd_jax.runs.page.collect import Entry, collect
from bqfd_jax.runs.page.figures import mean_curve, usage_curves
from bqfd_jax.runs.page.markup import Html, address, markdown_table, tag
from bqfd_jax.runs.page.write import page, write
from bqfd_jax.runs.statistics import (
    pooled_interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)
from bqfd_jax.runs.sweep.grid import grid, write_cells
from experiments.report.__main__ import main as report

EVIL = "<script>document.title='owned'</script>"


def entry(title, agent, seed, final, **others):
    summary = {"final": {"mean": final, "std": 2.0 * (seed + 1)}, "evaluations": []}
    return Entry(title, agent, seed, f"{title}/{agent}/{seed}", "done", summary=summary, **others)


# --- Statistics ---


def test_the_probability_of_improvement_counts_pairs_and_halves_ties():
    # 3 > 1, 3 > 2, 3 = 3 ; 2 > 1, 2 = 2, 2 < 3: 3 wins, 2 ties of 6 pairs.
    found = probability_of_improvement(np.array([3.0, 2.0]), np.array([1.0, 2.0, 3.0]))
    assert found == pytest.approx((3 + 0.5 * 2) / 6)
    many = probability_of_improvement(np.array([[1.0], [5.0]]), np.array([[2.0], [2.0]]))
    assert many.tolist() == [0.0, 1.0]


def test_the_pooled_mean_is_of_the_middle_half():
    groups = [np.array([-1e6, 2.0, 4.0]), np.array([6.0, 1e6])]
    # Five values: one of each end is left out.
    assert pooled_interquartile_mean(groups) == pytest.approx(4.0)


def test_a_stratified_interval_draws_within_groups():
    random = np.random.default_rng(0)
    constant = [np.full(3, 1.0), np.full(2, 9.0)]
    found = stratified_interval(pooled_interquartile_mean, constant, random)
    # Whatever is drawn is the same: 1 1 1 9 9, less the ends.
    assert found == pytest.approx((11 / 3, 11 / 3, 11 / 3))
    spread = stratified_interval(
        pooled_interquartile_mean, [np.array([0.0, 1.0, 2.0, 3.0])], random
    )
    assert spread.low < spread.value == 1.5 < spread.high
    single = stratified_interval(pooled_interquartile_mean, [np.ones(1), np.ones(5)], random)
    assert (single.value, math.isnan(single.low), math.isnan(single.high)) == (1.0, True, True)


# --- Numbers ---


def test_scores_are_as_in_the_papers_table():
    runs = [entry("Freeway", "bqfd", 0, 20.0), entry("Freeway", "bqfd", 1, 26.0)]
    runs += [Entry("Freeway", "bqfd", 2, "x", "missing"), entry("Freeway", "dqn", 0, 5.0)]
    found = numbers.scores(runs)
    score = found["Freeway", "bqfd"]
    # The mean over seeds, and the mean of their own deviations 2 and 4.
    assert (score.mean, score.std, score.runs, score.paper) == (23.0, 3.0, 3, (29.8, 0.8))
    assert tables.said(score) == "23.0 ± 3.0"
    assert tables.seeds_said(score) == "2 of 3 seeds"
    assert tables.seeds_said(found["Freeway", "dqn"]) == ""
    assert numbers.labels(runs) == ["bqfd", "dqn"]


def test_human_normalised_scores_are_of_games_that_all_have_finished():
    runs = [entry("Breakout", "bqfd", seed, 1.7 + 28.8 * (seed + 1)) for seed in range(3)]
    runs += [entry("Freeway", "bqfd", seed, 29.6 * 0.5) for seed in range(3)]
    runs += [entry("CartPole-v1", "bqfd", 0, 1e9)]
    (found,) = numbers.human_normalised(runs)
    # 1, 2, 3 and three times 0.5: the middle four are 0.5, 0.5, 1, 2.
    assert (found.label, found.games) == ("bqfd", 2)
    assert found.interval.value == pytest.approx(1.0)
    assert 0.5 <= found.interval.low < found.interval.high <= 3.0
    # Another agent that has played one of them alone: only that one counts, for both.
    runs.append(entry("Freeway", "dqn", 0, 29.6))
    ours, theirs = numbers.human_normalised(runs)
    assert (ours.games, ours.interval.value, theirs.interval.value) == (1, 0.5, 1.0)
    # One that has finished nothing yet hides nobody.
    waiting = Entry("Freeway", "dqfd", 0, "x", "missing")
    assert len(numbers.human_normalised([*runs, waiting])) == 2
    assert numbers.human_normalised([entry("CartPole-v1", "dqn", 0, 1.0)]) == []


def test_an_improvement_is_the_mean_over_games():
    runs = [entry("A", "bqfd", seed, 10.0 + seed) for seed in range(2)]
    runs += [entry("A", "dqn", seed, 5.0) for seed in range(2)]
    runs += [entry("B", "bqfd", 0, 1.0), entry("B", "dqn", 0, 1.0), entry("C", "dqn", 0, 1e9)]
    (found,) = numbers.improvements(runs)
    assert (found.label, found.other, found.games) == ("bqfd", "dqn", 2)
    assert found.interval.value == pytest.approx((1.0 + 0.5) / 2)


def test_a_curve_is_over_those_that_have_come_so_far():
    line = mean_curve([([0, 100, 200], [0.0, 2.0, 4.0]), ([0, 100], [2.0, 6.0])])
    assert line.x.tolist() == [0, 100, 200]
    assert line.y.tolist() == [1.0, 4.0, 4.0]
    assert line.high.tolist() == [2.0, 6.0, 4.0]
    assert mean_curve([([0, 1], [5.0, 6.0])]).low is None
    assert len(mean_curve([(list(range(5000)), [0.0] * 5000)]).x) == 300


# --- What is found ---


@pytest.fixture
def swept(tmp_path):
    """A sweep in which one run is done, one under way, one has failed and one is missing."""
    out = tmp_path / "s"
    cells = grid(["Freeway"], ["bqfd", "dqn"], [0, 1])
    write_cells(out, cells)
    write_run(out / cells[0].folder, film=b"a film", final=20.0)
    write_run(out / cells[1].folder, seed=1, done=False)
    write_run(out / cells[2].folder, agent="dqn", final=10.0)
    logs = out / "logs" / cells[3].folder
    logs.mkdir(parents=True)
    (logs / "failed.json").write_text(json.dumps({"why": f"hidden is 0 {EVIL}"}))
    (logs / "log.txt").write_text("words")
    return out


def test_a_sweep_in_progress_is_told_of_plainly(swept):
    cells = grid(["Freeway"], ["bqfd", "dqn"], [0, 1, 2])
    write_cells(swept, cells)
    logs = swept / "logs" / cells[-1].folder
    logs.mkdir(parents=True)
    (logs / "attempts.jsonl").write_text('{"sweep": "this", "began": 1, "step": null}\n')
    found = collect([swept]).entries
    states = {(e.agent, e.seed): e.state for e in found}
    assert states == {
        ("bqfd", 0): "done",
        ("bqfd", 1): "unfinished",
        ("bqfd", 2): "missing",
        ("dqn", 0): "done",
        ("dqn", 1): "failed",
        ("dqn", 2): "missing",
    }
    under_way = next(e for e in found if e.state == "unfinished")
    assert (under_way.step, under_way.steps, len(under_way.evaluations)) == (500, 1000, 2)
    text = page(collect([swept]), swept.parent / "report")
    assert "1 run failed" in text
    assert "2 runs not begun yet" in text
    assert "PDD DQN, seed 2: a worker prepares it" in text
    assert "at step 500 of 1,000" in text


def test_options_tell_runs_apart_where_they_differ(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"a{seed}", seed=seed)
        write_run(tmp_path / f"b{seed}", seed=seed, hidden=16)
        write_run(tmp_path / f"c{seed}", seed=seed, agent="dqn")
    found = collect([tmp_path]).entries
    assert numbers.labels(found) == ["bqfd, hidden=16", "bqfd, hidden=8", "dqn"]
    # The same folder named twice is there once.
    assert len(collect([tmp_path, tmp_path / "a0"]).entries) == 6
    text = page(collect([tmp_path]), tmp_path / "out")
    assert "Options that differ" in text
    assert "<code>hidden</code>" in text


def test_what_is_missing_stands_with_its_like(tmp_path):
    cells = grid(["Freeway"], ["bqfd"], [0, 1], {"bqfd.eta": ("1", "3.0"), "hidden": ("8",)})
    write_cells(tmp_path, cells)
    for cell, eta in ((cells[0], 1.0), (cells[2], 3.0)):
        write_run(tmp_path / cell.folder, bqfd={"eta": eta})
    found = collect([tmp_path]).entries
    assert [e.state for e in found] == ["done", "missing"] * 2
    # As the finished ones call it, and not as the command line did.
    assert [e.label for e in found] == ["bqfd, bqfd.eta=1"] * 2 + ["bqfd, bqfd.eta=3"] * 2
    assert numbers.scores(found)["Freeway", "bqfd, bqfd.eta=3"].runs == 2


def write_begun(out, cells, **options):
    for cell in cells:
        demo = dict(cell.options).get("demo", "default")
        given = {"game": cell.title, "agent": cell.agent, "seed": cell.seed, "demo": [demo]}
        write_run(out / cell.folder, **given | options)


def labels_of(entries, title):
    return {(e.agent, e.chosen, e.seed): e.label for e in entries if e.title == title}


def test_who_was_shown_something_and_who_nothing_are_told_apart(tmp_path):
    agents = ["bqfd", "dqn", "dqn:demo=none", "clone"]
    cells = grid(["Breakout", "Freeway", "Seaquest"], agents, [0, 1])
    write_cells(tmp_path / "s", cells)
    # One game is done, of another only the first seed of two agents, of the third nothing.
    write_begun(tmp_path / "s", [cell for cell in cells if cell.title == "Breakout"])
    write_begun(tmp_path / "s", [c for c in cells if c.title == "Freeway" and c.seed == 0][:2])
    found = collect([tmp_path / "s"]).entries
    shown, nothing = "dqn, with the demonstration", "dqn, shown nothing"
    assert numbers.labels(found) == ["bqfd", nothing, shown, "clone"]
    for title in ("Breakout", "Freeway", "Seaquest"):
        for (agent, chosen, _), label in labels_of(found, title).items():
            assert label == ({(): shown}.get(chosen, nothing) if agent == "dqn" else agent)
    scores = numbers.scores(found)
    assert [len(scores["Breakout", label].finals) for label in (shown, nothing)] == [2, 2]
    assert [len(scores["Freeway", label].finals) for label in (shown, nothing)] == [1, 0]
    head = "| game | BQfD | PDD DQN, shown nothing | PDD DQN, with the demonstration | behavioural"
    assert tables.markdown(found).startswith(head)


def test_runs_may_lie_in_shallow_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(Path("a"))
    assert [e.label for e in collect([Path("a")]).entries] == ["bqfd"]


def test_several_demonstrations_keep_their_names(tmp_path):
    options = {"demo": ("default", "strong", "none")}
    cells = grid(["Breakout", "Freeway"], ["dqn"], [0], options)
    # Of the second game only one has begun: it is called as in the first.
    write_begun(tmp_path, cells[:4])
    found = collect([tmp_path]).entries
    labels = ["dqn, demo=default", "dqn, demo=strong", "dqn, shown nothing"]
    assert sorted(e.label for e in found if e.title == "Breakout") == labels
    assert [e.label for e in found if e.title == "Freeway"] == labels[:1]


def test_what_differs_between_games_alone_is_no_variant(tmp_path):
    write_run(tmp_path / "a", game="Breakout", steps=91)
    write_run(tmp_path / "b", game="Freeway", steps=23)
    write_run(tmp_path / "c", game="Freeway", steps=24)
    found = collect([tmp_path]).entries
    assert [e.label for e in found] == ["bqfd", "bqfd, steps=23", "bqfd, steps=24"]


def test_results_alone_are_enough(tmp_path):
    write_run(tmp_path / "a", film=b"a film")
    for name in ("machine.json", "episode.mp4"):
        (tmp_path / "a" / name).unlink()
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "config.json",
        "metrics.jsonl",
        "summary.json",
    ]
    found = write([tmp_path], tmp_path / "out")
    assert [e.state for e in found.entries] == ["done"]
    assert "Learning curves of Freeway" in (tmp_path / "out" / "index.html").read_text()


def test_a_report_counts_as_finished_what_a_sweep_does(tmp_path):
    run = tmp_path / "a"
    write_run(run)
    assert folder.is_finished(run)
    (run / "metrics.jsonl").unlink()
    assert not folder.is_finished(run)
    (found,) = collect([tmp_path]).entries
    assert (found.state, found.summary) == ("failed", None)
    assert "put the file back, or move the folder away" in found.why
    # With a checkpoint it comes back: a sweep goes on with the run.
    (run / "checkpoints" / "000000-step-1000").mkdir(parents=True)
    (found,) = collect([tmp_path]).entries
    assert (found.state, found.summary, found.why) == ("unfinished", None, "")


def test_evaluations_are_in_order_and_those_that_are_no_numbers_left_out(tmp_path):
    write_run(tmp_path / "a", done=False)
    rows = [
        {"step": 300, "eval_mean": 3.0, "visit_weight": "high"},
        {"step": 100, "eval_mean": 1.0},
        {"step": 200, "eval_mean": None},
        {"step": 250, "eval_mean": "high"},
        {"agent": "no step", "eval_mean": 1e9},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a" / "metrics.jsonl").write_text(text)
    (found,) = collect([tmp_path]).entries
    assert [(e["step"], e["mean"]) for e in found.evaluations] == [(100, 1.0), (300, 3.0)]
    assert "Learning curves of Freeway" in page(collect([tmp_path]), tmp_path / "out")


@pytest.mark.parametrize("called", ["expert_weight", "ensemble_weight"])
def test_the_weight_of_an_expert_is_drawn_under_its_new_name_and_its_old(tmp_path, called):
    write_run(tmp_path / "a", agent="ensemble_bqfd")
    rows = [{"step": step, called: 0.5, f"demo/default/{called}": 0.5} for step in (0, 1000)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a" / "metrics.jsonl").write_text(text)
    assert list(usage_curves(collect([tmp_path]).entries)) == ["expert weight"]
    assert "Expert weight" in page(collect([tmp_path]), tmp_path / "out")


def test_other_commands_pictures_are_put_in(tmp_path):
    folder = tmp_path / "map"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"experiment": "expert_quality"}))
    (folder / "regret.png").write_bytes(b"a picture")
    (folder / "comparison.md").write_text(f"| a | b |\n|---|---|\n| {EVIL} | 2 |\n")
    found = collect([folder])
    assert (found.entries, [other.title for other in found.others]) == ([], ["expert quality"])
    text = page(found, tmp_path / "out")
    assert base64.b64encode(b"a picture").decode() in text
    assert "<script" not in text


@pytest.mark.parametrize("name", ["nothing", "empty"])
def test_where_there_is_nothing_it_says_so(tmp_path, name, run_here):
    (tmp_path / "empty").mkdir()
    code, text = run_here(lambda: report([str(tmp_path / name), "--out", str(tmp_path / "o")]))
    assert code == 2
    assert str(tmp_path / name) in text
    assert not (tmp_path / "o").exists()
    with pytest.raises(UsageError):
        collect([tmp_path / name])


def test_a_damaged_run_is_told_of_and_the_others_too(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", seed=1)
    (tmp_path / "b" / "summary.json").write_text("{")
    write_run(tmp_path / "c", seed=2)
    (tmp_path / "c" / "metrics.jsonl").write_text("no json\n")
    write_run(tmp_path / "d", seed=3)
    (tmp_path / "d" / "summary.json").write_text("{}")
    write_run(tmp_path / "e", seed=4)
    (tmp_path / "e" / "metrics.jsonl").write_text("[]\n")
    states = {e.folder.name: e.state for e in collect([tmp_path]).entries}
    assert states == {"a": "done", "b": "failed", "c": "failed", "d": "failed", "e": "failed"}
    assert "4 runs failed" in page(collect([tmp_path]), tmp_path / "out")


@pytest.mark.parametrize(
    "changed",
    [
        {"final": {"mean": "20"}},
        {"final": {"mean": 20.0}},
        {"evaluations": [1]},
        {"evaluations": [{"step": 0}]},
        {"evaluations": [{"step": None, "mean": 1.0}]},
        {"demo": [15.0]},
    ],
)
def test_scores_that_are_no_numbers_are_damage(tmp_path, changed):
    write_run(tmp_path / "a")
    path = tmp_path / "a" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    (found,) = collect([tmp_path]).entries
    assert (found.state, "scores that are no numbers" in found.why) == ("failed", True)
    assert "1 run failed" in page(collect([tmp_path]), tmp_path / "out")


def test_a_link_to_a_file_elsewhere_does_not_get_into_the_page(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("| password |\n|---|\n| hunter2 |\n")
    write_run(tmp_path / "runs" / "a")
    for name in ("a/episode.mp4", "picture.png", "table.md"):
        (tmp_path / "runs" / name).symlink_to(secret)
    text = page(collect([tmp_path / "runs"]), tmp_path / "out")
    assert "hunter2" not in text
    assert base64.b64encode(secret.read_bytes()).decode() not in text


# --- The files ---


class Outside(HTMLParser):
    """Collects what a page would fetch, run or link to."""

    def __init__(self):
        super().__init__()
        self.tags, self.sources, self.links, self.ids = [], [], [], []

    def handle_starttag(self, name, attributes):
        self.tags.append(name)
        given = dict(attributes)
        self.sources += [given["src"]] if "src" in given else []
        self.links += [given["href"]] if "href" in given else []
        self.ids += [given["id"]] if "id" in given else []


def test_the_report_is_whole_and_links_to_the_runs(swept, run_here):
    out = swept.parent / "report"
    code, text = run_here(lambda: report([str(swept), "--out", str(out)]))
    assert code == 0, text
    assert "| Freeway | 20.0 ± 2.0 (1 of 2 seeds) | 10.0 ± 2.0 (1 of 2 seeds) |" in text
    parsed = Outside()
    parsed.feed((out / "index.html").read_text())
    assert "script" not in parsed.tags
    assert parsed.sources
    assert all(source.startswith("data:") for source in parsed.sources)
    assert f"data:video/mp4;base64,{base64.b64encode(b'a film').decode()}" in parsed.sources
    # Score, visit weight, share and reliability.
    assert sum(source.startswith("data:image/svg") for source in parsed.sources) == 4
    files = [link for link in parsed.links if not link.startswith("#")]
    assert all(link.startswith("./") and (out / link).exists() for link in files)
    assert any(link.endswith("logs/Freeway/dqn/1/log.txt") for link in files)
    assert (out / "table.md").read_text() in text
    with open(out / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["state"] for row in rows] == ["done", "unfinished", "done", "failed"]
    assert (rows[0]["final_mean"], rows[1]["final_mean"]) == ("20.0", "")
    assert (out / rows[0]["folder"] / "summary.json").exists()
    code, _ = run_here(lambda: report([str(swept), "--out", str(out), "--no-films"]))
    assert "video/mp4" not in (out / "index.html").read_text()


def test_the_table_for_latex_is_escaped_and_bold_where_best(tmp_path):
    runs = [entry("A_1 & <b>", "bqfd", 0, 20.0), entry("A_1 & <b>", "dqn", 0, 10.0)]
    lines = tables.latex(runs).splitlines()
    assert lines[0] == r"\begin{tabular}{lrr}"
    assert lines[2] == r"Game & BQfD & PDD DQN \\"
    name = r"A\_1 \& \textless{}b\textgreater{}"
    assert lines[4] == name + r" & $\mathbf{20.0 \pm 2.0}$ & $10.0 \pm 2.0$ \\"
    both = [entry("Freeway", "bqfd", 0, 20.0), Entry("Freeway", "clone", 0, "x", "missing")]
    paper = tables.latex(both).splitlines()
    assert paper[4] == r"Freeway & $20.0 \pm 2.0$ & - \\"
    assert paper[5] == r"\quad paper & $29.8 \pm 0.8$ & - \\"
    assert len(tables.latex([entry("a\n\nb", "dqn", 0, 1.0)]).splitlines()) == 7


def test_the_table_for_latex_has_the_papers_score_of_an_agent_once():
    runs = [entry("Freeway", "bqfd", 0, 20.0), entry("Freeway", "clone", 0, 1.0)]
    runs += [entry("Freeway", "dqn", 0, 2.0, variant=variant) for variant in ("a=1", "a=2")]
    # Of another game there is only the second kind: the paper's score keeps its column.
    runs.append(entry("Seaquest", "dqn", 0, 3.0, variant="a=2"))
    lines = tables.latex(runs).splitlines()
    assert lines[2] == r"Game & BQfD & PDD DQN, a=1 & PDD DQN, a=2 & behavioural cloning \\"
    assert lines[5] == r"\quad paper & $29.8 \pm 0.8$ & $30.4 \pm 0.4$ &  & - \\"
    assert lines[6] == r"Seaquest & - & - & $3.0 \pm 2.0$ & - \\"
    assert lines[7] == r"\quad paper & - & $20595 \pm 8248$ &  & - \\"


def test_the_papers_scores_stand_beside_ours():
    told = tables.markdown([entry("Freeway", "bqfd", 0, 20.0), entry("X|*_", "dqn", 0, 1.0)])
    lines = told.splitlines()
    assert lines[0] == "| game | BQfD | PDD DQN | BQfD, paper | PDD DQN, paper |"
    assert lines[2] == "| Freeway | 20.0 ± 2.0 | - | 29.8 ± 0.8 | - |"
    assert lines[3].startswith(r"| X\|\*\_ |")
    # Each agent's once, and only of those that the paper has.
    kinds = [entry("Freeway", "dqn", 0, 1.0, variant=variant) for variant in ("a=1", "a=2")]
    told = tables.markdown([*kinds, entry("Freeway", "clone", 0, 1.0)])
    named = [part.strip() for part in told.splitlines()[0].split("|")[2:-1]]
    assert named == ["PDD DQN, a=1", "PDD DQN, a=2", "behavioural cloning", "PDD DQN, paper"]
    assert told.splitlines()[2].endswith("| 1.000 ± 2.0 | 30.4 ± 0.4 |")
    # No name ends a row or speaks to a terminal.
    told = tables.markdown([entry("a\nb\x1b[2J", "dqn", 0, 1.0)])
    assert told.splitlines()[2].startswith(r"| a b \[2J |")


def test_a_spreadsheet_finds_no_formula(tmp_path):
    run = entry("=1+1", "@dqn", 0, -5.0)
    (row,) = csv.DictReader(tables.results([run], tmp_path).splitlines())
    assert (row["game"], row["agent"], row["final_mean"]) == ("'=1+1", "'@dqn", "-5.0")


def test_the_page_links_to_sections_that_are_there(tmp_path):
    write_run(tmp_path / "runs" / "a", game="CartPole-v1")
    for number in (1, 2):
        parsed = Outside()
        parsed.feed(page(collect([tmp_path / "runs"]), tmp_path / "out"))
        places = {link[1:] for link in parsed.links if link.startswith("#")}
        assert places <= set(parsed.ids)
        assert ("statistics" in places) == (number == 2)
        write_run(tmp_path / "runs" / f"b{number}", game="CartPole-v1", agent="dqn")


# --- Names that mean harm ---


def test_names_are_texts_and_nothing_else(tmp_path):
    folder = tmp_path / "runs" / '"><script>alert(1)</script>'.replace("/", "-")
    agent = f"$x_{EVIL}"
    write_run(folder, game=EVIL, agent=agent, note=f"{EVIL}&\"'", film=b"f")
    write_run(tmp_path / "runs" / "b", game=EVIL, agent=agent, seed=1, note="other")
    out = tmp_path / "report"
    write([tmp_path / "runs"], out, title=EVIL)
    text = (out / "index.html").read_text()
    parsed = Outside()
    parsed.feed(text)
    assert "script" not in parsed.tags
    assert "<script" not in text.lower()
    assert "&lt;script&gt;document.title" in text
    files = [link for link in parsed.links if not link.startswith("#")]
    assert not any(re.search(r'[<>"]', link) for link in files)
    assert "<script" not in (out / "table.md").read_text()


def test_markup_escapes_all_but_its_own():
    assert tag("p", "a<b", tag("i", "&"), class_='x"y') == (
        '<p class="x&quot;y">a&lt;b<i>&amp;</i></p>'
    )
    assert tag("p", Html("<b></b>")) == "<p><b></b></p>"
    assert address("/r/a b/<x>", "/r/out") == "./../a%20b/%3Cx%3E"
    assert address("/r/out/javascript:x", "/r/out") == "./javascript%3Ax"
    assert "<td>1</td>" in markdown_table("# Head\n\n| a |\n|---|\n| 1 |\n")
