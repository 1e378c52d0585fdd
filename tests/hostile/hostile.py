# SPDX-License-Identifier: GPL-2.0-only
"""corrupt(path, seed): damage a good itree image in place, the same way for the same seed.

Knows nothing of who reads the image afterwards: e2fsck's tests use it, and whoever mounts such images.
"""

from __future__ import annotations

import random
import struct
import tempfile

import damage_around
import damage_tree
import ondisk

# name: (how often, function)
KINDS = {**damage_tree.KINDS, **damage_around.KINDS}


class Recorder(ondisk.Disk):
    """Keeps what is written and notes which blocks and inodes it hit."""

    def __init__(self, path):
        super().__init__(path)
        self.edits = []  # ("put", position, bytes) or the name of a fix_*() and its arguments
        self.hit_blocks = set()
        self.hit_inodes = set()

        self.fixing = False

    def put(self, at, data):
        if not self.fixing:
            self.edits.append(("put", at, bytes(data)))
        super().put(at, data)

    def _fix(self, name, *args):
        """A checksum: another image may need another one."""
        if self.fixing:  # one fix calls another
            return getattr(super(), name)(*args)
        self.edits.append((name, *args))
        self.fixing = True
        try:
            return getattr(super(), name)(*args)
        finally:
            self.fixing = False

    # What damage uses; the checksum is a matter of its own.

    def put_block(self, block, offset, data):
        data = data[: self.bs - offset]
        self.hit_blocks.add(block)
        self.put(block * self.bs + offset, data)

    def put_inode(self, ino, offset, data):
        self.hit_inodes.add(ino)
        self.put(self.inode_at(ino) + offset, data)


def _recorded(name):
    return lambda self, *args: self._fix(name, *args)


for _name in ("fix_desc", "fix_bitmap", "fix_inode", "fix_extent_block", "fix_leaf", "fix_dx", "fix_node"):
    setattr(Recorder, _name, _recorded(_name))


class Target:
    """What there is to damage, as it was before the first damage: what is found later may lead anywhere."""

    def __init__(self, disk, trees=True):
        self.disk = disk
        self.trees, self.files = [], []
        self.extents = {}  # inode: entries of its extent tree
        for ino in range(11, disk.inodes + 1):
            inode = disk.inode(ino)
            mode = disk.mode(inode) & 0xF000
            if mode == ondisk.S_IFDIR and disk.flags(inode) & ondisk.ITREE_FL:
                self.trees.append(ino)
            elif mode == ondisk.S_IFREG:
                self.files.append(ino)
            else:
                continue
            self.extents[ino] = disk.extents(ino, inode)
        if (trees and not self.trees) or not self.files:
            raise ValueError("the image has no directory with an itree, or no files")
        self._nodes, self._used = {}, {}
        for ino in self.trees:
            self._nodes[ino] = nodes = {a: b for a, b in self.mapped(ino) if a >= ondisk.SEG}
            heads = {a: struct.unpack_from("<I", disk.block(b))[0] for a, b in nodes.items()}
            self._used[ino] = {a: nodes[a] for a in nodes if heads[a] in (ondisk.ITREE_MAGIC, ondisk.FREE_MAGIC)}

    def mapped(self, ino):
        """[(logical block, physical)]"""
        return [(e.lblk + i, e.pblk + i) for e in self.extents[ino] if not e.depth for i in range(e.length)]

    def nodes(self, ino):
        """{logical block: physical} of the segment of a directory"""
        return self._nodes[ino]

    def used_nodes(self, ino):
        """The same, blocks only that are nodes of the tree or free ones"""
        return self._used[ino]


class Damage:
    """What was done: str() tells it; hit_blocks and hit_inodes are what may now be lost."""

    def __init__(self, seed, texts, kinds, disk):
        self.seed, self.texts, self.kinds = seed, texts, kinds
        self.edits, self.hit_blocks, self.hit_inodes = disk.edits, disk.hit_blocks, disk.hit_inodes

    def __str__(self):
        return f"seed {self.seed}: " + "; ".join(self.texts)


def corrupt(path, seed, kinds=None):
    """Damage the image at path in one to three places; kinds: choose among these names only.

    Returns the Damage. The same image, seed and kinds give the same damage.
    """
    rng = random.Random(f"itree hostile 1 {seed}")
    names = list(kinds or KINDS)
    weights = [KINDS[name][0] for name in names]
    with Recorder(path) as disk:
        target = Target(disk)
        texts, done = [], []
        for _ in range(rng.choice((1, 1, 1, 1, 1, 1, 1, 2, 2, 3))):
            # Some damage has nothing to hit in some images: take the next.
            for _ in range(50):
                name = rng.choices(names, weights)[0]
                text = KINDS[name][1](disk, target, rng)
                if text:
                    texts.append(f"{name}: {text}")
                    done.append(name)
                    break
            else:
                raise ValueError(f"{path}: nothing that {', '.join(names)} could damage")
        return Damage(seed, texts, done, disk)


def edits(path, seeds, kinds=None):
    """What corrupt() would do to the image at path, which stays as it is: for each seed (Damage, {position: bytes})."""
    with open(path, "rb") as handle:
        good = handle.read()
    with tempfile.TemporaryDirectory() as tmp:
        scratch = f"{tmp}/image"
        for seed in seeds:
            with open(scratch, "wb") as handle:
                handle.write(good)
            damage = corrupt(scratch, seed, kinds)
            found = {}
            with open(scratch, "rb") as handle:
                for at in range(0, len(good), 512):
                    sector = handle.read(512)
                    if sector != good[at : at + 512]:
                        found[at] = sector
            yield damage, found


def replay(path, damage):
    """Make the same damage to a twin of the image: the same bytes at the same places, checksums made anew.

    A twin has its inodes and blocks where the image has them, as `tune2fs -O ^itree` leaves them.
    """
    with ondisk.Disk(path) as disk:
        for what, *args in damage.edits:
            getattr(disk, what)(*args)
