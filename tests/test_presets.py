"""The table of agents, and hyper-parameters that results were made with: they may not drift."""

import dataclasses

import pytest

from bqfd_jax.agents import (
    BootstrappedConfig,
    BqfdConfig,
    CloneConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
    presets,
)
from bqfd_jax.envs import atari

KINDS = {
    "bqfd": ("BQfD", BqfdConfig),
    "ensemble_bqfd": ("ensemble BQfD", EnsembleBqfdConfig),
    "dqfd": ("DQfD", DqfdConfig),
    "dqn": ("PDD DQN", PddDqnConfig),
    "bootstrapped": ("Bootstrapped DQN", BootstrappedConfig),
    "clone": ("behavioural cloning", CloneConfig),
}
# preset -> agent -> what it changes of the config's own defaults, copied by hand.
ATARI = {"adam_epsilon": 1.5e-4, "huber_delta": 1.0, "priority_exponent": 0.6}
LAPTOP = {
    "adam_epsilon": 1e-6,
    "huber_delta": 1.0,
    "priority_exponent": 0.6,
    "learning_rate": 3e-4,
    "batch_size": 64,
    "one_step_weight": 0.0,
    "n_step_weight": 1.0,
    "n_step": 3,
    "target_period": 1,
    "target_step_size": 0.005,
    "pretrain_updates": 1000,
    "epsilon_steps": (0, 50_000),
    "epsilon_values": (0.1, 0.01),
    "act_with_target": True,
    "squash_values": True,
}
PAPER = ATARI | {
    "learning_rate": 6.25e-5,
    "target_period": 2500,
    "target_step_size": 1.0,
    "pretrain_updates": 5000,
    "epsilon_steps": (0,),
    "epsilon_values": (0.001,),
}
SMALL = {
    "learning_rate": 5e-4,
    "batch_size": 64,
    "gamma": 0.99,
    "target_period": 1,
    "target_step_size": 0.01,
    "one_step_weight": 1.0,
    "n_step_weight": 1.0,
    "n_step": 5,
    "huber_delta": 10.0,
    "priority_exponent": 0.4,
    "importance_exponent": 0.6,
}
SMALL_EPSILON = {"epsilon_steps": (0, 800), "epsilon_values": (1.0, 0.02)}
MINATAR = SMALL | {"batch_size": 32, "one_step_weight": 0.0, "huber_delta": 1.0}
# All rows are learnt by heart.
ATARI_CLONE = {"held_out_every": 0, "shift": 0, "updates": 12_000, "learning_rate": 2e-4}
EXPECTED = {
    "laptop": {
        "clone": ATARI_CLONE,
        "bqfd": LAPTOP
        | {
            "in_steps": True,
            "eta": 0.12,
            "variance": 125.0,
            "weight_from_target": False,
            "correct_all_actions": True,
            "demo_priority_steps": (0, 40_000),
            "demo_priority_factors": (1.0, 0.25),
        },
        "dqfd": LAPTOP,
        "dqn": LAPTOP
        | {"exploration": "ez", "epsilon_steps": (2000, 50_000), "epsilon_values": (1.0, 0.01)},
        "bootstrapped": LAPTOP | {"ensemble_size": 5},
    },
    "paper": {
        "clone": ATARI_CLONE,
        "bqfd": PAPER
        | {
            "learning_rate": 5.5e-5,
            "variance": 22.0,
            "demo_priority_steps": (5_000_000, 120_000_000),
            "demo_priority_factors": (2.0, 0.05),
        },
        "dqfd": PAPER
        | {
            "pretrain_updates": 750_000,
            "priority_exponent": 0.4,
            "importance_exponent": 0.6,
            "epsilon_values": (0.01,),
            "target_period": 10_000,
        },
        "dqn": PAPER | {"exploration": "ez"},
        "bootstrapped": PAPER,
    },
    "small": {
        "bqfd": SMALL | SMALL_EPSILON | {"pretrain_updates": 1000, "correct_all_actions": True},
        "dqfd": SMALL | SMALL_EPSILON | {"pretrain_updates": 1000},
        "dqn": SMALL | SMALL_EPSILON,
        "bootstrapped": SMALL | {"ensemble_size": 5},
    },
    "minatar": {
        "bqfd": MINATAR | SMALL_EPSILON | {"pretrain_updates": 1000, "correct_all_actions": True},
        "dqfd": MINATAR | SMALL_EPSILON | {"pretrain_updates": 1000, "margin_weight": 0.3},
        "dqn": MINATAR | SMALL_EPSILON,
        "bootstrapped": MINATAR | {"ensemble_size": 5},
    },
    "deep_sea": {
        "bqfd": {},
        "dqfd": {},
        "dqn": {"exploration": "ez", "epsilon_steps": (300, 1000), "epsilon_values": (1.0, 0.0)},
        "bootstrapped": {},
    },
}


# Laptop's with resets and a falling n; copies of demonstrations have neither.
OFTEN = {
    "batch_size": 32,
    "n_step": 10,
    "n_step_final": 3,
    "n_step_updates": 10_000,
    "reset_period": 20_000,
    "reset_share": 0.5,
}
EXPECTED["100k"] = {
    agent: options if agent == "clone" else options | OFTEN
    for agent, options in EXPECTED["laptop"].items()
}
EXPECTED["100k"]["bqfd"] |= {"visits_per_draw": 0.125}
EXPECTED["accelerator"] = dict(EXPECTED["100k"])

# Ensemble BQfD has BQfD's hyper-parameters, and of its own only what differs from DeepSea's.
WHOLE_DATA = {"mask_probability": 1.0, "weight": "smaller"}
for preset, of_agents in EXPECTED.items():
    own = {} if preset in ("paper", "deep_sea") else WHOLE_DATA
    of_agents["ensemble_bqfd"] = of_agents["bqfd"] | own


def test_the_table_of_agents():
    assert {name: kind[:2] for name, kind in presets.AGENTS.items()} == KINDS


@pytest.mark.parametrize("preset", EXPECTED)
@pytest.mark.parametrize("agent", KINDS)
def test_every_preset_of_every_agent(preset, agent):
    config = presets.agent_config(preset, agent, steps=4000, game="Seaquest")
    assert config == KINDS[agent][1](**EXPECTED[preset].get(agent, {}))


def test_the_paper_explores_otherwise_in_ms_pacman():
    explores = {"epsilon_steps": (0, 1_000_000, 50_000_000), "epsilon_values": (1.0, 0.1, 0.01)}
    for agent, expected in EXPECTED["paper"].items():
        config = presets.agent_config("paper", agent, game="MsPacman")
        # DQfD keeps the exploration of its own paper, and a clone does not explore.
        changes = {} if agent in ("dqfd", "clone") else explores
        assert config == KINDS[agent][1](**expected | changes)


def test_small_explores_for_a_fifth_of_the_steps():
    assert presets.agent_config("small", "dqn", steps=1000).epsilon_steps == (0, 200)
    assert presets.agent_config("small", "dqn", steps=3).epsilon_steps == (0, 1)
    with pytest.raises(ValueError, match="steps is None"):
        presets.agent_config("small", "dqn")


def test_the_defaults_that_deep_sea_was_run_with():
    config = dataclasses.asdict(presets.agent_config("deep_sea", "bqfd"))
    expected = {"learning_rate": 5e-4, "gamma": 0.99, "n_step_weight": 1.0, "n_step": 10}
    expected |= {"eta": 3.0, "variance": 0.6, "beta": 4.0, "zeta": 0.2, "target_step_size": 0.05}
    assert {name: config[name] for name in expected} == expected


def test_options_of_runs():
    assert presets.run_options("laptop") == presets.run_options("small") == {}
    assert presets.run_options("deep_sea") == {}
    paper = presets.run_options("paper", game="Freeway")
    assert paper == {
        "steps": 23_000_000,
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
        "eval_max_steps": atari.MAX_EPISODE_STEPS,
        "eval_target": False,
        "fire_after": 0,
        "final_steps": 2_000_000,
        "checkpoint_period": 1_000_000,
        "log_period": 10_000,
    }
    assert presets.run_options("paper", game="Pong")["steps"] == 100_000_000
    few_steps = {
        "steps": 100_000,
        "envs": 8,
        "update_period": 0.5,
        "learning_starts": 1_000,
        "eval_period": 20_000,
        "final_steps": 20_000,
        "checkpoint_period": 20_000,
        "log_period": 1_000,
    }
    assert presets.run_options("100k") == few_steps | {"torso": "overlap"}
    accelerator = few_steps | {"torso": "impala"}
    assert presets.run_options("accelerator") == accelerator
    changes = {"steps": 0, "log_period": 200, "checkpoint_period": 1_000}
    assert presets.run_options("small", agent="clone") == changes
    changes |= {"eval_temperature": 0.5, "torso": "overlap", "hidden": 256}
    changes |= {"layer_norm": False, "zero_values": False}
    assert presets.run_options("laptop", agent="clone") == changes
    assert presets.run_options("accelerator", agent="clone") == accelerator | changes
    assert presets.run_options("paper", game="Freeway", agent="clone") == paper | changes


def test_what_was_chosen_for_clones():
    assert dataclasses.asdict(CloneConfig()) == {
        "updates": 4000,
        "patience": 1000,
        "check_period": 100,
        "held_out_every": 7,
        "batch_size": 32,
        "learning_rate": 1e-3,
        "weight_decay": 0.01,
        "max_gradient_norm": 10.0,
        "shift": 4,
    }


def test_what_is_unknown_is_named():
    with pytest.raises(ValueError, match=r"agent is 'ppo', but must be one of bqfd, ens"):
        presets.agent_config("laptop", "ppo")
    with pytest.raises(ValueError, match=r"preset is 'phone', but must be one of laptop, 100k"):
        presets.agent_config("phone", "bqfd")
    with pytest.raises(ValueError, match="preset is 'phone'"):
        presets.run_options("phone")
