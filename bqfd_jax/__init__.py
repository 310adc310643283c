"""bqfd-jax: learning Q-values from imperfect demonstrations.

The public names, and the modules `gekf` (Algorithm 1) and `tabular` (Algorithm 2).  Functions of
`posterior`, `losses` and `exploration` take one example: vmap them.
"""

from bqfd_jax import gekf, tabular
from bqfd_jax.agents import (
    Agent,
    AgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    PddDqnConfig,
    make_agent,
)
from bqfd_jax.api import (
    TrainResult,
    demonstration_from_arrays,
    evaluate,
    record,
    small_config,
    train,
)
from bqfd_jax.demos import DemonstrationError, FrameDemonstration
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.exploration import (
    EzGreedyState,
    epsilon_greedy,
    ez_greedy,
    ez_greedy_init,
    greedy,
)
from bqfd_jax.losses import (
    bqfd_path_td_error,
    bqfd_td_error,
    double_q_td_error,
    expert_likelihood_loss,
    large_margin_loss,
    n_step_double_q_td_error,
    n_step_return,
)
from bqfd_jax.networks import Network, atari_network, deep_sea_network, ensemble, from_flax
from bqfd_jax.policy import Policy, PolicyError, load_policy, save_policy
from bqfd_jax.posterior import (
    boltzmann_policy,
    expert_correction,
    expert_log_likelihood,
    off_policy_weight,
    path_correction,
    visit_weight,
)
from bqfd_jax.replay import Replay, ReplayState, check_demonstrations, make_replay
from bqfd_jax.runs.checkpoint import Checkpointer, CheckpointError
from bqfd_jax.runs.metrics import MetricsWriter, read_jsonl
from bqfd_jax.schedules import piecewise_linear
from bqfd_jax.training.evaluate import Evaluation, make_evaluate
from bqfd_jax.training.on_device import Trainer, TrainState, make_trainer, over_runs
from bqfd_jax.training.on_host import HostLoop, HostTrainer, HostTrainState, make_host_trainer
from bqfd_jax.types import (
    Batch,
    Environment,
    EnvStep,
    HostEnvironment,
    HostStep,
    LearnerState,
    LossOutput,
    Row,
)

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "AgentConfig",
    "Batch",
    "BootstrappedConfig",
    "BqfdConfig",
    "CheckpointError",
    "Checkpointer",
    "DemonstrationError",
    "DqfdConfig",
    "EnvStep",
    "Environment",
    "Evaluation",
    "EzGreedyState",
    "FrameDemonstration",
    "GymVector",
    "HostEnvironment",
    "HostEnvironmentError",
    "HostLoop",
    "HostStep",
    "HostTrainState",
    "HostTrainer",
    "LearnerState",
    "LossOutput",
    "MetricsWriter",
    "Network",
    "PddDqnConfig",
    "Policy",
    "PolicyError",
    "Replay",
    "ReplayState",
    "Row",
    "TrainResult",
    "TrainState",
    "Trainer",
    "atari_network",
    "boltzmann_policy",
    "bqfd_path_td_error",
    "bqfd_td_error",
    "check_demonstrations",
    "deep_sea_network",
    "demonstration_from_arrays",
    "double_q_td_error",
    "ensemble",
    "epsilon_greedy",
    "evaluate",
    "expert_correction",
    "expert_likelihood_loss",
    "expert_log_likelihood",
    "ez_greedy",
    "ez_greedy_init",
    "from_flax",
    "gekf",
    "greedy",
    "large_margin_loss",
    "load_policy",
    "make_agent",
    "make_evaluate",
    "make_host_trainer",
    "make_replay",
    "make_trainer",
    "n_step_double_q_td_error",
    "n_step_return",
    "off_policy_weight",
    "over_runs",
    "path_correction",
    "piecewise_linear",
    "read_jsonl",
    "record",
    "save_policy",
    "small_config",
    "tabular",
    "train",
    "visit_weight",
]
