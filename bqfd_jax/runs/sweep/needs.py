"""What a run will need of a machine, before it is begun."""

from bqfd_jax.runs.config import RunConfig
from bqfd_jax.runs.job import replay_for
from bqfd_jax.runs.machine import AROUND_THE_REPLAY
from bqfd_jax.runs.run import KINDS


def memory(config: RunConfig) -> int:
    """Bytes: the replay, and a gigabyte for all around it, demonstrations among it.

    Of a run that cannot be made only the gigabyte: whoever begins it will say why.
    """
    try:
        env = KINDS[config.experiment][1](config).example()
        return int(replay_for(config, env).num_bytes + AROUND_THE_REPLAY)
    except Exception:  # whatever an environment may raise that cannot be made
        return int(AROUND_THE_REPLAY)
