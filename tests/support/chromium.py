"""Chromium and its driver, as Debian has them."""

import shutil

import pytest

CHROMIUMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)


def find_browser() -> tuple[str, str]:
    """Return the paths of Chromium and its driver.

    Raises:
        pytest.fail.Exception: One of them is missing.
    """
    browser = next(filter(None, map(shutil.which, CHROMIUMS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.fail("no Chromium with its driver: `apt-get install chromium chromium-driver`", pytrace=False)
    return browser, driver
