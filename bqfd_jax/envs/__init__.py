"""The worlds: DeepSea and Atari, and what all jnp and all host environments share."""
