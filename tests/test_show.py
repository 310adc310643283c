"""`python -m experiments.demos show`: text, contact sheet, film, and the check."""

import dataclasses
import re

import av
import matplotlib.image
import numpy as np
import pytest

from bqfd_jax import demos
from bqfd_jax.agents import CloneConfig
from experiments.demos import __main__ as command
from experiments.demos import show as demos_show

LENGTH, SCORE = 200, 9


@pytest.fixture
def beginning(tmp_path):
    """The first steps of Breakout's demonstration, as a list of actions."""
    whole = demos.load_named("Breakout", "search")
    path = tmp_path / "beginning.npz"
    demos.save(
        dataclasses.replace(
            whole,
            actions=whole.actions[:LENGTH],
            episode_lengths=np.array([LENGTH], np.int32),
            scores=(float(SCORE),),
            game_over=(False,),
            frame_hash=None,
            name="beginning",
        ),
        path,
    )
    return path


@pytest.fixture
def recorded(tmp_path):
    """Two episodes of frames: 30 steps that end, 20 that were cut."""
    path = tmp_path / "recorded.npz"
    rewards = np.zeros(50, np.float32)
    rewards[[4, 9, 40]] = [1, 2, 7]
    demos.save(
        demos.FrameDemonstration(
            game="Breakout",
            frames=np.arange(52, dtype=np.uint8)[:, None, None] * np.ones((84, 84), np.uint8),
            actions=np.repeat([0, 2, 3], [25, 20, 5]).astype(np.int32),
            rewards=rewards,
            episode_lengths=np.array([30, 20], np.int32),
            terminated=(True, False),
            num_actions=4,
            action_meaning=(0, 1, 3, 4),
            name="recorded",
        ),
        path,
    )
    return path


@pytest.fixture
def run(run_here, monkeypatch):
    monkeypatch.setattr(demos_show, "CONFIG", CloneConfig(updates=4, batch_size=4))

    def run(*options, code=0):
        left_with, text = run_here(command.main, "show", *options)
        assert left_with == code, text
        return text

    return run


def film_of(path):
    with av.open(str(path)) as film:
        stream = film.streams.video[0]
        return stream.frames, stream.width, stream.height


def test_a_list_of_actions(beginning, tmp_path, monkeypatch, run):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = run(beginning, "--check", "--no-measure")
    assert "; the paper's player scored 110\n" in text
    assert "in short" not in text
    assert "Breakout, 'beginning': 200 steps in 1 episodes, kept as actions" in text
    assert re.search(r"1\s+200\s+9\s+cut off", text)
    assert "in the first episode at step 42 (+1), 84 (+1)" in text
    assert "played anew, scores, ends are (it has no hash of frames) as it says" in text
    counts = {name: int(n) for name, n in re.findall(r"(NOOP|FIRE|RIGHT|LEFT) +(\d+)", text)}
    actions = demos.load(beginning).actions
    assert list(counts.values()) == np.bincount(actions, minlength=4).tolist()
    # Beside the file: a film of every observation, at twice the size and more.
    assert film_of(tmp_path / "beginning.mp4") == (LENGTH + 1, 336, 336)
    assert matplotlib.image.imread(tmp_path / "beginning.png").shape[0] > 500


def test_frames(recorded, tmp_path, run):
    text = run(recorded, "--check", "--no-measure", "--out", tmp_path / "here")
    assert "50 steps in 2 episodes, kept as frames" in text
    assert "score 5 in the mean, from 3 to 7" in text
    assert re.search(r"1\s+30\s+3\s+game over", text)
    assert re.search(r"2\s+20\s+7\s+cut off", text)
    assert "3 rewards, from 1 to 7, one in 16.7 steps" in text
    assert "at step 5 (+1), 10 (+2)" in text
    # What is held when an episode ends is held anew in the next.
    assert "one lasts 12.5 steps" in text
    assert re.search(r"FIRE +0 +0.0%", text)
    assert re.search(r"RIGHT +20 +40.0% █{16}\n", text)
    assert "fit its checksum" in text
    assert film_of(tmp_path / "here" / "recorded.mp4")[0] == 52
    assert (tmp_path / "here" / "recorded.png").exists()
    assert not (tmp_path / "recorded.png").exists()


def test_observations_that_are_no_pictures(tmp_path, run):
    path = tmp_path / "pole.npz"
    demos.save(
        demos.FrameDemonstration(
            game="CartPole-v1",
            frames=np.linspace(0, 1, 36, dtype=np.float32).reshape(9, 4),
            actions=np.array([0, 1, 1, 1, 1, 1, 1, 0]),
            rewards=np.zeros(8, np.float32),
            episode_lengths=np.array([8]),
            terminated=(True,),
            num_actions=2,
        ),
        path,
    )
    text = run(path)
    assert "no rewards at all" in text
    # A quarter and three quarters; three holds.
    assert "its actions have 0.81 of 1.00 bits per step, and one lasts 2.7 steps" in text
    assert "2 of them are foretold from the other 6; where the action changes (1 times)" in text
    assert re.search(r"the last action again +50% +\d", text)
    assert "in short: too little to say: of 2 steps that could be foretold, 1 have" in text
    assert "paper's player" not in text
    assert "no mp4" in text
    assert (tmp_path / "pole.png").exists()
    assert not (tmp_path / "pole.mp4").exists()


def test_a_check_that_fails(beginning, tmp_path, monkeypatch, run):
    shown = demos.load(beginning)
    demos.save(dataclasses.replace(shown, scores=(8.0,)), beginning)
    text = run(beginning, "--check", code=2)
    assert "scores 9, not 8" in text
    assert "Traceback" not in text
    assert not (tmp_path / "beginning.png").exists()


def test_a_changed_file_and_names_that_mean_nothing(recorded, run):
    data = bytearray(recorded.read_bytes())
    data[len(data) // 2] ^= 0xFF
    recorded.write_bytes(data)
    assert "recorded.npz" in run(recorded, code=2)
    assert "there is no file" in run("nothing.npz", code=2)
    assert "Add --game" in run("default", code=2)
    assert "no demonstration of Pong" in run("default", "--game", "Pong", code=2)


def test_timeline_by_hand():
    reward = np.zeros(80)
    assert demos_show.timeline(reward) == "none"
    reward[[0, 41, 79]] = [1, -8, 4]
    line = demos_show.timeline(reward)
    assert len(line) == 40
    # The largest is a whole block, an eighth of it the smallest; a loss is as tall as a gain.
    assert (line[0], line[20], line[39]) == ("▁", "█", "▄")
    assert line.count(" ") == 37
