"""Policies to make demonstrations with: a few lines of control for some well-known environments.

Each plays well; how often it acts at random instead makes it mediocre.
"""

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


def find(env: str) -> Script | None:
    """The script of an environment, whatever its version; None if there is none."""
    return SCRIPTS.get(env.rsplit(":", 1)[-1].rsplit("-v", 1)[0])
