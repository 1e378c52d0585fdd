# SPDX-License-Identifier: GPL-2.0-only
"""The disks a trace is priced on, as tables; docs/measuring.md says where each figure is from.

A disk answers one question: what does a request cost that starts at byte
`start`, is `size` bytes long, and comes when the head (or the last request)
ended at byte `head`. All times are milliseconds, megabytes and gigabytes are
decimal, as disks are sold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Union


@dataclass(frozen=True)
class Sheet:
    """What a data sheet tells; tests/bench/test_disks.py holds the models to it."""

    source: str
    average_seek_ms: float = 0.0
    full_stroke_ms: float = 0.0
    latency_ms: float = 0.0
    megabytes_per_second: float = 0.0
    hit_ms: float = 0.0
    miss_ms: float = 0.0
    random_read_ms: float = 0.0
    iops: float = 0.0


@dataclass(frozen=True)
class Cost:
    ms: float
    seek: bool
    read_through: bool


@dataclass(frozen=True)
class Rotating:
    """One head over a rotating disk, one request at a time, in the order issued.

    A seek over the share x of the capacity takes `track + root * sqrt(x)` up
    to `bend` and rises straight to `full` beyond, plus `turn`, half a turn. A
    forward gap of at most `gap` bytes costs the lesser of reading through it
    and seeking over it. Nothing queues. Each request also costs its command:
    `hit` where the drive has read ahead, which is when the request follows the
    one before it or the gap is read through, and `miss` where the head moves.
    """

    name: str
    title: str
    capacity: int
    bytes_per_second: int
    turn: float
    track: float
    root: float
    hit: float
    miss: float
    sheet: Sheet
    bend: float = 1.0
    full: float = 0.0
    gap: int = 2 << 20

    @property
    def seeks_matter(self) -> bool:
        return True

    def move_ms(self, x: float) -> float:
        """Time to move the head over the share x of the disk."""
        if x <= self.bend:
            return self.track + self.root * math.sqrt(x)
        # The straight part starts from the figure the data sheet has for its end of the curve, rounded as there.
        start = round(self.track + self.root * math.sqrt(self.bend), 1)
        return start + (self.full - start) / (1 - self.bend) * (x - self.bend)

    def seek_ms(self, distance: int) -> float:
        """Time to get the head over `distance` bytes and wait for the sector."""
        return self.move_ms(min(distance / self.capacity, 1.0)) + self.turn

    def transfer_ms(self, size: int) -> float:
        return size / self.bytes_per_second * 1000

    def cost(self, head: int, start: int, size: int, write: bool = False) -> Cost:
        transfer = self.transfer_ms(size)
        gap = start - head
        if gap == 0:
            return Cost(self.hit + transfer, False, False)
        seek = self.seek_ms(abs(gap))
        if 0 < gap <= self.gap and self.transfer_ms(gap) <= seek:
            return Cost(self.hit + self.transfer_ms(gap) + transfer, True, True)
        return Cost(self.miss + seek + transfer, True, False)

    def without_commands(self) -> Disk:
        """The same disk, answering commands in no time."""
        return replace(self, hit=0.0, miss=0.0)

    def queued_ms(self, requests: int, size: int, alone: float) -> float:
        """A head is in one place: order, not a queue, is what helps; reordering by the disk is not modelled."""
        return alone


@dataclass(frozen=True)
class Solid:
    """A device without moving parts, or one behind a network.

    Each request takes `read` or `write` ms and its transfer, wherever it
    lies. The trace does not tell which requests somebody waited for, so there
    are two prices: each request waited for before the next is issued, and
    (queued_ms) all of them in flight, bounded by bandwidth and by `iops`. What
    a program sees lies between the two.
    """

    name: str
    title: str
    capacity: int
    bytes_per_second: int
    write_bytes_per_second: int
    iops: int
    read: float
    write: float
    sheet: Sheet

    @property
    def seeks_matter(self) -> bool:
        return False

    def transfer_ms(self, size: int, write: bool = False) -> float:
        return size / (self.write_bytes_per_second if write else self.bytes_per_second) * 1000

    def cost(self, head: int, start: int, size: int, write: bool = False) -> Cost:
        alone = (self.write if write else self.read) + self.transfer_ms(size, write)
        return Cost(max(alone, 1000 / self.iops), start != head, False)

    def without_commands(self) -> Disk:
        """Itself: the time of a request is the device's, not a command's."""
        return self

    def queued_ms(self, requests: int, size: int, alone: float) -> float:
        """The least that `requests` with `size` bytes in all can take, were they all asked for at once."""
        if not requests:
            return 0.0
        return min(alone, self.read + max(self.transfer_ms(size), requests * 1000 / self.iops))


SAS10K = Rotating(
    name="sas10k",
    title="10,000 rpm, 150 GB",
    capacity=150_000_000_000,
    bytes_per_second=75_000_000,
    turn=3.0,
    track=0.4,
    root=7.3,
    hit=0.03,
    miss=0.4,
    bend=1 / 3,
    full=10.2,
    sheet=Sheet(
        "IBM Ultrastar 146Z10 specification, 4.5.2 (average seek 4.7 ms, full stroke 10.5 ms, 10,000 rpm),"
        " 4.5.1 (command overhead under 30 us if cached, else under 400 us), 4.5.7.2 (4,096 random reads in 34 s);"
        " Seagate Savvio SAS manual, 4.1 (63 to 94 MB/s at the head)",
        average_seek_ms=4.7,
        full_stroke_ms=10.5,
        latency_ms=3.0,
        megabytes_per_second=75,
        hit_ms=0.03,
        miss_ms=0.4,
        random_read_ms=34_000 / 4096,
    ),
)
SATA7K = Rotating(
    name="sata7k",
    title="7,200 rpm SATA, 4 TB",
    capacity=4_000_000_000_000,
    bytes_per_second=154_000_000,
    turn=4.16,
    track=0.23,
    # what makes the average over all pairs of places 7.4 ms: the average of sqrt(x) is 8/15
    root=(7.4 - 0.23) * 15 / 8,
    # Its specification gives no command overhead. Every command costs at least this much on the older disk.
    hit=0.03,
    miss=0.03,
    sheet=Sheet(
        "WD Ultrastar DC HC310 OEM specification, 4.5.1 (average seek 7.4 ms, single track 0.23 ms, latency 4.16 ms);"
        " WD Black 4 TB (154 MB/s)",
        average_seek_ms=7.4,
        latency_ms=4.16,
        megabytes_per_second=154,
    ),
)
NET05 = Solid(
    name="net05",
    title="network block device, 0.5 ms",
    capacity=4_000_000_000_000,
    bytes_per_second=1000 << 20,
    write_bytes_per_second=1000 << 20,
    iops=64_000,
    read=0.5,
    write=0.5,
    sheet=Sheet(
        "Amazon EBS io2: under 500 us for 16 KiB, 64,000 requests/s, 1,000 MiB/s a volume",
        latency_ms=0.5,
        megabytes_per_second=1048.576,
        iops=64_000,
    ),
)
NET2 = Solid(
    name="net2",
    title="network block device, 2 ms",
    capacity=4_000_000_000_000,
    bytes_per_second=125 << 20,
    write_bytes_per_second=125 << 20,
    iops=3_000,
    read=2.0,
    write=2.0,
    sheet=Sheet(
        "Amazon EBS gp3, baseline: single-digit milliseconds, 3,000 requests/s, 125 MiB/s",
        latency_ms=2.0,
        megabytes_per_second=131.072,
        iops=3_000,
    ),
)
NVME = Solid(
    name="nvme",
    title="NVMe, 2 TB",
    capacity=2_000_000_000_000,
    bytes_per_second=3_200_000_000,
    write_bytes_per_second=1_050_000_000,
    iops=490_000,
    read=0.085,
    write=0.020,
    sheet=Sheet(
        "Intel P4500 2.0 TB in Lenovo's product guide: 3.2 GB/s and 1.05 GB/s, 490,000 reads/s, 85 us and 20 us",
        latency_ms=0.085,
        megabytes_per_second=3200,
        iops=490_000,
    ),
)
DISKS = {disk.name: disk for disk in (SAS10K, SATA7K, NET05, NET2, NVME)}
Disk = Union[Rotating, Solid]
