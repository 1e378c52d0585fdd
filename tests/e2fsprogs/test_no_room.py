# SPDX-License-Identifier: GPL-2.0-only
"""What fails for want of a block leaves everything else as it was (debugfs, by libext2fs)."""

import re

from conftest import make, run

LONG = "n" * 250


def free_blocks(image):
    return int(re.search(r"Free blocks: +(\d+)", run("dumpe2fs", "-h", image.path)[1])[1])


def fill(image, tmp_path, left=0):
    """All blocks but `left` belong to files."""
    (tmp_path / "fill").write_bytes(b"f" * (8 << 20))
    (tmp_path / "one").write_bytes(b"f" * 1024)
    image.debugfs(*(f"write {tmp_path}/one /spare{n}" for n in range(left)), write=True)
    assert "allocate block" in image.debugfs(f"write {tmp_path}/fill /fill", write=True)
    image.change(*(f"rm /spare{n}" for n in range(left)))
    assert free_blocks(image) == left
    image.clean()


def test_no_inode_without_a_name(tmp_path):
    """The directory takes the last block for the name, and then there is none for the target of the symlink."""
    image = make(tmp_path / "fs.img", features="^has_journal,^resize_inode", size="8M")
    image.change("mkdir /d", *(f"symlink /d/{n}{LONG} target" for n in range(3)))
    fill(image, tmp_path, left=1)
    before = image.names("/d")
    # fuse2fs sees that there is too little room and does not ask the library.
    assert "Could not allocate block" in image.debugfs(f"symlink /d/last{LONG[4:]} {'long' * 25}", write=True)
    assert free_blocks(image) == 0
    assert image.names("/d") == before
    image.clean()


def test_names_in_an_inode_stay_there(tmp_path):
    image = make(tmp_path / "fs.img", features="inline_data,^has_journal,^resize_inode", size="8M")
    image.change("mkdir /d", "symlink /d/first target", "symlink /d/second target")
    fill(image, tmp_path)
    before, inode = image.names("/d"), image.inode("/d")[0]
    assert len(before) == 2
    assert "Could not allocate block" in image.debugfs(f"symlink /d/last{LONG} target", write=True)
    assert image.names("/d") == before
    assert f"/{inode}/040755/0/0/.//" in image.debugfs("ls -p /d")
    image.clean()


def test_the_last_byte_of_an_image(tmp_path):
    """e2image of a volume whose last block is metadata, by way of qcow2"""
    image = make(tmp_path / "fs.img", features="^has_journal,^resize_inode", size="8M")
    image.debugfs("setb 1 8190", "mkdir /d", write=True)
    assert image.debugfs("bmap /d 0") == "8191"
    # A directory block ends with its checksum, whose last byte is 0 in one of 256 volumes.
    data = image.path.read_bytes()
    assert any(data[-4:])
    run("e2image", "-Q", image.path, tmp_path / "qcow2")
    run("e2image", "-r", tmp_path / "qcow2", tmp_path / "raw")
    assert (tmp_path / "raw").read_bytes()[-1024:] == data[-1024:]
