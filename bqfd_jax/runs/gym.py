"""Runs on gymnasium environments, and on those that somebody brings along."""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from bqfd_jax import checks, demos, extras
from bqfd_jax.agents import presets
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.envs.pools import Pool
from bqfd_jax.networks import for_observation
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.worlds import MadeNetwork, film_trouble, kept_paths
from bqfd_jax.streams import EnvStream
from bqfd_jax.types import HostEnvironment


@dataclasses.dataclass(frozen=True)
class GymConfig(RunConfig):
    """A gymnasium environment, demonstrations of it, and an agent that learns from both.

    All steps are agent steps, counted over all environments that run side by side.
    """

    experiment: ClassVar[str] = "gym"
    named_demonstrations: ClassVar[tuple[str, ...]] = ("none", "given", "make")

    env: str = "CartPole-v1"
    """Id of the environment, with the module that registers it if it is not gymnasium's own:
    `minigrid:MiniGrid-Empty-5x5-v0`. Discrete actions; observations that are vectors or images."""
    demo: tuple[str, ...] = ("make",)
    """The demonstrations: files (see `python -m experiments.demos`), `none`, or `make` for one that
    is made first, of the quality below."""
    demo_quality: Literal["mediocre", "bad", "none"] = "mediocre"
    """What `--demo make` makes: `mediocre` plays about half as well as possible (by a script for
    CartPole, Acrobot, MountainCar and LunarLander, by briefly trained DQN elsewhere); `bad` does
    nearly always the same; `none` is the same as `--demo none`."""
    demo_steps: int = 2_000
    """Agent steps of a demonstration that is made here, at least."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around each environment, innermost first, as module:name, e.g.
    `minigrid.wrappers:ImgObsWrapper`."""
    stack: int = 1
    """Frames per observation."""

    @property
    def title(self) -> str:
        """The environment."""
        return self.env

    @property
    def preset_name(self) -> str:
        """There is one."""
        return "small"

    @property
    def shows_demonstrations(self) -> bool:
        """Whether there will be any."""
        made_none = self.demo == ("make",) and self.demo_quality == "none"
        return super().shows_demonstrations and not made_none

    @property
    def foreign_modules(self) -> tuple[str, ...]:
        """Of the environment and its wrappers."""
        named = [name.rpartition(":")[0] for name in (self.env, *self.wrappers)]
        return tuple(dict.fromkeys(module for module in named if module))

    @classmethod
    def of(cls, steps: int = 50_000, agent: str = "bqfd") -> Self:
        """All defaults for an agent and a run of that length, which for a clone is always 0."""
        agents = {
            name: presets.agent_config("small", name, steps=max(steps, 1))
            for name in presets.AGENTS
        }
        options = {"steps": steps} | presets.run_options("small", agent=agent)
        return cls(agent=agent, **options, **agents)

    @classmethod
    def defaults_for(cls, fields: dict[str, Any]) -> Self:
        """Those of the length and the agent."""
        return cls.of(fields["steps"], fields["agent"])

    def check_options(self) -> None:
        """As for all runs, and what only these have."""
        super().check_options()
        checks.at_least(1, stack=self.stack, demo_steps=self.demo_steps)
        if "make" in self.demo and len(self.demo) > 1:
            raise UsageError("--demo make stands alone; name files, or make one")
        load_wrappers(self.wrappers)


class GymWorld:
    """Environments of gymnasium's, by an id or by a function that makes one.

    Args:
      config: of the run.
      env: a function that makes an environment; the config's id unless given.
    """

    film_scale = 1

    def __init__(self, config: GymConfig, env: Callable[[], Any] | None = None):
        self._config = config
        self._env = config.env if env is None else env

    @property
    def fps(self) -> float:
        """Pictures per second, as the environment says."""
        return self.example().fps

    def example(self) -> GymVector:
        """A single environment."""
        return self.make(1, EnvStream.TRAINING)

    def training(
        self,
        resumed_at: int = 0,
        seeds: Sequence[int] | None = None,
        shown: Sequence[demos.Demonstration] = (),
    ) -> HostEnvironment:
        """The environments that are trained on."""
        if seeds is None:
            return self.make(self._config.envs, EnvStream.TRAINING, resumed_at=resumed_at)
        # Batched forms of an environment have a single generator, so each seed needs its own.
        configs = [dataclasses.replace(self._config, seed=seed) for seed in seeds]
        return Pool([GymWorld(config, self._env).training(resumed_at) for config in configs])

    def evaluation(self, *, film: bool = False) -> GymVector:
        """Environments that nobody learns from."""
        if film:
            return self.make(1, EnvStream.FILM, render=True)
        return self.make(self._config.eval_episodes, EnvStream.EVALUATION)

    def make_network(self, env: HostEnvironment) -> MadeNetwork:
        """Dense layers for vectors, convolutions for images, of the config's width."""
        made_with = {"hidden": self._config.hidden, "torso_dtype": self._config.torso_dtype}
        network = for_observation(
            tuple(env.frame_shape),
            env.frame_dtype,
            env.num_actions,
            stack=self._config.stack,
            **made_with,
        )
        return MadeNetwork(network, made_with)

    def no_film(self) -> str | None:
        """Some environments cannot be rendered."""
        return film_trouble(lambda: self.evaluation(film=True))

    def load_demonstrations(self, folder: Path | None) -> Sequence[demos.Demonstration]:
        """From their files; what was made or given for a run lies in its folder."""
        names: Sequence[str | Path] = self._config.demo
        if not self._config.shows_demonstrations:
            return ()
        if names in (("make",), ("given",)):
            names = [] if folder is None else kept_paths(folder)
            if not names:
                raise UsageError(f"--demo {self._config.demo[0]}: there is none in {folder}")
        return [_load(name) for name in names]

    def make(self, lanes: int, stream: EnvStream, **options: Any) -> GymVector:
        """Environments side by side; raises `UsageError` if they cannot be made or learnt."""
        config = self._config
        if self._env == config.env and config.env.startswith("<"):
            raise UsageError(
                f"the run was trained in {config.env}, which was given to bqfd_jax.train: only "
                "train(..., out=..., resume=True) with the same environment can go on"
            )
        try:
            return GymVector(
                self._env,
                lanes,
                seed=config.seed,
                stream=stream,
                wrappers=load_wrappers(config.wrappers),
                **options,
            )
        except (ValueError, ImportError) as error:
            raise UsageError(f"--env {config.env}: {error}") from error


class GivenWorld(GymWorld):
    """Environments that are there already.

    Args:
      config: of the run.
      env: what is trained on.
      eval_env: what nobody learns from; without it there are no evaluations.
    """

    fps = 30.0

    def __init__(
        self, config: GymConfig, env: HostEnvironment, eval_env: HostEnvironment | None = None
    ):
        super().__init__(config)
        self._given, self._eval_env = env, eval_env

    def example(self) -> HostEnvironment:
        """What is trained on."""
        return self._given

    def training(
        self,
        resumed_at: int = 0,
        seeds: Sequence[int] | None = None,
        shown: Sequence[demos.Demonstration] = (),
    ) -> HostEnvironment:
        """The same, wherever it stands: only its maker could seed it anew."""
        del resumed_at, seeds
        return self._given

    def evaluation(self, *, film: bool = False) -> HostEnvironment | None:
        """What was given for it."""
        return None if film else self._eval_env

    def no_film(self) -> str:
        """It may have pictures, but only its maker knows how to get them."""
        return "it was not made here"


def _load(name: str | Path) -> demos.Demonstration:
    try:
        return demos.load(name)
    except FileNotFoundError as error:
        raise UsageError(f"--demo {name}: {error}; it must be make, none or a file") from error
    except demos.DemonstrationError as error:
        raise UsageError(f"--demo {name}: {error}") from error


def load_wrappers(names: Sequence[str]) -> list[Callable[[Any], Any]]:
    """What `--wrappers` names."""
    found = []
    for name in names:
        module, _, attribute = name.partition(":")
        try:
            found.append(getattr(importlib.import_module(module), attribute))
        except ImportError as error:
            raise UsageError(f"--wrappers {name}: {extras.stranger(error)}") from error
        except (AttributeError, ValueError) as error:
            raise UsageError(f"--wrappers {name}: {error}; give module:name") from error
    return found
