"""The report's page in a real browser, at a laptop's and a phone's width."""

import time

import browsers
import numpy as np
import pytest
from report_runs import write_run

from bqfd_jax.runs.page.write import write
from bqfd_jax.runs.sweep.grid import grid, write_cells
from bqfd_jax.runs.video import Mp4

pytestmark = browsers.needed

EVIL = "<script>document.title='owned'</script><img src=x onerror=alert(1)>"
WIDTHS = {"laptop": (1280, 800), "phone": (390, 844)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with browsers.chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Of a sweep with all that may go wrong, and names that mean harm."""
    folder = tmp_path_factory.mktemp("report")
    out = folder / "s"
    cells = grid(["Breakout", "Freeway", EVIL], ["bqfd", "dqfd", "dqn"], [0, 1])
    write_cells(out, cells)
    film = folder / "film.mp4"
    with Mp4(film) as mp4:
        for shade in range(0, 250, 10):
            mp4.add(np.full((60, 80), shade, np.uint8))
    for number, cell in enumerate(cells[:-2]):
        write_run(
            out / cell.folder,
            game=cell.title,
            agent=cell.agent,
            seed=cell.seed,
            final=10.0 + number,
            done=number != 3,
            film=film.read_bytes(),
        )
    logs = out / "logs" / cells[-1].folder
    logs.mkdir(parents=True)
    (logs / "failed.json").write_text('{"why": "a reason that is %s"}' % ("long " * 60))
    write([out], folder / "report")
    return (folder / "report" / "index.html").as_uri()


@pytest.mark.parametrize("name", WIDTHS)
def test_the_page_fits_plays_and_asks_nobody(browser, page, name):
    width, height = WIDTHS[name]
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": name == "phone"}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser")
    browser.get(page)
    assert browser.title != "owned"
    assert browser.find_elements("tag name", "script") == []
    # Nothing sticks out: what is too wide is scrolled in its own box.
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    assert wide <= width
    sticking_out = browser.execute_script(
        "return [...document.querySelectorAll('section > *, h1, figure')]"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1).map(e => e.outerHTML)"
    )
    assert sticking_out == []
    small = browser.execute_script(
        "return [...document.querySelectorAll('main *')].filter(e => e.children.length == 0 && "
        "e.textContent.trim() && parseFloat(getComputedStyle(e).fontSize) < 12).length"
    )
    assert small == 0
    pictures = browser.execute_script(
        "document.querySelectorAll('img').forEach(i => i.loading = 'eager');"
        "return Promise.all([...document.images].map("
        "i => i.decode().then(() => i.naturalWidth, () => 0)))"
    )
    assert len(pictures) == 3 * 4
    assert min(pictures) > 100
    posters = browser.execute_script(
        "return [...document.querySelectorAll('video')].map(v => v.poster.slice(0, 15))"
    )
    assert set(posters) == {"data:image/png;"}
    # Films play.
    browser.execute_script("const v = document.querySelector('video'); v.muted = true; v.play()")
    end = time.monotonic() + 30
    while not browser.execute_script("return document.querySelector('video').currentTime > 0.1"):
        assert time.monotonic() < end, "the film does not play"
        time.sleep(0.05)
    fetched = browser.execute_script(
        "return performance.getEntriesByType('resource').map(e => e.name)"
    )
    assert [one for one in fetched if not one.startswith("data:")] == []
    assert browser.get_log("browser") == []


def test_what_is_wrong_is_said_first(browser, page):
    browser.get(page)
    heads = [head.text for head in browser.find_elements("tag name", "h2")]
    assert heads[0] == "1 run failed"
    assert heads[1] == "1 run not begun yet"
    assert heads[2].startswith("1 run begun, but not finished")
    assert EVIL in heads
