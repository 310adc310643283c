"""How informative a demonstration's actions are: do they follow from what is seen?

A clone learns from a part of the demonstration and foretells the rest.  It never sees the last
action, but it may guess it from what moves, and where actions are held for long, repeating the last
one is right most of the time whether or not there was a reason for it.  So what counts is what the
network adds to the last action: which action, and when, beyond "the same again".
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import networks
from bqfd_jax.agents import clone
from bqfd_jax.agents.config import CloneConfig
from bqfd_jax.demos import guesses
from bqfd_jax.demos.guesses import Foretold
from bqfd_jax.networks import Network
from bqfd_jax.replay import make_replay
from bqfd_jax.replay.rows import Layout, stack_index
from bqfd_jax.types import Params, Row

# Seconds count: a part of what a clone gets at most, and less patience.
CONFIG = CloneConfig(updates=1_500, patience=500)
_EVERY = 4  # one in so many episodes, or that part of all steps, is foretold
_CHUNK = 256
_LEAST_STEPS = 40  # with fewer steps to foretell, or ...
_LEAST_CHANGES = 10  # ... with fewer changes of action among them, nothing can be said
_LITTLE, _MUCH = 0.03, 0.15  # shares of the uncertainty that the observation takes away
_FEW = 0.05  # share of the changes
_MOSTLY = 0.6  # share of the steps

OnProgress = Callable[[int, int], None]  # (updates made, of how many at most)


class Measure(NamedTuple):
    """What a demonstration's actions are like."""

    entropy: float  # bits per step of how often each action is taken
    most_entropy: float  # bits, were all actions equally frequent
    mean_hold: float  # steps that an action lasts
    most_frequent: int  # action
    most_frequent_share: float
    num_seen: int  # steps that were learnt from
    num_foretold: int  # steps that were not; the fields below are about them
    num_changes: int  # of them with another action than the step before
    frequent: Foretold | None = None  # by how often each action is taken; None: nothing to foretell
    last: Foretold | None = None  # by the last action: its bits by what usually follows upon it
    network: Foretold | None = None  # by the observation
    both: Foretold | None = None  # by the observation and the last action
    gain: float = 0.0  # bits per step that the observation adds to the last action
    gain_error: float = 0.0  # standard error of that
    change_gain: float = 0.0  # what it adds to the share that is right where the action changes
    change_gain_error: float = 0.0  # standard error of that

    @property
    def gain_share(self) -> float:
        """Which part of the uncertainty that the last action leaves the observation takes away."""
        return self.gain / self.last.bits if self.last and self.last.bits > 0 else 0.0

    def in_words(self, names: Sequence[str] | None = None) -> str:
        """What that means for learning; `names` are those of the actions."""
        if self.entropy == 0:
            return (
                "it does the same at every step: whoever copies it does so too, and there is "
                "nothing else to learn from its actions"
            )
        if self.num_foretold < _LEAST_STEPS or self.num_changes < _LEAST_CHANGES:
            return (
                f"too little to say: of {self.num_foretold} steps that could be foretold, "
                f"{self.num_changes} have another action than the one before"
            )
        tells = self.gain > 2 * self.gain_error and self.gain_share >= _LITTLE
        tells_which = self.change_gain > max(2 * self.change_gain_error, _FEW)
        if not (tells or tells_which):
            if self.most_frequent_share > _MOSTLY:
                one = names[self.most_frequent] if names else f"action {self.most_frequent}"
                return (
                    f"it mostly does one thing ({one}, {self.most_frequent_share:.0%}), which is "
                    "easily copied; when it does something else, and what, does not follow from "
                    "what is seen"
                )
            return "its actions say little: expect no help from copying them"
        if tells:
            told = f"what is seen takes away {self.gain_share:.0%} of the doubt about the next one"
        else:
            told = (
                "when they change does not follow from what is seen, but to what does: "
                f"{self.both.changes:.0%} of that is foretold, {self.last.changes:.0%} without "
                "seeing"
            )
        if not tells or self.gain_share < _MUCH:
            return f"its actions say something: {told}; expect some help from copying them"
        return f"its actions follow from what is seen: {told}; copying them should help"


def measure(
    rows: Row,
    num_actions: int,
    *,
    stack: int | None = None,
    config: CloneConfig = CONFIG,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> Measure:
    """Measures a demonstration.

    Args:
      rows: of the demonstration, as `demos.to_rows` gives them; rewards do not matter.
      num_actions: of the environment, see `demos.num_actions_of`.
      stack: frames per observation; 4 for Atari's frames and 1 for others unless given.
      config: how the small network learns.
      seed: of its parameters and batches.
      on_progress: is called with the updates made and how many there are at most.
    """
    # What jax would make of them all the same.
    dtype = jax.dtypes.canonicalize_dtype(rows.frame.dtype)
    rows = rows.replace(frame=np.asarray(rows.frame).astype(dtype, copy=False))
    starts, action = ~np.asarray(rows.is_last), np.asarray(rows.action).astype(np.int64)
    is_asked = np.asarray(clone.held_out(rows.is_first, rows.is_last, _EVERY))
    last = _last_actions(rows, num_actions)
    told = _overall(action[starts], last[starts], num_actions)
    changes = is_asked & (last < num_actions) & (action != last)
    counts = {
        "num_seen": int((starts & ~is_asked).sum()),
        "num_foretold": int(is_asked.sum()),
        "num_changes": int(changes.sum()),
    }
    if not is_asked.any() or told["entropy"] == 0:
        return Measure(**told, **counts)

    seen = np.flatnonzero(starts & ~is_asked)
    asked = np.flatnonzero(is_asked)
    if stack is None:
        stack = 4 if _is_atari(rows) else 1
    network = _network(rows, num_actions, stack)
    learnt_from = jax.tree.map(lambda field: np.asarray(field)[seen], rows)
    params = _train(learnt_from, network, stack, config, seed, on_progress)

    frequent = np.log(guesses.smoothed(np.bincount(action[seen], minlength=num_actions)))
    after = guesses.following(action[seen], last[seen], frequent)  # [A + 1, A]
    by_network = _log_probabilities(network, params, rows, stack)
    # What stopped the learning is not what is foretold, and so it can weigh the two up.
    judged = np.asarray(
        clone.held_out(learnt_from.is_first, learnt_from.is_last, config.held_out_every)
    )
    weigh = seen[judged] if judged.any() else seen
    weights = guesses.fit_weights(after[last[weigh]], by_network(weigh), action[weigh], last[weigh])
    guess = {
        "frequent": np.broadcast_to(frequent, (len(asked), num_actions)),
        "last": after[last[asked]],
        "network": by_network(asked),
    }
    guess["both"] = guesses.combine(guess["last"], guess["network"], last[asked], weights)
    found = {name: guesses.judge(made, action[asked], last[asked]) for name, made in guess.items()}
    # What usually follows need not be the same again, but that is what people mean.
    again = np.where(last < num_actions, last, frequent.argmax())[asked]
    found["last"] = found["last"]._replace(accuracy=float((again == action[asked]).mean()))
    here = np.arange(len(asked)), action[asked]
    gains = (guess["both"][here] - guess["last"][here]) / np.log(2)
    gain = {"gain": float(gains.mean()), "gain_error": guesses.standard_error(gains)}
    right = {
        name: guesses.right_at_changes(guess[name], action[asked], last[asked]).astype(float)
        for name in ("both", "last")
    }
    better = right["both"] - right["last"]
    if len(better):
        gain["change_gain"] = float(better.mean())
        gain["change_gain_error"] = guesses.standard_error(better)
    return Measure(**told, **counts, **found, **gain)


def _overall(action: np.ndarray, last: np.ndarray, num_actions: int) -> dict[str, Any]:
    counts = np.bincount(action, minlength=num_actions)
    shares = counts[counts > 0] / counts.sum()
    return {
        # Not -0.0.
        "entropy": float(abs(-(shares * np.log2(shares)).sum())),
        "most_entropy": float(np.log2(num_actions)),
        "mean_hold": len(action) / int((action != last).sum()),
        "most_frequent": int(counts.argmax()),
        "most_frequent_share": float(counts.max() / counts.sum()),
    }


def _last_actions(rows: Row, num_actions: int) -> np.ndarray:
    """What was done at the row before, `[E]`; `num_actions` where an episode begins."""
    before = np.concatenate([[num_actions], np.asarray(rows.action)[:-1]])
    return np.where(np.asarray(rows.is_first), num_actions, before).astype(np.int64)


# --- The network ---


def _is_atari(rows: Row) -> bool:
    return rows.frame.shape[1:] == (84, 84) and rows.frame.dtype == np.uint8


def _network(rows: Row, num_actions: int, stack: int) -> Network:
    if _is_atari(rows):
        return networks.atari_network(num_actions, torso="overlap", hidden=128)
    shape, dtype = rows.frame.shape[1:], rows.frame.dtype
    return networks.for_observation(shape, dtype, num_actions, stack=stack, hidden=64)


def _train(
    rows: Row,
    network: Network,
    stack: int,
    config: CloneConfig,
    seed: int,
    on_progress: OnProgress | None,
) -> Params:
    """Parameters of the clone that did best on what it holds out of these rows."""
    replay = make_replay(
        frame_shape=rows.frame.shape[1:],
        frame_dtype=rows.frame.dtype,
        # A ring that nobody writes to.
        rows_per_lane=stack + 2,
        num_demo_rows=len(rows.action),
        stack=stack,
        **config.replay_options(),
    )
    agent = clone.make_agent(network, config, replay)
    network_key, updates_key = jax.random.split(jax.random.key(seed))
    state = replay.init(rows)
    learner = agent.init(network_key, jnp.asarray(rows.frame[:1, None]).repeat(stack, axis=1))

    def update(learner: Any, state: Any) -> Any:
        key = jax.random.fold_in(updates_key, learner.updates)
        return agent.pretrain(key, learner, state, 0)[0]

    update = jax.jit(update, donate_argnums=0)
    tell = on_progress or (lambda done, most: None)
    for done in range(config.updates):
        learner = update(learner, state)
        if done % 16 == 0:
            tell(done, config.updates)
            if agent.finished(learner):
                break
    tell(config.updates, config.updates)
    return learner.target_params


def _log_probabilities(
    network: Network, params: Params, rows: Row, stack: int
) -> Callable[[np.ndarray], np.ndarray]:
    """From numbers of rows `[n]` to what the network thinks of the actions there, `[n, A]`."""
    layout = Layout(len(rows.action), 1, 1)
    marks = rows.replace(is_first=jnp.asarray(rows.is_first))
    apply = jax.jit(lambda seen: jax.nn.log_softmax(network.apply(params, seen)))

    def ask(index: np.ndarray) -> np.ndarray:
        # One shape, so that it is compiled once.
        padded = np.resize(index, -(-len(index) // _CHUNK) * _CHUNK)
        parts = []
        for chunk in padded.reshape(-1, _CHUNK):
            stacked = np.asarray(stack_index(marks, layout, jnp.asarray(chunk), stack))
            parts.append(apply(rows.frame[stacked]))
        return np.concatenate(parts)[: len(index)].astype(np.float64)

    return ask
