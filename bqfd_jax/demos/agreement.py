"""What a policy thinks of a demonstration: where would it do the same, and what if not?

A policy that was pre-trained on a demonstration and has left it since can say where it did so: its
values there, of what was demonstrated and of what it would do, are a place to look at.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks
from bqfd_jax.replay.rows import Layout, stack_index
from bqfd_jax.types import Array, Row

_CHUNK = 256


class Agreement(NamedTuple):
    """A policy's values in the states of a demonstration, at each of its T steps."""

    action: np.ndarray  # [T] int64, what was demonstrated
    preferred: np.ndarray  # [T] int64, what the policy would do
    behind: np.ndarray  # [T] float64, the preferred action's value less the demonstrated one's
    span: np.ndarray  # [T] float64, from the worst action's value to the best one's

    @property
    def same(self) -> np.ndarray:
        """Where the policy would do what was demonstrated, `[T]` bool."""
        return self.action == self.preferred

    @property
    def by_chance(self) -> float:
        """The share that would be the same if it chose each action as often, whatever it sees."""
        most = int(max(self.action.max(), self.preferred.max())) + 1
        shown, chosen = (
            np.bincount(actions, minlength=most) / len(actions)
            for actions in (self.action, self.preferred)
        )
        return float(shown @ chosen)

    @property
    def way_down(self) -> float:
        """How far down what was demonstrated is where the policy would do something else.

        0 is as good as the best action and 1 the worst one; a median.  NaN if it is always the
        same.
        """
        apart = ~self.same
        # Where all values are alike, the best action is the first one, and nothing is behind it.
        span = np.where(self.span > 0, self.span, 1.0)
        return float(np.median((self.behind / span)[apart])) if apart.any() else float("nan")


def ask_policy(rows: Row, q_values: Callable[[np.ndarray], Array], *, stack: int = 1) -> Agreement:
    """Asks a policy about every step of a demonstration.

    Args:
      rows: of the demonstration, as `demos.to_rows` gives them; rewards do not matter.
      q_values: from observations `[L, *frame_shape]`, or `[L, S, *frame_shape]` if `stack` is not
        1, to Q-values `[L, A]`, such as `Policy.q_values`.
      stack: frames per observation, such as `Policy.stack`.

    Raises:
      ValueError: something was demonstrated that has no Q-value.
    """
    starts = np.flatnonzero(~np.asarray(rows.is_last))
    layout = Layout(len(rows.action), 1, 1)
    marks = rows.replace(is_first=jnp.asarray(rows.is_first))
    # One shape, so that it is compiled once.
    padded = np.resize(starts, -(-len(starts) // _CHUNK) * _CHUNK)
    parts = []
    for chunk in padded.reshape(-1, _CHUNK):
        stacked = np.asarray(stack_index(marks, layout, jnp.asarray(chunk), stack))
        seen = np.asarray(rows.frame)[stacked]
        parts.append(np.asarray(q_values(seen[:, 0] if stack == 1 else seen), np.float64))
    q = np.concatenate(parts)[: len(starts)]
    action = np.asarray(rows.action)[starts].astype(np.int64)
    known = q.shape[1]
    checks.require(
        action < known,
        "a demonstrated action",
        action.max(),
        f"less than {known}, the number of Q-values; is the policy of the same environment?",
    )
    best = q.max(axis=1)
    return Agreement(
        action=action,
        preferred=q.argmax(axis=1),
        behind=best - q[np.arange(len(q)), action],
        span=best - q.min(axis=1),
    )
