# SPDX-License-Identifier: GPL-2.0-only
"""What is read and what stays in memory: look-ups in a cold directory, files that are read once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pathlib
import random
import re
import resource
import time
import zlib

from kt import cgroups, dentries
from kt.dentries import SLACK
from kt.guest import Guest
from kt.registry import case
from kt.resume import exchange

ONCE = (os.POSIX_FADV_DONTNEED, os.POSIX_FADV_NOREUSE)  # neither data nor inode is needed again


def in_memory() -> tuple[int, int]:
    """Dentries and inodes of the whole machine."""
    return dentries.in_memory(), int(pathlib.Path("/proc/sys/fs/inode-nr").read_text().split()[0])


def cold(g: Guest) -> None:
    g.again()
    g.settle()


def read_so_far(g: Guest) -> tuple[int, int]:
    """Requests and sectors that have been read of the disk."""
    fields = pathlib.Path("/sys/block", g.disk, "stat").read_text().split()
    return int(fields[0]), int(fields[2])


def read_since(g: Guest, before: tuple[int, int]) -> tuple[int, int]:
    """Requests and blocks that have been read since read_so_far() gave `before`."""
    requests, sectors = (now - then for now, then in zip(read_so_far(g), before, strict=True))
    return requests, sectors * 512 // g.p["bs"]


def look(g: Guest, names: list[str], pause: float = 0) -> tuple[int, int]:
    """Look up missing names; return the requests and blocks that this read."""
    before = read_so_far(g)
    for name in names:
        g.want(not os.path.lexists(os.path.join(g.path(), name)), f"{name} is there")
        time.sleep(pause)
    return read_since(g, before)


def lookups(g: Guest) -> None:
    """A series of look-ups reads a cold directory in clusters; an occasional one reads a block."""
    g.mount()
    d = g.path()
    g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    g.want_tree(d)
    blocks = g.dir_blocks(d)
    rnd = random.Random(1)
    names = [f"missing-{rnd.randrange(10**12)}" for _ in range(6 * blocks)]

    cold(g)
    requests, got = look(g, names)
    g.stats |= {"blocks": blocks, "requests": requests, "read": got}
    g.want(got > 0.9 * blocks, f"of {blocks} blocks only {got} were read: the names are not spread")
    g.want(requests < blocks / 5, f"{requests} requests for {blocks} blocks")

    cold(g)
    few = names[:12]
    requests, got = look(g, few, pause=0.6)
    # Beside a leaf for each: the index, and 32 blocks of the inode table for the directory itself.
    g.want(len(few) / 2 <= requests and got <= len(few) + g.p["extra"], f"{requests} requests, {got} blocks for {few}")
    g.listing()


def grown_tree(g: Guest) -> None:
    """The leaves of a tree that grew by splits are read together, though the directory is large for the memory."""
    g.mount()
    d, pool = g.path(), g.path("pool")
    os.mkdir(pool)
    os.mkdir(d)
    files = [f"{number:0255}" for number in range(g.p["n"])]
    for name in files:
        os.mknod(f"{pool}/{name[-8:]}")
    random.Random(1).shuffle(files)
    for name in files:
        os.link(f"{pool}/{name[-8:]}", f"{d}/{name}")
    g.want_tree(d)
    blocks, tree = g.dir_blocks(d), len(g.tree_blocks(d))
    pages = os.sysconf("SC_PHYS_PAGES")
    g.want(tree < pages // 10 < pages // 8 < blocks, f"{blocks} blocks and {tree} of the tree in {pages} of memory")

    cold(g)
    before = read_so_far(g)
    names = os.listdir(d)
    requests, got = read_since(g, before)
    g.want(sorted(names) == sorted(files), f"{len(names)} names that are not the {len(files)} made")
    g.stats |= {"blocks": blocks, "tree": tree, "requests": requests, "read": got}
    # Names come by 60 blocks and more at a time; of leaves one by one there would be as many requests as leaves.
    g.want(requests < blocks / 60 + tree / 4, f"{requests} requests for {blocks} blocks and {tree} of the tree")


def _read(path: str, *advices: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        result = os.read(fd, 4096)
        for advice in advices:
            os.posix_fadvise(fd, 0, 0, advice)
        return result
    finally:
        os.close(fd)


def noreuse(g: Guest) -> None:
    """POSIX_FADV_NOREUSE evicts name and inode on the last close, unless dirty, in use, or with cached data."""
    g.mount()
    d = g.path()
    os.mkdir(d)
    files = [os.path.join(d, f"{n:05d}") for n in range(g.p["n"])]
    for path in files:
        pathlib.Path(path).write_text(path)

    def pass_over(paths: list[str], *advices: int) -> tuple[int, int]:
        before = in_memory()
        for path in paths:
            g.equal(_read(path, *advices).decode(), path, "content")
        return tuple(now - then for now, then in zip(in_memory(), before, strict=True))

    cold(g)
    usual = pass_over(files)
    g.want(min(usual) > 0.9 * len(files), f"what is read does not stay anyway: {usual}")
    cold(g)
    once = pass_over(files, *ONCE)
    g.want(max(once) < SLACK, f"{once} dentries and inodes stay of {len(files)} files that were wanted once")
    g.stats |= {"usual": usual[1], "once": once[1]}
    cold(g)
    data = pass_over(files, os.POSIX_FADV_NOREUSE)[1]
    g.want(data > 0.9 * len(files), f"of {len(files)} files with data in memory {data} inodes stayed")

    # Another process has them open: both stay until it closes them.
    some = files[:300]
    cold(g)
    before = in_memory()
    held = [os.open(path, os.O_PATH) for path in some]
    stay = pass_over(some, *ONCE)
    kept = in_memory()[1] - before[1]
    g.want(max(stay) < SLACK and kept > 0.9 * len(some), f"of {len(some)} files that are held {kept} stayed; {stay}")
    for fd, path in zip(held, some, strict=True):
        g.equal(os.fstat(fd).st_ino, os.lstat(path).st_ino, "inode of a file that is held")
        os.close(fd)
    left = in_memory()[1] - before[1]
    g.want(left < SLACK, f"{left} inodes stay when nobody holds them any longer")

    # Dirty files stay until they are written, and are correct before and after.
    for path in some:
        fd = os.open(path, os.O_RDWR | os.O_APPEND)
        os.write(fd, b"+")
        for advice in ONCE:
            os.posix_fadvise(fd, 0, 0, advice)
        os.close(fd)
    for turn in ("at once", "after a mount"):
        for path in some:
            g.equal(_read(path, *ONCE).decode(), path + "+", f"content {turn}")
        cold(g)

    # Removed while a reader that reads it once has it open.
    fd = os.open(some[0], os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NOREUSE)
    os.unlink(some[0])
    g.equal(os.read(fd, 4096).decode(), some[0] + "+", "content of a removed file")
    os.close(fd)


# A cluster is 32 blocks, or 128, and those of the last four look-ups are more than is allowed here.
for _bs, _n, _extra in ((4096, 20000, 80), (1024, 12000, 180)):
    _params = {"n": _n, "bs": _bs, "extra": _extra}
    case(f"lookups-{_bs >> 10}k", "scans", _params, mkfs=("-b", str(_bs)), cost=30)(lookups)
case(
    "grown-tree", "scans", {"n": 36000, "bs": 1024}, mkfs=("-b", "1024", "-N", "40000"), features="large_dir",
    size="1G", memory="256M", cost=60,
)(grown_tree)  # fmt: skip
case("noreuse", "scans", {"n": 2000}, mkfs=("-b", "4096"), cost=20)(noreuse)
case("noreuse-nojournal", "scans", {"n": 1000}, mkfs=("-b", "4096", "-O", "^has_journal"), cost=20)(noreuse)


def preallocated(g: Guest) -> int:
    """Blocks that are free, but kept for somebody."""
    free = 0
    for line in (g.proc / g.disk / "mb_groups").read_text().splitlines()[1:]:
        found = re.match(r"#\d+\s*: (\d+)", line)
        free += int(found[1]) if found else 0
    return os.statvfs(g.mnt).f_bfree - free


def preallocations(g: Guest) -> None:
    """When reclaim evicts a directory, a worker releases its preallocation, and no task waits for that."""
    g.mount()
    for box in range(g.p["n"]):
        os.mkdir(g.path(f"box{box}"))
        # A tree from the 16th block on, or a little later if the transaction is full, and with it preallocation.
        number = 0
        while g.dir_blocks(g.path(f"box{box}")) < (18 if g.has_tree(g.path(f"box{box}")) else 30):
            os.mknod(g.path(f"box{box}/{number:0100}"))
            number += 1
        g.want_tree(g.path(f"box{box}"))
    os.sync()
    kept = preallocated(g)
    g.want(kept >= 4 * g.p["n"], f"{g.p['n']} directories have {kept} blocks preallocated")
    held = []
    for _ in range(4000):
        left = int(re.search(r"MemAvailable: +(\d+)", pathlib.Path("/proc/meminfo").read_text())[1])
        if preallocated(g) < kept / 4 or left < 8 << 10:
            break
        held.append(bytearray(1 << 20))
    after = preallocated(g)
    g.stats |= {"preallocated": kept, "after_reclaim": after, "held_mib": len(held)}
    del held
    g.want(after < kept / 4, f"{after} of {kept} blocks are still preallocated")


case(
    "reader-prealloc", "scans", {"n": 150}, mkfs=("-b", "1024", "-N", "60000", "-I", "128"), size="96M", memory="192M",
    cost=20,
)(preallocations)  # fmt: skip


def half_read(g: Guest, group: pathlib.Path) -> dict[str, int]:
    """In a memory control group, open a directory many times, read to the middle, and later to the end."""

    def kernels() -> int:
        """Bytes of the group that the kernel allocated as objects: slab and vmalloc.

        memory.current is too large by what each processor has charged in
        advance, up to 256 KiB each.  The kernel updates memory.stat every two
        seconds.
        """
        time.sleep(2.5)
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(stat["slab"]) + int(stat["vmalloc"])

    def read(number: int) -> bool:
        got = [name for name, _ in readers[number].call()]
        if not number:
            first.extend(got)
        counts[number] += len(got)
        sums[number] += sum(zlib.crc32(os.fsencode(name)) for name in got)
        return bool(got)

    cgroups.join(group)
    files = g.p["readers"] + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, max(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
    before = kernels()
    readers = [dentries.Reader(g.path()) for _ in range(g.p["readers"])]
    # A list of names for each reader would take more memory than what is measured.
    counts, sums, first = [0] * len(readers), [0] * len(readers), []
    for number in range(len(readers)):
        while counts[number] < g.p["n"] / 2:
            read(number)
    held = kernels() - before
    with contextlib.suppress(OSError):  # it says so if it could not reclaim as much
        (group / "memory.reclaim").write_text("4G")
    kept = kernels() - before
    (group / "memory.max").write_text(str(int((group / "memory.current").read_text()) + (16 << 20)))
    for number, reader in enumerate(readers):
        while read(number):
            pass
        reader.close()
    wrong = sum(one != (counts[0], sums[0]) for one in zip(counts, sums, strict=True))
    return {"held": held, "kept": kept, "wrong": wrong, "names": len({*first}), "returned": len(first)}


def windows(g: Guest) -> None:
    """Listings paused in the middle pin little memory, and continue without what has been reclaimed."""
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    g.want_tree(g.path())
    with cgroups.control_groups("memory") as where:
        group = where / "readers"
        group.mkdir()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            # A reader that is killed for want of memory never answers.
            result = pool.apply_async(half_read, (g, group))
            try:
                result = result.get(timeout=g.case.limit)
            except multiprocessing.TimeoutError:
                result = {}
        cgroups.want_alive(g, group)
    if g.want(bool(result), "the readers have not come to their end"):
        g.stats |= result
        most = 65536 * g.p["readers"]
        g.want(result["held"] > most, f"the readers hold {result['held']} bytes: no window has become large")
        g.want(result["kept"] < most, f"readers keep {result['kept']} bytes, though they are reclaimed")
        g.equal((result["names"], result["returned"], result["wrong"]), (g.p["n"], g.p["n"], 0), "names")


case("reader-windows", "scans", {"n": 12000, "readers": 4}, mkfs=("-b", "4096", "-N", "20000"), cost=8)(windows)
case(
    "reader-windows-1000", "scans", {"n": 34000, "readers": 1000}, mkfs=("-b", "4096", "-N", "40000"), memory="4G",
    cost=400, limit=1500, full="a thousand listings of 34,000 names take minutes",
)(windows)  # fmt: skip


def paused(g: Guest, group: pathlib.Path, dirs: list[str]) -> dict[str, int]:
    """In a memory control group, pause a listing of each directory, move all names of it, and read on after reclaim."""

    def kernels() -> int:
        """Bytes of the group in slab objects.  The kernel updates memory.stat every two seconds."""
        os.sync()
        time.sleep(2.5)
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return int(stat["slab"])

    cgroups.join(group)
    readers = [dentries.Reader(d, 4096) for d in dirs]
    seen = [[] for _ in dirs]
    for reader, names in zip(readers, seen, strict=True):
        while len(names) < g.p["n"] / 2:
            names.extend(reader.call())
    with contextlib.suppress(OSError):  # it says so if it could not reclaim as much
        (group / "memory.reclaim").write_text("4G")
    before = kernels()
    for d in dirs:
        for number in range(0, g.p["n"], 2):
            exchange(f"{d}/{number}", f"{d}/{number + 1}")
    # Every second one is already among the names that have moved.
    for reader, names in zip(readers[::2], seen[::2], strict=True):
        while len(names) < 1.2 * g.p["n"] / 2:
            names.extend(reader.call())
    held = kernels() - before
    with contextlib.suppress(OSError):
        (group / "memory.reclaim").write_text("4G")
    kept = kernels() - before
    for reader, names in zip(readers, seen, strict=True):
        while got := reader.call():
            names.extend(got)
        reader.close()
    missed = sum(g.p["n"] - len({name for name, _ in names}) for names in seen)
    return {"held": held, "kept": kept, "missed": missed, "most": max(len(names) for names in seen)}


def moved_log(g: Guest) -> None:
    """Names that moved during paused listings can be reclaimed; the listings are complete all the same."""
    g.mount()
    dirs = [g.path(f"d{number}") for number in range(g.p["dirs"])]
    for d in dirs:
        os.mkdir(d)
        for number in range(g.p["n"]):
            os.mknod(f"{d}/{number}")
        g.want_tree(d)
    g.again()
    with cgroups.control_groups("memory") as where:
        group = where / "writers"
        group.mkdir()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            result = pool.apply_async(paused, (g, group, dirs)).get(timeout=g.case.limit)
        cgroups.want_alive(g, group)
    g.stats |= result
    names = g.p["n"] * g.p["dirs"]
    g.want(result["most"] > g.p["n"], "no listing returned a name that moved: no test")
    # Names take 80 bytes each, more on the debug kernel, where half as much as this stayed.
    g.want(result["kept"] < 32 * names, f"{result['kept']} bytes stay, though they are reclaimed")
    g.equal(result["missed"], 0, "names missed")
    g.want(result["most"] <= 2 * g.p["n"], f"{result['most']} names of {g.p['n']} in one listing")


case("reader-log", "scans", {"n": 6000, "dirs": 4}, mkfs=("-b", "4096", "-N", "40000"), cost=20)(moved_log)
