# SPDX-License-Identifier: GPL-2.0-only
"""Checksums of nodes, computed when a transaction commits: correct on a frozen disk, and in no other block."""

from __future__ import annotations

import os
import random

from kt.guest import Guest
from kt.registry import case

NODE = (b"ITRE", b"ITRF")  # what nodes begin with, free ones too


def looks_like_node(bs: int, magic: bytes, number: int) -> bytes:
    """A block of a file that looks like a node without its checksum."""
    return magic + bytes(4) + (number.to_bytes(4, "little") * (bs // 4))[: bs - 8]


class Volume:
    """Directories with trees and files with data in the journal that take each other's blocks."""

    def __init__(self, g: Guest):
        self.g = g
        self.rnd = random.Random(g.p["seed"])
        self.files: dict[str, bytes] = {}
        self.serial = 0
        self.trees = 0

    def path(self, name: str) -> str:
        return os.path.join(self.g.mnt, name)

    def directory(self, names: int) -> None:
        """Made, changed and removed: of this, none, some or all is in one transaction."""
        d = self.path(f"d{self.serial}")
        self.serial += 1
        os.mkdir(d)
        for number in range(names):
            os.mknod(f"{d}/{self.rnd.randrange(10**9):0120d}{number}", 0o644)
        self.trees += self.g.has_tree(d)
        self.perhaps_sync()
        for name in os.listdir(d)[:: self.rnd.choice((1, 2, 5))]:
            os.unlink(f"{d}/{name}")
        self.perhaps_sync()
        for name in os.listdir(d):
            os.unlink(f"{d}/{name}")
        os.rmdir(d)

    def write(self, count: int) -> None:
        bs = self.g.p["bs"]
        for _ in range(count):
            name = self.path(f"f{self.serial}")
            self.serial += 1
            data = b"".join(looks_like_node(bs, self.rnd.choice(NODE), self.serial + n) for n in range(8))
            with open(name, "wb") as f:
                f.write(data)
            self.files[name] = data

    def forget(self, keep: int) -> None:
        while len(self.files) > keep:
            name = self.rnd.choice(list(self.files))
            del self.files[name]
            os.unlink(name)

    def perhaps_sync(self) -> None:
        if self.rnd.random() < 0.4:
            self.g.run("sync", "-f", self.g.mnt)

    def compare(self, when: str) -> None:
        for name, data in self.files.items():
            with open(name, "rb") as f:
                self.g.want(f.read() == data, f"{name} is not what was written, {when}")


def reuse(g: Guest) -> None:
    """Reuse blocks of freed nodes for data, directories and other directories' nodes, and back."""
    options = "data=journal" if g.p["journal_data"] else ""
    g.mount(options)
    v = Volume(g)
    for round_ in range(g.p["rounds"]):
        v.directory(v.rnd.randrange(200, 700))
        v.perhaps_sync()
        v.write(v.rnd.randrange(4, 40))
        v.perhaps_sync()
        v.forget(v.rnd.randrange(200))
        if round_ % 10 == 9:
            g.run("fsfreeze", "-f", g.mnt)
            try:
                copy = g.copy_frozen()
            finally:
                g.run("fsfreeze", "-u", g.mnt)
            g.want_clean(copy, f"the frozen disk, round {round_}")
    g.stats |= {"trees": v.trees, "files": len(v.files)}
    g.want(v.trees > g.p["rounds"] / 2, f"only {v.trees} directories had a tree")
    v.compare("before a mount")
    g.again(options)
    v.compare("after a mount")
    g.equal(g.counter("drops"), 0, "trees dropped")


for _bs, _size in ((1024, "16M"), (4096, "48M")):
    for _seed, _journal_data in enumerate((False, True)):
        case(
            f"checksums-{_bs >> 10}k" + ("-journal" if _journal_data else ""), "crash",
            {"bs": _bs, "seed": _seed, "journal_data": _journal_data, "rounds": 60},
            features="^resize_inode", mkfs=("-b", str(_bs), "-J", "size=4"), size=_size, cost=40,
        )(reuse)  # fmt: skip
