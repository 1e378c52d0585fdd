# SPDX-License-Identifier: GPL-2.0-only
"""Deliveries into maildirs that are not in memory read as much as on stock ext4, and do not build a tree."""

from __future__ import annotations

import os
import random

from kt import itree_ioctl as io
from kt.guest import QUIET, Guest
from kt.memory import read_since, read_so_far
from kt.online import feature_on
from kt.registry import case

BOXES, ALL_BOXES = 100, 500
LEAST, MOST = 20, 60  # directory blocks of a maildir


def boxes(g: Guest) -> list[str]:
    return [g.path(f"box{number}") for number in range(ALL_BOXES if g.job["full"] else BOXES)]


def fill(g: Guest) -> None:
    """Grow maildirs side by side, so that they are fragmented, each to its final size."""
    rng = random.Random(7)
    bsize = os.statvfs(g.mnt).f_bsize
    left = {box: rng.randint(LEAST, MOST) * bsize for box in boxes(g)}
    for box in left:
        os.mkdir(box)
    number = 0
    while left:
        for box in list(left):
            for _ in range(8):
                os.mknod(f"{box}/{number:010}.M{number * 7919 % 1000003}P{number}.mail.example.org")
                number += 1
            if os.stat(box).st_size >= left[box]:
                del left[box]


def deliver(g: Guest, name: str) -> tuple[int, int]:
    """Requests and blocks that a new file in each maildir reads."""
    before = read_so_far(g)
    for box in boxes(g):
        os.mknod(f"{box}/{name}")
    return read_since(g, before)


def cold(g: Guest) -> None:
    g.mount(QUIET)
    fill(g)
    g.umount()
    g.run(g.tool("e2fsck"), "-fy", g.dev)  # as before tune2fs
    g.tmp.mkdir(parents=True, exist_ok=True)
    g.run("cp", "--sparse=always", g.dev, g.tmp / "before")
    g.settle()
    g.mount(QUIET)
    stock = deliver(g, "first")
    for box in boxes(g):
        os.listdir(box)
    stock_again = deliver(g, "second")
    groups = -(-os.statvfs(g.mnt).f_blocks // (8 * os.statvfs(g.mnt).f_bsize))
    g.umount()
    # Once more, with the feature.
    g.run("cp", "--sparse=never", g.tmp / "before", g.dev)
    g.settle()
    feature_on(g)
    g.umount()
    g.settle()
    g.mount(QUIET)
    ours = deliver(g, "first")
    g.stats.update(stock_requests=stock[0], stock_blocks=stock[1], requests=ours[0], blocks=ours[1])
    g.want(stock[0] >= len(boxes(g)), f"hardly anything had to be read: {stock}")
    g.want(ours <= stock and ours[1] <= stock[1], f"requests and blocks read: {ours}, without the feature {stock}")
    g.equal(g.counter("builds"), 0, "trees built from directories that are not in memory")
    # What has been listed is in memory: the next delivery builds the tree, and reads no block of the directory for
    # it. A tree takes new blocks, as a directory that grows does, and for these a group's bitmap may have to be read.
    for box in boxes(g):
        os.listdir(box)
    again = deliver(g, "second")
    g.want(again[0] <= stock_again[0] + groups, f"builds read {again}, creates without the feature {stock_again}")
    g.equal(g.counter("builds"), len(boxes(g)), "trees built after a listing")
    for box in boxes(g)[::10]:
        found = io.itree(box, io.CHECK)
        g.equal((found.state & io.HAS_TREE, found.missing, found.extra), (io.HAS_TREE, 0, 0), f"tree of {box}")


case(
    "reader-build", "ops", {"bs": 1024}, itree=False, mkfs=("-b", "1024", "-N", "250000", "-I", "128", "-G", "64"),
    size="192M", cost=40, limit=900,
)(cold)  # fmt: skip
