# SPDX-License-Identifier: GPL-2.0-only
"""Damage to what a tree stands on: the inode, its extents, the htree, the names, the books of the groups."""

from __future__ import annotations

import struct

import ondisk
from ondisk import EXT_MAGIC, SEG

# Flags that change how a directory's or a file's blocks are read.
FLAGS = {
    "INDEX": ondisk.INDEX_FL, "EXTENTS": ondisk.EXTENTS_FL, "ITREE": ondisk.ITREE_FL, "INLINE_DATA": ondisk.INLINE_FL,
    "HUGE_FILE": 0x40000, "CASEFOLD": 0x40000000, "ENCRYPT": 0x800, "IMMUTABLE": 0x10, "APPEND": 0x20,
    "EA_INODE": 0x200000, "VERITY": 0x100000, "PROJINHERIT": 0x20000000, "COMPR": 4,
}  # fmt: skip


def victim(target, rng):
    """Mostly a directory with a tree, else a file."""
    return rng.choice(target.trees if rng.random() < 0.8 else target.files)


def close_inode(disk, rng, ino, text):
    fix = rng.random() < 0.85
    if fix:
        disk.fix_inode(ino)
    return f"inode {ino}: {text}" + ("" if fix else ", checksum left")


def flags(disk, target, rng):
    ino = victim(target, rng)
    names = rng.sample(list(FLAGS), rng.choice((1, 1, 2)))
    # The tree's own flag most of all.
    if rng.random() < 0.4:
        names = ["ITREE"]
    value = disk.flags(disk.inode(ino))
    for name in names:
        value ^= FLAGS[name]
    disk.put_inode(ino, 32, struct.pack("<I", value))
    return close_inode(disk, rng, ino, f"flags {', '.join(names)} changed")


def size(disk, target, rng):
    ino = victim(target, rng)
    old = struct.unpack_from("<I", disk.inode(ino), 4)[0]
    value = rng.choice((0, 1, disk.bs, old - disk.bs, old + disk.bs, old * 2, old // 2, old + 1, 0x7FFFFFFF,
                        0x80000000, 0xFFFFFFFF, rng.getrandbits(32)))  # fmt: skip
    disk.put_inode(ino, 4, struct.pack("<I", value & 0xFFFFFFFF))
    text = f"i_size {value}"
    if rng.random() < 0.2:
        high = rng.choice((1, 0x200, 0x7FFFFFFF, rng.getrandbits(32)))
        disk.put_inode(ino, 108, struct.pack("<I", high))
        text += f" and its high half {high}"
    return close_inode(disk, rng, ino, text)


def blocks(disk, target, rng):
    ino = victim(target, rng)
    old = struct.unpack_from("<I", disk.inode(ino), 28)[0]
    value = rng.choice((0, old - 2, old + 2, old * 2, 0xFFFFFFFF, rng.getrandbits(32))) & 0xFFFFFFFF
    disk.put_inode(ino, 28, struct.pack("<I", value))
    return close_inode(disk, rng, ino, f"i_blocks {value}")


class Place:
    """An extent tree's node: in the inode or a block of its own."""

    def __init__(self, disk, rng, ino, home):
        self.disk, self.rng, self.ino, self.home = disk, rng, ino, home

    def put(self, offset, data):
        if self.home is None:
            self.disk.put_inode(self.ino, 40 + offset, data)
        else:
            self.disk.put_block(self.home, offset, data)

    def close(self, text):
        where = "inode" if self.home is None else f"block {self.home}"
        fix = self.rng.random() < 0.85
        if fix and self.home is None:
            self.disk.fix_inode(self.ino)
        elif fix:
            self.disk.fix_extent_block(self.ino, self.home)
        return f"extents of {self.ino} in {where}: {text}" + ("" if fix else ", checksum left")


def somewhere(disk, target, rng, ino):
    """A physical block that the extent has no right to."""
    other = rng.choice(target.files + target.trees)
    mapped = [p for _, p in target.mapped(other)] or [0]
    own = [p for _, p in target.mapped(ino)] or [0]
    group = rng.randrange(disk.groups)
    what, block = rng.choice((
        ("another inode's", rng.choice(mapped)), ("its own", rng.choice(own)),
        ("a bitmap", disk.desc(group)[0]), ("the inode table", disk.desc(group)[2] + rng.randrange(4)),
        ("the superblock", disk.first_block), ("beyond the end", disk.blocks + rng.randrange(9)),
        ("nowhere", 0), ("any", rng.randrange(disk.blocks)), ("far beyond", 1 << 40),
    ))  # fmt: skip
    return what, block


def extent(disk, target, rng):
    """One entry: logical, length, physical."""
    ino = victim(target, rng)
    entries = target.extents[ino]
    segment = [e for e in entries if e.lblk >= SEG or e.depth]
    if segment and rng.random() < 0.6:
        entries = segment
    if not entries:
        return None
    e = rng.choice(entries)
    place = Place(disk, rng, ino, e.home)
    what = rng.choice(("physical", "physical", "physical", "length", "logical"))
    if what == "physical":
        text, block = somewhere(disk, target, rng, ino)
        low, high = struct.pack("<I", block & 0xFFFFFFFF), struct.pack("<H", block >> 32)
        place.put(e.offset + (4 if e.depth else 8), low)
        place.put(e.offset + (8 if e.depth else 6), high)
        text = f"{text} ({block})"
    elif what == "length":
        if e.depth:
            return None
        value = rng.choice((0, 1, e.length - 1, e.length + 1, e.length | 0x8000, 32768, 32769, 0xFFFF)) & 0xFFFF
        place.put(e.offset + 4, struct.pack("<H", value))
        text = str(value)
    else:
        value = rng.choice((0, e.lblk - 1, e.lblk + 1, SEG, SEG - 1, SEG + 5, e.lblk ^ SEG, 0xFFFFFFFF)) & 0xFFFFFFFF
        place.put(e.offset, struct.pack("<I", value))
        text = f"{value:#x}"
    return place.close(f"entry for {e.lblk:#x} (depth {e.depth}): {what} is {text}")


def extent_head(disk, target, rng):
    ino = victim(target, rng)
    homes = {e.home for e in target.extents[ino]}
    if not homes:
        return None
    home = rng.choice(sorted(homes, key=lambda h: h or 0))
    place = Place(disk, rng, ino, home)
    at, name = rng.choice(((0, "magic"), (2, "entries"), (2, "entries"), (4, "limit"), (6, "depth"), (6, "depth")))
    data = disk.block(home) if home else disk.inode(ino)[40:]
    old = struct.unpack_from("<H", data, at)[0]
    value = rng.choice((0, 1, 2, old - 1, old + 1, 5, 6, EXT_MAGIC, 0xFFFF)) & 0xFFFF
    place.put(at, struct.pack("<H", value))
    return place.close(f"{name} {old} became {value}")


def dir_blocks(disk, target, rng, leaf):
    """A block of a directory with a tree: of names, or of the htree."""
    ino = rng.choice(target.trees)
    size = struct.unpack_from("<I", disk.inode(ino), 4)[0] // disk.bs
    out = []
    for lblk, p in target.mapped(ino):
        if lblk < size:
            data = disk.block(p)
            # dx nodes begin with an entry that takes the whole block and names nothing.
            index = lblk == 0 or (data[:4] == b"\0\0\0\0" and struct.unpack_from("<H", data, 4)[0] in (disk.bs, 0xFFFF))
            if index != leaf:
                out.append((lblk, p))
    return (ino, *rng.choice(out)) if out else None


def htree(disk, target, rng):
    found = dir_blocks(disk, target, rng, leaf=False)
    if not found:
        return None
    ino, lblk, block = found
    data = bytearray(disk.block(block))
    at = 32 if lblk == 0 else 8
    count = struct.unpack_from("<H", data, at + 2)[0]
    what = rng.choice(("hash", "block", "block", "count", "bits", "info" if lblk == 0 else "hash"))
    n = rng.randrange(max(count, 1))
    if what == "hash":
        struct.pack_into("<I", data, at + 8 * max(n, 1), rng.getrandbits(32) & ~1)
    elif what == "block":
        struct.pack_into("<I", data, at + 8 * n + 4, rng.choice((0, 1, lblk, n, SEG, SEG + 1, 0x0FFFFFFF, 999999)))
    elif what == "count":
        struct.pack_into("<H", data, at + rng.choice((0, 2)), rng.choice((0, 1, count - 1, count + 1, 0xFFFF)) & 0xFFFF)
    elif what == "info":
        data[rng.choice((24, 28, 29, 30))] = rng.choice((0, 1, 2, 3, 4, 5, 6, 7, 8, 255))
    else:
        bit = rng.randrange(8 * (at + 8 * count))
        data[bit // 8] ^= 1 << bit % 8
    disk.put_block(block, 0, bytes(data))
    fix = rng.random() < 0.8
    if fix:
        disk.fix_dx(ino, block, lblk == 0)
    return f"directory {ino}, htree block {lblk}: {what} changed" + ("" if fix else ", checksum left")


def names(disk, target, rng):
    found = dir_blocks(disk, target, rng, leaf=True)
    if not found:
        return None
    ino, lblk, block = found
    data = bytearray(disk.block(block))
    what = rng.choice(("bits", "bits", "zeros", "noise", "inode", "length"))
    if what == "bits":
        for _ in range(rng.choice((1, 1, 2, 5))):
            bit = rng.randrange(8 * disk.bs)
            data[bit // 8] ^= 1 << bit % 8
    elif what == "zeros":
        data = bytearray(disk.bs)
    elif what == "noise":
        data = bytearray(rng.randbytes(disk.bs))
    else:
        starts, at = [], 0
        while at + 8 <= disk.bs - 12:
            starts.append(at)
            at += struct.unpack_from("<H", data, at + 4)[0] or disk.bs
        at = rng.choice(starts)
        if what == "inode":
            value = rng.choice((0, 1, 2, ino, disk.inodes, disk.inodes + 1, rng.getrandbits(32)))
            struct.pack_into("<I", data, at, value)
        else:
            struct.pack_into("<H", data, at + 4, rng.choice((0, 8, 11, 12, disk.bs, 0xFFFF)))
    disk.put_block(block, 0, bytes(data))
    fix = rng.random() < 0.7
    if fix:
        disk.fix_leaf(ino, block)
    return f"directory {ino}, names in block {lblk}: {what} changed" + ("" if fix else ", checksum left")


def descriptor(disk, target, rng):
    group = rng.randrange(disk.groups)
    at, name = rng.choice(((12, "free blocks"), (14, "free inodes"), (16, "directories"), (18, "flags"),
                           (28, "unused inodes"), (30, "checksum")))  # fmt: skip
    old = struct.unpack("<H", disk.get(disk.desc_at(group) + at, 2))[0]
    values = (0, 1, old - 1, old + 1, 0xFFFF, disk.inodes_per_group) if name != "flags" else (0, 1, 2, 3, 4, 5, 7)
    value = rng.choice(values) & 0xFFFF
    disk.put(disk.desc_at(group) + at, struct.pack("<H", value))
    if name != "checksum" and rng.random() < 0.85:
        disk.fix_desc(group)
    return f"group {group}: {name} {old} became {value}"


def bitmap(disk, target, rng):
    group, inodes = rng.randrange(disk.groups), rng.random() < 0.4
    block = disk.desc(group)[inodes]
    count = disk.inodes_per_group if inodes else min(disk.clusters_per_group, disk.blocks)
    spots = [rng.randrange(count) for _ in range(rng.choice((1, 1, 3, 20)))]
    for bit in spots:
        at = block * disk.bs + bit // 8
        disk.put(at, bytes([disk.get(at, 1)[0] ^ 1 << bit % 8]))
    fix = rng.random() < 0.8
    if fix:
        disk.fix_bitmap(group, inodes)
    kind = "inode" if inodes else "block"
    return f"group {group}: bits {spots} of the {kind} bitmap flipped" + ("" if fix else ", checksum left")


KINDS = {
    "inode-flags": (4, flags), "inode-size": (3, size), "inode-blocks": (2, blocks), "extent": (8, extent),
    "extent-head": (3, extent_head), "htree": (4, htree), "names": (3, names), "group": (2, descriptor),
    "bitmap": (2, bitmap),
}  # fmt: skip
