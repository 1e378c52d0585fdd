# SPDX-License-Identifier: GPL-2.0-only
"""Readers that reopen a directory for each call, like file servers in user space, while its order changes."""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Callable

from kt import itree_ioctl as io
from kt.guest import Guest
from kt.online import e4itree, feature_on, mount, without_tree
from kt.registry import case

GETDENTS64, RENAMEAT2 = 217, 316  # x86-64
AT_FDCWD, RENAME_EXCHANGE = -100, 2
LIBC = ctypes.CDLL(None, use_errno=True)


def exchange(a: str, b: str) -> None:
    if LIBC.syscall(RENAMEAT2, AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


class Listing:
    """The listing of one client; every call is an open, a seek and a getdents.

    lost: how many of the lowest bits of a position the server needs for itself, as GlusterFS does.
    """

    def __init__(self, where: str, buf: int = 4000, lost: int = 0):
        self.where, self.buf, self.lost = where, ctypes.create_string_buffer(buf), lost
        self.names: list[str] = []
        self.pos = 0

    def read(self, fd: int) -> bool:
        """One getdents; False at the end."""
        got = LIBC.syscall(GETDENTS64, fd, self.buf, len(self.buf))
        if got < 0:
            raise OSError(ctypes.get_errno(), "getdents64")
        at = 0
        while at < got:
            _ino, self.pos, size, _type = struct.unpack_from("<QqHB", self.buf.raw, at)
            name = self.buf.raw[at + 19 : at + size].split(b"\0", 1)[0]
            self.names.append(os.fsdecode(name))
            at += size
        return bool(got)

    def call(self) -> bool:
        """False at the end."""
        fd = os.open(self.where, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.lseek(fd, self.pos >> self.lost << self.lost, os.SEEK_SET)
            return self.read(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Nothing is open between two calls."""

    def some(self, names: int) -> None:
        while len(self.names) < names and self.call():
            pass

    def rest(self, most: int) -> None:
        while self.call() and len(self.names) <= most:
            pass

    def next_name(self) -> str:
        """The name at the position."""
        peek = Listing(self.where)
        peek.pos = self.pos
        peek.call()
        return peek.names[0]


def ctime(d: str) -> int:
    return os.stat(d).st_ctime_ns


def switch(g: Guest, change: Callable, twice: bool = False, delete: bool = False) -> bool:
    """List two fifths, change the order, list the rest: every name, and unless `twice` is allowed each once.

    delete: the name at the position goes before the change. Returns whether the directory has another ctime.
    """
    d = g.path()
    wanted = {".", "..", *os.listdir(d)}
    one = Listing(d)
    one.some(len(wanted) * 2 // 5)
    gone = one.next_name() if delete else ""
    if gone:
        os.unlink(os.path.join(d, gone))
    time.sleep(0.05)  # more than a clock tick, so that the ctime changes
    before = ctime(d)
    change()
    one.rest(4 * len(wanted))
    missed = wanted - set(one.names) - {gone}
    again = len(one.names) - len(set(one.names))
    g.equal((len(missed), set(one.names) - wanted), (0, set()), "names missed, names that are not there")
    if not twice:
        g.equal(again, 0, "names returned twice")
    one = Listing(d)
    one.rest(4 * len(wanted))
    g.equal(sorted(one.names), sorted(wanted - {gone}), "names of a listing from the start")
    return ctime(d) != before


def follow(g: Guest) -> None:
    """The tree is built, rebuilt, dropped or hidden, or the feature set, between two calls of a listing."""
    d = without_tree(g, g.p["n"])
    for delete in (False, True):
        g.want(switch(g, lambda: e4itree(g, "build", d), delete=delete), "no new ctime after a build")
        g.want_tree(d)
        switch(g, lambda: io.itree(d, io.BUILD, io.FORCE), delete=delete)
        switch(g, lambda: g.again("noitree"), twice=True)
        # From hash order under that option back to the tree.
        switch(g, lambda: mount(g), delete=delete)
        g.want(switch(g, lambda: e4itree(g, "drop", d), twice=True, delete=delete), "no new ctime after a drop")
        g.equal(g.has_tree(d), False, "itree flag after drop")
    e4itree(g, "build", d)


def feature(g: Guest) -> None:
    """The feature is set in the middle of a client's listing: hash order becomes sorted, or gets a tree."""
    g.mount()
    d = g.path()
    os.mkdir(d)
    g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    # The kernel does not know earlier positions: it starts over, in hash order.
    switch(g, lambda: feature_on(g), twice=True)

    def packed() -> None:
        g.umount()
        g.run(g.tool("e2fsck"), "-fyD", g.dev, check=False)
        mount(g)

    # Without the feature's order again, and then with the trees of e2fsck -fD.
    g.again("noitree")
    switch(g, packed)
    # Forget that the directory was opened anew for each call.
    g.again()
    g.listing()


def _case(id_: str, func: Callable, n: int, features: str = "", bs: int = 4096, mkfs=(), **params) -> None:
    case(f"resume-{id_}", "online", {"n": n, **params}, itree=False, features=features, mkfs=("-b", str(bs), *mkfs),
         cost=15)(func)  # fmt: skip


_case("4k", follow, 20000)
_case("1k", follow, 5000, bs=1024)
_case("casefold", follow, 6000, "casefold", casefold=True, names="ascii", mkfs=("-E", "encoding=utf8"))
_case("feature", feature, 20000)
_case("feature-small", feature, 300)
_case("feature-1k", feature, 3000, bs=1024)
