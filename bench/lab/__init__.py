# SPDX-License-Identifier: GPL-2.0-only
"""Shared by the commands of bench/: building, images, guests, tables."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from model import pricing
from model.disks import SAS10K
from trace import blocktrace, records

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench"
WORKLOADS = BENCH / "workloads"
BUILD = ROOT / "build"
KERNEL = Path(os.environ.get("ITREE_KERNEL") or BUILD / "kernel" / "bzImage").absolute()
E2FS = BUILD / "e2fsprogs" / "root" / "sbin"

sys.path.insert(0, str(ROOT / "tests" / "vm"))

# Fixed, so that two volumes differ only in what is compared.
UUID = "6974cafe-0000-4000-8000-000000000001"
SECOND_UUID = "6974cafe-0000-4000-8000-000000000003"
HASH_SEED = "6974cafe-0000-4000-8000-000000000002"
DISK_BYTES = SAS10K.capacity
FILL_MEMORY = "1G"
MEASURE_MEMORY = "192M"
# A change of these sources changes the filled image.
FILL_SOURCES = ("fill.c", "random.h")
PROGRAMS = ("fill", "walk", "lookup", "mailmix", "insn", "changing")


class LabError(Exception):
    """An error for the user; the text says what to do."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list, timeout: float, **kwargs) -> subprocess.CompletedProcess:
    """Run a host command; an error names the command and ends with its last output."""
    command = [str(c) for c in command]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
            **kwargs,
        )
    except FileNotFoundError as error:
        raise LabError(f"{command[0]} is not installed: run `make deps`") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{command[0]}: not done in {timeout:.0f} s") from error
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise LabError(f"{' '.join(command)} ended with {done.returncode}\n{tail}")
    return done


def cache_dir() -> Path:
    base = os.environ.get("ITREE_CACHE")
    if not base:
        base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        base = str(Path(base) / "itree")
    path = Path(base).absolute() / "bench"
    path.mkdir(parents=True, exist_ok=True)
    return path


def need_space(path: Path, size: int) -> None:
    free = shutil.disk_usage(path).free
    if free < size:
        raise LabError(
            f"{path}: {free >> 20} MiB free, {size >> 20} MiB wanted;"
            " make room or set ITREE_CACHE to a directory elsewhere"
        )


def make(*targets: str, timeout: float = 3600) -> None:
    """Run make targets with their output on the terminal."""
    begin = time.monotonic()
    command = ["make", "-C", str(ROOT), "--no-print-directory", *targets]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    try:
        status = process.wait(timeout)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        process.wait()
        if isinstance(error, subprocess.TimeoutExpired):
            raise LabError(f"make {' '.join(targets)}: not done in {timeout:.0f} s") from error
        raise
    if status:
        raise LabError(f"make {' '.join(targets)} ended with {status}")
    say(f"  make {' '.join(targets)}: {time.monotonic() - begin:.0f} s")


def leave_on_sigterm() -> None:
    """Also clean up mounts, loop devices, guests and scratch files on SIGTERM; ignore a second one meanwhile."""

    def leave(*_):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, leave)


def compile_tools() -> Path:
    """Build fill, walk and the other workloads; return their directory."""
    out = BUILD / "bench"
    out.mkdir(parents=True, exist_ok=True)
    headers = max(path.stat().st_mtime for path in WORKLOADS.glob("*.h"))
    for name in PROGRAMS:
        source, target = WORKLOADS / f"{name}.c", out / name
        if not target.exists() or target.stat().st_mtime < max(source.stat().st_mtime, headers):
            part = out / f"{name}.{os.getpid()}"
            run(["cc", "-O2", "-Wall", "-Wextra", "-o", part, source], 120)
            part.rename(target)
    return out


def sha256(path: Path) -> str:
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


@contextlib.contextmanager
def scratch(prefix: str) -> Iterator[Path]:
    """A temporary directory next to the cache, so that copies can share blocks."""
    base = cache_dir()
    for old in base.glob("tmp-*"):
        # left behind by a run that was killed
        pid = old.name.split("-")[1]
        if pid.isdigit() and not Path(f"/proc/{pid}").exists():
            shutil.rmtree(old, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f"tmp-{os.getpid()}-{prefix}-", dir=base))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def copy_image(source: Path, target: Path) -> None:
    used = source.stat().st_blocks * 512
    need_space(target.parent, used + (1 << 30))
    run(["cp", "--sparse=always", "--reflink=auto", source, target], 900)


# -- file systems -----------------------------------------------------------


def mke2fs() -> Path:
    path = E2FS / "mke2fs"
    if not path.exists():
        raise LabError(f"{path} is missing: run `make e2fsprogs`")
    return path


def make_fs(kind: str, image: Path, size: int = DISK_BYTES, uuid: str = UUID) -> None:
    """Make a sparse image with an empty file system. A second one in a guest needs SECOND_UUID: XFS refuses duplicates.

    Inode tables and journal stay unwritten (lazy): the sparse file reads as
    zeros already, and writing them would only fill the host's disk.
    """
    image.unlink(missing_ok=True)
    with open(image, "wb") as out:
        out.truncate(size)
    if kind in ("ext4", "itree"):
        feature = "itree" if kind == "itree" else "^itree"
        lazy = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
        run(
            [mke2fs(), "-F", "-q", "-t", "ext4", "-O", feature, "-U", uuid]
            + ["-E", f"{lazy},hash_seed={HASH_SEED}", image],
            300,
        )
    elif kind == "xfs":
        run(["mkfs.xfs", "-q", "-f", "-K", "-m", f"uuid={uuid}", image], 300)
    elif kind == "btrfs":
        run(["mkfs.btrfs", "-q", "-f", "-K", "-U", uuid, image], 300)
    else:
        raise LabError(f"no such file system: {kind}")


def mkfs_identity(kind: str) -> str:
    """A value that changes if an empty file system would come out differently.

    For ext4, hash the file system and not the program: mke2fs is rebuilt more
    often than its output changes.
    """
    if fs_type(kind) == "ext4":
        with scratch("identity") as work:
            image = work / "disk.img"
            make_fs(kind, image)
            text = run([E2FS / "dumpe2fs", image], 120).stdout
        # times, and the checksum over them
        stamps = re.compile(r"(Filesystem created|Last \w+( time)?|Checksum):")
        lines = [line for line in text.splitlines() if not stamps.match(line)]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    program = shutil.which(f"mkfs.{kind}")
    if not program:
        raise LabError(f"mkfs.{kind} is not installed: run `make deps`")
    return sha256(Path(program))


def mount_options(kind: str, ignore_tree: bool = False) -> str:
    options = "noatime"
    if kind in ("ext4", "itree"):
        # keep out of the trace what kernel threads do some seconds after a mount
        options += ",noinit_itable,no_prefetch_block_bitmaps"
    if ignore_tree:
        options += ",noitree"
    return options


# kinds of volumes that can be filled and measured
KINDS = ("ext4", "itree", "xfs", "btrfs")


def fs_type(kind: str) -> str:
    return "ext4" if kind == "itree" else kind


def fsck(image: Path) -> None:
    """Raise if our e2fsck finds an error."""
    done = subprocess.run(
        [str(E2FS / "e2fsck"), "-f", "-n", str(image)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
        check=False,
    )
    if done.returncode:
        raise LabError(f"e2fsck -fn ended with {done.returncode}:\n{done.stdout}{done.stderr}")


_EXTENT = re.compile(r"\((\d+)(?:-(\d+))?\):(\d+)(?:-(\d+))?")


def journal_extents(image: Path) -> tuple[list[tuple[int, int]], int]:
    """The journal's (first sector, sectors) on the disk, and the block size."""
    debugfs = E2FS / "debugfs"
    text = run([debugfs, "-R", "stat <8>", image], 120).stdout
    head = run([E2FS / "dumpe2fs", "-h", image], 120).stdout
    found = re.search(r"^Block size:\s+(\d+)$", head, re.M)
    if not found:
        raise LabError(f"dumpe2fs does not tell the block size of {image}")
    block = int(found[1])
    per = block // records.SECTOR
    extents = []
    for first, last, at, _ in _EXTENT.findall(text):
        count = int(last or first) - int(first) + 1
        extents.append((int(at) * per, count * per))
    if not extents:
        raise LabError(f"no journal found in {image}")
    return extents, block


# -- guests -----------------------------------------------------------------


@functools.cache
def kernel_is_program() -> bool:
    """Is ITREE_KERNEL a program of this host (make kernel-uml-fast)? QEMU starts other kernels."""
    import uml  # tests/vm

    return KERNEL.exists() and uml.is_uml(KERNEL)


def disk_name(number: int) -> str:
    """Name, below the guest's /dev, of its disk with that number."""
    import uml  # tests/vm

    return uml.disk_name(number) if kernel_is_program() else f"vd{chr(ord('a') + number)}"


@dataclass
class Step:
    """One command in the guest; {mnt} stands for the mounted disk."""

    name: str
    command: list[str]
    options: str
    disk: int = 0
    second: int | None = None  # another disk, empty, mounted at {second}
    title: str = ""
    trace: bool = True
    cold: bool = True
    may_fail: bool = False
    timeout: float = 1800

    def as_dict(self) -> dict:
        second = None if self.second is None else disk_name(self.second)
        return {**self.__dict__, "disk": disk_name(self.disk), "second": second, "title": self.title or self.name}


@dataclass
class Report:
    """The results of a guest; reads traces on demand."""

    share: Path
    facts: dict
    steps: dict[str, dict] = field(default_factory=dict)

    def requests(self, step: str) -> list[records.Request]:
        return records.read_trace(self.share / f"{step}.trace.gz")

    def output(self, step: str) -> str:
        return (self.share / f"{step}.out").read_text()

    def json(self, step: str) -> dict:
        return json.loads(self.output(step))

    def figures(self, step: str, requests: list[records.Request] | None = None) -> dict:
        """The cost of a step; pass its `requests` if they have been read already, as there may be millions."""
        result = self.steps[step]
        return {
            **pricing.summary(self.requests(step) if requests is None else requests),
            "wall": result["wall"],
            "cpu_seconds": result["cpu_seconds"],
            "commits": result["commits"],
        }


def run_guest(
    volumes: list[tuple[Path, str]],
    steps: list[Step],
    share: Path,
    memory: str,
    timeout: float,
    cpus: int = 2,
    allow: tuple[str, ...] = (),
    icount: bool = False,
) -> Report:
    """Boot the kernel under test and run the steps on (image, file system)s.

    With `icount` the guest is emulated on any host, and its clock advances by a
    nanosecond with each instruction; see workloads/insn.c.
    """
    import vm  # tests/vm

    qemu_args = ("-icount", "shift=0") if icount else ()
    if icount:
        if kernel_is_program():
            raise LabError(f"QEMU counts instructions, and {KERNEL} runs without it: leave ITREE_KERNEL out")
        os.environ["ITREE_KVM"] = "0"

    share.mkdir(parents=True, exist_ok=True)
    disks = {disk_name(number): fs_type(kind) for number, (_, kind) in enumerate(volumes)}
    job = {"disks": disks, "steps": [s.as_dict() for s in steps]}
    path = share / "job.json"
    path.write_text(json.dumps(job))
    (share / "result.json").unlink(missing_ok=True)
    try:
        result = vm.run(
            # -B: the source tree is read-only there
            [sys.executable, "-B", str(BENCH / "lab" / "guest.py"), str(path)],
            kernel=KERNEL,
            memory=memory,
            cpus=cpus,
            disks=[image for image, _ in volumes],
            shares=[share],
            timeout=timeout,
            log=share / "kernel.log",
            cwd=str(share),
            allow=allow,
            stream=True,
            qemu_args=qemu_args,
        )
    except vm.VMError as error:
        raise LabError(str(error)) from error
    if not result.ok:
        raise LabError(result.explain())
    return read_report(share)


def run_counted(volume: tuple[Path, str], step: Step, share: Path, timeout: float) -> Report:
    """Run a step on (image, file system) in a guest with one processor whose clock counts instructions.

    The step's own time limit is in seconds of that clock, which follows
    instructions and not the host's time, so it is 100 times `timeout`.
    """
    step = replace(step, trace=False, timeout=100 * timeout)
    return run_guest([volume], [step], share, FILL_MEMORY, timeout, cpus=1, icount=True)


def read_report(share: Path, partial: bool = False) -> Report:
    """Read the results of this share's guest; with `partial` also if it did not finish all of its steps."""
    try:
        facts = json.loads((share / "result.json").read_text())
    except FileNotFoundError as error:
        raise LabError(f"the guest did not begin its steps; see {share}") from error
    if not facts.get("done") and not partial:
        raise LabError(f"the guest did not finish its steps; see {share}")
    for step in facts["steps"]:
        raw = share / f"{step['name']}.trace.raw"
        if "recorded" in step and raw.exists():
            try:
                blocktrace.convert(raw, share / f"{step['name']}.trace.gz", step["recorded"])
            except blocktrace.TraceError as error:
                raise LabError(f"{step['name']}: {error}") from error
    return Report(share, facts, {s["name"]: s for s in facts["steps"]})


def _guest_process(arguments: dict) -> None:
    try:
        run_guest(**arguments)
    except (LabError, OSError) as error:
        (arguments["share"] / "error").write_text(str(error))
        sys.exit(1)


def run_guests(jobs: list[dict]) -> list[Report]:
    """Run several guests at once, each given as the arguments of run_guest().

    Each has its own process, so that all can be killed when one fails.
    """
    fork = multiprocessing.get_context("fork")
    for job in jobs:
        job["share"].mkdir(parents=True, exist_ok=True)
        (job["share"] / "error").unlink(missing_ok=True)
    running = [fork.Process(target=_guest_process, args=(job,)) for job in jobs]
    try:
        for process in running:
            process.start()
        waiting = set(running)
        while waiting and not any(process.exitcode for process in running):
            multiprocessing.connection.wait([process.sentinel for process in waiting])
            waiting = {process for process in waiting if process.is_alive()}
    finally:
        for process in running:
            if process.is_alive():
                process.terminate()
        for process in running:
            if process.pid:
                process.join()
    for process, job in zip(running, jobs, strict=True):
        error = job["share"] / "error"
        if error.exists():
            raise LabError(error.read_text())
        if process.exitcode and process.exitcode != -signal.SIGTERM:
            raise LabError(f"the guest of {job['share']} ended with {process.exitcode}")
    return [read_report(job["share"]) for job in jobs]


# -- filled images, kept in the cache -----------------------------------------


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    with open(path, "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"  waiting for another run that uses {path.parent}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class ImageCache:
    """One image per label, valid as long as the hash of its inputs is the same."""

    def __init__(self, label: str, inputs: dict):
        self.dir = cache_dir() / label
        self.dir.mkdir(parents=True, exist_ok=True)
        self.inputs = inputs
        text = json.dumps(inputs, sort_keys=True)
        self.key = hashlib.sha256(text.encode()).hexdigest()
        self.image = self.dir / "disk.img"
        self.meta = self.dir / "meta.json"

    def lock(self):
        return locked(self.dir / "lock")

    def get(self) -> dict | None:
        try:
            meta = json.loads(self.meta.read_text())
        except (OSError, ValueError):
            return None
        return meta if meta.get("key") == self.key and self.image.exists() else None

    def drop(self) -> None:
        self.meta.unlink(missing_ok=True)
        self.image.unlink(missing_ok=True)

    def put(self, image: Path, result: dict) -> None:
        self.drop()
        image.rename(self.image)
        part = self.meta.with_suffix(".part")
        part.write_text(json.dumps({"key": self.key, "inputs": self.inputs, "told": result}))
        part.rename(self.meta)


def kernel_version() -> str:
    """Version of the kernel image, as 6.12.1 (boot protocol: pointer at 0x20e; for a program, in a file beside it)."""
    if kernel_is_program():
        return (KERNEL.parent / "release").read_text().strip()
    with open(KERNEL, "rb") as image:
        image.seek(0x20E)
        image.seek(int.from_bytes(image.read(2), "little") + 0x200)
        found = re.match(rb"[0-9.]+", image.read(64))
    if not found:
        raise LabError(f"{KERNEL} is no kernel image")
    return found[0].decode()


def fill_inputs(kind: str, **parameters) -> dict:
    # our kernel differs from its release only in ext4
    inputs = {
        "kernel": sha256(KERNEL) if fs_type(kind) == "ext4" else kernel_version(),
        "mkfs": parameters.get("mkfs") or mkfs_identity(kind),
        "kind": kind,
        "size": DISK_BYTES,
        **parameters,
    }
    for name in FILL_SOURCES:
        inputs[name] = sha256(WORKLOADS / name)
    return inputs


# -- tables -----------------------------------------------------------------


def table(head: list[str], rows: list[list[str]]) -> str:
    """Plain text; the first column to the left, figures to the right."""
    widths = [max(len(r[i]) for r in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in (head, ["-" * w for w in widths], *rows):
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def table_markdown(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]


def pick_python() -> None:
    """Restart with the project's own Python if this one lacks matplotlib."""
    own = BUILD / "venv" / "bin" / "python3"
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        if not own.exists() or os.environ.get("ITREE_BENCH_PYTHON"):
            raise LabError("matplotlib is missing: run `make deps`") from error
        os.environ["ITREE_BENCH_PYTHON"] = str(own)
        os.execv(own, [str(own), *sys.argv])
