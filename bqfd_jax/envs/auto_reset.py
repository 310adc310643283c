"""Episodes back to back, for environments whose raw step never resets itself."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from bqfd_jax.types import Array, Environment, EnvStep

AutoResetStep = Callable[[Array, Any, Any, Array], tuple[Any, EnvStep, Array]]


def auto_reset(env: Environment) -> AutoResetStep:
    """Wraps the raw step so that an episode that ended is followed by a new one.

    What was learnt from the step and where acting goes on are returned apart,
    `step(key, params, state, action) -> (state, env_step, next_observation)`.  The `EnvStep` always
    holds the real last observation, from which a truncated episode must bootstrap; if the episode
    ended, `state` and `next_observation` are those of a fresh reset.  The key is consumed.
    """

    def step(key: Array, params: Any, state: Any, action: Array) -> tuple[Any, EnvStep, Array]:
        step_key, reset_key = jax.random.split(key)
        state, env_step = env.step(step_key, params, state, action)
        fresh = env.reset(reset_key, params)
        ended = env_step.terminated | env_step.truncated
        state, next_observation = jax.tree.map(
            lambda new, old: jnp.where(ended, new, old), fresh, (state, env_step.observation)
        )
        return state, env_step, next_observation

    return step
