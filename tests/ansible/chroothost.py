# SPDX-License-Identifier: GPL-2.0-only
"""A Debian 12 host without a machine: the disk of debian_image in a mount namespace, on this host's kernel.

Packages, hooks, GRUB's tools and its menu are the real ones. Starting is simulated: `shutdown` reads what GRUB would
read (the environment block and the menu), forgets the choice for one boot as GRUB does, and writes down which kernel
"runs"; uname in the roles' modules and /sys/fs/ext4/features tell of that one.
"""

import pathlib
import re
import uuid

import debian_root
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


class Host(debian_root.DebianRoot):
    """The host, with the controller's Python and the collection, and starts that are simulated."""

    def __init__(self, top):
        super().__init__(top, run)

    def prepare(self):
        # The controller's Python and the collection, as they lie here.
        for path in {REPO, self.top.parents[0], pathlib.Path(self.real_python())}:
            self.inside("mkdir", "-p", f"{self.root}{path}")
            self.inside("mount", "--bind", path, f"{self.root}{path}")
        self.run("mkdir", STATE)
        for name, text in (("know", ""), ("panics", ""), ("boots", ""), ("boot_id", str(uuid.uuid4()))):
            self.put(f"{STATE}/{name}", text)
        stock = re.search(r"vmlinuz-(\S+)", self.run("ls", "/boot"))[1]
        self.put(f"{STATE}/release", stock)
        self.inside("mount", "-t", "tmpfs", "itree-test", self.root / "sys/fs/ext4/features")
        self.inside("mount", "--bind", f"{self.root}{STATE}/boot_id", self.root / "proc/sys/kernel/random/boot_id")
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

    def read(self, name):
        return self.run("cat", f"{STATE}/{name}")

    def repository(self, directory):
        """Make a directory here the host's /srv/itree, and apt trust it."""
        self.inside("rm", "-rf", self.root / "srv/itree")
        self.inside("cp", "-r", directory, self.root / "srv/itree")
        self.put("/etc/apt/sources.list.d/itree.list", "deb [trusted=yes] file:/srv/itree ./\n")
        self.put("/etc/apt/apt.conf.d/99test", 'APT::Sandbox::User "root";\n')
        self.run("apt-get", "-q", "update")
