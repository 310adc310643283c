"""How fast, and how large: measurements that print their figures.

python -m experiments.benchmark replay
python -m experiments.benchmark replay --rows 100000
python -m experiments.benchmark atari
python -m experiments.benchmark memory
python -m experiments.benchmark gym
"""

from collections.abc import Sequence

import tyro

from bqfd_jax import console

from .atari import AtariBenchmark, benchmark_atari
from .gym import GymBenchmark, benchmark_gym
from .memory import MemoryBenchmark, benchmark_memory
from .replay import ReplayBenchmark, benchmark_replay

# Name of the benchmark -> its options, and what measures.
BENCHMARKS = {
    "replay": (ReplayBenchmark, benchmark_replay),
    "atari": (AtariBenchmark, benchmark_atari),
    "memory": (MemoryBenchmark, benchmark_memory),
    "gym": (GymBenchmark, benchmark_gym),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the benchmark that the command line names."""
    defaults = {name: options() for name, (options, _) in BENCHMARKS.items()}
    config = tyro.cli(
        tyro.extras.subcommand_type_from_defaults(defaults),
        args=arguments,
        description=__doc__,
        prog="python -m experiments.benchmark",
    )
    dict(BENCHMARKS.values())[type(config)](config)


if __name__ == "__main__":
    console.run_main(main)
