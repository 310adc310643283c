"""How far each demonstration is trusted: its eta, and how much its expert's word still weighs.

`Trust` is what BQfD remembers besides its network if its weight is an ensemble's, if eta is learnt
or if values are counted in what a demonstrated step earns.
`prepare` fills it in from the demonstrations, before anything is learnt.  `learn_eta` moves each
demonstration's eta up the likelihood of rows of it that are held out of the correction: the
correction makes values explain the labels that it is made of, and so any expert look reliable.
"""

import math

import chex
import jax
import jax.numpy as jnp

from bqfd_jax import posterior
from bqfd_jax.agents import td
from bqfd_jax.agents.config import BqfdConfig
from bqfd_jax.networks import Network
from bqfd_jax.replay import Replay, ReplayState
from bqfd_jax.types import Array, Batch, LearnerState, Params, Row

_HELD_OUT_EVERY = 10
_LONGEST_BLOCK = 10
_PROBES = 256
_SEED = 0
# Where slopes are cut, so that a few absurd values do not decide.  Steeper ones than this are rare;
# a cut among the usual ones would hide how wrong a confident expert was, and so flatter it.
_STEEPEST = 10.0


@chex.dataclass(frozen=True)
class Trust:
    """What is known of D demonstrations, whose rows lie one after the other."""

    ends: Array  # [D] int32, the row after each one's last
    log_eta: Array  # [D] float32
    weight: Array  # [D] float32, running mean of the weights that its rows were drawn with
    initial: Array  # [] float32, the members' variance in the demonstrations before learning
    # [] float32, what a demonstrated step adds to a Q-value.  None unless values are counted in it:
    # checkpoints that are older than this field can then still be read.
    step_worth: Array | None = None


def init(config: BqfdConfig) -> Trust:
    """Of a learner that was not told of demonstrations: all of its expert rows are one's."""
    return Trust(
        ends=jnp.full(1, jnp.iinfo(jnp.int32).max, jnp.int32),
        log_eta=jnp.full(1, _log(config.eta), jnp.float32),
        weight=jnp.full(1, config.variance, jnp.float32),
        initial=jnp.ones((), jnp.float32),
        step_worth=jnp.ones((), jnp.float32) if config.in_steps else None,
    )


def prepare(
    network: Network,
    config: BqfdConfig,
    replay: Replay,
    learner: LearnerState,
    replay_state: ReplayState,
    sizes: Array | None = None,
) -> LearnerState:
    """Sets what a step is worth, the scale of the priors and what they disagree by.

    Args:
      network: of the agent.
      config: its hyper-parameters.
      replay: holds the demonstrations.
      learner: before its first update.
      replay_state: before the first step.
      sizes: rows of each demonstration, `[D]` integers; one has them all unless given.
    """
    num_rows = replay.layout.num_demo_rows
    if not num_rows:
        return learner
    worth = step_worth(config, replay_state.rows, num_rows)
    sizes = jnp.array([num_rows]) if sizes is None else jnp.asarray(sizes)
    # Rows beyond the last demonstration are room that is never drawn.
    ends = jnp.cumsum(sizes).astype(jnp.int32)
    (trust,) = learner.extra
    trust = trust.replace(
        ends=ends,
        log_eta=jnp.full(ends.shape, _log(config.eta), jnp.float32),
        weight=jnp.full(ends.shape, config.variance, jnp.float32),
        step_worth=worth if config.in_steps else None,
    )
    if config.ensemble_size == 1:
        return learner.replace(extra=(trust,))
    std = config.prior_scale * worth
    probes = replay.sample_demonstrations(jax.random.key(_SEED), replay_state, _PROBES)
    params = with_prior_std(network, learner.params, probes.observation, std)
    q = network.apply(params, probes.observation)  # [B, K, A]
    taken = jnp.take_along_axis(q, probes.action[:, None, None], axis=2)[..., 0]
    initial = jnp.mean(jnp.var(taken, axis=1))
    return learner.replace(
        params=params,
        target_params=jax.tree.map(jnp.copy, params),
        extra=(trust.replace(initial=jnp.maximum(initial, 1e-8)),),
    )


def step_worth(config: BqfdConfig, rows: Row, num_rows: int) -> Array:
    """What a step of the first rows adds to a Q-value, `[]`: returns to go by steps to go.

    Both are discounted, and each is a root mean square over the rows.  Returns count as 1 at least:
    a demonstration that earns nothing does not tell that there is nothing to earn.  Squashed values
    grow by less, as the squashing's slope says at the usual return.
    """
    rows = jax.tree.map(lambda field: field[:num_rows], rows)
    num_starts = jnp.maximum(jnp.sum(~rows.is_last), 1)

    def size(reward: Array) -> Array:
        return jnp.sqrt(jnp.sum(jnp.square(_returns(rows, reward))) / num_starts)

    returns = jnp.maximum(size(rows.reward), 1.0)
    steps = jnp.maximum(size(jnp.ones_like(rows.reward)), 1.0)
    slope = jax.grad(td.squash)(returns) if config.squash_values else 1.0
    return slope * returns / steps


def _returns(rows: Row, reward: Array) -> Array:
    """Discounted sums from each row on, `[T]`; 0 for rows that start no transition."""

    def back(after: Array, row: tuple[Array, ...]) -> tuple[Array, Array]:
        reward, discount, is_first, is_last = row
        here = jnp.where(is_last, 0.0, reward + discount * after)
        # What comes before the first row is another episode.
        return jnp.where(is_first, 0.0, here), here

    fields = (reward, rows.discount, rows.is_first, rows.is_last)
    return jax.lax.scan(back, jnp.float32(0), fields, reverse=True)[1]


def with_prior_std(network: Network, params: Params, observation: Array, std: Array) -> Params:
    """Parameters with the prior's scale set: its members differ by `std` in these observations."""

    def q(scale: float) -> Array:
        return network.apply(params | {"prior_scale": jnp.float32(scale)}, observation)

    prior = q(1.0) - q(0.0)
    found = jnp.sqrt(jnp.mean(jnp.var(prior, axis=1)))
    return params | {"prior_scale": std / jnp.maximum(found, 1e-6)}


def counted_in(trust: Trust | None) -> Array | float:
    """What eta and the variance are counted in: a step's worth, or values as they are."""
    return 1.0 if trust is None or trust.step_worth is None else trust.step_worth


def owner(trust: Trust, index: Array) -> Array:
    """Which demonstration the rows `index` (any shape) belong to; the last one's for other rows."""
    found = jnp.searchsorted(trust.ends, index, side="right")
    return jnp.minimum(found, trust.ends.shape[0] - 1)


def is_held_out(trust: Trust, index: Array) -> Array:
    """Whether rows (any shape) are held out of the correction: a tenth of each demonstration.

    Of every ten blocks one is, at random but always the same.  A block has one row in a short
    demonstration and ten in a long one, where the rows next to each other look alike.
    """
    number = owner(trust, index)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), trust.ends[:-1]])
    length = jnp.clip((trust.ends - starts) // (20 * _HELD_OUT_EVERY), 1, _LONGEST_BLOCK)[number]
    block = (index - starts[number]) // length
    group, place = block // _HELD_OUT_EVERY, block % _HELD_OUT_EVERY
    # Knuth's multiplicative hash: as even as this needs.
    mixed = (group.astype(jnp.uint32) + 1) * jnp.uint32(2654435761)
    return place == (mixed >> 16).astype(jnp.int32) % _HELD_OUT_EVERY


def learn_eta(config: BqfdConfig, trust: Trust, q: Array, batch: Batch) -> Trust:
    """One step of each demonstration's log eta up the likelihood of its held-out rows.

    `q` is `[B, K, A]`; demonstrations of which none was drawn stay as they are.
    """
    chex.assert_rank(q, 3)
    number = owner(trust, batch.index)

    def likelihood(log_eta: Array, q: Array, a: Array) -> Array:
        eta = jnp.exp(log_eta) / counted_in(trust)
        return posterior.predictive_log_likelihood(q, a, eta=eta)

    slope = jax.vmap(jax.grad(likelihood))(
        trust.log_eta[number], jax.lax.stop_gradient(q), batch.action
    )
    counts = batch.is_expert & is_held_out(trust, batch.index)
    mean, _ = _means(trust, number, counts, jnp.clip(slope, -_STEEPEST, _STEEPEST))
    low, high = map(_log, config.eta_bounds)
    log_eta = jnp.clip(trust.log_eta + config.eta_step_size * mean, low, high)
    return trust.replace(log_eta=log_eta)


def remember_weight(trust: Trust, weight: Array, batch: Batch) -> Trust:
    """Moves each demonstration's running mean towards the weights `[B]` of its rows."""
    mean, count = _means(trust, owner(trust, batch.index), batch.is_expert, weight)
    moved = trust.weight + 0.01 * (mean - trust.weight)
    return trust.replace(weight=jnp.where(count > 0, moved, trust.weight))


def weight_name(config: BqfdConfig) -> str | None:
    """What metrics call the weight that is remembered; None where they tell of the visit weight."""
    names = {"ensemble": "ensemble_weight", "smaller": "expert_weight"}
    return names.get(config.weight)


def describe(config: BqfdConfig, extra: tuple[Trust, ...]) -> dict[str, Array]:
    """Metrics over all demonstrations; each one's own are in `training.demo_usage`."""
    metrics = {}
    for trust in extra:
        if (name := weight_name(config)) is not None:
            metrics[name] = jnp.mean(trust.weight)
        if config.learn_eta:
            metrics["eta"] = jnp.exp(jnp.mean(trust.log_eta))
    return metrics


def _means(trust: Trust, number: Array, where: Array, values: Array) -> tuple[Array, Array]:
    """Of the values `[B]` that count, for each demonstration `[D]`, 0 if none does; how many."""
    zeros = jnp.zeros(trust.ends.shape, jnp.float32)
    count = zeros.at[number].add(where.astype(jnp.float32))
    total = zeros.at[number].add(jnp.where(where, values, 0.0))
    return total / jnp.maximum(count, 1.0), count


def _log(eta: float) -> float:
    return math.log(max(eta, 1e-6))
