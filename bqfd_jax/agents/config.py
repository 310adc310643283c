"""What can be set in an agent; every count is in agent steps or in updates, and says which."""

import dataclasses
from typing import Any, ClassVar, Literal, get_args

from bqfd_jax import checks, schedules

Exploration = Literal["epsilon", "ez"]
Weight = Literal["visits", "ensemble", "smaller"]


@dataclasses.dataclass(frozen=True)
class AgentConfig:
    """What all agents share."""

    learning_rate: float = 5e-4
    """Adam's step size."""
    adam_epsilon: float = 1e-8
    """Adam's epsilon; 1.5e-4 is common for DQN on Atari."""
    max_gradient_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    batch_size: int = 32
    """Transitions per update."""
    gamma: float = 0.99
    """Discount per agent step."""
    target_period: int = 1
    """Updates between two moves of the target network."""
    target_step_size: float = 0.05
    """How far it moves towards the online network each time; 1 copies it."""
    one_step_weight: float = 1.0
    """Weight of the 1-step TD loss."""
    n_step_weight: float = 0.0
    """Weight of the n-step TD loss."""
    n_step: int = 10
    """n of the n-step TD loss, in agent steps."""
    n_step_final: int = 0
    """What n falls to, by the same factor in every update; 0: it stays as it is."""
    n_step_updates: int = 10_000
    """Updates until it is there, from the beginning and from every reset."""
    huber_delta: float = 0.0
    """Where the TD loss turns from squared to linear; 0 keeps it squared everywhere."""
    priority_exponent: float = 0.4
    """PER's alpha: 0 draws uniformly, 1 in proportion to the TD error."""
    importance_exponent: float = 0.4
    """PER's beta: how far importance weights undo the prioritization."""
    priority_epsilon: float = 1e-3
    """Added to the TD error of every row to make its priority."""
    exploration: Exploration = "epsilon"
    """Random actions last one step (epsilon) or a zeta-distributed while (ez)."""
    epsilon_steps: tuple[int, ...] = (0,)
    """Agent steps at which epsilon takes the values below; straight lines between them."""
    epsilon_values: tuple[float, ...] = (0.0,)
    """Probability of a random action at those steps, and after the last."""
    ez_exponent: float = 2.0
    """ez-greedy: lengths n of random actions follow n ** -exponent."""
    ez_max_repeat: int = 100
    """ez-greedy: longest random action, in agent steps."""
    pretrain_updates: int = 0
    """Updates on demonstrations alone before the first agent step."""
    act_with_target: bool = False
    """The target network acts, and not the online one: an average acts more steadily."""
    squash_values: bool = False
    """Learn h(Q), h(x) = sign(x) (sqrt(|x| + 1) - 1) + x / 100, instead of Q: large values come
    closer to small ones, so that one learning rate and one eta suit more games."""
    reset_period: int = 0
    """Updates, pre-training apart, after which the network is made partly anew, as long as half as
    many are left; 0: never."""
    reset_share: float = 0.5
    """How far its torso is then moved to a new one; its head is new altogether."""

    def replay_options(self) -> dict[str, Any]:
        """What a replay must know of the agent: `make_replay(..., **config.replay_options())`.

        Where the n-step loss has no weight, rows need not wait for their n-step successor.
        """
        return {
            "n_step": self.n_step if self.n_step_weight > 0 else 1,
            "path_steps": 1,
            "priority_exponent": self.priority_exponent,
        }

    @property
    def members(self) -> dict[str, Any] | None:
        """What `networks.as_ensemble` makes an ensemble of; None: the agent has one network."""
        return None

    def __post_init__(self) -> None:
        checks.at_least(1, **self._values("batch_size", "target_period", "n_step", "ez_max_repeat"))
        # With an epsilon of 0 a row whose TD error is once zero would never be drawn again.
        checks.above(0, **self._values("priority_epsilon", "ez_exponent"))
        checks.above(0, **self._values("learning_rate", "adam_epsilon", "max_gradient_norm"))
        checks.within(0, 1, **self._values("gamma", "priority_exponent", "importance_exponent"))
        checks.above_up_to(0, 1, target_step_size=self.target_step_size)
        checks.at_least(0, **self._values("huber_delta", "pretrain_updates", "reset_period"))
        checks.within(0, 1, reset_share=self.reset_share)
        checks.at_least(1, n_step_updates=self.n_step_updates)
        final, expected = self.n_step_final, f"between 0 and n_step ({self.n_step})"
        checks.require(0 <= final <= self.n_step, "n_step_final", final, expected)
        checks.at_least(0, **self._values("one_step_weight", "n_step_weight"))
        if self.one_step_weight == self.n_step_weight == 0:
            raise ValueError("one_step_weight and n_step_weight are both 0; one must be positive")
        checks.one_of(get_args(Exploration), exploration=self.exploration)
        checks.within(0, 1, epsilon_values=self.epsilon_values)
        schedules.check(**self._values("epsilon_steps", "epsilon_values"))

    @property
    def least_n_step(self) -> int:
        """The smallest n that there will be."""
        return self.n_step_final or self.n_step

    def _values(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class PddDqnConfig(AgentConfig):
    """Prioritized dueling double DQN; demonstrations are rows like any other."""


@dataclasses.dataclass(frozen=True)
class DqfdConfig(AgentConfig):
    """Deep Q-learning from demonstrations."""

    n_step_weight: float = 1.0
    margin: float = 0.8
    """By how much the demonstrated action should lead."""
    margin_weight: float = 1.0
    """Weight of the margin loss."""
    l2_weight: float = 1e-5
    """Weight of the sum of squared parameters."""
    demo_priority_bonus: float = 1.0
    """Added to the TD error of a demonstration row to make its priority."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(0, **self._values("margin", "margin_weight", "l2_weight"))
        checks.above(0, demo_priority_bonus=self.demo_priority_bonus)


@dataclasses.dataclass(frozen=True)
class BqfdConfig(AgentConfig):
    """Bayesian Q-learning from demonstrations."""

    n_step_weight: float = 1.0
    eta: float = 3.0
    """How sharply the expert is taken to prefer better actions."""
    variance: float = 0.6
    """Prior variance of a Q-value: how much the expert is listened to at first."""
    in_steps: bool = False
    """Count values by what a demonstrated step earns: eta is divided by it and the variance
    multiplied by its square, so that one eta and one variance suit rewards of any size (returns
    below 1 count as 1). It is measured before the first update (`Agent.prepare`), and 1 until
    then."""
    beta: float = 4.0
    """Pseudo-count of the prior: how many visits the expert is listened to."""
    visits_per_draw: float = 1.0
    """Visits that a draw of a demonstration row counts as. With more updates per step rows are
    drawn more often; with as much less here, the expert is listened to for as many steps."""
    noise_ratio: float = 4.0
    """Variance of a TD target as a multiple of the prior's."""
    zeta: float = 0.2
    """Power of the off-policy weight of demonstration samples; 0 weighs all alike."""
    weight_from_target: bool = True
    """Take the off-policy weight's probabilities from the target network, not the online one."""
    stop_correction_gradient: bool = True
    """Treat the correction as the constant it is in a target."""
    correct_all_actions: bool = False
    """Correct the values of the actions that the expert did not take, too (BUILD_NOTES, 42)."""
    correction_steps: int = 1
    """Steps of the n-step target that hold a correction."""
    n_step_zeta: float = 0.1
    """Power of the n-step loss's off-policy weight if `correction_steps` exceeds 1."""
    demo_priority_steps: tuple[int, ...] = (0,)
    """Agent steps at which the factor takes the values below; straight lines between them."""
    demo_priority_factors: tuple[float, ...] = (1.0,)
    """Factor of a demonstration row's priority at those steps, and after the last."""
    weight: Weight = "visits"
    """What the expert's weight is: the paper's function of how often a row was replayed (visits),
    how much the members of an ensemble disagree about the row's value (ensemble), or the smaller
    of the two (smaller)."""
    ensemble_size: int = 1
    """Members; with more than one, each episode follows one of them."""
    mask_probability: float = 0.5
    """Share of its own rows that each member learns from; demonstrations are shown to all."""
    prior_scale: float = 1.2
    """How much members differ at first, as a multiple of what a demonstrated step earns."""
    learn_eta: bool = False
    """Learn an eta of each demonstration, by a tenth of its rows that corrects nothing."""
    eta_step_size: float = 0.05
    """Step size of log eta."""
    eta_bounds: tuple[float, float] = (0.01, 30.0)
    """Least and greatest eta that can be learnt, counted as eta is."""

    @property
    def members(self) -> dict[str, Any] | None:
        """An ensemble with priors of a scale that the demonstrations set."""
        size = self.ensemble_size
        return {"size": size, "prior": "scaled"} if size > 1 else None

    @property
    def keeps_trust(self) -> bool:
        """Whether it remembers something of each demonstration, see `agents.trust`."""
        return self.ensemble_size > 1 or self.learn_eta or self.in_steps

    def replay_options(self) -> dict[str, Any]:
        """As for all agents, with the path that n-step corrections are made along."""
        path_steps = self.correction_steps if self.n_step_weight > 0 else 1
        return super().replay_options() | {"path_steps": path_steps}

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(0, **self._values("eta", "variance", "noise_ratio", "zeta", "n_step_zeta"))
        checks.above(0, **self._values("beta", "visits_per_draw", "demo_priority_factors"))
        schedules.check(**self._values("demo_priority_steps", "demo_priority_factors"))
        name = "n_step_final" if self.n_step_final else "n_step"
        checks.require(
            1 <= self.correction_steps <= self.least_n_step,
            "correction_steps",
            self.correction_steps,
            f"between 1 and {name} ({self.least_n_step})",
        )
        checks.one_of(get_args(Weight), weight=self.weight)
        least = 1 if self.weight == "visits" else 2
        checks.at_least(least, ensemble_size=self.ensemble_size)
        checks.above_up_to(0, 1, mask_probability=self.mask_probability)
        checks.at_least(0, **self._values("prior_scale", "eta_step_size"))
        low, high = self.eta_bounds
        checks.require(0 < low <= high, "eta_bounds", self.eta_bounds, "0 < least <= greatest")
        if self.learn_eta:
            # It begins there; from elsewhere the first update would throw it onto a bound.
            checks.within(low, high, eta=self.eta)
        if self.correct_all_actions:
            steps, stops = self.correction_steps, self.stop_correction_gradient
            checks.require(steps == 1, "correction_steps", steps, "1 with correct_all_actions")
            checks.require(
                stops, "stop_correction_gradient", stops, "True with correct_all_actions"
            )


@dataclasses.dataclass(frozen=True)
class EnsembleBqfdConfig(BqfdConfig):
    """BQfD whose weight is what the members of an ensemble disagree about."""

    weight: Weight = "ensemble"
    ensemble_size: int = 6


@dataclasses.dataclass(frozen=True)
class BootstrappedConfig(AgentConfig):
    """Bootstrapped DQN: an episode follows one of many networks."""

    ensemble_size: int = 20
    """Networks."""
    mask_probability: float = 0.5
    """Share of the rows that each network learns from."""
    prior_scale: float = 0.0
    """Scale of a fixed random network added to each; bsuite uses 5."""

    @property
    def members(self) -> dict[str, Any]:
        """Whole networks with priors of a fixed scale."""
        return {"size": self.ensemble_size, "prior_scale": self.prior_scale}

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least(1, ensemble_size=self.ensemble_size)
        checks.above_up_to(0, 1, mask_probability=self.mask_probability)
        checks.at_least(0, prior_scale=self.prior_scale)


@dataclasses.dataclass(frozen=True)
class CloneConfig:
    """Behavioural cloning: it learns what the expert does, from demonstrations alone.

    There are no rewards, no targets and no exploration, so it has none of their options.
    """

    # What a replay, a policy and whoever acts ask of every agent.
    members: ClassVar[None] = None
    gamma: ClassVar[float] = 1.0
    n_step: ClassVar[int] = 1
    n_step_weight: ClassVar[float] = 0.0
    reset_period: ClassVar[int] = 0
    epsilon_values: ClassVar[tuple[float, ...]] = (0.0,)

    updates: int = 4_000
    """Updates at most."""
    patience: int = 1_000
    """Updates without progress on the held-out rows after which it stops."""
    check_period: int = 100
    """Updates between two looks at the held-out rows; the network that did best there is kept."""
    held_out_every: int = 7
    """One episode in so many is held out; of fewer episodes, that part of all rows at the end. 0
    holds out nothing: it makes all of its updates, and the last network is played."""
    batch_size: int = 32
    """Rows per update."""
    learning_rate: float = 1e-3
    """Adam's step size; it falls to a twentieth along a cosine."""
    weight_decay: float = 0.01
    """AdamW's weight decay, as a multiple of the step size."""
    max_gradient_norm: float = 10.0
    """Gradients longer than this are shortened to it."""
    shift: int = 4
    """Images are shifted at random by up to so many 84ths of their sides; 0 for no shifts."""

    @property
    def pretrain_updates(self) -> int:
        """All of its updates come before the first agent step."""
        return self.updates

    def replay_options(self) -> dict[str, Any]:
        """What a replay must know of the agent, see `AgentConfig.replay_options`."""
        return {"n_step": 1, "path_steps": 1, "priority_exponent": 0.0}

    def __post_init__(self) -> None:
        values = dataclasses.asdict(self)
        whole = ("updates", "patience", "check_period", "batch_size")
        checks.at_least(1, **{name: values[name] for name in whole})
        expected = f"at least check_period ({self.check_period}), or it stops before a second look"
        checks.require(self.patience >= self.check_period, "patience", self.patience, expected)
        every = self.held_out_every
        checks.require(every == 0 or every >= 2, "held_out_every", every, "0 or at least 2")
        checks.above(0, learning_rate=self.learning_rate, max_gradient_norm=self.max_gradient_norm)
        checks.at_least(0, weight_decay=self.weight_decay)
        checks.within(0, 42, shift=self.shift)


AnyAgentConfig = AgentConfig | CloneConfig
