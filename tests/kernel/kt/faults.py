# SPDX-License-Identifier: GPL-2.0-only
"""Disks that fail and memory that runs out, while the file system is in use.

Unreadable blocks of a tree cost speed, never a name. After a disk has failed in the middle of work, works again and
has been replayed, every acknowledged message is there. An operation that fails with ENOMEM has changed nothing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import random
import threading

from kt import itree_ioctl as io
from kt.crash import KNOWN
from kt.guest import Failed, Guest
from kt.mail import post
from kt.mapper import Mapped
from kt.registry import case

SETS, ALL_SETS = 16, 200
ROUNDS, ALL_ROUNDS = 5, 40
BURSTS, ALL_BURSTS = 10, 100
LOG = (
    r"EXT4-fs error \(device", r"EXT4-fs \(dm-\d+\): (error count|Remounting|failed to convert|I/O error|previous I/O)",
    r"EXT4-fs \((dm-\d+|vd\w+)\): error count", r"JBD2: ", r"Buffer I/O error", r"Aborting journal", r"I/O error, dev",
    r"EXT4-fs warning", r"EXT4-fs \((dm-\d+|vd\w+)\): (Delayed block allocation|This should not happen|shut down)",
)  # fmt: skip


class Faulty(Mapped):
    """The file system's device, and tables of it that fail."""

    def __init__(self, g: Guest):
        self.raw, self.sectors = g.dev, int(g.run("blockdev", "--getsz", g.dev).stdout)
        super().__init__(g, f"faults-{g.disk}", self.sound())

    def sound(self) -> str:
        return f"0 {self.sectors} linear {self.raw} 0"

    def load(self, table: str) -> None:
        # Nothing is flushed or frozen: a disk that fails does not announce it.
        self.dmsetup("suspend", "--nolockfs", "--noflush", self.name)
        self.dmsetup("load", self.name, "--table", table)
        self.dmsetup("resume", self.name)

    def unreadable(self, addresses: list[int], size: int) -> str:
        """A table in which these blocks can be written but not read."""
        return self.with_blocks(addresses, size, "flakey {raw} {start} 0 36000 1 error_reads")

    def hold(self, addresses: list[int], size: int) -> None:
        """Stop answering reads and writes that include these blocks.

        Suspending the device alone is not enough, because it then fails readahead at once.
        """
        self.load(self.with_blocks(addresses, size, "delay {raw} {start} 3600000"))

    def release(self) -> None:
        """Answer all requests again, including those that are waiting."""
        self.load(self.sound())

    def with_blocks(self, addresses: list[int], size: int, target: str) -> str:
        lines, at = [], 0
        for address in sorted(addresses):
            start, length = address // 512, size // 512
            if start > at:
                lines.append(f"{at} {start - at} linear {self.raw} {at}")
            lines.append(f"{start} {length} {target.format(raw=self.raw, start=start)}")
            at = start + length
        if at < self.sectors:
            lines.append(f"{at} {self.sectors - at} linear {self.raw} {at}")
        return "\n".join(lines)

    def flaky(self, feature: str) -> str:
        """A table that fails each other second."""
        features = f"1 {feature}" if feature else "0"
        return f"0 {self.sectors} flakey {self.raw} 0 1 1 {features}"


def repaired(g: Guest, known: str = "") -> None:
    """Check that e2fsck -fy leaves a clean disk; keep a copy from before to analyze failures."""
    before, image = len(g.fails), g.tmp / "before"
    g.tmp.mkdir(parents=True, exist_ok=True)
    g.run("cp", "--sparse=always", g.dev, image)
    res = g.run(g.tool("e2fsck"), "-fy", g.dev, check=False)
    g.want(res.returncode in (0, 1), f"e2fsck -fy: exit code {res.returncode}: {res.stdout[-300:]}")
    g.fsck(known)
    if len(g.fails) > before:
        g.run("cp", "--sparse=always", image, g.share / f"before-{before}.img")


def change(g: Guest, number: int) -> None:
    """Insert and delete from one end of the tree to the other; afterwards the directory is unchanged."""
    for n in range(40):
        g.run_quiet(os.mknod, g.path(f"d/{number}-{n}"))
    old = [n for n, _ in g.names()][:: 40]
    for n, name in enumerate(old):
        if os.path.isfile(g.path(f"d/{name}")) and not os.path.islink(g.path(f"d/{name}")):
            g.run_quiet(os.link, g.path(f"d/{name}"), g.path(f"d/link-{number}-{n}"))
            g.run_quiet(os.unlink, g.path(f"d/link-{number}-{n}"))
    for n in range(40):
        g.run_quiet(os.unlink, g.path(f"d/{number}-{n}"))


def unreadable(g: Guest) -> None:
    """Blocks of the tree that cannot be read: every name is listed, every change works."""
    mapped = Faulty(g)
    rng = random.Random(g.p["seed"])
    ignored = 0
    for number in range(ALL_SETS if g.job["full"] else SETS):
        g.mount()
        if not number:
            os.mkdir(g.path("d"))
            g.t("fill", "--dir", g.path("d"), "--model", g.model(), "--n", g.p["n"], "--names", "mixed")
        elif not g.has_tree(g.path("d")):
            io.itree(g.path("d"), io.BUILD)
        g.want_tree(g.path("d"))
        blocks = list(g.tree_blocks(g.path("d")).values())
        size = os.statvfs(g.mnt).f_bsize
        good = g.names()
        g.umount()
        if not blocks:
            raise Failed("no blocks of a tree to make unreadable")
        # The root, one, some, all.
        some = (blocks[:1], [rng.choice(blocks)], rng.sample(blocks, min(4, len(blocks))), blocks)[number % 4]
        before = len(g.fails)
        mapped.load(mapped.unreadable(some, size))
        try:
            g.mount("errors=remount-ro")
            if number % 8 < 4:
                g.want(g.names() == good, "names are missing or too many")
            change(g, number)
            g.want(g.names() == good, "names are missing or too many after changes")
            ignored += not g.has_tree(g.path("d")) or bool(io.itree(g.path("d"), io.STAT).state & io.BAD)
        except OSError as err:
            g.fail(str(err))
        finally:
            g.umount()
            mapped.load(mapped.sound())
        repaired(g)
        g.mount()
        g.want(g.names() == good, "names are missing or too many after e2fsck")
        g.umount()
        if len(g.fails) > before:
            g.fail(f"the {len(g.fails) - before} findings above: set {number}, {len(some)} of {len(blocks)} blocks")
        g.stats["sets"] = g.stats.get("sets", 0) + 1
    g.want(ignored > number // 3, f"only {ignored} of {number + 1} trees were found to be unreadable")
    mapped.remove()


def deliver(g: Guest, number: int, acked: list[str], stop: threading.Event) -> None:
    """Deliver like a mail server until the disk fails or a stop; a message is acknowledged after both fsyncs."""
    box, n = pathlib.Path(g.path(f"box{number % 2}")), 0
    with contextlib.suppress(OSError):
        while not stop.is_set():
            name = f"{number}-{n}.M{n * 7919 % 1000003}.mail"
            post(box, name, b"message\n")
            acked.append(f"box{number % 2}/new/{name}")
            n += 1


def churn(g: Guest, number: int, stop: threading.Event) -> None:
    """Creates, renames and deletes in a directory whose tree grows and shrinks, failures or not."""
    rng, n = random.Random(number), 0
    while not stop.is_set():
        n += 1
        with contextlib.suppress(OSError):
            os.mknod(g.path(f"storm/{number}-{n}"))
        with contextlib.suppress(OSError):
            os.rename(g.path(f"storm/{number}-{rng.randrange(n)}"), g.path(f"storm/{number}-{rng.randrange(n)}-moved"))
        with contextlib.suppress(OSError):
            os.unlink(g.path(f"storm/{number}-{rng.randrange(n)}"))


def flaky(g: Guest) -> None:
    """The disk fails every other second under a mail server; no acknowledged message is lost."""
    mapped, acked = Faulty(g), []
    g.mount()
    for d in ("box0/tmp", "box0/new", "box1/tmp", "box1/new", "storm"):
        os.makedirs(g.path(d))
    for i, d in enumerate(("box0/new", "box1/new", "storm")):
        g.t("fill", "--dir", g.path(d), "--model", g.model(f"m{i}"), "--n", 1200, "--names", "mixed", "--seed", i)
    g.umount()
    failed = 0
    for number in range(ALL_ROUNDS if g.job["full"] else ROUNDS):
        g.mount(g.p["mount"])
        before, stop = len(g.fails), threading.Event()
        work = [threading.Thread(target=deliver, args=(g, 2 * number + i, acked, stop)) for i in (0, 1)]
        work.append(threading.Thread(target=churn, args=(g, number, stop)))
        mapped.load(mapped.flaky(("", "error_writes", "error_reads")[number % 3]))
        for t in work:
            t.start()
        stop.wait(5)
        # Both deliveries have given up: then the disk has failed.
        failed += not any(t.is_alive() for t in work[:2])
        stop.set()
        for t in work:
            t.join(60)
            g.want(not t.is_alive(), "a system call does not return")
        mapped.load(mapped.sound())
        g.umount()
        repaired(g, KNOWN)
        g.mount()
        gone = [a for a in acked if not os.path.exists(g.path(a))]
        g.want(not gone, f"{len(gone)} of {len(acked)} acknowledged messages are gone: {gone[:3]}")
        for d in ("box0/new", "box1/new", "storm") if g.job["itree"] else ():
            if g.has_tree(g.path(d)):
                a = io.itree(g.path(d), io.CHECK)
                g.want((a.missing, a.extra) == (0, 0), f"{d}: {a.missing} keys missing, {a.extra} too many")
            elif io.itree(g.path(d), io.STAT).state & io.POSSIBLE:
                g.stats["dropped"] = g.stats.get("dropped", 0) + 1
                io.itree(g.path(d), io.BUILD)
        g.umount()
        if len(g.fails) > before:
            g.fail(f"the {len(g.fails) - before} findings above: round {number}")
        g.stats["rounds"] = g.stats.get("rounds", 0) + 1
    g.stats["acknowledged"] = len(acked)
    g.want(acked and failed, f"{len(acked)} messages acknowledged, the disk failed {failed} times: no test")
    mapped.remove()


def fails(func, *args) -> bool:
    try:
        func(*args)
    except OSError as err:
        return err.errno in (errno.EIO, errno.EROFS)
    return False


def failed_commit(g: Guest) -> None:
    """After a commit has failed in one fsync, another fsync must not report its change as safe."""
    mapped = Faulty(g)
    g.mount(g.p["mount"])
    for d in ("d", "other"):
        os.mkdir(g.path(d))
    pathlib.Path(g.path("d/old")).write_bytes(b"message\n")
    d, other, file = (os.open(g.path(name), os.O_RDONLY) for name in ("d", "other", "d/old"))
    for fd in (d, other, file):
        os.fsync(fd)
    mapped.load(f"0 {mapped.sectors} flakey {mapped.raw} 0 0 36000 1 error_writes")
    # Nothing after these starts a handle, from which ext4 would learn that its journal is gone.
    os.fchmod(file, 0o640)
    os.rename(g.path("d/old"), g.path("d/new"))
    g.want(fails(os.fsync, other), "the disk takes no writes and the fsync that forces the commit succeeds")
    g.want(fails(os.fsync, d), "fsync of a directory whose last change was in the failed commit succeeds")
    g.want(fails(os.fsync, file), "fsync of a file whose last change was in the failed commit succeeds")
    for fd in (d, other, file):
        os.close(fd)
    mapped.load(mapped.sound())
    g.umount()
    repaired(g, KNOWN)
    g.mount()
    g.want(os.listdir(g.path("d")) == ["old"], f"not as it was before the disk failed: {os.listdir(g.path('d'))}")
    g.umount()
    mapped.remove()


class Starved:
    """System calls of this thread in which a share of the allocations fails."""

    SWITCH = "/proc/thread-self/make-it-fail"

    def __init__(self, kind: str, percent: int):
        self.knobs = pathlib.Path("/sys/kernel/debug") / kind
        wait = "ignore-gfp-wait" if (self.knobs / "ignore-gfp-wait").exists() else "ignore-gfp-highmem"
        for knob, value in (("task-filter", "Y"), ("probability", percent), ("interval", 1), ("times", -1),
                            ("verbose", 0), (wait, "N")):  # fmt: skip
            (self.knobs / knob).write_text(str(value))
        if (self.knobs / "min-order").exists():
            (self.knobs / "min-order").write_text("0")
        self.fd = os.open(self.SWITCH, os.O_WRONLY)

    def call(self, func, *args) -> str:
        """'' or the name of the error."""
        os.pwrite(self.fd, b"1", 0)
        try:
            func(*args)
        except OSError as err:
            return errno.errorcode.get(err.errno, str(err.errno))
        finally:
            os.pwrite(self.fd, b"0", 0)
        return ""

    def close(self) -> None:
        (self.knobs / "probability").write_text("0")
        os.close(self.fd)


def nomem(g: Guest) -> None:
    """Allocations fail in every kind of operation: each has either happened completely or not at all."""
    rng = random.Random(g.p["seed"])
    g.mount("errors=continue")
    os.mkdir(g.path("d"))
    g.t("fill", "--dir", g.path("d"), "--model", g.model(), "--n", 1500, "--names", "mixed")
    there = set(os.listdir(g.path("d")))
    ours: list[str] = []
    for burst in range(ALL_BURSTS if g.job["full"] else BURSTS):
        before, aborted = len(g.fails), False
        if not g.has_tree(g.path("d")):
            io.itree(g.path("d"), io.BUILD)
        starved = Starved(g.p["kind"], g.p["percent"])
        for n in range(250):
            new = f"{burst}-{n}"
            kind = rng.choice(("mknod", "mknod", "link", "rename", "unlink", "list"))
            if kind != "mknod" and not ours:
                continue
            old = rng.choice(ours) if ours else ""
            path, target = g.path(f"d/{old}"), g.path(f"d/{new}")
            calls = {"mknod": (os.mknod, target), "link": (os.link, path, target), "rename": (os.rename, path, target),
                     "unlink": (os.unlink, path), "list": (os.listdir, g.path("d"))}  # fmt: skip
            err = starved.call(*calls[kind])
            g.stats[f"{kind} {err}".strip()] = g.stats.get(f"{kind} {err}".strip(), 0) + 1
            if err in ("EROFS", "EIO"):
                aborted = True
                break
            if err or kind == "list":
                continue
            if kind in ("rename", "unlink"):
                ours.remove(old)
                there.discard(old)
            if kind != "unlink":
                ours.append(new)
                there.add(new)
        starved.close()
        if not aborted:
            now = set(os.listdir(g.path("d")))
            g.want(now == there, f"missing {sorted(there - now)[:3]}, too many {sorted(now - there)[:3]}")
        g.umount()
        repaired(g)
        g.mount("errors=continue")
        now = set(os.listdir(g.path("d")))
        if aborted:
            # Then it is as after a power cut, and goes on from there.
            g.stats["aborted"] = g.stats.get("aborted", 0) + 1
            g.want(there - now <= set(ours), f"old names are gone: {sorted(there - now - set(ours))[:3]}")
            there, ours = now, [n for n in ours if n in now]
        else:
            g.want(now == there, f"after e2fsck: {sorted(there - now)[:3]} missing, {sorted(now - there)[:3]} too many")
        if len(g.fails) > before:
            g.fail(f"the {len(g.fails) - before} findings above: burst {burst}")
            there, ours = now, [n for n in ours if n in now]
    errors = sum(v for k, v in g.stats.items() if " E" in k)
    g.want(errors > burst, f"hardly an allocation failed: {g.stats}")
    g.umount()


for _id, _bs, _n in (("1k", 1024, 2500), ("4k", 4096, 9000)):
    case(
        f"faults-unreadable-{_id}", "faults", {"seed": _bs, "n": _n}, mkfs=("-b", str(_bs)), size="128M",
        allow=(r"EXT4-fs (warning|\(dm-\d+\): error count)", r"I/O error"),
        cost=60, limit=2000,
    )(unreadable)  # fmt: skip
# Not with fast commits: of those a stock ext4 loses messages when the disk fails (README.md).
for _id in ("remount-ro", "continue"):
    case(
        f"faults-flaky-{_id}", "faults", {"mount": f"errors={_id}"}, mkfs=("-b", "1024", "-J", "size=8"),
        size="96M", allow=LOG, cost=60, limit=2000,
    )(flaky)  # fmt: skip
    case(f"faults-fsync-{_id}", "faults", {"mount": f"errors={_id}"}, size="64M", allow=LOG, cost=5)(failed_commit)
# Whole pages are seldom asked for: most objects find room in those that are there.
for _kind, _percent in (("failslab", 2), ("fail_page_alloc", 50)):
    case(
        f"faults-nomem-{_kind}", "faults", {"seed": 5, "kind": _kind, "percent": _percent}, mkfs=("-b", "1024"),
        size="96M", allow=LOG, cost=60, limit=2000, config="CONFIG_FAILSLAB",
    )(nomem)  # fmt: skip
