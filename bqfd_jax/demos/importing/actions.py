"""The console's 18 actions, and what becomes of them in a game's own, smaller set."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bqfd_jax.demos.named import available, load_named
from bqfd_jax.envs import ale

_WAYS = ("UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFT", "DOWNRIGHT", "DOWNLEFT")
NAMES = ("NOOP", "FIRE", *_WAYS, *(f"{way}FIRE" for way in _WAYS))
# A name is made of the switches that it closes.
SWITCHES = tuple(
    frozenset(switch for switch in ("UP", "DOWN", "RIGHT", "LEFT", "FIRE") if switch in name)
    for name in NAMES
)


def action_set(game: str) -> tuple[int, ...]:
    """The numbers, among the 18, of a game's own actions."""
    # What comes with the package needs no emulator to ask.
    if game in available():
        return load_named(game).action_meaning
    return ale.Ale(game).action_meaning


class ActionMap(NamedTuple):
    """What a source's actions are in an environment."""

    number: Sequence[int | None]  # source's action -> the environment's; None: it has none
    remark: Mapping[int, str]  # source's action -> what to count where it is not simply the same


def same_actions(num_actions: int) -> ActionMap:
    """The source counts actions as the environment does."""
    return ActionMap(range(num_actions), {})


def by_meaning(meaning: Sequence[int], source: Sequence[int] = range(len(NAMES))) -> ActionMap:
    """Actions are mapped by what they do.

    Switches that occur in none of the game's actions do nothing there and are left out: UPFIRE is
    FIRE in Breakout, and UP nothing.  What then is none of the game's actions cannot be mapped.
    Both the game's (`meaning`) and the source's actions are numbers among the 18.
    """
    alive = frozenset().union(*(SWITCHES[number] for number in meaning))
    does = {SWITCHES[number]: index for index, number in enumerate(meaning)}
    mapped = [does.get(SWITCHES[number] & alive) for number in source]
    remark = {}
    for action, (number, index) in enumerate(zip(source, mapped, strict=True)):
        if index is None:
            remark[action] = f"frames with {NAMES[number]}, which none of the game's actions does"
        elif meaning[index] != number:
            remark[action] = f"frames with {NAMES[number]}, taken as {NAMES[meaning[index]]}"
    return ActionMap(mapped, remark)
