"""Contestants in processes of their own, which take turns: only one computes at a time."""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from tqdm import tqdm

from .timing import Times

# Can be pickled, and is called in a process of its own: no two libraries share threads or settings.
Build = Callable[[], Callable[[int], None]]  # () -> run(amount)


class LeftOutError(Exception):
    """A contestant could not be made, or stopped."""


def _serve(connection: Connection, build: Build, cores: tuple[int, ...]) -> None:
    """Builds a contestant, then does as much work as it is told to, and says how long it took."""
    try:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        run = build()
        connection.send(None)
        while (amount := connection.recv()) is not None:
            wall, cpu = time.perf_counter(), time.process_time()
            run(amount)
            connection.send((time.perf_counter() - wall, time.process_time() - cpu))
    except (KeyboardInterrupt, EOFError):
        pass
    except BaseException as error:
        connection.send(f"{type(error).__name__}: {error}")


class Contestant:
    """A process that works when it is told to."""

    def __init__(self, build: Build, cores: tuple[int, ...]):
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, cores), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self._answer()
        except LeftOutError:
            self.close()
            raise

    def run(self, amount: int) -> tuple[float, float]:
        """Lets it work; returns the seconds, of the clock and of all its threads."""
        self.begin(amount)
        return self.finish()

    def begin(self, amount: int) -> None:
        """Lets it work, without waiting for it."""
        # Of a process that is gone the answer tells.
        with contextlib.suppress(OSError):
            self._connection.send(amount)

    def finish(self) -> tuple[float, float]:
        """Waits for what was begun; returns the seconds, as `run` does."""
        return self._answer()

    def close(self) -> None:
        """Ends the process."""
        with contextlib.suppress(OSError):
            self._connection.send(None)
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.terminate()

    def _answer(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, OSError):
            self._process.join(timeout=5)
            raise LeftOutError(f"its process ended with {self._process.exitcode}") from None
        if isinstance(answer, str):
            raise LeftOutError(answer)
        return answer


def use_threads(threads: int) -> tuple[int, ...]:
    """The cores that every contestant may use, one per thread."""
    available = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 1))(0)
    return tuple(sorted(available)[:threads])


def take_turns(
    builds: Mapping[str, Build],
    amount: int,
    *,
    rounds: int,
    warm_up: int,
    cores: tuple[int, ...],
    say: Callable[[str], None] = tqdm.write,
) -> dict[str, Times]:
    """Seconds that every contestant takes for the same amount of work, by rounds.

    Contestants are made one after the other, and each is warmed up before the first round.  Who
    fails is named and left out.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in builds}
    contestants: dict[str, Contestant] = {}
    total = len(builds) * (rounds + 1)
    with contextlib.ExitStack() as stack, tqdm(total=total, unit="turn", leave=False) as bar:

        def turn(name: str) -> None:
            if name not in contestants:
                contestants[name] = Contestant(builds[name], cores)
                stack.callback(contestants[name].close)
                contestants[name].run(warm_up)
            else:
                seconds[name].append(contestants[name].run(amount))

        for _ in range(rounds + 1):
            for name in list(seconds):
                bar.set_description(name)
                try:
                    turn(name)
                except LeftOutError as error:
                    say(f"{name} is left out: {error}")
                    del seconds[name]
                bar.update()
    return {name: Times(*np.array(values).T) for name, values in seconds.items()}
