"""The one table of agents, and the presets: hyper-parameters that were chosen for a kind of task.

`laptop` is for 400,000 steps of an Atari game on a CPU, `100k` for learning more often from a
quarter of them, `accelerator` for that with a large network, `paper` has the paper's numbers for
tens of millions of steps, `small` is for vectors and small images, `deep_sea` for DeepSea of any
size, `minatar` for MinAtar's games.
A preset holds for every environment of its kind; only the paper's depends a little on the game.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from bqfd_jax import checks
from bqfd_jax.agents import bootstrapped, bqfd, clone, dqfd, pdd_dqn
from bqfd_jax.agents.config import (
    AnyAgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    CloneConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
)
from bqfd_jax.agents.learner import Agent

# Those that learn by acting, too.
ActingAgentName = Literal["bqfd", "ensemble_bqfd", "dqfd", "dqn", "bootstrapped"]
AgentName = Literal["bqfd", "ensemble_bqfd", "dqfd", "dqn", "bootstrapped", "clone"]
PresetName = Literal["laptop", "100k", "paper", "accelerator", "small", "deep_sea", "minatar"]
# Those whose task is an Atari game.
_FOR_ATARI = ("laptop", "100k", "paper", "accelerator")


class AgentKind(NamedTuple):
    """What there is to know of an agent besides its hyper-parameters."""

    title: str  # what people call it
    config: type[AnyAgentConfig]
    make: Callable[..., Agent]  # (network, config, replay=None)


AGENTS: dict[str, AgentKind] = {
    "bqfd": AgentKind("BQfD", BqfdConfig, bqfd.make_agent),
    "ensemble_bqfd": AgentKind("ensemble BQfD", EnsembleBqfdConfig, bqfd.make_agent),
    "dqfd": AgentKind("DQfD", DqfdConfig, dqfd.make_agent),
    "dqn": AgentKind("PDD DQN", PddDqnConfig, pdd_dqn.make_agent),
    "bootstrapped": AgentKind("Bootstrapped DQN", BootstrappedConfig, bootstrapped.make_agent),
    "clone": AgentKind("behavioural cloning", CloneConfig, clone.make_agent),
}


def agent_config(
    preset: PresetName, agent: AgentName, *, steps: int | None = None, game: str | None = None
) -> AnyAgentConfig:
    """Hyper-parameters of an agent.

    Args:
      preset: which set.
      agent: a key of `AGENTS`.
      steps: length of the training in agent steps; `small` and `minatar` stretch their exploration
        over a part of it, the other presets do not depend on it.
      game: name of an Atari game; only `paper` looks at it.
    """
    checks.one_of(AGENTS, agent=agent)
    checks.one_of(_OPTIONS, preset=preset)
    if agent == "clone":
        return CloneConfig(**(_ATARI_CLONE if preset in _FOR_ATARI else {}))
    return AGENTS[agent].config(**_OPTIONS[preset](agent, steps, game))


def run_options(
    preset: PresetName, *, game: str | None = None, agent: AgentName = "bqfd"
) -> dict[str, Any]:
    """Options of a run in which a preset differs from the defaults of a run's config.

    Those defaults suit a small machine, so only `100k`, `paper` and `accelerator` differ; how long
    `paper` trains depends on the Atari game.  A clone takes no steps, so its periods are counted in
    updates; in Atari games it draws its actions, because nothing has taught it to leave a place
    where its likeliest action leads nowhere.
    """
    checks.one_of(_OPTIONS, preset=preset)
    options: dict[str, Any] = {}
    if preset == "paper":
        options = _PAPER_RUN | {"steps": PAPER_STEPS.get(game, 100_000_000)}
    if preset in _OFTEN_RUN:
        options = dict(_OFTEN_RUN[preset])
    if agent == "clone":
        options |= {"steps": 0, "log_period": 200, "checkpoint_period": 1_000}
        if preset in _FOR_ATARI:
            options |= _ATARI_CLONE_RUN
    return options


# Where episodes are long and updates few, half of the data is too little for a member, and what
# members disagree about grows with the values (BUILD_NOTES, 128).
_WHOLE_DATA = {"mask_probability": 1.0, "weight": "smaller"}

# --- Atari; rewards are logarithmic, which brings games closer together, but not to one scale ---

# Games begin alike, so a clone does best that knows its demonstration by heart: what foretells
# held-out rows best, and what shifted images teach, plays worse (BUILD_NOTES, 93).
# Where one action is nearly always right, as in Freeway, larger steps teach it nothing else.
_ATARI_CLONE = {"held_out_every": 0, "shift": 0, "updates": 12_000, "learning_rate": 2e-4}
_ATARI_CLONE_RUN = {
    "eval_temperature": 0.5,
    "torso": "overlap",
    "hidden": 256,
    "layer_norm": False,
    "zero_values": False,
}

_ATARI = {"adam_epsilon": 1.5e-4, "huber_delta": 1.0, "priority_exponent": 0.6}

_LAPTOP = _ATARI | {
    # Where single actions change little, as in Freeway, gradients are no larger than the usual
    # 1.5e-4 (BUILD_NOTES, 41).
    "adam_epsilon": 1e-6,
    "learning_rate": 3e-4,
    "batch_size": 64,
    # One lookahead instead of two: a third less to compute.
    "one_step_weight": 0.0,
    "n_step_weight": 1.0,
    "n_step": 3,
    "target_period": 1,
    "target_step_size": 0.005,
    "pretrain_updates": 1_000,
    "epsilon_steps": (0, 50_000),
    "epsilon_values": (0.1, 0.01),
    "act_with_target": True,
    # Values of MsPacman are twenty times those of Freeway: one step size and one Huber delta suit
    # both only after this.
    "squash_values": True,
}
_LAPTOP_BQFD = {
    # In MsPacman about as much as an eta of 3 and a variance of 0.2; in Freeway, where a step adds
    # a tenth of that to a squashed value, an eta of 30 and a variance of 0.002 (BUILD_NOTES, 133).
    "in_steps": True,
    "eta": 0.12,
    "variance": 125.0,
    "weight_from_target": False,
    "correct_all_actions": True,
    "demo_priority_steps": (0, 40_000),
    "demo_priority_factors": (1.0, 0.25),
}
_LAPTOP_OWN = {
    "bqfd": _LAPTOP_BQFD,
    "ensemble_bqfd": _LAPTOP_BQFD | _WHOLE_DATA,
    "dqfd": {},
    "dqn": {
        "exploration": "ez",
        "epsilon_steps": (2_000, 50_000),
        "epsilon_values": (1.0, 0.01),
    },
    "bootstrapped": {"ensemble_size": 5},
}


def _laptop(agent: str, steps: int | None, game: str | None) -> dict[str, Any]:
    del steps, game
    return _LAPTOP | _LAPTOP_OWN[agent]


# Whoever learns many times from few steps begins partly anew now and then, and looks less and less
# far ahead, as in Bigger, Better, Faster (BUILD_NOTES, 129 to 131).
_OFTEN = {
    "batch_size": 32,
    "n_step": 10,
    "n_step_final": 3,
    "n_step_updates": 10_000,
    "reset_period": 20_000,
    "reset_share": 0.5,
}
_FEW_STEPS = {
    "steps": 100_000,
    "envs": 8,
    "update_period": 0.5,
    "learning_starts": 1_000,
    "eval_period": 20_000,
    "final_steps": 20_000,
    "checkpoint_period": 20_000,
    "log_period": 1_000,
}
_OFTEN_RUN = {
    "100k": _FEW_STEPS | {"torso": "overlap"},
    "accelerator": _FEW_STEPS | {"torso": "impala"},
}
# Eight times as many rows are drawn per step as in `laptop`: the expert is listened to for as many
# steps.
_OFTEN_BQFD = {"visits_per_draw": 1 / 8}


def _often(agent: str, steps: int | None, game: str | None) -> dict[str, Any]:
    own = _OFTEN_BQFD if agent in ("bqfd", "ensemble_bqfd") else {}
    return _laptop(agent, steps, game) | _OFTEN | own


_PAPER = _ATARI | {
    "learning_rate": 6.25e-5,
    # 10,000 agent steps.
    "target_period": 2_500,
    "target_step_size": 1.0,
    "pretrain_updates": 5_000,
}
_PAPER_BQFD = {
    "learning_rate": 5.5e-5,
    "variance": 22.0,
    "demo_priority_steps": (5_000_000, 120_000_000),
    "demo_priority_factors": (2.0, 0.05),
}
_PAPER_OWN = {
    "bqfd": _PAPER_BQFD,
    "ensemble_bqfd": _PAPER_BQFD,
    "dqfd": {
        "pretrain_updates": 750_000,
        "priority_exponent": 0.4,
        "importance_exponent": 0.6,
        "epsilon_steps": (0,),
        "epsilon_values": (0.01,),
        "target_period": 10_000,
    },
    "dqn": {"exploration": "ez"},
    "bootstrapped": {},
}
# Agent steps of the paper's Table 1.
PAPER_STEPS = {
    "Breakout": 91_000_000,
    "ChopperCommand": 63_000_000,
    "Freeway": 23_000_000,
    "MsPacman": 76_000_000,
    "Seaquest": 96_000_000,
    "VideoPinball": 116_000_000,
}
_PAPER_RUN = {
    "envs": 8,
    "update_period": 4,
    "torso": "nature",
    "hidden": 512,
    "layer_norm": False,
    "zero_values": False,
    "learning_starts": 0,
    "replay_rows": 1_000_000,
    "eval_period": 250_000,
    "eval_episodes": 30,
    # The half hour of play after which the Atari environments cut an episode.
    "eval_max_steps": 27_000,
    "eval_target": False,
    "fire_after": 0,
    "final_steps": 2_000_000,
    "checkpoint_period": 1_000_000,
    "log_period": 10_000,
}


def _paper(agent: str, steps: int | None, game: str | None) -> dict[str, Any]:
    del steps
    if game == "MsPacman":
        epsilon = {
            "epsilon_steps": (0, 1_000_000, 50_000_000),
            "epsilon_values": (1.0, 0.1, 0.01),
        }
    else:
        epsilon = {"epsilon_steps": (0,), "epsilon_values": (0.001,)}
    return _PAPER | epsilon | _PAPER_OWN[agent]


# --- Small environments: a few numbers or a small image, and rewards that are not scaled ---

_SMALL = {
    "learning_rate": 5e-4,
    "batch_size": 64,
    "gamma": 0.99,
    "target_period": 1,
    "target_step_size": 0.01,
    "one_step_weight": 1.0,
    "n_step_weight": 1.0,
    "n_step": 5,
    # Values here are often in the hundreds: from errors cut at 1 they would be learnt slowly.
    "huber_delta": 10.0,
    "priority_exponent": 0.4,
    "importance_exponent": 0.6,
}
_SMALL_BQFD = {"pretrain_updates": 1_000, "correct_all_actions": True}
_SMALL_OWN = {
    "bqfd": _SMALL_BQFD,
    "ensemble_bqfd": _SMALL_BQFD | _WHOLE_DATA,
    "dqfd": {"pretrain_updates": 1_000},
    "dqn": {},
    "bootstrapped": {"ensemble_size": 5},
}


def _small(agent: str, steps: int | None, game: str | None) -> dict[str, Any]:
    del game
    if steps is None:
        raise ValueError("steps is None, but the preset needs the length of the training")
    # All agents but the ensemble, which explores by itself, begin at random: who has seen only a
    # demonstration does not know what else there is, and a demonstration may be bad.
    epsilon = {"epsilon_steps": (0, max(steps // 5, 1)), "epsilon_values": (1.0, 0.02)}
    return _SMALL | _SMALL_OWN[agent] | ({} if agent == "bootstrapped" else epsilon)


# --- DeepSea: one set per agent for all cases and sizes ---

_DEEP_SEA_OWN = {
    "bqfd": {},
    "ensemble_bqfd": {},
    "dqfd": {},
    "dqn": {
        "exploration": "ez",
        "epsilon_steps": (300, 1_000),
        "epsilon_values": (1.0, 0.0),
    },
    "bootstrapped": {},
}


def _deep_sea(agent: str, steps: int | None, game: str | None) -> dict[str, Any]:
    del steps, game
    return _DEEP_SEA_OWN[agent]


# --- MinAtar: rewards are 0 and 1, or a few at once in Seaquest ---

_MINATAR = {
    "learning_rate": 5e-4,
    "batch_size": 32,
    "gamma": 0.99,
    "target_period": 1,
    "target_step_size": 0.01,
    # One lookahead instead of two: a third less to compute.
    "one_step_weight": 0.0,
    "n_step_weight": 1.0,
    "n_step": 5,
    "huber_delta": 1.0,
    "priority_exponent": 0.4,
    "importance_exponent": 0.6,
}
_MINATAR_BQFD = {"pretrain_updates": 1_000, "correct_all_actions": True}
_MINATAR_OWN = {
    "bqfd": _MINATAR_BQFD,
    "ensemble_bqfd": _MINATAR_BQFD | _WHOLE_DATA,
    # With 1 it never gets away from a bad demonstration.
    "dqfd": {"pretrain_updates": 1_000, "margin_weight": 0.3},
    "dqn": {},
    "bootstrapped": {"ensemble_size": 5},
}


def _minatar(agent: str, steps: int | None, game: str | None) -> dict[str, Any]:
    return _small(agent, steps, game) | _MINATAR | _MINATAR_OWN[agent]


_OPTIONS: dict[str, Callable[[str, int | None, str | None], dict[str, Any]]] = {
    "laptop": _laptop,
    "100k": _often,
    "paper": _paper,
    # What an accelerator adds is in the run's options: a larger network.
    "accelerator": _often,
    "small": _small,
    "deep_sea": _deep_sea,
    "minatar": _minatar,
}
