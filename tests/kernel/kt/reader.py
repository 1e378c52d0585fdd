# SPDX-License-Identifier: GPL-2.0-only
"""A reader whose disk does not answer does not block other tasks, and bad blocks cost only their own names."""

from __future__ import annotations

import collections
import contextlib
import errno
import multiprocessing
import os
import pathlib
import threading
import time
from collections.abc import Callable

from kt import cgroups
from kt.faults import LOG, Faulty
from kt.guest import Failed, Guest
from kt.itree_ioctl import BAD, BUILD, CHECK, FORCE, STAT, VERIFY, Answer, itree
from kt.mapper import Mapped
from kt.matrix import HASH_SEED
from kt.registry import case
from kt.resume import Listing, exchange

N = 12000
# So few that their reads do not count as a sweep (itree_ahead.c), which would read the whole directory.
WRITERS = ["writer-1", "writer-2"]
PATIENCE = 30  # seconds after which a call that should not wait counts as hung


class Held:
    """The file system's device; reads and writes of some blocks wait until they are released.

    Readahead of these fails at once, so that no request for their neighbours waits with it; see Faulty.hold().
    """

    def __init__(self, g: Guest):
        self.sectors = int(g.run("blockdev", "--getsz", g.dev).stdout)
        self.raw = g.dev
        # Two mapped devices over the same disk: the inner one serves the blocks to hold, and is the one suspended.
        self.inner = Mapped(g, f"inner-{g.disk}", f"0 {self.sectors} linear {self.raw} 0")
        self.held, g.dev = g.dev, self.raw
        self.outer = Mapped(g, f"outer-{g.disk}", f"0 {self.sectors} linear {self.raw} 0")

    def hold(self, addresses: list[int], size: int) -> None:
        lines, at = [], 0
        for start in sorted(a // 512 for a in addresses):
            if start > at:
                lines.append(f"{at} {start - at} linear {self.raw} {at}")
            lines.append(f"{start} {size // 512} linear {self.held} {start}")
            at = start + size // 512
        lines.append(f"{at} {self.sectors - at} linear {self.raw} {at}")
        self.outer.dmsetup("suspend", "--nolockfs", self.outer.name)
        self.outer.dmsetup("load", self.outer.name, "--table", "\n".join(lines))
        self.outer.dmsetup("resume", self.outer.name)
        self.inner.dmsetup("suspend", "--nolockfs", "--noflush", self.inner.name)

    def release(self) -> None:
        self.inner.dmsetup("resume", self.inner.name)

    def remove(self) -> None:
        self.outer.remove()
        self.inner.remove()


class Sleeper:
    """Tells whether a thread waits for the disk."""

    tid = 0

    def here(self) -> None:
        """The thread must call this."""
        self.tid = threading.get_native_id()

    def waits(self) -> bool:
        """Is the thread in uninterruptible sleep?"""
        with contextlib.suppress(OSError):
            stat = pathlib.Path(f"/proc/self/task/{self.tid}/stat").read_text()
            return self.tid > 0 and stat.rpartition(")")[2].split()[0] == "D"
        return False


class Stream(Listing, Sleeper):
    """A listing that keeps the directory open; a call may be made in a thread."""

    def __init__(self, where: str, buf: int = 4000):
        super().__init__(where, buf)
        self.fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
        self.error: OSError | None = None

    def call(self) -> bool:
        return self.read(self.fd)

    def to_end(self) -> None:
        self.here()
        try:
            while self.call():
                pass
        except OSError as err:
            self.error = err


class Call(Sleeper):
    """A call of an operation on a directory's tree; may be made in a thread."""

    def __init__(self, where: str, op: int, flags: int):
        self.where, self.op, self.flags = where, op, flags
        self.answer: Answer | None = None
        self.error: OSError | None = None

    def to_end(self) -> None:
        self.here()
        try:
            self.answer = itree(self.where, self.op, self.flags, diffs=16 * (self.op == CHECK))
        except OSError as err:
            self.error = err


def make(g: Guest) -> list[str]:
    g.mount()
    os.mkdir(g.path("d"))
    names = [f"old-{i * 7919 % 1000003:07}-of-many" for i in range(N)]
    for name in names:
        os.mknod(g.path(f"d/{name}"))
    g.want_tree(g.path("d"))
    return names


def work(g: Guest) -> None:
    """The work of other tasks in the directory meanwhile."""
    for name in WRITERS:
        path = g.path(f"d/{name}")
        os.mknod(path)
        os.rename(path, path + "-")
        with contextlib.suppress(FileNotFoundError):
            os.stat(path)
        os.unlink(path + "-")


def blocks_of(g: Guest, name: str = "d") -> list[int]:
    """Addresses of the blocks that hold the directory's names, in their order."""
    path, size = g.path(name), os.statvfs(g.mnt).f_bsize
    return [p + i * size for _, p, length in g.extents(path) for i in range(length // size)]


class Waiting:
    """Context: a reader waits for the disk, while `do` must finish; it ends with the block."""

    def __init__(self, g: Guest, disk: Held | Faulty, what: str, reader: Sleeper):
        self.g, self.disk, self.what, self.reader = g, disk, what, reader
        self.threads = [threading.Thread(target=reader.to_end)]

    def __enter__(self) -> Waiting:
        thread, until = self.threads[0], time.monotonic() + PATIENCE
        thread.start()
        # A read that is not held ends within moments; only a wait that lasts is one for the held block.
        looks = 0
        while looks < 4 and thread.is_alive() and time.monotonic() < until:
            time.sleep(0.05)
            looks = looks + 1 if self.reader.waits() else 0
        self.asleep = looks == 4
        return self

    def do(self, func, *args) -> None:
        if not self.asleep:
            raise Failed(f"{self.what}: the reader does not wait for the disk: no test")
        others = threading.Thread(target=func, args=args)
        self.threads.append(others)
        others.start()
        others.join(PATIENCE)
        self.g.want(
            not others.is_alive(), f"{self.what}: a reader waits for the disk and everybody waits for the reader"
        )
        self.g.want(self.threads[0].is_alive(), f"{self.what}: the reader ended: no test")

    def __exit__(self, *_) -> None:
        self.disk.release()
        for thread in self.threads:
            thread.join(4 * PATIENCE)  # a busy machine takes its time to read what was held


def judge(g: Guest, listing: Stream, what: str, names: list[str], most: int) -> None:
    """Check that each name came once, or at most this often."""
    os.close(listing.fd)
    g.equal(listing.error, None, f"{what}: error of the listing")
    times = collections.Counter(listing.names)
    wrong = [n for n in names if not 1 <= times[n] <= most]
    missed = sum(not times[n] for n in wrong)
    g.equal(wrong[:3], [], f"{what}: of {len(names)} names {missed} missed, {len(wrong) - missed} too often")


def held(g: Guest) -> None:
    """While the disk does not answer a reader, work in the same directory whose blocks are in memory continues."""
    disk = Faulty(g)
    names = make(g)
    size = os.statvfs(g.mnt).f_bsize
    where = {"names": blocks_of(g)[1:], "tree": list(g.tree_blocks(g.path("d")).values())[1:]}
    for what, chosen in where.items():
        g.umount()
        g.mount("commit=600")
        # Twice: what it needs is in memory then, also of the names it makes.
        work(g)
        work(g)
        os.sync()
        disk.hold(chosen, size)
        listing = Stream(g.path("d"), 32768)
        with Waiting(g, disk, what, listing) as waiting:
            waiting.do(work, g)
        judge(g, listing, what, names, 1)
    g.umount()
    disk.remove()


def replace(g: Guest, old: list[str], new: list[str]) -> None:
    """Remove names and make as many others."""
    for before, after in zip(old, new, strict=True):
        os.unlink(g.path(f"d/{before}"))
        os.mknod(g.path(f"d/{after}"))


def changed_beside(g: Guest, rounds: list, judge: Callable[[str, Answer, int], None]) -> None:
    """Change the directory while the disk does not answer a call; it ends, and names and keys agree.

    rounds: what it is, the blocks to hold, the operation and its flags. judge gets what it is, the call's answer and
    the number of names.
    """
    disk = Faulty(g)
    make(g)
    size = os.statvfs(g.mnt).f_bsize
    blocks = {"names": blocks_of(g)[1:], "tree": list(g.tree_blocks(g.path("d")).values())[1:]}
    old, new = WRITERS, [f"{name}-" for name in WRITERS]
    for name in old:
        os.mknod(g.path(f"d/{name}"))
    for what, chosen, op, flags in rounds:
        g.again("commit=600")
        # What the change needs is in memory then.
        replace(g, old, new)
        replace(g, new, old)
        os.sync()
        disk.hold(chosen(blocks), size)
        call = Call(g.path("d"), op, flags)
        with Waiting(g, disk, what, call) as waiting:
            waiting.do(replace, g, old, new)
        old, new = new, old
        if g.want(call.answer is not None, f"{what}: no answer: {call.error}"):
            judge(what, call.answer, N + len(old))
        left = itree(g.path("d"), CHECK)
        g.equal(
            (left.state & BAD, left.names, left.missing, left.extra),
            (0, N + len(old), 0, 0),
            f"{what}: check afterwards",
        )
    g.umount()
    disk.remove()


def held_check(g: Guest) -> None:
    """While the disk does not answer a check, the directory can change, and no change counts as a difference."""

    def judge(what: str, found: Answer, names: int) -> None:
        g.equal((found.state & BAD, found.missing, found.extra, found.found), (0, 0, 0, []), f"{what}: differences")
        g.equal(found.keys, names, f"{what}: keys")

    rounds = [
        ("check, names", lambda b: b["names"], CHECK, 0),
        ("check, tree", lambda b: b["tree"], CHECK, 0),
        ("verify", lambda b: b["tree"], STAT, VERIFY),
    ]
    changed_beside(g, rounds, judge)


def held_build(g: Guest) -> None:
    """While the disk does not answer a build, the directory can change, and the tree then has the changes."""

    def judge(what: str, built: Answer, names: int) -> None:
        g.equal(built.names, names, f"{what}: names in the tree")

    rounds = [
        ("all blocks", lambda b: b["names"], BUILD, FORCE),
        ("one block", lambda b: b["names"][len(b["names"]) // 2 :][:1], BUILD, FORCE),
    ]
    changed_beside(g, rounds, judge)


def build_log(g: Guest) -> None:
    """The changes that a build has to catch up with are charged to the builder's control group, not to the writer's."""
    disk = Held(g)
    make(g)
    size = os.statvfs(g.mnt).f_bsize
    blocks = blocks_of(g)[1:]
    paths = [g.path(f"d/writer-{number}") for number in range(16)]

    def come_and_go(times: int) -> None:
        for _ in range(times):
            for path in paths:
                os.mknod(path)
                os.unlink(path)

    def slab(group: pathlib.Path) -> int:
        time.sleep(2.5)  # the kernel updates memory.stat every two seconds
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(stat["slab"])

    def write(where: pathlib.Path, builder: pathlib.Path) -> None:
        before = slab(builder)
        writer = multiprocessing.get_context("fork").Process(target=leave_and_write, args=(where,))
        writer.start()
        writer.join()
        g.stats["charged"] = slab(builder) - before

    def leave_and_write(where: pathlib.Path) -> None:
        cgroups.join(where)
        come_and_go(g.p["times"])

    g.again("commit=600")
    come_and_go(1)
    os.sync()
    with cgroups.control_groups("memory") as where:
        builder = where / "builder"
        builder.mkdir()
        cgroups.join(builder)
        disk.hold(blocks[len(blocks) // 2 :][:1], size)
        call = Call(g.path("d"), BUILD, FORCE)
        with Waiting(g, disk, "build", call) as waiting:
            waiting.do(write, where, builder)
        cgroups.join(where)
        builder.rmdir()
    if g.want(call.answer is not None, f"no answer: {call.error}"):
        g.stats["logged"] = call.answer.logged
        g.want(call.answer.logged > 10000, f"only {call.answer.logged} changes were logged: no test")
        g.want(g.stats["charged"] > 7 * call.answer.logged, f"of 8 bytes each, {g.stats['charged']} were charged")
    g.umount()
    disk.remove()


def moved(g: Guest) -> None:
    """While a window waits for its last block, names move into it and out of it: none is missed."""
    disk = Held(g)
    names = make(g)
    size = os.statvfs(g.mnt).f_bsize
    last = blocks_of(g)[-1]
    os.sync()
    with pathlib.Path(disk.raw).open("rb") as raw:
        raw.seek(last)
        block = raw.read(size)
    # Inode numbers rise in the order of creation, so the first names are in the first window and the last are not.
    free = [n for n in names if os.fsencode(n) not in block]
    pairs = list(zip(free[:200], free[-200:], strict=True))
    g.want(len(names) > len(free), "no name in the last block: no test")

    def swap() -> None:
        for pair in pairs:
            exchange(*(g.path(f"d/{n}") for n in pair))

    g.again("commit=600")
    disk.hold([last], size)
    listing = Stream(g.path("d"), 32768)
    with Waiting(g, disk, "names exchanged", listing) as waiting:
        waiting.do(swap)
    judge(g, listing, "names exchanged", names, 2)
    g.umount()
    disk.remove()


def bad_block(g: Guest) -> None:
    """A block of names cannot be read: the names of all others come, then the error, once, then the end."""
    disk = Faulty(g)
    names = make(g)
    size = os.statvfs(g.mnt).f_bsize
    blocks = blocks_of(g)
    for number in (1, len(blocks) // 2, len(blocks) - 1):
        g.umount()
        disk.load(disk.unreadable([blocks[number]], size))
        g.mount("errors=remount-ro")
        for buf in (1000, 32768):
            listing = Stream(g.path("d"), buf)
            listing.to_end()
            what = f"block {number} of {len(blocks)}, {buf} bytes a call"
            missing = len(set(names) - set(listing.names))
            g.want(0 < missing <= size // 24, f"{what}: {missing} of {len(names)} names are missing")
            g.equal(len(listing.names), len(set(listing.names)), f"{what}: names, and different ones")
            g.equal(listing.error and listing.error.errno, errno.EIO, f"{what}: error")
            g.equal(listing.call(), False, f"{what}: a call after the error gives names")
            os.close(listing.fd)
        pathlib.Path(g.path("still-writable")).touch()
        g.umount()
        disk.load(disk.sound())
        g.mount()
    g.equal({n for n, _ in g.names()}, set(names), "names of the sound disk")
    g.umount()
    disk.remove()


case("reader-moved", "reader", mkfs=("-b", "1024"), size="96M", cost=20, limit=600)(moved)
case("reader-held", "reader", mkfs=("-b", "1024"), size="96M", cost=40, limit=600)(held)
case("reader-held-check", "reader", mkfs=("-b", "1024"), size="96M", cost=40, limit=600)(held_check)
case("reader-log-build", "reader", {"times": 3000}, mkfs=("-b", "1024", "-E", f"hash_seed={HASH_SEED}"), size="96M",
     cost=30, limit=600)(build_log)  # fmt: skip
case("reader-held-build", "reader", mkfs=("-b", "1024"), size="96M", cost=40, limit=600)(held_build)
case("reader-bad-block", "reader", mkfs=("-b", "4096"), size="96M", allow=LOG, cost=20, limit=600)(bad_block)
