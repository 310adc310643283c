"""What the data of a demonstration may be like: types, shapes and values, each checked here."""

import math
from collections.abc import Sequence

import numpy as np

from bqfd_jax.files import FileError

MAX_ACTIONS = 2**16  # of an environment
MAX_LIVES = 2**15
MAX_REWARD = 1e12  # float32 loses all else beside larger ones
_WORDS = {"iu": "integers", "u": "uint8", "iuf": "numbers", "biu": "true or false", "U": "a text"}


class DemonstrationError(FileError):
    """A demonstration cannot be used; the message says why."""


def check_array(
    name: str,
    array: np.ndarray,
    kinds: str,
    shape: tuple[int, ...],
    *,
    low: float = -np.inf,
    high: float = np.inf,
    tail: bool = False,
) -> None:
    """Refuses an array of another type or shape, and names the first value out of bounds or NaN.

    Types are numpy's letters; with a `tail` further axes may follow the shape.
    """
    found = array.shape[: len(shape)] if tail else array.shape
    if array.dtype.kind not in kinds or found != shape:
        wanted = [*shape, "..."] if tail else [*shape]
        raise DemonstrationError(
            f"{name} is {array.dtype}{list(array.shape)}, but must be {_WORDS[kinds]} "
            f"[{', '.join(map(str, wanted))}]"
        )
    is_bounded = math.isfinite(low) or math.isfinite(high)
    if not array.size or kinds == "U" or (array.dtype.kind != "f" and not is_bounded):
        return
    # Else numpy would round the bounds to the array's own type, in which they may be infinite.
    low, high = np.float64(low), np.float64(high)
    # Both are NaN if there is one.
    least, most = array.min(), array.max()
    if not (low <= least and most <= high and np.isfinite(least) and np.isfinite(most)):
        wrong = ~((low <= array) & (array <= high) & np.isfinite(array))
        at = tuple(np.argwhere(wrong)[0].tolist())
        bounds = f" in {low:g} .. {high:g}" if is_bounded else ""
        raise DemonstrationError(f"{name}{list(at)} is {array[at]}, but must be finite{bounds}")


def check_lengths(actions: np.ndarray, episode_lengths: np.ndarray) -> tuple[int, int]:
    """The numbers of actions and episodes, if there are any and they fit each other."""
    T, N = actions.size, episode_lengths.size
    check_array("episode_lengths", episode_lengths, "iu", (N,), low=1, high=max(T, 1))
    if not N or int(episode_lengths.astype(np.int64).sum()) != T:
        raise DemonstrationError(
            f"there are {T} actions, but episodes of {str(episode_lengths.tolist())[:200]}"
        )
    return T, N


def check_meaning(action_meaning: Sequence[int], num_actions: int) -> None:
    """Each action's number among the console's 18."""
    if len(action_meaning) != num_actions:
        raise DemonstrationError(
            f"action_meaning has {len(action_meaning)} entries, not {num_actions}"
        )
    check_array("action_meaning", np.array(action_meaning), "iu", (num_actions,), low=0, high=17)
