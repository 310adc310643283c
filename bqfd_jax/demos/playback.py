"""Playing a demonstration back: from actions to rows, checked on the way and kept on disk."""

import dataclasses
import hashlib
import os
import warnings
from pathlib import Path

import numpy as np

from bqfd_jax.demos.demonstration import ActionDemonstration, Demonstration
from bqfd_jax.demos.errors import DemonstrationError
from bqfd_jax.demos.frames import FrameDemonstration, frame_rows
from bqfd_jax.envs import atari, host
from bqfd_jax.files import FileError, read_npz, write_npz
from bqfd_jax.replay import check_demonstrations
from bqfd_jax.types import HostStep, Row

# Raise it whenever other rows would come of the same demonstration.
_CACHE_FORMAT = 1
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
    transition of an episode that was cut off keeps its discount: its value goes on.

    Args:
      demonstration: what to play.
      gamma: discount of one step.
      log_rewards: see `envs.atari.Atari`.
      life_loss_is_terminal: see there.

    Returns:
      Rows with leading axis `demonstration.num_rows`, numpy.

    Raises:
      DemonstrationError: it cannot be played here, or scores, ends or frames differ.
    """
    _check_configuration(demonstration)
    max_steps = int(demonstration.configuration.get("max_episode_steps", atari.MAX_EPISODE_STEPS))
    episodes: list[Row] = []
    differences: list[str] = []
    starts = np.cumsum(demonstration.episode_lengths) - demonstration.episode_lengths
    for number, (start, length) in enumerate(
        zip(starts, demonstration.episode_lengths, strict=True)
    ):
        # A new pool each: later resets of the same emulator may begin differently.
        env = atari.Atari(
            demonstration.game,
            noop_max=_NOOP_MAX,
            max_episode_steps=max_steps,
            log_rewards=log_rewards,
            life_loss_is_terminal=life_loss_is_terminal,
            num_threads=1,
        )
        if env.num_actions != len(demonstration.action_meaning):
            raise DemonstrationError(
                f"{_title(demonstration)} knows {len(demonstration.action_meaning)} actions, but "
                f"{demonstration.game} has {env.num_actions}"
            )
        steps, actions = _play(env, demonstration.actions[start : start + length])
        differences += _compare(demonstration, number, steps)
        episodes.append(_episode_rows(steps, actions, gamma))
    rows = Row(
        **{
            name: np.concatenate([getattr(episode, name) for episode in episodes])
            for name in _FIELDS
        }
    )
    found = frame_hash(rows)
    if demonstration.frame_hash not in (None, found):
        differences.append(f"frames hash to {found}, not {demonstration.frame_hash}")
    if differences:
        raise DemonstrationError(_tell(demonstration, differences))
    check_demonstrations(rows, lives=life_loss_is_terminal)
    return rows


def play_cached(
    demonstration: ActionDemonstration,
    *,
    gamma: float,
    log_rewards: bool = True,
    life_loss_is_terminal: bool = True,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Row:
    """`play`, but what was played before is read from disk.

    A damaged file is as good as none.  If nothing can be written there is a warning, no more.

    Args:
      demonstration: what to play.
      gamma: discount of one step.
      log_rewards: see `play`.
      life_loss_is_terminal: see `play`.
      cache_dir: where; `default_cache_dir()` if None.

    Returns:
      What `play` returns.
    """
    folder = default_cache_dir() if cache_dir is None else Path(cache_dir)
    # Another envpool may play differently: that must be seen, not hidden.
    facts = (
        _CACHE_FORMAT,
        demonstration.checksum,
        atari.envpool_version(),
        bool(log_rewards),
        bool(life_loss_is_terminal),
    )
    key = hashlib.sha256(repr(facts).encode()).hexdigest()
    path = folder / f"{demonstration.game}-{key[:32]}.npz"
    rows = _read_rows(path, key, demonstration)
    if rows is None:
        # Without gamma, so that one file serves all.
        rows = play(
            demonstration,
            gamma=1.0,
            log_rewards=log_rewards,
            life_loss_is_terminal=life_loss_is_terminal,
        )
        fields = {name: getattr(rows, name) for name in _FIELDS}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_npz(path, checksum=np.array(_fields_hash(key, rows)), **fields)
        except OSError as error:
            warnings.warn(f"the rows that were played back are not kept: {error}", stacklevel=2)
    return rows.replace(discount=np.float32(gamma) * rows.discount)


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

    Args:
      demonstration: of either kind.
      gamma: discount of one step.
      log_rewards: see `envs.atari.Atari`.
      life_loss_is_terminal: see there.
      cache_dir: see `play_cached`.
      anew: play a list of actions even if that was done before.

    Returns:
      Rows with leading axis `demonstration.num_rows`, numpy.
    """
    switches = {"log_rewards": log_rewards, "life_loss_is_terminal": life_loss_is_terminal}
    if isinstance(demonstration, FrameDemonstration):
        return frame_rows(demonstration, gamma=gamma, **switches)
    if anew:
        return play(demonstration, gamma=gamma, **switches)
    return play_cached(demonstration, gamma=gamma, cache_dir=cache_dir, **switches)


def default_cache_dir() -> Path:
    """Where rows that were played back are kept: in `$XDG_CACHE_HOME`, or else `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The standard wants other than absolute paths ignored.
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return folder / "bqfd-jax" / "demonstrations"


def frame_hash(rows: Row) -> str:
    """sha256 over the frames of all observations, episode after episode."""
    return hashlib.sha256(_bytes_of(rows.frame)).hexdigest()


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
    return Row(**{name: np.concatenate([getattr(row, name) for row in rows]) for name in _FIELDS})


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


def _fields_hash(key: str, rows: Row) -> str:
    digest = hashlib.sha256(key.encode())
    for name in _FIELDS:
        value = getattr(rows, name)
        digest.update(f"{name} {value.dtype} {value.shape}".encode())
        digest.update(_bytes_of(value))
    return digest.hexdigest()


def _bytes_of(value: np.ndarray) -> np.ndarray:
    # A view: all frames of a demonstration are tens of megabytes.
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def _read_rows(path: Path, key: str, demonstration: ActionDemonstration) -> Row | None:
    try:
        arrays = read_npz(path, (*_FIELDS, "checksum"))
    except (OSError, FileError):
        return None
    checksum = str(arrays.pop("checksum")[()])
    rows = Row(**arrays)
    if checksum != _fields_hash(key, rows) or len(rows.action) != demonstration.num_rows:
        return None
    return rows
