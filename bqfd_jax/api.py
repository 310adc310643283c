"""Training in a few lines: an environment, demonstrations, an agent.

`train` is the very loop of `python -m experiments.gym` and `experiments.atari`, in memory or, with
`out`, in a run folder that can be resumed.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax import checks, networks
from bqfd_jax.agents.config import AnyAgentConfig
from bqfd_jax.agents.presets import AGENTS
from bqfd_jax.demos import Demonstration, FrameDemonstration, as_list
from bqfd_jax.demos.importing import from_arrays
from bqfd_jax.playing import as_environment, atari_game, is_recipe
from bqfd_jax.policy import Policy, seen_shape
from bqfd_jax.runs import lockstep, report
from bqfd_jax.runs.atari import AtariConfig, AtariWorld
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.errors import Stopped
from bqfd_jax.runs.gym import GivenWorld, GymConfig, GymWorld
from bqfd_jax.runs.job import make_job
from bqfd_jax.runs.run import opened
from bqfd_jax.runs.sinks import Sink, Terminal, stop_signals
from bqfd_jax.runs.worlds import MadeNetwork, World
from bqfd_jax.training.on_host import HostTrainState

Row = Mapping[str, Any]
Callback = Callable[[Row], bool | None]
# Options that `train` has otherwise, or not at all: for several seeds see `runs.group`.
_SETTLED = {"env", "game", "seeds_per_program"}


@dataclasses.dataclass(frozen=True, repr=False)
class TrainResult:
    """What training came to."""

    policy: Policy  # acts by the network that plays evaluations, and as it does there
    best_policy: Policy | None  # of the highest evaluation; chosen by it, so its score flatters
    metrics: list[Row]  # losses, training scores, evaluations: a row per `log_period` and more
    summary: dict[str, Any]  # evaluations, final score, time
    state: HostTrainState  # all that was learnt: `state.learner`, `state.replay`
    stopped: bool  # before the end, by Ctrl-C or a callback

    def __repr__(self) -> str:
        final, step = self.summary["final"]["mean"], int(self.state.step)
        score = "not evaluated" if final is None else f"final score {final:.4g}"
        early = ", stopped early" if self.stopped else ""
        return f"TrainResult({self.summary['game']}, {step:,} steps, {score}{early})"


def train(
    env: Any,
    demonstrations: Demonstration | Sequence[Demonstration] | None = None,
    config: AnyAgentConfig | None = None,
    *,
    steps: int | None = None,
    agent: str | None = None,
    seed: int = 0,
    network: Any = None,
    eval_env: Any = None,
    out: Any = None,
    resume: bool = False,
    callbacks: Callback | Iterable[Callback] = (),
    progress: bool = True,
    **options: Any,
) -> TrainResult:
    """Trains an agent.

    Args:
      env: a gymnasium id, a function that makes a `gymnasium.Env`, such an environment, a
        `gymnasium.vector.VectorEnv`, any `HostEnvironment`; or an Atari game, `atari:Breakout` or
        `ALE/Breakout-v5`, which is seen and learnt as `python -m experiments.atari` does it.
      demonstrations: one or several of either kind, as `demos.load` gives them; or none.
      config: hyper-parameters of the agent, by whose type it is chosen; a preset's unless given.
      steps: agent steps, over all environments side by side.
      agent: `bqfd`, `ensemble_bqfd`, `dqfd`, `dqn`, `bootstrapped` or `clone` with the preset's
        hyper-parameters; BQfD unless given, DQN without demonstrations.  A clone takes no steps.
      seed: decides all chance.
      network: a flax module, a `Network` or a pair `(init, apply)` that gives Q-values `[B, A]`; it
        sees `[B, *frame_shape]`, and `[B, stack, *frame_shape]` if `stack` exceeds 1.  Unless given
        it is chosen by what is seen.
      eval_env: environments for evaluations, if `env` is made already; without them there are none.
      out: a run folder; unless given, nothing is written.
      resume: go on from the last checkpoint in `out`.
      callbacks: called with every row of metrics; one that returns True stops the training.
      progress: show a bar with speed and time left.
      options: all other options of a run by their names, such as `envs`, `update_period`,
        `eval_period`, `log_period`: see `runs.gym.GymConfig` and `runs.atari.AtariConfig`.

    Returns:
      What was learnt.  After Ctrl-C or a callback's wish, what was learnt so far.

    Raises:
      ValueError: the environment is of a kind that cannot be learnt, or an option is wrong.
      DemonstrationError: a demonstration does not fit the environment.
      RunError: the environment failed, or the loss is no longer finite.
    """
    given = as_list(demonstrations)
    run_config = _run_config(
        env,
        config,
        agent or ("bqfd" if given else "dqn"),
        {
            "seed": seed,
            "demo": ("given",) if given else ("none",),
            "out": None if out is None else Path(out),
            "resume": resume,
            **({} if steps is None else {"steps": steps}),
        },
        options,
    )
    if resume and out is None:
        raise ValueError("resume needs the folder of the run to continue: give out")
    world, run_config = _world(env, eval_env, run_config, options.get("envs"))
    run_config.check()
    made = None if network is None else _own(network, world, run_config)
    job = make_job(run_config, world, given, network=made)
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    with stop_signals() as asked:
        sink = _TrainSink(callbacks, asked, shown=Terminal(lines=False) if progress else Sink())
        with opened(job, sink, in_memory=out is None) as run:
            try:
                lockstep.train([run], sink)
                stopped = False
            except Stopped:
                stopped = True
            summary = report.summarise_run(run) if stopped else report.finish(run)
            return TrainResult(
                policy=job.policy(run.played_params),
                best_policy=run.best.policy,
                metrics=run.journal.rows,
                summary=summary,
                state=run.loop.state,
                stopped=stopped,
            )


def _run_config(
    env: Any,
    config: AnyAgentConfig | None,
    agent: str,
    settled: dict[str, Any],
    options: dict[str, Any],
) -> RunConfig:
    """The run's config: a preset's, but for what is settled and further options."""
    if config is not None:
        agent = _agent_of(config)
        settled = settled | {agent: config}
    checks.one_of(AGENTS, agent=agent)
    for name in ("steps", "seed"):
        value = settled.get(name, 0)
        checks.require(isinstance(value, int | np.integer), name, value, "a whole number")
    game = atari_game(env)
    if game is None:
        base: RunConfig = GymConfig.of(settled.get("steps", GymConfig.steps), agent)
        base = dataclasses.replace(base, env=_name(env))
    else:
        base = AtariConfig.of(options.get("preset", "laptop"), game, agent)
    # What the arguments of `train` decide is no option beside them.
    known = {field.name for field in dataclasses.fields(base)} - _SETTLED - {*settled}
    for name in options:
        if name not in known:
            raise ValueError(f"there is no option {name}; a run has {', '.join(sorted(known))}")
    return dataclasses.replace(base, agent=agent, **{"video": False, **settled, **options})


def _agent_of(config: AnyAgentConfig) -> str:
    for name, kind in AGENTS.items():
        if type(config) is kind.config:
            return name
    known = ", ".join(kind.config.__name__ for kind in AGENTS.values())
    raise ValueError(f"no agent is made from a {type(config).__name__}; expected one of {known}")


def _name(env: Any) -> str:
    """An id; of anything else its name in brackets, by which nobody can make it again."""
    if isinstance(env, str):
        return env
    name = getattr(env, "name", None) or getattr(env, "__name__", None) or type(env).__name__
    return f"<{name}>"


def _world(env: Any, eval_env: Any, config: RunConfig, envs: int | None) -> tuple[World, RunConfig]:
    """Where environments come from; those that are made already decide how many there are."""
    if is_recipe(env) and eval_env is not None:
        raise ValueError(f"eval_env is for environments that are made already, not for {env!r}")
    if isinstance(config, AtariConfig):
        return AtariWorld(config), config
    if is_recipe(env):
        return GymWorld(config, None if isinstance(env, str) else env), config
    env = as_environment(env, seed=config.seed)
    checks.require(
        envs in (None, env.num_lanes), "envs", envs, f"the {env.num_lanes} that there are"
    )
    config = dataclasses.replace(config, env=_name(env), envs=env.num_lanes)
    if eval_env is not None:
        eval_env = as_environment(eval_env, seed=config.seed)
    return GivenWorld(config, env, eval_env), config


def _own(network: Any, world: World, config: RunConfig) -> MadeNetwork:
    seen = seen_shape(world.example(), config.stack)
    return MadeNetwork(networks.own_network(network, **seen), None, network)


class _TrainSink(Sink):
    """Shows what another sink shows, and asks to stop when a callback or Ctrl-C does."""

    def __init__(self, callbacks: list[Callback], asked: Callable[[], bool], *, shown: Sink):
        self._callbacks, self._asked, self._shown = callbacks, asked, shown
        self._enough = False
        self.warn, self.bar = shown.warn, shown.bar

    def row(self, row: Row) -> None:
        for callback in self._callbacks:
            self._enough = bool(callback(row)) or self._enough

    def stop_asked(self) -> bool:
        return self._enough or self._asked()


def demonstration_from_arrays(
    observations: Any,
    actions: Any,
    rewards: Any,
    terminated: Any,
    truncated: Any,
    *,
    num_actions: int,
    env: str = "environment",
    name: str = "arrays",
) -> FrameDemonstration:
    """A demonstration of episodes that lie one after the other in arrays.

    Args:
      observations: `[T + N, *frame_shape]`, one more than actions in each of the N episodes; or
        `[T, *frame_shape]` without the last ones.  Then the last action of an episode that was cut
        off is left out, because what it led to is not there.
      actions: `[T]` integers.
      rewards: `[T]`.
      terminated: `[T]`, whether the episode ended with this action.
      truncated: `[T]`, whether it was cut off after it.
      num_actions: of the environment.
      env: its name.
      name: of the demonstration.

    Raises:
      DemonstrationError: the arrays do not fit together; the message names array and entry.
    """
    arrays = {
        "observations": np.asarray(observations),
        "actions": np.asarray(actions),
        "rewards": np.asarray(rewards),
        "terminated": np.asarray(terminated),
        "truncated": np.asarray(truncated),
        "num_actions": np.asarray(num_actions),
    }
    if arrays["observations"].dtype.kind == "b":
        arrays["observations"] = arrays["observations"].astype(np.int8)
    return from_arrays(arrays, game=env, name=name).demonstration
