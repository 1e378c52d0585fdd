# SPDX-License-Identifier: GPL-2.0-only
"""Readahead of small files for readers that read a directory's files in inode order: few requests for these readers,
none for others, and always the data on the disk."""

from __future__ import annotations

import concurrent.futures
import errno
import hashlib
import os
import pathlib
import random
import subprocess
import tempfile
import threading

from kt.cgroups import control_groups, join, small_group, want_alive
from kt.faults import LOG, Faulty
from kt.guest import KMEMLEAK, QUIET, Guest
from kt.misses import NOISE, Reads
from kt.neighbours import Server
from kt.reader import Sleeper, Waiting, work
from kt.registry import case

SMALL = 128 << 10  # larger files have readahead of their own
STREAK = 8  # reads that make a reader one to follow
FIRST_RUN = 16  # files of the first run
SURE = 1000  # after this many files, the kernel assumes that a reader continues
EXTRA = 1.01  # bound for reads of other readers, relative to those without readahead
TWICE = 1.02  # bound for how often data is read
TWICE_IN_32 = 1.10  # the same if one run has to be lost to learn how short they must be
PATIENCE = 30


def content(name: str, size: int) -> bytes:
    """The content of a file of this name; no two are alike."""
    seed = hashlib.sha256(name.encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


def sizes(g: Guest) -> list[int]:
    """Of a directory's files, in the order in which they are made."""
    rng, mixed = random.Random(7), g.p.get("mixed")
    return [rng.choice((1, 1000, 4096, 9000, 30000, SMALL)) if mixed else 4096 for _ in range(g.p["n"])]


class Files:
    """A directory of small files and what they hold."""

    def __init__(self, g: Guest, name: str = "d"):
        self.g, self.where = g, g.path(name)
        self.size: dict[str, int] = {}
        os.mkdir(self.where)

    def write(self, name: str, size: int) -> None:
        with open(os.path.join(self.where, name), "wb") as file:
            file.write(content(name, size))
        self.size[name] = size

    def fill(self) -> None:
        for number, size in enumerate(sizes(self.g)):
            self.write(f"{number * 7919 % 1000003:07}.mail.example.org", size)
        self.g.want_tree(self.where)

    def age(self) -> None:
        """Create and delete files until those with neighbouring inodes are far apart."""
        rng = random.Random(11)
        for turn in range(3):
            gone = rng.sample(sorted(self.size), len(self.size) // 3)
            for name in gone:
                os.unlink(os.path.join(self.where, name))
                del self.size[name]
            for number in range(len(gone)):
                self.write(f"{rng.randrange(10**7):07}-{turn}-{number}", rng.choice((4096, 4096, 8192)))
            os.sync()

    def in_inode_order(self) -> list[str]:
        with os.scandir(self.where) as entries:
            return [name for _, name in sorted((entry.inode(), entry.name) for entry in entries)]

    def wrong(self, names: list[str], read=None) -> list[str]:
        """Read the files in order; return those with wrong content."""
        return [name for name in names if (read or self.read)(name) != content(name, self.size[name])]

    def read(self, name: str) -> bytes:
        return pathlib.Path(self.where, name).read_bytes()


def switch(g: Guest, size: int) -> None:
    (g.sysfs / g.disk / "itree_ahead_max").write_text(str(size))


def measure(files: Files, func, on: bool = True, options: str = QUIET) -> dict[str, int]:
    """Disk reads of some work on the cold volume, and the kernel's count of what it read ahead."""
    g = files.g
    g.again(options)
    g.settle()
    if not on:
        switch(g, 0)
    files.in_inode_order()  # as tar and cp do first
    reads, before = Reads(g), {name: g.counter(f"ahead_{name}") for name in ("runs", "files", "bytes", "used")}
    func()
    return reads.since() | {name: g.counter(f"ahead_{name}") - value for name, value in before.items()}


def made(g: Guest) -> Files:
    g.mount(QUIET)
    files = Files(g)
    files.fill()
    if g.p.get("aged"):
        files.age()
    os.sync()
    return files


def note(g: Guest, what: str, found: dict[str, int]) -> None:
    g.stats |= {f"{what} {name}": count for name, count in found.items()}


def in_order(g: Guest) -> None:
    """A reader in inode order takes few requests, reads no extra data, and gets the files' content."""
    files = made(g)
    names = files.in_inode_order()
    for how, read in (("read", files.read), ("copy", lambda name: copied(g, files, name))):
        off = measure(files, lambda read=read: g.equal(files.wrong(names, read), [], "files read without"), False)
        on = measure(files, lambda read=read: g.equal(files.wrong(names, read), [], "files read"))
        note(g, f"{how} off", off)
        note(g, f"{how} on", on)
        g.equal((off["runs"], off["files"], off["bytes"]), (0, 0, 0), f"{how}: read ahead though it is off")
        g.want(off["requests"] > 0.8 * len(names), f"{how}: not cold, no test: {off}")
        g.want(on["requests"] * g.p["fewer"] <= off["requests"], f"{how}: {on}, without {off}")
        g.want(on["blocks"] <= off["blocks"] * TWICE, f"{how}: reads too much: {on}, without {off}")
        g.want(on["files"] > 0.9 * len(names), f"{how}: only {on['files']} of {len(names)} files read ahead")
        g.want(on["used"] >= 0.8 * on["files"], f"{how}: {on['used']} of {on['files']} files counted as used")


def copied(g: Guest, files: Files, name: str) -> bytes:
    """The data from sendfile(2), which cp and NFS servers use."""
    source = os.open(os.path.join(files.where, name), os.O_RDONLY)
    target = os.open(f"/dev/shm/copied-{g.disk}", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        while os.sendfile(target, source, None, 1 << 20):
            pass
        os.lseek(target, 0, os.SEEK_SET)
        return os.read(target, 1 << 20)
    finally:
        os.close(source)
        os.close(target)


def other_orders(g: Guest) -> None:
    """Readers that it cannot help: at random, every tenth file, backwards, stat only, unlink."""
    files = made(g)
    names = files.in_inode_order()
    some = random.Random(3).sample(names, len(names))
    orders = {
        "random": lambda: g.equal(files.wrong(some), [], "files read at random"),
        "each tenth": lambda: g.equal(files.wrong(names[::10]), [], "each tenth file"),
        "backwards": lambda: g.equal(files.wrong(names[::-1]), [], "files read backwards"),
        "a few": lambda: g.equal(files.wrong(names[100 : 100 + STREAK - 1]), [], "a few files"),
        "lstat": lambda: [os.lstat(os.path.join(files.where, name)) for name in names],
        "again": lambda: [files.wrong(names[:200]) for _ in range(3)],
    }
    for what, func in orders.items():
        off = measure(files, func, False)
        on = measure(files, func)
        note(g, f"{what} off", off)
        note(g, f"{what} on", on)
        if what == "again":
            g.want(on["files"] <= 200 + 2 * 256, f"{what}: {on['files']} files for 200")
            continue
        g.want(off["blocks"] > 0, f"{what}: nothing was read: no test")
        for kind in ("requests", "blocks"):
            most = off[kind] * EXTRA + NOISE
            g.want(on[kind] <= most, f"{what}: {on[kind]} {kind}, without {off[kind]}: {on}")


def ends(g: Guest) -> None:
    """A run is as long as what the reader has read before, or three times that, and is read when an eighth of the last
    one is left."""
    files = made(g)
    names = files.in_inode_order()
    for count in (STREAK + 1, 60, 500, 2000):
        on = measure(files, lambda count=count: g.equal(files.wrong(names[:count]), [], f"{count} files"))
        note(g, f"stop {count}", on)
        most = (2.25 if count < SURE else 4.5) * count + FIRST_RUN
        g.want(on["files"] <= most, f"{on['files']} files read ahead of a reader of {count}")


def threads(g: Guest) -> None:
    """Eight threads that share the files of a directory, and two readers at once.

    While one thread reads ahead, the others overtake it and read on their own.
    """
    files = made(g)
    names = files.in_inode_order()

    def shared_out() -> None:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            wrong = [name for bad in pool.map(lambda name: files.wrong([name]), names) for name in bad]
        g.equal(wrong, [], "files read by threads")

    def two() -> None:
        half = len(names) // 2
        both = [threading.Thread(target=lambda part=part: wrong.extend(files.wrong(part)))
                for part in (names[:half], names[half:])]  # fmt: skip
        wrong: list[str] = []
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()
        g.equal(wrong, [], "files of two readers")

    for what, func in (("threads", shared_out), ("two readers", two)):
        off, on = measure(files, func, False), measure(files, func)
        note(g, f"{what} off", off)
        note(g, f"{what} on", on)
        g.want(on["requests"] * g.p["fewer"] <= off["requests"], f"{what}: {on}, without {off}")
        g.want(on["blocks"] <= off["blocks"] * TWICE, f"{what}: reads too much: {on}, without {off}")


def changes(g: Guest) -> None:
    """While one process reads, others write, truncate, punch, replace and remove files ahead of it: each read returns
    the file's content at that time."""
    files = made(g)
    names = files.in_inode_order()
    rng = random.Random(5)
    g.again(QUIET)
    g.settle()
    wrong = []
    todo = dict.fromkeys(names)
    for number, name in enumerate(names):
        if name not in todo:
            continue
        if files.read(name) != (todo[name] if todo[name] is not None else content(name, files.size[name])):
            wrong.append(name)
        if number % 5 or number + 60 >= len(names):
            continue
        other = names[number + rng.randrange(1, 60)]
        path, what = os.path.join(files.where, other), rng.randrange(6)
        if other not in todo:
            continue
        old = todo[other] if todo[other] is not None else content(other, files.size[other])
        if what == 0:
            os.unlink(path)
            del todo[other]
        elif what == 1:
            os.truncate(path, 100)
            todo[other] = old[:100]
        elif what == 2 and len(old) == 4096:
            g.run("fallocate", "-p", "-o", "0", "-l", "4096", path)
            todo[other] = bytes(4096)
        elif what == 3:
            with open(path, "r+b") as file:
                file.write(b"changed")
            todo[other] = b"changed" + old[7:]
        elif what == 4:
            with open(path + ".new", "wb") as file:
                file.write(b"replaced" * 512)
            os.rename(path + ".new", path)
            todo[other] = b"replaced" * 512
        else:
            with open(path, "r+b") as file:
                file.write(b"synced")
                os.fsync(file.fileno())
            todo[other] = b"synced" + old[6:]
    g.equal(wrong, [], "files that did not hold what was written")
    g.want(g.counter("ahead_files") > len(names) / 2, f"only {g.counter('ahead_files')} files read ahead: no test")


def groups(g: Guest) -> None:
    """In a group of little memory runs are short: no kill, and next to nothing is read twice."""
    files = made(g)
    names = files.in_inode_order()
    with control_groups("memory") as where:
        for size in (32, 48):
            group = where / f"read-{size}"
            small_group(group, size)
            off, on = (measure(files, lambda group=group: read_in(files, group, names), on) for on in (False, True))
            want_alive(g, group)
            note(g, f"{size} MiB off", off)
            note(g, f"{size} MiB on", on)
            if KMEMLEAK.exists():
                continue  # on the debug kernel an inode takes several times the memory
            g.want(on["requests"] * g.p["fewer"] <= off["requests"], f"{size} MiB: {on}, without {off}")
            most = TWICE if size > 32 else TWICE_IN_32
            g.want(on["blocks"] <= off["blocks"] * most, f"{size} MiB: reads too much: {on}, without {off}")


def read_in(files: Files, group: pathlib.Path, names: list[str]) -> None:
    """`cat` reads them all in the group."""

    with tempfile.TemporaryFile() as todo:
        todo.write(b"".join(os.fsencode(name) + b"\0" for name in names))
        todo.seek(0)
        proc = subprocess.Popen(["xargs", "-0", "cat"], cwd=files.where, stdin=todo, stdout=subprocess.PIPE,
                                preexec_fn=lambda: join(group))  # fmt: skip
        files.g.children.append(proc)
        wrong = [name for name in names if proc.stdout.read(files.size[name]) != content(name, files.size[name])]
        files.g.equal(wrong, [], f"{group.name}: files")
        files.g.equal((proc.stdout.read(), proc.wait(PATIENCE)), (b"", 0), f"{group.name}: the end")


def errors(g: Guest) -> None:
    """Only the reader of an unreadable file gets an error, as without readahead."""
    disk = Faulty(g)
    files = made(g)
    names = files.in_inode_order()
    bad = names[200::97]
    addresses = []
    for name in bad:
        addresses += [physical for _, physical, _ in g.extents(os.path.join(files.where, name))]
    g.umount()
    disk.load(disk.unreadable(addresses, 4096))
    g.mount("errors=remount-ro")
    failed, wrong = [], []
    for name in names:
        try:
            wrong += [name] if files.read(name) != content(name, files.size[name]) else []
        except OSError as err:
            g.equal(err.errno, errno.EIO, f"error of {name}")
            failed.append(name)
    g.equal(wrong, [], "files that did not hold what was written")
    g.equal(failed, bad, "files that could not be read")
    ahead = g.counter("ahead_files")
    g.want(ahead > len(names) / 2, f"only {ahead} files read ahead: no test")
    os.mknod(g.path("still-writable"))
    g.umount()
    disk.load(disk.sound())
    disk.remove()


class Blocked(Sleeper):
    """Reads files until one read waits for a disk that does not answer."""

    def __init__(self, files: Files, names: list[str]):
        super().__init__()
        self.files, self.names, self.wrong = files, names, ["nothing was read"]

    def to_end(self) -> None:
        self.here()
        self.wrong = self.files.wrong(self.names)


def held(g: Guest) -> None:
    """While a run waits for the disk, others create, rename, look up and remove in the directory."""
    disk = Faulty(g)
    files = made(g)
    names = files.in_inode_order()
    # Of the third run: the first ones have shown by then that it pays.
    chosen = [extent[1] for name in names[60:90] for extent in g.extents(os.path.join(files.where, name))]
    g.again("commit=600")
    for _ in range(2):
        work(g)
    os.sync()
    files.in_inode_order()
    disk.hold(chosen, 4096)
    reader = Blocked(files, names[:200])
    with Waiting(g, disk, "files", reader) as waiting:
        ahead = g.counter("ahead_files")
        g.want(ahead > FIRST_RUN, f"only {ahead} files read ahead: no test")
        waiting.do(work, g)
    g.equal(reader.wrong, [], "files")
    g.umount()
    disk.remove()


def nfs(g: Guest) -> None:
    """A reader over NFS, such as `tar` on a client, causes few requests on the server's disk."""
    files = made(g)
    names = files.in_inode_order()
    g.again()
    server = Server(g)
    try:
        for version in ("3", "4.2"):
            found = {}
            for size in (0, 1 << 30):
                switch(g, size)
                at = server.mount(version)
                try:
                    g.settle()
                    os.listdir(at / "d")
                    reads = Reads(g)
                    wrong = [n for n in names if (at / "d" / n).read_bytes() != content(n, files.size[n])]
                    found[size] = reads.since()
                    g.equal(wrong, [], f"NFS {version}: files")
                finally:
                    g.run("umount", "-l", at, check=False)
            off, on = found.values()
            note(g, f"NFS {version} off", off)
            note(g, f"NFS {version} on", on)
            g.want(on["requests"] * g.p["fewer"] <= off["requests"], f"NFS {version}: {on}, without {off}")
            g.want(on["blocks"] <= off["blocks"] * TWICE, f"NFS {version}: reads too much: {on}, without {off}")
    finally:
        server.stop()


def nothing_to_gain(g: Guest) -> None:
    """Directories without a tree, files that are too large, noitree, POSIX_FADV_RANDOM."""
    g.mount(QUIET)
    few = Files(g, "few")
    for number in range(200):
        few.write(f"name-{number}", 4096)
    large = Files(g, "large")
    for number in range(1200):
        large.write(f"a-long-name-so-that-the-directory-has-a-tree-{number:08}" + "x" * 60, 4096 if number < 4 else 0)
    for number in range(40):
        large.write(f"large-{number}", SMALL + 1)
    g.want_tree(large.where)
    os.sync()

    def advised(name: str) -> bytes:
        fd = os.open(os.path.join(many.where, name), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            return os.read(fd, 1 << 20)
        finally:
            os.close(fd)

    many = Files(g, "many")
    many.fill()
    os.sync()
    names = many.in_inode_order()
    for what, files, func, options in (
        ("no tree", few, lambda: few.wrong(few.in_inode_order()), QUIET),
        ("large files", large, lambda: large.wrong(large.in_inode_order()), QUIET),
        ("noitree", many, lambda: many.wrong(names), f"{QUIET},noitree"),
        ("fadvise", many, lambda: many.wrong(names, advised), QUIET),
    ):
        found = measure(files, lambda func=func: g.equal(func(), [], "files"), True, options)
        note(g, what, found)
        g.equal(found["files"], 0, f"{what}: files read ahead")
        g.want(found["requests"] > 20, f"{what}: nothing was read: no test")


SHAPE = {"size": "512M", "mkfs": ("-b", "4096", "-N", "60000", "-I", "256", "-m", "0")}
case("dirahead-clean", "reader", {"bs": 4096, "n": 8000, "fewer": 15}, cost=20, **SHAPE)(in_order)
case("dirahead-aged", "reader", {"bs": 4096, "n": 8000, "fewer": 2, "aged": True}, cost=30, **SHAPE)(in_order)
case("dirahead-mixed", "reader", {"bs": 4096, "n": 4000, "fewer": 2, "mixed": True}, cost=20, **SHAPE)(in_order)
case("dirahead-1k", "reader", {"bs": 1024, "n": 4000, "fewer": 10}, cost=20, size="512M",
     mkfs=("-b", "1024", "-N", "20000", "-I", "256", "-m", "0"))(in_order)  # fmt: skip
case("dirahead-others", "reader", {"bs": 4096, "n": 4000}, cost=20, **SHAPE)(other_orders)
case("dirahead-aged-others", "reader", {"bs": 4096, "n": 4000, "aged": True}, cost=20, **SHAPE)(other_orders)
case("dirahead-ends", "reader", {"bs": 4096, "n": 8000}, cost=15, **SHAPE)(ends)
case("dirahead-threads", "reader", {"bs": 4096, "n": 8000, "fewer": 3}, cost=20, **SHAPE)(threads)
case("dirahead-changes", "reader", {"bs": 4096, "n": 4000}, cost=20, **SHAPE)(changes)
case("dirahead-groups", "reader", {"bs": 4096, "n": 16000, "fewer": 8}, memory="512M", cost=30, **SHAPE)(groups)
case("dirahead-errors", "reader", {"bs": 4096, "n": 3000}, allow=LOG, cost=15, **SHAPE)(errors)
case("dirahead-held", "reader", {"bs": 4096, "n": 3000}, cost=15, **SHAPE)(held)
case("dirahead-nfs", "open", {"bs": 4096, "n": 3000, "fewer": 8}, cost=60, **SHAPE)(nfs)
case("dirahead-nothing", "reader", {"bs": 4096, "n": 3000}, cost=15, **SHAPE)(nothing_to_gain)
