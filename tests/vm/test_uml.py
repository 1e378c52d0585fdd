# SPDX-License-Identifier: GPL-2.0-only
"""Kernels that are programs of this host behave like a virtual machine from outside."""

import pathlib
import time
import uuid

import pytest
import uml
import vm
from test_vm import WARN, processes_with

KERNEL = vm.REPO / "build" / "kernel-uml" / "linux"


@pytest.fixture(scope="module")
def kernel():
    if not KERNEL.exists():
        pytest.skip("a quarter of an hour to build: run `make kernel-uml` first")
    return KERNEL


def test_kinds_are_told_apart(tmp_path):
    for start, is_one in ((b"\x7fELF\2", True), (b"MZ\xea\x07", False), (b"", False)):
        (tmp_path / "kernel").write_bytes(start)
        assert uml.is_uml(tmp_path / "kernel") is is_one


def test_too_many_disks_are_refused(tmp_path):
    (tmp_path / "linux").write_bytes(b"\x7fELF")
    with pytest.raises(vm.VMError, match="at most 16"):
        vm.run("true", kernel=tmp_path / "linux", disks=[tmp_path / "disk"] * 17)


def test_processors_are_given_to_kernels_that_can_have_several(tmp_path):
    kernel = tmp_path / "linux"
    assert uml.smp_options(kernel, 2) == []
    for config, wanted in (("CONFIG_A=y\n# CONFIG_SMP is not set\n", []), ("CONFIG_A=y\nCONFIG_SMP=y\n", ["ncpus=2"])):
        (tmp_path / "config").write_text(config)
        assert uml.smp_options(kernel, 2)[:1] == wanted


def test_command(kernel, tmp_path):
    """Output, errors, exit code, environment; a disk, a share; the host's root does not change."""
    disk, share, name = tmp_path / "disk", tmp_path / "a share", f"itree-{uuid.uuid4()}"
    disk.write_bytes(b"before" + bytes((1 << 20) - 6))
    share.mkdir()
    command = f"""set -e
    test "$(id -u)" = 0
    test "$(grep -c 'User Mode Linux' /proc/cpuinfo)" = 1
    test "$(head -c 6 /dev/ubda)" = before
    echo after | dd of=/dev/ubda conv=notrunc,fsync status=none
    echo "$WORD" >'{share}/file'
    echo x >/etc/{name}; echo x >/tmp/{name}
    ! touch /{name} 2>/dev/null
    echo out; echo err >&2; exit 3"""
    res = vm.run(command, kernel=kernel, disks=[disk], shares=[share], env={"WORD": "two words"}, timeout=300)
    assert (res.exit_code, res.code, res.stdout, res.stderr) == (3, 3, "out\n", "err\n"), res.explain()
    assert disk.read_bytes()[:6] == b"after\n"
    assert (share / "file").read_text() == "two words\n"
    assert not [p for p in ("/etc", "/tmp", "/") if (pathlib.Path(p) / name).exists()]


def test_problems_in_the_log(kernel):
    res = vm.run(f"echo '<4>{WARN}' >/dev/kmsg", kernel=kernel, timeout=300)
    assert (res.exit_code, res.code, res.problems) == (0, vm.EXIT_PROBLEM, [WARN])
    assert vm.run("echo fine >/dev/kmsg", kernel=kernel, timeout=300).ok


def test_checks_are_on(kernel):
    """Lockdep is still active, and kmemleak works."""
    command = "grep -q 'debug_locks: *1' /proc/lockdep_stats && echo scan >/sys/kernel/debug/kmemleak"
    res = vm.run(command, kernel=kernel, timeout=300)
    assert res.ok, res.explain()


def test_time_is_up(kernel):
    """Nothing is left running."""
    mark = f"/tmp/{uuid.uuid4()}"
    res = vm.run(f"echo begun; sleep 1000; : {mark}", kernel=kernel, timeout=600,
                 overdue=lambda text: text == "begun\n")  # fmt: skip
    assert res.timed_out and res.code == vm.EXIT_TIMEOUT and res.stdout == "begun\n", res.explain()
    # All are killed at once, but each process dies only when it runs next.
    for _ in range(600):
        if not processes_with(str(res.log.parent)):
            return
        time.sleep(0.1)
    pytest.fail(f"still running: {processes_with(str(res.log.parent))}")
