"""Chromium and its driver, as Debian has them."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver

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


@contextmanager
def headless(folder: Path) -> Iterator[webdriver.Chrome]:
    """Run a headless Chromium that keeps its profile in `folder`, and its log.

    Raises:
        pytest.fail.Exception: Browser or driver is missing.
    """
    browser, driver = find_browser()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    # Debian's wrapper scripts write to stderr.
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver, log_output=subprocess.DEVNULL))
    try:
        yield chrome
    finally:
        chrome.quit()


def set_screen(chrome: webdriver.Chrome, width: int, height: int, scheme: str) -> None:
    """Take a screen of a size, light or dark."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
