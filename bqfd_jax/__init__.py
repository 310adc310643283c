"""bqfd-jax: learning Q-values from imperfect demonstrations.

A user's verbs are here: `train`, `evaluate`, `record`, and `Run` for what lies in a folder.  The
parts are reached by their modules: `losses`, `posterior` and `exploration` take one example (vmap
them), `replay`, `networks` and `agents` are bundles of pure functions, `training` brings them
together, `tabular` and `gekf` are the paper's first two algorithms.
"""

from bqfd_jax import (
    agents,
    demos,
    envs,
    exploration,
    gekf,
    losses,
    networks,
    posterior,
    replay,
    runs,
    schedules,
    tabular,
    training,
)
from bqfd_jax.agents.presets import agent_config
from bqfd_jax.api import TrainResult, demonstration_from_arrays, train
from bqfd_jax.playing import evaluate, record
from bqfd_jax.policy import Policy, load_policy, save_policy
from bqfd_jax.runs.run import Run

__version__ = "0.1.0"

__all__ = [
    "Policy",
    "Run",
    "TrainResult",
    "agent_config",
    "agents",
    "demonstration_from_arrays",
    "demos",
    "envs",
    "evaluate",
    "exploration",
    "gekf",
    "load_policy",
    "losses",
    "networks",
    "posterior",
    "record",
    "replay",
    "runs",
    "save_policy",
    "schedules",
    "tabular",
    "train",
    "training",
]
