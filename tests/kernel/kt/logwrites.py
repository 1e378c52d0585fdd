# SPDX-License-Identifier: GPL-2.0-only
"""Reads logs of dm-log-writes; drivers/md/dm-log-writes.c describes the format."""

from __future__ import annotations

import dataclasses
import os
import random
import struct

MAGIC = 0x6A736677736872
SUPER = struct.Struct("<QQQI")
ENTRY = struct.Struct("<QQQQ")
FLUSH, FUA, DISCARD, MARK = 1, 2, 4, 8
END = "dm-log-writes-end"


@dataclasses.dataclass
class Entry:
    flags: int
    to: int  # byte address on the device
    size: int
    at: int  # of its data in the log
    mark: str = ""


class Log:
    """The entries of a finished log, in the order in which the device completed them."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDONLY)
        magic, version, count, self.sector = SUPER.unpack(os.pread(self.fd, SUPER.size, 0))
        if magic != MAGIC or version != 1:
            raise ValueError(f"{path} is no log of dm-log-writes: magic {magic:#x}, version {version}")
        self.entries: list[Entry] = []
        at = self.sector
        for _ in range(count):
            to, sectors, flags, length = ENTRY.unpack(os.pread(self.fd, ENTRY.size, at))
            mark = ""
            if flags & MARK:
                mark = os.pread(self.fd, length, at + ENTRY.size).rstrip(b"\0").decode()
            at += self.sector
            size = sectors * self.sector
            self.entries.append(Entry(flags, to * self.sector, size, at, mark))
            if not flags & (DISCARD | MARK):
                at += size
        if not self.entries or self.entries[-1].mark != END:
            raise ValueError(f"{path}: the log is cut off: {count} entries, and the last is not the end")

    def close(self) -> None:
        os.close(self.fd)

    def write(self, fd: int, entry: Entry) -> None:
        """Replay an entry on a device or an image of it."""
        if entry.flags & DISCARD:
            raise ValueError("a discard in the log: mount without -o discard")
        if entry.size:
            data = os.pread(self.fd, entry.size, entry.at)
            if os.pwrite(fd, data, entry.to) != entry.size:
                raise OSError(f"short write at {entry.to}")


@dataclasses.dataclass
class Cut:
    """A power cut: the disk has everything up to `flushed`, and of later entries those in `also`."""

    kind: str  # flush, between, torn
    at: int  # the last entry that was completed
    flushed: int
    also: list[int]


def choose(log: Log, count: int, seed: int, first: int = 0) -> list[Cut]:
    """Choose cuts after entry `first`, in order: half after a flush or a FUA write, the rest between.

    One half of the latter has all completed writes. In the other half, each write that was neither FUA nor followed
    by a flush is there or not, as after a cache has lost power.
    """
    rng = random.Random(seed)
    barrier = [i for i, e in enumerate(log.entries) if i >= first and e.flags & (FLUSH | FUA)]
    other = [i for i, e in enumerate(log.entries) if i >= first and e.size and not e.flags & (FLUSH | FUA)]
    some = {i: "flush" for i in rng.sample(barrier, min(len(barrier), count // 2))}
    rest = min(len(other), count - len(some))
    for number, i in enumerate(rng.sample(other, rest)):
        some[i] = "torn" if number % 2 else "between"
    cuts, flushed = [], -1
    for i, entry in enumerate(log.entries):
        if entry.flags & FLUSH:
            flushed = i
        if i in some:
            also = [
                k
                for k in range(flushed + 1, i + 1)
                if some[i] != "torn" or log.entries[k].flags & FUA or rng.random() < 0.5
            ]
            cuts.append(Cut(some[i], i, flushed, also))
    return cuts
