"""Random streams by name, so that no two parts of a run draw the same numbers."""

import enum


class KeyStream(enum.IntEnum):
    """What is folded into a run's key: `jax.random.fold_in(key, KeyStream.ACTING)`.

    With jax's partitionable threefry `fold_in(key, i) == split(key, n)[i]` for every i < n.  A key
    that is split in one place may be folded in another only with a number beyond any split:
    `DEMONSTRATIONS` is that, the others are for keys that nobody splits.
    """

    NETWORK = 0  # initial parameters
    ACTING = 1
    UPDATES = 2
    EVALUATION = 3
    RESETS = 4  # of networks
    DEMONSTRATIONS = 2**32 - 1


class EnvStream(enum.IntEnum):
    """Which of a run's environments it is: no two of them begin their episodes alike."""

    TRAINING = 0
    EVALUATION = 1
    FILM = 2
    DEMONSTRATION = 3


# Random actions of a policy that is recorded or evaluated, by numpy's generator.
RECORDED_ACTIONS = 7
# Which episodes begin in a demonstration, and where, by the same.
DEMO_STARTS = 8
