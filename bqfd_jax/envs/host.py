"""What host environments share: how their steps become rows."""

import numpy as np

from bqfd_jax.types import HostStep, Row


def to_row(step: HostStep, actions: np.ndarray, following: HostStep, gamma: float) -> Row:
    """The rows of one observation, ready for a replay.

    Where the observation ended its episode the row is marked `is_last`, so that the pair of it and
    the reset that follows is never a transition; action, reward and discount mean nothing there.

    Args:
      step: the observation that was acted on.
      actions: what was done there, `[L]`.
      following: what the environment returned for it.
      gamma: discount of one step.

    Returns:
      Fields `[L, ...]`, numpy; frames are not copied.
    """
    return Row(
        frame=step.frame,
        action=np.asarray(actions, np.int32),
        reward=following.reward,
        discount=np.float32(gamma) * following.discount,
        is_first=step.is_first,
        is_last=step.is_last,
    )
