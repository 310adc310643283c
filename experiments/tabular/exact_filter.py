"""Algorithm 1 beside Algorithm 2: exact variances, and how far the filter is from the minimum."""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from bqfd_jax import gekf, posterior

from .config import Config
from .tables import deep_sea_problem


def exact_variances(config: Config, visits: int) -> tuple[float, np.ndarray]:
    """The weight `w_n`, and the exact variances of the expert's actions on its path, `[N]`.

    The filter's noise is `w_n`, the variance that Algorithm 2 takes a value to have after n visits
    if nothing else were known.  Exactly, a value also inherits the uncertainty of those that follow
    it, and the expert's choice takes some away.
    """
    size = config.filter_size
    problem = deep_sea_problem(size, "treasure")
    next_states = problem.transitions.argmax(-1)
    expert = np.full((size, size), gekf.NO_EXPERT)
    expert[np.arange(size), np.arange(size)] = 1
    weight = float(
        posterior.visit_weight(jnp.float32(visits), beta=config.beta, variance=config.variance)
    )
    beliefs = gekf.backward_filter(
        problem.rewards, next_states, expert, eta=config.eta, gamma=config.gamma, noise=weight
    )
    variances = np.diagonal(beliefs.covariance, axis1=1, axis2=2).reshape(size, size, 2)
    return weight, variances[np.arange(size), np.arange(size), 1]


def filter_error() -> dict[str, float]:
    """How far the filter ends from a minimum of the whole objective, on 20 small random problems.

    Differences are the largest among the Q-values of the first step, medians over the problems;
    3 steps, 3 states, 2 actions, an expert in about two of three states, eta 2, noise 0.7, gamma
    0.9.
    The minimum is the one that a general minimiser finds from where the filter ended.
    """
    options = {"eta": 2.0, "gamma": 0.9, "noise": 0.7}
    shape = (3, 3, 2)

    @jax.jit
    def filtered(*problem: jax.Array) -> jax.Array:
        belief = gekf.backward_filter(*problem, correction="full", iterations=20, **options)
        return belief.mean

    @jax.jit
    @jax.value_and_grad
    def objective(q: jax.Array, *problem: jax.Array) -> jax.Array:
        return gekf.objective(q.reshape(shape), *problem, **options)

    errors, sizes, failures = [], [], 0
    with jax.enable_x64(True):
        for seed in range(20):
            random = np.random.default_rng(seed)
            rewards = random.normal(size=shape)
            next_states = random.integers(0, 3, shape)
            expert = random.integers(0, 2, (3, 3))
            expert[random.uniform(size=expert.shape) > 2 / 3] = gekf.NO_EXPERT
            found = filtered(rewards, next_states, expert)
            alone = filtered(rewards, next_states, np.full_like(expert, gekf.NO_EXPERT))
            best = scipy.optimize.minimize(
                objective,
                np.asarray(found).reshape(-1),
                args=(rewards, next_states, expert),
                jac=True,
                method="BFGS",
            )
            failures += not best.success
            best = best.x.reshape(shape)
            errors.append(np.abs(found[0] - best[0]).max())
            sizes.append(np.abs(alone[0] - best[0]).max())
    return {
        "problems": len(errors),
        "minimiser_failed": failures,
        "median_error": float(np.median(errors)),
        "largest_error": float(np.max(errors)),
        "median_size_of_the_correction": float(np.median(sizes)),
    }
