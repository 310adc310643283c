"""One run in a MinAtar game: acting, learning and evaluation, compiled once per agent and game."""

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import networks
from bqfd_jax.agents import make_agent
from bqfd_jax.agents.config import AgentConfig
from bqfd_jax.agents.presets import agent_config
from bqfd_jax.demos import FrameDemonstration, frame_rows
from bqfd_jax.envs import minatar
from bqfd_jax.replay import make_replay, with_room
from bqfd_jax.runs.errors import RunError
from bqfd_jax.runs.report import Summary, final_score
from bqfd_jax.training import on_device
from bqfd_jax.training.episodes import Player
from bqfd_jax.types import Array, Params, Row

if TYPE_CHECKING:
    from .minatar import MinatarConfig

# Beyond any number that training splits the run's key into, see `streams.KeyStream`.
_EVALUATION = 2**31


class Programs(NamedTuple):
    """What is compiled for an agent in a game."""

    game: str
    agent: str
    gamma: float
    init: Callable[[Array, Row, Array], on_device.TrainState]  # (key, rows, demo_sizes [1])
    pretrain: Callable[[on_device.TrainState], on_device.TrainState] | None
    run: Callable[[on_device.TrainState], tuple[on_device.TrainState, Array]]  # -> [] bool, finite
    player: Player
    env_params: Any
    num_demo_rows: int
    empty: Row  # fields [0, ...]


def agent_options(config: "MinatarConfig", agent: str) -> AgentConfig:
    """Hyper-parameters: one set for all games."""
    return agent_config("minatar", agent, steps=config.steps)


def make_programs(config: "MinatarConfig", game: str, agent: str) -> Programs:
    """Binds a game, a network and a replay to an agent; nothing is forgotten."""
    env, env_params = minatar.make(game), minatar.default_params(game)
    options = agent_options(config, agent)
    # As much for all demonstrations and for none, so that one program serves them: even where
    # every fourth step ends an episode, there is room for the frames at their ends.
    num_demo_rows = config.demo_steps + config.demo_steps // 4
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_demo_rows=num_demo_rows,
        num_lanes=config.lanes,
        rows_per_lane=config.steps // config.lanes + options.n_step + 2,
        **options.replay_options(),
    )
    network = networks.grid_network(env.num_actions, width=config.width)
    made = make_agent(network, options, replay)
    trainer = on_device.make_trainer(env, made, replay, update_period=config.update_period)

    def init(key: Array, rows: Row, demo_sizes: Array) -> on_device.TrainState:
        return trainer.init(key, env_params, rows, demo_sizes)

    def run(state: on_device.TrainState) -> tuple[on_device.TrainState, Array]:
        iterations = config.steps // config.evaluations // config.update_period
        state, trace = trainer.run(state, env_params, iterations)
        return state, jnp.isfinite(trace.metrics["loss"]).all()

    pretrain = functools.partial(trainer.pretrain, num_updates=options.pretrain_updates)
    shape, dtype = env.frame_shape, env.frame_dtype
    return Programs(
        game=game,
        agent=agent,
        gamma=made.gamma,
        init=jax.jit(init),
        pretrain=jax.jit(lambda state: pretrain(state)[0], donate_argnums=0)
        if options.pretrain_updates
        else None,
        run=jax.jit(run, donate_argnums=0),
        player=Player(env, made.q_values, config.eval_episodes),
        env_params=env_params,
        num_demo_rows=num_demo_rows,
        empty=Row(
            frame=np.zeros((0, *shape), dtype),
            action=np.zeros(0, np.int32),
            reward=np.zeros(0, np.float32),
            discount=np.zeros(0, np.float32),
            is_first=np.zeros(0, bool),
            is_last=np.zeros(0, bool),
        ),
    )


def begin(programs: Programs, seed: int, demo: FrameDemonstration | None) -> on_device.TrainState:
    """A run before its first step, pre-trained if there is a demonstration."""
    rows = programs.empty
    if demo is not None:
        rows = frame_rows(
            demo, gamma=programs.gamma, log_rewards=False, life_loss_is_terminal=False
        )
    sizes = np.array([len(rows.action)])
    state = programs.init(
        jax.random.key(seed), with_room(rows, programs.num_demo_rows), jnp.asarray(sizes)
    )
    return programs.pretrain(state) if programs.pretrain and demo is not None else state


def advance(programs: Programs, state: on_device.TrainState, seed: int) -> on_device.TrainState:
    """Steps and updates up to the next evaluation."""
    state, finite = programs.run(state)
    if not finite:
        raise RunError(
            f"the loss of {programs.agent} became infinite or NaN ({programs.game}, seed {seed}); "
            "its run was not saved"
        )
    return state


def evaluate(programs: Programs, params: Params, seed: int, step: int) -> dict[str, float | int]:
    """An episode per lane by the greedy policy, in chances that training does not have."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _EVALUATION), step)
    returns = programs.player.returns(key, params, programs.env_params)
    mean, std = float(returns.mean()), float(returns.std())
    return {"step": step, "mean": mean, "std": std, "episodes": len(returns)}


def train(
    config: "MinatarConfig", programs: Programs, seed: int, demo: FrameDemonstration | None
) -> Summary:
    """A whole run."""
    started = time.perf_counter()
    state = begin(programs, seed, demo)
    found = [evaluate(programs, state.learner.params, seed, 0)]
    for _ in range(config.evaluations):
        state = advance(programs, state, seed)
        found.append(evaluate(programs, state.learner.params, seed, int(state.step)))
    return {
        "game": programs.game,
        "agent": programs.agent,
        "seed": seed,
        "steps": config.steps,
        "seconds": round(time.perf_counter() - started, 1),
        "demo": None if demo is None else {"name": demo.name, "score": demo.origin["score"]},
        "evaluations": found,
        "final": final_score(found, config.steps, max(config.steps // 5, 1)),
    }
