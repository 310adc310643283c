"""Several seeds in one program: each as in a run alone, in a folder like that of a run alone."""

import dataclasses
import json
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from run_sinks import Noting, StopAt

from bqfd_jax import load_policy
from bqfd_jax.checks import OptionError
from bqfd_jax.runs import folder, group, host_run, lockstep, machine
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.checkpoint import Checkpointer
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import Run, load_job, start
from bqfd_jax.training import host_checkpoint
from bqfd_jax.types import LearnerState
from experiments import commands
from experiments.gym import __main__ as gym
from experiments.gym import training

SEEDS = (3, 4)


def tiny(out, **changes):
    """CartPole by two seeds, in seconds."""
    base = GymConfig.of(240)
    settings = {
        "env": "CartPole-v1",
        "demo_steps": 60,
        "seed": SEEDS[0],
        "seeds_per_program": len(SEEDS),
        "steps": 240,
        "envs": 4,
        "update_period": 4,
        "learning_starts": 40,
        "log_period": 40,
        "eval_period": 120,
        "eval_episodes": 2,
        "eval_max_steps": 30,
        "checkpoint_period": 120,
        "hidden": 8,
        "video": False,
        "out": out,
        # Of 50 updates, two are followed by a reset.
        "bqfd": dataclasses.replace(
            base.bqfd, batch_size=8, pretrain_updates=5, reset_period=20, n_step_final=2
        ),
    }
    return dataclasses.replace(base, **settings | changes)


def alone(config, seed, out):
    return dataclasses.replace(config, seed=seed, out=out, seeds_per_program=1)


def state_of(out):
    """Of the last checkpoint in a run folder, restored as a run alone."""
    config = dataclasses.replace(Run.load(out).config, out=out, resume=True)
    journal = Journal(out, Noting())
    found = host_run.restore(load_job(config), journal)
    journal.close()
    return found[1]


def own_rows(state):
    """What the run itself has put into its replay."""
    num_demo_rows = len(state.replay.visit_count)
    return jax.tree.map(lambda x: np.asarray(x[num_demo_rows:]), state.replay.rows)


def check_same(ours, theirs):
    """The same actions and frames, and parameters but for rounding."""
    assert int(ours.step) == int(theirs.step)
    assert int(ours.learner.updates) == int(theirs.learner.updates)
    jax.tree.map(np.testing.assert_array_equal, own_rows(ours), own_rows(theirs))
    for a, b in zip(
        jax.tree.leaves(ours.learner.params), jax.tree.leaves(theirs.learner.params), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("group") / "whole"
    sink = Noting()
    return out, training.train_seeds(tiny(out), sink), sink


def test_each_seed_is_a_run_alone(whole, tmp_path):
    out, summaries, _ = whole
    assert [summary["seed"] for summary in summaries] == list(SEEDS)
    states = []
    for seed, summary in zip(SEEDS, summaries, strict=True):
        single = tmp_path / str(seed)
        theirs = training.train(alone(tiny(out), seed, single), Noting())
        ours = out / f"seed-{seed}"
        assert summary["demo"] == theirs["demo"]
        states.append(state_of(ours))
        check_same(states[-1], state_of(single))
        # What was measured is the same, too, training scores and evaluations among it.
        for a, b in zip(
            read_jsonl(ours / "metrics.jsonl"), read_jsonl(single / "metrics.jsonl"), strict=True
        ):
            assert a.keys() == b.keys()
            for name in a.keys() - {"steps_per_second", "eval_seconds"}:
                near = None if b[name] is None else pytest.approx(b[name], rel=1e-4, abs=1e-5)
                assert a[name] == near, name
        assert {path.name for path in ours.iterdir()} == {path.name for path in single.iterdir()}
        config = json.loads((ours / "config.json").read_text())
        assert config["seed"] == seed
        assert config.keys() == json.loads((single / "config.json").read_text()).keys()
    # Their demonstrations differ in length, but their replays have one shape.
    assert len({summary["demo"]["steps"] for summary in summaries}) == 2
    assert states[0].replay.visit_count.shape == states[1].replay.visit_count.shape
    assert (own_rows(states[0]).frame != own_rows(states[1]).frame).any()


@pytest.mark.slow
def test_each_seed_of_a_game_is_a_run_alone(tmp_path):
    base = AtariConfig.of("laptop", "Breakout")
    config = dataclasses.replace(
        base,
        demo=("none",),
        agent="dqn",
        seed=SEEDS[0],
        seeds_per_program=2,
        steps=120,
        envs=3,
        update_period=6,
        learning_starts=60,
        log_period=60,
        eval_period=60,
        eval_episodes=2,
        eval_max_steps=20,
        checkpoint_period=60,
        hidden=8,
        video=False,
        out=tmp_path / "together",
        dqn=dataclasses.replace(base.dqn, batch_size=4),
    )
    group.start(group.load_jobs(config), Noting())
    for seed in SEEDS:
        single = alone(config, seed, tmp_path / str(seed))
        start(load_job(single), Noting())
        ours = config.out / f"seed-{seed}"
        check_same(state_of(ours), state_of(single.out))
        assert [row.get("eval_mean") for row in read_jsonl(ours / "metrics.jsonl")] == [
            row.get("eval_mean") for row in read_jsonl(single.out / "metrics.jsonl")
        ]


@pytest.mark.slow
def test_each_folder_serves_the_commands_for_runs(whole, tmp_path):
    out, summaries, _ = whole
    for seed, summary in zip(SEEDS, summaries, strict=True):
        run = Run.load(out / f"seed-{seed}")
        assert run.summary["final"] == summary["final"]
        assert run.evaluate(3, max_steps=10).scores.shape == (3,)
        for name in ("policy.npz", "policy-best.npz"):
            assert load_policy(run.folder / name).act(np.zeros((2, 4), np.float32)).shape == (2,)
    copy = tmp_path / "alone"
    shutil.copytree(out / f"seed-{SEEDS[1]}", copy)
    # One goes on alone, from where the program has left it.
    assert Run.load(copy).resume(steps=280)["steps"] == 280
    # And one that has lost the other is a group of one.
    shutil.copytree(out / "seed-3", tmp_path / "one" / "seed-3")
    (newest,) = (tmp_path / "one" / "seed-3" / "checkpoints").glob("*-step-240")
    shutil.rmtree(newest)
    (summary,) = group.resume(tmp_path / "one", sink=Noting())
    assert summary["evaluations"][-1]["step"] == 240
    commands.compare(tuple(folder.seed_folders(out).values()), tmp_path / "comparison")
    assert (tmp_path / "comparison" / "comparison.md").exists()


def test_the_sink_is_told_which_seed_is_meant(whole):
    _, _, sink = whole
    assert any("2 seeds from 3 on" in line and "2 x 4 environments" in line for line in sink.lines)
    assert any(line.startswith("seed 4: checkpoint at step 240") for line in sink.lines)
    # The head of a table stays above its columns.
    assert any(line.startswith("seed 4:\n      step       score") for line in sink.lines)


def test_a_group_that_was_stopped_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(lockstep, "_CHUNK", 1)
    out = tmp_path / "stopped"
    with pytest.raises(Stopped, match=rf"at step 100; continue with `bqfd resume {out}`"):
        training.train_seeds(tiny(out), StopAt(step=100))
    sink = Noting()
    summaries = group.resume(out, sink=sink)
    assert "all resumed at step 100" in sink.lines
    assert [summary["steps"] for summary in summaries] == [240, 240]
    rows = read_jsonl(out / f"seed-{SEEDS[1]}" / "metrics.jsonl")
    assert [row["step"] for row in rows if "loss" in row] == list(range(0, 241, 40))
    assert [row["step"] for row in rows if "eval_mean" in row] == [0, 120, 240]


@pytest.mark.slow
def test_stopping_in_an_evaluation_saves_all_and_only_what_is_missing_is_made_up_for(tmp_path):
    out = tmp_path / "out"

    class InSecondEvaluation(Noting):
        def stop_asked(self):
            return sum("eval_mean" in row and row["step"] == 120 for row in self.rows) == 1

    with pytest.raises(Stopped, match="in the evaluation at step 120"):
        training.train_seeds(tiny(out), InSecondEvaluation())
    # The same options and --resume do as well.
    training.train_seeds(tiny(out, resume=True), Noting())
    for seed in SEEDS:
        rows = read_jsonl(out / f"seed-{seed}" / "metrics.jsonl")
        assert [row["step"] for row in rows if "eval_mean" in row] == [0, 120, 240]


def test_seeds_that_stand_at_different_steps_go_back_to_one_that_all_have(tmp_path, whole):
    out = tmp_path / "killed"
    shutil.copytree(whole[0], out)
    # As if the program had been killed between two saves.
    (newest,) = (out / "seed-4" / "checkpoints").glob("*-step-240")
    shutil.rmtree(newest)
    sink = Noting()
    group.resume(out, sink=sink)
    told = "the seeds stand at different steps (seed-3 at step 240, seed-4 at step 120)"
    assert f"{told}; all go on from 120" in sink.lines, sink.lines[:3]
    for seed in SEEDS:
        assert Checkpointer(out / f"seed-{seed}" / "checkpoints").steps() == [120, 240]
        rows = read_jsonl(out / f"seed-{seed}" / "metrics.jsonl")
        assert [row["step"] for row in rows if "eval_mean" in row] == [0, 120, 240]


@pytest.mark.parametrize(
    ("saved", "found"),
    [
        ({"a": [0, 120], "b": [120, 240]}, [120]),
        ({"a": [120, 240], "b": [120, 240]}, [240, 120]),
        # All went back from 240, which was saved first.
        ({"a": [240, 180], "b": [240, 180]}, [180, 240]),
        ({"a": [0], "b": []}, []),
        ({"a": [], "b": []}, []),
    ],
)
def test_common_steps(tmp_path, saved, found):
    saved = {tmp_path / name: steps for name, steps in saved.items()}
    assert group._common_steps(saved, Noting()) == found


def test_pretraining_is_compared_whatever_learners_remember(tmp_path):
    def learner(updates):
        params, extra = {"w": jnp.zeros(2)}, ({"log_eta": jnp.zeros(3)},)
        return LearnerState(
            params=params, target_params=params, opt_state=(), updates=updates, extra=extra
        )

    def journal(name, updates):
        state = SimpleNamespace(learner=learner(jnp.int32(updates)), replay=(), key=(), step=0)
        state.totals, state.num_totals = {}, 0
        items = host_checkpoint.to_checkpoint(state)
        Checkpointer(tmp_path / name / "checkpoints").save(0, {"learner": items["learner"]})
        return SimpleNamespace(folder=tmp_path / name)

    jobs = [SimpleNamespace(init=lambda: SimpleNamespace(learner=learner(jnp.int32(0))))]
    ahead, also, behind = journal("a", 5), journal("b", 5), journal("c", 4)
    assert group._pretrained_alike(jobs, [ahead, also])
    assert not group._pretrained_alike(jobs, [ahead, behind])


@pytest.mark.parametrize("saved", [{"a": [0, 120], "b": []}, {"a": [200, 240], "b": [120]}])
def test_seeds_that_went_on_alone_are_not_thrown_back(tmp_path, saved):
    saved = {tmp_path / name: steps for name, steps in saved.items()}
    with pytest.raises(UsageError, match=r"no step in common \(a at step .*bqfd resume .*/a`"):
        group._common_steps(saved, Noting())


@pytest.mark.slow
def test_a_damaged_checkpoint_sends_all_further_back(tmp_path, whole):
    out = tmp_path / "damaged"
    shutil.copytree(whole[0], out)
    (newest,) = (out / "seed-4" / "checkpoints").glob("*-step-240")
    (newest / "learner.zip").write_bytes(b"")
    sink = Noting()
    group.resume(out, sink=sink)
    assert "all resumed at step 120" in sink.lines


@pytest.mark.slow
def test_a_loss_that_is_not_finite_leaves_the_other_seeds_sound(tmp_path, monkeypatch):
    log = host_run.HostRun.log

    def spoilt(self, read, *arguments):
        if self.config.seed == 3 and self.loop.step == 80:
            read = (read[0], {**read[1], "loss": np.float32(np.nan)})
        return log(self, read, *arguments)

    monkeypatch.setattr(host_run.HostRun, "log", spoilt)
    out = tmp_path / "out"
    with pytest.raises(
        RunError, match=rf"seed 3: the loss became nan.*go on alone: `bqfd resume {out}/seed-4`"
    ):
        training.train_seeds(tiny(out), Noting())
    assert Checkpointer(out / "seed-3" / "checkpoints").steps() == [0]
    assert Checkpointer(out / "seed-4" / "checkpoints").steps() == [0, 80]
    # Its row of that step is there, although the other's was to be written first.
    last = [list(read_jsonl(out / f"seed-{seed}" / "metrics.jsonl"))[-1]["step"] for seed in SEEDS]
    assert last == [40, 80]


# ------------------------------------------------------------------------- what cannot be meant


def test_no_seed_at_all_is_refused(run_here):
    code, text = run_here(gym.main, "--seeds-per-program", "0")
    assert code == 2
    assert "--seeds-per-program is 0" in text
    with pytest.raises(OptionError, match="seeds_per_program is 1001, but must be at most 1000"):
        tiny(None, seeds_per_program=1001).check()
    with pytest.raises(OptionError, match="envs is 600"):
        tiny(None, envs=600).check()


def test_another_number_of_seeds_cannot_be_resumed(whole):
    out, _, _ = whole
    with pytest.raises(UsageError, match=r"holds the seeds 3, 4, but 3, 4, 5 were asked for"):
        training.train_seeds(tiny(out, seeds_per_program=3, resume=True), Noting())
    with pytest.raises(UsageError, match=r"holds several seeds.*seed-3, seed-4.*bqfd resume"):
        training.train(alone(tiny(out, resume=True), 3, out), Noting())
    with pytest.raises(UsageError, match="exists already"):
        training.train_seeds(tiny(out), Noting())
    with pytest.raises(UsageError, match="one seed at a time"):
        group.resume(out, steps=300, sink=Noting())


def test_seeds_with_a_gap_go_on_alone(tmp_path):
    with pytest.raises(UsageError, match="there are no seeds in"):
        group.resume(tmp_path, sink=Noting())
    for seed in (3, 5):
        (tmp_path / f"seed-{seed}").mkdir()
        (tmp_path / f"seed-{seed}" / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"lacks seed-4, .* alone: `bqfd resume .*/seed-3`, `bqfd"):
        group.resume(tmp_path, sink=Noting())


def test_seeds_of_different_lengths_go_on_alone(tmp_path, whole):
    out = tmp_path / "longer"
    shutil.copytree(whole[0], out)
    # As it is after `bqfd resume seed-4 --steps 280`.
    config = folder.read_config(out / "seed-4") | {"steps": 280}
    folder.write_config(out / "seed-4", config)
    with pytest.raises(UsageError, match=r"no longer have the same options .*/seed-3`, `bqfd"):
        group.resume(out, sink=Noting())


def test_the_folder_of_a_single_run_is_no_groups(whole):
    single = whole[0] / "seed-3"
    with pytest.raises(UsageError, match="holds a single run; resume it without --seeds-per"):
        training.train_seeds(tiny(single, resume=True), Noting())
    with pytest.raises(UsageError, match="exists already"):
        training.train_seeds(tiny(single), Noting())


def test_memory_is_that_of_all_replays(tmp_path, monkeypatch):
    config = tiny(tmp_path / "out", demo=("none",), replay_rows=10_000)
    needed = load_job(dataclasses.replace(config, seeds_per_program=1)).replay.num_bytes
    # One more than there are seeds, as one is copied to be joined or saved.
    monkeypatch.setattr(machine, "available_memory", lambda: 1.0e9 + 3 * needed)
    assert len(group.load_jobs(config)) == 2
    monkeypatch.setattr(machine, "available_memory", lambda: 1.0e9 + 3 * needed - 1)
    with pytest.raises(UsageError, match=r"3 replays of .* take fewer seeds per program"):
        group.load_jobs(config)
