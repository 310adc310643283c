"""All that a run is made of, before anything has happened."""

import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from bqfd_jax import demos
from bqfd_jax.agents import Agent, make_agent
from bqfd_jax.demos import Demonstration, DemonstrationError
from bqfd_jax.policy import Policy, make_policy
from bqfd_jax.replay import Replay, ReplayState, make_mesh, make_replay, spread_over, with_room
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.machine import check_memory
from bqfd_jax.runs.worlds import MadeNetwork, World
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_host
from bqfd_jax.training.evaluate import Evaluation, OnStep, make_evaluate
from bqfd_jax.types import HostEnvironment, Params, Row


@dataclasses.dataclass(frozen=True)
class Job:
    """A config, and all that comes of it; compiled when first called."""

    config: RunConfig
    world: World
    example: HostEnvironment  # to read shapes from
    made: MadeNetwork
    agent: Agent
    replay: Replay
    trainer: on_host.HostTrainer
    demonstrations: tuple[Demonstration, ...]  # each with a name of its own
    demo_rows: Row | None  # fields [E, ...], of all of them

    def init(self) -> on_host.HostTrainState:
        """The state at the beginning of the run."""
        sizes = None
        if self.demonstrations:
            sizes = np.array(list(demos.sizes(self.demonstrations).values()), np.int32)
        return self.trainer.init(jax.random.key(self.config.seed), self.demo_rows, sizes)

    def fresh_replay(self) -> ReplayState:
        """A replay that holds the demonstrations and nothing else."""
        return self.replay.init(self.demo_rows)

    def make_loop(
        self,
        state: on_host.HostTrainState,
        env: HostEnvironment | None = None,
        trainer: on_host.HostTrainer | None = None,
    ) -> on_host.HostLoop:
        """Training that goes on from a state, by itself or as a group does it."""
        return on_host.HostLoop(
            env or self.world.training(int(state.step), shown=self.demonstrations),
            trainer or self.trainer,
            state,
            update_period=self.config.update_period,
            learning_starts=self.config.learning_starts,
            reset_period=self.config.agent_config.reset_period,
            steps=self.config.steps,
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
            temperature=self.config.eval_temperature,
        )


class Evaluator:
    """Environments that nobody learns from, ready to be played again and again."""

    def __init__(self, job: Job, env: HostEnvironment):
        self._config = job.config
        self._evaluate = make_evaluate(
            job.agent.q_values,
            env,
            stack=job.config.stack,
            epsilon=job.config.eval_epsilon,
            temperature=job.config.eval_temperature,
            max_steps=job.config.eval_max_steps,
        )

    def __call__(self, params: Params, step: int, on_step: OnStep | None = None) -> Evaluation:
        """One episode in every environment, with the network of that agent step."""
        key = jax.random.fold_in(jax.random.key(self._config.seed), KeyStream.EVALUATION)
        return self._evaluate(jax.random.fold_in(key, step), params, on_step)


def replay_for(config: RunConfig, env: HostEnvironment, num_demo_rows: int = 0) -> Replay:
    """The replay of a run, all of it on one device; nothing is allocated."""
    return make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        rows_per_lane=config.rows_per_lane,
        num_lanes=config.envs,
        num_demo_rows=num_demo_rows,
        stack=config.stack,
        row_multiple=config.devices,
        **config.agent_config.replay_options(),
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
    config.check_shown(demonstrations)
    try:
        rows = demos.rows_for(env, demonstrations, gamma=config.agent_config.gamma)
        if rows is not None:
            rows = with_room(rows, config.demo_rows)
        replay = replay_for(config, env, 0 if rows is None else len(rows.action))
        replay = spread_over(replay, make_mesh(config.devices))
        agent = make_agent(made.network, config.agent_config, replay)
    except DemonstrationError:
        raise
    except ValueError as error:
        raise UsageError(f"no such run can be made: {error}") from error
    if allocates:
        check_memory(replay)
    trainer = on_host.make_host_trainer(agent, replay)
    return Job(config, world, env, made, agent, replay, trainer, demonstrations, rows)
