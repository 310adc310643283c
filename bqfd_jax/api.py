"""Learning in a few lines: an environment, demonstrations, a config; `train`, `evaluate`, `record`.

What `python -m experiments.gym` does with run folders, checkpoints and pictures, as functions that
write nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from tqdm import tqdm

from bqfd_jax import demos
from bqfd_jax.agents import AgentConfig, BootstrappedConfig, BqfdConfig, DqfdConfig, PddDqnConfig
from bqfd_jax.demos import DemonstrationError, FrameDemonstration
from bqfd_jax.demos.importing import from_arrays
from bqfd_jax.envs.gymnasium import FRAME_DTYPES, GymVector
from bqfd_jax.networks import Network, ensemble
from bqfd_jax.policy import Policy, chosen_network, own_network
from bqfd_jax.training.on_host import HostTrainState
from bqfd_jax.training.setup import make_loop, make_setup
from bqfd_jax.types import HostEnvironment, HostStep, Row

MAX_EPISODE_STEPS = 100_000

Metrics = dict[str, float | int | None]
# Observations [L, *frame_shape] -> actions [L].
PolicyFunction = Callable[[np.ndarray], Any]


class TrainResult(NamedTuple):
    """What training came to."""

    policy: Policy  # acts greedily by the target network
    state: HostTrainState  # all that was learnt: `state.learner`, `state.replay`
    metrics: list[Metrics]  # losses and training scores, a row per `log_period`


# --- Configs that suit small environments ---

AGENTS = {
    "bqfd": BqfdConfig,
    "dqfd": DqfdConfig,
    "dqn": PddDqnConfig,
    "bootstrapped": BootstrappedConfig,
}
# One set for all environments of a few numbers or small images, and rewards that are not scaled.
_SMALL = {
    "learning_rate": 5e-4,
    "batch_size": 64,
    "gamma": 0.99,
    "target_period": 1,
    "target_step_size": 0.01,
    "one_step_weight": 1.0,
    "n_step_weight": 1.0,
    "n_step": 5,
    # Values of these are often in the hundreds: by errors cut at 1 they would be learnt slowly.
    "huber_delta": 10.0,
    "priority_exponent": 0.4,
    "importance_exponent": 0.6,
}


def small_config(agent: str = "bqfd", *, steps: int) -> AgentConfig:
    """Hyper-parameters for small environments and `steps` agent steps; the same for all of them.

    All agents explore alike, at random in the beginning: who has seen only a demonstration does not
    know what else there is, and a demonstration may be bad.
    """
    if agent not in AGENTS:
        raise ValueError(f"agent is {agent!r}, but must be one of {', '.join(AGENTS)}")
    common = _SMALL | {"epsilon_steps": (0, max(steps // 5, 1)), "epsilon_values": (1.0, 0.02)}
    if agent == "bqfd":
        return BqfdConfig(**common, pretrain_updates=1_000, correct_all_actions=True)
    if agent == "dqfd":
        return DqfdConfig(**common, pretrain_updates=1_000)
    if agent == "bootstrapped":
        return BootstrappedConfig(**_SMALL, ensemble_size=5)
    return PddDqnConfig(**common)


# --- Training ---


def train(
    env: Any,
    demonstrations: FrameDemonstration | Sequence[FrameDemonstration] | None = None,
    config: AgentConfig | None = None,
    *,
    steps: int,
    seed: int = 0,
    num_lanes: int | None = None,
    network: Any = None,
    stack: int = 1,
    update_period: float = 2,
    learning_starts: int = 500,
    replay_rows: int | None = None,
    log_period: int = 1_000,
    on_metrics: Callable[[Metrics], None] | None = None,
    progress: bool = True,
) -> TrainResult:
    """Trains an agent.

    Args:
      env: a gymnasium id, a `gymnasium.vector.VectorEnv`, or any `HostEnvironment`.
      demonstrations: one or several, or none.
      config: of the agent, by whose type it is chosen; BQfD's for small environments unless given
        (DQN's without demonstrations).
      steps: agent steps, over all lanes.
      seed: decides all chance.
      num_lanes: environments side by side, 8 unless given; ids only.
      network: a flax module, a `Network` or a pair `(init, apply)` that gives Q-values `[B, A]`; it
        sees `[B, *frame_shape]`, and `[B, stack, *frame_shape]` if `stack` exceeds 1.  Unless given
        it is chosen by what is seen, see `networks.for_observation`.
      stack: frames per observation.
      update_period: agent steps, over all lanes, per update.
      learning_starts: agent steps before the first update, pre-training apart.
      replay_rows: agent steps that are remembered; all of them, at most a million, unless given.
      log_period: agent steps per row of metrics.
      on_metrics: is called with each row.
      progress: show a bar with speed and time left.

    Returns:
      The policy, the state it was taken from, and metrics.

    Raises:
      ValueError: the environment is of a kind that cannot be learnt, or an option is wrong.
      DemonstrationError: a demonstration does not fit the environment.
      HostEnvironmentError: the environment failed.
      FloatingPointError: the loss is no longer finite.
    """
    for name, value, least in (
        ("steps", steps, 1),
        ("stack", stack, 1),
        ("log_period", log_period, 1),
        ("seed", seed, 0),
        ("learning_starts", learning_starts, 0),
        ("replay_rows", replay_rows, 1),
        ("num_lanes", num_lanes, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")
    if update_period <= 0:
        raise ValueError(f"update_period is {update_period}, but must be greater than 0")
    env = as_environment(env, num_lanes, seed=seed, default_lanes=8)
    given = as_list(demonstrations)
    if config is None:
        config = small_config("bqfd" if given else "dqn", steps=steps)
    made, made_with = make_network(env, network, stack=stack)
    rows = demonstration_rows(env, given, gamma=config.gamma)
    wanted = replay_rows or min(steps, 1_000_000)
    setup = make_setup(
        made,
        config,
        frame_shape=env.frame_shape,
        frame_dtype=env.frame_dtype,
        num_lanes=env.num_lanes,
        rows_per_lane=max(math.ceil(wanted / env.num_lanes), config.n_step + stack + 16),
        stack=stack,
        demonstrations=rows,
    )
    state = setup.init(seed)
    pretraining = range(config.pretrain_updates if given else 0)
    for _ in tqdm(pretraining, "pre-training", unit="update", disable=not progress or not given):
        state = setup.trainer.pretrain(state)
    loop = make_loop(
        setup,
        env,
        state,
        update_period=update_period,
        learning_starts=learning_starts,
        one_call=len(env.frame_shape) == 1,
    )
    metrics: list[Metrics] = []
    with tqdm(total=steps, desc="training", unit="step", disable=not progress) as bar:
        while loop.step < steps:
            scores = loop.run(min(log_period, steps - loop.step))
            loop.state, count, means = setup.trainer.read(loop.state)
            updates = int(loop.state.learner.updates)
            metrics.append(_row(loop.step, updates, scores, int(count), means))
            if not np.isfinite(metrics[-1].get("loss", 0.0)):
                raise FloatingPointError(
                    f"the loss became {metrics[-1]['loss']} before step {loop.step}; try a smaller "
                    f"learning_rate (it is {config.learning_rate}), or look at the rewards"
                )
            bar.update(loop.step - bar.n)
            if on_metrics is not None:
                on_metrics(metrics[-1])
    return TrainResult(
        make_policy(env, made, made_with, config, loop.state.learner.target_params, stack=stack),
        loop.state,
        metrics,
    )


def _row(step: int, updates: int, scores: list[float], count: int, means: Any) -> Metrics:
    values = {name: float(value) for name, value in means.items()} if count else {}
    return {
        "step": step,
        "updates": updates,
        **values,
        "train_episodes": len(scores),
        "train_score": float(np.mean(scores)) if scores else None,
    }


def as_environment(
    env: Any,
    num_lanes: int | None = None,
    *,
    seed: int = 0,
    stream: int = 0,
    default_lanes: int = 1,
) -> HostEnvironment:
    """A `HostEnvironment` as it is; an id or a vector environment as a `GymVector`."""
    if isinstance(env, str):
        return GymVector(env, num_lanes or default_lanes, seed=seed, stream=stream)
    if all(hasattr(env, name) for name in ("num_lanes", "num_actions", "frame_shape")):
        if num_lanes not in (None, env.num_lanes):
            raise ValueError(f"num_lanes is {num_lanes}, but the environment has {env.num_lanes}")
        return env
    return GymVector(env, num_lanes, seed=seed, stream=stream)


def make_network(
    env: HostEnvironment, network: Any = None, *, stack: int = 1, hidden: int = 0
) -> tuple[Network, dict[str, Any] | None]:
    """Someone's own network, or the one that suits an environment and what it was made with."""
    shape = _shape(env, stack)
    if network is not None:
        return own_network(network, **shape), None
    made_with = {"hidden": hidden}
    return chosen_network(made_with, **shape), made_with


def make_policy(
    env: HostEnvironment,
    network: Network,
    made_with: dict[str, Any] | None,
    config: AgentConfig,
    params: Any,
    *,
    stack: int = 1,
) -> Policy:
    """The policy of trained parameters."""
    if isinstance(config, BootstrappedConfig):
        members = {"size": config.ensemble_size, "prior_scale": config.prior_scale}
        network = ensemble(network, members["size"], prior_scale=members["prior_scale"])
        made_with = ({"own": True} if made_with is None else made_with) | members
    return Policy(network=network, params=params, made_with=made_with, **_shape(env, stack))


def _shape(env: HostEnvironment, stack: int) -> dict[str, Any]:
    return {
        "num_actions": env.num_actions,
        "frame_shape": tuple(env.frame_shape),
        "frame_dtype": np.dtype(env.frame_dtype),
        "stack": stack,
    }


# --- Demonstrations ---


def as_list(
    demonstrations: FrameDemonstration | Sequence[FrameDemonstration] | None,
) -> list[FrameDemonstration]:
    """None, one or several, as a list."""
    if demonstrations is None:
        return []
    if isinstance(demonstrations, FrameDemonstration):
        return [demonstrations]
    return list(demonstrations)


def demonstration_rows(
    env: HostEnvironment, demonstrations: Sequence[FrameDemonstration], *, gamma: float
) -> Row | None:
    """Rows of all, one after the other; raises `DemonstrationError` unless they fit."""
    parts = []
    for demonstration in demonstrations:
        fitting = fit_demonstration(env, demonstration)
        rows = demos.frame_rows(fitting, gamma=gamma, log_rewards=False)
        transform = getattr(env, "transform_reward", None)
        if transform is not None:
            rows = rows.replace(reward=np.asarray(transform(rows.reward), np.float32))
        parts.append(rows)
    if not parts:
        return None
    return jax.tree.map(lambda *fields: np.concatenate(fields), *parts)


def fit_demonstration(env: HostEnvironment, demonstration: Any) -> FrameDemonstration:
    """The demonstration with frames of the environment's dtype, if it shows the same things."""
    if not isinstance(demonstration, FrameDemonstration):
        raise DemonstrationError(
            f"a demonstration is a FrameDemonstration here, not a {type(demonstration).__name__}; "
            "see demonstration_from_arrays, record and demos.load"
        )
    title = f"the demonstration {demonstration.name!r}" if demonstration.name else "it"
    if demonstration.num_actions != env.num_actions:
        raise DemonstrationError(
            f"{title} knows {demonstration.num_actions} actions, but the environment has "
            f"{env.num_actions}"
        )
    frames, wanted = demonstration.frames, np.dtype(env.frame_dtype)
    dtype = np.dtype(FRAME_DTYPES.get(frames.dtype.name, frames.dtype))
    if demonstration.frame_shape != tuple(env.frame_shape) or dtype != wanted:
        raise DemonstrationError(
            f"{title} has observations {frames.dtype}{list(demonstration.frame_shape)}, but the "
            f"environment shows {wanted}{list(env.frame_shape)}"
        )
    if frames.dtype == wanted:
        return demonstration
    return dataclasses.replace(demonstration, frames=frames.astype(wanted))


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
        `[T, *frame_shape]` without the last ones, then the last action of an episode that was cut
        off is left out, for what it led to is not there.
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


# --- Playing ---


def record(
    env: Any,
    policy: Policy | PolicyFunction,
    episodes: int,
    *,
    epsilon: float = 0.0,
    seed: int = 0,
    max_steps: int = MAX_EPISODE_STEPS,
    name: str = "recorded",
) -> FrameDemonstration:
    """Plays whole episodes and keeps what was seen and done.

    Args:
      env: a gymnasium id, a vector environment, or any `HostEnvironment`; it is reset.
      policy: a `Policy`, or a function from observations `[L, *frame_shape]` to actions `[L]`.
      episodes: how many.
      epsilon: probability of a random action instead, at every step.
      seed: of those, and of an environment that is made here.
      max_steps: after which an episode is cut off.
      name: of the demonstration.
    """
    _check_playing(episodes, epsilon, max_steps)
    env = as_environment(env, seed=seed, stream=3, default_lanes=min(episodes, 16))
    played = list(_play(env, policy, episodes, epsilon=epsilon, seed=seed, max_steps=max_steps))
    return FrameDemonstration(
        game=getattr(env, "name", type(env).__name__),
        frames=np.concatenate([episode.frames for episode in played]),
        actions=np.concatenate([episode.actions for episode in played]).astype(np.int32),
        rewards=np.concatenate([episode.rewards for episode in played]).astype(np.float32),
        episode_lengths=np.array([len(episode.actions) for episode in played], np.int32),
        terminated=tuple(episode.terminated for episode in played),
        num_actions=env.num_actions,
        name=name,
        origin={"from": "a policy", "epsilon": epsilon, "seed": seed},
    )


def evaluate(
    env: Any,
    policy: Policy | PolicyFunction,
    episodes: int = 10,
    *,
    epsilon: float = 0.0,
    seed: int = 0,
    max_steps: int = MAX_EPISODE_STEPS,
) -> np.ndarray:
    """Undiscounted returns of whole episodes, `[episodes]`; the arguments are those of `record`."""
    _check_playing(episodes, epsilon, max_steps)
    env = as_environment(env, seed=seed, stream=1, default_lanes=min(episodes, 16))
    played = _play(env, policy, episodes, epsilon=epsilon, seed=seed, max_steps=max_steps)
    return np.array([episode.rewards.sum() for episode in played])


def _check_playing(episodes: int, epsilon: float, max_steps: int) -> None:
    for name, value in (("episodes", episodes), ("max_steps", max_steps)):
        if value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 1")
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon is {epsilon}, but must lie in [0, 1]")


class _Episode(NamedTuple):
    frames: np.ndarray  # [T + 1, *frame_shape]
    actions: np.ndarray  # [T]
    rewards: np.ndarray  # [T]
    terminated: bool


def _play(
    env: HostEnvironment,
    policy: Policy | PolicyFunction,
    episodes: int,
    *,
    epsilon: float,
    seed: int,
    max_steps: int,
) -> Iterator[_Episode]:
    """The first episode of every lane, again and again: those that end soon are not preferred."""
    rng = np.random.default_rng([seed, 7])
    while episodes > 0:
        steps, actions = _play_round(env, policy, epsilon, rng, max_steps)
        for lane in range(min(env.num_lanes, episodes)):
            yield _cut_episode(steps, actions, lane)
        episodes -= env.num_lanes


def _play_round(
    env: HostEnvironment,
    policy: Policy | PolicyFunction,
    epsilon: float,
    rng: np.random.Generator,
    max_steps: int,
) -> tuple[list[HostStep], list[np.ndarray]]:
    """Steps until the first episode of each lane is over, and the actions between them."""
    steps, actions = [env.reset()], []
    ended = np.zeros(env.num_lanes, bool)
    stack = policy.stack if isinstance(policy, Policy) else 1
    seen = np.repeat(steps[0].frame[:, None], stack, axis=1)  # [L, S, *frame_shape]
    while not ended.all() and len(actions) < max_steps:
        observations = seen if stack > 1 else seen[:, 0]
        chosen = policy.act(observations) if isinstance(policy, Policy) else policy(observations)
        chosen = np.broadcast_to(np.asarray(chosen), (env.num_lanes,))
        random = rng.integers(env.num_actions, size=env.num_lanes)
        chosen = np.where(rng.random(env.num_lanes) < epsilon, random, chosen)
        actions.append(chosen)
        steps.append(env.step(chosen))
        ended |= steps[-1].is_last
        seen = np.concatenate([seen[:, 1:], steps[-1].frame[:, None]], axis=1)
        seen[steps[-1].is_first] = steps[-1].frame[steps[-1].is_first][:, None]
    return steps, actions


def _cut_episode(steps: list[HostStep], actions: list[np.ndarray], lane: int) -> _Episode:
    lasts = [t for t, step in enumerate(steps) if step.is_last[lane]]
    length = lasts[0] if lasts else len(actions)
    return _Episode(
        frames=np.stack([step.frame[lane] for step in steps[: length + 1]]),
        actions=np.array([chosen[lane] for chosen in actions[:length]]),
        rewards=np.array([step.score_reward[lane] for step in steps[1 : length + 1]]),
        terminated=bool(lasts) and bool(steps[length].discount[lane] == 0),
    )
