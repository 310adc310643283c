"""The recorder's server: one game, its one player, and the page between them."""

import asyncio
import contextlib
import io
import json
import logging
import secrets
import socket
import traceback
from typing import Any

from bqfd_jax import extras
from bqfd_jax.demos import PAPER_PLAYER, DemonstrationError
from bqfd_jax.demos.making import recording
from bqfd_jax.demos.making.keys import HeldKeys, legend
from bqfd_jax.runs.errors import RunError

from . import access
from .recordings import Files, describe

HOST = "127.0.0.1"
MAX_MESSAGE = 512  # bytes; all that a page has to say is shorter
# Why a connection was closed, for the page.
MALFORMED, BUSY = 1008, 4409
_PICTURES_PER_SECOND = 60
_LATENCY = 0.5  # seconds that the page may lag behind before the game waits for it
_DEAF = 0.8  # seconds in which a game that ended cannot be left by a key pressed too late


class Recorder:
    """A game, its one player, and the page between them."""

    def __init__(self, session: recording.Session, files: Files):
        self.token = secrets.token_urlsafe(16)
        self._session = session
        self._files = files
        self._keys = HeldKeys()
        self.player: Any = None  # the connection that plays
        self._save_task: asyncio.Task | None = None
        self._save = {"status": "none", "text": ""}
        self._deaf_until = 0.0
        self.shown = self._seen = 0  # numbers of states sent, and known to be on the screen

    def answer(self, connection: Any, request: Any) -> Any:
        """Answers a request; see `access.answer`."""
        return access.answer(request, self.token)

    async def handle(self, connection: Any) -> None:
        """Plays with whoever connected, until they leave."""
        if self.player is not None:
            await connection.close(BUSY, "another page is playing")
            return
        self.player = connection
        self._seen = self.shown
        tasks = [
            asyncio.create_task(self._listen(connection)),
            asyncio.create_task(self._play(connection)),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.player = None
            self._keys = HeldKeys()
            if not self._session.paused:
                self._session.pause("Nothing was lost. Press a key to go on.")
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            # A lost connection is nothing unusual, anything else is.
            if isinstance(result, Exception) and not isinstance(result, _closed()):
                traceback.print_exception(result)
                await connection.close(1011, "the recorder has a fault")

    # What the player says.

    async def _listen(self, connection: Any) -> None:
        async for text in connection:
            try:
                command, value = access.parse(text)
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
        self._files.journal.update(self._session.played)
        await connection.send(json.dumps(self._state()))
        await connection.send(encode(self._session.screen if picture is None else picture))

    def _introduction(self) -> dict[str, Any]:
        told = legend(self._session.action_meaning)
        return {
            "type": "hello",
            "game": self._session.game,
            "paper_score": PAPER_PLAYER.get(self._session.game),
            "keys": told.keys,
            "together": told.together,
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
        self._save = {"status": "saving", "text": "Saving, and playing it back as a check …"}
        self._save_task = asyncio.create_task(self._do_save())

    async def _do_save(self) -> None:
        try:
            played = self._session.demonstration()
            # Not here: playing it back takes seconds, in which nobody would be answered.
            saved = await asyncio.to_thread(self._files.save, played)
        except Exception as error:
            self._save = {"status": "failed", "text": self._failure(error)}
        else:
            self._save = {"status": "saved", "text": describe(saved, self._files.path)}
        say(self._save["text"])
        if self.player is not None:
            with contextlib.suppress(_closed()):
                await self._show(self.player)

    def _failure(self, error: Exception) -> str:
        if isinstance(error, DemonstrationError) and self._files.saved is not None:
            return f"Saved as {self._files.path}, but of no use for training: {error}"
        if isinstance(error, OSError):
            return f"Not saved: {error.strerror or error}."
        return f"Not saved: {error}."

    async def leave(self) -> None:
        """Writes what was not saved yet, and tells the player that it is over."""
        if self._save_task is not None:
            await asyncio.wait([self._save_task])
        with contextlib.suppress(DemonstrationError, OSError):
            played = self._session.demonstration()
            if not self._files.has(played):
                self._files.write(played)
        where = f" It was saved as {self._files.path}." if self._files.path else ""
        self._session.pause(f"The recorder was stopped.{where}")
        if self.player is not None:
            with contextlib.suppress(_closed()):
                await self._show(self.player)

    def finish(self) -> None:
        """Saves and checks what was not saved yet; for the end, when nobody waits for answers."""
        journal = self._files.journal
        journal.update(self._session.played)
        try:
            played = self._session.demonstration()
        except DemonstrationError:
            say("Nothing was played, so nothing was saved.")
            journal.remove()
            return
        if not self._files.has(played):
            say("Saving, and playing it back as a check ...")
            try:
                say(describe(self._files.save(played), self._files.path))
            except DemonstrationError as error:
                raise RunError(self._failure(error)) from error
            except OSError as error:
                kept = f" It is kept in {journal.path}: see --recover." if journal.path else ""
                raise RunError(f"{self._failure(error)}{kept}") from error
        journal.remove()


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


def listen(port: int) -> socket.socket:
    """A socket that can be reached from this machine only; `port` 0 takes any that is free."""
    # asyncio sends small messages without delay only where a socket says that it is TCP.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((HOST, port))
        listening.listen()
    except OSError:
        listening.close()
        raise
    return listening


def start(recorder: Recorder, listening: socket.socket) -> Any:
    """The server, an asynchronous context manager, on a socket from `listen`."""
    # Whoever knocks with something else than a request is no news.
    logger = logging.getLogger(__name__)
    logger.setLevel(logging.CRITICAL)
    return websockets_server().serve(
        recorder.handle,
        sock=listening,
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


def say(text: str) -> None:
    """Prints a line, if there still is somebody to read it."""
    # The terminal may be gone; what there is to do is to be done all the same.
    with contextlib.suppress(OSError):
        print(text, flush=True)


def websockets_server() -> Any:
    """The module of websockets that serves; an `ImportError` says how to get it."""
    return extras.load("websockets.asyncio.server", "demos", "recording")


def _closed() -> type[Exception]:
    from websockets.exceptions import ConnectionClosed

    return ConnectionClosed
