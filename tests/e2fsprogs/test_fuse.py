# SPDX-License-Identifier: GPL-2.0-only
"""fuse2fs lists in order of inode, and what it changes leaves the trees exact."""

import contextlib
import ctypes
import os
import pathlib
import subprocess
import time

import pytest
from conftest import FILES, ROOT, make, run, tool

pytestmark = pytest.mark.skipif(not (ROOT / "bin" / "fuse2fs").exists(), reason="fuse2fs was not built")


@contextlib.contextmanager
def mounted(image, where, *options):
    if not os.path.exists("/dev/fuse"):
        pytest.skip("this machine has no /dev/fuse")
    where.mkdir(exist_ok=True)
    argv = [tool("fuse2fs"), image.path, where, "-f", "-o", ",".join(["fakeroot", *options])]
    proc = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        for _ in range(1200):
            if os.path.ismount(where) or proc.poll() is not None:
                break
            time.sleep(0.05)
        assert os.path.ismount(where), f"fuse2fs did not mount:\n{proc.communicate(timeout=10)[0]}"
        yield where
    finally:
        subprocess.run(["umount", where], check=False)
        try:
            proc.wait(timeout=60)
        finally:
            proc.kill()


def test_lists_in_inode_order(image, tmp_path):
    expected = dict(image.names())
    with mounted(image, tmp_path / "mnt", "ro") as mnt:
        found = [entry.name for entry in os.scandir(mnt / "big")]
    assert sorted(found) == sorted(expected)
    # The inode numbers that FUSE shows are its own.
    inodes = [expected[name] for name in found]
    assert inodes == sorted(inodes)
    image.clean()


class Dirent(ctypes.Structure):
    """struct dirent64 of the C library."""

    _fields_ = [("d_ino", ctypes.c_uint64), ("d_off", ctypes.c_int64), ("d_reclen", ctypes.c_uint16),
                ("d_type", ctypes.c_uint8), ("d_name", ctypes.c_char * 256)]  # fmt: skip


def types(path):
    """{name: d_type} of a directory."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.opendir.restype = ctypes.c_void_p
    libc.readdir64.argtypes, libc.closedir.argtypes = [ctypes.c_void_p], [ctypes.c_void_p]
    libc.readdir64.restype = ctypes.POINTER(Dirent)
    handle = libc.opendir(os.fsencode(path))
    assert handle
    found = {}
    while entry := libc.readdir64(handle):
        found[entry.contents.d_name] = entry.contents.d_type
    libc.closedir(handle)
    return found


def test_types_of_names_are_those_of_a_volume_without_trees(image, tmp_path):
    with mounted(image, tmp_path / "mnt") as mnt:
        (mnt / "big" / "folder").mkdir()
        (mnt / "big" / "symlink").symlink_to("nowhere")
    with mounted(image, tmp_path / "mnt", "ro") as mnt:
        found = types(mnt / "big")
    run("tune2fs", "-O", "^itree", image.path)
    with mounted(image, tmp_path / "mnt", "ro") as mnt:
        assert found == types(mnt / "big")
    assert found[b"folder"] == 4 and found[b"symlink"] == 10 and list(found.values()).count(8) == FILES


def test_changes_keep_the_tree(image, tmp_path):
    names = image.names()
    with mounted(image, tmp_path / "mnt") as mnt:
        big = mnt / "big"
        for i in range(400):
            (big / f"created-{i:04}-{'c' * (i % 120)}").write_text(str(i))
        for name, _ in names[::4]:
            (big / name).unlink()
        for name, _ in names[1::40]:
            (big / name).rename(big / f"{name}.renamed")
        for name, _ in names[2::40]:
            # Over an existing name: the entry gets another inode.
            (big / "created-0000-").rename(big / name)
            (big / "created-0000-").write_text("again")
        (big / "folder").mkdir()
        (big / "symlink").symlink_to("nowhere")
        os.link(big / "created-0001-c", big / "linked")
        pathlib.Path(big / names[3][0]).rename(mnt / "moved-out")
        after = sorted(os.listdir(big))
    assert len(after) > FILES // 2
    assert image.has_tree()
    image.exact()
    image.clean()
    assert [name for name, _ in image.names()] == after


@pytest.mark.parametrize("features", ["itree", "inline_data", "bigalloc", "^extent,^64bit"])
def test_opening_with_o_trunc_empties_the_file(tmp_path, features):
    """Content of many blocks, of one, and inline, each over each."""
    image = make(tmp_path / "fs.img", features=features, extra=["-C", 4096] if features == "bigalloc" else [])
    sizes = (0, 20, 700, 100_000)
    with mounted(image, tmp_path / "mnt") as mnt:
        for old in sizes:
            for new in sizes:
                path = mnt / f"{old}-{new}"
                path.write_bytes(b"o" * old)
                path.write_bytes(b"n" * new)
                assert path.read_bytes() == b"n" * new
        os.close(os.open(mnt / "700-700", os.O_WRONLY | os.O_TRUNC))
        assert (mnt / "700-700").stat().st_size == 0
        with (mnt / "20-700").open("ab") as file:
            file.write(b"appended")
        assert (mnt / "20-700").read_bytes() == b"n" * 700 + b"appended"
    image.clean()


def test_a_size_that_cannot_be_had_is_an_error(tmp_path):
    """A file without extents ends at the last block that its map reaches."""
    image = make(tmp_path / "fs.img", features="^extent,^64bit,^huge_file")
    with mounted(image, tmp_path / "mnt") as mnt:
        (mnt / "file").write_bytes(b"x" * 3000)
        with pytest.raises(OSError):
            os.truncate(mnt / "file", 1 << 45)
        assert (mnt / "file").read_bytes() == b"x" * 3000
    image.clean()
