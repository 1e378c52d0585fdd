# SPDX-License-Identifier: GPL-2.0-only
"""The cells of bench/tools: volumes, programs, one cold run of each, results by the hash of what went in.

Stock ext4, XFS and btrfs are measured on this machine's kernel, on loop
devices and with a limit of memory by its control groups; ext4 with itree in
a guest. What a cell copies goes to a volume of its own that is not counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lab
from lab import LabError, say
from model import pricing
from trace import blocktrace, records

BUILT = lab.BUILD / "coreutils-patches"
ROOT = BUILT / "root"
TIMEOUT = 7200
FILLS = ("clean", "aged", "source")
MEMORIES = ("192M", "1G")
AGED = {"clean": 0, "aged": 30}
# Nobody's figures hold any longer when one of these changes.
CODE = ("cells/toolcells.py", "trace/blocktrace.py", "trace/ringbuffer.py", "trace/records.py", "model/pricing.py",
        "model/disks.py")  # fmt: skip


@dataclass(frozen=True, eq=False)
class Work:
    """What is done, by which programs: {mnt} is the volume, {dst} where copies go."""

    name: str
    runs: dict  # variant: command, its first word a program of programs()
    target: str = ""  # "empty", or "full" if the copy is to be there already
    changes: bool = False  # the volume itself


WORKS = (
    Work(
        "tar c",
        {
            "unpatched": ["tar-pristine", "-cf", "-", "-C", "{mnt}", "dir"],
            "patched": ["tar", "-cf", "-", "-C", "{mnt}", "dir"],
            "--sort=disk": ["tar", "--sort=disk", "-cf", "-", "-C", "{mnt}", "dir"],
        },
    ),
    Work(
        "rsync -a",
        {v: [p, "-a", "{mnt}/dir", "{dst}"] for v, p in (("unpatched", "rsync-pristine"), ("patched", "rsync"))},
        "empty",
    ),
    Work(
        "rsync -a, up to date",
        {v: [p, "-a", "{mnt}/dir", "{dst}"] for v, p in (("unpatched", "rsync-pristine"), ("patched", "rsync"))},
        "full",
    ),
    Work(
        "cp -r",
        {v: [p, "-r", "{mnt}/dir", "{dst}"] for v, p in (("unpatched", "cp-pristine"), ("patched", "cp"))},
        "empty",
    ),
    Work("ls -l", {v: [p, "-lR", "{mnt}/dir"] for v, p in (("unpatched", "ls-pristine"), ("patched", "ls"))}),
    # Not patched: below the preload.
    Work("du -s", {"unpatched": ["/usr/bin/du", "-s", "{mnt}/dir"], "preload": ["diskorder", "du", "-s", "{mnt}/dir"]}),
    Work(
        "rm -r",
        {"unpatched": ["/usr/bin/rm", "-r", "{mnt}/dir"], "preload": ["diskorder", "rm", "-r", "{mnt}/dir"]},
        changes=True,
    ),
)


def program(word: str) -> Path:
    """The program that a command's first word stands for."""
    if word.startswith("/"):
        return Path(word)
    name, _, pristine = word.partition("-")
    tool = "coreutils" if name in ("cp", "ls") else name
    path = (BUILT / f"{tool}-pristine" / "root" if pristine else ROOT) / "bin" / name
    if not path.exists():
        how = f"coreutils-patches/build --pristine {tool}" if pristine else "ITREE_FULL=1 make tools"
        raise LabError(f"{path} is missing: run `{how}`")
    return path


@dataclass(frozen=True)
class Cell:
    """One figure of the table."""

    kind: str
    fill: str
    count: int
    memory: str
    work: Work
    variant: str

    def __str__(self) -> str:
        return f"{self.kind} {self.fill} {self.memory}: {self.work.name}, {self.variant}"

    def command(self, mnt: str, dst: str) -> list[str]:
        word, *rest = self.work.runs[self.variant]
        return [str(program(word)), *(r.format(mnt=mnt, dst=dst) for r in rest)]

    def inputs(self, image: str) -> dict:
        """All that decides the figures; image: the key of the volume."""
        first = program(self.work.runs[self.variant][0])
        library = ROOT / "lib" / "libdiskorder-preload.so"
        return {
            "image": image,
            "memory": self.memory,
            "work": self.work.name,
            "variant": self.variant,
            "command": self.work.runs[self.variant],
            "program": lab.sha256(first),
            "preload": lab.sha256(library) if first.name == "diskorder" else "",
            "kernel": lab.sha256(lab.KERNEL) if self.kind == "itree" else os.uname().release,
            **{name: lab.sha256(lab.BENCH / name) for name in CODE},
        }


class Results:
    """Figures of finished cells, a file for each: a run of hours can be ended and continued."""

    def __init__(self) -> None:
        self.dir = lab.cache_dir() / "tools-cells"
        self.dir.mkdir(exist_ok=True)

    def path(self, inputs: dict) -> Path:
        return self.dir / f"{hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()}.json"

    def get(self, inputs: dict) -> dict | None:
        try:
            return json.loads(self.path(inputs).read_text())["figures"]
        except (OSError, ValueError, KeyError):
            return None

    def put(self, inputs: dict, figures: dict) -> None:
        path = self.path(inputs)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({"inputs": inputs, "figures": figures}, indent=1))
        part.rename(path)

    def export(self, path: Path) -> int:
        """All that is kept, as one file; how many."""
        results = [json.loads(kept.read_text()) for kept in sorted(self.dir.glob("*.json"))]
        lines = ",\n".join(json.dumps(one, sort_keys=True) for one in results)
        path.write_text(f'{{"results": [\n{lines}\n]}}\n')
        return len(results)

    def take(self, path: Path) -> int:
        """What export() wrote, of another machine or before the cache was lost, beside what is there; how many."""
        try:
            results = [(one["inputs"], one["figures"]) for one in json.loads(path.read_text())["results"]]
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{path} is not what --export writes: {error!r}") from error
        missing = [(inputs, figures) for inputs, figures in results if not self.path(inputs).exists()]
        for inputs, figures in missing:
            self.put(inputs, figures)
        return len(missing)


# -- volumes ------------------------------------------------------------------


@contextlib.contextmanager
def loop(image: Path) -> Iterator[str]:
    """A loop device with the queue that guest.py gives its disks: what a SATA or SAS disk gets by default."""
    device = lab.run(["losetup", "--find", "--show", image], 60).stdout.strip()
    queue = Path("/sys/block", Path(device).name, "queue")
    before = {name: file.read_text().strip() for name in ("scheduler", "rotational") if (file := queue / name).exists()}
    try:
        for name, value in (("scheduler", "mq-deadline"), ("rotational", "1")):
            try:
                (queue / name).write_text(value)
            except OSError as error:
                raise LabError(f"{queue / name}: cannot be {value} here: {error.strerror}") from error
        yield device
    finally:
        # The device is not ours when it is free again.
        for name, value in before.items():
            with contextlib.suppress(OSError):
                (queue / name).write_text(value.split("[")[-1].split("]")[0])
        lab.run(["losetup", "-d", device], 60)


@contextlib.contextmanager
def mounted(device: str, where: Path, options: str) -> Iterator[Path]:
    where.mkdir(exist_ok=True)
    lab.run(["mount", "-o", options, device, where], 120)
    try:
        yield where
    finally:
        lab.run(["umount", where], 900)


def host_fill(kind: str, fill: str, count: int, work: Path) -> Path:
    """A filled image, made by this machine's kernel."""
    image = work / "disk.img"
    lab.make_fs(kind, image)
    with loop(image) as device, mounted(device, work / "mnt", lab.mount_options(kind)) as where:
        if fill != "source":
            fill_tool = lab.compile_tools() / "fill"
            argv = [fill_tool, "-q", "-n", count, "-s", 4096, "-a", AGED[fill], where / "dir"]
            lab.run([str(a) for a in argv], TIMEOUT)
        else:
            unpack_source(where / "dir", count)
    return image


def unpack_source(where: Path, count: int) -> None:
    """The kernel's source, aged; at most so many files."""
    fetched = lab.run([lab.ROOT / "packaging" / "sources" / "fetch", "linux"], 900).stdout.split()[-1]
    inside = "./usr/src/linux-source-6.12.tar.xz"
    pipe = 'dpkg-deb --fsys-tarfile "$0" | tar -xOf - "$1" | xz -dc | "$2" -B "$3" --files "$4" "$5"'
    age = lab.WORKLOADS / "agetree.py"
    lab.run(["sh", "-c", pipe, fetched, inside, sys.executable, age, str(count), where], TIMEOUT)


def guest_fill(fill: str, count: int, work: Path) -> Path:
    """A filled image with trees, as bench/peers makes it; the source tree is given its trees by e2fsck."""
    if fill == "source":
        image = host_fill("ext4", fill, count, work)
        lab.run([lab.E2FS / "tune2fs", "-O", "itree", image], 300)
        # 1: it changed something, which is what it was asked for
        done = subprocess.run([lab.E2FS / "e2fsck", "-fyD", image], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, check=False)  # fmt: skip
        if done.returncode not in (0, 1):
            raise LabError(f"e2fsck -fyD ended with {done.returncode}:\n{done.stdout[-2000:]}")
        return image
    image = work / "disk.img"
    lab.make_fs("itree", image)
    step = lab.Step("fill", guest_fill_command(fill, count), guest_fill_options(), title="fill", timeout=TIMEOUT)
    lab.run_guest([(image, "itree")], [step], work / "fill", lab.FILL_MEMORY, TIMEOUT)
    lab.fsck(image)
    return image


def guest_fill_command(fill: str, count: int) -> list[str]:
    argv = [lab.compile_tools() / "fill", "-n", count, "-s", 4096, "-a", AGED[fill], "-y", 10_000, "{mnt}/dir"]
    return [str(a) for a in argv]


def guest_fill_options() -> str:
    return lab.mount_options("itree") + ",commit=300"


def image_of(kind: str, fill: str, count: int) -> lab.ImageCache:
    """Where the filled image is kept, there or not; for itree the same as of bench/peers."""
    if kind == "itree" and fill != "source":
        inputs = lab.fill_inputs(kind, fill=guest_fill_command(fill, count)[1:], options=guest_fill_options())
        return lab.ImageCache(f"{kind}-{fill}-{count}", inputs)
    inputs = {
        "kernel": os.uname().release,
        "mkfs": lab.mkfs_identity(kind),
        "kind": kind,
        "size": lab.DISK_BYTES,
        "fill": [fill, count],
        **{name: lab.sha256(lab.WORKLOADS / name) for name in (*lab.FILL_SOURCES, "agetree.py")},
    }
    return lab.ImageCache(f"tools-{kind}-{fill}-{count}", inputs)


@contextlib.contextmanager
def not_with_peers(kind: str) -> Iterator[None]:
    """Images with trees are also those of bench/peers."""
    with lab.locked(lab.cache_dir() / "lock") if kind == "itree" else contextlib.nullcontext():
        yield


def filled(kind: str, fill: str, count: int) -> lab.ImageCache:
    with not_with_peers(kind):
        return filled_alone(kind, fill, count)


def filled_alone(kind: str, fill: str, count: int) -> lab.ImageCache:
    cache = image_of(kind, fill, count)
    if not cache.get():
        with lab.scratch("fill") as work:
            lab.need_space(work, max(count, 100) * 12_000 + (2 << 30))
            cache.drop()
            say(f"  {kind} {fill}: filling {count:,} files" if count else f"  {kind} {fill}: unpacking")
            make = guest_fill if kind == "itree" else None
            cache.put(make(fill, count, work) if make else host_fill(kind, fill, count, work), {})
    return cache


# -- a run ----------------------------------------------------------------------


class Volumes:
    """Working copies: the filled image (another one after a work that changed it), and where copies go."""

    def __init__(self, source: Path, kind: str, work: Path):
        self.source, self.kind, self.work = source, kind, work
        self.image = work / "source.img"
        self.target = work / "target.img"
        self.fresh = False
        self.holds = ""

    def prepare(self, cell: Cell) -> None:
        if not self.fresh:
            with not_with_peers(self.kind):
                lab.copy_image(self.source, self.image)
            self.fresh = True
        if not cell.work.target or (cell.work.target == "full" and self.holds == "full"):
            return
        lab.make_fs("ext4", self.target)
        self.holds = cell.work.target
        if cell.work.target == "full":
            # An unknown kernel may read what it must not write.
            with (
                loop(self.image) as source,
                loop(self.target) as target,
                mounted(source, self.work / "from", "ro") as where,
                mounted(target, self.work / "to", "noatime") as to,
            ):
                lab.run(["rsync", "-a", where / "dir", to], TIMEOUT)

    def used(self, cell: Cell) -> None:
        self.fresh = not cell.work.changes
        if cell.work.target == "empty":
            self.holds = "used"


@contextlib.contextmanager
def limited(memory: str) -> Iterator[Path]:
    """The file that puts a process under a limit of memory."""
    base = Path("/sys/fs/cgroup/memory")
    name, limit = "cgroup.procs", "memory.limit_in_bytes"
    if not base.is_dir():
        base, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = base / f"itree-tools-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(memory)
    except OSError as error:
        with contextlib.suppress(OSError):
            group.rmdir()
        raise LabError(f"{group}: memory cannot be limited here: {error.strerror}") from error
    try:
        yield group / name
    finally:
        for _ in range(100):
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


# $0: where time(1) writes; the command's output is counted away. Given /dev/null, tar would not read.
TIMED = '/usr/bin/time -q -f "%M %x" -o "$0" "$@" | wc -c'


def shell(cell: Cell, file: Path, mnt: str, dst: str, before: str = "") -> list[str]:
    script = before + TIMED
    if cell.work.changes:
        # What is left to the journal and to write-back is part of the cost.
        script += f' && sync -f "{mnt}"'
    return ["sh", "-c", script, str(file), *cell.command(mnt, dst)]


def read_peak(cell: Cell, file: Path) -> int:
    """Peak memory in KiB, of the largest process."""
    fields = file.read_text().split()
    if len(fields) != 2 or fields[1] != "0":
        raise LabError(f"{cell}: failed: {' '.join(fields)}")
    return int(fields[0])


def figures(cell: Cell, requests: list[records.Request], result: dict, peak: int) -> dict:
    if result["status"]:
        raise LabError(f"{cell}: ended with {result['status']}")
    return {**pricing.summary(requests), "wall": result["wall"], "peak_kib": peak}


def host_run(cell: Cell, volumes: Volumes) -> dict:
    work = volumes.work
    trace, file = work / "trace.gz", work / "peak"
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(loop(volumes.image))
        dst = work / "to"
        if cell.work.target:
            target = stack.enter_context(loop(volumes.target))
            stack.enter_context(mounted(target, dst, "noatime"))
        procs = stack.enter_context(limited(cell.memory))
        # Last, so that nothing of it is in memory that its mount did not read.
        where = stack.enter_context(mounted(device, work / "mnt", lab.mount_options(cell.kind)))
        join = ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(procs)]
        command = join + shell(cell, file, str(where), str(dst))
        raw = work / "trace.raw"
        done = blocktrace.record(command, Path(device).name, raw, work / "out", TIMEOUT)
    return figures(cell, blocktrace.convert(raw, trace, done["recorded"]), done, read_peak(cell, file))


def guest_run(cell: Cell, volumes: Volumes) -> dict:
    share = volumes.work / "guest"
    share.mkdir(exist_ok=True)
    dst = "/run/itree-target"
    before = f"mkdir {dst} && mount -o noatime /dev/{lab.disk_name(1)} {dst} || exit 9; " if cell.work.target else ""
    disks = [(volumes.image, "itree")] + [(volumes.target, "ext4")] * bool(cell.work.target)
    command = shell(cell, share / "peak", "{mnt}", dst, before)
    step = lab.Step("cell", command, lab.mount_options("itree"), title=str(cell), timeout=TIMEOUT)
    report = lab.run_guest(disks, [step], share, cell.memory, TIMEOUT)
    return figures(cell, report.requests("cell"), report.steps["cell"], read_peak(cell, share / "peak"))


def measure(cell: Cell, volumes: Volumes) -> dict:
    """One cold run."""
    volumes.prepare(cell)
    try:
        return (guest_run if cell.kind == "itree" else host_run)(cell, volumes)
    finally:
        volumes.used(cell)
