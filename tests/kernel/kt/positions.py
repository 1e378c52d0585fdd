# SPDX-License-Identifier: GPL-2.0-only
"""Readers that resume at a position while names change inodes: NFS clients, user space file servers, slow programs."""

from __future__ import annotations

import collections
import itertools
import os
import random

from kt.guest import Guest
from kt.memory import read_since, read_so_far
from kt.neighbours import Server
from kt.registry import case
from kt.resume import Listing, exchange

ENTRY = 32  # bytes that getdents returns for a name of ours


class Storm:
    """Gives lower inodes to names that a reader has not seen yet, like `mv` onto them."""

    def __init__(self, g: Guest, n: int, spare: int, name: str = "d", top: str = ""):
        top = top or str(g.mnt)
        self.where, self.pool = os.path.join(top, name), os.path.join(top, f"{name}-pool")
        self.random = random.Random(n)
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

    def replace(self, name: str) -> None:
        os.rename(self.spare.pop(), os.path.join(self.where, name))

    def blow(self, seen: list[str], count: int) -> None:
        """Rename files over names that have not been seen yet."""
        if not self.spare:
            return
        left = sorted(set(self.names) - set(seen) - self.replaced)
        for name in self.random.sample(left, min(count, len(left), len(self.spare))):
            self.replace(name)
            self.replaced.add(name)

    def swap(self, seen: list[str], count: int) -> None:
        """Exchange names that have been seen with names that have not, while there are both."""
        behind = sorted(set(seen) & set(self.names)) or self.names
        ahead = sorted(set(self.names) - set(seen)) or self.names
        for _ in range(count):
            pair = self.random.choice(behind), self.random.choice(ahead)
            exchange(*(os.path.join(self.where, name) for name in pair))
            self.replaced.update(pair)

    def count(self, got: list[str], most: int = 1, others: int = 1) -> tuple[list[str], list[str]]:
        """The names that are missed, and those that come more often than they may."""
        times = collections.Counter(got)
        missed = [n for n in self.names if not times[n]]
        return missed, [n for n in self.names if times[n] > (most if n in self.replaced else others)]

    def judge(self, g: Guest, got: list[str], what: str, most: int = 1, others: int = 1) -> None:
        """Check that no name is missed or comes more than `most` times (`others` times if it has kept its inode)."""
        missed, often = self.count(got, most, others)
        lost = len(self.replaced & set(missed))
        g.equal(len(missed), 0, f"{what}: names missed, {lost} of them of the {len(self.replaced)} replaced")
        g.equal(often[:3], [], f"{what}: {len(often)} names of {len(self.names)} too often")
        self.replaced.clear()


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
    """Names that the server renames over between two READDIRs are still returned, each once."""
    n = g.p["full" if g.job["full"] else "n"]
    g.mount()
    server = Server(g)
    try:
        for version in ("3", "4.2"):
            for d in ("d", "d-pool"):
                g.run("rm", "-rf", g.path(d))
            storm = Storm(g, n, n // 10)
            at = server.mount(version, "rsize=4096")
            try:
                one = Stream(str(at / "d"), 2000)
                while one.call() and len(one.names) < 4 * n:
                    storm.blow(one.names, n // 100)
                one.close()
                g.want(len(storm.replaced) >= n // 20, f"only {len(storm.replaced)} names replaced")
                g.stats["replaced"] = g.stats.get("replaced", 0) + len(storm.replaced)
                storm.judge(g, one.names, f"NFS {version}")
            finally:
                g.run("umount", "-l", at, check=False)
    finally:
        server.stop()


def nfs_create(g: Guest) -> None:
    """A listing ends although the client creates a file for each name it reads."""
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


def nfs_sweep(g: Guest) -> None:
    """READDIRPLUS of a cold directory reads it and the inode tables in sweeps, although names come in hash order."""
    n, spread = g.p["n"], g.p["spread"]
    g.mount()
    storm = Storm(g, spread * n, 0)
    # Where it is spread over the tables, most inodes between those that it needs are not the directory's.
    for number, name in enumerate(storm.names):
        if number % spread:
            os.rename(os.path.join(storm.where, name), os.path.join(storm.pool, name))
    names = set(storm.names[::spread])
    g.again()
    server = Server(g)

    def requests(where) -> int:
        g.settle()
        before = read_so_far(g)
        with os.scandir(where) as it:
            found = {e.name: e.stat(follow_symlinks=False) for e in it}
        g.equal(set(found), names, f"names of {where}")
        return read_since(g, before)[0]

    def over_nfs(version: str) -> int:
        # Few names a reply: the sweep is for those that follow.
        at = server.mount(version, "rsize=4096")
        try:
            return requests(at / "d")
        finally:
            g.run("umount", "-l", at, check=False)

    try:
        local = requests(storm.where)
        three, four = over_nfs("3"), over_nfs("4.2")
        g.remount("noitree")
        stock = over_nfs("3")
        g.stats |= {"local": local, "nfs3": three, "nfs4": four, "noitree": stock}
        summary = f"requests over NFS 3 {three}, 4.2 {four}, noitree {stock}, local {local}"
        # The first replies come before the kernel knows that the reader needs inodes.
        g.want(max(three, four) <= 1.5 * local + 64 and max(three, four) < 0.75 * stock, summary)
    finally:
        server.stop()


def anew(g: Guest) -> None:
    """A program that reopens the directory for every few names, like file servers in user space."""
    n = g.p["full" if g.job["full"] else "n"]
    buf = ENTRY * min(200, n // 8)
    every = max(n * ENTRY // buf // 4, 1)
    g.mount()
    storm = Storm(g, n, n)

    def listing(what: str, most: int, others: int = 1, storms: bool = True, restart: bool = False,
                lost: int = 0) -> None:  # fmt: skip
        one = Listing(storm.where, buf, lost)
        for call in itertools.count(1):
            if not one.call() or len(one.names) > 4 * n:
                break
            if storms:
                storm.blow(one.names, n // 100 + 1)
            if restart and call == every:
                g.again()
        g.want(call > 5, f"{what}: only {call} calls")
        g.stats["replaced"] = g.stats.get("replaced", 0) + len(storm.replaced)
        g.want(not storms or len(storm.replaced) > 4, f"{what}: only {len(storm.replaced)} names replaced")
        storm.judge(g, one.names, what, most, others)

    # Each mount forgets how the directory was read before.
    listing("at rest", 1, storms=False)
    g.again()
    listing("storm", 2)
    listing("storm, the directory is known to be opened anew", 1)
    g.again()
    listing("at rest, mounted again in the middle", 1, 2, storms=False, restart=True)
    g.again()
    listing("storm, mounted again in the middle", 2, 2, restart=True)
    # GlusterFS keeps the number of a brick in the lowest bits: two bricks take two of them.
    for lost in (2, 9):
        g.again()
        listing(f"at rest, {lost} bits lost", 1, storms=False, lost=lost)
        listing(f"storm, {lost} bits lost", 2, lost=lost)
        g.again("noitree")
        listing(f"noitree, {lost} bits lost", 2, 2, storms=False, lost=lost)


def exchanges(g: Guest) -> None:
    """RENAME_EXCHANGE of names ahead with names behind: a slow reader ends within two passes."""
    n = g.p["n"]
    g.mount()
    storm = Storm(g, n, 0)
    for number in range(2):
        one = Stream(storm.where, ENTRY * 20)
        while one.call() and len(one.names) < 6 * n:
            storm.swap(one.names, 30)
        one.close()
        g.want(len(one.names) <= 2 * (n + 2), f"{len(one.names)} names of {n}")
        g.stats["names"] = g.stats.get("names", 0) + len(one.names)
        storm.judge(g, one.names, f"listing {number}", 2)


def overflow(g: Guest) -> None:
    """If more names move than the kernel remembers, all names come again, once."""
    n = g.p["n"]
    g.mount()
    storm = Storm(g, n, 0)
    one = Stream(storm.where)
    one.call()
    for a, b in zip(storm.names[::2], reversed(storm.names[1::2]), strict=True):
        exchange(os.path.join(storm.where, a), os.path.join(storm.where, b))
    storm.replaced.update(storm.names)
    one.rest(4 * n)
    one.close()
    storm.judge(g, one.names, "after as many moves as names", 2)
    one = Stream(storm.where)
    one.rest(4 * n)
    one.close()
    storm.judge(g, one.names, "at rest", 1)


_NFS = {"size": "1G", "mkfs": ("-b", "4096", "-N", "300000"), "limit": 1500}
case("reader-nfs-storm", "open", {"n": 5_000, "full": 50_000}, cost=60, **_NFS)(nfs_storm)
case("reader-nfs-create", "open", {"n": 2_000}, cost=60, **_NFS)(nfs_create)
case("reader-nfs-sweep", "open", {"n": 5_000, "spread": 4, "bs": 4096}, cost=30, **_NFS)(nfs_sweep)
case(
    "reader-nfs-sweep-300000", "open", {"n": 300_000, "spread": 1, "bs": 4096}, cost=600,
    full="300,000 names over NFS take minutes", **(_NFS | {"mkfs": ("-b", "4096", "-N", "500000")}),
)(nfs_sweep)  # fmt: skip
for _n, _more in ((150, {}), (1_000, {}), (5_000, {"full": 50_000})):
    _params = {"n": _n, "full": _n, **_more}
    case(f"reader-anew-{_n}", "open", _params, size="512M", mkfs=("-b", "4096", "-N", "150000"), cost=15)(anew)
    case(f"reader-exchange-{_n}", "open", {"n": _n}, size="256M", mkfs=("-b", "4096"), cost=15)(exchanges)
case("reader-overflow", "open", {"n": 18_000}, size="256M", mkfs=("-b", "4096", "-N", "30000"), cost=15)(overflow)
