# SPDX-License-Identifier: GPL-2.0-only
"""e2fsck writes extent trees anew (pass 1E): on a full file system, too, no file loses a block."""

import random

import pytest
from conftest import make, run

PIECES = 1500


@pytest.fixture
def full(tmp_path):
    """A full volume; /data is in pieces of one block, and mapped by indirect blocks."""
    image = make(tmp_path / "fs.img", features="^extent,^64bit,^has_journal,^resize_inode", size="8M")
    content = tmp_path / "data"
    content.write_bytes(random.Random(1).randbytes(PIECES * 1024))
    room = tmp_path / "room"
    room.write_bytes(b"r" * (2 * PIECES + 100) * 1024)
    image.debugfs(f"write {room} /room", write=True)
    image.change(*(f"punch /room {block} {block}" for block in range(0, 2 * PIECES + 100, 2)))
    image.debugfs(f"write {content} /data", write=True)
    # As much as there is room for
    room.write_bytes(b"r" * (8 << 20))
    assert "allocate block" in image.debugfs(f"write {room} /rest", write=True)
    run("tune2fs", "-O", "extent", image.path)
    image.clean()
    return image


def data(image, tmp_path):
    image.debugfs(f"dump /data {tmp_path}/now")
    return (tmp_path / "now").read_bytes()


def test_a_file_that_cannot_be_converted_stays_as_it_is(full, tmp_path):
    before = data(full, tmp_path)
    assert before == (tmp_path / "data").read_bytes()
    code, out = full.fsck("-fy", "-E", "bmap2extent")
    assert code in (0, 1), out
    full.clean()
    assert data(full, tmp_path) == before
    assert "Failed to optimize extent tree" in out and "Could not allocate block" in out
    assert not full.inode("/data")[1] & 0x80000


def test_with_room_it_is_converted(full, tmp_path):
    before = data(full, tmp_path)
    full.change("rm /rest")
    code, out = full.fsck("-fy", "-E", "bmap2extent")
    assert code in (0, 1) and "Failed" not in out, out
    full.clean()
    assert data(full, tmp_path) == before
    assert full.inode("/data")[1] & 0x80000
