"""The planner: its steps worked out by hand, whole plans played back, and the command."""

import dataclasses
import signal
import types

import numpy as np
import pytest

from bqfd_jax import demos
from bqfd_jax.demos.making import hints, planning, search, shaping
from bqfd_jax.envs import ale, atari
from bqfd_jax.runs.errors import RunError, Stopped, UsageError
from experiments.demos import plan as demos_plan
from experiments.demos.plan import PlanConfig

PLAIN = shaping.Shaping()
HOW = search.Settings(
    population=4,
    compare_probability=1.0,
    retries=0,
    generation_steps=4,
    change_probability=0.5,
    rollback_generations=3,
)


class Corridor:
    """A game of two actions: 1 pays a point; a life is lost at chosen times, or by chosen actions.

    Args:
      lives: at the start.
      deadly: `{time: action}` that costs a life then; an action of None stands for both.
      length: steps after which the game is over whatever happens.
    """

    num_actions = 2

    def __init__(self, *, lives=3, deadly=None, length=10**6):
        self._start = (0, lives)
        self._deadly = deadly or {}
        self._length = length

    def reset(self):
        self._time, self._lives = self._start
        return self._lives

    def step(self, action):
        if self._deadly.get(self._time, "no action") in (action, None):
            self._lives -= 1
        self._time += 1
        dead = self._start[1] > 0 and self._lives == 0
        return ale.AleStep(float(action), self._lives, dead or self._time >= self._length)

    def ram(self):
        return np.array([self._time % 256], np.uint8)

    def save_state(self):
        return self._time, self._lives

    def load_state(self, state):
        self._time, self._lives = state


def plan_corridor(corridor, *, steps=40, seed=0, shape=PLAIN, **changes):
    how = dataclasses.replace(HOW, **changes)
    return search.plan_game(
        corridor, how, shape=shape, steps=steps, rng=np.random.default_rng(seed)
    )


def candidate(score, *, lives=0, **fields):
    return search.Candidate(state=None, ram=None, lives=lives, score=score, **fields)


class Scripted:
    """A generator that draws what it was told."""

    def __init__(self, order, draws):
        self.permutation = lambda n: np.array(order)
        self.random = lambda n: np.array(draws)


# --- One generation ---


def test_the_strictly_worse_of_a_pair_becomes_a_copy_of_the_better():
    population = [candidate(score) for score in (7, 1, 5, 9, 3, 2, 4)]
    judge = search.Judge(has_lives=False)
    # Pairs 4-0, 1-3 and 2-5; the last is not compared, and 6 is left over.
    rng = Scripted(order=[4, 1, 2, 0, 3, 5, 6], draws=[0.1, 0.49, 0.5])
    after = search.compare(population, judge, 0.5, rng)
    assert [found.score for found in after] == [7, 9, 5, 9, 7, 2, 4]
    assert after[4] is population[0]
    assert [found.score for found in population] == [7, 1, 5, 9, 3, 2, 4]


def test_equals_stay_what_they_are():
    population = [candidate(3, action=0), candidate(1, credit=1.5, potential=0.5, action=1)]
    judge = search.Judge(has_lives=False)
    after = search.compare(population, judge, 1.0, Scripted([0, 1], [0.0]))
    assert [found.action for found in after] == [0, 1]


def test_a_life_is_worth_thirty_rewards():
    judge = search.Judge(has_lives=True)
    assert judge.value(candidate(5, lives=2, credit=0.5, potential=-1)) == 5 + 2 + 0.5 - 1
    judge.see([2, 0, -4])
    assert judge.life_worth == 30 * 3
    assert judge.value(candidate(5, lives=2)) == 5 + 2 * 90
    # Over is worse than the last life, which some games call 0.
    assert judge.value(candidate(5, lives=0, is_over=True)) == 5 - 90
    timed = search.Judge(has_lives=False)
    timed.see([10])
    assert timed.value(candidate(5, is_over=True)) == 5


def test_actions_persist_until_they_are_replaced():
    corridor = Corridor()
    corridor.reset()
    start = search.Candidate(corridor.save_state(), corridor.ram(), lives=3, action=1)
    rng = types.SimpleNamespace(
        random=lambda shape: np.array([[0.9, 0.1, 0.9, 0.9], [0.9, 0.9, 0.9, 0.1]]),
        integers=lambda high, size: np.array([[1, 0, 1, 1], [0, 0, 0, 0]]),
    )
    judge = search.Judge(has_lives=True)
    after, taken = search.advance([start, start], corridor, HOW, PLAIN, judge, 4, rng)
    assert [found.path for found in after] == [(None, [1, 0, 0, 0]), (None, [1, 1, 1, 0])]
    assert [(found.score, found.steps, found.action) for found in after] == [(1, 4, 0), (3, 4, 0)]
    assert taken == 8
    assert judge.life_worth == 30


# --- Whole games ---


def test_selection_finds_the_paying_action():
    game = plan_corridor(Corridor(), steps=42, population=16)
    assert len(game.actions) == 42
    assert game.actions.dtype == np.uint8
    assert game.score == game.actions.sum() >= 36
    assert not game.is_over
    assert game.simulated == 16 * 42
    # Random play gets half.
    clumsy = plan_corridor(Corridor(), steps=42, population=2, compare_probability=0.0)
    assert clumsy.score < 30


def test_a_game_ends_for_all_when_its_time_is_up():
    game = plan_corridor(Corridor(lives=0, length=10), steps=40)
    assert (len(game.actions), game.is_over, game.simulated) == (10, True, 40)


def test_a_life_is_lost_only_after_all_retries():
    # Nothing helps at step 13: the loss is tried 2 times more, then taken.
    corridor = Corridor(deadly={13: None})
    game = plan_corridor(corridor, retries=2)
    assert (game.retries, len(game.actions), game.is_over) == (2, 40, False)
    # Generation 3 sees the loss, and 2 generations were before it: 3 are played again.
    assert game.simulated == 4 * (40 + 2 * 3 * 4)
    assert plan_corridor(corridor, retries=0).retries == 0


def test_retries_go_back_far_enough_to_be_saved():
    # Whoever plays 1 then dies, and all do: it pays.
    corridor = Corridor(deadly={time: 1 for time in range(20, 28)})
    losses = {}
    for retries in (0, 50):
        game = plan_corridor(corridor, retries=retries, population=2, change_probability=0.3)
        losses[retries] = int(game.actions[20:28].sum())
    assert losses[0] > 0
    assert losses[50] == 0


def test_the_last_life_ends_the_game():
    game = plan_corridor(Corridor(lives=1, deadly={13: None}), retries=1)
    assert (len(game.actions), game.is_over, game.retries) == (14, True, 1)


def test_shaping_decides_between_equal_scores():
    class Unpaid(Corridor):
        def step(self, action):
            self.last = action
            return super().step(action)._replace(reward=0.0)

    wants_zero = shaping.Shaping(potential=lambda emulator: -float(emulator.last))
    game = plan_corridor(Unpaid(), shape=wants_zero, population=16, generation_steps=1)
    assert game.actions.sum() < 10
    # What is gained stays: an action's credit does not go when its potential would.
    counts = shaping.Shaping(gain=lambda before, after: float(after[0]) - float(before[0]))
    seen = []
    search.plan_game(
        Corridor(),
        HOW,
        shape=counts,
        steps=20,
        rng=np.random.default_rng(0),
        on_generation=lambda best, simulated: bool(seen.append(best.credit)),
    )
    assert seen == [4, 8, 12, 16, 20]


# --- Settings ---


def test_skill_means_more_of_everything():
    by_skill = [
        planning.settings("Pong", method="search", skill=skill) for skill in np.linspace(0, 1, 11)
    ]
    for field in ("population", "compare_probability", "retries"):
        values = [getattr(how, field) for how in by_skill]
        assert values == sorted(values)
        assert values[0] < values[-1]
    assert by_skill[0].population == 2
    assert all(0 < how.compare_probability <= 1 for how in by_skill)
    # The pace is the game's, not the skill's.
    assert (
        planning.settings("Breakout", method="search").generation_steps
        < by_skill[0].generation_steps
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"skill": -0.1}, r"skill is -0\.1, but must be in \[0, 1\]"),
        ({"skill": 1.01}, "skill is"),
        ({"skill": float("nan")}, "skill is nan"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 27_001}, "steps is 27001"),
        ({"seed": -1}, "seed is -1"),
        ({"episodes": 0}, "episodes is 0"),
        ({"game": "Brakout"}, "did you mean Breakout"),
        ({"method": "luck"}, "method is 'luck', but must be"),
    ],
)
def test_what_cannot_be_planned_is_said(changes, message):
    with pytest.raises(ValueError, match=message):
        planning.plan(**{"game": "Pong"} | changes)
    with pytest.raises(UsageError, match=message):
        demos_plan.plan(PlanConfig(**{"game": "Pong"} | changes))


def test_hints_are_only_for_games_there_are():
    for game in shaping.TABLE:
        assert game in atari.games()
        emulator = ale.Ale(game)
        emulator.step(0)
        assert np.isfinite(shaping.of(game).potential(emulator))


# --- Hints ---


def memory(**values):
    """An emulator of which only some bytes are known, by `_address=value`."""
    ram = np.zeros(128, np.uint8)
    for address, value in values.items():
        ram[int(address[1:])] = value
    return types.SimpleNamespace(ram=lambda: ram)


def test_breakout_wants_the_paddle_under_the_ball():
    value = shaping.of("Breakout").potential
    under, beside = memory(_99=120, _101=90, _72=112), memory(_99=120, _101=90, _72=152)
    assert (value(under), value(beside)) == (0, -0.2)
    assert value(memory(_99=120, _101=0, _72=112)) == -1


def test_seaquest_wants_divers_and_then_air():
    value = shaping.of("Seaquest").potential
    # All aboard, or short of air: up from 80 below the surface.
    assert value(memory(_62=6, _102=50, _97=93)) == -80
    assert value(memory(_62=3, _102=6, _97=93)) == -80 - 4
    # The deepest lane's diver is 40 + 15 away, the next one's 60 + 9; the third has gone.
    lanes = {"_71": 90, "_72": 110, "_73": 50, "_113": 1, "_114": 1, "_115": 255}
    assert value(memory(_62=3, _102=50, _70=50, _97=93, **lanes)) == pytest.approx(0.3 * 145)
    assert value(memory(_62=3, _102=50, _70=50, _97=93)) == 0
    # Surfacing without a diver is deadly, however little air there is.
    assert value(memory(_62=0, _102=6, _70=50, _97=93, **lanes)) == pytest.approx(0.3 * 145)
    gain = shaping.of("Seaquest").gain
    some, more = memory(_62=2).ram(), memory(_62=3).ram()
    some_with_air = memory(_62=2, _102=30).ram()
    # Delivering, with no air left, is no loss; a diver who pays for air is.
    assert gain(some, more) == -gain(more, some_with_air) > 0
    assert gain(more, some) == gain(more, more) == 0


def test_the_way_to_the_nearest_dot_goes_around_walls_and_through_the_tunnel():
    drawn = ["#######", "#.#..o#", "#.#.###", "......."]
    wall = np.array([[square == "#" for square in row] for row in drawn])
    dot = np.array([[square == "o" for square in row] for row in drawn])
    # Down to the row below, right, up and right again.
    assert shaping.way(wall, dot, (1, 1)) == 2 + 2 + 2 + 2
    # The lower row's ends are neighbours.
    assert shaping.way(wall, dot, (3, 0)) == 3 + 2 + 2
    dot[1, 5], dot[3, 6] = False, True
    assert shaping.way(wall, dot, (3, 0)) == 1
    assert shaping.way(wall, np.zeros_like(dot), (3, 0)) == 0


def test_ms_pacman_sees_the_dots_around_her():
    emulator = ale.Ale("MsPacman")
    for action in demos.load_named("MsPacman", "search").actions[:100]:
        emulator.step(int(action))
    value = shaping.of("MsPacman").potential
    # A dot is never far when few are eaten.
    assert -1.5 < value(emulator) <= 0
    # On a screen without dots there is nowhere to go.
    empty = types.SimpleNamespace(ram=emulator.ram, screen=lambda: emulator.screen() * 0)
    assert value(empty) == 0


# --- Demonstrations ---

STEPS = 500


def searched(game, **options):
    """What the quick and clumsy search makes."""
    return planning.plan(game, method="search", **{"skill": 0} | options)


@pytest.fixture(scope="module")
def clumsy():
    """Games of Breakout so clumsy that several fit, the last one cut."""
    seen = []
    return searched("Breakout", steps=STEPS, seed=1, on_progress=seen.append), seen


def test_a_plan_plays_back_in_both_emulators(clumsy):
    demonstration, _ = clumsy
    lengths = demonstration.episode_lengths
    assert len(lengths) > 1
    assert lengths.sum() == STEPS
    assert demonstration.game_over == (*[True] * (len(lengths) - 1), False)
    emulator = ale.Ale("Breakout")
    for number, actions in enumerate(np.split(demonstration.actions, np.cumsum(lengths)[:-1])):
        emulator.reset()
        steps = [emulator.step(int(action)) for action in actions]
        assert sum(step.reward for step in steps) == demonstration.scores[number]
        assert [step.is_over for step in steps[:-1]] == [False] * (len(steps) - 1)
        assert steps[-1].is_over == demonstration.game_over[number]
    # It checks scores and ends.
    rows = demos.play(demonstration, gamma=0.9)
    assert len(rows.action) == demonstration.num_rows
    shipped = demos.load_named("Breakout", "search")
    assert demonstration.configuration == shipped.configuration
    assert demonstration.action_meaning == shipped.action_meaning


def test_progress_tells_of_all_episodes(clumsy):
    demonstration, seen = clumsy
    assert seen[-1].steps == STEPS
    assert seen[-1].episode == len(demonstration.scores) - 1
    assert seen[-1].scores[:-1] == demonstration.scores[:-1]
    assert seen[-1].simulated == sum(demonstration.origin["simulated"])
    assert STEPS < seen[-1].simulated <= 2 * STEPS
    assert [progress.simulated for progress in seen] == sorted(p.simulated for p in seen)
    episodes = [progress.episode for progress in seen]
    assert episodes == sorted(episodes)


def test_a_seed_makes_the_same_list_and_another_another(clumsy):
    demonstration, _ = clumsy
    first = int(demonstration.episode_lengths[0])
    # The first game does not depend on what comes after it.
    again = searched("Breakout", steps=STEPS, seed=1, episodes=1)
    assert again.episode_lengths.tolist() == [first]
    np.testing.assert_array_equal(again.actions, demonstration.actions[:first])
    same, other = (searched("Freeway", skill=0.05, steps=60, seed=seed) for seed in (3, 4))
    repeated = searched("Freeway", skill=0.05, steps=60, seed=3)
    np.testing.assert_array_equal(same.actions, repeated.actions)
    assert same.checksum == repeated.checksum
    assert (same.actions != other.actions).any()


def test_a_handful_of_steps_is_no_game(clumsy):
    first = int(clumsy[0].episode_lengths[0])
    # A tenth of the steps would be left for a second game, or just less than that.
    for steps, episodes in ((first * 10 // 9 + 2, 2), (first * 10 // 9 - 2, 1)):
        found = searched("Breakout", steps=steps, seed=1).episode_lengths
        assert (len(found), found[0]) == (episodes, first)


def test_the_planner_stops_when_asked_to():
    demonstration = searched(
        "Freeway", steps=500, on_progress=lambda progress: progress.steps >= 30
    )
    assert demonstration.episode_lengths.tolist() == [32]
    assert demonstration.game_over == (False,)
    assert demonstration.origin["stopped_early"]
    demos.play(demonstration, gamma=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("game", ["Assault", "Pong"])
@pytest.mark.parametrize(("method", "skill"), [("play", 1), ("search", 0.2)])
def test_a_game_without_hints_is_played_better_than_at_random(game, method, skill):
    assert game not in shaping.TABLE
    assert game not in hints.TABLE
    planned = planning.plan(game, method=method, skill=skill, steps=1000, episodes=1).scores[0]
    emulator = ale.Ale(game)
    rng = np.random.default_rng(0)
    random_scores = []
    for _ in range(5):
        emulator.reset()
        score = 0.0
        for _ in range(1000):
            step = emulator.step(int(rng.integers(emulator.num_actions)))
            score += step.reward
            if step.is_over:
                break
        random_scores.append(score)
    assert planned > max(random_scores)


# --- The command ---


def test_the_command_writes_a_demonstration_that_plays_back(tmp_path, capsys):
    out = tmp_path / "new" / "mine.npz"
    config = PlanConfig("Freeway", method="search", skill=0, steps=60, seed=5, out=out)
    demos_plan.plan(config)
    demonstration = demos.load(out, game="Freeway")
    assert demonstration.envpool == atari.envpool_version()
    assert len(demonstration.frame_hash) == 64
    demos.play(demonstration, gamma=0.9)
    assert demonstration.origin["planner"]["seed"] == 5
    shown = capsys.readouterr().out
    for told in ("2 copies", "120 simulated steps", "cut off", "same scores", str(out)):
        assert told in shown
    assert [file.name for file in out.parent.iterdir()] == ["mine.npz"]

    with pytest.raises(UsageError, match="exists already; add --overwrite"):
        demos_plan.plan(dataclasses.replace(config, seed=6))
    assert demos.load(out).checksum == demonstration.checksum
    demos_plan.plan(dataclasses.replace(config, seed=6, overwrite=True))
    assert demos.load(out).origin["planner"]["seed"] == 6


@pytest.mark.parametrize(
    ("out", "message"),
    [("folder", "end in .npz"), ("folder.npz", "is a folder"), ("file/mine.npz", "cannot write")],
)
def test_files_that_cannot_be_written_are_refused_at_once(tmp_path, out, message):
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=message):
        demos_plan.plan(PlanConfig("Freeway", out=tmp_path / out))


def interrupt(monkeypatch, *, times):
    """Ctrl-C in the third generation."""
    real = planning.plan

    def interrupted(*args, on_progress, **options):
        calls = []

        def pressed(progress):
            calls.append(progress)
            if len(calls) == 3:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
            return on_progress(progress)

        return real(*args, on_progress=pressed, **options)

    monkeypatch.setattr(planning, "plan", interrupted)


def test_ctrl_c_keeps_what_is_planned(tmp_path, monkeypatch):
    out = tmp_path / "mine.npz"
    interrupt(monkeypatch, times=1)
    with pytest.raises(Stopped, match=r"first 24 of 500 steps"):
        demos_plan.plan(PlanConfig("Freeway", method="search", skill=0, steps=500, out=out))
    demonstration = demos.load(out)
    assert demonstration.episode_lengths.tolist() == [24]
    assert demonstration.frame_hash


def test_ctrl_c_twice_keeps_nothing(tmp_path, monkeypatch):
    out = tmp_path / "mine.npz"
    interrupt(monkeypatch, times=2)
    with pytest.raises(Stopped, match="nothing was saved"):
        demos_plan.plan(PlanConfig("Freeway", method="search", skill=0, steps=500, out=out))
    assert not list(tmp_path.iterdir())


def test_ctrl_c_during_the_check_keeps_all(tmp_path, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(demos, "verified", interrupted)
    out = tmp_path / "mine.npz"
    with pytest.raises(Stopped, match=r"mine.npz was not checked"):
        demos_plan.plan(PlanConfig("Freeway", method="search", skill=0, steps=20, out=out))
    assert len(demos.load(out).actions) == 20


@pytest.mark.parametrize("game", [1, 2])
def test_stopping_just_after_a_retry_keeps_what_there_is(game):
    """A retry may go back to the very beginning, where there is nothing to keep."""
    seen = []

    def stop_at_a_retry(progress):
        seen.append(progress)
        back = len(seen) > 1 and progress.steps < seen[-2].steps
        return back and len(progress.scores) >= game

    demonstration = searched("Breakout", skill=0.2, steps=200, seed=0, on_progress=stop_at_a_retry)
    assert demonstration.episode_lengths.min() >= 1


def test_without_envpool_it_is_saved_without_a_hash(tmp_path, monkeypatch, capsys):
    def missing():
        raise ImportError("no envpool")

    monkeypatch.setattr(atari, "envpool_version", missing)
    out = tmp_path / "mine.npz"
    demos_plan.plan(PlanConfig("Freeway", method="search", skill=0, steps=20, out=out))
    assert "Not played back: envpool is not installed" in capsys.readouterr().out
    assert (demos.load(out).frame_hash, demos.load(out).envpool) == (None, None)


def test_a_plan_that_does_not_play_back_is_not_saved(tmp_path, monkeypatch):
    real = planning.plan
    monkeypatch.setattr(
        planning, "plan", lambda *a, **o: dataclasses.replace(real(*a, **o), scores=(99.0,))
    )
    with pytest.raises(RunError, match=r"scores 0, not 99.*Nothing was saved"):
        demos_plan.plan(
            PlanConfig("Freeway", method="search", skill=0, steps=20, out=tmp_path / "mine.npz")
        )
    assert not list(tmp_path.iterdir())
