"""All that a run is made of, before anything has happened."""

import dataclasses
from collections.abc import Sequence

from bqfd_jax import demos
from bqfd_jax.demos import Demonstration, DemonstrationError
from bqfd_jax.policy import Policy, make_policy
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.machine import check_memory
from bqfd_jax.runs.worlds import MadeNetwork, World
from bqfd_jax.training import on_host
from bqfd_jax.training.setup import HostSetup, make_loop, make_setup
from bqfd_jax.types import HostEnvironment, Params


@dataclasses.dataclass(frozen=True)
class Job:
    """A config, and all that comes of it; compiled when first called."""

    config: RunConfig
    world: World
    example: HostEnvironment  # to read shapes from
    made: MadeNetwork
    setup: HostSetup
    demonstrations: tuple[Demonstration, ...]  # each with a name of its own

    def init(self) -> on_host.HostTrainState:
        """The state at the beginning of the run."""
        return self.setup.init(self.config.seed)

    def make_loop(self, state: on_host.HostTrainState) -> on_host.HostLoop:
        """Training that goes on from a state."""
        return make_loop(
            self.setup,
            self.world.training(resumed_at=int(state.step)),
            state,
            update_period=self.config.update_period,
            learning_starts=self.config.learning_starts,
            # With a small network a call costs as much as an update: acting and learning are one.
            one_call=len(self.example.frame_shape) == 1,
        )

    def policy(self, params: Params) -> Policy:
        """Acts by trained parameters."""
        return make_policy(
            self.example,
            self.made.network,
            self.made.made_with,
            self.config.agent_config,
            params,
            stack=self.config.stack,
        )


def make_job(
    config: RunConfig,
    world: World,
    demonstrations: Sequence[Demonstration] = (),
    *,
    network: MadeNetwork | None = None,
    allocates: bool = True,
) -> Job:
    """Binds demonstrations, network, replay and agent; raises `UsageError` if they do not fit.

    Args:
      config: of the run, checked.
      world: where its environments come from.
      demonstrations: of either kind.
      network: somebody's own; the world's unless given.
      allocates: its replay will be made, and must fit into memory.
    """
    env = world.example()
    made = network or world.make_network(env)
    demonstrations = demos.with_unique_names(demonstrations)
    try:
        rows = demos.rows_for(env, demonstrations, gamma=config.agent_config.gamma)
        setup = make_setup(
            made.network,
            config.agent_config,
            frame_shape=tuple(env.frame_shape),
            frame_dtype=env.frame_dtype,
            num_lanes=config.envs,
            rows_per_lane=config.rows_per_lane,
            stack=config.stack,
            demonstrations=rows,
            sizes=demos.sizes(demonstrations),
        )
    except DemonstrationError:
        raise
    except ValueError as error:
        raise UsageError(f"no such run can be made: {error}") from error
    if allocates:
        check_memory(setup.replay)
    return Job(config, world, env, made, setup, demonstrations)
