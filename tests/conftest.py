"""Settings that every test shares."""

import os

# What the tests run is tiny: nearly all of their time would go into optimising it.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import jax

# Silent broadcasting of [B] against [B, 1] hides indexing mistakes.
jax.config.update("jax_numpy_rank_promotion", "raise")
