# SPDX-License-Identifier: GPL-2.0-only
"""tune2fs frees trees when nothing can be refused any more, and stopped in between it leaves no clean-looking ruin."""

import os
import random
import re
import subprocess

import pytest
from conftest import make, run, tool
from test_interrupt import stopper

POINTS = 300 if os.environ.get("ITREE_FULL") else 12  # at random, and the first and last ones
SMALL = "metadata_csum,^metadata_csum_seed,^resize_inode"
# features of the volume and what fails on it, after the features have been looked at
REFUSED = {
    "extended": ("flex_bg", ["-O", "^itree", "-E", "bogus=1"]),
    "uuid": ("flex_bg", ["-O", "^itree", "-U", "foo"]),
    "uuid alone": ("flex_bg", ["-U", "foo"]),
    "uuid, new checksums": ("flex_bg", ["-O", "^itree,^metadata_csum", "-U", "foo"]),
    "stable_inodes": ("flex_bg,stable_inodes", ["-O", "^itree", "-U", "random"]),
    "flex_bg": ("flex_bg", ["-O", "^itree,^flex_bg"]),
    "journal": ("flex_bg", ["-O", "^itree", "-J", "size=4"]),
    "inode size": ("flex_bg", ["-O", "^itree", "-I", "512"]),
    "inode size alone": ("flex_bg", ["-I", "512"]),
    "no room in the last group": ("^flex_bg,^has_journal", ["-I", "1024"]),
    "no room": ("^flex_bg,^has_journal", ["-I", "1024"]),
    "no room, set": ("^flex_bg,^has_journal", ["-O", "^metadata_csum,^itree", "-I", "1024"]),
}
SIZES = {"no room": "8M", "no room, set": "8M", "no room in the last group": "10M"}


def volume(tmp_path, source, features, size="48M"):
    image = make(tmp_path / "fs.img", source, f"itree,^orphan_file,{SMALL},{features}", 1024, size, ["-I", "256"])
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    assert image.has_tree()
    return image


def state(image):
    """As the superblock has it, or damaged: its bytes are not written all at once."""
    out = run("dumpe2fs", "-h", image.path, ok=None)[1]
    if "checksum does not match superblock" in out:
        return "damaged"
    return re.search(r"Filesystem state: +(.*)", out)[1]


@pytest.mark.parametrize("quota", ["quota", "^quota"])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_changes_nothing(case, quota, tmp_path, source):
    features, args = REFUSED[case]
    image = volume(tmp_path, source, f"{features},{quota}", SIZES.get(case, "48M"))
    before = image.path.read_bytes()
    code, out = run("tune2fs", *args, image.path, ok=None)
    assert code == 1, out
    assert image.path.read_bytes() == before, out
    image.clean()
    image.exact()


def stopped(image, args, at=0):
    """Kills it before write number `at`; returns (exit code, writes if it came to its end)."""
    counted = image.path.with_suffix(".writes")
    counted.unlink(missing_ok=True)
    env = {**os.environ, "LC_ALL": "C", "LD_PRELOAD": str(stopper()), "ITREE_STOP_AT": str(at),
           "ITREE_STOP_SIGNAL": "9", "ITREE_STOP_COUNT": str(counted),
           "E2FSPROGS_FAKE_TIME": "1700000000", "E2FSPROGS_UNDO_DIR": "none"}  # fmt: skip
    res = subprocess.run([tool("tune2fs"), *args, image.path], env=env, stdin=subprocess.DEVNULL, check=False,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
    return res.returncode, int(counted.read_text()) if counted.exists() else None


# Whether e2fsck can mend what upstream's part of the work leaves is another matter.
@pytest.mark.parametrize(
    "args, features, mends",
    [
        (["-O", "^itree"], "flex_bg", True),
        (["-O", "^itree"], "flex_bg,quota", True),
        (["-O", "^itree,^metadata_csum"], "flex_bg,quota", False),
        (["-U", "c0ffee00-0000-4000-8000-000000000001"], "flex_bg", False),
        (["-I", "512"], "^flex_bg", False),
    ],
)
def test_killed(args, features, mends, tmp_path, source):
    master = volume(tmp_path, source, features)
    before = master.path.read_bytes()
    names = master.names()
    code, writes = stopped(master.copy(tmp_path / "whole.img"), args)
    assert code == 0 and writes > 5
    some = random.Random(1).sample(range(1, writes + 1), min(POINTS, writes))
    bad = 0
    for at in sorted({1, 2, 3, 4, 5, writes - 1, writes, *some}):
        image = master.copy(tmp_path / "killed.img")
        code, _ = stopped(image, args, at)
        assert code == -9
        if image.path.read_bytes() == before:
            continue
        if state(image) == "clean":
            image.clean()
            continue
        bad += 1
        if mends:
            image.fsck("-fy", ok=(0, 1))
            image.clean()
            assert image.names() == names
    assert bad, "nothing was ever half done: the test tests nothing"
