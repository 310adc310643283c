"""Demonstrations: files, playing back against hash and scores, and the cache."""

import dataclasses
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest

from bqfd_jax import demos
from bqfd_jax.demos import playback
from bqfd_jax.envs import atari
from bqfd_jax.replay import check_demonstrations

SHIPPED = [(game, name) for game, names in demos.available().items() for name in names]
# Scores, and the beginning of the hash where it was computed by other code than ours.
KNOWN = {
    ("Breakout", "default"): ((16, 36, 241, 88), ""),
    ("Breakout", "strong"): ((31, 298, 424), ""),
    ("Breakout", "weak"): ((9, 26, 55, 32, 12), ""),
    ("Breakout", "search"): ((109, 122, 96), "6cf6baaab39d0a79"),
    ("ChopperCommand", "default"): ((33500,), ""),
    ("ChopperCommand", "strong"): ((138400,), ""),
    ("ChopperCommand", "weak"): ((15000, 1600), ""),
    ("ChopperCommand", "search"): ((31900,), "897f2c1a0d6c8903"),
    ("Freeway", "default"): ((28, 29, 29), ""),
    ("Freeway", "strong"): ((34, 34, 34), ""),
    ("Freeway", "weak"): ((6, 3), ""),
    ("Freeway", "search"): ((26, 26, 27), "0abdf2efc435404b"),
    ("MsPacman", "default"): ((26171,), ""),
    ("MsPacman", "strong"): ((29421,), ""),
    ("MsPacman", "weak"): ((5490, 9780, 6220), ""),
    ("MsPacman", "search"): ((27771,), "8439bf5ac7a12f2f"),
    ("Seaquest", "default"): ((33970,), ""),
    ("Seaquest", "strong"): ((61600,), ""),
    ("Seaquest", "weak"): ((4960, 4090, 2190), ""),
    ("Seaquest", "search"): ((40430,), "260f18a71d8a8a9e"),
    ("VideoPinball", "default"): ((81761,), ""),
    ("VideoPinball", "strong"): ((423152,), ""),
    ("VideoPinball", "weak"): ((21509, 6007, 8607, 23716), ""),
    ("VideoPinball", "search"): ((111244,), "a68d548ddfb962f0"),
}
LENGTH, SCORE = 200, 9  # of the beginning of Breakout's first game


def beginning(**changes):
    """The first steps of Breakout, cut off."""
    whole = demos.load_named("Breakout", "search")
    fields = {
        "actions": whole.actions[:LENGTH],
        "episode_lengths": np.array([LENGTH], np.int32),
        "scores": (float(SCORE),),
        "game_over": (False,),
        "frame_hash": None,
        "name": "beginning",
    }
    return dataclasses.replace(whole, **fields | changes)


def assert_same_rows(some, others):
    for field in dataclasses.fields(some):
        mine, other = getattr(some, field.name), getattr(others, field.name)
        assert (field.name, mine.dtype) == (field.name, other.dtype)
        np.testing.assert_array_equal(mine, other, field.name)


def told_in_the_docs():
    """The table of shipped demonstrations in docs/demonstrations.md, (game, name) -> its cells."""
    page = Path(__file__).parent.parent / "docs" / "demonstrations.md"
    rows = re.findall(r"^\| (\w+) \| `(\w+)` \| (.*) \|$", page.read_text(), flags=re.M)
    return {(game, name): re.split(r" ?\| ?", cells) for game, name, cells in rows}


def test_the_docs_tell_what_is_shipped():
    told = told_in_the_docs()
    assert set(told) == set(SHIPPED)
    for (game, name), cells in told.items():
        shipped = demos.load_named(game, name)
        shares = np.bincount(shipped.actions) / len(shipped.actions)
        entropy = -sum(share * np.log2(share) for share in shares if share)
        games = np.split(shipped.actions.astype(int), np.cumsum(shipped.episode_lengths)[:-1])
        holds = sum(1 + np.count_nonzero(np.diff(game)) for game in games)
        planner = shipped.origin["planner"]
        score = np.mean(shipped.scores)
        assert cells == [
            f"{score:,.0f}" if score >= 200 or score % 1 == 0 else f"{score:.1f}",
            f"{len(shipped.actions):,} in {len(games)}",
            f"{entropy:.2f} of {np.log2(len(shipped.action_meaning)):.2f}",
            f"{len(shipped.actions) / holds:.1f}",
            "" if name == "search" else f"{planner['skill']:g}",
        ], (game, name)


def test_what_is_shipped_is_known():
    assert set(SHIPPED) == set(KNOWN)


@pytest.mark.parametrize(
    ("game", "name"),
    [
        pytest.param(game, name, marks=[pytest.mark.slow] if name != "default" else [])
        for game, name in SHIPPED
    ],
)
def test_every_shipped_demonstration_plays_back_to_its_hash_and_scores(game, name):
    demonstration = demos.load_named(game, name)
    scores, hash_beginning = KNOWN[game, name]
    assert demonstration.scores == scores
    assert demonstration.frame_hash.startswith(hash_beginning)
    assert len(demonstration.frame_hash) == 64

    rows = demos.play(demonstration, gamma=0.9)
    assert demos.frame_hash(rows) == demonstration.frame_hash
    assert rows.frame.shape == (demonstration.num_rows, 84, 84)

    # Each episode has one row more than actions, and that row starts no transition.
    ends = np.cumsum(demonstration.episode_lengths + 1) - 1
    np.testing.assert_array_equal(np.flatnonzero(rows.is_last), ends)
    np.testing.assert_array_equal(np.flatnonzero(rows.is_first), [0, *ends[:-1] + 1])
    np.testing.assert_array_equal(rows.action[~rows.is_last], demonstration.actions)
    assert set(np.unique(rows.discount)) <= {np.float32(0), np.float32(0.9)}
    np.testing.assert_array_equal(rows.discount[ends - 1] == 0, demonstration.game_over)
    points = np.where(rows.is_last, 0, np.expm1(np.abs(rows.reward)))
    np.testing.assert_allclose(
        np.add.reduceat(points, np.flatnonzero(rows.is_first)), scores, rtol=1e-3
    )


def test_switches_of_playing_back():
    whole = demos.load_named("Breakout", "search")
    # The first game, with lives lost on the way.
    lengths = whole.episode_lengths[:1]
    game = beginning(
        actions=whole.actions[: lengths[0]],
        episode_lengths=lengths,
        scores=whole.scores[:1],
        game_over=(True,),
    )
    learnt = demos.play(game, gamma=0.99)
    plain = demos.play(game, gamma=0.5, log_rewards=False, life_loss_is_terminal=False)
    np.testing.assert_array_equal(learnt.frame, plain.frame)
    np.testing.assert_allclose(learnt.reward, np.log1p(plain.reward), rtol=1e-6)
    assert plain.reward.sum() == 109
    # Five lives, the last of which ends the game; its final row starts no transition.
    assert (learnt.discount[:-1] == 0).sum() == 5
    assert (plain.discount[:-1] == 0).sum() == 1
    assert plain.discount[0] == np.float32(0.5)
    check_demonstrations(plain)
    check_demonstrations(learnt, lives=True)


def test_a_cut_episode_bootstraps_from_its_last_observation():
    rows = demos.play(beginning(), gamma=0.9)
    assert rows.is_last.tolist() == [False] * LENGTH + [True]
    assert rows.discount[-2] == np.float32(0.9)
    # So does one that was cut by the time limit that it was made with.
    limited = beginning(
        configuration=dict(beginning().configuration) | {"max_episode_steps": LENGTH}
    )
    assert_same_rows(demos.play(limited, gamma=0.9), rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": (7.0,)}, "episode 1 scores 9, not 7"),
        ({"frame_hash": "0" * 64}, "frames hash to [0-9a-f]{64}, not 0{64}"),
        ({"game_over": (True,)}, "episode 1 should be over after its 200 steps"),
        ({"envpool": "0.0.1", "scores": (7.0,)}, r"envpool is \S+ here and was 0\.0\.1"),
        ({"envpool": None, "scores": (7.0,)}, "was not noted"),
        ({"scores": (7.0,)}, "so the file is wrong"),
        ({"game": "Freeway"}, "knows 4 actions, but Freeway has 3"),
        ({"game": "Brakout"}, "did you mean Breakout"),
    ],
)
def test_playing_back_says_what_differs(changes, message):
    changes = {"envpool": atari.envpool_version()} | changes
    with pytest.raises(ValueError, match=message):
        demos.play(beginning(**changes), gamma=0.99)


def test_one_changed_action_is_noticed():
    rows = demos.play(beginning(), gamma=0.99)
    actions = beginning().actions.copy()
    actions[30:34] = 3 - actions[30:34] % 2
    with pytest.raises(demos.DemonstrationError, match="frames hash to"):
        demos.play(beginning(actions=actions, frame_hash=demos.frame_hash(rows)), gamma=0.99)


def test_an_episode_that_ends_early_is_noticed():
    whole = demos.load_named("Breakout", "search")
    length = int(whole.episode_lengths[0])
    longer = beginning(
        actions=whole.actions[: length + 7],
        episode_lengths=np.array([length + 7], np.int32),
        scores=whole.scores[:1],
    )
    with pytest.raises(demos.DemonstrationError, match=f"ended after {length} of {length + 7}"):
        demos.play(longer, gamma=0.99)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"noop_max": 30}, "noop_max is 30, not 1"),
        ({"repeat_action_probability": 0.25}, "repeat_action_probability is 0.25, not 0.0"),
        ({"full_action_space": True}, "full_action_space is True, not False"),
        ({"difficulty": 1}, "difficulty is unknown"),
        ({"max_episode_steps": 10**30}, "max_episode_steps is 10{30}, not a number of steps"),
        ({"max_episode_steps": "long"}, "max_episode_steps is long, not a number"),
    ],
)
def test_another_configuration_is_named(setting, message):
    configuration = dict(beginning().configuration) | setting
    with pytest.raises(demos.DemonstrationError, match=f"another configuration .*{message}"):
        demos.play(beginning(configuration=configuration), gamma=0.99)
    without = {name: value for name, value in configuration.items() if name != "frame_skip"}
    with pytest.raises(demos.DemonstrationError, match="frame_skip is not given, not 4"):
        demos.play(beginning(configuration=without), gamma=0.99)


# --- Files ---


def test_what_is_saved_is_loaded(tmp_path):
    path = tmp_path / "mine.npz"
    saved = beginning(frame_hash="ab" * 32, envpool="1.2.3", origin={"by": ["me"]})
    demos.save(saved, path)
    loaded = demos.load(path, game="Breakout")
    for field in dataclasses.fields(saved):
        mine, other = getattr(saved, field.name), getattr(loaded, field.name)
        np.testing.assert_array_equal(mine, other, field.name)
    assert loaded.checksum == saved.checksum
    assert [file.name for file in tmp_path.iterdir()] == ["mine.npz"]


def test_the_checksum_covers_what_matters():
    checksums = {
        beginning(**changes).checksum
        for changes in (
            {},
            {"actions": np.zeros(LENGTH, np.uint8)},
            {"episode_lengths": np.array([LENGTH - 1, 1]), "scores": (0, 9), "game_over": (0, 0)},
            {"scores": (6.0,)},
            {"game": "Pong"},
            {"frame_hash": "0" * 64},
            {"configuration": {}},
            {"game_over": (True,)},
            {"action_meaning": (0, 1, 4, 3)},
        )
    }
    assert len(checksums) == 9


def rewrite(path, *, without=(), **changes):
    """Changes arrays, or entries of `meta`, of a file; its checksum stays as it is."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(str(arrays["meta"]))
    for name, value in changes.items():
        (arrays if name in arrays else meta)[name] = value
    arrays["meta"] = np.array(
        json.dumps({name: value for name, value in meta.items() if name not in without})
    )
    np.savez(path, **{name: value for name, value in arrays.items() if name not in without})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros(LENGTH, np.uint8)}, "was changed after it was saved"),
        ({"scores": [8.0]}, "was changed after it was saved"),
        ({"frame_hash": "1" * 64}, "was changed after it was saved"),
        ({"without": ["actions"]}, "has no array actions"),
        ({"without": ["meta"]}, "has no array meta"),
        ({"without": ["scores", "config"]}, "has no config, scores"),
        (
            {"actions": np.zeros(LENGTH - 1, np.uint8)},
            r"episode_lengths\[0\] is 200, but .* 1 \.\. 199",
        ),
        (
            {"actions": np.full(LENGTH, 4, np.uint8)},
            r"actions\[0\] is 4, but must be finite in 0 \.\. 3",
        ),
        ({"actions": np.zeros(LENGTH)}, r"actions is float64\[200\], but must be uint8"),
        ({"episode_lengths": np.array([LENGTH + 1, -1])}, "episode_lengths.0. is 201"),
        ({"episode_lengths": np.array([LENGTH - 1])}, r"200 actions, but episodes of \[199\]"),
        ({"episode_lengths": np.array([100, 100])}, "scores has 1 entries for 2"),
        ({"format": 2}, "is of format 2, but 1 can be read"),
        ({"config": 3}, "config is 3, but must be an object"),
        ({"env": None}, "env is None, but must be plain text"),
    ],
)
def test_a_changed_file_is_refused(tmp_path, changes, message):
    path = tmp_path / "mine.npz"
    demos.save(beginning(), path)
    rewrite(path, **changes)
    with pytest.raises(demos.DemonstrationError, match=message) as caught:
        demos.load(path)
    assert str(path) in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "mine.npz"
    demos.save(beginning(), path)
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        with pytest.raises(demos.DemonstrationError, match=r"mine\.npz"):
            demos.load(path)
    # Any byte may be wrong; where it goes unnoticed it must not have mattered.
    for at in range(0, len(whole), 11):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x5A]) + whole[at + 1 :])
        try:
            assert demos.load(path).checksum == beginning().checksum
        except demos.DemonstrationError as error:
            assert "mine.npz" in str(error)  # noqa: PT017


def test_nothing_in_a_file_is_executed(tmp_path):
    path = tmp_path / "mine.npz"
    demos.save(beginning(), path)
    rewrite(path, actions=np.array([print], dtype=object))
    with pytest.raises(demos.DemonstrationError, match="holds objects, not numbers"):
        demos.load(path)


def test_a_file_that_is_not_there_or_of_another_game(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*none\.npz"):
        demos.load(tmp_path / "none.npz")
    demos.save(beginning(), tmp_path / "mine.npz")
    with pytest.raises(demos.DemonstrationError, match="of Breakout, not of Seaquest"):
        demos.load(tmp_path / "mine.npz", game="Seaquest")


def test_a_file_without_hash_is_checked_by_its_scores(tmp_path):
    path = tmp_path / "bare.npz"
    demos.save(beginning(), path)
    rewrite(path, without=["format", "checksum", "name", "envpool", "origin", "frame_hash"])
    loaded = demos.load(path)
    assert (loaded.name, loaded.frame_hash, loaded.envpool) == ("bare", None, None)
    demos.play(loaded, gamma=0.99)
    rewrite(path, scores=[6])
    with pytest.raises(demos.DemonstrationError, match="scores 9, not 6"):
        demos.play(demos.load(path), gamma=0.99)


def test_it_is_called_as_it_was_asked_for():
    assert demos.load_named("Freeway", "search").name == "search"


def test_names_that_are_not_there():
    with pytest.raises(demos.DemonstrationError, match=r"of Pong comes .* only of Breakout, Chop"):
        demos.load_named("Pong")
    with pytest.raises(
        demos.DemonstrationError,
        match=r"'best' of Freeway .* only 'default', 'strong', 'weak', 'search'",
    ):
        demos.load_named("Freeway", "best")


# --- The cache ---


@pytest.fixture
def count_plays(monkeypatch):
    """A list that grows by one with every demonstration that is really played."""
    calls = []
    real = playback.play

    def counted(*args, **kwargs):
        calls.append(kwargs)
        return real(*args, **kwargs)

    monkeypatch.setattr(playback, "play", counted)
    return calls


def test_the_cache_returns_what_playing_back_does(tmp_path, count_plays):
    folder = tmp_path / "made" / "here"
    for gamma in (0.9, 0.9, 0.5):
        rows = demos.to_rows(beginning(), gamma=gamma, cache_dir=folder)
        assert_same_rows(rows, demos.play(beginning(), gamma=gamma))
    assert len(count_plays) == 1
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"log_rewards": False},
        {"life_loss_is_terminal": False},
        {"last_action": 1},
        {"version": "9.9"},
        {"format": 99},
    ],
)
def test_the_cache_does_not_mix_things_up(tmp_path, count_plays, monkeypatch, change):
    demos.to_rows(beginning(), gamma=0.9, cache_dir=tmp_path)
    actions = beginning().actions.copy()
    assert actions[-1] != 1
    actions[-1] = change.get("last_action", actions[-1])
    if "version" in change:
        monkeypatch.setattr(atari, "envpool_version", lambda: change["version"])
    if "format" in change:
        monkeypatch.setattr(playback, "_CACHE_FORMAT", change["format"])
    switches = {name: value for name, value in change.items() if value is False}
    changed = beginning(actions=actions)
    rows = demos.to_rows(changed, gamma=0.9, cache_dir=tmp_path, **switches)
    np.testing.assert_array_equal(rows.action[:-1], actions)
    assert len(count_plays) == 2


def test_a_damaged_cache_is_played_anew(tmp_path, count_plays):
    fresh = demos.to_rows(beginning(), gamma=0.9, cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()

    def with_other_reward():
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
        arrays["reward"] = arrays["reward"] + 1
        np.savez(path, **arrays)

    damages = (
        lambda: path.write_bytes(whole[: len(whole) // 2]),
        lambda: path.write_bytes(b""),
        lambda: path.write_bytes(whole[:500] + b"damaged" + whole[507:]),
        with_other_reward,
    )
    for number, damage in enumerate(damages):
        damage()
        again = demos.to_rows(beginning(), gamma=0.9, cache_dir=tmp_path)
        assert len(count_plays) == number + 2
        assert_same_rows(again, fresh)
        # What was played anew is whole again.
        demos.to_rows(beginning(), gamma=0.9, cache_dir=tmp_path)
        assert len(count_plays) == number + 2


def test_a_cache_that_cannot_be_written_is_no_obstacle(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="not kept"):
        rows = demos.to_rows(beginning(), gamma=0.9, cache_dir=tmp_path / "file")
    assert len(rows.action) == LENGTH + 1


def test_a_failed_play_is_not_kept(tmp_path):
    with pytest.raises(demos.DemonstrationError):
        demos.to_rows(beginning(scores=(7.0,)), gamma=0.9, cache_dir=tmp_path)
    assert not list(tmp_path.iterdir())


def test_where_the_cache_is(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert demos.default_cache_dir() == tmp_path / "bqfd-jax" / "demonstrations"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        demos.to_rows(beginning(), gamma=0.9)
    assert len(list(demos.default_cache_dir().iterdir())) == 1
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    home = tmp_path / "home" / ".cache" / "bqfd-jax" / "demonstrations"
    for unusable in ("", "relative/path"):
        monkeypatch.setenv("XDG_CACHE_HOME", unusable)
        assert demos.default_cache_dir() == home
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert demos.default_cache_dir() == home
