"""Several devices: what lies where, that learning is the same, and that it can be resumed.

Most of this needs four devices, which a CPU has only if it is told so before jax begins; so the
first test runs the others in a process of its own.
"""

import dataclasses
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import quick_jit

from bqfd_jax import networks
from bqfd_jax.agents import make_agent
from bqfd_jax.agents.presets import agent_config
from bqfd_jax.replay import make_mesh, make_replay, spread, spread_over
from bqfd_jax.runs import checkpoint_items
from bqfd_jax.runs.checkpoint import Checkpointer
from bqfd_jax.runs.gym import GymConfig
from bqfd_jax.runs.run import Run
from bqfd_jax.training import host_checkpoint, on_host
from bqfd_jax.types import Row
from experiments.gym.__main__ import main as gym_main

LANES, FRAME, ACTIONS, DEMO_ROWS = 2, (84, 84), 4, 21
with_four = pytest.mark.skipif(jax.device_count() < 4, reason="run by the first test of this file")


@pytest.mark.skipif("JAX_NUM_CPU_DEVICES" in os.environ, reason="run by this very test")
def test_all_of_this_with_four_devices():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", __file__],
        env=os.environ | {"JAX_NUM_CPU_DEVICES": "4"},
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    # This test, and none of those that need four devices.
    assert " 1 skipped" in ran.stdout, ran.stdout


# ---------------------------------------------------------------------------- rows and their places


def test_spare_rows_make_a_multiple_and_change_nothing():
    sizes = {"frame_shape": (), "frame_dtype": jnp.int32, "rows_per_lane": 9, "num_lanes": 2}
    plain, spared = (make_replay(**sizes, row_multiple=n) for n in (1, 4))
    assert (plain.layout.num_rows, spared.layout.num_rows) == (18, 20)

    def fill(replay):
        t = jnp.arange(12)
        rows = Row(
            frame=jnp.stack([t, 100 + t], axis=1),
            action=jnp.zeros((12, 2), jnp.int32),
            reward=jnp.stack([1.0 * t, 10.0 * t], axis=1),
            discount=jnp.full((12, 2), 0.9),
            is_first=jnp.stack([t == 0, t == 0], axis=1),
            is_last=jnp.zeros((12, 2), bool),
        )
        return jax.lax.scan(lambda state, row: (replay.add(state, row), 0), replay.init(), rows)[0]

    one, other = (quick_jit(fill, static_argnums=0)(replay) for replay in (plain, spared))
    chex.assert_trees_all_equal(one.rows, jax.tree.map(lambda leaf: leaf[:18], other.rows))
    key = jax.random.key(0)
    draw = quick_jit(lambda replay, state: replay.sample(key, state, 32), static_argnums=0)
    chex.assert_trees_all_equal(draw(plain, one), draw(spared, other))


def test_only_so_many_devices_as_there_are():
    with pytest.raises(ValueError, match=r"devices is 99, but must be at most \d+, as many as jax"):
        make_mesh(99)
    with pytest.raises(ValueError, match="devices is 0, but must be at least 1"):
        make_mesh(0)
    assert make_mesh(1) is None


def test_devices_must_divide_the_batch():
    config = dataclasses.replace(GymConfig.of(100), devices=3)
    with pytest.raises(ValueError, match=r"devices is 3, .* a divisor of the batch size \(64\)"):
        config.check()
    with pytest.raises(ValueError, match="devices is 64, but must be at most"):
        dataclasses.replace(config, devices=64).check()


@with_four
def test_rows_must_divide_by_the_devices():
    replay = make_replay(frame_shape=(), frame_dtype=jnp.int32, rows_per_lane=9)
    with pytest.raises(ValueError, match="rows is 9, but must be a multiple of 4 devices"):
        spread_over(replay, make_mesh(4))


@with_four
def test_a_spread_replay_takes_what_a_plain_one_does():
    replay, _ = make(4)
    state = replay.init(demonstration(np.random.default_rng(0)), demo_priority=2.0)
    assert float(state.max_priority) == 2

    @quick_jit
    def draw(key, state):
        drawn = replay.sample(key, state, 8, importance_exponent=1.0)
        return drawn, replay.sample_demonstrations(key, state, batch_size=8, among=None)

    for batch in draw(jax.random.key(0), state):
        assert batch.is_expert.all()
        assert batch.observation.sharding.shard_shape(batch.observation.shape)[0] == 2


# ------------------------------------------------------------------------------------- learning


@functools.cache
def make(devices):
    config = agent_config("paper", "bqfd", game="Breakout")
    replay = make_replay(
        frame_shape=FRAME,
        frame_dtype=jnp.uint8,
        rows_per_lane=100,
        num_lanes=LANES,
        num_demo_rows=DEMO_ROWS,
        stack=4,
        row_multiple=devices,
        **config.replay_options(),
    )
    replay = spread_over(replay, make_mesh(devices))
    network = networks.atari_network(ACTIONS, torso="nature", hidden=64)
    return replay, on_host.make_host_trainer(make_agent(network, config, replay), replay)


def noise(rng, num_rows):
    return rng.integers(0, 256, (num_rows, *FRAME), np.uint8)


def demonstration(rng):
    return Row(
        frame=noise(rng, DEMO_ROWS),
        action=rng.integers(0, ACTIONS, DEMO_ROWS).astype(np.int32),
        reward=rng.normal(size=DEMO_ROWS).astype(np.float32),
        discount=np.full(DEMO_ROWS, 0.99, np.float32),
        is_first=np.arange(DEMO_ROWS) == 0,
        is_last=np.arange(DEMO_ROWS) == DEMO_ROWS - 1,
    )


def seen(rng, *, is_first=False):
    return on_host.Seen(
        frame=noise(rng, LANES),
        reward=rng.normal(size=LANES).astype(np.float32),
        discount=np.ones(LANES, np.float32),
        is_first=np.full(LANES, is_first),
        is_last=np.zeros(LANES, bool),
        action=rng.integers(0, ACTIONS, LANES).astype(np.int32),
    )


def places(tree):
    return [str(leaf.sharding) for leaf in jax.tree.leaves(tree)]


def filled(trainer):
    rng = np.random.default_rng(0)
    state = trainer.init(jax.random.key(0), demonstration(rng))
    state, _ = trainer.begin(state, seen(rng, is_first=True))
    for _ in range(20):
        state, _ = trainer.interact(state, seen(rng))
    return state


@with_four
def test_four_devices_learn_what_one_does_with_a_quarter_of_the_work():
    (_, one), (replay, four) = make(1), make(4)
    states = {1: filled(one), 4: filled(four)}
    chex.assert_trees_all_equal(
        jax.device_get(states[1].replay.tree), jax.device_get(states[4].replay.tree)
    )
    compiled = {
        1: one.update.lower(states[1]).compile(),
        4: four.update.lower(states[4]).compile(),
    }
    flops = {devices: program.cost_analysis()["flops"] for devices, program in compiled.items()}
    assert flops[4] <= 0.3 * flops[1]

    rows = replay.layout.num_rows
    assert rows == 224  # 3 of them spare
    frames = rf"u8\[{rows},"
    shown = seen(np.random.default_rng(1))
    programs = [compiled[4], four.interact.lower(states[4], shown).compile()]
    assert not any(re.search(frames, program.as_text()) for program in programs)
    assert all(rf"u8[{rows // 4}," in program.as_text() for program in programs)
    # What is looked for is what one device has.
    assert re.search(r"u8\[221,", compiled[1].as_text())

    for _ in range(5):
        states = {1: one.update(states[1]), 4: four.update(states[4])}
    learnt = {devices: jax.device_get(state.learner.params) for devices, state in states.items()}
    chex.assert_trees_all_close(learnt[1], learnt[4], atol=1e-6, rtol=0)
    start = jax.device_get(one.init(jax.random.key(0), demonstration(np.random.default_rng(0))))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), start.learner.params, learnt[4])
    assert min(jax.tree.leaves(moved)) > 5e-6
    # States come out as they go in, or the next call would compile again.
    chex.assert_trees_all_equal(places(states[4]), places(four.update(states[4])))


# ---------------------------------------------------------------------------------- checkpoints


@with_four
def test_frames_come_back_to_the_devices_that_they_were_on(tmp_path, monkeypatch):
    replay, trainer = make(4)
    state = trainer.update(filled(trainer))
    # Pieces of 30 rows, which are cut across the 56 rows of a device.
    monkeypatch.setattr(checkpoint_items, "_PIECE_BYTES", 30 * state.replay.rows.frame[0].nbytes)
    items = host_checkpoint.to_checkpoint(state)
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(3, items)
    templates = spread.shapes(replay.mesh, jax.eval_shape(lambda: items))
    step, back = checkpointer.restore(templates)
    assert step == 3
    chex.assert_trees_all_equal(jax.device_get(back["replay"]), jax.device_get(items["replay"]))
    resumed = host_checkpoint.from_checkpoint(back, trainer, lambda: None, state.totals)
    assert places(resumed.learner) == places(state.learner)
    assert places(resumed.replay) == places(state.replay)
    # The same again, without devices that are named.
    step, back = checkpointer.restore(jax.eval_shape(lambda: items))
    chex.assert_trees_all_equal(jax.device_get(back["replay"]), jax.device_get(items["replay"]))


@with_four
def test_a_run_on_four_devices_goes_on(tmp_path, run_here):
    out = tmp_path / "run"
    options = ["--agent", "dqn", "--demo", "none", "--devices", 4, "--envs", 2, "--hidden", 8]
    options += ["--dqn.batch-size", 8, "--steps", 60, "--learning-starts", 20]
    options += ["--eval-episodes", 2, "--no-video", "--out", out]
    code, said = run_here(gym_main, *options)
    assert code == 0, said
    Run.load(out).resume(steps=80)
    assert Run.load(out).last_step == 80
    assert Run.load(out).config.devices == 4
    Run.load(out).policy.act(np.zeros(4, np.float32))
