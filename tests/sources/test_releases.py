# SPDX-License-Identifier: GPL-2.0-only
"""Which kernels the patches are tried on, and that they fit."""

import os
import pathlib
import re
import subprocess

import pytest
import treebuild as tb

REPO = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = REPO / "kernel" / "releases"


@pytest.fixture(scope="module")
def releases():
    return tb.load_script(SCRIPT)


class Mirror:
    found = {}

    def versions(self, _package):
        return self.found


def test_each_point_release_once_the_newest_first(releases):
    mirror = Mirror()
    mirror.found = {
        "6.12.9-1": False,
        "6.12.107-1~deb12u1": False,
        "6.12.107-1": True,
        "6.12.30-1": True,
        "6.13.2-1": True,
        "6.1.100-1": False,
    }
    found = releases.offered(mirror, "linux-source-6.12", "6.12")
    assert found == [("6.12.107-1~deb12u1", False), ("6.12.30-1", True), ("6.12.9-1", False)]


def test_a_patch_that_does_not_fit_fails(releases, tmp_path, monkeypatch):
    """One line of ext4 changed under a patch: the check says which patch, and does not go on."""
    build = tb.load_script(REPO / "kernel" / "build")
    subprocess.run([REPO / "kernel" / "build", "--prepare"], check=True, capture_output=True)
    tree = releases.BUILD / "linux"
    touched = sorted({t for p in build.base_of().patches() for t in _targets(releases, p)})

    def unpack(dest):
        for rel in [*touched, "Makefile"]:
            kept = releases.BUILD / "linux.pristine" / rel
            (dest / rel).parent.mkdir(parents=True, exist_ok=True)
            text = (kept if kept.exists() else tree / rel).read_text()
            if rel == "fs/ext4/dir.c":
                text = text.replace("static int ext4_dx_readdir(", "static int ext4_htree_readdir(")
            (dest / rel).write_text(text)

    monkeypatch.setattr(build, "unpack_kernel", lambda _archive: unpack)
    monkeypatch.setattr(releases, "BUILD", tmp_path)
    archive = tmp_path / "archive"
    archive.write_text("x")
    with pytest.raises(tb.BuildError, match=r"00\d\d-ext4.*\.patch"):
        releases.check(build, archive, apply_only=True, base=build.base_of())


def _targets(releases, patch):
    return {t for t in tb.patch_targets(patch) if not t.startswith("Documentation/")}


@pytest.mark.skipif(os.environ.get("ITREE_FULL") != "1", reason="downloads and compiles for minutes: set ITREE_FULL=1")
def test_every_release_on_offer():
    res = subprocess.run([SCRIPT], capture_output=True, text=True, check=False, timeout=7200)
    assert res.returncode == 0, res.stdout[-3000:] + res.stderr[-2000:]
    assert re.search(r"^[1-9]\d* passed, 0 failed$", res.stdout, re.M)
