"""A trained agent without all that trained it: observations in, actions out; saved and loaded."""

import dataclasses
import functools
import json
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks, networks
from bqfd_jax.agents.config import AnyAgentConfig
from bqfd_jax.files import (
    FileError,
    check_fields,
    digest,
    read_npz,
    read_record,
    write_record,
)
from bqfd_jax.networks import Network
from bqfd_jax.types import Array, HostEnvironment, Params

_FORMAT = 2
_FRAME_DTYPES = re.compile(r"bool|u?int(8|16|32|64)|float(16|32|64)")
_MOST_NUMBERS = 2**28  # that a policy may see and say at once


class PolicyError(FileError):
    """A policy cannot be saved, loaded or asked that; the message says why."""


@dataclasses.dataclass(frozen=True, eq=False)
class Policy:
    """Acts by the Q-values of a network: by the greatest, or drawn from their softmax.

    It remembers which of the two its scores were measured with, and is played so by `evaluate` and
    `record`; `dataclasses.replace(policy, temperature=0.0)` plays it greedily all the same.
    """

    network: Network  # Q-values [B, A], or [B, K, A] of an ensemble, of which the mean counts
    params: Params
    num_actions: int
    frame_shape: tuple[int, ...]
    frame_dtype: np.dtype
    stack: int = 1  # frames per observation
    # What the network was made with beside the fields above, see `networks.described_network`;
    # None, or with `own`: the network is somebody's own.
    made_with: dict[str, Any] | None = None
    environment: str = ""  # what it was trained in
    preprocessing: dict[str, Any] | None = None  # how that environment makes its frames, if it says
    chosen: dict[str, Any] | None = None  # the evaluation that picked it among others, if one did
    # Actions are drawn from `softmax(q / temperature)`; 0: the greatest is taken.
    temperature: float = 0.0

    def __post_init__(self) -> None:
        checks.at_least(0, temperature=self.temperature)

    def __repr__(self) -> str:
        seen = f"{self.frame_dtype}{[self.stack, *self.frame_shape]}"
        return f"Policy({self.environment or 'unknown'}: {seen} -> {self.num_actions} actions)"

    def q_values(self, observations: Any) -> Array:
        """Q-values `[L, A]` of observations as `act` takes them."""
        return self._q_values(self.params, self._checked(observations)[0])

    def act(self, observations: Any, random: np.random.Generator | None = None) -> np.ndarray:
        """An action for each observation.

        Args:
          observations: `[L, *frame_shape]`, or a single one; with `stack` above 1 there is an axis
            of so many frames, the newest last, before `frame_shape`.
          random: draws the actions of a policy that has a temperature; without it, the best action
            is taken, and it is a pure function of what it sees.

        Returns:
          Actions `[L]` int32, or a single one.
        """
        batch, is_single = self._checked(observations)
        if random is None or not self.temperature:
            actions = np.asarray(self._greedy(self.params, batch))
        else:
            actions = _drawn(random, self._q_values(self.params, batch), self.temperature)
        return actions[0] if is_single else actions

    def _checked(self, observations: Any) -> tuple[np.ndarray, bool]:
        expected = self.frame_shape if self.stack == 1 else (self.stack, *self.frame_shape)
        observations = np.asarray(observations)
        if observations.dtype.kind == "f" and self.frame_dtype.kind in "iu":
            raise PolicyError(
                f"observations are {observations.dtype}, but must be {self.frame_dtype} as in "
                "training; are they scaled?"
            )
        observations = observations.astype(self.frame_dtype)
        is_single = observations.shape == expected
        if is_single:
            observations = observations[None]
        if observations.shape[1:] != expected or not len(observations):
            raise PolicyError(
                f"observations are {list(observations.shape)}, but must be {list(expected)} or "
                f"[L, {', '.join(map(str, expected))}]"
            )
        return observations.reshape(-1, self.stack, *self.frame_shape), is_single

    @functools.cached_property
    def _q_values(self) -> Callable[[Params, Array], Array]:
        return jax.jit(functools.partial(networks.mean_q, self.network.apply))

    @functools.cached_property
    def _greedy(self) -> Callable[[Params, Array], Array]:
        def greedy(params: Params, observations: Array) -> Array:
            q = networks.mean_q(self.network.apply, params, observations)
            return jnp.argmax(q, axis=-1).astype(jnp.int32)

        return jax.jit(greedy)


def _drawn(random: np.random.Generator, q: Array, temperature: float) -> np.ndarray:
    """Actions `[L]` int32 by `softmax(q / temperature)` of Q-values `[L, A]`."""
    q = np.asarray(q, np.float64)
    # Gumbel's trick; less the greatest, so that no temperature is too small.
    scaled = (q - q.max(axis=-1, keepdims=True)) / temperature
    return np.argmax(scaled + random.gumbel(size=q.shape), axis=-1).astype(np.int32)


def make_policy(
    env: HostEnvironment,
    network: Network,
    made_with: dict[str, Any] | None,
    config: AnyAgentConfig,
    params: Params,
    *,
    stack: int = 1,
    temperature: float = 0.0,
) -> Policy:
    """The policy of an agent that was trained in `env`; of an ensemble, `network` is one member."""
    if config.members is not None:
        network = networks.as_ensemble(network, config.members)
        made_with = ({"own": True} if made_with is None else made_with) | config.members
    return Policy(
        network=network,
        params=params,
        made_with=made_with,
        environment=getattr(env, "name", type(env).__name__),
        preprocessing=getattr(env, "preprocessing", None),
        temperature=temperature,
        **seen_shape(env, stack),
    )


def seen_shape(env: HostEnvironment, stack: int) -> dict[str, Any]:
    """The fields of a `Policy` that say what it sees and does."""
    return {
        "num_actions": env.num_actions,
        "frame_shape": tuple(env.frame_shape),
        "frame_dtype": np.dtype(env.frame_dtype),
        "stack": stack,
    }


def save_policy(policy: Policy, path: str | os.PathLike[str]) -> None:
    """Writes a policy as `.npz`; `path` holds the old file or all of the new, never less."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(policy.params)
    meta = {
        "format": _FORMAT,
        "kind": "policy",
        "num_actions": policy.num_actions,
        "frame_shape": list(policy.frame_shape),
        "frame_dtype": policy.frame_dtype.name,
        "stack": policy.stack,
        "made_with": policy.made_with,
        "environment": policy.environment,
        "preprocessing": policy.preprocessing,
        "chosen": policy.chosen,
        "temperature": policy.temperature,
        "params": [jax.tree_util.keystr(keys) for keys, _ in leaves],
    }
    arrays = {f"param_{i}": np.asarray(leaf) for i, (_, leaf) in enumerate(leaves)}
    write_record(path, meta | {"digest": _digest(meta, arrays)}, arrays)


def _digest(meta: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    return digest(json.dumps(meta, sort_keys=True), arrays)


def load_policy(path: str | os.PathLike[str], *, network: Any = None) -> Policy:
    """Reads what `save_policy` wrote; executes nothing that is in the file.

    `network` is the same that was trained, if it was one's own; see `bqfd_jax.train`.

    Raises:
      FileNotFoundError: there is no such file.
      PolicyError: it is damaged, holds no policy, or the network does not fit.
    """
    path = Path(path)
    try:
        meta, shape, arrays = _read(path)
    except FileError as error:
        raise PolicyError(f"{path} is no policy: {error}") from error
    made_with = meta["made_with"]
    if network is None and (made_with is None or "own" in made_with):
        raise PolicyError(f"{path} was trained with a network of one's own: give it (network)")
    try:
        if network is None:
            network = networks.described_network(made_with, **shape)
        else:
            network = networks.as_ensemble(networks.own_network(network, **shape), made_with or {})
        stored = dict(zip(meta["params"], arrays.values(), strict=True))
        params = _fill(path, network, stored, shape)
    except PolicyError:
        raise
    # Whatever a description that is none makes flax and jax raise.
    except Exception as error:
        raise PolicyError(f"{path} cannot be played by that network: {error}") from error
    names = ("environment", "preprocessing", "chosen", "temperature")
    told = {name: meta[name] for name in names}
    return Policy(network=network, params=params, made_with=made_with, **shape, **told)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, np.ndarray]]:
    """What a file says of a policy, the shape of what it sees, and its parameters."""
    written, _ = read_record(path)
    # Files that are older than these were chosen by nobody, and act greedily.
    meta = {"chosen": None, "temperature": 0.0} | written
    check_fields(meta, kind=str, format=int)
    if meta["kind"] != "policy" or meta["format"] != _FORMAT:
        raise PolicyError(f"it is a {meta['kind']} of format {meta['format']}")
    check_fields(meta, num_actions=int, frame_shape=[int], frame_dtype=str, stack=int, params=[str])
    check_fields(meta, made_with=(dict, None), preprocessing=(dict, None), environment=str)
    check_fields({"fire_after": 0} | (meta["preprocessing"] or {}), fire_after=int)
    check_fields(meta, chosen=(dict, None), temperature=float)
    if meta["temperature"] < 0:
        raise PolicyError(f"temperature is {meta['temperature']}, but must be at least 0")
    names = [f"param_{i}" for i in range(len(meta["params"]))]
    arrays = read_npz(path, names)
    signed = {name: value for name, value in written.items() if name != "digest"}
    if meta.get("digest") != _digest(signed, arrays):
        raise PolicyError("it was changed after it was saved: its contents do not fit its digest")
    sizes = (meta["num_actions"], meta["stack"], *meta["frame_shape"])
    if min(sizes) < 1 or math.prod(sizes) > _MOST_NUMBERS:
        raise PolicyError(f"actions, stack and frames of {list(sizes)} cannot be")
    if not _FRAME_DTYPES.fullmatch(meta["frame_dtype"]):
        raise PolicyError(f"frame_dtype is {meta['frame_dtype']!r}, which is no type of numbers")
    for name, array in zip(meta["params"], arrays.values(), strict=True):
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise PolicyError(f"{name} holds values that are not finite")
    shape = {
        "num_actions": meta["num_actions"],
        "frame_shape": tuple(meta["frame_shape"]),
        "frame_dtype": np.dtype(meta["frame_dtype"]),
        "stack": meta["stack"],
    }
    return meta, shape, arrays


def _fill(
    path: Path, network: Network, stored: dict[str, np.ndarray], shape: dict[str, Any]
) -> Params:
    """The parameters of a network, each from the array of its name."""
    seen = jax.ShapeDtypeStruct((1, shape["stack"], *shape["frame_shape"]), shape["frame_dtype"])
    template = jax.eval_shape(network.init, jax.random.key(0), seen)
    leaves, treedef = jax.tree_util.tree_flatten_with_path(template)
    wanted = {jax.tree_util.keystr(keys): leaf for keys, leaf in leaves}
    for name in dict.fromkeys([*wanted, *stored]):
        one, other = wanted.get(name), stored.get(name)
        if one is None or other is None or (one.shape, one.dtype) != (other.shape, other.dtype):
            raise PolicyError(
                f"{path} does not fit the network: {name} is {_describe(other)} in the file and "
                f"{_describe(one)} in the network"
            )
    return treedef.unflatten([jnp.asarray(stored[name]) for name in wanted])


def _describe(array: Any) -> str:
    return "missing" if array is None else f"{array.dtype}{list(array.shape)}"
