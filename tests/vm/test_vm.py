# SPDX-License-Identifier: GPL-2.0-only
"""The VM runner itself: what it passes on, and what makes it fail a run."""

import pathlib
import re
import subprocess
import time

import pytest
import vm

HERE = pathlib.Path(__file__).resolve().parent
WARN = "WARNING: CPU: 0 PID: 1 at fs/ext4/itree.c:1 made_up+0x1/0x2"


def cli(*args, **kwargs):
    return subprocess.run(
        [HERE / "run", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **kwargs
    )


def processes_with(text):
    """Command lines of running processes that contain a text."""
    found = []
    for proc in pathlib.Path("/proc").iterdir():
        if proc.name.isdigit():
            try:
                line = (proc / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if text in line:
                found.append(line)
    return found


def test_directory_of_a_running_guest_stays(tmp_path, monkeypatch):
    """Other runs remove old directories, but not the one that a guest, perhaps of another process, still uses."""
    monkeypatch.setattr(vm, "RUN_DIR", tmp_path)
    monkeypatch.setattr(vm, "KEEP_RUNS", 1)
    with subprocess.Popen(["true"]) as ended:
        pass
    old = [tmp_path / f"run-20260101-00000{n}-{ended.pid}-abc" for n in range(3)]
    used = tmp_path / "run-20260101-000000-1-abc"
    for path in (*old, used):
        path.mkdir()
    new = vm._new_run_dir()
    assert {p.name for p in tmp_path.iterdir()} == {old[-1].name, used.name, new.name}
    assert vm._in_use(new)


# --- reading kernel logs: no machine needed


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 1 PID: 77 at fs/ext4/inode.c:12 ext4_foo+0x1/0x2",
        "WARNING: possible circular locking dependency detected",
        "WARNING: suspicious RCU usage",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG: sleeping function called from invalid context at mm/slab.h:1",
        "kernel BUG at fs/ext4/itree.c:99!",
        "Oops: general protection fault, 0000 [#1] PREEMPT SMP",
        "watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [rm:12]",
        "INFO: task rm:12 blocked for more than 300 seconds.",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "Kernel panic - not syncing: Fatal exception",
        "EXT4-fs error (device vda): ext4_lookup:1855: inode #2: comm ls: bad",
        "EXT4-fs warning (device vda): ext4_itree_bad:82: inode #12: comm ls: itree block 0: wrong checksum",
        "UBSAN: array-index-out-of-bounds in fs/ext4/itree.c:1:2",
        "refcount_t: underflow; use-after-free.",
    ],
)
def test_problem_lines_are_found(line):
    assert vm.find_problems(f"[    1.5] harmless\n[   12.345678] {line}\r\n") == [line]
    assert vm.find_problems(f"[   12.345678][  T123] {line}\n") == [line]
    assert vm.find_problems(f"[   12.345678] {line}\n", allow=[re.escape(line[:20])]) == []


@pytest.mark.parametrize(
    "line",
    [
        "Spectre V2 : WARNING: Unprivileged eBPF is enabled",
        "virtme-ng-init: WARNING: failed to restore symlink",
        "EXT4-fs (vda): mounted filesystem r/w with ordered data mode.",
        "EXT4-fs (vda): re-mounted. Opts: errors=panic",
        "rcu: Hierarchical RCU implementation.",
    ],
)
def test_harmless_lines_pass(line):
    assert vm.find_problems(f"[   12.345678] {line}\n") == []


KTAP = """\
[    1.0] KTAP version 1
[    1.0] 1..2
[    1.0]     KTAP version 1
[    1.0]     # Subtest: itree_one
[    1.0]     1..3
[    1.0]     ok 1 plain
[    1.0]     # worse: EXPECTATION FAILED at fs/ext4/itree-test.c:7
[    1.0]     not ok 2 worse
[    1.0]     ok 3 later # SKIP not on this machine
[    1.0] # itree_one: pass:1 fail:1 skip:1 total:3
[    1.0] not ok 1 itree_one
[    1.0]     KTAP version 1
[    1.0]     # Subtest: itree_two
[    1.0]     1..1
[    1.0]         KTAP version 1
[    1.0]         # Subtest: rows
[    1.0]         ok 1 row one
[    1.0]         ok 2 row two
[    1.0]     ok 1 rows
[    1.0] ok 2 itree_two
"""


def test_kunit_results_are_read():
    got = [(c.suite, c.name, c.status) for c in vm.kunit_results(KTAP)]
    assert got == [
        ("itree_one", "plain", "passed"),
        ("itree_one", "worse", "failed"),
        ("itree_one", "later", "skipped"),
        ("itree_two", "rows", "passed"),
    ]


def test_missing_kernel_says_what_to_do():
    res = cli("--kernel", "/nowhere/bzImage", "--", "true")
    assert res.returncode == vm.EXIT_RUNNER
    assert "/nowhere/bzImage" in res.stderr and "make kernel" in res.stderr


def test_missing_disk_and_bad_regex_are_refused(tmp_path):
    kernel = tmp_path / "bzImage"
    kernel.touch()
    with pytest.raises(vm.VMError, match="no such file"):
        vm.run("true", kernel=kernel, disks=[tmp_path / "none"])
    with pytest.raises(vm.VMError, match="regular expression"):
        vm.run("true", kernel=kernel, allow=["("])


def test_help_names_every_option():
    out = cli("--help").stdout
    for option in ("--kernel", "--memory", "--cpus", "--disk", "--share", "--timeout", "--log", "--allow", "--append"):
        assert option in out


# --- with a machine


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """One run that most tests look at from their own side."""
    tmp = tmp_path_factory.mktemp("vm")
    for name, size in (("a.img", 64), ("b,c.img", 96)):
        with open(tmp / name, "wb") as handle:
            handle.truncate(size << 20)
    share = tmp / "share"
    share.mkdir()
    (share / "in").write_text("from the host\n")
    command = f"""
        echo to stdout; echo to stderr >&2; echo by path >/dev/stdout
        blockdev --getsize64 /dev/vda /dev/vdb
        readlink -f /dev/disk/by-id/virtio-disk1
        cat {share}/in; echo from the guest >{share}/out
        printf A | dd of=/dev/vdb bs=1 seek=4096 conv=notrunc status=none
        echo hello >/tmp/kept-in-guest; touch /root/x 2>/dev/null && echo root is writable
        tr ' ' '\\n' </proc/cmdline | grep itree_marker
        nproc; grep MemTotal /proc/meminfo
        exit 7
    """
    res = vm.run(
        command,
        memory="768M",
        cpus=1,
        disks=[tmp / "a.img", tmp / "b,c.img"],
        shares=[share],
        log=tmp / "kernel.log",
        append=["itree_marker=1"],
        timeout=240,
        kunit=True,
        udev=True,
    )
    return res, tmp


def test_without_udev():
    """Nothing of it is there or runs; /usr takes writes."""
    res = vm.run("test ! -e /usr/lib/systemd/systemd-udevd && test ! -e /run/udev/control && touch /usr/x; echo $?; "
                 "pgrep -c udevd", timeout=240)  # fmt: skip
    assert res.exit_code == 1 and res.stdout == "0\n0\n", res.explain()


def test_exit_code_passes_through(plain):
    res, _ = plain
    assert res.exit_code == 7 and res.code == 7 and not res.ok, res.explain()


def test_output_is_kept_apart(plain):
    res, _ = plain
    lines = res.stdout.splitlines()
    assert lines[0] == "to stdout" and "by path" in lines
    assert res.stderr.strip() == "to stderr"
    assert "Linux version" in res.log_text() and "to stdout" not in res.log_text()


def test_disks_are_visible_in_order_with_serials(plain):
    res, tmp = plain
    lines = res.stdout.splitlines()
    assert str(64 << 20) in lines and str(96 << 20) in lines and "/dev/vdb" in lines
    with open(tmp / "b,c.img", "rb") as handle:
        handle.seek(4096)
        assert handle.read(1) == b"A"


def test_share_works_both_ways_and_nothing_else_is_written(plain):
    res, tmp = plain
    assert "from the host" in res.stdout
    assert (tmp / "share" / "out").read_text() == "from the guest\n"
    assert not pathlib.Path("/tmp/kept-in-guest").exists()
    assert "root is writable" not in res.stdout


def test_memory_cpus_and_parameters_reach_the_guest(plain):
    res, _ = plain
    lines = res.stdout.splitlines()
    assert "1" in lines and "itree_marker=1" in lines
    kib = int(re.search(r"MemTotal:\s+(\d+)", res.stdout)[1])
    assert 600 << 10 < kib < 768 << 10


def test_kunit_of_the_boot_is_read(plain):
    res, _ = plain
    passed = {(c.suite, c.name) for c in res.kunit if c.status == "passed"}
    assert any(suite == "ext4_inode_test" for suite, _ in passed)
    for ours, names in vm.ITREE_KUNIT.items():
        assert names == sorted(name for suite, name in passed if suite == ours)
    assert not [c for c in res.kunit if c.status == "failed"]


def test_warning_in_the_log_fails_the_run():
    res = cli("--timeout", "240", "--", f"echo '{WARN}' >/dev/kmsg; echo done")
    assert res.returncode == vm.EXIT_PROBLEM, res.stderr
    assert WARN in res.stderr and res.stdout == "done\n"


def test_failed_kunit_case_fails_the_run():
    lines = ("    # Subtest: made_up", "    not ok 1 worse", "not ok 1 made_up")
    command = "; ".join(f"echo '{line}' >/dev/kmsg" for line in lines)
    res = vm.run(command, timeout=240)
    assert res.exit_code == 0 and res.code == vm.EXIT_PROBLEM
    assert res.problems == ["KUnit: made_up.worse failed"]


def test_allowed_warning_passes():
    res = cli("--timeout", "240", "--allow", r"at fs/ext4/itree\.c:1 made_up", "--", f"echo '{WARN}' >/dev/kmsg")
    assert res.returncode == 0, res.stderr


def test_timeout_kills_the_machine_and_says_so(tmp_path):
    log = tmp_path / "kernel.log"
    marker = f"itree_timeout={time.time_ns()}"
    start = time.monotonic()
    res = cli("--timeout", "8", "--log", log, "--append", marker, "--", "sleep", "1000")
    assert res.returncode == vm.EXIT_TIMEOUT
    assert time.monotonic() - start < 600, "it waited for the command"
    assert 8 <= int(re.search(r"no end after (\d+) s", res.stderr)[1]) < 600
    assert processes_with(marker) == []


def test_a_machine_is_ended_for_what_its_command_has_not_printed():
    seen = []

    def overdue(text):
        seen.append(text)
        return "two" in text

    res = vm.run("echo one; sleep 3; echo two; sleep 1000", timeout=500, overdue=overdue)
    assert res.timed_out and res.seconds < 500, res.explain()
    assert res.stdout == "one\ntwo\n" and "one\n" in seen


def test_panic_ends_the_run():
    res = vm.run("echo before; echo c >/proc/sysrq-trigger; sleep 1000", timeout=240)
    assert res.code == vm.EXIT_PROBLEM and not res.timed_out
    assert res.exit_code is None and "before" in res.stdout
    assert any("panic" in p for p in res.problems)
