"""How well a policy plays: whole episodes in environments of their own."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import exploration
from bqfd_jax.envs import host
from bqfd_jax.replay.rows import push_frame
from bqfd_jax.types import Array, HostEnvironment, HostStep, Params


class Evaluation(NamedTuple):
    """What one episode in every lane came to."""

    scores: np.ndarray  # [L] float64, sums of the game's own rewards
    lengths: np.ndarray  # [L] int64, agent steps
    truncated: np.ndarray  # [L] bool, cut off by the time limit


Evaluate = Callable[..., Evaluation]


def make_evaluate(
    q_values: Callable[[Params, Array], Array],
    env: HostEnvironment,
    *,
    stack: int = 1,
    epsilon: float = 0.001,
) -> Evaluate:
    """A function that plays one episode in every lane and gives their scores.

    Args:
      q_values: an agent's `q_values`, from `[L, S, *frame_shape]` to `[L, A]`.
      env: environments that nobody else steps; they are reset each time.
      stack: frames per observation.
      epsilon: probability of a random action.

    Returns:
      `evaluate(params, key, on_step=None)` -> `Evaluation`.  A lane's first episode counts and no
      other, for what ends soon would be counted more often.  `on_step` is called with every
      `HostStep`, the first included, and may return True to stop early.
    """
    if not 0 <= epsilon <= 1:
        raise ValueError(f"epsilon is {epsilon}, but must lie in [0, 1]")

    def act(
        params: Params, observation: Array, frame: Array, is_first: Array, key: Array, time: Array
    ) -> tuple[Array, Array]:
        observation = push_frame(observation, frame, is_first)
        keys = jax.random.split(jax.random.fold_in(key, time), env.num_lanes)
        pick = jax.vmap(exploration.epsilon_greedy, in_axes=(0, 0, None))
        return observation, pick(keys, q_values(params, observation), epsilon)

    act = jax.jit(act, donate_argnums=1)

    def evaluate(
        params: Params, key: Array, on_step: Callable[[HostStep], bool | None] | None = None
    ) -> Evaluation:
        observation = jnp.zeros((env.num_lanes, stack, *env.frame_shape), env.frame_dtype)
        scores = host.Scores(env.num_lanes)
        ended = np.zeros(env.num_lanes, bool)
        truncated = np.zeros(env.num_lanes, bool)
        final = np.zeros(env.num_lanes)
        lengths = np.zeros(env.num_lanes, np.int64)
        step, time = env.reset(), 0
        while True:
            scores.see(step)
            final = np.where(ended, final, scores.running)
            ends_now = step.is_last & ~ended
            truncated |= ends_now & (step.discount > 0)
            ended |= step.is_last
            stop = on_step is not None and on_step(step)
            if ended.all() or stop:
                return Evaluation(scores=final, lengths=lengths, truncated=truncated)
            lengths += ~ended
            observation, actions = act(
                params, observation, step.frame, step.is_first, key, np.int32(time)
            )
            step, time = env.step(np.asarray(actions)), time + 1

    return evaluate
