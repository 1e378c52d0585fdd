# SPDX-License-Identifier: GPL-2.0-only
"""Shutdown in the middle of work, then replay of the journal and of fast commits."""

from __future__ import annotations

import shutil

from kt.guest import Guest
from kt.registry import case

LOG = (
    r"EXT4-fs error \(device (?:vd|ubd)\w+\).*(?:shut down|Journal has aborted|Detected aborted journal)",
    r"EXT4-fs \((?:vd|ubd)\w+\): shut down",
)

# A stock 6.12 does not count the blocks that replay of a fast commit adds to
# a directory; e2fsck corrects that. Nothing else is allowed.
KNOWN = r"^Inode \d+, i_blocks is \d+, should be \d+"


def crash(g: Guest) -> None:
    dirs = range(2)
    common = ["--dir", g.mnt, "--model", g.model(), "--dirs", 2, "--names", g.p.get("names", "mixed")]
    g.mount()
    g.t("ops", *common, "--seed", g.p["seed"], "--plan", g.p["start"], "--n", 1000, "--m", 200, *g.order)
    for round_ in range(g.p.get("rounds", 6)):
        trees = [g.has_tree(g.path(f"d{i}")) for i in dirs]
        g.t("durable", *common, "--seed", g.p["seed"] * 100 + round_, "--n", g.p["steps"], "--percent", g.p["flags"])
        g.again()
        for i in dirs:
            d, m = g.path(f"d{i}"), g.model()
            # What was synced and not touched since is there; what is there is sound.
            g.listing(d, f"{m}.must.{i}", "--subset")
            g.t("lookup", "--dir", d, "--model", f"{m}.must.{i}")
            g.t("self", "--dir", d, "--out", f"{m}.{i}", *g.order)
            g.equal(g.has_tree(d), trees[i] or g.has_tree(d), f"round {round_}: itree flag of d{i} after replay")
            g.stats["trees"] = g.stats.get("trees", 0) + g.has_tree(d)
        # The file system works on, and is sound before it does.
        g.fsck(KNOWN if g.case.fast_commit and not g.both else "")
        g.mount()
        if g.fails:
            return
        for i in dirs:
            g.listing(g.path(f"d{i}"), f"{g.model()}.{i}")
    g.want(g.stats.get("trees", 0) > 0, "no directory ever had a tree")
    g.equal(g.counter("drops"), 0, "trees dropped")


def _row(id_: str, seed: int, features: str, bs: int, **more) -> None:
    case(
        f"crash-{id_}", "crash",
        {"seed": seed, "steps": 500, "start": "2500", "flags": 2, **more},
        features=features, mkfs=("-b", str(bs)), size="128M", allow=LOG, cost=45, limit=200,
    )(crash)  # fmt: skip


# With itrees: on volumes that have both features, where nothing may go into a fast commit.
_row("fastcommit-1k", 1, "fast_commit", 1024)
_row("fastcommit-4k", 2, "fast_commit", 4096)
_row("fastcommit-1k-grow", 3, "fast_commit", 1024, start="60", steps=250, names="skew", rounds=8)
_row("fastcommit-inline", 4, "fast_commit,inline_data", 4096, start="6", steps=200, rounds=8)
_row("fastcommit-nocsum-1k", 5, "fast_commit,^metadata_csum", 1024)
_row("journal-1k", 6, "^fast_commit", 1024)
_row("journal-4k-logflush", 7, "^fast_commit", 4096, flags=1)
_row("orphan-file-1k", 8, "fast_commit,orphan_file", 1024)


def unreplayed(g: Guest) -> None:
    """Power fails with both features set: a kernel without the itree replays the journal and mounts read-only."""
    common = ["--dir", g.mnt, "--model", g.model(), "--dirs", 2, "--names", "mixed"]
    g.mount()
    g.want("fast commits are off" in g.log(), "nothing in the log")
    g.t("ops", *common, "--seed", 1, "--plan", "2500", "--n", 1000, "--m", 50, *g.order)
    for i in range(2):
        g.want_tree(g.path(f"d{i}"))
    g.t("durable", *common, "--seed", 2, "--n", 300, "--percent", 2)
    for i in range(2):
        shutil.copy(f"{g.model()}.must.{i}", g.share)


case(
    "reader-fastcommit", "crash", features="fast_commit", mkfs=("-b", "1024"), size="128M", allow=LOG, cost=10,
    host="old_kernel_replays",
)(unreplayed)
