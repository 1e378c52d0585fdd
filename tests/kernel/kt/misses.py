# SPDX-License-Identifier: GPL-2.0-only
"""Look-ups and creates in a cold directory with a tree read one request each, as without clusters."""

from __future__ import annotations

import os
import pathlib
import random

from kt import itree_ioctl as io
from kt.guest import QUIET, Guest
from kt.online import feature_on
from kt.registry import case

LOOKS, CREATES = 1500, 300
NOISE = 3  # requests: the journal's, now and then
TREE = 6  # of creates: the root of the tree, a leaf
ITABLE = 32  # blocks of an inode table that ext4 reads together, from where an inode is: not always from the same one


class Reads:
    """Of the disk since then: requests, bios (a limit of io.max counts those), blocks."""

    def __init__(self, g: Guest):
        self.g, self.before = g, self.now(g)

    @staticmethod
    def now(g: Guest) -> list[int]:
        requests, merged, sectors = pathlib.Path(f"/sys/block/{g.disk}/stat").read_text().split()[:3]
        return [int(requests), int(requests) + int(merged), int(sectors) * 512 // g.p["bs"]]

    def since(self) -> dict[str, int]:
        found = (now - then for now, then in zip(self.now(self.g), self.before, strict=True))
        return dict(zip(("requests", "bios", "blocks"), found, strict=True))


def crowd(g: Guest) -> pathlib.Path:
    """Make a file that fills the volume except for single blocks."""
    ballast = pathlib.Path(g.path("ballast"))
    size = os.statvfs(g.mnt).f_bfree * g.p["bs"] * 9 // 10
    with open(ballast, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, size)
    g.run("fallocate", "-l", os.statvfs(g.mnt).f_bavail * g.p["bs"], g.path("rest"), check=False)
    for at in range(0, size, size // (2 * g.p["n"] * 80 // g.p["bs"])):
        g.run("fallocate", "-p", "-o", at // g.p["bs"] * g.p["bs"], "-l", g.p["bs"], ballast)
    os.sync()
    return ballast


def fill(g: Guest) -> None:
    """`pieces` has grown where no two blocks beside each other were free, `whole` where there was room."""
    for name in ("pieces", "whole"):
        os.mkdir(g.path(name))
        ballast = crowd(g) if name == "pieces" else None
        for number in range(g.p["n"]):
            os.mknod(f"{g.path(name)}/{number:08}.M{number * 7919 % 1000003}P{number}.mail.example.org")
        if ballast:
            ballast.unlink()
            os.unlink(g.path("rest"))
            os.sync()
        # What is created and measured below splits no leaf any more.
        new = paths(g, name)["creates"]
        for path in new:
            os.mknod(path)
        for path in new:
            os.unlink(path)


def paths(g: Guest, name: str) -> dict[str, list[str]]:
    d, numbers = g.path(name), random.Random(5).sample(range(g.p["n"]), LOOKS)
    return {
        "look-ups of names": [f"{d}/{x:08}.M{x * 7919 % 1000003}P{x}.mail.example.org" for x in numbers],
        "look-ups of none": [f"{d}/none-{x:032}" for x in numbers],
        "creates": [f"{d}/new-{x:032}" for x in numbers[:CREATES]],
    }


def measure(g: Guest, name: str, options: str) -> dict[str, dict[str, int]]:
    """Requests of each kind of work in a cold directory; afterwards the directory is unchanged."""
    found = {}
    for work, some in paths(g, name).items():
        g.umount()
        g.settle()
        g.mount(f"{QUIET},{options}")
        os.stat(g.path(name))
        reads = Reads(g)
        for path in some:
            if work == "creates":
                os.mknod(path)
            else:
                g.want(os.path.lexists(path) == (work == "look-ups of names"), f"look-up of {path}")
        found[work] = reads.since()
        for path in some if work == "creates" else ():
            os.unlink(path)
    return found


def compare(g: Guest, name: str, options: str, found: dict[str, dict[str, int]], stock: dict[str, dict[str, int]]):
    """No more requests than without the feature, nor bios."""
    for work, mine in found.items():
        text = f"{name}, {work}, {options}: {mine}, without the feature {stock[work]}"
        more = TREE if work == "creates" else 0
        g.want(mine["requests"] <= stock[work]["requests"] + NOISE + more, text)
        g.want(mine["bios"] <= stock[work]["bios"] + ITABLE + more, text)
        if work == "creates" or options == "noitree":
            g.want(mine["blocks"] <= stock[work]["blocks"] + ITABLE + more, text)
        elif name == "whole":
            g.want(mine["requests"] < stock[work]["requests"] / 3, text)
        g.stats.update({f"{name} {work} {options} {kind}": count for kind, count in mine.items()})


def misses(g: Guest) -> None:
    g.mount(QUIET)
    fill(g)
    stock = {name: measure(g, name, "noitree") for name in ("pieces", "whole")}
    feature_on(g)
    for name in stock:
        pieces = int(g.run("filefrag", g.path(name)).stdout.split(":")[1].split()[0])
        g.want(pieces > 300 if name == "pieces" else pieces < 60, f"{name} lies in {pieces} pieces")
        io.itree(g.path(name), io.BUILD)
        for options in ("noitree", "itree"):
            compare(g, name, options, measure(g, name, options), stock[name])
        g.want_tree(g.path(name))


case(
    "reader-miss", "scans", {"bs": 4096, "n": 24000}, itree=False, features="^resize_inode", size="256M", cost=60,
    mkfs=("-b", "4096", "-N", "60000", "-I", "128", "-m", "0"),
)(misses)
