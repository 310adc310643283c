"""Where a run tells of itself, and where it asks whether to go on.

The loop prints nothing and knows no signals.  It talks to a `Sink`: the silent one here, one that
prints and draws bars, or somebody's own in a notebook or a worker process.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tqdm import tqdm


class Bar:
    """A progress bar that nobody sees."""

    def at(self, position: int) -> None:
        """The work stands here now."""

    def note(self, text: str) -> None:
        """A few words beside the bar."""


class Sink:
    """Says nothing and never asks to stop; override what you care about."""

    def say(self, text: str) -> None:
        """A line about how things go."""

    def warn(self, text: str) -> None:
        """Something went wrong that does not end the run."""

    def row(self, row: Mapping[str, Any]) -> None:
        """A row of metrics, as it is written."""

    def stop_asked(self) -> bool:
        """Whether the run should save itself and stop soon."""
        return False

    @contextmanager
    def bar(self, title: str, *, unit: str, total: int, position: int = 0) -> Iterator[Bar]:
        """A bar for a piece of work that stands at `position` of `total`."""
        del title, unit, total, position
        yield Bar()


class Prefixed(Sink):
    """Tells another sink, and says of what: `seed 1: checkpoint at step 500`."""

    def __init__(self, sink: Sink, prefix: str):
        self._sink, self._prefix = sink, prefix
        self.row, self.stop_asked, self.bar = sink.row, sink.stop_asked, sink.bar

    def say(self, text: str) -> None:
        """Passes it on with the prefix, which must not shift the columns of a table."""
        table = text.strip("\n")
        self._sink.say(f"{self._prefix}:\n{table}" if "\n" in table else f"{self._prefix}: {table}")

    def warn(self, text: str) -> None:
        """The same."""
        self._sink.warn(f"{self._prefix}: {text}")


class _TqdmBar(Bar):
    def __init__(self, bar: tqdm):
        self._bar = bar

    def at(self, position: int) -> None:
        self._bar.update(position - self._bar.n)

    def note(self, text: str) -> None:
        self._bar.set_postfix_str(text)


class Terminal(Sink):
    """Prints lines and draws bars with speed and time left.

    Args:
      stop_asked: whether the run should stop; see `stop_signals`.
      lines: also print what is said, not only bars and warnings.
    """

    def __init__(self, stop_asked: Callable[[], bool] | None = None, *, lines: bool = True):
        self._stop_asked = stop_asked or (lambda: False)
        self._lines = lines

    def say(self, text: str) -> None:
        """Prints a line, above the bar if there is one."""
        if self._lines:
            tqdm.write(text)

    def warn(self, text: str) -> None:
        """Prints a line that catches the eye."""
        tqdm.write(f"\nWARNING: {text}\n")

    def stop_asked(self) -> bool:
        """What the caller's function says."""
        return self._stop_asked()

    @contextmanager
    def bar(self, title: str, *, unit: str, total: int, position: int = 0) -> Iterator[Bar]:
        """A bar of tqdm's."""
        large = total >= 1_000_000
        with tqdm(total=total, initial=position, unit=unit, desc=title, unit_scale=large) as bar:
            yield _TqdmBar(bar)


@contextmanager
def stop_signals(tell: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Turns the first Ctrl-C, SIGTERM or closed terminal into a wish that a loop can ask for.

    A second one raises KeyboardInterrupt at once.  Signals reach the main thread only; in any other
    the wish never comes.

    Args:
      tell: is called when the wish comes, to tell the person that it was heard.

    Yields:
      A function that says whether to stop.
    """
    asked = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        tell()

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # What is ignored stays so: whoever starts a run with nohup means it to go on.
    heard = [number for number in signals if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, ask) for number in heard}
    try:
        yield lambda: asked
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
