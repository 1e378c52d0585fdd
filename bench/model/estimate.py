# SPDX-License-Identifier: GPL-2.0-only
"""Estimate the disk requests of a stat of every file in a directory, without measuring.

For itree-advise: from the order of the names, the places of the inode tables
and of the directory's blocks, compute the requests that ext4 would make, in
the current order of readdir and in the order of a tree. Nothing here reads a
disk.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from model.disks import Disk
from model.pricing import price
from trace.records import SECTOR, Request

# ext4 reads this many blocks of an inode table around the one it needs (inode_readahead_blks)
INODE_READAHEAD = 32
# the largest request that the block layer makes from neighbouring blocks
SWEEP_BYTES = 1 << 20
# bytes of tree per entry, from docs/results.md
TREE_BYTES = 9


@dataclass(frozen=True)
class Geometry:
    """Where the inodes of a file system are."""

    block_size: int
    inode_size: int
    inodes_per_group: int
    tables: list[int]  # first block of each group's inode table

    def block_of(self, inode: int) -> int:
        """The block of the inode table that holds the inode."""
        group, index = divmod(inode - 1, self.inodes_per_group)
        if not 0 <= group < len(self.tables):
            raise ValueError(f"inode {inode} is in group {group}, of which there is none")
        return self.tables[group] + index * self.inode_size // self.block_size

    def window_of(self, inode: int) -> int:
        """The first of the blocks that are read for the inode."""
        group = (inode - 1) // self.inodes_per_group
        start = self.tables[group]
        return start + (self.block_of(inode) - start) // INODE_READAHEAD * INODE_READAHEAD


def _request(block: int, blocks: int, block_size: int) -> Request:
    per = block_size // SECTOR
    return Request(0.0, "R", block * per, blocks * per, "")


class Cache:
    """Windows of inode tables in memory, evicted in LRU order."""

    def __init__(self, size: int):
        self.size = max(size, 1)
        self.held: OrderedDict[int, None] = OrderedDict()

    def has(self, key: int) -> bool:
        """Return whether the window was cached, and cache it."""
        if key in self.held:
            self.held.move_to_end(key)
            return True
        self.held[key] = None
        if len(self.held) > self.size:
            self.held.popitem(last=False)
        return False


def in_readdir_order(inodes: list[int], blocks: list[int], hashed: bool, where: Geometry, memory: int) -> list[Request]:
    """Requests of getdents and lstat in the order given.

    inodes: in readdir's order; blocks: the directory's, in logical order;
    hashed: it has an index, so the order of its leaves is unrelated to their
    places; memory: bytes for inode tables.
    """
    order = list(blocks)
    if hashed:
        # The root is first. The order of the leaves cannot be seen from outside. Leaves are split
        # in random order of their hashes, so any shuffle is as good; this one is reproducible.
        rest = order[1:]
        random.Random(len(order)).shuffle(rest)
        order = order[:1] + rest
    cache = Cache(memory // (INODE_READAHEAD * where.block_size))
    requests = []
    read = 0
    for number, inode in enumerate(inodes):
        while read < len(order) and read * len(inodes) <= number * len(order):
            requests.append(_request(order[read], 1, where.block_size))
            read += 1
        window = where.window_of(inode)
        if not cache.has(window):
            requests.append(_request(window, INODE_READAHEAD, where.block_size))
    return requests


def sweep(blocks: Iterable[int], size: int, block_size: int) -> list[Request]:
    """Requests that read pieces of `size` blocks in disk order, merging neighbours."""
    requests: list[Request] = []
    most = SWEEP_BYTES // SECTOR
    for block in sorted(set(blocks)):
        new = _request(block, size, block_size)
        if requests:
            last = requests[-1]
            if last.sector + last.sectors == new.sector and last.sectors + new.sectors <= most:
                requests[-1] = Request(0.0, "R", last.sector, last.sectors + new.sectors, "")
                continue
        requests.append(new)
    return requests


def in_tree_order(inodes: list[int], blocks: list[int], where: Geometry) -> list[Request]:
    """The same requests with a tree: the directory in one sweep, its tree, the inode tables in one sweep."""
    directory = sweep(blocks, 1, where.block_size)
    tree = -(-len(inodes) * TREE_BYTES // where.block_size)
    if directory and tree > 1:
        last = directory[-1]
        directory.append(Request(0.0, "R", last.sector + last.sectors, tree * where.block_size // SECTOR, ""))
    tables = sweep((where.window_of(inode) for inode in inodes), INODE_READAHEAD, where.block_size)
    return directory + tables


def data_seconds(extents: list[tuple[int, int]], total: int, disk: Disk) -> tuple[float, float]:
    """Seconds to read the data of `total` files: in the order given, and in disk order.

    extents: (byte on the disk, bytes) of the first extent of a sample of the
    files, in readdir order. If the sample is one file in n, n - 1 other files
    lie between its neighbours in disk order, so each step between these counts
    as n steps of an nth.
    """
    if not extents:
        return 0.0, 0.0
    share = total / len(extents)

    def total_of(order: list[tuple[int, int]], divide: float) -> float:
        alone = 0.0
        for number, (start, size) in enumerate(order):
            gap = 0
            if number:
                before, length = order[number - 1]
                # whole sectors; in the order of the disk nothing goes back
                gap = int((start - before) / divide - length) // SECTOR * SECTOR
                gap = max(gap, 0) if divide > 1 else gap
            alone += disk.cost(max(-gap, 0), max(gap, 0), size).ms
        return alone / 1000 * share

    return total_of(extents, 1.0), total_of(sorted(extents), max(share, 1.0))


def seconds(requests: list[Request], disk: Disk) -> float:
    return price(requests, disk).seconds
