"""Recording a person's play: keys, undo and restart, and the server with its unwelcome guests."""

import asyncio
import contextlib
import dataclasses
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from bqfd_jax import demos
from bqfd_jax.demos import DemonstrationError
from bqfd_jax.demos.making import recording
from bqfd_jax.demos.making.keys import KEYS, HeldKeys, action_of, legend
from bqfd_jax.envs import ale
from bqfd_jax.runs.errors import UsageError
from experiments.demos import journal
from experiments.demos import record as demos_record
from experiments.demos import server as record_server
from experiments.demos.recordings import Files
from experiments.demos.show import describe

ROOT = Path(__file__).parent.parent
ALL_ACTIONS = tuple(range(18))
BREAKOUT, FREEWAY = (0, 1, 3, 4), (0, 2, 5)
PINBALL = (0, 1, 2, 3, 4, 5, 10, 11, 12)


# Keys.


@pytest.mark.parametrize(
    ("pressed", "actions", "number"),
    [
        ("", ALL_ACTIONS, 0),
        ("fire", ALL_ACTIONS, 1),
        ("up", ALL_ACTIONS, 2),
        ("right", ALL_ACTIONS, 3),
        ("left", ALL_ACTIONS, 4),
        ("down", ALL_ACTIONS, 5),
        ("up right", ALL_ACTIONS, 6),
        ("left up", ALL_ACTIONS, 7),
        ("down right", ALL_ACTIONS, 8),
        ("down left", ALL_ACTIONS, 9),
        ("fire up", ALL_ACTIONS, 10),
        ("right fire", ALL_ACTIONS, 11),
        ("left fire", ALL_ACTIONS, 12),
        ("down fire", ALL_ACTIONS, 13),
        ("up right fire", ALL_ACTIONS, 14),
        ("fire left up", ALL_ACTIONS, 15),
        ("down fire right", ALL_ACTIONS, 16),
        ("down left fire", ALL_ACTIONS, 17),
        # Of opposite ones the later.
        ("left right", ALL_ACTIONS, 3),
        ("right left", ALL_ACTIONS, 4),
        ("up down fire", ALL_ACTIONS, 13),
        # What cannot be done together: the later.
        ("left fire", BREAKOUT, 1),
        ("fire left", BREAKOUT, 4),
        ("up right fire", PINBALL, 11),
        ("fire up right", PINBALL, 11),
        ("fire right up", PINBALL, 10),
        ("up left", PINBALL, 4),
        ("down fire", PINBALL, 1),
        # What has no use does not stand in the way of what has.
        ("left up", BREAKOUT, 4),
        ("up", BREAKOUT, 0),
        ("left right fire", FREEWAY, 0),
        ("up fire", FREEWAY, 2),
    ],
)
def test_what_keys_mean(pressed, actions, number):
    assert actions[action_of(pressed.split(), actions)] == number


def test_every_game_can_do_what_its_keys_say():
    for actions in (ALL_ACTIONS, BREAKOUT, FREEWAY, PINBALL):
        for key in legend(actions).keys:
            assert action_of([key], actions) != 0


@pytest.mark.parametrize(
    ("actions", "keys", "together"),
    [
        (ALL_ACTIONS, "up down left right fire", "Keys held together count together."),
        (BREAKOUT, "left right fire", "One key at a time: the key pressed last counts."),
        (FREEWAY, "up down", "One key at a time: the key pressed last counts."),
        (
            PINBALL,
            "up down left right fire",
            "Together: ← + space, → + space, ↑ + space. Otherwise the key pressed last counts.",
        ),
    ],
)
def test_the_legend(actions, keys, together):
    assert legend(actions) == (tuple(keys.split()), together)


def test_a_tap_between_two_steps_is_not_missed():
    keys = HeldKeys()
    assert keys.update(["left"])
    assert keys.update(["left", "fire"])
    assert not keys.update(["left"])
    assert keys.take() == ("left", "fire")  # the newest last
    assert keys.take() == ("left",)
    keys.update([])
    assert keys.take() == ()


# Sessions.


def playing(game, *, wanted_steps=10**6, **options):
    session = recording.Session(game, wanted_steps=wanted_steps, **options)
    session.play()
    return session


def random_keys(number, seed=0):
    """Keys that are held for a while, as people do."""
    rng = np.random.default_rng(seed)
    return [
        keys
        for _ in range(number // 5 + 1)
        for keys in [list(rng.permutation(KEYS)[: rng.integers(4)])] * 5
    ][:number]


def lose(session):
    """Plays Breakout until it is over: serves, and never meets the ball again."""
    while not session.paused:
        session.step(["fire"])


def test_what_is_played_plays_back_where_training_does(tmp_path):
    session = playing("Breakout")
    lose(session)
    assert session.note.startswith("Game over: ")
    session.play()
    for keys in random_keys(60):
        session.step(keys)
    played = session.demonstration()
    assert played.game_over == (True, False)
    assert played.episode_lengths[1] == 60
    assert played.frame_hash is None
    checked = demos.verified(played)
    demos.save(checked, tmp_path / "played.npz")
    assert (tmp_path / "played.npz").stat().st_size < 4096
    found = demos.load(tmp_path / "played.npz", game="Breakout")
    assert found.frame_hash == checked.frame_hash
    assert found.envpool is not None
    assert found.origin == {
        "made_by": "a person at the keyboard", "undone_steps": 0, "speeds": [1.0]
    }  # fmt: skip
    demos.play(found, gamma=0.99)


def test_a_play_that_does_not_play_back_is_noticed():
    session = playing("Freeway")
    session.step(["up"])
    played = dataclasses.replace(session.demonstration(), scores=(3.0,))
    with pytest.raises(DemonstrationError, match="scores 0, not 3"):
        demos.verified(played)


@pytest.mark.parametrize(
    ("game", "before", "undone"),
    [("Breakout", 50, 20), ("Breakout", 30, 15), ("Breakout", 9, 9), ("Seaquest", 31, 15)],
)
def test_undo_leaves_no_trace(game, before, undone):
    keys = random_keys(before)
    undoing, plain = playing(game), playing(game)
    for some in keys:
        undoing.step(some)
    undoing.undo(undone)
    assert undoing.paused
    for some in keys[: before - undone]:
        plain.step(some)
    assert_same(undoing, plain)
    undoing.play()
    for some in random_keys(40, seed=1):
        undoing.step(some)
        plain.step(some)
    assert_same(undoing, plain)
    # What was played since counts, nothing from before.
    undoing.undo(8)
    plain.undo(8)
    assert_same(undoing, plain)
    assert undoing.demonstration().origin["undone_steps"] == undone + 8


def assert_same(some, other):
    assert (some.num_steps, some.score, some.lives) == (other.num_steps, other.score, other.lives)
    np.testing.assert_array_equal(some.screen, other.screen)
    if some.num_steps:
        np.testing.assert_array_equal(some.demonstration().actions, other.demonstration().actions)


def test_undo_goes_back_across_the_end_of_a_game():
    session = playing("Breakout")
    lose(session)
    length, score = session.num_steps, session.score
    session.play()
    session.step([])
    assert (session.game_number, session.finished_scores) == (2, (score,))
    session.undo()  # to the beginning of the second game
    assert (session.game_number, session.num_steps, session.lives) == (2, length, 5)
    session.undo()  # to the end of the first
    assert (session.game_number, session.num_steps, session.lives) == (1, length, 0)
    session.undo()
    assert session.num_steps == length - recording.UNDO_STEPS
    session.play()
    assert session.game_number == 1
    lose(session)
    assert demos.verified(session.demonstration()).game_over == (True,)


def test_there_is_nothing_to_undo_at_first():
    session = playing("Freeway")
    assert not session.can_undo
    session.undo()
    assert not session.paused


def test_a_restart_drops_the_running_game_until_it_is_undone():
    session = playing("Freeway")
    for _ in range(50):
        session.step(["up"])
    assert session.score == 1
    screen = session.screen
    session.restart()
    assert (session.num_steps, session.score, session.paused) == (0, 0, True)
    session.play()
    session.step(["up"])
    session.restart()  # the game of one step is dropped too
    session.undo()
    assert session.num_steps == 1
    session.undo()
    session.undo()
    assert (session.num_steps, session.score) == (50, 1)
    np.testing.assert_array_equal(session.screen, screen)
    demos.verified(session.demonstration())


def test_a_restart_keeps_games_that_are_over():
    session = playing("Breakout")
    session.step([])
    session.restart()
    session.play()
    lose(session)
    length = session.num_steps
    session.restart()
    assert (session.game_number, session.num_steps) == (2, length)
    session.undo()  # back to its end, and not to what was dropped before it began
    assert (session.game_number, session.num_steps) == (1, length)
    session.play()
    session.play()
    session.step([])
    session.restart()
    assert session.demonstration().game_over == (True,)


def test_games_are_cut_where_training_cuts_them():
    session = playing("Freeway", max_episode_steps=20)
    for _ in range(20):
        session.step(["up"])
    assert session.note.startswith("This game is as long as it may be")
    session.play()
    session.step(["up"])
    assert (session.game_number, session.num_steps) == (2, 21)
    assert demos.verified(session.demonstration()).game_over == (False, False)


def test_it_pauses_when_there_is_enough():
    session = playing("Freeway", wanted_steps=3)
    for _ in range(3):
        session.step([])
    assert session.note.startswith("That is all that was wanted")
    with pytest.raises(RuntimeError, match="paused"):
        session.step([])
    session.play()
    session.step([])
    assert not session.paused


def test_pictures_show_two_frames_each_as_agents_see_them():
    session, emulator = playing("Seaquest"), ale.Ale("Seaquest")
    frames = [emulator.screen()]
    for _ in range(3):
        pictures = session.step(["right"])
        emulator.step(3, screens=frames)
        expected = [np.maximum(a, b) for a, b in zip(frames[-5:-1], frames[-4:], strict=True)]
        np.testing.assert_array_equal(pictures, expected)
    assert len(frames) == 13
    assert any((a != b).any() for a, b in itertools.pairwise(frames))


def test_lives_where_there_are_none():
    assert playing("Freeway").lives is None
    assert playing("Seaquest").lives == 4


def test_nothing_is_no_demonstration():
    with pytest.raises(DemonstrationError, match="nothing was played"):
        playing("Freeway").demonstration()


def test_what_continues_what():
    session = playing("Breakout")
    session.step([])
    first = session.demonstration()
    lose(session)
    second = session.demonstration()
    session.play()
    session.step([])
    third = session.demonstration()
    for i, later in enumerate((first, second, third)):
        for j, earlier in enumerate((first, second, third)):
            assert recording.continues(later, earlier) == (i >= j)
    other = dataclasses.replace(second, actions=second.actions[::-1].copy())
    other.actions[-1] = 2
    assert not recording.continues(third, other)
    # The same actions, but a game that ended earlier.
    lengths = np.array([first.episode_lengths[0], len(second.actions) - 1], np.int32)
    split = dataclasses.replace(
        second, episode_lengths=lengths, scores=(0.0, 0.0), game_over=(False, False)
    )
    assert not recording.continues(second, split)
    assert not recording.continues(split, second)


# The server.


@contextlib.asynccontextmanager
async def serving(folder, *, game="Freeway", steps=1000):
    session = recording.Session(game, wanted_steps=steps)
    recorder = record_server.Recorder(session, Files(folder / "played.npz", game))
    listening = record_server.listen(0)
    async with record_server.start(recorder, listening):
        yield Place(listening.getsockname()[1], recorder.token, recorder, session)


@dataclasses.dataclass
class Place:
    port: int
    token: str
    recorder: record_server.Recorder | None = None
    session: recording.Session | None = None

    def join(self, *, token=None, **options):
        token = self.token if token is None else token
        options = {"origin": f"http://127.0.0.1:{self.port}"} | options
        return connect(f"ws://127.0.0.1:{self.port}/play?token={token}", **options)

    async def get(self, target, *headers, method="GET"):
        """A request by hand; status, headers and body."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        lines = [f"{method} {target} HTTP/1.1", *headers, "", ""]
        writer.write("\r\n".join(lines).encode("latin-1"))
        answer = (await asyncio.wait_for(reader.read(), 10)).decode()
        writer.close()
        head, _, body = answer.partition("\r\n\r\n")
        return int(head.split()[1]), head, body


class Page:
    """What the page does with its connection."""

    def __init__(self, connection, *, attentive=True):
        self.connection = connection
        self.attentive = attentive
        self.pictures = []

    async def say(self, type, value=None):
        await self.connection.send(
            json.dumps({"type": type} | ({} if value is None else {"value": value}))
        )

    async def until(self, condition, seconds=20):
        """Listens until a state fulfils something, and returns it."""
        async with asyncio.timeout(seconds):
            while True:
                message = await self.connection.recv()
                if isinstance(message, bytes):
                    self.pictures.append(message)
                    continue
                state = json.loads(message)
                if self.attentive and "number" in state:
                    # Whoever said it may be gone already.
                    with contextlib.suppress(ConnectionClosed):
                        await self.say("seen", state["number"])
                if condition(state):
                    return state


def is_paused(state):
    return state.get("paused") is True


def saved_as(status):
    return lambda state: "save" in state and state["save"]["status"] == status


async def play_a_little(place, steps=10):
    """Plays some steps and leaves; the number of steps there are then."""
    async with place.join() as connection:
        page = Page(connection)
        await page.say("speed", 4)
        await page.say("keys", ["up"])
        await page.until(lambda state: state.get("steps", 0) >= steps)
        await page.say("pause")
        return (await page.until(is_paused))["steps"]


def test_play_score_and_save(tmp_path):
    async def play():
        async with serving(tmp_path) as place, place.join() as connection:
            page = Page(connection)
            hello = await page.until(lambda message: message["type"] == "hello")
            assert (hello["game"], hello["keys"]) == ("Freeway", ["up", "down"])
            assert hello["paper_score"] == 27
            first = await page.until(lambda state: True)
            assert (first["paused"], first["steps"], first["wanted"]) == (True, 0, 1000)
            await page.say("speed", 4)
            await page.say("keys", ["up"])
            state = await page.until(lambda state: state["score"] == 1)
            assert state["lives"] is None
            await page.say("save")
            state = await page.until(saved_as("saved"))
            assert state["paused"]
            return state, page.pictures

    state, pictures = asyncio.run(play())
    found = demos.load(tmp_path / "played.npz", game="Freeway")
    assert (sum(found.scores), len(found.actions)) == (1, state["steps"])
    assert found.frame_hash is not None
    rows = demos.play(found, gamma=1.0)
    assert rows.action.shape == (state["steps"] + 1,)
    assert "score 1 in the mean, from 1 to 1; the paper's player scored 27" in describe(found, rows)
    assert "plays back to the same score, 1." in state["save"]["text"]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert max(map(len, pictures)) < 8192


def test_the_page_is_closed_to_the_outside(tmp_path):
    async def look():
        async with serving(tmp_path) as place:
            target, host = f"/?token={place.token}", f"Host: localhost:{place.port}"
            return [await place.get(target, host) for _ in range(2)]

    (status, head, body), (_, _, again) = asyncio.run(look())
    assert status == 200
    nonce = re.search(r"script-src 'nonce-([\w-]+)'", head)[1]
    assert body.count(f'nonce="{nonce}"') == 2
    assert nonce not in again
    assert "default-src 'none'" in head
    assert "frame-ancestors 'none'" in head
    assert "no-referrer" in head
    assert "no-store" in head
    assert not re.findall(r'(?:src|href)="(?!data:)|https?://|@import|url\(', body)
    # Styles and handlers in attributes would be blocked.
    assert not re.findall(r"\s(?:style|on\w+)=", body)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost:9", "LOCALHOST", "[::1]:8765"])
def test_names_of_this_end_of_a_tunnel(tmp_path, name):
    async def look():
        async with serving(tmp_path) as place:
            return await place.get(f"/?token={place.token}", f"Host: {name}")

    status, head, _ = asyncio.run(look())
    assert status == 200
    assert f"connect-src ws://{name};" in head


def test_requests_that_are_refused(tmp_path):
    async def knock():
        async with serving(tmp_path) as place:
            host, good = f"Host: 127.0.0.1:{place.port}", f"/?token={place.token}"
            for target, headers, status in [
                ("/", [host], 403),
                ("/?token=", [host], 403),
                ("/?token=wrong", [host], 403),
                (f"/?token={place.token}x", [host], 403),
                (f"{good}&token={place.token}", [host], 403),
                ("/?token=%ff%00", [host], 403),
                (good, [], 403),
                (good, ["Host: evil.example"], 403),
                (good, [f"Host: evil.example:{place.port}"], 403),
                (good, ["Host: localhost.evil.example"], 403),
                (good, ["Host: localhost@evil.example"], 403),
                (good, ["Host: evil.example@localhost"], 403),
                (good, ["Host: localhost:port"], 403),
                (good, [host, "Host: localhost"], 403),
                (f"/record.html?token={place.token}", [host], 404),
                (f"/../../etc/passwd?token={place.token}", [host], 404),
                ("//[", [host], 400),
            ]:
                answer = await place.get(target, *headers)
                assert (target, headers, answer[0]) == (target, headers, status)
                assert place.token not in answer[1] + answer[2]
            # The icon that browsers ask for with every refusal: empty, for no complaint of theirs.
            assert (await place.get("/favicon.ico", host))[::2] == (200, "")
            assert (await place.get("/favicon.ico", "Host: evil.example"))[0] == 403
            for method in ("POST", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "get", "X"):
                status, _, body = await place.get(good, host, method=method)
                assert (method, status) == (method, 405)
                assert place.token not in body
            # No request at all.
            for junk in (b"\x16\x03\x01\x02\x00\x01", b"POST / HTTP/1.1\r\n\r\n", b"\r\n" * 9):
                reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
                writer.write(junk)
                writer.write_eof()
                await asyncio.wait_for(reader.read(), 10)
                writer.close()
            assert (await place.get(good, host))[0] == 200

    asyncio.run(knock())


def test_connections_that_are_refused(tmp_path):
    async def knock():
        async with serving(tmp_path) as place:
            own = f"http://127.0.0.1:{place.port}"
            for options in [
                {"token": "wrong"},
                {"token": ""},
                {"origin": "http://evil.example"},
                {"origin": None},
                {"origin": "null"},
                {"origin": f"https://127.0.0.1:{place.port}"},
                {"origin": f"http://localhost:{place.port}"},
                {"origin": own, "additional_headers": {"Origin": own}},
            ]:
                with pytest.raises(InvalidStatus) as refused:
                    await place.join(**options)
                assert (options, refused.value.response.status_code) == (options, 403)
            assert await play_a_little(place) >= 10

    asyncio.run(knock())


MALFORMED = [
    "",
    "no json",
    "[]",
    "7",
    "null",
    '{"type": 7}',
    '{"value": 1}',
    '{"type": "quit"}',
    '{"type": "save", "value": "/etc/passwd"}',
    '{"type": "save", "path": "/etc/passwd"}',
    '{"type": "keys"}',
    '{"type": "keys", "value": "up"}',
    '{"type": "keys", "value": ["jump"]}',
    '{"type": "keys", "value": [["up"]]}',
    '{"type": "keys", "value": ["up", "up"]}',
    '{"type": "speed", "value": 1000}',
    '{"type": "speed", "value": true}',
    '{"type": "speed", "value": NaN}',
    '{"type": "speed", "value": "1"}',
    '{"type": "seen", "value": -1}',
    '{"type": "seen", "value": 0.5}',
    "[" * 500,
    b"\x00\x01",
]


def test_malformed_messages_end_the_connection_and_nothing_else(tmp_path):
    async def knock():
        async with serving(tmp_path) as place:
            steps = await play_a_little(place)
            for message in MALFORMED:
                async with place.join() as connection:
                    await connection.send(message)
                    with pytest.raises(ConnectionClosed) as closed:
                        await Page(connection, attentive=False).until(lambda state: False)
                assert (message, closed.value.rcvd.code) == (message, record_server.MALFORMED)
                assert closed.value.rcvd.reason.startswith("malformed message: ")
            async with place.join() as connection:
                await connection.send('{"type": "keys", "value": []}'.ljust(513))
                with pytest.raises(ConnectionClosed) as closed:
                    await Page(connection, attentive=False).until(lambda state: False)
            assert closed.value.rcvd.code == 1009
            assert place.session.num_steps == steps
            assert await play_a_little(place, steps + 1) > steps

    asyncio.run(knock())


def test_one_player_at_a_time(tmp_path):
    async def play():
        async with serving(tmp_path) as place:
            async with place.join() as first:
                page = Page(first)
                await page.until(is_paused)
                async with place.join() as second:
                    with pytest.raises(ConnectionClosed) as closed:
                        await second.recv()
                assert closed.value.rcvd.code == record_server.BUSY
                assert "another page" in closed.value.rcvd.reason
                await page.say("keys", ["up"])
                await page.until(lambda state: state["steps"] == 3)
            assert await play_a_little(place) >= 10

    asyncio.run(play())


def test_a_page_that_is_gone_leaves_what_was_played(tmp_path):
    async def play():
        async with serving(tmp_path) as place:
            connection = await place.join()
            page = Page(connection)
            await page.say("keys", ["up"])
            await page.until(lambda state: state.get("steps") == 5)
            connection.transport.abort()  # no goodbye
            async with asyncio.timeout(10):
                while not place.session.paused:
                    await asyncio.sleep(0.01)
            steps = place.session.num_steps
            assert steps >= 5
            async with place.join() as connection:
                state = await Page(connection).until(is_paused)
                assert (state["steps"], state["note"]) == (
                    steps,
                    "Nothing was lost. Press a key to go on.",
                )

    asyncio.run(play())


@pytest.mark.slow
def test_a_player_who_went_silent_makes_room(tmp_path):
    async def play():
        async with serving(tmp_path) as place:
            silent = await place.join(ping_interval=None)
            silent.transport.pause_reading()  # so that no ping is answered
            start, is_in = time.monotonic(), False
            async with asyncio.timeout(30):
                while not is_in:
                    async with place.join() as connection:
                        with contextlib.suppress(ConnectionClosed):
                            is_in = bool(await connection.recv())
                    await asyncio.sleep(0.5)
            assert time.monotonic() - start > 4
            silent.transport.abort()

    asyncio.run(play())


def test_commands(tmp_path):
    async def play():
        async with serving(tmp_path, steps=70) as place, place.join() as connection:
            page = Page(connection)
            for command in ("slower", "slower", "slower"):
                await page.say(command)
            await page.until(lambda state: state.get("speed") == 0.25)
            for command in ("faster",) * 5:
                await page.say(command)
            await page.until(lambda state: state["speed"] == 4)
            await page.say("play")
            state = await page.until(lambda state: state["steps"] == 70)
            assert state["paused"]
            # Too soon after it stopped by itself.
            for keys in (["up"], []):
                await page.say("keys", keys)
                assert (await page.until(lambda state: True))["paused"]
            await page.say("undo")
            state = await page.until(lambda state: state["steps"] != 70)
            assert (state["steps"], state["paused"], state["can_undo"]) == (25, True, True)
            await page.say("restart")
            state = await page.until(lambda state: state["steps"] != 25)
            assert (state["steps"], state["can_undo"]) == (0, True)
            await page.say("undo")
            assert (await page.until(lambda state: state["steps"] != 0))["steps"] == 25
            await page.say("play")
            await page.until(lambda state: not state["paused"])
            await page.say("pause")
            assert (await page.until(is_paused))["note"].startswith("Paused")

    asyncio.run(play())


def test_small_messages_are_sent_at_once(tmp_path):
    """Otherwise pictures wait for each other, up to 40 ms."""

    async def play():
        async with serving(tmp_path) as place, place.join() as connection:
            await Page(connection).until(is_paused)
            accepted = place.recorder.player.transport.get_extra_info("socket")
            return accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    assert asyncio.run(play()) != 0


def test_a_game_goes_on_no_faster_than_asked(tmp_path):
    async def play():
        async with serving(tmp_path, steps=10**6) as place, place.join() as connection:
            page = Page(connection)
            await page.say("speed", 4)
            await page.say("play")
            start = time.monotonic()
            state = await page.until(lambda state: state.get("steps", 0) >= 60)
            return state["steps"], time.monotonic() - start, len(page.pictures)

    steps, seconds, pictures = asyncio.run(play())
    assert steps / 60 - 0.1 <= seconds < 4
    assert pictures <= steps + 4  # one for each, so fast


def test_a_game_waits_for_who_cannot_follow(tmp_path):
    async def play():
        async with serving(tmp_path, steps=10**6) as place, place.join() as connection:
            page = Page(connection, attentive=False)
            await page.say("speed", 4)
            await page.say("play")
            with pytest.raises(TimeoutError):
                await page.until(lambda state: state.get("steps", 0) > 40, seconds=2)
            standing = place.session.num_steps
            assert 20 < standing <= 40
            await page.say("seen", place.recorder.shown)
            await page.until(lambda state: state.get("steps", 0) > standing)

    asyncio.run(play())


def test_nothing_that_was_saved_is_lost(tmp_path):
    def names():
        return sorted(path.name for path in tmp_path.glob("*.npz"))

    async def save(page):
        await page.say("save")
        await page.until(saved_as("saving"))
        return (await page.until(saved_as("saved")))["save"]["text"]

    async def play():
        async with serving(tmp_path) as place:
            (tmp_path / "played-2.npz").write_text("somebody else's")
            await play_a_little(place, 50)
            async with place.join() as connection:
                assert "played.npz" in await save(Page(connection))
            steps = await play_a_little(place, 60)
            async with place.join() as connection:
                page = Page(connection)
                # What goes on from what was saved takes its place ...
                assert "played.npz" in await save(page)
                assert names() == ["played-2.npz", "played.npz"]
                assert len(demos.load(tmp_path / "played.npz").actions) == steps
                # ... and anything else does not.
                await page.say("undo")
                assert "played-3.npz" in await save(page)
            assert len(demos.load(tmp_path / "played.npz").actions) == steps
            assert len(demos.load(tmp_path / "played-3.npz").actions) == steps - 45
            assert (tmp_path / "played-2.npz").read_text() == "somebody else's"

    asyncio.run(play())


def test_a_check_keeps_nobody_waiting(tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(demos, "verified", lambda played: release.wait(20) and played)

    async def play():
        async with serving(tmp_path) as place:
            await play_a_little(place)
            async with place.join() as connection:
                page = Page(connection)
                await page.say("save")
                await page.until(saved_as("saving"))
                # Already there, should anything happen.
                async with asyncio.timeout(10):
                    while not (tmp_path / "played.npz").exists():
                        await asyncio.sleep(0.01)
                await page.say("save")  # one at a time
                await page.say("keys", ["up"])
                steps = place.session.num_steps
                await page.until(lambda state: state["steps"] > steps)
                release.set()
                await page.until(saved_as("saved"))

    asyncio.run(play())


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (DemonstrationError("scores 0, not 3"), "of no use for training: scores 0, not 3"),
        (OSError(28, "No space left on device"), "Not saved: No space left on device."),
    ],
)
def test_a_save_that_fails_is_told_and_can_be_repeated(tmp_path, monkeypatch, error, text):
    def fail(*arguments):
        raise error

    async def play():
        async with serving(tmp_path) as place:
            await play_a_little(place)
            module, name = (demos, "verified") if error.args[0] != 28 else (demos, "save")
            async with place.join() as connection:
                page = Page(connection)
                with monkeypatch.context() as patch:
                    patch.setattr(module, name, fail)
                    await page.say("save")
                    state = await page.until(saved_as("failed"))
                assert text in state["save"]["text"]
                await page.say("save")
                await page.until(saved_as("saved"))
        assert [path.name for path in tmp_path.glob("*.npz")] == ["played.npz"]

    asyncio.run(play())


# What was not saved.


@pytest.fixture(autouse=True)
def elsewhere(tmp_path_factory, monkeypatch):
    """Where things go that cannot go where they should."""
    folder = tmp_path_factory.mktemp("state")
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder / "bqfd-jax" / "recordings"


def test_a_journal_tells_what_was_played(tmp_path, elsewhere):
    told = []
    kept = journal.Journal(tmp_path / "mine.npz", "Freeway", told.append)
    kept.update([[]])
    assert not list(tmp_path.iterdir())
    # Steps, an undo, another way, a second game, a restart, an undo of both.
    for games in ([[1]], [[1, 2]], [[1]], [[1, 0]], [[1, 0], []], [[1, 0], [2, 2]], [[1, 0], []]):
        kept.update(games)
        assert journal.read(kept.path) == ("Freeway", games)
    kept.update([[1, 0, 1]])
    assert journal.read(kept.path) == ("Freeway", [[1, 0, 1]])
    assert kept.path == tmp_path / "mine.npz.unsaved"
    # Nobody else's as long as it is written; a line that was cut off is left out.
    assert journal.leftovers(tmp_path, "Freeway") == {}
    whole = kept.path.read_bytes()
    kept.remove()
    assert not list(tmp_path.iterdir())
    (tmp_path / "old.npz.unsaved").write_bytes(whole[:-3])
    assert journal.read(tmp_path / "old.npz.unsaved") == ("Freeway", [[1, 0], []])
    assert journal.leftovers(tmp_path, "Freeway") == {tmp_path / "old.npz.unsaved": 2}
    assert journal.leftovers(tmp_path, "Pong") == {}
    assert not told


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]\n",
        '{"game": "Brakout"}\n',
        '{"game": "Freeway"}\n{}\n',
        '{"game": "Freeway"}\n{"games": 0, "steps": 5, "then": [[1]]}\n',
        '{"game": "Freeway"}\n{"games": 1, "steps": 0, "then": [[1]]}\n',
        '{"game": "Freeway"}\n{"games": 0, "steps": 0, "then": [[3]]}\n',
        '{"game": "Freeway"}\n{"games": 0, "steps": 0, "then": []}\n',
    ],
)
def test_what_is_no_journal_is_refused(tmp_path, elsewhere, text):
    (tmp_path / "x.unsaved").write_text(text)
    with pytest.raises(ValueError, match=r"unsaved|Brakout|has no|JSON object"):
        journal.read(tmp_path / "x.unsaved")
    assert journal.leftovers(tmp_path, "Freeway") == {}


def test_a_session_goes_on_where_another_was():
    session = playing("Breakout")
    for pressed in (["fire"], ["left"], ["left"], ["right"], []) * 30:
        if session.paused:
            session.play()
        session.step(pressed)
    again = recording.Session("Breakout", wanted_steps=10)
    again.go_on_with(session.played)
    assert again.paused
    assert (again.score, again.lives, again.num_steps) == (session.score, session.lives, 150)
    np.testing.assert_array_equal(again.screen, session.screen)
    again.undo()
    session.undo()
    np.testing.assert_array_equal(again.screen, session.screen)


def test_a_journal_that_cannot_be_written_goes_elsewhere_and_says_so(tmp_path, elsewhere):
    told = []
    folder = tmp_path / "mine"
    folder.mkdir()
    kept = journal.Journal(folder / "mine.npz", "Freeway", told.append)
    kept.update([[1]])
    # Whoever deletes the folder in the middle of a game.
    shutil.rmtree(folder)
    kept.update([[1, 2]])
    assert journal.read(elsewhere / "mine.npz.unsaved") == ("Freeway", [[1, 2]])
    assert "UNSAVED PLAY IS KEPT IN" in told[0]
    assert str(elsewhere) in told[0]
    kept.update([[1, 2, 0]])
    assert len(told) == 1
    # It is found at the next start, wherever that is.
    kept._close()
    assert journal.leftovers(tmp_path, "Freeway") == {elsewhere / "mine.npz.unsaved": 3}


def test_a_full_disk_sends_the_journal_elsewhere(tmp_path, elsewhere, monkeypatch):
    told, write, full = [], os.write, iter([True])

    def write_or_fail(descriptor, data):
        if next(full, False):
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    kept = journal.Journal(tmp_path / "mine.npz", "Freeway", told.append)
    kept.update([[1]])
    monkeypatch.setattr(os, "write", write_or_fail)
    kept.update([[1, 2]])
    assert "No space left on device" in told[0]
    assert kept.path.parent == elsewhere
    assert journal.read(kept.path) == ("Freeway", [[1, 2]])
    assert not list(tmp_path.iterdir())


def test_a_journal_that_can_go_nowhere_keeps_what_it_has(tmp_path, monkeypatch):
    told, write, full = [], os.write, [False]

    def write_or_fail(descriptor, data):
        if full[0]:
            raise OSError(28, "No space left on device")
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", write_or_fail)
    kept = journal.Journal(tmp_path / "mine.npz", "Freeway", told.append)
    kept.update([[1, 2]])
    full[0] = True
    for games in ([[1, 2, 0]], [[1, 2, 0, 1]]):
        kept.update(games)
        assert journal.read(kept.path) == ("Freeway", [[1, 2]])
    # Told once, not at every step.
    (text,) = told
    assert "UNSAVED PLAY IS NOT KEPT" in text
    full[0] = False
    kept.update([[1, 2, 0, 1, 1]])
    assert journal.read(kept.path) == ("Freeway", [[1, 2, 0, 1, 1]])


def test_a_save_that_fails_goes_elsewhere_and_says_so(tmp_path, elsewhere):
    told = []
    folder = tmp_path / "mine"
    folder.mkdir()
    kept = Files(folder / "mine.npz", "Freeway", told.append)
    session = playing("Freeway")
    for _ in range(5):
        session.step(["up"])
    shutil.rmtree(folder)
    kept.save(session.demonstration())
    assert kept.path == elsewhere / "mine.npz"
    assert len(demos.load(kept.path).actions) == 5
    assert "CANNOT BE WRITTEN" in told[0]
    assert str(kept.path) in told[0]


# The command.


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_whatever_ends_the_command_what_was_played_is_saved(tmp_path, number):
    command = [sys.executable, "-m", "experiments.demos", "record", "--game", "Freeway"]
    command += ["--out", str(tmp_path / "mine.npz"), "--port", "0", "--no-browser"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        greeting = ""
        while "Ctrl-C" not in greeting:
            line = process.stdout.readline()
            assert line, "it ended early"
            greeting += line
        port, token = re.search(r"http://127.0.0.1:(\d+)/\?token=(\S+)", greeting).groups()
        assert f"ssh -N -L {port}:127.0.0.1:{port} " in greeting

        async def play():
            async with Place(int(port), token).join() as connection:
                page = Page(connection)
                await page.say("keys", ["up"])
                await page.until(lambda state: state.get("steps", 0) >= 5)
                process.send_signal(number)
                return await page.until(lambda state: state["note"].startswith("The recorder was"))

        state = asyncio.run(play())
        rest = process.stdout.read()
        assert process.wait(30) == 0
    assert str(tmp_path / "mine.npz") in state["note"]
    assert "plays back to the same score" in rest
    found = demos.load(tmp_path / "mine.npz", game="Freeway")
    assert found.frame_hash is not None
    assert len(found.actions) >= 5


def begin_command(*options):
    """The command, where it is, and what it said; whoever calls ends it."""
    command = [sys.executable, "-m", "experiments.demos", "record", "--game", "Freeway"]
    command += [*map(str, options), "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    said = ""
    while "Ctrl-C" not in said:
        line = process.stdout.readline()
        assert line, "it ended early"
        said += line
    port, token = re.search(r"http://127.0.0.1:(\d+)/\?token=(\S+)", said).groups()
    return process, Place(int(port), token), said


def test_a_killed_recorder_loses_no_step(tmp_path, elsewhere):
    process, place, _ = begin_command("--out", tmp_path / "mine.npz")

    async def play():
        async with place.join() as connection:
            page = Page(connection)
            await page.say("speed", 4)
            await page.say("keys", ["up"])
            state = await page.until(lambda state: state.get("steps", 0) >= 60)
            process.kill()
            return state["steps"]

    steps = asyncio.run(play())
    process.wait(30)
    process.stdout.close()
    unsaved = tmp_path / "mine.npz.unsaved"
    assert [path.name for path in tmp_path.iterdir()] == [unsaved.name]
    # Steps may have been made that the page was not told of any more.
    assert sum(map(len, journal.read(unsaved)[1])) >= steps

    process, _, said = begin_command("--out", tmp_path / "other.npz")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert "STEPS OF Freeway WERE NEVER SAVED" in said
    assert f"--recover {unsaved}" in said
    process, _, said = begin_command("--out", tmp_path / "new.npz", "--recover", unsaved)
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "NEVER SAVED" not in said
    assert "plays back to the same score" in rest
    assert len(demos.load(tmp_path / "new.npz").actions) >= steps
    assert [path.name for path in tmp_path.iterdir()] == ["new.npz"]


def test_bad_options_are_refused_before_anybody_plays(tmp_path):
    (tmp_path / "there.npz").touch()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        good = {"game": "Freeway", "out": tmp_path / "new.npz", "browser": False}
        for changes, message in [
            ({"game": "Freway"}, "did you mean Freeway"),
            ({"out": tmp_path / "there.npz"}, "exists already"),
            ({"out": tmp_path / "no folder" / "new.npz"}, "cannot be written"),
            ({"steps": 0}, "--steps is 0"),
            ({"port": 65536}, "--port is 65536"),
            ({"port": other.getsockname()[1]}, "--port 0 takes a free one"),
        ]:
            with pytest.raises(UsageError, match=message):
                demos_record.record(**good | changes)
    assert [path.name for path in tmp_path.iterdir()] == ["there.npz"]
