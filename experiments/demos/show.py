"""`python -m experiments.demos show`: what a demonstration is like, in text, picture and film."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from bqfd_jax import console, demos
from bqfd_jax.demos.importing.actions import NAMES
from bqfd_jax.demos.informativeness import CONFIG
from bqfd_jax.policy import Policy, PolicyError, load_policy
from bqfd_jax.runs import plots, video
from bqfd_jax.runs.errors import Stopped, UsageError
from bqfd_jax.types import Row

_BARS = " ▁▂▃▄▅▆▇█"
_SHEET_FRAMES = 24
_FILM_FPS = 15  # as people play: 60 frames a second, one of four seen


@dataclasses.dataclass(frozen=True)
class ShowConfig:
    """Tells a demonstration's scores and rewards, how much its actions say, and films it."""

    file: Annotated[str, tyro.conf.Positional]
    """The demonstration: a file, or with --game the name of one that comes with the package:
    `default`, `strong`, `weak` or `search`."""
    game: str | None = None
    """The game, for those that come with the package."""
    check: bool = False
    """Play a list of actions anew and compare all that it says of itself; frames are compared with
    their checksum, and their episodes with each other."""
    measure: bool = True
    """Have a small network foretell its actions: do they follow from what is seen? For Atari that
    takes a minute or so."""
    policy: Path | None = None
    """A trained policy (a run's folder, or its policy.npz) that is asked what it would do at every
    step: where do its values and the demonstration part?"""
    out: Path | None = None
    """Folder for the picture and the film; beside the file unless given."""
    sheet: bool = True
    """Draw a contact sheet."""
    film: bool = True
    """Write an mp4."""


def show(config: Annotated[ShowConfig, tyro.conf.arg(name="")]) -> None:
    """Tells a demonstration's scores and rewards, how much its actions say, and films it."""
    demonstration = _load(config)
    # Before anything is played or told, so that a wrong one costs no time.
    policy = None if config.policy is None else _policy(config.policy, demonstration)
    try:
        # What was played before must not be trusted where it is to be checked.
        rows = demos.to_rows(demonstration, **_AS_PLAYED, anew=config.check)
    except (ValueError, ImportError) as error:
        raise UsageError(f"{config.file}: {error}") from error
    print(describe(demonstration, rows))
    if policy is not None:
        print("\n" + _asked(config, policy, demonstration, rows))
    if config.measure:
        print("\n" + _measured(demonstration, rows))
    if config.check:
        print("\nchecked: " + _what_was_checked(demonstration))
    folder, stem = _place(config, demonstration)
    for wanted, ending, write in (
        (config.sheet, "png", _write_sheet),
        (config.film, "mp4", _write_film),
    ):
        if not wanted:
            continue
        path = folder / f"{stem}.{ending}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            written = write(path, demonstration, rows)
        except (OSError, ImportError) as error:
            raise UsageError(f"cannot write {path}: {error}") from error
        print(f"written to {path}" if written else f"no {ending}: its observations are no pictures")


# Rewards as the game counts them, and whole games.
_AS_PLAYED = {"gamma": 1.0, "log_rewards": False, "life_loss_is_terminal": False}


def _what_was_checked(demonstration: demos.Demonstration) -> str:
    if isinstance(demonstration, demos.ActionDemonstration):
        hashed = "and frames are" if demonstration.frame_hash else "are (it has no hash of frames)"
        return f"played anew, scores, ends {hashed} as it says"
    return "its contents fit its checksum, and its episodes are whole"


def _load(config: ShowConfig) -> demos.Demonstration:
    try:
        if config.file in demos.NAMES and not Path(config.file).exists():
            if config.game is None:
                raise UsageError(f"{config.file} of which game? Add --game")
            return demos.load_named(config.game, config.file)
        return demos.load(config.file, game=config.game)
    except FileNotFoundError as error:
        raise UsageError(str(error)) from error


def _place(config: ShowConfig, demonstration: demos.Demonstration) -> tuple[Path, str]:
    file = Path(config.file)
    if file.exists():
        return config.out or file.parent, file.stem
    return config.out or Path("."), f"{demonstration.game}-{demonstration.name}"


# --- Text ---


def describe(demonstration: demos.Demonstration, rows: Row) -> str:
    """A demonstration as text."""
    kind = "actions" if isinstance(demonstration, demos.ActionDemonstration) else "frames"
    lengths, scores = demonstration.episode_lengths, demonstration.scores
    lines = [
        f"{demonstration.game}, {demonstration.name!r}: {len(demonstration.actions):,} steps in "
        f"{len(lengths)} episodes, kept as {kind}",
        f"score {np.mean(scores):g} in the mean, from {min(scores):g} to {max(scores):g}"
        + _beside_the_paper(demonstration.game),
        "",
        f"{'episode':>8} {'steps':>7} {'score':>9}  {'end':<10} rewards over its time",
    ]
    rewards = np.split(rows.reward[~rows.is_last], np.cumsum(lengths)[:-1])
    for number, (length, score, over, reward) in enumerate(
        zip(lengths, scores, demonstration.game_over, rewards, strict=True), start=1
    ):
        end = "game over" if over else "cut off"
        lines.append(f"{number:>8} {length:>7,} {score:>9g}  {end:<10} {timeline(reward)}")
    lines += ["", *_reward_lines(rewards), "", *_action_lines(demonstration)]
    return "\n".join(lines)


def _beside_the_paper(game: str) -> str:
    score = demos.PAPER_PLAYER.get(game)
    return "" if score is None else f"; the paper's player scored {score:,}"


def timeline(reward: np.ndarray, *, width: int = 40) -> str:
    """Where in an episode rewards were received, as a row of bars."""
    parts = np.array_split(np.abs(reward), min(width, len(reward)))
    amounts = np.array([part.sum() for part in parts])
    if not amounts.any():
        return "none"
    heights = np.ceil(amounts / amounts.max() * (len(_BARS) - 1)).astype(int)
    return "".join(_BARS[height] for height in heights)


def _reward_lines(rewards: list[np.ndarray]) -> list[str]:
    reward = rewards[0]
    times = np.flatnonzero(reward)
    every = np.concatenate(rewards)
    received = every[every != 0]
    if not len(received):
        return ["no rewards at all"]
    first = ", ".join(f"{time + 1} ({reward[time]:+g})" for time in times[:10])
    return [
        f"{len(received):,} rewards, from {received.min():g} to {received.max():g}, one in "
        f"{len(every) / len(received):.1f} steps",
        f"in the first episode at step {first or 'none'}{', ...' if len(times) > 10 else ''}",
    ]


def _action_lines(demonstration: demos.Demonstration) -> list[str]:
    names = _action_names(demonstration)
    counts = np.bincount(demonstration.actions, minlength=len(names))
    shares = counts / counts.sum()
    begins = np.diff(demonstration.actions.astype(int), prepend=-1) != 0
    # No action lasts beyond the end of an episode.
    begins[np.cumsum(demonstration.episode_lengths)[:-1]] = True
    lines = [f"actions (one lasts {1 / begins.mean():.1f} steps in the mean):"]
    for name, count, share in zip(names, counts, shares, strict=True):
        lines.append(f"  {name:>13} {count:>7,} {share:>6.1%} {'█' * round(40 * share)}")
    return lines


def _action_names(demonstration: demos.Demonstration) -> list[str]:
    if demonstration.action_meaning is None:
        return [str(action) for action in range(demos.num_actions_of(demonstration))]
    return [NAMES[meaning] for meaning in demonstration.action_meaning]


# --- What a policy thinks of it ---


def _policy(path: Path, demonstration: demos.Demonstration) -> Policy:
    """A policy that has as many actions as the demonstration."""
    try:
        policy = load_policy(path / "policy.npz" if path.is_dir() else path)
    except (PolicyError, OSError) as error:
        # It names the file.
        raise UsageError(f"--policy: {error}") from error
    expected = demos.num_actions_of(demonstration)
    if policy.num_actions != expected:
        raise UsageError(
            f"--policy {path}: it knows {policy.num_actions} actions"
            f"{f' (of {policy.environment})' if policy.environment else ''}, but those of "
            f"{demonstration.game} are {expected}: give a policy of {demonstration.game}"
        )
    return policy


def _asked(
    config: ShowConfig, policy: Policy, demonstration: demos.Demonstration, rows: Row
) -> str:
    try:
        found = demos.ask_policy(rows, policy.q_values, stack=policy.stack)
    except PolicyError as error:
        raise UsageError(f"--policy {config.policy}: {error}") from error
    names = _action_names(demonstration)
    told = describe_agreement(found, names, demonstration.episode_lengths)
    elsewhere = policy.environment not in ("", demonstration.game)
    origin = (
        f" (trained in {policy.environment}, whose actions may mean other things)"
        if elsewhere
        else ""
    )
    return f"asked about every step, the policy of {config.policy}{origin}\n{told}"


def describe_agreement(
    found: demos.Agreement, names: Sequence[str], episode_lengths: Sequence[int]
) -> str:
    """What a policy would do in a demonstration, as text; `names` are those of the actions."""
    same = found.same
    lines = [f"would do the same in {same.mean():.1%} of them ({found.by_chance:.1%} by chance)"]
    # Of two actions, the one that is not the best is the worst.
    if not same.all() and len(names) > 2:
        lines.append(
            "where it would not, its values have what was done "
            f"{found.way_down:.0%} of the way down from the best action to the worst (median)"
        )
    lines.append(f"{'episode':>8} {'the same':>9}  over its time")
    for number, part in enumerate(np.split(same, np.cumsum(episode_lengths)[:-1]), start=1):
        lines.append(f"{number:>8} {part.mean():>9.0%}  {_shares(part)}")
    lines.append(f"{'done':>15} {'steps':>7} {'the same':>9}  and else mostly")
    for action, name in enumerate(names):
        done = found.action == action
        if not done.any():
            continue
        instead = np.bincount(found.preferred[done & ~same], minlength=len(names))
        share = instead.max() / done.sum()
        mostly = f"{names[instead.argmax()]} ({share:.0%})" if instead.any() else ""
        line = f"{name:>15} {done.sum():>7,} {same[done].mean():>9.0%}  {mostly}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def _shares(part: np.ndarray, *, width: int = 40) -> str:
    """The mean of pieces, from 0 to 1, as a row of bars."""
    means = [piece.mean() for piece in np.array_split(part, min(width, len(part)))]
    return "".join(_BARS[round(mean * (len(_BARS) - 1))] for mean in means)


# --- How informative its actions are ---


def _measured(demonstration: demos.Demonstration, rows: Row) -> str:
    num_actions = demos.num_actions_of(demonstration)
    with (
        console.terminal("at once") as sink,
        sink.bar("foretelling its actions", unit="update", total=CONFIG.updates) as bar,
    ):

        def tell(done: int, most: int) -> None:
            del most
            bar.at(done)
            if sink.stop_asked():
                raise Stopped("stopped; nothing was written")

        try:
            found = demos.measure(rows, num_actions, config=CONFIG, on_progress=tell)
        except ValueError as error:
            return f"how much its actions say was not measured: {error}"
    return describe_measure(found, _action_names(demonstration))


def describe_measure(found: demos.Measure, names: Sequence[str] | None = None) -> str:
    """How informative a demonstration's actions are, as text; `names` are those of the actions."""
    lines = [
        f"its actions have {found.entropy:.2f} of {found.most_entropy:.2f} bits per step, and one "
        f"lasts {found.mean_hold:.1f} steps"
    ]
    guesses = {
        "the most frequent action": found.frequent,
        "the last action again": found.last,
        "a small network that sees": found.network,
        "the last action and the network": found.both,
    }
    if found.network is not None:
        lines += [
            f"{found.num_foretold:,} of them are foretold from the other {found.num_seen:,}; where "
            f"the action changes ({found.num_changes:,} times), the guess is told so:",
            f"{'by':>33} {'right':>6} {'bits':>6} {'right where it changes':>24}",
        ]
    for name, guess in guesses.items():
        if guess is not None:
            changes = "-" if guess.changes is None else f"{guess.changes:.0%}"
            lines.append(f"{name:>33} {guess.accuracy:>6.0%} {guess.bits:>6.2f} {changes:>24}")
    return "\n".join([*lines, f"in short: {found.in_words(names)}"])


# --- Picture and film ---


def _is_picture(rows: Row) -> bool:
    return rows.frame.dtype == np.uint8 and rows.frame.ndim in (3, 4)


def _write_sheet(path: Path, demonstration: demos.Demonstration, rows: Row) -> bool:
    title = f"{demonstration.game}, {demonstration.name}"
    if not _is_picture(rows):
        plots.observation_lines(path, rows.frame.reshape(len(rows.frame), -1), title=title)
        return True
    chosen = np.unique(np.linspace(0, len(rows.frame) - 1, _SHEET_FRAMES).round().astype(int))
    starts = np.flatnonzero(rows.is_first)
    paid = np.where(rows.is_last, 0, rows.reward).astype(np.float64)
    # What had been earned before each row, in its episode.
    earned = np.cumsum(paid) - paid
    episode = np.cumsum(rows.is_first) - 1
    score = earned - earned[starts][episode]
    plots.contact_sheet(
        path,
        rows.frame[chosen],
        [
            f"{episode[row] + 1}: step {row - starts[episode[row]]}, {score[row]:g}"
            for row in chosen
        ],
        title=f"{title} (episode: step, score)",
    )
    return True


def _write_film(path: Path, demonstration: demos.Demonstration, rows: Row) -> bool:
    del demonstration
    if not _is_picture(rows):
        return False
    scale = max(1, round(336 / rows.frame.shape[1]))
    with video.Mp4(path, fps=_FILM_FPS, scale=scale) as film:
        for frame in rows.frame:
            film.add(frame)
    return True
