"""Who demonstrates MinAtar's games: DQN at two points of a longer training, and a bad policy."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from bqfd_jax import demos
from bqfd_jax.demos import FrameDemonstration
from bqfd_jax.demos.making.scripts import BAD_EPSILON
from bqfd_jax.files import plain, read_json, write_json
from bqfd_jax.runs import text
from bqfd_jax.runs.errors import UsageError
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.training.episodes import Played
from bqfd_jax.types import Params

from .minatar_training import Programs, advance, agent_options, begin, evaluate

if TYPE_CHECKING:
    from .minatar import MinatarConfig

SEED = 1_000
# Times the length of a run of the comparison.
LONGER = 6
# How far on the way from random play to its best it demonstrates.
SHARES = {"good": 2 / 3, "mediocre": 1 / 4}
_MADE_WITH = ("steps", "lanes", "update_period", "evaluations", "eval_episodes", "width")


class Teacher(NamedTuple):
    """What a game's teacher has shown, and what returns are measured by."""

    demos: dict[str, FrameDemonstration]  # by quality
    scale: dict[str, float]  # `random` and `best`, returns that count as 0 and as 1


def load_teacher(config: "MinatarConfig", programs: Programs, folder: Path, sink: Sink) -> Teacher:
    """What an earlier sitting has made, or a new one; `programs` are DQN's."""
    made_with = plain(
        dataclasses.asdict(agent_options(config, "dqn"))
        | {name: getattr(config, name) for name in (*_MADE_WITH, "demo_steps")}
    )
    path = folder / "teacher.json"
    paths = {quality: folder / f"{quality}.npz" for quality in (*SHARES, "bad")}
    if path.exists():
        there = read_json(path)
        if there["made_with"] != made_with:
            raise UsageError(f"{path} is of other settings; choose another --out")
        shown = {quality: demos.load(paths[quality]) for quality in paths}
        return Teacher(shown, there["scale"])
    sink.say(f"{programs.game}: training DQN for {LONGER * config.steps:,} steps to demonstrate")
    teacher, evaluations = _make(config, programs)
    folder.mkdir(parents=True, exist_ok=True)
    for quality, demo in teacher.demos.items():
        demos.save(demo, paths[quality])
        sink.say(
            f"{programs.game}: {quality} demonstration, {demo.origin['made']}, mean return "
            f"{text.score(demo.origin['score'])}"
        )
    # The last, so that whoever finds it finds all.
    write_json(path, {"made_with": made_with, "scale": teacher.scale, "evaluations": evaluations})
    return teacher


def choose(scores: np.ndarray, random: float, share: float) -> int:
    """Of evaluations `[n]`, the one nearest to that share of the way from random to the best."""
    return int(np.argmin(np.abs(scores - (random + share * (scores.max() - random)))))


def _make(config: "MinatarConfig", programs: Programs) -> tuple[Teacher, list[dict]]:
    key = jax.random.key(SEED)
    state = begin(programs, SEED, None)
    player, env_params = programs.player, programs.env_params
    # Copies: the state is given away with the next steps.
    kept = [jax.tree.map(np.array, state.learner.params)]
    random = float(player.returns(key, kept[0], env_params, epsilon=1).mean())
    found = [evaluate(programs, kept[0], SEED, 0)]
    for _ in range(LONGER * config.evaluations):
        state = advance(programs, state, SEED)
        kept.append(jax.tree.map(np.array, state.learner.params))
        found.append(evaluate(programs, kept[-1], SEED, int(state.step)))
    scores = np.array([one["mean"] for one in found])
    shown = {}
    for quality, share in SHARES.items():
        chosen = choose(scores, random, share)
        how = f"by DQN after {found[chosen]['step']:,} steps"
        shown[quality] = _demonstrate(config, programs, kept[chosen], 0.0, quality, how)
    how = f"nearly always action 0 ({BAD_EPSILON:.0%} at random)"
    shown["bad"] = _demonstrate(config, programs, always_first(kept[0]), BAD_EPSILON, "bad", how)
    return Teacher(shown, {"random": random, "best": float(scores.max())}), found


def always_first(params: Params) -> Params:
    """Parameters of a network for which action 0 is always the best, and all others are alike."""
    zeros = jax.tree.map(np.zeros_like, params)
    bias = zeros["params"]["DuelingHead_0"]["advantage"]["bias"]
    bias[0] = 1.0
    return zeros


def _demonstrate(
    config: "MinatarConfig",
    programs: Programs,
    params: Params,
    epsilon: float,
    name: str,
    how: str,
) -> FrameDemonstration:
    """Episodes until there are steps enough; the last is cut there."""
    env, key = programs.player.env, jax.random.key(SEED + 1)
    parts: list[FrameDemonstration] = []
    left = config.demo_steps
    while left > 0:
        key, play_key = jax.random.split(key)
        played = programs.player.record(play_key, params, programs.env_params, epsilon)
        for lane in typical_first(played):
            if left > 0:
                part = episode(played, lane, left, programs.game, env.num_actions)
                left -= len(part.actions)
                parts.append(part)
    joined = FrameDemonstration.join(parts, name=name, origin=None)
    # What was cut short tells too little of how well somebody plays, unless there is no other.
    whole = joined.scores[:-1] or joined.scores
    origin = {"made": how, "seed": SEED, "score": float(np.mean(whole))}
    return dataclasses.replace(joined, origin=origin)


def typical_first(played: Played) -> list[int]:
    """Lanes, those first whose return is nearest to the mean of all.

    Some policies play very differently from episode to episode, and where episodes are long a
    demonstration shows one.
    """
    returns = np.sum(np.where(played.running, played.reward, 0.0), axis=0)
    return np.argsort(np.abs(returns - returns.mean()), kind="stable").tolist()


def episode(
    played: Played, lane: int, most: int, game: str, num_actions: int
) -> FrameDemonstration:
    """The episode of a lane, or its first `most` steps."""
    length = min(int(played.running[:, lane].sum()), most)
    frames = [played.frame[:length, lane], played.next_frame[length - 1 : length, lane]]
    return FrameDemonstration(
        game=f"minatar:{game}",
        frames=np.concatenate(frames),
        actions=played.action[:length, lane].astype(np.int32),
        rewards=played.reward[:length, lane].astype(np.float32),
        episode_lengths=np.array([length], np.int32),
        terminated=(bool(played.terminated[length - 1, lane]),),
        num_actions=num_actions,
    )
