# SPDX-License-Identifier: GPL-2.0-only
"""ext2fs_htree_build(): linear directories become htrees, or stay as they were."""

import re

import pytest
from bigdir import bigdir, fill, found_by_name, free_blocks, htree, leaf_hashes, refused, size_of, some_names
from conftest import INDEX_FL, make, run

MANY = 30000


def image_of(tmp_path, features="metadata_csum", block_size=1024, size="64M", inodes=6000, extra=()):
    return make(tmp_path / "fs.img", None, f"itree,{features}", block_size, size, ["-N", inodes, *extra])


def plain_names(image, folder="/big"):
    return sorted(name for name, _ in image.names(folder))


@pytest.mark.parametrize("large_dir", ["", ",large_dir"], ids=["", "large_dir"])
@pytest.mark.parametrize("csum", ["", "^"], ids=["csum", "nocsum"])
@pytest.mark.parametrize("block_size", [1024, 2048, 4096, 65536])
def test_every_name_stays(tmp_path, block_size, csum, large_dir):
    image = image_of(tmp_path, f"{csum}metadata_csum{large_dir}", block_size, "256M", 12000)
    names = some_names(MANY)
    blocks = fill(image, names, links=3)
    before = image.names()
    assert sorted(name for name, _ in before) == sorted(names)
    image.clean()
    htree(image)
    assert image.names() == before
    image.clean()
    image.change("itree_build /big")
    image.exact()
    image.clean()
    # As full as e2fsck -D makes it
    ours = size_of(image)
    image.fsck("-fyD", ok=(0, 1))
    assert abs(ours - size_of(image)) <= 0.02 * ours + 2 * block_size
    assert ours > blocks * block_size
    image.clean()


@pytest.mark.parametrize("block_size", [1024, 2048, 4096])
def test_the_kernel_finds_every_name(tmp_path, block_size):
    """As an htree, not by reading it all: checked by a kernel that does not know us."""
    image = image_of(tmp_path, block_size=block_size, size="128M", inodes=12000)
    names = some_names(MANY, longest=100)
    fill(image, names, links=3)
    htree(image)
    image.change("itree_build /big")
    found_by_name(image, names, tmp_path / "mnt")


def test_runs_of_equal_hashes_go_on_in_the_next_leaf(tmp_path):
    image = image_of(tmp_path, size="128M")
    names = bigdir("collide", image, 4_000_000).splitlines()
    assert len(names) > 4000, "too few equal hashes to test anything"
    fill(image, names, links=100)
    htree(image)
    leaves = leaf_hashes(image)
    assert sorted(h for _, hashes in leaves for h in hashes) == [h for _, hashes in leaves for h in hashes]
    split = 0
    for (_, left), (index, right) in zip(leaves, leaves[1:], strict=False):
        goes_on = left[-1] == right[0]
        assert index == right[0] | goes_on
        split += goes_on
    assert split > 5, "no run was split: the test tests nothing"
    image.clean()
    assert plain_names(image) == sorted(names)
    found_by_name(image, names, tmp_path / "mnt")


def test_three_levels_with_large_dir(tmp_path):
    image = image_of(tmp_path, "metadata_csum,large_dir", size="256M", inodes=1000)
    names = some_names(60000, 245, 255)
    fill(image, names, links=500)
    htree(image)
    assert "Indirect levels: 2" in image.debugfs("htree_dump /big")
    image.change("itree_build /big")
    image.exact()
    image.clean()
    assert plain_names(image) == sorted(names)
    found_by_name(image, names[::10], tmp_path / "mnt")


def test_too_large_for_two_levels(tmp_path):
    image = image_of(tmp_path, "metadata_csum,^large_dir", size="256M", inodes=1000)
    fill(image, some_names(60000, 245, 255), links=500)
    refused(image, "too big")
    image.clean()


@pytest.mark.parametrize("count", [0, 1, 2, 40, 200])
def test_small_directories(tmp_path, count):
    """Nobody needs an htree of these, but they are right."""
    image = image_of(tmp_path)
    names = some_names(count)
    fill(image, names)
    htree(image)
    image.clean()
    assert plain_names(image) == sorted(names)


def test_an_htree_is_left_alone(tmp_path):
    image = image_of(tmp_path)
    fill(image, some_names(2000), links=2)
    htree(image)
    before = image.debugfs("htree_dump /big")
    htree(image)
    assert image.debugfs("htree_dump /big") == before


def test_freed_blocks_when_it_shrinks(tmp_path):
    image = image_of(tmp_path)
    names = some_names(2500, 20, 30)
    fill(image, names)
    image.debugfs(*(f'rm "/big/{name}"' for name in names[:2000]), write=True)
    before, free = size_of(image), free_blocks(image)
    htree(image)
    assert size_of(image) < before
    assert free_blocks(image) == free + (before - size_of(image)) // 1024
    image.clean()
    assert plain_names(image) == sorted(names[2000:])


@pytest.mark.parametrize("version", ["legacy", "half_md4", "tea"])
@pytest.mark.parametrize("flags", [1, 2], ids=["signed", "unsigned"])
def test_hashes(tmp_path, version, flags):
    image = image_of(tmp_path)
    image.change(f"ssv def_hash_version {version}", f"ssv flags {flags}")
    # Signedness matters above 127 only.
    names = [name.replace("a", "\u00e4")[:120] for name in some_names(3000, 5, 100)]
    fill(image, names, links=3)
    htree(image)
    image.clean()
    assert len(image.names()) == len(names)
    found_by_name(image, names, tmp_path / "mnt")


def test_casefolded_directories(tmp_path):
    image = image_of(tmp_path, "metadata_csum,casefold")
    names = sorted({name.lower(): name for name in some_names(3000, 4, 60)}.values())
    fill(image, names, links=3)
    image.set_flags("/big", on=0x40000000)
    htree(image)
    image.clean()
    assert plain_names(image) == sorted(names)


def test_clusters(tmp_path):
    image = make(tmp_path / "fs.img", None, "bigalloc,metadata_csum", 1024, "128M", ["-C", 16384, "-N", 6000])
    names = some_names(3000)
    fill(image, names, links=3)
    image.fsck("-fy", ok=(0, 1))  # the helper's counts of blocks, not ours
    htree(image)
    image.clean()
    assert plain_names(image) == sorted(names)


# --- refusals: an error, and all is as it was ---


def need_of(image, blocks):
    """By how many blocks it would grow"""
    copy = image.copy(image.path.with_suffix(".roomy"))
    htree(copy)
    return size_of(copy) // copy.block_size() - blocks


@pytest.mark.parametrize("block_size", [1024, 4096])
def test_no_room(tmp_path, block_size):
    image = image_of(tmp_path, block_size=block_size)
    names = some_names(6000)
    blocks = fill(image, names, links=3)
    need = need_of(image, blocks)
    assert need > 20
    for leave in (0, 1, need // 2, need - 1):
        tight = image.copy(tmp_path / f"{leave}.img")
        bigdir("eat", tight, leave)
        tight.clean()
        assert free_blocks(tight) < need
        refused(tight, "Could not allocate block")
        tight.clean()
        assert plain_names(tight) == sorted(names)


def test_no_room_for_the_map(tmp_path):
    """The room there is lies in single blocks: as many as are needed, but none for the extents."""
    image = image_of(tmp_path)
    names = some_names(6000)
    need = need_of(image, fill(image, names, links=3))
    bigdir("eat", image, need, "scattered")
    image.clean()
    assert free_blocks(image) in (need, need + 1)
    refused(image, "Could not allocate block")
    image.clean()


def test_scattered_room(tmp_path):
    image = image_of(tmp_path)
    names = some_names(6000)
    need = need_of(image, fill(image, names, links=3))
    bigdir("eat", image, need + need // 50 + 20, "scattered")
    htree(image)
    image.clean()
    assert plain_names(image) == sorted(names)


def test_just_enough_room(tmp_path):
    image = image_of(tmp_path)
    names = some_names(6000)
    need = need_of(image, fill(image, names, links=3))
    bigdir("eat", image, need + need // 50 + 20)
    htree(image)
    image.clean()
    assert plain_names(image) == sorted(names)


def test_without_dir_index(tmp_path):
    image = make(tmp_path / "fs.img", None, "^dir_index")
    fill(image, some_names(1000))
    refused(image, "not supported")
    image.clean()


def test_without_extents(tmp_path):
    image = make(tmp_path / "fs.img", None, "^extent,^64bit")
    fill(image, some_names(1000))
    image.set_flags("/big", off=0x80000)
    refused(image, "not supported")


def test_inline_data(tmp_path):
    image = make(tmp_path / "fs.img", None, "inline_data")
    image.debugfs("mkdir /little", write=True)
    assert image.inode("/little")[1] & 0x10000000
    assert "not supported" in bigdir("htree", image, "/little", ok=(1,))
    image.clean()


def test_hashes_kept_in_the_entries(tmp_path):
    """Encrypted and casefolded: the names' hashes cannot be known here."""
    image = image_of(tmp_path, "encrypt,casefold")
    fill(image, some_names(1000))
    image.set_flags("/big", on=0x40000800)
    refused(image, "hash unsupported")


def test_not_a_directory(tmp_path):
    image = image_of(tmp_path)
    fill(image, ["file"])
    assert "not a directory" in bigdir("htree", image, "/big/file", ok=(1,))
    image.clean()


@pytest.mark.parametrize("csum", ["", "^"], ids=["csum", "nocsum"])
@pytest.mark.parametrize("block, offset", [(0, 4), (0, 16), (3, 4), (3, 6)])
def test_damaged_blocks(tmp_path, csum, block, offset):
    image = image_of(tmp_path, f"{csum}metadata_csum")
    fill(image, some_names(1000))
    image.debugfs(f"zap_block -f /big -o {offset} -l 2 -p 0xf7 {block}", write=True)
    refused(image, "checksum" if not csum else "corrupted")


def test_hole(tmp_path):
    image = image_of(tmp_path)
    fill(image, some_names(1000))
    image.change("punch /big 5 6")
    refused(image, "corrupted")


def test_odd_size(tmp_path):
    image = image_of(tmp_path)
    fill(image, some_names(1000))
    image.change(f"sif /big size {size_of(image) + 10}")
    refused(image, "corrupted")


def test_what_the_help_says(tmp_path):
    """The helper's own errors are errors."""
    image = image_of(tmp_path)
    assert re.search("not found", bigdir("htree", image, "/none", ok=(2,)))
    assert not image.inode("/")[1] & INDEX_FL
    run("e2fsck", "-fn", image.path)
