"""The player's keys: which of a game's actions they stand for, and what is held down."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from bqfd_jax.demos.importing.actions import SWITCHES

KEYS = ("up", "down", "left", "right", "fire")

# Which keys each of the console's 18 actions is made of.
_KEYS_OF = tuple(frozenset(map(str.lower, switches)) for switches in SWITCHES)
_OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_KEY_NAMES = {"up": "↑", "down": "↓", "left": "←", "right": "→", "fire": "space"}


class Legend(NamedTuple):
    """Which keys do what in a game."""

    keys: tuple[str, ...]  # those with a use, in the order of `KEYS`
    together: str  # which may be held together, a sentence


def action_of(pressed: Sequence[str], action_meaning: Sequence[int]) -> int:
    """The action that keys stand for, in `action_meaning`'s order; pressed in the order given.

    Keys without a use in the game do nothing.  Where a game cannot do all that is pressed at once,
    keys pressed later count before those pressed earlier.
    """
    useful = set().union(*(_KEYS_OF[number] for number in action_meaning))
    wanted: list[str] = []  # newest first
    for key in reversed(pressed):
        if key in useful and _OPPOSITE.get(key) not in wanted:
            wanted.append(key)
    possible = [
        action for action, number in enumerate(action_meaning) if _KEYS_OF[number].issubset(wanted)
    ]
    # Lists compare by their first difference, so that the newest key decides.
    return max(
        possible,
        key=lambda action: [key in _KEYS_OF[action_meaning[action]] for key in wanted],
        default=0,
    )


def legend(action_meaning: Sequence[int]) -> Legend:
    """What a player must be told about a game's keys."""
    there = {_KEYS_OF[number] for number in action_meaning}
    keys = tuple(key for key in KEYS if any(key in combination for combination in there))
    combinations = sorted(_as_list(combination) for combination in there if len(combination) > 1)
    if not combinations:
        together = "One key at a time: the key pressed last counts."
    elif len(combinations) == len(_combinations(keys)):
        together = "Keys held together count together."
    else:
        listed = ", ".join(" + ".join(_KEY_NAMES[key] for key in some) for some in combinations)
        together = f"Together: {listed}. Otherwise the key pressed last counts."
    return Legend(keys, together)


class HeldKeys:
    """What is held down, without missing a key that was let go before anybody looked."""

    def __init__(self):
        self._held: tuple[str, ...] = ()
        self._pressed: list[str] = []  # since `take`, in order

    def update(self, held: Iterable[str]) -> bool:
        """Notes all keys held now, in the order they were pressed; True if one is new."""
        held = tuple(held)
        new = [key for key in held if key not in self._held]
        self._pressed += new
        self._held = held
        return bool(new)

    def take(self) -> tuple[str, ...]:
        """Keys held now or pressed since the last time, the newest last."""
        tapped = [key for key in dict.fromkeys(self._pressed) if key not in self._held]
        self._pressed = []
        return (*self._held, *tapped)


def _as_list(keys: Iterable[str]) -> list[str]:
    return sorted(keys, key=KEYS.index)


def _combinations(keys: Sequence[str]) -> set[frozenset[str]]:
    """All that can be held together."""
    vertical, horizontal, fire = ("up", "down"), ("left", "right"), ("fire",)
    found = {frozenset()}
    for group in (vertical, horizontal, fire):
        found |= {some | {key} for some in found for key in group if key in keys}
    return {some for some in found if len(some) > 1}
