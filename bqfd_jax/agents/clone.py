"""Behavioural cloning: cross-entropy on demonstrations alone, stopped early on held-out rows.

The network's outputs are logits, of which the greatest is played.  Of a `LearnerState`,
`target_params` is the network that did best on the held-out rows, or the newest if none are held
out: that is what is played.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import optax

from bqfd_jax.agents import learner as shared
from bqfd_jax.agents.acting import act, init_actor
from bqfd_jax.agents.config import CloneConfig
from bqfd_jax.networks import Network, mean_q
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LearnerState, Params

_CHUNK = 256  # held-out rows that are looked at together
_LAST_STEP_SIZE = 0.05  # as a multiple of the first
_Updated = tuple[LearnerState, ReplayState, shared.Metrics]


@chex.dataclass(frozen=True)
class Progress:
    """What a clone's learner remembers beside its parameters, in the place of `opt_state`."""

    adam: Any  # the optimizer's own
    held_out_loss: Array  # [] float32, cross-entropy of the held-out rows when last looked at
    best_loss: Array  # [] float32, the least of them
    best_at: Array  # [] int32, the update after which it was that


class _Parts(NamedTuple):
    """What the update is made of; all static, and bound by `make_agent`."""

    apply: Callable[[Params, Array], Array]
    optimizer: optax.GradientTransformation
    config: CloneConfig
    replay: Replay | None


def cross_entropy(logits: Array, action: Array) -> Array:
    """Of one example, in nats: `-log softmax(logits)[action]`, `[]`."""
    chex.assert_rank([logits, action], [1, 0])
    return -jax.nn.log_softmax(logits)[action]


def held_out(is_first: Array, is_last: Array, every: int) -> Array:
    """Which rows of demonstrations are not learnt from; arguments and result `[E]` bool.

    Of `every` episodes the last; of fewer, the last of as many parts of all rows.  Where rows are
    too few for that, or `every` is 0, none.  Rows that start no transition belong to nobody.
    """
    starts = ~is_last
    if every == 0:
        return jnp.zeros_like(starts)
    # Rows that a replay keeps free look like episodes without an action, and are none.
    episode = jnp.cumsum(is_first & starts) - 1
    step = jnp.cumsum(starts)
    tail = step > step[-1] - step[-1] // every
    whole = episode % every == every - 1
    return starts & jnp.where(episode[-1] + 1 >= every, whole, tail)


def image_axes(frame_shape: tuple[int, ...]) -> tuple[int, int] | None:
    """Which axes of a frame are height and width, counted from its last; None for vectors.

    Colours are the shorter of the first and the last axis, as for `networks`.
    """
    if len(frame_shape) < 2:
        return None
    has_colours_last = len(frame_shape) == 3 and frame_shape[0] > frame_shape[2]
    return (-3, -2) if has_colours_last else (-2, -1)


def shift_image(image: Array, offsets: Array, axes: tuple[int, int] = (-2, -1)) -> Array:
    """Moves an image by whole pixels; what comes in from outside repeats the edge.

    Args:
      image: of any axes, of which two are height and width.
      offsets: `[2]` int32; the new pixel `(y, x)` is the old `(y + offsets[0], x + offsets[1])`.
      axes: height and width.
    """
    for axis, offset in zip(axes, offsets, strict=True):
        side = image.shape[axis]
        image = jnp.take(image, jnp.clip(jnp.arange(side) + offset, 0, side - 1), axis=axis)
    return image


def shift_at_random(key: Array, observation: Array, shift: int) -> Array:
    """Shifts each observation `[B, S, *frame_shape]`, its whole stack alike; the key is consumed.

    Kostrikov et al.: "Image Augmentation Is All You Need" (2020), who shift images of 84 pixels by
    up to 4: `shift` is in 84ths of a side, so that a grid of ten cells, where every cell counts,
    stays as it is.  Vectors do, too.
    """
    axes = image_axes(observation.shape[2:])
    if axes is None:
        return observation
    most = jnp.array([round(shift * observation.shape[axis] / 84) for axis in axes])
    offsets = jax.random.randint(key, (observation.shape[0], 2), -most[None], most[None] + 1)
    return jax.vmap(functools.partial(shift_image, axes=axes))(observation, offsets)


def make_agent(network: Network, config: CloneConfig, replay: Replay | None = None) -> shared.Agent:
    """A clone of whoever acts in the replay's demonstrations; `pretrain` is how it learns."""
    optimizer = optax.chain(
        shared.clip_by_norm(config.max_gradient_norm),
        optax.adamw(
            optax.cosine_decay_schedule(config.learning_rate, config.updates, _LAST_STEP_SIZE),
            weight_decay=config.weight_decay,
        ),
    )
    parts = _Parts(functools.partial(mean_q, network.apply), optimizer, config, replay)
    return shared.Agent(
        gamma=config.gamma,
        init=functools.partial(init, network, optimizer),
        init_actor=init_actor,
        act=functools.partial(act, network.apply, config),
        q_values=parts.apply,
        learn=functools.partial(learn, parts),
        priority=lambda td_size, is_expert, step: jnp.ones_like(td_size),
        update=functools.partial(update, parts) if replay else shared.refuse,
        pretrain=functools.partial(pretrain, parts) if replay else shared.refuse,
        describe=lambda replay_state: {},
        finished=functools.partial(finished, config),
    )


def init(
    network: Network, optimizer: optax.GradientTransformation, key: Array, observation: Array
) -> LearnerState:
    """A new learner; the key is consumed, and the observation is only an example."""
    learner = shared.init(network, optimizer, key, observation)
    unknown = jnp.array(jnp.inf, jnp.float32)
    progress = Progress(
        adam=learner.opt_state,
        held_out_loss=unknown,
        # A copy: two donated buffers must not be one.
        best_loss=jnp.copy(unknown),
        best_at=jnp.zeros((), jnp.int32),
    )
    return learner.replace(opt_state=progress)


def learn(
    parts: _Parts, learner: LearnerState, batch: Batch
) -> tuple[LearnerState, Array, shared.Metrics]:
    """One step down the cross-entropy of a batch; of rows that are no expert's nothing is learnt.

    Returns the new learner, the cross-entropies `[B]` and metrics.
    """

    def loss(params: Params) -> tuple[Array, tuple[Array, Array]]:
        logits = parts.apply(params, batch.observation)
        each = jax.vmap(cross_entropy)(logits, batch.action)
        right = jnp.argmax(logits, axis=-1) == batch.action
        # Of a batch without an expert nothing is learnt, and it must not be nan.
        count = jnp.maximum(jnp.sum(batch.is_expert), 1)
        return jnp.sum(each, where=batch.is_expert) / count, (each, right)

    (loss_value, (each, right)), gradients = jax.value_and_grad(loss, has_aux=True)(learner.params)
    progress = learner.opt_state
    deltas, adam = parts.optimizer.update(gradients, progress.adam, learner.params)
    learner = learner.replace(
        params=optax.apply_updates(learner.params, deltas),
        opt_state=progress.replace(adam=adam),
        updates=learner.updates + 1,
    )
    metrics = {
        "loss": loss_value,
        "gradient_norm": optax.tree.norm(gradients),
        "expert_share": jnp.mean(batch.is_expert, dtype=jnp.float32),
        "accuracy": jnp.mean(right, where=batch.is_expert),
    }
    if parts.config.held_out_every:
        metrics["held_out_loss"] = progress.held_out_loss
    return learner, each, metrics


def update(
    parts: _Parts, key: Array, learner: LearnerState, replay_state: ReplayState, step: Array
) -> _Updated:
    """Learns from rows of a replay that may hold the agent's own, too; the key is consumed.

    A run never gets here: it is over before the first agent step.
    """
    del step
    batch = parts.replay.sample(key, replay_state, parts.config.batch_size)
    learner, _, metrics = learn(parts, learner, batch)
    return learner, replay_state, metrics


def pretrain(
    parts: _Parts, key: Array, learner: LearnerState, replay_state: ReplayState, step: Array
) -> _Updated:
    """Learns from rows that are not held out, and looks at those now and then.

    The key is consumed; donate the learner.
    """
    del step
    config, num_rows = parts.config, parts.replay.layout.num_demo_rows
    draw_key, shift_key = jax.random.split(key)
    rows = jax.tree.map(lambda x: x[:num_rows], replay_state.rows)
    judged = held_out(rows.is_first, rows.is_last, config.held_out_every)
    batch = parts.replay.sample_demonstrations(draw_key, replay_state, config.batch_size, ~judged)
    shifted = shift_at_random(shift_key, batch.observation, config.shift)
    learner, _, metrics = learn(parts, learner, batch.replace(observation=shifted))
    if config.held_out_every == 0:
        learner = learner.replace(
            target_params=learner.params,
            opt_state=learner.opt_state.replace(best_at=learner.updates),
        )
        return learner, replay_state, metrics
    # Where nothing could be held out, what was learnt from must do.
    judged = jnp.where(judged.any(), judged, ~rows.is_last)
    # After the first update, so that there is a best one from then on; and after the last.
    is_due = (learner.updates - 1) % config.check_period == 0
    learner = jax.lax.cond(
        is_due | (learner.updates == config.updates),
        lambda learner: _keep_best(parts, learner, replay_state, judged),
        lambda learner: learner,
        learner,
    )
    return learner, replay_state, metrics | {"held_out_loss": learner.opt_state.held_out_loss}


def finished(config: CloneConfig, learner: LearnerState) -> Array:
    """Whether the held-out rows have not been foretold better for too long, `[]` bool."""
    return learner.updates - learner.opt_state.best_at > config.patience


def mean_cross_entropy(
    apply: Callable[[Params, Array], Array],
    replay: Replay,
    params: Params,
    replay_state: ReplayState,
    chosen: Array,
) -> Array:
    """Over the rows `chosen`, `[E]` bool, of the demonstrations; `[]`."""
    count = jnp.sum(chosen)
    index = jnp.flatnonzero(chosen, size=chosen.shape[0], fill_value=0)

    def add(chunk: Array, total: Array) -> Array:
        place = chunk * _CHUNK + jnp.arange(_CHUNK)
        row = index[jnp.minimum(place, count - 1)]
        logits = apply(params, replay.observe(replay_state.rows, row))
        each = jax.vmap(cross_entropy)(logits, replay_state.rows.action[row])
        return total + jnp.sum(each, where=place < count)

    return jax.lax.fori_loop(0, -(-count // _CHUNK), add, jnp.float32(0)) / count


def _keep_best(
    parts: _Parts, learner: LearnerState, replay_state: ReplayState, judged: Array
) -> LearnerState:
    loss = mean_cross_entropy(parts.apply, parts.replay, learner.params, replay_state, judged)
    progress = learner.opt_state
    is_better = loss < progress.best_loss
    return learner.replace(
        target_params=jax.tree.map(
            lambda new, old: jnp.where(is_better, new, old), learner.params, learner.target_params
        ),
        opt_state=progress.replace(
            held_out_loss=loss,
            best_loss=jnp.minimum(loss, progress.best_loss),
            best_at=jnp.where(is_better, learner.updates, progress.best_at),
        ),
    )
