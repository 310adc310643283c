"""Playing somebody's policy: recording what it does, and how well it does it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from bqfd_jax import checks
from bqfd_jax.demos import FrameDemonstration
from bqfd_jax.envs.atari import Atari
from bqfd_jax.envs.gymnasium import GymVector
from bqfd_jax.policy import Policy, PolicyError
from bqfd_jax.streams import RECORDED_ACTIONS, EnvStream
from bqfd_jax.training.evaluate import play
from bqfd_jax.types import HostEnvironment, HostStep

MAX_EPISODE_STEPS = 100_000
# Observations [L, *frame_shape] -> actions [L].
PolicyFunction = Callable[[np.ndarray], Any]


def atari_game(env: Any) -> str | None:
    """`Breakout` of `atari:Breakout` or `ALE/Breakout-v5`; None if `env` is no Atari game's id.

    Atari games are always played by envpool with the paper's preprocessing.
    """
    if not isinstance(env, str):
        return None
    if env.startswith("atari:"):
        return env.removeprefix("atari:")
    if env.startswith("ALE/"):
        return env.removeprefix("ALE/").rsplit("-v", 1)[0]
    return None


def is_recipe(env: Any) -> bool:
    """Whether an environment is yet to be made: of an id, by a function or a class."""
    is_maker = isinstance(env, type) or (callable(env) and not hasattr(env, "step"))
    return isinstance(env, str) or is_maker


def as_environment(
    env: Any,
    num_lanes: int | None = None,
    *,
    seed: int = 0,
    stream: EnvStream = EnvStream.TRAINING,
    default_lanes: int = 1,
    fire_after: int = 0,
) -> HostEnvironment:
    """Whatever somebody calls an environment, as a `HostEnvironment`.

    Args:
      env: an id of gymnasium's or of an Atari game, a function that makes a `gymnasium.Env`, such
        an environment, a `gymnasium.vector.VectorEnv`, or a `HostEnvironment`, which is given back.
      num_lanes: environments side by side, if they are made here.
      seed: of their beginnings, if they are made here.
      stream: which of a run's environments they are.
      default_lanes: how many, if `num_lanes` is not given.
      fire_after: of an Atari game that is made here, see `envs.atari.Atari`.
    """
    game = atari_game(env)
    if game is not None:
        # Scores are whole games', and a lost life does not end one.
        return Atari(
            game,
            num_lanes=num_lanes or default_lanes,
            seed=seed,
            stream=stream,
            life_loss_is_terminal=False,
            fire_after=fire_after,
        )
    if all(hasattr(env, name) for name in ("num_lanes", "num_actions", "frame_shape")):
        if num_lanes not in (None, env.num_lanes):
            raise checks.OptionError("num_lanes", num_lanes, f"the environment's {env.num_lanes}")
        return env
    lanes = num_lanes or default_lanes if is_recipe(env) else num_lanes
    return GymVector(env, lanes, seed=seed, stream=stream)


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
    env, choose = _prepare(env, policy, episodes, epsilon, seed, max_steps, EnvStream.EVALUATION)
    scores: list[float] = []
    while len(scores) < episodes:
        scores += play(env, choose, max_steps=max_steps).scores.tolist()
    return np.array(scores[:episodes])


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
      env: see `as_environment`; it is reset.
      policy: a `Policy`, which draws its actions if it has a temperature, or a function from
        observations `[L, *frame_shape]` to actions `[L]`.
      episodes: how many.
      epsilon: probability of a random action instead, at every step.
      seed: of those, of actions that are drawn, and of an environment that is made here.
      max_steps: after which an episode is cut off.
      name: of the demonstration.
    """
    env, choose = _prepare(env, policy, episodes, epsilon, seed, max_steps, EnvStream.DEMONSTRATION)
    played: list[FrameDemonstration] = []
    while len(played) < episodes:
        steps: list[HostStep] = []
        actions: list[np.ndarray] = []

        def noting(step: HostStep, actions: list[np.ndarray] = actions) -> np.ndarray:
            actions.append(choose(step))
            return actions[-1]

        play(env, noting, max_steps=max_steps, on_step=steps.append)
        played += [_episode(env, steps, actions, lane) for lane in range(env.num_lanes)]
    origin = {"from": "a policy", "epsilon": epsilon, "seed": seed}
    return FrameDemonstration.join(played[:episodes], name=name, origin=origin)


def _prepare(
    env: Any,
    policy: Policy | PolicyFunction,
    episodes: int,
    epsilon: float,
    seed: int,
    max_steps: int,
    stream: EnvStream,
) -> tuple[HostEnvironment, "_Chooser"]:
    checks.at_least(1, episodes=episodes, max_steps=max_steps)
    checks.within(0, 2**32 - 1, seed=seed)
    checks.within(0, 1, epsilon=epsilon)
    # A policy plays as it was trained; what a function does is its own affair.
    made_by = policy.preprocessing if isinstance(policy, Policy) else None
    env = as_environment(
        env,
        seed=seed,
        stream=stream,
        default_lanes=min(episodes, 16),
        fire_after=(made_by or {}).get("fire_after", 0),
    )
    _check_actions(env, policy)
    return env, _Chooser(env, policy, epsilon, seed)


def _check_actions(env: HostEnvironment, policy: Policy | PolicyFunction) -> None:
    """Refuses a policy that knows more or fewer actions: its numbers would mean something else."""
    if isinstance(policy, Policy) and policy.num_actions != env.num_actions:
        where = f" (it was trained in {policy.environment})" if policy.environment else ""
        raise PolicyError(
            f"the policy knows {policy.num_actions} actions{where}, but the environment "
            f"{getattr(env, 'name', type(env).__name__)} has {env.num_actions}"
        )


class _Chooser:
    """Asks a policy for the actions of all lanes, and now and then takes a random one instead."""

    def __init__(
        self, env: HostEnvironment, policy: Policy | PolicyFunction, epsilon: float, seed: int
    ):
        self._num_lanes, self._num_actions, self._epsilon = env.num_lanes, env.num_actions, epsilon
        self._policy = policy
        self._stack = policy.stack if isinstance(policy, Policy) else 1
        self._random = np.random.default_rng([seed, RECORDED_ACTIONS])
        self._seen: np.ndarray | None = None  # [L, S, *frame_shape]

    def __call__(self, step: HostStep) -> np.ndarray:
        if self._seen is None:
            self._seen = np.repeat(step.frame[:, None], self._stack, axis=1)
        self._seen = np.concatenate([self._seen[:, 1:], step.frame[:, None]], axis=1)
        self._seen[step.is_first] = step.frame[step.is_first][:, None]
        observations = self._seen if self._stack > 1 else self._seen[:, 0]
        chosen = np.broadcast_to(self._asked(observations), (self._num_lanes,))
        random = self._random.integers(self._num_actions, size=self._num_lanes)
        return np.where(self._random.random(self._num_lanes) < self._epsilon, random, chosen)

    def _asked(self, observations: np.ndarray) -> np.ndarray:
        if isinstance(self._policy, Policy):
            return self._policy.act(observations, self._random)
        return np.asarray(self._policy(observations))


def _episode(
    env: HostEnvironment, steps: list[HostStep], actions: list[np.ndarray], lane: int
) -> FrameDemonstration:
    """The first episode of a lane."""
    lasts = [t for t, step in enumerate(steps) if step.is_last[lane]]
    length = lasts[0] if lasts else len(actions)
    taken = [
        chosen if following.action is None else following.action
        for chosen, following in zip(actions, steps[1:], strict=True)
    ]
    lives = np.array([step.lives[lane] for step in steps[: length + 1]], np.int32)
    return FrameDemonstration(
        game=getattr(env, "name", type(env).__name__),
        frames=np.stack([step.frame[lane] for step in steps[: length + 1]]),
        actions=np.array([done[lane] for done in taken[:length]], np.int32),
        rewards=np.array([step.score_reward[lane] for step in steps[1 : length + 1]], np.float32),
        episode_lengths=np.array([length], np.int32),
        terminated=(bool(lasts) and bool(steps[length].discount[lane] == 0),),
        num_actions=env.num_actions,
        # Where there are none they are 0 throughout.
        lives=lives if lives.any() else None,
    )
