"""gymnasium environments that tell where they are, or misbehave in one known way."""

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

NUM_ACTIONS = 5


class Telling(gymnasium.Env):
    """Shows `[lane, episode, time]`, pays `1000 lane + 100 episode + 10 time + action`.

    Episodes have `2 + lane + episode % 3` steps; every second one is truncated.
    """

    def __init__(self, lane=0, dtype=np.float32):
        high = 1 if np.dtype(dtype).kind == "b" else 100
        self.observation_space = spaces.Box(0, high, (3,), dtype)
        self.action_space = spaces.Discrete(NUM_ACTIONS)
        self.lane, self.episode, self.time = lane, -1, 0
        self.seeds = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.episode, self.time = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        assert self.action_space.contains(action)
        reward = float(1000 * self.lane + 100 * self.episode + 10 * self.time + int(action))
        self.time += 1
        ended = self.time >= 2 + self.lane + self.episode % 3
        odd = self.episode % 4 >= 2
        return self._observe(), reward, ended and not odd, ended and odd, {}

    def _observe(self):
        where = [self.lane, self.episode, self.time]
        return np.array(where, self.observation_space.dtype)


def telling_vector(num_lanes, mode=AutoresetMode.NEXT_STEP, **options):
    return SyncVectorEnv(
        [lambda lane=lane: Telling(lane, **options) for lane in range(num_lanes)],
        autoreset_mode=mode,
    )


class Failing(Telling):
    """Raises at a step of its life, or shows what is not a number there."""

    def __init__(self, lane=0, at=5, how="raise"):
        super().__init__(lane)
        self.at, self.how, self.age = at, how, 0

    def step(self, action):
        self.age += 1
        observation, reward, terminated, truncated, info = super().step(action)
        if self.age == self.at and self.how == "raise":
            raise ZeroDivisionError("the pole fell off")
        if self.age == self.at and self.how == "nan":
            observation[1] = np.nan
        if self.age == self.at and self.how == "reward":
            reward = np.inf
        return observation, reward, terminated, truncated, info


class Chain(gymnasium.Env):
    """Five places in a row; going right at the last pays 1 and ends; 20 steps at most."""

    length = 5
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = spaces.Box(-1, 1, (self.length,), np.float32)
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        wins = action == 1 and self.place == self.length - 1
        self.place = min(self.length - 1, max(0, self.place + (1 if action == 1 else -1)))
        return self._observe(), float(wins), wins, self.time >= 20 and not wins, {}

    def render(self):
        picture = np.zeros((8, 8 * self.length, 3), np.uint8)
        picture[:, 8 * self.place : 8 * self.place + 8] = 255
        return picture

    def _observe(self):
        return np.eye(self.length, dtype=np.float32)[self.place]


# By `gym_probes:bqfd-Probe-v0` it is found in any process.
PROBE = "bqfd-Probe-v0"
if PROBE not in gymnasium.registry:
    gymnasium.register(PROBE, entry_point=Chain, max_episode_steps=30)
