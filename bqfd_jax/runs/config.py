"""What can be set in a run: the options that runs of every kind share."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from bqfd_jax import checks, networks
from bqfd_jax.agents.config import (
    AnyAgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    CloneConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
)
from bqfd_jax.agents.presets import AGENTS, AgentName
from bqfd_jax.demos import Demonstration
from bqfd_jax.replay import make_mesh
from bqfd_jax.runs import stored
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.mirrors import WandbMode, check_trackers
from bqfd_jax.types import LearnerState, Params

MAX_REPLAY_ROWS = 1_000_000
# What may differ between a run and its continuation.
_NOT_RESULT = (
    "out", "resume", "checkpoint_period", "keep_checkpoints", "tensorboard", "wandb", "video",
    "seeds_per_program", "eval_in_background",
)  # fmt: skip
# Options that a clone, which takes no steps, has no use for.
NOT_FOR_CLONES = (
    "steps", "envs", "update_period", "learning_starts", "replay_rows", "eval_period",
    "eval_target", "final_steps", "checkpoint_replay", "log_rewards", "life_loss_is_terminal",
    "devices", "seeds_per_program", "demo_rows", "demo_starts",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """A run's options; every count is in agent steps, over all environments, unless it says so."""

    experiment: ClassVar[str]  # what `config.json` says the folder is of
    # What `demo` may name besides files; `given` were handed over and lie in the run folder.
    named_demonstrations: ClassVar[tuple[str, ...]] = ("none", "given")
    max_lanes: ClassVar[int] = 1_000
    stack: ClassVar[int] = 1  # frames per observation

    agent: AgentName = "bqfd"
    """Which agent; its hyper-parameters are below, each agent's under its own name."""
    seed: int = 0
    """Decides all chance: networks, draws, exploration, how episodes begin."""
    seeds_per_program: int = 1
    """Train this many seeds in one program, from --seed on: each as in a run alone, with a folder
    of its own below --out. Meant for accelerators, where several small runs cost little more than
    one."""
    demo: tuple[str, ...] = ("none",)
    """The demonstrations: paths of files, or `none`."""
    steps: int = 50_000
    """Length of the training, in agent steps."""
    envs: int = 8
    """Environments side by side."""
    devices: int = 1
    """Devices that share the replay's frames and each batch; a divisor of the batch size."""
    update_period: float = 2
    """Agent steps, over all environments, per update; less than 1 for several updates per step."""
    learning_starts: int = 500
    """Agent steps before the first update (pre-training apart)."""
    replay_rows: int = 0
    """Agent steps that the replay remembers; 0: all of them, at most a million."""
    demo_rows: int = 0
    """Rows that the replay keeps for demonstrations, at least: seeds in one program need as many as
    the longest of their demonstrations. What they leave free is never drawn."""
    eval_period: int = 2_500
    """Agent steps between evaluations; 0: only one in the end."""
    eval_episodes: int = 10
    """Episodes per evaluation, played side by side."""
    eval_epsilon: float = 0.0
    """Probability of a random action in evaluations."""
    eval_temperature: float = 0.0
    """Evaluations draw actions from softmax(values / temperature), as clones do; 0: the best."""
    eval_max_steps: int = 10_000
    """Agent steps after which an evaluation episode is cut, if the environment does not."""
    eval_target: bool = True
    """Play evaluations with the target network: where it follows the online network slowly, it is
    an average of the last ones and errs less."""
    eval_in_background: bool = False
    """Play evaluations in a process beside the training, which need not wait for them, on a CPU. A
    run that was begun so goes on so."""
    final_steps: int = 10_000
    """The final score is that of all evaluations in the last so many agent steps, and at most in
    the last fifth of the training."""
    checkpoint_period: int = 10_000
    """Agent steps, of a clone updates, between checkpoints."""
    checkpoint_replay: bool = True
    """Save the replay too. Without it checkpoints are small, and a resumed run starts with an
    empty replay and all visit counts at their mean."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints stay."""
    log_period: int = 500
    """Agent steps, of a clone updates, between rows of metrics.jsonl; the other periods are rounded
    up to these."""
    hidden: int = 64
    """Width of the network's value and advantage streams (and of dense layers before them)."""
    torso_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the network computes in before those streams; bfloat16 is meant for accelerators.
    Parameters, Q-values and losses are always float32."""
    video: bool = True
    """Film one evaluation episode in the end, if the environment can be rendered."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra `tensorboard`)."""
    wandb: WandbMode = "off"
    """Also tell Weights & Biases (needs the extra `wandb`); `offline` takes neither an account nor
    a network and leaves files in the run folder for `wandb sync`."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""
    resume: bool = False
    """Continue the run in --out where its last checkpoint stands."""
    bqfd: BqfdConfig = dataclasses.field(default_factory=BqfdConfig)
    """Hyper-parameters of BQfD."""
    ensemble_bqfd: EnsembleBqfdConfig = dataclasses.field(default_factory=EnsembleBqfdConfig)
    """Hyper-parameters of ensemble BQfD: an expert weighs as much as its members disagree."""
    dqfd: DqfdConfig = dataclasses.field(default_factory=DqfdConfig)
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = dataclasses.field(default_factory=PddDqnConfig)
    """Hyper-parameters of prioritized dueling double DQN; demonstrations are in its replay."""
    bootstrapped: BootstrappedConfig = dataclasses.field(default_factory=BootstrappedConfig)
    """Hyper-parameters of Bootstrapped DQN; demonstrations are in its replay."""
    clone: CloneConfig = dataclasses.field(default_factory=CloneConfig)
    """Hyper-parameters of behavioural cloning, which learns from demonstrations alone."""

    @property
    def title(self) -> str:
        """Name of the game or environment."""
        raise NotImplementedError

    @property
    def folder_name(self) -> str:
        """How a folder begins that is made for the run."""
        return f"{self.experiment}-{self.title.replace('/', '-').replace(':', '-')}"

    @property
    def preset_name(self) -> str:
        """Which set of defaults the run has."""
        raise NotImplementedError

    @property
    def foreign_modules(self) -> tuple[str, ...]:
        """Modules that must be imported because an option names them."""
        return ()

    @classmethod
    def defaults_for(cls, fields: dict[str, Any]) -> Self:
        """All defaults, given the options that others depend on (a preset, a length)."""
        raise NotImplementedError

    @property
    def agent_config(self) -> AnyAgentConfig:
        """The hyper-parameters of the agent that is trained."""
        return getattr(self, self.agent)

    @property
    def only_copies(self) -> bool:
        """Whether all is learnt from demonstrations, before the first step and without any."""
        return isinstance(self.agent_config, CloneConfig)

    @property
    def shows_demonstrations(self) -> bool:
        """Whether there are any."""
        return self.demo != ("none",)

    @property
    def pretrain_updates(self) -> int:
        """Updates before the first step; without a demonstration there is nothing to learn from."""
        return self.agent_config.pretrain_updates if self.shows_demonstrations else 0

    @property
    def rows_per_lane(self) -> int:
        """Rows of the replay per environment."""
        wanted = self.replay_rows or min(self.steps, MAX_REPLAY_ROWS)
        # A replay must hold one stack and one n-step return, and a little more to draw from.
        least = self.agent_config.n_step + self.stack + 16
        return max(math.ceil(wanted / self.envs), least)

    def played_params(self, learner: LearnerState) -> Params:
        """Of the network that plays evaluations."""
        # A clone's target is its best network.
        target = self.eval_target or self.only_copies
        return learner.target_params if target else learner.params

    def lengthened(self, steps: int) -> Self:
        """The same run with another length; what it remembers keeps its size."""
        return dataclasses.replace(self, steps=steps, replay_rows=self.rows_per_lane * self.envs)

    def stored(self) -> dict[str, Any]:
        """What `config.json` holds: all that the result depends on."""
        others = (name for name in AGENTS if name != self.agent)
        fields = stored.to_fields(self, self.experiment, without=(*_NOT_RESULT, *others))
        known = self.named_demonstrations
        demo = [name if name in known else str(Path(name).absolute()) for name in self.demo]
        return fields | {"demo": demo}

    @classmethod
    def from_stored(cls, fields: dict[str, Any]) -> Self:
        """The config of a run folder's `config.json`; options that it lacks have their defaults."""
        return stored.from_fields(cls.defaults_for(fields), fields)

    @classmethod
    def completed(cls, fields: dict[str, Any]) -> dict[str, Any]:
        """What `config.json` holds, with the defaults of options that it lacks."""
        try:
            return fields | cls.from_stored(fields).stored()
        except (ValueError, KeyError, TypeError):
            # It is no such config; whoever compares it will say where.
            return fields

    def check(self) -> None:
        """Raises `OptionError` or `UsageError` for what cannot be meant, or not be done here."""
        self.check_options()
        if self.devices > 1:
            make_mesh(self.devices)
        check_trackers(tensorboard=self.tensorboard, wandb=self.wandb)

    def check_options(self) -> None:
        """The same for values that cannot be meant, whichever machine the run is for."""
        checks.one_of(tuple(AGENTS), agent=self.agent)
        checks.one_of(networks.TORSO_DTYPES, torso_dtype=self.torso_dtype)
        checks.at_least(
            0,
            **self._values("seed", "learning_starts", "replay_rows", "demo_rows", "eval_period"),
        )
        checks.at_least(
            1,
            **self._values(
                "envs", "eval_episodes", "eval_max_steps", "final_steps",
                "checkpoint_period", "keep_checkpoints", "log_period", "hidden",
                "seeds_per_program",
            ),
        )  # fmt: skip
        self._check_devices()
        checks.at_most(self.max_lanes, eval_episodes=self.eval_episodes)
        checks.at_most(self.max_lanes, seeds_per_program=self.seeds_per_program)
        checks.at_most(self.max_lanes // self.seeds_per_program, envs=self.envs)
        self._check_steps()
        # Steps are counted in 32 bits ...
        checks.at_most(2**31 - 1 - self.envs, steps=self.steps)
        checks.at_most(2**31 - 1, eval_max_steps=self.eval_max_steps)
        # ... and keys are made of 32: beyond them all would be as with a small seed.
        checks.at_most(2**32 - self.seeds_per_program, seed=self.seed)
        checks.within(0.001, 1e6, update_period=self.update_period)
        checks.within(0, 1, eval_epsilon=self.eval_epsilon)
        checks.at_least(0, eval_temperature=self.eval_temperature)
        if self.eval_in_background:
            expected = "1 with evaluations in the background"
            seeds = self.seeds_per_program
            checks.require(seeds == 1, "seeds_per_program", seeds, expected)
        if not self.demo or ("none" in self.demo and len(self.demo) > 1):
            raise checks.OptionError(
                "demo", " ".join(self.demo) or "empty", "demonstrations, or none"
            )
        checks.one_of(("off", "offline", "online"), wandb=self.wandb)

    def check_shown(self, demonstrations: Sequence[Demonstration]) -> None:
        """Raises `UsageError` for demonstrations that the options cannot be used with."""

    def _check_devices(self) -> None:
        batch_size = self.agent_config.batch_size
        expected = f"a divisor of the batch size ({batch_size})"
        checks.at_least(1, devices=self.devices)
        checks.require(batch_size % self.devices == 0, "devices", self.devices, expected)
        if self.devices > 1:
            expected = "1 where a run takes several devices"
            checks.require(
                self.seeds_per_program == 1, "seeds_per_program", self.seeds_per_program, expected
            )

    def _check_steps(self) -> None:
        if not self.only_copies:
            checks.at_least(1, steps=self.steps)
            return
        if not self.shows_demonstrations:
            raise UsageError(
                "a clone learns from demonstrations and from nothing else: name one (--demo), or "
                "train another agent"
            )
        why = "0 with --agent clone, which learns without taking steps; see --clone.updates"
        checks.require(self.steps == 0, "steps", self.steps, why)
        for name in ("devices", "seeds_per_program"):
            value = getattr(self, name)
            checks.require(value == 1, name, value, "1 with --agent clone, which stops by itself")

    def _values(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}
