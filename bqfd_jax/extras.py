"""Packages that only some parts need: loaded when they are, with a hint where one is missing."""

import importlib
import importlib.util
from types import ModuleType


def hint(extra: str) -> str:
    """How to install an extra; the package is on no index, so it takes a clone."""
    return f"pip install -e '.[{extra}]' in a clone of bqfd-jax"


def missing(module: str, extra: str, purpose: str) -> ImportError:
    """The error that says how to get a package, and what for; see `load`."""
    package = module.partition(".")[0]
    return ImportError(f"{purpose} needs {package}, which is not installed: {hint(extra)}")


def stranger(error: ImportError) -> str:
    """What to do about a module of nobody's extra, which a user has named."""
    name = (error.name or "").partition(".")[0]
    if not name or importlib.util.find_spec(name):
        return str(error)
    return f"there is no module {name!r}; install its package (often: pip install {name})"


def load(module: str, extra: str, purpose: str) -> ModuleType:
    """A module of another package; raises `ImportError` that says how to get it.

    Args:
      module: its full name.
      extra: of ours, with which it is installed.
      purpose: what needs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(module, extra, purpose) from error
