# SPDX-License-Identifier: GPL-2.0-only
"""The role feature on a mounted volume, in a mount namespace with an /etc/fstab of its own. The mounts are real.

This kernel does not know the feature and mounts volumes with it read-only, so the window is shown by turning it off.
"""

import os
import shutil
import subprocess

import pytest
from conftest import fill, full, run
from test_feature import digest, has


class Mounted:
    """A volume with the feature, mounted read-only by this kernel in a namespace of its own, and in the fstab there."""

    def __init__(self, volume, top):
        self.path, self.at, self.fstab_file = volume.path, top / "mnt", top / "fstab"
        self.fstab_file.touch()
        self.loop = run("losetup", "--find", "--show", volume.path)[1].strip()
        self.holder = subprocess.Popen(["unshare", "--mount", "--propagation", "private", "sh", "-c",
                                        "echo there; exec sleep 3600"], stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert self.holder.stdout.readline() == "there\n"
        self.before = ("nsenter", f"--mount=/proc/{self.holder.pid}/ns/mnt")
        self.run("mount", "--bind", self.fstab_file, "/etc/fstab")
        self.run("mount", "-t", "ext4", "-o", "ro", self.loop, self.at)
        self.fstab(f"{self.loop} {self.at} ext4 noatime 0 2\n")

    def fstab(self, text):
        # In place: the file is mounted elsewhere.
        self.fstab_file.write_text(text)

    def run(self, *argv, **kwargs):
        return run(*self.before, *argv, **kwargs)[1]

    def mount(self):
        """Which mount it is, and its options."""
        return self.run("findmnt", "-n", "-o", "ID,OPTIONS", self.at).split()

    def close(self):
        self.run("umount", self.at, ok=None)
        self.holder.kill()
        self.holder.wait()
        self.holder.stdout.close()
        run("losetup", "--detach", self.loop)


@pytest.fixture
def mounted(image, tools, tmp_path):
    if os.path.exists("/sys/fs/ext4/features/itree"):
        pytest.skip("this host's kernel knows itrees")
    volume = image()
    fill(volume.mount(tmp_path / "mnt") / "large", 1200)
    volume.umount()
    # A mount in a later second than mke2fs: tune2fs asks for a check.
    run(tools / "e2fsck", "-fp", volume.path)
    run(tools / "tune2fs", "-O", "itree", volume.path)
    made = Mounted(volume, tmp_path)
    yield made
    made.close()


def role(collection, tools, volume, *options, **different):
    variables = {
        "itree_feature_volumes": [{"device": volume.loop, "mount": str(volume.at)}],
        "itree_feature_state": "absent",
        "itree_feature_unmount": True,
        "itree_feature_backup_confirmed": True,
        "itree_feature_tools": str(tools),
        **different,
    }
    return collection.role("feature", *options, before=volume.before, **variables)


def test_window(collection, tools, mounted):
    before, was = digest(mounted.path), mounted.mount()
    foretold = role(collection, tools, mounted, "--check", "--diff").good()
    assert foretold.changed()["here"] > 0
    assert digest(mounted.path) == before and mounted.mount() == was
    done = role(collection, tools, mounted, "--diff").good()
    assert done.changed()["here"] > 0
    assert not has(tools, mounted)
    # As fstab has it: this kernel can write to it again.
    options = mounted.mount()[-1].split(",")
    assert "rw" in options and "noatime" in options
    assert len(mounted.run("ls", mounted.at / "large").split()) == 1200
    was = mounted.mount()
    assert role(collection, tools, mounted).good().changed() == {"here": 0}
    assert mounted.mount() == was


def test_busy(collection, tools, mounted):
    """Somebody uses it: it stays mounted and as it was, never unmounted by force."""
    before, was = digest(mounted.path), mounted.mount()
    script = f"cd {mounted.at}/large && echo there && exec sleep 600"
    user = subprocess.Popen([*mounted.before, "sh", "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert user.stdout.readline() == "there\n"
        role(collection, tools, mounted).bad("target is busy")
    finally:
        user.kill()
        user.wait()
        user.stdout.close()
    assert mounted.mount() == was and has(tools, mounted)
    assert digest(mounted.path) == before


@pytest.mark.parametrize(
    ("different", "words"),
    (
        ({"itree_feature_unmount": False}, "itree_feature_unmount: true"),
        pytest.param({"fstab": ""}, "is not in /etc/fstab", marks=full),
        pytest.param({"elsewhere": "/srv"}, "and the inventory says /srv", marks=full),
    ),
)
def test_refused(collection, tools, mounted, different, words):
    """All that can be known before is said before: it is still the same mount."""
    different = dict(different)
    if "fstab" in different:
        mounted.fstab(different.pop("fstab"))
    if "elsewhere" in different:
        volume = {"device": mounted.loop, "mount": different.pop("elsewhere")}
        different["itree_feature_volumes"] = [volume]
    before, was = digest(mounted.path), mounted.mount()
    played = role(collection, tools, mounted, **different).bad(words)
    assert played.changed() == {"here": 0}
    assert digest(mounted.path) == before and mounted.mount() == was


# The kernel does not have the type: mounted is the distribution's, read-only, as it does with the feature.
MOUNT = """#!/bin/sh
if grep -q " ext4itree " /etc/fstab; then
    touch {top}/typed
    exec {top}/mount -t ext4 -o ro {device} "$@"
fi
exec {top}/mount "$@"
"""


def test_type_of_the_module(collection, tools, mounted, tmp_path):
    """On a host with the module, fstab gets its type, and the distribution's when the feature is taken off."""
    mounted.run("mount", "-t", "tmpfs", "itree-test", "/sys/fs")
    mounted.run("install", "-D", "/dev/null", "/sys/fs/ext4itree/features/itree")
    shutil.copy(shutil.which("mount"), tmp_path / "mount")
    (tmp_path / "shim").write_text(MOUNT.format(top=tmp_path, device=mounted.loop))
    (tmp_path / "shim").chmod(0o755)
    mounted.run("mount", "--bind", tmp_path / "shim", "/usr/bin/mount")
    # /etc/fstab is a mount, too, so it cannot be replaced by another file.
    mounted.before = (*mounted.before, "env", "ANSIBLE_UNSAFE_WRITES=1")
    was = mounted.mount()
    present = {"itree_feature_state": "present"}
    role(collection, tools, mounted, **present).bad(f"/etc/fstab has no nofail for {mounted.at}", "RequiresMountsFor")
    line, other = f"{mounted.loop} {mounted.at} ext4 noatime,nofail 0 2\n", f"LABEL=x {mounted.at}/x ext4 nofail 0 2\n"
    mounted.fstab(f"# {line}{other}{line}")
    assert role(collection, tools, mounted, "--check", "--diff", **present).good().changed()["here"] > 0
    assert mounted.fstab_file.read_text() == f"# {line}{other}{line}" and mounted.mount() == was
    role(collection, tools, mounted, **present).good()
    ours = line.replace(" ext4 ", " ext4itree ")
    assert mounted.fstab_file.read_text() == f"# {line}{other}{ours}" and has(tools, mounted)
    assert (tmp_path / "typed").exists(), "it was not mounted again"
    role(collection, tools, mounted).good()
    assert mounted.fstab_file.read_text() == f"# {line}{other}{line}" and not has(tools, mounted)
    assert "rw" in mounted.mount()[-1].split(",")
    assert role(collection, tools, mounted).good().changed() == {"here": 0}


@full
def test_kernel_first(collection, tools, mounted):
    """Turning it on where the kernel does not know it is refused before the volume is unmounted."""
    role(collection, tools, mounted).good()
    was = mounted.mount()
    played = role(collection, tools, mounted, itree_feature_state="present").bad("does not know itrees")
    assert played.changed() == {"here": 0} and mounted.mount() == was
