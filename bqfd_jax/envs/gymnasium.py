"""Any gymnasium environment with discrete actions, in batches.

gymnasium's vector environments begin new episodes by themselves, in one of two ways.  With
`NEXT_STEP` the step after an episode's last ignores its action and returns the reset; that is what
a `HostStep` shows.  With `SAME_STEP` the last observation lies aside and the reset comes at once.
To show both, one after the other, a lane whose episode has ended must wait for one step, but all
lanes of a vector environment step together.  So it takes one step that nobody sees, and is then
reset again, alone.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bqfd_jax import checks
from bqfd_jax.envs import gym_making
from bqfd_jax.envs.host import HostEnvironmentError, checked_actions
from bqfd_jax.types import HostStep

# What jax would make of them anyway.  Truth values become numbers that are no grey levels.
FRAME_DTYPES = {"float64": np.float32, "int64": np.int32, "uint64": np.int32, "bool": np.int8}

_DEFAULT_FPS = 30  # of films


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
        resumed_at: int = 0,
        transform_reward: Callable[[np.ndarray], np.ndarray] | None = None,
        wrappers: Sequence[Callable[[Any], Any]] = (),
        max_episode_steps: int | None = None,
        vectorization_mode: str | None = None,
        render: bool = False,
        options: dict[str, Any] | None = None,
    ):
        """Makes the environments, or takes over those that are given.

        Args:
          env: an id for `gymnasium.make_vec`, a `gymnasium.vector.VectorEnv`, a single
            `gymnasium.Env`, or a function that makes one.
          num_lanes: environments side by side, 1 unless given; a vector environment has its own,
            and a single one is one.
          seed: of the first resets; no two lanes, seeds or streams have the same.
          stream: which of a run's environments these are: training must not share its episodes'
            beginnings with evaluation.
          resumed_at: step at which a run goes on, so that it does not begin as before; 0 for a new
            one.
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
        checks.at_least(0, seed=seed, stream=stream, resumed_at=resumed_at)
        self._env = gym_making.make_vector(
            env,
            num_lanes,
            wrappers=wrappers,
            max_episode_steps=max_episode_steps,
            vectorization_mode=vectorization_mode,
            render=render,
            options=options,
        )
        self.name = env if isinstance(env, str) else gym_making.name_of(self._env)
        self.num_lanes = int(self._env.num_envs)
        actions = gym_making.check_actions(self.name, self._env.single_action_space)
        self.num_actions, self._first_action = int(actions.n), int(actions.start)
        space = gym_making.check_observations(self.name, self._env.single_observation_space)
        self.frame_shape = tuple(space.shape)
        self.frame_dtype = np.dtype(FRAME_DTYPES.get(space.dtype.name, space.dtype))
        self._resets_itself = gym_making.resets_on_next_step(self.name, self._env)
        self.transform_reward = transform_reward
        self.fps = self._env.metadata.get("render_fps") or _DEFAULT_FPS
        self._seed: Any = gym_making.seeds_of(self._env, seed, stream, resumed_at)
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
        actions = checked_actions(actions, self.name, self.num_lanes, self.num_actions)
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
            # Of a copy, because the environment may take the mask out of it.
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
