# SPDX-License-Identifier: GPL-2.0-only
"""Runs in the guest: runs the cases of a job and prints one JSON line per result."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import time
import traceback

# The guest has no pytest, which adds these folders on the host.
sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / name) for name in ("kernel", "vm", "hostile")]

import uml  # noqa: E402

from kt import registry  # noqa: E402

QUIET = "noinit_itable,no_prefetch_block_bitmaps"  # mount options: ext4 reads only what is asked for
FS_IOC_GETFLAGS = 0x80086601
FS_IOC_SETFLAGS = 0x40086602
FS_IOC_FIEMAP = 0xC020660B
EXT4_IOC_SHUTDOWN = 0x8004587D
FL_ITREE = 0x08000000
FL_INDEX = 0x00001000
FL_EXTENTS = 0x00080000
FL_INLINE = 0x10000000
FL_CASEFOLD = 0x40000000
SEGMENT = 0x80000000  # first logical block of the tree
BUILD_AT = 16  # directory blocks
COUNTERS = ("builds", "drops", "splits", "merges", "inserts", "deletes")
WORK = pathlib.Path("/run/kt")
# A kernel that is a program of the host (tests/vm/uml.py) runs no programs of 32 bits.
UML = "User Mode Linux" in pathlib.Path("/proc/cpuinfo").read_text()
PATIENCE = registry.PATIENCE if UML else 1


class Failed(Exception):
    """The case cannot continue; the text is its finding."""


class Guest:
    def __init__(self, case: registry.Case, job: dict, disk: str):
        self.case = case
        self.p = case.params
        self.job = job
        self.disk = disk
        self.dev = f"/dev/{disk}"
        self.mnt = WORK / f"mnt-{disk}"
        self.tmp = WORK / f"tmp-{disk}"
        self.share = pathlib.Path(job["share"]) / case.id
        self.fails: list[str] = []
        self.stats: dict[str, int] = {}
        self.done: dict[str, dict] = {}
        self.mounted = False
        self.children: list[subprocess.Popen] = []
        self.order = [] if job["plain"] else ["--order", "--cookies"]
        self.compat = not UML
        # The volume has fast_commit and the itree: the kernel has to do without fast commits.
        self.both = case.fast_commit and case.itree and job["itree"]
        # ext4, or the module beside it.
        self.type = job["type"]
        self.sysfs = pathlib.Path("/sys/fs", self.type)
        self.proc = pathlib.Path("/proc/fs", self.type)

    # --- results

    def fail(self, text: str) -> None:
        self.fails.append(text)

    def want(self, what: bool, text: str) -> bool:
        if not what:
            self.fail(text)
        return bool(what)

    def equal(self, got, want, what: str) -> None:
        self.want(got == want, f"{what}: {got!r}, wanted {want!r}")

    @contextlib.contextmanager
    def part(self, name: str):
        """Context: findings and figures in it belong to one part."""
        outer, figures, start = self.fails, self.stats, time.monotonic()
        self.fails, self.stats = [], {}
        try:
            yield
        except Failed as err:
            self.fails.append(str(err))
        except subprocess.TimeoutExpired as err:
            self.fails.append(f"no end: {err}")
        finally:
            self.done[name] = {
                "fails": self.fails,
                "stats": self.stats,
                "seconds": round(time.monotonic() - start, 1),
            }
            self.fails, self.stats = outer, figures

    # --- commands

    def run(self, *argv, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess:
        argv = [str(a) for a in argv]
        res = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
        if check and res.returncode:
            raise Failed(f"{' '.join(argv)}: exit code {res.returncode}: {(res.stderr or res.stdout).strip()[-400:]}")
        return res

    def _take(self, argv, code: int, out: str, err: str) -> dict[str, int]:
        stats: dict[str, int] = {}
        label = " ".join(a for a in argv if not a.startswith("/"))
        for line in out.splitlines():
            kind, _, text = line.partition(": ")
            if kind == "FAIL":
                self.fail(f"{label}: {text}")
            elif kind == "STAT":
                key, _, value = text.partition(" ")
                stats[key] = int(value)
                if key != "findings":
                    self.stats[key] = self.stats.get(key, 0) + int(value)
            elif kind == "DIED":
                raise Failed(f"{label}: {text}")
        if code < 0 or code > 1:
            raise Failed(f"{label}: exit code {code} {err.strip()[-200:]}")
        return stats

    def t(self, command: str, *args, timeout: float = 0) -> dict[str, int]:
        """Run itree-t; its findings become ours."""
        argv = [self.job["helper"], command, *map(str, args)]
        if not self.compat and {"32", "32old"} & set(argv):
            # Count skipped work, so that it does not look done.
            self.stats["left_out_32bit"] = self.stats.get("left_out_32bit", 0) + 1
            return {}
        res = self.run(*argv, timeout=(timeout or self.case.limit) * PATIENCE, check=False)
        return self._take(argv[1:], res.returncode, res.stdout, res.stderr)

    def start(self, command: str, *args) -> subprocess.Popen:
        argv = [self.job["helper"], command, *map(str, args)]
        proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        self.children.append(proc)
        return proc

    def finish(self, proc: subprocess.Popen, timeout: float = 120) -> dict[str, int]:
        out, _ = proc.communicate(timeout=timeout)
        self.children.remove(proc)
        return self._take(["(in the background)"], proc.returncode, out, "")

    def tool(self, name: str) -> str:
        path = pathlib.Path(self.job["sbin"]) / name
        return str(path) if path.exists() else name

    # --- the file system

    def mount(self, options: str = "") -> None:
        self.mnt.mkdir(parents=True, exist_ok=True)
        opts = ",".join(o for o in (self.p.get("mount", ""), options) if o)
        if self.job["plain"]:
            opts = opts.replace("noitree", "relatime")
        res = self.run("mount", "-t", self.type, *(["-o", opts] if opts else []), self.dev, self.mnt, check=False)
        if res.returncode:
            raise Failed(f"mount -o {opts or 'defaults'}: {res.stderr.strip()}")
        self.mounted = True

    def want_no_fast_commits(self) -> None:
        stats = (self.proc / os.path.basename(self.dev) / "fc_info").read_text()
        self.want("\n0 commits\n" in stats, f"fast commits on a volume with trees: {stats.splitlines()[:3]}")

    def umount(self) -> None:
        if self.mounted:
            if self.both:
                self.want_no_fast_commits()
            self.run("umount", self.mnt, timeout=300)
            self.mounted = False

    def again(self, options: str = "") -> None:
        """Unmount, mount: nothing cached."""
        self.umount()
        self.mount(options)

    def remount(self, options: str) -> None:
        if self.job["plain"]:
            return
        self.run("mount", "-o", f"remount,{options}", self.dev, self.mnt)

    def fsck(self, known: str = "") -> None:
        """e2fsck -fn here and now; the final one is the host's. What `known` matches is repaired instead."""
        self.umount()
        res = self.run(self.tool("e2fsck"), "-fn", self.dev, check=False, timeout=300)
        if known and res.returncode == 4:
            other = [x for x in res.stdout.splitlines() if x.endswith("? no") and not re.search(known, x)]
            if self.want(not other, f"e2fsck -fn finds more than it may: {other[:5]}"):
                self.stats["known_findings"] = self.stats.get("known_findings", 0) + 1
                self.run(self.tool("e2fsck"), "-fy", self.dev, check=False, timeout=300)
                res = self.run(self.tool("e2fsck"), "-fn", self.dev, check=False, timeout=300)
        self.want(res.returncode == 0, f"e2fsck -fn gives {res.returncode}: {res.stdout.strip()[-600:]}")

    def copy_frozen(self) -> pathlib.Path:
        """Copy the frozen disk: it needs no replay, and all checksums on it are current."""
        self.tmp.mkdir(parents=True, exist_ok=True)
        copy = self.tmp / "snapshot"
        self.run("cp", "--sparse=always", self.dev, copy)
        return copy

    def want_clean(self, image: pathlib.Path, what: str) -> None:
        res = self.run(self.tool("e2fsck"), "-fn", image, check=False)
        self.equal(res.returncode, 0, f"e2fsck of {what}: {res.stdout[-300:]}")

    def path(self, name: str = "d") -> str:
        return str(self.mnt / name)

    def names(self, name: str = "d", most: int | None = None) -> list[tuple[str, int]]:
        """A directory's names with their inodes, sorted; at most this many, because a listing might not end."""
        with os.scandir(self.path(name)) as it:
            return sorted((e.name, e.inode()) for e in itertools.islice(it, most))

    def model(self, name: str = "d") -> str:
        self.tmp.mkdir(parents=True, exist_ok=True)
        return str(self.tmp / f"{name}.model")

    def flags(self, path) -> int:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            return struct.unpack("I", fcntl.ioctl(fd, FS_IOC_GETFLAGS, b"\0" * 4 + b"")[:4])[0]
        finally:
            os.close(fd)

    def set_flags(self, path, flags: int) -> int:
        """0 or the errno."""
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_SETFLAGS, struct.pack("I", flags))
        except OSError as err:
            return err.errno
        finally:
            os.close(fd)
        return 0

    def has_tree(self, path) -> bool:
        return bool(self.flags(path) & FL_ITREE)

    def dir_blocks(self, path) -> int:
        return os.stat(path).st_size // os.statvfs(path).f_bsize

    def tree_as_due(self, path) -> None:
        """A tree from 16 directory blocks on, none below (if it never was larger)."""
        blocks = self.dir_blocks(path)
        if self.job["plain"]:
            return
        due = self.job["itree"] and self.case.itree and blocks >= BUILD_AT
        self.equal(self.has_tree(path), due, f"itree flag of a directory of {blocks} blocks")
        self.stats["trees"] = self.stats.get("trees", 0) + self.has_tree(path)

    def want_tree(self, path) -> None:
        if self.job["plain"] or "inode_order" in self.p.get("mount", ""):
            return
        self.want(self.has_tree(path), f"{path} of {self.dir_blocks(path)} blocks has no tree")

    def counter(self, name: str) -> int:
        if self.job["plain"]:
            return 0
        try:
            # sysfs has the kernel's name of the device. LVs and mapped devices have other names in /dev.
            number = os.stat(self.dev).st_rdev
            block = os.path.realpath(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
            return int((self.sysfs / os.path.basename(block) / f"itree_{name}").read_text())
        except OSError:
            return -1

    def counters(self) -> dict[str, int]:
        found = {c: self.counter(c) for c in COUNTERS}
        if -1 in found.values():
            self.fail(f"no counters of {self.dev} in {self.sysfs}: {found}")
        return found

    def extents(self, path, first: int = 0, end: int = SEGMENT) -> list[tuple[int, int, int]]:
        """A directory's blocks from the first to before the end: (logical block, address on disk, bytes)."""
        bsize = os.statvfs(path).f_bsize
        count = 400
        raw = bytearray(struct.pack("=QQLLLL", first * bsize, (end - first) * bsize, 1, 0, count, 0))
        raw += b"\0" * (56 * count)
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, FS_IOC_FIEMAP, raw)
        finally:
            os.close(fd)
        mapped = struct.unpack_from("=QQLLLL", raw)[3]
        found = []
        for i in range(mapped):
            logical, physical, length = struct.unpack_from("=QQQ", raw, 32 + 56 * i)
            found.append((logical // bsize, physical, length))
        return found

    def segment(self, path) -> list[tuple[int, int, int]]:
        """The tree's blocks: (logical block, address on disk, bytes)."""
        return self.extents(path, SEGMENT, ((1 << 63) - 1) // os.statvfs(path).f_bsize)

    def tree_blocks(self, path) -> dict[int, int]:
        """Logical block: address of its bytes on the disk."""
        bsize = os.statvfs(path).f_bsize
        return {
            logical + i: physical + i * bsize
            for logical, physical, length in self.segment(path)
            for i in range(length // bsize)
        }

    def run_quiet(self, func, *args) -> None:
        """A system call that must work."""
        try:
            func(*args)
        except OSError as err:
            self.fail(f"{func.__name__} fails: {err}")

    def kmsg(self, text: str) -> None:
        pathlib.Path("/dev/kmsg").write_text(f"itree-test: {text}\n")

    def log(self) -> str:
        """The kernel's log since this case began."""
        text = self.run("dmesg").stdout
        return text.rpartition(f"itree-test: begin {self.case.id}\n")[2]

    def settle(self) -> None:
        os.sync()
        pathlib.Path("/proc/sys/vm/drop_caches").write_text("3")

    def listing(self, path=None, model=None, *args, timeout: float = 0) -> int:
        """A full listing in inode order against the model."""
        return self.t(
            "list", "--dir", path or self.path(), "--model", model or self.model(), *self.order, *args, timeout=timeout
        ).get("names", -1)

    def close(self) -> None:
        for proc in self.children:
            proc.kill()
            proc.wait()
        if self.mounted:
            try:
                self.umount()
            except (Failed, subprocess.TimeoutExpired) as err:
                self.fail(f"umount: {err}")
        shutil.rmtree(self.tmp, ignore_errors=True)


KMEMLEAK = pathlib.Path("/sys/kernel/debug/kmemleak")
# Allocated by the boot, before there was a process or a file system to test. (Seen: a node of a static radix tree.)
OF_BOOT = re.compile(r'comm "swapper[^"]*", pid 0,')


def leaks(last: bool) -> list[str]:
    """New leaks according to kmemleak, if this kernel has it. It ignores objects younger than 5 seconds."""
    if not KMEMLEAK.exists():
        return []
    if last:
        time.sleep(6)
    # The first scan may report objects that changed meanwhile, so scan twice.
    try:
        for _ in range(2):
            KMEMLEAK.write_text("scan\n")
        found = KMEMLEAK.read_text()
        KMEMLEAK.write_text("clear\n")
    except OSError as err:
        return [f"kmemleak has given up: {err}"]
    ours = [x for x in found.split("unreferenced object")[1:] if not OF_BOOT.search(x)]
    return [f"kmemleak, in this case or one before it: {x[:900]}" for x in ours]


def run_case(case: registry.Case, job: dict, disk: str, last_of_machine: bool) -> None:
    g = Guest(case, job, disk)
    g.kmsg(f"begin {case.id}")
    print(json.dumps({"begin": case.id}), flush=True)
    start = time.monotonic()
    try:
        case.func(g)
    except Failed as err:
        g.fail(str(err))
    except subprocess.TimeoutExpired as err:
        g.fail(f"no end: {err}")
    except Exception as err:
        # The exception comes first: CI may show only the first line.
        g.fail(f"the test itself failed: {err!r}\n" + traceback.format_exc(limit=-4))
    g.close()
    for name in case.parts:
        if name and name not in g.done:
            g.done[name] = {"fails": ["not reached"], "stats": {}, "seconds": 0}
    last = g.done.setdefault(case.parts[-1], {"fails": [], "stats": {}, "seconds": 0})
    last["fails"] += g.fails + leaks(last_of_machine)[:3]
    if case.parts == ("",):
        last["stats"], last["seconds"] = g.stats, round(time.monotonic() - start, 1)
    g.kmsg(f"end {case.id}")
    print(json.dumps({"end": case.id, "parts": g.done, "seconds": round(time.monotonic() - start, 1)}), flush=True)


def main() -> int:
    job = json.loads(pathlib.Path(sys.argv[1]).read_text())
    cases = registry.load()
    WORK.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=70%", "none", str(WORK)], check=True)
    for command in (
        "mount -t tracefs none /sys/kernel/tracing",
        "mount -t securityfs none /sys/kernel/security",
    ):
        subprocess.run(command.split(), check=False, capture_output=True)
    disks = {}
    for path in pathlib.Path("/sys/block").glob("vd*/serial"):
        disks[int(re.sub(r"\D", "", path.read_text()))] = path.parent.name
    if UML:
        os.environ["ITREE_T_NO_COMPAT"] = "1"
        disks = {number: uml.disk_name(number) for number in range(len(job["cases"]))}
    if KMEMLEAK.exists():
        # By hand only, and nothing of booting. If it has given up, each case says so.
        with contextlib.suppress(OSError):
            for command in ("scan=off", "scan", "clear"):
                KMEMLEAK.write_text(f"{command}\n")
    for number, name in enumerate(job["cases"]):
        run_case(cases[name], job, disks[number], number == len(job["cases"]) - 1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
