"""One DQN on one Atari game, as this project and its peers train it.

Everyone steps games of envpool, draws 32 transitions per update, and has Nature's convolutions
under 512 hidden units.  Builds are called in processes of their own, and import what they need.
"""

import dataclasses
import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bqfd_jax.envs import atari

Run = Callable[[int], None]
_LEARNING_RATE = 1e-4
_STACK = 4
_EPSILON = 0.1


class Work(NamedTuple):
    """What all of them do."""

    game: str = "Breakout"
    games: int = 8
    update_period: int = 4
    batch_size: int = 32
    rows: int = 10_000
    target_period: int = 8_000  # agent steps between two copies of the target network
    threads: int = 1


def ours(work: Work) -> Run:
    """Double DQN with a prioritized replay; both dueling streams together have 512 units."""
    import jax

    from bqfd_jax.agents import PddDqnConfig
    from bqfd_jax.runs.atari import AtariConfig, AtariWorld
    from bqfd_jax.runs.job import make_job

    agent = PddDqnConfig(
        batch_size=work.batch_size,
        learning_rate=_LEARNING_RATE,
        target_period=work.target_period // work.update_period,
        target_step_size=1.0,
        huber_delta=1.0,
        priority_exponent=0.6,
        epsilon_values=(_EPSILON,),
    )
    config = dataclasses.replace(
        AtariConfig.of("laptop", work.game),
        agent="dqn",
        dqn=agent,
        torso="nature",
        hidden=256,
        # Nobody else's streams are standardised.
        layer_norm=False,
        envs=work.games,
        update_period=work.update_period,
        learning_starts=0,
        replay_rows=work.rows,
        demo=("none",),
    )
    job = make_job(config, AtariWorld(config))
    loop = job.make_loop(job.init())

    def run(steps: int) -> None:
        loop.run(steps)
        jax.block_until_ready(loop.state)

    return run


def stable_baselines3(work: Work) -> Run:
    """Its DQN, which takes the maximum of the target network, and its uniform replay."""
    import torch
    from gymnasium import spaces
    from stable_baselines3 import DQN
    from stable_baselines3.common.vec_env import VecEnv

    torch.set_num_threads(work.threads)
    pool = _make_pool(work)

    class Games(VecEnv):
        """envpool's games, as stable-baselines3 wants them."""

        def __init__(self):
            pixels = spaces.Box(0, 255, (_STACK, *atari.FRAME_SHAPE), np.uint8)
            super().__init__(work.games, pixels, spaces.Discrete(int(pool.action_space.n)))

        def reset(self) -> np.ndarray:
            return pool.reset()[0]

        def step_async(self, actions: np.ndarray) -> None:
            self._actions = actions

        def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
            seen, reward, ended = _step(pool, self._actions)
            return seen, reward, ended, [{} for _ in ended]

        def close(self) -> None:
            pool.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * work.games

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            pass

        def env_method(self, method_name: str, *args: Any, **options: Any) -> list[Any]:
            return [None] * work.games

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * work.games

    model = DQN(
        "CnnPolicy",
        Games(),
        learning_rate=_LEARNING_RATE,
        buffer_size=work.rows,
        batch_size=work.batch_size,
        learning_starts=0,
        train_freq=1,
        gradient_steps=work.games // work.update_period,
        target_update_interval=work.target_period,
        exploration_initial_eps=_EPSILON,
        exploration_final_eps=_EPSILON,
        device="cpu",
        seed=0,
    )

    def run(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    return run


def cleanrl(work: Work, double: bool = False) -> Run:
    """The loop of CleanRL's dqn_atari.py, written anew: the maximum of the target network, Adam,
    squared errors, a uniform replay.  `double` lets the online network choose the action."""
    import torch
    from torch import nn

    torch.set_num_threads(work.threads)
    torch.manual_seed(0)
    pool = _make_pool(work)
    num_actions = int(pool.action_space.n)

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(_STACK, 32, 8, stride=4), nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
            nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, num_actions),
        )  # fmt: skip

    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=_LEARNING_RATE)
    replay = _UniformReplay(work)
    random = np.random.default_rng(0)
    state = {"step": 0, "seen": pool.reset()[0]}

    def q_values(net: nn.Module, observation: np.ndarray) -> torch.Tensor:
        return net(torch.as_tensor(observation) / 255.0)

    def act(seen: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            greedy = q_values(online, seen).argmax(1).numpy()
        explores = random.random(work.games) < _EPSILON
        return np.where(explores, random.integers(num_actions, size=work.games), greedy)

    def update() -> None:
        seen, action, reward, ended, seen_next = replay.draw(random)
        with torch.no_grad():
            values = q_values(target, seen_next)
            chooser = q_values(online, seen_next) if double else values
            best = values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
            wanted = torch.as_tensor(reward) + 0.99 * best * torch.as_tensor(1.0 - ended)
        taken = q_values(online, seen).gather(1, torch.as_tensor(action)[:, None]).squeeze(1)
        loss = nn.functional.mse_loss(taken, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def run(steps: int) -> None:
        for _ in range(steps // work.games):
            action = act(state["seen"])
            seen, reward, ended = _step(pool, action)
            replay.add(state["seen"], action, reward, ended, seen)
            state["seen"], before = seen, state["step"]
            state["step"] += work.games
            for _ in range(work.games // work.update_period):
                update()
            if state["step"] // work.target_period > before // work.target_period:
                target.load_state_dict(online.state_dict())

    return run


def dopamine(work: Work) -> Run:
    """Its JAX DQN agent: the maximum of the target network, its uniform replay, one game."""
    import gin

    _stand_in("baselines", "baselines.common", "baselines.common.atari_wrappers")
    from dopamine.jax.agents.dqn.dqn_agent import JaxDQNAgent

    gin.bind_parameter("ReplayBuffer.batch_size", work.batch_size)
    gin.bind_parameter("ReplayBuffer.max_capacity", work.rows)
    pool = _make_pool(work._replace(games=1), stack=1)
    agent = JaxDQNAgent(
        int(pool.action_space.n),
        gamma=0.99,
        min_replay_history=work.batch_size + _STACK,
        update_period=work.update_period,
        target_update_period=work.target_period,
        epsilon_train=_EPSILON,
        epsilon_fn=lambda *_: _EPSILON,
        seed=0,
    )
    state = {"action": agent.begin_episode(pool.reset()[0][0, 0, ..., None])}

    def run(steps: int) -> None:
        for _ in range(steps):
            seen, reward, ended = _step(pool, np.array([state["action"]]))
            if ended[0]:
                agent.end_episode(float(reward[0]))
                frame = pool.reset()[0][0, 0, ..., None]
                state["action"] = agent.begin_episode(frame)
            else:
                state["action"] = agent.step(float(reward[0]), seen[0, 0, ..., None])

    return run


class _UniformReplay:
    """Whole stacks in a ring, drawn uniformly."""

    def __init__(self, work: Work):
        rows, shape = work.rows, (_STACK, *atari.FRAME_SHAPE)
        self._fields = (
            np.zeros((rows, *shape), np.uint8),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.float32),
            np.zeros(rows, np.float32),
            np.zeros((rows, *shape), np.uint8),
        )
        self._batch_size, self._added = work.batch_size, 0

    def add(self, *rows: np.ndarray) -> None:
        size = len(self._fields[0])
        index = (self._added + np.arange(len(rows[0]))) % size
        for field, new in zip(self._fields, rows, strict=True):
            field[index] = new
        self._added += len(index)

    def draw(self, random: np.random.Generator) -> list[np.ndarray]:
        size = min(self._added, len(self._fields[0]))
        index = random.integers(size, size=self._batch_size)
        return [field[index] for field in self._fields]


def _stand_in(*modules: str) -> None:
    """Empty modules, unless they are installed.

    Dopamine imports OpenAI's baselines for games that are not played here, and pip does not bring
    them.
    """
    if importlib.util.find_spec(modules[0]):
        return
    for name in modules:
        sys.modules[name] = types.ModuleType(name)
        above, _, child = name.rpartition(".")
        if above:
            setattr(sys.modules[above], child, sys.modules[name])


def _make_pool(work: Work, stack: int = _STACK) -> Any:
    import envpool

    return envpool.make(
        f"{work.game}-v5",
        env_type="gymnasium",
        num_envs=work.games,
        seed=0,
        stack_num=stack,
        **atari.EMULATOR,
    )


def _step(pool: Any, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen, reward, terminated, truncated, _ = pool.step(np.asarray(actions, np.int32))
    return seen, reward.astype(np.float32), terminated | truncated
