"""The agents, each a bundle of pure functions around one shared update."""

from bqfd_jax.agents.bootstrapped import make_agent as make_bootstrapped
from bqfd_jax.agents.bqfd import make_agent as make_bqfd
from bqfd_jax.agents.config import (
    AgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    PddDqnConfig,
)
from bqfd_jax.agents.dqfd import make_agent as make_dqfd
from bqfd_jax.agents.learner import Agent
from bqfd_jax.agents.pdd_dqn import make_agent as make_pdd_dqn
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay

__all__ = [
    "Agent",
    "AgentConfig",
    "BootstrappedConfig",
    "BqfdConfig",
    "DqfdConfig",
    "PddDqnConfig",
    "make_agent",
    "make_bootstrapped",
    "make_bqfd",
    "make_dqfd",
    "make_pdd_dqn",
]

_MAKERS = {
    BootstrappedConfig: make_bootstrapped,
    BqfdConfig: make_bqfd,
    DqfdConfig: make_dqfd,
    PddDqnConfig: make_pdd_dqn,
}


def make_agent(network: Network, replay: Replay, config: AgentConfig) -> Agent:
    """The agent that `config` is for."""
    try:
        make = _MAKERS[type(config)]
    except KeyError:
        known = ", ".join(sorted(kind.__name__ for kind in _MAKERS))
        raise ValueError(
            f"no agent is made from a {type(config).__name__}; expected one of {known}"
        ) from None
    return make(network, replay, config)
