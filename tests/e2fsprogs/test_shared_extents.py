# SPDX-License-Identifier: GPL-2.0-only
"""e2fsck on directories whose extents lead to the same blocks: names stay, and one run is enough."""

import struct

import ondisk
import pytest
from bigdir import bigdir, fill, free_blocks, htree
from conftest import make

BLOCKS = 425  # an extent tree of depth 2: six leaves of at most 83 extents
NAMES = BLOCKS * 4
EXTENTS_FL = 0x80000


def directories(path, count=2, tree=True, features="itree,^metadata_csum", extra=()):
    """Directories /d0, /d1, ..., each block of theirs an extent of its own, and room for one more."""
    image = make(path, features=features, size="24M", extra=extra)
    # Clusters of two blocks: their blocks come one by one as well, in pieces of what is free.
    room = (count + 1) * (BLOCKS + BLOCKS // 3 + 60)
    bigdir("eat", image, *((2 * room,) if extra else (room, "scattered")))
    for i in range(count):
        fill(image, [f"{i}{n:07d}".ljust(240, "n") for n in range(NAMES)], links=NAMES, folder=f"d{i}")
        htree(image, f"/d{i}")
        if tree:
            image.debugfs(f"itree_build /d{i}", write=True)
            assert image.has_tree(f"/d{i}")
    return image


def same_extents(image, source, target):
    """target gets the extents of source, its size, and its i_blocks."""
    a, b = image.inode(source)[0], image.inode(target)[0]
    with ondisk.Disk(image.path) as disk:
        for offset, length in ((4, 4), (28, 4), (40, 60), (108, 4)):
            disk.put(disk.inode_at(b) + offset, disk.inode(a)[offset : offset + length])
        if disk.mode(disk.inode(b)) & 0xF000 == ondisk.S_IFREG:
            disk.put(disk.inode_at(b) + 32, struct.pack("<I", EXTENTS_FL))
        disk.fix_inode(b)


def same_leaf(image, source, target, which):
    """One index entry of target leads to the leaf of source."""
    with ondisk.Disk(image.path) as disk:
        a, b = ([e for e in disk.extents(image.inode(d)[0]) if e.depth == 1][which] for d in (source, target))
        assert a.lblk == b.lblk and a.home and b.home
        disk.put(b.home * disk.bs + b.offset, disk.get(a.home * disk.bs + a.offset, 12))


def repaired(image, trees=("/d0", "/d1"), names=("/d0", "/d1")):
    """One run of e2fsck, and all is well."""
    _, out = image.fsck("-fy", ok=(1,))
    code, again = image.fsck("-fn")
    assert code == 0, f"not clean after one repair: exit code {code}\n{again}\n--- before:\n{out[-3000:]}"
    for folder in names:
        assert len(image.names(folder)) == NAMES
    for folder in trees:
        assert image.has_tree(folder)
        image.exact(folder)
    return out


@pytest.mark.parametrize("features", ["itree,^metadata_csum", "itree,quota,^metadata_csum"])
def test_two_directories(tmp_path, features):
    image = directories(tmp_path / "image", features=features)
    same_extents(image, "/d0", "/d1")
    out = repaired(image)
    assert "Itree of directory" in out and "Delete file" not in out


def test_two_directories_with_clusters(tmp_path):
    image = directories(tmp_path / "image", features="itree,bigalloc,^metadata_csum", extra=("-C", 2048))
    same_extents(image, "/d0", "/d1")
    repaired(image)


def test_two_directories_without_trees(tmp_path):
    """The pristine release deletes the first directory: it takes two extent blocks for one."""
    image = directories(tmp_path / "image", tree=False)
    same_extents(image, "/d0", "/d1")
    assert "cyclic loop" not in repaired(image, trees=())


def test_three_directories(tmp_path):
    image = directories(tmp_path / "image", count=3)
    same_extents(image, "/d0", "/d1")
    same_extents(image, "/d0", "/d2")
    repaired(image, ("/d0", "/d1", "/d2"), ("/d0", "/d1", "/d2"))


@pytest.mark.parametrize("which", [0, 1, -1])
def test_one_leaf(tmp_path, which):
    """The last leaf holds the tree's own extents."""
    image = directories(tmp_path / "image")
    same_leaf(image, "/d0", "/d1", which)
    repaired(image)


def test_no_room_for_a_copy(tmp_path):
    """One of them is deleted, as ever; the other has all names."""
    image = directories(tmp_path / "image")
    same_extents(image, "/d0", "/d1")
    filler = tmp_path / "filler"
    filler.write_bytes(b"x" * 1024 * (free_blocks(image) - 100))
    image.debugfs(f"write {filler} filler", write=True)
    repaired(image, trees=(), names=("/d1",))


def test_a_file(tmp_path):
    """Pass 1 takes the segment's extents off the file, out of the leaf that the directory has as well.

    The blocks they led to are given back by the next run.
    """
    image = directories(tmp_path / "image", count=1)
    image.debugfs("write /dev/null file", write=True)
    same_extents(image, "/d0", "/file")
    image.fsck("-fy", ok=(1,))
    names = image.names("/d0")
    assert len(names) == NAMES
    image.exact("/d0")
    image.fsck("-fy", ok=(0, 1))
    image.clean()
    assert image.names("/d0") == names


def test_checksums(tmp_path):
    """Pass 1 makes the checksums of the extent blocks right for the second directory, and so wrong for the first.

    The next run takes them as right for it as well: by then the second one has blocks of its own.
    """
    image = directories(tmp_path / "image", features="itree")
    same_extents(image, "/d0", "/d1")
    image.fsck("-fy", ok=(1,))
    assert len(image.names("/d1")) == NAMES
    repaired(image)
