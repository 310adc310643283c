"""The demonstrations that come with the package."""

import dataclasses
import importlib.resources

from bqfd_jax.demos.demonstration import ActionDemonstration, load
from bqfd_jax.demos.schema import DemonstrationError

# A planner that sees the future made them: `default` plays about as well as the paper's human,
# `strong` better, `weak` worse; `search` is as good as `default`, but by luck instead of for a
# reason.  None of them is human play.
_SUFFIX = {"default": "", "strong": "_strong", "weak": "_weak", "search": "_search"}
NAMES = tuple(_SUFFIX)


def available() -> dict[str, tuple[str, ...]]:
    """Game -> names of its demonstrations."""
    files = {file.name for file in _folder().iterdir()}
    games = sorted(
        {file.removesuffix(".npz").split("_")[0] for file in files if file.endswith(".npz")}
    )
    return {
        game: tuple(name for name, suffix in _SUFFIX.items() if f"{game}{suffix}.npz" in files)
        for game in games
    }


def load_named(game: str, name: str = "default") -> ActionDemonstration:
    """A demonstration that comes with the package, by one of `NAMES`.

    Raises:
      DemonstrationError: there is none; the message says what there is.
    """
    there = available()
    if game not in there:
        raise DemonstrationError(
            f"no demonstration of {game} comes with the package, only of {', '.join(there)}; "
            f"make one with `bqfd demos plan --game {game}`, or train without: --demo none"
        )
    if name not in there[game]:
        raise DemonstrationError(
            f"no demonstration {name!r} of {game} comes with the package, only "
            + ", ".join(repr(other) for other in there[game])
        )
    with importlib.resources.as_file(_folder() / f"{game}{_SUFFIX[name]}.npz") as path:
        # Files keep the name that they were made under, and `search` was once `default`.
        return dataclasses.replace(load(path, game=game), name=name)


def _folder():
    return importlib.resources.files("bqfd_jax.demos") / "data"
