"""The cells of the map: who is trained in which, and what training there begins with."""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import numpy as np

from bqfd_jax.envs import deep_sea, deep_sea_experts, deep_sea_values

from .config import CASES, Config, Quantity, parse_quality, parse_quantity


class Cell(NamedTuple):
    """A place on the map, by names; without demonstrations, of a case alone."""

    case: str
    quality: str | None = None
    quantity: str | None = None


class Inputs(NamedTuple):
    """What distinguishes one run from another, besides its seed; all may be traced."""

    params: deep_sea.Params
    experts: jax.Array  # [2, N, N] float32, see `deep_sea_experts`
    first: jax.Array  # [] int32, which of the two begins
    trajectories: jax.Array  # [] int32
    rows: jax.Array  # [] int32, transitions shown of each


def cells_of(config: Config, agent: str) -> list[Cell]:
    """What the agent is trained on, in the order of the map."""
    if not config.sees_demonstrations(agent):
        return [Cell(case) for case in config.cases]
    places = itertools.product(config.cases, config.qualities, config.quantities)
    return [Cell(*place) for place in places]


def make_inputs(config: Config, cell: Cell, seed: int) -> Inputs:
    """What training in a cell begins with."""
    size = config.size
    if cell.quality is None:
        experts, quantity = np.zeros((2, size, size), np.float32), Quantity(0, 0.0)
    else:
        experts = make_expert(size, cell.quality)
        quantity = parse_quantity(cell.quantity)
    return Inputs(
        params=_case_params(size, cell.case),
        experts=experts,
        # Of a single trajectory, half of the seeds see the wrong one.
        first=np.int32(seed % 2),
        trajectories=np.int32(quantity.trajectories),
        # A share of more than nothing shows one row at least.
        rows=np.int32(max(round(quantity.share * size), 1)),
    )


@functools.cache
def make_expert(size: int, quality: str) -> np.ndarray:
    """The expert as two tables, `[2, N, N]`, that take turns; most are the same twice.

    It goes by what is best if the corner holds a treasure and there is none elsewhere.
    """
    kind, value = parse_quality(quality)
    q = deep_sea_values.optimal_q(deep_sea.treasure(size), size, gamma=1.0)
    if kind == "two":
        experts = [deep_sea_experts.boltzmann(q, eta) for eta in (math.inf, -math.inf)]
    elif kind == "eta":
        experts = [deep_sea_experts.boltzmann(q, value)] * 2
    elif kind == "errs":
        experts = [deep_sea_experts.erring(q, value)] * 2
    else:
        experts = [deep_sea_experts.right_until(q, round(value * size))] * 2
    return np.stack(experts)


@functools.cache
def _case_params(size: int, case: str) -> deep_sea.Params:
    return jax.tree.map(np.asarray, CASES[case](size))
