"""What a worker of a sweep does, in a process of its own."""

from bqfd_jax import console
from bqfd_jax.runs.sweep.cell import Outcome, Task, attempt

from .. import commands


def work(task: Task) -> Outcome:
    """One attempt at a run; never raises, and never ends the process."""
    console.quieten_strangers()
    console.keep_compiled()
    return attempt(task, commands.train)
