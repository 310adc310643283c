"""Runs on Atari games: their options and their world."""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from bqfd_jax import checks, demos, networks
from bqfd_jax.agents import presets
from bqfd_jax.demos import playback
from bqfd_jax.envs import atari, guard
from bqfd_jax.envs.pools import Pool
from bqfd_jax.envs.starts import DemoStarts
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.worlds import MadeNetwork, kept_paths
from bqfd_jax.streams import DEMO_STARTS, EnvStream
from bqfd_jax.types import HostEnvironment

_PACKAGED = demos.NAMES
# What runs did before there were these options, which presets have set since.
_BEFORE = {"fire_after": 0, "layer_norm": False, "zero_values": False}
_BEFORE_OF_AGENTS = {
    "reset_period": 0,
    "n_step_final": 0,
    "act_with_target": False,
    "squash_values": False,
}
_BEFORE_OF_ONE = {"bqfd": {"in_steps": False}, "ensemble_bqfd": {"in_steps": False}}


@dataclasses.dataclass(frozen=True)
class AtariConfig(RunConfig):
    """An Atari game, a demonstration of it, and an agent that learns from both.

    All steps are agent steps: 4 frames of the emulator each, counted over all games.
    """

    experiment: ClassVar[str] = "atari"
    named_demonstrations: ClassVar[tuple[str, ...]] = ("none", "given", *_PACKAGED)
    max_lanes: ClassVar[int] = atari.MAX_LANES
    stack: ClassVar[int] = 4

    game: str = "Freeway"
    """Which game; any that envpool has. Demonstrations of six of them come with the package:
    Breakout, ChopperCommand, Freeway, MsPacman, Seaquest, VideoPinball."""
    preset: Literal["laptop", "100k", "paper", "accelerator"] = "laptop"
    """Where all other defaults come from: `laptop` for a CPU, `100k` for more learning from exactly
    100,000 steps, `accelerator` for that with a large network, `paper` for the paper's numbers."""
    demo: tuple[str, ...] = ("default",)
    """The demonstrations, one or several: `default`, `strong`, `weak` or `search` from the package,
    paths of files; or `none`."""
    steps: int = 400_000
    envs: int = 32
    update_period: float = 8
    learning_starts: int = 2_000
    eval_period: int = 40_000
    eval_epsilon: float = 0.001
    eval_max_steps: int = 4_500
    """Agent steps after which an evaluation episode is cut (900 are a minute of play)."""
    final_steps: int = 40_000
    checkpoint_period: int = 100_000
    log_period: int = 2_000
    log_rewards: bool = True
    """Learn from sign(r) log(1 + |r|) instead of the game's reward r. Scores are always r."""
    life_loss_is_terminal: bool = True
    """What comes after a lost life does not count for what comes before."""
    fire_after: int = guard.FIRE_AFTER
    """Press FIRE in a game that shows the same for so many steps; 0: never."""
    demo_starts: float = 0.0
    """Share of training games that begin at a random point of a demonstration."""
    torso: Literal["nature", "patch", "overlap", "impala"] = "patch"
    """What sees the frames: `nature`, the paper's three convolutions; for about a quarter of the
    work `patch`, two layers, or `overlap`, three small ones that see where small things are. On an
    accelerator `impala`, fifteen layers."""
    torso_width: int = 4
    """Features of `impala`'s layers, as a multiple of IMPALA's own."""
    hidden: int = 256
    layer_norm: bool = True
    """Standardise the value and advantage streams before their ReLU."""
    zero_values: bool = True
    """All values begin at 0, and not at what a new network happens to say. Not for Bootstrapped
    DQN, whose networks must differ."""

    @property
    def title(self) -> str:
        """The game."""
        return self.game

    @property
    def preset_name(self) -> str:
        """The one that was chosen."""
        return self.preset

    @classmethod
    def of(cls, preset: str = "laptop", game: str = "Freeway", agent: str = "bqfd") -> Self:
        """All defaults of a preset and an agent; the paper's depend a little on the game."""
        agents = {name: presets.agent_config(preset, name, game=game) for name in presets.AGENTS}
        options = presets.run_options(preset, game=game, agent=agent)
        return cls(game=game, preset=preset, agent=agent, **options, **agents)

    @classmethod
    def defaults_for(cls, fields: dict[str, Any]) -> Self:
        """Those of the preset, the game and the agent."""
        return cls.of(fields["preset"], fields["game"], fields["agent"])

    @classmethod
    def from_stored(cls, fields: dict[str, Any]) -> Self:
        """A run that was begun before there was some option goes on without it."""
        agent = fields["agent"]
        if agent in fields and agent != "clone":
            before = _BEFORE_OF_AGENTS | _BEFORE_OF_ONE.get(agent, {})
            fields = fields | {agent: before | fields[agent]}
        return super().from_stored(_BEFORE | fields)

    def check_options(self) -> None:
        """As for all runs, and whether there is such a game."""
        super().check_options()
        checks.at_least(0, fire_after=self.fire_after)
        checks.at_least(1, torso_width=self.torso_width)
        checks.within(0, 1, demo_starts=self.demo_starts)
        if self.demo_starts and not self.shows_demonstrations:
            raise UsageError(
                f"--demo-starts is {self.demo_starts}, but there is no demonstration to begin in: "
                "name one (--demo)"
            )
        checks.one_of(tuple(networks.ATARI_TORSOS), torso=self.torso)
        try:
            atari.check_game(self.game)
        except (ValueError, ImportError) as error:
            raise UsageError(str(error)) from error

    def check_shown(self, demonstrations: Sequence[demos.Demonstration]) -> None:
        """Games can begin in lists of actions alone."""
        for demonstration in demonstrations if self.demo_starts else ():
            if not isinstance(demonstration, demos.ActionDemonstration):
                raise UsageError(
                    f"--demo-starts is {self.demo_starts}, but {demonstration.name!r} was recorded "
                    "as frames, up to which no emulator can play: show lists of actions, such as "
                    "`default` or what `bqfd demos` makes, or leave --demo-starts at 0"
                )


class AtariWorld:
    """Games by envpool, as the paper sees them."""

    # 60 frames a second, one of four is seen.
    fps = 15.0
    film_scale = 2

    def __init__(self, config: AtariConfig):
        self._config = config

    def example(self) -> HostEnvironment:
        """A single game, with the rewards that are learnt from."""
        return self._make(1, EnvStream.TRAINING)

    def training(
        self,
        resumed_at: int = 0,
        seeds: Sequence[int] | None = None,
        shown: Sequence[demos.Demonstration] = (),
    ) -> HostEnvironment:
        """The games that are trained on, those of all seeds in one pool."""
        lanes, seed = self._config.envs, self._config.seed
        if self._config.demo_starts and shown:
            places = [(own, lane) for own in seeds or [seed] for lane in range(lanes)]
            return Pool([self._lane(*place, resumed_at, shown) for place in places])
        if seeds is not None:
            lanes, seed = lanes * len(seeds), tuple(seeds)
        return self._make(lanes, EnvStream.TRAINING, seed=seed, resumed_at=resumed_at)

    def evaluation(self, *, film: bool = False) -> HostEnvironment:
        """Games that nobody learns from; episodes are whole games."""
        config = self._config
        return atari.Atari(
            config.game,
            num_lanes=1 if film else config.eval_episodes,
            seed=config.seed,
            stream=EnvStream.FILM if film else EnvStream.EVALUATION,
            life_loss_is_terminal=False,
            max_episode_steps=config.eval_max_steps,
            fire_after=config.fire_after,
            render=film,
        )

    def make_network(self, env: HostEnvironment) -> MadeNetwork:
        """The paper's network, or the smaller one."""
        names = ["torso", "hidden", "torso_dtype", "layer_norm"]
        names += ["torso_width"] if self._config.torso == "impala" else []
        made_with = {name: getattr(self._config, name) for name in names}
        # Only a new network's: a policy file need not tell.
        zero_values = self._config.zero_values and self._config.agent != "bootstrapped"
        network = networks.atari_network(env.num_actions, **made_with, zero_values=zero_values)
        return MadeNetwork(network, made_with)

    def no_film(self) -> None:
        """Every game can be filmed."""

    def load_demonstrations(self, folder: Path | None) -> Sequence[demos.Demonstration]:
        """Those of the package by name, others from their files."""
        config = self._config
        if not config.shows_demonstrations:
            return ()
        given = folder is not None and config.demo == ("given",)
        return [self._load(demo) for demo in (kept_paths(folder) if given else config.demo)]

    def _load(self, demo: str | Path) -> demos.Demonstration:
        try:
            if demo in _PACKAGED:
                return demos.load_named(self._config.game, demo)
            return demos.load(demo, game=self._config.game)
        except FileNotFoundError as error:
            raise UsageError(
                f"--demo {demo}: {error}; it must be {', '.join(_PACKAGED)}, none or a file"
            ) from error
        except demos.DemonstrationError as error:
            raise UsageError(f"--demo {demo}: {error}") from error

    def _lane(
        self, seed: int, lane: int, resumed_at: int, shown: Sequence[demos.ActionDemonstration]
    ) -> DemoStarts:
        """One lane of a run, a share of whose games begins in a demonstration."""
        place = {"seed": seed, "first_lane": lane, "resumed_at": resumed_at, "num_threads": 1}
        return DemoStarts(
            self._make(1, EnvStream.TRAINING, **place),
            functools.partial(playback.new_emulator, shown[0], **self._learnt()),
            [actions for demonstration in shown for actions in demonstration.episodes()],
            self._config.demo_starts,
            np.random.default_rng([seed, DEMO_STARTS, resumed_at, lane]),
        )

    def _learnt(self) -> dict[str, Any]:
        """How games are played and seen that are learnt from."""
        names = ("log_rewards", "life_loss_is_terminal", "fire_after")
        return {name: getattr(self._config, name) for name in names}

    def _make(self, lanes: int, stream: EnvStream, **options: Any) -> atari.Atari:
        config = self._config
        return atari.Atari(
            config.game,
            num_lanes=lanes,
            stream=stream,
            **self._learnt() | {"seed": config.seed} | options,
        )
