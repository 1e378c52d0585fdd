# SPDX-License-Identifier: GPL-2.0-only
"""The status page in a real browser, on a desk and on a phone; pictures of it go to build/tests/image."""

import datetime
import json
import os

import chromium
import pytest
from conftest import REPO
from test_page import PASSWORD, mx1, page  # noqa: F401

selenium = pytest.importorskip("selenium")
from selenium.webdriver.common.by import By  # noqa: E402

PICTURES = REPO / "build" / "tests" / "image"


@pytest.fixture
def browser(tmp_path):
    with chromium.start(tmp_path / "profile", **{"download.default_directory": str(tmp_path / "downloads")}) as driver:
        yield driver


def look(browser, name, size):
    """Fail if the page is wider than the window or the browser complained; take a picture."""
    chromium.resize(browser, size)
    widest = browser.execute_script("return document.documentElement.scrollWidth")
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(PICTURES / f"page-{name}-{size}.png"))
    assert widest <= chromium.SIZES[size][0], f"{name} is {widest} pixels wide in a window of {chromium.SIZES[size][0]}"
    wrong = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not wrong, wrong


def history(appliance, host):
    """Make the host look as if it had been backed up for three weeks: names and records alone."""
    last = appliance.good(host)[-1]
    meta = appliance.volume / host / ".itree-backup"
    record = json.loads((meta / f"{last.name}.json").read_text())
    for day in range(1, 21):
        then = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=day)
        name = then.strftime("%Y-%m-%dT01-12-07Z")
        (appliance.volume / host / name).mkdir()
        seconds = 1 + day % 3
        made = {**record, "name": name, "ended": int(then.timestamp()), "started": int(then.timestamp()) - seconds,
                "total_bytes": record["total_bytes"] - day * 300, "new_bytes": 300 + day % 4, "names": 31 - day // 5,
                "new_files": 1 + day % 3, "free_bytes": (240 + day) << 20}  # fmt: skip
        (meta / f"{name}.json").write_text(json.dumps(made))


@pytest.mark.parametrize("size", chromium.SIZES)
def test_from_all_hosts_to_a_file(browser, page, mx1, appliance, tmp_path, size):  # noqa: F811
    """A user gets a file back: chooses the host, a snapshot and a directory, and downloads the file."""
    history(appliance, "mx1")
    appliance.host("db1", "rsyncd", 1, "all")
    appliance("run", "db1", ok=(5,))
    # As it is typed; Chromium hands the password over when it is asked for it.
    browser.get(f"https://admin:{PASSWORD.replace(' ', '%20')}@127.0.0.1:{page.port}/")
    chromium.resize(browser, size)
    assert "1 of 2 hosts needs attention" in browser.find_element(By.TAG_NAME, "h1").text
    assert "days" in browser.find_element(By.CLASS_NAME, "volume").text
    look(browser, "hosts", size)
    browser.find_element(By.LINK_TEXT, "mx1").click()
    look(browser, "host", size)
    name = appliance.good("mx1")[-1].name
    browser.find_element(By.LINK_TEXT, name).click()
    look(browser, "directory", size)
    browser.find_element(By.LINK_TEXT, "etc/").click()
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path / "got")})
    browser.find_element(By.LINK_TEXT, "file").click()
    got = tmp_path / "got" / "file"
    for _ in range(100):
        if got.exists() and got.stat().st_size:
            break
        browser.execute_async_script("setTimeout(arguments[0], 100)")
    assert got.read_bytes() == (mx1 / "etc" / "file").read_bytes()
    # A page without scripts: nothing that a client's file name has in it can run.
    assert not browser.find_elements(By.TAG_NAME, "script")
    assert os.fsdecode(b"caf\xe9") not in browser.page_source


def test_without_the_password(browser, page, mx1):  # noqa: F811
    browser.get(f"https://127.0.0.1:{page.port}/")
    assert "mx1" not in browser.page_source and "host" not in browser.find_element(By.TAG_NAME, "body").text.lower()
