# SPDX-License-Identifier: GPL-2.0-only
"""A cold listing reads in few bios: io.max limits bios, not the requests that they merge into."""

from __future__ import annotations

import math
import multiprocessing
import os
import pathlib
import re
import time

from kt.cgroups import control_groups, join
from kt.guest import QUIET, Guest
from kt.misses import Reads
from kt.registry import case

# Blocks that are waited for one by one (root and first leaf of the tree and of the htree), and the sweeps' ends.
SINGLE = 12
ITABLE = 32  # blocks of the inode table that ext4 itself reads around an inode that it misses, a bio each


def group_reads(group: pathlib.Path) -> int:
    """Bios that the tasks of a control group have read."""
    fields = (group / "io.stat").read_text().split()
    return sum(int(field.removeprefix("rios=")) for field in fields if field.startswith("rios="))


def list_in(group: pathlib.Path, path: str, stat: bool) -> int:
    """List a directory in the control group, in a separate process; return the number of names."""
    join(group)
    count = 0
    with os.scandir(path) as entries:
        for entry in entries:
            if stat:
                os.lstat(entry.path)
            count += 1
    return count


def most_blocks(g: Guest) -> int:
    """The most blocks in a request of this disk, for pages that are scattered in memory."""
    queue = pathlib.Path(f"/sys/block/{g.disk}/queue")
    segments = min(int((queue / "max_segments").read_text()), 256)
    size = min(segments * os.sysconf("SC_PAGESIZE"), int((queue / "max_sectors_kb").read_text()) << 10)
    return size // g.p["bs"]


def measure(g: Guest, where: pathlib.Path, work: str, needed: int) -> None:
    group = where / f"{g.case.id}-{work}"
    group.mkdir()
    g.again(QUIET)
    g.settle()
    os.stat(g.path())
    reads = Reads(g)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        g.equal(pool.apply(list_in, (group, g.path(), work == "lstat")), g.p["n"], f"{work}: names")
    found, bios = reads.since(), group_reads(group)
    text = f"{work}: {bios} bios, {found} for {needed} blocks"
    g.stats |= {f"{work} bios": bios} | {f"{work} {kind}": count for kind, count in found.items()}
    whole = math.ceil(found["blocks"] / most_blocks(g))
    # Before the scan knows that its reader looks at inodes, and sweeps.
    early = 2 * ITABLE if work == "lstat" else 0
    g.want(found["blocks"] > needed * 0.9, f"{text}: not cold, no test")
    g.want(bios <= 2 * whole + SINGLE + early, f"{text}: more than twice the {whole} bios that it takes")
    g.want(bios <= 2 * found["requests"] + early, f"{text}: more than twice the requests")
    g.want(found["requests"] <= 2 * whole + SINGLE, f"{text}: more than twice the {whole} requests that it takes")
    g.want(found["blocks"] <= needed + 2 * ITABLE, f"{text}: reads too much")


def bios(g: Guest) -> None:
    """getdents, and getdents and lstat, of a cold directory: bios, requests and blocks."""
    g.mount(QUIET)
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    g.want_tree(g.path())
    names = g.dir_blocks(g.path()) + len(g.tree_blocks(g.path()))
    with control_groups("io") as where:
        measure(g, where, "getdents", names)
        measure(g, where, "lstat", names + g.p["n"] * 256 // g.p["bs"])
    g.listing()


def waiting(group: pathlib.Path, path: str, stat: bool) -> tuple[int, float]:
    """As list_in(); return the number of names, and the seconds that it did not have the processor."""
    begun, used = time.monotonic(), time.process_time()
    count = list_in(group, path, stat)
    return count, time.monotonic() - begun - (time.process_time() - used)


def limited(g: Guest) -> None:
    """A control group of 200 requests a second, as clouds sell them: a listing takes few of them.

    Linux charges the group for metadata, but does not delay it (bio_issue_as_root_blkg()). The debt delays the
    readahead of inode tables.
    """
    g.mount(QUIET)
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    g.want_tree(g.path())
    number = os.stat(g.dev).st_rdev
    bios: dict[tuple[str, str], int] = {}
    with control_groups("io") as where, multiprocessing.get_context("fork").Pool(1) as pool:
        for side, options in (("itree", QUIET), ("noitree", f"{QUIET},noitree")):
            for work in ("getdents", "lstat"):
                group = where / f"{side}-{work}"
                group.mkdir()
                (group / "io.max").write_text(f"{os.major(number)}:{os.minor(number)} riops={g.p['riops']}")
                g.again(options)
                g.settle()
                os.stat(g.path())
                count, seconds = pool.apply(waiting, (group, g.path(), work == "lstat"))
                g.equal(count, g.p["n"], f"{side} {work}: names")
                # For the report alone: whether the time follows the requests.
                g.stats[f"{side} {work} waiting"] = round(seconds, 2)
                bios[side, work] = g.stats[f"{side} {work} bios"] = group_reads(group)
    for work in ("getdents", "lstat"):
        mine, stock = bios["itree", work], bios["noitree", work]
        g.want(mine * 10 <= stock, f"{work}: {mine} bios, in hash order {stock}")


def buffers_kib() -> int:
    """Memory that holds blocks of block devices."""
    return int(re.search(r"^Buffers: +(\d+) kB", pathlib.Path("/proc/meminfo").read_text(), re.M)[1])


def given_back(g: Guest) -> None:
    """When a listing has ended, the blocks it has read ahead are not pinned: reclaim frees them all."""
    g.mount(QUIET)
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    for stat in (False, True):
        g.again(QUIET)
        g.settle()
        before = buffers_kib()
        with os.scandir(g.path()) as entries:
            for entry in entries:
                if stat:
                    os.lstat(entry.path)
        read = buffers_kib() - before
        g.settle()
        left = buffers_kib() - before
        g.stats |= {f"read_{stat:d}_kib": read, f"left_{stat:d}_kib": left}
        g.want(read > 1000, f"{read} KiB were read, no test")
        g.want(left < read // 8, f"{left} of {read} KiB that a listing has read stay in memory")
    g.listing()


case(
    "reader-buffers", "scans", {"n": 30_000}, size="128M", cost=6, mkfs=("-b", "4096", "-N", "40000", "-m", "0"),
)(given_back)

for size, count in (("4096", 30000), ("1024", 10000)):
    case(
        f"reader-bios-{int(size) // 1024}k", "scans", {"bs": int(size), "n": count}, size="128M", cost=10,
        mkfs=("-b", size, "-N", "40000", "-I", "256", "-m", "0"),
    )(bios)

case(
    "reader-bios-limit", "scans", {"bs": 4096, "n": 300_000, "riops": 200}, size="1G", cost=300, limit=1200,
    mkfs=("-b", "4096", "-N", "400000", "-I", "256", "-m", "0"), full="it waits for a limit of requests for minutes",
)(limited)
