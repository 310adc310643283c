"""What is wrong with a demonstration."""

from bqfd_jax.files import FileError


class DemonstrationError(FileError):
    """A demonstration cannot be used; the message says why."""
