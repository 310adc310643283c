"""Playing a demonstration back: from actions to rows, checked on the way and kept on disk."""

import dataclasses
import hashlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from bqfd_jax.demos.demonstration import ActionDemonstration, Demonstration
from bqfd_jax.demos.frames import FrameDemonstration, frame_rows
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.envs import atari, host
from bqfd_jax.files import FileError, byte_view, digest, read_npz, write_npz
from bqfd_jax.replay import check_demonstrations
from bqfd_jax.types import HostStep, Row

# Raise it whenever other rows would come of the same demonstration.
_CACHE_FORMAT = 2
# More no-ops than the one that envpool insists on would be random.
_NOOP_MAX = 1
# How envpool deals with them does not change an episode.
_IRRELEVANT = {"num_envs", "batch_size", "num_threads", "seed", "stack_num", "max_episode_steps"}
_FIELDS = tuple(field.name for field in dataclasses.fields(Row))


def play(
    demonstration: ActionDemonstration,
    *,
    gamma: float,
    log_rewards: bool = True,
    life_loss_is_terminal: bool = True,
) -> Row:
    """Plays a demonstration back and checks that all came out as it says.

    Every episode has one row per observation, the last one (`is_last`) included.  The last
    transition of an episode that was cut off keeps its discount: its value goes on.  For the
    switches see `envs.atari.Atari`.

    Returns:
      Rows with leading axis `demonstration.num_rows`, numpy.

    Raises:
      DemonstrationError: it cannot be played here, or scores, ends or frames differ.
    """
    _check_configuration(demonstration)
    max_steps = int(demonstration.configuration.get("max_episode_steps", atari.MAX_EPISODE_STEPS))
    episodes: list[Row] = []
    differences: list[str] = []
    for number, actions in enumerate(demonstration.episodes()):
        # A new pool each: later resets of the same emulator may begin differently.
        env = new_emulator(
            demonstration,
            max_episode_steps=max_steps,
            log_rewards=log_rewards,
            life_loss_is_terminal=life_loss_is_terminal,
        )
        steps, actions = _play(env, actions)
        differences += _compare(demonstration, number, steps)
        episodes.append(_episode_rows(steps, actions, gamma))
    rows = _joined(episodes)
    found = frame_hash(rows)
    if demonstration.frame_hash not in (None, found):
        differences.append(f"frames hash to {found}, not {demonstration.frame_hash}")
    if differences:
        raise DemonstrationError(_tell(demonstration, differences))
    check_demonstrations(rows, lives=life_loss_is_terminal)
    return rows


def new_emulator(demonstration: ActionDemonstration, **options: Any) -> atari.Atari:
    """One that begins as a demonstration does; `options` are those of `envs.atari.Atari`.

    Raises:
      DemonstrationError: the demonstration cannot be played here.
    """
    _check_configuration(demonstration)
    env = atari.Atari(demonstration.game, noop_max=_NOOP_MAX, num_threads=1, **options)
    if env.num_actions != len(demonstration.action_meaning):
        raise DemonstrationError(
            f"{_title(demonstration)} knows {len(demonstration.action_meaning)} actions, but "
            f"{demonstration.game} has {env.num_actions}"
        )
    return env


def verified(demonstration: ActionDemonstration) -> ActionDemonstration:
    """Plays a demonstration where training does, and notes the frames that came of it.

    Raises:
      DemonstrationError: something else came of it; the message says what.
    """
    return dataclasses.replace(
        demonstration,
        frame_hash=frame_hash(play(demonstration, gamma=1.0)),
        envpool=atari.envpool_version(),
    )


def to_rows(
    demonstration: Demonstration,
    *,
    gamma: float,
    log_rewards: bool = True,
    life_loss_is_terminal: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
    anew: bool = False,
) -> Row:
    """The rows of either kind of demonstration: actions are played back, frames are there already.

    What was played before is read from `cache_dir`, or `default_cache_dir()`, unless it is to be
    played `anew`.  A damaged file there is as good as none.  If nothing can be written there is a
    warning, no more.  For the switches see `envs.atari.Atari`.

    Returns:
      Rows with leading axis `demonstration.num_rows`, numpy.
    """
    switches = {
        "log_rewards": bool(log_rewards),
        "life_loss_is_terminal": bool(life_loss_is_terminal),
    }
    if isinstance(demonstration, FrameDemonstration):
        return frame_rows(demonstration, gamma=gamma, **switches)
    if anew:
        return play(demonstration, gamma=gamma, **switches)
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    # Another envpool may play differently: that must be seen, not hidden.
    facts = (_CACHE_FORMAT, demonstration.checksum, atari.envpool_version(), *switches.values())
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    path = folder / f"{demonstration.game}-{key[:32]}.npz"
    rows = _read_rows(path, key, demonstration)
    if rows is None:
        # Without gamma, so that one file serves all.
        rows = play(demonstration, gamma=1.0, **switches)
        _write_rows(path, key, rows)
    return rows.replace(discount=np.float32(gamma) * rows.discount)


def default_cache_dir() -> Path:
    """Where rows that were played back are kept: in `$XDG_CACHE_HOME`, or else `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The standard wants other than absolute paths ignored.
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "bqfd-jax" / "demonstrations"


def frame_hash(rows: Row) -> str:
    """sha256 over the frames of all observations, episode after episode."""
    return hashlib.sha256(byte_view(rows.frame)).hexdigest()


def _check_configuration(demonstration: ActionDemonstration) -> None:
    atari.check_game(demonstration.game)
    wanted = atari.EMULATOR | {"noop_max": _NOOP_MAX}
    given = demonstration.configuration
    wrong = [
        f"{name} is {given.get(name, 'not given')}, not {value}"
        for name, value in wanted.items()
        if name not in given or given[name] != value
    ]
    wrong += [f"{name} is unknown" for name in sorted(set(given) - set(wanted) - _IRRELEVANT)]
    limit = given.get("max_episode_steps", 1)
    if type(limit) is not int or not 1 <= limit < 2**31:
        wrong.append(f"max_episode_steps is {limit}, not a number of steps")
    if wrong:
        raise DemonstrationError(
            f"{_title(demonstration)} was made with another configuration than can be played back: "
            + "; ".join(wrong)
        )


def _play(env: atari.Atari, actions: np.ndarray) -> tuple[list[HostStep], np.ndarray]:
    """Steps 0 .. K and the actions between them; K is less than asked if the episode ends."""
    steps = [env.reset()]
    for action in actions:
        if steps[-1].is_last[0]:
            break
        steps.append(env.step(action[None]))
    return steps, actions[: len(steps) - 1]


def _episode_rows(steps: list[HostStep], actions: np.ndarray, gamma: float) -> Row:
    # The last observation's row starts no transition, whether the game or the list ended there.
    steps = [*steps[:-1], steps[-1]._replace(is_last=np.ones(1, bool))]
    nothing = steps[-1]._replace(reward=np.zeros(1, np.float32), discount=np.zeros(1, np.float32))
    rows = [
        host.to_row(step, action[None], following, gamma)
        for step, action, following in zip(
            steps, [*actions, np.uint8(0)], [*steps[1:], nothing], strict=True
        )
    ]
    return _joined(rows)


def _joined(parts: list[Row]) -> Row:
    return Row(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in _FIELDS}
    )


def _compare(demonstration: ActionDemonstration, number: int, steps: list[HostStep]) -> list[str]:
    where = f"episode {number + 1}"
    length = int(demonstration.episode_lengths[number])
    differences = []
    if len(steps) - 1 < length:
        differences.append(f"{where} ended after {len(steps) - 1} of {length} steps")
    elif _is_over(steps[-1]) != demonstration.game_over[number]:
        said = "over" if demonstration.game_over[number] else "cut off"
        differences.append(f"{where} should be {said} after its {length} steps, but is not")
    score = float(sum(step.score_reward[0] for step in steps))
    if score != demonstration.scores[number]:
        differences.append(f"{where} scores {score:g}, not {demonstration.scores[number]:g}")
    return differences


def _is_over(step: HostStep) -> bool:
    return bool(step.is_last[0] and step.discount[0] == 0)


def _title(demonstration: ActionDemonstration) -> str:
    return f"the demonstration {demonstration.name!r} of {demonstration.game}"


def _tell(demonstration: ActionDemonstration, differences: list[str]) -> str:
    here, there = atari.envpool_version(), demonstration.envpool
    if there is None:
        cause = f"envpool is {here} here and was not noted when it was made"
    elif here != there:
        cause = f"envpool is {here} here and was {there} when it was made"
    else:
        cause = "envpool and configuration are the same as when it was made, so the file is wrong"
    what = "; ".join(differences)
    return f"{_title(demonstration)} does not play back as it should: {what} ({cause})"


def _fields(rows: Row) -> dict[str, np.ndarray]:
    return {name: getattr(rows, name) for name in _FIELDS}


def _read_rows(path: Path, key: str, demonstration: ActionDemonstration) -> Row | None:
    try:
        arrays = read_npz(path, (*_FIELDS, "checksum"))
    except (OSError, FileError):
        return None
    checksum = str(arrays.pop("checksum")[()])
    rows = Row(**arrays)
    if checksum != digest(key, _fields(rows)) or len(rows.action) != demonstration.num_rows:
        return None
    return rows


def _write_rows(path: Path, key: str, rows: Row) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, checksum=np.array(digest(key, _fields(rows))), **_fields(rows))
    except OSError as error:
        warnings.warn(f"the rows that were played back are not kept: {error}", stacklevel=3)
