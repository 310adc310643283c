"""The worlds: DeepSea, and what all jnp environments share."""
