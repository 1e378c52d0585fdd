# SPDX-License-Identifier: GPL-2.0-only
"""A host whose kernel, the one with itrees, is a program of this host (ARCH=um): Debian's systemd, services and ssh.

It has no firmware and no boot loader, so it cannot show how a host comes to its kernel: machine.py does. Everything
after that it does in minutes where QEMU without KVM takes hours. Root only: it is reached through a tap device.
"""

import os
import subprocess

import machine
from conftest import REPO, run

BUILT = REPO / "build" / "kernel-uml-fast"
KERNEL = BUILT / "linux"
# Of the block that is set aside for tests of network devices (RFC 2544): two addresses a host.
NETWORK = "198.18.0"
MOST = 63
UNIT = """[Match]
Name=vec*
[Network]
Address={}/30
LinkLocalAddressing=no
"""
# The guest's terminals lead nowhere.
APPEND = ("root=/dev/ubda", "rw", "con=null", "con0=null,fd:1", "ssl=null", "panic=-1", "systemd.show_status=no",
          "systemd.mask=getty@tty1.service", "systemd.mask=serial-getty@tty0.service")  # fmt: skip


class UmlHost(machine.Host):
    """memory: as the kernel's mem= wants it."""

    data, patience = "/dev/ubdb", 3

    def __init__(self, image, top, data="2G", memory="1G"):
        super().__init__(image, top, data)
        self.memory = memory
        self.release = (BUILT / "release").read_text().strip()
        self.ports = {n: n for n in (22, 25, 143)}
        self.tap, here, self.address = self.take_tap()
        try:
            run("ip", "address", "add", f"{here}/30", "dev", self.tap)
            run("ip", "link", "set", self.tap, "up")
            unit = top / "uml.network"
            unit.write_text(UNIT.format(self.address))
            run("debugfs", "-w", "-R", f"write {unit} /etc/systemd/network/70-uml.network", top / "root.img")
        except BaseException:
            self.close()
            raise

    @staticmethod
    def take_tap():
        """A tap device of our own; its name, its address and that of the host behind it."""
        for n in range(1, MOST + 1):
            code, _text = run("ip", "tuntap", "add", f"itree{n}", "mode", "tap", ok=None)
            if not code:
                return f"itree{n}", f"{NETWORK}.{4 * n + 1}", f"{NETWORK}.{4 * n + 2}"
        raise AssertionError(f"no tap device could be made: {MOST} are there, or /dev/net/tun is not")

    def command(self):
        return [str(KERNEL), f"mem={self.memory}", f"ubda={self.top / 'root.img'}", f"ubdb={self.top / 'data.img'}",
                f"vec0:transport=tap,ifname={self.tap},depth=64,gro=1", f"uml_dir={self.top}", *APPEND]  # fmt: skip

    def start(self):
        super().start()
        # Its console is its standard output.
        self.console.unlink(missing_ok=True)
        os.link(self.top / "machine.log", self.console)

    def close(self):
        super().close()
        subprocess.run(["ip", "link", "delete", self.tap], check=False, stdout=subprocess.DEVNULL,
                       stderr=subprocess.DEVNULL)  # fmt: skip
