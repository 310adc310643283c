"""Networks, batches, replays and environments small enough to work out by hand."""

import collections
import dataclasses
import functools
import itertools

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np

from bqfd_jax.agents import (
    AgentConfig,
    BootstrappedConfig,
    BqfdConfig,
    DqfdConfig,
    EnsembleBqfdConfig,
    PddDqnConfig,
)
from bqfd_jax.networks import Network
from bqfd_jax.replay import make_replay
from bqfd_jax.types import Batch, Environment, EnvStep, HostStep, Row

ABSURD = 1e3  # what a mix-up would read

# What these tests run is tiny: nearly all of their time is compilation.
quick_jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})

# Every setting, so that no test depends on the defaults, which are tuned.
_SHARED = {
    "learning_rate": 5e-4,
    "adam_epsilon": 1e-8,
    "max_gradient_norm": 10.0,
    "batch_size": 16,
    "gamma": 0.9,
    "target_period": 1,
    "target_step_size": 0.05,
    "one_step_weight": 1.0,
    "n_step_weight": 0.0,
    "n_step": 3,
    "n_step_final": 0,
    "n_step_updates": 10_000,
    "huber_delta": 0.0,
    "priority_exponent": 0.6,
    "importance_exponent": 0.4,
    "priority_epsilon": 1e-3,
    "exploration": "epsilon",
    "epsilon_steps": (0,),
    "epsilon_values": (0.0,),
    "ez_exponent": 2.0,
    "ez_max_repeat": 100,
    "pretrain_updates": 0,
    "act_with_target": False,
    "squash_values": False,
    "reset_period": 0,
    "reset_share": 0.5,
}
PLAIN = {
    AgentConfig: _SHARED,
    PddDqnConfig: _SHARED,
    DqfdConfig: _SHARED
    | {"margin": 0.8, "margin_weight": 1.0, "l2_weight": 1e-5, "demo_priority_bonus": 1.0},
    BqfdConfig: _SHARED
    | {
        "eta": 3.0,
        "variance": 0.6,
        "in_steps": False,
        "beta": 4.0,
        "visits_per_draw": 1.0,
        "noise_ratio": 4.0,
        "zeta": 0.2,
        "weight_from_target": True,
        "stop_correction_gradient": True,
        "correct_all_actions": False,
        "correction_steps": 1,
        "n_step_zeta": 0.1,
        "demo_priority_steps": (0,),
        "demo_priority_factors": (1.0,),
        "weight": "visits",
        "ensemble_size": 1,
        "mask_probability": 0.5,
        "prior_scale": 0.3,
        "learn_eta": False,
        "eta_step_size": 0.05,
        "eta_bounds": (0.01, 30.0),
    },
    BootstrappedConfig: _SHARED
    | {"ensemble_size": 20, "mask_probability": 0.5, "prior_scale": 0.0},
}


PLAIN[EnsembleBqfdConfig] = PLAIN[BqfdConfig] | {"weight": "ensemble", "ensemble_size": 3}


def configure(kind, **changes):
    """A config of which all is known: `PLAIN` but for `changes`."""
    return kind(**PLAIN[kind] | changes)


def table_network(num_states, num_actions, *, stack=1):
    """Parameters are the Q table itself; an observation is a stack of state numbers."""

    def init(key, observation):
        del observation
        return {"table": jax.random.normal(key, (num_states**stack, num_actions))}

    def apply(params, observation):
        place = num_states ** np.arange(stack - 1, -1, -1)
        return params["table"][jnp.sum(observation * place[None], axis=1)]

    return Network(init=init, apply=apply)


def mlp_network(num_states, num_actions, *, hidden=8):
    """One hidden layer on a one-hot state: all parameters share every gradient."""

    def init(key, observation):
        del observation
        keys = jax.random.split(key)
        return {
            "in": jax.random.normal(keys[0], (num_states, hidden)),
            "out": jax.random.normal(keys[1], (hidden, num_actions)) / hidden**0.5,
        }

    def apply(params, observation):
        return jnp.tanh(params["in"][observation[:, -1]]) @ params["out"]

    return Network(init=init, apply=apply)


def make_rows(table):
    """Rows (state, action, reward, discount, marks), marks a string that may name first, last."""
    state, action, reward, discount, marks = zip(*table, strict=True)
    return Row(
        frame=jnp.asarray(state, jnp.int32),
        action=jnp.asarray(action, jnp.int32),
        reward=jnp.asarray(reward, jnp.float32),
        discount=jnp.asarray(discount, jnp.float32),
        is_first=jnp.asarray(["first" in mark for mark in marks]),
        is_last=jnp.asarray(["last" in mark for mark in marks]),
    )


# One episode that terminates and one that is cut off: row 5 starts no transition.
DEMONSTRATIONS = (
    (0, 1, 0.5, 0.9, "first"),
    (1, 2, -0.5, 0.9, ""),
    (2, 0, 2.0, 0.0, ""),
    (3, 1, 1.0, 0.9, "first"),
    (4, 1, -1.0, 0.9, ""),
    (5, 0, ABSURD, 0.9, "last"),
)
NUM_STATES, NUM_ACTIONS = 8, 3


@functools.cache
def filled_replay(*, demonstrations=True, n_step=3, path_steps=1, exponent=0.6, num_rows=16):
    """A replay and its state: `DEMONSTRATIONS`, then a lane of random episodes of 5 steps.

    The state is shared: do not donate it.
    """
    replay = make_replay(
        frame_shape=(),
        frame_dtype=jnp.int32,
        rows_per_lane=32,
        num_demo_rows=len(DEMONSTRATIONS) if demonstrations else 0,
        n_step=n_step,
        path_steps=path_steps,
        priority_exponent=exponent,
    )
    rng = np.random.default_rng(0)
    lane = make_rows(
        [
            (
                rng.integers(NUM_STATES),
                rng.integers(NUM_ACTIONS),
                rng.normal(),
                0.0 if step % 5 == 4 else 0.9,
                "first" if step % 5 == 0 else "",
            )
            for step in range(num_rows)
        ]
    )
    lane = jax.tree.map(lambda x: x[:, None], lane)
    state = replay.init(make_rows(DEMONSTRATIONS) if demonstrations else None)
    state, _ = quick_jit(
        lambda state: jax.lax.scan(lambda state, row: (replay.add(state, row), None), state, lane)
    )(state)
    return replay, state


def make_batch(**fields):
    """A batch whose fields are absurd unless given; lists become arrays, states get a stack axis.

    Observations left out point at state -1, the last of a table: make that one absurd.
    """
    B = len(fields["action"])
    path_action = np.asarray(fields.get("path_action", np.asarray(fields["action"])[:, None]))
    K = path_action.shape[1]
    given = {
        "observation": np.full(B, -1),
        "reward": np.full(B, ABSURD),
        "discount": np.full(B, ABSURD),
        "next_observation": np.full(B, -1),
        "n_step_return": np.full(B, ABSURD),
        "n_step_discount": np.full(B, ABSURD),
        "n_step_observation": np.full(B, -1),
        "path_observation": np.full((B, K - 1), -1),
        "path_discount": np.ones((B, K)),
        "path_visit_count": np.full((B, K), ABSURD),
        "is_expert": np.zeros(B, bool),
        "index": np.arange(B),
        "importance_weight": np.ones(B),
    } | fields
    given["path_action"] = path_action
    batch = {}
    for field in dataclasses.fields(Batch):
        value = np.asarray(given[field.name])
        if field.name.endswith("observation"):
            value = value[..., None].astype(np.int32)
        elif field.name in ("action", "path_action", "index"):
            value = value.astype(np.int32)
        elif field.name != "is_expert":
            value = value.astype(np.float32)
        batch[field.name] = jnp.asarray(value)
    return Batch(**batch)


def softmax(x):
    """In float64, over the last axis."""
    e = np.exp(np.asarray(x, np.float64) - np.max(x, axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def graph_params(
    edges, *, num_states=4, starts=(0,), shown=None, time_limit=10**6, limit_terminates=False
):
    """Parameters of `graph_environment`.

    Args:
      edges: `{(state, action): (next state or None, reward)}`; None terminates.  An action of None
        stands for both.
      num_states: states of the graph.
      starts: where episodes begin, each equally likely.
      shown: what each state looks like; itself unless given.
      time_limit: steps after which an episode ends.
      limit_terminates: the limit terminates the episode and does not cut it off.
    """
    next_state, reward, ends = np.zeros((3, num_states, 2))
    for (state, action), (target, paid) in edges.items():
        for a in (0, 1) if action is None else (action,):
            next_state[state, a] = 0 if target is None else target
            reward[state, a], ends[state, a] = paid, target is None
    start = np.isin(np.arange(num_states), starts)
    return {
        "next_state": jnp.asarray(next_state, jnp.int32),
        "reward": jnp.asarray(reward, jnp.float32),
        "ends": jnp.asarray(ends, bool),
        "start_logits": jnp.asarray(np.where(start, 0.0, -np.inf), jnp.float32),
        "shown": jnp.asarray(range(num_states) if shown is None else shown, jnp.int32),
        "time_limit": jnp.int32(time_limit),
        "limit_terminates": jnp.bool_(limit_terminates),
    }


def graph_environment():
    """An environment that is all in its parameters, so that one compilation serves many."""

    def reset(key, params):
        state = jax.random.categorical(key, params["start_logits"]).astype(jnp.int32)
        return {"state": state, "time": jnp.int32(0)}, params["shown"][state]

    def step(key, params, state, action):
        del key
        at, time = state["state"], state["time"] + 1
        next_state = params["next_state"][at, action]
        limit = time >= params["time_limit"]
        ends = params["ends"][at, action]
        return {"state": next_state, "time": time}, EnvStep(
            observation=params["shown"][next_state],
            reward=params["reward"][at, action],
            terminated=ends | (limit & params["limit_terminates"]),
            truncated=limit & ~params["limit_terminates"],
        )

    return Environment(reset=reset, step=step, frame_shape=(), frame_dtype=jnp.int32, num_actions=2)


class CountingEnvironment:
    """A host environment whose frames tell where they are: `[lane, episode, time]`.

    Episodes of lane l have `2 + l` steps and more as they go on; each second one is truncated.
    A step pays what its place and its action say, so that no two rewards are alike.
    """

    frame_shape = (3,)
    frame_dtype = np.int32
    num_actions = 5

    def __init__(self, num_lanes):
        self.num_lanes = num_lanes
        self.history = []  # every HostStep shown
        self.actions = []  # every [L] actions taken

    def reset(self):
        self.frame = np.array([[lane, 0, 0] for lane in range(self.num_lanes)], np.int32)
        self.ended = np.zeros(self.num_lanes, bool)
        zeros = np.zeros(self.num_lanes, np.float32)
        return self._show(zeros, zeros, np.ones(self.num_lanes, bool))

    def step(self, actions):
        assert actions.shape == (self.num_lanes,)
        self.actions.append(np.array(actions))
        is_first = self.ended
        lane, episode, time = self.frame.T
        reward = np.where(is_first, 0, 1000 * lane + 100 * episode + 10 * time + actions)
        self.frame = np.where(
            is_first[:, None],
            np.stack([lane, episode + 1, 0 * time], axis=1),
            np.stack([lane, episode, time + 1], axis=1),
        ).astype(np.int32)
        lane, episode, time = self.frame.T
        self.ended = time >= 2 + lane + episode
        terminated = self.ended & (episode % 2 == 0)
        discount = np.where(terminated | is_first, 0, 1)
        return self._show(reward.astype(np.float32), discount.astype(np.float32), is_first)

    def _show(self, reward, discount, is_first):
        shown = HostStep(
            frame=self.frame,
            reward=reward,
            discount=discount,
            is_first=is_first,
            is_last=self.ended,
            score_reward=2 * reward,
            lives=np.zeros(self.num_lanes, np.int32),
        )
        self.history.append(shown)
        return shown


def looking_network(num_actions):
    """Prefers the action that the times in the stack add up to; one parameter that can learn."""

    def init(key, observation):
        del observation
        return {"scale": jax.random.uniform(key, ()) + 0.5}

    def apply(params, observation):
        preferred = jnp.sum(observation[..., 2], axis=1).astype(jnp.int32) % num_actions
        return params["scale"] * jax.nn.one_hot(preferred, num_actions)

    return Network(init=init, apply=apply)


class RecordedKeys:
    """Keys that tell when they are split or drawn from, wherever that happens in compiled code.

    To fold a number in does not use a key up: streams and counters come from one key.
    """

    def __init__(self):
        self.used = []  # their bits, once for each use
        self._serial = itertools.count()
        plain = jax.extend.random.threefry_prng_impl
        self._impl = jax.extend.random.define_prng_impl(
            key_shape=plain.key_shape,
            seed=plain.seed,
            split=lambda key, shape: plain.split(self._record(key), shape),
            random_bits=lambda key, width, shape: plain.random_bits(
                self._record(key), width, shape
            ),
            fold_in=plain.fold_in,
            name="recorded",
            tag="rec",
        )

    def key(self, seed):
        return jax.random.key(seed, impl=self._impl)

    def repeated(self):
        """Keys that were used more than once."""
        jax.effects_barrier()
        return {key for key, count in collections.Counter(self.used).items() if count > 1}

    def _record(self, key):
        def see(key, serial):
            del serial
            self.used += map(bytes, np.asarray(key).reshape(-1, 2))
            return np.asarray(key)

        # With a number of its own, or XLA would make one of two uses of the same key.
        serial = np.uint32(next(self._serial))
        shape = jax.ShapeDtypeStruct(key.shape, key.dtype)
        return jax.pure_callback(see, shape, key, serial, vmap_method="broadcast_all")
