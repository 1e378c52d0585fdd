# SPDX-License-Identifier: GPL-2.0-only
"""Each script of upstream/series.toml fails with the release and succeeds with our tools."""

import os
import pathlib
import subprocess
import sys

import pytest
from conftest import REPO, ROOT
from test_hostile import build

sys.path.append(str(REPO / "packaging" / "lib"))
import series  # noqa: E402
import treebuild as tb  # noqa: E402

E2FS = REPO / "e2fsprogs"
PROJECT = series.Project("e2fsprogs", "", E2FS / "upstream", tb.read_series(E2FS / "patches"), {}, None)
FIXES = [entry for entry in series.read_list(PROJECT)["fixes"] if "check" in entry]


@pytest.fixture(scope="module")
def pristine():
    return build("pristine")


def missing(need, root):
    """Return why this machine does not have what a script needs, or nothing."""
    return {
        "root": "" if os.geteuid() == 0 else "needs root",
        "fuse": "" if os.path.exists("/dev/fuse") and (root / "bin" / "fuse2fs").exists() else "needs fuse2fs",
        "loop": "" if os.path.exists("/dev/loop-control") else "needs loop devices",
        "shm": "" if pathlib.Path("/dev/shm").is_dir() else "needs a tmpfs at /dev/shm",
    }[need]


def run(script, root, pristine, folder):
    """Run a script with the tools below root, as its mail says. Returns exit code and output."""
    folder.mkdir()
    env = {**os.environ, "LC_ALL": "C", "DEBUGFS_PAGER": "cat", "MKE2FS_CONFIG": f"{pristine}/etc/mke2fs.conf"}
    env["PATH"] = f"{root}/sbin:{root}/bin:{env['PATH']}"
    try:
        res = subprocess.run(["sh", "-e", "-c", script], cwd=folder, env=env, stdin=subprocess.DEVNULL, check=False,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
    finally:
        if os.path.ismount(folder / "mnt"):
            subprocess.run(["umount", folder / "mnt"], check=False)
    return res.returncode, res.stdout[-5000:]


@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix["patch"][:4])
def test_fails_with_the_release_only(fix, pristine, tmp_path):
    for need in fix.get("needs", []):
        if why := missing(need, ROOT):
            pytest.skip(why)
    # Others may not enter the directory of a test; one script runs a program as another user.
    for folder in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        folder.chmod(0o755)
    code, out = run(fix["check"], ROOT, pristine, tmp_path / "ours")
    assert code == 0, out
    code, out = run(fix["check"], pristine, pristine, tmp_path / "release")
    assert code != 0, out


def test_most_fixes_have_a_script():
    assert len(FIXES) >= 30
