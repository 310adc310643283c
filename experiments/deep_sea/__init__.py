"""See `python -m experiments.deep_sea --help`."""

from .run import resume

__all__ = ["resume"]
