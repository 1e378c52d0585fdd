# SPDX-License-Identifier: GPL-2.0-only
"""Source packages for Debian: what they hold, and that they build what we give out."""

import re

import pkg
import pytest
import roots
import treebuild as tb
from conftest import FULL, REPO


@pytest.fixture
def unpack(deb_repo, tmp_path):
    """A function that gives the unpacked source of a package."""

    def unpacked(name):
        (dsc,) = deb_repo.glob(f"{name}_*.dsc")
        roots.call("dpkg-source", "--no-check", "-x", dsc, tmp_path / name)
        return tmp_path / name

    return unpacked


def digests(top, besides):
    return {rel: tb.sha256_file(top / rel) for rel in tb.files_below(top) if not re.match(besides, rel)}


def test_apt_finds_them(deb_repo):
    listed = re.findall(r"(?m)^Package: (\S+)$", (deb_repo / "Sources").read_text())
    assert {"e2fsprogs", "diskorder", "itree-backup", "ext4itree"} <= set(listed)
    assert " Sources\n" in (deb_repo / "InRelease").read_text()


def test_e2fsprogs_is_what_is_built(unpack, tmp_path, monkeypatch):
    """Upstream's source, ours, and our patches one by one give the tree that e2fsprogs/build lays."""
    monkeypatch.setenv("ITREE_RELEASE", "0.1")
    build = tb.load_script(REPO / "packaging" / "deb" / "build")
    args = type("Args", (), {"dir": None, "here": build.debian.RELEASES["bookworm"]})
    (tmp_path / "ours").mkdir()
    laid = build.source_tree(tmp_path / "ours", pkg.Version(), args)
    tree = unpack("e2fsprogs")
    series = (tree / "debian" / "patches" / "series").read_text().split()
    assert series[1:] == [p.name for p in pkg.e2fsprogs_parts()[1]]
    for rel in tb.files_below(tree / "debian" / "binary"):
        assert (tree / "debian" / "binary" / rel).read_bytes() == (laid / rel).read_bytes(), rel
        (laid / rel).unlink()
    besides = r"debian/|\.pc/"
    assert digests(tree, besides) == digests(laid, besides)


@pytest.mark.parametrize(
    "name",
    ["itree-backup", "diskorder",
     pytest.param("e2fsprogs", marks=pytest.mark.skipif(not FULL, reason="compiles e2fsprogs again: ITREE_FULL=1"))],
)  # fmt: skip
def test_they_build_the_same_packages(deb_repo, unpack, name, tmp_path):
    tree = unpack(name)
    roots.call("env", "DEB_BUILD_OPTIONS=noautodbgsym", "dpkg-buildpackage", "-b", "-us", "-uc", cwd=tree)
    made = list(tmp_path.glob("*.deb"))
    assert made
    for path in made:
        assert path.read_bytes() == (deb_repo / path.name).read_bytes(), path.name
