# SPDX-License-Identifier: GPL-2.0-only
"""Power cuts: dm-log-writes records a workload, and each cut gives a disk as a power failure would leave it.

After each cut the kernel mounts that disk. Both indexes of every directory must agree, every acknowledged message
must be there, and e2fsck must find no error. Every eighth disk is also checked by e2fsck alone, which then replays
the journal.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable

from kt import itree_ioctl as io
from kt import logwrites
from kt.crash import KNOWN
from kt.guest import BUILD_AT, Failed, Guest
from kt.mail import post
from kt.mapper import Mapped
from kt.registry import case

CUTS, ALL_CUTS = 40, 200


class Recorder(Mapped):
    """The file system's device with a log of all writes, until remove()."""

    def __init__(self, g: Guest):
        g.tmp.mkdir(parents=True, exist_ok=True)
        self.log = g.tmp / "log"
        self.start, self.base = g.tmp / "start", g.tmp / "base"
        g.run("cp", "--sparse=always", g.dev, self.start)
        g.run("cp", "--sparse=always", self.start, self.base)
        with open(self.log, "wb") as f:
            f.truncate(2 << 30)
        self.loop = g.run("losetup", "--show", "-f", self.log).stdout.strip()
        sectors = g.run("blockdev", "--getsz", g.dev).stdout.strip()
        super().__init__(g, f"power-{g.disk}", f"0 {sectors} log-writes {g.dev} {self.loop}")

    def remove(self) -> None:
        super().remove()
        self.g.run("losetup", "-d", self.loop)

    def mark(self, text: str) -> None:
        self.dmsetup("message", self.name, "0", "mark", text)


def thread(work, stop: threading.Event, faults: list[str]) -> threading.Thread:
    """Call work(number) repeatedly until stopped."""

    def loop():
        number = 0
        try:
            while not stop.is_set():
                work(number)
                number += 1
        except Exception as err:
            faults.append(f"{work.__name__}, round {number}: {err!r}")

    t = threading.Thread(target=loop, daemon=True)
    t.start()
    return t


# --- workloads, each for one thread


def deliver(g: Guest, rec: Recorder):
    """Deliver like a mail server: write to tmp, fsync, rename into new, fsync the directory, acknowledge."""
    box = pathlib.Path(g.path("box"))

    def one_message(number: int) -> None:
        name = f"{1795000000 + number}.M{number * 7919 % 1000003}P{number}.mail,S=4096"
        post(box, name, b"message\n" * (number % 100))
        rec.mark(f"new/{name}")
        # One in eight is seen at once and moves on.
        if number % 8 == 7:
            os.rename(box / "new" / name, box / "cur" / f"{name}:2,S")

    for sub in ("tmp", "new", "cur"):
        (box / sub).mkdir(parents=True, exist_ok=True)
    return one_message


def farm(g: Guest, _rec: Recorder):
    """Like rsync --link-dest: link everything in the last directory into a new one, delete the one before."""
    top = pathlib.Path(g.path("farm"))

    def snapshot(number: int) -> None:
        new = top / str(number + 1)
        new.mkdir()
        for name in os.listdir(top / str(number)):
            os.link(top / str(number) / name, new / name)
        if number:
            shutil.rmtree(top / str(number - 1))

    return snapshot


def rebuild(g: Guest, _rec: Recorder):
    """Build and drop trees while the directory changes."""
    d = g.path("p0/d0")

    def build_and_drop(_number: int) -> None:
        io.itree(d, io.BUILD, io.FORCE)
        time.sleep(0.05)
        io.itree(d, io.DROP)
        time.sleep(0.05)

    return build_and_drop


THREADS = {"deliver": deliver, "farm": farm, "rebuild": rebuild}


def work(g: Guest, rec: Recorder) -> None:
    procs = []
    for p in range(g.p["procs"]):
        top = g.path(f"p{p}")
        procs.append(
            g.start(
                "ops", "--dir", top, "--model", g.model(f"p{p}"), "--dirs", 2, "--seed", g.p["seed"] * 10 + p,
                "--plan", g.p["plan"], "--names", "mixed", "--n", 10**6, "--m", 150,
            )
        )  # fmt: skip
    stop, faults = threading.Event(), []
    threads = [thread(THREADS[name](g, rec), stop, faults) for name in g.p["threads"]]
    end = time.monotonic() + g.p.get("seconds", 20)
    while time.monotonic() < end or any(p.poll() is None for p in procs):
        time.sleep(0.2)
        os.sync()
        if time.monotonic() > end + 200:
            raise Failed("the workload does not end")
    stop.set()
    for t in threads:
        t.join(60)
    for proc in procs:
        g.finish(proc)
    g.want(not faults, f"the workload failed: {faults}")


# --- after a cut


def fast_commits(g: Guest) -> bool:
    return g.case.fast_commit and not g.both


def directories(g: Guest) -> list[str]:
    found = []
    for top, subs, _ in os.walk(g.mnt):
        found += [os.path.join(top, s) for s in subs if s != "lost+found"]
    return found


def look(g: Guest, cut: logwrites.Cut, acked: set[str]) -> None:
    """Mount the disk: indexes agree, and acknowledged messages are there."""
    g.mount()
    g.t("self", "--dir", g.mnt, "--below", *g.order)
    for d in directories(g):
        tree = g.has_tree(d)
        if tree:
            a = io.itree(d, io.CHECK, diffs=4)
            g.stats["trees"] = g.stats.get("trees", 0) + 1
            g.want(
                a.state & io.BAD == 0 and (a.missing, a.extra) == (0, 0) and a.keys == a.names,
                f"{d}: {a.keys} keys, {a.names} names, {a.missing} missing, {a.extra} extra, {a.found} {a.why}",
            )
        elif g.dir_blocks(d) >= BUILD_AT:
            g.stats["without"] = g.stats.get("without", 0) + 1
    if acked:
        there = set(os.listdir(g.path("box/new"))) | {n.split(":")[0] for n in os.listdir(g.path("box/cur"))}
        gone = {n.split("/")[1] for n in acked} - there
        g.want(not gone, f"{len(gone)} of {len(acked)} acknowledged messages are gone: {sorted(gone)[:3]}")
        g.stats["acknowledged"] = max(g.stats.get("acknowledged", 0), len(acked))
    if "rebuild" in g.p["threads"]:
        # Whatever the build or drop has left, the next build works.
        d = g.path("p0/d0")
        if os.path.isdir(d) and io.itree(d, io.STAT).state & io.POSSIBLE:
            io.itree(d, io.BUILD)
            a = io.itree(d, io.CHECK)
            g.want(a.state & io.HAS_TREE and (a.missing, a.extra) == (0, 0), f"the build after the cut: {a}")
    g.fsck(KNOWN if fast_commits(g) else "")
    g.stats[cut.kind] = g.stats.get(cut.kind, 0) + 1


def only_e2fsck(g: Guest, image: pathlib.Path) -> None:
    """e2fsck replays the journal, and then finds no error."""
    e2fsck = g.tool("e2fsck")
    # Fast commits: what e2fsck makes of them it has to repair itself (tests/kernel/README.md).
    # Builds that were cut off leave blocks that only a full check looks for.
    repair = fast_commits(g) or "rebuild" in g.p["threads"]
    res = g.run(e2fsck, "-fy" if repair else "-y", image, check=False)
    g.want(res.returncode in (0, 1), f"e2fsck: exit code {res.returncode}: {res.stdout[-300:]}")
    g.want(repair or "itree" not in res.stdout, f"e2fsck -y repairs trees: {res.stdout[-500:]}")
    res = g.run(e2fsck, "-fn", image, check=False)
    g.want(res.returncode == 0, f"e2fsck -fn after e2fsck -y: {res.returncode}: {res.stdout[-500:]}")


def lies(g: Guest, rec: Recorder, log: logwrites.Log, seed: int) -> None:
    """Checks the test itself: a disk that loses flushed data must be noticed."""
    rng, found = random.Random(seed), 0
    image = g.tmp / "lies"
    for _ in range(4):
        g.run("cp", "--sparse=auto", rec.start, image)
        fd = os.open(image, os.O_RDWR)
        for entry in log.entries[: rng.randrange(len(log.entries) // 2, len(log.entries))]:
            if rng.random() < 0.7:
                log.write(fd, entry)
        os.close(fd)
        found += g.run(g.tool("e2fsck"), "-fy", image, check=False).returncode != 0
    g.want(found > 0, "a disk that loses three writes in ten goes unnoticed")


def keep(g: Guest, rec: Recorder, log: logwrites.Log, cut: logwrites.Cut) -> None:
    """Keep the disk as it was after the cut, to analyze a failure."""
    path = g.share / f"cut-{cut.at}.img"
    g.run("cp", "--sparse=always", rec.base, path)
    fd = os.open(path, os.O_RDWR)
    for k in cut.also:
        log.write(fd, log.entries[k])
    os.close(fd)


def disks(g: Guest, rec: Recorder, log: logwrites.Log, cuts: list[logwrites.Cut]):
    """Yield each cut, in order, with an image of the disk after it."""
    disk, image, at = os.open(rec.base, os.O_RDWR), g.tmp / "cut", 0
    try:
        for cut in cuts:
            while at <= cut.flushed:
                log.write(disk, log.entries[at])
                at += 1
            g.run("cp", "--sparse=auto", rec.base, image)
            fd = os.open(image, os.O_RDWR)
            for k in cut.also:
                log.write(fd, log.entries[k])
            os.close(fd)
            yield cut, image
    finally:
        os.close(disk)


@contextlib.contextmanager
def in_place_of_the_disk(g: Guest, image: pathlib.Path):
    """Context: the guest mounts the image; any failure is a finding."""
    raw, g.dev = g.dev, g.run("losetup", "--show", "-f", image).stdout.strip()
    try:
        yield
    except (Failed, OSError, subprocess.SubprocessError) as err:
        g.fail(str(err))
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        g.run("losetup", "-d", g.dev)
        g.dev = raw


def replay(g: Guest, rec: Recorder, start: str) -> None:
    log = logwrites.Log(rec.log)
    first = next(i for i, e in enumerate(log.entries) if e.mark == start)
    count = ALL_CUTS if g.job["full"] else CUTS
    cuts = logwrites.choose(log, count, g.p["seed"], first)
    g.equal(len(cuts), count, "cut points")
    g.stats["entries"] = len(log.entries)
    for number, (cut, image) in enumerate(disks(g, rec, log, cuts)):
        acked = {e.mark for e in log.entries[: cut.at + 1] if e.mark.startswith("new/")}
        before = len(g.fails)
        if number % 8 == 3:
            g.run("cp", "--sparse=auto", image, g.tmp / "tools")
            only_e2fsck(g, g.tmp / "tools")
        with in_place_of_the_disk(g, image):
            look(g, cut, acked)
        if len(g.fails) > before:
            g.fail(
                f"the {len(g.fails) - before} findings above: cut {cut.kind} at entry {cut.at} of {len(log.entries)}"
            )
            keep(g, rec, log, cut)
            if len(g.fails) > 10:
                break
    lies(g, rec, log, g.p["seed"])
    log.close()
    if g.job["itree"]:
        g.want(g.stats.get("trees", 0) > len(cuts) // 2, "hardly a directory had a tree")


def until_wrong(g: Guest, rec: Recorder, count: int, judge: Callable[[], None]) -> None:
    """Test cuts after "start" until the first finding: judge() checks the mounted volume, then e2fsck checks it."""
    log = logwrites.Log(rec.log)
    first = next(i for i, e in enumerate(log.entries) if e.mark == "start")
    for cut, image in disks(g, rec, log, logwrites.choose(log, count, 1, first)):
        before = len(g.fails)
        with in_place_of_the_disk(g, image):
            g.mount()
            judge()
            g.fsck()
        g.stats["cuts"] = g.stats.get("cuts", 0) + 1
        if len(g.fails) > before:
            g.fail(f"the findings above: cut {cut.kind} at entry {cut.at} of {len(log.entries)}")
            keep(g, rec, log, cut)
            break
    lies(g, rec, log, 1)
    log.close()
    g.want(g.stats.get("cuts", 0) > count // 3, "hardly a write was recorded")


def power(g: Guest) -> None:
    g.mount()
    for p in range(g.p["procs"]):
        for i in range(2):
            os.makedirs(g.path(f"p{p}/d{i}"))
    if "farm" in g.p["threads"]:
        os.mkdir(g.path("farm"))
        os.mkdir(g.path("farm/0"))
        g.t("fill", "--dir", g.path("farm/0"), "--model", g.model("farm"), "--n", 600, "--names", "mixed")
    if "rebuild" in g.p["threads"]:
        g.t("fill", "--dir", g.path("p0/d0"), "--model", g.model("p0") + ".0", "--n", 3000, "--names", "mixed")
    g.umount()
    rec = Recorder(g)
    try:
        g.mount()
        rec.mark("start")
        work(g, rec)
        g.umount()
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        rec.remove()
    if not g.fails:
        replay(g, rec, "start")


def _row(id_: str, seed: int, features: str, bs: int, threads: tuple[str, ...], **more) -> None:
    case(
        f"power-{id_}", "power",
        {"seed": seed, "threads": threads, "procs": 2, "plan": "60,900,200,700,0", **more},
        features=features, mkfs=("-b", str(bs), "-J", "size=8"), size="96M", memory="2G", cost=120, limit=1500,
    )(power)  # fmt: skip


_row("mail-1k", 1, "", 1024, ("deliver",))
_row("mail-fastcommit", 2, "fast_commit", 4096, ("deliver",), plan="60,2500,600,0")
_row("farm-1k", 3, "", 1024, ("farm", "deliver"), procs=1)
_row("storms-journal", 4, "", 1024, ("deliver",), mount="data=journal", procs=3)
_row("online-1k", 5, "", 1024, ("rebuild",), procs=1, plan="3000,3300,2800,3200")
