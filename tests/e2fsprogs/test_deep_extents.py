# SPDX-License-Identifier: GPL-2.0-only
"""e2fsck accepts a tree wherever it begins in a deep extent tree, and answering no to everything is safe."""

import hashlib
import re

import pytest
from bigdir import bigdir, fill, htree
from conftest import SEG, make

# Names of 240 bytes that ext2fs_htree_build() puts into a block
NAMES = {1024: 4, 2048: 7, 4096: 14}
# Entries of an extent block that libext2fs fills before it begins the next one
ENTRIES = {1024: 83, 2048: 168, 4096: 339}


def scattered(path, blocks, block_size=1024, features="itree"):
    """A directory of about that many blocks, each an extent of its own, and its tree."""
    image = make(path, features=features, block_size=block_size, size="24M")
    bigdir("eat", image, blocks + blocks // 3 + 60, "scattered")
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
        names, before = image.names(), content(image)
        for answer in ("-fn", "-fp", "-fy"):
            # The ballast's extent tree has holes, and could be narrower.
            code, out = image.fsck(answer, "-E", "no_optimize_extents")
            assert code == 0, f"{blocks} blocks, e2fsck {answer}: exit code {code}\n{out}"
        assert content(image) == before, f"{blocks} blocks: e2fsck changed a sound volume"
        assert image.names() == names
        image.path.unlink()
    assert begins and within, f"{begins} trees began a leaf, {within} did not"


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
