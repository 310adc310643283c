"""Episodes in a jnp environment that nobody learns from: to evaluate, and to record."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks, exploration
from bqfd_jax.types import Array, Environment, Params

QValues = Callable[[Params, Array], Array]


@chex.dataclass(frozen=True)
class Played:
    """What a lane did in each step, until its episode ended; fields `[T, L, ...]`."""

    frame: Array  # [T, L, *frame_shape], where the action was chosen
    action: Array  # [T, L] int32
    reward: Array  # [T, L] float32
    terminated: Array  # [T, L] bool
    running: Array  # [T, L] bool, False: the episode was over before
    next_frame: Array  # [T, L, *frame_shape]


class Player(NamedTuple):
    """Plays an episode per lane.

    The host looks in between pieces of so many steps whether somebody still plays, so that one
    program serves short episodes and long ones.
    """

    env: Environment
    q_values: QValues  # (params, observation [L, 1, *frame_shape]) -> [L, A]
    lanes: int
    piece: int = 50

    def returns(self, key: Array, params: Params, env_params: Any, epsilon: float = 0) -> Array:
        """Sum of the rewards of each lane's episode, `[L]` float64."""
        total = np.zeros(self.lanes)
        for piece in self._pieces(key, params, env_params, epsilon):
            total += np.sum(np.where(piece.running, piece.reward, 0.0), axis=0)
        return total

    def record(self, key: Array, params: Params, env_params: Any, epsilon: float = 0) -> Played:
        """All that was seen and done, on the host."""
        pieces = [
            jax.tree.map(np.asarray, piece)
            for piece in self._pieces(key, params, env_params, epsilon)
        ]
        return jax.tree.map(lambda *fields: np.concatenate(fields), *pieces)

    def _pieces(self, key: Array, params: Params, env_params: Any, epsilon: float):
        checks.within(0, 1, epsilon=epsilon)
        reset_key, key = jax.random.split(key)
        state = _begin(self, reset_key, env_params)
        number = 0
        while np.any(state[2]):
            piece_key = jax.random.fold_in(key, number)
            state, piece = _play(self, piece_key, params, env_params, state, jnp.float32(epsilon))
            yield piece
            number += 1


@functools.partial(jax.jit, static_argnums=0)
def _begin(player: Player, key: Array, env_params: Any) -> tuple[Any, Array, Array]:
    reset = jax.vmap(player.env.reset, in_axes=(0, None))
    env_state, frame = reset(jax.random.split(key, player.lanes), env_params)
    return env_state, frame, jnp.ones(player.lanes, bool)


@functools.partial(jax.jit, static_argnums=0)
def _play(
    player: Player, key: Array, params: Params, env_params: Any, state: Any, epsilon: Array
) -> tuple[Any, Played]:
    """One piece."""

    def step(state: Any, key: Array) -> tuple[Any, Played]:
        env_state, frame, running = state
        act_key, step_key = jax.random.split(key)
        q = player.q_values(params, frame[:, None])
        pick = jax.vmap(exploration.epsilon_greedy, in_axes=(0, 0, None))
        action = pick(jax.random.split(act_key, player.lanes), q, epsilon)
        step_lanes = jax.vmap(player.env.step, in_axes=(0, None, 0, 0))
        keys = jax.random.split(step_key, player.lanes)
        env_state, outcome = step_lanes(keys, env_params, env_state, action)
        played = Played(
            frame=frame,
            action=action,
            reward=outcome.reward,
            terminated=outcome.terminated,
            running=running,
            next_frame=outcome.observation,
        )
        running = running & ~outcome.terminated & ~outcome.truncated
        return (env_state, outcome.observation, running), played

    return jax.lax.scan(step, state, jax.random.split(key, player.piece))
