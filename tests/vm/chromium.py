# SPDX-License-Identifier: GPL-2.0-only
"""A real browser for the project's pages, at the size of a desktop window or a phone."""

import contextlib
import shutil

import pytest

SIZES = {"desk": (1200, 900), "phone": (390, 844)}


@contextlib.contextmanager
def start(profile, **preferences):
    """Run Chromium with a profile directory and preferences; return Selenium's driver. Skip the test without it.

    Accepts self-signed certificates.
    """
    webdriver = pytest.importorskip("selenium.webdriver")
    for program in ("chromium", "chromedriver"):
        if not shutil.which(program):
            pytest.skip(f"needs {program}: make deps installs it")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    options.accept_insecure_certs = True
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={profile}"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.add_experimental_option("prefs", preferences)
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def resize(browser, size):
    """Resize the window to one of SIZES."""
    width, height = SIZES[size]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"})  # fmt: skip
