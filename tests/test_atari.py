"""Atari by real envpool: what a step says, and what of it reaches a batch."""

import importlib.metadata
import itertools
import subprocess
import sys
from pathlib import Path

import envpool
import jax
import numpy as np
import pytest
from helpers import quick_jit

import bqfd_jax
from bqfd_jax.demos import load_named
from bqfd_jax.envs import atari, host
from bqfd_jax.replay import make_replay
from bqfd_jax.types import HostStep

FIRE = 1  # in Breakout
GAME_STEPS = 1875  # of the first demonstrated game of Breakout


def play(env, actions):
    """Steps 0 .. T, stacked: fields [T + 1, L, ...]."""
    steps = [env.reset(), *(env.step(action) for action in actions)]
    return HostStep(*(np.stack(field) for field in zip(*steps, strict=True)))


def random_actions(env, num_steps, seed=0):
    rng = np.random.default_rng(seed)
    return rng.integers(env.num_actions, size=(num_steps, env.num_lanes))


def demonstrated_game():
    return load_named("Breakout", "search").actions[:GAME_STEPS, None]


@pytest.mark.parametrize(
    ("game", "num_actions"),
    [
        ("Breakout", 4),
        ("ChopperCommand", 18),
        ("Freeway", 3),
        ("MsPacman", 9),
        ("Seaquest", 18),
        ("VideoPinball", 9),
    ],
)
def test_games_have_their_minimal_actions(game, num_actions):
    env = atari.Atari(game)
    assert env.num_actions == num_actions
    assert game in atari.games()


def test_a_step_is_shaped_as_the_protocol_says():
    env = atari.Atari("Breakout", num_lanes=3)
    for step in (env.reset(), env.step(np.array([0, 1, 3]))):
        assert step.frame.shape == (3, *env.frame_shape) == (3, 84, 84)
        assert step.frame.dtype == env.frame_dtype
        for name, dtype in (
            ("reward", np.float32),
            ("discount", np.float32),
            ("is_first", bool),
            ("is_last", bool),
            ("score_reward", np.float32),
            ("lives", np.int32),
        ):
            field = getattr(step, name)
            assert (name, field.shape, field.dtype) == (name, (3,), dtype)
    assert step.frame.std() > 10  # not an empty screen


def test_frames_are_kept_when_the_emulator_goes_on():
    # Rows are added one step later, so a frame must not be the emulator's own memory.
    env = atari.Atari("Breakout", num_lanes=2)
    step = env.reset()
    before = step.frame.copy()
    for _ in range(20):
        env.step(np.array([FIRE, FIRE]))
    np.testing.assert_array_equal(step.frame, before)


def test_log_reward_by_hand():
    np.testing.assert_allclose(
        atari.log_reward(np.float32([0, 1, -1, 400, -9])),
        [0, 0.693147, -0.693147, 5.993961, -2.302585],
        rtol=1e-6,
    )


def test_rewards_are_logarithms_of_the_scores_unless_switched_off():
    actions = load_named("VideoPinball", "search").actions[:300, None]
    envs = [
        atari.Atari("VideoPinball", noop_max=1, log_rewards=log_rewards)
        for log_rewards in (True, False)
    ]
    logs, raws = (play(env, actions) for env in envs)
    assert raws.score_reward.max() > 50
    np.testing.assert_array_equal(logs.score_reward, raws.score_reward)
    np.testing.assert_array_equal(raws.reward, raws.score_reward)
    np.testing.assert_allclose(np.expm1(logs.reward), raws.reward, rtol=1e-5)
    # What `learning.train` does to a demonstration's.
    assert [env.transform_reward for env in envs] == [atari.log_reward, None]


def test_a_lost_life_is_a_discount_and_nothing_else():
    first, second = (
        atari.Atari("Breakout", num_lanes=2, life_loss_is_terminal=switch)
        for switch in (True, False)
    )
    actions = random_actions(first, 150)
    counted, ignored = play(first, actions), play(second, actions)
    lost = counted.lives[1:] < counted.lives[:-1]
    goes_on = lost & ~counted.is_last[1:]
    assert goes_on.sum() >= 4
    np.testing.assert_array_equal(counted.discount[1:][goes_on], 0)
    np.testing.assert_array_equal(ignored.discount[1:][goes_on], 1)
    # Not at an episode's first observation, where lives are full again.
    plain = ~lost & ~counted.is_first[1:]
    np.testing.assert_array_equal(counted.discount[1:][plain], 1)
    following = np.roll(goes_on, 1, axis=0)
    assert not counted.is_first[1:][following].any()
    for name in ("frame", "reward", "is_first", "is_last", "lives"):
        np.testing.assert_array_equal(getattr(counted, name), getattr(ignored, name))


def test_truncation_keeps_the_discount_and_the_reset_is_no_step():
    env = atari.Atari("Freeway", num_lanes=2, max_episode_steps=20)
    steps = play(env, random_actions(env, 50))
    is_last, is_first = np.zeros((2, 51), bool)
    # 20 steps, then one that only resets.
    is_last[[20, 41]] = True
    is_first[[0, 21, 42]] = True
    for lane in range(2):
        np.testing.assert_array_equal(steps.is_last[:, lane], is_last)
        np.testing.assert_array_equal(steps.is_first[:, lane], is_first)
        np.testing.assert_array_equal(steps.discount[:, lane], ~is_first)
    np.testing.assert_array_equal(steps.score_reward[is_first], 0)
    np.testing.assert_array_equal(steps.reward[is_first], 0)


@pytest.mark.parametrize("life_loss_is_terminal", [True, False])
@pytest.mark.parametrize(
    # Exactly at the limit envpool itself speaks of truncation, though the game is over.
    ("limit", "last", "discount"),
    [(27000, GAME_STEPS, 0), (GAME_STEPS, GAME_STEPS, 0), (GAME_STEPS - 1, GAME_STEPS - 1, 1)],
)
def test_a_game_that_is_over_has_discount_0(limit, last, discount, life_loss_is_terminal):
    env = atari.Atari(
        "Breakout",
        noop_max=1,
        max_episode_steps=limit,
        life_loss_is_terminal=life_loss_is_terminal,
    )
    steps = play(env, demonstrated_game())
    np.testing.assert_array_equal(np.flatnonzero(steps.is_last), [last])
    assert steps.discount[last, 0] == discount


def test_an_action_after_the_end_is_ignored():
    frames = []
    for action in (0, 3):
        env = atari.Atari("Breakout", max_episode_steps=5)
        steps = play(env, [[0]] * 5 + [[action]])
        assert steps.is_first[6]
        frames.append(steps.frame[6])
    np.testing.assert_array_equal(*frames)


def test_runs_and_their_pools_share_no_lane():
    lanes = 64
    seeds = {
        atari.first_lane_seed(seed, stream) + lane
        for seed in [*range(100), 49_999]
        for stream in range(4)
        for lane in range(lanes)
    }
    assert len(seeds) == 101 * 4 * lanes
    assert max(seeds) < 2**31
    assert 0 <= atari.first_lane_seed(2**40, 3) < 2**31 - 10_007
    env = atari.Atari("Breakout", seed=2, stream=1)
    assert env._pool.config["seed"] == atari.first_lane_seed(2, 1)


def test_a_resumed_run_shares_no_lane_with_any_that_was_not():
    new = {atari.first_lane_seed(seed, stream) for seed in range(50_000) for stream in range(4)}
    assert len(new) == 200_000
    assert atari.first_lane_seed(3, 1, 0) == atari.first_lane_seed(3, 1) == (3 * 4 + 1) * 10_007
    resumed = {
        (seed, stream, step): atari.first_lane_seed(seed, stream, step)
        for seed in (0, 3, 2**32 - 1)
        for stream in range(4)
        for step in (1, 50_000, 50_001, 2**31)
    }
    assert len(set(resumed.values())) == len(resumed)
    # Lanes of a pool are the seeds from its first on, so whole blocks must lie apart.
    assert min(resumed.values()) >= max(new) + atari.MAX_LANES
    assert max(resumed.values()) + atari.MAX_LANES <= 2**31
    assert all(first % atari.MAX_LANES == 0 for first in resumed.values())
    env = atari.Atari("Breakout", seed=2, stream=1, resumed_at=60)
    assert env._pool.config["seed"] == atari.first_lane_seed(2, 1, 60)


def test_a_seed_repeats_and_another_differs():
    def frames(**kwargs):
        env = atari.Atari("Freeway", num_lanes=8, **kwargs)
        return play(env, [np.ones(8, int)] * 10).frame

    same = frames(seed=3)
    np.testing.assert_array_equal(same, frames(seed=3))
    assert (same != frames(seed=4)).any()
    assert (same != frames(seed=3, stream=1)).any()


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ("breakout", "no game 'breakout'; did you mean Breakout"),
        ("Braekout", "did you mean Breakout"),
        ("ms_pacman", "did you mean MsPacman"),
        ("Seaquest-v5", "did you mean Seaquest"),
        ("qqqqqq", "there are Adventure, AirRaid, .*Zaxxon"),
        ("Ant", "no game 'Ant'"),
    ],
)
def test_an_unknown_game_is_named_with_close_ones(game, message):
    with pytest.raises(ValueError, match=message):
        atari.Atari(game)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"noop_max": 0}, "noop_max is 0"),
        ({"num_lanes": 0}, "num_lanes is 0"),
        ({"num_lanes": 20_000}, "at most 10007"),
        ({"max_episode_steps": 0}, "max_episode_steps is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"stream": 4}, "stream is 4"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        atari.Atari("Breakout", **arguments)


def test_bad_actions_are_named():
    env = atari.Atari("Breakout", num_lanes=2)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.array([0, 0]))
    env.reset()
    for actions in ([0, 4], [-1, 0]):
        with pytest.raises(ValueError, match=r"0 \.\. 3 in Breakout"):
            env.step(np.array(actions))
    for actions in ([0], [[0, 0]], [0.0, 1.0]):
        with pytest.raises(ValueError, match="2 integers"):
            env.step(np.array(actions))


def test_without_envpool_all_else_works():
    code = (
        "import sys\n"
        "sys.modules['envpool'] = None\n"  # makes every import of it fail
        "import bqfd_jax, bqfd_jax.demos\n"
        "from bqfd_jax.envs import atari\n"
        "bqfd_jax.demos.load_named('Breakout')\n"
        "for call in (atari.games, lambda: atari.Atari('Breakout')):\n"
        "    try:\n"
        "        call()\n"
        "    except ImportError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(bqfd_jax.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("pip install -e '.[atari]' in a clone") == 2


def test_a_version_that_is_not_there(monkeypatch):
    assert atari.envpool_version() == envpool.__version__

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match=r"Atari needs envpool, .* pip install -e '\.\[atari\]'"):
        atari.envpool_version()


# --- What reaches a batch ---

LANES, STEPS, LIMIT, ROWS, SEED = 4, 700, 190, 300, 5
STACK, N_STEP, PATH, GAMMA = 4, 5, 3, 0.9


def record(actions):
    """The same games by envpool alone, which stacks frames itself and counts steps itself."""
    pool = envpool.make(
        "Breakout-v5",
        env_type="gymnasium",
        num_envs=LANES,
        seed=atari.first_lane_seed(SEED),
        stack_num=STACK,
        max_episode_steps=LIMIT,
        noop_max=30,
    )
    observation, info = pool.reset()
    moments = [(observation, info)]
    for action in actions:
        observation, *_, info = pool.step(action.astype(np.int32))
        moments.append((observation, info))
    return {
        "observation": np.stack([observation for observation, _ in moments]),
        **{
            name: np.stack([info[name] for _, info in moments])
            for name in ("reward", "lives", "elapsed_step", "terminated")
        },
    }


@pytest.fixture(scope="module")
def played():
    """The record, the actions, and a replay that the same games were added to, wrapped twice."""
    env = atari.Atari("Breakout", num_lanes=LANES, seed=SEED, max_episode_steps=LIMIT)
    actions = random_actions(env, STEPS, seed=1)
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        rows_per_lane=ROWS,
        num_lanes=LANES,
        stack=STACK,
        n_step=N_STEP,
        path_steps=PATH,
        priority_exponent=0.0,
    )
    state = replay.init()
    add = jax.jit(replay.add, donate_argnums=0)
    step = env.reset()
    for action in actions:
        following = env.step(action)
        state = add(state, host.to_row(step, action, following, GAMMA))
        step = following
    return record(actions), actions, replay, state


def moments_of(raw, lane, time):
    """Times of the later steps of an episode, by envpool's own count of them."""
    times = []
    while time + 1 <= STEPS and raw["elapsed_step"][time + 1, lane] > 0:
        time += 1
        times.append(time)
    return times


def test_nothing_across_the_end_of_an_episode_reaches_a_batch(played):
    raw, actions, replay, state = played
    # Of all kinds of ends there must be some among the rows that are left.
    left = slice(STEPS - ROWS + STACK, STEPS - N_STEP - 1)
    is_last = np.diff(raw["elapsed_step"], axis=0, append=1)[left] < 0
    over = raw["terminated"][left] == 1
    assert (is_last & over).sum() >= 2
    assert (is_last & ~over).sum() >= 1

    sample = quick_jit(lambda state, key: replay.sample(key, state, 256))
    seen = set()
    for key in jax.random.split(jax.random.key(0), 24):
        batch = jax.tree.map(np.asarray, sample(state, key))
        for b in range(256):
            lane, position = divmod(int(batch.index[b]), ROWS)
            # The last time that this place in the ring was written.
            time = position + (STEPS - 1 - position) // ROWS * ROWS
            if (lane, time) in seen:
                continue
            seen.add((lane, time))
            check_item(raw, actions, jax.tree.map(lambda x, b=b: x[b], batch), lane, time)

    drawable = {
        (lane, time)
        for lane in range(LANES)
        for time in range(STEPS - ROWS + STACK - 1, STEPS - N_STEP)
        if moments_of(raw, lane, time)
    }
    assert seen <= drawable
    assert len(seen) > 0.98 * len(drawable)


def check_item(raw, actions, item, lane, time):
    """Compares one drawn transition with the record."""
    where = f"lane {lane}, time {time}"
    later = moments_of(raw, lane, time)
    assert later, f"{where}: a transition from an episode's last observation to a reset"
    np.testing.assert_array_equal(item.observation, raw["observation"][time, lane], where)
    np.testing.assert_array_equal(item.next_observation, raw["observation"][time + 1, lane], where)
    assert item.action == actions[time, lane], where

    value, weight, path_discount = 0.0, 1.0, []
    times = [time, *later][: N_STEP + 1]
    for now, then in itertools.pairwise(times):
        assert then == now + 1
        path_discount.append(weight)
        value += weight * np.log1p(raw["reward"][then, lane])
        lost = raw["lives"][then, lane] < raw["lives"][now, lane]
        weight *= 0.0 if lost or raw["terminated"][then, lane] else GAMMA
        if now == time:
            np.testing.assert_allclose(item.reward, value, rtol=1e-5, err_msg=where)
            np.testing.assert_allclose(item.discount, weight, rtol=1e-5, err_msg=where)
    np.testing.assert_allclose(item.n_step_return, value, rtol=1e-5, err_msg=where)
    np.testing.assert_allclose(item.n_step_discount, weight, rtol=1e-5, err_msg=where)
    np.testing.assert_array_equal(
        item.n_step_observation, raw["observation"][times[-1], lane], where
    )
    path_discount = (path_discount + [0.0] * PATH)[:PATH]
    np.testing.assert_allclose(item.path_discount, path_discount, rtol=1e-5, err_msg=where)
    for k in range(1, PATH):
        if path_discount[k] > 0:
            np.testing.assert_array_equal(
                item.path_observation[k - 1], raw["observation"][time + k, lane], where
            )
            assert item.path_action[k] == actions[time + k, lane], where


def test_a_batch_meets_every_kind_of_end(played):
    _, _, replay, state = played
    batch = quick_jit(lambda state, key: replay.sample(key, state, 1024))(state, jax.random.key(1))
    discount, n_step = np.asarray(batch.discount), np.asarray(batch.n_step_discount)
    assert set(np.unique(discount)) == {np.float32(0), np.float32(GAMMA)}
    # A life or a game lost within the n steps; a path cut off by the limit, shorter than n.
    assert (n_step == 0).any()
    assert (n_step > GAMMA**N_STEP + 1e-3).any()
    assert np.isclose(n_step, GAMMA**N_STEP).any()
