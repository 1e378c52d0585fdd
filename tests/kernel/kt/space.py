# SPDX-License-Identifier: GPL-2.0-only
"""No space or quota left, at every allocation point of changes to a directory."""

from __future__ import annotations

import os
import re

from kt.guest import Guest
from kt.registry import case


def no_reserve(g: Guest) -> None:
    """Remove the reserve, so that exactly the blocks we leave are free."""
    (g.sysfs / g.disk / "reserved_clusters").write_text("0")


def space(g: Guest) -> None:
    g.mount("usrquota" if g.p["mode"] == "edquot" else "")
    no_reserve(g)
    stats = g.t(
        "space", "--mode", g.p["mode"], "--dir", g.mnt, "--aux", g.dev, "--model", g.model(), "--n", g.p.get("k", 30),
        "--m", g.p["start"], "--seed", g.p["seed"], "--names", g.p.get("names", "mixed"), *g.order, timeout=600,
    )  # fmt: skip
    for op in ("create", "link", "rename", "mkdir"):
        g.want(stats.get(f"failed_{op}", 0) > 0, f"{op} never ran out: {stats}")
    count = g.counters()
    g.equal(count["drops"], stats["built"], "trees dropped, of those built again")
    g.want(count["splits"] > 0, f"no node was split: {count}")
    log = re.sub(r"EXT4-fs warning .*: (itree dropped: no space|Directory index full).*", "", g.log())
    g.want("EXT4-fs error" not in log and "EXT4-fs warning" not in log, "the kernel complains: " + log[-300:])
    # With room again everything works.
    os.unlink(g.path("ballast"))
    if g.p["mode"] == "edquot":
        g.again()
    for i in (0, 1):
        g.t("fill", "--dir", g.path(f"d{i}"), "--model", g.model() + f".{i}", "--n", g.p["start"] + 500, "--seed", 77)
    g.again()
    for i in (0, 1):
        g.listing(g.path(f"d{i}"), g.model() + f".{i}")


def _row(id_, mode, seed, bs, start, size, features="", cost=40, **more):
    case(
        f"{mode}-{id_}", "space", {"mode": mode, "seed": seed, "start": start, **more},
        features=features, mkfs=("-b", str(bs), "-m", "0", "-N", "16000"), size=size, cost=cost, limit=700,
    )(space)  # fmt: skip


_row("1k", "enospc", 1, 1024, 900, "24M", "^resize_inode")
_row("1k-names", "enospc", 2, 1024, 3000, "24M", "^resize_inode", names="skew")
_row("4k", "enospc", 3, 4096, 1500, "64M", "^resize_inode")
_row("1k-nojournal", "enospc", 4, 1024, 900, "24M", "^resize_inode,^has_journal,^metadata_csum")
_row("1k-long", "enospc", 5, 1024, 600, "24M", "^resize_inode", names="max")
_row("1k", "edquot", 6, 1024, 900, "32M", "^resize_inode,quota", cost=20)
_row("4k", "edquot", 7, 4096, 1500, "64M", "^resize_inode,quota", cost=20)


def leave(g: Guest, ballast: int, want: int) -> None:
    """Leave exactly `want` free blocks, or as near as allocation allows."""
    bsize = os.statvfs(g.mnt).f_bsize
    chunk = 1 << 20
    for _ in range(400):
        os.sync()
        free = os.statvfs(g.mnt).f_bfree
        size = os.fstat(ballast).st_size
        if free == want:
            return
        try:
            if free > want:
                chunk = max(1, min(chunk, free - want))
                os.posix_fallocate(ballast, size, chunk * bsize)
            else:
                os.ftruncate(ballast, size - (want - free) * bsize)
        except OSError:
            if chunk == 1:
                return
            chunk //= 2


def build_without_room(g: Guest) -> None:
    """A directory reaches 16 blocks with few blocks left: it gets its tree or works without."""
    g.mount()
    no_reserve(g)
    bsize = os.statvfs(g.mnt).f_bsize
    ballast = os.open(g.path("ballast"), os.O_CREAT | os.O_RDWR)
    dirs = (*range(13), 60, 200, 600)
    for k in dirs:
        os.mkdir(g.path(f"b{k}"))
        number = 0
        while os.stat(g.path(f"b{k}")).st_size < 15 * bsize:
            os.mknod(g.path(f"b{k}/{number:0200d}"))
            number += 1
        g.want(not g.has_tree(g.path(f"b{k}")), "a tree below 16 blocks")
    os.posix_fallocate(ballast, 0, 1 << 20)
    refused = trees = 0
    left = {}
    for k in dirs:
        leave(g, ballast, k)
        left[k] = os.statvfs(g.mnt).f_bfree
        d, number, bare = g.path(f"b{k}"), 10**6, 0
        while os.stat(d).st_size < 16 * bsize and number < 10**6 + 400:
            try:
                os.mknod(f"{d}/{number:0200d}")
            except OSError as err:
                g.equal(err.errno, 28, f"errno with {k} blocks left")
                refused += 1
                bare += 1
                if bare > 5:
                    break
            number += 1
        trees += g.has_tree(d)
        if k >= 600:
            g.want_tree(d)
        g.t("self", "--dir", d, *g.order)
    g.stats.update(refused=refused, trees=trees)
    g.want(refused > 0, f"space never ran out, blocks left: {left}")
    g.want(trees > 0, "no directory got its tree")
    log = g.log()
    g.want("EXT4-fs error" not in log, "the kernel complains: " + log[-300:])
    os.close(ballast)
    os.unlink(g.path("ballast"))
    for k in dirs:
        for number in range(60):
            os.mknod(g.path(f"b{k}/after{number:0150d}"))
        g.t("self", "--dir", g.path(f"b{k}"), *g.order)
    g.again()
    for k in dirs:
        g.t("self", "--dir", g.path(f"b{k}"), *g.order)
        # Directories left without a tree get theirs now.
        os.mknod(g.path(f"b{k}/last"))
        g.want_tree(g.path(f"b{k}"))
        g.t("self", "--dir", g.path(f"b{k}"), *g.order)


for _bs, _size in ((1024, "24M"), (4096, "64M")):
    case(
        f"enospc-build-{_bs}", "space", {}, features="^resize_inode",
        mkfs=("-b", str(_bs), "-m", "0", "-N", "8000"), size=_size, cost=20,
    )(build_without_room)  # fmt: skip
