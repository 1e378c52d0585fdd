# SPDX-License-Identifier: GPL-2.0-only
"""`e4itree arrange` on the kernel of this host, which need not know itrees. With the power cut: tests/kernel."""

import ctypes
import fcntl
import json
import mmap
import os
import pathlib
import random
import re
import signal
import struct
import subprocess
import time

import pytest
from conftest import ROOT, run

FS_IOC_FIEMAP = 0xC020660B
FS_IOC_SETFLAGS = 0x40086602
IMMUTABLE, APPEND = 0x10, 0x20
TOOL = ROOT / "sbin" / "e4itree"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="loop devices need root")


def sh(*argv, ok=True):
    res = subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False)
    assert res.returncode == 0 or not ok, f"{argv}: {res.stdout} {res.stderr}"
    return res.returncode, res.stdout + res.stderr


def arrange(*args, ok=0):
    code, out = sh(TOOL, "arrange", *args, ok=False)
    assert code == ok, f"exit code {code}: {out}"
    return out


def place(path):
    """The file's pieces on the disk, as (first byte, length)."""
    raw = bytearray(struct.pack("=QQLLLL", 0, (1 << 63) - 1, 1, 0, 32, 0)) + bytearray(56 * 32)
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FS_IOC_FIEMAP, raw)
    finally:
        os.close(fd)
    mapped = struct.unpack_from("=QQLLLL", raw)[3]
    return [struct.unpack_from("=QQ", raw, 32 + 56 * i + 8) for i in range(mapped)]


def jumps(where, names):
    """How often one has to go elsewhere to read the files in the order of their inodes."""
    count, end = 0, -1
    for name in sorted(names, key=lambda n: os.stat(where / n).st_ino):
        for first, length in place(where / name):
            count += not 0 <= first - end <= 65536
            end = first + length
    return count


def chattr(path, flags):
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("I", flags | 0x80000))
    finally:
        os.close(fd)


class Volume:
    """An image, mounted, and what its files are."""

    def __init__(self, top, *mkfs, options="", size="192M"):
        self.image, self.mnt = top / "volume.img", top / "mnt"
        self.mnt.mkdir()
        self.image.touch()
        os.truncate(self.image, int(size[:-1]) << 20)
        run("mke2fs", "-q", "-F", "-t", "ext4", "-O", "^itree", *mkfs, self.image)
        self.options = options
        self.mount()

    def mount(self):
        sh("mount", "-o", f"loop,{self.options}".rstrip(","), self.image, self.mnt)

    def umount(self):
        sh("umount", self.mnt)

    def fsck(self):
        self.umount()
        run("e2fsck", "-fn", self.image)
        self.mount()

    def scattered(self, n=400, name="d", seed=1):
        """A directory whose data lies in another order than its inodes."""
        where = self.mnt / name
        where.mkdir()
        names = [f"f{i:04}" for i in range(n)]
        for x in names:
            (where / x).touch()
        rng = random.Random(seed)
        for number, x in enumerate(rng.sample(names, n)):
            (where / x).write_bytes(rng.randbytes(rng.choice((1, 1000, 4096, 4097, 9000, 30000))))
            if not number % 20:
                os.sync()
        os.sync()
        return where, names


@pytest.fixture
def volume(tmp_path):
    made = []

    def make(*mkfs, **more):
        made.append(Volume(tmp_path, *mkfs, **more))
        return made[-1]

    yield make
    for v in made:
        sh("umount", v.mnt, ok=False)


def state(where):
    """All that a user can see of the files, except when they were read."""
    found = {}
    for path in sorted(where.iterdir()):
        st = path.lstat()
        data = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        attrs = {a: os.getxattr(path, a) for a in os.listxattr(path, follow_symlinks=False)} if data else {}
        found[path.name] = (st.st_ino, st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size, st.st_mtime_ns,
                            st.st_ctime_ns, attrs, data)  # fmt: skip
    return found


@pytest.mark.parametrize("size", (1024, 4096))
def test_files_lie_in_order_and_are_as_they_were(volume, size):
    v = volume("-b", str(size), "-I", "256")
    where, names = v.scattered()
    os.chown(where / "f0007", 12, 34)
    os.chmod(where / "f0008", 0o4751)
    os.setxattr(where / "f0009", "user.note", b"kept")
    os.utime(where / "f0010", ns=(5, 123456789))
    os.link(where / "f0011", where / "again")
    os.symlink("f0012", where / "link")
    before, was = state(where), jumps(where, names)
    assert was > 300
    atimes = {x: os.stat(where / x).st_atime_ns for x in names}
    foretold = arrange("-n", where)
    assert f"{where}: would move 400 of 400 files" in foretold
    assert jumps(where, names) == was, "--dry-run moves files"
    out = arrange(where)
    assert f"{where}: moved 400 of 400 files" in out and re.search(r"and 1\d* now", out), out
    assert jumps(where, names) <= 2
    assert {x: os.stat(where / x).st_atime_ns for x in names} == atimes
    assert state(where) == before
    v.fsck()
    assert state(where) == before
    assert arrange(where) == f"{where}: lies in order already\n"


def test_json_and_recursion(volume):
    v = volume()
    one, names = v.scattered(100, "one")
    two = v.scattered(100, "two")[0]
    (v.mnt / "few").mkdir()
    (v.mnt / "few" / "file").write_bytes(b"x")
    lines = [json.loads(x) for x in arrange("-r", "-v", "--json", v.mnt).splitlines()]
    done = {x["path"]: x for x in lines[:-1] if x["result"] == "arranged"}
    assert set(map(pathlib.Path, done)) == {one, two}
    found = done[str(one)]
    assert (found["files"], found["moved"], found["busy"]) == (100, 100, 0)
    assert found["reads_after"] == jumps(one, names) < found["reads_before"]
    assert {x["result"] for x in lines[:-1]} == {"arranged", "few"}
    assert (lines[-1]["done"], lines[-1]["failed"], lines[-1]["entries"]) == (2, 0, 200)
    assert "2 directories" not in arrange("-r", "-q", v.mnt)
    out = arrange("-r", "--min-files", "101", v.mnt)
    assert "0 arranged, 5 skipped" in out, out


def test_files_that_others_have_open_are_left_alone(volume):
    v = volume()
    where, names = v.scattered(200)
    for x in names[:4]:
        (where / x).write_bytes(os.urandom(9000))
    os.sync()
    with open(where / names[0], "r+b") as writer, open(where / names[1], "rb") as reader, \
            open(where / names[2], "r+b") as held:  # fmt: skip
        mapped = mmap.mmap(held.fileno(), 9000)
        held.close()
        places = {x: place(where / x) for x in names[:3]}
        out = arrange(where)
        assert "moved 197 of 200" in out and "3 were in use or changed" in out, out
        assert {x: place(where / x) for x in names[:3]} == places
        writer.write(b"still mine")
        assert len(reader.read()) == 9000
        mapped.close()
    assert (where / names[0]).read_bytes().startswith(b"still mine")


def test_files_of_other_kinds_are_left_alone(volume):
    v = volume("-O", "inline_data", "-I", "256")
    where, _names = v.scattered(100)
    odd = {}
    with open(where / "sparse", "wb") as f:
        f.seek(40960)
        f.write(b"end")
    with open(where / "allocated", "wb") as f:
        f.write(b"x" * 5000)
        os.posix_fallocate(f.fileno(), 0, 60000)
    (where / "large").write_bytes(os.urandom(200 << 10))
    (where / "immutable").write_bytes(os.urandom(5000))
    (where / "append").write_bytes(os.urandom(5000))
    (where / "inline").write_bytes(b"tiny")
    (where / "empty").touch()
    os.mkfifo(where / "fifo")
    os.sync()
    chattr(where / "immutable", IMMUTABLE)
    chattr(where / "append", APPEND)
    for x in ("sparse", "allocated", "large", "immutable", "append"):
        odd[x] = place(where / x)
    before = {x: (where / x).read_bytes() for x in odd}
    arrange(where)
    assert {x: place(where / x) for x in odd} == odd
    assert {x: (where / x).read_bytes() for x in odd} == before
    out = arrange("--max-size", "256", "--min-files", "1", where)
    assert place(where / "sparse") == odd["sparse"] and "moved" not in out, out
    for x in ("immutable", "append"):
        chattr(where / x, 0)
    v.fsck()


def test_swap_files_are_left_alone(volume):
    v = volume()
    where, _ = v.scattered(100)
    swap = where / "swap"
    with open(swap, "wb") as f:
        f.write(bytes(64 << 10))
    os.chmod(swap, 0o600)
    sh("mkswap", swap)
    os.sync()
    if sh("swapon", swap, ok=False)[0]:
        pytest.skip("this host gives no swap")
    try:
        was = place(swap)
        arrange(where)
        assert place(swap) == was
    finally:
        sh("swapoff", swap)


@pytest.mark.parametrize(
    "mkfs, options, says",
    [
        (("-O", "^has_journal"), "", "with a journal"),
        ((), "data=journal", "not with data=journal"),
        (("-O", "bigalloc", "-C", "16384"), "", "bigalloc"),
    ],
)
def test_volumes_where_it_would_not_be_safe(volume, mkfs, options, says):
    v = volume(*mkfs, options=options)
    where, names = v.scattered(100)
    before, places = state(where), {x: place(where / x) for x in names}
    out = arrange(where, ok=3)
    assert says in out and out.count("e4itree:") == 1, out
    assert state(where) == before
    assert {x: place(where / x) for x in names} == places


def test_another_file_system(tmp_path):
    sh("mount", "-t", "tmpfs", "none", tmp_path)
    try:
        assert arrange(tmp_path, ok=3) == f"e4itree: {tmp_path}: not on ext4\n"
    finally:
        sh("umount", tmp_path)


def test_read_only(volume):
    v = volume()
    where, _ = v.scattered(100)
    sh("mount", "-o", "remount,ro", v.mnt)
    out = arrange(where, ok=1)
    assert "Read-only file system: remount it read-write first" in out


def test_a_full_volume(volume):
    v = volume(size="64M")
    where, names = v.scattered(200)
    before = state(where)
    with open(v.mnt / "filler", "wb") as f:
        fs = os.fstatvfs(f.fileno())
        os.posix_fallocate(f.fileno(), 0, (fs.f_bavail - 20) * fs.f_bsize)
    out = arrange(where, ok=1)
    assert "No space left on device: 64 MiB and a fiftieth of the file system must be free" in out
    assert state(where) == before and jumps(where, names) > 150
    v.fsck()


def test_free_space_in_pieces(volume):
    """No place to put them together: they stay, and it says so."""
    v = volume("-m", "0", size="96M")
    where, names = v.scattered(200)
    fillers = v.mnt / "fillers"
    fillers.mkdir()
    made = 0
    while os.statvfs(v.mnt).f_bavail > 16:
        (fillers / str(made)).write_bytes(os.urandom(4096))
        made += 1
        if not made % 500:
            os.sync()
    os.sync()
    for i in range(0, made, 2):
        os.unlink(fillers / str(i))
    os.sync()
    was = jumps(where, names)
    out = arrange(where)
    assert "found no free space in one piece" in out and "moved 0 of" in out, out
    assert jumps(where, names) == was
    v.fsck()


def catches(pid, number):
    """Has a process asked for a signal to be delivered to it?"""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return bool(int(re.search(r"^SigCgt:\s*(\w+)", status, re.M)[1], 16) >> (number - 1) & 1)


def test_cancelled(volume):
    """By a signal, at any moment: no file is lost, and the next run finishes."""
    v = volume()
    where, names = v.scattered(1500)
    before = state(where)
    caught = 0
    for number in range(30):
        proc = subprocess.Popen([TOOL, "arrange", where], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        # On a busy host it takes long to come to that.
        while proc.poll() is None and not catches(proc.pid, signal.SIGINT):
            time.sleep(0.001)
        time.sleep(0.004 * number)
        proc.send_signal(signal.SIGINT)
        out = proc.communicate(timeout=60)[0]
        assert proc.returncode in (0, 130), out
        caught += proc.returncode == 130 and "files that were moved stay" in out
        if proc.returncode == 0:
            break
    assert caught, "no signal came while it was at work"
    assert state(where) == before
    arrange(where)
    assert jumps(where, names) < 10
    assert state(where) == before
    v.fsck()


def test_who_opens_a_file_meanwhile_waits_and_gets_it(volume):
    """Files are opened and written over and over while they are moved: each write is there afterwards."""
    v = volume()
    where, names = v.scattered(1500)
    work = subprocess.Popen([TOOL, "arrange", where], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    rng, last = random.Random(2), {}
    while work.poll() is None:
        x = rng.choice(names)
        last[x] = rng.randbytes(rng.choice((10, 5000, 20000)))
        (where / x).write_bytes(last[x])
    assert work.returncode == 0, work.stdout.read()
    work.stdout.close()
    assert len(last) > 10
    v.fsck()
    for x, data in last.items():
        assert (where / x).read_bytes() == data, x


def test_below_the_io_of_others(volume):
    """It puts itself into the idle class, which its children and the disk's scheduler see."""
    v = volume()
    where, _ = v.scattered(1500)
    proc = subprocess.Popen([TOOL, "arrange", where], stdout=subprocess.DEVNULL)
    libc = ctypes.CDLL(None, use_errno=True)
    seen = set()
    while proc.poll() is None:
        seen.add(libc.syscall(252, 1, proc.pid) >> 13)  # ioprio_get, x86-64
    assert proc.returncode == 0
    assert 3 in seen, seen
