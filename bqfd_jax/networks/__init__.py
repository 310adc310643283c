"""Q-networks: torsos, heads, and how they are put together."""

from bqfd_jax.networks.build import (
    ATARI_TORSOS,
    TORSO_DTYPES,
    Network,
    as_ensemble,
    as_network,
    atari_network,
    deep_sea_network,
    described_network,
    ensemble,
    for_observation,
    from_flax,
    mean_q,
    own_network,
)
from bqfd_jax.networks.heads import DuelingHead, QNetwork
from bqfd_jax.networks.torsos import (
    ImageTorso,
    MLPTorso,
    NatureTorso,
    OverlapTorso,
    PatchTorso,
    StackedImages,
)

__all__ = [
    "ATARI_TORSOS",
    "TORSO_DTYPES",
    "DuelingHead",
    "ImageTorso",
    "MLPTorso",
    "NatureTorso",
    "Network",
    "OverlapTorso",
    "PatchTorso",
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
    "mean_q",
    "own_network",
]
