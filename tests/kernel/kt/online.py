# SPDX-License-Identifier: GPL-2.0-only
"""Trees built, dropped and checked while their directories are in use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import re
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Iterator

from kt import itree_ioctl as io
from kt.corrupt import damage, nodes
from kt.crash import LOG
from kt.guest import EXT4_IOC_SHUTDOWN, FL_CASEFOLD, Guest
from kt.matrix import HASH_SEED, SEED_WORDS
from kt.registry import MILLION, case

# What an interrupted build leaves; e2fsck frees it.
LEFT = r"^Directory inode \d+ has unused itree blocks"


def e4itree(g: Guest, *args, code: int = 0) -> subprocess.CompletedProcess:
    res = g.run(g.tool("e4itree"), *args, check=False, timeout=g.case.limit)
    g.want(res.returncode == code, f"e4itree {args[0]}: exit code {res.returncode}, wanted {code}: {res.stderr[-300:]}")
    return res


def mount(g: Guest) -> None:
    g.umount()
    g.mount()
    if g.p.get("crypt"):
        g.t("crypt", "--mode", "add", "--dir", g.mnt)


def feature_on(g: Guest) -> None:
    """Set the feature on a volume that was filled without it."""
    g.umount()
    # tune2fs requires a recent check.
    g.run(g.tool("e2fsck"), "-fy", g.dev)
    if g.case.fast_commit:
        res = g.run(g.tool("tune2fs"), "-O", "itree", g.dev, check=False)
        g.want(res.returncode and "not compatible" in res.stderr, f"tune2fs sets both features: {res.stderr}")
        g.run(g.tool("debugfs"), "-w", "-R", "feature itree", g.dev)
        g.both = True
    else:
        g.run(g.tool("tune2fs"), "-O", "itree", g.dev)
    mount(g)


def make_dir(g: Guest, d: str) -> None:
    """Make a directory, casefolded and encrypted if the case says so."""
    os.makedirs(d, exist_ok=True)
    if g.p.get("casefold"):
        g.equal(g.set_flags(d, g.flags(d) | FL_CASEFOLD), 0, "chattr +F")
    if g.p.get("crypt"):
        g.t("crypt", "--mode", "set", "--dir", d)


def without_tree(g: Guest, n: int, *options: str) -> str:
    """A directory of n names from before the feature was switched on."""
    g.mount()
    d = g.path()
    make_dir(g, d)
    g.t("fill", "--dir", d, "--model", g.model(), "--n", n, "--names", g.p.get("names", "mixed"), *options)
    feature_on(g)
    g.equal(g.has_tree(d), False, "itree flag before the build")
    return d


def exact(g: Guest, d: str, names: int | None = None, busy: bool = False) -> io.Answer:
    """Check that each name has a key. busy: the directory changes while names and keys are counted."""
    a = io.itree(d, io.CHECK, diffs=20)
    g.equal(a.state & (io.HAS_TREE | io.BAD), io.HAS_TREE, f"state ({a.why})")
    g.equal((a.missing, a.extra, a.found), (0, 0, []), "missing and extra keys")
    if not busy:
        g.equal(a.keys, a.names, "keys of the tree and names of the directory")
    if names is not None:
        g.equal(a.keys, names, "keys")
    return a


def build(g: Guest) -> None:
    """On a volume filled without the feature: build, read in order, change, check; rebuild; drop."""
    n = g.p["n"]
    d = without_tree(g, n, "--mixed")
    out = e4itree(g, "build", "-v", d).stdout
    g.want("built" in out, f"e4itree says {out!r}")
    g.want_tree(d)
    exact(g, d, n)
    g.listing()
    g.equal(g.counter("builds"), 1, "itree_builds")
    # Packed, and not rebuilt without need.
    a = io.itree(d, io.STAT, io.VERIFY)
    g.want(a.keys > 0.9 * a.leaf_slots or a.leaves < 10, f"{a.keys} keys in {a.leaf_slots} slots")
    g.equal(io.itree(d, io.BUILD).state & io.CHANGED, 0, "built again though there is a tree")
    mount(g)
    g.listing()
    # It follows changes from now on.
    g.t("age", "--dir", d, "--model", g.model(), "--percent", 20, "--names", g.p.get("names", "mixed"), "--mixed")
    g.listing()
    exact(g, d)
    for _ in range(2):
        a = io.itree(d, io.BUILD, io.FORCE)
        g.want(a.state & io.CHANGED, "BUILD with FORCE changed nothing")
        exact(g, d)
        g.listing()
    g.fsck()
    mount(g)
    g.want_tree(d)
    e4itree(g, "drop", d)
    g.equal(g.has_tree(d), False, "itree flag after drop")
    g.equal(g.segment(d), [], "blocks of the tree after drop")
    g.equal(io.itree(d, io.DROP).state, io.POSSIBLE, "state after another drop")
    g.t("lookup", "--dir", d, "--model", g.model())
    g.fsck()
    mount(g)
    # And once more, for the final check.
    e4itree(g, "build", d)
    g.equal(g.counter("drops"), 0, "itree_drops of this mount")


def _build(id_: str, features: str = "", bs: int = 4096, n: int = 20000, cost: int = 40, mkfs=(), **params) -> None:
    case(
        f"online-build-{id_}", "online", {"n": n, **params}, itree=False, features=features,
        mkfs=("-b", str(bs), *mkfs), size="512M", cost=cost, limit=400,
    )(build)  # fmt: skip


_build("4k")
_build("1k", bs=1024)
_build("1k-small", bs=1024, n=400, cost=8)
_build("nojournal", "^has_journal", bs=1024, n=6000)
_build("nocsum", "^metadata_csum", bs=1024, n=6000)
_build("fastcommit", "fast_commit", n=6000)
_build("bigalloc", "bigalloc", n=6000, mkfs=("-C", "16384"))
_build("casefold", "casefold", n=6000, casefold=True, names="ascii", mkfs=("-E", "encoding=utf8"))
_build("crypt", "encrypt", n=6000, crypt=True, names="ascii")
_build("crypt-casefold", "encrypt,casefold", n=2500, crypt=True, casefold=True, names="ascii",
       mkfs=("-E", "encoding=utf8"))  # fmt: skip
_build("quota", "quota", n=6000)
_build("smalljournal", bs=1024, n=20000, mkfs=("-J", "size=1"))


def busy(g: Guest) -> None:
    """Trees are built, rebuilt and dropped during all kinds of changes."""
    common = ["--dir", g.mnt, "--model", g.model(), "--dirs", 2, "--names", g.p.get("names", "mixed")]
    g.mount()
    g.t("ops", *common, "--seed", g.p["seed"], "--plan", str(g.p["start"]), "--n", 100000, "--m", 50)
    feature_on(g)
    dirs = [g.path(f"d{i}") for i in range(2)]
    rng = random.Random(g.p["seed"])
    logged = builds = rounds = locked = 0
    writers = g.start("ops", *common, "--seed", g.p["seed"] + 1, "--plan", g.p["plan"], "--n", g.p["every"], "--m", 200)
    while writers.poll() is None:
        for d in dirs:
            if rng.random() < 0.3:
                io.itree(d, io.DROP)
            a = io.itree(d, io.BUILD, io.FORCE)
            builds += 1
            logged += a.logged
            rounds = max(rounds, a.rounds)
            locked = max(locked, a.locked_us)
            if rng.random() < 0.5:
                exact(g, d, busy=True)
            if g.fails:
                break
            time.sleep(rng.random() * 0.05)
    g.finish(writers, timeout=g.case.limit)
    for i, d in enumerate(dirs):
        io.itree(d, io.BUILD)
        exact(g, d)
        g.listing(d, f"{g.model()}.{i}")
    g.stats.update(builds=builds, logged=logged, rounds=rounds, locked_us=locked)
    g.want(builds >= 10, f"only {builds} builds")
    g.want(logged > 0, "no change was ever logged: nothing was tested")
    g.fsck()
    g.mount()
    for i, d in enumerate(dirs):
        g.want_tree(d)
        g.listing(d, f"{g.model()}.{i}")


def _busy(id_: str, seed: int, features: str = "", bs: int = 1024, start: int = 5000, plan="9000,5000", **more) -> None:
    case(
        f"online-busy-{id_}", "online", {"seed": seed, "start": start, "plan": plan, "every": 2000, **more},
        itree=False, features=features, mkfs=("-b", str(bs)), size="512M", cost=60, cpus=2, limit=500,
    )(busy)  # fmt: skip


_busy("1k", 1)
_busy("4k", 2, bs=4096, start=8000, plan="12000,8000")
_busy("fastcommit", 3, "fast_commit")
_busy("nojournal", 4, "^has_journal")


def hammer(g: Guest) -> None:
    """Changes during a build are so frequent that it needs several rounds to catch up."""
    d = without_tree(g, g.p["n"])
    files = [[f"{d}/hammer{w}-{i}" for i in range(50)] for w in range(3)]
    for path in sum(files, []):
        os.mknod(path)
    pids = []
    for mine in files:
        pid = os.fork()
        if not pid:
            while True:
                for path in mine:
                    os.rename(path, path + "x")
                    os.rename(path + "x", path)
        pids.append(pid)
    logged = rounds = locked = 0
    try:
        for _ in range(g.p["builds"]):
            a = io.itree(d, io.BUILD, io.FORCE)
            logged, rounds, locked = logged + a.logged, max(rounds, a.rounds), max(locked, a.locked_us)
            exact(g, d, g.p["n"] + 150, busy=True)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    g.stats.update(logged=logged, rounds=rounds, locked_us=locked)
    g.want(rounds > 0, f"{logged} changes logged, but never a round")
    exact(g, d, g.p["n"] + 150)
    g.listing(None, None, "--subset")


case(
    "online-hammer", "online", {"n": 25000, "builds": 8}, itree=False, mkfs=("-b", "1024"), size="512M", cost=50,
    cpus=2, limit=400,
)(hammer)  # fmt: skip


def scans(g: Guest) -> None:
    """The tree is built and dropped under readers and writers: no reader misses a name."""
    d = without_tree(g, g.p["n"])
    secs = g.p["seconds"]
    others = g.start(
        "stress", "--dir", d, "--model", g.model(), "--out", g.model("stay"), "--seconds", secs,
        "--readers", 2, "--writers", 2, "--seed", g.p["seed"],
    )  # fmt: skip
    builds = 0
    while others.poll() is None:
        io.itree(d, io.BUILD)
        builds += 1
        time.sleep(0.3)
        io.itree(d, io.DROP)
        time.sleep(0.1)
    g.finish(others)
    g.want(builds > 3, f"only {builds} builds")
    io.itree(d, io.BUILD)
    exact(g, d)
    g.listing(d, g.model("stay"), "--subset")


case(
    "online-scans", "online", {"n": 3000, "seconds": 30, "seed": 5, "names": "skew"}, itree=False,
    mkfs=("-b", "1024"), size="256M", cost=45, cpus=2,
)(scans)  # fmt: skip


class Background(threading.Thread):
    """A call in a thread, which runs in the kernel without Python's lock."""

    def __init__(self, path: str, op: int, flags: int = 0):
        super().__init__(daemon=True)
        self.fd = os.open(path, os.O_RDONLY)
        self.call = (op, flags)
        self.error = 0
        self.start()

    def run(self) -> None:
        try:
            io.itree_fd(self.fd, *self.call)
        except OSError as err:
            self.error = err.errno

    def end(self) -> int:
        self.join(300)
        os.close(self.fd)
        return self.error


def power_cut(g: Guest) -> None:
    """Power fails during a build: the tree is complete, or e2fsck frees what is left of it."""
    n = g.p["n"]
    d = without_tree(g, n)
    rng = random.Random(g.p["seed"])
    start = time.monotonic()
    io.itree(d, io.BUILD)
    took = time.monotonic() - start
    complete = left = 0
    # A build may come to its end before the cut; then there are more rounds.
    for number in range(4 * g.p["rounds"]):
        if number >= g.p["rounds"] and left:
            break
        io.itree(d, io.DROP)
        os.sync()
        fd = os.open(g.mnt, os.O_RDONLY)
        work = Background(d, io.BUILD)
        if number % 4 == 1:
            time.sleep(rng.random() * took)
        else:
            # In the middle of the load, with (1) or without what is in the log's buffers.
            while work.is_alive() and not g.segment(d):
                pass
        fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", 2 if number % 4 == 3 else 1))
        os.close(fd)
        code = work.end()
        g.want(code in (0, errno.EIO, errno.EROFS), f"round {number}: the build ends with {errno.errorcode.get(code)}")
        g.again()
        complete += g.has_tree(d)
        if g.has_tree(d):
            exact(g, d, n)
        left += bool(g.segment(d)) and not g.has_tree(d)
        g.t("lookup", "--dir", d, "--model", g.model())
        # Even rounds: e2fsck cleans up; odd ones: the next drop or build does.
        if not number % 2:
            segment = bool(g.segment(d)) and not g.has_tree(d)
            g.umount()
            if segment:
                res = g.run(g.tool("e2fsck"), "-fn", g.dev, check=False)
                asked = [line for line in res.stdout.splitlines() if line.endswith("? no")]
                only_left = bool(asked) and all(re.match(LEFT, line) for line in asked)
                g.want(only_left and not res.returncode, f"e2fsck -fn of an interrupted build: {res.stdout[-600:]}")
                g.run(g.tool("e2fsck"), "-fy", g.dev, check=False)
            g.fsck()
            g.mount()
            g.want(g.has_tree(d) or not g.segment(d), "blocks without a tree after e2fsck -fy")
        if g.fails:
            return
    g.stats.update(complete=complete, left=left)
    g.want(left > 0, f"no build was cut off in the middle, {complete} came to their end")
    io.itree(d, io.BUILD)
    exact(g, d, n)
    g.listing()


case(
    "online-power-1k", "online", {"n": 30000, "rounds": 12, "seed": 1}, itree=False, mkfs=("-b", "1024"), size="512M",
    allow=LOG, cost=90, limit=600,
)(power_cut)  # fmt: skip
case(
    "online-power-fastcommit", "online", {"n": 12000, "rounds": 8, "seed": 2}, itree=False, features="fast_commit",
    mkfs=("-b", "4096"), size="512M", allow=LOG, cost=60, limit=600,
)(power_cut)  # fmt: skip


def cancel(g: Guest) -> None:
    """SIGINT undoes the build under way; two builders; an unused segment is used again."""
    n = g.p["n"]
    d = without_tree(g, n)
    tool = g.tool("e4itree")
    took = 0.0
    for _ in range(2):  # the first also reads the program and the directory
        start = time.monotonic()
        e4itree(g, "build", d)
        took = time.monotonic() - start
        io.itree(d, io.DROP)
    caught = 0
    for number in range(12):
        proc = subprocess.Popen([tool, "build", "--json", d], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(took * (number + 1) / 14)
        proc.send_signal(signal.SIGINT)
        out, err = proc.communicate(timeout=120)
        if proc.returncode == 0:
            g.want_tree(d)
            io.itree(d, io.DROP)
            continue
        # -2: it had not come to catch signals yet.
        if not g.want(proc.returncode in (130, -2), f"exit code {proc.returncode} after SIGINT: {out} {err}"):
            return
        if proc.returncode == 130:
            last = json.loads(out.splitlines()[-1])
            g.want(last["cancelled"] is True, f"summary {last}")
            if last["done"]:
                # The signal came when the build had just ended, and the tool says so.
                g.want_tree(d)
                io.itree(d, io.DROP)
                continue
            caught += 1
        g.equal(g.has_tree(d), False, "itree flag after SIGINT")
        g.equal(g.segment(d), [], "blocks of the tree after SIGINT")
    g.want(caught >= 3, f"only {caught} of 12 builds were caught")
    g.stats["caught"] = caught
    # Two at a time.
    refused = 0
    for _ in range(20):
        work = Background(d, io.BUILD, io.FORCE)
        while work.is_alive():
            code = io.errno_of(d, io.BUILD, io.FORCE) or io.errno_of(d, io.DROP)
            g.want(code in (0, errno.EBUSY), f"a second build gives {errno.errorcode.get(code)}")
            refused += code == errno.EBUSY
        g.want(work.end() in (0, errno.EBUSY), f"the first build gives {work.error}")
        if refused:
            break
    g.want(refused > 0, "a second builder was never refused")
    io.itree(d, io.BUILD)
    exact(g, d, n)
    g.listing()


case(
    "online-cancel", "online", {"n": 30000}, itree=False, mkfs=("-b", "1024"), size="512M", cost=70, cpus=2, limit=500
)(cancel)


def rmdir(g: Guest) -> None:
    """The directory is emptied and removed during a build."""
    g.mount()
    gone = built = 0
    rng = random.Random(7)
    os.mkdir(g.path("warm"))
    os.rmdir(g.path("warm"))
    os.sync()
    free = os.statvfs(g.mnt).f_bfree
    for number in range(25):
        d = g.path(f"d{number}")
        os.mkdir(d)
        names = [f"{d}/{'x' * 100}{i}" for i in range(900)]
        for name in names:
            os.mknod(name)
        work = Background(d, io.BUILD, io.FORCE)
        for name in names:
            os.unlink(name)
        again = Background(d, io.BUILD, io.FORCE)
        time.sleep(rng.random() * 0.01)
        os.rmdir(d)
        for w in (work, again):
            code = w.end()
            built += code == 0
            gone += code == errno.ENOENT
            g.want(code in (0, errno.ENOENT, errno.EBUSY), f"the build ends with {errno.errorcode.get(code)}")
    g.stats.update(built=built, gone=gone)
    g.want(built > 0, "no build ever came to its end")
    os.sync()
    g.equal(os.statvfs(g.mnt).f_bfree, free, "free blocks at the end")


case("online-rmdir", "online", {}, mkfs=("-b", "1024"), size="128M", cost=30, cpus=2)(rmdir)


def as_user(uid: int, path: str, op: int, flags: int = 0) -> int:
    """Make a call as this user; return its errno."""
    pid = os.fork()
    if not pid:
        code = 255
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            code = io.errno_of(path, op, flags)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def refusals(g: Guest) -> None:
    """Permissions, files that have no tree, and invalid calls."""
    d = without_tree(g, 3000)
    os.chown(d, 1000, 1000)
    os.chmod(d, 0o755)
    for op in (io.BUILD, io.CHECK, io.DROP):
        g.equal(as_user(1001, d, op), errno.EPERM, f"op {op} by another user")
        g.equal(as_user(1000, d, op), 0, f"op {op} by the owner")
    g.equal(as_user(1001, d, io.STAT), 0, "STAT by another user")
    # Arguments.
    for what, call in {
        "op": {"op": 9}, "flags": {"op": io.BUILD, "flags": 0x80}, "flag": {"op": io.STAT, "flags": io.FORCE},
        "version": {"op": io.STAT, "version": 2}, "reserved": {"op": io.STAT, "reserved": 1},
        "diffs with BUILD": {"op": io.BUILD, "diffs": 3},
    }.items():  # fmt: skip
        g.equal(io.errno_of(d, **call), errno.EINVAL, f"bad {what}")
    fd = os.open(d, os.O_RDONLY)
    raw = io.ARGS.pack(1, io.CHECK, 0, 5, 8, 0, 0, 0, *[0] * 18, b"", *[0] * 4)
    io.itree(d, io.BUILD)
    try:
        # Nothing differs, so the bad address is not used.
        fcntl.ioctl(fd, io.EXT4_IOC_ITREE, bytearray(raw), True)
    except OSError as err:
        g.fail(f"CHECK with a bad address and no difference: {err}")
    os.close(fd)
    # Kinds of files and directories.
    with open(g.path("file"), "w"):
        pass
    g.equal(io.errno_of(g.path("file"), io.STAT), errno.ENOTDIR, "a regular file")
    os.mkdir(g.path("small"))
    g.equal(io.errno_of(g.path("small"), io.BUILD), errno.ENODATA, "a directory without htree")
    g.equal(io.itree(g.path("small"), io.STAT).state, 0, "state of a directory without htree")
    g.equal(io.errno_of(g.path("small"), io.DROP), 0, "DROP of a directory without htree")
    res = e4itree(g, "build", "--min-blocks", "1", g.path("small"), code=1)
    g.want("htree" in res.stderr, f"e4itree says {res.stderr!r}")
    # chattr +i
    g.run(g.tool("chattr"), "+i", d)
    g.equal(io.errno_of(d, io.DROP), errno.EPERM, "DROP of an immutable directory")
    g.run(g.tool("chattr"), "-i", d)
    # A frozen file system waits.
    g.run("fsfreeze", "-f", g.mnt)
    work = Background(d, io.BUILD, io.FORCE)
    time.sleep(0.5)
    g.want(work.is_alive(), "a build went on while the file system was frozen")
    g.run("fsfreeze", "-u", g.mnt)
    g.equal(work.end(), 0, "the build after the freeze")
    g.remount("ro")
    g.equal(io.errno_of(d, io.BUILD, io.FORCE), errno.EROFS, "BUILD on a read-only mount")
    g.equal(io.errno_of(d, io.DROP), errno.EROFS, "DROP on a read-only mount")
    exact(g, d, 3000)
    e4itree(g, "check", d)
    g.remount("rw")
    # Without the feature.
    g.umount()
    g.run(g.tool("e2fsck"), "-fy", g.dev)
    g.run(g.tool("tune2fs"), "-O", "^itree", g.dev)
    g.mount()
    for op in range(4):
        g.equal(io.errno_of(d, op), errno.EOPNOTSUPP, f"op {op} without the feature")
    res = e4itree(g, "build", d, code=3)
    g.want("tune2fs" in res.stderr, f"e4itree says {res.stderr!r}")


case("online-refusals", "online", {}, itree=False, mkfs=("-b", "1024"), size="128M", cost=20)(refusals)


@contextlib.contextmanager
def changing(d: str) -> Iterator[list[int]]:
    """Context: names are made, moved and removed in the directory; their number is in the list."""
    stop, made = threading.Event(), [0]

    def work() -> None:
        while not stop.is_set():
            path = f"{d}/changing-{made[0] % 50}"
            os.mknod(path)
            os.rename(path, f"{path}-moved")
            os.unlink(f"{path}-moved")
            made[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield made
    finally:
        stop.set()
        thread.join()


def differs(g: Guest) -> None:
    """CHECK reports a wrong key and a broken node, and changes nothing."""
    d = without_tree(g, 2500)
    io.itree(d, io.BUILD)
    blocks = g.tree_blocks(d)
    bsize = os.statvfs(g.mnt).f_bsize
    for kind in ("hash", "magic"):
        g.umount()
        with open(g.dev, "r+b", buffering=0) as disk:
            raw = {b: os.pread(disk.fileno(), bsize, at) for b, at in blocks.items()}
            leaves, _ = nodes(raw)
            target = leaves[len(leaves) // 2]
            data = bytearray(raw[target])
            damage(kind, data, 1)
            os.pwrite(disk.fileno(), data, blocks[target])
            os.fsync(disk.fileno())
        g.settle()
        g.mount()
        a = io.itree(d, io.CHECK, diffs=20)
        g.equal(a.names, 2500, "names")
        if kind == "hash":
            g.equal((a.missing, a.extra), (1, 1), "missing and extra keys")
            (ino, good, what), (ino2, bad, what2) = sorted(a.found, key=lambda f: f[2])
            g.equal((what, what2, ino, good ^ 2), (io.MISSING, io.EXTRA, ino2, bad), "the differences")
            with changing(d) as made:
                checks = 0
                while checks < 20 or made[0] < 200:
                    b = io.itree(d, io.CHECK, diffs=20)
                    g.equal((b.missing, b.extra, sorted(b.found)), (1, 1, sorted(a.found)), "while the names change")
                    checks += 1
            g.stats |= {"checks": checks, "changes": made[0]}
            os.stat(d)
            res = e4itree(g, "check", "--json", d, code=1)
            first = json.loads(res.stdout.splitlines()[0])
            g.equal((first["result"], first["missing"], first["extra"]), ("differs", 1, 1), "JSON of the difference")
        else:
            g.equal(a.state & io.BAD, io.BAD, "state of a broken tree")
            g.equal((a.why, a.why_block), ("bad magic number", target - 0x80000000), "the reason")
            res = e4itree(g, "check", d, code=1)
            g.want("bad tree" in res.stdout, f"e4itree says {res.stdout!r}")
        g.want_tree(d)
    g.equal(g.counter("drops"), 0, "trees dropped")
    g.want("EXT4-fs error" not in g.log(), "CHECK wrote an error to the log")
    # The repair.
    e4itree(g, "build", "--force", d)
    exact(g, d, 2500)
    g.listing()


case("online-differs", "online", {}, itree=False, features="^metadata_csum", mkfs=("-b", "1024"), size="64M", cost=10)(
    differs
)


def recursive(g: Guest) -> None:
    """A whole volume, with names that are not UTF-8, other file systems below, and small directories."""
    g.mount()
    odd = os.fsencode(g.path('a"\n')) + b"\xff\xc3"
    os.mkdir(odd)
    for d in (g.path("x/y/z"), os.fsdecode(odd) + "/deep"):
        os.makedirs(d)
        for i in range(1500):
            os.mknod(f"{d}/{'n' * 60}{i}")
    os.mkdir(g.path("other"))
    feature_on(g)
    g.run("mount", "-t", "tmpfs", "none", g.path("other"))
    os.mkdir(g.path("other/below"))
    try:
        res = e4itree(g, "build", "-r", "-n", "--json", "-v", g.mnt)
        g.equal(res.stdout.count('"would-build"'), 2, "directories that would be built")
        res = e4itree(g, "build", "-r", "--json", g.mnt)
        lines = [json.loads(x) for x in res.stdout.splitlines()]
        g.equal({os.fsencode(x["path"]) for x in lines[:-1]}, {os.fsencode(g.path("x/y/z")), odd + b"/deep"}, "built")
        g.equal((lines[-1]["done"], lines[-1]["entries"], lines[-1]["failed"]), (2, 3000, 0), "summary")
        for d in (g.path("x/y/z"), os.fsdecode(odd) + "/deep"):
            exact(g, d, 1500)
        g.want("other/below" not in res.stdout, "another file system was entered")
        g.want("2 exact" in e4itree(g, "check", "-r", g.mnt).stdout, "check -r")
        g.want("1500 keys" in e4itree(g, "stat", "--verify", g.path("x/y/z")).stdout, "stat")
        g.want("2 dropped" in e4itree(g, "drop", "-r", g.mnt).stdout, "drop -r")
    finally:
        g.run("umount", g.path("other"))


case("online-recursive", "online", {}, itree=False, mkfs=("-b", "1024"), size="128M", cost=15)(recursive)


def big(g: Guest) -> None:
    """Build the tree of a huge directory, and report how long a writer is blocked."""
    g.mount()
    d = g.path()
    start = time.monotonic()
    io.itree(d, io.DROP)
    g.stats["drop_ms"] = int(1000 * (time.monotonic() - start))
    g.again()
    stop = threading.Event()
    longest, writes = [0.0], [0]

    def writer() -> None:
        while not stop.is_set():
            begin = time.monotonic()
            os.mknod(f"{d}/writer{writes[0]}")
            os.unlink(f"{d}/writer{writes[0]}")
            longest[0] = max(longest[0], time.monotonic() - begin)
            writes[0] += 1

    thread = threading.Thread(target=writer, daemon=True)
    thread.start()
    start = time.monotonic()
    a = io.itree(d, io.BUILD)
    g.stats["build_ms"] = int(1000 * (time.monotonic() - start))
    stop.set()
    thread.join(60)
    g.stats.update(
        logged=a.logged, rounds=a.rounds, locked_us=a.locked_us, writes=writes[0], stall_ms=int(1000 * longest[0])
    )
    start = time.monotonic()
    exact(g, d, g.p["n"])
    g.stats["check_ms"] = int(1000 * (time.monotonic() - start))
    g.listing(None, str(g.share / "model"))


for _id, _n in (("300k-4k", 300000), ("1m-4k", 1000000)):
    case(
        f"online-{_id}", "online", {"n": _n}, image=f"fill-{_id}-clean", mkfs=("-b", "4096"), size="8G", slow=True,
        memory="2G", cost=120, cpus=2, limit=1500, full=MILLION if _n >= 1_000_000 else "",
    )(big)  # fmt: skip


def collisions(g: Guest) -> None:
    """Names with equal hashes, on both sides of leaves' ends."""
    g.mount()
    d = g.path()
    stats = g.t(
        "collide", "--dir", d, "--model", g.model(), "--m", 400000, "--n", 400, "--plan", SEED_WORDS, timeout=120
    )
    g.want(stats.get("groups", 0) >= 20, f"too few collisions: {stats}")
    g.t("fill", "--dir", d, "--model", g.model(), "--n", stats["names"] + 3000)
    feature_on(g)
    e4itree(g, "build", d)
    exact(g, d, stats["names"] + 3000)
    g.listing()


case(
    "online-collisions", "online", {}, itree=False, mkfs=("-b", "1024", "-E", f"hash_seed={HASH_SEED}"), size="256M",
    cost=25,
)(collisions)  # fmt: skip
