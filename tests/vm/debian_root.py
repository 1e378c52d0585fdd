# SPDX-License-Identifier: GPL-2.0-only
"""A copy of debian_image's disk, mounted on this host's kernel: its packages, hooks and GRUB's tools work as if booted.

Mounts are in a separate namespace and vanish with it. Needs root.
"""

import os
import subprocess

import debian_image


class DebianRoot:
    """The host; the prefix `before` runs a command in it, `outside` in the namespace around it.

    top: a directory for it; the disk is top/root.img, made by the recipe.
    run(*argv, ok=..., ...): returns (exit code, output).
    """

    def __init__(self, top, run, recipe=debian_image.SERVER):
        self.top, self.root, self.image, self._run = top, top / "root", top / "root.img", run
        self.root.mkdir()
        run("cp", "--sparse=always", "--reflink=auto", debian_image.image(recipe) / "root.img", self.image)
        self.open()

    def open(self):
        """Mount the disk; also after close(), for instance when the host has been booted in between."""
        self.loop = self._run("losetup", "--find", "--show", self.image)[1].strip()
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                        "echo there; exec sleep 99999"], stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert self.holder.stdout.readline() == "there\n"
        self.outside = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt")
        self.before = (*self.outside, "chroot", self.root)
        try:
            self.mount()
            self.prepare()
        except BaseException:
            self.close()
            raise

    def inside(self, *argv):
        """Run a command in the namespace, on this host's root."""
        return self._run(*self.outside, *argv)[1]

    def mount(self):
        # Name the loop device like a disk: GRUB's tools resolve loop devices to this host's disks.
        number = os.stat(self.loop).st_rdev
        nodes = {"vda": ("b", os.major(number), os.minor(number)), "null": ("c", 1, 3), "zero": ("c", 1, 5),
                 "random": ("c", 1, 8), "urandom": ("c", 1, 9), "tty": ("c", 5, 0), "ptmx": ("c", 5, 2)}  # fmt: skip
        (self.top / "dev").mkdir(exist_ok=True)
        self.inside("mount", "-t", "tmpfs", "-o", "mode=755,dev", "itree-test", self.top / "dev")
        for name, node in nodes.items():
            self.inside("mknod", "-m", "666", self.top / "dev" / name, *node)
        self.inside("ln", "-s", "/proc/self/fd", self.top / "dev/fd")
        self.inside("mkdir", "-p", self.top / "dev/shm", self.top / "dev/disk/by-uuid")
        # udev's name: without it, GRUB's menu would have the disk's current device name for the root.
        self.inside("ln", "-s", "../../vda", self.top / "dev/disk/by-uuid" / debian_image.UUID)
        self.inside("mount", "--bind", self.top / "dev", "/dev")
        self.inside("mount", "-t", "ext4", "/dev/vda", self.root)
        self.inside("mount", "--bind", "/dev", self.root / "dev")
        for kind in ("proc", "sysfs"):
            self.inside("mount", "-t", kind, "itree-test", self.root / kind.removesuffix("fs"))
        for name in ("run", "tmp"):
            self.inside("mount", "-t", "tmpfs", "-o", "mode=1777", "itree-test", self.root / name)

    def prepare(self):
        """Set up whatever must exist before the first command of a test."""

    def run(self, *argv, **kwargs):
        return self._run(*self.before, *argv, **kwargs)[1]

    def put(self, path, data, mode="644"):
        (self.top / "put").write_bytes(data if isinstance(data, bytes) else data.encode())
        self.inside("install", "-D", "-m", mode, self.top / "put", f"{self.root}{path}")

    def close(self):
        """Unmount everything; the disk is like that of a host that was powered off."""
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        self._run("losetup", "--detach", self.loop, ok=None)
