"""The types that the rooms of the house hand to each other; every field says its shape.

Letters: `B` batch, `L` environment lanes, `R` replay rows, `E` demonstration rows, `S` frames in
a stack, `K` steps of a path, `A` actions.  Subscripts follow rlax: `_tm1` is the state an action
was taken in, `_t` what came of it, and `discount` holds both gamma and termination.

A function that draws at random takes its key as the FIRST argument, as jax.random does, and
consumes it.  (Where a function is bound with functools.partial, the first that is left.)
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import chex
import numpy as np

Array = chex.Array
Params = Any


@chex.dataclass(frozen=True)
class Row:
    """One observation and what was done there; fields may carry leading axes (lanes, time).

    A row with `is_last` set starts no transition: its frame is where an episode was cut off
    (or the terminal observation), kept because the rows before it may bootstrap from it.
    An episode that ends by `discount == 0` needs no such row, but may have one.
    A discount of 0 within an episode (a lost life) ends returns, but neither episode nor stack:
    a path goes on with weight 0, and later frames still stack upon earlier ones, which is what an
    actor sees there too.
    """

    frame: Array  # [*frame_shape], one frame, never a stack
    action: Array  # [] int32, taken at `frame`
    reward: Array  # [] float32, received for it
    discount: Array  # [] float32, gamma, or 0 if nothing after it counts
    is_first: Array  # [] bool, `frame` begins an episode
    is_last: Array  # [] bool, no transition starts here


@chex.dataclass(frozen=True)
class Batch:
    """A batch of transitions as the replay gathers them.

    `n_step_*` describes the same transition looked at n steps on (fewer if the episode ended).
    `path_*` holds the first K steps of it, of which step 0 is the transition itself.
    """

    observation: Array  # [B, S, *frame_shape]
    action: Array  # [B] int32
    reward: Array  # [B] float32
    discount: Array  # [B] float32
    next_observation: Array  # [B, S, *frame_shape]
    n_step_return: Array  # [B] float32, discounted sum of rewards
    n_step_discount: Array  # [B] float32, product of discounts
    n_step_observation: Array  # [B, S, *frame_shape], where the n-step target bootstraps
    path_observation: Array  # [B, K - 1, S, *frame_shape], steps 1 .. K-1
    path_action: Array  # [B, K] int32
    path_discount: Array  # [B, K] float32, product of discounts up to that step; 0 past the end
    path_visit_count: Array  # [B, K] float32, visits of each step's row; meaningful for experts
    is_expert: Array  # [B] bool, the transition comes from a demonstration
    index: Array  # [B] int32, its row
    importance_weight: Array  # [B] float32, at most 1


@chex.dataclass(frozen=True)
class EnvStep:
    """What a raw (never resetting) environment step returns."""

    observation: Array  # [*frame_shape]
    reward: Array  # [] float32
    terminated: Array  # [] bool, the episode is over and nothing follows
    truncated: Array  # [] bool, the episode was cut off; its value goes on


@chex.dataclass(frozen=True)
class LearnerState:
    """All that learning changes."""

    params: Params  # pytree of float32
    target_params: Params  # the same shapes
    opt_state: Any  # the optimizer's
    updates: Array  # [] int32, updates done, pre-training included
    extra: tuple[Any, ...] = ()  # what the loss takes besides the batch, and changes; often nothing


@chex.dataclass(frozen=True)
class LossOutput:
    """What a loss tells the learner besides the scalar that is differentiated."""

    td_error: Array  # [B] float32, priorities come from its size
    metrics: dict[str, Array]  # name -> []
    extra: tuple[Any, ...] = ()  # what `LearnerState.extra` becomes


class Environment(NamedTuple):
    """A jnp environment as a bundle of pure functions; `params` is what may vary under vmap."""

    reset: Callable[[Array, Any], tuple[Any, Array]]  # (key, params) -> (state, observation)
    step: Callable[[Array, Any, Any, Array], tuple[Any, EnvStep]]  # (key, params, state, action)
    frame_shape: tuple[int, ...]
    frame_dtype: Any
    num_actions: int


class HostStep(NamedTuple):
    """What all lanes of a host environment show at one time t.

    `frame`, `is_first`, `is_last` and `lives` describe observation t.  `reward`, `score_reward` and
    `discount` tell what came of the action taken at observation t - 1, so the row of observation t
    takes them from step t + 1 (`envs.host.to_row`).  An episode's last observation is shown, and
    the action taken there is ignored: the next step is the first of a new episode.  That step's
    reward and discount are 0, as no action led to it.
    """

    frame: np.ndarray  # [L, *frame_shape], one frame, never a stack
    reward: np.ndarray  # [L] float32, as it is learnt from
    discount: np.ndarray  # [L] float32, without gamma: 0 if nothing after it counts, else 1
    is_first: np.ndarray  # [L] bool, the observation begins an episode
    is_last: np.ndarray  # [L] bool, it ends one, by termination or truncation
    score_reward: np.ndarray  # [L] float32, as the game counts it; a score is its sum
    lives: np.ndarray  # [L] int32, left in the game; 0 throughout where there are none
    # [L] integers, what was done at observation t - 1; None: what was asked for.
    action: np.ndarray | None = None


class HostEnvironment(Protocol):
    """A batch of environments that run outside of jax and reset themselves."""

    num_lanes: int
    num_actions: int
    frame_shape: tuple[int, ...]
    frame_dtype: Any

    def reset(self) -> HostStep:
        """Begins a new episode in every lane."""
        ...

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes one action per lane, `[L]` integers; ignored in lanes whose episode has ended."""
        ...
