"""Tabular BQfD: the paper's Algorithm 2 on any finite-horizon problem that is given as arrays.

A whole run is one function of a key, so seeds and hyper-parameters are a vmap.
"""

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

import chex
import jax
import jax.numpy as jnp
import numpy as np

from bqfd_jax import checks, exploration, posterior
from bqfd_jax.types import Array

Correction = Literal["target", "posterior", "none"]
StepSize = Callable[[Array, Array], Array]  # (visits n, beta) -> alpha


class Problem(NamedTuple):
    """A finite-horizon Markov decision problem; states and actions may mean what they like."""

    rewards: Array  # [H, S, A] float
    transitions: Array  # [H, S, A, S] float, probabilities of the next state
    start: Array  # [S] float, probabilities of the first state


class Demonstrations(NamedTuple):
    """N expert trajectories; they may begin anywhere, end early and contradict each other."""

    states: Array  # [N, H] integer; after the last action shown comes the state that it led to
    actions: Array  # [N, H] integer, -1 where nothing was shown


@chex.dataclass(frozen=True)
class TableState:
    """What the agent has learnt."""

    q: Array  # [H, S, A] float32
    visits: Array  # [H, S, A] int32, updates of each value


@chex.dataclass(frozen=True)
class Run:
    """A whole run."""

    state: TableState  # at its end
    returns: Array  # [episodes] float32, undiscounted
    states: Array  # [episodes, H] int32, states visited
    actions: Array  # [episodes, H] int32
    values: Array  # [episodes, H] float32, of those pairs, as the episode left them


def harmonic(visits: Array, beta: Array) -> Array:
    """`1 / (beta + n)`: the prior weighs as much as beta targets."""
    return 1.0 / (beta + visits)


def run(
    key: Array,
    problem: Problem,
    demonstrations: Demonstrations | None = None,
    *,
    episodes: int,
    eta: float = 3.0,
    beta: float = 4.0,
    variance: float = 0.6,
    noise_ratio: float = 4.0,
    gamma: float = 1.0,
    correction: Correction = "target",
    replay_demonstrations: bool = False,
    step_size: StepSize = harmonic,
    epsilon: float = 0.0,
) -> Run:
    """Learns for a number of episodes, acting greedily (ties are broken at random).

    After every episode the values of its steps are updated from the last to the first.  In states
    where the expert was seen they are corrected, by `eta w_n (f(a) - pi(a))`, where `f(a)` is how
    often the expert took `a` there: 1 or 0 if its demonstrations agree.

    Args:
      key: decides all chance; consumed.
      problem: what to solve.
      demonstrations: the expert's trajectories, or None.
      episodes: how many, a static number.
      eta: Boltzmann parameter of the expert.
      beta: pseudo-count of the prior.
      variance: prior variance of a Q-value.
      noise_ratio: variance of a target as a multiple of it.
      gamma: discount per step.
      correction: `"target"` corrects the target, as the deep agent does, and so forgets the expert;
        `"posterior"` corrects the value after the update, as the paper prints it, and does not:
        step size and weight fall alike, so the sum of corrections stays.  `"none"` is Q-learning.
      replay_demonstrations: the demonstrations are episodes 0, -1, ... of the run: their steps are
        learnt from before the first.
      step_size: from visits (this one included) and beta to alpha.
      epsilon: probability of a random action.
    """
    problem, demonstrations = check(problem, demonstrations)
    checks.at_least(1, episodes=episodes)
    checks.at_least(0, eta=eta, beta=beta, variance=variance, noise_ratio=noise_ratio)
    checks.within(0, 1, gamma=gamma, epsilon=epsilon)
    checks.one_of(get_args(Correction), correction=correction)
    if replay_demonstrations and demonstrations is None:
        raise ValueError("replay_demonstrations needs demonstrations")
    frequency, known = expert_frequency(problem, demonstrations)
    agent = _Agent(
        problem=jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), problem),
        frequency=frequency,
        known=known,
        eta=eta,
        beta=beta,
        variance=variance,
        noise_ratio=noise_ratio,
        gamma=gamma,
        correction=correction,
        step_size=step_size,
        epsilon=epsilon,
    )
    state = TableState(
        q=jnp.zeros(problem.rewards.shape, jnp.float32),
        visits=jnp.zeros(problem.rewards.shape, jnp.int32),
    )
    if replay_demonstrations:
        shown = jax.tree.map(lambda x: jnp.asarray(x, jnp.int32), demonstrations)
        state, _ = jax.lax.scan(functools.partial(_learn_shown, agent), state, shown)
    state, (returns, states, actions, values) = jax.lax.scan(
        functools.partial(_episode, agent), state, jax.random.split(key, episodes)
    )
    return Run(state=state, returns=returns, states=states, actions=actions, values=values)


# --- Algorithm 2, in the order in which it runs ---


class _Agent(NamedTuple):
    """What stays the same throughout a run, as it was given to `run`."""

    problem: Problem
    frequency: Array  # [H, S, A] float32, how often the expert took each action
    known: Array  # [H, S] bool, where the expert was seen
    eta: float
    beta: float
    variance: float
    noise_ratio: float
    gamma: float
    correction: Correction
    step_size: StepSize
    epsilon: float


def _learn_shown(
    agent: _Agent, state: TableState, shown: Demonstrations
) -> tuple[TableState, Array]:
    """Learns from one demonstration, `[H]` each."""
    # Nothing follows the last step, so that it does not matter where a demonstration ended.
    return _learn(agent, state, shown.states, shown.actions, shown.states[-1])


def _episode(agent: _Agent, state: TableState, key: Array) -> tuple[TableState, tuple[Array, ...]]:
    """Plays, then learns from what was played; `key` is consumed."""
    states, actions, rewards, last = _play(agent, state, key)
    state, values = _learn(agent, state, states, actions, last)
    return state, (jnp.sum(rewards), states, actions, values)


def _play(agent: _Agent, state: TableState, key: Array) -> tuple[Array, Array, Array, Array]:
    """One episode: states, actions and rewards `[H]`, and the state it ends in."""
    start_key, key = jax.random.split(key)
    first = jax.random.categorical(start_key, jnp.log(agent.problem.start)).astype(jnp.int32)
    horizon = agent.problem.rewards.shape[0]
    inputs = (jnp.arange(horizon), jax.random.split(key, horizon))
    last, (states, actions, rewards) = jax.lax.scan(
        functools.partial(_step, agent, state), first, inputs
    )
    return states, actions, rewards, last


def _step(
    agent: _Agent, state: TableState, s: Array, inputs: tuple[Array, Array]
) -> tuple[Array, tuple[Array, Array, Array]]:
    """From a state to the next; also what was seen, done and received."""
    h, key = inputs
    action_key, next_key = jax.random.split(key)
    a = exploration.epsilon_greedy(action_key, state.q[h, s], agent.epsilon)
    s_next = jax.random.categorical(next_key, jnp.log(agent.problem.transitions[h, s, a]))
    return s_next.astype(jnp.int32), (s, a, agent.problem.rewards[h, s, a])


def _learn(
    agent: _Agent, state: TableState, states: Array, actions: Array, last: Array
) -> tuple[TableState, Array]:
    """Updates the values of one trajectory, `[H]` each, backwards; action -1: not taken."""
    steps = (jnp.arange(states.shape[0]), states, actions)
    (state, _), values = jax.lax.scan(
        functools.partial(_update, agent), (state, last), steps, reverse=True
    )
    return state, values


def _update(
    agent: _Agent, carry: tuple[TableState, Array], step: tuple[Array, Array, Array]
) -> tuple[tuple[TableState, Array], Array]:
    """Updates the value of one step, given the state that followed it."""
    state, s_next = carry
    h, s, a = step
    horizon = agent.problem.rewards.shape[0]
    taken, a = a >= 0, jnp.maximum(a, 0)
    n = state.visits[h, s, a] + 1
    visits = n.astype(jnp.float32)
    row = state.q[h, s]
    following = jnp.where(
        h + 1 < horizon, jnp.max(state.q[jnp.minimum(h + 1, horizon - 1), s_next]), 0.0
    )
    target = agent.problem.rewards[h, s, a] + agent.gamma * following
    if agent.correction == "target":
        target += _correction(agent, row, h, s, a, visits)
    alpha = agent.step_size(visits, agent.beta)
    value = (1 - alpha) * row[a] + alpha * target
    if agent.correction == "posterior":
        value += _correction(agent, row.at[a].set(value), h, s, a, visits)
    # Where nothing was done, all is written back as it was.
    state = TableState(
        q=state.q.at[h, s, a].set(jnp.where(taken, value, row[a])),
        visits=state.visits.at[h, s, a].set(jnp.where(taken, n, n - 1)),
    )
    return (state, s), value


def _correction(agent: _Agent, q: Array, h: Array, s: Array, a: Array, visits: Array) -> Array:
    """`eta w_n (f(a) - pi(a))` where the expert was seen, else 0; q is `[A]`."""
    weight = posterior.visit_weight(
        visits, beta=agent.beta, variance=agent.variance, noise_ratio=agent.noise_ratio
    )
    pi = posterior.boltzmann_policy(q, eta=agent.eta)
    difference = agent.frequency[h, s, a] - pi[a]
    return jnp.where(agent.known[h, s], agent.eta * weight * difference, 0.0)


def expert_frequency(
    problem: Problem, demonstrations: Demonstrations | None
) -> tuple[Array, Array]:
    """How often the expert took each action, `[H, S, A]`, and where it was seen, `[H, S]` bool."""
    shape = problem.rewards.shape
    if demonstrations is None:
        return jnp.zeros(shape, jnp.float32), jnp.zeros(shape[:2], bool)
    states, actions = (jnp.asarray(x, jnp.int32) for x in demonstrations)
    step = jnp.broadcast_to(jnp.arange(shape[0]), states.shape)
    seen = (actions >= 0).astype(jnp.float32)
    counts = jnp.zeros(shape, jnp.float32).at[step, states, jnp.maximum(actions, 0)].add(seen)
    total = jnp.sum(counts, axis=-1, keepdims=True)
    return counts / jnp.maximum(total, 1.0), total[..., 0] > 0


def optimal_q(problem: Problem, *, gamma: float = 1.0) -> Array:
    """Q-values by backward induction, `[H, S, A]`."""

    def backward(value: Array, step: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, transition = step
        q = reward + gamma * transition @ value
        return jnp.max(q, axis=-1), q

    rewards, transitions = (jnp.asarray(x, jnp.result_type(float)) for x in problem[:2])
    return jax.lax.scan(
        backward, jnp.zeros_like(rewards[0, :, 0]), (rewards, transitions), reverse=True
    )[1]


def check(
    problem: Problem, demonstrations: Demonstrations | None = None
) -> tuple[Problem, Demonstrations | None]:
    """Raises `ValueError` unless the arrays are a problem and demonstrations of it.

    Values that are being traced are not looked at; their shapes are.  Returns both as arrays.
    """
    problem = Problem(*map(checks.as_array, problem))
    rewards, transitions, start = problem
    checks.shape(("H", "S", "A"), rewards=rewards)
    checks.at_least(1, H=rewards.shape[0], S=rewards.shape[1], A=rewards.shape[2])
    checks.finite(rewards=rewards)
    horizon, num_states, num_actions = rewards.shape
    checks.shape((*rewards.shape, num_states), transitions=transitions)
    checks.shape((num_states,), start=start)
    _check_probabilities("transitions", transitions)
    _check_probabilities("start", start)
    if demonstrations is None:
        return problem, None
    demonstrations = Demonstrations(*map(checks.as_array, demonstrations))
    states, actions = demonstrations
    checks.shape(("N", horizon), states=states, actions=actions)
    checks.shape(states.shape, actions=actions)
    checks.integers(0, num_states - 1, states=states)
    checks.integers(-1, num_actions - 1, actions=actions)
    return problem, demonstrations


def _check_probabilities(name: str, array: Array) -> None:
    """Whether the last axis holds probabilities, unless traced; comparisons with NaN fail."""
    if checks.is_traced(array):
        return
    right = (np.abs(array.sum(-1) - 1) <= 1e-4) & (array >= 0).all(-1)
    if not right.all():
        where = tuple(map(int, np.argwhere(~right)[0]))
        raise ValueError(
            f"{name}{list(where)} must be probabilities that sum to 1, but are {array[where]}"
        )
