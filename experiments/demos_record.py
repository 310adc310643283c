"""Plays a game with the keyboard, in a page that this machine serves to itself, and saves it."""

import asyncio
import contextlib
import dataclasses
import functools
import getpass
import http
import io
import json
import logging
import os
import secrets
import signal
import socket
import sys
import traceback
import webbrowser
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bqfd_jax import demos
from bqfd_jax.demos import Demonstration, DemonstrationError, recording
from bqfd_jax.envs import atari
from experiments.run_folder import RunError, UsageError

HOST = "127.0.0.1"
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")  # of this end of a tunnel
MAX_MESSAGE = 512  # bytes; all that a page has to say is shorter
# Why a connection was closed, for the page.
MALFORMED, BUSY = 1008, 4409
_PAGE = Path(__file__).with_name("record.html")
_PICTURES_PER_SECOND = 60
_LATENCY = 0.5  # seconds that the page may lag behind before the game waits for it
_DEAF = 0.8  # seconds in which a game that ended cannot be left by a key pressed too late


def record(
    *,
    game: str,
    out: Path | None = None,
    steps: int = 6000,
    port: int = 8765,
    browser: bool = True,
) -> None:
    """Play a game with the keyboard, in a browser here or at the other end of an ssh tunnel.

    Prints the address of a page to play in.  Stop with Ctrl-C: what was played is saved.

    Args:
      game: A name such as Breakout, Freeway, MsPacman, Seaquest.
      out: File to write; a new one named after game and time if not given.
      steps: How many steps are wanted, 15 a second; more may be played.
      port: Where the page is served, on this machine only; 0 takes any that is free.
      browser: Open the page, if there is a screen.
    """
    _check(steps=steps, port=port)
    path = out or Path(f"{game}-{datetime.now():%Y%m%d-%H%M%S}.npz")
    files = Files(path)
    try:
        session = recording.Session(game, wanted_steps=steps)
        atari.envpool_version()
        _websockets()
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
    recorder = Recorder(session, files)
    try:
        asyncio.run(_serve(recorder, port, open_browser=browser and _has_screen()))
    except OSError as error:
        raise UsageError(
            f"cannot serve on port {port}: {error.strerror or error}; --port 0 takes a free one"
        ) from error
    recorder.finish()


def _check(*, steps: int, port: int) -> None:
    if steps < 1:
        raise UsageError(f"--steps is {steps}, but must be at least 1")
    if not 0 <= port < 2**16:
        raise UsageError(f"--port is {port}, but must lie in 0 .. 65535")


class Files:
    """Where recordings go; nothing that was saved is ever lost."""

    def __init__(self, path: Path):
        """Checks that `path` can be written, before anybody plays.

        Args:
          path: the first file; there must be none yet.
        """
        if path.exists():
            raise UsageError(f"--out {path} exists already; name a new file")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(f"--out {path} cannot be written; name a file in a folder of yours")
        self._wanted = path
        self.path: Path | None = None  # of the last one saved
        self.saved: Demonstration | None = None

    def save(self, demonstration: Demonstration) -> Demonstration:
        """Writes a demonstration, then checks it by a replay and notes that in the file.

        Written first, for the replay takes a while.  Whatever continues the last one saved takes
        its place, anything else gets a new file.

        Raises:
          DemonstrationError: it does not replay; the file is there all the same.
        """
        self.write(demonstration)
        checked = recording.verified(dataclasses.replace(demonstration, name=self.path.stem))
        demos.save(checked, self.path)
        self.saved = checked
        return checked

    def write(self, demonstration: Demonstration) -> None:
        """Writes a demonstration that was not checked yet."""
        path = self.path
        if self.saved is None or not recording.continues(demonstration, self.saved):
            path = self._reserve()
        try:
            demos.save(dataclasses.replace(demonstration, name=path.stem), path)
        except BaseException:
            if path != self.path:
                path.unlink()
            raise
        self.path, self.saved = path, demonstration

    def has(self, demonstration: Demonstration) -> bool:
        """Whether that is what was last saved, and it was checked."""
        return (
            self.saved is not None
            and self.saved.frame_hash is not None
            and recording.continues(self.saved, demonstration)
        )

    def _reserve(self) -> Path:
        number = 1
        while True:
            path = self._wanted
            if number > 1:
                path = path.with_name(f"{path.stem}-{number}{path.suffix}")
            try:
                # Two recorders may want the same name.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
                return path
            except FileExistsError:
                number += 1


class Recorder:
    """A game, its one player, and the page between them."""

    def __init__(self, session: recording.Session, files: Files):
        self.token = secrets.token_urlsafe(16)
        self._session = session
        self._files = files
        self._keys = recording.HeldKeys()
        self._player: Any = None  # the connection that plays
        self._save_task: asyncio.Task | None = None
        self._save = {"status": "none", "text": ""}
        self._deaf_until = 0.0
        self.shown = self._seen = 0  # numbers of states sent, and known to be on the screen

    # Who may come in.

    def answer(self, connection: Any, request: Any) -> Any:
        """Answers a request: with the page, a refusal, or None for a player's connection."""
        host = _only(request.headers, "Host")
        # A foreign name that leads here would make its page one of ours.
        if host is None or _host_name(host) not in LOCAL_NAMES:
            return _refuse(http.HTTPStatus.FORBIDDEN, "This page is served to this machine only.")
        try:
            url = urlsplit(request.path)
        except ValueError:
            return _refuse(http.HTTPStatus.BAD_REQUEST, "That is no address.")
        if url.path not in ("/", "/play"):
            return _refuse(http.HTTPStatus.NOT_FOUND, "There is no such page.")
        given = parse_qs(url.query).get("token", [])
        if len(given) != 1 or not self._is_token(given[0]):
            return _refuse(
                http.HTTPStatus.FORBIDDEN,
                "The token is missing or wrong: open the address that the command printed last.",
            )
        if url.path == "/":
            return _page(host)
        if _only(request.headers, "Origin") != f"http://{host}":
            return _refuse(http.HTTPStatus.FORBIDDEN, "Only the page served here may connect.")
        return None

    def _is_token(self, given: str) -> bool:
        # In a time that does not tell how much of it is right.
        return secrets.compare_digest(given.encode(errors="replace"), self.token.encode())

    async def handle(self, connection: Any) -> None:
        """Plays with whoever connected, until they leave."""
        if self._player is not None:
            await connection.close(BUSY, "another page is playing")
            return
        self._player = connection
        self._seen = self.shown
        tasks = [
            asyncio.create_task(self._listen(connection)),
            asyncio.create_task(self._play(connection)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._player = None
            self._keys = recording.HeldKeys()
            if not self._session.paused:
                self._session.pause("Nothing was lost. Press a key to go on.")
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            # A lost connection is nothing unusual, anything else is.
            if isinstance(result, Exception) and not _is_closed(result):
                traceback.print_exception(result)
                await connection.close(1011, "the recorder has a fault")

    # What the player says.

    async def _listen(self, connection: Any) -> None:
        async for text in connection:
            try:
                command, value = parse(text)
            except ValueError as error:
                await connection.close(MALFORMED, f"malformed message: {error}"[:100])
                return
            if command == "seen":
                self._seen = max(self._seen, min(value, self.shown))
                continue
            was_paused = self._session.paused
            if command == "keys":
                self._press(value)
            else:
                self._obey(command, value)
            # A game that runs is shown by its steps.
            if was_paused or self._session.paused:
                await self._show(connection)

    def _press(self, keys: list[str]) -> None:
        is_new = self._keys.update(keys)
        if self._session.paused:
            # What was pressed to go on counts in the game only while it is held.
            self._keys.take()
            if is_new and asyncio.get_running_loop().time() >= self._deaf_until:
                self._session.play()

    def _obey(self, command: str, value: Any) -> None:
        session = self._session
        if command == "play":
            session.play()
        elif command == "pause":
            if not session.paused:
                session.pause()
        elif command == "undo":
            session.undo()
        elif command == "restart":
            session.restart()
        elif command == "speed":
            session.speed = value
        elif command in ("faster", "slower"):
            session.change_speed(1 if command == "faster" else -1)
        elif command == "save":
            if not session.paused:
                session.pause("Press a key to play on.")
            self._begin_save()

    # What the player sees.

    async def _play(self, connection: Any) -> None:
        loop = asyncio.get_running_loop()
        await connection.send(json.dumps(self._introduction()))
        await self._show(connection)
        due = loop.time()
        while True:
            session = self._session
            period = 1 / (recording.STEPS_PER_SECOND * session.speed)
            if loop.time() > due + period:
                # After a delay the game goes on from where it is and does not hurry.
                due = loop.time()
            due += period
            if session.paused or self._is_behind():
                await asyncio.sleep(due - loop.time())
                continue
            pictures = _thin_out(session.step(self._keys.take()), session.speed)
            if session.paused:
                self._deaf_until = loop.time() + _DEAF
            await self._show(connection, pictures[0])
            number = self.shown
            for left in range(len(pictures) - 1, 0, -1):
                await asyncio.sleep(due - period * left / len(pictures) - loop.time())
                # What was undone meanwhile is not shown any more.
                if number == self.shown:
                    await connection.send(encode(pictures[-left]))
            await asyncio.sleep(due - loop.time())

    def _is_behind(self) -> bool:
        allowed = max(2, _LATENCY * recording.STEPS_PER_SECOND * self._session.speed)
        return self.shown - self._seen > allowed

    async def _show(self, connection: Any, picture: Any = None) -> None:
        self.shown += 1
        await connection.send(json.dumps(self._state()))
        await connection.send(encode(self._session.screen if picture is None else picture))

    def _introduction(self) -> dict[str, Any]:
        legend = recording.legend(self._session.action_meaning)
        return {
            "type": "hello",
            "game": self._session.game,
            "keys": legend.keys,
            "together": legend.together,
            "speeds": recording.SPEEDS,
            "steps_per_second": recording.STEPS_PER_SECOND,
            "undo_seconds": recording.UNDO_STEPS / recording.STEPS_PER_SECOND,
        }

    def _state(self) -> dict[str, Any]:
        session = self._session
        return {
            "type": "state",
            "number": self.shown,
            "score": session.score,
            "lives": session.lives,
            "steps": session.num_steps,
            "wanted": session.wanted_steps,
            "game_number": session.game_number,
            "finished": session.finished_scores,
            "paused": session.paused,
            "note": session.note,
            "speed": session.speed,
            "can_undo": session.can_undo,
            "save": self._save,
        }

    # What is kept.

    def _begin_save(self) -> None:
        if self._save_task is not None and not self._save_task.done():
            return
        self._save = {"status": "saving", "text": "Saving, and replaying it as a check …"}
        self._save_task = asyncio.create_task(self._do_save())

    async def _do_save(self) -> None:
        try:
            played = self._session.demonstration()
            # Not here: a replay takes seconds, in which nobody would be answered.
            saved = await asyncio.to_thread(self._files.save, played)
        except (DemonstrationError, OSError) as error:
            self._save = {"status": "failed", "text": self._failure(error)}
        else:
            self._save = {"status": "saved", "text": _told(saved, self._files.path)}
        _say(self._save["text"])
        if self._player is not None:
            with contextlib.suppress(_closed()):
                await self._show(self._player)

    def _failure(self, error: Exception) -> str:
        if isinstance(error, OSError):
            return f"Not saved: {error.strerror or error}. What was played is still here."
        if self._files.saved is None:
            return f"Not saved: {error}."
        return f"Saved as {self._files.path}, but of no use for training: {error}"

    async def leave(self) -> None:
        """Writes what was not saved yet, and tells the player that it is over."""
        if self._save_task is not None:
            await self._save_task
        with contextlib.suppress(DemonstrationError, OSError):
            played = self._session.demonstration()
            if not self._files.has(played):
                self._files.write(played)
        where = f" It was saved as {self._files.path}." if self._files.path else ""
        self._session.pause(f"The recorder was stopped.{where}")
        if self._player is not None:
            with contextlib.suppress(_closed()):
                await self._show(self._player)

    def finish(self) -> None:
        """Saves and checks what was not saved yet; for the end, when nobody waits for answers."""
        try:
            played = self._session.demonstration()
        except DemonstrationError:
            _say("Nothing was played, so nothing was saved.")
            return
        if self._files.has(played):
            return
        _say("Saving, and replaying it as a check ...")
        try:
            _say(_told(self._files.save(played), self._files.path))
        except (DemonstrationError, OSError) as error:
            raise RunError(self._failure(error)) from error


def parse(text: str | bytes) -> tuple[str, Any]:
    """A message of the page, as (command, value); raises `ValueError` if there is no such thing."""
    if not isinstance(text, str):
        raise ValueError("it is not text")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("it has no type")
    command, value = message["type"], message.get("value")
    if command in ("play", "pause", "undo", "restart", "save", "faster", "slower"):
        valid = value is None
    elif command == "keys":
        valid = isinstance(value, list) and all(key in recording.KEYS for key in value)
        valid = valid and len(set(value)) == len(value)
    elif command == "speed":
        valid = type(value) in (int, float) and value in recording.SPEEDS
    elif command == "seen":
        valid = type(value) is int and value >= 0
    else:
        raise ValueError("its type is unknown")
    if not valid or set(message) - {"type", "value"}:
        raise ValueError(f"{command} cannot have that value")
    return command, value


def encode(picture: Any) -> bytes:
    """A screen `[210, 160, 3]` as PNG: without loss, and smaller than a JPEG for such pictures."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=6)
    return file.getvalue()


def _thin_out(pictures: list[Any], speed: float) -> list[Any]:
    """No more pictures of a step than are wanted per second, the last one always."""
    wanted = _PICTURES_PER_SECOND / (recording.STEPS_PER_SECOND * speed)
    every = max(1, round(len(pictures) / wanted))
    return pictures[::-1][::every][::-1]


def _told(saved: Demonstration, path: Path) -> str:
    scores = " + ".join(f"{score:,.0f}" for score in saved.scores)
    return (
        f"Saved as {path}: {len(saved.actions):,} steps, and it replays to the same score, "
        f"{scores}."
    )


# Requests and answers.


def _only(headers: Any, name: str) -> str | None:
    values = headers.get_all(name)
    return values[0] if len(values) == 1 else None


def _host_name(host: str) -> str | None:
    try:
        split = urlsplit(f"//{host}")
        _ = split.port  # is checked when it is asked for
    except ValueError:
        return None
    return split.hostname if split.netloc == host and "@" not in host else None


def _page(host: str) -> Any:
    nonce = secrets.token_urlsafe(16)
    body = _PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        f"connect-src ws://{host}; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return _respond(
        http.HTTPStatus.OK, body, "text/html; charset=utf-8", ("Content-Security-Policy", policy)
    )


def _refuse(status: http.HTTPStatus, text: str) -> Any:
    return _respond(status, f"{text}\n", "text/plain; charset=utf-8")


def _respond(status: http.HTTPStatus, text: str, kind: str, *more: tuple[str, str]) -> Any:
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    body = text.encode()
    headers = Headers(
        [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            *more,
        ]
    )
    return Response(status.value, status.phrase, headers, body)


def _is_closed(error: Exception) -> bool:
    return isinstance(error, _closed())


def _closed() -> type[Exception]:
    from websockets.exceptions import ConnectionClosed

    return ConnectionClosed


# The command.


def start(recorder: Recorder, port: int) -> Any:
    """The server, an asynchronous context manager; `port` 0 takes any that is free."""
    # Whoever knocks with something else than a request is no news.
    logger = logging.getLogger(__name__)
    logger.setLevel(logging.CRITICAL)
    return _websockets().serve(
        recorder.handle,
        HOST,
        port,
        process_request=recorder.answer,
        max_size=MAX_MESSAGE,
        # Pictures are compressed already.
        compression=None,
        # A player who is gone without a word makes room for another.
        ping_interval=5,
        ping_timeout=10,
        # Browsers open connections that they may never use; leaving waits for these.
        open_timeout=2,
        close_timeout=2,
        server_header=None,
        logger=logger,
    )


async def _serve(recorder: Recorder, port: int, *, open_browser: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with start(recorder, port) as server:
        port = server.sockets[0].getsockname()[1]
        url = f"http://{HOST}:{port}/?token={recorder.token}"
        _greet(url, port)
        if open_browser:
            await asyncio.to_thread(webbrowser.open, url)
        # A closed terminal or a lost ssh connection too must not cost what was played.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, functools.partial(_stop, stop, loop))
        await stop.wait()
        await recorder.leave()


def _stop(stop: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
    stop.set()
    # The next one stops at once.
    loop.remove_signal_handler(signal.SIGINT)


def _greet(url: str, port: int) -> None:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "USER"
    _say(
        f"Play in a browser on this machine:\n  {url}\n"
        "From another machine, first run there\n"
        f"  ssh -N -L {port}:{HOST}:{port} {user}@{socket.gethostname()}\n"
        "and then open the same address.  Ctrl-C here ends it; what was played is saved."
    )


def _say(text: str) -> None:
    # The terminal may be gone; what there is to do is to be done all the same.
    with contextlib.suppress(OSError):
        print(text, flush=True)


def _has_screen() -> bool:
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )


def _websockets() -> Any:
    try:
        from websockets.asyncio import server
    except ImportError as error:
        raise ImportError(
            "Recording needs websockets, which is not installed: pip install 'bqfd-jax[demos]'"
        ) from error
    return server
