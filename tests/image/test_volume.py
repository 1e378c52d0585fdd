# SPDX-License-Identifier: GPL-2.0-only
"""The data disk: an empty one becomes the volume, ours stays, any other is refused and not changed by a byte."""

import contextlib
import hashlib
import os
import pathlib
import re
import subprocess
import time

import pytest
from conftest import APPLIANCE, REPO, run
from itree_backup import volume

COMMAND = APPLIANCE / "usr" / "sbin" / "itree-backup-volume"
SBIN = REPO / "build" / "e2fsprogs" / "root" / "sbin"
RULES = APPLIANCE / "usr" / "lib" / "udev" / "rules.d"
LINK = volume.LINK


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

    @property
    def state(self):
        return self.path.with_suffix(".state")

    @property
    def note(self):
        return self.path.with_suffix(".state.format")

    def __call__(self, what, ok=(0,), tools=SBIN):
        env = {"PATH": f"{tools}:{SBIN}:{os.environ['PATH']}"}
        return run(COMMAND, what, self.node, "--state", self.state, ok=ok, env=env)[1]

    @property
    def part(self):
        return volume.partitions(self.node)[0]

    @property
    def sectors(self):
        """Size of the partition. Waits for it: the next open of a loop device may make the kernel reread its table."""
        until = time.monotonic() + 30
        while not (found := [volume.sysfs(p, "size") for p in volume.partitions(self.node)]) or not found[0]:
            assert time.monotonic() < until, f"{self.node} has no partition"
            time.sleep(0.1)
        return int(found[0])

    def digest(self):
        os.sync()
        with open(self.path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()


def zero(node, length, whence=os.SEEK_SET):
    """Overwrite the beginning or the end of a disk or partition, as accidents do, and admins whom we tell to."""
    with open(node, "r+b") as handle:
        handle.seek(-length if whence else 0, whence)
        handle.write(bytes(length))


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
    part = disk.part
    header = run(SBIN / "dumpe2fs", "-h", part)[1]
    assert re.search(r"^Filesystem features:.* itree", header, re.M), header
    assert re.search(r"^Filesystem volume name: +itree-backup$", header, re.M)
    # Whoever mounts it enforces the quotas of the hosts.
    assert re.search(r"^Filesystem features:.* project", header, re.M) and "Project quota inode:" in header
    assert re.search(r"^Mount options: +prjquota$", header, re.M), header
    # The second boot, and every other, changes nothing.
    before = disk.digest()
    assert "already" in disk("provision")
    assert disk.digest() == before
    disk.attach_anew()
    assert disk("check").endswith(": ours\n") and "already" in disk("provision")
    assert disk.digest() == before
    assert len(disk.state.read_text()) == 37 and not disk.note.exists()
    # The disk grew: the partition follows, what is in it stays. (The file system grows when it is mounted.)
    uuid = re.search(r"^Filesystem UUID: +(\S+)", header, re.M)[1]
    size = disk.sectors
    disk.attach_anew(size=320)
    assert "already" in disk("provision")
    disk.attach_anew()
    assert disk.sectors > size + (100 << 11)
    part = disk.part
    assert uuid in run(SBIN / "dumpe2fs", "-h", part)[1]
    assert run(SBIN / "e2fsck", "-fn", part)[0] == 0


def test_uuids_differ(disk, tmp_path):
    """A larger disk that is to take the volume's place is another to the state file, though one machine made both."""
    disk("provision")
    other = Disk(tmp_path / "other.img")
    try:
        output = other("provision")
        assert "systemctl restart itree-backup-volume" in output
        assert disk.state.read_text() != other.state.read_text()
    finally:
        other.close()


def test_cut_off_in_mid_format(disk):
    """A partition of ours without a file system is formatted by the next boot."""
    volume.repart(disk.node, "require")
    assert ": unformatted" in disk("check")
    assert "was formatted" in disk("provision")
    assert disk("check").endswith(": ours\n")


@pytest.fixture
def cut_off(tmp_path):
    """Tools with a mke2fs that is cut off when all but the superblock is written, which is what it writes last."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "mke2fs").write_text(
        f'#!/bin/sh\n"{SBIN}/mke2fs" "$@" || exit\ncase " $* " in *" -n "*) exit; esac\n'
        'for part; do :; done; dd if=/dev/zero of="$part" bs=4096 count=1 conv=notrunc; exit 1\n'
    )
    (tools / "mke2fs").chmod(0o755)
    return tools


def test_cut_off_before_the_superblock(disk, cut_off):
    """There are copies of it, but it was noted where they come from: formatted by the next boot."""
    disk("provision", ok=(1,), tools=cut_off)
    uuid = volume.probe(disk.part)["PART_ENTRY_UUID"]
    assert volume.superblock_copy(disk.part) and disk.note.read_text() == f"{uuid}\n" and not disk.state.exists()
    # What was noted of another partition is nothing to this one.
    disk.note.write_text(f"{uuid[::-1]}\n")
    assert ": foreign" in disk("check", ok=(6,))
    disk.note.write_text(f"{uuid}\n")
    assert ": unformatted" in disk("check")
    assert "was formatted" in disk("provision")
    assert disk("check").endswith(": ours\n") and not disk.note.exists()


def test_cut_off_after_the_superblock(disk):
    """A complete file system stays, and what was noted goes before it is used."""
    disk("provision")
    before = disk.digest()
    disk.note.write_text(disk.state.read_text())
    disk.state.unlink()
    assert "already" in disk("provision")
    assert disk.digest() == before and not disk.note.exists()


@pytest.mark.parametrize("length", [4096, 1 << 20], ids=["superblock", "first MiB"])
def test_lost_superblock(disk, monkeypatch, length):
    """A volume with a damaged beginning is not taken for one never formatted, though the image was written anew."""
    disk("provision")
    disk.state.unlink()
    zero(disk.part, length)
    assert not volume.signatures(disk.part)
    before = disk.digest()
    assert "no superblock, but a copy of one" in disk("check", ok=(6,))
    output = disk("provision", ok=(6,))
    assert "is not touched" in output and "empty it yourself" in output
    monkeypatch.setattr(volume, "candidates", lambda: [disk.node])
    with pytest.raises(volume.BackupError, match="no disk is ours, none is empty"):
        volume.choose("")
    assert disk.digest() == before
    # The message says how it is rescued.
    rescue = re.search(r"e2fsck( -b 32768 -B 4096 \S+)", output)[1].split()
    run(SBIN / "e2fsck", "-fy", *rescue, ok=(0, 1))
    assert disk("check").endswith(": ours\n") and "already" in disk("provision")
    assert run(SBIN / "e2fsck", "-fn", disk.part)[0] == 0


def test_lost_beginning_and_no_copy(disk):
    """Smaller volumes have no copy of the superblock, but more than zeros elsewhere."""
    volume.repart(disk.node, "require")
    with open(disk.part, "r+b") as handle:
        handle.seek(9000)
        handle.write(b"\1")
    assert "its first or last MiB is not zero" in disk("provision", ok=(6,))


@pytest.mark.parametrize(
    "size, first, second", [(1024, 8193, 24577), (2048, 16384, 49152), (4096, 32768, 98304), (65536, 65528, 196584)]
)
def test_copies_of_superblocks(tmp_path, size, first, second):
    """They are found where this host's mke2fs puts them, the next one if the first is gone."""
    path = tmp_path / "image"
    with open(path, "wb") as handle:
        handle.truncate(size * (second + 8192))
    assert volume.superblock_copy(path) is None
    run(
        "mke2fs", "-q", "-F", "-t", "ext4", "-b", size, "-N", 256, "-O", "^has_journal", path, stderr=subprocess.DEVNULL
    )
    with open(path, "r+b") as handle:
        handle.write(bytes(1 << 20))
        assert volume.superblock_copy(path) == (first, size)
        handle.seek(first * size)
        handle.write(bytes(size))
        handle.flush()
        assert volume.superblock_copy(path) == (second, size)
        handle.seek(second * size)
        handle.write(bytes(size))
    assert volume.superblock_copy(path) is None


@pytest.fixture
def used(disk):
    """A disk that had a partition where ours will be, emptied as we tell to; one that cannot discard."""
    (volume.SYS / os.path.basename(disk.node) / "queue" / "discard_max_bytes").write_text("0")
    run("mke2fs", "-q", "-F", "-t", "ext4", "-b", "4096", "-E", "offset=1048576", disk.node, f"{158 << 10}k")
    zero(disk.node, 2 << 20)
    return disk


def test_former_use(used):
    """Copies of an old superblock in the middle of a disk that was empty otherwise: partitioned and formatted."""
    assert used("check").endswith(": empty\n")
    assert "was formatted" in used("provision")
    assert used("check").endswith(": ours\n")


def test_former_use_cut_off(used):
    """After a power cut between partition and file system nobody knows whose copies these are. Emptied, it is taken."""
    volume.repart(used.node, "require")
    assert volume.superblock_copy(used.part)
    assert "is not touched" in used("provision", ok=(6,))
    run("wipefs", "--all", used.node)
    zero(used.node, 1 << 20)
    zero(used.node, 1 << 20, os.SEEK_END)
    used.attach_anew()
    assert used("check").endswith(": empty\n")
    assert "was formatted" in used("provision")


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
    "make, output",
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
def test_foreign(disk, make, output):
    make(disk.node)
    before = disk.digest()
    assert ": foreign" in disk("check", ok=(6,))
    text = disk("provision", ok=(6,))
    assert output in text and "is not touched" in text
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
    monkeypatch.setattr(volume, "look", lambda d, begun: volume.Verdict(kinds[d], d, why="it has something"))
    assert volume.choose("").disk == "/dev/c"
    kinds["/dev/c"] = "foreign"
    assert volume.choose("").disk == "/dev/b"
    kinds["/dev/a"] = "empty"
    with pytest.raises(volume.BackupError, match="could each be the data disk"):
        volume.choose("")
    kinds.update({"/dev/a": "foreign", "/dev/b": "foreign"})
    with pytest.raises(volume.BackupError, match="no disk is ours, none is empty"):
        volume.choose("")


def test_disk_that_cannot_be_read_costs_no_other(monkeypatch):
    """A second disk returns EIO: the known volume, or one of ours, is used. An empty one is not: which is meant?"""
    disks = {"/dev/b": volume.Verdict("ours", "/dev/b", "/dev/b1", uuid="mine")}

    def look(disk, begun):
        if disk == "/dev/a":
            raise volume.BackupError("blkid -p -o export /dev/a ended with 2: Input/output error")
        return disks[disk]

    monkeypatch.setattr(volume, "candidates", lambda: ["/dev/a", "/dev/b"])
    monkeypatch.setattr(volume, "look", look)
    for known in ("mine", ""):
        trouble = []
        assert volume.choose(known, trouble=trouble).disk == "/dev/b"
        assert "/dev/a: it cannot be read" in trouble[0]
    with pytest.raises(volume.BackupError, match="another, is not there.*/dev/a: it cannot be read"):
        volume.choose("another")
    disks["/dev/b"] = volume.Verdict("empty", "/dev/b")
    with pytest.raises(volume.BackupError, match="/dev/a cannot be read and may be the data disk"):
        volume.choose("")


def test_volume_that_cannot_be_grown_is_used(disk, tmp_path):
    disk("provision")
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "systemd-repart"
    fake.write_text("#!/bin/sh\necho 'No space for the backup header.' >&2\nexit 1\n")
    fake.chmod(0o755)
    output = disk("provision", tools=tmp_path / "bin")
    assert "is the backup volume already" in output and "could not be grown" in output
    trouble = disk.state.with_name("volume-trouble")
    assert "No space for the backup header" in trouble.read_text()
    disk("provision")
    assert not trouble.exists()


def test_only_the_disk_it_knows(monkeypatch):
    """A volume whose disk is late or gone is not replaced by a disk that is empty."""
    disks = {"/dev/a": volume.Verdict("empty", "/dev/a"), "/dev/b": volume.Verdict("ours", "/dev/b", uuid="other")}
    monkeypatch.setattr(volume, "candidates", lambda: sorted(disks))
    monkeypatch.setattr(volume, "look", lambda d, begun: disks[d])
    with pytest.raises(volume.BackupError, match="is not there"):
        volume.choose("mine")
    disks["/dev/c"] = volume.Verdict("ours", "/dev/c", uuid="mine")
    assert volume.choose("mine").disk == "/dev/c"
    # A copy of the whole disk.
    disks["/dev/d"] = volume.Verdict("ours", "/dev/d", uuid="mine")
    with pytest.raises(volume.BackupError, match="one is a copy of the other"):
        volume.choose("mine")
    # It is there, but damaged.
    del disks["/dev/d"]
    disks["/dev/c"] = volume.Verdict("foreign", "/dev/c", "/dev/c1", "why not", "mine")
    with pytest.raises(volume.BackupError, match="is /dev/c1, and is not used: why not"):
        volume.choose("mine")


def test_only_what_is_noted_is_mounted(disk, monkeypatch, tmp_path):
    """udev's own answer to our rule: the name that the mount unit mounts is that of the noted partition alone."""
    disk("provision")
    verdict = volume.look(disk.node)
    monkeypatch.setattr(volume, "RUN", tmp_path / "run")
    monkeypatch.setattr(volume, "LINK", tmp_path / "link")
    volume.RUN.mkdir()
    (volume.RUN / "of another").touch()
    volume.announce(verdict)
    assert os.listdir(volume.RUN) == [verdict.uuid]
    # With a /run and a /dev of its own, as udev makes links.
    script = f"""
        mount -t tmpfs tmpfs /mnt && cp -a {disk.node} {disk.part} /dev/null /mnt/ && mount -t tmpfs tmpfs /run
        mkdir -p /run/udev/rules.d /run/itree-backup-volume && cp {RULES}/*.rules /run/udev/rules.d
        mount --bind /mnt /dev
        ask() {{ udevadm test --action=change /sys/class/block/{os.path.basename(disk.part)} >/mnt/said 2>&1; }}
        ask; test -e /dev/disk/by-partuuid/{verdict.uuid} || {{ cat /mnt/said; exit 9; }}
        test -e {LINK} && exit 1
        touch /run/itree-backup-volume/{verdict.uuid}; ask
        test "$(readlink -f {LINK})" = {disk.part} || exit 2
        mv /run/itree-backup-volume/* /run/itree-backup-volume/{verdict.uuid[::-1]}; ask
        test -e {LINK} && exit 3
        exit 0
    """
    run("unshare", "--mount", "sh", "-c", script)
    # A copy of the disk may have won the name.
    volume.LINK.symlink_to("/dev/null")
    with pytest.raises(volume.BackupError, match="is one a copy of the other"):
        volume.announce(verdict)


def test_called_by_hand(disk, monkeypatch, tmp_path):
    """What is mounted changes by the service alone, which systemd gives the directory to."""
    monkeypatch.setattr(volume, "RUN", tmp_path / "run")
    volume.RUN.mkdir()
    monkeypatch.setenv("PATH", f"{SBIN}:{os.environ['PATH']}")
    monkeypatch.setattr("sys.argv", ["x", "provision", disk.node, "--state", str(disk.state)])
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    assert volume.main() == 0 and not os.listdir(volume.RUN)
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(volume.RUN))
    assert volume.main() == 0
    assert os.listdir(volume.RUN) == [disk.state.read_text().strip()]


def test_running_system_is_no_candidate():
    """The disk this machine runs from is never empty to us."""
    for disk in volume.candidates():
        with contextlib.suppress(volume.BackupError, subprocess.SubprocessError):
            if volume.users(disk):
                assert volume.look(disk).kind == "foreign"
