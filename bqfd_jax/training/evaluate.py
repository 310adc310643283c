"""Playing whole episodes: the one player that evaluations, recordings and films share."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks, exploration
from bqfd_jax.envs import host
from bqfd_jax.replay.rows import push_frame
from bqfd_jax.types import Array, HostEnvironment, HostStep, Params


class Evaluation(NamedTuple):
    """What one episode in every lane came to."""

    scores: np.ndarray  # [L] float64, sums of the game's own rewards
    lengths: np.ndarray  # [L] int64, agent steps
    truncated: np.ndarray  # [L] bool, cut off by a time limit
    guarded: np.ndarray  # [L] int64, steps at which something else was done than was chosen


Choose = Callable[[HostStep], np.ndarray]  # what all lanes show -> actions [L]
OnStep = Callable[[HostStep], bool | None]
Evaluate = Callable[..., Evaluation]


def play(
    env: HostEnvironment,
    choose: Choose,
    *,
    max_steps: int | None = None,
    on_step: OnStep | None = None,
) -> Evaluation:
    """Plays one episode in every lane.

    A lane's first episode counts and no other: otherwise short ones would be counted more often.

    Args:
      env: environments that nobody else steps; they are reset.
      choose: actions of all lanes; those of lanes whose episode has ended do not matter.
      max_steps: after which all episodes are cut off.
      on_step: is called with every `HostStep`, the first included, and may return True to stop.
    """
    scores = host.Scores(env.num_lanes)
    ended = np.zeros(env.num_lanes, bool)
    truncated = np.zeros(env.num_lanes, bool)
    final = np.zeros(env.num_lanes)
    lengths = np.zeros(env.num_lanes, np.int64)
    guarded = np.zeros(env.num_lanes, np.int64)
    step, time = env.reset(), 0
    while True:
        scores.see(step)
        final = np.where(ended, final, scores.running)
        truncated |= step.is_last & ~ended & (step.discount > 0)
        ended |= step.is_last
        stop = on_step is not None and on_step(step)
        if time == max_steps:
            truncated |= ~ended
        if ended.all() or stop or time == max_steps:
            return Evaluation(final, lengths, truncated, guarded)
        lengths += ~ended
        chosen = np.asarray(choose(step))
        step, time = env.step(chosen), time + 1
        if step.action is not None:
            guarded += (step.action != chosen) & ~ended


def make_evaluate(
    q_values: Callable[[Params, Array], Array],
    env: HostEnvironment,
    *,
    stack: int = 1,
    epsilon: float = 0.001,
    temperature: float = 0.0,
    max_steps: int | None = None,
) -> Evaluate:
    """A function that plays one episode in every lane by a network and gives their scores.

    Args:
      q_values: an agent's, from `[L, S, *frame_shape]` to `[L, A]`.
      env: as for `play`.
      stack: frames per observation.
      epsilon: probability of a random action.
      temperature: actions are drawn from `softmax(q / temperature)`; 0 takes the best.
      max_steps: as for `play`.

    Returns:
      `evaluate(key, params, on_step=None)` -> `Evaluation`; see `play`.  The key is consumed.
    """
    checks.within(0, 1, epsilon=epsilon)
    checks.at_least(0, temperature=temperature)

    def evaluate(key: Array, params: Params, on_step: OnStep | None = None) -> Evaluation:
        observation = jnp.zeros((env.num_lanes, stack, *env.frame_shape), env.frame_dtype)
        time = 0

        def choose(step: HostStep) -> np.ndarray:
            nonlocal observation, time
            observation, actions = _act(
                q_values,
                epsilon,
                temperature,
                key,
                params,
                observation,
                step.frame,
                step.is_first,
                np.int32(time),
            )
            time += 1
            return np.asarray(actions)

        return play(env, choose, max_steps=max_steps, on_step=on_step)

    return evaluate


# Compiled once for all who play by the same function, such as the runs of a group.
@functools.partial(jax.jit, static_argnums=(0, 1, 2), donate_argnums=5)
def _act(
    q_values: Callable[[Params, Array], Array],
    epsilon: float,
    temperature: float,
    key: Array,
    params: Params,
    observation: Array,
    frame: Array,
    is_first: Array,
    time: Array,
) -> tuple[Array, Array]:
    observation = push_frame(observation, frame, is_first)
    keys = jax.random.split(jax.random.fold_in(key, time), observation.shape[0])
    q = q_values(params, observation)
    if temperature:
        drawn = jax.vmap(exploration.boltzmann, in_axes=(0, 0, None))(keys, q, temperature)
        # Epsilon-greedy among values of which the drawn action's is the greatest.
        q = jax.nn.one_hot(drawn, q.shape[-1])
        keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, 1)
    pick = jax.vmap(exploration.epsilon_greedy, in_axes=(0, 0, None))
    return observation, pick(keys, q, epsilon)
