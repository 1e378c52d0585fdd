# SPDX-License-Identifier: GPL-2.0-only
"""Damage to the nodes of a tree. Each function does one thing and says what; None: nothing to hit."""

from __future__ import annotations

import struct

from ondisk import FREE_MAGIC, ITREE_MAGIC, NODE_HEAD, NODE_TAIL, ROOT_INFO, SEG

INTERESTING = (0, 1, 2, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)


class Node:
    """A node picked to be damaged: its directory, its place, what it holds."""

    def __init__(self, disk, target, rng, want=None):
        self.disk, self.rng = disk, rng
        self.ino = rng.choice(target.trees)
        blocks = target.used_nodes(self.ino)
        self.all = blocks
        choice = [a for a in blocks if want is None or want(*self._head(a))]
        # The root and index nodes are few: half of the time it is one of them.
        upper = [a for a in choice if a == SEG or self._head(a)[1]]
        self.lblk = rng.choice(upper if upper and rng.random() < 0.5 else choice) if choice else None
        if self.lblk is not None:
            self.block = blocks[self.lblk]
            self.data = bytearray(disk.block(self.block))
            self.size = 12 if self._head(self.lblk)[1] else 8
            _, self.level, count = self._head(self.lblk)
            self.count = min(count, self.room)  # it may have been damaged before

    def _head(self, lblk):
        magic, _, level, count = struct.unpack_from("<IBBH", self.disk.block(self.all[lblk]))
        return magic, level, count

    @property
    def first(self):
        return NODE_HEAD + (ROOT_INFO if self.lblk == SEG else 0)

    @property
    def room(self):
        return (len(self.data) - self.first - NODE_TAIL) // self.size

    def write(self, how, fix=None):
        """Write it back, its checksum right unless fix is False; None: mostly."""
        self.disk.put_block(self.block, 0, bytes(self.data))
        fix = self.rng.random() < 0.8 if fix is None else fix
        if fix:
            self.disk.fix_node(self.ino, self.lblk, self.block)
        return f"directory {self.ino}, node +{self.lblk - SEG}: {how}" + ("" if fix else ", checksum left")

    def set(self, fmt, at, value):
        struct.pack_into(fmt, self.data, at, value)

    def entry(self, n):
        return self.first + n * self.size


def index(magic, level, count):
    return magic == ITREE_MAGIC and level > 0 and count > 0


def filled(magic, level, count):
    return magic == ITREE_MAGIC and count > 2


def bits(disk, target, rng):
    node = Node(disk, target, rng)
    # Where the entries are, or anywhere, the head more than its share.
    end = min(node.entry(node.count), disk.bs) if rng.random() < 0.7 else disk.bs
    end = rng.choice((end, end, NODE_HEAD + ROOT_INFO))
    spots = [rng.randrange(end * 8) for _ in range(rng.choice((1, 1, 1, 2, 3, 8)))]
    for bit in spots:
        node.data[bit // 8] ^= 1 << bit % 8
    return node.write(f"bits {spots} flipped")


def swap(disk, target, rng):
    one, two = Node(disk, target, rng), Node(disk, target, rng)
    if one.block == two.block:
        return None
    one.data, two.data = two.data, one.data
    fix = rng.random() < 0.7
    return f"swapped: {one.write('first', fix)}, {two.write('second', fix)}"


def copied(disk, target, rng):
    """A node of another tree, a directory's block, any block of the file system."""
    node = Node(disk, target, rng)
    other = Node(disk, target, rng)
    source = rng.choice((other.block, rng.randrange(disk.blocks), disk.inode_at(node.ino) // disk.bs))
    node.data = bytearray(disk.block(source))
    return node.write(f"copy of block {source}")


def child(disk, target, rng):
    node = Node(disk, target, rng, index)
    if node.lblk is None:
        return None
    n = rng.randrange(node.count)
    used = max(node.all) - SEG + 1
    what = rng.choice(("itself", "root", "another", "brother", "outside", "outside"))
    value = {
        "itself": node.lblk,
        "root": SEG,
        "another": rng.choice(list(node.all)),
        "brother": struct.unpack_from("<I", node.data, node.entry(rng.randrange(node.count)) + 8)[0],
        "outside": rng.choice((0, 1, SEG - 1, SEG + used, SEG + used + 1, SEG + 0x7FFFFFFE, 0xFFFFFFFF, 77)),
    }[what]
    node.set("<I", node.entry(n) + 8, value)
    return node.write(f"child {n} is {what} ({value:#x})")


def level(disk, target, rng):
    node = Node(disk, target, rng)
    value = rng.choice((0, 1, 2, 3, 4, 5, 6, 255))
    node.data[5] = value
    return node.write(f"level {value}")


def count(disk, target, rng):
    node = Node(disk, target, rng)
    at = rng.choice((6, 6, 8))
    value = rng.choice((0, 1, node.count - 1, node.count + 1, node.room, node.room + 1, 0x7FFF, 0xFFFF)) & 0xFFFF
    node.set("<H", at, value)
    return node.write(f"{'count' if at == 6 else 'limit'} {value}")


def head(disk, target, rng):
    node = Node(disk, target, rng)
    at, fmt, name = rng.choice(((0, "<I", "magic"), (4, "<B", "version"), (10, "<H", "reserved"), (12, "<I", "next")))
    value = rng.choice((0, 1, 2, 9, FREE_MAGIC, ITREE_MAGIC, SEG, 0xFFFFFFFF)) & (1 << 8 * struct.calcsize(fmt)) - 1
    node.set(fmt, at, value)
    return node.write(f"{name} {value:#x}")


def key(disk, target, rng):
    """One key another one: order may still be right."""
    node = Node(disk, target, rng, filled)
    if node.lblk is None:
        return None
    n = rng.randrange(node.count)
    at = node.entry(n) + rng.choice((0, 4))
    old = struct.unpack_from("<I", node.data, at)[0]
    value = rng.choice((old ^ 1, old ^ 2, old + 1, old - 1, rng.getrandbits(32), rng.choice(INTERESTING))) & 0xFFFFFFFF
    node.set("<I", at, value)
    return node.write(f"key {n}: {old:#x} became {value:#x}")


def keys(disk, target, rng):
    """Keys lost, doubled, exchanged; the count of the root follows or does not."""
    node = Node(disk, target, rng, filled)
    if node.lblk is None:
        return None
    n, size = rng.randrange(node.count - 1), node.size
    a, b = node.entry(n), node.entry(n + 1)
    what, change = rng.choice((("lost", -1), ("doubled", 1), ("over the next", 0), ("exchanged", 0)))
    if what == "exchanged":
        node.data[a : b + size] = node.data[b : b + size] + node.data[a:b]
    elif what == "over the next":
        node.data[b : b + size] = node.data[a:b]
    else:
        end = node.entry(node.room)
        entries = node.data[a:end]
        entries = entries[size:] + bytes(size) if change < 0 else entries[:size] + entries[:-size]
        node.data[a:end] = entries
        if node.count + change > node.room:
            return None
        node.set("<H", 6, node.count + change)
    text = node.write(f"key {n} {what}", True)
    if change and rng.random() < 0.7 and not node.level:
        block = target.nodes(node.ino)[SEG]
        total = struct.unpack("<Q", disk.get(block * disk.bs + NODE_HEAD, 8))[0]
        disk.put_block(block, NODE_HEAD, struct.pack("<Q", total + change))
        disk.fix_node(node.ino, SEG, block)
        text += ", root's count too"
    return text


def root(disk, target, rng):
    node = Node(disk, target, rng)
    node.lblk, node.block = SEG, target.nodes(node.ino)[SEG]
    node.data = bytearray(disk.block(node.block))
    at, fmt, name = rng.choice(
        (
            (0, "<Q", "keys"),
            (8, "<I", "blocks"),
            (12, "<I", "free head"),
            (16, "<I", "free count"),
            (20, "<B", "hash version"),
            (21, "<B", "reserved"),
        )  # fmt: skip
    )
    old = struct.unpack_from(fmt, node.data, NODE_HEAD + at)[0]
    value = rng.choice((old + 1, old - 1, 0, SEG, SEG + 1, rng.choice(list(node.all)), *INTERESTING, 1 << 63))
    value &= (1 << 8 * struct.calcsize(fmt)) - 1
    node.set(fmt, NODE_HEAD + at, value)
    return node.write(f"{name}: {old:#x} became {value:#x}")


def free_list(disk, target, rng):
    """The list of free nodes leads somewhere else."""
    node = Node(disk, target, rng, lambda magic, level, count: magic == FREE_MAGIC)
    if node.lblk is None:
        return None
    value = rng.choice((0, 1, node.lblk, SEG, rng.choice(list(node.all)), SEG + len(node.all), 0xFFFFFFFF))
    node.set("<I", 12, value)
    return node.write(f"free node's next is {value:#x}")


def content(disk, target, rng):
    node = Node(disk, target, rng)
    what = rng.choice(("zeros", "ones", "noise", "half"))
    if what == "half":
        half = len(node.data) // 2
        node.data[half:] = bytes(len(node.data) - half)
    elif what == "noise":
        node.data = bytearray(rng.randbytes(disk.bs))
    else:
        node.data = bytearray((b"\0" if what == "zeros" else b"\xff") * disk.bs)
    return node.write(what)


def checksum(disk, target, rng):
    node = Node(disk, target, rng)
    if not disk.csum:
        return None
    node.data[-rng.choice((1, 2, 3, 4))] ^= 1 << rng.randrange(8)
    return node.write("checksum", False)


KINDS = {
    "tree-bits": (6, bits), "tree-swap": (3, swap), "tree-copy": (3, copied), "tree-child": (6, child),
    "tree-level": (3, level), "tree-count": (4, count), "tree-head": (3, head), "tree-key": (5, key),
    "tree-keys": (5, keys), "tree-root": (6, root), "tree-free": (4, free_list), "tree-content": (3, content),
    "tree-checksum": (2, checksum),
}  # fmt: skip
