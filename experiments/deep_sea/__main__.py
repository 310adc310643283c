"""The paper's first experiment: DeepSea with a treasure or a bomb where the expert leads.

    python -m experiments.deep_sea
    python -m experiments.deep_sea --size 20 --agents bqfd dqfd --bqfd.eta 1 --out runs/mine

A run that was stopped or killed goes on if the same command is given with --resume at its end.
Writes a folder with `summary.json`, `metrics.jsonl`, pictures and checkpoints.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from tqdm import tqdm

from bqfd_jax import networks
from bqfd_jax.agents import (
    Agent,
    AgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    PddDqnConfig,
    make_agent,
)
from bqfd_jax.agents.presets import AGENTS, AgentName, agent_config
from bqfd_jax.envs import deep_sea, deep_sea_values
from bqfd_jax.replay import make_replay
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.checkpoint import Checkpointer
from bqfd_jax.runs.folder import RunError, StopRequested, UsageError
from bqfd_jax.runs.metrics import MetricsWriter, write_json_atomic
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device
from experiments.deep_sea import report
from experiments.deep_sea.report import Result

CASES = {"treasure": deep_sea.treasure, "bomb": deep_sea.bomb}
ENCODERS = {"position": deep_sea.encode_position, "onehot": deep_sea.encode_one_hot}
_PRESET = {name: agent_config("deep_sea", name) for name in AGENTS}


@dataclasses.dataclass(frozen=True)
class Config:
    """DeepSea with a treasure or a bomb at the end of the expert's path.

    Every agent gets one demonstration that goes right all the way.  With the treasure that is the
    best path, with the bomb the worst.  All cases and seeds of an agent are trained side by side.
    """

    size: int = 50
    """Rows and columns of the grid, and steps of an episode; at least 2."""
    cases: tuple[Literal["treasure", "bomb"], ...] = ("treasure", "bomb")
    """What the expert leads to."""
    agents: tuple[AgentName, ...] = ("bqfd", "dqfd", "dqn")
    """Which agents to train, one after the other."""
    seeds: int = 10
    """How many seeds, 0 up to this number less one."""
    episodes: int = 100
    """Episodes per seed."""
    observation: Literal["position", "onehot"] = "position"
    """What the network sees: two coordinates, or one of N x N cells."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""
    resume: bool = False
    """Continue the run in --out where its last checkpoint stands."""
    checkpoint_period: int = 20
    """Episodes between checkpoints."""
    tensorboard: bool = False
    """Also write TensorBoard files (needs the extra: pip install 'bqfd-jax[tensorboard]')."""
    torso: tuple[int, ...] = (64, 64)
    """Widths of the network's first layers."""
    hidden: int = 256
    """Width of its value and advantage streams."""
    bqfd: BqfdConfig = _PRESET["bqfd"]
    """Hyper-parameters of BQfD."""
    dqfd: DqfdConfig = _PRESET["dqfd"]
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = _PRESET["dqn"]
    """Hyper-parameters of prioritized dueling double DQN with ez-greedy exploration."""
    bootstrapped: BootstrappedConfig = _PRESET["bootstrapped"]
    """Hyper-parameters of Bootstrapped DQN."""


# What may differ between a run and its continuation.
_NOT_RESULT = ("out", "resume", "checkpoint_period", "tensorboard")


class Job(NamedTuple):
    """One agent, ready to train on all cases and seeds; every array leads with the runs."""

    agent: Agent
    env_params: deep_sea.Params  # [runs, ...]
    keys: jax.Array  # [runs]
    init: Any  # (keys, env_params) -> state
    run_episode: Any  # (state, env_params) -> (state, trace, what the agent says of its replay)


def check(config: Config) -> None:
    """Raises `UsageError` for values that cannot be meant."""
    run_folder.require_at_least(2, config, "size")
    run_folder.require_at_least(1, config, "seeds", "episodes", "checkpoint_period")
    run_folder.require_choices(config, "cases", "agents")
    run_folder.require_widths(config)
    if config.tensorboard and importlib.util.find_spec("tensorboardX") is None:
        raise UsageError("--tensorboard needs the extra: pip install 'bqfd-jax[tensorboard]'")


def make_job(config: Config, options: AgentConfig) -> Job:
    """Everything an agent needs, compiled when first called."""
    size, num_runs = config.size, len(config.cases) * config.seeds
    env = deep_sea.make(size)
    cases = [CASES[case](size) for case in config.cases]
    env_params = jax.tree.map(lambda *x: jnp.repeat(jnp.stack(x), config.seeds, axis=0), *cases)
    keys = jax.vmap(jax.random.key)(jnp.tile(jnp.arange(config.seeds), len(cases)))

    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_demo_rows=size,
        rows_per_lane=size * config.episodes + options.n_step + 2,
        **options.replay_options(),
    )
    network = networks.deep_sea_network(
        encode=ENCODERS[config.observation](size), torso=config.torso, hidden=config.hidden
    )
    agent = make_agent(network, options, replay)
    trainer = on_device.make_trainer(env, agent, replay)

    def init(key: jax.Array, params: deep_sea.Params) -> on_device.TrainState:
        demonstration = deep_sea.demonstrate(
            jax.random.fold_in(key, KeyStream.DEMONSTRATIONS),
            env,
            params,
            deep_sea.always_right,
            size=size,
            gamma=agent.gamma,
        )
        state = trainer.init(key, params, demonstration)
        if options.pretrain_updates:
            state, _ = trainer.pretrain(state, options.pretrain_updates)
        return state

    def run_episode(state: on_device.TrainState, params: deep_sea.Params) -> Any:
        state, trace = trainer.run(state, params, size)
        return state, trace, agent.describe(state.replay)

    pretrains = options.pretrain_updates > 0
    return Job(
        agent=agent,
        env_params=env_params,
        keys=keys,
        init=on_device.over_runs(init, num_runs, called_once=not pretrains),
        run_episode=on_device.over_runs(run_episode, num_runs, donate_argnums=(0,)),
    )


class Training:
    """One agent's way from its last checkpoint, or from the beginning, to the last episode."""

    def __init__(
        self, config: Config, name: AgentName, out: Path, *, metrics_position: int, resume: bool
    ):
        self.started = time.perf_counter()
        self.config, self.name, self.out = config, name, out
        self.job = make_job(config, getattr(config, name))
        self.num_runs = len(config.cases) * config.seeds
        self.checkpointer = Checkpointer(out / "checkpoints" / name, on_skip=tqdm.write)
        shape = (self.num_runs, config.episodes)
        fresh = {
            "train": self.job.init.eval_shape(self.job.keys, self.job.env_params),
            "returns": np.full(shape, np.nan, np.float32),
            "visit_weights": np.full(shape, np.nan, np.float32),
            "metrics_position": metrics_position,
            "seconds": 0.0,
        }
        restored = self.checkpointer.restore({"state": fresh}) if resume else None
        # Everything that a checkpoint holds.
        self.episode, items = restored or (0, {"state": fresh})
        self.state = items["state"]
        self.is_new = restored is None
        self.was_finished = self.episode == config.episodes
        if restored:
            # Where the compiled function wants it, or it would be compiled for both places.
            runs = on_device.runs_sharding(self.num_runs)
            self.state["train"] = jax.device_put(self.state["train"], runs)

    def run(self, progress: tqdm, stop_asked: Callable[[], bool]) -> Result:
        """Trains to the end; saves now and then, and when asked to stop."""
        progress.update(self.episode * self._steps_per_episode)
        state = self.state
        if not self.was_finished:
            self._train(progress, stop_asked)
        q = self._q_values()
        weights = state["visit_weights"]
        seconds = state["seconds"] if self.was_finished else self._seconds()
        return Result(
            returns=state["returns"],
            visit_weights=None if np.isnan(weights).all() else weights,
            q=q,
            seconds=seconds,
            metrics_position=state["metrics_position"],
        )

    def _train(self, progress: tqdm, stop_asked: Callable[[], bool]) -> None:
        state, episodes = self.state, self.config.episodes
        with self._open_metrics() as metrics:
            if self.is_new:
                state["train"] = self.job.init(self.job.keys, self.job.env_params)
            while self.episode < episodes:
                row = self._run_episode()
                metrics.write(row)
                progress.update(self._steps_per_episode)
                progress.set_postfix_str(self._postfix(row))
                stops = stop_asked()
                due = self.episode % self.config.checkpoint_period == 0
                if due or stops or self.episode == episodes:
                    state["metrics_position"] = metrics.position()
                    saved = {**state, "seconds": self._seconds()}
                    self.checkpointer.save(self.episode, {"state": saved})
                if stops:
                    raise StopRequested(
                        f"stopped after episode {self.episode} of {self.name}, all saved; "
                        f"continue with the same options and --out {self.out} --resume"
                    )

    def _seconds(self) -> float:
        """Time spent on this agent, in earlier sittings too."""
        return self.state["seconds"] + time.perf_counter() - self.started

    def _open_metrics(self) -> MetricsWriter:
        try:
            return MetricsWriter(
                self.out / "metrics.jsonl",
                position=self.state["metrics_position"],
                tensorboard_dir=(
                    self.out / "tensorboard" / self.name if self.config.tensorboard else None
                ),
            )
        except ValueError as error:
            raise RunError(
                f"{error}. Put the file back, or start anew in another --out."
            ) from error

    @property
    def _steps_per_episode(self) -> int:
        return self.num_runs * self.config.size

    def _run_episode(self) -> dict[str, Any]:
        """One episode in every run; returns its row for metrics.jsonl."""
        state = self.state
        state["train"], trace, described = self.job.run_episode(state["train"], self.job.env_params)
        for name in ("loss", "gradient_norm"):
            self._check_finite(name.replace("_", " "), np.asarray(trace.metrics[name]))
        # The last step of the chunk ends the episode in every run: [runs, steps, period, lanes].
        state["returns"][:, self.episode] = np.asarray(trace.episode_return)[:, -1, -1, 0]
        if "visit_weight" in described:
            state["visit_weights"][:, self.episode] = np.asarray(described["visit_weight"])
        self.episode += 1

        row = {
            "agent": self.name,
            "episode": self.episode,
            "step": self.episode * self.config.size,
        }
        values = {"return": state["returns"][:, self.episode - 1]}
        values |= {name: np.asarray(x).mean(1) for name, x in trace.metrics.items()}
        values |= {name: np.asarray(x) for name, x in described.items()}
        for name, per_run in values.items():
            for case, seeds in zip(self.config.cases, self._by_case(per_run), strict=True):
                row[f"{case}/{name}"] = float(seeds.mean())
        return row

    def _check_finite(self, name: str, values: np.ndarray) -> None:
        """Stops before anything spoilt is saved; `values` is `[runs, steps]`."""
        if np.isfinite(values).all():
            return
        step, run = np.argwhere(~np.isfinite(values.T))[0]
        case, seed = divmod(int(run), self.config.seeds)
        saved = self.checkpointer.steps()
        last_good = f"episode {saved[-1]} in {self.out}" if saved else "none yet"
        raise RunError(
            f"the {name} of {self.name} became {values[run, step]} at agent step "
            f"{self.episode * self.config.size + int(step) + 1} ({self.config.cases[case]}, "
            f"seed {seed}). Last good checkpoint: {last_good}. A smaller "
            f"--{self.name}.learning-rate than {getattr(self.config, self.name).learning_rate} "
            "usually helps."
        )

    def _by_case(self, per_run: np.ndarray) -> np.ndarray:
        return per_run.reshape(len(self.config.cases), self.config.seeds, *per_run.shape[1:])

    def _postfix(self, row: dict[str, Any]) -> str:
        returns = (f"{case} {row[f'{case}/return']:+.3f}" for case in self.config.cases)
        return f"{self.name}: {', '.join(returns)}"

    def _q_values(self) -> np.ndarray:
        """Q-values of every cell, `[runs, N, N, 2]`."""
        cells = jnp.stack(jnp.indices((self.config.size,) * 2), axis=-1)[:, :, None]

        def q_values(params: Any) -> jax.Array:
            # Row by row: all N x N cells as one-hot codes need not fit into memory.
            return jax.lax.map(lambda row: self.job.agent.q_values(params, row), cells)

        q_values_of_runs = on_device.over_runs(q_values, self.num_runs)
        return np.asarray(q_values_of_runs(self.state["train"].learner.params))


def main(config: Config | None = None) -> None:
    """Trains every agent and writes the run folder."""
    config = config or tyro.cli(Config, description=__doc__, prog="python -m experiments.deep_sea")
    check(config)
    stored = run_folder.config_dict(config, without=_NOT_RESULT)
    out = run_folder.prepare(config.out, stored, name="deep_sea", resume=config.resume)
    num_runs = len(config.cases) * config.seeds
    devices = on_device.runs_sharding(num_runs).mesh.devices
    print(
        f"DeepSea {config.size} x {config.size}, {config.episodes} episodes, {config.seeds} seeds; "
        f"{' '.join(config.cases)}; {' '.join(config.agents)}\n"
        f"on {devices.size} {devices[0].platform} device(s); writing to {out}"
    )
    num_steps = num_runs * config.size * config.episodes
    results: dict[str, Result] = {}
    position, resume = 0, config.resume
    with (
        tqdm(total=len(config.agents) * num_steps, unit="step", unit_scale=True) as progress,
        run_folder.stop_signals("after this episode") as stop_asked,
    ):
        for name in config.agents:
            progress.set_postfix_str(f"{name}: compiling")
            training = Training(config, name, out, metrics_position=position, resume=resume)
            results[name] = training.run(progress, stop_asked)
            position = results[name].metrics_position
            # What follows in metrics.jsonl was cut off if this agent had episodes to do.
            resume = resume and training.was_finished
    best = {
        case: float(deep_sea_values.optimal_return(CASES[case](config.size), config.size))
        for case in config.cases
    }
    summary = report.summarise(config, best, results)
    report.draw(config, best, results, out)
    write_json_atomic(out / "summary.json", summary)
    print(f"\n{report.table(summary)}\n\n{summary['seconds']:.0f} s; curves and summary in {out}")


if __name__ == "__main__":
    run_folder.use_all_cores()
    run_folder.run_main(main)
