"""A run on a gymnasium environment, and the demonstration that is made for it first."""

from collections.abc import Sequence

import numpy as np

from bqfd_jax import api, playing
from bqfd_jax.demos import Demonstration, FrameDemonstration
from bqfd_jax.demos.making import scripts
from bqfd_jax.policy import Policy
from bqfd_jax.runs import group, report, text
from bqfd_jax.runs.errors import Stopped
from bqfd_jax.runs.gym import GymConfig, GymWorld
from bqfd_jax.runs.run import load_job, start
from bqfd_jax.runs.sinks import Sink
from bqfd_jax.runs.worlds import kept_paths
from bqfd_jax.streams import EnvStream

# A script needs no training; elsewhere DQN is trained for so many steps.
BRIEF_STEPS = 10_000
# Steps after which an episode of a demonstration is cut.
_CUT = 5_000


def train(config: GymConfig, sink: Sink) -> report.Summary:
    """A whole run, or the rest of one."""
    return start(load_job(config, _made(config, sink)), sink)


def train_seeds(config: GymConfig, sink: Sink) -> list[report.Summary]:
    """Several seeds in one program, each with the demonstration that it would have alone."""
    return group.start(group.load_jobs(config, lambda one: _made(one, sink)), sink)


def _made(config: GymConfig, sink: Sink) -> Sequence[Demonstration] | None:
    """The demonstration that is to be made, unless an earlier part of the run has made it."""
    if config.demo != ("make",) or not config.shows_demonstrations:
        return None
    config.check()
    if config.resume and config.out is not None and kept_paths(config.out):
        return None
    return [make_demonstration(config, sink)]


def make_demonstration(config: GymConfig, sink: Sink) -> FrameDemonstration:
    """Plays episodes by a script or a briefly trained policy, and says so."""
    world = GymWorld(config)
    script = scripts.find(config.env)
    if config.demo_quality == "bad":
        act, epsilon = scripts.always(0), scripts.BAD_EPSILON
        how = f"nearly always action 0 ({epsilon:.0%} at random)"
    elif script is not None:
        act, epsilon = script.act, script.mediocre_epsilon
        how = f"by a script, {epsilon:.0%} of the actions at random"
    else:
        env = world.make(config.envs, EnvStream.DEMONSTRATION)
        sink.say(f"training DQN for {BRIEF_STEPS:,} steps to demonstrate with ...")
        trained = api.train(env, steps=BRIEF_STEPS, seed=config.seed)
        if trained.stopped:
            raise Stopped("stopped before there was a demonstration; nothing was saved")
        act = trained.policy
        epsilon = _mediocre_epsilon(config, act, sink)
        how = f"by DQN after {BRIEF_STEPS:,} steps, {epsilon:.0%} of the actions at random"
    env = world.make(1, EnvStream.DEMONSTRATION)
    parts: list[FrameDemonstration] = []
    while sum(len(part.actions) for part in parts) < config.demo_steps:
        seed = config.seed + 1000 * len(parts)
        parts.append(playing.record(env, act, 1, epsilon=epsilon, seed=seed, max_steps=_CUT))
    made = FrameDemonstration.join(
        parts, name=config.demo_quality, origin={"made": how, "seed": config.seed}
    )
    sink.say(
        f"made a {config.demo_quality} demonstration {how}: {len(made.scores)} episodes, "
        f"{len(made.actions)} steps, mean return {text.score(np.mean(made.scores))}"
    )
    return made


def _mediocre_epsilon(config: GymConfig, act: Policy, sink: Sink) -> float:
    """How much of random play makes a policy mediocre, by some episodes with each share."""
    env = GymWorld(config).make(10, EnvStream.DEMONSTRATION)

    def mean_return(epsilon: float) -> float:
        seed = config.seed
        return playing.evaluate(env, act, 20, epsilon=epsilon, seed=seed, max_steps=_CUT).mean()

    found = scripts.mediocre(mean_return)
    at_random, own, between = map(text.score, (found.at_random, found.own, found.between))
    told = f"random play has a mean return of {at_random}, the trained policy {own}"
    if 0.2 <= found.share <= 0.8:
        sink.say(f"{told}, and with {found.epsilon:.0%} of its actions at random {between}")
    else:
        sink.say(f"note: {told}; the demonstration ({between}) does not lie well between them")
    return found.epsilon
