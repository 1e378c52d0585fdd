# SPDX-License-Identifier: GPL-2.0-only
"""Peak memory on enormous directories: at most 64 MiB above the unpatched tool."""

import json
import os

import pytest
from conftest import HERE, REPO, run

MIB = 1 << 10  # in KiB


def figures(tmp_path, *argv, **kwargs):
    out = tmp_path / "figures.json"
    run(REPO / "bench" / "memory", "--json", out, *argv, **kwargs)
    return json.loads(out.read_text())["works"]


def more(result):
    return result["patched"]["kib"] - result["unpatched"]["kib"]


def test_two_hundred_thousand_names(ext4, tmp_path):
    """Sorting takes what it is allowed to, and no more when that is less."""
    argv = ["--entries", 200_000, "--against", "off", "--in", ext4]
    works = "tar,tar-disk,rsync-list"
    result = figures(tmp_path, *argv, "--work", works, env={"DISKORDER_MEMORY": "32"})
    assert set(result) == set(works.split(","))
    for work, took in result.items():
        assert more(took) <= 64 * MIB, work
    # The names, 64 bytes each as they are kept: so it did sort.
    assert more(result["tar"]) > 4 * MIB
    little = figures(tmp_path, *argv, "--work", "tar", env={"DISKORDER_MEMORY": "2"})["tar"]
    assert more(little) < 4 * MIB


@pytest.mark.skipif(not os.environ.get("ITREE_FULL"), reason="5,000,000 names take half an hour: ITREE_FULL=1")
@pytest.mark.timeout(7200)
def test_five_million_names(tmp_path):
    if os.geteuid():
        pytest.skip("needs root to mount an image")
    run(HERE / "build", "tar", "rsync", "coreutils", timeout=1500)
    run(HERE / "build", "--pristine", "tar", "rsync", "coreutils", timeout=1500)
    result = figures(tmp_path, timeout=5400)
    for work in ("tar", "tar-disk", "rsync", "rsync-list", "cp", "ls"):
        assert more(result[work]) <= 64 * MIB, work
