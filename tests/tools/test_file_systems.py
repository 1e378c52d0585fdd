# SPDX-License-Identifier: GPL-2.0-only
"""Trees compare equal after archiving, transfer and copying, from every file system to every other."""

import contextlib
import os
import pathlib
import sys
import uuid

import pytest
from conftest import REPO, loop_mounted, run

sys.path.insert(0, str(REPO / "bench"))
import roundtrip

import lab

ROUNDTRIP = pathlib.Path(roundtrip.__file__)
FULL = bool(os.environ.get("ITREE_FULL"))
KINDS = ("ext4", "xfs", "btrfs")
SIZE = 1 << 30
LARGE = "5000"  # names: 16 blocks and more, so that there is a tree


@pytest.fixture(scope="module")
def volumes(tmp_path_factory):
    """{(kind, use): a mounted directory}: a volume of its own for reading and one for writing."""
    base = tmp_path_factory.mktemp("volumes")
    with contextlib.ExitStack() as stack:
        mounted = {}
        for use in ("from", "to"):
            for kind in KINDS:
                image = base / f"{kind}-{use}"
                lab.make_fs(kind, image, SIZE, str(uuid.uuid4()))
                mounted[kind, use] = stack.enter_context(loop_mounted(image, base / f"{image.name}.mnt"))
        yield mounted


def compared(places, tools):
    try:
        assert f"{len(tools)} copies" in run(sys.executable, ROUNDTRIP, *places, 1200, *tools)
    finally:
        run("rm", "-rf", places[0] / "source", places[1] / "target")


@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_trees_are_equal(volumes, source, target):
    compared((volumes[source, "from"], volumes[target, "to"]), [tool for tool in roundtrip.TOOLS if tool != "cp"])


@pytest.mark.skipif(not FULL, reason="cp is built with ITREE_FULL=1")
@pytest.mark.parametrize("target", KINDS)
@pytest.mark.parametrize("source", KINDS)
def test_copied_trees_are_equal(volumes, source, target):
    compared((volumes[source, "from"], volumes[target, "to"]), ["cp"])


@pytest.mark.timeout(1800)
@pytest.mark.skipif(not FULL, reason="a guest takes minutes: ITREE_FULL=1 runs it")
@pytest.mark.skipif(not lab.KERNEL.exists(), reason=f"{lab.KERNEL} is missing: run `make kernel`")
@pytest.mark.parametrize("other", ["itree", *KINDS])
def test_trees_are_equal_on_itree(tmp_path, other):
    """From itree to another one and back, in a guest: files of these directories come in inode order there."""
    images = [tmp_path / "one", tmp_path / "two"]
    lab.make_fs("itree", images[0], SIZE)
    lab.make_fs(other, images[1], SIZE, lab.SECOND_UUID)
    disks = [(images[0], "ext4"), (images[1], lab.fs_type(other))]
    command = [sys.executable, str(ROUNDTRIP)]
    ways = {"there": ["{mnt}", "{second}"], "back": ["{second}", "{mnt}"]}
    steps = [lab.Step(name, command + [*way, LARGE], "noatime", second=1, trace=False) for name, way in ways.items()]
    report = lab.run_guest(disks, steps, tmp_path / "share", "1G", 1500)
    for name in ways:
        assert f"{len(roundtrip.TOOLS)} copies" in report.output(name)
    # Each way has made its source on another volume, and left it there.
    result = run(lab.E2FS / "debugfs", "-R", "itree_stat /source/top/many", images[0])
    assert "Keys: 5000" in result, result
