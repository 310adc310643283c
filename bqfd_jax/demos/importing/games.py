"""Which game a file shows: by what it is called in the data, or by what the caller says."""

from collections.abc import Iterable

from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.envs import atari

# The Atari Grand Challenge has short names for two.
_ALIASES = {"pinball": "videopinball", "revenge": "montezumarevenge"}


def environment(name: str) -> tuple[str, bool]:
    """The name of an environment as it is written here, and whether it is an Atari game."""
    try:
        game = find_game(name)
    except ImportError:
        # Nobody who has no Atari games needs them for another environment.
        game = None
    return (name, False) if game is None else (game, True)


def find_game(name: str) -> str | None:
    """`MsPacman` of `ms_pacman`, `mspacman` or `ALE/MsPacman-v5`; None: no game."""
    plain = name.rsplit("/", 1)[-1].removesuffix("-v5").removesuffix("-v4").lower()
    plain = plain.replace("_", "").replace("-", "").removesuffix("noframeskip")
    plain = _ALIASES.get(plain, plain)
    return {game.lower(): game for game in atari.games()}.get(plain)


def choose_game(game: str | None, names: Iterable[str], where: str) -> str:
    """The game that is asked for, or the one that the first known of some names means."""
    if game is not None:
        found = find_game(game)
        if found is None:
            atari.check_game(game)
        return found
    for name in names:
        found = find_game(name)
        if found is not None:
            return found
    raise DemonstrationError(f"{where} does not tell which game it shows; give its game")


def check_same(where: object, told: str | None, asked: str | None) -> None:
    """Refuses a name that contradicts what the data themselves say."""
    if told and asked and environment(told)[0] != environment(asked)[0]:
        raise DemonstrationError(f"{where} shows {told}, not {asked}")
