# SPDX-License-Identifier: GPL-2.0-only
"""Trees beside the other features of ext4: each makes, changes, breaks, mends and drops one."""

import re

import pytest
from conftest import FILES, ITREE_FL, make, run

CASEFOLD_FL = 0x40000000

# features, block size, more for mke2fs
VOLUMES = {
    "bigalloc": ("itree,bigalloc", 1024, ["-C", 16384]),
    "bigalloc-4k": ("itree,bigalloc", 4096, ["-C", 65536]),
    "large_dir": ("itree,large_dir", 1024, []),
    "inline_data": ("itree,inline_data", 4096, []),
    "64bit": ("itree,64bit", 1024, []),
    "no-64bit": ("itree,^64bit", 1024, []),
    "no-journal": ("itree,^has_journal", 1024, []),
    "csum_seed": ("itree,metadata_csum_seed", 1024, []),
    "no-filetype": ("itree,^filetype", 1024, []),
    "no-flex_bg": ("itree,^flex_bg,^resize_inode", 1024, []),
    "meta_bg": ("itree,meta_bg,^resize_inode", 1024, []),
    "uninit_bg": ("itree,^metadata_csum,uninit_bg", 1024, []),
    "sparse_super2": ("itree,sparse_super2,^resize_inode", 1024, []),
    "small-inodes": ("itree", 1024, ["-I", 128]),
    "2k": ("itree", 2048, []),
    "stable_inodes": ("itree,stable_inodes", 1024, []),
    "verity-encrypt": ("itree,verity,encrypt", 4096, []),
    "hash-tea": ("itree", 1024, ["-E", "hash_seed=01234567-89ab-cdef-0123-456789abcdef"]),
}


@pytest.mark.parametrize("volume", VOLUMES)
def test_beside(volume, tmp_path, source):
    features, block_size, extra = VOLUMES[volume]
    image = make(tmp_path / "fs.img", source, features, block_size, "256M" if "-4k" in volume else "48M", extra)
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.exact()
    names = image.names()

    new = [f"new-{i:05}-{'n' * (i % 100)}" for i in range(600)]
    image.change(*(f"ln /file /big/{name}" for name in new), f"sif /file links_count {1 + len(new)}")
    image.exact()
    image.clean()
    image.debugfs(*(f"rm /big/{name}" for name, _ in names[::3]), write=True)
    image.exact()
    image.clean()
    names = image.names()
    assert len(names) == FILES - (FILES + 2) // 3 + len(new)

    image.poke(1, 0, b"\0\0\0\0")
    code, out = image.fsck("-fp")
    assert code == 1, out
    image.clean()
    image.exact()
    assert image.names() == names

    image.change("itree_drop /big")
    image.clean()
    image.change("itree_build /big")
    image.clean()
    image.exact()
    run("tune2fs", "-O", "^itree", image.path)
    image.clean()
    assert not image.has_segment() and image.names() == names


def quota_volume(tmp_path, source):
    image = make(tmp_path / "fs.img", source, "itree,quota,project", 1024, "48M")
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    assert image.has_tree()
    return image


def test_quota_counts_the_tree(tmp_path, source):
    """e2fsck keeps the books when it drops, builds and mends a tree."""
    image = quota_volume(tmp_path, source)
    image.set_flags("/big", off=ITREE_FL)
    image.fsck("-fp", ok=(1,))
    image.clean()
    assert not image.has_segment()
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.poke(1, 0, b"\0\0\0\0")
    image.fsck("-fy", ok=(1,))
    image.clean()
    image.exact()


@pytest.mark.parametrize("program", ["tune2fs", "resize2fs"])
def test_quota_is_right_after(program, tmp_path, source):
    image = quota_volume(tmp_path, source)
    if program == "tune2fs":
        run("tune2fs", "-O", "^itree", image.path)
    else:
        run("resize2fs", "-f", image.path, "40M")
    assert not image.has_segment()
    image.clean()


def test_casefold(tmp_path):
    image = make(tmp_path / "fs.img", None, "itree,casefold", 1024, "32M", ["-E", "encoding=utf8"])
    image.debugfs("mkdir /big", "write /dev/null /file", write=True)
    image.set_flags("/big", on=CASEFOLD_FL)
    names = [f"Näme-{i:05}-{'X' * (i % 90)}" for i in range(1500)]
    image.fsck("-fy", ok=(0, 1))
    image.change(*["expand_dir /big"] * 200)
    image.change(*(f"ln /file /big/{name}" for name in names), f"sif /file links_count {1 + len(names)}")
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.exact()
    image.change("ln /file /big/ANOTHER", f"sif /file links_count {2 + len(names)}")
    image.exact()
    image.clean()
    image.debugfs(*(f"unlink /big/{name}" for name in names[:700]), write=True)
    image.change(f"sif /file links_count {2 + len(names) - 700}")
    image.exact()
    image.clean()


def test_e2undo_takes_everything_back(one, tmp_path):
    before = one.keys()
    image = one.path.read_bytes()
    for command in (["e2fsck", "-fyD"], ["tune2fs", "-O", "^itree"]):
        undo = tmp_path / f"{command[0]}.e2undo"
        run(command[0], *command[1:], "-z", undo, one.path, ok=(0, 1))
        assert one.path.read_bytes() != image, "nothing was changed: the test tests nothing"
        run("e2undo", undo, one.path)
        assert one.path.read_bytes() == image
    assert one.keys() == before
    one.clean()


def test_bmap2extent_leaves_the_tree(one):
    code, out = one.fsck("-fy", "-E", "bmap2extent")
    assert code in (0, 1), out
    one.clean()
    one.exact()


def test_tree_on_a_block_mapped_directory(tmp_path, source):
    """A flag on a directory without extents is cleared; it gets a tree when it gets extents."""
    image = make(tmp_path / "fs.img", source, "^extent,^64bit", 1024, "48M")
    image.fsck("-fyD", ok=(0, 1))
    run("tune2fs", "-O", "extent", image.path)
    run("tune2fs", "-O", "itree", image.path)
    image.set_flags("/big", on=ITREE_FL)
    names = image.names()
    code, out = image.fsck("-fp")
    assert code == 1 and "no htree in extents" in out, out
    image.clean()
    assert not image.has_tree() and image.names() == names
    code, out = image.fsck("-fy", "-E", "bmap2extent")
    assert code in (0, 1), out
    image.clean()
    image.fsck("-fyD", ok=(0, 1))
    image.clean()
    image.exact()
    assert image.names() == names


@pytest.mark.parametrize("name", ["filefrag", "e2freefrag", "dumpe2fs"])
def test_readers_do_not_care(one, name):
    before = one.path.read_bytes()
    code, out = run(name, *(["-v"] if name == "filefrag" else []), one.path)
    assert code == 0 and out
    assert one.path.read_bytes() == before
    if name == "dumpe2fs":
        assert re.search(r"features:.* itree", out)
