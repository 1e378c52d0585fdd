# SPDX-License-Identifier: GPL-2.0-only
"""The workers of a soak, in the guest: they change, list, back up, build and drop at once until the time is up.

Each worker that changes names keeps a model of those it owns and compares it with the directory at the end. Prints one
JSON object: what each worker did, and what was wrong.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import errno
import functools
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
import traceback
from pathlib import Path

BOXES = 24  # maildirs of one mail worker
MESSAGES = 4000  # of a maildir, at most
FIXED = 20_000  # names that exist all the time
CROWD = 4000  # of them in the directory that many use at once
STORM = 3000  # names, and seconds of one storm
STORM_SECONDS = 60
EXCHANGE = 2  # renameat2()
AT_FDCWD = -100
LIBC = ctypes.CDLL(None, use_errno=True)
SNAPSHOTS = 6  # kept by the backup


class Worker:
    """One process: a directory of its own, a random source, counts, and an end."""

    def __init__(self, name: str, top: Path, seed: str, end: float):
        self.name, self.top, self.end = name, top, end
        self.random = random.Random(f"{seed} {name}")
        self.counts: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []

    def going(self) -> bool:
        return time.monotonic() < self.end and not self.wrong


def names_of(path: Path) -> list[str]:
    return [entry.name for entry in os.scandir(path)]


def mail(w: Worker) -> None:
    """Delivers, flags, reads and deletes messages in maildirs; compares each with its model now and then."""
    boxes = {}
    for number in range(BOXES):
        box = w.top / f"box{number}"
        box.mkdir(parents=True, exist_ok=True)
        boxes[box] = set(names_of(box))
    turn = w.random.randrange(1 << 30)
    while w.going():
        turn += 1
        box = w.random.choice(list(boxes))
        names = boxes[box]
        what = w.random.random()
        if what < 0.45 and len(names) < MESSAGES:
            name = f"{turn:010}.M{w.random.randrange(10**6)}.mail.example.org"
            with open(w.top / "tmp", "wb") as message:
                message.write(b"x" * w.random.randrange(1, 9000))
                if not turn % 50:
                    os.fsync(message.fileno())
            os.rename(w.top / "tmp", box / name)
            names.add(name)
            w.counts["delivered"] += 1
        elif names:
            old, other = w.random.choices(tuple(names), k=2)
            if what < 0.7:
                new = f"{old.split(':')[0]}:2,{w.random.choice('SRFT')}{turn}"
                os.rename(box / old, box / new)
                names.discard(old)
                names.add(new)
                w.counts["flagged"] += 1
            elif what < 0.9:
                os.unlink(box / old)
                names.discard(old)
                w.counts["deleted"] += 1
            elif other != old:
                os.rename(box / old, box / other)
                names.discard(old)
                w.counts["replaced"] += 1
        if not turn % 2000:
            compare(w, box, names)
    for box, names in boxes.items():
        compare(w, box, names)


def compare(w: Worker, box: Path, names: set[str]) -> None:
    """A listing at rest has each name of the model once, and no other."""
    found = collections.Counter(names_of(box))
    if set(found) != names or max(found.values(), default=1) > 1:
        lost, more = sorted(names - set(found))[:3], sorted(set(found) - names)[:3]
        w.wrong.append(f"{box}: lost {lost}, more {more}, twice {[n for n, c in found.items() if c > 1][:3]}")
    w.counts["compared"] += 1


def fixed_name(number: int) -> str:
    return f"fixed-{number * 7919 % 1000003}"


def listed(w: Worker, names: int, most: int) -> None:
    """Lists a directory that changes: each of the names that stay comes in each listing, at most so many times."""
    w.top.mkdir(exist_ok=True)
    wanted = {fixed_name(n) for n in range(names)}
    for name in wanted - set(names_of(w.top)):
        with contextlib.suppress(FileExistsError):
            os.mknod(w.top / name)
    while w.going():
        seen: collections.Counter[str] = collections.Counter()
        for number, entry in enumerate(os.scandir(w.top)):
            seen[entry.name] += 1
            if not number % 500:
                path = w.top / f"noise-{w.random.randrange(10**9)}"
                os.mknod(path)
                os.unlink(path)
        missed = sorted(wanted - set(seen))
        often = sorted(name for name in wanted if seen[name] > most)
        if missed or often:
            w.wrong.append(f"{w.top}: {len(missed)} names missed {missed[:3]}, {len(often)} too often {often[:3]}")
        w.counts["passes"] += 1


def swap(w: Worker, names: int) -> None:
    """Exchanges the inodes of names that `listed` lists, and replaces some by new files."""
    (w.top / "scratch").unlink(missing_ok=True)  # of a soak that was stopped
    while w.going():
        old, new = (w.top / fixed_name(n) for n in w.random.sample(range(names), 2))
        if w.random.random() < 0.5:
            if not LIBC.renameat2(AT_FDCWD, bytes(old), AT_FDCWD, bytes(new), EXCHANGE):
                w.counts["exchanged"] += 1
            elif ctypes.get_errno() != errno.ENOENT:  # at the start some do not exist yet
                w.wrong.append(f"exchange of {old} and {new}: {os.strerror(ctypes.get_errno())}")
        elif new.exists():
            scratch = w.top / "scratch"
            os.mknod(scratch)
            os.rename(scratch, new)
            w.counts["renamed over"] += 1
        if not w.random.randrange(50):
            time.sleep(0.1)


def look(w: Worker) -> None:
    """Walks the whole volume and stats everything, as ls -lR does."""
    while w.going():
        for path, _dirs, names in os.walk(w.top, onerror=lambda _err: None):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.lstat(os.path.join(path, name))
                    w.counts["statted"] += 1
            if not w.going():
                break
        w.counts["walks"] += 1


def backup(w: Worker) -> None:
    """rsync --link-dest of the mail, pruned."""
    snapshots = w.top / "snapshots"
    snapshots.mkdir(exist_ok=True)
    while w.going():
        have = sorted(p for p in snapshots.iterdir())
        new = snapshots / f"{int(have[-1].name) + 1 if have else 0:08}"
        link = [f"--link-dest={have[-1]}"] if have else []
        done = subprocess.run(["rsync", "-a", *link, f"{w.top}/mail/", f"{new}/"], capture_output=True, text=True)
        if done.returncode not in (0, 23, 24):  # 23, 24: messages went while it ran
            w.wrong.append(f"rsync: exit code {done.returncode}: {done.stderr[-300:]}")
        w.counts["snapshots"] += 1
        for old in have[: max(0, len(have) + 1 - SNAPSHOTS)]:
            subprocess.run(["rm", "-rf", old], check=True)
            w.counts["pruned"] += 1


def storm(w: Worker) -> None:
    """Fills a directory, and lets three readers and three writers of itree-t have it, which are faster than Python."""
    program, model = os.environ["ITREE_T"], Path("/run/storm")
    path = w.top / "now"
    while w.going():
        model.unlink(missing_ok=True)  # fill would add to it
        subprocess.run(["rm", "-rf", w.top], check=True)
        path.mkdir(parents=True)
        seed = str(w.random.randrange(1 << 30))
        seconds = str(max(1, min(STORM_SECONDS, int(w.end - time.monotonic()))))
        parallel = ["--seconds", seconds, "--readers", "3", "--writers", "3"]
        for argv in (
            ["fill", "--model", model, "--seed", seed, "--n", str(STORM), "--names", "skew"],
            ["stress", "--model", model, "--seed", seed, "--out", f"{model}.stay", *parallel],
            ["list", "--model", f"{model}.stay", "--subset"],
        ):
            done = subprocess.run([program, *argv, "--dir", path], capture_output=True, text=True)
            if done.returncode:
                w.wrong.append(f"itree-t {argv}: exit code {done.returncode}: {done.stdout[-400:]}{done.stderr[-300:]}")
            for what, count in re.findall(r"(?m)^STAT: (writer|reader)[0-9]+(?:_scans)? ([0-9]+)$", done.stdout):
                w.counts["changes" if what == "writer" else "scans"] += int(count)
        w.counts["storms"] += 1


def trees(w: Worker) -> None:
    """Drops and builds the trees of directories in use, and packs the directories."""
    program = os.environ["E4ITREE"]
    while w.going():
        fixed = [w.top / name for name in ("fixed", "swapped", "crowd", "storm/now")]
        path = w.random.choice([*fixed, *sorted((w.top / "mail").glob("box*"))])
        for command in ("drop", "build", "pack"):
            done = subprocess.run([program, command, "-q", path], capture_output=True, text=True)
            if done.returncode not in (0, 1) and path.exists():  # a storm removes its directory
                w.wrong.append(f"e4itree {command} {path}: exit code {done.returncode}: {done.stderr[-300:]}")
            w.counts[command] += 1
            time.sleep(w.random.random() * 2)


def run(name: str, work, top: Path, seed: str, end: float, out) -> None:
    worker = Worker(name, top, seed, end)
    try:
        work(worker)
    except Exception:  # noqa: BLE001 what it is goes into the report
        worker.wrong.append(traceback.format_exc()[-800:])
    out.put((name, dict(worker.counts), worker.wrong))


def main() -> int:
    top, seed, seconds, extra = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4:]
    (top / "mail").mkdir(exist_ok=True)
    end = time.monotonic() + seconds
    # A name that gets another inode during a listing may come twice.
    crowd = functools.partial(listed, names=CROWD, most=2)
    workers = {
        "mail": (mail, top / "mail"), "look": (look, top), "backup": (backup, top), "trees": (trees, top),
        "fixed": (functools.partial(listed, names=FIXED, most=1), top / "fixed"),
        "swapped": (functools.partial(listed, names=FIXED, most=2), top / "swapped"),
        "swap": (functools.partial(swap, names=FIXED), top / "swapped"),
        "crowd 1": (crowd, top / "crowd"), "crowd 2": (crowd, top / "crowd"),
        "crowd 3": (functools.partial(swap, names=CROWD), top / "crowd"),
        "storm": (storm, top / "storm"),
    }  # fmt: skip
    out: multiprocessing.Queue = multiprocessing.Queue()
    crew = [multiprocessing.Process(target=run, args=(n, f, p, seed, end, out)) for n, (f, p) in workers.items()]
    for process in crew:
        process.start()
    stress = None
    if extra:  # fsstress of xfstests, where there is one
        (top / "fsstress").mkdir(exist_ok=True)
        argv = ["timeout", str(seconds), extra[0], "-d", top / "fsstress", "-n", "100000000", "-p", "2"]
        stress = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    results = [out.get() for _ in crew]
    for process in crew:
        process.join()
    if stress:
        stress.wait()
        # Its children may be in the middle of something.
        while subprocess.run(["pkill", "-KILL", "fsstress"], check=False).returncode == 0:
            time.sleep(0.2)
    print(json.dumps({"counts": {n: c for n, c, _ in results}, "wrong": {n: w for n, _, w in results if w}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
