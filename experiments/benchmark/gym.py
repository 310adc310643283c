"""The host loop on CartPole beside stable-baselines3's DQN: the same network and update ratio."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from bqfd_jax import checks, extras, networks
from bqfd_jax.agents import PddDqnConfig, make_agent
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.replay import make_replay
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.training.on_host import HostLoop, make_host_trainer

from .timing import measure

_ENV = "CartPole-v1"
_ROWS = 50_000
_LEARNING_RATE = 1e-4


class _Plain(nn.Module):
    """What stable-baselines3 calls an MLP policy."""

    hidden: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        return nn.Dense(2)(networks.MLPTorso((self.hidden, self.hidden))(x))


def _our_loop(
    envs: int, update_period: int, batch_size: int, hidden: int, vectorization_mode: str | None
) -> Callable[[int], None]:
    env = GymVector(_ENV, envs, vectorization_mode=vectorization_mode)
    network = networks.own_network(
        _Plain(hidden),
        num_actions=2,
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        stack=1,
    )
    agent_config = PddDqnConfig(
        batch_size=batch_size,
        learning_rate=_LEARNING_RATE,
        target_period=2_500,
        target_step_size=1.0,
        epsilon_values=(0.05,),
    )
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_lanes=envs,
        rows_per_lane=_ROWS // envs,
        **agent_config.replay_options(),
    )
    trainer = make_host_trainer(make_agent(network, agent_config, replay), replay)
    state = trainer.init(jax.random.key(0))
    loop = HostLoop(env, trainer, state, update_period=update_period, one_call=True)

    def run(steps: int) -> None:
        loop.run(steps)
        jax.block_until_ready(loop.state)

    return run


def _peers_loop(
    envs: int, update_period: int, batch_size: int, hidden: int
) -> Callable[[int], None]:
    try:
        import stable_baselines3
        import torch
        from stable_baselines3.common.env_util import make_vec_env
    except ImportError as error:
        raise UsageError(f"{error}; {extras.hint('benchmark')}, or add --no-peer") from error
    # Faster than with more, for so small a network.
    torch.set_num_threads(1)
    model = stable_baselines3.DQN(
        "MlpPolicy",
        make_vec_env(_ENV, n_envs=envs, seed=0),
        policy_kwargs={"net_arch": [hidden, hidden]},
        learning_rate=_LEARNING_RATE,
        batch_size=batch_size,
        buffer_size=_ROWS,
        learning_starts=0,
        train_freq=1,
        gradient_steps=envs // update_period,
        target_update_interval=10_000,
        device="cpu",
        seed=0,
    )

    def run(steps: int) -> None:
        model.learn(steps, reset_num_timesteps=False)

    return run


def gym(
    envs: int = 16,
    update_period: int = 4,
    batch_size: int = 32,
    hidden: int = 64,
    steps: int = 8_000,
    rounds: int = 5,
    peer: bool = True,
) -> dict[str, Any]:
    """Steps per second of training DQN on CartPole, here and by stable-baselines3.

    Both have dense layers of the same widths, the same batch and one update per so many steps.
    Ours draws by priority and learns by double Q-learning besides.

    Args:
      envs: Environments side by side.
      update_period: Agent steps, over all environments, per update; must divide --envs.
      batch_size: Transitions per update.
      hidden: Width of both dense layers.
      steps: Agent steps per round.
      rounds: Everything is measured once per round; the median counts.
      peer: Measure stable-baselines3 too (needs the extra `benchmark`).

    Returns:
      The figures by name.
    """
    sizes = {
        "envs": envs, "update_period": update_period, "batch_size": batch_size, "hidden": hidden,
    }  # fmt: skip
    checks.at_least(1, **sizes, steps=steps, rounds=rounds)
    divisor = f"a divisor of --envs ({envs})"
    checks.require(envs % update_period == 0, "update_period", update_period, divisor)
    loops = {
        "ours": _our_loop(**sizes, vectorization_mode="sync"),
        "ours, CartPole in one array": _our_loop(**sizes, vectorization_mode=None),
    }
    if peer:
        loops["stable-baselines3"] = _peers_loop(**sizes)
    for run in loops.values():
        # Compiles, and fills the replay a little.
        run(40 * envs)
    parts = {name: functools.partial(run, steps) for name, run in loops.items()}
    times = measure(parts, rounds)
    figures: dict[str, Any] = {}
    print(
        f"{_ENV}, DQN, {envs} environments, an update of {batch_size} per {update_period} steps, "
        f"dense layers of {hidden}"
    )
    for name, seconds in times.items():
        figures[name] = float(np.median(steps / seconds.wall))
        per_cpu = float(np.median(steps / seconds.cpu))
        line = f"  {name:30s}{figures[name]:9.0f} steps/s, {per_cpu:7.0f} per second of CPU"
        if peer and name != "stable-baselines3":
            ratios = times["stable-baselines3"].wall / seconds.wall
            figures[f"{name}, ratio"] = float(np.median(ratios))
            line += f"; {np.median(ratios):.1f} times stable-baselines3"
            line += f" ({', '.join(f'{ratio:.1f}' for ratio in sorted(ratios))})"
        print(line)
    return figures
