"""The one loop that every run goes through, whatever it trains."""

from typing import Protocol

from bqfd_jax.runs.errors import Stopped
from bqfd_jax.runs.sinks import Sink


class Course(Protocol):
    """Work that is done in pieces and can be put down after each."""

    title: str
    unit: str  # of `position` and `total`
    total: int

    @property
    def position(self) -> int:
        """How much is done."""

    def advance(self) -> str | None:
        """Does the next piece, and whatever is due after it; gives a few words for the bar."""

    def put_down(self) -> Stopped:
        """Saves where the work stands; gives the exception that says how to go on."""


def follow(course: Course, sink: Sink) -> None:
    """Goes on to the end of a course, or to where the sink asks to stop.

    Raises:
      Stopped: it was asked to; the course has been put down.
    """
    with sink.bar(
        course.title, unit=course.unit, total=course.total, position=course.position
    ) as bar:
        while course.position < course.total:
            if sink.stop_asked():
                raise course.put_down()
            note = course.advance()
            bar.at(course.position)
            if note is not None:
                bar.note(note)
