# SPDX-License-Identifier: GPL-2.0-only
"""Hosts that Ansible reaches by ssh: Debian with systemd and a disk for data. Here in QEMU, with firmware and GRUB.

umlhost.py has the other kind: our kernel as a program of this host, where nothing is emulated.
"""

import os
import signal
import socket
import subprocess
import threading
import time

import firmware
import vm
from conftest import run

CMDLINE = "root=/dev/vda rw console=ttyS0 net.ifnames=0 systemd.show_status=no kunit.enable=0 no_timer_check"


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Watch(threading.Thread):
    """Asks a port of the machine again and again; when it answered, and when not."""

    def __init__(self, address, port, banner):
        super().__init__(daemon=True)
        self.where, self.banner, self.seen, self.done = (address, port), banner, [], threading.Event()
        self.start()

    def run(self):
        while not self.done.wait(1):
            try:
                with socket.create_connection(self.where, 10) as sock:
                    sock.settimeout(20)
                    good = sock.recv(100).startswith(self.banner)
            except OSError:
                good = False
            self.seen.append((time.monotonic(), good))

    def end(self):
        """Times [(from, to)] in which it did not answer."""
        self.done.set()
        self.join(60)
        away, began = [], None
        for when, good in self.seen:
            if not good and began is None:
                began = when
            elif good and began is not None:
                away.append((began, when))
                began = None
        return away + ([(began, self.seen[-1][0])] if began is not None else [])


class Host:
    """What hosts have in common. The disks are copies of an image's; ports are those of address that lead to its own.

    A kind of them says in command() what starts it, what its disk for data is called, and its kernel's release if it
    can be only one.
    """

    address, data, release = "127.0.0.1", "/dev/vdb", None
    # How many half minutes of silence Ansible takes for a host that is busy, not gone.
    patience = 20

    def __init__(self, image, top, data="2G"):
        self.top, self.process, self.starts = top, None, 0
        top.mkdir(exist_ok=True)
        self.key = image / "key"
        run("cp", "--sparse=always", "--reflink=auto", image / "root.img", top / "root.img")
        run("truncate", "-s", data, top / "data.img")

    def command(self):
        raise NotImplementedError

    @property
    def console(self):
        return self.top / "console"

    def start(self):
        """Switch it on; reboots are the machine's own business."""
        self.console.touch()
        log = open(self.top / "machine.log", "ab")  # noqa: SIM115
        self.process = subprocess.Popen(
            self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        log.close()
        self.starts += 1

    def ssh(self, *command, ok=(0,), timeout=600):
        """Run a command line in it; what it printed."""
        argv = ["ssh", "-F", "none", "-i", self.key, "-p", self.ports[22], "-o", "StrictHostKeyChecking=no", "-o",
                "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o", "BatchMode=yes", "-o",
                "ConnectTimeout=20", f"root@{self.address}", *command]  # fmt: skip
        return run(*argv, ok=ok, timeout=timeout)[1]

    def wait(self, limit=900):
        """Until ssh lets us in."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise AssertionError(f"it ended:\n{(self.top / 'machine.log').read_text()}")
            if "up and well" in self.ssh("echo up and well", ok=None, timeout=90):
                return self
            time.sleep(2)
        raise AssertionError(f"no ssh within {limit} s; the console said:\n{self.output()}")

    def output(self):
        return self.console.read_text(errors="replace")[-6000:]

    def power_cut(self):
        """As if the plug were pulled."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process = None

    def stop(self):
        """Switch it off as an admin does; by force if that takes too long."""
        if self.process and self.process.poll() is None:
            self.ssh("systemctl poweroff", ok=None, timeout=60)
            try:
                self.process.wait(300)
            except subprocess.TimeoutExpired:
                self.power_cut()
                raise AssertionError(f"it did not power off; the console said:\n{self.output()}") from None
        self.process = None

    def close(self):
        if self.process and self.process.poll() is None:
            self.power_cut()

    def variables(self):
        """What Ansible needs to reach it."""
        return {
            "ansible_connection": "ssh",
            "ansible_host": self.address,
            "ansible_port": self.ports[22],
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_common_args": "-F none -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null "
                                       "-o LogLevel=ERROR -o ServerAliveInterval=30 "
                                       f"-o ServerAliveCountMax={self.patience}",
        }  # fmt: skip


class Machine(Host):
    """In QEMU. kernel: started by QEMU itself instead of firmware, GRUB and the kernel that the host has chosen."""

    def __init__(self, image, top, data="2G", memory="1G", kernel=None):
        super().__init__(image, top, data)
        self.memory, self.kernel = memory, kernel
        run("cp", "--sparse=always", "--reflink=auto", image / "esp.img", top / "esp.img")
        firmware.variables(top / "vars.fd")
        self.ports = {n: free_port() for n in (22, 25, 143)}

    def command(self):
        serial = ("-chardev", f"file,id=c0,append=on,path={self.console}")
        # What the guest has been told is on its disk survives a kill of QEMU: the host's page cache has it.
        return firmware.command(
            vm.DEFAULT_KERNEL, self.memory, "chardev:c0", [self.top / f"{n}.img" for n in ("root", "data", "esp")],
            None if self.kernel else self.top / "vars.fd", boot=2, forwards={v: k for k, v in self.ports.items()},
            more=(*serial, *(("-kernel", self.kernel, "-append", CMDLINE) if self.kernel else ())),
        )  # fmt: skip
