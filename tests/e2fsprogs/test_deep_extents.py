# SPDX-License-Identifier: GPL-2.0-only
"""e2fsck accepts a tree wherever it begins in a deep extent tree, and answering no to everything is safe."""

import hashlib
import os
import re
import subprocess

import configs
import pytest
from bigdir import bigdir, fill, htree
from conftest import SEG, make

# Names of 240 bytes that ext2fs_htree_build() puts into a block
NAMES = {1024: 4, 2048: 7, 4096: 14}
# Entries of an extent block that libext2fs fills before it begins the next one
ENTRIES = {1024: 83, 2048: 168, 4096: 339}


def scattered(path, blocks, block_size=1024, features="itree", room=60):
    """A directory of about that many blocks, each an extent of its own, and its tree."""
    image = make(path, features=features, block_size=block_size, size="24M")
    bigdir("eat", image, blocks + blocks // 3 + room, "scattered")
    names = [f"{i:07d}".ljust(240, "n") for i in range(blocks * NAMES[block_size])]
    fill(image, names, links=len(names))
    htree(image)
    out = image.debugfs("itree_build /big", write=True)
    assert image.has_tree(), out
    return image


def extents(image):
    """(level, depth, index in the node, logical start, logical end) of each entry"""
    out = image.debugfs("ex /big")
    found = re.findall(r"^ *(\d+)/ *(\d+) +(\d+)/ *\d+ +(\d+) - +(\d+)", out, re.M)
    return [tuple(map(int, entry)) for entry in found]


def places(image):
    """(depth of the extents, place of the segment in its leaf, place of that leaf in its index block).

    A place is "first", "middle" or "last"; "only" is both first and last.
    """
    out = image.debugfs("ex /big")
    rows = re.findall(r"^ *(\d+)/ *(\d+) +(\d+)/ *(\d+) +(\d+) - ", out, re.M)
    way = {}
    for level, depth, index, count, start in (map(int, row) for row in rows):
        way[level] = (index, count)
        if start == SEG and level == depth:
            break
    else:
        pytest.fail(f"no segment:\n{out}")

    def place(index, count):
        return "only" if count == 1 else "first" if index == 1 else "last" if index == count else "middle"

    return depth, place(*way[depth]), place(*way[depth - 1])


def volume(image, *lines):
    """Run commands of tests/walker/src/volume.c"""
    res = subprocess.run([configs.helper(), "run", image.path], input="".join(line + "\n" for line in lines),
                         capture_output=True, text=True, check=False)  # fmt: skip
    assert res.returncode == 0, res.stdout + res.stderr
    return res.stdout


def untouched(image, what):
    """No run of e2fsck finds or changes anything."""
    before = content(image)
    for answer in ("-fn", "-fp", "-fy"):
        # The extent tree could be narrower, and that of the ballast has holes.
        code, out = image.fsck(answer, "-E", "no_optimize_extents")
        assert code == 0, f"{what}, e2fsck {answer}: exit code {code}\n{out}"
    assert content(image) == before, f"{what}: e2fsck changed a sound volume"


def content(image):
    """A digest of all but the superblock, whose times e2fsck sets"""
    return hashlib.sha256(image.path.read_bytes()[2048:]).digest()


@pytest.mark.parametrize("block_size", [1024, 2048, 4096])
def test_every_place_of_the_segment(tmp_path, block_size):
    """The segment moves towards the end of a leaf of an extent tree of depth 2.

    At some of these sizes it begins a leaf of its own, and the index entry
    before that leaf ends at logical block 0x7fffffff.
    """
    fanout, begins, within = ENTRIES[block_size], 0, 0
    for blocks in range(5 * fanout - 10, 5 * fanout + 3):
        image = scattered(tmp_path / "image", blocks, block_size)
        entries = extents(image)
        assert {depth for _, depth, *_ in entries} == {2}
        first = any(level == 1 and start == SEG for level, _, _, start, _ in entries)
        begins, within = begins + first, within + (not first)
        untouched(image, f"{blocks} blocks")
        image.path.unlink()
    assert begins and within, f"{begins} trees began a leaf, {within} did not"


@pytest.mark.parametrize(
    ("block_size", "features"),
    [(1024, "itree"), (1024, "itree,large_dir"), (1024, "itree,^metadata_csum"), (2048, "itree"), (4096, "itree")],
)
def test_depth_2_to_4(tmp_path, block_size, features):
    """The same extents in trees of other shapes, at random: small volumes have no other way to depth 3 and 4."""
    image = scattered(tmp_path / "image", 420, block_size, features, room=600)
    seen, full = set(), os.environ.get("ITREE_FULL")
    for seed in range(1000 if full else 64):
        volume(image, f"reshape /big {seed} {(4, 5, 6, 7, 8, 10, 20, 40)[seed % 8]} {seed // 8 % 2}")
        found = places(image)
        if full or found not in seen:
            untouched(image, f"seed {seed}, {found}")
        seen.add(found)
    assert {depth for depth, *_ in seen} >= {2, 3, 4}, seen
    assert {leaf for _, leaf, _ in seen} >= {"first", "middle", "last"}, seen
    assert {index for *_, index in seen} >= {"first", "middle", "last"}, seen
    image.exact()


def gap(image, where):
    """Take blocks away on one side of the segment's first block, or that block itself."""
    last = max(end for level, depth, _, _, end in extents(image) if level == depth and end < SEG)
    first, final = {"before": (last - 1, last), "at": (SEG, SEG), "behind": (SEG + 1, SEG + 2)}[where]
    image.change(f"punch /big {first} {final}")
    assert first not in {start for _, _, _, start, _ in extents(image)}


@pytest.mark.parametrize("where", ["before", "at", "behind"])
@pytest.mark.parametrize(("depth", "limit"), [(2, 40), (3, 10), (4, 5)])
def test_a_gap_on_either_side(tmp_path, where, depth, limit):
    """A hole next to the segment's first extent costs the names of the missing blocks, and no others."""
    image = scattered(tmp_path / "image", 420, room=600)
    for seed in range(50):
        volume(image, f"reshape /big {seed} {limit} 1")
        if places(image)[:2] == (depth, "first"):
            break
    else:
        pytest.fail(f"no shape of depth {depth}: {places(image)}")
    names = set(image.names())
    gap(image, where)
    left = set(image.names())
    assert len(left) == len(names) if where != "before" else 0 < len(names - left) <= 2 * NAMES[1024]
    code, out = image.fsck("-fn", "-E", "no_optimize_extents")
    assert code == 4, f"e2fsck -fn: exit code {code}\n{out}"
    code, out = image.fsck("-fy", "-E", "no_optimize_extents")
    assert code == 1, f"e2fsck -fy: exit code {code}\n{out}"
    assert set(image.names()) == left
    image.exact()
    untouched(image, f"gap {where} the first block, depth {depth}")


def test_growth_alone(tmp_path):
    """Names come in; the extents before the segment fill their leaf, which is split."""
    image = scattered(tmp_path / "image", 5 * ENTRIES[1024] - 30, room=600)
    source = image.names()[0][0]
    leaves = [level for level, *_ in extents(image)].count(1)
    for step in range(12):
        out = volume(image, f"names /big grown{step:03} 0 32 240 /big/{source} 0")
        assert out.startswith("ok"), out
        assert image.has_tree()
        untouched(image, f"step {step}, {places(image)}")
    assert [level for level, *_ in extents(image)].count(1) > leaves
    image.exact()


def test_growth_to_depth_3(tmp_path):
    """An index block in front of the segment fills up and is split: the extent tree gets a third level."""
    image = scattered(tmp_path / "image", 4 * ENTRIES[1024] + 8, room=14000)
    source = image.names()[0][0]
    for step in range(20):
        out = volume(image, f"names /big grown{step:03} 0 2400 240 /big/{source} 0")
        assert out.startswith("ok 2400"), out
        assert image.has_tree()
        if (depth := places(image)[0]) == 3 or step % 4 == 0:
            untouched(image, f"step {step}, {places(image)}")
        if depth == 3:
            break
    assert depth == 3
    image.exact()


def test_packed_after_deletes(tmp_path):
    """e2fsck -fyD frees the blocks in front of the segment, and builds the tree anew."""
    image = scattered(tmp_path / "image", 5 * ENTRIES[1024])
    before = len(extents(image))
    for share in (9, 5, 2):
        gone = [name for number, (name, _) in enumerate(image.names()) if number % share == 0]
        volume(image, *(f"unlink /big/{name}" for name in gone))
        untouched(image, f"one in {share} names deleted")
        assert image.fsck("-fyD", "-E", "no_optimize_extents")[0] in (0, 1)
        assert image.has_tree()
        image.exact()
        untouched(image, f"packed, {places(image)}")
        assert before > (before := len(extents(image)))


@pytest.mark.parametrize("features", ["itree", "itree,large_dir"])
def test_filled_by_mke2fs(tmp_path, features):
    """With -d, data of files lie between the blocks of their directory."""
    (tmp_path / "source" / "big").mkdir(parents=True)
    for number in range(1800):
        (tmp_path / "source" / "big" / f"{number:07}".ljust(240, "n")).write_bytes(b"x" * 1024)
    image = make(tmp_path / "image", tmp_path / "source", features)
    assert image.has_tree()
    assert places(image)[0] == 2
    untouched(image, f"{places(image)}")
    assert len(image.names()) == 1800
    image.exact()


def test_no_to_a_bad_htree_entry(tmp_path):
    """-n goes on behind an entry that names a block outside of the directory, before that of a sound node."""
    image = scattered(tmp_path / "image", 400, features="itree,^metadata_csum")
    # The second entry of the htree's root: its hash lies at byte 40, its block at 44.
    image.change("zap_block -f /big -o 44 -l 4 -p 15 0")
    code, out = image.fsck("-fn")
    assert code == 4, f"e2fsck -fn: exit code {code}\n{out}"
    assert "bad block number" in out and "Pass 5" in out, out
    image.fsck("-fy", ok=(1,))
    image.clean()


@pytest.mark.parametrize("length", [7, 9, 255])
def test_htree_root_that_says_a_wrong_place(tmp_path, length):
    """The entries of an htree's root begin at a multiple of 4; -n goes on with a root that says otherwise."""
    image = scattered(tmp_path / "image", 400, features="itree,^metadata_csum")
    # info_length is at byte 29 of the directory's first block.
    image.change(f"zap_block -f /big -o 29 -l 1 -p {length} 0")
    code, out = image.fsck("-fn")
    # Pass 1 says it of a length below 8, pass 2 of the others.
    assert code == 4 and re.search(r"invalid root node|root node is invalid", out), f"exit code {code}\n{out}"
    names = image.names()
    image.fsck("-fy", ok=(1,))
    image.clean()
    assert image.names() == names
