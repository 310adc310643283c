"""A real browser without a window, for pages of ours."""

import contextlib
import shutil

import pytest

BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
needed = pytest.mark.skipif(
    not (BROWSER and DRIVER),
    reason="needs a browser: apt-get install chromium chromium-driver",
)
webdriver = pytest.importorskip("selenium.webdriver")


@contextlib.contextmanager
def chromium(profile):
    """A driver of a browser that asks nobody for anything; `profile` is an empty folder."""
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for argument in (
        "headless",
        "no-sandbox",  # does not work for root
        "disable-gpu",
        "disable-dev-shm-usage",
        "no-first-run",
        "disable-background-networking",
        "disable-component-update",
        "disable-sync",
        f"user-data-dir={profile}",
        "window-size=1240,800",
    ):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()
