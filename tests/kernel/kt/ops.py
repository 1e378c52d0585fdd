# SPDX-License-Identifier: GPL-2.0-only
"""Every operation that changes a directory, in random sequences, against a model."""

from __future__ import annotations

from kt.guest import Guest
from kt.online import make_dir
from kt.registry import case

ALL_OPS = (
    "create mkdir mknod symlink slowlink link tmpfile rename across over overdir exchange exchange-across "
    "whiteout whiteout-across noreplace same refused unlink rmdir"
).split()
WAVES = "30,300,2000,300,1200,0,900"


def prepare(g: Guest) -> None:
    for i in range(g.p.get("dirs", 2)):
        d = g.path(f"d{i}")
        make_dir(g, d)


def check(g: Guest, *options: str) -> None:
    if g.p.get("crypt"):
        g.t("crypt", "--mode", "add", "--dir", g.mnt)
    for i in range(g.p.get("dirs", 2)):
        d, m = g.path(f"d{i}"), g.model("d") + f".{i}"
        g.listing(d, m, *options)
        g.t("lookup", "--dir", d, "--model", m)


def ops(g: Guest) -> None:
    names = ["--names", g.p.get("names", "mixed")]
    common = ["--dir", g.mnt, "--model", g.model(), "--dirs", g.p.get("dirs", 2), *names, *g.order]
    g.mount()
    prepare(g)
    done = g.t("ops", *common, "--seed", g.p["seed"], "--plan", g.p.get("plan", WAVES), "--n", 500, "--m", 300)
    missing = [op for op in ALL_OPS if not done.get(op) and not (op == "across" and g.p.get("dirs") == 1)]
    if g.p.get("dirs", 2) > 1:
        g.want(not missing, f"operations that never ran: {missing}")
    count = g.counters()
    if not g.p.get("small"):
        for name in ("builds", "splits", "merges", "inserts", "deletes"):
            g.want(count[name] > 0, f"counter itree_{name} is {count[name]}: the test did not get there")
    g.equal(count["drops"], 0, "trees dropped")
    g.stats.update({f"itree_{k}": v for k, v in count.items()})
    # Continue with cold caches.
    g.again()
    check(g)
    g.t(
        "ops",
        *common,
        "--seed",
        g.p["seed"] + 1000,
        "--plan",
        "200,400" if g.p.get("small") else "700,1800",
        "--n",
        700,
        "--m",
        300,
    )
    if not g.p.get("small"):
        for i in range(g.p.get("dirs", 2)):
            g.want_tree(g.path(f"d{i}"))
    g.again("noitree")
    for i in range(g.p.get("dirs", 2)):
        if g.p.get("crypt"):
            g.t("crypt", "--mode", "add", "--dir", g.mnt)
        g.t("list", "--dir", g.path(f"d{i}"), "--model", g.model("d") + f".{i}")
    # Changes update the trees even while readdir ignores them.
    g.t(
        "ops",
        "--dir",
        g.mnt,
        "--model",
        g.model(),
        "--dirs",
        g.p.get("dirs", 2),
        *names,
        "--seed",
        5,
        "--plan",
        "300" if g.p.get("small") else "1500",
    )
    g.again()
    check(g)
    g.equal(g.counter("drops"), 0, "trees dropped")


def row(id_: str, seed: int, features: str = "", *, bs: int = 4096, mkfs=(), cost: int = 20, size="256M", **params):
    case(
        f"ops-{id_}",
        "ops",
        {"seed": seed, **params},
        features=features,
        mkfs=("-b", str(bs), *mkfs),
        cost=cost,
        size=size,
    )(ops)


BARE = "^metadata_csum,^has_journal"

row("4k", 1)
row("4k-seed2", 2)
row("1k", 3, bs=1024)
row("1k-seed4", 4, bs=1024, names="skew", plan="40,2500,200,4000,0,1500")
row("1k-bare", 5, BARE, bs=1024)
row("4k-nojournal", 6, "^has_journal")
row("4k-nocsum", 7, "^metadata_csum", names="max")
row("1k-casefold", 8, "casefold", bs=1024, names="ascii", casefold=True, mkfs=("-E", "encoding=utf8"))
row("1k-crypt", 9, "encrypt", bs=1024, names="skew", crypt=True, cost=30)
row(
    "1k-crypt-casefold",
    10,
    "encrypt,casefold",
    bs=1024,
    names="ascii",
    crypt=True,
    casefold=True,
    mkfs=("-E", "encoding=utf8"),
    plan="30,300,60,400,0,300",
    small=True,
    cost=40,
)
row("4k-inline", 11, "inline_data", plan="5,40,0,2500,0,3,1500,60")
row("1k-inline", 12, "inline_data", bs=1024, names="skew", plan="3,10,2,40,0,2500,0,4,1500")
row("1k-fastcommit", 13, "fast_commit", bs=1024)
row("4k-one-dir", 14, dirs=1)
row("1k-four-dirs", 15, bs=1024, dirs=4, plan="60,2500,800,4000,0,1500")
row("4k-journal-data", 16, mount="data=journal")
row("4k-small-dirs", 17, names="skew", small=True, dirs=4, plan="20,400,10,600,0,300,500")
row("1k-dirsync", 18, bs=1024, mount="dirsync", plan="1200,100,900", cost=40)
