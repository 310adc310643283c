"""The loop next to an emulator: environments step on the host while the device learns.

The device is told to learn before the host waits for the actions, which do not depend on that
learning: so the emulators step while the device learns.
"""

import functools
from fractions import Fraction

import jax
import numpy as np

from bqfd_jax import checks
from bqfd_jax.envs import host
from bqfd_jax.training.on_host import HostTrainer, HostTrainState, to_device
from bqfd_jax.types import Array, HostEnvironment, HostStep


def updates_due(step: int, *, update_period: float, learning_starts: int = 0) -> int:
    """How many updates should have been made by an agent step, pre-training apart."""
    # Exact, so that nothing is lost or gained over millions of steps.
    return max(step - learning_starts, 0) // Fraction(update_period).limit_denominator(10**6)


class HostLoop:
    """Environments that go on for ever, and the state that learns from them.

    Args:
      env: what is stepped; reset at the first `run`.
      trainer: made for as many lanes.
      state: taken over; read it back from `state`.
      update_period: agent steps, over all lanes, per update: with 8 lanes and a period of 4, two
        updates each time that all lanes have stepped.
      learning_starts: agent steps before the first update.
      one_call: act and learn in one call.  With a small network a call costs as much as an update,
        so that waiting for the learning as well is the cheaper choice.
      join_updates: make the updates that are due together one call; unless given, everywhere but
        on a CPU, where a call costs little and convolutions in a loop are several times slower.
    """

    def __init__(
        self,
        env: HostEnvironment,
        trainer: HostTrainer,
        state: HostTrainState,
        *,
        update_period: float,
        learning_starts: int = 0,
        one_call: bool = False,
        join_updates: bool | None = None,
    ):
        checks.above(0, update_period=update_period)
        self.env = env
        self.trainer = trainer
        self.state = state
        self.step = int(np.max(state.step))  # runs of a group are in step
        self.scores = host.Scores(env.num_lanes)
        self._updates_due = functools.partial(
            updates_due, update_period=update_period, learning_starts=learning_starts
        )
        self._one_call = one_call
        self._join = jax.default_backend() != "cpu" if join_updates is None else join_updates
        self._seen: HostStep | None = None

    def run(self, num_steps: int) -> list[float]:
        """Goes on for at least that many agent steps; returns scores of episodes that ended."""
        finished = []
        until = self.step + num_steps
        while self.step < until:
            finished += self._iterate()
        return finished

    def _iterate(self) -> list[float]:
        """One step in every lane, and the updates that are due with it."""
        before, self.step = self.step, self.step + self.env.num_lanes
        due = self._updates_due(self.step) - self._updates_due(before)
        if self._seen is not None and self._one_call:
            self.state, actions = self.trainer.iterate(
                self.state, to_device(self._seen), np.int32(due)
            )
        else:
            actions = self._act()
            joined = due > 1 and self._join
            for learn in [self.trainer.updates(due)] if joined else [self.trainer.update] * due:
                self.state = learn(self.state)
        self._seen = self.env.step(np.asarray(actions))
        return self.scores.see(self._seen)

    def _act(self) -> Array:
        if self._seen is None:
            self._seen = self.env.reset()
            self.state, actions = self.trainer.begin(self.state, to_device(self._seen))
        else:
            self.state, actions = self.trainer.interact(self.state, to_device(self._seen))
        # Asked for ahead of the learning, or it would arrive after it.
        actions.copy_to_host_async()
        return actions
