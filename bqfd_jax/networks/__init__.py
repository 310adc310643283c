"""Q-networks: torsos, heads, and how they are put together."""

from bqfd_jax.networks.build import *  # noqa: F403
