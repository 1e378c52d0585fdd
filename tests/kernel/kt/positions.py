# SPDX-License-Identifier: GPL-2.0-only
"""Readers that keep a position while names get other inodes: NFS clients."""

from __future__ import annotations

import collections
import os
import random

from kt.guest import Guest
from kt.neighbours import Server
from kt.registry import case
from kt.resume import Listing


class Storm:
    """Gives names that a reader has not returned yet other, lower inodes, as `mv` onto them does."""

    def __init__(self, g: Guest, n: int, spare: int):
        self.where, self.pool, self.random = g.path("d"), g.path("pool"), random.Random(n)
        for d in (self.pool, self.where):
            os.mkdir(d)
        # The pool comes first: its inode numbers are lower than those of the directory.
        self.spare = [os.path.join(self.pool, str(i)) for i in range(spare)]
        for path in self.spare:
            os.mknod(path)
        self.names = [f"old-{i * 7919 % 1000003}" for i in range(n)]
        for name in self.names:
            os.mknod(os.path.join(self.where, name))
        self.replaced: set[str] = set()

    def blow(self, seen: list[str], count: int) -> None:
        left = sorted(set(self.names) - set(seen) - self.replaced)
        for name in self.random.sample(left, min(count, len(left), len(self.spare))):
            os.rename(self.spare.pop(), os.path.join(self.where, name))
            self.replaced.add(name)

    def judge(self, g: Guest, got: list[str], what: str, most: int = 1) -> None:
        """Each name, and none more often than `most` times; those that kept their inode once."""
        times = collections.Counter(got)
        missed = [n for n in self.names if not times[n]]
        lost = len(self.replaced & set(missed))
        g.equal(len(missed), 0, f"{what}: names missed, {lost} of them of the {len(self.replaced)} replaced")
        often = [n for n in self.names if times[n] > (most if n in self.replaced else 1)]
        g.equal(often[:3], [], f"{what}: {len(often)} names too often")


class Stream(Listing):
    """A listing that keeps the directory open."""

    def __init__(self, where: str, buf: int = 4000):
        super().__init__(where, buf)
        self.fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)

    def call(self) -> bool:
        return self.read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


def nfs_storm(g: Guest) -> None:
    """Names that the server renames over between two READDIRs are returned all the same, each name once."""
    n = g.p["full" if g.job["full"] else "n"]
    g.mount()
    server = Server(g)
    try:
        for version in ("3", "4.2"):
            for d in ("d", "pool"):
                g.run("rm", "-rf", g.path(d))
            storm = Storm(g, n, n // 10)
            at = server.mount(version, "rsize=4096")
            try:
                one = Stream(str(at / "d"), 2000)
                while one.call() and len(one.names) < 4 * n:
                    storm.blow(one.names, n // 100)
                one.close()
                storm.judge(g, one.names, f"NFS {version}")
                g.want(len(storm.replaced) >= n // 20, f"only {len(storm.replaced)} names replaced")
                g.stats["replaced"] = g.stats.get("replaced", 0) + len(storm.replaced)
            finally:
                g.run("umount", "-l", at, check=False)
    finally:
        server.stop()


def nfs_create(g: Guest) -> None:
    """A client that creates a file for each name that it reads comes to an end."""
    n = g.p["n"]
    g.mount()
    Storm(g, n, 0)
    server = Server(g)
    try:
        for version in ("3", "4.2"):
            at = server.mount(version, "rsize=4096")
            one = Stream(str(at / "d"), 2000)
            start = len(os.listdir(g.path("d")))
            try:
                done = 0
                while one.call() and len(one.names) < 6 * start:
                    for name in one.names[done:]:
                        os.mknod(at / "d" / f"new-{version}-{done}-{name[:8]}")
                        done += 1
                g.want(len(one.names) < 6 * start, f"NFS {version}: {len(one.names)} names of {start}, and no end")
                g.stats["read"] = g.stats.get("read", 0) + len(one.names)
                g.want(len(set(one.names)) == len(one.names), f"NFS {version}: names twice")
            finally:
                one.close()
                g.run("umount", "-l", at, check=False)
    finally:
        server.stop()


_NFS = {"size": "1G", "mkfs": ("-b", "4096", "-N", "300000"), "limit": 1500}
case("reader-nfs-storm", "open", {"n": 5_000, "full": 50_000}, cost=60, **_NFS)(nfs_storm)
case("reader-nfs-create", "open", {"n": 2_000}, cost=60, **_NFS)(nfs_create)
