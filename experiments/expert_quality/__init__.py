"""See `python -m experiments.expert_quality --help`."""

from .run import resume

__all__ = ["resume"]
