# SPDX-License-Identifier: GPL-2.0-only
"""Listings of a directory that changes between two calls: all names, no removed ones, no block searched again."""

from __future__ import annotations

import contextlib
import os
import random

from kt.guest import QUIET, Guest
from kt.matrix import HASH_SEED, SEED_WORDS
from kt.positions import Stream
from kt.registry import case

BUFFERS = (2048, 32768)


def fill(g: Guest, n: int) -> tuple[str, list[str]]:
    g.mount(QUIET)
    d = g.path("d")
    os.mkdir(d)
    names = [f"{i:06}.M{i * 7919 % 1000003}P{i}.mail.example.org" for i in range(n)]
    for name in names:
        os.mknod(os.path.join(d, name))
    g.want_tree(d)
    return d, names


def listing(g: Guest, d: str, buf: int, between) -> tuple[list[str], int]:
    """The names of a listing, and how many directory blocks it searched; `between` is called after each call."""
    before = g.counter("visits")
    one = Stream(d, buf)
    try:
        while one.call():
            between(one.names)
    finally:
        one.close()
    return [name for name in one.names if name not in (".", "..")], g.counter("visits") - before


def storm(g: Guest) -> None:
    """With a create and an unlink between each two calls, a listing searches few more blocks than at rest."""
    d, names = fill(g, g.p["full" if g.job["full"] else "n"])
    for buf in BUFFERS:
        storm_of(g, d, names, buf)


def storm_of(g: Guest, d: str, names: list[str], buf: int) -> None:
    count = 0

    def change(_seen: list[str]) -> None:
        nonlocal count
        count += 1
        path = os.path.join(d, f"delivered-{count}")
        os.mknod(path)
        os.unlink(path)

    at_rest, still = listing(g, d, buf, lambda _seen: None)
    got, busy = listing(g, d, buf, change)
    g.equal(sorted(at_rest), sorted(names), f"names at rest, {buf} bytes a call")
    kept = sorted(name for name in got if not name.startswith("delivered-"))
    g.equal(kept, sorted(names), f"names of a directory that changes, {buf} bytes a call")
    g.want(still > 0, "a listing that looks at no block: the counter is broken")
    g.want(count > 30, f"only {count} changes")
    g.want(busy <= 2 * still, f"{buf} bytes a call: {busy} blocks looked through, at rest {still}")
    g.stats |= {f"rest_{buf}": still, f"change_{buf}": busy, f"changes_{buf}": count}


def removed(g: Guest) -> None:
    """Names are removed, moved away or recreated ahead of the reader: it does not return those that are gone."""
    d, names = fill(g, g.p["n"])
    os.mkdir(g.path("other"))
    for buf in BUFFERS:
        names = removed_of(g, d, names, buf)
    g.equal(sorted(os.listdir(d)), sorted(names), "names in the end")


def removed_of(g: Guest, d: str, names: list[str], buf: int) -> list[str]:
    """The names that are left."""
    rng, other = random.Random(buf), g.path("other")
    gone: set[str] = set()
    ghosts = checked = 0

    def change(seen: list[str]) -> None:
        nonlocal ghosts, checked
        ghosts += len(gone & set(seen[checked:]))
        checked = len(seen)
        left = sorted(set(names) - set(seen) - gone)
        for number, name in enumerate(rng.sample(left, min(40, len(left)))):
            gone.add(name)
            if number % 3:
                os.unlink(os.path.join(d, name))
            else:
                os.rename(os.path.join(d, name), os.path.join(other, name))

    got, _ = listing(g, d, buf, change)
    g.want(len(gone) >= 40, f"only {len(gone)} names removed")
    g.equal(ghosts, 0, f"{buf} bytes a call: names that came after they had been removed")
    g.equal(len(got), len(set(got)), f"{buf} bytes a call: names twice")
    g.equal(sorted(set(names) - set(got) - gone), [], f"{buf} bytes a call: names missed")
    g.stats |= {f"removed_{buf}": len(gone)}
    return [name for name in names if name not in gone]


def fill_pairs(g: Guest) -> tuple[str, list[list[str]]]:
    """Fill a directory, and make pairs of names with equal hashes, of which the first exists, after all others."""
    d, _ = fill(g, g.p["n"] // 5)
    g.t("collide", "--dir", g.path("pairs"), "--model", g.model(), "--m", 1500000, "--n", 200,
        "--plan", SEED_WORDS, timeout=120)  # fmt: skip
    links: dict[int, list[str]] = {}
    for entry in os.scandir(g.path("pairs")):
        links.setdefault(entry.inode(), []).append(entry.name)
    pairs = [sorted(names)[:2] for names in links.values()]
    for old, _new in pairs:
        os.mknod(os.path.join(d, old))
    return d, pairs


def linked(g: Guest) -> None:
    """A link made ahead of the reader, with the key of a recorded name, does not replace that name."""
    d, pairs = fill_pairs(g)
    calls = 0

    def change(seen: list[str]) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            g.equal([old for old, _new in pairs if old in seen], [], "names that came too soon for this test")
            # The links come into these places, before the names whose keys they have.
            for name in set(seen) - {".", ".."}:
                os.unlink(os.path.join(d, name))
            for old, new in pairs:
                os.link(os.path.join(d, old), os.path.join(d, new))

    got, _ = listing(g, d, 8192, change)
    g.want(calls > 10, f"only {calls} calls")
    g.equal([old for old, _new in pairs if old not in got], [], "names missed")
    g.equal(len(got), len(set(got)), "names twice")


def renamed(g: Guest) -> None:
    """A name renamed to one with the same hash, and so with the same key, gets no dentry of the inode it had."""
    d, pairs = fill_pairs(g)
    before = {old for old, _new in pairs}
    calls = checked = renames = 0
    wrong: list[str] = []

    def change(seen: list[str]) -> None:
        nonlocal calls, checked, renames
        calls += 1
        if calls == 8:  # the reader looks at inodes, and its window has all names
            for old, new in pairs:
                renames += old not in seen
                os.rename(os.path.join(d, old), os.path.join(d, new))
        for name in seen[checked:]:
            with contextlib.suppress(FileNotFoundError):
                os.lstat(os.path.join(d, name))
                wrong.extend([name] if renames and name in before else [])
        checked = len(seen)

    listing(g, d, 8192, change)
    g.want(renames > 100, f"only {renames} names were renamed ahead of the reader")
    g.equal(wrong[:5], [], f"{len(wrong)} names that are gone, and were found")
    g.equal([new for _, new in pairs if not os.path.exists(os.path.join(d, new))][:5], [], "new names not found")


PARAMS = {"bs": 4096, "n": 20_000, "full": 300_000}
MKFS = ("-b", "4096", "-N", "330000", "-I", "256", "-m", "0")
case("reader-change", "scans", PARAMS, size="512M", cost=15, mkfs=MKFS, limit=1500)(storm)
case(
    "reader-change-linked", "scans", PARAMS, size="512M", cost=15, mkfs=(*MKFS, "-E", f"hash_seed={HASH_SEED}")
)(linked)
case("reader-change-removed", "scans", PARAMS, size="512M", cost=15, mkfs=MKFS)(removed)
case(
    "reader-change-renamed", "scans", PARAMS, size="512M", cost=15, mkfs=(*MKFS, "-E", f"hash_seed={HASH_SEED}")
)(renamed)
