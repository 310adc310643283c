"""From a network, a config and demonstrations to all that training on the host is made of."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import jax

from bqfd_jax.agents import Agent, AgentConfig, make_agent
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay, check_discounts, make_replay
from bqfd_jax.training import on_host
from bqfd_jax.training.demo_usage import DemoUsage
from bqfd_jax.types import HostEnvironment, Row


class HostSetup(NamedTuple):
    """All parts of a run, before anything has happened; compiled when first called."""

    agent: Agent
    replay: Replay
    trainer: on_host.HostTrainer
    demonstrations: Row | None  # fields [E, ...]
    usage: DemoUsage  # which demonstration's rows are drawn how often

    def init(self, seed: int) -> on_host.HostTrainState:
        """The state at the beginning of a run."""
        return self.trainer.init(jax.random.key(seed), self.demonstrations)

    def fresh_replay(self) -> Any:
        """A replay that holds the demonstrations and nothing else."""
        return self.replay.init(self.demonstrations)


def make_setup(
    network: Network,
    config: AgentConfig,
    *,
    frame_shape: tuple[int, ...],
    frame_dtype: Any,
    num_lanes: int,
    rows_per_lane: int,
    stack: int = 1,
    demonstrations: Row | None = None,
    sizes: Mapping[str, int] | None = None,
) -> HostSetup:
    """Binds network, replay and agent.

    Args:
      network: Q-values of `[B, stack, *frame_shape]`.
      config: decides which agent it is.
      frame_shape: shape of one frame.
      frame_dtype: its dtype.
      num_lanes: environments side by side.
      rows_per_lane: rows of the replay for each.
      stack: frames per observation.
      demonstrations: rows of all.
      sizes: name of each demonstration -> its rows, in their order.
    """
    replay = make_replay(
        frame_shape=frame_shape,
        frame_dtype=frame_dtype,
        rows_per_lane=rows_per_lane,
        num_lanes=num_lanes,
        num_demo_rows=0 if demonstrations is None else len(demonstrations.action),
        stack=stack,
        **config.replay_options(),
    )
    if demonstrations is not None:
        check_discounts(demonstrations, config.gamma)
    agent = make_agent(network, config, replay)
    trainer = on_host.make_host_trainer(agent, replay)
    is_last = None if demonstrations is None else demonstrations.is_last
    usage = DemoUsage(sizes or {}, is_last, config)
    return HostSetup(agent, replay, trainer, demonstrations, usage)


def make_loop(
    setup: HostSetup,
    env: HostEnvironment,
    state: on_host.HostTrainState,
    *,
    update_period: float,
    learning_starts: int = 0,
    one_call: bool = False,
) -> on_host.HostLoop:
    """Training that goes on from a state, with one update per `update_period` agent steps."""
    return on_host.HostLoop(
        env,
        setup.trainer,
        state,
        updates_per_step=1 / Fraction(update_period).limit_denominator(10**6),
        learning_starts=learning_starts,
        one_call=one_call,
    )
