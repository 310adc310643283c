"""Q-networks: torsos, heads, and how they are put together."""

from bqfd_jax.networks.build import (
    ATARI_TORSOS,
    TORSO_DTYPES,
    as_ensemble,
    as_network,
    atari_network,
    deep_sea_network,
    described_network,
    for_observation,
    grid_network,
    own_network,
)
from bqfd_jax.networks.heads import DuelingHead, DuelingHeads, HeadsNetwork, QNetwork
from bqfd_jax.networks.members import (
    PRIORS,
    Network,
    ensemble,
    from_flax,
    mean_q,
    prior_ensemble,
)
from bqfd_jax.networks.torsos import (
    GridTorso,
    ImageTorso,
    MLPTorso,
    NatureTorso,
    OverlapTorso,
    PatchTorso,
    PooledTorso,
    StackedImages,
)

__all__ = [
    "ATARI_TORSOS",
    "PRIORS",
    "TORSO_DTYPES",
    "DuelingHead",
    "DuelingHeads",
    "GridTorso",
    "HeadsNetwork",
    "ImageTorso",
    "MLPTorso",
    "NatureTorso",
    "Network",
    "OverlapTorso",
    "PatchTorso",
    "PooledTorso",
    "QNetwork",
    "StackedImages",
    "as_ensemble",
    "as_network",
    "atari_network",
    "deep_sea_network",
    "described_network",
    "ensemble",
    "for_observation",
    "from_flax",
    "grid_network",
    "mean_q",
    "own_network",
    "prior_ensemble",
]
