"""Beginning partly anew, for networks that learn very often from the same rows.

What a network learns first and too well keeps it from learning later.  Since the replay remembers
everything, a network that is new in part soon knows again what it knew, and then learns on.
Nikishin et al.: "The Primacy Bias in Deep Reinforcement Learning" (2022); Schwarzer et al.:
"Bigger, Better, Faster" (2023).
"""

import jax
import jax.numpy as jnp
import optax

from bqfd_jax.networks import Network
from bqfd_jax.types import Array, LearnerState, Params


def reset(
    network: Network,
    optimizer: optax.GradientTransformation,
    key: Array,
    learner: LearnerState,
    observation: Array,
    *,
    share: float,
    kept: tuple[str, ...] = (),
) -> LearnerState:
    """Moves the torsos part of the way to a new one, gives both networks one new head.

    Args:
      network: of the agent.
      optimizer: of the agent; it begins anew.
      key: consumed.
      learner: whose networks are renewed; what it remembers besides them stays.
      observation: an example, `[B, S, ...]`.
      share: how far the torsos move; 1 replaces them.
      kept: parts of the parameters that stay as they are.
    """
    fresh = network.init(key, observation)
    params = renewed(learner.params, fresh, share=share, kept=kept)
    target_params = renewed(learner.target_params, fresh, share=share, kept=kept)
    return learner.replace(
        params=params,
        # A copy: two donated buffers must not be one.
        target_params=jax.tree.map(jnp.copy, target_params),
        opt_state=optimizer.init(params),
    )


def renewed(params: Params, fresh: Params, *, share: float, kept: tuple[str, ...] = ()) -> Params:
    """Parameters with their torso moved by `share` towards fresh ones, and all else fresh.

    Of a network that has no part named `torso`, everything moves by `share`: nobody knows what of
    it is a head.
    """
    leaves = jax.tree.leaves_with_path(params)
    has_torso = any("torso" in _names(path) for path, _ in leaves)

    def renew(path: tuple, old: Array, new: Array) -> Array:
        names = _names(path)
        if names[:1] and names[0] in kept:
            return old
        if has_torso and "torso" not in names:
            return new
        return (1 - share) * old + share * new

    return jax.tree.map_with_path(renew, params, fresh)


def updates_since(learner: LearnerState) -> Array:
    """Updates since the last reset, or since the beginning, `[]` int32; Adam counts them."""
    is_adam = lambda node: isinstance(node, optax.ScaleByAdamState)  # noqa: E731
    (adam,) = filter(is_adam, jax.tree.leaves(learner.opt_state, is_leaf=is_adam))
    return adam.count


def _names(path: tuple) -> list[str | None]:
    return [getattr(part, "key", None) for part in path]
