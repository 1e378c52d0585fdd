# SPDX-License-Identifier: GPL-2.0-only
"""Dentries that a scan makes for readers that stat the names they get."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pathlib
import random
import struct
import time

from kt.guest import Guest
from kt.registry import case

GETDENTS64 = 217  # x86-64
LIBC = ctypes.CDLL(None, use_errno=True)
BUFFER = 32768  # as libc's readdir has
SLACK = 60  # dentries that others make meanwhile


def in_memory() -> int:
    """Dentries of the whole machine."""
    return int(pathlib.Path("/proc/sys/fs/dentry-state").read_text().split()[0])


class Reader:
    """Reads an open directory by the call."""

    def __init__(self, where: str, size: int = BUFFER):
        self.fd = os.open(where, os.O_RDONLY | os.O_DIRECTORY)
        self.buf = ctypes.create_string_buffer(size)

    def call(self) -> list[tuple[str, int]]:
        """Names with inodes, but "." and ".."; of the last call none."""
        return [(name, ino) for name, ino in self.entries() if name not in (".", "..")]

    def entries(self) -> list[tuple[str, int]]:
        """All that one call returns."""
        got = LIBC.syscall(GETDENTS64, self.fd, self.buf, len(self.buf))
        if got < 0:
            raise OSError(ctypes.get_errno(), "getdents64")
        found, at = [], 0
        while at < got:
            ino, _pos, size, _type = struct.unpack_from("<QqHB", self.buf.raw, at)
            found.append((os.fsdecode(self.buf.raw[at + 19 : at + size].split(b"\0", 1)[0]), ino))
            at += size
        return found

    def close(self) -> None:
        os.close(self.fd)


def fill(g: Guest) -> str:
    g.mount()
    d = g.path()
    if g.p.get("casefold"):
        os.mkdir(d)
        g.equal(g.set_flags(d, g.flags(d) | 0x40000000), 0, "chattr +F")
    g.t("fill", "--dir", d, "--model", g.model(), "--n", g.p["n"], "--mixed", "--names", g.p.get("names", "mixed"))
    g.want_tree(d)
    return d


def read(g: Guest, d: str, look: range, size: int = BUFFER) -> tuple[list[int], list[int], list[int]]:
    """List a directory, and stat the names of the calls in `look`.

    Returns for each call: the names, the dentries that the call made, those that stat made.
    """
    names, made, looked, seen = [], [], [], set()
    one = Reader(d, size)
    while True:
        before = in_memory()
        found = one.call()
        after = in_memory()
        if not found:
            break
        if len(names) in look:
            for name, ino in found:
                g.equal(os.lstat(os.path.join(d, name)).st_ino, ino, f"inode of {name}")
        names.append(len(found))
        made.append(after - before)
        looked.append(in_memory() - after)
        seen.update(name for name, _ in found)
    one.close()
    g.equal(len(seen), g.p["n"], "names")
    g.equal(sum(names), g.p["n"], "names with those returned twice")
    return names, made, looked


def reader(g: Guest) -> None:
    """A reader that stats gets some dentries with the second call, then all; after it stops, those of two calls."""
    d = fill(g)
    g.again()
    names, made, looked = read(g, d, range(0))
    g.want(len(names) > 8, f"too few calls for this test: {len(names)}")
    g.want(sum(made) < SLACK, f"a reader of names got dentries: {made}")

    g.again()
    names, made, looked = read(g, d, range(10**6))
    g.want(made[0] < SLACK and looked[0] > 0.9 * names[0], f"the first call: {names[0]} {made[0]} {looked[0]}")
    if g.p.get("casefold"):
        g.want(sum(made) < SLACK, f"a casefolded directory got dentries: {made}")
    else:
        # The last call sees the end of the directory: there is nothing behind it that could be made.
        g.want(made[1] > 40, f"the second call: {names[1]} {made[1]} {looked[1]}")
        few = [(n, m, k) for n, m, k in zip(names[2:], made[2:], looked[2:], strict=True) if m < 0.9 * n or k > SLACK]
        g.want(not few, f"calls that made too few (names, made, made by the look): {few}")
        g.want(sum(made) + sum(looked) < g.p["n"] + SLACK, f"more than one a name: {sum(made)}, {sum(looked)}")

    # All there: none are made, and it is the same.
    names, made, looked = read(g, d, range(10**6))
    g.want(sum(made) + sum(looked) < SLACK, f"dentries made twice: {made} {looked}")

    g.again()
    names, made, looked = read(g, d, range(4))
    g.want(sum(made[6:]) < SLACK, f"a reader who has ceased to look still gets dentries: {made}")


def changes(g: Guest) -> None:
    """Names change between the call that made their dentries and the stat."""
    d = fill(g)
    g.again()
    g.t("fill", "--dir", g.path("pool"), "--model", g.model("pool"), "--n", g.p["n"] // 4)
    pool = [os.path.join(g.path("pool"), name) for name, _ in g.names("pool") if name not in (".", "..")]
    rnd = random.Random(g.p["seed"])
    one, calls, made = Reader(d), 0, 0
    wrong: list[str] = []
    while True:
        before = in_memory()
        found = one.call()
        if not found:
            break
        calls += 1
        made += in_memory() - before
        due: dict[str, int] = dict(found)
        # Each other call: a change makes the scan forget its window, and those of the next are made all the same.
        for name in rnd.sample(sorted(due), len(due) // 8) if calls % 2 else ():
            path = os.path.join(d, name)
            match rnd.randrange(4):
                case 0 if pool and os.path.isfile(path) and not os.path.islink(path):
                    due[name] = os.lstat(pool[-1]).st_ino
                    os.rename(pool.pop(), path)
                case 1 if not os.path.isdir(path):
                    os.unlink(path)
                    due[name] = 0
                case 2 if not os.path.isdir(path):
                    os.unlink(path)
                    with open(path, "x") as fh:
                        due[name] = os.fstat(fh.fileno()).st_ino
                case _:
                    moved = f"moved-{calls}-{len(due)}"
                    os.rename(path, os.path.join(d, moved))
                    due[moved], due[name] = due[name], 0
        for name, ino in due.items():
            try:
                got = os.lstat(os.path.join(d, name)).st_ino
            except FileNotFoundError:
                got = 0
            if got != ino:
                wrong.append(f"{name}: inode {got}, wanted {ino}")
    one.close()
    g.equal(wrong[:5], [], "names with the inode of before")
    g.want(made > g.p["n"] // 2, f"only {made} dentries were made: the test did not get there")
    compare(g, d)


def compare(g: Guest, d: str) -> None:
    """Check that each name in memory agrees with the disk."""
    warm = {e.name: os.lstat(e.path).st_ino for e in os.scandir(d)}
    g.again()
    cold = {e.name: os.lstat(e.path).st_ino for e in os.scandir(d)}
    g.equal(sorted(set(warm.items()) ^ set(cold.items()))[:5], [], "names that memory and disk tell differently")
    g.t("self", "--dir", d, *g.order)
    g.equal(g.counter("drops"), 0, "trees dropped")


def _write(d: str, seed: int, until: float) -> None:
    """Delivers, replaces, removes."""
    rnd = random.Random(seed)
    names = [e.name for e in os.scandir(d) if e.is_file(follow_symlinks=False)]
    mine = [name for i, name in enumerate(sorted(names)) if i % 2 == seed % 2]
    turn = 0
    while time.monotonic() < until:
        turn += 1
        path = os.path.join(d, rnd.choice(mine))
        new = os.path.join(d, f"new-{seed}-{turn}")
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        match turn % 3:
            case 0:
                os.rename(new, path)
            case 1:
                os.unlink(new)
            case _ if os.path.lexists(path):
                os.unlink(path)
        # Readers get through a few calls undisturbed.
        time.sleep(0.002)


def _look(d: str, until: float, passes) -> None:
    while time.monotonic() < until:
        one = Reader(d)
        while found := one.call():
            for name, _ in found:
                os.path.lexists(os.path.join(d, name))
        one.close()
        passes.value += 1


def busy(g: Guest) -> None:
    """Three readers that stat, two writers: afterwards, memory and disk agree."""
    d = fill(g)
    g.again()
    until = time.monotonic() + g.p["seconds"]
    passes = multiprocessing.Value("i", 0)
    crew = [multiprocessing.Process(target=_look, args=(d, until, passes)) for _ in range(3)]
    crew += [multiprocessing.Process(target=_write, args=(d, seed, until)) for seed in (0, 1)]
    for p in crew:
        p.start()
    for p in crew:
        p.join()
    g.equal([p.exitcode for p in crew], [0] * len(crew), "how readers and writers ended")
    g.want(passes.value >= 3, f"the readers hardly ran: {passes.value}")
    g.stats["passes"] = passes.value
    compare(g, d)


def _case(id_: str, func, n: int, bs: int = 4096, cost: int = 15, cpus: int = 1, features: str = "", mkfs=(), **params):
    case(f"dentries-{id_}", "scans", {"n": n, **params}, mkfs=("-b", str(bs), *mkfs), features=features, cost=cost,
         cpus=cpus, size="512M")(func)  # fmt: skip


_case("4k", reader, 20000)
_case("1k", reader, 12000, bs=1024)
_case("casefold", reader, 12000, features="casefold", casefold=True, names="ascii", mkfs=("-E", "encoding=utf8"))
_case("changes-4k", changes, 16000, seed=1)
_case("changes-1k", changes, 8000, bs=1024, seed=2)
_case("busy-4k", busy, 3000, cost=40, cpus=2, seconds=25)
