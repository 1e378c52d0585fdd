# SPDX-License-Identifier: GPL-2.0-only
"""Directories on ext4 in hash order, and what is in a tree."""

import contextlib
import fcntl
import hashlib
import mmap
import os
import pathlib
import random
import re
import stat
import struct
import subprocess

import command
import pytest

REPO = pathlib.Path(__file__).resolve().parents[2]
HERE = REPO / "coreutils-patches"
ROOT = REPO / "build" / "coreutils-patches" / "root"
FS_IOC_FIEMAP = 0xC020660B


def run(*argv, ok=True, env=None, **kwargs):
    """Run a command; its output. With ok=False the finished process, whatever it printed."""
    __tracebackhide__ = True
    codes, env = (0,) if ok else None, {"LC_ALL": "C", **(env or {})}
    res = command.finished(*argv, ok=codes, env=env, **{"stderr": subprocess.PIPE, **kwargs})
    return res.stdout if ok else res


def built(name):
    path = ROOT / name
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make tools`")
    return path


def file_system(path):
    return run("stat", "-f", "-c", "%T", path).strip()


def on_ext4(path):
    return file_system(path) == "ext2/ext3"


def keeps_attributes(path):
    return file_system(path) in ("ext2/ext3", "xfs", "btrfs")


@contextlib.contextmanager
def loop_mounted(image, where):
    """Meanwhile the file system in an image is mounted at a new directory; skips where that cannot be done."""
    where.mkdir()
    res = run("mount", "-o", "loop", image, where, ok=False)
    if res.returncode:
        pytest.skip(f"a loop mount of {image.name} failed: {res.stderr.strip()}")
    # Another test's mount namespace may keep an earlier mount of the image, and with it what was read there.
    pathlib.Path("/proc/sys/vm/drop_caches").write_text("3\n")
    try:
        yield where
    finally:
        run("umount", where)


@pytest.fixture(scope="session")
def ext4(tmp_path_factory):
    """A directory on ext4: there, or on an image mounted for the session."""
    base = tmp_path_factory.mktemp("ext4")
    if on_ext4(base):
        yield base
        return
    image = base / "ext4"
    with open(image, "wb") as handle:
        handle.truncate(1 << 30)
    run("mke2fs", "-q", "-t", "ext4", "-F", image)
    with loop_mounted(image, base / "mnt") as where:
        yield where


def requests_of(where):
    """Read requests that the disk of a file system mounted by loop_mounted() has had so far."""
    disk = pathlib.Path(run("findmnt", "-no", "SOURCE", where).strip()).name
    return int(pathlib.Path(f"/sys/block/{disk}/stat").read_text().split()[0])


def make_many(where, count):
    """A directory of files with data of their own."""
    where.mkdir()
    rng = random.Random(5)
    for number in range(count):
        name = f"{rng.getrandbits(64):016x}.msg"
        (where / name).write_bytes(f"{number}\n".encode() * rng.randint(1, 900))
    os.sync()
    return where


def make_tree(top):
    """What makes trouble in archives, with old time stamps."""
    (top / "d" / "deep" / "er").mkdir(parents=True)
    (top / "empty").mkdir()
    (top / "closed").mkdir()
    for number in range(400):
        (top / "d" / f"f{number}").write_text(f"data {number}\n" * (number + 1))
        (top / "d" / "deep" / f"g{number}").write_text(f"deep {number}\n")
    (top / "d" / "deep" / "er" / ("n" * 200)).write_text("long name\n")
    (top / "none").write_text("")
    with open(top / "holes", "wb") as handle:
        handle.seek(5 << 20)
        handle.write(b"middle")
        handle.truncate(9 << 20)
    (top / "closed" / "in").write_text("in a directory nobody may write to\n")
    os.link(top / "closed" / "in", top / "d" / "hard")
    os.link(top / "closed" / "in", top / "hard")
    os.symlink("d/f1", top / "sym")
    os.mkfifo(top / "fifo")
    if keeps_attributes(top):
        os.setxattr(top / "d" / "f7", "user.colour", b"blue")
    os.chmod(top / "closed", 0o555)
    for folder, dirs, files in os.walk(top, topdown=False):
        for name in [*files, *dirs]:
            os.utime(os.path.join(folder, name), ns=(10**18, 10**18 + len(name)), follow_symlinks=False)
    os.utime(top, ns=(10**18, 10**18))
    os.sync()
    return top


@pytest.fixture(scope="session")
def many(ext4):
    """5,000 files in one directory, in hash order."""
    return make_many(ext4 / "many", 5000)


@pytest.fixture(scope="session")
def tree(ext4):
    return make_tree(ext4 / "tree")


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


def forget(folder):
    """Put the data of the files in a tree out of memory: what is in memory is not put in order. Gives folder."""
    os.sync()
    for where, _, files in os.walk(folder):
        for name in files:
            path = os.path.join(where, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                fd = os.open(path, os.O_RDONLY)
                try:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
    return folder


def resident(paths):
    """Those of the files that have pages in memory."""
    paths = [str(p) for p in paths]
    out = ""
    for start in range(0, len(paths), 1000):
        out += run("fincore", "--bytes", "--noheadings", "--raw", "-o", "RES,FILE", *paths[start : start + 1000])
    return [line.split(" ", 1)[1] for line in out.splitlines() if line.split(" ", 1)[0] != "0"]


@contextlib.contextmanager
def in_memory(paths):
    """Hold files in memory; having been read is not enough, the kernel takes out what it likes."""
    locked = 0x2000  # MAP_LOCKED, which Python does not know
    with contextlib.ExitStack() as stack:
        for path in paths:
            with open(path, "rb") as handle:
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE | locked
                try:
                    held = mmap.mmap(handle.fileno(), 0, flags=flags, prot=mmap.PROT_READ)
                except BlockingIOError:
                    pytest.skip("may not lock enough memory (ulimit -l)")
            stack.callback(held.close)
        yield


def falls(numbers):
    """How often a number is less than the one before."""
    return sum(b < a for a, b in zip(numbers, numbers[1:], strict=False))


# What asked_ahead() looks for.
AHEAD_CALLS = ("fadvise64", "mmap")


def asked_ahead(line):
    """From a line of `strace -y`: the path of a file that is read ahead, and how many bytes; or None.

    A file alone is advised, neighbours are mapped side by side for one madvise().
    """
    found = re.search(r"fadvise64\(\d+<([^>]*)>, \d+, (\d+), POSIX_FADV_WILLNEED", line)
    if found:
        return found[1], int(found[2])
    found = re.search(r"mmap\(0x\w+, (\d+), PROT_(?:NONE|READ), MAP_SHARED\|MAP_FIXED, \d+<([^>]*)>", line)
    return (found[2], int(found[1])) if found else None


def named_in_order(trace, calls, folder):
    """The files of a folder that a program names in these system calls, in order, each once.

    trace: what `strace -f -y -o FILE` wrote. A path may be relative or to a descriptor.
    """
    known = set(os.listdir(folder))
    pattern = re.compile(rf'\b(?:{"|".join(calls)})\([^"]*"((?:[^"\\]|\\.)*)"')
    seen = {}
    for line in pathlib.Path(trace).read_text(errors="replace").splitlines():
        found = pattern.search(line)
        name = found and os.path.basename(found[1])
        if name in known:
            seen.setdefault(name)
    return list(seen)
