"""Contestants of a benchmark, in a module that their processes import at no cost."""

import os
import threading


def writer(path, name):
    """A contestant that notes its turns, its process and its cores."""

    def run(amount):
        with open(path, "a") as file:
            file.write(f"{name} {amount} {os.getpid()} {len(os.sched_getaffinity(0))}\n")

    return run


def broken_build():
    raise ImportError("no such library")


def broken_run():
    def run(amount):
        if amount > 1:
            raise ValueError(f"{amount} is too much")

    return run


def dying_run():
    return lambda amount: os._exit(3)


def dying_at_rest():
    def run(amount):
        # After its answer, while others work.
        threading.Timer(0.2, os._exit, [4]).start()

    return run
