# SPDX-License-Identifier: GPL-2.0-only
"""Debian's Samba: a client that archives a share causes few requests on the server's disk."""

from __future__ import annotations

import pathlib
import tarfile
import time

from kt.dirahead import SHAPE, TWICE, content, made, note, switch
from kt.guest import QUIET, Failed, Guest
from kt.misses import Reads
from kt.registry import case
from kt.servers import Chroot

PACKAGES = ("procps", "samba", "smbclient")
# The state is in memory with the rest of /run. Nobody is asked for a password on the guest's loopback interface.
CONFIG = """
[global]
server role = standalone server
map to guest = Bad User
load printers = no
disable spoolss = yes
smb ports = 445
log level = 1
log file = /run/samba/log
pid directory = /run/samba
lock directory = /run/samba
state directory = /run/samba
cache directory = /run/samba
private dir = /run/samba
ncalrpc dir = /run/samba/ncalrpc
[v]
path = {path}
guest ok = yes
force user = root
read only = no
"""


class Samba:
    """smbd on the guest's loopback interface, with the volume as its share."""

    def __init__(self, g: Guest):
        self.g, self.chroot = g, Chroot(g)
        g.run("ip", "link", "set", "lo", "up")
        self.chroot.within("/run/samba").mkdir()
        self.chroot.within("/etc/samba/smb.conf").write_text(CONFIG.format(path=g.mnt))
        self.chroot.show()
        self.daemon = self.chroot.start("smbd", "--foreground", "--no-process-group", log="/run/smbd.out")

    def archive(self, directory: str) -> pathlib.Path:
        """What smbclient's `tar c` makes of a directory of the share."""
        out = self.chroot.within("/run/out.tar")
        for _ in range(60):
            argv = ("smbclient", "//127.0.0.1/v", "-N", "-D", directory, "-c", "tarmode quiet; tar c /run/out.tar")
            done = self.chroot.run(*argv, check=False, timeout=900)
            if not done.returncode:
                return out
            if "NT_STATUS_CONNECTION_REFUSED" not in done.stdout + done.stderr:
                break
            time.sleep(0.5)  # smbd does not listen yet
        log = self.chroot.within("/run/samba/log")
        output = log.read_text(errors="replace") if log.exists() else ""
        raise Failed(f"smbclient: {done.stdout}{done.stderr}\n{output}")

    def stop(self) -> None:
        self.chroot.close()


def samba(g: Guest) -> None:
    """The archive has each file's content, and the kernel reads the files ahead for smbd."""
    files = made(g)
    found = {}
    for size in (0, 1 << 30):
        g.again(QUIET)
        switch(g, size)
        server = Samba(g)
        try:
            g.settle()
            reads = Reads(g)
            out = server.archive("d")
            found[size] = reads.since()
            with tarfile.open(out) as archive:
                got = {pathlib.PurePath(m.name).name: archive.extractfile(m).read() for m in archive if m.isfile()}
        finally:
            server.stop()
        g.equal(sorted(got), sorted(files.size), "names in the archive")
        wrong = [name for name, data in got.items() if data != content(name, files.size[name])]
        g.equal(wrong, [], "files in the archive")
    off, on = found.values()
    note(g, "off", off)
    note(g, "on", on)
    g.want(on["requests"] * g.p["fewer"] <= off["requests"], f"Samba: {on}, without {off}")
    g.want(on["blocks"] <= off["blocks"] * TWICE, f"Samba: reads too much: {on}, without {off}")


case(
    "dirahead-samba", "open", {"bs": 4096, "n": 3000, "fewer": 8}, root=PACKAGES, memory="2G", cost=120, limit=900,
    full="a server in user space takes minutes, and a Debian root", **SHAPE,
)(samba)  # fmt: skip
