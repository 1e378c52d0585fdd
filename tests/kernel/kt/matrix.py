# SPDX-License-Identifier: GPL-2.0-only
"""Directories of every size on every kind of file system: each name once, in inode order.

Not the full cross product. Sizes, block sizes, checksums and journals are
covered pair by pair; every other feature meets 1,000 and 20,000 entries, at
least one of them with 1 KiB blocks.
"""

from __future__ import annotations

import collections
import os
import re
import shutil

from kt.guest import FL_CASEFOLD, FL_INLINE, Guest
from kt.registry import MILLION, case

HASH_SEED = "67452301-efcd-ab89-98ba-dcfe10325476"
SEED_WORDS = "01234567,89abcdef,fedcba98,76543210"  # the same, as the kernel reads it


def set_up(g: Guest) -> None:
    d = g.path()
    os.mkdir(d)
    if g.p.get("casefold"):
        g.equal(g.set_flags(d, g.flags(d) | FL_CASEFOLD), 0, "chattr +F")
    if g.p.get("crypt"):
        g.t("crypt", "--mode", "set", "--dir", d)


def remounted(g: Guest) -> None:
    g.again()
    if g.p.get("crypt"):
        g.t("crypt", "--mode", "add", "--dir", g.mnt)


def full_check(g: Guest) -> None:
    """Warm and cold, large and small buffers, 64 and 32 bits, with and without the key."""
    n = g.listing()
    if n <= 1000:
        g.listing(None, None, "--buf", 0)
        g.listing(None, None, "--buf", 0, "--seek-each")
    else:
        g.listing(None, None, "--buf", 700)
    if not g.p.get("inline"):
        g.tree_as_due(g.path())
    remounted(g)
    g.listing()
    g.t("lookup", "--dir", g.path(), "--model", g.model())
    # Readers of 32 bits keep hash order; their cookies must fit.
    g.t("list", "--dir", g.path(), "--model", g.model(), "--api", "32")
    g.t("list", "--dir", g.path(), "--model", g.model(), "--api", "32old", "--buf", 2000)
    if g.p.get("crypt"):
        g.again()
        g.listing(None, None, "--nokey")
        g.t("list", "--dir", g.path(), "--model", g.model(), "--nokey", "--api", "32")
        g.t("self", "--dir", g.path(), "--nokey", *g.order)
        remounted(g)


def matrix(g: Guest) -> None:
    d, n = g.path(), g.p["n"]
    names = ["--names", g.p.get("names", "skew")] + ["--mixed"] * g.p.get("mixed", True)
    with g.part("clean"):
        g.mount()
        set_up(g)
        g.t("fill", "--dir", d, "--model", g.model(), "--n", n, *names)
        g.stats["blocks"] = g.dir_blocks(d)
        if g.p.get("inline"):
            g.equal(bool(g.flags(d) & FL_INLINE), n <= 1, "directory kept inline")
        full_check(g)
        if g.p.get("levels"):
            g.umount()
            dump = g.run(g.tool("debugfs"), "-R", "htree_dump /d", g.dev, timeout=600).stdout
            below_root = re.findall(r"Indirect levels: (\d+)", dump)
            g.equal(below_root, [str(g.p["levels"] - 1)], "levels of the htree")
            g.mount()
    with g.part("aged"):
        g.t("age", "--dir", d, "--model", g.model(), "--percent", 30, "--seed", 7, *names)
        full_check(g)


def row(id_: str, n: int, features: str = "", *, bs: int = 4096, size: str = "", **more) -> None:
    fields = {
        k: more.pop(k) for k in ("cost", "memory", "limit", "slow", "mkfs", "itree", "allow", "cpus") if k in more
    }
    mkfs = ("-b", str(bs), *fields.pop("mkfs", ()))
    params = {"n": n, **more}
    case(
        f"matrix-{id_}",
        "matrix",
        params,
        parts=("clean", "aged"),
        size=size or "512M",
        features=features,
        mkfs=mkfs,
        **{"cost": 5 + n // 800, **fields},
    )(matrix)


BARE = "^metadata_csum,^has_journal"

# size x block size x checksum x journal
row("1-4k-csum-journal", 1)
row("1-1k-bare", 1, BARE, bs=1024, names="mixed")
row("10-1k-csum-nojournal", 10, "^has_journal", bs=1024, names="max")
row("10-4k-nocsum-journal", 10, "^metadata_csum", names="mixed")
row("1000-4k-csum-nojournal", 1000, "^has_journal")
row("1000-1k-nocsum-journal", 1000, "^metadata_csum", bs=1024)
row("1000-2k-mixed", 1000, bs=2048, names="mixed")
row("1000-4k-255", 1000, names="max")
row("20000-4k-csum-journal", 20000)
row("20000-1k-bare", 20000, BARE, bs=1024)
row("20000-1k-csum-journal-mixed", 20000, bs=1024, names="mixed", mixed=False)
row("20000-4k-nocsum-journal-mixed", 20000, "^metadata_csum", names="mixed")

# one more feature each
row("1000-1k-casefold", 1000, "casefold", bs=1024, names="ascii", casefold=True, mkfs=("-E", "encoding=utf8"))
row("3000-4k-casefold", 3000, "casefold", names="ascii", casefold=True, mkfs=("-E", "encoding=utf8"))
row("1000-1k-crypt", 1000, "encrypt", bs=1024, crypt=True)
row("20000-4k-crypt", 20000, "encrypt,^metadata_csum", crypt=True, cost=60)
row(
    "500-4k-crypt-casefold",
    500,
    "encrypt,casefold",
    names="ascii",
    crypt=True,
    casefold=True,
    mkfs=("-E", "encoding=utf8"),
)
row(
    # Lookups in such directories cost time in proportion to their blocks on a
    # stock kernel, too: few entries.
    "700-1k-crypt-casefold",
    700,
    "encrypt,casefold",
    bs=1024,
    names="ascii",
    crypt=True,
    casefold=True,
    mkfs=("-E", "encoding=utf8"),
    cost=40,
)
row("1-4k-inline", 1, "inline_data", names="short", inline=True)
row("10-1k-inline", 10, "inline_data", bs=1024, inline=True, mkfs=("-I", "256"), names="max")
row("1000-4k-inline", 1000, "inline_data", inline=True, names="mixed")
row("1000-4k-dirsync", 1000, names="mixed", mount="dirsync", cost=20)
row("3000-4k-data-journal", 3000, names="mixed", mount="data=journal")
row("5000-4k-fastcommit", 5000, "fast_commit", names="mixed")
row("3000-4k-bigalloc", 3000, "bigalloc", names="mixed", mkfs=("-C", "65536"), size="1G")
row("3000-1k-64bit-off", 3000, "^64bit,^flex_bg", bs=1024)
row("3000-4k-metabg", 3000, "meta_bg,^resize_inode", names="mixed")
row("3000-1k-quota", 3000, "quota", bs=1024)
# More directory than memory holds: read in sweeps, not leaf by leaf. And an htree of three levels.
row(
    "27000-1k-small-memory",
    27000,
    "large_dir",
    bs=1024,
    names="max",
    mixed=False,
    levels=3,
    size="1G",
    memory="256M",
    cost=65,
)
row("20000-1k-large-dir", 20000, "large_dir", bs=1024, names="mixed", mixed=False, size="1G")


def hash_variant(g: Guest) -> None:
    """The htree's other hashes: the tree's keys come from them."""
    g.run(g.tool("tune2fs"), "-E", f"hash_alg={g.p['hash']}", g.dev)
    if g.p.get("flag"):
        g.run(g.tool("debugfs"), "-w", "-R", f"set_super_value flags {g.p['flag']}", g.dev)
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", 2500, "--names", "mixed", "--mixed")
    full_check(g)
    g.t("age", "--dir", g.path(), "--model", g.model(), "--names", "mixed")
    full_check(g)
    g.want_tree(g.path())


for _hash in ("half_md4", "tea", "legacy"):
    for _flag, _text in (("1", "signed"), ("2", "unsigned")):
        case(f"hash-{_hash}-{_text}", "matrix", {"hash": _hash, "flag": _flag}, mkfs=("-b", "4096"))(hash_variant)


def hard_links(g: Guest) -> None:
    d = g.path()
    g.mount()
    if g.p["other"]:
        g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["other"] // 2, "--seed", 3)
    g.t("links", "--dir", d, "--model", g.model(), "--n", g.p["n"], "--names", g.p.get("names", "skew"))
    if g.p["other"]:
        g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["other"] + g.p["n"], "--seed", 4)
    full_check(g)
    g.t("age", "--dir", d, "--model", g.model(), "--names", "mixed")
    full_check(g)
    g.want_tree(d)


case("links-1000-4k", "matrix", {"n": 1000, "other": 0, "names": "mixed"}, mkfs=("-b", "4096"))(hard_links)
case("links-1000-1k", "matrix", {"n": 1000, "other": 0}, mkfs=("-b", "1024"))(hard_links)
case("links-1000-among-5000-1k", "matrix", {"n": 1000, "other": 5000}, features=BARE, mkfs=("-b", "1024"))(hard_links)
case("links-1000-among-5000-4k", "matrix", {"n": 1000, "other": 5000}, mkfs=("-b", "4096"))(hard_links)
case("links-60000-4k", "matrix", {"n": 60000, "other": 100}, mkfs=("-b", "4096"), cost=50)(hard_links)


def collisions(g: Guest) -> None:
    """Names of one inode with the same hash: equal keys that differ only by the name."""
    d = g.path()
    g.mount()
    stats = g.t(
        "collide", "--dir", d, "--model", g.model(), "--m", 400000, "--n", 400, "--plan", SEED_WORDS, timeout=120
    )
    g.want(stats.get("groups", 0) >= 20, f"too few collisions: {stats}")
    g.t("fill", "--dir", d, "--model", g.model(), "--n", stats["names"] + 3000)
    g.want_tree(d)
    # They do collide: without the tree, the upper halves of d_off are equal.
    g.remount("noitree")
    g.t("dump", "--dir", d, "--out", g.tmp / "dump")
    major = collections.Counter(int(x.split()[0], 16) >> 32 for x in (g.tmp / "dump").read_text().splitlines())
    same = sum(n > 1 for n in major.values())
    g.want(same >= stats["groups"] * 9 // 10, f"{same} equal hashes among the names, wanted {stats['groups']}")
    g.remount("itree")
    for buf in (0, 300, 32768):
        g.listing(None, None, "--buf", buf)
    g.t("list", "--dir", d, "--model", g.model(), "--api", "32", "--buf", 300)
    g.t("seek", "--dir", d, "--model", g.model(), "--n", 2, "--m", 10, "--percent", 0, *g.order)
    g.t("age", "--dir", d, "--model", g.model(), "--percent", 50)
    g.listing()
    g.again()
    g.t("empty", "--dir", d, "--model", g.model(), *g.order)


for _bs in (1024, 4096):
    case(f"collisions-{_bs}", "matrix", {}, mkfs=("-b", str(_bs), "-E", f"hash_seed={HASH_SEED}"), cost=25)(collisions)


# --- the very large ones, on prepared images

BIG = {
    "300k-4k": {"n": 300_000, "features": "", "bs": 4096, "size": "4G", "cost": 70},
    "300k-1k": {"n": 300_000, "features": f"large_dir,{BARE}", "bs": 1024, "size": "4G", "cost": 80},
    "1m-4k": {"n": 1_000_000, "features": "", "bs": 4096, "size": "8G", "cost": 260},
}


def big_fill(g: Guest) -> None:
    """Fill the directory, and save its model on the share, next to the image."""
    model = str(g.share / "model")
    g.mount("noatime")
    if g.p["age"]:
        g.t("age", "--dir", g.path(), "--model", model, "--percent", 30, timeout=3000)
    else:
        g.t("fill", "--dir", g.path(), "--model", model, "--n", g.p["n"], timeout=3000)
    g.want_tree(g.path())


def big_check(g: Guest) -> None:
    model = str(g.share / "model")
    g.mount("noatime")
    g.tree_as_due(g.path())
    g.equal(g.listing(None, model, timeout=1200), g.p["n"], "names")
    g.equal(g.listing(None, model, "--buf", 4096, timeout=1200), g.p["n"], "names, small buffer")
    g.t("list", "--dir", g.path(), "--model", model, "--api", "32", timeout=1200)
    # Changes in the midst of windows far larger than those of small directories.
    shutil.copyfile(model, g.model())
    g.t("seek", "--dir", g.path(), "--model", g.model(), "--n", 1, "--m", 3, "--percent", 0, *g.order, timeout=1200)
    g.listing(timeout=1200)


for _name, _big in BIG.items():
    for _aged in (False, True):
        _id = f"{_name}-{'aged' if _aged else 'clean'}"
        _common = {
            "size": _big["size"],
            "features": _big["features"],
            "mkfs": ("-b", str(_big["bs"]), "-N", str(_big["n"] * 5 // 4)),
            "memory": "2G",
            "slow": True,
            "full": MILLION if _big["n"] >= 1_000_000 else "",
        }
        case(
            f"fill-{_id}",
            "prepare",
            {"n": _big["n"], "age": _aged},
            prepares=True,
            image=f"fill-{_name}-clean" if _aged else "",
            cost=_big["cost"],
            limit=3000,
            **_common,
        )(big_fill)
        case(
            f"matrix-{_id}",
            "big",
            {"n": _big["n"]},
            image=f"fill-{_id}",
            cost=20 + _big["n"] // 20000,
            limit=1500,
            **_common,
        )(big_check)
