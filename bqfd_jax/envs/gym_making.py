"""gymnasium's environments: finding them, putting them side by side, refusing what is of no use."""

import difflib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from bqfd_jax import checks, extras


def environments() -> tuple[str, ...]:
    """Ids of all environments that are registered."""
    return tuple(sorted(load_gymnasium().registry))


# --- Side by side ---


def make_vector(env: Any, num_lanes: int | None, **made_here: Any) -> Any:
    """A `gymnasium.vector.VectorEnv` of whatever is given.

    Args:
      env: an id, a vector environment, a single environment, or a function that makes one.
      num_lanes: environments side by side; 1 unless given, or as many as a vector has.
      **made_here: further arguments of `GymVector`, for ids only.
    """
    gymnasium = load_gymnasium()
    if isinstance(env, str):
        return _make(env, 1 if num_lanes is None else num_lanes, **made_here)
    for name, value in made_here.items():
        if value:
            raise ValueError(f"{name} can be given only with an id; the environment is made")
    if isinstance(env, gymnasium.vector.VectorEnv):
        if num_lanes not in (None, env.num_envs):
            raise ValueError(f"num_lanes is {num_lanes}, but the environment has {env.num_envs}")
        return env
    if isinstance(env, gymnasium.Env):
        if num_lanes not in (None, 1):
            raise ValueError(
                f"num_lanes is {num_lanes}, but {env} is a single environment; for more of them "
                "give its id, or a function that makes one"
            )
        return gymnasium.vector.SyncVectorEnv([lambda: env])
    if not callable(env):
        raise ValueError(
            f"{env!r} is no environment's id, no gymnasium.Env or gymnasium.vector.VectorEnv, and "
            "no function that makes an environment"
        )
    checks.at_least(1, num_lanes=num_lanes)
    return gymnasium.vector.SyncVectorEnv([lambda: _made_by(env)] * (num_lanes or 1))


def _made_by(function: Callable[[], Any]) -> Any:
    made = function()
    if not isinstance(made, load_gymnasium().Env):
        raise ValueError(f"{function!r} made {made!r}, but must make a gymnasium.Env")
    return made


def _make(
    name: str,
    num_lanes: int,
    *,
    wrappers: Sequence[Callable[[Any], Any]],
    max_episode_steps: int | None,
    vectorization_mode: str | None,
    render: bool,
    options: dict[str, Any] | None,
) -> Any:
    gymnasium = load_gymnasium()
    checks.at_least(1, num_lanes=num_lanes, max_episode_steps=max_episode_steps)
    if wrappers and vectorization_mode is None:
        # Batched forms of an environment cannot be wrapped one by one.
        vectorization_mode = "sync"
    arguments = dict(options or {})
    if max_episode_steps is not None:
        arguments["max_episode_steps"] = max_episode_steps
    if render:
        arguments["render_mode"] = "rgb_array"
    try:
        return gymnasium.make_vec(
            name,
            num_envs=num_lanes,
            vectorization_mode=vectorization_mode,
            wrappers=list(wrappers) or None,
            **arguments,
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise ValueError(f"{name} needs a package that is missing: {error}") from error
    except ImportError as error:
        cause = error.__cause__ if isinstance(error.__cause__, ImportError) else error
        raise ValueError(f"{name} cannot be made: {extras.stranger(cause)}") from error
    except gymnasium.error.Error as error:
        close = difflib.get_close_matches(name, environments(), n=3, cutoff=0.7)
        hint = f"; did you mean {' or '.join(close)}?" if close and name not in close else ""
        raise ValueError(f"no environment {name!r} can be made: {error}{hint}") from error
    except Exception as error:
        # Whatever its own code raises for arguments that it does not take.
        raise ValueError(f"{name} cannot be made: {type(error).__name__}: {error}") from error


def name_of(env: Any) -> str:
    """The id of a vector environment, or the name of its class."""
    single = getattr(env, "envs", [env])[0]
    spec = getattr(env, "spec", None) or getattr(single, "spec", None)
    return spec.id if spec is not None else type(single.unwrapped).__name__


def seeds_of(env: Any, *parts: int) -> int | list[int]:
    """Seeds for each lane, or one for all; far from those of other parts.

    Args:
      env: the vector environment.
      *parts: what they are made of; zeros at the end count for nothing.
    """
    vector = load_gymnasium().vector
    words = np.random.SeedSequence(parts).generate_state(env.num_envs)
    seeds = (words >> 1).tolist()
    # Batched forms of an environment have a single generator.
    single = isinstance(env.unwrapped, vector.SyncVectorEnv | vector.AsyncVectorEnv)
    return seeds if single else seeds[0]


# --- What can be learnt here, and what cannot ---


def check_actions(name: str, space: Any) -> Any:
    """The space of actions, if it is of a kind that can be learnt."""
    spaces = load_gymnasium().spaces
    if isinstance(space, spaces.Discrete):
        return space
    advice = "only discrete actions can be learnt here"
    if isinstance(space, spaces.Box):
        advice += "; cut continuous ones into a few (gymnasium.wrappers.DiscretizeAction)"
    elif isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        advice += "; number all combinations in a wrapper, if they are few"
    raise ValueError(f"{name} has actions {space}, but {advice}")


def check_observations(name: str, space: Any) -> Any:
    """The space of observations, if it is of a kind that can be learnt from."""
    spaces = load_gymnasium().spaces
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"{name} has observations {space}, but only one array (Box) can be learnt from; wrap "
            "each environment in gymnasium.wrappers.FlattenObservation, or pick one array of it"
        )
    if space.dtype.kind not in "uifb":
        raise ValueError(f"{name} has observations of {space.dtype}, which are no numbers")
    if not 1 <= len(space.shape) <= 3 or 0 in space.shape:
        raise ValueError(
            f"{name} has observations of shape {list(space.shape)}, but they must be vectors or "
            "images, of at most three axes"
        )
    return space


def resets_on_next_step(name: str, env: Any) -> bool:
    """Whether new episodes begin a step after the last ended, or in the same one."""
    modes = load_gymnasium().vector.AutoresetMode
    mode = env.metadata.get("autoreset_mode")
    if mode in (modes.NEXT_STEP, modes.SAME_STEP):
        return mode == modes.NEXT_STEP
    raise ValueError(
        f"{name} has the autoreset_mode {mode}, but must begin new episodes by itself: make it "
        "with AutoresetMode.NEXT_STEP, and have its metadata say so"
    )


def load_gymnasium() -> Any:
    """The package, if it is there and new enough."""
    gymnasium = extras.load("gymnasium", "gym", "this")
    if not hasattr(gymnasium.vector, "AutoresetMode"):
        raise ImportError(
            f"this needs gymnasium 1.1 or later, but {gymnasium.__version__} is installed: "
            "pip install -U gymnasium"
        )
    return gymnasium
