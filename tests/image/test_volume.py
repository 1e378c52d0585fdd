# SPDX-License-Identifier: GPL-2.0-only
"""The data disk: an empty one becomes the volume, ours stays, any other is refused and not changed by a byte."""

import contextlib
import hashlib
import os
import pathlib
import re
import subprocess

import pytest
from conftest import APPLIANCE, REPO, run
from itree_backup import volume

COMMAND = APPLIANCE / "usr" / "sbin" / "itree-backup-volume"
SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"


class Disk:
    """A file as a disk with partitions. Our mke2fs goes first, as in the image."""

    def __init__(self, path, size=160):
        self.path = path
        with open(path, "ab") as handle:
            handle.truncate(size << 20)
        code, text = run("losetup", "--find", "--show", "--partscan", path, ok=None)
        if code:
            pytest.skip(f"needs a loop device, of which there is none: {text.strip()}")
        self.node = text.strip()
        # Not every kernel looks for a GPT by itself.
        run("partx", "--update", self.node, ok=None)

    def close(self):
        run("partx", "--delete", self.node, ok=None)
        run("losetup", "-d", self.node)

    def attach_anew(self, size=None):
        self.close()
        self.__init__(self.path, size or self.path.stat().st_size >> 20)

    def __call__(self, what, ok=(0,)):
        env = {**os.environ, "PATH": f"{SBIN}:{os.environ['PATH']}"}
        state = self.path.with_suffix(".state")
        return run(COMMAND, what, self.node, "--state", state, ok=ok, env=env)[1]

    def digest(self):
        os.sync()
        with open(self.path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()


@pytest.fixture
def disk(tmp_path):
    if os.geteuid():
        pytest.skip("disks want the rights of root")
    if not (SBIN / "mke2fs").exists():
        pytest.fail(f"{SBIN}/mke2fs is missing: run `make e2fsprogs`")
    made = Disk(tmp_path / "disk.img")
    yield made
    made.close()


def test_empty_then_ours(disk, tmp_path):
    assert disk("check").endswith(": empty\n")
    assert "was formatted" in disk("provision")
    part = volume.partitions(disk.node)[0]
    header = run(SBIN / "dumpe2fs", "-h", part)[1]
    assert re.search(r"^Filesystem features:.* itree", header, re.M), header
    assert re.search(r"^Filesystem volume name: +itree-backup$", header, re.M)
    # The second boot, and every other, changes nothing.
    before = disk.digest()
    assert "already" in disk("provision")
    assert disk.digest() == before
    disk.attach_anew()
    assert disk("check").endswith(": ours\n") and "already" in disk("provision")
    assert disk.digest() == before
    assert len(disk.path.with_suffix(".state").read_text()) == 37
    # The disk grew: the partition follows, what is in it stays. (The file system grows when it is mounted.)
    uuid = re.search(r"^Filesystem UUID: +(\S+)", header, re.M)[1]
    size = (volume.SYS / os.path.basename(part) / "size").read_text()
    disk.attach_anew(size=320)
    assert "already" in disk("provision")
    disk.attach_anew()
    part = volume.partitions(disk.node)[0]
    assert int((volume.SYS / os.path.basename(part) / "size").read_text()) > int(size) + (100 << 11)
    assert uuid in run(SBIN / "dumpe2fs", "-h", part)[1]
    assert run(SBIN / "e2fsck", "-fn", part)[0] == 0


def test_cut_off_in_mid_format(disk):
    """A partition of ours without a file system is formatted by the next boot."""
    volume.repart(disk.node, "require")
    assert ": unformatted" in disk("check")
    assert "was formatted" in disk("provision")
    assert disk("check").endswith(": ours\n")


def filesystem(node):
    run("mke2fs", "-q", "-F", "-t", "ext4", node)


def partition_table(node):
    """A GPT with a partition of somebody else's."""
    with_ = pathlib.Path("/run") / f"itree-test-{os.getpid()}"
    with_.mkdir()
    try:
        (with_ / "x.conf").write_text("[Partition]\nType=linux-generic\nLabel=itree-backup\n")
        run("systemd-repart", f"--definitions={with_}", "--empty=require", "--dry-run=no", "--no-pager", node)
    finally:
        (with_ / "x.conf").unlink()
        with_.rmdir()


def ours_and_another(node):
    volume.repart(node, "require")
    run("mke2fs", "-q", "-F", "-t", "ext4", "-L", "mine", volume.partitions(node)[0])


def headerless(node):
    """As an encrypted disk whose header is elsewhere looks."""
    with open(node, "r+b") as handle:
        handle.seek(4096)
        handle.write(os.urandom(64))


def at_the_end(node):
    with open(node, "r+b") as handle:
        handle.seek(-512, os.SEEK_END)
        handle.write(b"\1")


@pytest.mark.parametrize(
    "make, said",
    [
        (filesystem, "carries ext4"),
        (lambda n: run("mkfs.xfs", "-q", "-f", n, ok=None)[0] and run("mkswap", n), "carries"),
        (lambda n: run("mkswap", n), "carries swap"),
        (partition_table, "carries gpt"),
        (ours_and_another, "is of our type, but carries ext4"),
        (headerless, "not zero"),
        (at_the_end, "not zero"),
    ],
    ids=["ext4", "xfs", "swap", "gpt", "ours with another file system", "headerless", "at the end"],
)
def test_foreign(disk, make, said):
    make(disk.node)
    before = disk.digest()
    assert ": foreign" in disk("check", ok=(6,))
    text = disk("provision", ok=(6,))
    assert said in text and "is not touched" in text
    assert disk.digest() == before


def test_in_use(disk, tmp_path):
    """What is mounted is told by where."""
    filesystem(disk.node)
    point = tmp_path / "point"
    point.mkdir()
    run("mount", disk.node, point)
    try:
        assert f"is mounted on {point}" in disk("provision", ok=(6,))
    finally:
        run("umount", point)


def test_stock_tools_are_noticed_in_time(disk, tmp_path):
    """A mke2fs that does not know the feature: said before the first byte is written."""
    if run("mke2fs", "-n", "-t", "ext4", "-O", "itree", disk.path, ok=None)[0] == 0:
        pytest.skip("this host's own mke2fs knows itree")
    before = disk.digest()
    assert "mke2fs" in run(COMMAND, "provision", disk.node, "--state", tmp_path / "state", ok=(1,))[1]
    assert disk.digest() == before


def test_choice(monkeypatch):
    """Of several disks: ours first; else the only empty one; never a guess."""
    kinds = {"/dev/a": "foreign", "/dev/b": "empty", "/dev/c": "ours"}
    monkeypatch.setattr(volume, "candidates", lambda: sorted(kinds))
    monkeypatch.setattr(volume, "look", lambda d: volume.Verdict(kinds[d], d, why="it has something"))
    assert volume.choose("").disk == "/dev/c"
    kinds["/dev/c"] = "foreign"
    assert volume.choose("").disk == "/dev/b"
    kinds["/dev/a"] = "empty"
    with pytest.raises(volume.BackupError, match="could each be the data disk"):
        volume.choose("")
    kinds.update({"/dev/a": "foreign", "/dev/b": "foreign"})
    with pytest.raises(volume.BackupError, match="no disk is ours, none is empty"):
        volume.choose("")


def test_only_the_disk_it_knows(monkeypatch):
    """A volume whose disk is late or gone is not replaced by a disk that is empty."""
    disks = {"/dev/a": volume.Verdict("empty", "/dev/a"), "/dev/b": volume.Verdict("ours", "/dev/b", uuid="other")}
    monkeypatch.setattr(volume, "candidates", lambda: sorted(disks))
    monkeypatch.setattr(volume, "look", lambda d: disks[d])
    with pytest.raises(volume.BackupError, match="is not there"):
        volume.choose("mine")
    disks["/dev/c"] = volume.Verdict("ours", "/dev/c", uuid="mine")
    assert volume.choose("mine").disk == "/dev/c"


def test_running_system_is_no_candidate():
    """The disk this machine runs from is never empty to us."""
    for disk in volume.candidates():
        with contextlib.suppress(volume.BackupError, subprocess.SubprocessError):
            if volume.users(disk):
                assert volume.look(disk).kind == "foreign"
