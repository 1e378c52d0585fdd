# SPDX-License-Identifier: GPL-2.0-only
"""The changelogs of the e2fsprogs packages warn of older ones."""

import subprocess

import pytest
import treebuild as tb
from conftest import REPO

WARNING = "Do not run their e2fsck -y on such a volume."


def output(*argv):
    res = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True)
    return res.stdout


@pytest.fixture
def version(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1795700000")
    monkeypatch.setenv("ITREE_RELEASE", "0.202611271333.gabcdef0")
    return tb.load_script(REPO / "packaging" / "deb" / "build").pkg.Version()


def deb(tmp_path, version):
    build = tb.load_script(REPO / "packaging" / "deb" / "build")
    args = type("Args", (), {"dir": None, "here": build.debian.RELEASES["bookworm"]})
    tree = build.source_tree(tmp_path, version, args)
    return output("dpkg-parsechangelog", "-l", str(tree / "debian" / "changelog"))


def rpm(tmp_path, version):
    build = tb.load_script(REPO / "packaging" / "rpm" / "build")
    args = type("Args", (), {"dir": None})
    made = build.srpms(["e2fsprogs-itree"], tmp_path, version, args)
    path = made["e2fsprogs-itree"]
    return output("rpm", "-qp", "--nosignature", "--changelog", "--qf", "Version: %{VERSION}-%{RELEASE}\\n", str(path))


@pytest.mark.parametrize("kind", [deb, rpm])
def test_older_packages_are_warned_of(tmp_path, version, kind):
    text = kind(tmp_path, version)
    assert WARNING in " ".join(text.split())
    assert version.release in text


def test_other_packages_have_no_warning(version):
    for kind in ("deb", "rpm"):
        build = tb.load_script(REPO / "packaging" / kind / "build")
        args = ("diskorder", "1-1", version, build.debian.RELEASES["trixie"]) if kind == "deb" else (version, "1-1")
        assert "e2fsck" not in build.changelog(*args)


def test_releases_sort_by_time(version):
    """With what is built now, apt and dnf replace every package that the warning is about."""
    sound = tb.load_script(REPO / "packaging" / "deb" / "build").pkg.SOUND_E2FSCK
    for older in ("0.202611250045.g93e779f", "0.202611251301.gaaaaaaa"):
        subprocess.run(["dpkg", "--compare-versions", f"1-99~itree{older}", "lt", f"1-99~itree{sound}"], check=True)
        subprocess.run(
            ["dpkg", "--compare-versions", f"1-99~itree{older}", "lt", f"1-99~itree{version.release}"], check=True
        )
