"""What a replay expects of demonstrations, checked before they are put there for ever."""

import jax
import numpy as np

from bqfd_jax.checks import is_traced
from bqfd_jax.types import Row


def check_demonstrations(demonstrations: Row, *, lives: bool = False) -> None:
    """Raises `ValueError` unless the rows are whole episodes, one after the other.

    Args:
      demonstrations: rows with one leading axis.
      lives: discounts may be 0 within an episode, where a life was lost.  Otherwise such a row is
        taken for a terminal one whose successor was not marked `is_first`.
    """
    is_first, is_last = np.asarray(demonstrations.is_first), np.asarray(demonstrations.is_last)
    terminates = ~is_last & (np.asarray(demonstrations.discount) == 0)
    if is_last.all():
        raise ValueError("the demonstrations hold no transition; leave them out instead")
    if not is_first[0]:
        raise ValueError("row 0 of the demonstrations must begin an episode (is_first)")
    for row in range(len(is_first)):
        ends_here = row + 1 == len(is_first) or is_first[row + 1]
        if ends_here and not (is_last[row] or terminates[row]):
            raise ValueError(
                f"row {row} of the demonstrations is the last of its episode, but neither "
                "terminates (discount 0) nor is marked is_last"
            )
        if not ends_here and is_last[row]:
            raise ValueError(f"row {row} is marked is_last, but its episode goes on")
        if not ends_here and terminates[row] and not is_last[row + 1] and not lives:
            raise ValueError(f"row {row} terminates (discount 0), but its episode goes on")


def with_room(demonstrations: Row, num_rows: int) -> Row:
    """At least `num_rows` rows; those that were not there are never drawn and lead nowhere."""
    more = max(num_rows - len(demonstrations.action), 0)
    # Each is an episode without an action.
    room = jax.tree.map(lambda x: np.zeros((more, *x.shape[1:]), x.dtype), demonstrations)
    room = room.replace(is_first=np.ones(more, bool), is_last=np.ones(more, bool))
    return jax.tree.map(lambda x, empty: np.concatenate([x, empty]), demonstrations, room)


def check_discounts(demonstrations: Row | None, gamma: float) -> None:
    """Raises `ValueError` unless every discount is 0 or `gamma`, the agent's own.

    Rows may have any leading axes; nobody knows the discounts of those that are being traced.
    """
    if demonstrations is None or is_traced(demonstrations):
        return
    # A row that starts no transition has no discount that would count.
    discounts = np.asarray(demonstrations.discount)[~np.asarray(demonstrations.is_last)]
    wrong = discounts[(discounts != 0) & (discounts != np.float32(gamma))]
    if wrong.size:
        raise ValueError(
            f"the demonstrations were made with a discount of {wrong[0]:g}, but the agent's gamma "
            f"is {gamma:g}; make both with the same"
        )
