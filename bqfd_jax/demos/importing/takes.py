"""Runs of frames without a gap, and how the lines of a table become such runs."""

import itertools
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.files import read_bytes

# What is counted, and worth a remark.
CONTRADICTED = "rewards that the score contradicts"
UNTOLD = "pictures that no line tells of"


class Take(NamedTuple):
    """Frames that followed each other, with all that is known of them."""

    frame: Callable[[int], np.ndarray]  # index -> grey screen, frame of 84 x 84, or observation
    num_frames: int  # as many as actions, or one more: what the last action led to
    actions: Sequence[int]  # n, taken at each frame, by the source's numbers
    rewards: Sequence[float]  # n, what came of each
    terminated: bool  # the game is over after the last action
    lives: Sequence[int] | None = None  # num_frames, left at each


class Line(NamedTuple):
    """What a table says of one emulator frame; None where it says `null`."""

    number: int | None  # of the frame; the next one has the next number
    name: str  # of the frame's picture
    action: int | None
    reward: float | None
    is_over: bool | None  # the game ended with that action
    score: int | None = None  # so far in the game, with or without that reward


def split_lines(
    lines: Sequence[Line],
    pictures: Callable[[str], np.ndarray],
    has_picture: Callable[[str], bool],
    counts: Counter[str],
) -> Iterator[Take]:
    """Cuts a table where something is missing, and counts that; a gap is never bridged."""
    for run in _runs(lines, has_picture, counts):
        counts[CONTRADICTED] += _contradictions(run)
        names = [line.name for line in run]
        yield Take(
            frame=lambda index, names=names: pictures(names[index]),
            num_frames=len(run),
            actions=[line.action for line in run],
            rewards=[line.reward for line in run],
            terminated=bool(run[-1].is_over),
        )


def _contradictions(run: list[Line]) -> int:
    """Rewards that are not what the score changed by, whether it holds its line's reward or not."""
    pairs = [
        (before, after)
        for before, after in itertools.pairwise(run)
        if None not in (before.score, after.score)
    ]
    changes = [after.score - before.score for before, after in pairs]
    return min(
        sum(change != after.reward for change, (_, after) in zip(changes, pairs, strict=True)),
        sum(change != before.reward for change, (before, _) in zip(changes, pairs, strict=True)),
    )


def _runs(
    lines: Sequence[Line], has_picture: Callable[[str], bool], counts: Counter[str]
) -> Iterator[list[Line]]:
    run: list[Line] = []
    for line in lines:
        usable = _is_usable(line, has_picture, counts)
        follows = not run or (usable and line.number == run[-1].number + 1)
        if usable and not follows:
            counts["gaps in the numbers of frames"] += 1
        if run and not (usable and follows):
            yield run
            run = []
        if not usable:
            continue
        run.append(line)
        if line.is_over:
            yield run
            run = []
    if run:
        yield run


def _is_usable(line: Line, has_picture: Callable[[str], bool], counts: Counter[str]) -> bool:
    if None in (line.number, line.action, line.reward, line.is_over):
        counts["lines with null where a value is needed"] += 1
        return False
    if not has_picture(line.name):
        counts["lines without a picture"] += 1
        return False
    return True


class Table:
    """Lines of comma-separated text that know where they stand, for errors."""

    def __init__(self, place: Path | zipfile.Path):
        """Reads a file."""
        self.where = str(place)
        try:
            text = read_bytes(place, error=DemonstrationError).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise DemonstrationError(f"{self.where} is no text: {error}") from error
        self._lines = text.splitlines()

    def check_header(self, line_number: int, header: Sequence[str]) -> None:
        """Refuses a file whose columns are others."""
        found = ""
        if len(self._lines) >= line_number:
            found = self._lines[line_number - 1]
        if [name.strip() for name in found.split(",")] != list(header):
            raise DemonstrationError(
                f"{self.where}, line {line_number}: the header is {found[:200]!r}, not "
                f"{','.join(header)!r}"
            )

    def rows(
        self, first: int, fields: Sequence[str], *, tail: bool = False
    ) -> Iterator[tuple[int, dict[str, str]]]:
        """Number and fields of every line from `first` on; empty ones are passed over.

        With a `tail` any number of further values may follow.
        """
        for number, line in enumerate(self._lines[first - 1 :], start=first):
            if not line.strip():
                continue
            values = line.split(",", len(fields)) if tail else line.split(",")
            if len(values) < len(fields) or (not tail and len(values) > len(fields)):
                raise DemonstrationError(
                    f"{self.where}, line {number}: there are {len(values)} fields, but "
                    f"{len(fields)} are needed ({','.join(fields)})"
                )
            yield number, dict(zip(fields, (value.strip() for value in values), strict=False))

    def number(
        self, line: int, row: dict[str, str], field: str, *, low: int = -(2**31), high: int = 2**31
    ) -> int | None:
        """A whole number in `[low, high)`, or None for `null`."""
        value = row[field]
        if value == "null":
            return None
        try:
            number = int(value)
        except ValueError:
            raise self.error(line, field, value, "a whole number or null") from None
        if not low <= number < high:
            raise self.error(line, field, value, f"a number in {low} .. {high - 1}")
        return number

    def error(self, line: int, field: str, value: str, expected: str) -> DemonstrationError:
        """What to raise for a value that cannot be."""
        return DemonstrationError(
            f"{self.where}, line {line}, field {field}: {value[:60]!r} is not {expected}"
        )


def check_order(table: Table, line: int, field: str, number: int, previous: int | None) -> None:
    """Frames are numbered upwards; else lines were mixed up."""
    if previous is not None and number <= previous:
        raise DemonstrationError(
            f"{table.where}, line {line}, field {field}: frame {number} comes after frame "
            f"{previous}; lines are repeated or out of order"
        )
