"""Atari games in batches, by envpool: the only module that knows it.

The usual preprocessing: every action is repeated for 4 frames, an observation is the maximum of the
last two, grey, 84 x 84, one frame at a time (stacks are the replay's business).  Episodes begin
with up to 30 random no-ops and with FIRE where there is such an action; actions are never repeated
at random.  The minimal set of actions is used.
"""

import difflib
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import numpy as np

from bqfd_jax import checks, extras
from bqfd_jax.envs.guard import Guard, cells_of, start_of
from bqfd_jax.envs.host import checked_actions
from bqfd_jax.types import HostStep

_ENVPOOL = ("envpool", "atari", "Atari")
FRAME_SHAPE = (84, 84)
MAX_EPISODE_STEPS = 27_000  # half an hour of play
MAX_LANES = 10_007
_SEED_SPACING = MAX_LANES  # lanes of one pool have neighbouring seeds
_STREAMS = 4
_APART = 50_000  # seeds that have no lane in common

# What every pool here is made with.  Episodes are whole games: with `episodic_life` the emulator
# would play on between two lives, unseen, and drop those rewards.
EMULATOR = {
    "frame_skip": 4,
    "use_fire_reset": True,
    "episodic_life": False,
    "reward_clip": False,
    "repeat_action_probability": 0.0,
    "full_action_space": False,
    "img_height": FRAME_SHAPE[0],
    "img_width": FRAME_SHAPE[1],
    "gray_scale": True,
    "use_inter_area_resize": True,
}


def games() -> tuple[str, ...]:
    """Names of all games that the installed envpool has, in order."""
    extras.load(*_ENVPOOL)
    from envpool.atari import registration

    return tuple(sorted(game_name(rom) for rom in registration.atari_game_list))


def game_name(rom: str) -> str:
    """`MsPacman` of `ms_pacman`."""
    return "".join(word.capitalize() for word in rom.split("_"))


def check_game(game: str) -> None:
    """Raises `ValueError` if there is no such game; the message names those it may mean."""
    known = games()
    if game not in known:
        raise ValueError(no_such_game(game, known))


def no_such_game(game: str, known: tuple[str, ...]) -> str:
    """What to say about a game that is not known."""
    plain = {name.lower(): name for name in known}
    wanted = game.lower().removesuffix("-v5").replace("_", "").replace(" ", "")
    close = [plain[name] for name in difflib.get_close_matches(wanted, plain, n=3)]
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known)}"
    return f"there is no game {game!r}; {hint}"


def envpool_version() -> str:
    """Version of the installed envpool; raises `ImportError` if there is none."""
    try:
        return importlib.metadata.version("envpool")
    except importlib.metadata.PackageNotFoundError as error:
        raise extras.missing(*_ENVPOOL) from error


def log_reward(reward: np.ndarray) -> np.ndarray:
    """`sign(r) log(1 + |r|)`, which tames scores of any size and keeps their order."""
    return np.sign(reward) * np.log1p(np.abs(reward))


def first_lane_seed(seed: int, stream: int = 0, resumed_at: int = 0) -> int:
    """Seed of a pool's first lane; lane i has the i-th after it.

    Neighbouring seeds of runs must not give neighbouring seeds of lanes, or runs would share
    games.  No two (seed, stream) with seeds below 50,000 have a lane in common, and none of them
    has one in common with a run that was resumed.

    Args:
      seed: a run's seed, at least 0.
      stream: which of the run's pools, 0 to 3: training must not share games with evaluation.
      resumed_at: step at which the run goes on; games that it began with must not come again.
    """
    checks.at_least(0, seed=seed, resumed_at=resumed_at)
    checks.within(0, _STREAMS - 1, stream=stream)
    # envpool's seeds are 32 bits wide, the sign included.
    limit = 2**31 - _SEED_SPACING
    if resumed_at == 0:
        return (seed * _STREAMS + stream) * _SEED_SPACING % limit
    # The blocks that are left above those of the first 50,000 seeds.
    free = range(_APART * _STREAMS, limit // _SEED_SPACING)
    mixed = np.random.SeedSequence([seed, stream, resumed_at]).generate_state(1, np.uint64)[0]
    return free[int(mixed) % len(free)] * _SEED_SPACING


def _pool_seed(
    seed: int | Sequence[int], num_lanes: int, stream: int, resumed_at: int, first_lane: int
) -> int | list[int]:
    """What envpool is told: the seed of the first lane, or one for every lane."""
    if np.ndim(seed) == 0:
        return first_lane_seed(seed, stream, resumed_at) + first_lane
    firsts = [first_lane_seed(one, stream, resumed_at) for one in seed]
    return [first + lane for first in firsts for lane in range(num_lanes // len(firsts))]


class Atari:
    """Lanes of one game, side by side; a `HostEnvironment`.

    A lost life is discount 0 and no more: the game goes on, the next observation is not
    `is_first`, and stacks reach back across it.
    """

    frame_shape = FRAME_SHAPE
    frame_dtype = np.uint8
    fps = 60 // EMULATOR["frame_skip"]  # of films that are as fast as the console

    def __init__(
        self,
        game: str,
        *,
        num_lanes: int = 1,
        seed: int | Sequence[int] = 0,
        stream: int = 0,
        resumed_at: int = 0,
        first_lane: int = 0,
        log_rewards: bool = True,
        life_loss_is_terminal: bool = True,
        noop_max: int = 30,
        max_episode_steps: int = MAX_EPISODE_STEPS,
        fire_after: int = 0,
        num_threads: int = 0,
        render: bool = False,
    ):
        """Starts the emulators.

        Args:
          game: one of `games()`.
          num_lanes: games played side by side.
          seed: the run's; see `first_lane_seed`.  Of several runs that share the pool all seeds:
            the lanes of one run follow those of another, each seeded as in a pool of its own.
          stream: which of the run's pools this is.
          resumed_at: step at which the run goes on, 0 for a new one.
          first_lane: number of the first lane among the run's, if they are in several pools.
          log_rewards: `reward` is the `log_reward` of the game's; otherwise it is the game's.
          life_loss_is_terminal: losing a life is discount 0.
          noop_max: an episode begins with 1 to that many no-ops.
          max_episode_steps: agent steps after which an episode is truncated.
          fire_after: steps without a change after which a game is started by FIRE, whatever is
            asked for; 0: never.  See `guard`.
          num_threads: that step the emulators; 0 leaves it to envpool.
          render: `render` will be called.
        """
        # With noop_max 0 envpool takes the whole process down.
        checks.at_least(
            1, num_lanes=num_lanes, noop_max=noop_max, max_episode_steps=max_episode_steps
        )
        checks.at_least(0, num_threads=num_threads, fire_after=fire_after)
        checks.at_least(0, first_lane=first_lane)
        checks.at_most(MAX_LANES, num_lanes=first_lane + num_lanes)
        check_game(game)
        self.name = game
        self.num_lanes = num_lanes
        # Demonstrations must be transformed alike.
        self.transform_reward = log_reward if log_rewards else None
        self.life_loss_is_terminal = life_loss_is_terminal
        self.preprocessing = {"by": "envpool", **EMULATOR, "fire_after": fire_after}
        self._start, self._fire_after = start_of(game) if fire_after else (), fire_after
        self._guard = self._new_guard()
        self._pool = extras.load(*_ENVPOOL).make(
            f"{game}-v5",
            env_type="gymnasium",
            num_envs=num_lanes,
            seed=_pool_seed(seed, num_lanes, stream, resumed_at, first_lane),
            stack_num=1,
            noop_max=noop_max,
            max_episode_steps=max_episode_steps,
            num_threads=num_threads,
            **({"render_mode": "rgb_array"} if render else {}),
            **EMULATOR,
        )
        self.num_actions = int(self._pool.action_space.n)
        self._previous: HostStep | None = None
        self._memory: np.ndarray | None = None  # [L, 128] uint8, the consoles' after that step

    def reset(self) -> HostStep:
        """Begins a new episode in every lane."""
        frame, info = self._pool.reset()
        nothing = np.zeros(self.num_lanes, np.float32)
        none = np.zeros(self.num_lanes, np.int32)
        no = np.zeros(self.num_lanes, bool)
        return self._show(frame, nothing, ended=no, over=no, is_first=~no, info=info, action=none)

    def begin_after(self, actions: np.ndarray) -> HostStep:
        """Plays actions `[T]` from a reset, in a single lane, and begins an episode there.

        Nothing is done in their place: a demonstration is what it is.
        """
        self._guard = None
        step = self.reset()
        for action in actions:
            step = self.step(action[None])
        nothing = np.zeros(1, np.float32)
        self._guard = self._new_guard()
        self._previous = step._replace(
            reward=nothing,
            discount=nothing,
            score_reward=nothing,
            is_first=np.ones(1, bool),
            action=None if self._guard is None else np.zeros(1, np.int32),
        )
        if self._guard is not None:
            self._guard.see(self._previous, self._memory)
        return self._previous

    def _new_guard(self) -> Guard | None:
        if not self._start:
            return None
        return Guard(self._start, self.num_lanes, self._fire_after, cells_of(self.name))

    def step(self, actions: np.ndarray) -> HostStep:
        """Takes one action per lane, `[L]` integers; ignored in lanes whose episode has ended."""
        if self._previous is None:
            raise RuntimeError("reset must be called before step")
        # envpool would read whatever lies there.
        actions = checked_actions(actions, self.name, self.num_lanes, self.num_actions)
        if self._guard is not None:
            actions = self._guard.replace(actions)
        frame, _, terminated, truncated, info = self._pool.step(actions.astype(np.int32))
        return self._show(
            frame,
            info["reward"],
            ended=terminated | truncated,
            # A game that is over in the very step of the time limit is called truncated only.
            over=terminated | (info["terminated"] != 0),
            # envpool resets in the step after an episode's last.
            is_first=self._previous.is_last,
            info=info,
            action=actions,
        )

    def render(self) -> np.ndarray:
        """The first lane's screen as people see it, `[210, 160, 3]` uint8."""
        return np.array(self._pool.render()[0])

    def _show(
        self,
        frame: np.ndarray,  # [L, 1, 84, 84]
        score_reward: np.ndarray,  # [L]
        *,
        ended: np.ndarray,  # [L] bool, no action will be taken here
        over: np.ndarray,  # [L] bool, the game is over
        is_first: np.ndarray,  # [L] bool
        info: dict[str, Any],
        action: np.ndarray,  # [L], what led here
    ) -> HostStep:
        lives = info["lives"].astype(np.int32)
        ends_value = over | is_first
        if self.life_loss_is_terminal and self._previous is not None:
            ends_value |= lives < self._previous.lives
        score_reward = np.where(is_first, 0, score_reward).astype(np.float32)
        transform = self.transform_reward
        self._previous = HostStep(
            frame=frame[:, -1],
            reward=score_reward if transform is None else transform(score_reward),
            discount=np.where(ends_value, 0, 1).astype(np.float32),
            is_first=is_first,
            is_last=ended,
            score_reward=score_reward,
            lives=lives,
            action=None if self._guard is None else action,
        )
        self._memory = info["ram"]
        if self._guard is not None:
            self._guard.see(self._previous, self._memory)
        return self._previous
