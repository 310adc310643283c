"""Settings that every test shares."""

import jax

# Silent broadcasting of [B] against [B, 1] hides indexing mistakes.
jax.config.update("jax_numpy_rank_promotion", "raise")
