# SPDX-License-Identifier: GPL-2.0-only
"""tune2fs frees trees when nothing can be refused any more, and stopped in between it leaves no clean-looking ruin."""

import os
import random
import re
import subprocess

import pytest
from bigdir import fill, htree, some_names
from conftest import ITREE_FL, SEG, make, run, tool
from test_deep_extents import ENTRIES, extents, scattered
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


def mounted_since(image):
    """As after a mount and a clean unmount: e2fsck has not seen it since."""
    image.change("ssv lastcheck @1700000000", "ssv mtime @1700001000")
    sb = image.path.read_bytes()[1024:2048]
    assert int.from_bytes(sb[0x40:0x44], "little") < int.from_bytes(sb[0x2C:0x30], "little")
    assert state(image) == "clean"
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
    if args == ["-O", "^itree"]:
        mounted_since(master)
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


@pytest.mark.parametrize("features", ["flex_bg", "flex_bg,quota", "flex_bg,bigalloc"])
def test_clears_the_feature_after_an_unmount(features, tmp_path, source):
    image = mounted_since(volume(tmp_path, source, features))
    names = image.names()
    run("tune2fs", "-O", "^itree", image.path)
    assert not image.has_tree() and not image.has_segment()
    assert state(image) == "clean"
    image.clean()
    assert image.names() == names


def test_clears_the_feature_with_a_deep_extent_tree(tmp_path):
    image = mounted_since(scattered(tmp_path / "fs.img", 5 * ENTRIES[1024]))
    assert {depth for _, depth, *_ in extents(image)} == {2}
    names = image.names()
    run("tune2fs", "-O", "^itree", image.path)
    assert not image.has_tree() and not image.has_segment()
    image.clean()
    assert image.names() == names


def physical(image, lblk):
    return int(re.fullmatch(r"\d+", image.debugfs(f"bmap /big {lblk}"))[0])


# what is wrong with the volume, and what tune2fs says about it
FAULTS = {
    "node": (lambda i: i.poke(1, 0, b"\0\0\0\0"), "is not safe because of directory inode"),
    "root": (lambda i: i.poke(0, 0, b"\0\0\0\0"), "is not safe because of directory inode"),
    "node is free": (lambda i: i.change(f"freeb {physical(i, SEG + 1)}"), "not marked in use"),
    "name block is free": (lambda i: i.change(f"freeb {physical(i, 3)}"), "not marked in use"),
    "inode is free": (lambda i: i.change("freei /big"), "not marked in use"),
    # Checksums have the inode's number in them: with them, it is not even the other directory's tree.
    "two owners": (
        lambda i: i.change("mkdir /other", "copy_inode /big /other"),
        "is not safe because of directory inode",
    ),
    "no flag": (lambda i: i.set_flags("/big", off=ITREE_FL), "no valid itree"),
    "not clean": (lambda i: i.change("ssv state 0"), "requires a freshly checked"),
    "errors": (lambda i: i.change("ssv state 3"), "requires a freshly checked"),
    "orphan": (lambda i: i.change("ssv last_orphan 20"), "requires a freshly checked"),
}


@pytest.mark.parametrize("csum", ["metadata_csum", "^metadata_csum"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_after_an_unmount_changes_nothing(fault, csum, tmp_path, source):
    image = mounted_since(volume(tmp_path, source, f"flex_bg,{csum}"))
    names = image.names()
    spoil, reason = FAULTS[fault]
    spoil(image)
    before = image.path.read_bytes()
    code, out = run("tune2fs", "-O", "^itree", image.path, ok=None)
    assert code == 1 and reason in out and "e2fsck -f" in out, out
    assert fault != "two owners" or csum == "metadata_csum" or "a block has two owners" in out, out
    assert image.path.read_bytes() == before
    # What it asks for helps.
    image.fsck("-fy", ok=(0, 1))
    if fault == "two owners":
        # Known: a tree that two directories share takes e2fsck two runs, and either of them gets the names.
        image.fsck("-fy", ok=(0, 1))
        run("tune2fs", "-O", "^itree", image.path)
        image.clean()
        assert names in (image.names(), image.names("/other"))
        return
    run("tune2fs", "-O", "^itree", image.path)
    image.clean()
    assert image.names() == names


CSUM = "orphan_file,metadata_csum,^metadata_csum_seed"


@pytest.mark.parametrize(
    "features, changes",
    [
        (CSUM, [["-O", "^metadata_csum"]]),
        (CSUM, [["-O", "^metadata_csum"], ["-O", "metadata_csum"]]),
        ("orphan_file,^metadata_csum", [["-O", "metadata_csum"]]),
        (CSUM, [["-U", "random"]]),
        ("orphan_file,metadata_csum,metadata_csum_seed", [["-U", "random"], ["-O", "^metadata_csum_seed"]]),
        (CSUM, [["-O", "^has_journal"]]),
        (CSUM, [["-O", "^has_journal,^orphan_file"]]),
        (CSUM, [["-O", "^has_journal,^metadata_csum"]]),
        (CSUM + ",^extent,^64bit", [["-O", "^has_journal"]]),
        (CSUM + ",bigalloc", [["-O", "^has_journal"]]),
        ("^orphan_file,bigalloc", [["-O", "^has_journal"]]),
        (CSUM + ",bigalloc", [["-O", "^has_journal"], ["-O", "has_journal"], ["-O", "orphan_file"]]),
        (CSUM + ",bigalloc", [["-O", "^orphan_file"], ["-O", "^has_journal"]]),
    ],
)
@pytest.mark.parametrize("block_size", [1024, 4096])
def test_the_orphan_file_stays_sound(tmp_path, block_size, features, changes):
    image = make(tmp_path / "fs.img", None, features, block_size, "64M", ["-J", "size=8"])
    for args in changes:
        run("tune2fs", *args, image.path)
        image.clean()
    features = run("dumpe2fs", "-h", image.path)[1]
    if "^has_journal" in changes[-1][-1]:
        assert "orphan" not in features.lower()


def test_a_refusal_leaves_journal_and_orphan_file(tmp_path):
    image = make(tmp_path / "fs.img", None, CSUM)
    image.debugfs("feature orphan_present", write=True)
    before = image.path.read_bytes()
    assert run("tune2fs", "-O", "^has_journal", image.path, ok=None)[0] == 1
    assert image.path.read_bytes() == before


ENTRIES_OF_ROOT = 123  # in 1,024 bytes, with a checksum


def full_root(tmp_path, features, entries):
    """An htree of one level, each leaf of three names, whose root has no room left."""
    image = make(tmp_path / "fs.img", None, features)
    fill(image, some_names(3 * entries, 255, 255))
    htree(image)
    out = image.debugfs("htree_dump /big")
    assert f"(count): {entries}\n" in out and f"(limit): {entries}\n" in out, out
    image.clean()
    return image


def test_a_full_htree_node_gets_its_checksum(tmp_path):
    image = full_root(tmp_path, "metadata_csum,^metadata_csum_seed", ENTRIES_OF_ROOT)
    out = run("tune2fs", "-U", "random", image.path)[1]
    assert "e2fsck" not in out
    image.clean()


def test_a_full_htree_node_without_room_for_a_checksum(tmp_path):
    image = full_root(tmp_path, "^metadata_csum", ENTRIES_OF_ROOT + 1)
    names = image.names()
    out = run("tune2fs", "-O", "metadata_csum", image.path)[1]
    assert "e2fsck -fD" in out
    assert state(image) == "not clean"
    image.fsck("-fyD", ok=(1,))
    image.clean()
    assert image.names() == names
