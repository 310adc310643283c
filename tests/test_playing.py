"""The planner that plays like a person: decisions worked out by hand, hints, and a whole game."""

import re
import types

import numpy as np
import pytest

from bqfd_jax import demos
from bqfd_jax.demos.making import hints, planning, playing
from bqfd_jax.envs import ale, atari
from experiments.demos import plan as demos_plan
from experiments.demos.plan import PlanConfig

HOW = playing.Settings(
    pace=2,
    horizon=6,
    continuations=2,
    hope=0.5,
    margin=0.1,
    lapse_probability=0.0,
    lapse_steps=8,
    lets_go=False,
    late_steps=0,
)


class Line:
    """A walk on a line with the keys rest, left and right; what its places pay and cost is given.

    Args:
      pays: `{place: reward}`, each paid once.
      deadly: places that cost a life.
      length: steps of a game.
    """

    num_actions = 3
    action_meaning = (0, 4, 3)
    game = "Line"

    def __init__(self, *, pays=None, deadly=(), lives=0, length=10**6):
        self._pays, self._deadly, self._length = pays or {}, set(deadly), length
        self._start_lives = lives

    def reset(self):
        self._state = (100, self._start_lives, 0, frozenset())
        return self._start_lives

    @property
    def lives(self):
        return self._state[1]

    def step(self, action):
        place, lives, time, paid = self._state
        place += (0, -1, 1)[action]
        reward = 0.0 if place in paid else float(self._pays.get(place, 0))
        lives -= place in self._deadly
        self._state = (place, lives, time + 1, paid | {place} if reward else paid)
        dead = self._start_lives > 0 and lives == 0
        return ale.AleStep(reward, lives, dead or time + 1 >= self._length)

    def ram(self):
        return np.array([self._state[0]], np.uint8)

    screen = ram

    def save_state(self):
        return self._state

    def load_state(self, state):
        self._state = state


def play(line, *, steps=20, seed=0, told=None, **changes):
    how = playing.Settings(**vars(HOW) | changes)
    rng = np.random.default_rng(seed)
    told = told or hints.Hints(unit=1.0)
    return playing.play_game(line, how, hints=told, steps=steps, rng=rng)


# --- Decisions ---


def test_nothing_to_do_is_rest():
    assert play(Line()).actions.tolist() == [0] * 20


def test_a_reward_in_sight_is_fetched_and_then_there_is_rest():
    game = play(Line(pays={104: 1}))
    assert game.actions.tolist() == [2, 2, 2, 2] + [0] * 16
    assert (game.score, game.is_over, game.retries) == (1, False, 0)
    # Beyond the horizon it is not seen.
    assert play(Line(pays={107: 1})).score == 0


def test_a_reward_below_the_margin_is_left():
    # Alone of the three first keys, right can reach it, by one of its two or three second ones.
    line = Line(pays={106: 1})
    assert play(line, margin=0.1).score == 1
    assert play(line, margin=1.0).score == 0


def test_a_life_is_worth_more_than_a_reward():
    line = Line(pays={102: 5}, deadly=[102], lives=3)
    assert play(line).score == 0
    careless = hints.Hints(unit=1.0, life=1.0)
    assert play(line, told=careless).score == 5


def test_what_is_wanted_decides_where_nothing_is_paid():
    wants_95 = hints.Hints(look=lambda emulator: lambda ram: -abs(float(ram[0]) - 95), unit=1.0)
    line = Line()
    actions = play(line, told=wants_95, pace=1).actions
    assert actions.tolist() == [1] * 5 + [0] * 15
    assert line.ram()[0] == 95


def test_sooner_is_better():
    """Both ways pay the same, but the left one within fewer steps."""
    line = Line(pays={97: 1, 104: 1})
    assert play(line, steps=2, hope=1.0).actions.tolist() == [1, 1]


def test_many_ways_out_are_better_than_one():
    """Left and right pay the same at best, but left pays with other second keys too."""
    line = Line(pays={98: 1, 102: 0.5, 105: 0.5})
    assert play(line, steps=2, margin=0.0).actions.tolist() == [1, 1]


def test_a_future_counts_half_by_its_end_and_half_by_its_way():
    future = playing.Future((0, 0, 0, 0), (0.0, 0.0, 2.0, 2.0), 2.0, 0, None)
    assert future.worth == (2 + 1) / 2


@pytest.mark.parametrize(
    ("worth", "calm", "chosen"),
    [
        ({0: 1.0, 1: 1.05, 2: 1.08}, (0, 1), 0),
        ({0: 0.9, 1: 1.05, 2: 1.08}, (0, 1), 1),
        ({0: 0.9, 1: 0.9, 2: 1.08}, (0, 1), 2),
        ({0: 1.0, 1: 1.05, 2: 1.08}, (None, 1), 1),
        ({0: 1.0, 2: 1.05}, (None, 1), 2),
    ],
)
def test_the_habit_goes_before_what_is_held_and_both_before_what_is_hardly_better(
    worth, calm, chosen
):
    mind = playing.Mind(Line(), HOW, hints.Hints(), None, None)
    assert mind._choose(worth, calm) == chosen


LEFT, RIGHT = 4, 3


def to_and_fro(ram):
    """Right up to 103, then left down to 97, and so on."""
    return RIGHT if ram[0] in (98, 99, 100, 101, 102, 97) else LEFT


def test_a_habit_is_followed_where_nothing_speaks_against_it():
    told = hints.Hints(unit=1.0, habit=to_and_fro)
    game = play(Line(), told=told, pace=1, steps=8)
    assert game.actions.tolist() == [2, 2, 2, 1, 2, 1, 2, 1]


def test_a_habit_that_costs_a_life_is_left():
    told = hints.Hints(unit=1.0, habit=to_and_fro)
    game = play(Line(deadly=(102,), lives=1), told=told, pace=1, steps=30)
    assert (len(game.actions), game.is_over) == (30, False)


def test_futures_go_on_by_habit():
    told = hints.Hints(unit=1.0, habit=to_and_fro)
    line = Line()
    line.reset()
    judge = playing.Judge(has_lives=False, unit=1.0)
    imagination = playing.Imagination(line, HOW, told, judge)
    future = imagination.to_the_end(imagination.play(imagination.begin(), [1, 1]), [None])
    # Twice to the left, then the habit: to the right.
    assert future.keys == (1, 1, 2, 2, 2, 2)


def test_a_reflex_goes_before_everything_else():
    told = hints.Hints(unit=1.0, reflex=lambda ram: LEFT if ram[0] == 100 else None)
    # There is something to earn on the right, but nobody looks there first.
    game = play(Line(pays={104: 1}), told=told, pace=1, steps=1)
    assert game.actions.tolist() == [1]
    line = Line(pays={104: 1})
    line.reset()
    judge = playing.Judge(has_lives=False, unit=1.0)
    mind = playing.Mind(line, HOW, told, judge, np.random.default_rng(0))
    assert (mind.decide(held=0), mind.simulated) == (1, 0)


def test_deciding_leaves_the_game_as_it_was():
    line = Line(pays={104: 1})
    line.reset()
    before = line.save_state()

    def look(emulator):
        emulator.step(2)
        return lambda ram: 0.0

    judge = playing.Judge(has_lives=False, unit=1.0)
    mind = playing.Mind(line, HOW, hints.Hints(look=look), judge, np.random.default_rng(0))
    assert mind.decide(held=0) == 2
    assert line.save_state() == before
    assert mind.simulated > 0


def test_games_end():
    game = play(Line(length=7))
    assert (len(game.actions), game.is_over) == (7, True)
    dies = Line(deadly=range(0, 200), lives=2)
    assert len(play(dies).actions) == 2


# --- Skill ---


def test_a_late_player_does_the_same_later():
    line = Line(pays={104: 1})
    assert play(line, pace=1, margin=0.02, hope=1.0).actions[:6].tolist() == [2, 2, 2, 2, 0, 0]
    assert play(line, pace=1, margin=0.02, hope=1.0, late_steps=1).actions[:6].tolist() == [
        0,
        2,
        2,
        2,
        2,
        2,
    ]


def test_a_lapse_holds_on_or_lets_go_but_not_in_the_middle_of_a_move():
    line = Line(pays={102: 1})
    restless = hints.Hints(unit=1.0, rests=False)

    def right(told, **changes):
        games = [play(line, told=told, steps=60, seed=seed, **changes) for seed in range(8)]
        return [np.count_nonzero(game.actions == 2) for game in games]

    # Without rest there is no reason to stop, with or without attention, except to let go.
    assert right(restless) == [60] * 8
    assert min(right(restless, lapse_probability=0.3)) > 30
    assert max(right(restless, lapse_probability=0.3, lets_go=True)) < 30
    # Who rests dozes off before the move or after it.
    assert set(right(None, lapse_probability=0.3)) == {2}
    assert play(line, lapse_probability=1.0).actions.tolist() == [0] * 20


def test_skill_means_fewer_lapses():
    by_skill = [planning.settings("Pong", skill=skill) for skill in np.linspace(0, 1, 11)]
    for field in ("lapse_probability", "lapse_steps", "late_steps"):
        values = [getattr(how, field) for how in by_skill]
        assert values == sorted(values, reverse=True)
        assert values[0] > values[-1] == 0
    # Per step, attention does not depend on a game's pace.
    quick, slow = (planning.settings(game, skill=0.5) for game in ("Breakout", "Pong"))
    assert slow.lapse_probability / slow.pace == pytest.approx(quick.lapse_probability)


# --- How long it takes ---


def test_the_steps_to_be_imagined_by_hand():
    # 3 keys of 2 steps; then 4 more, of each key with the habit and with itself, of 3 promising
    # ones with 2 others, of which a third is the key itself, and of what was intended.
    assert HOW.simulated(3) == pytest.approx((3 * 2 + (6 + 3 * 4 / 3 + 1) * 4) / 2)
    # Every other decision begins a lapse of 4 decisions.
    dozing = playing.Settings(**vars(HOW) | {"lapse_probability": 0.5})
    assert dozing.simulated(3) == pytest.approx(HOW.simulated(3) / 3)


def test_about_as_many_steps_are_imagined():
    restless = hints.Hints(unit=1.0, rests=False)
    for chance in (0.0, 0.3):
        how = playing.Settings(**vars(HOW) | {"lapse_probability": chance})
        game = play(Line(), told=restless, steps=1_000, lapse_probability=chance)
        assert game.simulated / 1_000 == pytest.approx(how.simulated(3), rel=0.15)


@pytest.mark.parametrize("game", ["Breakout", "MsPacman"])
def test_the_forecast_fits_what_shipped_lists_took(game):
    shipped = demos.load_named(game, "strong")
    skill, steps = shipped.origin["planner"]["skill"], len(shipped.actions)
    forecast = planning.simulated_steps(game, method="play", skill=skill, steps=steps)
    assert forecast == pytest.approx(sum(shipped.origin["simulated"]), rel=0.2)


def test_the_command_says_how_long_it_will_take(tmp_path):
    def forecast(game, **options):
        config = PlanConfig(game, out=tmp_path / "mine.npz", **options)
        how = planning.settings(game, method=config.method, skill=config.skill)
        return demos_plan._forecast(config, how)

    assert "a decision every step, looking 8 steps ahead" in forecast("Breakout")
    assert re.search(r"every 4 steps, .* some [3-6] min on one core", forecast("MsPacman"))
    assert re.search(r"some \d+ s on one core", forecast("MsPacman", steps=300))
    assert "some 0 s" not in forecast("Pong", steps=1)
    assert "62 copies of the game, about 372,000 sim" in forecast("Pong", method="search", skill=1)


# --- Hints ---


# Where a ball earns by itself as long as it is in play, a single reward is no reason to move.
BALL_GAMES = {"Breakout", "VideoPinball"}


@pytest.mark.parametrize("game", [*sorted(set(hints.TABLE) - BALL_GAMES), "Pong"])
def test_a_single_reward_is_never_put_off_for_ever(game):
    # What a pace of waiting costs a reward of the usual size: half of its share of the horizon.
    told = hints.of(game)
    assert told.margin < told.pace / told.horizon / 2


@pytest.mark.parametrize("game", sorted(BALL_GAMES))
def test_a_ball_is_worth_moving_for(game):
    # A ball that is lost at the very end of what is imagined counts half of its worth.
    told = hints.of(game)
    lost = memory(_67=149)  # VideoPinball's, in its lane; in Breakout a life is lost
    worth = told.life - told.look(ale.Ale(game))(lost)
    assert 1 < told.margin < worth / 2


def test_hints_are_only_for_games_there_are():
    for game, told in hints.TABLE.items():
        assert game in atari.games()
        emulator = ale.Ale(game)
        assert set(told.keys) <= set(emulator.action_meaning)
        emulator.step(0)
        assert np.isfinite(told.look(emulator)(emulator.ram()))
        if told.habit is not None:
            assert told.habit(emulator.ram().astype(int)) in told.keys


def memory(**values):
    """Memory of which only some bytes are known, by `_address=value`."""
    ram = np.zeros(128, np.uint8)
    for address, value in values.items():
        ram[int(address[1:])] = value
    return ram


FIRE = 1


@pytest.mark.parametrize(
    ("ball", "low", "action"),
    [
        # The paddle's middle is at 100; a ball that goes left is expected 4 pixels further there.
        ((115, "left"), True, RIGHT), ((114, "left"), True, FIRE), ((94, "left"), True, FIRE),
        ((93, "left"), True, LEFT), ((106, "right"), True, FIRE), ((107, "right"), True, RIGHT),
        ((112, "right"), False, FIRE), ((113, "right"), False, RIGHT),
        ((87, "left"), False, LEFT), ((88, "left"), False, FIRE),
    ],
)  # fmt: skip
def test_in_breakout_the_paddle_follows_a_falling_ball(ball, low, action):
    x, way = ball
    seen = {"_99": x, "_101": 130 if low else 129, "_105": 1 if way == "left" else 255, "_72": 92}
    habit = hints.of("Breakout").habit
    assert habit(memory(**seen, _103=1).astype(int)) == action
    # One that rises can wait, and a lost one is replaced.
    assert habit(memory(**seen, _103=255).astype(int)) == FIRE
    assert habit(memory(**seen | {"_101": 0}, _103=1).astype(int)) == FIRE


UP, DOWN, WAIT = 2, 5, 0


@pytest.mark.parametrize(
    ("y", "cars", "action"),
    [
        # Lane k's middle is at 12 + 16 k, its car at 108 + k; those of lanes 0 to 4 go right.
        # From 19 it is a quarter of a step to lane 1, which takes five; its car goes 1 per step.
        (19, {1: 32}, UP), (19, {1: 33}, WAIT), (19, {1: 49}, WAIT), (19, {1: 50}, UP),
        # Lane 3's car goes 2 per step, lane 4's 4, and lane 5's comes from the right.
        (51, {3: 27}, UP), (51, {3: 28}, WAIT), (67, {4: 16}, UP), (67, {4: 17}, WAIT),
        (83, {5: 72}, UP), (83, {5: 71}, WAIT), (83, {5: 39}, WAIT), (83, {5: 38}, UP),
        # More than two steps away from the lane there is time.
        (11, {1: 40}, UP), (12, {1: 40}, WAIT),
        # Nobody waits where a car comes.
        (19, {1: 40, 0: 36}, UP), (19, {1: 40, 0: 34}, WAIT),
        # In the last lane there is nothing to wait for.
        (148, {9: 45, 8: 45}, UP), (164, {9: 45, 8: 45}, UP),
    ],
)  # fmt: skip
def test_in_freeway_the_chicken_waits_below_a_lane_whose_car_would_hit_it(y, cars, action):
    far = {f"_{108 + lane}": 100 for lane in range(10)}
    seen = far | {f"_{108 + lane}": x for lane, x in cars.items()}
    assert hints.of("Freeway").habit(memory(_14=y, **seen).astype(int)) == action


@pytest.mark.parametrize(
    ("place", "plunger", "action"),
    [
        ((149, 132), 67, DOWN), ((149, 132), 82, DOWN), ((149, 132), 83, FIRE),
        ((149, 132), 87, FIRE), ((147, 132), 67, DOWN),
        # On its way up, and on the table.
        ((149, 120), 67, None), ((90, 132), 67, None),
    ],
)  # fmt: skip
def test_in_video_pinball_a_ball_at_rest_is_launched(place, plunger, action):
    reflex = hints.of("VideoPinball").reflex
    assert reflex(memory(_67=place[0], _68=place[1], _70=plunger).astype(int)) == action


@pytest.mark.parametrize(
    ("place", "flipped", "action"),
    [
        ((80, 150), 0, UP), ((10, 170), 8, UP), ((140, 195), 0, UP), ((154, 160), 0, UP),
        # High up, in the plunger's lane, and when they have been up for long.
        ((80, 149), 0, 0), ((149, 160), 0, 0), ((153, 160), 0, 0), ((80, 185), 128, 0),
    ],
)  # fmt: skip
def test_in_video_pinball_the_flippers_go_while_the_ball_is_low(place, flipped, action):
    habit = hints.of("VideoPinball").habit
    assert habit(memory(_67=place[0], _68=place[1], _12=flipped).astype(int)) == action


def test_in_video_pinball_a_ball_that_is_kept_in_one_place_counts_as_lost():
    worth = hints.of("VideoPinball").look(None)
    # Blows move it to and fro.
    kept = [worth(memory(_67=10 + k % 2, _68=151 - k % 3)) for k in range(8)]
    assert kept == [0.0] * 5 + [-20.0] * 3
    assert worth(memory(_67=10, _68=146)) == 0.0
    moving = [worth(memory(_67=10, _68=140 - 5 * k)) for k in range(8)]
    assert moving == [0.0] * 8
    assert worth(memory(_67=147, _68=100)) == -20.0  # in its lane


def test_the_launch_of_video_pinball_gets_the_ball_onto_the_table():
    emulator = ale.Ale("VideoPinball")
    emulator.reset()
    reflex = hints.of("VideoPinball").reflex
    pressed = []
    while (action := reflex(emulator.ram().astype(int))) is not None and len(pressed) < 20:
        pressed.append(action)
        emulator.step(emulator.action_meaning.index(action))
    assert pressed == [DOWN] * 4 + [FIRE]
    for _ in range(15):
        emulator.step(0)
    assert emulator.ram()[67] < 145


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ((80, 50), (83, 50), RIGHT), ((80, 50), (77, 50), LEFT), ((80, 50), (80, 53), 5),
        ((80, 50), (80, 47), 2), ((80, 50), (80, 50), None), ((166, 50), (9, 50), RIGHT),
        ((9, 50), (166, 50), LEFT),
    ],
)  # fmt: skip
def test_ms_pacman_shows_where_she_goes(before, after, shown):
    memories = [memory(_10=x, _16=y) for x, y in (before, after)]
    assert hints.of("MsPacman").shown(*memories) == shown


def test_seaquest_wants_divers_and_then_air():
    def wanted(**values):
        return hints.of("Seaquest").look(types.SimpleNamespace(ram=lambda: memory(**values)))

    def value(want, **values):
        return want(memory(**{"_102": 20} | values))

    for up in (wanted(_62=6, _102=50, _97=93), wanted(_62=1, _102=13, _97=93)):
        assert value(up, _97=93) < value(up, _97=40) < value(up, _97=13, _62=0)
        assert value(up, _97=93, _102=0) < value(up, _97=93) - 50
    for down in (wanted(_62=3, _102=50, _97=93), wanted(_62=0, _102=6, _97=93)):
        assert value(down, _62=3) < value(down, _62=4)
        near = {"_71": 90, "_113": 1, "_70": 80, "_97": 108}
        assert value(down, **near) > value(down, **near | {"_70": 20}) > value(down)


def test_the_ways_to_dots_go_around_walls_and_through_the_tunnel():
    drawn = ["#####", "#.#o#", "#.#.#", "....."]
    wall = np.array([[square == "#" for square in row] for row in drawn])
    dot = np.array([[square == "o" for square in row] for row in drawn])
    ways = hints.ways_to(wall, dot)
    assert (ways[1, 1], ways[3, 1], ways[3, 0], ways[3, 4], ways[1, 3]) == (6, 4, 4, 3, 0)
    assert not hints.ways_to(wall, dot & False).any()


def test_ms_pacman_fears_a_game_that_halts():
    emulator = ale.Ale("MsPacman")
    for _ in range(80):
        emulator.step(0)
    wanted, ram = hints.of("MsPacman").look(emulator), emulator.ram().copy()
    values = [wanted(ram) for _ in range(9)]
    # A pause is none, a longer one is death.
    assert values[:7] == [values[0]] * 7
    assert values[7] == values[8] == values[0] - 300
    moved = ram.copy()
    moved[6] += 1
    assert wanted(moved) == values[0]


# --- Whole demonstrations ---


def test_a_person_holds_keys_and_plays_well():
    demonstration = planning.plan("Breakout", skill=1, steps=150)
    holds = 1 + np.count_nonzero(np.diff(demonstration.actions.astype(int)))
    assert 150 / holds >= 4
    assert demonstration.scores[0] >= 2
    # Most of the time nothing is needed but the next ball.
    assert np.mean(demonstration.actions == 1) > 0.5
    demos.play(demonstration, gamma=0.9)
    # The same seed makes the same list, and fewer steps make its beginning.
    again = planning.plan("Breakout", skill=1, steps=40)
    np.testing.assert_array_equal(again.actions, demonstration.actions[:40])
