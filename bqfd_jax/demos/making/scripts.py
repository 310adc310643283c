"""Policies to make demonstrations with: a few lines of control for some well-known environments.

Each plays well; how often it acts at random instead makes it mediocre.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

PolicyFunction = Callable[[np.ndarray], np.ndarray]


class Script(NamedTuple):
    """A policy `[L, n] -> [L]`, and the share of random actions that makes it mediocre."""

    act: PolicyFunction
    mediocre_epsilon: float


def cart_pole(observation: np.ndarray) -> np.ndarray:
    """Pushes to where the pole falls, and a little against the cart's drift."""
    x, x_dot, theta, theta_dot = observation.T
    return (theta + 0.3 * theta_dot + 0.03 * x + 0.05 * x_dot > 0).astype(int)


def acrobot(observation: np.ndarray) -> np.ndarray:
    """Swings with the lower link."""
    return np.where(observation[:, 5] > 0, 2, 0)


def mountain_car(observation: np.ndarray) -> np.ndarray:
    """Pushes to where it rolls."""
    return np.where(observation[:, 1] > 0, 2, 0)


def lunar_lander(observation: np.ndarray) -> np.ndarray:
    """Aims at the pad, keeps upright, brakes near the ground."""
    x, y, x_dot, y_dot, angle, spin, left, right = observation.T
    tilt = np.clip(0.5 * x + 1.0 * x_dot, -0.4, 0.4)
    hover = 0.55 * np.abs(x)
    turn = 0.5 * (tilt - angle) - 1.0 * spin
    climb = 0.5 * (hover - y) - 0.5 * y_dot
    landed = (left > 0) | (right > 0)
    turn, climb = np.where(landed, 0, turn), np.where(landed, -0.5 * y_dot, climb)
    action = np.where(turn < -0.05, 3, np.where(turn > 0.05, 1, 0))
    return np.where((climb > np.abs(turn)) & (climb > 0.05), 2, action)


def always(action: int) -> PolicyFunction:
    """Does the same all the time: what a bad demonstration shows."""
    return lambda observation: np.full(len(observation), action)


SCRIPTS = {
    "CartPole": Script(cart_pole, 0.5),
    "Acrobot": Script(acrobot, 0.7),
    "MountainCar": Script(mountain_car, 0.3),
    "LunarLander": Script(lunar_lander, 0.2),
}
# Mostly the same action, now and then another: steadily wrong.
BAD_EPSILON = 0.2


class Mediocre(NamedTuple):
    """A share of random actions, and the mean returns that it was chosen by."""

    epsilon: float
    at_random: float  # all actions at random
    own: float  # none
    between: float  # with `epsilon`

    @property
    def share(self) -> float:
        """Where it lies between random play, 0, and the policy's own, 1; NaN if they are alike."""
        better = self.own - self.at_random
        return (self.between - self.at_random) / better if better > 0 else math.nan


def mediocre(mean_return: Callable[[float], float], *, trials: int = 6) -> Mediocre:
    """The share of random actions that brings a policy half-way down to random play.

    Args:
      mean_return: of some episodes with a share of random actions.
      trials: shares that are tried, each half as far from the last as that from the one before.
    """
    at_random, own = mean_return(1.0), mean_return(0.0)
    tried: list[Mediocre] = []
    epsilon, step = 0.5, 0.25
    for _ in range(trials):
        tried.append(Mediocre(epsilon, at_random, own, mean_return(epsilon)))
        too_good = tried[-1].share - 0.5
        if math.isnan(too_good) or abs(too_good) < 0.1:
            break
        epsilon += step if too_good > 0 else -step
        step /= 2
    return min(tried, key=lambda each: abs(each.share - 0.5))


def find(env: str) -> Script | None:
    """The script of an environment, whatever its version; None if there is none."""
    return SCRIPTS.get(env.rsplit(":", 1)[-1].rsplit("-v", 1)[0])
