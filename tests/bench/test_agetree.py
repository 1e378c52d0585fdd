# SPDX-License-Identifier: GPL-2.0-only
"""An aged tree has the files of the archive, each once, and was in motion."""

import io
import os
import subprocess
import sys
import tarfile

import pytest

from lab import WORKLOADS
from workloads import agetree


def archive(count, name="top/{}/f{}"):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number in range(count):
            member = tarfile.TarInfo(name.format(number % 7, number))
            member.size = number
            tar.addfile(member, io.BytesIO(b"x" * number))
        link = tarfile.TarInfo("top/link")
        link.type = tarfile.SYMTYPE
        link.linkname = "f1"
        tar.addfile(link)
    return out.getvalue()


def unpack(data, where, *args):
    argv = [sys.executable, "-B", WORKLOADS / "agetree.py", where, *args]
    return subprocess.run(argv, input=data, capture_output=True, timeout=120, check=False)


@pytest.mark.parametrize("share", ["0", "0.3", "0.45"])
def test_all_files_are_there(tmp_path, share):
    done = unpack(archive(500), tmp_path / "t", "--share", share)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 500
    found = {os.path.relpath(os.path.join(d, f), tmp_path / "t") for d, _, fs in os.walk(tmp_path / "t") for f in fs}
    assert found == {f"{n % 7}/f{n}" for n in range(500)}
    assert all((tmp_path / "t" / f"{n % 7}" / f"f{n}").stat().st_size == n for n in range(500))


def test_files_are_deleted_and_made_again(tmp_path):
    tree = agetree.Tree(tmp_path, 0.3, 1)
    deleted = []
    delete = tree.delete
    tree.delete = lambda: deleted.append(delete())
    tree.fill((f"f{n}", b"") for n in range(2000))
    # Three in ten steps; all that is deleted is created again.
    assert len(deleted) / (2000 + 2 * len(deleted)) == pytest.approx(0.3, abs=0.03)
    assert sorted(tree.live) == sorted(f"f{n}" for n in range(2000))


def test_some_files_only(tmp_path):
    assert int(unpack(archive(500), tmp_path / "t", "--files", "120").stdout) == 120


def test_bad_archives(tmp_path):
    assert unpack(b"nothing of the kind" * 99, tmp_path / "a").returncode == 1
    done = unpack(archive(3, "top/../../f{}{}"), tmp_path / "b")
    assert done.returncode == 1 and b"leads out" in done.stderr
    assert not list(tmp_path.glob("f*"))
