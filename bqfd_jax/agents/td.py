"""What the agents' losses have in common: looking 1 and n steps ahead of a batch."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import rlax

from bqfd_jax.agents.config import AgentConfig
from bqfd_jax.types import Array, Batch, Params

_SQUASH = 1e-2  # what is left of a large value, linearly

Apply = Callable[[Params, Array], Array]  # observation [B, ...] -> Q-values [B, ..., A]


class Lookahead(NamedTuple):
    """What a TD target is made of, 1 step or n steps on."""

    n_step: bool
    weight: float  # of its TD loss
    reward: Array  # [B]
    discount: Array  # [B]
    q_value: Array  # [B, ..., A], target network
    q_selector: Array  # [B, ..., A], online network

    @property
    def target(self) -> tuple[Array, Array, Array, Array]:
        """What `losses.double_q_td_error` takes after the state's own values and the action."""
        return self.reward, self.discount, self.q_value, self.q_selector


def lookaheads(
    apply: Apply, params: Params, target_params: Params, batch: Batch, config: AgentConfig
) -> list[Lookahead]:
    """The lookaheads that have weight; each network is called once for all of them."""
    n_steps = [n for n in (False, True) if _weight(config, n) > 0]
    observation = jnp.concatenate(
        [batch.n_step_observation if n else batch.next_observation for n in n_steps]
    )
    # Targets are constants: stopping here spares the backward pass as well.
    q_selectors = jnp.split(apply(jax.lax.stop_gradient(params), observation), len(n_steps))
    q_values = jnp.split(apply(target_params, observation), len(n_steps))
    looks = [
        Lookahead(
            n_step=n,
            weight=_weight(config, n),
            reward=batch.n_step_return if n else batch.reward,
            discount=batch.n_step_discount if n else batch.discount,
            q_value=q_value,
            q_selector=q_selector,
        )
        for n, q_value, q_selector in zip(n_steps, q_values, q_selectors, strict=True)
    ]
    return [squashed(look) for look in looks] if config.squash_values else looks


def squashed(look: Lookahead) -> Lookahead:
    """The same lookahead for networks whose Q-values are `h` of what is earned.

    The target of action b is `h(r + discount h^-1(q(b)))`.  As h is monotonous, the best action is
    still the one whose value is largest.  Pohlen et al.: "Observe and Look Further" (2018).
    """
    reward, discount = (
        x.reshape(-1, *[1] * (look.q_value.ndim - 1)) for x in (look.reward, look.discount)
    )
    # The usual 1e-3 would leave large values hardly apart.
    target = reward + discount * rlax.signed_parabolic(look.q_value, _SQUASH)
    return look._replace(
        reward=jnp.zeros_like(look.reward),
        discount=jnp.ones_like(look.discount),
        q_value=squash(target),
    )


def squash(value: Array) -> Array:
    """`h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 100`, elementwise."""
    return rlax.signed_hyperbolic(value, _SQUASH)


def td_loss(td_error: Array, *, huber_delta: float) -> Array:
    """Half the squared error, or its Huber form; elementwise."""
    if huber_delta > 0:
        return rlax.huber_loss(td_error, huber_delta)
    return 0.5 * jnp.square(td_error)


def _weight(config: AgentConfig, n_step: bool) -> float:
    return config.n_step_weight if n_step else config.one_step_weight
