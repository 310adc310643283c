"""Demonstrations that hold frames: rows, files, and frames as envpool makes them."""

import dataclasses
import json

import numpy as np
import pytest

from bqfd_jax import demos
from bqfd_jax.demos.importing import screens
from bqfd_jax.envs import ale, atari
from bqfd_jax.replay import check_demonstrations

# Two episodes: three steps that end, two that are cut off.  Frames tell their row.
LENGTHS = (3, 2)


def recorded(**changes):
    fields = {
        "game": "Breakout",
        "frames": np.arange(7, dtype=np.uint8)[:, None, None] * np.ones((84, 84), np.uint8),
        "actions": np.array([1, 2, 3, 0, 1], np.int32),
        "rewards": np.array([0, 4, -2, 7, 0], np.float32),
        "episode_lengths": np.array(LENGTHS, np.int32),
        "terminated": (True, False),
        "num_actions": 4,
        "action_meaning": (0, 1, 3, 4),
        "name": "mine",
        "origin": {"from": "here"},
    }
    return demos.FrameDemonstration(**fields | changes)


def test_rows_by_hand():
    rows = demos.frame_rows(recorded(), gamma=0.5, log_rewards=False, life_loss_is_terminal=False)
    np.testing.assert_array_equal(rows.frame[:, 0, 0], range(7))
    np.testing.assert_array_equal(rows.is_first, [1, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(rows.is_last, [0, 0, 0, 1, 0, 0, 1])
    np.testing.assert_array_equal(rows.action, [1, 2, 3, 0, 0, 1, 0])
    np.testing.assert_array_equal(rows.reward, [0, 4, -2, 0, 7, 0, 0])
    # The first ends, so its last transition has no value after it; the second goes on.
    np.testing.assert_array_equal(rows.discount, [0.5, 0.5, 0, 0, 0.5, 0.5, 0])
    check_demonstrations(rows)
    assert recorded().scores == (2.0, 7.0)
    assert recorded().num_rows == 7


def test_switches_of_rows():
    lives = np.array([3, 3, 2, 2, 2, 1, 1], np.int32)
    shown = recorded(lives=lives)
    rows = demos.to_rows(shown, gamma=0.9)
    np.testing.assert_allclose(rows.reward[[1, 2, 4]], [np.log(5), -np.log(3), np.log(8)], 1e-6)
    np.testing.assert_array_equal(rows.discount == 0, [0, 1, 1, 1, 1, 0, 1])
    kept = demos.to_rows(shown, gamma=0.9, life_loss_is_terminal=False)
    np.testing.assert_array_equal(kept.discount == 0, [0, 0, 1, 1, 0, 0, 1])
    # Without lives there is no telling when one is lost.
    unknown = demos.to_rows(recorded(), gamma=0.9)
    np.testing.assert_array_equal(unknown.discount, kept.discount)


def test_rows_are_those_of_playing_back():
    """The same game kept as actions and as frames."""
    whole = demos.load_named("Breakout", "search")
    short = dataclasses.replace(
        whole,
        actions=whole.actions[:60],
        episode_lengths=np.array([60], np.int32),
        scores=(1.0,),
        game_over=(False,),
        frame_hash=None,
    )
    plain = {"log_rewards": False, "life_loss_is_terminal": False}
    played = demos.play(short, gamma=0.9, **plain)
    kept = demos.FrameDemonstration(
        game="Breakout",
        frames=played.frame,
        actions=played.action[:-1],
        rewards=played.reward[:-1],
        episode_lengths=np.array([60]),
        terminated=(False,),
        num_actions=4,
    )
    rows = demos.to_rows(kept, gamma=0.9, **plain)
    for field in dataclasses.fields(rows):
        expected = getattr(played, field.name)
        if field.name == "discount":
            # Of rows that start no transition it means nothing.
            expected = np.where(played.is_last, 0, expected)
        np.testing.assert_array_equal(getattr(rows, field.name), expected, field.name)
        assert getattr(rows, field.name).dtype == expected.dtype


# --- Files ---


def assert_same(some, other):
    for field in dataclasses.fields(some):
        mine, loaded = getattr(some, field.name), getattr(other, field.name)
        np.testing.assert_array_equal(mine, loaded, field.name)
    assert some.frames.dtype == other.frames.dtype


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lives": np.array([3, 3, 2, 2, 2, 1, 1], np.int32)},
        {
            "game": "CartPole-v1",
            "frames": np.linspace(-1, 1, 28, dtype=np.float32).reshape(7, 4),
            "action_meaning": None,
        },
    ],
)
def test_what_is_saved_is_loaded(tmp_path, changes):
    shown = recorded(**changes)
    demos.save(shown, tmp_path / "mine.npz")
    loaded = demos.load(tmp_path / "mine.npz", game=shown.game)
    assert isinstance(loaded, demos.FrameDemonstration)
    assert_same(shown, loaded)
    assert loaded.checksum == shown.checksum
    assert [file.name for file in tmp_path.iterdir()] == ["mine.npz"]
    with pytest.raises(demos.DemonstrationError, match=f"of {shown.game}, not of Seaquest"):
        demos.load(tmp_path / "mine.npz", game="Seaquest")


def rewrite(path, **changes):
    """Changes arrays, or entries of `meta`, of a file; its checksum stays as it is."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays["meta"]))
    for name, value in changes.items():
        (arrays if name in arrays else meta)[name] = value
    arrays["meta"] = np.array(json.dumps(meta))
    np.savez(path, **{name: value for name, value in arrays.items() if value is not None})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"frames": np.ones((7, 84, 84), np.uint8)}, "was changed after it was saved"),
        ({"rewards": np.zeros(5, np.float32)}, "was changed after it was saved"),
        ({"terminated": [False, False]}, "was changed after it was saved"),
        ({"num_actions": 18, "action_meaning": list(range(18))}, "was changed"),
        ({"frames": None}, "has no array frames"),
        ({"rewards": None}, "has no array rewards"),
        ({"kind": "smells"}, "kind 'smells', which is not known"),
        ({"format": 9}, "format 9"),
        (
            {"frames": np.zeros((6, 84, 84), np.uint8)},
            r"frames is uint8\[6, 84, 84\].*numbers \[7, \.\.\.\]",
        ),
        (
            {"rewards": np.zeros(4, np.float32)},
            r"rewards is float32\[4\], but must be numbers \[5\]",
        ),
        ({"rewards": np.full(5, np.nan, np.float32)}, r"rewards\[0\] is nan, but must be finite"),
        ({"actions": np.full(5, 4)}, r"actions\[0\] is 4, but must be finite in 0 \.\. 3"),
        ({"actions": np.zeros(5)}, r"actions is float64\[5\], but must be integers"),
        ({"episode_lengths": np.array([4, 2])}, r"5 actions, but episodes of \[4, 2\]"),
        ({"terminated": [True]}, "terminated has 1 entries, not 2"),
        ({"action_meaning": [0]}, "action_meaning has 1 entries, not 4"),
        ({"frames": np.array(["a"] * 7)}, "must be numbers"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, changes, message):
    path = tmp_path / "mine.npz"
    demos.save(recorded(), path)
    rewrite(path, **changes)
    with pytest.raises(demos.DemonstrationError, match=message) as caught:
        demos.load(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lives": np.zeros((7, 2), int)}, r"lives is int64\[7, 2\], but must be integers \[7\]"),
        ({"lives": np.array(["5"] * 7)}, r"lives is <U1\[7\]"),
        ({"lives": np.full(7, -1)}, r"lives\[0\] is -1"),
        ({"rewards": np.zeros((5, 1))}, r"rewards is float64\[5, 1\]"),
        ({"rewards": np.full(5, 3e38)}, r"rewards\[0\] is 3e\+38"),
        ({"num_actions": 10**12, "action_meaning": None}, r"num_actions\[\] is 1000000000000"),
        ({"action_meaning": (0, 1, 3, 18)}, r"action_meaning\[3\] is 18"),
    ],
)
def test_what_cannot_be_is_refused(changes, message):
    with pytest.raises(demos.DemonstrationError, match=message):
        recorded(**changes)


def test_names_and_origins_do_not_change_the_checksum():
    assert recorded(name="other", origin=None).checksum == recorded().checksum
    assert recorded(lives=np.zeros(7, np.int32)).checksum != recorded().checksum


def test_frames_are_small_on_disk(tmp_path):
    rows = demos.play(
        dataclasses.replace(
            demos.load_named("Seaquest", "search"),
            actions=demos.load_named("Seaquest", "search").actions[:100],
            episode_lengths=np.array([100]),
            scores=(20.0,),
            game_over=(False,),
            frame_hash=None,
        ),
        gamma=1.0,
    )
    shown = recorded(
        frames=rows.frame,
        actions=rows.action[:-1] % 4,
        rewards=rows.reward[:-1],
        episode_lengths=np.array([100]),
        terminated=(False,),
    )
    demos.save(shown, tmp_path / "mine.npz")
    assert (tmp_path / "mine.npz").stat().st_size < rows.frame.nbytes / 5


# --- Frames from screens ---


@pytest.mark.parametrize("game", ["Breakout", "Seaquest"])
def test_screens_become_what_envpool_shows(game):
    """The only difference: where a mean lies in the middle of two numbers it may be rounded up."""
    actions = demos.load_named(game, "search").actions[:60]
    env, emulator = atari.Atari(game, noop_max=1, num_threads=1), ale.Ale(game)
    frames = [env.reset().frame[0]]
    made = [screens.shrink(screens.to_grey(emulator.screen()))]
    for action in actions:
        frames.append(env.step(np.array([action])).frame[0])
        shown = []
        for _ in range(4):
            emulator._ale.act(emulator._actions[action])
            shown.append(screens.to_grey(emulator.screen()))
        np.testing.assert_array_equal(shown[-1], emulator._ale.getScreenGrayscale())
        made.append(screens.shrink(np.maximum(*shown[-2:])))
    difference = np.abs(np.array(made, int) - np.array(frames, int))
    assert difference.max() <= 1
    assert np.mean(difference > 0) < 5e-4


def test_areas_by_hand():
    grey = np.zeros((210, 160), np.uint8)
    # A new pixel is 2.5 x 1.905 old ones: the first has all of this one.
    grey[0, 0] = 200
    grey[209, 159] = 100
    small = screens.shrink(grey)
    assert small[0, 0] == round(200 / (2.5 * 160 / 84))
    assert small[83, 83] == round(100 / (2.5 * 160 / 84))
    assert np.count_nonzero(small) == 2
    assert (screens.shrink(np.full((210, 160), 93, np.uint8)) == 93).all()
