"""Sinks that note what a run tells, or ask it to stop at a place."""

from contextlib import contextmanager

from bqfd_jax.runs.sinks import Bar, Sink


class Noting(Sink):
    """Remembers everything and never asks to stop."""

    def __init__(self):
        self.lines, self.warnings, self.notes, self.rows = [], [], [], []
        self.position = {}  # of each unit

    def say(self, text):
        self.lines.append(text)

    def warn(self, text):
        self.warnings.append(text)

    def row(self, row):
        self.rows.append(row)

    @contextmanager
    def bar(self, title, *, unit, total, position=0):
        self.position[unit] = position
        yield _NotingBar(self, unit)


class _NotingBar(Bar):
    def __init__(self, sink, unit):
        self._sink, self._unit = sink, unit

    def at(self, position):
        self._sink.position[self._unit] = position

    def note(self, text):
        self._sink.notes.append(text)


class StopAt(Noting):
    """Asks to stop when the run has come so far, be it in an evaluation."""

    def __init__(self, *, step=None, updates=None):
        super().__init__()
        self._wanted = {"step": step, "update": updates}

    def row(self, row):
        super().row(row)
        # An evaluation comes after the row of its step, before the bar moves on.
        self.position["step"] = row["step"]
        self.position["update"] = row.get("updates", 0)

    def stop_asked(self):
        return any(
            wanted is not None and self.position.get(unit, 0) >= wanted
            for unit, wanted in self._wanted.items()
        )
