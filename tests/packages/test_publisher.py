# SPDX-License-Identifier: GPL-2.0-only
"""packaging/publisher.conf is the one place that says who publishes; VERSION, the one that says which release."""

import re
import subprocess

import pkg
import publisher
import pytest
import roots
import treebuild as tb
from conftest import REPO

OTHER = "[publisher]\nname = Example GmbH\nemail = a@b.example\nsecurity = s@b.example\nurl = https://b.example/x/\n"
ENV = {"SOURCE_DATE_EPOCH": "1795700000", "ITREE_RELEASE": "0.1"}


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Another publisher than that of the checkout."""
    path = tmp_path / "publisher.conf"
    path.write_text(OTHER)
    for name, value in {**ENV, "ITREE_PUBLISHER": str(path)}.items():
        monkeypatch.setenv(name, value)
    return path


def test_debs_name_the_publisher(other, tmp_path):
    roots.call(REPO / "packaging/deb/build", "deb", "itree-storage-server", "--out", tmp_path / "out")
    (path,) = (tmp_path / "out").rglob("*.deb")
    output = subprocess.run(["dpkg-deb", "--info", path], capture_output=True, text=True, check=True).stdout
    assert "Maintainer: Example GmbH <a@b.example>" in output and "invalid" not in output


def test_rpms_name_the_publisher(other, tmp_path):
    roots.call(REPO / "packaging/rpm/build", "srpm", "itree-storage-server", "--out", tmp_path / "out")
    (path,) = (tmp_path / "out").rglob("*.rpm")
    argv = ["rpm", "-qp", "--nosignature", "--qf", "%{BUILDHOST} %{URL}\n[%{CHANGELOGNAME}\n]", path]
    output = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert output.stdout.startswith("b.example https://b.example/x/\nExample GmbH <a@b.example> - ")


def test_nothing_else_names_one():
    """Signed-off-by lines stay what their authors wrote."""
    argv = ["git", "grep", "-n", "itree[.]invalid", "--", ".", ":!tests"]
    found = subprocess.run(argv, cwd=REPO, capture_output=True, text=True, check=True).stdout.splitlines()
    left = [t for t in found if not re.search(r":\d+:(From|Signed-off-by): ", t)]
    assert {t.split(":")[0] for t in left} <= {"packaging/publisher.conf", "MAINTAINERS", "ansible/galaxy.yml"}, left
    roots.call(REPO / "packaging/publisher", "--check")


def test_it_writes_the_other_files(other):
    texts = tb.load_script(REPO / "packaging/publisher").texts(publisher.read())
    assert not [path for path, text in texts.items() if "invalid" in re.sub(r"(?m)^#.*", "", text)]
    output = "\n".join(texts.values())
    assert "Example GmbH <s@b.example>" in output and "issues: https://b.example/x/itree/issues" in output


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("email = a@b.example", "", "security, url"),
        ("a@b.example", "a at b", "no mail address"),
        ("Example GmbH", "me <me@b.example>", "a name without"),
        ("/x/", "/x", "ends in a slash"),
        ("https://", "", "no address"),
        ("[publisher]", "", "publisher.conf"),
    ],
)
def test_bad_settings(other, before, after, says):
    other.write_text(OTHER.replace(before, after, 1))
    with pytest.raises(tb.BuildError, match=re.escape(says)):
        publisher.read()


@pytest.mark.parametrize("builder", ["packaging/deb/build", "packaging/rpm/build", "packaging/series"])
def test_bad_settings_are_a_message(other, tmp_path, builder):
    other.write_text("")
    words = ["deb" if "deb" in builder else "srpm", "itree-storage-server"] if "series" not in builder else ["tar"]
    argv = [REPO / builder, *words, "--out", tmp_path / "out"]
    res = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)
    assert res.returncode == 1 and "Traceback" not in res.stderr and str(other) in res.stderr, res


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A checkout of one commit, whose VERSION says 3."""
    for name in ENV:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pkg, "REPO", tmp_path)
    (tmp_path / "VERSION").write_text("3\n")
    who = ["-c", "user.name=t", "-c", "user.email=t@t.example"]
    for argv in (["init", "-q"], ["add", "-A"], [*who, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", tmp_path, *argv], check=True)
    return tmp_path


def test_a_tagged_commit_is_a_release(checkout):
    snapshot = pkg.Version().release
    assert re.fullmatch(r"3\.\d{12}\.g[0-9a-f]+", snapshot)
    subprocess.run(["git", "-C", checkout, "tag", "v2"], check=True)
    assert pkg.Version().release == snapshot
    subprocess.run(["git", "-C", checkout, "tag", "v3"], check=True)
    assert pkg.Version().release == "3"
    (checkout / "VERSION").write_text("3 \n")
    assert pkg.Version().release == f"{snapshot}.changed"


def test_releases_sort(checkout):
    """What is built after a release is newer than it, and older than the next one."""
    order = ["0.202611281751.gabc", "1", "1.202612010000.gabc", "3", pkg.Version().release, "4", "10"]
    for older, newer in zip(order, order[1:], strict=False):
        assert subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=False).returncode == 0, newer
        lua = f'%{{lua:print(rpm.vercmp("{older}", "{newer}"))}}'
        res = subprocess.run(["rpm", "--eval", lua], check=True, capture_output=True, text=True)
        assert res.stdout == "-1\n", (older, newer)


@pytest.mark.parametrize("text", ["1.2", "", "next"])
def test_bad_version(checkout, text):
    (checkout / "VERSION").write_text(text)
    with pytest.raises(tb.BuildError, match="a whole number"):
        pkg.Version()
