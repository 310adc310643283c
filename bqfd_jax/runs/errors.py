"""What may go wrong with a run, in words for the person who started it."""


class UsageError(ValueError):
    """What was asked for cannot be done; the message says what to do instead."""


class FolderBusyError(UsageError):
    """Another process works in the run folder; it may be free again later."""


class RunError(Exception):
    """The run had to stop; what was saved stays."""


class Stopped(Exception):  # noqa: N818
    """Somebody asked the run to stop, and its state has been saved."""
