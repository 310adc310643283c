"""How imperfect may the expert be?  DeepSea with demonstrations of graded quality and quantity.

    python -m experiments.expert_quality
    python -m experiments.expert_quality --quick
    python -m experiments.expert_quality --qualities eta=inf errs=0.2 --quantities 1 30 --out runs/m

Every agent is trained in every cell of a map, case x quality x quantity.  The expert heads for the
corner in all three cases, and shows the same; what differs is what it leads to: a treasure, a bomb,
or a small treasure while a large one lies elsewhere.

Qualities: eta=E takes actions in proportion to exp(E q), q being optimal if there is a treasure in
the corner (inf: always the best, 0: any, -inf: always the worst); errs=P takes the worse action
with probability P; until=F is right in the first share F of the rows and wrong in the rest; two are
two experts in turn, one always right and one always wrong.  Quantities: K trajectories; KxF shows
only the first share F of each one's rows.

A run that was stopped or killed goes on if the same command is given with --resume at its end.
Writes a folder with `summary.json`, pictures, and the returns of every cell.
"""

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from tqdm import tqdm

from bqfd_jax import networks, tabular
from bqfd_jax.agents import (
    AgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    PddDqnConfig,
    make_agent,
    presets,
)
from bqfd_jax.demos.demonstration import DemonstrationError, read_npz, write_npz_atomic
from bqfd_jax.envs import deep_sea, deep_sea_experts, deep_sea_values
from bqfd_jax.replay import make_replay
from bqfd_jax.runs import folder as run_folder
from bqfd_jax.runs.folder import RunError, StopRequested, UsageError
from bqfd_jax.runs.metrics import write_json_atomic
from bqfd_jax.streams import KeyStream
from bqfd_jax.training import on_device
from bqfd_jax.types import Row
from experiments.expert_quality import report

CASES = {"treasure": deep_sea.treasure, "bomb": deep_sea.bomb, "decoy": deep_sea.decoy}
# What each agent learns with; those that see no demonstrations are the same in all cells of a case.
LEARNERS = {
    "bqfd": "bqfd",
    "dqfd": "dqfd",
    "dqn": "dqn",
    "dqn_alone": "dqn",
    "bootstrapped": "bootstrapped",
    "tabular": "bqfd",
}
AgentName = Literal["bqfd", "dqfd", "dqn", "dqn_alone", "bootstrapped", "tabular"]
_PRESET = {name: presets.agent_config("deep_sea", name) for name in presets.AGENTS}


@dataclasses.dataclass(frozen=True)
class Config:
    """A map of expert quality and quantity on DeepSea.

    The hyper-parameters are those of `experiments.deep_sea`.
    """

    quick: bool = False
    """A coarse map on a small grid, in less than three minutes."""
    size: int | None = None
    """Rows and columns of the grid, and steps of an episode; 20, or 10 with --quick."""
    cases: tuple[Literal["treasure", "bomb", "decoy"], ...] = ("treasure", "bomb", "decoy")
    """What the expert leads to."""
    qualities: tuple[str, ...] | None = None
    """How good the expert is; see above."""
    quantities: tuple[str, ...] | None = None
    """How much it shows; see above."""
    agents: tuple[AgentName, ...] = tuple(LEARNERS)
    """Which agents to train; `dqn_alone` and `bootstrapped` see no demonstrations."""
    seeds: int | None = None
    """How many seeds, 0 up to this number less one; 5, or 2 with --quick."""
    episodes: int | None = None
    """Episodes per run; 100, or 60 with --quick."""
    bootstrapped_demos: bool = False
    """Give Bootstrapped DQN the demonstrations, too: as many times the work as it has networks."""
    cells_per_call: int = 6
    """Cells trained side by side, and saved together."""
    out: Path | None = None
    """Run folder; a new one below runs/ unless given."""
    resume: bool = False
    """Continue the run in --out with the cells that are missing."""
    torso: tuple[int, ...] = (64, 64)
    """Widths of the network's first layers."""
    hidden: int = 256
    """Width of its value and advantage streams."""
    bqfd: BqfdConfig = _PRESET["bqfd"]
    """Hyper-parameters of BQfD, tabular BQfD included."""
    dqfd: DqfdConfig = _PRESET["dqfd"]
    """Hyper-parameters of DQfD."""
    dqn: PddDqnConfig = _PRESET["dqn"]
    """Hyper-parameters of prioritized dueling double DQN, with and without demonstrations; --quick
    explores for 0.3 times as many steps, unless they are given."""
    bootstrapped: BootstrappedConfig = _PRESET["bootstrapped"]
    """Hyper-parameters of Bootstrapped DQN; --quick takes at most 5 networks."""


_FULL = {
    "size": 20,
    "seeds": 5,
    "episodes": 100,
    "qualities": (
        "eta=inf",
        "errs=0.05",
        "errs=0.2",
        "eta=3",
        "eta=1",
        "until=0.9",
        "until=0.5",
        "two",
        "eta=0",
        "eta=-3",
        "eta=-inf",
    ),
    "quantities": ("1", "3", "10x0.5", "10", "30"),
}
_QUICK = {
    "size": 10,
    "seeds": 2,
    "episodes": 60,
    "qualities": ("eta=inf", "errs=0.2", "until=0.5", "two", "eta=0", "eta=-inf"),
    "quantities": ("1", "10"),
}
# What may differ between a run and its continuation.
_NOT_RESULT = ("out", "resume")


class Quality(NamedTuple):
    """One of the qualities; `value` is eta, a probability, or a share of the rows."""

    kind: Literal["eta", "errs", "until", "two"]
    value: float


class Quantity(NamedTuple):
    """How many trajectories, and what share of their rows."""

    trajectories: int
    share: float


class Cell(NamedTuple):
    """A place on the map, by names; without demonstrations, of a case alone."""

    case: str
    quality: str | None = None
    quantity: str | None = None


class Inputs(NamedTuple):
    """What distinguishes one run from another, besides its seed; all may be traced."""

    params: deep_sea.Params
    experts: jax.Array  # [2, N, N] float32, see `deep_sea_experts`
    first: jax.Array  # [] int32, which of the two begins
    trajectories: jax.Array  # [] int32
    rows: jax.Array  # [] int32, transitions shown of each


# --- The options ---


def resolve(config: Config) -> Config:
    """Fills in what was not given, and checks all of it; raises `UsageError`."""
    preset = _QUICK if config.quick else _FULL
    given = {name: getattr(config, name) for name in preset}
    config = dataclasses.replace(
        config, **{name: preset[name] if given[name] is None else given[name] for name in preset}
    )
    if config.quick:
        members = min(config.bootstrapped.ensemble_size, 5)
        bootstrapped = dataclasses.replace(config.bootstrapped, ensemble_size=members)
        config = dataclasses.replace(config, bootstrapped=bootstrapped)
        if config.dqn.epsilon_steps == _PRESET["dqn"].epsilon_steps:
            # Half of the steps are left when DQN has explored, as on the full map.
            scaled = tuple(math.ceil(0.3 * step) for step in config.dqn.epsilon_steps)
            dqn = dataclasses.replace(config.dqn, epsilon_steps=scaled)
            config = dataclasses.replace(config, dqn=dqn)
    run_folder.require_at_least(3, config, "size")
    run_folder.require_at_least(2, config, "episodes")
    run_folder.require_at_least(1, config, "seeds", "cells_per_call")
    run_folder.require_choices(config, "cases", "qualities", "quantities", "agents")
    run_folder.require_widths(config)
    for text in config.qualities:
        parse_quality(text)
    for text in config.quantities:
        parse_quantity(text)
    return config


def parse_quality(text: str) -> Quality:
    """Raises `UsageError` unless `text` names a quality."""
    kind, _, number = text.partition("=")
    if text == "two":
        return Quality("two", math.nan)
    value = _number(number)
    if kind == "eta" and not math.isnan(value):
        return Quality(kind, value)
    if kind in ("errs", "until") and 0 <= value <= 1:
        return Quality(kind, value)
    raise UsageError(
        f"--qualities has {text!r}, but each must be eta=E (a number, inf or -inf), errs=P or "
        "until=F (in 0 .. 1), or two"
    )


def parse_quantity(text: str) -> Quantity:
    """Raises `UsageError` unless `text` names a quantity."""
    count, cut, share = text.partition("x")
    share = _number(share) if cut else 1.0
    if count.isdecimal() and int(count) >= 1 and 0 < share <= 1:
        return Quantity(int(count), share)
    raise UsageError(
        f"--quantities has {text!r}, but each must be K trajectories (at least 1), or KxF with a "
        "share F of their rows in 0 .. 1, like 10x0.5"
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# --- The map ---


def sees_demonstrations(config: Config, agent: str) -> bool:
    """Whether an agent's cells differ in more than the case."""
    if agent == "bootstrapped":
        return config.bootstrapped_demos
    return agent != "dqn_alone"


def cells_of(config: Config, agent: str) -> list[Cell]:
    """What the agent is trained on, in the order of the map."""
    if not sees_demonstrations(config, agent):
        return [Cell(case) for case in config.cases]
    places = itertools.product(config.cases, config.qualities, config.quantities)
    return [Cell(*place) for place in places]


@functools.cache
def make_expert(size: int, quality: str) -> np.ndarray:
    """The expert as two tables, `[2, N, N]`, that take turns; most are the same twice.

    It goes by what is best if the corner holds a treasure and there is none elsewhere.
    """
    kind, value = parse_quality(quality)
    q = deep_sea_values.optimal_q(deep_sea.treasure(size), size, gamma=1.0)
    if kind == "two":
        experts = [deep_sea_experts.boltzmann(q, eta) for eta in (math.inf, -math.inf)]
    elif kind == "eta":
        experts = [deep_sea_experts.boltzmann(q, value)] * 2
    elif kind == "errs":
        experts = [deep_sea_experts.erring(q, value)] * 2
    else:
        experts = [deep_sea_experts.right_until(q, round(value * size))] * 2
    return np.stack(experts)


def make_inputs(config: Config, cell: Cell, seed: int) -> Inputs:
    """What training in a cell begins with."""
    size = config.size
    if cell.quality is None:
        experts, quantity = np.zeros((2, size, size), np.float32), Quantity(0, 0.0)
    else:
        experts = make_expert(size, cell.quality)
        quantity = parse_quantity(cell.quantity)
    return Inputs(
        params=_case_params(size, cell.case),
        experts=experts,
        # Of a single trajectory, half of the seeds see the wrong one.
        first=np.int32(seed % 2),
        trajectories=np.int32(quantity.trajectories),
        # A share of more than nothing shows one row at least.
        rows=np.int32(max(round(quantity.share * size), 1)),
    )


@functools.cache
def _case_params(size: int, case: str) -> deep_sea.Params:
    return jax.tree.map(np.asarray, CASES[case](size))


# --- Training in one cell with one seed ---


class Training(NamedTuple):
    """One run in two steps, the second of which takes nearly all of the time."""

    # (key, inputs) -> state
    init: Callable[[jax.Array, Inputs], Any]
    # (state, inputs) -> (returns [episodes], whether all stayed finite [] bool)
    run: Callable[[Any, Inputs], tuple[jax.Array, jax.Array]]


def make_demonstrate(config: Config, gamma: float) -> Callable[[jax.Array, Inputs], Row]:
    """`(key, inputs) -> rows`, the same rows for all agents, and as many in all cells."""
    env = deep_sea.make(config.size)

    def demonstrate(key: jax.Array, inputs: Inputs) -> Row:
        return deep_sea_experts.show(
            jax.random.fold_in(key, KeyStream.DEMONSTRATIONS),
            env,
            inputs.params,
            inputs.experts,
            first=inputs.first,
            trajectories=inputs.trajectories,
            rows=inputs.rows,
            max_trajectories=_max_trajectories(config),
            size=config.size,
            gamma=gamma,
        )

    return demonstrate


def _max_trajectories(config: Config) -> int:
    return max(parse_quantity(text).trajectories for text in config.quantities)


def make_training(config: Config, agent: str) -> Training:
    """How the agent is trained; pure functions."""
    agent_config = getattr(config, LEARNERS[agent])
    if agent == "tabular":
        return _tabular_training(config, agent_config)
    return _deep_training(config, agent_config, with_demos=sees_demonstrations(config, agent))


def _deep_training(config: Config, agent_config: AgentConfig, *, with_demos: bool) -> Training:
    size, num_steps = config.size, config.size * config.episodes
    env = deep_sea.make(size)
    replay = make_replay(
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_demo_rows=size * _max_trajectories(config) if with_demos else 0,
        rows_per_lane=num_steps + agent_config.n_step + 2,
        **agent_config.replay_options(),
    )
    network = networks.deep_sea_network(
        encode=deep_sea.encode_position(size), torso=config.torso, hidden=config.hidden
    )
    agent = make_agent(network, agent_config, replay)
    trainer = on_device.make_trainer(env, agent, replay)
    demonstrate = make_demonstrate(config, agent_config.gamma)

    def init(key: jax.Array, inputs: Inputs) -> on_device.TrainState:
        demonstrations = demonstrate(key, inputs) if with_demos else None
        return trainer.init(key, inputs.params, demonstrations)

    def run(state: on_device.TrainState, inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        if agent_config.pretrain_updates and with_demos:
            state, _ = trainer.pretrain(state, agent_config.pretrain_updates)
        _, trace = trainer.run(state, inputs.params, num_steps)
        # Every episode has as many steps: [steps, period, lanes].
        returns = trace.episode_return[size - 1 :: size, -1, 0]
        return returns, jnp.isfinite(trace.metrics["loss"]).all()

    return Training(init, run)


def _tabular_training(config: Config, agent_config: BqfdConfig) -> Training:
    size, dynamics = config.size, deep_sea_values.dynamics(config.size)
    demonstrate = make_demonstrate(config, agent_config.gamma)

    def run(state: tuple[jax.Array, Row], inputs: Inputs) -> tuple[jax.Array, jax.Array]:
        key, rows = state
        action = jnp.where(rows.is_last, -1, rows.action)
        outcome = tabular.run(
            key,
            tabular.Problem(deep_sea_values.reward_table(inputs.params, size), *dynamics),
            tabular.Demonstrations(rows.frame[:, 1].reshape(-1, size), action.reshape(-1, size)),
            episodes=config.episodes,
            eta=agent_config.eta,
            beta=agent_config.beta,
            variance=agent_config.variance,
            noise_ratio=agent_config.noise_ratio,
            gamma=agent_config.gamma,
            # The other agents learn from the demonstrations' rewards, too.
            replay_demonstrations=True,
        )
        # Not the returns: even actions chosen by NaN bring rewards that are finite.
        return outcome.returns, jnp.isfinite(outcome.state.q).all()

    return Training(lambda key, inputs: (key, demonstrate(key, inputs)), run)


# --- Training everywhere ---


def split(cells: list[Cell], per_call: int) -> list[list[Cell]]:
    """Equal parts, the last of which may be shorter."""
    return [cells[i : i + per_call] for i in range(0, len(cells), per_call)]


class MapTraining:
    """One agent on its way over the map, some cells at a time; finished ones are in files."""

    def __init__(self, config: Config, agent: str, folder: Path):
        self.config, self.agent, self.folder = config, agent, folder
        cells = cells_of(config, agent)
        # Few cells do not fill a call; they only need to be spread over the devices.
        devices = jax.device_count()
        few = -(-len(cells) // devices) * devices
        self.per_call = min(config.cells_per_call, few)
        self.parts = split(cells, self.per_call)
        num_runs = self.per_call * config.seeds
        training = make_training(config, agent)
        # The first takes longer to compile than to run.
        self.init = on_device.over_runs(training.init, num_runs, called_once=True)
        self.train = on_device.over_runs(training.run, num_runs)

    def run(self, progress: tqdm, stop_asked: Callable[[], bool]) -> tuple[np.ndarray, float]:
        """Trains where it is missing.

        Returns:
          Returns of all cells, `[cells, seeds, episodes]`, and the seconds that they took, in
          earlier sittings too.
        """
        returns, seconds = [], 0.0
        for number, cells in enumerate(self.parts):
            path = self.folder / f"{self.agent}-{number:04}.npz"
            part = self._read(path, len(cells))
            if part is None:
                if stop_asked():
                    raise StopRequested(
                        f"stopped after {number * self.per_call} cells of {self.agent}, all saved; "
                        f"continue with the same options and --out {self.folder.parent} --resume"
                    )
                started = time.perf_counter()
                part = {"returns": self._train(cells)}
                part["seconds"] = np.float64(time.perf_counter() - started)
                write_npz_atomic(path, **part)
            returns.append(part["returns"])
            seconds += float(part["seconds"])
            progress.update(len(cells))
        return np.concatenate(returns), seconds

    def _read(self, path: Path, num_cells: int) -> dict[str, np.ndarray] | None:
        """What an earlier sitting has left; nothing if it is not whole."""
        try:
            part = read_npz(path)
        except (FileNotFoundError, DemonstrationError):
            return None
        shapes = {name: array.shape for name, array in part.items()}
        shape = (num_cells, self.config.seeds, self.config.episodes)
        return part if shapes == {"returns": shape, "seconds": ()} else None

    def _train(self, cells: list[Cell]) -> np.ndarray:
        config, seeds = self.config, self.config.seeds
        # Each call has one shape: what is missing is filled with what is there, and thrown away.
        filled = list(itertools.islice(itertools.cycle(cells), self.per_call))
        inputs = [make_inputs(config, cell, seed) for cell in filled for seed in range(seeds)]
        inputs = jax.tree.map(lambda *x: np.stack(x), *inputs)
        keys = jax.vmap(jax.random.key)(jnp.tile(jnp.arange(seeds), len(filled)))
        returns, finite = map(np.asarray, self.train(self.init(keys, inputs), inputs))
        self._check_finite(finite.reshape(-1, seeds)[: len(cells)], cells)
        return returns.reshape(-1, seeds, config.episodes)[: len(cells)]

    def _check_finite(self, finite: np.ndarray, cells: list[Cell]) -> None:
        """`[cells, seeds]`; nothing spoilt is saved."""
        if finite.all():
            return
        cell, seed = np.argwhere(~finite)[0]
        where = " ".join(name for name in cells[cell] if name)
        learner = LEARNERS[self.agent]
        what, option = ("values", "eta") if self.agent == "tabular" else ("loss", "learning_rate")
        raise RunError(
            f"the {what} of {self.agent} became infinite or NaN ({where}, seed {seed}); its cell "
            f"was not saved. A smaller --{learner}.{option.replace('_', '-')} than "
            f"{getattr(getattr(self.config, learner), option)} usually helps."
        )


def train_all(config: Config, out: Path) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Returns of every agent, `[cells, seeds, episodes]`, and the seconds that this took."""
    folder = out / "cells"
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {folder}: {error.strerror or error}") from error
    returns, seconds = {}, {}
    total = sum(len(cells_of(config, agent)) for agent in config.agents)
    with (
        tqdm(total=total, unit="cell") as progress,
        run_folder.stop_signals("after these cells") as stop_asked,
    ):
        for agent in config.agents:
            progress.set_postfix_str(agent)
            training = MapTraining(config, agent, folder)
            returns[agent], seconds[agent] = training.run(progress, stop_asked)
    return returns, seconds


def optimal_returns(config: Config) -> dict[str, float]:
    """The best possible return of each case."""
    return {
        case: float(deep_sea_values.optimal_return(CASES[case](config.size), config.size))
        for case in config.cases
    }


def main(config: Config | None = None) -> None:
    """Trains every agent in every cell and writes the run folder."""
    config = config or tyro.cli(
        Config, description=__doc__, prog="python -m experiments.expert_quality"
    )
    config = resolve(config)
    stored = run_folder.config_dict(config, without=_NOT_RESULT)
    out = run_folder.prepare(config.out, stored, name="expert_quality", resume=config.resume)
    shape = f"{len(config.cases)} cases x {len(config.qualities)} x {len(config.quantities)} cells"
    print(
        f"DeepSea {config.size} x {config.size}, {config.episodes} episodes, {config.seeds} seeds; "
        f"{shape}; {' '.join(config.agents)}\n"
        f"on {jax.device_count()} {jax.devices()[0].platform} device(s); writing to {out}"
    )
    returns, seconds = train_all(config, out)
    maps = report.make_maps(config, optimal_returns(config), returns)
    summary = report.summarise(config, maps, seconds)
    report.draw(config, maps, summary, out)
    write_json_atomic(out / "summary.json", summary)
    total = sum(seconds.values())
    print(f"\n{report.table(summary)}\n\n{total:.0f} s; maps and summary in {out}")


if __name__ == "__main__":
    run_folder.use_all_cores()
    run_folder.run_main(main)
