#!/usr/bin/python3 -B
# SPDX-License-Identifier: GPL-2.0-only
"""Price a block trace on the disks of bench/disks.py.

Requests are taken in the order they were issued, and the head starts at
address 0. Without another word the disk is that of docs/design.md, section 1.
"""

from __future__ import annotations

import argparse
import bisect
import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from sys import intern
from typing import NamedTuple

from disks import DISKS, SAS10K, Disk

SECTOR = 512
CAPACITY = SAS10K.capacity

HEADER = "#itree-trace 1"


class Request(NamedTuple):
    """One block request: seconds since the recorder started, where, how much. Traces hold up to 25 million of them."""

    time: float
    rwbs: str
    sector: int
    sectors: int
    comm: str

    @property
    def is_read(self) -> bool:
        return "R" in self.rwbs

    @property
    def is_write(self) -> bool:
        return "W" in self.rwbs

    @property
    def moves_data(self) -> bool:
        """True for reads and writes; flushes and discards move no data."""
        return self.sectors > 0 and (self.is_read or self.is_write)


@dataclass
class Price:
    """What a sequence of requests costs."""

    requests: int = 0
    bytes: int = 0
    seeks: int = 0
    distance: int = 0  # bytes between the end of a request and the start of the next, forward or back
    read_through: int = 0
    seconds: float = 0.0
    queued: float = 0.0  # seconds, were all requests asked for at once; see disks.Solid

    @property
    def mib(self) -> float:
        return self.bytes / (1 << 20)

    def as_dict(self) -> dict[str, float]:
        return {**asdict(self), "mib": self.mib}


def walk(requests: Iterable[Request], disk: Disk = SAS10K) -> Iterator[tuple[float, Request, bool, bool]]:
    """Yield (seconds when done, request, is a seek, gap is read) in order."""
    head = 0
    clock = 0.0
    for req in requests:
        if not req.moves_data:
            continue
        start = req.sector * SECTOR
        size = req.sectors * SECTOR
        cost = disk.cost(head, start, size, req.is_write)
        clock += cost.ms / 1000
        head = start + size
        yield clock, req, cost.seek, cost.read_through


def price(requests: Iterable[Request], disk: Disk = SAS10K) -> Price:
    """Price requests in their order. Flushes and discards are left out.

    `seeks` counts all requests that do not start where the one before ended;
    `read_through` says for how many of them reading the gap was cheaper.
    """
    total = Price()
    head = 0
    for clock, req, sought, through in walk(requests, disk):
        start = req.sector * SECTOR
        total.requests += 1
        total.bytes += req.sectors * SECTOR
        total.seeks += sought
        total.distance += abs(start - head)
        total.read_through += through
        total.seconds = clock
        head = start + req.sectors * SECTOR
    total.queued = disk.queued_ms(total.requests, total.bytes, total.seconds * 1000) / 1000
    return total


def one_pass(requests: Iterable[Request], disk: Disk = SAS10K) -> float:
    """Seconds to read what these requests read, each sector once and front to back.

    What the same work costs as its blocks lie, gaps included, when nothing is
    read twice and the head goes over the disk once.
    """
    spans: list[list[int]] = []
    for first, end in sorted((r.sector, r.sector + r.sectors) for r in requests if r.is_read and r.sectors):
        if spans and first <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([first, end])
    return price((Request(0.0, "R", first, end - first, "") for first, end in spans), disk).seconds


def on_all_disks(requests: list[Request]) -> dict[str, dict[str, float]]:
    """Seconds of the reads, and of everything, on each disk; `queued` is the lower bound of disks.Solid."""
    told = {}
    for name, disk in DISKS.items():
        reads, both = price((r for r in requests if r.is_read), disk), price(requests, disk)
        told[name] = {
            "reads": reads.seconds,
            "reads_queued": reads.queued,
            "all": both.seconds,
            "all_queued": both.queued,
        }
    return told


def summary(requests: list[Request], disk: Disk = SAS10K) -> dict[str, object]:
    """Reads priced alone, writes counted, and everything priced together."""
    return {
        "reads": price((r for r in requests if r.is_read), disk).as_dict(),
        "writes": price((r for r in requests if r.is_write), disk).as_dict(),
        "all": price(requests, disk).as_dict(),
        "flushes": sum(1 for r in requests if r.rwbs.startswith("F")),
    }


def blocks_written(requests: Iterable[Request], extents: Iterable[tuple[int, int]], block_size: int) -> int:
    """File system blocks that writes put into extents of (first sector, sectors).

    Used for the journal: whatever the reason of the write (descriptor, data,
    commit, revoke, journal superblock), it is counted when issued to the disk.
    """
    spans = sorted(extents)
    starts = [first for first, _ in spans]
    sectors = 0
    for req in requests:
        if not req.is_write or not req.sectors:
            continue
        end = req.sector + req.sectors
        at = max(bisect.bisect_right(starts, req.sector) - 1, 0)
        while at < len(spans) and spans[at][0] < end:
            first, length = spans[at]
            sectors += max(0, min(end, first + length) - max(req.sector, first))
            at += 1
    return -(-sectors * SECTOR // block_size)


def write_trace(path: Path, requests: Iterable[Request]) -> None:
    with gzip.open(path, "wt", compresslevel=6) as out:
        out.write(HEADER + "\n")
        for r in requests:
            out.write(f"{r.time:.6f}\t{r.rwbs}\t{r.sector}\t{r.sectors}\t{r.comm}\n")


def read_trace(path: Path) -> list[Request]:
    requests = []
    with gzip.open(path, "rt") as lines:
        if next(lines, "").rstrip("\n") != HEADER:
            raise ValueError(f"{path}: not a trace made by bench/blocktrace.py")
        for number, line in enumerate(lines, 2):
            parts = line.rstrip("\n").split("\t")
            if len(parts) != 5:
                raise ValueError(f"{path}:{number}: 5 fields are wanted")
            time, rwbs, sector, sectors, comm = parts
            # few different ones, of which each would be kept as often as it comes
            requests.append(Request(float(time), intern(rwbs), int(sector), int(sectors), intern(comm)))
    return requests


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path, nargs="+", help="made by bench/blocktrace.py")
    parser.add_argument("--disk", choices=DISKS, default=SAS10K.name, help="to price it on (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    results = {str(path): summary(read_trace(path), DISKS[args.disk]) for path in args.trace}
    if args.json:
        json.dump(results, sys.stdout, indent=2)
        print()
        return 0
    print(f"{'what':8}{'requests':>10}{'MiB':>10}{'seeks':>10}{'seconds':>10}")
    for path, result in results.items():
        print(path)
        for what in ("reads", "writes", "all"):
            p = result[what]
            print(f"  {what:6}{p['requests']:>10,}{p['mib']:>10,.1f}{p['seeks']:>10,}{p['seconds']:>10.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
