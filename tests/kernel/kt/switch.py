# SPDX-License-Identifier: GPL-2.0-only
"""The feature set and cleared on a volume that is mounted and in use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pathlib
import signal
import struct
import subprocess
import time

from kt import itree_ioctl as io
from kt import logwrites
from kt.guest import EXT4_IOC_SHUTDOWN, FL_INLINE, FL_ITREE, Failed, Guest
from kt.online import Background, e4itree, exact
from kt.positions import Stream
from kt.power import Recorder, directories, disks
from kt.registry import case
from kt.resume import Listing

STOCK = "/sbin/e2fsck"  # of the guest's system: it does not know the feature
RO_COMPAT_ITREE = 0x40000000
CUTS, ALL_CUTS = 40, 100_000


def tune(g: Guest, feature: str, code: int = 0) -> str:
    res = g.run(g.tool("tune2fs"), "-O", feature, g.dev, check=False, timeout=g.case.limit)
    g.want(res.returncode == code, f"tune2fs -O {feature}: exit code {res.returncode}: {res.stdout} {res.stderr}")
    return res.stdout + res.stderr


def feature(g: Guest, dev=None) -> bool:
    """Read the feature from the superblock, ignoring the checksum, because the kernel may be changing it."""
    with open(dev or g.dev, "rb") as f:
        f.seek(1024 + 0x64)
        return bool(struct.unpack("<I", f.read(4))[0] & RO_COMPAT_ITREE)


def want_stock(g: Guest, dev=None) -> None:
    """Check a volume without the feature: the system's own e2fsck finds no trace of a tree."""
    res = g.run(STOCK, "-fn", dev or g.dev, check=False, timeout=300)
    g.equal(res.returncode, 0, f"stock e2fsck -fn: {res.stdout[-500:]} {res.stderr[-200:]}")


def want_no_trees(g: Guest) -> None:
    mapped = [d for d in (g.mnt, *directories(g)) if not g.flags(d) & FL_INLINE]
    g.equal([d for d in mapped if g.has_tree(d) or g.segment(d)], [], "directories with a tree or with blocks of one")


def in_use(g: Guest) -> None:
    """On, build, off, on again, with writers and readers at work: no call fails, no name is lost."""
    g.mount()
    common = ["--dir", g.mnt, "--model", g.model(), "--dirs", 2, "--names", "mixed"]
    g.t("ops", *common, "--seed", 3, "--plan", "3000", "--n", 100000, "--m", 50)
    old = g.path("old")
    os.mkdir(old)
    g.t("fill", "--dir", old, "--model", g.model("old"), "--n", 4000)
    writers = g.start("ops", *common, "--seed", 4, "--plan", "5000,2500,4000", "--n", g.p["every"], "--m", 200)
    switches = 0
    while writers.poll() is None or switches < 2:
        g.want("e4itree build" in tune(g, "itree"), "tune2fs does not name e4itree build")
        g.equal(feature(g), True, "the feature after tune2fs -O itree")
        e4itree(g, "build", "-r", "--quiet", old)
        exact(g, old, 4000)
        g.listing(old, g.model("old"))
        time.sleep(0.3)
        g.want("Dropped the itrees" in tune(g, "^itree"), "tune2fs does not tell what it dropped")
        g.equal(feature(g), False, "the feature after tune2fs -O ^itree")
        g.want(not g.has_tree(old) and not g.segment(old), "blocks of the tree after tune2fs -O ^itree")
        g.t("lookup", "--dir", old, "--model", g.model("old"))
        switches += 1
        if g.fails:
            break
    g.finish(writers, timeout=g.case.limit)
    g.stats["switches"] = switches
    want_no_trees(g)
    g.umount()
    want_stock(g)
    g.mount()
    for i in range(2):
        g.t("list", "--dir", g.path(f"d{i}"), "--model", f"{g.model()}.{i}")
    # As an admin leaves it: set, all trees built, and still there at the next mount.
    tune(g, "itree")
    e4itree(g, "build", "-r", "--quiet", g.mnt)
    g.again()
    g.equal(feature(g), True, "the feature at the next mount")
    for i in range(2):
        g.listing(g.path(f"d{i}"), f"{g.model()}.{i}")
        exact(g, g.path(f"d{i}"))


def _in_use(id_: str, features: str = "", bs: int = 1024, every: int = 1500, mkfs=(), **more) -> None:
    case(
        f"switch-{id_}", "online", {"every": every, **more}, itree=False, features=features,
        mkfs=("-b", str(bs), *mkfs), size="512M", cost=60, cpus=2, limit=500,
    )(in_use)  # fmt: skip


_in_use("1k")
_in_use("4k", bs=4096)
_in_use("nojournal", "^has_journal")
_in_use("quota", "quota")
_in_use("bigalloc", "bigalloc", bs=4096, mkfs=("-C", "16384"))
_in_use("inline", "inline_data", bs=4096, mkfs=("-I", "256"))
_in_use("nocsum", "^metadata_csum,^uninit_bg")


def small(g: Guest) -> None:
    """A directory that grows to 16 blocks gets its tree without a remount, and gets it again after off and on."""
    g.mount()
    d = g.path()
    os.mkdir(d)
    tune(g, "itree")
    g.t("fill", "--dir", d, "--model", g.model(), "--n", 900)
    g.want_tree(d)
    exact(g, d, 900)
    g.equal(g.counter("builds"), 1, "itree_builds")
    tune(g, "^itree")
    g.equal(g.has_tree(d), False, "itree flag after tune2fs -O ^itree")
    names = len(os.listdir(d))
    os.mknod(os.path.join(d, "without"))
    g.equal(g.has_tree(d), False, "itree flag after a create without the feature")
    g.equal(io.errno_of(d, io.BUILD), errno.EOPNOTSUPP, "BUILD without the feature")
    tune(g, "itree")
    os.mknod(os.path.join(d, "with"))
    g.want_tree(d)
    exact(g, d, names + 2)


case("switch-small", "online", {}, itree=False, mkfs=("-b", "1024"), size="64M", cost=10)(small)


def stale(g: Guest) -> None:
    """Stale trees from an earlier time are dropped before the feature is set, and never used."""
    g.mount()
    d, deep = g.path(), g.path("a/b/c")
    os.makedirs(deep)
    g.t("fill", "--dir", d, "--model", g.model(), "--n", 2500)
    for i in range(2000):
        os.mknod(f"{deep}/{'n' * 40}{i}")
    g.want_tree(d)
    g.want_tree(deep)
    # A tool without support clears only the bit.
    g.umount()
    g.run(g.tool("debugfs"), "-w", "-R", "feature ^itree", g.dev)
    g.mount()
    g.want(g.flags(d) & FL_ITREE and g.segment(d), "no tree was left behind: nothing is tested")
    os.mknod(os.path.join(d, "new"))
    os.unlink(f"{deep}/{'n' * 40}5")
    tune(g, "itree")
    # The old trees miss this create and this unlink.
    for where, names in ((d, 2501), (deep, 1999)):
        g.equal(g.has_tree(where), False, f"{where}: itree flag of a stale tree")
        g.equal(g.segment(where), [], f"{where}: blocks of a stale tree")
        g.equal(len(os.listdir(where)), names, f"{where}: names")
        io.itree(where, io.BUILD)
        exact(g, where, names)


case("switch-stale", "online", {}, mkfs=("-b", "1024"), size="128M", cost=15)(stale)


def listings(g: Guest) -> None:
    """Readers in the middle of a listing when the feature is set and cleared return each name once; so do new ones."""
    g.mount()
    for where, n in ((g.path("small"), 700), (g.path("large"), 5000)):
        os.mkdir(where)
        names = [f"{i:05}-{i * 7919 % 10007}" for i in range(n)]
        for name in names:
            os.mknod(os.path.join(where, name))
        for change in ("itree", "^itree", "itree", "^itree"):
            streams = [Stream(where, 2000) for _ in range(3)]
            for s, calls in zip(streams, (0, 1, 9), strict=True):
                for _ in range(calls):
                    s.call()
            # As a file server in user space: it opens the directory for each call. With the feature, its positions
            # stay good when that goes.
            anew = Listing(where, 2000)
            anew.some(n // 3 if change.startswith("^") else 0)
            tune(g, change)
            if change == "itree":
                io.itree(where, io.BUILD)
            for s in (*streams, anew):
                s.rest(3 * n)
                got = sorted(x for x in s.names if x not in (".", ".."))
                g.equal(got, names, f"{where}: names of a listing across tune2fs -O {change}")
            for s in streams:
                # Rewound, it is a new listing.
                s.names.clear()
                os.lseek(s.fd, 0, os.SEEK_SET)
                s.rest(3 * n)
                got = sorted(x for x in s.names if x not in (".", ".."))
                g.equal(got, names, f"{where}: names of a rewound listing after tune2fs -O {change}")
                s.close()


case("switch-listings", "online", {}, itree=False, mkfs=("-b", "4096"), size="128M", cost=20)(listings)


def refusals(g: Guest) -> None:
    """Impossible and forbidden changes are refused with a reason and leave the feature unchanged."""
    g.mount()
    d = g.path()
    os.mkdir(d)
    pathlib.Path(d, "file").write_text("x")
    g.equal(io.errno_of(os.path.join(d, "file"), io.ON), errno.ENOTDIR, "ON of a file")
    g.equal(io.errno_of(d, io.ON, 1), errno.EINVAL, "ON with a flag")
    g.equal(io.errno_of(d, io.ON, diffs=1), errno.EINVAL, "ON with room for differences")
    g.equal(io.errno_of(d, io.OFF), 0, "OFF of a volume that is without")
    pid = os.fork()
    if not pid:
        os.setuid(65534)
        os._exit(0 if {io.errno_of(d, io.ON), io.errno_of(d, io.OFF)} == {errno.EPERM} else 1)
    g.equal(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0, "a user may switch the feature")
    g.remount("ro")
    g.want("mounted read-only" in tune(g, "itree", 1), "tune2fs -O itree, read-only: no reason")
    g.remount("rw")
    g.equal(feature(g), False, "the feature after refusals")
    for features, reason in (("^extents,^64bit", "extent"), ("^dir_index", "dir_index"), ("fast_commit", "fast")):
        g.umount()
        g.run(g.tool("mke2fs"), "-q", "-F", "-t", "ext4", "-O", f"^itree,{features}", g.dev)
        g.mount()
        g.want(reason in tune(g, "itree", 1), f"{features}: the reason is not given")
        answer = io.refused(str(g.mnt), io.ON)
        g.equal(answer.errno, errno.EOPNOTSUPP, f"{features}: ON")
        g.want(reason in answer.why, f"{features}: the kernel gives {answer.why!r} as reason")
        g.equal(feature(g), False, f"{features}: the feature")
    # A volume with errors must be checked first.
    g.umount()
    g.run(g.tool("mke2fs"), "-q", "-F", "-t", "ext4", "-O", "^itree", g.dev)
    g.run(g.tool("debugfs"), "-w", "-R", "ssv state 2", g.dev)
    g.mount()
    g.want("run e2fsck" in tune(g, "itree", 1), "tune2fs -O itree of a volume with errors: no reason")
    g.equal(io.refused(str(g.mnt), io.ON).errno, errno.EUCLEAN, "ON of a volume with errors")
    g.umount()
    g.run(g.tool("e2fsck"), "-fy", g.dev, check=False)
    # An older kernel has no such operation; it answers EINVAL, as to any it does not know.
    g.mount()
    g.equal(io.errno_of(str(g.mnt), 99), errno.EINVAL, "an operation that does not exist")


case(
    "switch-refusals", "online", {}, itree=False, mkfs=("-b", "1024"), size="64M", cost=15,
    allow=(r"warning: mounting fs with errors", r"checktime reached"),
)(refusals)  # fmt: skip


def busy(g: Guest) -> None:
    """Clearing the feature ends builds; a signal ends a change of the feature and leaves it unchanged."""
    g.mount()
    d = g.path()
    os.mkdir(d)
    g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["n"])
    for i in range(g.p["dirs"]):
        os.mkdir(g.path(f"many{i}"))
    stopped = 0
    for _ in range(8):
        tune(g, "itree")
        work = Background(d, io.BUILD)
        while work.is_alive() and not g.segment(d):
            pass
        io.itree(str(g.mnt), io.OFF)
        code = work.end()
        g.want(code in (0, errno.EBUSY), f"a build across OFF ends with {errno.errorcode.get(code)}")
        stopped += code == errno.EBUSY
        g.want(not g.has_tree(d) and not g.segment(d), "the build left a tree or blocks")
    # A kernel that is a program of the host has one processor, which a build keeps.
    g.want(stopped > 0 or os.cpu_count() == 1, "no build was stopped")
    # A signal: the feature is as it was, or the call had come to its end.
    tune(g, "itree")
    io.itree(d, io.BUILD)
    ended = 0
    for number in range(20):
        g.settle()
        proc = subprocess.Popen(
            [g.tool("tune2fs"), "-O", "^itree", g.dev], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(0.002 * number)
        proc.send_signal(signal.SIGTERM)
        code = proc.wait(60)
        on = feature(g)
        g.want(on or code in (0, -signal.SIGTERM), f"exit code {code}")
        g.want(not on or code, "tune2fs reports success, and the feature is there")
        ended += on
        if not on:
            tune(g, "itree")
        io.itree(d, io.BUILD)
        exact(g, d, g.p["n"])
    g.want(ended > 0, "no signal came in time")
    g.stats.update(stopped=stopped, ended=ended)
    # The file system stopped under it.
    os.sync()
    fd = os.open(g.mnt, os.O_RDONLY)
    fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", 2))
    g.equal(io.errno_of(str(g.mnt), io.OFF), errno.EIO, "OFF of a file system that was shut down")
    os.close(fd)
    g.again()
    exact(g, d, g.p["n"])


case(
    "switch-busy", "online", {"n": 40000, "dirs": 300}, itree=False, mkfs=("-b", "1024"), size="256M", cost=40, cpus=2,
    allow=(r"shut down requested", r"Shutting down filesystem", r"recovery complete"),
)(busy)  # fmt: skip


# --- power cuts


def cut_at(g: Guest, rec: Recorder, marks: tuple[str, str]) -> None:
    """Power fails at each write between the marks: the feature is set or not, and e2fsck finds no error."""
    log = logwrites.Log(rec.log)
    first, last = (next(i for i, e in enumerate(log.entries) if e.mark == m) for m in marks)
    chosen = logwrites.choose(log, ALL_CUTS, 7, first)
    cuts = [c for c in chosen if c.at <= last]
    if not g.job["full"]:
        cuts = cuts[:: max(1, len(cuts) // CUTS)]
    found = {True: 0, False: 0}
    for cut, image in disks(g, rec, log, cuts):
        # As at boot: replay the journal, process the orphans.
        g.run(g.tool("e2fsck"), "-p", image, check=False)
        on = feature(g, image)
        found[on] += 1
        what = f"{marks[0]}, cut {cut.kind} at entry {cut.at} of {len(log.entries)}"
        res = g.run(g.tool("e2fsck"), "-fn", image, check=False)
        # With the feature, blocks that a drop had still to free are left, and nothing else.
        other = [x for x in res.stdout.splitlines() if x.endswith("? no") and not (on and "unused itree blocks" in x)]
        g.want(not other and res.returncode == 0, f"{what}: e2fsck -fn: {res.returncode} {res.stdout[-400:]}")
        if not on:
            want_stock(g, image)
        if g.fails:
            g.run("cp", "--sparse=always", image, g.share / f"cut-{cut.at}.img")
            break
    log.close()
    g.stats[f"{marks[0]}_cuts"] = len(cuts)
    g.want(found[True] and found[False], f"{marks}: cuts with the feature and without: {found}")


def power_cut(g: Guest) -> None:
    """Record all writes of ON and OFF, with a concurrent writer."""
    g.mount()
    d = g.path()
    os.mkdir(d)
    g.t("fill", "--dir", d, "--model", g.model(), "--n", 6000)
    g.umount()
    rec = Recorder(g)
    try:
        g.mount()
        os.sync()
        for mark, op in (("on", io.ON), ("off", io.OFF)):
            rec.mark(f"{mark}-begins")
            for i in range(50):
                os.mknod(f"{d}/{mark}-{i}")
            io.itree(str(g.mnt), op)
            if op == io.ON:
                # The tree that OFF has to drop.
                io.itree(d, io.BUILD)
            for i in range(50):
                os.unlink(f"{d}/{mark}-{i}")
            os.sync()
            rec.mark(f"{mark}-ends")
        g.umount()
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        rec.remove()
    for mark in ("on", "off"):
        cut_at(g, rec, (f"{mark}-begins", f"{mark}-ends"))


case(
    "switch-power-1k", "online", {}, itree=False, mkfs=("-b", "1024", "-J", "size=4"), size="64M", cost=60, memory="2G",
    limit=1500,
)(power_cut)  # fmt: skip
case(
    "switch-power-4k", "online", {}, itree=False, mkfs=("-b", "4096", "-J", "size=4"), size="64M", cost=60, memory="2G",
    limit=1500,
)(power_cut)  # fmt: skip
