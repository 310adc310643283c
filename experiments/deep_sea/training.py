"""One agent on its way through all cases and seeds of DeepSea."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.agents.presets import ActingAgentName
from bqfd_jax.envs import deep_sea
from bqfd_jax.runs.deep_sea import CASES, make_training, seed_keys
from bqfd_jax.runs.errors import RunError, Stopped
from bqfd_jax.runs.journal import Journal
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device

from .config import ENCODERS, Config


class Result(NamedTuple):
    """What an agent's training leaves behind."""

    returns: np.ndarray  # [cases, seeds, episodes]
    visit_weights: np.ndarray | None  # [cases, seeds, episodes], BQfD only
    q: np.ndarray  # [cases, seeds, N, N, 2]
    seconds: float


class AgentTraining:
    """One agent's way from its last checkpoint, or from the beginning, to the last episode.

    Args:
      config: of the whole run.
      name: of the agent.
      out: the run folder.
      sink: what is told of rows and troubles.
      position: where the agent's rows begin in `metrics.jsonl`, in bytes.
      resume: go on from the agent's last checkpoint, if there is one.
    """

    unit = "episode"

    def __init__(
        self,
        config: Config,
        name: ActingAgentName,
        out: Path,
        sink: Sink,
        *,
        position: int = 0,
        resume: bool = False,
    ):
        self._config, self._name, self._out = config, name, out
        self.title, self.total = name, config.episodes
        self.journal = Journal(
            out, sink, part=name, tensorboard=config.tensorboard, position=position
        )
        self._compile()
        shape = (config.num_runs, config.episodes)
        self.position = 0
        self._train_state: on_device.TrainState | None = None
        self._curves = {
            "returns": np.full(shape, np.nan, np.float32),
            "visit_weights": np.full(shape, np.nan, np.float32),
        }
        if resume:
            self._restore()
        self.was_finished = self.position == self.total
        self._is_saved = True  # the newest state that was to be saved
        if not self.was_finished:
            self.journal.open()

    def _compile(self) -> None:
        """Binds what trains all cases and seeds at once; every array leads with the runs."""
        config, options = self._config, getattr(self._config, self._name)
        size, num_runs = config.size, config.num_runs
        env, self._agent, trainer = make_training(
            config, options, num_demo_rows=size, encode=ENCODERS[config.observation]
        )
        agent = self._agent

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

        cases = [CASES[case](size) for case in config.cases]
        self._keys = seed_keys(config.seeds, len(cases))
        self._params = jax.tree.map(
            lambda *x: jnp.repeat(jnp.stack(x), config.seeds, axis=0), *cases
        )
        self._init = on_device.over_runs(init, num_runs, called_once=not options.pretrain_updates)
        # (state, params) -> (state, trace, what the agent says of its replay)
        self.run_episode = on_device.over_runs(run_episode, num_runs, donate_argnums=(0,))

    def _restore(self) -> None:
        train = self._init.eval_shape(self._keys, self._params)
        restored = self.journal.restore({"train": train, "curves": self._curves})
        if restored is None:
            return
        self.position, items = restored
        self._curves = items["curves"]
        # Where the compiled function wants it, or it would be compiled for both places.
        runs = on_device.runs_sharding(self._config.num_runs)
        self._train_state = jax.device_put(items["train"], runs)

    def advance(self) -> str:
        """One episode in every run, and a checkpoint if one is due."""
        if self._train_state is None:
            self._train_state = self._init(self._keys, self._params)
        self._train_state, trace, described = self.run_episode(self._train_state, self._params)
        for name in ("loss", "gradient_norm"):
            self._check_finite(name.replace("_", " "), np.asarray(trace.metrics[name]))
        self._remember(trace, described)
        self.position += 1
        row = self._row(trace, described)
        self.journal.write(row)
        if self.position % self._config.checkpoint_period == 0 or self.position == self.total:
            self._save()
        return ", ".join(f"{case} {row[f'{case}/return']:+.3f}" for case in self._config.cases)

    def put_down(self) -> Stopped:
        """Saves what is trained so far."""
        if self._train_state is None:
            when = f"before the first episode of {self._name}"
        else:
            kept = "all saved" if self._save() else "what came after the last checkpoint is lost"
            when = f"after episode {self.position} of {self._name}, {kept}"
        return Stopped(f"stopped {when}; continue with `bqfd resume {self._out}`")

    def result(self) -> Result:
        """What the whole training leaves behind."""

        def by_case(per_run: np.ndarray) -> np.ndarray:
            cases = len(self._config.cases)
            return per_run.reshape(cases, self._config.seeds, *per_run.shape[1:])

        weights = by_case(self._curves["visit_weights"])
        return Result(
            returns=by_case(self._curves["returns"]),
            visit_weights=None if np.isnan(weights).all() else weights,
            q=by_case(self._q_values()),
            seconds=self.journal.seconds,
        )

    def is_kept(self) -> bool:
        """Whether the last state is in a checkpoint; if not so far, it is tried once more."""
        return self._is_saved or self._save()

    def _save(self) -> bool:
        items = {"train": self._train_state, "curves": self._curves}
        self._is_saved = self.journal.save(self.position, items) is not None
        return self._is_saved

    def _remember(self, trace: on_device.Trace, described: dict[str, jax.Array]) -> None:
        # The last step of the chunk ends the episode in every run: [runs, steps, period, lanes].
        returns = np.asarray(trace.episode_return)[:, -1, -1, 0]
        self._curves["returns"][:, self.position] = returns
        if "visit_weight" in described:
            self._curves["visit_weights"][:, self.position] = np.asarray(described["visit_weight"])

    def _row(self, trace: on_device.Trace, described: dict[str, jax.Array]) -> dict[str, Any]:
        config = self._config
        row = {
            "agent": self._name,
            "episode": self.position,
            "step": self.position * config.size,
        }
        values = {"return": self._curves["returns"][:, self.position - 1]}
        values |= {name: np.asarray(x).mean(1) for name, x in trace.metrics.items()}
        values |= {name: np.asarray(x) for name, x in described.items()}
        for name, per_run in values.items():
            for case, seeds in zip(config.cases, np.split(per_run, len(config.cases)), strict=True):
                row[f"{case}/{name}"] = float(seeds.mean())
        return row

    def _check_finite(self, name: str, values: np.ndarray) -> None:
        """Stops before anything spoilt is saved; `values` is `[runs, steps]`."""
        if np.isfinite(values).all():
            return
        config = self._config
        step, run = np.argwhere(~np.isfinite(values.T))[0]
        case, seed = divmod(int(run), config.seeds)
        saved = self.journal.saved_steps
        last_good = f"episode {saved[-1]} in {self._out}" if saved else "none yet"
        raise RunError(
            f"the {name} of {self._name} became {values[run, step]} at agent step "
            f"{self.position * config.size + int(step) + 1} ({config.cases[case]}, seed {seed}). "
            f"Last good checkpoint: {last_good}. A smaller --{self._name}.learning-rate than "
            f"{getattr(config, self._name).learning_rate} usually helps."
        )

    def _q_values(self) -> np.ndarray:
        """Q-values of every cell, `[runs, N, N, 2]`."""
        cells = jnp.stack(jnp.indices((self._config.size,) * 2), axis=-1)[:, :, None]

        def q_values(params: Any) -> jax.Array:
            # Row by row: all N x N cells as one-hot codes need not fit into memory.
            return jax.lax.map(lambda row: self._agent.q_values(params, row), cells)

        q_values_of_runs = on_device.over_runs(q_values, self._config.num_runs)
        return np.asarray(q_values_of_runs(self._train_state.learner.params))
