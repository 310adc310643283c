"""What host environments share: checked actions, and how their steps become rows."""

import numpy as np

from bqfd_jax.types import HostStep, Row


class HostEnvironmentError(RuntimeError):
    """An environment failed, or showed what cannot be learnt from; the message says where."""


def to_row(step: HostStep, actions: np.ndarray, following: HostStep, gamma: float) -> Row:
    """The rows of one observation, ready for a replay.

    Where the observation ended its episode the row is marked `is_last`, so that the pair of it and
    the reset that follows is never a transition; action, reward and discount mean nothing there.

    Args:
      step: the observation that was acted on; its frames are not copied.
      actions: what was done there, `[L]`.
      following: what the environment returned for it.
      gamma: discount of one step.
    """
    return Row(
        frame=step.frame,
        action=np.asarray(actions, np.int32),
        reward=following.reward,
        discount=np.float32(gamma) * following.discount,
        is_first=step.is_first,
        is_last=step.is_last,
    )


def checked_actions(actions: np.ndarray, name: str, num_lanes: int, num_actions: int) -> np.ndarray:
    """Actions `[L]` as an array; raises `ValueError` if they are none of the environment `name`."""
    actions = np.asarray(actions)
    if actions.shape != (num_lanes,) or actions.dtype.kind not in "iu":
        raise ValueError(
            f"actions are {actions.dtype}{list(actions.shape)}, but must be {num_lanes} integers"
        )
    if actions.min() < 0 or actions.max() >= num_actions:
        raise ValueError(f"actions must lie in 0 .. {num_actions - 1} in {name}, but are {actions}")
    return actions


class Scores:
    """Adds up the score of the running episode in every lane."""

    def __init__(self, num_lanes: int):
        self.running = np.zeros(num_lanes, np.float64)  # [L], of episodes that go on

    def see(self, step: HostStep) -> list[float]:
        """Takes the newest step into account; returns scores of episodes that it ended."""
        self.running = np.where(step.is_first, 0.0, self.running) + step.score_reward
        return self.running[step.is_last].tolist()
