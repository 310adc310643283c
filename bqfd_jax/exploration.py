"""How an agent picks actions: greedy, epsilon-greedy, Boltzmann, ez-greedy.

Functions take one state's Q-values; the caller vmaps.  Keys are consumed.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax.types import Array


def greedy(key: Array, q: Array) -> Array:
    """An action of greatest value, `[]` int32; ties are broken at random."""
    return epsilon_greedy(key, q, 0.0)


def epsilon_greedy(key: Array, q: Array, epsilon: Array) -> Array:
    """A uniform action with probability `epsilon`, else a greedy one, `[]` int32."""
    chex.assert_rank(q, 1)
    best = q == jnp.max(q)
    probability = (1 - epsilon) * best / jnp.sum(best) + epsilon / q.shape[0]
    return jax.random.categorical(key, jnp.log(probability)).astype(jnp.int32)


def boltzmann(key: Array, q: Array, temperature: float) -> Array:
    """An action by `softmax(q / temperature)`, `[]` int32."""
    chex.assert_rank(q, 1)
    return jax.random.categorical(key, q / temperature).astype(jnp.int32)


@chex.dataclass(frozen=True)
class EzGreedyState:
    """The random action that is being repeated, if any."""

    action: Array  # [] int32
    remaining: Array  # [] int32, further steps it will be repeated


def ez_greedy_init() -> EzGreedyState:
    """No action is being repeated."""
    return EzGreedyState(action=jnp.zeros((), jnp.int32), remaining=jnp.zeros((), jnp.int32))


def ez_greedy(
    key: Array,
    q: Array,
    state: EzGreedyState,
    is_first: Array,
    epsilon: Array,
    *,
    exponent: float = 2.0,
    max_repeat: int = 100,
) -> tuple[Array, EzGreedyState]:
    """Acts greedily, or at random for a zeta-distributed while; an action, `[]` int32, and a state.

    Dabney, Ostrovski, Barreto: "Temporally-Extended epsilon-Greedy Exploration" (2020).
    Each new decision is random with probability `epsilon`; a random action then lasts n steps in
    all, `P(n) ~ n ** -exponent` for n up to `max_repeat`.  A new episode ends the repetition.

    Args:
      key: consumed.
      q: Q-values of the state, `[A]`.
      state: the repetition under way.
      is_first: whether an episode begins here, `[]` bool.
      epsilon: probability of a random action, `[]`.
      exponent: of the zeta distribution (the paper's mu).
      max_repeat: longest repetition.
    """
    chex.assert_rank([q, is_first], [1, 0])
    explore_key, action_key, repeat_key, greedy_key = jax.random.split(key, 4)
    remaining = jnp.where(is_first, 0, state.remaining)
    repeats = remaining > 0
    starts = ~repeats & jax.random.bernoulli(explore_key, epsilon)
    random_action = jax.random.randint(action_key, (), 0, q.shape[0])
    length = zeta_duration(repeat_key, exponent=exponent, max_repeat=max_repeat)
    held = jnp.where(repeats, state.action, random_action)
    action = jnp.where(repeats | starts, held, greedy(greedy_key, q))
    remaining = jnp.where(starts, length - 1, jnp.maximum(remaining - 1, 0))
    return action, EzGreedyState(action=action, remaining=remaining)


def zeta_duration(key: Array, *, exponent: float, max_repeat: int) -> Array:
    """A length n in 1 .. max_repeat with `P(n) ~ n ** -exponent`, `[]` int32."""
    lengths = np.arange(1.0, max_repeat + 1)
    cumulative = np.cumsum(lengths**-exponent)
    uniform = jax.random.uniform(key)
    cdf = jnp.asarray(cumulative / cumulative[-1], jnp.float32)
    return 1 + jnp.searchsorted(cdf[:-1], uniform, side="right").astype(jnp.int32)
