"""The host loop on CartPole beside stable-baselines3's DQN: the same network and update ratio."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bqfd_jax import checks, networks
from bqfd_jax.agents import PddDqnConfig, make_agent
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.replay import make_replay
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.training.on_host import HostLoop, make_host_trainer

_ENV = "CartPole-v1"
_ROWS = 50_000
_LEARNING_RATE = 1e-4


@dataclasses.dataclass(frozen=True)
class GymBenchmark:
    """Steps per second of training DQN on CartPole, here and by stable-baselines3.

    Both have dense layers of the same widths, the same batch and one update per so many steps.
    Ours draws by priority and learns by double Q-learning besides.
    """

    envs: int = 16
    """Environments side by side."""
    update_period: int = 4
    """Agent steps, over all environments, per update; must divide --envs."""
    batch_size: int = 32
    """Transitions per update."""
    hidden: int = 64
    """Width of both dense layers."""
    steps: int = 8_000
    """Agent steps per round."""
    rounds: int = 5
    """Everything is measured once per round; the median counts."""
    peer: bool = True
    """Measure stable-baselines3 too (needs the extra: pip install 'bqfd-jax[benchmark]')."""


class _Plain(nn.Module):
    """What stable-baselines3 calls an MLP policy."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(networks.MLPTorso((self.hidden, self.hidden))(x))


def _our_loop(config: GymBenchmark, vectorization_mode: str | None) -> Callable[[int], None]:
    env = GymVector(_ENV, config.envs, vectorization_mode=vectorization_mode)
    network = networks.own_network(
        _Plain(config.hidden),
        num_actions=2,
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        stack=1,
    )
    agent_config = PddDqnConfig(
        batch_size=config.batch_size,
        learning_rate=_LEARNING_RATE,
        target_period=2_500,
        target_step_size=1.0,
        epsilon_values=(0.05,),
    )
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_lanes=config.envs,
        rows_per_lane=_ROWS // config.envs,
        **agent_config.replay_options(),
    )
    trainer = make_host_trainer(make_agent(network, agent_config, replay), replay)
    state = trainer.init(jax.random.key(0))
    loop = HostLoop(env, trainer, state, update_period=config.update_period, one_call=True)

    def run(steps: int) -> None:
        loop.run(steps)
        jax.block_until_ready(loop.state)

    return run


def _peers_loop(config: GymBenchmark) -> Callable[[int], None]:
    try:
        import stable_baselines3
        import torch
        from stable_baselines3.common.env_util import make_vec_env
    except ImportError as error:
        raise UsageError(f"{error}; pip install 'bqfd-jax[benchmark]', or add --no-peer") from error
    # Faster than with more, for so small a network.
    torch.set_num_threads(1)
    model = stable_baselines3.DQN(
        "MlpPolicy",
        make_vec_env(_ENV, n_envs=config.envs, seed=0),
        policy_kwargs={"net_arch": [config.hidden, config.hidden]},
        learning_rate=_LEARNING_RATE,
        batch_size=config.batch_size,
        buffer_size=_ROWS,
        learning_starts=0,
        train_freq=1,
        gradient_steps=config.envs // config.update_period,
        target_update_interval=10_000,
        device="cpu",
        seed=0,
    )

    def run(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    return run


def benchmark_gym(config: GymBenchmark) -> dict[str, Any]:
    """Measures and prints; returns the figures by name."""
    counts = {k: v for k, v in dataclasses.asdict(config).items() if k != "peer"}
    checks.at_least(1, **counts)
    checks.require(
        config.envs % config.update_period == 0,
        "update_period",
        config.update_period,
        f"a divisor of --envs ({config.envs})",
    )
    loops = {
        "ours": _our_loop(config, "sync"),
        "ours, CartPole in one array": _our_loop(config, None),
    }
    if config.peer:
        loops["stable-baselines3"] = _peers_loop(config)
    wall: dict[str, list[float]] = {name: [] for name in loops}
    cpu: dict[str, list[float]] = {name: [] for name in loops}
    for run in loops.values():
        # Compiles, and fills the replay a little.
        run(40 * config.envs)
    for _ in range(config.rounds):
        for name, run in loops.items():
            started, used = time.perf_counter(), time.process_time()
            run(config.steps)
            wall[name].append(config.steps / (time.perf_counter() - started))
            cpu[name].append(config.steps / (time.process_time() - used))
    figures: dict[str, Any] = {}
    print(
        f"{_ENV}, DQN, {config.envs} environments, an update of {config.batch_size} per "
        f"{config.update_period} steps, dense layers of {config.hidden}"
    )
    for name in loops:
        figures[name] = float(np.median(wall[name]))
        per_cpu = float(np.median(cpu[name]))
        line = f"  {name:30s}{figures[name]:9.0f} steps/s, {per_cpu:7.0f} per second of CPU"
        if config.peer and name != "stable-baselines3":
            # Noise of the machine strikes neighbours alike: compare within rounds.
            ratios = np.array(wall[name]) / np.array(wall["stable-baselines3"])
            figures[f"{name}, ratio"] = float(np.median(ratios))
            line += f"; {np.median(ratios):.1f} times stable-baselines3"
            line += f" ({', '.join(f'{ratio:.1f}' for ratio in sorted(ratios))})"
        print(line)
    return figures
