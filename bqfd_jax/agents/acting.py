"""From Q-values to actions for all lanes at once, with the exploration a config asks for."""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import exploration
from bqfd_jax.agents.config import AgentConfig
from bqfd_jax.types import Array, Params


@chex.dataclass(frozen=True)
class ActorState:
    """What acting remembers from step to step."""

    ez: exploration.EzGreedyState  # fields [L]
    member: Array  # [L] int32, which network of an ensemble each lane's episode follows


def init_actor(num_lanes: int) -> ActorState:
    """The state before any action."""
    ez = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_lanes,)), exploration.ez_greedy_init())
    return ActorState(ez=ez, member=jnp.zeros(num_lanes, jnp.int32))


def make_act(
    apply: Callable[[Params, Array], Array], config: AgentConfig, *, ensemble_size: int = 0
) -> Callable[..., tuple[Array, Any]]:
    """`act(params, actor, observation, is_first, key, step)` -> (actions `[L]`, actor).

    Args:
      apply: the network; Q-values `[L, A]`, or `[L, K, A]` with an ensemble.
      config: exploration and its schedule.
      ensemble_size: K, or 0 for a single network.  Each episode follows one member.

    Returns:
      The function; `observation` is `[L, S, ...]`, `is_first` `[L]`, `step` the agent step.
    """
    epsilon_at = exploration.linear_schedule(config.epsilon_steps, config.epsilon_values)
    explores = any(config.epsilon_values)

    def act(
        params: Params,
        actor: ActorState,
        observation: Array,
        is_first: Array,
        key: Array,
        step: Array,
    ) -> tuple[Array, ActorState]:
        num_lanes = is_first.shape[0]
        member_key, action_key = jax.random.split(key)
        q = apply(params, observation)
        if ensemble_size:
            fresh = jax.random.randint(member_key, (num_lanes,), 0, ensemble_size)
            actor = actor.replace(member=jnp.where(is_first, fresh, actor.member))
            q = jnp.take_along_axis(q, actor.member[:, None, None], axis=1)[:, 0]
        chex.assert_rank(q, 2)
        keys = jax.random.split(action_key, num_lanes)
        if not explores:
            return jax.vmap(exploration.greedy)(keys, q), actor
        epsilon = epsilon_at(step)
        if config.exploration == "epsilon":
            pick = jax.vmap(exploration.epsilon_greedy, in_axes=(0, 0, None))
            return pick(keys, q, epsilon), actor

        def pick_ez(key: Array, q: Array, ez: exploration.EzGreedyState, is_first: Array) -> Any:
            return exploration.ez_greedy(
                key,
                q,
                ez,
                is_first,
                epsilon,
                exponent=config.ez_exponent,
                max_repeat=config.ez_max_repeat,
            )

        action, ez = jax.vmap(pick_ez)(keys, q, actor.ez, is_first)
        return action, actor.replace(ez=ez)

    return act
