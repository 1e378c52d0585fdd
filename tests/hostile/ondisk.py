# SPDX-License-Identifier: GPL-2.0-only
"""Just enough of ext4's format to find things in an image and to write them back with a right checksum.

Reading follows what is there and believes nothing: it is used on images that were damaged and repaired.
"""

from __future__ import annotations

import struct

INDEX_FL, EXTENTS_FL, ITREE_FL, INLINE_FL = 0x1000, 0x80000, 0x08000000, 0x10000000
RO_CSUM, RO_GDT_CSUM, INCOMPAT_64BIT, INCOMPAT_CSUM_SEED = 0x400, 0x10, 0x80, 0x2000
SEG = 0x80000000
ITREE_MAGIC, FREE_MAGIC = 0x45525449, 0x46525449
EXT_MAGIC = 0xF30A
NODE_HEAD, ROOT_INFO, NODE_TAIL = 16, 32, 8
S_IFDIR, S_IFREG = 0x4000, 0x8000


def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


CRC_TABLE = _table()


def crc32c(seed, data):
    """As the kernel's: neither inverted before nor after."""
    table = CRC_TABLE
    for byte in data:
        seed = table[(seed ^ byte) & 0xFF] ^ seed >> 8
    return seed


def le32(value):
    return struct.pack("<I", value & 0xFFFFFFFF)


class Extent:
    """One entry of an extent tree, and where it is: (home, offset), home None for the inode."""

    __slots__ = ("depth", "home", "lblk", "length", "offset", "pblk")

    def __init__(self, home, offset, depth, lblk, pblk, length):
        self.home, self.offset, self.depth = home, offset, depth
        self.lblk, self.pblk, self.length = lblk, pblk, length


class Disk:
    """An image, opened for reading and writing."""

    def __init__(self, path, write=True):
        self.file = open(path, "r+b" if write else "rb", buffering=0)
        sb = self.file.read(2048)[1024:]
        if struct.unpack_from("<H", sb, 56)[0] != 0xEF53:
            self.file.close()
            raise ValueError(f"{path} is no ext4 image")
        self.inodes, self.blocks = struct.unpack_from("<II", sb, 0)
        self.first_block, log = struct.unpack_from("<II", sb, 20)
        self.bs = 1024 << log
        self.blocks_per_group, self.clusters_per_group, self.inodes_per_group = struct.unpack_from("<III", sb, 32)
        self.isize = struct.unpack_from("<H", sb, 88)[0]
        incompat, ro = struct.unpack_from("<II", sb, 96)
        self.csum = bool(ro & RO_CSUM)
        self.desc_size = struct.unpack_from("<H", sb, 254)[0] if incompat & INCOMPAT_64BIT else 32
        self.groups = -(-(self.blocks - self.first_block) // self.blocks_per_group)
        self._desc = {}
        self.gdt = (1024 // self.bs + 1) * self.bs  # behind the superblock
        seeded = incompat & INCOMPAT_CSUM_SEED
        self.seed = struct.unpack_from("<I", sb, 0x270)[0] if seeded else crc32c(0xFFFFFFFF, sb[104:120])

    def close(self):
        self.file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- bytes and blocks ---

    def get(self, at, size):
        self.file.seek(at)
        return self.file.read(size)

    def put(self, at, data):
        self.file.seek(at)
        self.file.write(data)

    def block(self, number):
        return self.get(number * self.bs, self.bs) if 0 <= number < self.blocks else b""

    # --- groups ---

    def desc_at(self, group):
        return self.gdt + group * self.desc_size

    def desc(self, group):
        """(block bitmap, inode bitmap, inode table); where these lie is never damaged here"""
        if group in self._desc:
            return self._desc[group]
        data = self.get(self.desc_at(group), self.desc_size)
        lo = struct.unpack_from("<III", data, 0)
        hi = struct.unpack_from("<III", data, 32) if self.desc_size >= 64 else (0, 0, 0)
        self._desc[group] = tuple(a | b << 32 for a, b in zip(lo, hi, strict=True))
        return self._desc[group]

    def fix_desc(self, group):
        """Descriptor's checksum; images here have metadata_csum or none."""
        if self.csum:
            at = self.desc_at(group)
            data = bytearray(self.get(at, self.desc_size))
            data[30:32] = b"\0\0"
            crc = crc32c(crc32c(self.seed, le32(group)), data)
            self.put(at + 30, struct.pack("<H", crc & 0xFFFF))

    def fix_bitmap(self, group, inodes):
        flags = struct.unpack("<H", self.get(self.desc_at(group) + 18, 2))[0]
        # A bitmap that was never written (INODE_UNINIT, BLOCK_UNINIT) has no checksum.
        if self.csum and not flags & (1 if inodes else 2):
            bits = self.inodes_per_group if inodes else self.clusters_per_group
            crc = crc32c(self.seed, self.get(self.desc(group)[inodes] * self.bs, bits // 8))
            at = self.desc_at(group)
            self.put(at + (26 if inodes else 24), struct.pack("<H", crc & 0xFFFF))
            if self.desc_size >= 64:
                self.put(at + (58 if inodes else 56), struct.pack("<H", crc >> 16))
            self.fix_desc(group)

    # --- inodes ---

    def inode_at(self, ino):
        group, index = divmod(ino - 1, self.inodes_per_group)
        return self.desc(group)[2] * self.bs + index * self.isize

    def inode(self, ino):
        return self.get(self.inode_at(ino), self.isize)

    def inode_seed(self, ino, inode=None):
        inode = inode or self.inode(ino)
        return crc32c(crc32c(self.seed, le32(ino)), inode[100:104])

    def fix_inode(self, ino):
        if not self.csum:
            return
        at = self.inode_at(ino)
        data = bytearray(self.get(at, self.isize))
        wide = self.isize > 128 and struct.unpack_from("<H", data, 128)[0] >= 4
        data[0x7C:0x7E] = b"\0\0"
        if wide:
            data[0x82:0x84] = b"\0\0"
        crc = crc32c(self.inode_seed(ino, data), data)
        self.put(at + 0x7C, struct.pack("<H", crc & 0xFFFF))
        if wide:
            self.put(at + 0x82, struct.pack("<H", crc >> 16))

    @staticmethod
    def mode(inode):
        return struct.unpack_from("<H", inode, 0)[0]

    @staticmethod
    def flags(inode):
        return struct.unpack_from("<I", inode, 32)[0]

    # --- extents ---

    def extents(self, ino, inode=None):
        """Every entry of the extent tree of an inode, index entries too, in order."""
        inode = inode or self.inode(ino)
        out = []
        if not self.flags(inode) & EXTENTS_FL or self.flags(inode) & INLINE_FL:
            return out
        seen = set()

        def walk(home, data, below):
            if len(data) < 12:
                return
            magic, entries, limit, depth = struct.unpack_from("<HHHH", data, 0)
            # As libext2fs does: below the root the depth is what the way down makes it, whatever the block says.
            depth = depth if below is None else below
            if magic != EXT_MAGIC or depth > 5 or entries > min(limit, (len(data) - 12) // 12):
                return
            for n in range(entries):
                at = 12 + 12 * n
                lblk, low, high, _ = struct.unpack_from("<IIHH", data, at)
                if depth:
                    child = low | high << 32
                    out.append(Extent(home, at, depth, lblk, child, 0))
                    if child not in seen:
                        seen.add(child)
                        walk(child, self.block(child), depth - 1)
                else:
                    lblk, length, high, low = struct.unpack_from("<IHHI", data, at)
                    length = length if length <= 32768 else length - 32768
                    out.append(Extent(home, at, 0, lblk, low | high << 32, length))

        walk(None, inode[40:100], None)
        return out

    def fix_extent_block(self, ino, block):
        if self.csum:
            data = self.block(block)
            at = 12 + 12 * struct.unpack_from("<H", data, 4)[0]
            if at + 4 <= self.bs:
                self.put(block * self.bs + at, le32(crc32c(self.inode_seed(ino), data[:at])))

    def mapped(self, ino, inode=None):
        """[(logical, physical)] of all blocks mapped, in order of the tree."""
        out = []
        for extent in self.extents(ino, inode):
            if not extent.depth:
                out += [(extent.lblk + i, extent.pblk + i) for i in range(min(extent.length, self.blocks))]
        return out

    # --- directories ---

    def entries(self, data):
        """[(name, inode)] of a directory block; the fake entries of htree blocks hold none."""
        out, at, size = [], 0, len(data)
        while at + 8 <= size:
            ino, rec, length = struct.unpack_from("<IHB", data, at)
            if rec < 8 or at + rec > size:
                break
            if ino and length:
                name = data[at + 8 : at + 8 + length]
                if name != b"." and name != b"..":
                    out.append((name, ino))
            at += rec
        return out

    def directory(self, ino, inode=None):
        """{physical block: [(name, inode)]} of a directory below i_size."""
        inode = inode or self.inode(ino)
        size = struct.unpack_from("<I", inode, 4)[0] // self.bs
        return {p: self.entries(self.block(p)) for lblk, p in self.mapped(ino, inode) if lblk < size}

    def tree(self, top=2):
        """{directory's inode: {physical block: [(name, inode)]}} of all that is reachable."""
        found, todo = {}, [top]
        while todo:
            ino = todo.pop()
            if ino in found or not 0 < ino <= self.inodes:
                continue
            inode = self.inode(ino)
            if self.mode(inode) & 0xF000 != S_IFDIR:
                continue
            found[ino] = self.directory(ino, inode)
            # The type in the entry need not be right: ask the inode, once.
            todo += {child for entries in found[ino].values() for _, child in entries}
        return found

    def fix_leaf(self, ino, block):
        """Checksum of a directory block that holds entries."""
        if self.csum:
            data = self.block(block)
            self.put(block * self.bs + self.bs - 4, le32(crc32c(self.inode_seed(ino), data[:-12])))

    def fix_dx(self, ino, block, first):
        """Checksum of an htree block; first: of the root."""
        if not self.csum:
            return
        data = self.block(block)
        at = 32 if first else 8
        limit, count = struct.unpack_from("<HH", data, at)
        tail = at + 8 * limit
        if tail + 8 <= self.bs and at + 8 * count <= self.bs:
            crc = crc32c(self.inode_seed(ino), data[: at + 8 * count])
            crc = crc32c(crc, data[tail : tail + 4] + bytes(4))
            self.put(block * self.bs + tail + 4, le32(crc))

    # --- tree nodes ---

    def fix_node(self, ino, lblk, block):
        crc = 0
        if self.csum:
            data = self.block(block)
            crc = crc32c(crc32c(self.inode_seed(ino), le32(lblk)), data[:-4])
        self.put(block * self.bs + self.bs - 4, le32(crc))
