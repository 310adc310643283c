"""What can be set in an Atari run, and the two presets."""

import argparse
import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import tyro

from bqfd_jax.agents import AgentConfig, BootstrappedConfig, BqfdConfig, DqfdConfig, PddDqnConfig
from bqfd_jax.envs import atari
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.folder import UsageError
from bqfd_jax.runs.job import check_bounds
from bqfd_jax.types import LearnerState, Params

AgentName = Literal["bqfd", "dqfd", "dqn", "bootstrapped"]
AGENTS: tuple[AgentName, ...] = ("bqfd", "dqfd", "dqn", "bootstrapped")
MAX_REPLAY_ROWS = 1_000_000


@dataclasses.dataclass(frozen=True)
class Config:
    """An Atari game, a demonstration of it, and an agent that learns from both.

    All steps are agent steps: 4 frames of the emulator each, counted over all environments.
    """

    game: str = "Freeway"
    """Which game; any that envpool has. Demonstrations of six of them come with the package:
    Breakout, ChopperCommand, Freeway, MsPacman, Seaquest, VideoPinball."""
    agent: AgentName = "bqfd"
    """Which agent; its hyper-parameters are below, each agent's under its own name."""
    preset: Literal["laptop", "paper"] = "laptop"
    """Where all other defaults come from: `laptop` for 100,000 steps on a CPU, `paper` for the
    paper's numbers and tens of millions of steps on an accelerator."""
    seed: int = 0
    """Decides all chance: networks, draws, exploration, the games' random starts."""
    demo: tuple[str, ...] = ("default",)
    """The demonstrations, one or several: `default` or `strong` from the package, paths of files;
    or `none`."""
    steps: int = 100_000
    """Length of the training, in agent steps."""
    envs: int = 8
    """Games played side by side."""
    update_period: float = 2
    """Agent steps, over all games, per update; less than 1 for several updates per step."""
    learning_starts: int = 1_000
    """Agent steps before the first update (pre-training apart)."""
    replay_rows: int = 0
    """Agent steps that the replay remembers, one row of 84 x 84 bytes each; 0: all of them, at
    most a million."""
    eval_period: int = 20_000
    """Agent steps between evaluations; 0: only one in the end."""
    eval_episodes: int = 10
    """Episodes per evaluation, played side by side."""
    eval_epsilon: float = 0.001
    """Probability of a random action in evaluations."""
    eval_max_steps: int = 4_500
    """Agent steps after which an evaluation episode is cut (900 are a minute of play)."""
    eval_target: bool = True
    """Play evaluations with the target network: where it follows the online network slowly, it is
    an average of the last ones and errs less."""
    final_steps: int = 20_000
    """The final score is that of all evaluations in the last so many agent steps."""
    checkpoint_period: int = 20_000
    """Agent steps between checkpoints."""
    checkpoint_replay: bool = True
    """Save the replay too. Without it checkpoints are small, and a resumed run starts with an
    empty replay and all visit counts at their mean."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints stay."""
    log_period: int = 1_000
    """Agent steps between rows of metrics.jsonl; the other periods are rounded up to these."""
    log_rewards: bool = True
    """Learn from sign(r) log(1 + |r|) instead of the game's reward r. Scores are always r."""
    life_loss_is_terminal: bool = True
    """What comes after a lost life does not count for what comes before."""
    torso: Literal["nature", "patch"] = "patch"
    """What sees the frames: `nature`, the paper's three convolutions, or `patch`, two layers for
    about a quarter of the work."""
    hidden: int = 256
    """Width of the network's value and advantage streams."""
    video: bool = True
    """Film one evaluation episode in the end."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra: pip install 'bqfd-jax[tensorboard]')."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""
    resume: bool = False
    """Continue the run in --out where its last checkpoint stands."""
    bqfd: BqfdConfig = dataclasses.field(default_factory=BqfdConfig)
    """Hyper-parameters of BQfD."""
    dqfd: DqfdConfig = dataclasses.field(default_factory=DqfdConfig)
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = dataclasses.field(default_factory=PddDqnConfig)
    """Hyper-parameters of prioritized dueling double DQN; the demonstration is in its replay."""
    bootstrapped: BootstrappedConfig = dataclasses.field(default_factory=BootstrappedConfig)
    """Hyper-parameters of Bootstrapped DQN; the demonstration is in its replay."""

    def __post_init__(self):
        """One demonstration may be given as it is, as older runs have it in their config.json."""
        if isinstance(self.demo, str):
            object.__setattr__(self, "demo", (self.demo,))
        object.__setattr__(self, "demo", tuple(self.demo))

    @property
    def agent_config(self) -> AgentConfig:
        """The hyper-parameters of the agent that is trained."""
        return getattr(self, self.agent)

    def played_params(self, learner: LearnerState) -> Params:
        """Of the network that plays evaluations."""
        return learner.target_params if self.eval_target else learner.params

    @property
    def pretrain_updates(self) -> int:
        """Updates before the first step; without a demonstration there is nothing to learn from."""
        return 0 if self.demo == ("none",) else self.agent_config.pretrain_updates

    @property
    def rows_per_lane(self) -> int:
        """Rows of the replay per game."""
        wanted = self.replay_rows or min(self.steps, MAX_REPLAY_ROWS)
        # A replay must hold one stack and one n-step return, and a little more to draw from.
        least = self.agent_config.n_step + 16
        return max(math.ceil(wanted / self.envs), least)


# What may differ between a run and its continuation.
_NOT_RESULT = ("out", "resume", "checkpoint_period", "keep_checkpoints", "tensorboard", "video")


def stored(config: Config) -> dict[str, Any]:
    """What `config.json` holds: all that the result depends on."""
    others = tuple(name for name in AGENTS if name != config.agent)
    fields = run_folder.config_dict(config, without=_NOT_RESULT + others)
    named = [_absolute(demo) for demo in config.demo]
    # A single one as older runs have it, so that they can be resumed.
    return fields | {"demo": named[0] if len(named) == 1 else named}


def from_stored(fields: dict[str, Any]) -> Config:
    """The config of a run folder's `config.json`."""
    base = preset(fields["preset"], fields["game"])
    agent = fields["agent"]
    agent_fields = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in fields[agent].items()
    }
    plain = {name: value for name, value in fields.items() if name != agent}
    agent_config = dataclasses.replace(getattr(base, agent), **agent_fields)
    return dataclasses.replace(base, **plain, **{agent: agent_config})


def _absolute(demo: str) -> str:
    return demo if demo in ("default", "strong", "none") else str(Path(demo).absolute())


# --- Presets ---

# On log rewards, and so on the same scale in all games.
_ATARI = {"adam_epsilon": 1.5e-4, "huber_delta": 1.0, "priority_exponent": 0.6}


def preset(name: str, game: str) -> Config:
    """All defaults of a preset; the paper's depend a little on the game."""
    return _paper(game) if name == "paper" else _laptop(game)


def _laptop(game: str) -> Config:
    common = _ATARI | {
        # Where single actions change little, as in Freeway, gradients are no larger than the usual
        # 1.5e-4 (BUILD_NOTES, 41).
        "adam_epsilon": 1e-6,
        "learning_rate": 2e-4,
        # One lookahead instead of two: a third less to compute.
        "one_step_weight": 0.0,
        "n_step_weight": 1.0,
        "n_step": 10,
        "target_period": 1,
        "target_step_size": 0.005,
        "pretrain_updates": 1_000,
        "epsilon_steps": (0, 100_000),
        "epsilon_values": (0.1, 0.02),
    }
    explores = common | {
        "exploration": "ez",
        "epsilon_steps": (1_000, 20_000),
        "epsilon_values": (1.0, 0.01),
    }
    return Config(
        game=game,
        preset="laptop",
        bqfd=BqfdConfig(
            **common,
            variance=0.2,
            weight_from_target=False,
            correct_all_actions=True,
            demo_priority_steps=(0, 40_000),
            demo_priority_factors=(1.0, 0.25),
        ),
        dqfd=DqfdConfig(**common),
        dqn=PddDqnConfig(**explores),
        bootstrapped=BootstrappedConfig(**common, ensemble_size=5),
    )


# Table 1 of the paper: agent steps, and the mean and standard deviation of the evaluation scores
# over the last 2M of them, three seeds; then the score of its one human demonstration.
PAPER_STEPS = {
    "Breakout": 91_000_000,
    "ChopperCommand": 63_000_000,
    "Freeway": 23_000_000,
    "MsPacman": 76_000_000,
    "Seaquest": 96_000_000,
    "VideoPinball": 116_000_000,
}
PAPER_SCORES = {
    "Breakout": {"dqn": (221, 75), "dqfd": (291, 119), "bqfd": (354, 132), "demo": 110},
    "ChopperCommand": {
        "dqn": (4493, 1295),
        "dqfd": (7067, 2403),
        "bqfd": (7377, 2801),
        "demo": 33800,
    },
    "Freeway": {"dqn": (30.4, 0.4), "dqfd": (28.2, 0.8), "bqfd": (29.8, 0.8), "demo": 27},
    "MsPacman": {"dqn": (3628, 725), "dqfd": (4927, 993), "bqfd": (3550, 613), "demo": 30000},
    "Seaquest": {
        "dqn": (20595, 8248),
        "dqfd": (22388, 6294),
        "bqfd": (28546, 11613),
        "demo": 34000,
    },
    "VideoPinball": {
        "dqn": (8619, 12582),
        "dqfd": (17235, 15906),
        "bqfd": (30668, 18772),
        "demo": 82000,
    },
}


def _paper(game: str) -> Config:
    if game == "MsPacman":
        epsilon = {
            "epsilon_steps": (0, 1_000_000, 50_000_000),
            "epsilon_values": (1.0, 0.1, 0.01),
        }
    else:
        epsilon = {"epsilon_steps": (0,), "epsilon_values": (0.001,)}
    common = (
        _ATARI
        | epsilon
        # 10,000 agent steps.
        | {"target_period": 2_500, "target_step_size": 1.0, "pretrain_updates": 5_000}
    )
    baseline = common | {"learning_rate": 6.25e-5}
    dqfd = baseline | {
        "pretrain_updates": 750_000,
        "priority_exponent": 0.4,
        "importance_exponent": 0.6,
        "epsilon_steps": (0,),
        "epsilon_values": (0.01,),
        "target_period": 10_000,
    }
    return Config(
        game=game,
        preset="paper",
        steps=PAPER_STEPS.get(game, 100_000_000),
        update_period=4,
        torso="nature",
        hidden=512,
        learning_starts=0,
        replay_rows=MAX_REPLAY_ROWS,
        eval_period=250_000,
        eval_episodes=30,
        eval_max_steps=atari.MAX_EPISODE_STEPS,
        eval_target=False,
        final_steps=2_000_000,
        checkpoint_period=1_000_000,
        log_period=10_000,
        bqfd=BqfdConfig(
            **common,
            learning_rate=5.5e-5,
            variance=22.0,
            demo_priority_steps=(5_000_000, 120_000_000),
            demo_priority_factors=(2.0, 0.05),
        ),
        dqfd=DqfdConfig(**dqfd),
        dqn=PddDqnConfig(**baseline, exploration="ez"),
        bootstrapped=BootstrappedConfig(**baseline),
    )


# --- The command line ---


def parse(arguments: Sequence[str], description: str) -> Config:
    """The config of a command line; `--preset` and `--game` decide the other options' defaults."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", default="laptop")
    first.add_argument("--game", default=Config.game)
    known, _ = first.parse_known_args(list(arguments))
    default = preset(known.preset, known.game)
    return tyro.cli(
        Config,
        args=list(arguments),
        default=default,
        description=description,
        prog="python -m experiments.atari",
    )


def check(config: Config) -> None:
    """Raises `UsageError` for values that cannot be meant."""
    check_bounds(config, most_lanes=atari.MAX_LANES)
    try:
        atari.check_game(config.game)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
