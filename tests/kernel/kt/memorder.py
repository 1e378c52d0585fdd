# SPDX-License-Identifier: GPL-2.0-only
"""The option inode_order, on volumes without the feature: inode order from memory."""

from __future__ import annotations

import itertools
import os
import string
import subprocess

from kt import change, scans
from kt.cgroups import control_groups, join, small_group
from kt.guest import PATIENCE, QUIET, Guest
from kt.misses import ITABLE, Reads
from kt.positions import Stream
from kt.registry import case

OPTION = {"mount": "inode_order"}
MKFS = ("-b", "4096")
FIRST_WINDOW = 1024  # names, in as many leaves at most


def in_order(where: str) -> bool:
    with os.scandir(where) as it:
        inodes = [e.inode() for e in it]
    return inodes == sorted(inodes)


def listings(g: Guest) -> None:
    """All sizes, with the option by mount and by remount, read-only, off again, and with noitree."""
    g.mount()
    for n in g.p["sizes"]:
        d, model = g.path(f"d{n}"), g.model(f"d{n}")
        os.mkdir(d)
        g.t("fill", "--dir", d, "--model", model, "--n", n, "--names", "mixed", "--mixed")
        for buf in (2000, 32768):
            g.listing(d, model, "--buf", buf)
        g.equal(g.has_tree(d), False, f"{d}: itree flag")
    large, model = g.path(f"d{g.p['sizes'][-1]}"), g.model(f"d{g.p['sizes'][-1]}")
    g.remount("noinode_order")
    g.equal(in_order(large), False, "inode order without the option")
    g.t("list", "--dir", large, "--model", model)
    g.remount("inode_order")
    g.equal(in_order(large), True, "inode order after the remount")
    g.remount("noitree")
    g.equal(in_order(large), False, "inode order with noitree")
    g.remount("itree,ro")
    g.equal(in_order(large), True, "inode order of a read-only mount")
    g.umount()
    g.run("mount", "-t", g.type, g.dev, g.mnt)
    g.mounted = True
    g.equal(in_order(large), False, "inode order of a mount without the option")
    g.remount("inode_order")
    g.listing(large, model)


case("memorder-4k", "scans", {"sizes": (5, 500, 3000, 10000), **OPTION}, itree=False, mkfs=MKFS, cost=25)(listings)
case("memorder-1k", "scans", {"sizes": (50, 1000, 9000), **OPTION}, itree=False, mkfs=("-b", "1024"), cost=20)(listings)
case("memorder-bare", "scans", {"sizes": (9000,), **OPTION}, itree=False, features="^has_journal,^metadata_csum,^64bit",
     mkfs=("-b", "1024"), cost=20)(listings)  # fmt: skip


def inodes_in_order(g: Guest) -> None:
    """A cold listing with stat takes a small part of the reads of hash order."""
    g.mount(QUIET)
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    g.t("age", "--dir", g.path(), "--model", g.model(), "--percent", 30, "--names", "mixed")
    found = {}
    for option in ("inode_order", "noinode_order"):
        g.again(f"{QUIET},{option}")
        g.settle()
        reads = Reads(g)
        g.t("pass", "--dir", g.path(), "--mode", "lstat")
        found[option] = reads.since()["requests"]
    g.stats |= {"requests": found["inode_order"], "requests_by_hash": found["noinode_order"]}
    g.want(found["inode_order"] * 3 <= found["noinode_order"], f"requests: {found}")
    g.again()
    g.listing()


case("memorder-reads", "scans", {"bs": 4096, "n": 40000, **OPTION}, itree=False, size="512M", memory="256M", cost=30,
     mkfs=("-b", "4096", "-N", "60000", "-I", "256"))(inodes_in_order)  # fmt: skip


def list_in_group(g: Guest, path: str, mib: int) -> dict[str, int]:
    """Inodes by name, as a reader lists them whose control group has little memory."""
    argv = [g.job["helper"], "dump", "--dir", path]
    with control_groups("memory") as where:
        group = where / "small"
        small_group(group, mib)
        res = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=200 * PATIENCE, preexec_fn=lambda: join(group)
        )
    g.equal(res.returncode, 0, f"listing in {mib} MiB: {res.stderr}")
    # Position, inode, type and name, this in hexadecimal digits.
    entries = [line.split() for line in res.stdout.splitlines() if not line.startswith("STAT")]
    return {bytes.fromhex(words[3]).decode(): int(words[1]) for words in entries if len(words) == 4}


def too_large(g: Guest) -> None:
    """A reader short of memory for a directory gets all of it in hash order; another reader gets inode order."""
    d, n = g.path(), g.p["n"]
    g.mount()
    os.mkdir(d)
    names = [f"{i:06}-{'n' * 200}" for i in range(n)]
    for name in names:
        os.mknod(os.path.join(d, name))
    g.again()
    got = list_in_group(g, d, 8)
    g.equal(sorted(set(got) - {".", ".."}), names, "names")
    inodes = list(got.values())
    g.want(inodes != sorted(inodes), f"a directory of {os.stat(d).st_size} bytes was put in order in 8 MiB")
    g.equal(in_order(d), True, "inode order for a reader that has the memory")


case("memorder-too-large", "scans", {"n": 60000, **OPTION}, itree=False, mkfs=("-b", "4096", "-N", "70000"), cost=30)(
    too_large
)


def one_list(g: Guest) -> None:
    """A listing gathers the keys once, in one sweep: then each window visits a block at most once."""
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"])
    g.again()
    blocks = os.stat(g.path()).st_size // g.p["bs"]
    g.settle()
    reads = Reads(g)
    stream = Stream(g.path())
    stream.call()
    stream.close()
    swept = reads.since()["blocks"]
    g.want(len(stream.names) > 2, "no name in the first call")
    g.want(swept <= blocks + ITABLE, f"the first names took {swept} blocks of reads, the directory has {blocks}")
    before = g.counter("visits")
    g.equal(in_order(g.path()), True, "inode order")
    visits = g.counter("visits") - before
    g.stats |= {"blocks": blocks, "swept": swept, "visits": visits}
    # The list, a first window of some leaves, and a second one of all others.
    g.want(visits <= 2 * blocks + FIRST_WINDOW, f"{visits} visits of {blocks} blocks")
    g.listing()


case("memorder-list", "scans", {"bs": 1024, "n": 120000, **OPTION}, itree=False, size="256M", cost=40,
     mkfs=("-b", "1024", "-N", "130000"))(one_list)  # fmt: skip

case("memorder-linked", "scans", {"bs": 4096, "n": 50000, **OPTION}, itree=False, size="512M", cost=15,
     mkfs=(*change.MKFS, "-E", f"hash_seed={change.HASH_SEED}"))(change.linked)  # fmt: skip


def unlocked(g: Guest) -> None:
    """Large windows are allocated and sorted without i_rwsem: lockdep_assert_not_held() in the kernel checks it."""
    g.mount()
    g.t("fill", "--dir", g.path(), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
    g.again()
    g.listing()


def selected(g: Guest) -> None:
    """A directory of more keys than the list can hold: each window selects its own, and also sorts them unlocked."""
    d = g.path()
    g.mount()
    os.mkdir(d)
    # The shortest entries, tightly packed: few blocks for so many names, or the listing would take hash order.
    names = ["".join(c) for c in itertools.islice(itertools.product(string.ascii_lowercase, repeat=4), g.p["n"])]
    for name in names:
        os.mknod(os.path.join(d, name))
    g.umount()
    g.run(g.tool("e2fsck"), "-fyD", g.dev, check=False)
    g.mount()
    got = list_in_group(g, d, 8)
    g.equal(sorted(set(got) - {".", ".."}), names, "names")
    inodes = [i for name, i in got.items() if name not in (".", "..")]
    g.want(inodes == sorted(inodes), f"a directory of {os.stat(d).st_size} bytes was not put in order")


for _id, _func, _itree, _params in (
    ("reader-unlocked", unlocked, True, {"n": 30000}),
    ("memorder-unlocked", unlocked, False, {"n": 30000, **OPTION}),
    ("memorder-selected", selected, False, {"n": 67000, **OPTION}),
):
    case(_id, "scans", _params, itree=_itree, mkfs=("-b", "4096", "-N", "80000"), config="CONFIG_LOCKDEP", cost=30,
         limit=900)(_func)  # fmt: skip

# What listings guarantee while the directory changes.
for _id, _func, _params, _cost in (
    ("removed", change.removed, {"bs": 4096, "n": 20000, "full": 300000}, 20),
    ("over", scans.over, {"seed": 5, "n": 3000, "rounds": 200}, 30),
    ("loop", scans.loop, {"mode": "replace", "n": 3000}, 10),
    ("seek", scans.seek, {"n": 4000, "rounds": 8, "seed": 2}, 40),
    ("stress", scans.stress, {"n": 6000, "seconds": 20, "seed": 2}, 45),
    ("rewind", scans.rewind, {"n": 5000}, 20),
    ("tiny", scans.tiny, {"n": 5000}, 15),
):
    case(f"memorder-{_id}", "scans", {**_params, **OPTION}, itree=False, mkfs=MKFS, size="512M", cost=_cost)(_func)
