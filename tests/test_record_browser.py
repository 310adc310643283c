"""The recorder's page in a real browser: keys, score, save, a second tab, a tunnel that breaks."""

import asyncio
import contextlib
import threading
import time

import browsers
import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from bqfd_jax import demos
from bqfd_jax.demos.making import recording
from experiments.demos import server as record_server
from experiments.demos.recordings import Files

pytestmark = browsers.needed

PATIENCE = 30  # seconds


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsers.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def tab(browser):
    """A new tab, so that nothing is left of another test; it ends without complaints."""
    old = browser.window_handles
    browser.switch_to.new_window("tab")
    for handle in old:
        browser.switch_to.window(handle)
        browser.close()
    browser.switch_to.window(browser.window_handles[0])
    browser.get_log("browser")
    yield browser
    complaints = [entry["message"] for entry in browser.get_log("browser")]
    # A server that is gone is no fault of the page.
    assert [text for text in complaints if "WebSocket connection to" not in text] == []


class Server:
    """A recorder in a thread of its own, behind a tunnel that can be broken."""

    def __init__(self, folder, *, game, steps=1000):
        self.session = recording.Session(game, wanted_steps=steps)
        self.recorder = record_server.Recorder(
            self.session, Files(folder / "played.npz", self.session.game)
        )
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._writers = set()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *exception):
        self.call(self._stop.set)
        self._thread.join(PATIENCE)

    @property
    def url(self):
        return f"http://localhost:{self.port}/?token={self.recorder.token}"

    def call(self, function):
        self._loop.call_soon_threadsafe(function)

    def break_tunnel(self):
        self.call(lambda: [writer.transport.abort() for writer in self._writers])

    async def _run(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        listening = record_server.listen(0)
        self._target = listening.getsockname()[1]
        tunnel = await asyncio.start_server(self._tunnel, "127.0.0.1", 0)
        self.port = tunnel.sockets[0].getsockname()[1]
        async with record_server.start(self.recorder, listening):
            self._ready.set()
            await self._stop.wait()
            await self.recorder.leave()
            tunnel.close()
        for writer in self._writers:
            writer.close()

    async def _tunnel(self, reader, writer):
        there, here = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, here}
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(_pipe(reader, here), _pipe(there, writer))


async def _pipe(reader, writer):
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


def text(tab, name):
    return tab.find_element("id", name).text


def number(tab, name):
    return int(text(tab, name).replace(",", ""))


def wait(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


def press(tab, key, *, until):
    ActionChains(tab).key_down(key).perform()
    try:
        wait(until)
    finally:
        ActionChains(tab).key_up(key).perform()


def colours(tab):
    return tab.execute_script(
        "const c = document.getElementById('screen');"
        "const data = new Uint32Array(c.getContext('2d').getImageData(0, 0, 160, 210).data.buffer);"
        "return new Set(data).size;"
    )


def test_play_see_the_score_save_and_play_back(tab, tmp_path):
    with Server(tmp_path, game="Freeway") as server:
        tab.get(server.url)
        wait(lambda: text(tab, "connection") == "connected")
        assert (text(tab, "game"), text(tab, "note")) == ("Freeway", "Press a key to begin.")
        assert text(tab, "keys").split() == ["↑", "up", "↓", "down"]
        assert (text(tab, "score"), text(tab, "lives")) == ("0", "none")
        wait(lambda: colours(tab) > 8)
        ActionChains(tab).send_keys("++").perform()
        wait(lambda: tab.find_element("id", "speed").get_property("value") == "4")
        press(tab, Keys.ARROW_UP, until=lambda: number(tab, "score") >= 2)
        assert text(tab, "note") == ""

        ActionChains(tab).send_keys("p").perform()
        wait(lambda: text(tab, "note").startswith("Paused"))
        steps = number(tab, "steps")
        assert steps > 60
        assert text(tab, "togo").startswith(f"{1000 - steps:,} to go")
        tab.find_element("id", "undo").click()
        wait(lambda: number(tab, "steps") == steps - 45)

        score = number(tab, "score")
        ActionChains(tab).send_keys("s").perform()
        wait(lambda: tab.find_element("id", "saved").get_attribute("data-status") == "saved")
        assert f"plays back to the same score, {score}." in text(tab, "saved")
        found = demos.load(tmp_path / "played.npz", game="Freeway")
        assert (found.scores, len(found.actions)) == ((float(score),), steps - 45)
        demos.play(found, gamma=0.99)

        # A key that is not let go before one looks elsewhere is not stuck.
        ActionChains(tab).key_down(Keys.ARROW_UP).perform()
        wait(lambda: text(tab, "note") == "")
        tab.execute_script("window.dispatchEvent(new Event('blur'))")
        wait(lambda: text(tab, "note").startswith("Paused"))
        assert not tab.find_elements("css selector", "[data-held]")
        ActionChains(tab).key_up(Keys.ARROW_UP).perform()

        # Controls can be used without a mouse, and space is not FIRE there.
        tab.execute_script("document.getElementById('restart').focus()")
        ActionChains(tab).send_keys(Keys.SPACE).perform()
        wait(lambda: number(tab, "steps") == 0)
        assert text(tab, "note").startswith("A new game.")
    wait(lambda: text(tab, "note").startswith("The recorder was stopped"))


def test_a_second_tab_waits_and_a_broken_tunnel_loses_nothing(tab, tmp_path):
    with Server(tmp_path, game="Breakout") as server:
        tab.get(server.url)
        wait(lambda: text(tab, "connection") == "connected")
        assert text(tab, "lives") == "5"
        press(tab, Keys.SPACE, until=lambda: number(tab, "steps") >= 10)

        server.break_tunnel()
        wait(lambda: server.session.paused)
        wait(lambda: text(tab, "note") == "Nothing was lost. Press a key to go on.")
        steps = server.session.num_steps
        assert number(tab, "steps") == steps >= 10

        tab.switch_to.new_window("tab")
        tab.get(server.url)
        wait(lambda: text(tab, "connection") == "another page is playing")
        first, second = tab.window_handles
        tab.switch_to.window(first)
        tab.close()
        tab.switch_to.window(second)
        wait(lambda: text(tab, "connection") == "connected")
        assert number(tab, "steps") == steps
        press(tab, Keys.ARROW_LEFT, until=lambda: number(tab, "steps") > steps)


def test_a_wrong_token_shows_why(tab, tmp_path):
    with Server(tmp_path, game="Freeway") as server:
        tab.get(server.url + "x")
        assert "open the address that the command printed" in tab.page_source
        tab.get_log("browser")  # the browser says that it was refused
