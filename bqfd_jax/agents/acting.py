"""From Q-values to actions for all lanes at once, with the exploration a config asks for."""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import exploration, schedules
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


def act(
    apply: Callable[[Params, Array], Array],
    config: AgentConfig,
    key: Array,
    params: Params,
    actor: ActorState,
    observation: Array,
    is_first: Array,
    step: Array,
) -> tuple[Array, ActorState]:
    """One action per lane.

    Args:
      apply: the network; Q-values `[L, A]`, or `[L, K, A]` of an ensemble, of which each episode
        follows one member.
      config: exploration and its schedule.
      key: consumed.
      params: of the network that acts.
      actor: what was remembered.
      observation: `[L, S, *frame_shape]`.
      is_first: whether it begins an episode, `[L]` bool.
      step: the agent step that schedules look at.

    Returns:
      Actions, `[L]` int32, and what to remember.
    """
    member_key, action_key = jax.random.split(key)
    q = apply(params, observation)
    if q.ndim == 3:
        fresh = jax.random.randint(member_key, is_first.shape, 0, q.shape[1])
        actor = actor.replace(member=jnp.where(is_first, fresh, actor.member))
        q = jnp.take_along_axis(q, actor.member[:, None, None], axis=1)[:, 0]
    chex.assert_rank(q, 2)
    keys = jax.random.split(action_key, is_first.shape[0])
    if not any(config.epsilon_values):
        return jax.vmap(exploration.greedy)(keys, q), actor
    epsilon = schedules.piecewise_linear(config.epsilon_steps, config.epsilon_values)(step)
    if config.exploration == "epsilon":
        pick = jax.vmap(exploration.epsilon_greedy, in_axes=(0, 0, None))
        return pick(keys, q, epsilon), actor
    pick = functools.partial(
        exploration.ez_greedy, exponent=config.ez_exponent, max_repeat=config.ez_max_repeat
    )
    pick = jax.vmap(pick, in_axes=(0, 0, 0, 0, None))
    action, ez = pick(keys, q, actor.ez, is_first, epsilon)
    return action, actor.replace(ez=ez)
