"""Plays a game with the keyboard, in a page that this machine serves to itself, and saves it."""

import asyncio
import functools
import getpass
import os
import signal
import socket
import sys
import threading
import webbrowser
from datetime import datetime
from pathlib import Path

from bqfd_jax.demos.making import recording
from bqfd_jax.envs import atari
from bqfd_jax.runs.errors import UsageError

from . import journal, server
from .recordings import Files
from .server import HOST, Recorder, say


def record(
    *,
    game: str,
    out: Path | None = None,
    steps: int = 6000,
    port: int = 8765,
    browser: bool = True,
    recover: Path | None = None,
) -> None:
    """Play a game with the keyboard, in a browser here or at the other end of an ssh tunnel.

    Prints the address of a page to play in.  Stop with Ctrl-C: what was played is saved.

    Args:
      game: A name such as Breakout, Freeway, MsPacman, Seaquest.
      out: File to write; a new one named after game and time if not given.
      steps: How many steps are wanted, 15 a second; more may be played.
      port: Where the page is served, on this machine only; 0 takes any that is free.
      browser: Open the page, if there is a screen.
      recover: Go on with what a recorder that was killed had not saved yet; it names such files.
    """
    if steps < 1:
        raise UsageError(f"--steps is {steps}, but must be at least 1")
    out = out or Path(f"{game}-{datetime.now():%Y%m%d-%H%M%S}.npz")
    try:
        session = recording.Session(game, wanted_steps=steps)
        if recover is not None:
            _recover(session, recover)
        atari.envpool_version()
        server.websockets_server()
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
    files = Files(out, game, say)
    recorder = Recorder(session, files)
    with _listen(port) as listening:
        files.journal.update(session.played)
        if recover is not None:
            recover.unlink()
        for left, count in journal.leftovers(out.parent, game).items():
            say(f"{count:,} STEPS OF {game} WERE NEVER SAVED: go on with them by --recover {left}")
        try:
            asyncio.run(_serve(recorder, listening, open_browser=browser and _has_screen()))
        finally:
            recorder.finish()


def _recover(session: recording.Session, path: Path) -> None:
    told, games = journal.read(path)
    if told != session.game:
        raise UsageError(f"--recover {path} is of {told}, not of {session.game}")
    session.go_on_with(games)


def _listen(port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise UsageError(f"--port is {port}, but must lie in 0 .. 65535")
    try:
        return server.listen(port)
    except OSError as error:
        raise UsageError(
            f"cannot serve on port {port}: {error.strerror or error}; --port 0 takes a free one"
        ) from error


async def _serve(recorder: Recorder, listening: socket.socket, *, open_browser: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    port = listening.getsockname()[1]
    async with server.start(recorder, listening):
        url = f"http://{HOST}:{port}/?token={recorder.token}"
        # A closed terminal or a lost ssh connection too must not cost what was played.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, functools.partial(_stop, stop, loop))
        _greet(url, port)
        if open_browser:
            # Some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
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
    say(
        f"Play in a browser on this machine:\n  {url}\n"
        "From another machine, first run there\n"
        f"  ssh -N -L {port}:{HOST}:{port} {user}@{socket.gethostname()}\n"
        "and then open the same address.  Ctrl-C here ends it; what was played is saved."
    )


def _has_screen() -> bool:
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
