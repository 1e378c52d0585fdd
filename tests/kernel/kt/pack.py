# SPDX-License-Identifier: GPL-2.0-only
"""Directories that shrink while they are in use: EXT4_ITREE_OP_PACK and `e4itree pack`."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import pathlib
import random
import re
import threading
import time

from kt import itree_ioctl as io
from kt.guest import Failed, Guest
from kt.mapper import Mapped
from kt.neighbours import Server
from kt.online import e4itree, exact, make_dir, mount
from kt.positions import Stream
from kt.power import Recorder, in_place_of_the_disk, thread, until_wrong
from kt.registry import MILLION, case
from kt.resume import Listing

CUTS, ALL_CUTS = 40, 1000
IMMUTABLE = 0x10


def mail_names(n: int, length: int = 16) -> list[str]:
    return [hashlib.sha256(str(i).encode()).hexdigest().ljust(length, "n")[:length] + ".msg" for i in range(n)]


def filled(g: Guest, n: int, name: str = "d", length: int = 16) -> dict[str, int]:
    """Make a directory with this many names; return the inode of each."""
    d = g.path(name)
    make_dir(g, d)
    for x in mail_names(n, length):
        os.mknod(os.path.join(d, x))
    return dict(g.names(name))


def thin(d: str, names: dict[str, int], share: float, seed: int = 7) -> dict[str, int]:
    """Delete this share of the names, at random; return the others."""
    gone = random.Random(seed).sample(sorted(names), int(len(names) * share))
    for x in gone:
        os.unlink(os.path.join(d, x))
    return {x: names[x] for x in set(names) - set(gone)}


def pack(d: str) -> None:
    answer = io.itree(d, io.PACK)
    while answer.state & io.MORE:
        answer = io.itree(d, io.PACK, from_hash=answer.next)


def rehashed_blocks(g: Guest, name: str = "d") -> int:
    """Blocks of the directory after e2fsck -fD of a copy."""
    g.umount()
    copy = g.copy_frozen()
    g.run(g.tool("e2fsck"), "-fyD", copy, check=False, timeout=g.case.limit)
    result = g.run(g.tool("debugfs"), "-R", f"stat /{name}", copy).stdout
    copy.unlink()
    size = int(result.split("Size:")[1].split()[0])
    return size // g.p["bs"]


def shrink(g: Guest) -> None:
    """After nearly all names were deleted, packing leaves about as many blocks as e2fsck -fD, and all names."""
    n, share = g.p["n"], g.p["share"]
    mount(g)
    d = g.path()
    left = thin(d, filled(g, n, length=g.p.get("length", 16)), share)
    g.equal(dict(g.names()), left, "names before packing")
    if g.p.get("crypt"):
        # Without the key.
        g.again()
    before, used = g.dir_blocks(d), os.stat(d).st_blocks
    pack(d)
    after = g.dir_blocks(d)
    g.want(after < before, f"{after} blocks of {before}")
    freed = (used - os.stat(d).st_blocks) * 512 // g.p["bs"]
    g.want(freed >= (before - after) * 0.9, f"{before - after} blocks less, but {freed} given back")
    if not g.p.get("crypt"):
        g.equal(dict(g.names()), left, "names after packing")
    if g.has_tree(d):
        exact(g, d, len(left))
    mount(g)
    g.equal(dict(g.names()), left, "names after the next mount")
    for x, inode in left.items():
        g.equal(os.stat(os.path.join(d, x)).st_ino, inode, f"inode of {x}")
    g.fsck()
    best = rehashed_blocks(g)
    g.stats |= {"blocks": before, "packed": after, "rehashed": best}
    g.want(after <= max(1.3 * best, best + 2), f"{after} blocks, e2fsck -fD makes {best}")
    mount(g)
    # It can grow again.
    for x in mail_names(n, g.p.get("length", 16))[: n // 4]:
        with contextlib.suppress(FileExistsError):
            os.mknod(os.path.join(d, x))
    g.fsck()
    mount(g)
    g.want(set(left) <= set(os.listdir(d)), "names are missing after it has grown again")


def _shrink(id_: str, bs: int = 4096, n: int = 12000, share: float = 0.95, features: str = "", mkfs=(), **more) -> None:
    params = {"bs": bs, "n": n, "share": share}
    params |= {x: more.pop(x) for x in ("length", "crypt", "casefold") if x in more}
    case(
        f"pack-{id_}", "online", params, features=features, mkfs=("-b", str(bs), *mkfs), **{"cost": 20, **more}
    )(shrink)  # fmt: skip


_shrink("4k")
_shrink("1k", bs=1024)
_shrink("half", bs=1024, share=0.6)
_shrink("all", bs=1024, n=6000, share=1.0)
_shrink("no-tree", bs=1024, itree=False)
_shrink("nocsum", bs=1024, features="^metadata_csum,^uninit_bg")
_shrink("nojournal", bs=1024, features="^has_journal")
_shrink("quota", bs=1024, features="quota")
_shrink("crypt", bs=1024, n=6000, features="encrypt", crypt=True)
_shrink("casefold", bs=1024, features="casefold", casefold=True)
_shrink("crypt-casefold", bs=1024, n=4000, features="encrypt,casefold", crypt=True, casefold=True)
_shrink("bigalloc", features="bigalloc", mkfs=("-C", "16384"))
# Three levels of index blocks: 5 names a leaf.
_shrink("largedir", bs=1024, n=70000, length=60, features="large_dir", cost=60,
        mkfs=("-N", "80000"))  # fmt: skip


def listings(g: Guest) -> None:
    """Readers in the middle of a listing get each name that stays once, with any way of reading and packing."""
    g.mount()
    d, rng = g.path(), random.Random(11)
    names = filled(g, g.p["n"])
    if "inode_order" in g.p.get("mount", ""):
        g.equal(g.has_tree(d), False, "itree flag without the feature")
    readers = {f"{kind.__name__} {buf}": kind(d, buf) for kind in (Stream, Listing) for buf in (300, 4000, 32768)}
    going = dict(readers)
    left = set(names)
    for part in range(8):
        for key, reader in list(going.items()):
            # Some readers are far ahead of others.
            most = len(reader.names) + len(left) * rng.choice((1, 2, 4)) // 20
            while len(reader.names) < most:
                if not reader.call():
                    del going[key]
                    break
        gone = rng.sample(sorted(left), len(left) * (40 if part < 2 else 15) // 100)
        for x in gone:
            os.unlink(os.path.join(d, x))
        left -= set(gone)
        before = g.dir_blocks(d)
        pack(d)
        g.stats["blocks"] = g.stats.get("blocks", 0) + before - g.dir_blocks(d)
        if g.p.get("rebuild") and part % 3 == 2:
            io.itree(d, io.BUILD, io.FORCE)
    for key, reader in readers.items():
        while key in going and reader.call() and len(reader.names) < 3 * len(names):
            pass
        got = [x for x in reader.names if x in left]
        g.equal(sorted(left - set(got))[:3], [], f"{key}: names that were missed")
        most = 2 if g.p.get("rebuild") else 1
        often = sorted({x for x in got if got.count(x) > most}) if len(got) != len(left) else []
        g.equal(often[:3], [], f"{key}: names that came more than {most} times")
        if isinstance(reader, Stream):
            reader.close()
    g.want(g.stats["blocks"] > 20, f"only {g.stats['blocks']} blocks were freed")
    if g.has_tree(d):
        exact(g, d, len(left))


for _id, _bs, _more, _params in (
    ("4k", 4096, {}, {}),
    ("1k", 1024, {}, {}),
    ("hash", 1024, {}, {"mount": "noitree"}),
    ("stock", 1024, {"itree": False}, {}),
    ("memory", 1024, {"itree": False}, {"mount": "inode_order"}),
    ("rebuild", 1024, {}, {"rebuild": True}),
):
    case(f"pack-listings-{_id}", "online", {"bs": _bs, "n": 9000, **_params}, mkfs=("-b", str(_bs)), cost=20, **_more)(
        listings
    )


def nfs(g: Guest) -> None:
    """An NFS client in the middle of a listing gets each name that stays once, while the server packs."""
    g.mount()
    rng, server = random.Random(13), Server(g)
    try:
        for version in ("3", "4.2"):
            name = f"d{version[0]}"
            d, left = g.path(name), filled(g, g.p["n"], name)
            at = server.mount(version, "rsize=4096")
            before = g.dir_blocks(d)
            reader = Stream(str(at / name), 2000)
            try:
                for part in range(6):
                    most = len(reader.names) + len(left) // 12
                    while len(reader.names) < most and reader.call():
                        pass
                    gone = rng.sample(sorted(left), len(left) * (50 if part < 2 else 15) // 100)
                    for x in gone:
                        os.unlink(os.path.join(d, x))
                        del left[x]
                    pack(d)
                while reader.call() and len(reader.names) < 3 * g.p["n"]:
                    pass
            finally:
                reader.close()
                g.run("umount", "-l", at, check=False)
            got = sorted(x for x in reader.names if x in left)
            g.equal(got == sorted(left), True, f"NFS {version}: {len(got)} names of {len(left)}")
            g.want(g.dir_blocks(d) * 3 < before, f"{g.dir_blocks(d)} blocks of {before}")
            g.stats["blocks"] = g.stats.get("blocks", 0) + before - g.dir_blocks(d)
    finally:
        server.stop()


case("pack-nfs", "online", {"bs": 1024, "n": 9000}, mkfs=("-b", "1024"), cost=30)(nfs)


def commit(_number: int) -> None:
    os.sync()


def forget(_number: int) -> None:
    with open("/proc/sys/vm/drop_caches", "w") as f:
        f.write("1")
    time.sleep(0.02)


def busy(g: Guest) -> None:
    """Pack during cold listings, creates, deletes and renames: each listing has the names that stay, once."""
    g.mount()
    d = g.path()
    stays = thin(d, filled(g, g.p["n"]), 0.7)
    stop, faults, done = threading.Event(), [], {"packed": 0, "listed": 0, "changes": 0}

    def packs(_number: int) -> None:
        before = g.dir_blocks(d)
        pack(d)
        done["packed"] += max(before - g.dir_blocks(d), 0)
        time.sleep(0.05)

    def lists(_number: int) -> None:
        reader = Stream(d, random.choice((1000, 32768)))
        while reader.call():
            pass
        reader.close()
        got = [x for x in reader.names if x in stays]
        if sorted(got) != sorted(stays):
            faults.append(f"{len(set(stays) - set(got))} names missed, {len(got) - len(set(got))} too many")
            stop.set()
        done["listed"] += 1

    def changes(_number: int) -> None:
        temp = [os.path.join(d, f"t{i:05}{'x' * (i % 40)}") for i in range(400)]
        for x in temp:
            os.mknod(x)
        for x in temp[::2]:
            os.rename(x, x + ".new")
        for i, x in enumerate(temp):
            os.unlink(x if i % 2 else x + ".new")
        done["changes"] += 1

    threads = [thread(x, stop, faults) for x in (packs, lists, lists, changes, forget)]
    stop.wait(g.p["seconds"])
    stop.set()
    for t in threads:
        t.join(60)
    g.equal(faults[:2], [], "faults")
    g.stats |= done
    g.want(min(done.values()) > 0, f"too little was done: {done}")
    pack(d)
    g.equal(dict(g.names()), stays, "names in the end")
    if g.has_tree(d):
        exact(g, d, len(stays))
    g.fsck()


for _id, _bs, _more, _params in (
    ("4k", 4096, {"cpus": 2}, {}),
    ("1k", 1024, {}, {}),
    ("hash", 1024, {}, {"mount": "noitree"}),
    ("memory", 1024, {"itree": False}, {"mount": "inode_order"}),
):
    case(
        f"pack-busy-{_id}", "online", {"bs": _bs, "n": 9000, "seconds": 20, **_params}, mkfs=("-b", str(_bs)), cost=30,
        **_more,
    )(busy)  # fmt: skip


def power_cut(g: Guest) -> None:
    """The power fails while directories are packed: each name has its inode, and e2fsck finds no error."""
    g.mount()
    dirs = [f"d{i}" for i in range(g.p["dirs"])]
    left = {x: thin(g.path(x), filled(g, g.p["n"], x, g.p["length"]), 0.9) for x in dirs}
    g.umount()
    rec = Recorder(g)
    try:
        g.mount()
        before = [g.dir_blocks(g.path(x)) for x in dirs]
        rec.mark("start")
        stop, faults = threading.Event(), []
        # A small journal, and blocks that have to be read again: commits within a directory, too.
        beside = [thread(work, stop, faults) for work in (commit, forget)]
        for x in dirs:
            pack(g.path(x))
            os.sync()
        stop.set()
        for t in beside:
            t.join(60)
        g.equal(faults, [], "sync")
        after = [g.dir_blocks(g.path(x)) for x in dirs]
        g.umount()
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        rec.remove()
    g.want(sum(after) * 3 < sum(before), f"{after} blocks of {before}")
    states = set()

    def judge() -> None:
        for x in dirs:
            g.equal(dict(g.names(x)), left[x], f"names of {x} after the cut")
            if g.has_tree(g.path(x)):
                exact(g, g.path(x), len(left[x]))
        states.add(tuple(g.dir_blocks(g.path(x)) for x in dirs))

    until_wrong(g, rec, ALL_CUTS if g.job["full"] else CUTS, judge)
    g.stats["states"] = len(states)
    g.want(len(states) > 3, f"the cuts have seen only {len(states)} states of the directories")


for _id, _bs, _length, _features in (
    ("4k", 4096, 230, ""), ("1k", 1024, 100, ""), ("fastcommit", 1024, 100, "fast_commit")
):  # fmt: skip
    case(
        f"pack-power-{_id}", "online", {"bs": _bs, "dirs": 10, "n": 1200, "length": _length}, size="96M",
        mkfs=("-b", str(_bs), "-N", "16000", "-J", f"size={_bs // 1024}"),
        features=_features, itree=_id != "fastcommit", memory="2G", cost=60, limit=1500,
    )(power_cut)  # fmt: skip


def refusals(g: Guest) -> None:
    """Permissions, and directories that cannot be packed."""
    g.mount()
    d = g.path()
    left = thin(d, filled(g, 3000), 0.9)
    before = g.dir_blocks(d)
    small = g.path("small")
    os.mkdir(small)
    g.equal(io.errno_of(small, io.PACK), errno.ENODATA, "a directory without an htree")
    g.equal(io.errno_of(d, io.PACK, from_hash=1 << 32), errno.EINVAL, "a hash beyond 32 bits")
    g.equal(io.errno_of(d, io.STAT, from_hash=1), errno.EINVAL, "a hash for another operation")
    g.equal(io.errno_of(d, io.PACK, io.FORCE), errno.EINVAL, "a flag of another operation")
    os.chmod(d, 0o777)
    child = os.fork()
    if not child:
        os.setuid(1000)
        os._exit(io.errno_of(d, io.PACK))
    g.equal(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), errno.EPERM, "another user")
    flags = g.flags(d)
    g.set_flags(d, flags | IMMUTABLE)
    g.equal(io.errno_of(d, io.PACK), errno.EPERM, "an immutable directory")
    g.set_flags(d, flags)
    g.remount("ro")
    g.equal(io.errno_of(d, io.PACK), errno.EROFS, "a read-only mount")
    g.remount("rw")
    g.equal(g.dir_blocks(d), before, "blocks after refusals")
    pack(d)
    g.want(g.dir_blocks(d) < before, "blocks after packing")
    g.equal(dict(g.names()), left, "names")


case("pack-refusals", "online", {"bs": 1024}, mkfs=("-b", "1024"), size="64M", cost=10)(refusals)


def immutable(g: Guest) -> None:
    """With --recursive, an immutable directory is skipped and the others are changed; named alone, it is an error."""
    g.mount()
    dirs = {x: g.path(x) for x in ("fixed", "other")}
    left = {x: thin(d, filled(g, 3000, x), 0.9) for x, d in dirs.items()}
    flags = g.flags(dirs["fixed"])
    g.set_flags(dirs["fixed"], flags | IMMUTABLE)
    blocks = g.dir_blocks(dirs["fixed"])
    for op in ("build", "--force"), ("pack",), ("drop",):
        tries = e4itree(g, *op, "-n", "--recursive", "--verbose", g.mnt)
        g.equal(tries.stdout.count(": is immutable"), 1, f"{op} -n: directories skipped")
        done = e4itree(g, *op, "--recursive", "--verbose", g.mnt)
        g.equal(done.stdout.count(": is immutable"), 1, f"{op}: directories skipped")
        alone = e4itree(g, *op, dirs["fixed"], code=1)
        g.want("not while it is immutable" in alone.stderr, f"{op} of it alone: {alone.stderr}")
        g.equal(g.has_tree(dirs["other"]), op != ("drop",), f"{op}: does the other directory have a tree?")
    g.want(g.dir_blocks(dirs["other"]) * 4 < blocks, "the other directory was not packed")
    g.equal((g.dir_blocks(dirs["fixed"]), g.has_tree(dirs["fixed"])), (blocks, True), "the immutable directory")
    g.set_flags(dirs["fixed"], flags)
    g.equal({x: dict(g.names(x)) for x in dirs}, left, "names")


case("pack-immutable", "online", {"bs": 1024}, mkfs=("-b", "1024"), size="64M", cost=10)(immutable)


def under_way(g: Guest) -> None:
    """With --recursive, a directory whose tree is being built is skipped, and the next one packed; alone, an error."""
    g.mount()
    left = {x: thin(g.path(x), filled(g, n, x), 0.5) for x, n in (("one", 20000), ("two", 3000))}
    stop, faults, skipped, failed = threading.Event(), [], 0, 0
    builds = thread(lambda _: io.errno_of(g.path("one"), io.BUILD, io.FORCE), stop, faults)
    for _ in range(100):
        done = e4itree(g, "pack", "--force", "--recursive", "--verbose", g.mnt)
        skipped += f"{g.path('one')}: another build" in done.stdout
        alone = g.run(g.tool("e4itree"), "pack", "--force", g.path("one"), check=False)
        g.want(not alone.returncode or "try again later" in alone.stderr, f"alone: {alone.stderr}")
        failed += alone.returncode
        if skipped and failed:
            break
    stop.set()
    builds.join()
    g.equal(faults, [], "the builder")
    g.want(skipped and failed, f"packs that met a build: {skipped} with --recursive, {failed} without")
    g.equal({x: dict(g.names(x)) for x in left}, left, "names")


case("pack-under-way", "online", {"bs": 1024}, mkfs=("-b", "1024", "-N", "40000"), size="64M", cost=15)(under_way)


def tool(g: Guest) -> None:
    """`e4itree pack`: its estimate and its result, with and without a tree, and with little to gain."""
    g.mount()
    d, bs = g.path(), g.p["bs"]
    names = filled(g, g.p["n"])
    g.want("less than a quarter" in e4itree(g, "pack", d).stdout, "a full directory is packed")
    left = thin(d, names, 0.95)
    before, tree = g.dir_blocks(d), len(g.tree_blocks(d))
    result = json.loads(e4itree(g, "pack", "-n", "--json", d).stdout.splitlines()[0])
    g.equal(result["result"], "would-pack", "result of a dry run")
    g.equal((result["dir_blocks_before"], g.dir_blocks(d)), (before, before), "blocks after a dry run")
    if g.has_tree(d):
        output = json.loads(e4itree(g, "stat", "--json", d).stdout.splitlines()[0])
        g.want(abs(output["packed_blocks"] - result["dir_blocks"]) <= 3, f"stat says {output}, pack -n {result}")
    done = json.loads(e4itree(g, "pack", "--pace", "50", "--json", d).stdout.splitlines()[0])
    after, small = g.dir_blocks(d), len(g.tree_blocks(d))
    g.equal((done["result"], done["dir_blocks"]), ("packed", after), "what pack tells")
    g.want(done["tree_blocks"] <= small, f"pack tells of {done['tree_blocks']} blocks of the tree, it has {small}")
    g.want(result["dir_blocks"] * 0.7 <= after <= result["dir_blocks"] * 1.3, f"{after} blocks, pack -n told {result}")
    g.want(after * 8 < before, f"{after} blocks of {before}")
    if tree:
        g.want(small * 4 < tree, f"{small} blocks of the tree of {tree}")
        exact(g, d, len(left))
    g.equal(dict(g.names()), left, "names")
    g.want("less than a quarter" in e4itree(g, "pack", d).stdout, "a packed directory is packed")
    e4itree(g, "pack", "--force", "--quiet", d)
    small_dir = g.path("small")
    os.mkdir(small_dir)
    g.want("too small" in e4itree(g, "pack", small_dir).stdout, "a small directory is packed")
    out = e4itree(g, "pack", "-r", "-v", "--min-blocks", "1", g.mnt).stdout
    g.want(re.search(r"directories: \d+ packed, \d+ skipped, 0 failed", out), f"pack -r: {out}")
    g.stats |= {"blocks": before, "packed": after}
    g.equal(bs, os.statvfs(d).f_bsize, "block size")


for _id, _more in (("tool", {}), ("tool-stock", {"itree": False})):
    case(f"pack-{_id}", "online", {"bs": 1024, "n": 12000}, mkfs=("-b", "1024"), cost=15, **_more)(tool)


class Writer:
    """Creates and removes a name repeatedly; records the time of the slowest call."""

    def __init__(self, d: str):
        self.path, self.longest, self.calls = os.path.join(d, "writer"), 0.0, 0
        self.stop, self.faults = threading.Event(), []
        self.thread = thread(self.once, self.stop, self.faults)

    def once(self, _number: int) -> None:
        for call in (os.mknod, os.unlink):
            start = time.monotonic()
            call(self.path)
            self.longest = max(self.longest, time.monotonic() - start)
        self.calls += 1
        time.sleep(0.002)

    def end(self) -> int:
        """Stop; return the slowest call's milliseconds."""
        self.stop.set()
        self.thread.join(120)
        return round(self.longest * 1000)


def slow_disk(g: Guest) -> None:
    """95 % of the names are deleted, requests take 10 ms: blocks and reads as after e2fsck -fD; a writer's waits."""
    g.mount()
    d = g.path()
    left = thin(d, filled(g, g.p["n"]), 0.95)
    g.umount()
    rehashed = g.copy_frozen().rename(g.tmp / "rehashed")
    g.run(g.tool("e2fsck"), "-fyD", rehashed, check=False, timeout=g.case.limit)
    sectors = g.run("blockdev", "--getsz", g.dev).stdout.strip()
    slow = Mapped(g, f"slow-{g.disk}", f"0 {sectors} delay {g.dev} 0 10")
    try:
        g.mount()
        alone = Writer(d)
        time.sleep(5)
        g.stats["wait_alone_ms"] = alone.end()
        g.again()
        before, beside = g.dir_blocks(d), Writer(d)
        start = time.monotonic()
        e4itree(g, "pack", "--quiet", d)
        g.stats |= {"pack_seconds": round(time.monotonic() - start), "wait_pack_ms": beside.end()}
        g.equal(alone.faults + beside.faults, [], "writer")
        g.stats |= {"writer_calls": beside.calls, "blocks": before, "packed": g.dir_blocks(d)}
        g.equal(dict(g.names()), left, "names after packing")
        exact(g, d, len(left))
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        slow.remove()
    g.fsck()
    g.stats["reads_packed"] = cold_listing(g, g.copy_frozen(), left)
    g.stats["reads_rehashed"] = cold_listing(g, rehashed, left)
    g.stats["rehashed"] = rehashed_blocks(g)
    g.want(g.stats["packed"] <= 1.3 * g.stats["rehashed"], f"blocks: {g.stats}")
    g.want(g.stats["reads_packed"] <= 1.3 * g.stats["reads_rehashed"] + 10, f"reads: {g.stats}")


def cold_listing(g: Guest, image: pathlib.Path, names: dict[str, int]) -> int:
    """Requests of a listing of the image's directory, with the inodes."""
    requests = -1
    with in_place_of_the_disk(g, image):
        stat = pathlib.Path("/sys/class/block", os.path.basename(g.dev), "stat")
        g.mount()
        g.settle()
        before = int(stat.read_text().split()[0])
        with os.scandir(g.path()) as it:
            got = {e.name: e.stat(follow_symlinks=False).st_ino for e in it}
        requests = int(stat.read_text().split()[0]) - before
        g.equal(got, names, "names of the listing")
    return requests


case("pack-slow-disk", "online", {"bs": 4096, "n": 60000}, mkfs=("-b", "4096", "-N", "80000"), cost=60)(slow_disk)
case(
    "pack-million", "online", {"bs": 4096, "n": 1000000}, mkfs=("-b", "4096", "-N", "1100000"), size="4G", memory="2G",
    cost=900, limit=3000, full=MILLION,
)(slow_disk)  # fmt: skip
