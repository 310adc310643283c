"""Other people's recordings: small files made in each exact layout, whole and broken."""

import io
import json
import re
import tarfile
import zipfile

import h5py
import numpy as np
import pytest
from PIL import Image

from bqfd_jax import demos
from bqfd_jax.demos import importing
from bqfd_jax.demos.importing import actions as console
from bqfd_jax.demos.importing import screens
from bqfd_jax.envs import ale
from experiments.demos import __main__ as command

NOOP, FIRE, UP, RIGHT, LEFT = range(5)
UPFIRE, RIGHTFIRE = 10, 11
# In Breakout's own set.
NONE_HERE, FIRE_HERE, RIGHT_HERE, LEFT_HERE = range(4)


def screen(value):
    """A screen of one brightness: it stays that brightness when it is shrunk."""
    return np.full((210, 160, 3), value, np.uint8)


def encode(pixels, kind="PNG", **options):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


def shown(demonstration):
    """The brightness of each frame."""
    return demonstration.frames[:, 40, 40].tolist()


# --- Atari-HEAD ---

STEM = "55_RZ_2464601_Aug-11-10-18-09"
HEADER = "frame_id,episode_id,score,duration(ms),unclipped_reward,action,gaze_positions"
GAZE = ("80.5,100.25", "null", "1.0,2.0,3.0,4.0,5.0,6.0", "80.5,101.0,80.5,102.0")


class Head:
    """A trial: lines that can be changed one by one, and a picture for each.

    Frame i has brightness 10 i and number i.
    """

    def __init__(self, *episodes, stem=STEM, first=1):
        self.stem, self.header = stem, HEADER
        self.lines, self.pictures = {}, {}
        number = first
        for episode, (acts, rewards) in enumerate(episodes):
            score = 0
            for action, reward in zip(acts, rewards, strict=True):
                gaze = GAZE[number % len(GAZE)]
                name = f"RZ_2464601_{number}"
                score += reward
                self.lines[number] = [name, episode, score, 50, reward, action, gaze]
                self.pictures[name] = encode(screen(10 * number % 256))
                number += 1

    def set(self, number, field, value):
        self.lines[number][HEADER.split(",").index(field)] = value
        return self

    def table(self):
        lines = [",".join(map(str, line)) for line in self.lines.values()]
        return "\n".join([self.header, *lines, ""])

    def archive(self):
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w:bz2") as archive:
            # In no order, as tar found them.
            for name in sorted(self.pictures):
                member = tarfile.TarInfo(f"{self.stem}/{name}.png")
                member.size = len(self.pictures[name])
                archive.addfile(member, io.BytesIO(self.pictures[name]))
        return stream.getvalue()

    def folder(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.stem}.txt").write_text(self.table())
        (folder / f"{self.stem}.tar.bz2").write_bytes(self.archive())
        return folder


def head_zip(path, *trials):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("breakout/README.txt", "not a trial")
        for trial in trials:
            archive.writestr(f"breakout/{trial.stem}.txt", trial.table())
            archive.writestr(f"breakout/{trial.stem}.tar.bz2", trial.archive())
    return path


def two_games():
    """Nine frames until the game is over, six of the next."""
    return Head(
        ([RIGHT] * 4 + [LEFT] * 5, [0, 1, 0, 4, 0, 0, 7, 0, 2]),
        ([FIRE] * 6, [0, 0, 1, 0, 5, 0]),
    )


def check_two_games(imported):
    found = imported.demonstration
    assert (found.game, found.num_actions, found.action_meaning) == ("Breakout", 4, (0, 1, 3, 4))
    # 4 + 4 + 1 frames, the last step being short because the game ended; then 4, and 2 left over.
    assert found.episode_lengths.tolist() == [3, 1]
    assert found.terminated == (True, False)
    assert found.rewards.tolist() == [5, 7, 2, 1]
    assert found.actions.tolist() == [RIGHT_HERE, LEFT_HERE, LEFT_HERE, FIRE_HERE]
    # The first frame, then the maximum of the last two of a step: of frames 4 and 5, 8 and 9.  The
    # one after a game's end is not told, and the last known one stands for it.
    assert shown(found) == [10, 50, 90, 90, 100, 140]
    assert found.lives is None
    assert imported.counts["frames told of"] == 15
    assert imported.counts["frames at a cut that fill no step"] == 2
    assert imported.counts["episodes that ended"] == imported.counts["episodes that were cut"] == 1
    assert len(imported.remarks) == 1
    assert "lives are not told" in imported.remarks[0]


def test_atari_head_from_a_zip(tmp_path):
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", two_games()))
    check_two_games(imported)
    assert imported.demonstration.origin["trials"] == [STEM]
    assert imported.demonstration.name == "breakout"


def test_atari_head_from_folders_and_files(tmp_path):
    folder = two_games().folder(tmp_path / "breakout" / "highscore")
    (folder / "action_enums.txt").write_text("0 NOOP\n")
    for path in (tmp_path / "breakout", folder / f"{STEM}.txt", folder / f"{STEM}.tar.bz2"):
        check_two_games(importing.read("atari-head", path))
    # Somebody has unpacked the pictures.
    unpacked = folder / STEM
    unpacked.mkdir()
    for name, data in two_games().pictures.items():
        (unpacked / f"{name}.png").write_bytes(data)
    (folder / f"{STEM}.tar.bz2").unlink()
    check_two_games(importing.read("atari-head", folder, game="breakout"))


def test_trials_come_in_the_order_of_their_numbers_and_can_be_chosen(tmp_path):
    late = Head(([LEFT] * 5, [3] * 5), stem="120_RZ_1_Sep-1-1-1-1")
    path = head_zip(tmp_path / "breakout.zip", late, two_games())
    everything = importing.read("atari-head", path).demonstration
    assert everything.rewards.tolist() == [5, 7, 2, 1, 12]
    assert importing.read("atari-head", path, only=["120"]).demonstration.rewards.tolist() == [12]
    check_two_games(importing.read("atari-head", path, only=[STEM]))
    with pytest.raises(demos.DemonstrationError, match=r"no such trial .*120_RZ"):
        importing.read("atari-head", path, only=["7"])


def test_the_limit_of_steps_cuts(tmp_path):
    path = head_zip(tmp_path / "breakout.zip", two_games())
    imported = importing.read("atari-head", path, max_steps=2)
    assert imported.demonstration.episode_lengths.tolist() == [2]
    assert imported.demonstration.terminated == (False,)
    assert imported.counts["episodes that the limit of steps cut"] == 1


@pytest.mark.parametrize("field", ["episode_id", "unclipped_reward", "action"])
def test_null_where_a_value_is_needed_cuts_there(tmp_path, field):
    # Frame 6 of 13: five frames before it, seven after it.
    trial = Head(([RIGHT] * 13, range(13))).set(6, field, "null")
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    found = imported.demonstration
    assert found.episode_lengths.tolist() == [1, 1]
    assert found.terminated == (False, False)
    assert shown(found) == [10, 50, 70, 110]
    assert found.rewards.tolist() == [0 + 1 + 2 + 3, 6 + 7 + 8 + 9]
    assert imported.counts["lines with null where a value is needed"] == 1


@pytest.mark.parametrize("field", ["score", "duration(ms)", "gaze_positions"])
def test_null_elsewhere_does_not_matter(tmp_path, field):
    trial = two_games()
    for number in trial.lines:
        trial.set(number, field, "null")
    check_two_games(importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial)))


def test_an_unknown_frame_name_cuts(tmp_path):
    trial = Head(([RIGHT] * 13, range(13))).set(6, "frame_id", "null")
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    assert shown(imported.demonstration) == [10, 50, 70, 110]


def test_missing_frames_are_never_bridged(tmp_path):
    without_line = Head(([RIGHT] * 13, range(13)))
    del without_line.lines[6]
    without_picture = Head(([RIGHT] * 13, range(13)))
    del without_picture.pictures["RZ_2464601_6"]
    for trial, what in (
        (without_line, "gaps in the numbers of frames"),
        (without_picture, "lines without a picture"),
    ):
        path = head_zip(tmp_path / "breakout.zip", trial)
        imported = importing.read("atari-head", path)
        assert shown(imported.demonstration) == [10, 50, 70, 110]
        assert imported.demonstration.terminated == (False, False)
        assert imported.counts[what] == 1


def test_a_game_whose_end_is_missing_did_not_end_for_us(tmp_path):
    trial = two_games()
    del trial.lines[9]  # the last frame of the first game
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    assert imported.demonstration.terminated == (False, False)
    assert imported.demonstration.rewards.tolist() == [5, 1]


def test_actions_are_mapped_by_what_they_do_and_counted(tmp_path):
    trial = Head(
        (
            [UPFIRE] * 4 + [UP] * 4 + [RIGHTFIRE] * 4 + [RIGHTFIRE, LEFT, LEFT, LEFT] + [LEFT] * 2,
            range(18),
        )
    )
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    found, counts = imported.demonstration, imported.counts
    # RIGHTFIRE is both: the step is left out, what comes after it is another episode.
    assert found.episode_lengths.tolist() == [2, 1]
    assert found.actions.tolist() == [FIRE_HERE, NONE_HERE, LEFT_HERE]
    assert found.rewards.tolist() == [6, 22, 12 + 13 + 14 + 15]
    assert shown(found) == [10, 50, 90, 130, 170]
    assert counts["frames with UPFIRE, taken as FIRE"] == 4
    assert counts["frames with UP, taken as NOOP"] == 4
    assert counts["frames with RIGHTFIRE, which none of the game's actions does"] == 5
    assert counts["steps left out because of their action"] == 1
    assert counts["steps within which the action changed"] == 1


@pytest.mark.parametrize(
    ("pressed", "chosen"),
    [
        ([LEFT, LEFT, RIGHT, FIRE], LEFT_HERE),
        ([LEFT, LEFT, RIGHT, RIGHT], RIGHT_HERE),
        ([RIGHT, RIGHT, LEFT, LEFT], LEFT_HERE),
        ([LEFT, RIGHT, FIRE, NOOP], NONE_HERE),
        # Two ways to do nothing are one.
        ([NOOP, UP, LEFT, RIGHT], NONE_HERE),
    ],
)
def test_the_action_pressed_most_often_the_latest_of_equals(tmp_path, pressed, chosen):
    trial = Head(([*pressed, NOOP], [0] * 5))
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    assert imported.demonstration.actions.tolist() == [chosen]


def test_a_trial_that_goes_on_with_a_saved_game(tmp_path):
    trial = Head(([RIGHT] * 9, [0, 0, 4, 0, 0, 0, 0, 1, 0]))
    score = 120
    for number, line in trial.lines.items():
        score += line[4]
        trial.set(number, "score", score)
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    assert imported.counts["trials that go on with a saved game"] == 1
    assert any("saved game, at 120 points" in remark for remark in imported.remarks)
    # What was earned before does not count.
    assert imported.demonstration.scores == (5.0,)


def test_pictures_in_other_colours_of_png(tmp_path):
    trial = Head(([RIGHT] * 5, [0] * 5))
    with Image.open(io.BytesIO(trial.pictures["RZ_2464601_1"])) as picture:
        for name, mode in (("1", "RGBA"), ("4", "P"), ("5", "L")):
            stream = io.BytesIO()
            picture.convert(mode, palette=Image.Palette.ADAPTIVE).save(stream, "PNG")
            trial.pictures[f"RZ_2464601_{name}"] = stream.getvalue()
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    assert shown(imported.demonstration) == [10, 10]


def tampered(change):
    trial = two_games()
    change(trial)
    return trial


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.set(3, "action", "18"), r"line 4, field action: '18' is not .* 0 \.\. 17"),
        (lambda t: t.set(3, "action", "left"), "line 4, field action: 'left' is not a whole"),
        (lambda t: t.set(3, "action", ""), "line 4, field action: ''"),
        (lambda t: t.set(5, "unclipped_reward", "1.5"), "line 6, field unclipped_reward: '1.5'"),
        (lambda t: t.set(5, "score", "ten"), "line 6, field score: 'ten'"),
        (lambda t: t.set(5, "duration(ms)", "x"), r"line 6, field duration\(ms\): 'x'"),
        (lambda t: t.set(5, "episode_id", "a"), "line 6, field episode_id: 'a'"),
        (lambda t: t.set(5, "frame_id", "RZ_x"), "line 6, field frame_id: 'RZ_x'"),
        (lambda t: t.set(5, "frame_id", "../RZ_5"), "line 6, field frame_id"),
        (lambda t: t.set(5, "frame_id", "RZ_2464601_4"), "line 6, .* frame 4 comes after frame 4"),
        (lambda t: t.lines.update({4: ["RZ_2464601_4", 0]}), "line 5: there are 2 fields"),
        (lambda t: setattr(t, "header", "frame,action"), "line 1: the header is 'frame,action'"),
        (
            lambda t: t.pictures.update({"RZ_2464601_1": b"no picture"}),
            r"RZ_2464601_1\.png is no picture",
        ),
        (
            lambda t: t.pictures.update({"RZ_2464601_1": encode(screen(1))[:100]}),
            r"RZ_2464601_1\.png is no picture",
        ),
        (
            lambda t: t.pictures.update({"RZ_2464601_1": encode(screen(1)[:100])}),
            r"RZ_2464601_1\.png is 100 x 160, but screens are 210 x 160",
        ),
        (lambda t: t.pictures.clear(), "tar.bz2 holds no picture"),
        (lambda t: t.pictures.pop("RZ_2464601_1") and t.lines.clear(), "no frames of Breakout"),
    ],
)
def test_a_broken_trial_names_file_line_and_field(tmp_path, change, message):
    path = head_zip(tmp_path / "breakout.zip", tampered(change))
    with pytest.raises(demos.DemonstrationError, match=message) as caught:
        importing.read("atari-head", path)
    assert "breakout.zip" in str(caught.value)


def test_damaged_archives(tmp_path):
    folder = two_games().folder(tmp_path / "breakout")
    archive = folder / f"{STEM}.tar.bz2"
    whole = archive.read_bytes()
    for data in (b"", b"no archive", whole[: len(whole) // 2]):
        archive.write_bytes(data)
        with pytest.raises(demos.DemonstrationError, match=r"tar\.bz2 (is damaged|holds no)"):
            importing.read("atari-head", folder)
    archive.unlink()
    with pytest.raises(demos.DemonstrationError, match="holds no trial"):
        importing.read("atari-head", folder)
    with pytest.raises(demos.DemonstrationError, match=r"its \.tar\.bz2 is missing"):
        importing.read("atari-head", folder / f"{STEM}.txt")
    (tmp_path / "breakout.zip").write_bytes(b"no zip")
    with pytest.raises(demos.DemonstrationError, match="damaged or no zip"):
        importing.read("atari-head", tmp_path / "breakout.zip")
    with pytest.raises(demos.DemonstrationError, match="no file or folder"):
        importing.read("atari-head", tmp_path / "nothing.zip")


def test_links_and_paths_of_an_archive_mean_nothing(tmp_path):
    trial = Head(([RIGHT] * 5, [0] * 5))
    secret = tmp_path / "RZ_2464601_5.png"
    secret.write_bytes(encode(screen(250)))
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:bz2") as archive:
        for name in sorted(trial.pictures)[:-1]:
            member = tarfile.TarInfo(f"../../{name}.png")
            member.size = len(trial.pictures[name])
            archive.addfile(member, io.BytesIO(trial.pictures[name]))
        link = tarfile.TarInfo("RZ_2464601_5.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    folder = trial.folder(tmp_path / "breakout")
    (folder / f"{STEM}.tar.bz2").write_bytes(stream.getvalue())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(demos.DemonstrationError, match="1 lines without a picture"):
        importing.read("atari-head", folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_real_game_comes_out_as_envpool_shows_it(tmp_path):
    """Every emulator frame of a played game, written as a trial."""
    whole = demos.load_named("Breakout", "search")
    played = demos.play(
        demos.ActionDemonstration(
            game="Breakout",
            actions=whole.actions[:45],
            episode_lengths=np.array([45]),
            scores=(1.0,),
            game_over=(False,),
            configuration=whole.configuration,
            action_meaning=whole.action_meaning,
        ),
        gamma=0.9,
    )
    emulator = ale.Ale("Breakout")
    rewards, pictures = [], [encode(emulator.screen())]
    for action in whole.actions[:45].repeat(4):
        rewards.append(int(emulator._ale.act(emulator._actions[action])))
        pictures.append(encode(emulator.screen()))
    pressed = [whole.action_meaning[action] for action in whole.actions[:45].repeat(4)]
    trial = Head(([*pressed, NOOP], [*rewards, 0]))
    trial.pictures = dict(zip(trial.pictures, pictures, strict=True))
    imported = importing.read("atari-head", head_zip(tmp_path / "breakout.zip", trial))
    rows = demos.to_rows(imported.demonstration, gamma=0.9)
    for field in ("action", "reward", "is_first", "is_last"):
        np.testing.assert_array_equal(getattr(rows, field), getattr(played, field), field)
    assert np.abs(rows.frame.astype(int) - played.frame).max() <= 1


@pytest.mark.parametrize("reward", [5000, -1, 1])
def test_a_reward_that_the_score_contradicts_is_told_of(tmp_path, reward):
    trial = two_games().set(3, "unclipped_reward", reward)
    imported = importing.read("atari-head", trial.folder(tmp_path / "breakout"))
    assert imported.counts["rewards that the score contradicts"] == 1
    assert "1 rewards that the score contradicts: see" in imported.remarks[1]
    lines = agc_lines(6)
    lines[2][1] = 5000
    imported = importing.read("agc", agc(tmp_path, lines=lines))
    assert imported.counts["rewards that the score contradicts"] == 1


def test_a_score_may_or_may_not_hold_the_reward_of_its_line(tmp_path):
    trial = two_games()
    for line in trial.lines.values():
        line[2] -= line[4]
    check_two_games(importing.read("atari-head", trial.folder(tmp_path / "breakout")))


def test_half_a_table_is_told_of(tmp_path):
    trial = two_games()
    for number in range(9, 16):
        del trial.lines[number]
    imported = importing.read("atari-head", trial.folder(tmp_path / "breakout"))
    assert imported.counts["pictures that no line tells of"] == 7
    assert "7 pictures that no line tells of: a part" in imported.remarks[1]
    path = agc(tmp_path, lines=agc_lines(6, ends=False), pictures=range(10))
    assert importing.read("agc", path).counts["pictures that no line tells of"] == 4


# --- Atari Grand Challenge ---


def agc(root, *, game="pinball", number=17, lines=None, pictures=None):
    """A recording: lines (frame, reward, score, terminal, action), a picture for each."""
    table = root / "trajectories" / game / f"{number}.txt"
    folder = root / "screens" / game / str(number)
    table.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(", ".join(map(str, line)) + "\n" for line in lines)
    table.write_text(f"db_id: 17, max_score: 9\nframe,reward,score,terminal, action\n{text}")
    for frame in range(len(lines)) if pictures is None else pictures:
        (folder / f"{frame}.png").write_bytes(encode(screen(10 * (frame + 1))))
    return root


def agc_lines(count, *, ends=True):
    return [
        [frame, frame, sum(range(frame)), frame == count - 1 and ends, (FIRE, RIGHT)[frame < 4]]
        for frame in range(count)
    ]


def test_agc(tmp_path):
    agc(tmp_path, lines=agc_lines(6))
    agc(tmp_path, number=5, lines=agc_lines(10, ends=False))
    imported = importing.read("agc", tmp_path)
    found = imported.demonstration
    assert (found.game, found.num_actions) == ("VideoPinball", 9)
    # Number 5 comes before number 17.
    assert found.episode_lengths.tolist() == [2, 2]
    assert found.terminated == (False, True)
    assert found.rewards.tolist() == [6, 4 + 5 + 6 + 7, 6, 4 + 5]
    assert shown(found) == [10, 50, 90, 10, 50, 60]
    right, fire = (console.action_set("VideoPinball").index(a) for a in (RIGHT, FIRE))
    assert found.actions.tolist() == [right, fire, right, fire]
    assert imported.demonstration.origin["recordings"] == ["5", "17"]
    assert importing.read("agc", tmp_path, only=["17"]).demonstration.terminated == (True,)


def test_agc_with_gaps_and_lines_after_the_end(tmp_path):
    lines = agc_lines(13, ends=False)
    lines[11][3] = True
    agc(tmp_path, game="mspacman", lines=lines, pictures=[*range(5), *range(6, 13)])
    imported = importing.read("agc", tmp_path)
    assert imported.demonstration.game == "MsPacman"
    assert imported.demonstration.terminated == (False, True)
    # Frames 0 to 4, then 6 to 11: FIRE does nothing in this game.
    assert shown(imported.demonstration) == [10, 50, 70, 110, 120]
    assert imported.counts["lines without a picture"] == 1
    assert imported.counts["lines after a game's end"] == 1
    assert imported.counts["frames with FIRE, taken as NOOP"] == 6


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([2, 0, 0, "False", 18], r"17\.txt, line 5, field action: '18'"),
        ([2, 0, 0, "maybe", 3], r"17\.txt, line 5, field terminal: 'maybe'"),
        ([2, "x", 0, "False", 3], r"17\.txt, line 5, field reward: 'x'"),
        ([2, 0, "x", "False", 3], r"17\.txt, line 5, field score: 'x'"),
        ([1, 0, 0, "False", 3], r"17\.txt, line 5, field frame: frame 1 comes after frame 1"),
        ([2, 0, 0, "False"], r"17\.txt, line 5: there are 4 fields, but 5"),
        ([2, 0, 0, "False", 3, 4], r"17\.txt, line 5: there are 6 fields, but 5"),
    ],
)
def test_a_broken_recording_names_file_line_and_field(tmp_path, line, message):
    lines = agc_lines(6)
    lines[2] = line
    agc(tmp_path, lines=lines)
    with pytest.raises(demos.DemonstrationError, match=message):
        importing.read("agc", tmp_path)


def test_agc_games_and_folders(tmp_path):
    with pytest.raises(demos.DemonstrationError, match="no folder trajectories"):
        importing.read("agc", tmp_path)
    agc(tmp_path, lines=agc_lines(6))
    agc(tmp_path, game="qbert", lines=agc_lines(6))
    with pytest.raises(demos.DemonstrationError, match="has Qbert, VideoPinball; say which"):
        importing.read("agc", tmp_path)
    assert importing.read("agc", tmp_path, game="VideoPinball").demonstration.num_actions == 9
    with pytest.raises(demos.DemonstrationError, match="has Qbert, VideoPinball, not Pong"):
        importing.read("agc", tmp_path, game="Pong")
    with pytest.raises(ValueError, match="did you mean VideoPinball"):
        importing.read("agc", tmp_path, game="VideoPinbal")
    (tmp_path / "screens" / "pinball" / "17").rename(tmp_path / "gone")
    with pytest.raises(demos.DemonstrationError, match=r"no recording with pictures .*17"):
        importing.read("agc", tmp_path, game="pinball")
    (tmp_path / "trajectories" / "pinball" / "17.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "gone").rename(tmp_path / "screens" / "pinball" / "17")
    with pytest.raises(demos.DemonstrationError, match=r"17\.txt is no text"):
        importing.read("agc", tmp_path, game="pinball")


# --- Minari ---


def minari(folder, episodes, *, metadata=None):
    data = folder / "data"
    data.mkdir(parents=True)
    with h5py.File(data / "main_data.hdf5", "w", track_order=True) as file:
        for number, episode in enumerate(episodes):
            group = file.create_group(f"episode_{number}")
            group.attrs["id"], group.attrs["total_steps"] = number, len(episode["actions"])
            for name, value in episode.items():
                if isinstance(value, dict):
                    for key, inner in value.items():
                        group.create_dataset(f"{name}/{key}", data=inner)
                elif isinstance(value, list) and isinstance(value[0], bytes):
                    kind = h5py.vlen_dtype(np.uint8)
                    coded = group.create_dataset(name, (len(value),), dtype=kind)
                    for at, picture in enumerate(value):
                        coded[at] = np.frombuffer(picture, np.uint8)
                else:
                    group.create_dataset(name, data=value)
    if metadata is not None:
        (data / "metadata.json").write_text(json.dumps(metadata))
    return folder


BREAKOUT = {
    "total_episodes": 2,
    "dataset_id": "atari/breakout/expert-v0",
    "env_spec": json.dumps({"id": "ALE/Breakout-v5", "kwargs": {"frameskip": 4}}),
    "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": 4}),
}


def minari_episode(acts, *, ends, **changes):
    T = len(acts)
    return {
        "observations": np.stack([screen(10 * (at + 1)) for at in range(T + 1)]),
        "actions": np.array(acts, np.int64),
        "rewards": np.arange(T, dtype=np.float64),
        "terminations": np.array([False] * (T - 1) + [ends]),
        "truncations": np.array([False] * (T - 1) + [not ends]),
    } | changes


def check_minari(imported):
    found = imported.demonstration
    assert (found.game, found.num_actions, found.name) == (
        "Breakout",
        4,
        "atari-breakout-expert-v0",
    )
    assert found.episode_lengths.tolist() == [3, 2]
    assert found.terminated == (True, False)
    assert found.actions.tolist() == [1, 2, 3, 0, 2]
    assert found.rewards.tolist() == [0, 1, 2, 0, 1]
    # Every observation is kept, and none is mixed with another.
    assert shown(found) == [10, 20, 30, 40, 10, 20, 30]
    assert "not the maximum of two" in imported.remarks[0]


def test_minari(tmp_path):
    episodes = [minari_episode([1, 2, 3], ends=True), minari_episode([0, 2], ends=False)]
    folder = minari(tmp_path / "expert-v0", episodes, metadata=BREAKOUT)
    for path in (folder, folder / "data", folder / "data" / "main_data.hdf5"):
        check_minari(importing.read("minari", path))
    only = importing.read("minari", folder, only=["1"]).demonstration
    assert only.episode_lengths.tolist() == [2]
    # Older datasets tell of themselves within the file.
    (folder / "data" / "metadata.json").unlink()
    with pytest.raises(demos.DemonstrationError, match="does not tell its environment"):
        importing.read("minari", folder)
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file.attrs.update(BREAKOUT)
    check_minari(importing.read("minari", folder))


def test_minari_pictures_as_jpeg(tmp_path):
    episode = minari_episode([1, 2, 3], ends=True)
    coded = [encode(picture, "JPEG", quality=95) for picture in episode["observations"]]
    other = minari_episode([0, 2], ends=False)
    folder = minari(
        tmp_path / "expert-v0",
        [episode | {"observations": coded}, other],
        metadata=BREAKOUT,
    )
    check_minari(importing.read("minari", folder))
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_0/observations"][2] = np.frombuffer(b"no picture", np.uint8)
    with pytest.raises(
        demos.DemonstrationError, match=r"episode_0/observations\[2\] is no picture"
    ):
        importing.read("minari", folder)


def test_minari_with_all_actions_lives_and_single_frames(tmp_path):
    metadata = BREAKOUT | {
        "env_spec": json.dumps({"id": "ALE/Breakout-v5", "kwargs": {"frameskip": 1}}),
        "action_space": json.dumps({"type": "Discrete", "n": 18}),
    }
    lives = np.array([5, 5, 5, 5, 4, 4, 4])
    episode = minari_episode([LEFT] * 4 + [UP] * 2, ends=True, infos={"lives": lives})
    folder = minari(tmp_path / "expert-v0", [episode], metadata=metadata)
    found = importing.read("minari", folder).demonstration
    assert found.actions.tolist() == [LEFT_HERE, NONE_HERE]
    assert found.rewards.tolist() == [0 + 1 + 2 + 3, 4 + 5]
    assert found.lives.tolist() == [5, 4, 4]
    assert shown(found) == [10, 50, 70]


def test_minari_of_another_environment(tmp_path):
    episode = minari_episode([1, 0], ends=True)
    episode["observations"] = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    metadata = {"env_spec": json.dumps({"id": "CartPole-v1"})}
    folder = minari(tmp_path / "cartpole-v0", [episode], metadata=metadata)
    found = importing.read("minari", folder).demonstration
    assert (found.game, found.num_actions, found.action_meaning) == ("CartPole-v1", 2, None)
    np.testing.assert_array_equal(found.frames, episode["observations"])
    assert found.frames.dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": np.zeros(2)}, r"episode_0/rewards is float64\[2\], but must be numbers \[3\]"),
        (
            {"observations": np.zeros((3, 210, 160, 3), np.uint8)},
            r"observations is \[3, 210, 160, 3\], but 3 actions need 4",
        ),
        ({"rewards": np.array([0, np.nan, 0])}, r"episode_0/rewards\[1\] is nan"),
        ({"actions": np.array([0, -1, 0])}, r"episode_0/actions\[1\] is -1"),
        ({"actions": np.array([0, 4, 0])}, "action 4 is used, but action_space says there are 4"),
        (
            {"actions": np.zeros((3, 2))},
            r"episode_0/actions is float64\[3, 2\], but must be integers",
        ),
        ({"terminations": np.array([1, 0, 0])}, r"terminations\[0\] is set, but the episode goes"),
        ({"observations": np.zeros((4, 84, 84, 4), np.uint8)}, r"uint8\[84, 84, 4\].*no stacks"),
    ],
)
def test_a_broken_dataset_names_file_episode_and_field(tmp_path, changes, message):
    episode = minari_episode([1, 2, 3], ends=True, **changes)
    folder = minari(tmp_path / "expert-v0", [episode], metadata=BREAKOUT)
    with pytest.raises(demos.DemonstrationError, match=message) as caught:
        importing.read("minari", folder)
    assert "main_data.hdf5" in str(caught.value)


def test_other_broken_datasets(tmp_path):
    with pytest.raises(demos.DemonstrationError, match=r"no main_data\.hdf5"):
        importing.read("minari", tmp_path)
    (tmp_path / "main_data.hdf5").write_bytes(b"no data")
    with pytest.raises(demos.DemonstrationError, match="damaged or no HDF5"):
        importing.read("minari", tmp_path)
    episode = minari_episode([1, 2, 3], ends=True)
    del episode["truncations"]
    folder = minari(tmp_path / "a", [episode], metadata=BREAKOUT)
    with pytest.raises(demos.DemonstrationError, match="episode_0 has no truncations"):
        importing.read("minari", folder)
    box = {"action_space": json.dumps({"type": "Box", "shape": [2]})}
    episode = minari_episode([1, 2, 3], ends=True)
    folder = minari(tmp_path / "b", [episode], metadata=BREAKOUT | box)
    with pytest.raises(demos.DemonstrationError, match="of a Box space"):
        importing.read("minari", folder)
    (folder / "data" / "metadata.json").write_text("{")
    with pytest.raises(demos.DemonstrationError, match=r"metadata\.json is damaged or no JSON"):
        importing.read("minari", folder)


# --- Arrays ---


def arrays(**changes):
    """Two episodes of three steps and two, of 84 x 84 frames."""
    fields = {
        "frames": np.arange(10, 80, 10, dtype=np.uint8)[:, None, None]
        * np.ones((84, 84), np.uint8),
        "actions": np.array([1, 2, 3, 0, 2]),
        "rewards": np.array([0.0, 1.0, 2.0, 0.0, 1.0]),
        "terminated": np.array([0, 0, 1, 0, 0], bool),
        "truncated": np.array([0, 0, 0, 0, 1], bool),
        "env": np.array("Breakout"),
    }
    return {name: value for name, value in (fields | changes).items() if value is not None}


def save_arrays(tmp_path, **changes):
    np.savez(tmp_path / "mine.npz", **arrays(**changes))
    return tmp_path / "mine.npz"


def test_arrays_with_every_observation(tmp_path):
    lives = np.array([5, 5, 4, 4, 5, 5, 5])
    imported = importing.read("npz", save_arrays(tmp_path, lives=lives))
    found = imported.demonstration
    assert (found.game, found.num_actions, found.name) == ("Breakout", 4, "mine")
    assert found.episode_lengths.tolist() == [3, 2]
    assert found.terminated == (True, False)
    assert shown(found) == [10, 20, 30, 40, 50, 60, 70]
    assert found.lives.tolist() == lives.tolist()
    assert found.rewards.tolist() == [0, 1, 2, 0, 1]
    one = importing.read("npz", save_arrays(tmp_path), only=["1"]).demonstration
    assert shown(one) == [50, 60, 70]


def test_arrays_with_the_observations_that_were_acted_on(tmp_path):
    imported = importing.read("npz", save_arrays(tmp_path, frames=arrays()["frames"][:5]))
    found = imported.demonstration
    # What the game's end looked like does not matter; what a cut led to does, and is not there.
    assert found.episode_lengths.tolist() == [3, 1]
    assert shown(found) == [10, 20, 30, 30, 40, 50]
    assert imported.counts["frames at a cut that fill no step"] == 1


def test_arrays_of_every_emulator_frame_and_of_all_actions(tmp_path):
    path = save_arrays(
        tmp_path,
        frames=None,
        observations=np.stack([screen(10 * (at + 1)) for at in range(10)]),
        actions=np.array([LEFT] * 4 + [UPFIRE] * 5),
        rewards=np.arange(9),
        terminated=np.arange(9) == 8,
        truncated=np.zeros(9, bool),
        frame_skip=np.array(1),
        action_meaning=np.arange(18),
    )
    imported = importing.read("npz", path)
    assert imported.demonstration.actions.tolist() == [LEFT_HERE, FIRE_HERE, FIRE_HERE]
    assert imported.demonstration.rewards.tolist() == [6, 4 + 5 + 6 + 7, 8]
    assert shown(imported.demonstration) == [10, 50, 90, 100]
    assert imported.counts["frames with UPFIRE, taken as FIRE"] == 5


def test_arrays_of_another_environment(tmp_path):
    observations = np.linspace(0, 1, 14, dtype=np.float64).reshape(7, 2)
    path = save_arrays(tmp_path, frames=observations, env=None, num_actions=np.array(6))
    with pytest.raises(demos.DemonstrationError, match="has no array env; give"):
        importing.read("npz", path)
    found = importing.read("npz", path, game="MountainCar-v0").demonstration
    assert (found.game, found.num_actions) == ("MountainCar-v0", 6)
    np.testing.assert_array_equal(found.frames, observations)


def test_an_episode_without_an_end_is_cut(tmp_path):
    imported = importing.read("npz", save_arrays(tmp_path, truncated=np.zeros(5, bool)))
    assert imported.demonstration.terminated == (True, False)
    assert imported.counts["episodes without an end"] == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None, "truncated": None}, "has no array rewards, truncated"),
        ({"rewards": np.zeros(4)}, r"rewards is float64\[4\], but must be numbers \[5\]"),
        ({"rewards": np.array([0, 0, np.inf, 0, 0])}, r"rewards\[2\] is inf"),
        ({"actions": np.zeros(5)}, r"actions is float64\[5\]"),
        ({"actions": np.array([0, 1, -1, 0, 0])}, r"actions\[2\] is -1"),
        ({"actions": np.array([0, 1, 4, 0, 0])}, r"actions\[2\] is 4, but there are only 4"),
        ({"truncated": np.ones(5, bool)}, r"truncated\[2\] is set, and terminated too"),
        ({"frames": np.zeros((6, 84, 84), np.uint8)}, "6 observations for 5 actions in 2 episodes"),
        ({"frames": np.zeros((7, 4, 84, 84), np.uint8)}, r"uint8\[4, 84, 84\].*no stacks"),
        ({"frames": np.zeros((7, 84, 84))}, r"float64\[84, 84\]"),
        ({"frame_skip": np.array(3)}, "frame_skip is 3, but must be 1 or 4"),
        ({"action_meaning": np.array([0, 1, 2, 18])}, r"action_meaning\[3\] is 18, .* 0 \.\. 17"),
        ({"num_actions": np.array(3)}, r"actions\[2\] is 3, but num_actions says there are 3"),
        ({"lives": np.zeros(3, int)}, r"lives is int64\[3\], but must be integers \[7\]"),
        ({"env": np.array("x"), "frames": np.full((7, 2), np.nan)}, r"observations\[0, 0\] is nan"),
        ({"frames": np.array([print] * 7)}, "damaged or no .npz"),
        ({"frame_skip": np.array([4, 4])}, r"frame_skip is int64\[2\], but must be integers \[\]"),
        ({"action_meaning": np.array(3)}, r"action_meaning is int64\[\], but must be integers"),
        ({"num_actions": np.array("abc")}, r"num_actions is <U3\[\], but must be integers \[\]"),
        ({"lives": np.full(7, np.nan)}, r"lives is float64\[7\], but must be integers \[7\]"),
        ({"env": np.array(5)}, r"env is int64\[\], but must be a text \[\]"),
        ({"frames": np.zeros((7, 0))}, r"observations float64\[7, 0\]"),
        ({"rewards": np.full(5, 1e300)}, r"rewards\[0\] is 1e\+300"),
    ],
)
def test_broken_arrays_name_file_and_entry(tmp_path, changes, message):
    path = save_arrays(tmp_path, **changes)
    with pytest.raises(demos.DemonstrationError, match=message) as caught:
        importing.read("npz", path)
    assert str(path) in str(caught.value)


def test_a_game_that_contradicts_the_file_is_refused(tmp_path):
    path = save_arrays(tmp_path)
    with pytest.raises(demos.DemonstrationError, match="shows Breakout, not Pong"):
        importing.read("npz", path, game="Pong")
    assert importing.read("npz", path, game="breakout").demonstration.game == "Breakout"


# --- Actions ---


@pytest.mark.parametrize("game", ["Breakout", "Freeway", "Seaquest", "VideoPinball", "MsPacman"])
def test_the_actions_of_a_game_are_those_of_the_emulator(game):
    meaning = console.action_set(game)
    assert meaning == ale.Ale(game).action_meaning
    mapped = console.by_meaning(meaning)
    # A game's own actions are themselves, and nothing is remarked of them.
    for index, number in enumerate(meaning):
        assert mapped.number[number] == index
        assert number not in mapped.remark


def test_mapping_by_hand():
    freeway = console.by_meaning(console.action_set("Freeway"))  # NOOP, UP, DOWN
    by_name = dict(zip(console.NAMES, freeway.number, strict=True))
    assert by_name["UPRIGHTFIRE"] == by_name["UPLEFT"] == by_name["UP"] == 1
    assert by_name["RIGHTFIRE"] == by_name["FIRE"] == by_name["NOOP"] == 0
    assert by_name["DOWNLEFT"] == by_name["DOWNFIRE"] == 2
    assert None not in console.by_meaning(console.action_set("Seaquest")).number
    pinball = console.by_meaning(console.action_set("VideoPinball"))
    impossible = {
        n for n, index in zip(console.NAMES, pinball.number, strict=True) if index is None
    }
    assert {"UPRIGHT", "DOWNFIRE", "DOWNLEFTFIRE"} <= impossible
    assert not impossible & {"UPFIRE", "RIGHTFIRE", "DOWN"}


def test_a_game_without_a_shipped_demonstration_asks_the_emulator():
    assert console.action_set("Pong") == ale.Ale("Pong").action_meaning


# --- The command ---


@pytest.fixture
def run_command(run_here):
    def run(*options):
        code, text = run_here(command.main, *options)
        return code, re.sub(r"\s+", " ", text)

    return run


def test_the_command_writes_a_demonstration_and_says_what_was_left_out(tmp_path, run_command):
    path = head_zip(tmp_path / "breakout.zip", two_games().set(2, "action", "null"))
    out = tmp_path / "human.npz"
    code, text = run_command(
        "import", "--from", "atari-head", path, "--out", out, "--name", "human"
    )
    assert code == 0, text
    assert "1 lines with null where a value is needed" in text
    assert f"show {out}" in text
    assert f"reading {STEM} ..." in text
    loaded = demos.load(out, game="Breakout")
    assert (loaded.name, loaded.origin["from"]) == ("human", "Atari-HEAD")
    assert loaded.origin["counts"]["lines with null where a value is needed"] == 1
    assert loaded.rewards.tolist() == [0 + 4 + 0 + 0, 7 + 0 + 2, 1]
    code, text = run_command("import", "--from", "atari-head", path, "--out", out)
    assert code == 2
    assert "exists already" in text


def test_the_command_names_a_file_after_what_it_holds(tmp_path, monkeypatch, run_command):
    monkeypatch.chdir(tmp_path)
    episodes = [minari_episode([1, 2, 3], ends=True)]
    folder = minari(tmp_path / "expert-v0", episodes, metadata=BREAKOUT)
    code, text = run_command("import", "--from", "minari", folder)
    assert code == 0, text
    assert demos.load("Breakout-atari-breakout-expert-v0.npz").rewards.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (
            lambda tmp: head_zip(tmp / "breakout.zip", two_games().set(3, "action", "x")),
            ["atari-head"],
            "line 4, field action: 'x'",
        ),
        (
            lambda tmp: head_zip(tmp / "mystery.zip", two_games()),
            ["atari-head"],
            "does not tell which game",
        ),
        (lambda tmp: tmp, ["agc"], "no folder trajectories"),
        (lambda tmp: tmp / "none.npz", ["npz"], "there is no file"),
        (lambda tmp: save_arrays(tmp), ["npz", "--game", "CartPole-v1", "--max-steps", "-1"], "-1"),
        (lambda tmp: save_arrays(tmp), ["npz", "--only", "7"], "no step could be used"),
    ],
)
def test_bad_input_ends_with_a_message_and_nothing_written(
    tmp_path, run_command, make, options, message
):
    path = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    rest = ["--out", tmp_path / "out.npz", *options[1:]]
    code, text = run_command("import", path, "--from", options[0], *rest)
    assert code == 2
    assert message in text
    assert "Traceback" not in text
    assert sorted(tmp_path.rglob("*")) == before


def test_screens_are_checked_once_more_where_they_are_used():
    with pytest.raises(demos.DemonstrationError, match="here is no picture"):
        screens.decode_screen(b"", "here")


def test_layouts_are_known_by_name(tmp_path):
    with pytest.raises(ValueError, match="source is 'zip', but must be one of atari-head, agc"):
        importing.read("zip", tmp_path)
    with pytest.raises(ValueError, match="max_steps is -1, but must be at least 0"):
        importing.read("npz", tmp_path, max_steps=-1)
