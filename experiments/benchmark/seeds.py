"""Several seeds in one program, beside as many runs one after the other and side by side."""

import contextlib
import dataclasses
import functools
from collections.abc import Callable

import jax
import numpy as np

from bqfd_jax import checks
from bqfd_jax.runs import group
from bqfd_jax.runs.atari import AtariConfig
from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.gym import GymConfig

from .timing import measure
from .turns import Contestant, use_threads


def seeds(
    env: str = "CartPole-v1",
    game: str | None = None,
    count: int = 2,
    cores: int = 2,
    steps: int = 2_000,
    rounds: int = 5,
) -> dict[str, float]:
    """Trains several seeds in one program, side by side and one after the other.

    Every program is a process of its own, with the preset's agent (`small` or `laptop`, no
    demonstration); learning has begun before anything is measured.

    Args:
      env: An environment of gymnasium's.
      game: An Atari game, instead of it.
      count: How many seeds.
      cores: CPU devices that one program may also spread its seeds over.
      steps: Agent steps of each seed per round.
      rounds: Everything is measured once per round; the median counts.

    Returns:
      The figures by name.
    """
    checks.at_least(1, steps=steps, rounds=rounds, cores=cores)
    checks.at_least(2, count=count)
    base: RunConfig = AtariConfig.of("laptop", game) if game else GymConfig.of(50_000)
    base = base if game else dataclasses.replace(base, env=env)
    config = dataclasses.replace(base, demo=("none",), replay_rows=20_000, learning_starts=0)
    together = dataclasses.replace(config, seeds_per_program=count)
    together.check()
    parts: dict[str, Callable[[], float]] = {}
    with contextlib.ExitStack() as stack:
        single = [stack.enter_context(_program(config, 1)) for _ in range(count)]
        one = stack.enter_context(_program(together, 1))
        spread = stack.enter_context(_program(together, cores))
        parts["one after the other"] = lambda: sum(_run([program], steps) for program in single)
        parts["side by side"] = lambda: _run(single, steps)
        parts["one program"] = lambda: _run([one], steps)
        parts[f"one program, {cores} CPU devices"] = lambda: _run([spread], steps)
        cpu: dict[str, list[float]] = {name: [] for name in parts}
        times = measure(
            {name: lambda name=name: cpu[name].append(parts[name]()) for name in parts}, rounds
        )
    figures = {}
    print(f"{base.title}, {config.agent}, preset {base.preset_name}, {count} seeds")
    for name, seconds in times.items():
        ratios = seconds.wall / times["one after the other"].wall
        figures[name] = float(np.median(ratios))
        speed = count * steps / np.median(seconds.wall)
        print(
            f"  {name:30s}{speed:9.0f} steps/s of all, {figures[name]:5.2f} of the time "
            f"({', '.join(f'{ratio:.2f}' for ratio in sorted(ratios))}), "
            f"{np.median(cpu[name]) / np.median(cpu['one after the other']):.2f} of the CPU's"
        )
    return figures


def _run(programs: list[Contestant], steps: int) -> float:
    """All at once; the seconds of CPU that they took."""
    for program in programs:
        program.begin(steps)
    return sum(program.finish()[1] for program in programs)


def _program(config: RunConfig, devices: int) -> contextlib.closing[Contestant]:
    build = functools.partial(_build, config, devices)
    return contextlib.closing(Contestant(build, use_threads(1024)))


def _build(config: RunConfig, devices: int) -> Callable[[int], None]:
    """Trains as many steps as it is told to, in a process of its own."""
    jax.config.update("jax_num_cpu_devices", devices)
    jobs = group.load_jobs(config)
    loop = jobs[0].make_loop(jobs[0].init()) if len(jobs) == 1 else group.make_loop(jobs)

    def run(steps: int) -> None:
        loop.run(steps)
        jax.block_until_ready(loop.state)

    run(40 * config.envs)  # compiles, and fills the replay a little
    return run
