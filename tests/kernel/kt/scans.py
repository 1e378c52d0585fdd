# SPDX-License-Identifier: GPL-2.0-only
"""Names that an open scan returns while the directory changes."""

from __future__ import annotations

import os
import pathlib
import time

from kt.guest import Guest
from kt.matrix import BARE, HASH_SEED, SEED_WORDS
from kt.registry import COMPAT, case


def filled(g: Guest, n: int, *options, tree: bool = True) -> None:
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", n, *options)
    if tree:
        g.want_tree(g.path())


def over(g: Guest) -> None:
    """(a) a name ahead of the scan gets an inode behind it: it is still returned."""
    n, rounds = g.p["n"], g.p["rounds"]
    os.makedirs(g.mnt, exist_ok=True)
    g.mount()
    # Files that are older than all of the directory's, and some that are younger.
    os.mkdir(g.path("pool"))
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", n, "--names", "skew")
    if g.p.get("tree", True):
        g.want_tree(g.path())
    stats = g.t(
        "over", "--dir", g.path(), "--aux", g.path("pool"), "--model", g.model(),
        "--n", rounds, "--m", g.p.get("moves", 3), "--seed", g.p["seed"], *g.order, timeout=600,
    )  # fmt: skip
    g.want(stats.get("moved_lower", 0) >= rounds // 2, f"too few moves to a lower inode: {stats}")
    g.want(stats.get("whiteouts", 0) >= rounds // 16, f"too few whiteouts: {stats}")
    g.want(stats.get("exchanged", 0) >= rounds // 8, f"too few exchanges: {stats}")
    g.want(stats.get("moved_above_end", 0) > 0, f"no move above the scan's end: {stats}")
    g.listing()
    g.equal(g.counter("drops"), 0, "trees dropped")


def _over(id_, seed, n, rounds, bs, cost, **more):
    features = more.pop("features", "")
    case(
        f"over-{id_}", "scans", {"seed": seed, "n": n, "rounds": rounds, **more},
        mkfs=("-b", str(bs)), features=features, cost=cost, limit=700, size="256M",
    )(over)  # fmt: skip


_over("4k-1000", 1, 2000, 1000, 4096, 60)
_over("1k-1000", 2, 700, 1000, 1024, 40)
_over("1k-nojournal", 3, 700, 300, 1024, 15, features=BARE)
_over("many-1k", 6, 3000, 25, 1024, 20, moves=2500)
_over("small-4k", 4, 40, 400, 4096, 10, tree=False)
_over("small-htree-4k", 5, 300, 300, 4096, 10, tree=False)


def loop(g: Guest) -> None:
    """(b) a loop that changes the directory for each name it reads ends."""
    filled(g, g.p["n"], tree=g.p["n"] > 1000)
    for buf in (400, 32768):
        g.t("loop", "--mode", g.p["mode"], "--dir", g.path(), "--model", g.model(), "--buf", buf, *g.order)
    g.again()
    g.listing()
    g.equal(g.counter("drops"), 0, "trees dropped")


for _mode in ("create", "link", "rename", "replace"):
    for _n in (30, 3000):
        case(f"loop-{_mode}-{_n}", "scans", {"mode": _mode, "n": _n}, mkfs=("-b", "1024"), size="256M", cost=10)(loop)


def rm_loop(g: Guest) -> None:
    """rm -r reads and deletes in one pass: nothing is left, and the blocks come back."""
    filled(g, g.p["n"], "--mixed", "--names", "mixed")
    for keep in (g.p["n"] // 2, g.p["n"] // 20, 0):
        g.t("empty", "--dir", g.path(), "--model", g.model(), "--buf", g.p["buf"], "--m", keep, *g.order)
        g.again()
        g.listing()
    # An empty tree takes names again.
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 500, "--seed", 9)
    g.listing()
    g.equal(g.counter("drops"), 0, "trees dropped")


case("rm-loop-1k", "scans", {"n": 4000, "buf": 32768}, mkfs=("-b", "1024"), size="256M")(rm_loop)
case("rm-loop-4k", "scans", {"n": 4000, "buf": 600}, mkfs=("-b", "4096"), size="256M")(rm_loop)


def seek(g: Guest) -> None:
    """(c) telldir and seekdir across inserts, deletes, splits and merges."""
    filled(g, g.p["n"], "--names", "skew", tree=g.p["n"] > 1000)
    g.t(
        "seek", "--dir", g.path(), "--model", g.model(), "--n", g.p["rounds"], "--m", 8,
        "--seed", g.p["seed"], "--api", g.p.get("api", "64"), "--percent", g.p.get("anew", 0), timeout=600,
    )  # fmt: skip
    if g.p.get("anew"):
        # Forget that the directory was opened anew.
        g.again()
    elif g.p["n"] > 1000 and g.case.itree:
        count = g.counters()
        for name in ("splits", "merges"):
            g.want(count[name] > 0, f"no {name}: the test did not get there ({count})")
    g.listing()


case("seek-1k", "scans", {"n": 2500, "rounds": 12, "seed": 1}, mkfs=("-b", "1024"), size="256M", cost=40)(seek)
case("seek-4k", "scans", {"n": 4000, "rounds": 8, "seed": 2}, mkfs=("-b", "4096"), size="256M", cost=40)(seek)
case(
    "seek-anew", "scans", {"n": 4000, "rounds": 6, "seed": 4, "anew": 1}, mkfs=("-b", "4096"), size="256M", cost=40,
)(seek)  # fmt: skip
case("seek-small", "scans", {"n": 200, "rounds": 30, "seed": 3}, mkfs=("-b", "4096"), size="256M", cost=10)(seek)


def reader32(g: Guest) -> None:
    """(d) readers of 32 bits: all names once, cookies that fit, seekdir."""
    filled(g, g.p["n"], "--mixed", tree=g.p["n"] > 1000)
    for api in ("32", "32old"):
        for buf in (0, 300, 32768):
            g.t("list", "--dir", g.path(), "--model", g.model(), "--api", api, "--buf", buf)
        g.t("list", "--dir", g.path(), "--model", g.model(), "--api", api, "--buf", 0, "--seek-each")
        g.t("rewind", "--dir", g.path(), "--model", g.model(), "--api", api)
    g.listing()


case("reader32-4k", "scans", {"n": 2500}, mkfs=("-b", "4096"), size="256M", cost=20, machine=COMPAT)(reader32)
case("reader32-small", "scans", {"n": 100}, mkfs=("-b", "4096"), size="256M", machine=COMPAT)(reader32)


def stress(g: Guest) -> None:
    """(e) two readers and four writers for a minute."""
    filled(g, g.p["n"], "--names", "skew")
    g.t(
        "stress", "--dir", g.path(), "--model", g.model(), "--out", g.model("stay"), "--seconds", g.p["seconds"],
        "--readers", 2, "--writers", 4, "--seed", g.p["seed"], timeout=g.p["seconds"] + 120,
    )  # fmt: skip
    g.want(g.stats.get("writer0", 0) > 100, f"the writers hardly ran: {g.stats}")
    g.want(g.stats.get("reader0_scans", 0) > 5, f"the readers hardly ran: {g.stats}")
    g.listing(None, g.model("stay"), "--subset")
    g.t("self", "--dir", g.path(), *g.order)
    g.again()
    g.listing(None, g.model("stay"), "--subset")
    g.t("self", "--dir", g.path(), *g.order)
    g.want_tree(g.path())
    g.equal(g.counter("drops"), 0, "trees dropped")


case("stress-1k", "scans", {"n": 1500, "seconds": 60, "seed": 1}, mkfs=("-b", "1024"), size="512M", cost=80, cpus=2)(
    stress
)
case("stress-4k", "scans", {"n": 2500, "seconds": 30, "seed": 2}, mkfs=("-b", "4096"), size="512M", cost=45, cpus=2)(
    stress
)


def tiny(g: Guest) -> None:
    """(f) one entry at a time."""
    filled(g, g.p["n"], "--names", "mixed", "--mixed", tree=g.p["n"] > 1000)
    g.listing(None, None, "--buf", 0)
    g.listing(None, None, "--buf", 280)
    g.listing(None, None, "--buf", 0, "--seek-each")
    g.listing(None, None, "--seek-each")


case("tiny-4k", "scans", {"n": 1500}, mkfs=("-b", "4096"), size="256M", cost=15)(tiny)
def longer(g: Guest) -> None:
    """(f) names longer than those before: a large window does not fit into its estimated memory."""
    filled(g, g.p["n"] // 8, "--names", "short")
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "max")
    g.again()
    g.listing()
    g.listing(None, None, "--buf", 700)
    g.equal(g.counter("drops"), 0, "trees dropped")


case("longer-4k", "scans", {"n": 30000}, mkfs=("-b", "4096"), size="512M", cost=30)(longer)
case("tiny-small", "scans", {"n": 60}, mkfs=("-b", "4096"), size="256M", cost=5)(tiny)


def rewind(g: Guest) -> None:
    """(g) rewinddir, lseek to 0, to the end, to nowhere; dup; a second open file."""
    filled(g, g.p["n"], "--names", "skew", tree=g.p["n"] > 1000)
    g.t("rewind", "--dir", g.path(), "--model", g.model())


case("rewind-tree", "scans", {"n": 2500}, mkfs=("-b", "4096"), size="256M", cost=20)(rewind)
case("rewind-small", "scans", {"n": 150}, mkfs=("-b", "4096"), size="256M")(rewind)
case("rewind-inline", "scans", {"n": 4}, features="inline_data", mkfs=("-b", "4096"), size="256M")(rewind)


def morph(g: Guest) -> None:
    """(h) a scan stays open while the directory grows into a tree, or shrinks."""
    g.mount()
    seed = 0
    for mode, first, more in (
        ("grow", 2, 5000), ("grow", 20, 2000), ("grow", 60, 1500), ("grow", 400, 1500), ("grow", 2500, 2500),
        ("shrink", 60, 0), ("shrink", 400, 0), ("shrink", 2500, 0),
        ("wave", 10, 2000), ("wave", 300, 1500), ("wave", 1500, 1500),
    ):  # fmt: skip
        seed += 1
        d, m = g.path(f"{mode}{first}"), g.model(f"{mode}{first}")
        g.t(
            "morph", "--mode", mode, "--dir", d, "--model", m, "--m", first, "--n", more, "--seed", seed,
            "--names", "short" if first < 5 else "skew", *g.order,
        )  # fmt: skip
        if mode != "shrink":
            g.want_tree(d)
    g.again()
    for path in sorted(os.listdir(g.mnt)):
        if path != "lost+found":
            g.listing(g.path(path), g.model(path))


case("morph-1k", "scans", {}, mkfs=("-b", "1024"), size="256M", cost=25)(morph)
case("morph-4k-nojournal", "scans", {}, features=BARE, mkfs=("-b", "4096"), size="256M", cost=25)(morph)
case("morph-4k-inline", "scans", {}, features="inline_data", mkfs=("-b", "4096"), size="256M", cost=25)(morph)


def hold(g: Guest, readers, change, again: bool = False) -> None:
    """Run scans half way, call `change`, then continue them."""
    for number, (count, buf) in enumerate(readers):
        flag = g.tmp / f"go{number}"
        proc = g.start(
            "hold", "--dir", g.path(), "--model", g.model(), "--aux", flag, "--m", count, "--buf", buf,
            "--percent", 1 if again else 0,
        )  # fmt: skip
        for line in proc.stdout:
            if line.startswith("READY"):
                break
    change()
    for number in range(len(readers)):
        pathlib.Path(g.tmp / f"go{number}").touch()
    for proc in list(g.children):
        g.finish(proc)


def remount_under_scan(g: Guest) -> None:
    """The order changes under an open scan: no name may be lost; some may come again."""
    filled(g, 2000)
    readers = [(0, 400), (700, 400), (1500, 4096), (2002, 400)]
    hold(g, readers, lambda: g.remount("noitree"), again=True)
    g.t("list", "--dir", g.path(), "--model", g.model())
    hold(g, readers, lambda: g.remount("itree"), again=True)
    g.listing()


case("hold-remount", "scans", {}, mkfs=("-b", "1024"), size="256M")(remount_under_scan)


def collide_over(g: Guest) -> None:
    """Rename-over among names whose keys are equal."""
    g.mount()
    os.mkdir(g.path("pool"))
    g.t("collide", "--dir", g.path(), "--model", g.model(), "--m", 400000, "--n", 200, "--plan", SEED_WORDS)
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 1500, "--names", "skew")
    g.want_tree(g.path())
    for mode in ("replace", "create"):
        g.t("loop", "--mode", mode, "--dir", g.path(), "--model", g.model(), "--buf", 300, *g.order)
    g.again()
    g.listing()


case("collide-over", "scans", {}, mkfs=("-b", "1024", "-E", f"hash_seed={HASH_SEED}"), size="256M", cost=15)(
    collide_over
)


def drop_caches(g: Guest) -> None:
    """Scans continue after the caches have been dropped, and while they are dropped repeatedly."""
    filled(g, 4000, "--names", "mixed")
    g.again()

    def change() -> None:
        for _ in range(5):
            g.settle()
            time.sleep(0.05)

    hold(g, [(10, 400), (2000, 400), (3990, 400)], change)
    g.settle()
    g.listing()


case("hold-drop-caches", "scans", {}, mkfs=("-b", "1024"), size="256M")(drop_caches)
