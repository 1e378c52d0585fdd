# SPDX-License-Identifier: GPL-2.0-only
"""Price a block trace on the disks of disks.py.

Requests are taken in the order they were issued, and the head starts at
address 0. Without another word the disk is that of docs/design.md, section 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from model.disks import DISKS, SAS10K, Disk
from trace.records import SECTOR, Request


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
    read twice and the head goes over the disk once. It is a bound for every
    order of reading, so commands cost nothing: how long a request may be is
    up to the reader.
    """
    spans: list[list[int]] = []
    for first, end in sorted((r.sector, r.sector + r.sectors) for r in requests if r.is_read and r.sectors):
        if spans and first <= spans[-1][1]:
            spans[-1][1] = max(end, spans[-1][1])
        else:
            spans.append([first, end])
    return price((Request(0.0, "R", first, end - first, "") for first, end in spans), disk.without_commands()).seconds


def on_all_disks(requests: list[Request]) -> dict[str, dict[str, float]]:
    """Seconds of the reads, and of everything, on each disk; `queued` is the lower bound of disks.Solid."""
    result = {}
    for name, disk in DISKS.items():
        reads, both = price((r for r in requests if r.is_read), disk), price(requests, disk)
        result[name] = {
            "reads": reads.seconds,
            "reads_queued": reads.queued,
            "all": both.seconds,
            "all_queued": both.queued,
        }
    return result


def summary(requests: list[Request], disk: Disk = SAS10K) -> dict[str, object]:
    """Reads priced alone, writes counted, and everything priced together."""
    return {
        "reads": price((r for r in requests if r.is_read), disk).as_dict(),
        "writes": price((r for r in requests if r.is_write), disk).as_dict(),
        "all": price(requests, disk).as_dict(),
        "flushes": sum(1 for r in requests if r.rwbs.startswith("F")),
    }
