"""What a checkpoint holds of a run on host environments, and how it goes on from there."""

from collections.abc import Callable, Iterable
from typing import Any

import jax.numpy as jnp

from bqfd_jax.replay import ReplayState
from bqfd_jax.training.on_host import HostTrainer, HostTrainState
from bqfd_jax.types import Array, LearnerState

_COUNTERS = ("step", "key", "totals", "num_totals")
# Metrics that had another name once; checkpoints keep it, so that those from then can be read.
_SAVED_AS = {"expert_weight": "ensemble_weight"}


def to_checkpoint(state: HostTrainState, *, with_replay: bool = True) -> dict[str, Any]:
    """What is worth saving of a state: the items of a checkpoint.

    Without the replay, which may take gigabytes, the mean of its visit counts is kept.
    """
    run = {name: getattr(state, name) for name in _COUNTERS}
    run["totals"] = {_saved_as(name): total for name, total in state.totals.items()}
    items = {"learner": network_of(state.learner), "run": run}
    if state.learner.extra:
        items["extra"] = state.learner.extra
    if with_replay:
        return items | {"replay": state.replay}
    return items | {"run": run | {"mean_visits": _mean_visits(state.replay)}}


def network_of(learner: LearnerState) -> LearnerState:
    """The item `learner`; what is in `extra` depends on the demonstrations, the rest does not."""
    return learner.replace(extra=())


def from_checkpoint(
    saved: dict[str, Any],
    trainer: HostTrainer,
    fresh_replay: Callable[[], ReplayState],
    metrics: Iterable[str],
) -> HostTrainState:
    """The state that was saved; running episodes begin anew.

    If the replay was not saved it is what `fresh_replay` makes, with the demonstrations alone, and
    every visit count goes on from the mean that was reached.  `metrics` are the names of `totals`.
    """
    run = dict(saved["run"])
    run["totals"] = {name: run["totals"][_saved_as(name)] for name in metrics}
    if "replay" in saved:
        replay_state = saved["replay"]
    else:
        replay_state = fresh_replay()
        mean = jnp.round(run["mean_visits"]).astype(jnp.int32)
        visits = jnp.maximum(mean, 1) * jnp.ones_like(replay_state.visit_count)
        replay_state = replay_state.replace(visit_count=visits)
    return HostTrainState(
        learner=saved["learner"].replace(extra=tuple(saved.get("extra", ()))),
        replay=replay_state,
        lanes=trainer.init_lanes(),
        **{name: run[name] for name in _COUNTERS},
    )


def _saved_as(metric: str) -> str:
    return _SAVED_AS.get(metric, metric)


def _mean_visits(replay_state: ReplayState) -> Array:
    """Over the demonstration rows that can be visited."""
    visits = replay_state.visit_count
    starts = ~replay_state.rows.is_last[..., : visits.shape[-1]]
    # Over the last axis: states of a group lead with the runs.
    total = jnp.sum(visits * starts, axis=-1, dtype=jnp.float32)
    return total / jnp.maximum(jnp.sum(starts, axis=-1), 1)
