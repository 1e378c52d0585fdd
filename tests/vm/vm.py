# SPDX-License-Identifier: GPL-2.0-only
"""Run a command in a kernel under test, inside a virtual machine.

virtme-ng boots the kernel over the host's own root file system (9p, read
only), so the guest sees the same paths as the host.  This module adds what
tests need on top: a kernel log apart from the command's output, the command's
own exit code, a verdict on the log, a time limit, disks with known serials.

    from vm import run
    res = run("mkfs.ext4 /dev/vda && mount /dev/vda /mnt", disks=["img"])
    assert res.ok, res.explain()

The command line is tests/vm/run; tests/README.md describes both.
"""

import contextlib
import dataclasses
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

import uml

REPO = pathlib.Path(__file__).resolve().parents[2]
DEFAULT_KERNEL = pathlib.Path(os.environ.get("ITREE_KERNEL") or REPO / "build" / "kernel" / "bzImage")
VIRTME_RUN = REPO / "build" / "venv" / "bin" / "virtme-run"
RUN_DIR = REPO / "build" / "vm"
KEEP_RUNS = 60

EXIT_PROBLEM = 120  # the kernel log reports a problem
EXIT_TIMEOUT = 124  # as timeout(1)
EXIT_RUNNER = 125  # the machine could not be started or died on its own

# Directories of the host that the guest may write to; changes stay in the
# guest's memory and vanish when it ends.
OVERLAYS = ("/etc", "/lib", "/home", "/opt", "/srv", "/usr", "/var", "/tmp")

_STAMP = re.compile(r"^(?:<\d+>)?\[\s*\d+\.\d+\](?:\[\s*[TC]\d+\])? ?")

# What a healthy run never prints.  Matched against each line of the log after
# its time stamp.
PROBLEMS = re.compile(
    r"""
      ^WARNING:                                 # WARN_ON, lockdep, suspicious RCU
    | ^(?:watchdog:\ )?BUG:                     # oops, soft lockup, sleeping in atomic
    | kernel\ BUG\ at
    | ^Oops\b | \bOops:
    | general\ protection\ fault
    | Kernel\ panic
    | DEBUG_LOCKS_WARN_ON
    | ^INFO:\ (?:task\ .*blocked\ for\ more\ than
                |possible\ recursive\ locking
                |suspicious\ RCU
                |trying\ to\ register\ non-static\ key)
    | \brcu:?\ .*(?:detected\ (?:expedited\ )?stalls?|self-detected\ stall)
    | ^(?:UBSAN|KASAN|KCSAN|KMSAN): | ^\[\s*cut\ here
    | ^refcount_t: | ^list_(?:add|del)\ corruption
    | Out\ of\ memory:\ | Memory\ cgroup\ out\ of\ memory:
    | EXT4-fs\ error
    | EXT4-fs\ warning\ .*\ itree\ block\       # a tree that cannot be read or breaks a rule
    """,
    re.VERBOSE,
)


class VMError(Exception):
    """The machine could not be started; the text says what to do."""


@dataclasses.dataclass
class KUnitCase:
    suite: str
    name: str
    status: str  # "passed", "failed" or "skipped"


@dataclasses.dataclass
class Result:
    """The result of a run.  `exit_code` is the command's, None if it never ended."""

    exit_code: int | None
    stdout: str
    stderr: str
    log: pathlib.Path
    problems: list[str]
    timed_out: bool
    seconds: float
    kunit: list[KUnitCase]

    @property
    def code(self) -> int:
        """The exit code of tests/vm/run for this run."""
        if self.timed_out:
            return EXIT_TIMEOUT
        if self.problems:
            return EXIT_PROBLEM
        if self.exit_code is None:
            return EXIT_RUNNER
        return self.exit_code

    @property
    def ok(self) -> bool:
        return self.code == 0

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def explain(self) -> str:
        """Say in a few lines why the run failed."""
        out = []
        if self.timed_out:
            out.append(
                f"vm: no end after {self.seconds:.0f} s; the machine was killed. "
                f"Last lines of the kernel log ({self.log}):"
            )
            out += ["    " + line for line in self.log_text().splitlines()[-8:]]
        if self.problems:
            out.append(f"vm: the kernel log holds what a healthy run does not ({self.log}):")
            out += ["    " + line for line in self.problems[:20]]
            if len(self.problems) > 20:
                out.append(f"    ... and {len(self.problems) - 20} more")
        if self.exit_code is None and not self.timed_out and not self.problems:
            out.append(f"vm: the machine ended before the command did. Last lines of the kernel log ({self.log}):")
            out += ["    " + line for line in self.log_text().splitlines()[-15:]]
        if self.exit_code:
            out.append(f"vm: the command ended with exit code {self.exit_code}")
            out += ["    " + line for line in self.stderr.splitlines()[-15:]]
        return "\n".join(out)


def strip_stamp(line: str) -> str:
    """Drop the time stamp (and caller) a kernel log line begins with."""
    return _STAMP.sub("", line.rstrip("\r\n"))


def find_problems(text: str, allow=()) -> list[str]:
    """Lines of a kernel log that report a problem and are not allowed."""
    allowed = [re.compile(a) for a in allow]
    found = []
    for raw in text.splitlines():
        line = strip_stamp(raw)
        if PROBLEMS.search(line) and not any(a.search(line) for a in allowed):
            found.append(line)
    return found


# Our cases that each boot of a kernel under test runs, by suite.
ITREE_KUNIT = {
    "ext4_itree_files_test": [
        f"itree_test_{name}"
        for name in ("backwards", "busy", "gone", "grows", "hits_begin_nothing", "jitter", "overtaken", "sparse",
                     "streak", "two_readers", "unused", "wait")
    ],
    "ext4_itree_test": [
        f"itree_test_{name}" for name in ("core", "find_key", "hash_positions", "hostile", "positions", "room")
    ],
}  # fmt: skip
_KUNIT_RESULT = re.compile(r"^( *)(ok|not ok) \d+(?: -)? ?(.*)$")
_KUNIT_SUBTEST = re.compile(r"^( *)# Subtest: (.*)$")


def kunit_results(text: str) -> list[KUnitCase]:
    """Read the results of boot-time KUnit suites from a kernel log.

    A case is one line per test function: the rows of a parameterised test are
    summed up by the line that follows them, as KUnit does.
    """
    names: dict[int, str] = {}
    cases = []
    for raw in text.splitlines():
        line = strip_stamp(raw)
        sub = _KUNIT_SUBTEST.match(line)
        if sub:
            names[len(sub[1])] = sub[2].strip()
            continue
        res = _KUNIT_RESULT.match(line)
        if not res or len(res[1]) != 4 or 4 not in names:
            continue
        name, _, directive = res[3].partition(" # ")
        status = "passed" if res[2] == "ok" else "failed"
        if directive.upper().startswith("SKIP"):
            status = "skipped"
        cases.append(KUnitCase(names[4], name.strip(), status))
    return cases


def _cache_dir() -> pathlib.Path:
    base = os.environ.get("ITREE_CACHE")
    if base:
        return pathlib.Path(base)
    xdg = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(xdg) / "itree"


def kvm_works(kernel) -> bool:
    """Tell whether KVM really runs a guest kernel here.

    Even if /dev/kvm opens, it may not run a guest, so the first call boots the
    kernel without a root and waits for its first lines.  The answer is cached
    until the host reboots.  ITREE_KVM=0 or =1 overrides it.
    """
    forced = os.environ.get("ITREE_KVM")
    if forced in ("0", "1"):
        return forced == "1"
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    boot_id = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    note = _cache_dir() / f"kvm-{boot_id}"
    try:
        return note.read_text().strip() == "1"
    except OSError:
        pass
    cmd = ["qemu-system-x86_64", "-accel", "kvm", "-cpu", "host", "-m", "512", "-nodefaults",
           "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel", str(kernel),
           "-append", "console=ttyS0 panic=-1"]  # fmt: skip
    try:
        out = subprocess.run(cmd, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False).stdout
    except subprocess.TimeoutExpired as err:
        out = err.stdout or b""
    except OSError:
        return False
    works = b"Kernel panic - not syncing: VFS" in out
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("1\n" if works else "0\n")
    return works


def modules_of(kernel) -> pathlib.Path | None:
    """Return the modules of a kernel that is installed like a distribution's, or None.

    That is, ROOT/boot/vmlinuz-RELEASE has ROOT/lib/modules/RELEASE beside it.
    """
    kernel = pathlib.Path(kernel)
    release = kernel.name.removeprefix("vmlinuz-")
    found = kernel.parent.parent / "lib" / "modules" / release
    return found if kernel.parent.name == "boot" and found.is_dir() else None


def _in_use(run_dir: pathlib.Path) -> bool:
    """Does the process that made this directory still live?"""
    pid = run_dir.name.split("-")[3]
    return pid.isdigit() and pathlib.Path(f"/proc/{pid}").exists()


def _new_run_dir() -> pathlib.Path:
    """Make a directory for one guest. Of those whose processes have ended, the newest stay, for their logs."""
    RUN_DIR.mkdir(parents=True, exist_ok=True)
    old = sorted((d for d in RUN_DIR.glob("run-*-*-*") if d.is_dir() and not _in_use(d)), key=lambda d: d.name)
    for gone in old[:-KEEP_RUNS]:
        shutil.rmtree(gone, ignore_errors=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return pathlib.Path(tempfile.mkdtemp(prefix=f"run-{stamp}-{os.getpid()}-", dir=RUN_DIR))


def _guest_script(command: str, env, load=()) -> str:
    """The script the guest runs: modules loaded, then the command, with plain pipes for output.

    A virtio port takes one writer at a time, so the command gets pipes and
    cat(1) feeds the ports; /dev/stdout and friends lead to the pipes as usual.
    """
    lines = ["# SPDX-License-Identifier: GPL-2.0-only"]
    lines += [f"export {k}={shlex.quote(v)}" for k, v in env.items()]
    lines += [
        *uml.STDIO_LINKS,
        *(f"modprobe {name}" for name in load),
        "port() { for i in /sys/class/virtio-ports/*; do",
        '    [ "$(cat "$i/name")" = "$1" ] && echo "/dev/${i##*/}"; done; }',
        "dir=$(mktemp -d /run/itree-XXXXXX)",
        'mkfifo "$dir/out" "$dir/err"',
        'cat "$dir/out" & c1=$!',
        'cat "$dir/err" >"$(port itree.stderr)" & c2=$!',
        f'bash -c {shlex.quote(command)} </dev/null >"$dir/out" 2>"$dir/err"',
        "rc=$?",
        # A process that the command left running may keep the pipes open: do
        # not wait for it forever.
        'for i in $(seq 50); do kill -0 "$c1" 2>/dev/null || kill -0 "$c2" 2>/dev/null || break',
        "    sleep 0.1; done",
        "sync",
        'echo "$rc" >"$(port itree.rc)"',
        "exit 0",
    ]
    return "\n".join(lines) + "\n"


def _qemu_quote(path) -> str:
    return str(path).replace(",", ",,")


def _pump(src, chunks, sinks):
    while True:
        data = os.read(src.fileno(), 65536)
        if not data:
            break
        chunks.append(data)
        for sink in sinks:
            sink.write(data)
            sink.flush()


def _kill_group(proc):
    try:
        os.killpg(proc.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    proc.wait()


def _wait(proc: subprocess.Popen, timeout: float, overdue, output) -> bool:
    """Wait for a machine to end, and clean up. True if it was killed because of its time limit.

    overdue, if any, is called every two seconds with the command's output so far, from output().
    """
    end = time.monotonic() + timeout
    try:
        while time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                proc.wait(timeout=max(0.0, min(2.0, end - time.monotonic())))
                return False
            if overdue and overdue(output()):
                return True
    finally:
        _kill_group(proc)
    return True


def _result(run_dir, log, text, stdout, stderr, *, allow, timed_out, start) -> Result:
    kunit = kunit_results(text)
    problems = find_problems(text, allow)
    for case in kunit:
        line = f"KUnit: {case.suite}.{case.name} failed"
        if case.status == "failed" and not any(re.search(a, line) for a in allow):
            problems.append(line)
    try:
        exit_code = int((run_dir / "rc").read_text().strip())
    except (OSError, ValueError):
        exit_code = None
    return Result(
        exit_code=exit_code,
        stdout=stdout,
        stderr=stderr,
        log=log,
        problems=problems,
        timed_out=timed_out,
        seconds=time.monotonic() - start,
        kunit=kunit,
    )


def _checked(paths, there, problem) -> list[pathlib.Path]:
    """Make paths absolute; raise a VMError if one does not exist."""
    paths = [pathlib.Path(p).absolute() for p in paths]
    for path in paths:
        if not there(path):
            raise VMError(problem.format(path))
    return paths


def _run_uml(
    command, kernel, run_dir, log, *, memory, cpus, disks, shares, overlays, timeout, overdue, allow, append, cwd, env,
    stream,
) -> Result:  # fmt: skip
    """run() for a kernel that is a program of this host; the command's output appears when it has ended."""

    def output(name: str) -> str:
        path = run_dir / name
        return path.read_text(errors="replace") if path.exists() else ""

    start = time.monotonic()
    init = run_dir / "init"
    init.write_text(uml.init_script(command, run_dir, overlays=overlays, shares=shares, env=env, cwd=cwd))
    init.chmod(0o755)
    argv = uml.command_line(kernel, init, run_dir, memory=memory, cpus=cpus, disks=disks, append=append)
    # Its memory is a file in TMPDIR.
    with open(log, "wb") as out, tempfile.TemporaryDirectory(prefix="itree-uml-", dir="/dev/shm") as tmp:
        proc = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, cwd=run_dir, start_new_session=True,
            env={**os.environ, "TMPDIR": tmp},
        )  # fmt: skip
        timed_out = _wait(proc, timeout, overdue, lambda: output("stdout"))
    text = log.read_text(errors="replace")
    stdout, stderr = output("stdout"), output("stderr")
    if stream:
        sys.stdout.write(stdout)
        sys.stderr.write(stderr)
    return _result(run_dir, log, text, stdout, stderr, allow=allow, timed_out=timed_out, start=start)


def run(
    command,
    *,
    kernel=None,
    memory="1G",
    cpus=2,
    disks=(),
    shares=(),
    timeout=600.0,
    overdue=None,
    log=None,
    allow=(),
    append=(),
    cwd=None,
    env=None,
    disk_cache="unsafe",
    stream=False,
    qemu_args=(),
    kunit=False,
    udev=False,
) -> Result:
    """Boot a kernel, run a command in it, return the result.

    command     a shell command line (str) or a list of arguments
    disks       raw image files: /dev/vda, /dev/vdb ... in order, and
                with udev /dev/disk/by-id/virtio-disk0, virtio-disk1 ...
    shares      directories the guest may write to; they keep their path
    allow       regular expressions for log lines that are expected
    overdue     called every two seconds with the command's output so far; True kills the machine
    append      more kernel parameters
    disk_cache  QEMU's cache mode; "unsafe" does not wait for the host's disk
    stream      copy the command's output to ours while it runs
    kunit       let the kernel run its KUnit tests at boot
    udev        start udev, which /dev/disk requires, and which takes an emulated guest longer than anything else.
                A kernel that is a program of the host always starts without it
    """
    kernel = pathlib.Path(kernel or DEFAULT_KERNEL).absolute()
    if not kernel.is_file():
        raise VMError(f"there is no kernel at {kernel}: run `make kernel`, or name one with --kernel")
    if not VIRTME_RUN.exists():
        raise VMError(f"{VIRTME_RUN} is missing: run `make deps` first")
    if not shutil.which("qemu-system-x86_64"):
        raise VMError("qemu-system-x86_64 is not installed: run `make deps` first")
    for regex in allow:
        try:
            re.compile(regex)
        except re.error as err:
            raise VMError(f"--allow {regex!r} is not a regular expression: {err}") from err
    is_uml = uml.is_uml(kernel)
    if is_uml and len(disks) > uml.MOST_DISKS:
        raise VMError(f"{len(disks)} disks; a kernel of this kind ({kernel}) has at most {uml.MOST_DISKS}")
    shares = _checked(shares, pathlib.Path.is_dir, "--share {}: no such directory; make it first")
    disks = _checked(disks, pathlib.Path.exists, "--disk {0}: no such file; `truncate -s 1G {0}` makes an empty one")
    overlays = [p for p in OVERLAYS if os.path.isdir(p) and not os.path.islink(p)]
    cwd = str(cwd or os.getcwd())
    if not isinstance(command, str):
        command = shlex.join(str(c) for c in command)

    run_dir = _new_run_dir()
    log = pathlib.Path(log).absolute() if log else run_dir / "kernel.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    script = run_dir / "script.sh"
    guest_env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
    guest_env.update(env or {})
    if not kunit:
        append = [*append, "kunit.enable=0"]
    if is_uml:
        return _run_uml(
            command, kernel, run_dir, log, memory=memory, cpus=cpus, disks=disks, shares=shares, overlays=overlays,
            timeout=timeout, overdue=overdue, allow=allow, append=append, cwd=cwd, env=guest_env, stream=stream,
        )  # fmt: skip
    modules = modules_of(kernel)
    # Without udev, drivers are not loaded automatically.
    script.write_text(_guest_script(command, guest_env, ["virtio_blk", "loop"] if modules else []))

    argv = [str(VIRTME_RUN), "--kimg", str(kernel), f"--mods={'auto' if modules else 'none'}", "--force-9p",
            "--memory", str(memory), "--cpus", str(cpus), "--name", "itree-vm",
            "--show-boot-console", "--verbose", "--script-sh", f"bash {script}",
            "--cwd", cwd]  # fmt: skip
    slow = not kvm_works(kernel)
    if slow:
        argv.append("--disable-kvm")
    for path in overlays:
        if udev or path != "/usr":
            argv += ["--overlay-rwdir", path]
    for share in shares:
        argv += ["--rwdir", str(share)]
    if not udev:
        argv += ["--qemu-bin", str(REPO / "tests" / "vm" / "qemu-without-udev")]
    # printk.devkmsg: never drop what tests write to /dev/kmsg.
    # cache=loose: the guest caches the host's files, which do not change while
    # it runs (a --share is not cached), so programs start far sooner.
    qemu = []
    root = "version=9p2000.L,trans=virtio,access=any,msize=512000,cache=loose"
    # no_timer_check: on a busy host the emulated timer may miss its test ("IO-APIC + timer doesn't work").
    kopts = ["printk.devkmsg=on", "no_timer_check", f"rootflags={root}", *append]
    if slow:
        # An emulated CPU on a busy host is slow, not stuck.
        kopts += ["watchdog_thresh=30", "rcupdate.rcu_cpu_stall_timeout=90"]
        # Emulated CPUs in separate threads sometimes miss that the kernel
        # patches its code (an oops on "int3"): let them take turns.
        qemu += ["-accel", "tcg,thread=single"]
        # Emulated CPUs gain nothing from handing requests to QEMU's main loop,
        # which polls hundreds of descriptors for each: a third slower.
        for device in ("virtio-blk-pci", "virtio-serial-pci", "virtio-9p-pci"):
            qemu += ["-global", f"{device}.ioeventfd=off"]
    for opt in kopts:
        argv += ["--kopt", opt]
    for number, disk in enumerate(disks):
        qemu += [
            "-drive",
            f"if=none,id=itree{number},format=raw,cache={disk_cache},discard=unmap,file={_qemu_quote(disk)}",
            "-device",
            f"virtio-blk-pci,drive=itree{number},serial=disk{number}",
        ]
    qemu += ["-device", "virtio-serial-pci"]
    for port, path in (("rc", run_dir / "rc"), ("stderr", "/proc/self/fd/3")):
        qemu += ["-chardev", f"file,id=itree_{port},path={_qemu_quote(path)}"]
        qemu += ["-device", f"virtserialport,name=itree.{port},chardev=itree_{port}"]
    argv += ["--qemu-opts", *qemu, *qemu_args]

    err_r, err_w = os.pipe()
    tmp = run_dir / "tmp"
    tmp.mkdir()
    start = time.monotonic()
    # The ends that QEMU opens by path must be pipes: it would truncate a file.
    proc = subprocess.Popen(
        ["bash", "-c", f'exec 3>&{err_w} {err_w}>&- "$@"', "vm", *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=[err_w],
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp)},
    )
    os.close(err_w)
    out, err, klog = [], [], []
    with open(log, "wb") as logfile, os.fdopen(err_r, "rb") as err_pipe:
        jobs = [
            threading.Thread(target=_pump, args=args, daemon=True)
            for args in (
                (proc.stdout, out, [sys.stdout.buffer] if stream else []),
                (err_pipe, err, [sys.stderr.buffer] if stream else []),
                (proc.stderr, klog, [logfile]),
            )
        ]
        for job in jobs:
            job.start()
        try:
            timed_out = _wait(proc, timeout, overdue, lambda: b"".join(out).decode(errors="replace"))
        finally:
            for job in jobs:
                job.join(10)
    shutil.rmtree(tmp, ignore_errors=True)

    return _result(
        run_dir, log, b"".join(klog).decode(errors="replace"), b"".join(out).decode(errors="replace"),
        b"".join(err).decode(errors="replace"), allow=allow, timed_out=timed_out, start=start,
    )  # fmt: skip
