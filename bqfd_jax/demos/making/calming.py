"""The last pass over a played game: what makes no difference becomes calmer.

An action that changes nothing is noise to whoever learns from it.  Where the game does not notice,
the action that the step looks like takes its place, or rest, or else what is held already.
"""

from collections.abc import Callable, Sequence

import numpy as np

from bqfd_jax.envs import ale

# Memories before and after a step, `[128]` uint8 -> one of the console's 18 actions, or None.
Shown = Callable[[np.ndarray, np.ndarray], int | None]


def calm(
    emulator: ale.Ale, actions: Sequence[int], *, shown: Shown, rest: int | None
) -> np.ndarray:
    """Plays a game from its reset and replaces actions `[T]` that make no difference; `[T]` uint8.

    An action makes no difference if another one leads to the same state and screen.
    """
    calmer: list[int] = []
    emulator.reset()
    for action in actions:
        before, start = emulator.ram().copy(), emulator.save_state()
        emulator.step(action)
        after, screen, end = emulator.ram().copy(), emulator.screen(), emulator.save_state()
        looks_like = shown(before, after)
        known = None if looks_like is None else emulator.action_meaning.index(looks_like)
        for candidate in (known, rest, *calmer[-1:]):
            if candidate is None:
                continue
            if candidate == action:
                break
            emulator.load_state(start)
            emulator.step(candidate)
            if emulator.save_state() == end and np.array_equal(emulator.screen(), screen):
                action = candidate
                break
        emulator.load_state(end)
        calmer.append(action)
    return np.array(calmer, np.uint8)
