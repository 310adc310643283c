"""Episodes that begin in a demonstration: where they do, what is counted, what cannot."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from run_sinks import Noting

from bqfd_jax import demos
from bqfd_jax.demos import playback
from bqfd_jax.envs import atari
from bqfd_jax.envs.pools import Pool, RunsOfPool
from bqfd_jax.envs.starts import DemoStarts
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.metrics import read_jsonl
from bqfd_jax.runs.run import load_job, start
from bqfd_jax.types import HostStep

NONE = np.zeros(1, int)
# Actions tell their episode and place.
EPISODES = [np.array([10, 11, 12], np.uint8), np.array([20], np.uint8)]


class Game:
    """A lane whose first frame shows the last action before it, and then the steps since."""

    num_actions, frame_shape, frame_dtype = 30, (1,), np.int32

    def reset(self):
        return self._begin(-1)

    def begin_after(self, actions):
        return self._begin(100 * len(actions) + (int(actions[-1]) if len(actions) else 0))

    def _begin(self, shown):
        self.time = 0
        return self._show(shown, first=True)

    def step(self, actions):
        self.time += 1
        return self._show(self.time, action=actions + 1)

    def _show(self, shown, first=False, action=NONE):
        zero = np.zeros(1, np.float32)
        ended = np.array([self.time == 2])
        return HostStep(
            np.array([[shown]]), zero, zero, np.array([first]), ended, zero, NONE, action
        )


def lane(share, seed=0):
    return DemoStarts(Game(), Game, EPISODES, share, np.random.default_rng(seed))


def beginnings(env, count):
    """What the first frames of episodes show."""
    found, step = [], env.reset()
    while len(found) < count:
        if step.is_first[0]:
            found.append(int(step.frame[0, 0]))
        step = env.step(NONE)
    return found


def test_games_begin_at_every_point_where_an_action_follows_and_nowhere_else():
    env = lane(1.0)
    found = beginnings(env, 200)
    # Before the first action of either episode, after its first (10), after its second (11).
    assert {*found} == {0, 110, 211}
    # Of four places two are a beginning.
    assert 70 < found.count(0) < 130
    assert env.tallies["demo_starts"] == [200]
    assert env.tallies["demo_start_steps"] == [sum(shown // 100 for shown in found)]


def test_a_share_of_games_begins_so_and_the_others_as_always():
    assert beginnings(lane(0.0), 20) == [-1] * 20
    env = lane(0.25)
    usual = beginnings(env, 200).count(-1)
    assert 130 < usual < 170
    assert env.tallies["demo_starts"] == [200 - usual]
    assert beginnings(lane(0.5), 30) == beginnings(lane(0.5), 30)
    assert beginnings(lane(0.5), 30) != beginnings(lane(0.5, seed=1), 30)


def test_what_is_asked_at_an_end_is_not_taken_for_replaced():
    env = lane(1.0)
    env.reset()
    asked = np.array([7])
    assert [int(env.step(asked).action[0]) for _ in range(3)] == [8, 8, 7]


def test_pools_add_up_what_lanes_count():
    pool = Pool([lane(1.0), lane(0.0), lane(1.0), lane(1.0)])
    runs = RunsOfPool(pool, 2)
    runs.reset()
    assert pool.tallies["demo_starts"].tolist() == [1, 0, 1, 1]
    assert runs.tallies["demo_starts"].tolist() == [[1, 0], [1, 1]]


def beginning(steps=60):
    """Of a demonstration of Breakout, quick to play."""
    whole = demos.load_named("Breakout", "search")
    return dataclasses.replace(
        whole,
        actions=whole.actions[:steps],
        episode_lengths=np.array([steps], np.int32),
        scores=(1.0,),
        game_over=(False,),
        frame_hash=None,
        name="beginning",
    )


def test_an_emulator_plays_up_to_a_point_and_goes_on_from_there():
    demonstration = beginning()
    there = playback.new_emulator(demonstration)
    steps = [there.reset(), *(there.step(action[None]) for action in demonstration.actions)]
    # A guard that would press at once is kept out of what was demonstrated.
    env = playback.new_emulator(demonstration, fire_after=1)
    begun = env.begin_after(demonstration.actions[:50])
    np.testing.assert_array_equal(begun.frame, steps[50].frame)
    assert (begun.is_first[0], begun.is_last[0]) == (True, False)
    assert (begun.reward[0], begun.discount[0], begun.score_reward[0]) == (0, 0, 0)
    following = env.step(demonstration.actions[50][None])
    np.testing.assert_array_equal(following.frame, steps[51].frame)
    assert not following.is_first[0]
    assert following.discount[0] == 1


def test_a_lane_in_a_pool_of_its_own_plays_the_same_games():
    together = atari.Atari("Seaquest", num_lanes=3, seed=5)
    apart = [atari.Atari("Seaquest", seed=5, first_lane=lane) for lane in range(3)]
    frames = np.stack([env.reset().frame[0] for env in apart])
    np.testing.assert_array_equal(together.reset().frame, frames)
    for _ in range(5):
        shown = together.step(np.full(3, 2)).frame
        frames = np.stack([env.step(np.array([2])).frame[0] for env in apart])
        np.testing.assert_array_equal(shown, frames)
    assert (frames[0] != frames[2]).any()


def config(**changes):
    base = AtariConfig.of("laptop", "Breakout", "dqn")
    return dataclasses.replace(base, demo_starts=0.5, **changes)


def test_every_seed_has_its_lanes_and_evaluations_begin_as_always():
    world = AtariWorld(config(envs=2))
    pool = world.training(seeds=[3, 4], shown=[beginning()])
    assert (pool.num_lanes, pool.tallies["demo_starts"].shape) == (4, (4,))
    assert isinstance(world.evaluation(), atari.Atari)
    assert isinstance(AtariWorld(AtariConfig()).training(shown=[beginning()]), atari.Atari)


def test_what_cannot_be_is_said():
    with pytest.raises(UsageError, match=r"--demo-starts is 0\.5, but there is no demonstration"):
        config(demo=("none",)).check()
    with pytest.raises(ValueError, match=r"demo_starts is 1\.5, but must be in \[0, 1\]"):
        dataclasses.replace(config(), demo_starts=1.5).check()
    frames = demos.FrameDemonstration(
        game="Breakout",
        frames=np.zeros((2, 84, 84), np.uint8),
        actions=np.zeros(1, np.int32),
        rewards=np.zeros(1, np.float32),
        episode_lengths=np.array([1], np.int32),
        terminated=(False,),
        num_actions=4,
        name="film",
    )
    with pytest.raises(UsageError, match="'film' was recorded as frames"):
        config().check_shown([beginning(), frames])
    dataclasses.replace(config(), demo_starts=0.0).check_shown([frames])


def test_a_run_tells_how_many_games_began_so(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demos.save(beginning(), tmp_path / "beginning.npz")
    base = AtariConfig.of("laptop", "Breakout", "dqn")
    tiny = dataclasses.replace(
        base,
        demo=(str(tmp_path / "beginning.npz"),),
        demo_starts=1.0,
        steps=30,
        envs=2,
        update_period=10,
        learning_starts=10,
        log_period=10,
        eval_episodes=1,
        eval_max_steps=5,
        hidden=8,
        video=False,
        out=Path(tmp_path / "run"),
        dqn=dataclasses.replace(base.dqn, batch_size=4, pretrain_updates=1),
    )
    summary = start(load_job(tiny), Noting())
    assert summary["demo_starts"]["episodes"] == 2
    assert 0 <= summary["demo_starts"]["steps"] < 2 * 60
    rows = [row for row in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in row]
    # Both games began in the first row and go on in the others.
    assert [row["demo_starts"] for row in rows if row["step"] > 0] == [2, 0, 0]
