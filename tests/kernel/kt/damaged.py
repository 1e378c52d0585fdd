# SPDX-License-Identifier: GPL-2.0-only
"""Damaged images by the thousand: the generator of tests/hostile hits the trees, the kernel mounts, lists and changes.

The cases damaged-many do so for all kinds of file systems, a fraction of a second an image; with damaged-repaired
e2fsck repairs each, and it is mounted and listed once more. Some damage passes the checksums: nodes with wrong content
and a valid checksum. The names are all in the directory's own blocks, which are not damaged, so each must be listed
once. The images are mounted with errors=remount-ro, which damage of a tree must not trigger.
"""

from __future__ import annotations

import bases

from kt.corrupt import BAD_TREE
from kt.guest import Guest
from kt.registry import case

SEEDS, ALL_SEEDS = 16, 100
IMAGES, ALL_IMAGES = 60, 180  # of each of the eleven bases


def damaged(g: Guest) -> None:
    """`itree-t damaged` tests all of them; before each it logs the damage to the kernel log."""
    good, image = g.tmp / "good", g.tmp / "image"
    fsck = ["--fsck", g.tool("e2fsck")] if g.p.get("repaired") else []
    seeds = g.case.planned(g.job["full"])
    g.tmp.mkdir(parents=True, exist_ok=True)
    g.mnt.mkdir(parents=True, exist_ok=True)
    for path in (good, image):
        g.run("cp", "--sparse=never", g.dev, path)
    loop = g.run("losetup", "--show", "-f", image).stdout.strip()
    try:
        argv = ["--model", g.share / "damage", "--aux", good, "--out", image, "--mode", loop, "--dir", g.mnt]
        g.t("damaged", *argv, *fsck)
    finally:
        g.run("umount", g.mnt, check=False)
        g.run("losetup", "-d", loop)
    g.equal(g.stats.get("images", 0), len(seeds), "images")
    # Not every damage is found: a node that no walk has to believe may hold anything.
    g.want(g.stats.get("bad_trees", 0) > len(seeds) // 4, "hardly a tree was found to be bad")
    if fsck:
        g.equal(g.stats.get("repaired", 0), len(seeds), "images that e2fsck repaired")


for _number, _base in enumerate(bases.BASES):
    case(
        f"damaged-many-{_base}", "damaged", base=_base, seeds=range(100_000 * _number, 100_000 * _number + ALL_IMAGES),
        few=IMAGES, allow=BAD_TREE, cost=60, limit=1500, memory="1G",
    )(damaged)  # fmt: skip

for _number, _base in enumerate(("1k", "1k-nocsum", "1k-free", "1k-deep-nocsum", "4k-nocsum")):
    case(
        f"damaged-repaired-{_base}", "damaged", {"repaired": True}, base=_base,
        seeds=range(_first := 2_000_000 + 100_000 * _number, _first + ALL_SEEDS), few=SEEDS,
        allow=BAD_TREE, cost=50, limit=3000, memory="1G",
    )(damaged)  # fmt: skip
