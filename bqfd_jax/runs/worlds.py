"""Where a run's environments come from, and what is known of them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from bqfd_jax import demos
from bqfd_jax.demos import Demonstration
from bqfd_jax.networks import Network
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.types import HostEnvironment


class MadeNetwork(NamedTuple):
    """A network, and what a policy file says of it so that it can be made again."""

    network: Network
    made_with: dict[str, Any] | None  # None: somebody's own
    given: Any = None  # what somebody gave as a network


class World(Protocol):
    """What a kind of environment brings to a run."""

    fps: float  # of films
    film_scale: int  # pixels of a film per pixel of a picture

    def example(self) -> HostEnvironment:
        """An environment to read shapes from; it is never stepped."""

    def training(
        self,
        resumed_at: int = 0,
        seeds: Sequence[int] | None = None,
        shown: Sequence[Demonstration] = (),
    ) -> HostEnvironment:
        """What is trained on, from an agent step on.

        With `seeds` a pool of several runs, whose lanes follow each other; each run's are as they
        would be alone.  In demonstrations that are `shown` episodes may begin.
        """

    def evaluation(self, *, film: bool = False) -> HostEnvironment | None:
        """What nobody learns from; with `film` a single one with pictures.  None: there is none."""

    def make_network(self, env: HostEnvironment) -> MadeNetwork:
        """The network that suits what is seen."""

    def no_film(self) -> str | None:
        """Why no film can be made; None if one can."""

    def load_demonstrations(self, folder: Path | None) -> Sequence[Demonstration]:
        """What the config names; some lie in the run folder."""


def kept_paths(folder: Path) -> list[Path]:
    """Files of the demonstrations that a run folder keeps, in their order."""
    return sorted(folder.glob("demonstration*.npz"), key=lambda path: (len(path.name), path.name))


def keep_demonstrations(folder: Path, demonstrations: Sequence[Demonstration]) -> None:
    """Puts demonstrations that lie nowhere else into the run folder; others there are not touched.

    Raises:
      UsageError: another file has the name.
    """
    for number, demonstration in enumerate(demonstrations, start=1):
        path = folder / f"demonstration{'' if number == 1 else f'-{number}'}.npz"
        if not path.exists():
            demos.save(demonstration, path)
        elif demos.load(path).checksum != demonstration.checksum:
            raise UsageError(f"{path} is there already, with other content; choose another folder")


def film_trouble(make: Callable[[], Any]) -> str | None:
    """What goes wrong when an environment is to draw a picture; None if nothing does."""
    try:
        env = make()
        env.reset()
        env.render()
        env.close()
    except Exception as error:  # whatever somebody else's code raises
        return str(error)
    return None
