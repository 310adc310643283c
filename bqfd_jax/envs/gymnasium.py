"""Any gymnasium environment with discrete actions, in batches: the only module that knows it.

gymnasium's vector environments begin new episodes by themselves, in one of two ways.  With
`NEXT_STEP` the step after an episode's last ignores its action and returns the reset; that is what
a `HostStep` shows.  With `SAME_STEP` the last observation lies aside and the reset comes at once.
To show both, one after the other, a lane whose episode has ended must wait for one step, but all
lanes of a vector environment step together.  So it takes one step that nobody sees, and is then
reset again, alone.
"""

import difflib
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bqfd_jax import checks
from bqfd_jax.envs.host import HostEnvironmentError
from bqfd_jax.types import HostStep

# What jax would make of them anyway.  Truth values become numbers that are no grey levels.
FRAME_DTYPES = {"float64": np.float32, "int64": np.int32, "uint64": np.int32, "bool": np.int8}


def environments() -> tuple[str, ...]:
    """Ids of all environments that are registered."""
    return tuple(sorted(_gymnasium().registry))


def time_limit(env: str) -> int | None:
    """Steps after which episodes of an environment are truncated; None: never."""
    gymnasium = _gymnasium()
    # `make` imports the module that an id may name, `spec` does not.
    module, _, name = env.rpartition(":")
    if module:
        importlib.import_module(module)
    # It also takes the latest version of an id that names none.
    registration = importlib.import_module("gymnasium.envs.registration")
    namespace, plain, version = registration.parse_env_id(name)
    if version is None:
        version = registration.find_highest_version(namespace, plain)
        name = registration.get_env_id(namespace, plain, version)
    return gymnasium.spec(name).max_episode_steps


class GymVector:
    """Lanes of one environment, side by side; a `HostEnvironment`.

    Termination is discount 0, truncation (a time limit) is not.  Observations of 64 bits become 32.
    """

    def __init__(
        self,
        env: Any,
        num_lanes: int | None = None,
        *,
        seed: int = 0,
        stream: int = 0,
        transform_reward: Callable[[np.ndarray], np.ndarray] | None = None,
        wrappers: Sequence[Callable[[Any], Any]] = (),
        max_episode_steps: int | None = None,
        vectorization_mode: str | None = None,
        render: bool = False,
        options: dict[str, Any] | None = None,
    ):
        """Makes the environments, or takes over those that are given.

        Args:
          env: an id for `gymnasium.make_vec`, or a `gymnasium.vector.VectorEnv`.
          num_lanes: environments side by side, 1 unless given; a vector environment has its own.
          seed: of the first resets; no two lanes, seeds or streams have the same.
          stream: which of a run's environments these are: training must not share its episodes'
            beginnings with evaluation.
          transform_reward: from the rewards `[L]` to those that are learnt from.
          wrappers: applied to each single environment, the first one innermost; ids only.
          max_episode_steps: after which an episode is truncated, if not the environment's own; ids
            only.
          vectorization_mode: of `make_vec`; ids only.
          render: `render` will be called; ids only.
          options: further arguments of the environment; ids only.

        Raises:
          ValueError: there is no such environment, or it is of a kind that cannot be learnt here.
        """
        checks.at_least(0, seed=seed, stream=stream)
        made_here = {
            "wrappers": wrappers,
            "max_episode_steps": max_episode_steps,
            "vectorization_mode": vectorization_mode,
            "render": render,
            "options": options,
        }
        if isinstance(env, str):
            self._env = _make(env, 1 if num_lanes is None else num_lanes, **made_here)
        else:
            self._env = _check_given(env, num_lanes, made_here)
        self.name = env if isinstance(env, str) else _name(env)
        self.num_lanes = int(self._env.num_envs)
        actions = _check_actions(self.name, self._env.single_action_space)
        self.num_actions, self._first_action = int(actions.n), int(actions.start)
        space = _check_observations(self.name, self._env.single_observation_space)
        self.frame_shape = tuple(space.shape)
        self.frame_dtype = np.dtype(FRAME_DTYPES.get(space.dtype.name, space.dtype))
        self._resets_itself = _resets_on_next_step(self.name, self._env)
        self.transform_reward = transform_reward
        self._seed: Any = _seeds(self._env, self.num_lanes, seed, stream)
        self._ended: np.ndarray | None = None  # [L] bool, at the newest step
        self._time = 0

    def reset(self) -> HostStep:
        """Begins a new episode in every lane."""
        # Later ones go on with the generators that the first has seeded.
        seed, self._seed = self._seed, None
        frame, _ = self._call("reset", self._env.reset, seed=seed)
        self._ended = np.zeros(self.num_lanes, bool)
        nothing = np.zeros(self.num_lanes, np.float32)
        return self._show(frame, nothing, nothing, is_first=np.ones(self.num_lanes, bool))

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes one action per lane, `[L]` integers; ignored in lanes whose episode has ended."""
        if self._ended is None:
            raise RuntimeError("reset must be called before step")
        actions = np.asarray(actions)
        if actions.shape != (self.num_lanes,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"actions are {actions.dtype}{list(actions.shape)}, but must be {self.num_lanes} "
                "integers"
            )
        if actions.min() < 0 or actions.max() >= self.num_actions:
            raise ValueError(
                f"actions must lie in 0 .. {self.num_actions - 1} in {self.name}, but are {actions}"
            )
        self._time += 1
        is_first = self._ended
        frame, reward, terminated, truncated, info = self._call(
            "step", self._env.step, actions.astype(np.int64) + self._first_action
        )
        terminated = np.asarray(terminated, bool) & ~is_first
        self._ended = (terminated | np.asarray(truncated, bool)) & ~is_first
        if not self._resets_itself:
            frame = self._unfold(frame, info, is_first)
        reward = np.where(is_first, 0, reward).astype(np.float32)
        discount = np.where(terminated | is_first, 0, 1).astype(np.float32)
        return self._show(frame, reward, discount, is_first=is_first)

    def render(self) -> np.ndarray:
        """The first lane's picture as people see it, `[H, W, 3]` uint8."""
        picture = self._call("render", self._env.render)
        return np.array(picture[0], np.uint8)

    def close(self) -> None:
        """Ends the environments' processes and windows, if they have any."""
        self._env.close()

    def _unfold(self, frame: np.ndarray, info: dict[str, Any], is_first: np.ndarray) -> np.ndarray:
        """`SAME_STEP`: the last observation of what ended, a fresh one of what begins."""
        frame = np.array(frame)
        if self._ended.any():
            if "final_obs" not in info:
                raise HostEnvironmentError(
                    f"{self.name} resets in the same step, but does not tell its last observations "
                    "(info['final_obs']); make it with autoreset_mode NEXT_STEP"
                )
            for lane in np.flatnonzero(self._ended):
                frame[lane] = info["final_obs"][lane]
        if is_first.any():
            # Of a copy, for the environment may take the mask out of it.
            fresh, _ = self._call("reset", self._env.reset, options={"reset_mask": is_first.copy()})
            others = ~is_first & ~self._ended
            if not np.array_equal(np.asarray(fresh)[others], frame[others], equal_nan=True):
                raise HostEnvironmentError(
                    f"{self.name} resets in the same step and cannot reset single lanes "
                    "(options['reset_mask']); make it with autoreset_mode NEXT_STEP"
                )
            frame[is_first] = np.asarray(fresh)[is_first]
        return frame

    def _show(
        self, frame: np.ndarray, reward: np.ndarray, discount: np.ndarray, *, is_first: np.ndarray
    ) -> HostStep:
        frame = self._checked_frame(frame)
        learnt = reward
        if self.transform_reward is not None:
            learnt = np.asarray(self.transform_reward(reward), np.float32)
        for value, what in ((reward, "reward"), (learnt, "transformed reward")):
            self._check_finite(value, what)
        return HostStep(
            frame=frame,
            reward=learnt,
            discount=discount,
            is_first=is_first,
            is_last=self._ended,
            score_reward=reward,
            lives=np.zeros(self.num_lanes, np.int32),
        )

    def _checked_frame(self, frame: Any) -> np.ndarray:
        # A copy: the environment may write its next observations into the same memory while the
        # device still reads these.
        frame = np.array(frame, self.frame_dtype)
        if frame.shape != (self.num_lanes, *self.frame_shape):
            raise HostEnvironmentError(
                f"{self.name} showed observations of shape {list(frame.shape)} at step "
                f"{self._time}, but its space promises {[self.num_lanes, *self.frame_shape]}"
            )
        if frame.dtype.kind == "f":
            self._check_finite(frame, "observation")
        return frame

    def _check_finite(self, values: np.ndarray, what: str) -> None:
        if np.isfinite(values).all():
            return
        finite = np.isfinite(values.reshape(self.num_lanes, -1)).all(axis=1)
        lane = int(np.flatnonzero(~finite)[0])
        raise HostEnvironmentError(
            f"{self.name}: the {what} of environment {lane} is not finite at step {self._time}: "
            f"{np.array2string(values[lane], threshold=8, edgeitems=4)}"
        )

    def _call(self, what: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Calls the environment; whatever it raises says where it came from."""
        try:
            return function(*arguments, **named)
        except Exception as error:
            raise HostEnvironmentError(
                f"{self.name} failed in {what} number {self._time}: {type(error).__name__}: {error}"
            ) from error


# --- What can be learnt here, and what cannot ---


def _check_actions(name: str, space: Any) -> Any:
    spaces = _gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return space
    advice = "only discrete actions can be learnt here"
    if isinstance(space, spaces.Box):
        advice += "; cut continuous ones into a few (gymnasium.wrappers.DiscretizeAction)"
    elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        advice += "; number all combinations in a wrapper, if they are few"
    raise ValueError(f"{name} has actions {space}, but {advice}")


def _check_observations(name: str, space: Any) -> Any:
    spaces = _gymnasium().spaces
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"{name} has observations {space}, but only one array (Box) can be learnt from; wrap "
            "each environment in gymnasium.wrappers.FlattenObservation, or pick one array of it"
        )
    if space.dtype.kind not in "uifb":
        raise ValueError(f"{name} has observations of {space.dtype}, which are no numbers")
    if not 1 <= len(space.shape) <= 3 or 0 in space.shape:
        raise ValueError(
            f"{name} has observations of shape {list(space.shape)}, but they must be vectors or "
            "images, of at most three axes"
        )
    return space


def _resets_on_next_step(name: str, env: Any) -> bool:
    modes = _gymnasium().vector.AutoresetMode
    mode = env.metadata.get("autoreset_mode")
    if mode in (modes.NEXT_STEP, modes.SAME_STEP):
        return mode == modes.NEXT_STEP
    raise ValueError(
        f"{name} has the autoreset_mode {mode}, but must begin new episodes by itself: make it "
        "with AutoresetMode.NEXT_STEP, and have its metadata say so"
    )


def _check_given(env: Any, num_lanes: int | None, made_here: dict[str, Any]) -> Any:
    gymnasium = _gymnasium()
    if isinstance(env, gymnasium.Env):
        raise ValueError(
            f"{env} is a single environment; give its id, or put it into a "
            "gymnasium.vector.SyncVectorEnv([make_it, ...])"
        )
    if not isinstance(env, gymnasium.vector.VectorEnv):
        raise ValueError(f"{env!r} is neither an environment's id nor a gymnasium.vector.VectorEnv")
    for name, value in made_here.items():
        if value:
            raise ValueError(f"{name} can be given only with an id; the environment is made")
    if num_lanes is not None and num_lanes != env.num_envs:
        raise ValueError(f"num_lanes is {num_lanes}, but the environment has {env.num_envs}")
    return env


def _make(
    name: str,
    num_lanes: int,
    *,
    wrappers: Sequence[Callable[[Any], Any]],
    max_episode_steps: int | None,
    vectorization_mode: str | None,
    render: bool,
    options: dict[str, Any] | None,
) -> Any:
    gymnasium = _gymnasium()
    checks.at_least(1, num_lanes=num_lanes, max_episode_steps=max_episode_steps)
    if wrappers and vectorization_mode is None:
        # Batched forms of an environment cannot be wrapped one by one.
        vectorization_mode = "sync"
    arguments = dict(options or {})
    if max_episode_steps is not None:
        arguments["max_episode_steps"] = max_episode_steps
    if render:
        arguments["render_mode"] = "rgb_array"
    try:
        return gymnasium.make_vec(
            name,
            num_envs=num_lanes,
            vectorization_mode=vectorization_mode,
            wrappers=list(wrappers) or None,
            **arguments,
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is missing: {error}") from error
    except (gymnasium.error.Error, ImportError) as error:
        close = difflib.get_close_matches(name, environments(), n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(close)}?" if close and name not in close else ""
        raise ValueError(f"no environment {name!r} can be made: {error}{hint}") from error
    except Exception as error:
        # Whatever its own code raises for arguments that it does not take.
        raise ValueError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def _name(env: Any) -> str:
    spec = getattr(env, "spec", None) or getattr(getattr(env, "envs", [None])[0], "spec", None)
    return spec.id if spec is not None else type(env.unwrapped).__name__


def _seeds(env: Any, num_lanes: int, seed: int, stream: int) -> int | list[int]:
    """One for each lane, far from those of other seeds and streams, or one for all."""
    vector = _gymnasium().vector
    words = np.random.SeedSequence([seed, stream]).generate_state(num_lanes)
    seeds = (words >> 1).tolist()
    # Batched forms of an environment have a single generator.
    single = isinstance(env.unwrapped, vector.SyncVectorEnv | vector.AsyncVectorEnv)
    return seeds if single else seeds[0]


_MISSING = "this needs gymnasium, which is not installed: pip install 'bqfd-jax[gym]'"


def _gymnasium() -> Any:
    try:
        import gymnasium
    except ImportError as error:
        raise ImportError(_MISSING) from error
    if not hasattr(gymnasium.vector, "AutoresetMode"):
        raise ImportError(
            f"this needs gymnasium 1.1 or later, but {gymnasium.__version__} is installed: "
            "pip install -U gymnasium"
        )
    return gymnasium
