"""Games that wait to be started: what is seen as standing still, and what is done about it."""

import itertools
import types

import numpy as np
import pytest
from helpers import CountingEnvironment

import bqfd_jax
from bqfd_jax import demos
from bqfd_jax.envs import ale, atari
from bqfd_jax.envs.guard import Guard, start_of
from bqfd_jax.envs.pools import Pool, RunsOfPool
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.report import counted
from bqfd_jax.training.evaluate import play

START = (7, 8)
UNUSED = np.zeros((0, 0))  # memory, where pictures are watched


def shown(*pictures, first=(), last=()):
    """A step of lanes that show these numbers."""
    lanes = np.arange(len(pictures))
    return types.SimpleNamespace(
        frame=np.array(pictures, np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8),
        is_first=np.isin(lanes, first),
        is_last=np.isin(lanes, last),
    )


def taken(guard, steps):
    """What is done in the first lane after each step, if 0 is asked for."""
    found = []
    for step in steps:
        guard.see(step, UNUSED)
        found.append(int(guard.replace(np.zeros(len(step.is_first), np.int32))[0]))
    return found


def test_a_game_is_started_after_so_many_unchanged_frames_and_again_after_as_many():
    still = [shown(5)] * 12
    # Frames 1, 2 and 3 are as the one before; what is pressed counts from anew.
    assert taken(Guard(START, 1, after=3), still) == [0, 0, 0, 7, 8, 0, 7, 8, 0, 7, 8, 0]


def test_a_picture_that_blinks_stands_still_and_one_that_comes_back_later_does_not():
    blinking = [shown(t % 2) for t in range(5)]
    assert taken(Guard((7,), 1, after=3), blinking) == [0, 0, 0, 0, 7]
    turning = [shown(t % 3) for t in range(12)]
    assert taken(Guard((7,), 1, after=3), turning) == [0] * 12


def test_a_change_or_a_new_episode_begins_the_count_anew():
    frames = [shown(5), shown(5), shown(5), shown(6), shown(6), shown(6), shown(6)]
    assert taken(Guard((7,), 1, after=3), frames) == [0] * 6 + [7]
    frames[2] = shown(5, first=[0])
    frames[3:] = [shown(5)] * 3
    assert taken(Guard((7,), 1, after=3), frames) == [0] * 5 + [7]


def test_what_starts_a_game_ends_with_the_episode():
    frames = [shown(5)] * 4 + [shown(5, last=[0]), shown(5, first=[0]), shown(5)]
    assert taken(Guard(START, 1, after=3), frames) == [0, 0, 0, 7, 0, 0, 0]


def test_lanes_are_watched_apart_and_actions_are_not_written_into():
    guard = Guard(START, 3, after=2)
    for t in range(3):
        guard.see(shown(5, t, 6), UNUSED)
    asked = np.array([1, 2, 3])
    assert guard.replace(asked).tolist() == [7, 2, 7]
    assert asked.tolist() == [1, 2, 3]


def test_cells_of_the_memory_are_watched_instead_of_the_picture():
    guard = Guard((7,), 2, after=3, cells=(1, 3))
    for t in range(4):
        # In the first lane all but the two cells changes, in the second only one of them.
        memory = np.array([[t, 5, t, 6], [9, 5, 9, t]])
        guard.see(shown(t, 0), memory)
    assert guard.replace(np.array([0, 0])).tolist() == [7, 0]


def check_start(*games):
    for game in games:
        meaning = ale.Ale(game).action_meaning
        fires = (meaning.index(ale.FIRE),) if ale.FIRE in meaning else ()
        if game == "VideoPinball":
            down = 5  # among the console's 18
            fires = (meaning.index(down),) * 8 + fires
        assert (game, start_of(game)) == (game, fires)


def test_games_are_started_by_the_action_that_is_their_fire():
    check_start("Backgammon", "Breakout", "Freeway", "KungFuMaster", "VideoPinball")


@pytest.mark.slow
def test_every_game_is_started_by_the_action_that_is_its_fire():
    check_start(*atari.games())


def idle(step):
    return np.zeros(len(step.is_first), np.int64)


@pytest.mark.parametrize("fire_after", [0, 30])
def test_breakout_goes_on_after_a_lost_ball_only_if_it_is_started(fire_after):
    env = atari.Atari("Breakout", num_lanes=2, fire_after=fire_after)
    steps = []
    result = play(env, idle, max_steps=400, on_step=steps.append)
    lost = [step.lives.max() for step in steps].index(4)
    if not fire_after:
        assert steps[-1].lives.tolist() == [4, 4]
        assert steps[-1].action is None
        assert result.guarded.tolist() == [0, 0]
        return
    assert (steps[-1].lives < 4).all()
    assert (result.guarded >= 2).all()
    pressed = [bool(step.action[0]) for step in steps]
    # The ball may fall a few steps later in the lane that is looked at.
    assert 30 <= pressed.index(True) - lost <= 45
    assert sum(pressed) == result.guarded[0]


def test_video_pinball_launches_its_ball():
    launched = {}
    for fire_after in (0, 30):
        env = atari.Atari("VideoPinball", num_lanes=2, fire_after=fire_after)
        launched[fire_after] = play(env, idle, max_steps=150).scores
    assert (launched[0] == 0).all()
    assert (launched[30] > 0).all()


def test_video_pinball_launches_its_ball_although_the_flippers_move():
    env = atari.Atari("VideoPinball", num_lanes=2, fire_after=30)
    up, time = 2, itertools.count()
    moving = play(env, lambda step: np.full(2, up * (next(time) // 4 % 2)), max_steps=150)
    assert (moving.scores > 0).all()


@pytest.mark.parametrize("name", ["default", "search"])
def test_a_ball_in_play_is_never_taken_for_one_that_waits(name):
    demonstration = demos.load_named("VideoPinball", name)
    env = demos.playback.new_emulator(demonstration, fire_after=30)
    step, launched = env.reset(), False
    for action in demonstration.actions[:1_000]:
        launched |= bool(step.score_reward[0])
        step = env.step(action[None])
        assert not launched or step.action[0] == action


def test_a_game_without_fire_is_left_alone():
    env = atari.Atari("Freeway", fire_after=1)
    env.reset()
    assert env.step(np.array([0])).action is None


class Disobedient(CountingEnvironment):
    """Does action 4 in its first lane whenever the time is odd."""

    def step(self, actions):
        done = np.where((self.frame[:, 2] % 2 == 1) & (self.frame[:, 0] == 0), 4, actions)
        step = super().step(done)._replace(action=done)
        self.history[-1] = step
        return step


def test_pools_hand_on_what_was_done():
    pool = RunsOfPool(Pool([Disobedient(2), Disobedient(2)]), 2)
    assert pool.reset().action is None
    assert pool.step(np.zeros((2, 2), int)).action.tolist() == [[0, 0], [0, 0]]
    assert pool.step(np.zeros((2, 2), int)).action.tolist() == [[4, 0], [4, 0]]


def test_recordings_hold_what_was_done():
    demonstration = bqfd_jax.record(
        Disobedient(2), lambda seen: np.zeros(len(seen), int), episodes=2
    )
    # Lane 0 has an episode of 2 steps, lane 1 one of 3.
    assert demonstration.actions.tolist() == [0, 4, 0, 0, 0]


def test_a_policy_is_evaluated_with_the_guard_that_it_was_trained_with(monkeypatch):
    made = []
    monkeypatch.setattr(
        bqfd_jax.playing,
        "Atari",
        lambda game, **options: made.append(options["fire_after"]) or CountingEnvironment(2),
    )
    bqfd_jax.evaluate("atari:Breakout", lambda seen: np.zeros(len(seen), int), episodes=2)
    policy = bqfd_jax.policy.Policy(
        network=None,
        params={},
        num_actions=5,
        frame_shape=(3,),
        frame_dtype=np.dtype(np.int32),
        preprocessing={"fire_after": 12},
    )
    object.__setattr__(policy, "_greedy", lambda params, seen: np.zeros(len(seen), np.int32))
    bqfd_jax.evaluate("atari:Breakout", policy, episodes=2)
    assert made == [0, 12]


def test_presets_differ_and_older_runs_go_on_without_a_guard():
    assert AtariConfig.of("laptop").fire_after == 30
    assert AtariConfig.of("paper").fire_after == 0
    stored = AtariConfig.of("laptop").stored()
    assert AtariConfig.from_stored(stored).fire_after == 30
    del stored["fire_after"]
    assert AtariConfig.from_stored(stored).fire_after == 0


def test_older_runs_go_on_without_what_presets_have_since():
    config = AtariConfig.of("accelerator")
    assert AtariConfig.from_stored(config.stored()) == config
    stored = config.stored()
    newer = ("reset_period", "n_step_final", "act_with_target", "squash_values", "in_steps")
    for name in newer:
        assert stored["bqfd"].pop(name)
    assert stored.pop("layer_norm")
    assert stored.pop("zero_values")
    back = AtariConfig.from_stored(stored)
    assert not any([back.layer_norm, back.zero_values])
    assert not any(getattr(back.bqfd, name) for name in newer)
    assert back.bqfd.n_step == 10


def test_the_summary_adds_up_what_rows_tell():
    rows = [{"guarded": 3}, {"eval_guarded": 20}, {"guarded": 4, "loss": 900.0}, {"step": 5}]
    assert counted(rows)["guarded_steps"] == {"training": 7, "evaluations": 20}
