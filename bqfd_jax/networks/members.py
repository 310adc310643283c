"""Networks as pairs of functions, and ensembles of them, with fixed random priors or without.

Osband et al.: "Deep Exploration via Bootstrapped DQN" (2016) and "Randomized Prior Functions for
Deep Reinforcement Learning" (2018): member k is `f_k(x) + scale p_k(x)`, where `p_k` keeps its
initial weights because no gradient reaches them.
"""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from bqfd_jax import checks
from bqfd_jax.networks.heads import HeadsNetwork, QNetwork
from bqfd_jax.networks.torsos import MLPTorso, PooledTorso, StackedImages
from bqfd_jax.types import Array, Params

# Parts of an ensemble's parameters that keep their first values.
PRIORS = ("prior", "prior_scale")


class Network(NamedTuple):
    """A network as two pure functions; this is all that agents know of it."""

    init: Callable[[Array, Array], Params]  # (key, observation [B, ...]) -> params
    apply: Callable[[Params, Array], Array]  # (params, observation [B, ...]) -> Q-values
    # From K to the cheapest good ensemble of such networks and to priors for it, both `[B, K, A]`;
    # None: K whole networks, and K more.
    members: "Callable[[int], tuple[Network, Network]] | None" = None


def from_flax(module: nn.Module) -> Network:
    """The two functions of a flax module."""
    return Network(init=module.init, apply=module.apply)


def image_network(
    torso: nn.Module,
    num_actions: int,
    hidden: int,
    *,
    layer_norm: bool = False,
    zero_values: bool = False,
) -> Network:
    """A dueling network of images, whose torso the members of an ensemble share.

    Their priors see a coarser image.
    """

    def members(size: int) -> tuple[Network, Network]:
        coarse = StackedImages(PooledTorso(scale=_scale(torso)))
        width = _head_width(hidden, size)
        return (
            from_flax(HeadsNetwork(torso, num_actions, size, width, layer_norm, zero_values)),
            from_flax(HeadsNetwork(coarse, num_actions, size, _PRIOR_HIDDEN // 2)),
        )

    network = from_flax(QNetwork(torso, num_actions, hidden, layer_norm, zero_values))
    return network._replace(members=members)


def dense_network(torso: MLPTorso, num_actions: int, hidden: int) -> Network:
    """A dueling network of a few numbers; the members of an ensemble share nothing."""

    def members(size: int) -> tuple[Network, Network]:
        narrow = MLPTorso((_PRIOR_HIDDEN,) * 2, torso.encode)
        return (
            _whole(from_flax(QNetwork(torso, num_actions, _head_width(hidden, size))), size),
            _whole(from_flax(QNetwork(narrow, num_actions, _PRIOR_HIDDEN)), size),
        )

    return from_flax(QNetwork(torso, num_actions, hidden))._replace(members=members)


_PRIOR_HIDDEN = 32


def _head_width(hidden: int, size: int) -> int:
    """All heads together are about as wide as a single one, so that K cost little more."""
    return min(max(hidden // size, 32), hidden)


def _scale(torso: nn.Module) -> float:
    """What a torso of images divides by; Atari's, whose images are bytes, by 255."""
    inner = torso.torso if isinstance(torso, StackedImages) else torso
    return getattr(inner, "scale", 255.0)


def ensemble(network: Network, size: int, *, prior_scale: float = 0.0) -> Network:
    """K separate networks, Q-values `[B, K, A]`, each with an optional prior of a fixed scale."""
    checks.at_least(1, size=size)
    members = _whole(network, size)

    def init(key: Array, observation: Array) -> Params:
        members_key, prior_key = jax.random.split(key)
        params = {"members": members.init(members_key, observation)}
        if prior_scale:
            params["prior"] = members.init(prior_key, observation)
        return params

    def apply(params: Params, observation: Array) -> Array:
        q = members.apply(params["members"], observation)
        if prior_scale:
            q += prior_scale * jax.lax.stop_gradient(members.apply(params["prior"], observation))
        return q

    return Network(init=init, apply=apply)


def prior_ensemble(network: Network, size: int) -> Network:
    """K members with priors whose scale is a parameter; Q-values `[B, K, A]`.

    No gradient reaches the scale.  It is 1 until somebody sets it, see `agents.trust.prepare`.
    """
    checks.at_least(1, size=size)
    whole = _whole(network, size)
    members, prior = network.members(size) if network.members else (whole, whole)

    def init(key: Array, observation: Array) -> Params:
        members_key, prior_key = jax.random.split(key)
        return {
            "members": members.init(members_key, observation),
            "prior": prior.init(prior_key, observation),
            "prior_scale": jnp.ones((), jnp.float32),
        }

    def apply(params: Params, observation: Array) -> Array:
        q = members.apply(params["members"], observation)
        added = params["prior_scale"] * prior.apply(params["prior"], observation)
        return q + jax.lax.stop_gradient(added)

    return Network(init=init, apply=apply)


def _whole(network: Network, size: int) -> Network:
    def init(key: Array, observation: Array) -> Params:
        return jax.vmap(network.init, in_axes=(0, None))(jax.random.split(key, size), observation)

    return Network(init=init, apply=jax.vmap(network.apply, in_axes=(0, None), out_axes=1))


def mean_q(apply: Callable[[Params, Array], Array], params: Params, observation: Array) -> Array:
    """Q-values `[B, A]` of a network, or the mean over the members of an ensemble."""
    q = apply(params, observation)
    return jnp.mean(q, axis=1) if q.ndim == 3 else q
