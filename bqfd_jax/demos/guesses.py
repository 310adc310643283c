"""Guesses of the next action: by the last one, by a network, by both; and how good they are.

A guess is log-probabilities `[n, A]` of the actions at n steps.  The last action is `A` where an
episode begins.
"""

from typing import NamedTuple

import numpy as np

_BLOCKS = 20  # parts of what is foretold, whose differences tell how sure a gain is


class Foretold(NamedTuple):
    """How well one way of guessing foretells the actions."""

    accuracy: float  # share of the steps whose action is the likeliest guess
    bits: float  # cross-entropy per step
    changes: float | None  # the same share where the action changes, if one is told so; None: never


def smoothed(counts: np.ndarray) -> np.ndarray:
    """Shares of which none is 0."""
    return (counts + 0.5) / (counts + 0.5).sum()


def following(action: np.ndarray, last: np.ndarray, frequent: np.ndarray) -> np.ndarray:
    """Log-probabilities `[A + 1, A]` of the next action given the last; `frequent` is the prior."""
    counts = np.zeros((len(frequent) + 1, len(frequent)))
    np.add.at(counts, (last, action), 1)
    counts += np.exp(frequent)
    return np.log(counts / counts.sum(axis=1, keepdims=True))


def _without(last: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Values `[n, A]` of all actions but the last, `[n, A - 1]`."""
    others = np.arange(values.shape[1])[None] != last[:, None]
    return values[others].reshape(len(values), values.shape[1] - 1)


def _changes(after: np.ndarray, by_network: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Features `[n, 2, 3]` of "the same again" and of a change, see `Weights.when`."""
    features = np.zeros((len(last), 2, 3))
    for number, guess in enumerate((after, by_network)):
        features[:, 0, number] = guess[np.arange(len(last)), last]
        features[:, 1, number] = np.logaddexp.reduce(_without(last, guess), axis=1)
    features[:, 1, 2] = 1
    return features


def _others(after: np.ndarray, by_network: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Features `[n, A - 1, 2]` of the other actions, see `Weights.which`."""
    return np.stack([_without(last, guess) for guess in (after, by_network)], axis=-1)


class Weights(NamedTuple):
    """What log-probabilities count: those by the last action, those of the network, a constant."""

    when: np.ndarray  # [3], whether the action changes
    which: np.ndarray  # [2], to what, if it does


def fit_weights(
    after: np.ndarray, by_network: np.ndarray, action: np.ndarray, last: np.ndarray
) -> Weights:
    """The weights that foretell actions best by log-probabilities `[n, A]`.

    When and which apart: a network that knows the one need not know the other.
    """
    known = last < after.shape[1]
    after, by_network, action, last = (x[known] for x in (after, by_network, action, last))
    changed = action != last
    when = _fitted(
        _changes(after, by_network, last), changed.astype(int), np.array([1.0, 0.0, 0.0])
    )
    after, by_network, action, last = (x[changed] for x in (after, by_network, action, last))
    # Its place among the others.
    chosen = action - (action > last)
    which = _fitted(_others(after, by_network, last), chosen, np.array([1.0, 0.0]))
    return Weights(when, which)


def _fitted(features: np.ndarray, chosen: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Weights `[K]` of features `[n, C, K]` in a softmax over C, of which one is chosen, `[n]`.

    By Newton's method, with a pull back to `start` as strong as an example or two: where there is
    little to learn from, little is learnt.
    """
    weights = start.copy()
    if not len(chosen):
        return weights
    for _ in range(25):
        logits = features @ weights
        shares = np.exp(logits - np.logaddexp.reduce(logits, axis=1, keepdims=True))
        mean = np.einsum("nc,nck->nk", shares, features)
        around = features - mean[:, None]
        gradient = (features[np.arange(len(chosen)), chosen] - mean).sum(axis=0)
        curvature = np.einsum("nc,nck,ncl->kl", shares, around, around) + np.eye(len(start))
        step = np.linalg.solve(curvature, gradient - (weights - start))
        weights = weights + step / max(1.0, np.abs(step).max())
    return weights


def combine(
    after: np.ndarray, by_network: np.ndarray, last: np.ndarray, weights: Weights
) -> np.ndarray:
    """Log-probabilities `[n, A]` by both; where an episode begins, those of `after` stay."""
    combined, begins = after.copy(), last == after.shape[1]
    after, by_network, last = (x[~begins] for x in (after, by_network, last))
    when = _normalised(_changes(after, by_network, last) @ weights.when)
    which = _normalised(_others(after, by_network, last) @ weights.which)
    both = np.repeat(when[:, :1], after.shape[1], axis=1)
    others = np.arange(after.shape[1])[None] != last[:, None]
    both[others] = (when[:, 1:] + which).ravel()
    combined[~begins] = both
    return combined


def _normalised(logits: np.ndarray) -> np.ndarray:
    return logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


def judge(guess: np.ndarray, action: np.ndarray, last: np.ndarray) -> Foretold:
    """How good log-probabilities `[n, A]` are."""
    here = np.arange(len(action)), action
    right = right_at_changes(guess, action, last)
    return Foretold(
        accuracy=float((guess.argmax(axis=1) == action).mean()),
        bits=float(-guess[here].mean() / np.log(2)),
        changes=float(right.mean()) if len(right) else None,
    )


def right_at_changes(guess: np.ndarray, action: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Where the action changes, whether the likeliest other one is right, `[changes]` bool."""
    changed = np.flatnonzero((last < guess.shape[1]) & (action != last))
    others = guess[changed].copy()
    others[np.arange(len(changed)), last[changed]] = -np.inf
    return others.argmax(axis=1) == action[changed]


def standard_error(gains: np.ndarray) -> float:
    """Standard error of the mean of gains that follow each other, and so are alike."""
    means = [part.mean() for part in np.array_split(gains, min(_BLOCKS, len(gains)))]
    return float(np.std(means, ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("inf")
