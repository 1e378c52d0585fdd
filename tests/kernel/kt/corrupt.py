# SPDX-License-Identifier: GPL-2.0-only
"""Damaged trees (a smoke test): no operation fails, no name is lost, the kernel logs it, e2fsck repairs it."""

from __future__ import annotations

import os
import pathlib
import re
import struct

from kt import dentries
from kt import itree_ioctl as io
from kt.faults import Faulty
from kt.guest import Guest
from kt.registry import case
from kt.scans import hold

MAGIC = 0x45525449
HEAD = 16
ROOT_INFO = 32
DEVICE = r"\((?:device )?(?:vd|ubd|dm-|loop)\w+\)"
BAD_TREE = (rf"EXT4-fs warning {DEVICE}: .* itree block ", rf"EXT4-fs {DEVICE}: error count")


def nodes(raw: dict[int, bytes]) -> tuple[list[int], list[int]]:
    """Logical blocks of the leaves and of the index nodes (the root first)."""
    used = {b: d for b, d in sorted(raw.items()) if struct.unpack_from("<I", d)[0] == MAGIC}
    leaves = [b for b, d in used.items() if d[5] == 0]
    index = [b for b, d in used.items() if d[5] > 0]
    return leaves, index


def damage(kind: str, data: bytearray, rng: int) -> None:
    if kind == "magic":
        data[0] ^= 0x20
    elif kind == "version":
        data[4] = 9
    elif kind == "level":
        data[5] += 1
    elif kind == "count-0":
        data[6:8] = b"\0\0"
    elif kind == "count-huge":
        data[6:8] = b"\xff\xff"
    elif kind == "limit":
        data[8] ^= 4
    elif kind == "zero":
        data[:] = bytes(len(data))
    elif kind == "garbage":
        for i in range(len(data)):
            rng = (rng * 1103515245 + 12345) & 0x7FFFFFFF
            data[i] = rng >> 16 & 0xFF
    elif kind == "bit":
        data[len(data) // 3] ^= 0x10
    elif kind == "checksum":
        data[-2] ^= 0xFF
    elif kind == "swap":
        # Two keys change places: order broken.
        at = HEAD + 8 * 3
        data[at : at + 16] = data[at + 8 : at + 16] + data[at : at + 8]
    elif kind == "hash":
        # A key without a name, but in the right order.
        at = HEAD + 8 * 5
        ino, hash_ = struct.unpack_from("<II", data, at)
        struct.pack_into("<II", data, at, ino, hash_ ^ 2)
    elif kind == "child":
        at = HEAD + ROOT_INFO + 12 * 1
        struct.pack_into("<I", data, at + 8, 0x80000000)
    elif kind == "child-far":
        at = HEAD + ROOT_INFO + 12 * 1
        struct.pack_into("<I", data, at + 8, 0xFFFFFFF0)
    else:
        raise ValueError(kind)


def want_told(g: Guest, ino: int) -> None:
    """Check that the log names the directory but has no ext4 error, which would trigger errors=."""
    log = g.log()
    lines = re.findall(r"EXT4-fs warning .* itree block .*", log)
    g.want(bool(lines), "nothing in the kernel log")
    g.want(not lines or any(f"inode #{ino}:" in x for x in lines), f"no line names inode {ino}: {lines[:3]}")
    g.want("EXT4-fs error" not in log, "an error in the kernel log: " + log[-300:])


def corrupt(g: Guest) -> None:
    """List, create, delete, rename on a directory whose tree is damaged in one place."""
    where, kind, first = g.p["where"], g.p["kind"], g.p["first"]
    g.mount()
    d = g.path()
    g.t("fill", "--dir", d, "--model", g.model(), "--n", 2500, "--names", "skew")
    g.want_tree(d)
    ino = os.stat(d).st_ino
    bsize = os.statvfs(g.mnt).f_bsize
    blocks = g.tree_blocks(d)
    g.umount()
    with open(g.dev, "r+b", buffering=0) as disk:
        raw = {b: os.pread(disk.fileno(), bsize, at) for b, at in blocks.items()}
        leaves, index = nodes(raw)
        if not g.want(
            bool(leaves and index), f"tree of {len(raw)} blocks has {len(leaves)} leaves, {len(index)} index nodes"
        ):
            return
        target = index[0] if where == "root" else leaves[len(leaves) // 2]
        data = bytearray(raw[target])
        damage(kind, data, g.p.get("seed", 1))
        os.pwrite(disk.fileno(), data, blocks[target])
        os.fsync(disk.fileno())
    g.settle()
    g.mount("errors=continue")

    def read() -> None:
        # Every name is there, in any order.
        g.t("list", "--dir", d, "--model", g.model())
        g.t("list", "--dir", d, "--model", g.model(), "--buf", 400)

    def write() -> None:
        # Enough to touch every leaf: creates, deletes, renames.
        for number in range(300):
            g.run_quiet(os.mknod, f"{d}/new{number}")
        for number in range(300):
            g.run_quiet(os.rename, f"{d}/new{number}", f"{d}/other{number}")
        for number in range(300):
            g.run_quiet(os.unlink, f"{d}/other{number}")
        g.t("age", "--dir", d, "--model", g.model(), "--percent", 90)

    if first == "scan":
        # Half a scan done, when the damage is found by a writer.
        hold(g, [(5, 400), (1000, 400), (2400, 400)], lambda: (g.settle(), g.run_quiet(os.mknod, f"{d}/x")), again=True)
        g.run_quiet(os.unlink, f"{d}/x")
        write()
        read()
    elif first == "read":
        read()
        write()
        read()
    else:
        write()
        read()
    g.equal(g.has_tree(d), False, "itree flag after changes")
    g.want(g.counter("drops") >= 1, f"itree_drops is {g.counter('drops')}")
    want_told(g, ino)
    g.t("lookup", "--dir", d, "--model", g.model())
    g.again("errors=continue")
    read()
    # It works without a tree, loops end, and it can be removed.
    for mode in ("create", "replace"):
        g.t("loop", "--mode", mode, "--dir", d, "--model", g.model(), "--buf", 400)
    g.t("empty", "--dir", d, "--model", g.model(), "--m", 100)
    read()


def _row(where: str, kind: str, first: str, features: str = "", bs: int = 1024) -> None:
    tag = "-nocsum" if features else ""
    case(
        f"corrupt-{where}-{kind}-{first}{tag}", "corrupt", {"where": where, "kind": kind, "first": first},
        features=features, mkfs=("-b", str(bs)), size="64M", allow=BAD_TREE, fsck="repair", cost=8,
    )(corrupt)  # fmt: skip


for _kind in ("magic", "bit", "zero"):
    _row("root", _kind, "read")
    _row("leaf", _kind, "write")
_row("root", "checksum", "write")
_row("leaf", "checksum", "read")
_row("leaf", "garbage", "scan")
_row("root", "garbage", "scan")
NOCSUM = "^metadata_csum"
for _kind in ("magic", "version", "level", "count-0", "count-huge", "limit", "zero", "swap", "hash"):
    _row("leaf", _kind, "read" if _kind in ("magic", "count-0", "swap", "hash") else "write", NOCSUM)
for _kind in ("count-huge", "child", "child-far", "garbage"):
    _row("root", _kind, "read" if _kind != "garbage" else "write", NOCSUM)
_row("leaf", "zero", "scan", NOCSUM)
_row("leaf", "hash", "scan", NOCSUM)


def damage_block(g: Guest, how: str, where: str, d: str):
    """Make a block of the tree unreadable or corrupt; return a function that undoes this, if needed."""
    mapped = Faulty(g)
    g.mount()
    bsize, blocks = os.statvfs(g.mnt).f_bsize, g.tree_blocks(d)
    g.umount()
    with open(g.dev, "r+b", buffering=0) as disk:
        leaves, index = nodes({b: os.pread(disk.fileno(), bsize, at) for b, at in blocks.items()})
        at = blocks[index[0] if where == "root" else leaves[len(leaves) // 2]]
        if how == "corrupt":
            os.pwrite(disk.fileno(), b"\0" * 64, at)
            os.fsync(disk.fileno())
    g.settle()
    if how == "unreadable":
        mapped.load(mapped.unreadable([at], bsize))
    return mapped


def superblock(g: Guest) -> dict[str, str]:
    lines = g.run(g.tool("dumpe2fs"), "-h", g.dev).stdout.splitlines()
    return {key.strip(): value.strip() for key, _, value in (x.partition(":") for x in lines)}


def bad_tree(g: Guest) -> None:
    """A bad tree costs only a line in the log: no remount, no panic, no lost name; the next boot repairs it."""
    g.mount()
    d = g.path()
    g.t("fill", "--dir", d, "--model", g.model(), "--n", 2500)
    g.want_tree(d)
    ino, names = os.stat(d).st_ino, g.names()
    g.umount()
    mapped = damage_block(g, g.p["how"], g.p["where"], d)
    g.mount(f"errors={g.p['errors']}")
    g.equal(superblock(g)["Filesystem state"], "clean", "state before the tree was read")
    if g.p["first"] == "read":
        g.t("list", "--dir", d, "--model", g.model())
    for number in range(300):
        g.run_quiet(os.mknod, f"{d}/new{number}")
        g.run_quiet(os.rename, f"{d}/new{number}", f"{d}/other{number}")
        g.run_quiet(os.unlink, f"{d}/other{number}")
    for name in [name for name, _ in names][::7]:
        if os.path.isfile(f"{d}/{name}") and not os.path.islink(f"{d}/{name}"):
            g.run_quiet(os.link, f"{d}/{name}", f"{d}/{name[:200]}-link")
            g.run_quiet(os.unlink, f"{d}/{name[:200]}-link")
    g.t("list", "--dir", d, "--model", g.model())
    g.t("lookup", "--dir", d, "--model", g.model())
    # The rest of the volume is as it was.
    g.run_quiet(os.mkdir, g.path("elsewhere"))
    with open(g.path("elsewhere/file"), "wb") as file:
        file.write(b"x" * 5000)
        g.run_quiet(os.fsync, file.fileno())
    line = [x for x in pathlib.Path("/proc/mounts").read_text().splitlines() if f" {g.mnt} " in x][0]
    g.want("rw" in line.split()[3].split(","), f"not mounted read-write any more: {line}")
    want_told(g, ino)
    os.sync()
    found = superblock(g)
    g.want("with errors" in found["Filesystem state"], f"state while mounted: {found['Filesystem state']}")
    g.umount()
    found = superblock(g)
    g.want("with errors" in found["Filesystem state"], f"state after umount: {found['Filesystem state']}")
    g.equal(found.get("First error inode #"), str(ino), "inode of the first error")
    mapped.load(mapped.sound())
    # As at boot: without a question.
    res = g.run(g.tool("e2fsck"), "-p", g.dev, check=False)
    g.equal(res.returncode, 1, f"e2fsck -p: {res.stdout.strip()[-300:]}")
    g.equal(superblock(g)["Filesystem state"], "clean", "state after e2fsck -p")
    g.mount()
    if not g.has_tree(d):  # a writer has dropped it
        io.itree(d, io.BUILD)
    g.listing()
    g.equal(g.names(), names, "names after e2fsck")
    g.umount()
    mapped.remove()


for _errors in ("remount-ro", "panic"):
    for _how in ("unreadable", "corrupt"):
        for _where, _first in (("root", "read"), ("leaf", "read"), ("leaf", "write")):
            case(
                f"reader-badtree-{_errors}-{_how}-{_where}-{_first}", "corrupt",
                {"errors": _errors, "how": _how, "where": _where, "first": _first}, mkfs=("-b", "1024"), size="64M",
                allow=(*BAD_TREE, "Buffer I/O error", "I/O error, dev"), cost=4,
            )(bad_tree)  # fmt: skip


def htree_root(g: Guest) -> None:
    """The htree's root has an unknown hash version: names are listed and found, with a tree and without."""
    g.mount()
    made = {}
    for name, count in (("small", 60), ("large", 1500)):
        os.mkdir(g.path(name))
        made[name] = {f"{number}".ljust(40, "-") for number in range(count)}
        for one in made[name]:
            os.mknod(f"{g.path(name)}/{one}")
    g.equal((g.has_tree(g.path("small")), g.has_tree(g.path("large"))), (False, True), "trees")
    g.umount()
    bsize = 1024
    with open(g.dev, "r+b", buffering=0) as disk:
        for name in made:
            block = int(g.run(g.tool("debugfs"), "-R", f"bmap /{name} 0", g.dev).stdout)
            at = block * bsize + 28  # dx_root_info.hash_version
            if g.want(os.pread(disk.fileno(), 1, at) in (b"\0", b"\1", b"\2"), "no hash version there"):
                os.pwrite(disk.fileno(), b"\x4d", at)
        os.fsync(disk.fileno())
    g.settle()
    g.mount("errors=continue")
    for name, names in made.items():
        g.equal(set(os.listdir(g.path(name))), names, f"names of {name}")
        for one in sorted(names)[:20]:
            g.run_quiet(os.stat, f"{g.path(name)}/{one}")
            g.run_quiet(os.unlink, f"{g.path(name)}/{one}")
        g.equal(set(os.listdir(g.path(name))), set(sorted(names)[20:]), f"names of {name} after unlink")
    g.umount()


case(
    "corrupt-htree-root", "corrupt", {}, features="^metadata_csum", mkfs=("-b", "1024"), size="64M", fsck="repair",
    allow=(*BAD_TREE, r"EXT4-fs (error|warning) \(device (?:vd|ubd)\w+\)"),
)(htree_root)  # fmt: skip


def long_dot(g: Guest) -> None:
    """The entry of "." is longer than necessary: ".." has the inode that follows it."""
    g.mount()
    os.mkdir(g.path())
    os.mknod(g.path("d/file"))
    inodes = [
        (".", os.lstat(g.path()).st_ino),
        ("..", os.lstat(g.mnt).st_ino),
        ("file", os.lstat(g.path("d/file")).st_ino),
    ]
    g.umount()
    block = int(g.run(g.tool("debugfs"), "-R", "bmap /d 0", g.dev).stdout)
    with open(g.dev, "r+b", buffering=0) as disk:
        data = os.pread(disk.fileno(), 1024, block * 1024)
        g.equal(struct.unpack_from("<IH", data, 12), (inodes[1][1], 12), "second entry")
        dot = data[:4] + struct.pack("<H", 24) + data[6:12] + bytes(12)
        name = data[24:28] + struct.pack("<H", 1024 - 36) + data[30:]
        os.pwrite(disk.fileno(), (dot + data[12:24] + name)[:1024], block * 1024)
        os.fsync(disk.fileno())
    g.settle()
    g.mount()
    reader = dentries.Reader(g.path())
    g.equal(sorted(reader.entries()), sorted(inodes), "names and inodes")
    reader.close()
    g.umount()


case(
    "reader-long-dot", "corrupt", {}, features="^metadata_csum", mkfs=("-b", "1024"), size="64M", fsck="repair", cost=3,
)(long_dot)  # fmt: skip
