"""The sweep's table in the terminal: redrawn where that works, else told now and then."""

import shutil
import sys
import time
from collections.abc import Sequence

from bqfd_jax.runs.sweep.status import Status, count, table

# Lines that are not runs: the head, what has no room, the count, reasons, the prompt.
_OTHER_LINES = 6
# Where nothing can be redrawn, news come at once and the rest so often.
_QUIET_SECONDS = 60.0


class LiveTable:
    """Shows how runs stand, again and again."""

    def __init__(self) -> None:
        self._redraws = sys.stdout.isatty()
        self._lines = 0
        self._last_count, self._last_time = "", -_QUIET_SECONDS

    def show(self, statuses: Sequence[Status]) -> None:
        """Draws the table over the last one, or prints a line if there is something to say."""
        if not self._redraws:
            self._tell(statuses)
            return
        width, height = shutil.get_terminal_size()
        text = table(statuses, most=max(3, height - _OTHER_LINES))
        lines = [line[: width - 1] for line in text.splitlines()][: height - 1]
        # Up to where the last table began, and everything below is cleared.
        up = f"\x1b[{self._lines}F" if self._lines else ""
        print(f"{up}\x1b[J" + "\n".join(lines), flush=True)
        self._lines = len(lines)

    def _tell(self, statuses: Sequence[Status]) -> None:
        counted, now = count(statuses), time.monotonic()
        if counted == self._last_count and now - self._last_time < _QUIET_SECONDS:
            return
        running = [f"{one.name} {one.step:,}" for one in statuses if one.state == "running"]
        print(f"{counted}{': ' if running else ''}{'; '.join(running)}", flush=True)
        self._last_count, self._last_time = counted, now

    def close(self, statuses: Sequence[Status]) -> None:
        """The whole table, to stay."""
        if self._redraws and self._lines:
            print(f"\x1b[{self._lines}F\x1b[J", end="")
        print(table(statuses), flush=True)
