"""The agents, each a bundle of pure functions around one shared update."""

from bqfd_jax.agents.config import (
    AgentConfig,
    AnyAgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    CloneConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
)
from bqfd_jax.agents.learner import Agent
from bqfd_jax.agents.presets import AGENTS, AgentKind, agent_config
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay

__all__ = [
    "AGENTS",
    "Agent",
    "AgentConfig",
    "AgentKind",
    "AnyAgentConfig",
    "BootstrappedConfig",
    "BqfdConfig",
    "CloneConfig",
    "DqfdConfig",
    "EnsembleBqfdConfig",
    "PddDqnConfig",
    "agent_config",
    "make_agent",
]


def make_agent(network: Network, config: AnyAgentConfig, replay: Replay | None = None) -> Agent:
    """The agent that `config` is for.

    Args:
      network: Q-values of observations.
      config: one of the configs of `AGENTS`; its type chooses the agent.
      replay: where `update` and `pretrain` draw from.  Without one the agent still acts and
        learns from batches that come from elsewhere, see `Agent.learn`.
    """
    for kind in AGENTS.values():
        if kind.config is type(config):
            return kind.make(network, config, replay)
    known = ", ".join(sorted(kind.config.__name__ for kind in AGENTS.values()))
    raise ValueError(f"no agent is made from a {type(config).__name__}; expected one of {known}")
