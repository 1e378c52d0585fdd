# SPDX-License-Identifier: GPL-2.0-only
"""Renames on a full volume or at quota succeed wherever they do in a directory without a tree."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random

from kt.guest import Guest
from kt.itree_ioctl import BUILD, CHECK, DROP, itree
from kt.registry import case
from kt.space import leave, no_reserve

EXCHANGE, WHITEOUT = 2, 4  # renameat2()
LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
TESTER = 1000  # whose quota it is
NAMES = 4000  # of a spool
STORM = 8000  # renames over existing names with no block left
STEP = 100  # renames of each kind with some blocks left
MOST = 12  # at most this many blocks
ROOM = 300  # blocks that building trees may take


def rename(old: str, new: str, flags: int = 0) -> int:
    """0 or the errno."""
    if LIBC.renameat2(AT_FDCWD, old.encode(), AT_FDCWD, new.encode(), flags):
        return ctypes.get_errno()
    return 0


class Spools:
    """`spool` has a tree, `plain` the same names and none; `new` is where messages come from."""

    def __init__(self, g: Guest):
        self.g = g
        self.rng = random.Random(27)
        self.names: dict[str, list[str]] = {}
        self.refused: dict[str, int] = {}
        self.builds = 0

    def fill(self) -> None:
        for spool in ("new", "spool", "plain"):
            count = STORM + NAMES if spool == "new" else NAMES
            self.names[spool] = [f"{number:064}" for number in range(count)]
            os.mkdir(self.g.path(spool))
            for name in self.names[spool]:
                os.mknod(f"{self.g.path(spool)}/{name}")
            os.chown(self.g.path(spool), TESTER, TESTER)
            self.g.want_tree(self.g.path(spool))
        itree(self.g.path("plain"), DROP)

    def build(self) -> None:
        """Rebuild, packed, the trees that a rename has dropped."""
        for spool in ("new", "spool"):
            if not self.g.has_tree(self.g.path(spool)):
                itree(self.g.path(spool), BUILD)
                self.builds += 1

    def must(self, kind: str, old: str, new: str, flags: int = 0) -> None:
        """Check a rename for which stock ext4 needs no space."""
        err = rename(self.g.path(old), self.g.path(new), flags)
        self.g.stats[kind] = self.g.stats.get(kind, 0) + 1
        if err:
            what = f"{kind}: {os.strerror(err)}"
            self.refused[what] = self.refused.get(what, 0) + 1

    def some(self, spool: str) -> str:
        return f"{spool}/{self.rng.choice(self.names[spool])}"

    def over(self, count: int) -> None:
        for _ in range(count):
            self.must("over", f"new/{self.names['new'].pop()}", self.some("spool"))

    def exchange(self, count: int) -> None:
        for _ in range(count):
            self.must("exchange", self.some("spool"), self.some("spool"), EXCHANGE)
            self.must("exchange_across", self.some("new"), self.some("spool"), EXCHANGE)

    def whiteout(self, count: int) -> None:
        """Like overlayfs when it deletes a lower file: both names are there before and afterwards."""
        for _ in range(count):
            one, other = self.rng.sample(self.names["spool"], 2)
            self.must("whiteout", f"spool/{one}", f"spool/{other}", WHITEOUT)

    def flag(self, count: int) -> None:
        """Rename messages; if a leaf of the htree is full, that fails in both spools."""
        for at in self.rng.sample(range(NAMES), count):
            old = self.names["spool"][at]
            new = old[:64] + (":2,S" if len(old) == 64 else "")
            got = {x: rename(self.g.path(f"{x}/{old}"), self.g.path(f"{x}/{new}")) for x in ("plain", "spool")}
            self.g.stats["flags"] = self.g.stats.get("flags", 0) + 1
            self.g.stats["flags_refused"] = self.g.stats.get("flags_refused", 0) + bool(got["plain"])
            self.g.equal(got["spool"], got["plain"], f"errno with a tree and without, of {old} to {new}")
            if got["spool"] != got["plain"]:
                raise AssertionError("the spools are no longer alike")
            if not got["spool"]:
                self.names["spool"][at] = self.names["plain"][at] = new

    def create(self, count: int) -> None:
        """With noitree, which is like stock ext4, creates fail where they do without a tree."""
        refused = 0
        for number in range(count):
            name, got = f"created-{number * 7919:056}", {}
            for spool in ("plain", "spool"):
                try:
                    os.mknod(self.g.path(f"{spool}/{name}"))
                    self.names[spool].append(name)
                    got[spool] = 0
                except OSError as err:
                    got[spool] = err.errno
            self.g.equal(got["spool"], got["plain"], f"errno with a tree and without, of creating {name}")
            if got["spool"] != got["plain"]:
                return
            refused += bool(got["plain"])
        self.g.stats.update(creates=count, creates_refused=refused)
        self.g.want(0 < refused < count, f"{refused} of {count} creates failed")

    def check(self) -> None:
        """All names are there, and each tree has them."""
        for spool, names in self.names.items():
            wrong = {x for x, _ in self.g.names(spool)} ^ set(names)
            self.g.want(not wrong, f"{len(wrong)} names missing and too many in {spool}: {sorted(wrong)[:4]}")
            if self.g.has_tree(self.g.path(spool)):
                found = itree(self.g.path(spool), CHECK)
                self.g.equal((found.missing, found.extra), (0, 0), f"keys missing and too many in {spool}")


@contextlib.contextmanager
def no_more_than(g: Guest, ballast: int, blocks: int):
    """Context: this many blocks are left, on the volume or of the tester's quota."""
    if g.p["mode"] == "enospc":
        leave(g, ballast, blocks)
        g.want(os.statvfs(g.mnt).f_bfree <= blocks + 1, f"{os.statvfs(g.mnt).f_bfree} blocks left, wanted {blocks}")
        yield
        size = os.fstat(ballast).st_size
        os.ftruncate(ballast, size - ROOM * os.statvfs(g.mnt).f_bsize)
        os.sync()
        return
    os.sync()
    report = g.run("repquota", "-n", "-u", g.mnt).stdout
    used = next(int(x.split()[2]) for x in report.splitlines() if x.startswith(f"#{TESTER}"))
    limit = used + blocks * os.statvfs(g.mnt).f_bsize // 1024
    g.run("setquota", "-u", TESTER, 0, limit, 0, 0, g.mnt)
    os.setegid(TESTER)
    os.seteuid(TESTER)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        g.run("setquota", "-u", TESTER, 0, 0, 0, 0, g.mnt)


def renames(g: Guest) -> None:
    quota = g.p["mode"] == "edquot"
    g.mount("usrquota" if quota else "")
    no_reserve(g)
    spools = Spools(g)
    spools.fill()
    with open(g.path("ballast"), "w+b") as ballast:
        with no_more_than(g, ballast.fileno(), 0):
            spools.over(STORM)
        spools.check()
        for left in range(MOST + 1):
            spools.build()
            with no_more_than(g, ballast.fileno(), left):
                if not left:
                    spools.flag(NAMES // 2)
                spools.over(STEP)
                spools.exchange(STEP)
                if not quota:  # a whiteout is a device: root's
                    spools.whiteout(STEP)
            spools.check()
        spools.build()
        g.remount("noitree")
        with no_more_than(g, ballast.fileno(), 0):
            spools.create(NAMES // 2)
        spools.check()
        # e2fsck takes the blocks of a tree that has been dropped for a finding.
        spools.build()
    g.equal(spools.refused, {}, "renames that failed")
    drops = g.counter("drops") - 1  # that of the spool without a tree
    g.stats.update(drops=drops, builds=spools.builds)
    g.want(g.stats["flags_refused"] < g.stats["flags"], "no message got another name")
    g.want(drops > 0, "no tree ever lacked a node: nothing has been tried")
    log = g.log()
    g.want("itree dropped: no space" in log, "the log does not tell of a tree that is dropped")
    g.want("EXT4-fs error" not in log, "the kernel complains: " + log[-300:])


for _mode, _bs, _features in (
    ("enospc", 1024, "^resize_inode"), ("enospc", 4096, "^resize_inode"), ("edquot", 1024, "^resize_inode,quota"),
):  # fmt: skip
    case(
        f"reader-space-{_mode}-{_bs // 1024}k", "space", {"mode": _mode}, features=_features, size="96M", cost=40,
        mkfs=("-b", str(_bs), "-m", "0", "-N", "32000"), limit=600,
    )(renames)  # fmt: skip
