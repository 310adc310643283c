"""Shares and visit weights of several demonstrations in one replay."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from helpers import DEMONSTRATIONS, filled_replay

from bqfd_jax import posterior
from bqfd_jax.agents import BqfdConfig, PddDqnConfig
from bqfd_jax.training.demo_usage import DemoUsage

# The first episode is one demonstration, the second, whose last row starts nothing, another.
SIZES = {"mine": 3, "yours": 3}
IS_LAST = np.array(["last" in row[-1] for row in DEMONSTRATIONS])


def visited(*index):
    replay, state = filled_replay()
    return replay.count_visits(state, jnp.array(index, jnp.int32))


def test_shares_are_of_what_was_drawn_since_the_last_time():
    _, state = filled_replay()
    usage = DemoUsage(SIZES, IS_LAST, PddDqnConfig())
    usage.begin(state)
    # Nothing was drawn, so there is nothing to share; and this agent has no visit weight.
    assert usage.read(state) == {}
    # Row 20 is the agent's own.
    state = visited(0, 2, 2, 4, 20)
    assert usage.read(state) == {"demo/mine/share": 0.75, "demo/yours/share": 0.25}
    assert usage.read(state) == {}
    replay, _ = filled_replay()
    later = replay.count_visits(state, jnp.array([3, 3]))
    assert usage.read(later) == {"demo/mine/share": 0.0, "demo/yours/share": 1.0}


def test_visit_weights_are_means_over_transitions():
    config = BqfdConfig()
    usage = DemoUsage(SIZES, IS_LAST, config)
    usage.begin(filled_replay()[1])
    metrics = usage.read(visited(0, 0, 0, 1, 4))
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
    usage = DemoUsage(SIZES, IS_LAST, PddDqnConfig())
    usage.begin(state)
    many = dataclasses.replace(state, visit_count=jnp.full(6, 2_000_000_000, jnp.int32))
    assert usage.read(many) == {"demo/mine/share": 0.5, "demo/yours/share": 0.5}


def test_without_demonstrations_there_is_nothing_to_tell():
    usage = DemoUsage({}, None, BqfdConfig())
    state = filled_replay(demonstrations=False)[1]
    usage.begin(state)
    assert usage.read(state) == {}
    with pytest.raises(ValueError, match="do not have 6 rows"):
        DemoUsage({"mine": 2}, IS_LAST, BqfdConfig())
