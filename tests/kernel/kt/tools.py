# SPDX-License-Identifier: GPL-2.0-only
"""Tools on mounted and encrypted file systems: their output, and that they do not damage trees."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import struct

from kt.guest import FL_INDEX, SEGMENT, Guest
from kt.online import make_dir, mount
from kt.registry import case
from kt.roundtrip import debugfs

EXTENT = re.compile(r" *\d+: +(\d+)\.\. *(\d+): +(\d+)\.\. *(\d+): +(\d+): +(?:(\d+):)? *,?(\S*)")


def exact(g: Guest, path: str = "/d") -> None:
    """Check while unmounted that the tree is there and matches its directory."""
    output = debugfs(g, f"itree_verify {path}", write=False)
    g.want("clean" in output, f"itree_verify {path} says {output[:200]!r}")


def repair(g: Guest, *options: str) -> int:
    """e2fsck as given, then -fn; returns the first exit code."""
    code = g.run(g.tool("e2fsck"), *options, g.dev, check=False, timeout=300).returncode
    g.want(code in (0, 1), f"e2fsck {' '.join(options)}: exit code {code}")
    g.fsck()
    return code


# --- filefrag, e2freefrag, lsattr, dumpe2fs


def filefrag(g: Guest, path: str, *options: str) -> tuple[int, list[tuple]]:
    """(extents that it counts, [(logical, physical, length, expected or None, flags)])"""
    out = g.run(g.tool("filefrag"), *options, "-v", path).stdout
    found = []
    for m in filter(None, map(EXTENT.fullmatch, out.splitlines())):
        logical, end, physical, last, length = map(int, m.groups()[:5])
        g.want(end - logical + 1 == length == last - physical + 1, f"filefrag does not add up: {m[0]!r}")
        found.append((logical, physical, length, int(m[6]) if m[6] else None, m[7].split(",")))
    counted = re.search(r": (\d+) extents? found", out)
    if not counted or not found:
        g.fail(f"filefrag of {path} says {out[-400:]!r}")
        return 0, []
    return int(counted[1]), found


def filefrag_of_directories(g: Guest) -> None:
    d, bsize = g.path(), os.statvfs(g.mnt).f_bsize
    counted, extents = filefrag(g, d)
    own = [e for e in extents if "itree" not in e[4]]
    tree = [e for e in extents if "itree" in e[4]]
    g.equal(sum(e[2] for e in own), g.dir_blocks(d), "blocks of the directory, by filefrag")
    g.equal([e[0] for e in own if "eof" in e[4]], [own[-1][0]], "extents marked eof")
    want = [(logical, physical // bsize, length // bsize) for logical, physical, length in g.segment(d)]
    g.equal([e[:3] for e in tree], want, "the tree's extents, by filefrag")
    g.equal(tree[0][0], SEGMENT, "the tree's first block")
    breaks = 0
    for before, this in zip(extents, extents[1:], strict=False):
        follows = this[1] == before[1] + before[2]
        breaks += not follows
        g.equal(this[3], None if follows else before[1] + before[2], f"where filefrag expects block {this[0]}")
    g.equal(counted, 1 + breaks, "extents that filefrag counts")
    # The same in other units; other kinds of inode are shown as before.
    factor = bsize // 512
    in_sectors = [tuple(x * factor for x in e[:3]) for e in extents]
    g.equal([e[:3] for e in filefrag(g, d, "-b512")[1]], in_sectors, "extents in sectors")
    for path in ("small", "plain"):
        for extent in filefrag(g, g.path(path))[1]:
            g.want("itree" not in extent[4], f"filefrag finds a tree in {path}: {extent}")
    g.stats["extents"] = counted


def free_space(g: Guest) -> None:
    """While unmounted: the histogram adds up to the free blocks, and counts no tree's block."""
    out = g.run(g.tool("e2freefrag"), g.dev).stdout
    rows = re.findall(r"^ *\d+[KMGT]?\.\.\. +\d+[KMGT]?- *: +(\d+) +(\d+) +[\d.]+%$", out, re.M)
    head = g.run(g.tool("dumpe2fs"), "-h", g.dev).stdout
    free = int(re.search(r"^Free blocks: +(\d+)", head, re.M)[1])
    g.equal(sum(int(blocks) for _, blocks in rows), free, "free blocks in e2freefrag's histogram")
    g.equal(int(re.search(r"^Free blocks: (\d+)", out, re.M)[1]), free, "free blocks by e2freefrag")
    g.want("itree" in re.search(r"^Filesystem features: +(.*)$", head, re.M)[1].split(), "dumpe2fs: no itree")


def shown(g: Guest) -> None:
    g.mount()
    os.mkdir(g.path("small"))
    # A file between the directory's blocks now and then: they are in pieces.
    for n in (700, 1400, 3000):
        pathlib.Path(g.path("plain" if n == 3000 else f"between{n}")).write_bytes(b"x" * 70000)
        g.t("fill", "--dir", g.path(f"d{n}"), "--model", g.model(f"d{n}"), "--n", n, "--names", "mixed")
    os.rename(g.path("d3000"), g.path())
    os.sync()
    g.want_tree(g.path())
    lsattr = pathlib.Path(g.job["sbin"]).parent / "bin" / "lsattr"
    for name, due in (("d", True), ("small", False), ("plain", False)):
        letters = g.run(lsattr, "-d", g.path(name)).stdout.split()[0]
        g.equal("O" in letters, due, f"the tree's letter in what lsattr says of {name} ({letters})")
        long = g.run(lsattr, "-dl", g.path(name)).stdout
        g.equal("Inode_Ordered" in long, due, f"the tree's name in what lsattr -l says of {name} ({long.strip()})")
    filefrag_of_directories(g)
    g.umount()
    free_space(g)
    exact(g)


for _bs in (1024, 4096):
    case(f"shown-{_bs}", "tools", {}, mkfs=("-b", str(_bs)), size="128M", cost=12)(shown)


# --- e4defrag


def in_pieces(g: Guest, folder: str, count: int, rounds: int) -> dict[str, bytes]:
    """Files whose blocks alternate on the disk."""
    size = os.statvfs(g.mnt).f_bsize * 2
    written = {f"{folder}/piece{i}": b"" for i in range(count)}
    for round_ in range(rounds):
        for number, path in enumerate(written):
            data = bytes([65 + round_, number]) * (size // 2)
            with open(path, "ab") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())
            written[path] += data
    return written


def defrag(g: Guest) -> None:
    """Defragmenting a whole volume makes its files contiguous and does not move directories and trees."""
    g.mount()
    written = {}
    for name in ("d", "e"):
        g.t("fill", "--dir", g.path(name), "--model", g.model(name), "--n", 2500, "--names", "mixed")
        written |= in_pieces(g, g.path(name), 12, 6)
        g.want_tree(g.path(name))
    os.sync()

    def pieces():
        return sum(filefrag(g, path)[0] for path in written)

    def maps():
        """(directory, logical block): physical block"""
        return {
            (name, logical + n): physical + n
            for name in ("d", "e")
            for logical, physical, length, *_ in filefrag(g, g.path(name))[1]
            for n in range(length)
        }

    names = {name: sorted(os.listdir(g.path(name))) for name in ("d", "e")}
    before, where = pieces(), maps()
    g.want(before > 3 * len(written), f"{len(written)} files in {before} pieces: nothing to do")
    g.run(g.tool("e4defrag"), g.mnt, check=False, timeout=300)
    os.sync()
    after = pieces()
    g.want(after < before // 2, f"{before} pieces before, {after} after e4defrag")
    g.stats.update(before=before, after=after)
    # A name that e4defrag makes for a moment may split a leaf: blocks come to them, and none moves.
    now = maps()
    moved = {at: (block, now.get(at)) for at, block in where.items() if now.get(at) != block}
    g.equal(moved, {}, "blocks of the directories that moved")
    g.want(len(now) < len(where) + 24, f"the directories grew from {len(where)} to {len(now)} blocks")
    g.again()
    for path, data in written.items():
        g.want(pathlib.Path(path).read_bytes() == data, f"other contents in {path}")
    for name in ("d", "e"):
        g.want_tree(g.path(name))
        g.t("self", "--dir", g.path(name), *g.order)
        g.equal(sorted(os.listdir(g.path(name))) == names[name], True, f"the names in {name}")
    g.equal(g.counter("drops"), 0, "trees dropped")
    g.fsck()
    exact(g, "/d")
    exact(g, "/e")


case("defrag", "tools", {}, mkfs=("-b", "4096"), size="256M", cost=15)(defrag)


# --- e2fsck without the key


def without_key(g: Guest) -> None:
    """e2fsck checks, packs and repairs the tree of a directory whose names it cannot read."""
    from kt.matrix import full_check, remounted, set_up

    d = g.path()
    g.mount()
    set_up(g)
    g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["n"], "--names", g.p["names"])
    g.t("age", "--dir", d, "--model", g.model(), "--percent", 30, "--seed", 3, "--names", g.p["names"])
    g.want_tree(d)
    g.fsck()
    exact(g)
    before = debugfs(g, "itree_stat /d", write=False)
    hashed = re.search(r"Content hash: \S+", before)
    for options, damage in (
        (("-fy",), ""),
        (("-fyD",), ""),
        (("-fy",), "itree_poke /d 0 0 00000000"),
        (("-fy",), "itree_poke /d 1 16 0b000000"),
        (("-fy",), "itree_drop /d"),
        (("-fyD",), ""),
    ):
        if damage:
            debugfs(g, damage)
            code = repair(g, *options)
            g.equal(code, 0 if "drop" in damage else 1, f"exit code of e2fsck -fy after {damage}")
        else:
            repair(g, *options)
        if "drop" in damage:
            continue
        exact(g)
        now = debugfs(g, "itree_stat /d", write=False)
        g.want(hashed and hashed[0] in now, f"other keys after {damage} e2fsck {options}: {before!r}, then {now!r}")
    g.mount()
    g.listing(None, None, "--nokey")
    remounted(g)
    full_check(g)
    # A directory that e2fsck has packed works like any other.
    g.t("age", "--dir", d, "--model", g.model(), "--percent", 20, "--seed", 4, "--names", g.p["names"])
    g.listing()
    g.equal(g.counter("drops"), 0, "trees dropped")


case(
    "without-key", "tools", {"n": 3000, "names": "skew", "crypt": True},
    features="encrypt", mkfs=("-b", "1024"), size="128M", cost=25,
)(without_key)  # fmt: skip
case(
    "without-key-casefold", "tools", {"n": 400, "names": "ascii", "crypt": True, "casefold": True},
    features="encrypt,casefold", mkfs=("-b", "1024", "-E", "encoding=utf8"), size="128M", cost=25,
)(without_key)  # fmt: skip


def numbered(g: Guest, d: str) -> dict[str, int]:
    """Makes the directory and its names; returns the inode of each."""
    mount(g)
    make_dir(g, d)
    for i in range(g.p["n"]):
        os.mknod(os.path.join(d, f"name-{i:06}"))
    return dict(g.names())


def two_levels(g: Guest) -> None:
    """Encrypted, casefolded directories with index blocks below the root: e2fsck and kernel agree on their size."""
    d = g.path()
    names = numbered(g, d)
    want_names(g, d, names, "before e2fsck")
    g.fsck()
    g.want("Indirect levels: 1" in htree(g), "the htree of the kernel has one level only")
    mount(g)
    want_names(g, d, names, "after e2fsck -fn")
    g.umount()
    repair(g, "-fyD")
    g.want("Indirect levels: 1" in htree(g), "the htree of e2fsck has one level only")
    mount(g)
    want_names(g, d, names, "after e2fsck -fyD")
    # A kernel that refuses the index continues without it and drops it at the next create.
    os.mknod(os.path.join(d, "one-more"))
    g.want(g.flags(d) & FL_INDEX, "the directory has lost its htree")
    g.want("dx entry" not in g.log(), "the kernel refuses the index blocks of e2fsck")
    g.fsck()


def want_names(g: Guest, d: str, names: dict[str, int], when: str) -> None:
    """Check that each name is found, also in other case."""
    for change in (str.lower, str.upper):
        lost = {x for x, inode in names.items() if not found(os.path.join(d, change(x)), inode)}
        g.equal(sorted(lost)[:5], [], f"{len(lost)} names that are not found by {change.__name__}, {when}")


def found(path: str, inode: int) -> bool:
    try:
        return os.stat(path).st_ino == inode
    except FileNotFoundError:
        return False


def htree(g: Guest) -> str:
    return debugfs(g, "htree_dump /d", write=False)


for _id, _itree in (("", True), ("-stock", False)):
    case(f"two-levels-crypt-casefold{_id}", "tools", {"n": 5000, "crypt": True, "casefold": True}, itree=_itree,
         cost=20, features="encrypt,casefold", mkfs=("-b", "1024"))(two_levels)  # fmt: skip


def raw_entries(g: Guest) -> list[tuple[int, int, bytes]]:
    """(hash, inode, name as it is stored) of a directory whose entries hold their hash; unmounted."""
    dump = g.tmp / "dump"
    g.tmp.mkdir(parents=True, exist_ok=True)
    debugfs(g, f"dump /d {dump}", write=False)
    data, entries = dump.read_bytes(), []
    for block in range(0, len(data), 1024):
        at = 0
        while at < 1024:
            inode, size, length = struct.unpack_from("<IHB", data, block + at)
            name = data[block + at + 8 : block + at + 8 + length]
            if inode and length > 2:
                entries.append((struct.unpack_from("<I", data, block + at + 8 + (length + 3) // 4 * 4)[0], inode, name))
            at += size
    return entries


def nul_names(g: Guest) -> None:
    """Encrypted names that begin with a NUL, neighbours by their hash: for e2fsck -D they are no duplicates."""
    d = g.path()
    names = numbered(g, d)
    g.umount()
    entries = sorted(raw_entries(g))
    g.equal(len(entries), len(names), "entries on the disk")
    places = [i for i, (_hash, _inode, name) in enumerate(entries) if not name[0]]
    _gap, first, last = min((b - a, a, b) for a, b in itertools.pairwise(places))
    between = {inode for _hash, inode, _name in entries[first + 1 : last]}
    mount(g)
    for name, inode in list(names.items()):
        if inode in between:
            os.unlink(os.path.join(d, name))
            del names[name]
    g.fsck()
    repair(g, "-fyD")
    mount(g)
    g.equal(dict(g.names()), names, "names after e2fsck -fyD")
    g.stats |= {"nul_names": len(places), "names": len(names)}


case("nul-names-crypt-casefold", "tools", {"n": 3000, "crypt": True, "casefold": True}, itree=False, cost=15,
     features="encrypt,casefold", mkfs=("-b", "1024"))(nul_names)  # fmt: skip
