# SPDX-License-Identifier: GPL-2.0-only
"""Directories on ext4 in hash order, and what is in a tree."""

import fcntl
import hashlib
import os
import pathlib
import random
import struct
import subprocess

import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
HERE = REPO / "coreutils-patches"
ROOT = REPO / "build" / "coreutils-patches" / "root"
FS_IOC_FIEMAP = 0xC020660B


def run(*argv, ok=True, **kwargs):
    """Run a command; its output. With ok=False the finished process, whatever it said."""
    kwargs.setdefault("timeout", 300)
    kwargs["env"] = {**os.environ, "LC_ALL": "C", **kwargs.get("env", {})}
    res = subprocess.run(
        [str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **kwargs
    )
    if not ok:
        return res
    assert res.returncode == 0, f"{argv} ended with {res.returncode}:\n{res.stdout[-2000:]}{res.stderr[-2000:]}"
    return res.stdout


def built(name):
    path = ROOT / name
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make tools`")
    return path


def on_ext4(path):
    return run("stat", "-f", "-c", "%T", path).strip() == "ext2/ext3"


@pytest.fixture(scope="session")
def ext4(tmp_path_factory):
    """A directory on ext4: there, or on an image mounted for the session."""
    base = tmp_path_factory.mktemp("ext4")
    if on_ext4(base):
        yield base
        return
    image = base / "image"
    with open(image, "wb") as handle:
        handle.truncate(1 << 30)
    run("mke2fs", "-q", "-t", "ext4", "-F", image)
    where = base / "mnt"
    where.mkdir()
    res = run("mount", "-o", "loop", image, where, ok=False)
    if res.returncode:
        pytest.skip(f"needs ext4: temporary files are elsewhere and a loop mount failed: {res.stderr.strip()}")
    try:
        yield where
    finally:
        run("umount", where)


@pytest.fixture(scope="session")
def many(ext4):
    """5,000 files with data of their own in one directory, in hash order."""
    where = ext4 / "many"
    where.mkdir()
    rng = random.Random(5)
    for number in range(5000):
        name = f"{rng.getrandbits(64):016x}.msg"
        (where / name).write_bytes(f"{number}\n".encode() * rng.randint(1, 900))
    os.sync()
    return where


def first_extent(path):
    """Where a file's data starts on the disk, 0 if nowhere."""
    with open(path, "rb") as handle:
        buf = bytearray(struct.pack("=QQLLLL", 0, 2**64 - 1, 0, 0, 1, 0) + bytes(56))
        fcntl.ioctl(handle, FS_IOC_FIEMAP, buf)
    return struct.unpack_from("=QQ", buf, 32)[1] if struct.unpack_from("=L", buf, 20)[0] else 0


def contents(root):
    """Everything about a tree that a backup must bring back."""
    out, inodes = {}, {}
    for folder, dirs, files in os.walk(root):
        for name in [".", *dirs, *files] if folder == str(root) else [*dirs, *files]:
            path = os.path.join(folder, name)
            st = os.lstat(path)
            rel = os.path.relpath(path, root)
            what = [oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns]
            if os.path.islink(path):
                what.append(os.readlink(path))
            elif os.path.isfile(path):
                with open(path, "rb") as handle:
                    what += [st.st_size, hashlib.sha256(handle.read()).hexdigest()]
                what.append({k: os.getxattr(path, k) for k in os.listxattr(path) if k.startswith("user.")})
                if st.st_nlink > 1:
                    inodes.setdefault(st.st_ino, []).append(rel)
            out[rel] = what
    return out, sorted(sorted(names) for names in inodes.values())
