# SPDX-License-Identifier: GPL-2.0-only
"""`e4itree arrange` on a volume in use, and with power cuts. See also tests/e2fsprogs/test_arrange.py."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import random
import re
import threading

from kt.guest import Failed, Guest
from kt.online import e4itree
from kt.power import Recorder, until_wrong
from kt.registry import MILLION, case

SIZES = (100, 4096, 5000, 9000)
CUTS, ALL_CUTS = 30, 200


def content(name: str) -> bytes:
    """The content of a file of this name; any piece of it identifies the file."""
    size = SIZES[int(name[1:]) % len(SIZES)]
    return (hashlib.sha256(name.encode()).digest() * (size // 32 + 1))[:size]


def scattered(where: str, n: int, seed: int = 3) -> list[str]:
    """Make files whose data is not in the order of their inodes."""
    os.makedirs(where)
    names = [f"f{i:05}" for i in range(n)]
    for name in names:
        os.mknod(os.path.join(where, name))
    for number, name in enumerate(random.Random(seed).sample(names, n)):
        pathlib.Path(where, name).write_bytes(content(name))
        if not number % 100:
            os.sync()
    os.sync()
    return names


def want_content(g: Guest, where: str, names: list[str]) -> None:
    wrong = [x for x in names if pathlib.Path(where, x).read_bytes() != content(x)]
    g.equal(wrong[:5], [], f"{len(wrong)} files of {len(names)} with other content")


def reads(out: str) -> tuple[int, int, int]:
    """Files moved, and reads before and after, as e4itree reports."""
    found = re.search(r"moved (\d+) of .* took (\d+) reads before and (\d+) now", out)
    if not found:
        raise Failed(f"e4itree arrange says {out!r}")
    return tuple(map(int, found.groups()))


def busy(g: Guest) -> None:
    """With concurrent writers, readers and deleters: their changes persist, and the rest is unchanged."""
    g.mount()
    d = g.path()
    names = scattered(d, g.p["n"])
    rng = random.Random(5)
    changed = {x: b"" for x in rng.sample(names, 200)}
    gone = set(rng.sample(sorted(set(names) - set(changed)), 100))
    faults: list[str] = []
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            for x in changed:
                data = hashlib.sha256(f"{x} {number}".encode()).digest() * rng.choice((1, 100, 300))
                with open(os.path.join(d, x), "r+b") as f:
                    f.truncate(0)
                    f.write(data)
                changed[x] = data
            number += 1

    def read() -> None:
        rest = sorted(set(names) - set(changed) - gone)
        while not stop.is_set():
            x = rng.choice(rest)
            if pathlib.Path(d, x).read_bytes() != content(x):
                faults.append(x)

    def delete() -> None:
        for x in gone:
            os.unlink(os.path.join(d, x))
            if stop.wait(0.01):
                pass

    threads = [threading.Thread(target=work, daemon=True) for work in (write, read, delete)]
    for t in threads:
        t.start()
    moved = before = 0
    for _ in range(3):
        out = e4itree(g, "arrange", d).stdout
        if "in order already" in out:
            break
        now, was, _after = reads(out)
        moved, before = moved + now, before or was
    stop.set()
    for t in threads:
        t.join(60)
    g.equal(faults[:3], [], f"{len(faults)} reads of other content meanwhile")
    g.again()
    want_content(g, d, sorted(set(names) - set(changed) - gone))
    for x, data in changed.items():
        g.equal(pathlib.Path(d, x).read_bytes() == data, True, f"{x}: what was written last")
    g.equal([x for x in gone if os.path.exists(os.path.join(d, x))], [], "deleted files")
    g.want(moved > len(names) // 2, f"only {moved} files were moved")
    # At the end, without concurrent changes.
    e4itree(g, "arrange", d)
    out = e4itree(g, "arrange", "-n", d).stdout
    g.want("in order already" in out, f"after the last run: {out}")
    g.stats.update(moved=moved, reads_before=before)


for _id, _bs in (("4k", 4096), ("1k", 1024)):
    case(
        f"arrange-busy-{_id}", "online", {"n": 3000}, mkfs=("-b", str(_bs)), size="512M", cost=40,
        cpus=2 if _id == "4k" else 1,
    )(busy)  # fmt: skip


case(
    "arrange-busy-300k", "online", {"n": 300000}, mkfs=("-b", "4096", "-N", "330000"), size="6G", memory="2G", cost=900,
    limit=3000, full=MILLION,
)(busy)  # fmt: skip


def power_cut(g: Guest) -> None:
    """The power fails while files are moved: each keeps its content, in its old place or in its new one."""
    g.mount(g.p["options"])
    d = g.path()
    names = scattered(d, g.p["n"])
    g.umount()
    rec = Recorder(g)
    try:
        g.mount(g.p["options"])
        rec.mark("start")
        moved, _before, _after = reads(e4itree(g, "arrange", d).stdout)
        g.umount()
    finally:
        with contextlib.suppress(Failed):
            g.umount()
        rec.remove()
    g.want(moved > len(names) // 2, f"only {moved} files were moved")
    until_wrong(g, rec, ALL_CUTS if g.job["full"] else CUTS, lambda: want_content(g, d, names))


for _id, _bs, _options in (("4k", 4096, ""), ("1k", 1024, ""), ("writeback", 4096, "data=writeback")):
    case(
        f"arrange-power-{_id}", "online", {"n": 1500, "options": _options},
        mkfs=("-b", str(_bs), "-J", "size=8"), size="96M", memory="2G", cost=60, limit=1500,
    )(power_cut)  # fmt: skip
