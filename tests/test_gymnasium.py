"""gymnasium's environments behind the protocol that training knows."""

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gym_probes import Chain, Failing, Telling, telling_vector
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from helpers import configure, looking_network

from bqfd_jax.agents import PddDqnConfig, make_agent
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.envs.host import HostEnvironmentError, Scores
from bqfd_jax.replay import make_replay, rows
from bqfd_jax.training import on_host

BOTH_MODES = pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])


def play(env, steps, seed=0):
    """Shown steps, and the random actions between them."""
    rng = np.random.default_rng(seed)
    shown, actions = [env.reset()], []
    for _ in range(steps):
        actions.append(rng.integers(env.num_actions, size=env.num_lanes))
        shown.append(env.step(actions[-1]))
    return shown, actions


# --- Both ways of beginning anew ---


@BOTH_MODES
def test_every_episode_is_shown_from_its_first_to_its_last_observation(mode):
    env = GymVector(telling_vector(3, mode))
    shown, actions = play(env, 60)
    ends = {"terminated": 0, "truncated": 0}
    for lane in range(3):
        episode = time = None
        for t, step in enumerate(shown):
            frame = step.frame[lane]
            assert frame[0] == lane
            if step.is_first[lane]:
                # A new one, from its beginning; and only after the last has ended.
                assert t == 0 or shown[t - 1].is_last[lane]
                assert frame[2] == 0
                assert episode is None or frame[1] > episode
                assert step.reward[lane] == step.discount[lane] == step.score_reward[lane] == 0
            else:
                assert not shown[t - 1].is_last[lane]
                assert (frame[1], frame[2]) == (episode, time + 1)
                paid = 1000 * lane + 100 * episode + 10 * time + actions[t - 1][lane]
                assert step.reward[lane] == paid
                ended = frame[2] == 2 + lane + episode % 3
                assert step.is_last[lane] == ended
                terminates = ended and episode % 4 < 2
                assert step.discount[lane] == (0 if terminates else 1)
                ends["terminated"] += terminates
                ends["truncated"] += ended and not terminates
            episode, time = frame[1], frame[2]
    assert min(ends.values()) > 5


def fill(env, replay, steps):
    """A replay as the loop fills it, and all that was shown."""
    agent = make_agent(looking_network(5), configure(PddDqnConfig, n_step_weight=1.0), replay)
    trainer = on_host.make_host_trainer(agent, replay)
    state = trainer.init(jax.random.key(0))
    shown = [env.reset()]
    state, actions = trainer.begin(state, on_host.to_device(shown[0]))
    for _ in range(steps):
        shown.append(env.step(np.asarray(actions)))
        state, actions = trainer.interact(state, on_host.to_device(shown[-1], actions))
    return state.replay, shown


@BOTH_MODES
def test_no_transition_is_lost_or_doubled_or_crosses_episodes(mode):
    replay = make_replay(
        frame_shape=(3,), frame_dtype=jnp.float32, rows_per_lane=64, num_lanes=2, n_step=3,
        priority_exponent=0.6,
    )  # fmt: skip
    env = GymVector(telling_vector(2, mode))
    state, shown = fill(env, replay, 50)
    starts = np.concatenate(
        [lane * 64 + np.flatnonzero(~np.asarray(state.rows.is_last)[lane * 64 :][:47])
         for lane in range(2)]
    )  # fmt: skip
    walk = rows.walk(state.rows, replay.layout, jnp.asarray(starts), 3)
    frame = np.asarray(state.rows.frame)
    begun, reached = frame[starts], frame[np.asarray(walk.index[1])]
    # Lane and episode stay, time goes on by one.
    np.testing.assert_array_equal(reached - begun, np.tile([0, 0, 1], (len(starts), 1)))
    far = frame[np.asarray(walk.index[3])] - begun
    assert (far[:, :2] == 0).all()
    assert (far[:, 2] >= 1).all()
    assert (far[:, 2] <= 3).all()
    # As many as the environment has made in what was shown, and each once.
    made = sum(int((~step.is_last).sum()) for step in shown[:47])
    assert len(starts) == made == len(np.unique(begun, axis=0))
    # Bootstrapping stops where the episode terminates, and only there.
    lane, episode, time = reached.T
    terminated = (time == 2 + lane + episode % 3) & (episode % 4 < 2)
    np.testing.assert_allclose(walk.discount[1], np.where(terminated, 0.0, 0.9), rtol=1e-6)


def test_scores_are_whole_episodes_in_both_modes():
    for mode in (AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP):
        env = GymVector(telling_vector(1, mode))
        scores, found = Scores(1), []
        shown, actions = play(env, 5)
        for step in shown:
            found += scores.see(step)
        # Two steps of episode 0, at times 0 and 1.
        assert found[0] == 0 + actions[0][0] + 10 + actions[1][0]


def test_an_environment_that_cannot_reset_single_lanes_says_so():
    vector = telling_vector(2, AutoresetMode.SAME_STEP)
    whole = type(vector).reset

    class ResetsAll(SyncVectorEnv):
        def reset(self, *, seed=None, options=None):
            return whole(self, seed=seed)

    vector.__class__ = ResetsAll
    with pytest.raises(HostEnvironmentError, match="cannot reset single lanes"):
        play(GymVector(vector), 10)


def test_a_missing_last_observation_is_told_of():
    class Forgets(SyncVectorEnv):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    vector = Forgets([Telling], autoreset_mode=AutoresetMode.SAME_STEP)
    with pytest.raises(HostEnvironmentError, match="final_obs"):
        play(GymVector(vector), 10)


@pytest.mark.parametrize("mode", [AutoresetMode.DISABLED, None, "NextStep"])
def test_other_modes_are_refused(mode):
    vector = telling_vector(1)
    vector.metadata["autoreset_mode"] = mode
    with pytest.raises(ValueError, match="autoreset_mode"):
        GymVector(vector)


def test_cart_pole_by_its_id_ends_only_by_falling_and_time():
    env = GymVector("CartPole-v1", 4, seed=3)
    assert (env.num_lanes, env.num_actions, env.frame_shape) == (4, 2, (4,))
    assert env.frame_dtype == np.float32
    shown, _ = play(env, 100)
    assert sum(step.is_last.sum() for step in shown) > 8
    for before, step in itertools.pairwise(shown):
        np.testing.assert_array_equal(step.is_first, before.is_last)
        # The first four numbers of an episode are small.
        assert (np.abs(step.frame[step.is_first]) <= 0.05).all()
        assert (step.discount[step.is_last] == 0).all()
        np.testing.assert_array_equal(step.reward, ~step.is_first)


def test_a_time_limit_is_no_termination():
    env = GymVector("CartPole-v1", 2, max_episode_steps=3)
    shown, _ = play(env, 3)
    assert shown[3].is_last.all()
    np.testing.assert_array_equal(shown[3].discount, [1, 1])


# --- Seeds, types, rewards ---


def test_seeds_decide_and_differ():
    def first(seed, stream=0):
        return GymVector("CartPole-v1", 2, seed=seed, stream=stream).reset().frame

    np.testing.assert_array_equal(first(1), first(1))
    assert not np.array_equal(first(1), first(2))
    assert not np.array_equal(first(1), first(1, stream=1))
    vector = telling_vector(3)
    env = GymVector(vector, seed=0)
    env.reset()
    env.reset()
    seeds = [lane.seeds for lane in vector.envs]
    assert len({lane[0] for lane in seeds}) == 3
    # The generators go on, else every reset would be the same.
    assert [lane[1] for lane in seeds] == [None] * 3


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float64", "float32"),
        ("int64", "int32"),
        ("uint64", "int32"),
        ("bool", "int8"),
        ("uint8", "uint8"),
    ],
)
def test_dtypes_become_those_that_jax_knows(dtype, expected):
    env = GymVector(telling_vector(1, dtype=np.dtype(dtype)))
    assert env.frame_dtype == expected
    assert env.reset().frame.dtype == expected


def test_shown_frames_do_not_change_afterwards():
    vector = telling_vector(1)
    vector.copy = False  # the same memory for all observations
    shown, _ = play(GymVector(vector), 2)
    assert [step.frame[0, 2] for step in shown] == [0, 1, 2]


def test_rewards_may_be_transformed_and_scores_stay():
    env = GymVector(telling_vector(1), transform_reward=np.sign)
    shown, actions = play(env, 2)
    assert shown[2].reward[0] == 1
    assert shown[2].score_reward[0] == 10 + actions[1][0]


def test_actions_that_begin_elsewhere():
    class Shifted(Telling):
        def __init__(self):
            super().__init__()
            self.action_space = spaces.Discrete(3, start=-1)

    env = GymVector(SyncVectorEnv([Shifted]))
    env.reset()
    assert env.step(np.array([0])).reward == -1
    assert env.step(np.array([2])).reward == 11


# --- What cannot be learnt, and what goes wrong ---


def spaces_env(observation_space=None, action_space=None):
    class Made(Telling):
        def __init__(self):
            super().__init__()
            self.observation_space = observation_space or self.observation_space
            self.action_space = action_space or self.action_space

    return SyncVectorEnv([Made])


BOX = spaces.Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"action_space": BOX}, "only discrete actions.*DiscretizeAction"),
        ({"action_space": spaces.MultiDiscrete([2, 3])}, "only discrete.*combinations"),
        ({"observation_space": spaces.Dict(a=BOX)}, "one array.*FlattenObservation"),
        ({"observation_space": spaces.Tuple([BOX])}, "one array"),
        ({"observation_space": spaces.Discrete(4)}, "FlattenObservation"),
        ({"observation_space": spaces.Box(0, 1, (2, 2, 2, 2))}, "three axes"),
    ],
)
def test_spaces_that_cannot_be_learnt(wrong, message):
    with pytest.raises(ValueError, match=message):
        GymVector(spaces_env(**wrong))


def test_what_is_no_environment():
    with pytest.raises(ValueError, match=r"did you mean.*CartPole-v1"):
        GymVector("CartPol-v1")
    with pytest.raises(ValueError, match=r"7 is no environment's id, no .* and no function"):
        GymVector(7)
    with pytest.raises(ValueError, match=r"made 7, but must make a gymnasium\.Env"):
        GymVector(lambda: 7)
    with pytest.raises(ValueError, match="num_lanes is 0, but must be at least 1"):
        GymVector(Telling, 0)
    with pytest.raises(ValueError, match="num_lanes is 3"):
        GymVector(telling_vector(2), 3)
    with pytest.raises(ValueError, match="only with an id"):
        GymVector(telling_vector(2), render=True)
    with pytest.raises(ValueError, match="unexpected keyword"):
        GymVector("CartPole-v1", options={"gravitas": 1})
    with pytest.raises(ValueError, match="Pendulum-v1 has actions Box"):
        GymVector("Pendulum-v1")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("raise", "failed in step number 3: ZeroDivisionError: the pole fell off"),
        ("nan", r"observation of environment 1 is not finite at step 3: \[ 1. nan +3.\]"),
        ("reward", "reward of environment 1 is not finite at step 3: inf"),
    ],
)
def test_failures_name_environment_and_step(how, message):
    env = GymVector(SyncVectorEnv([Telling, lambda: Failing(1, at=3, how=how)]))
    with pytest.raises(HostEnvironmentError, match=message):
        play(env, 10)


def test_actions_are_checked():
    env = GymVector(telling_vector(2))
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.array([0, 0]))
    env.reset()
    for wrong in (np.array([0]), np.array([0.0, 1.0]), np.array([0, 5]), np.array([-1, 0])):
        with pytest.raises(ValueError, match="actions"):
            env.step(wrong)


def test_pictures_of_the_first_lane():
    gymnasium.register("bqfd-Chain-v0", entry_point=Chain)
    env = GymVector("bqfd-Chain-v0", 2, render=True)
    env.reset()
    env.step(np.array([1, 0]))
    picture = env.render()
    assert picture.shape == (8, 40, 3)
    assert np.flatnonzero(picture[0, :, 0]).tolist() == list(range(8, 16))
    env.close()


def test_wrappers_go_around_each_environment():
    env = GymVector(
        "CartPole-v1",
        2,
        wrappers=[lambda env: gymnasium.wrappers.TransformReward(env, lambda r: 7 * r)],
    )
    env.reset()
    np.testing.assert_array_equal(env.step(np.zeros(2, int)).reward, [7, 7])


# --- What can be given ---


def test_a_single_environment_is_one_lane():
    single = Telling(lane=3)
    env = GymVector(single, seed=5)
    assert (env.num_lanes, env.name) == (1, "Telling")
    np.testing.assert_array_equal(env.reset().frame, [[3, 0, 0]])
    np.testing.assert_array_equal(env.step(np.array([2])).reward, [3002])
    assert single.seeds == GymVector(Telling(), 1, seed=5)._seed
    with pytest.raises(ValueError, match=r"num_lanes is 2, but .* single environment; .* function"):
        GymVector(Telling(), 2)
    with pytest.raises(ValueError, match="render can be given only with an id"):
        GymVector(Telling(), render=True)


def test_a_function_makes_as_many_as_wanted():
    made = []

    def make():
        made.append(Telling(lane=len(made)))
        return made[-1]

    env = GymVector(make, 3, seed=5)
    assert env.num_lanes == len(made) == 3
    np.testing.assert_array_equal(env.reset().frame[:, 0], [0, 1, 2])
    assert len({lane.seeds[0] for lane in made}) == 3
    assert GymVector(Telling).num_lanes == 1


def test_pictures_have_the_pace_of_the_environment():
    assert GymVector(Chain).fps == 5
    assert GymVector(Telling).fps == 30
    assert GymVector("CartPole-v1").fps == 50


def first_seeds(**options):
    lanes = [Telling() for _ in range(4)]
    GymVector(SyncVectorEnv([lambda lane=lane: lane for lane in lanes]), **options).reset()
    return [lane.seeds[0] for lane in lanes]


def test_a_resumed_run_does_not_begin_as_before():
    new = first_seeds(seed=7, stream=2)
    words = np.random.SeedSequence([7, 2]).generate_state(4)
    assert new == first_seeds(seed=7, stream=2, resumed_at=0) == (words >> 1).tolist()
    streams = [first_seeds(seed=7, stream=stream) for stream in range(4)]
    resumed = [first_seeds(seed=7, stream=2, resumed_at=step) for step in (1, 2, 1000)]
    every = [seed for seeds in (*streams, *resumed) for seed in seeds]
    assert len(set(every)) == len(every)
