"""The updates of several agents side by side, on DeepSea and on an Atari game."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.agents.presets import ActingAgentName
from bqfd_jax.envs import deep_sea
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.deep_sea import AgentsConfig, make_training
from bqfd_jax.runs.job import make_job

from .timing import measure

_SIZE = 20
_DEEP_SEA_UPDATES = 200


def updates(
    agents: tuple[ActingAgentName, ...] = ("bqfd", "ensemble_bqfd"),
    game: str = "Breakout",
    count: int = 40,
    rounds: int = 7,
) -> dict[str, float]:
    """One update of each agent beside the first one's, on DeepSea and on an Atari game.

    Args:
      agents: Which agents, with the presets deep_sea and laptop.
      game: Which game.
      count: Updates per round of an agent on Atari.
      rounds: Every agent is measured once per round; the median counts.

    Returns:
      The figures by name.
    """
    checks.at_least(1, count=count, rounds=rounds)
    checks.distinct(agents=agents)
    figures = {}
    for place, make, number in (
        ("deep_sea", _deep_sea_updates, _DEEP_SEA_UPDATES),
        ("atari", lambda name: _atari_updates(name, game, count), count),
    ):
        parts = {name: make(name) for name in agents}
        for part in parts.values():
            part()  # compiles
        times = measure(parts, rounds)
        first = times[agents[0]].cpu
        for name in agents:
            figures[f"{place}_{name}_ms"] = 1e3 * float(np.median(times[name].cpu)) / number
            figures[f"{place}_{name}_ratio"] = float(np.median(times[name].cpu / first))
    print(f"CPU time of one update, {jax.devices()[0].device_kind}; beside {agents[0]}'s")
    for place, title in (("deep_sea", f"DeepSea {_SIZE}"), ("atari", game)):
        for name in agents:
            milliseconds = figures[f"{place}_{name}_ms"]
            ratio = figures[f"{place}_{name}_ratio"]
            print(f"  {title:<12} {name:<15} {milliseconds:8.2f} ms  {ratio:5.2f}")
    return figures


def _deep_sea_updates(name: str) -> Callable[[], None]:
    """Updates of a single run that holds a demonstration and some rows of its own."""
    config = AgentsConfig(size=_SIZE, episodes=20)
    env, agent, trainer = make_training(config, getattr(config, name), num_demo_rows=_SIZE)
    params, key = deep_sea.treasure(_SIZE), jax.random.key(0)
    shown = deep_sea.demonstrate(
        key, env, params, deep_sea.always_right, size=_SIZE, gamma=agent.gamma
    )
    start = trainer.init(key, params, shown)
    state = jax.jit(lambda state: trainer.run(state, params, 5 * _SIZE)[0])(start)

    @jax.jit
    def many(learner, replay_state, key):
        def one(carry, key):
            learner, replay_state, _ = agent.update(key, *carry, jnp.int32(0))
            return (learner, replay_state), None

        keys = jax.random.split(key, _DEEP_SEA_UPDATES)
        return jax.lax.scan(one, (learner, replay_state), keys)[0]

    return lambda: jax.block_until_ready(many(state.learner, state.replay, key))


def _atari_updates(name: str, game: str, count: int) -> Callable[[], None]:
    """Updates of a run whose replay is filled a little."""
    settings = dataclasses.replace(
        AtariConfig.of("laptop", game),
        agent=name,
        learning_starts=0,
        replay_rows=5_000,
        demo=("none",),
    )
    job = make_job(settings, AtariWorld(settings))
    loop = job.make_loop(job.init())
    loop.run(40 * settings.envs)

    def update() -> None:
        for _ in range(count):
            loop.state = loop.trainer.update(loop.state)
        jax.block_until_ready(loop.state)

    return update
