# SPDX-License-Identifier: GPL-2.0-only
"""Damaged images by the hundred: the generator of tests/hostile hits the trees, the kernel mounts, lists and changes.

What a checksum does not show is among it: nodes with wrong content and a right checksum. The names are all in the
directory's own blocks, which are left alone, so each has to be listed, once.
"""

from __future__ import annotations

import itertools
import os
import sys

from kt import itree_ioctl as io
from kt.guest import Failed, Guest
from kt.registry import REPO, case

sys.path.insert(0, str(REPO / "tests" / "hostile"))

import damage_tree  # noqa: E402
import hostile  # noqa: E402

SEEDS, ALL_SEEDS = 16, 400
LOG = (r"EXT4-fs error \(device loop\d+\)", r"EXT4-fs \(loop\d+\): error count")
DIRS = ("big", "side")


def names(g: Guest, d: str, most: int) -> list[tuple[str, int]]:
    """At most that many: a listing without an end is a finding, not a test that hangs."""
    with os.scandir(g.path(d)) as it:
        return sorted((e.name, e.inode()) for e in itertools.islice(it, most))


def compare(g: Guest, good: dict, when: str) -> None:
    """Every name, once; twice only in the listing that finds out, at its end, that the tree has lost some."""
    for d, want in good.items():
        had = g.has_tree(g.path(d)) and not io.itree(g.path(d), io.STAT).state & io.BAD
        got = names(g, d, 3 * len(want) + 1000)
        if got == want:
            continue
        gone, odd = sorted(set(want) - set(got)), sorted(set(got) - set(want))
        found = had and io.itree(g.path(d), io.STAT).state & io.BAD
        if gone or odd or not found or len(got) > 2 * len(want):
            g.fail(f"{when}: /{d}: {len(gone)} names missing {gone[:2]}, {odd[:2]} too many, {len(got)} of {len(want)}")
        else:
            g.stats["twice"] = g.stats.get("twice", 0) + 1


def change(g: Guest, d: str, seed: int) -> None:
    """Inserts and deletes all over the tree; the directory is as before afterwards."""
    for n in range(60):
        g.run_quiet(os.mknod, g.path(f"{d}/{seed}-{n}"))
    for n in range(60):
        g.run_quiet(os.rename, g.path(f"{d}/{seed}-{n}"), g.path(f"{d}/other-{seed}-{n}"))
    # Links of old inodes come in the middle.
    old = names(g, d, 400)
    for n, (name, _) in enumerate(old[::4]):
        if os.path.isfile(g.path(f"{d}/{name}")) and not os.path.islink(g.path(f"{d}/{name}")):
            g.run_quiet(os.link, g.path(f"{d}/{name}"), g.path(f"{d}/link-{n}"))
            g.run_quiet(os.unlink, g.path(f"{d}/link-{n}"))
    for n in range(60):
        g.run_quiet(os.unlink, g.path(f"{d}/other-{seed}-{n}"))


def one(g: Guest, good: dict, seed: int) -> None:
    image = g.tmp / "image"
    g.run("cp", "--sparse=auto", g.tmp / "good", image)
    damage = hostile.corrupt(image, seed, kinds=damage_tree.KINDS)
    before = len(g.fails)
    g.kmsg(str(damage))
    raw, g.dev = g.dev, g.run("losetup", "--show", "-f", image).stdout.strip()
    try:
        g.mount("errors=continue")
        orders = (compare, change, compare) if seed % 2 else (change, compare, change, compare)
        for step in orders:
            if step is compare:
                compare(g, good, f"step of seed {seed}")
            else:
                for d in DIRS:
                    change(g, d, seed)
        g.stats["dropped"] = g.stats.get("dropped", 0) + sum(not g.has_tree(g.path(d)) for d in DIRS)
        g.umount()
        res = g.run(g.tool("e2fsck"), "-fy", g.dev, check=False)
        g.want(res.returncode in (0, 1), f"e2fsck -fy: exit code {res.returncode}: {res.stdout[-300:]}")
        g.fsck()
        # Nothing but the damage has become of it.
        g.mount()
        compare(g, good, "after e2fsck")
    except (Failed, OSError) as err:
        g.fail(str(err))
    finally:
        g.umount()
        g.run("losetup", "-d", g.dev)
        g.dev = raw
    if len(g.fails) > before:
        g.fail(f"the {len(g.fails) - before} findings above: {damage}")


def damaged(g: Guest) -> None:
    g.tmp.mkdir(parents=True, exist_ok=True)
    g.run("cp", "--sparse=always", g.dev, g.tmp / "good")
    g.mount("noitree,ro")
    good = {d: names(g, d, 10**6) for d in DIRS}
    g.umount()
    count = ALL_SEEDS if g.job["full"] else SEEDS
    first = g.p["first"]
    for seed in range(first, first + count):
        one(g, good, seed)
        g.stats["images"] = g.stats.get("images", 0) + 1
        if len(g.fails) > 12:
            break
    g.want(g.stats.get("dropped", 0) > count // 4, "hardly a tree was found to be bad")


for _number, _base in enumerate(("1k", "1k-nocsum", "1k-free", "1k-deep-nocsum", "4k-nocsum")):
    case(
        f"damaged-{_base}", "damaged", {"first": 100_000 * _number}, base=_base, allow=LOG, cost=100, limit=3000,
        memory="1G",
    )(damaged)  # fmt: skip
