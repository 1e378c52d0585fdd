# SPDX-License-Identifier: GPL-2.0-only
"""A Debian 12 host without a machine: the disk of machine_image in a mount namespace, on this host's kernel.

Packages, hooks, GRUB's tools and its menu are the real ones. Starting is simulated: `shutdown` reads what GRUB would
read (the environment block and the menu), forgets the choice for one boot as GRUB does, and writes down which kernel
"runs"; uname in the roles' modules and /sys/fs/ext4/features tell of that one.
"""

import os
import pathlib
import re
import subprocess
import uuid

import machine_image
from conftest import REPO, run

STATE = "/itree-test"
SHUTDOWN = f"""#!/usr/bin/python3
# SPDX-License-Identifier: GPL-2.0-only
import json, os, pathlib, re, subprocess, uuid
top = pathlib.Path("{STATE}")
text = pathlib.Path("/boot/grub/grub.cfg").read_text()
listed = subprocess.run(["grub-editenv", "/boot/grub/grubenv", "list"], capture_output=True, text=True).stdout
env = dict(t.split("=", 1) for t in listed.splitlines() if "=" in t)
first = re.search(r"linux\\s+/boot/vmlinuz-(\\S+)", text)[1]


def boots(spec):
    # Independent of the code under test: the last part of an identifier holds the release; the first entry is 0's.
    found = re.search(r"gnulinux-(.*)-advanced-[0-9a-f-]+$", spec.split(">")[-1])
    return found[1] if found and f"vmlinuz-{{found[1]}} " in text else first


default = boots(env.get("saved_entry", "")) if 'set default="${{saved_entry}}"' in text else first
chosen = default
if env.get("next_entry"):
    chosen = boots(env["next_entry"])
    subprocess.run(["grub-editenv", "/boot/grub/grubenv", "unset", "next_entry"], check=True)
with open(top / "boots", "a") as log:
    print(chosen, file=log)
if chosen in (top / "panics").read_text().split():
    # panic= starts the machine again.
    assert "panic=" in text
    chosen = default
    with open(top / "boots", "a") as log:
        print(chosen, file=log)
(top / "release").write_text(chosen)
feature = pathlib.Path("/sys/fs/ext4/features/itree")
if chosen in (top / "know").read_text().split():
    feature.touch()
else:
    feature.unlink(missing_ok=True)
(top / "boot_id").write_text(str(uuid.uuid4()))
"""
UNAME = f"""# SPDX-License-Identifier: GPL-2.0-only
import os
real = os.uname


def uname():
    found = list(real())
    found[2] = open("{STATE}/release").read()
    return os.uname_result(found)


os.uname = uname
"""
# As systemd of a host would answer; what is asked is written down.
SYSTEMCTL = f"""#!/bin/sh
echo "$*" >>{STATE}/systemctl
case "$*" in
*show*) echo "LoadState=loaded"; echo "ActiveState=inactive"; echo "UnitFileState=disabled" ;;
*is-enabled*) exit 1 ;;
esac
exit 0
"""


class Host:
    """The host; `before` makes a command run in it."""

    def __init__(self, top):
        self.top, self.root, self.image = top, top / "root", top / "root.img"
        self.root.mkdir()
        run("cp", "--sparse=always", "--reflink=auto", machine_image.image() / "root.img", self.image)
        self.loop = run("losetup", "--find", "--show", self.image)[1].strip()
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                        "echo there; exec sleep 99999"], stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert self.holder.stdout.readline() == "there\n"
        self.outside = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt")
        self.before = (*self.outside, "chroot", self.root)
        try:
            self.mount()
        except BaseException:
            self.close()
            raise

    def mount(self):
        def inside(*argv):
            run(*self.outside, *argv)

        # A disk's name for the loop device: GRUB's tools look behind those that are called loop, at this host's disks.
        number = os.stat(self.loop).st_rdev
        nodes = {"vda": ("b", os.major(number), os.minor(number)), "null": ("c", 1, 3), "zero": ("c", 1, 5),
                 "random": ("c", 1, 8), "urandom": ("c", 1, 9), "tty": ("c", 5, 0), "ptmx": ("c", 5, 2)}  # fmt: skip
        (self.top / "dev").mkdir()
        inside("mount", "-t", "tmpfs", "-o", "mode=755,dev", "itree-test", self.top / "dev")
        for name, node in nodes.items():
            inside("mknod", "-m", "666", self.top / "dev" / name, *node)
        inside("ln", "-s", "/proc/self/fd", self.top / "dev/fd")
        inside("mkdir", self.top / "dev/shm")
        inside("mount", "--bind", self.top / "dev", "/dev")
        inside("mount", "-t", "ext4", "/dev/vda", self.root)
        inside("mount", "--bind", "/dev", self.root / "dev")
        for kind in ("proc", "sysfs"):
            inside("mount", "-t", kind, "itree-test", self.root / kind.removesuffix("fs"))
        for name in ("run", "tmp"):
            inside("mount", "-t", "tmpfs", "-o", "mode=1777", "itree-test", self.root / name)
        # The controller's Python and the collection, as they lie here.
        for path in {REPO, self.top.parents[0], pathlib.Path(self.real_python())}:
            inside("mkdir", "-p", f"{self.root}{path}")
            inside("mount", "--bind", path, f"{self.root}{path}")
        self.run("mkdir", STATE)
        for name, text in (("know", ""), ("panics", ""), ("boots", ""), ("boot_id", str(uuid.uuid4()))):
            self.put(f"{STATE}/{name}", text)
        stock = re.search(r"vmlinuz-(\S+)", self.run("ls", "/boot"))[1]
        self.put(f"{STATE}/release", stock)
        inside("mount", "-t", "tmpfs", "itree-test", self.root / "sys/fs/ext4/features")
        inside("mount", "--bind", f"{self.root}{STATE}/boot_id", self.root / "proc/sys/kernel/random/boot_id")
        self.put("/usr/sbin/shutdown", SHUTDOWN, "755")
        self.put("/usr/bin/systemctl", SYSTEMCTL, "755")
        # By a .pth file: Debian has a sitecustomize of its own.
        self.put("/usr/lib/python3/dist-packages/itree_test_uname.py", UNAME)
        self.put("/usr/lib/python3/dist-packages/itree_test.pth", "import itree_test_uname\n")
        assert self.run("/usr/bin/python3", "-c", "import os; print(os.uname().release)").strip() == stock
        self.run("update-grub")

    @staticmethod
    def real_python():
        """The directory that the environment's Python was installed into."""
        return run(REPO / "build/venv/bin/python", "-c", "import sys; print(sys.base_prefix)")[1].strip()

    def run(self, *argv, **kwargs):
        return run(*self.before, *argv, **kwargs)[1]

    def put(self, path, data, mode="644"):
        (self.top / "put").write_bytes(data if isinstance(data, bytes) else data.encode())
        run(*self.outside, "install", "-m", mode, self.top / "put", f"{self.root}{path}")

    def read(self, name):
        return self.run("cat", f"{STATE}/{name}")

    def repository(self, directory):
        """Make a directory here the host's /srv/itree, and apt trust it."""
        run(*self.outside, "rm", "-rf", self.root / "srv/itree")
        run(*self.outside, "cp", "-r", directory, self.root / "srv/itree")
        self.put("/etc/apt/sources.list.d/itree.list", "deb [trusted=yes] file:/srv/itree ./\n")
        self.put("/etc/apt/apt.conf.d/99test", 'APT::Sandbox::User "root";\n')
        self.run("apt-get", "-q", "update")

    def close(self):
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        run("losetup", "--detach", self.loop, ok=None)
