# SPDX-License-Identifier: GPL-2.0-only
"""Block requests: one as an object, many as a compressed file of text."""

from __future__ import annotations

import bisect
import gzip
from collections.abc import Iterable
from pathlib import Path
from sys import intern
from typing import NamedTuple

SECTOR = 512
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
        try:
            first = next(lines, "").rstrip("\n")
        except (gzip.BadGzipFile, EOFError, UnicodeDecodeError):
            first = ""
        if first != HEADER:
            raise ValueError(f"{path}: not a trace made by bench/requests")
        for number, line in enumerate(lines, 2):
            parts = line.rstrip("\n").split("\t")
            if len(parts) != 5:
                raise ValueError(f"{path}:{number}: 5 fields are wanted")
            time, rwbs, sector, sectors, comm = parts
            # few different ones, of which each would be kept as often as it comes
            requests.append(Request(float(time), intern(rwbs), int(sector), int(sectors), intern(comm)))
    return requests
