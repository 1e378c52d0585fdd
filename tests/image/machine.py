# SPDX-License-Identifier: GPL-2.0-only
"""The appliance's image in QEMU: booted, asked over ssh, switched off or cut from its power."""

import os
import pathlib
import subprocess
import time

import pytest
import treebuild as tb
import vm
from conftest import REPO, port, run

IMAGE = REPO / "build" / "image" / "itree-backup.raw"
SLOW = 1800  # seconds that a boot may take without KVM on a busy machine
# An emulated machine's clock goes on with its instructions: on a busy host nothing in it times out that would not
# on an idle one.
STEADY = ("-icount", "shift=1,sleep=on")


def build_image(*options, keep=False, **env):
    """Build the appliance's image, with more variables in the environment. keep: not if there is one."""
    if os.geteuid():
        pytest.skip("building the image wants the rights of root")
    if not (keep and IMAGE.exists()):
        run(REPO / "image" / "build", *options, env=env, timeout=7200)


class Booted:
    """A machine of image/run that is switched on and off; its disks stay."""

    def __init__(self, top, image, files, data_size=1024, certificate=None):
        self.top, self.proc = pathlib.Path(top), None
        self.run = tb.load_script(REPO / "image" / "run")
        self.key = self.top / "key"
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.key)
        self.machine = self.run.Machine(self.top / "machine", image, data_size, certificate)
        keys = self.key.with_suffix(".pub").read_text()
        self.run.esp(self.machine.root, {"ssh.authorized_keys.root": keys, **files})
        self.port, self.boots, self.more = port(), 0, ()  # more: options for QEMU, from the next boot on

    @property
    def console(self):
        return self.top / f"console{self.boots}"

    def boot(self):
        """Switch on; returns when ssh answers."""
        self.boots += 1
        more = (*self.more, *(() if vm.kvm_works(self.run.KERNEL) else STEADY))
        argv = self.machine.argv("1G", f"file:{self.console}", self.port, more=more)
        self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        end = time.monotonic() + SLOW
        while time.monotonic() < end:
            if self.proc.poll() is not None:
                output = self.proc.stdout.read()
                raise AssertionError(f"QEMU ended with {self.proc.returncode}: {output}\n{self.tail()}")
            if self.ssh("true", ok=None, timeout=SLOW)[0] == 0:
                return self
            time.sleep(2)
        raise AssertionError(f"no ssh after {SLOW} s\n{self.tail()}")

    def tail(self):
        return self.console.read_text(errors="replace")[-6000:] if self.console.exists() else "(nothing on the console)"

    def ssh(self, command, ok=(0,), timeout=SLOW):
        """Run a shell command in it as root; (exit code, what it said)."""
        argv = ["ssh", "-F", "none", "-i", self.key, "-p", self.port, "-o", "BatchMode=yes", "-o", "ConnectTimeout=120",
                "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
                "root@127.0.0.1", command]  # fmt: skip
        try:
            return run(*argv, ok=ok, timeout=timeout)
        except subprocess.TimeoutExpired:
            if ok is None:
                return 255, ""
            raise

    def __call__(self, command, ok=(0,)):
        return self.ssh(command, ok)[1]

    def off(self):
        self.ssh("systemctl poweroff", ok=None)
        try:
            self.proc.wait(SLOW)
        except subprocess.TimeoutExpired as err:
            raise AssertionError(f"it does not switch itself off\n{self.tail()}") from err

    def cut(self):
        """The power goes: what the guest had not written out is gone."""
        if self.proc and self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
