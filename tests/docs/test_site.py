# SPDX-License-Identifier: GPL-2.0-only
"""The site that `make site` builds. Pictures of it go to build/tests/docs."""

import hashlib
import html
import re
import shutil
import subprocess
import sys

import chromium
import links
import pages
import pytest
import webserver
import yaml
from conftest import REPO

BUILD = REPO / "docs" / "site" / "build"
PICTURES = REPO / "build" / "tests" / "docs"


def build(out, source=REPO):
    """Run docs/site/build; return (exit code, output)."""
    argv = [sys.executable, BUILD, "--source", source, "--out", out]
    res = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         check=False)  # fmt: skip
    return res.returncode, res.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site") / "site"
    code, output = build(out)
    assert code == 0, output
    return out


@pytest.fixture
def copy(tmp_path):
    """A copy of what the site is made of, without git."""
    source = tmp_path / "source"
    for name in pages.files_of(REPO):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        of_the_changelog = name.startswith(("ansible/changelogs/", "ansible/galaxy.yml"))
        if name.endswith((".md", *pages.PICTURES)) or pages.MAN_NAME.search(name) or of_the_changelog:
            shutil.copyfile(REPO / name, source / name)
        else:
            (source / name).touch()
    return source


def digests(folder):
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in sorted(folder.rglob("*")) if p.is_file()}  # fmt: skip


def navigation(site):
    """Addresses in the navigation of the first page."""
    nav = re.search(r'<nav class="md-nav md-nav--primary.*', (site / "index.html").read_text(), re.S)[0]
    return {url.partition("#")[0] for url in links.Page(nav.partition('<div class="md-content"')[0]).links}


def test_every_page_is_built_and_in_the_navigation(site):
    built = {str(p.relative_to(site)) for p in site.rglob("*.html")}
    wanted = {pages.url_of(n) for n in pages.files_of(REPO) if n.endswith(".md")}
    assert wanted <= built
    assert len(wanted) > 50
    listed = navigation(site)
    assert not built - listed - {"index.html"}


def test_nothing_leads_nowhere_and_nothing_comes_from_elsewhere(site):
    assert links.check(site) == []


def test_every_man_page_is_there(site):
    ours = [n for n in pages.files_of(REPO) if re.search(r"\.[1-8](\.in)?$", n) and "overlay/tests/" not in n]
    assert len(ours) >= 9
    for name in ours:
        page = REPO / name
        file = site / "man" / (page.name.removesuffix(".in") + ".html")
        assert file.exists(), name
        headings = re.findall(r'^\.SH "?([^"\n]+)', page.read_text(), re.M)
        shown = re.findall(r"<h2 id=[^>]*>(.*?)<a", file.read_text())
        assert shown == headings, name


def test_the_changelog_of_the_collection_is_a_page(site):
    """Each version with its fixes, as antsibull-changelog keeps them in YAML."""
    releases = yaml.safe_load((REPO / "ansible/changelogs/changelog.yaml").read_text())["releases"]
    page = (site / "ansible/CHANGELOG.html").read_text()
    shown = re.findall(r"<h2 id=[^>]*>v([\d.]+)<a", page)
    assert sorted(shown) == sorted(releases) and len(releases) > 1
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    fixes = [fix for release in releases.values() for fix in release["changes"].get("bugfixes", [])]
    assert fixes and not [fix for fix in fixes if fix.replace("`", "") not in text]


def test_references_to_our_manuals_are_links(site):
    assert '<a href="../man/itree-backup.8.html">itree-backup(8)</a>' in (site / "docs/appliance.html").read_text()
    assert '<a href="../man/ext4itree.5.html">ext4itree(5)</a>' in (site / "man/mkfs.ext4itree.8.html").read_text()


def test_lists_tables_and_code_are_those_of_a_forge(site):
    """Text between the headings is GitHub's Markdown: what belongs to an item of a list need not be indented by 4."""
    page = (site / "docs/appliance.html").read_text()
    assert re.search(r"<li>\n<p><strong>Add a client.</strong></p>\n<pre><code>itree-backup add mx1", page)
    assert len(re.findall(r"<li>\n<p><strong>", page)) == 7


def test_two_builds_have_the_same_bytes(site, tmp_path, copy):
    """From git and without it, in two directories."""
    code, output = build(tmp_path / "again", copy)
    assert code == 0, output
    assert digests(tmp_path / "again") == digests(site)


def test_faults_of_pages_stop_the_build(tmp_path, copy):
    out = tmp_path / "out"
    glossary = copy / "docs" / "glossary.md"
    glossary.write_text(glossary.read_text() + "\n[a](gone.md)\n\n[b](admin.md#gone)\n\n![c](pictures/gone.png)\n"
                        "\n| t |\n|---|\n| [d](#gone) |\n")  # fmt: skip
    first = len(glossary.read_text().splitlines()) - 8
    (copy / "docs" / "unlisted.md").write_text("# Unlisted\n")
    (copy / "docs" / "targets.md").unlink()
    code, output = build(out, copy)
    assert code == 1
    assert not out.exists()
    assert f"docs/glossary.md:{first}: the link to gone.md leads nowhere" in output
    assert f"docs/glossary.md:{first + 2}: the link to admin.md#gone leads nowhere" in output
    assert f"docs/glossary.md:{first + 4}: the picture pictures/gone.png" in output
    assert f"docs/glossary.md:{first + 8}: the link to #gone leads nowhere" in output
    assert 'not included in the "nav" configuration:\n  - docs/unlisted.md' in output
    assert "'docs/targets.md' is included in the 'nav' configuration, which is not found" in output


def test_a_part_that_the_navigation_names_and_no_page_has(tmp_path, copy):
    """Headings that no page links to: only the check of the built site notices."""
    module = copy / "docs" / "admin.md"
    module.write_text(module.read_text().replace("## Watch\n", "## Observe\n"))
    code, output = build(tmp_path / "out", copy)
    assert code == 1
    assert "index.html: docs/admin.html#watch leads nowhere" in output


def test_the_check_names_each_fault(tmp_path):
    (tmp_path / "a.html").write_text(
        '<link rel="stylesheet" href="https://fonts.example/x.css"><script src="//cdn.example/y.js"></script>'
        '<p id="one"><p id="one"><a href="b.html">b</a><a href="#two">2</a><a href="#one">1</a><img src="c.png">'
        '<a href="https://example.org/">fine</a><a href="/a.html">top</a>'
    )
    (tmp_path / "s.css").write_text("@font-face { src: url('https://fonts.example/z.woff2') }")
    assert links.check(tmp_path) == [
        "a.html: two elements have the id one",
        "a.html: loads https://fonts.example/x.css from another host",
        "a.html: loads //cdn.example/y.js from another host",
        "a.html: b.html leads nowhere",
        "a.html: #two leads nowhere",
        "a.html: /a.html leads nowhere",
        "a.html: c.png leads nowhere",
        "s.css: loads https://fonts.example/z.woff2 from another host",
    ]
    assert links.check(tmp_path / "empty") == [f"{tmp_path / 'empty'}: there are no pages"]


def test_a_directory_that_is_no_site_is_left_alone(tmp_path):
    (tmp_path / "precious").touch()
    code, output = build(tmp_path)
    assert code == 1
    assert "is no site" in output
    assert (tmp_path / "precious").exists()


def test_make_lists_it():
    res = subprocess.run(["make", "-C", REPO, "help"], stdout=subprocess.PIPE, text=True, check=True)
    assert re.search(r"^  make site +\w", res.stdout, re.M)


@pytest.fixture(scope="module")
def address(site):
    """The site below a path of a web server, as it may be in use."""
    with webserver.show(site.parent) as top:
        yield f"{top}{site.name}/"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.start(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.mark.parametrize("size", chromium.SIZES)
def test_pages_in_a_browser(browser, address, size):
    """The theme runs without an error and loads nothing from another host; take pictures."""
    chromium.resize(browser, size)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name in ("index.html", "docs/admin.html", "docs/results.html"):
        browser.get(address + name)
        browser.execute_async_script("setTimeout(arguments[0], 500)")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= chromium.SIZES[size][0]
        loaded = browser.execute_script("return performance.getEntriesByType('resource').map(e => e.name)")
        assert len(loaded) > 3
        assert not [url for url in loaded if not url.startswith((address, "data:"))]
        browser.save_screenshot(str(PICTURES / f"site-{name.split('/')[-1].removesuffix('.html')}-{size}.png"))
    wrong = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert not wrong, wrong


def test_search_has_an_answer(browser, address):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import WebDriverWait

    chromium.resize(browser, "desk")
    browser.get(address + "docs/admin.html?q=bigalloc")
    WebDriverWait(browser, 20).until(lambda b: b.find_elements(By.CSS_SELECTOR, ".md-search-result__item"))


def test_no_page_is_wider_than_a_phone(browser, site, address):
    """Wide tables and long lines of code scroll in boxes of their own, also without scripts, which take most time."""
    chromium.resize(browser, "phone")
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*.js", "*.png"]})
    wide = {}
    for path in sorted(site.rglob("*.html")):
        browser.get(address + str(path.relative_to(site)))
        width = browser.execute_script("return document.documentElement.scrollWidth")
        if width > chromium.SIZES["phone"][0]:
            wide[path.name] = width
    browser.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    assert not wide
