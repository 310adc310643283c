"""Shares and visit weights of several demonstrations in one replay."""

import dataclasses

import jax.numpy as jnp
import pytest
from helpers import filled_replay

from bqfd_jax import posterior
from bqfd_jax.agents import BqfdConfig, EnsembleBqfdConfig, PddDqnConfig
from bqfd_jax.agents.trust import Trust
from bqfd_jax.training import demo_usage
from bqfd_jax.types import LearnerState

# The first episode is one demonstration, the second, whose last row starts nothing, another.
SIZES = {"mine": 3, "yours": 3}


def learner(*trust):
    """Of which only what it remembers of the demonstrations is known."""
    return LearnerState(params={}, target_params={}, opt_state=(), updates=0, extra=trust)


def usage(sizes, config, state, since):
    return demo_usage.usage(sizes, config, rows_of(state), since)


def visits(state):
    return demo_usage.visits(rows_of(state))


def rows_of(state):
    return demo_usage.demo_rows(learner(), state, len(state.visit_count))


def visited(*index):
    replay, state = filled_replay()
    return replay.count_visits(state, jnp.array(index, jnp.int32))


def test_shares_are_of_what_was_drawn_since_the_last_time():
    _, state = filled_replay()
    # Nothing was drawn, so there is nothing to share; and this agent has no visit weight.
    assert usage(SIZES, PddDqnConfig(), state, visits(state)) == {}
    # Row 20 is the agent's own.
    later = visited(0, 2, 2, 4, 20)
    shares = usage(SIZES, PddDqnConfig(), later, visits(state))
    assert shares == {"demo/mine/share": 0.75, "demo/yours/share": 0.25}
    replay, _ = filled_replay()
    last = replay.count_visits(later, jnp.array([3, 3]))
    shares = usage(SIZES, PddDqnConfig(), last, visits(later))
    assert shares == {"demo/mine/share": 0.0, "demo/yours/share": 1.0}


def test_visit_weights_are_means_over_transitions():
    config = BqfdConfig()
    metrics = usage(SIZES, config, visited(0, 0, 0, 1, 4), visits(filled_replay()[1]))
    options = {name: getattr(config, name) for name in ("beta", "variance", "noise_ratio")}
    weight = {n: float(posterior.visit_weight(jnp.float32(n), **options)) for n in (1, 2, 4)}
    assert metrics["demo/mine/visit_weight"] == pytest.approx(
        (weight[4] + weight[2] + weight[1]) / 3, rel=1e-5
    )
    # Two transitions only.
    assert metrics["demo/yours/visit_weight"] == pytest.approx(
        (weight[1] + weight[2]) / 2, rel=1e-5
    )
    assert metrics["demo/mine/visit_weight"] < metrics["demo/yours/visit_weight"]


def test_sums_do_not_overflow():
    _, state = filled_replay()
    many = dataclasses.replace(state, visit_count=jnp.full(6, 2_000_000_000, jnp.int32))
    shares = usage(SIZES, PddDqnConfig(), many, visits(state))
    assert shares == {"demo/mine/share": 0.5, "demo/yours/share": 0.5}


def test_without_demonstrations_there_is_nothing_to_tell():
    state = filled_replay(demonstrations=False)[1]
    assert usage({}, BqfdConfig(), state, visits(state)) == {}


def test_sizes_that_are_not_those_of_the_rows_are_refused():
    state = filled_replay()[1]
    with pytest.raises(ValueError, match="do not have 6 rows"):
        usage({"mine": 2}, BqfdConfig(), state, visits(state))


@pytest.mark.parametrize(
    ("weight", "called"), [("ensemble", "ensemble_weight"), ("smaller", "expert_weight")]
)
def test_what_was_learnt_of_each_demonstration_is_told(weight, called):
    state = filled_replay()[1]
    trust = Trust(
        ends=jnp.array([3, 6]),
        log_eta=jnp.log(jnp.array([0.5, 4.0])),
        weight=jnp.array([0.1, 0.3]),
        initial=jnp.float32(1e3),
        step_worth=jnp.float32(1e3),
    )
    rows = demo_usage.demo_rows(learner(trust), state, 6)
    config = EnsembleBqfdConfig(learn_eta=True, weight=weight)
    assert demo_usage.usage(SIZES, config, rows, visits(state)) == pytest.approx(
        {
            f"demo/mine/{called}": 0.1,
            f"demo/yours/{called}": 0.3,
            "demo/mine/eta": 0.5,
            "demo/yours/eta": 4.0,
        }
    )
    assert demo_usage.etas(SIZES, config, rows) == pytest.approx({"mine": 0.5, "yours": 4.0})
    # A constant is no result.
    assert demo_usage.etas(SIZES, EnsembleBqfdConfig(), rows) == {}
