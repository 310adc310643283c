"""Parts of a program measured side by side."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from tqdm import tqdm


class Times(NamedTuple):
    """Seconds of each round."""

    wall: np.ndarray  # [rounds]
    cpu: np.ndarray  # [rounds]


def measure(parts: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Times]:
    """Calls every part once per round: noise of the machine strikes neighbours alike.

    So compare within rounds, and take medians over them.
    """
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in parts}
    for _ in tqdm(range(rounds), unit="round", leave=False):
        for name, part in parts.items():
            wall, cpu = time.perf_counter(), time.process_time()
            part()
            seconds[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return {name: Times(*np.array(values).T) for name, values in seconds.items()}
