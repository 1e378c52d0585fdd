# SPDX-License-Identifier: GPL-2.0-only
"""Finds the data disk of the appliance, and formats it only if it is certainly empty.

The contents of a disk decide, in this order:

    a partition of our type, ext4 labelled itree-backup   ours: used, grown if the disk grew
    a partition of our type, its formatting was begun     ours, interrupted while formatting: formatted
    a partition of our type, certainly empty              the same
    nothing at all                                        partitioned and formatted
    anything else                                         refused, whatever it is: ours too, if its superblock is lost
"""

import argparse
import dataclasses
import os
import pathlib
import re
import struct
import subprocess
import sys
import time

from .errors import FAILED, REFUSED, USAGE, BackupError
from .store import VOLUME_TROUBLE, fsync_directory, write_file

SYS = pathlib.Path("/sys/class/block")
DEFINITIONS = pathlib.Path(__file__).resolve().parents[1] / "repart.d"
LABEL = "itree-backup"
TYPE = re.search(r"^Type=(\S+)", (DEFINITIONS / "50-data.conf").read_text(), re.M)[1]
SMALLEST = 48 << 20
STATE = pathlib.Path("/var/lib/itree-backup/volume")
# LINK is mounted. udev points it at the partition whose UUID is the name of a file in RUN, which the service creates:
# 61-itree-backup-volume.rules.
LINK = pathlib.Path("/dev/disk/itree-backup")
RUN = pathlib.Path("/run/itree-backup-volume")
EDGE = 1 << 20  # bytes at either end of a disk that must be zero


@dataclasses.dataclass
class Verdict:
    """kind: ours, unformatted, empty, foreign or unreadable; part, uuid: our partition, if any; why: for people."""

    kind: str
    disk: str
    part: str = ""
    why: str = ""
    uuid: str = ""


def call(*argv, ok=(0,)):
    """Run a tool; (exit code, standard output). Raises BackupError with its standard error."""
    try:
        res = subprocess.run([str(a) for a in argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                             errors="replace", env={**os.environ, "LC_ALL": "C"}, check=False)  # fmt: skip
    except FileNotFoundError as err:
        raise BackupError(f"{argv[0]} is not installed") from err
    if ok is not None and res.returncode not in ok:
        raise BackupError(f"{' '.join(map(str, argv))} ended with {res.returncode}: {res.stderr.strip()[-800:]}")
    return res.returncode, res.stdout


def sysfs(device, name, default=""):
    try:
        return (SYS / os.path.basename(device) / name).read_text().strip()
    except OSError:
        return default


def partitions(disk):
    """Device nodes of a disk's partitions, in the order of the disk."""
    base = SYS / os.path.basename(disk)
    names = [p.name for p in base.iterdir() if (p / "partition").exists()] if base.is_dir() else []
    # A partition may vanish meanwhile: rereading the table removes all partitions and adds them again.
    starts = {name: sysfs(name, "start") for name in names}
    return [f"/dev/{n}" for n in sorted((n for n in names if starts[n]), key=lambda n: int(starts[n]))]


def probe(device):
    """What blkid finds on a device, as {NAME: value}; {} if it finds nothing."""
    # 2: nothing found; 8: several signatures, among which it does not choose.
    code, out = call("blkid", "-p", "-o", "export", device, ok=(0, 2, 8))
    facts = dict(line.split("=", 1) for line in out.splitlines() if "=" in line)
    return {**facts, "AMBIVALENT": "yes"} if code == 8 else facts


def signatures(device):
    """Every signature on a device, as wipefs names them."""
    return [line.strip() for line in call("wipefs", "--no-act", "--noheadings", "--output", "TYPE,OFFSET",
                                          device)[1].splitlines() if line.strip()]  # fmt: skip


def users(device):
    """What uses a device or a partition of it now: mounts, swap, device mapper, RAID."""
    found, nodes = [], [device, *partitions(device)]
    numbers = {sysfs(n, "dev"): n for n in nodes}
    with open("/proc/self/mountinfo") as handle:
        found += [f"{numbers[f[2]]} is mounted on {f[4]}" for f in map(str.split, handle) if f[2] in numbers]
    with open("/proc/swaps") as handle:
        found += [f"{line.split()[0]} is swap" for line in handle if line.split()[0] in nodes]
    for node in nodes:
        holders = SYS / os.path.basename(node) / "holders"
        found += [f"{node} is part of {h.name}" for h in holders.iterdir()] if holders.is_dir() else []
    return found


def edges_are_zero(device):
    """Whether a disk's first and last MiB are zeros: encrypted disks with a detached header have no signature."""
    with open(device, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        for at in (0, max(0, size - EDGE)):
            handle.seek(at)
            if handle.read(EDGE).strip(b"\0"):
                return False
    return True


def superblock_copy(device):
    """(block, block size) of the first copy of an ext4 superblock where mke2fs puts them; None if there is none."""
    groups = sorted({base**n for base in (3, 5, 7) for n in range(16)})
    with open(device, "rb") as handle:
        size = handle.seek(0, os.SEEK_END)
        for log in range(7):
            block = 1024 << log
            # A group has as many blocks as a block has bits, but at most 65,528. With 1 KiB, block 0 is in no group.
            for number in (group * min(8 * block, 65528) + (log == 0) for group in groups):
                if number * block + 1024 > size:
                    break
                handle.seek(number * block)
                copy = handle.read(1024)
                if struct.unpack_from("<H", copy, 56)[0] == 0xEF53 and struct.unpack_from("<I", copy, 24)[0] == log:
                    return number, block
    return None


def look(disk, begun=""):
    """The Verdict on a disk. Reads only. begun: UUID of the partition whose formatting was begun, or ""."""
    disk = os.path.realpath(disk)
    if not (SYS / os.path.basename(disk)).is_dir():
        raise BackupError(f"{disk} is not a block device of this machine", USAGE)
    if (SYS / os.path.basename(disk) / "partition").exists():
        raise BackupError(f"{disk} is a partition: name the whole disk", USAGE)
    parts = partitions(disk)
    for part in parts:
        facts = probe(part)
        if facts.get("PART_ENTRY_TYPE") == TYPE and facts.get("PART_ENTRY_NAME") == LABEL:
            if len(parts) > 1:
                return Verdict("foreign", disk, part, f"besides {part} it has partitions not made here")
            return look_inside(disk, part, facts, begun)
    busy = users(disk)
    if busy:
        return Verdict("foreign", disk, why="; ".join(busy))
    found = signatures(disk)
    if found or parts:
        return Verdict("foreign", disk, why=f"it carries {', '.join(found) or 'partitions'}")
    if int(sysfs(disk, "size", "0")) * 512 < SMALLEST:
        return Verdict("foreign", disk, why="it is too small")
    if not edges_are_zero(disk):
        return Verdict("foreign", disk, why="it has no known signature, but its first or last MiB is not zero")
    return Verdict("empty", disk)


def look_inside(disk, part, facts, begun):
    """look() for a disk that has our partition."""
    uuid = facts.get("PART_ENTRY_UUID", "")
    if facts.get("TYPE") == "ext4" and facts.get("LABEL") == LABEL:
        return Verdict("ours", disk, part, uuid=uuid)
    found = signatures(part)
    if found or "AMBIVALENT" in facts:
        what = ", ".join(found) or "several signatures"
        return Verdict("foreign", disk, part, f"{part} is of our type, but carries {what}", uuid)
    why = "" if uuid and uuid == begun else remains(part)
    return Verdict("foreign" if why else "unformatted", disk, part, why, uuid)


def remains(part):
    """Why a partition of ours without a signature may be a damaged volume; "" if nothing suggests it."""
    copy = superblock_copy(part)
    if copy:
        return (
            f"{part} is of our type and has no superblock, but a copy of one: if it was the backup volume, "
            f"e2fsck -b {copy[0]} -B {copy[1]} {part} can restore it"
        )
    if not edges_are_zero(part):
        return f"{part} is of our type and has no signature, but its first or last MiB is not zero"
    return ""


def candidates():
    """Whole disks of this machine that could be a data disk: fixed, writable, not in use by the system."""
    found = []
    for path in sorted(SYS.iterdir()):
        disk = f"/dev/{path.name}"
        if (path / "partition").exists() or re.match(r"(loop|ram|zram|sr|fd|md|dm-|nbd)\d*", path.name):
            continue
        if sysfs(disk, "ro") == "1" or sysfs(disk, "removable") == "1" or sysfs(disk, "size", "0") == "0":
            continue
        found.append(disk)
    return found


def look_or_tell(disk, begun):
    """look(), but a disk that cannot be read gets a Verdict that says so: it must not stop the others."""
    try:
        return look(disk, begun)
    except (BackupError, OSError) as err:
        return Verdict("unreadable", disk, why=f"it cannot be read: {err}")


def choose(known, begun="", trouble=None):
    """The Verdict on the one disk that is, or can become, the data disk.

    trouble: a list, filled with the problems of other disks.
    known: UUID of the partition that was the volume before, if any: then no other disk is taken, however empty.
    """
    verdicts = [look_or_tell(disk, begun) for disk in candidates()]
    unreadable = [v for v in verdicts if v.kind == "unreadable"]
    if trouble is not None:
        trouble[:] = [f"{v.disk}: {v.why}" for v in unreadable]
    if known:
        fit = [v for v in verdicts if v.uuid == known]
        if [v.kind for v in fit] == ["ours"]:
            return fit[0]
        what = f"the backup volume of this machine, partition {known}, "
        if len(fit) > 1:
            what += (
                f"is on {' and on '.join(v.disk for v in fit)}: one is a copy of the other. Leave one in the machine"
            )
        elif fit:
            what += f"is {fit[0].part}, and is not used: {fit[0].why or 'it carries nothing'}"
        else:
            what += "is not there. Is its disk connected?" + "".join(f" {v.disk}: {v.why}." for v in unreadable)
        raise BackupError(
            f"{what.rstrip('.')}. To begin with another disk, name it: itree-backup-volume provision DISK", REFUSED
        )
    for kinds in (("ours", "unformatted"), ("empty",)):
        fit = [v for v in verdicts if v.kind in kinds]
        if len(fit) > 1:
            raise BackupError(
                f"{' and '.join(v.disk for v in fit)} could each be the data disk: leave one in the machine, or "
                "name it: itree-backup-volume provision DISK",
                REFUSED,
            )
        if fit and kinds == ("empty",) and unreadable:
            raise BackupError(
                f"{fit[0].disk} is empty, but {unreadable[0].disk} cannot be read and may be the data disk: take it "
                f"out, or name the other: itree-backup-volume provision {fit[0].disk}",
                REFUSED,
            )
        if fit:
            return fit[0]
    seen = "".join(f"\n    {v.disk}: {v.why}" for v in verdicts) or " no disk at all"
    raise BackupError(
        f"there is no data disk: no disk is ours, none is empty. Seen:{seen}\nAdd an empty disk, or empty one "
        "yourself (wipefs --all, and zeros at both ends) if nothing on it is needed",
        REFUSED,
    )


def repart(disk, empty):
    """Let systemd-repart make or grow the partition; empty is its --empty=."""
    # With the default seed, the machine's ID, all its data disks would get the same UUIDs.
    call("systemd-repart", f"--definitions={DEFINITIONS}", f"--empty={empty}", "--seed=random", "--dry-run=no",
         "--no-pager", disk)  # fmt: skip
    # With some releases of systemd, some kernels do not learn of the partition from systemd-repart.
    call("partx", "--update", disk, ok=None)
    # udev makes the links that the mount unit waits for; without udev the kernel's own nodes are enough.
    call("udevadm", "settle", "--timeout=30", ok=None)


def mke2fs(part, options):
    return call("mke2fs", "-t", "ext4", "-T", "backup", "-O", "itree,project,quota", "-E",
                "quotatype=prjquota", "-L", LABEL, "-m", "1", *options, part)  # fmt: skip


def format_(part):
    """Make the file system on a partition of ours that carries nothing."""
    if signatures(part):
        raise BackupError(f"{part} carries a signature: not formatted", REFUSED)
    # -n: e2fsprogs without the feature fail here, before anything is written.
    mke2fs(part, ("-n",))
    mke2fs(part, ("-q",))
    enforce_quotas(part)
    os.sync()


def enforce_quotas(part):
    """Make every mount of a volume with project quotas enforce them, by its default options; mke2fs cannot set it."""
    header = call("dumpe2fs", "-h", part)[1]
    if re.search(r"^Filesystem features:.* project", header, re.M) and "\nMount options: " not in header:
        call("tune2fs", "-E", "mount_opts=prjquota", part)


def provision(verdict, note=None, trouble=None):
    """Make a disk the data disk, doing only what is missing. Returns a line that says what was done.

    trouble: a list that gets the failures with which the volume can still be used.
    note: file that holds the UUID of a partition while its file system is being made.
    """
    if verdict.kind == "foreign":
        raise BackupError(
            f"{verdict.disk} is not touched: {verdict.why}. If nothing on it is needed, empty it yourself: "
            "wipefs --all on its partitions and on it, and zeros at both ends",
            REFUSED,
        )
    if verdict.kind == "ours":
        # mke2fs writes the superblock last, so all else is on the disk.
        forget(note)
        # A power cut may have come between the two steps of formatting.
        enforce_quotas(verdict.part)
        try:
            repart(verdict.disk, "refuse")
        except BackupError as err:
            # The volume can be used even if it cannot grow.
            if trouble is None:
                raise
            trouble.append(f"{verdict.part} could not be grown: {err}")
        return f"{verdict.part} is the backup volume already"
    if verdict.kind == "empty":
        call("mke2fs", "-n", "-t", "ext4", "-O", "itree", verdict.disk, "8192")
        repart(verdict.disk, "require")
        # Old data in the middle of the disk does not matter: this partition was created just now.
        made = [probe(part).get("PART_ENTRY_UUID", "") for part in partitions(verdict.disk)]
        again = look(verdict.disk, begun="".join(made))
        if again.kind != "unformatted":
            raise BackupError(f"{verdict.disk}: after partitioning it is {again.kind}: {again.why or 'no partition'}")
        verdict = again
    if note:
        write_file(note, verdict.uuid + "\n")
    format_(verdict.part)
    after = look(verdict.disk)
    if after.kind != "ours":
        raise BackupError(f"{verdict.part} was formatted and yet is {after.kind}: {after.why}", FAILED)
    forget(note)
    return f"{verdict.part} was formatted: it is the backup volume now"


def forget(note):
    """Remove the note durably, before the volume can be mounted and receive data."""
    if note and note.exists():
        note.unlink()
        fsync_directory(note.parent)


def announce(verdict):
    """Let udev give LINK to the partition of a Verdict, and to no other."""
    for other in RUN.iterdir():
        other.unlink()
    # The present holder loses LINK first, so that systemd forgets its check: else the new one is mounted unchecked.
    ask_udev("--subsystem-match=block", f"--property-match=ID_PART_ENTRY_NAME={LABEL}")
    (RUN / verdict.uuid).touch()
    ask_udev(SYS / os.path.basename(verdict.part))
    if LINK.exists() and os.path.realpath(LINK) != verdict.part:
        raise BackupError(
            f"{LINK} is {os.path.realpath(LINK)}, not {verdict.part}: is one a copy of the other?", REFUSED
        )


def ask_udev(*which):
    """Have udev look at devices again; returns when it is done."""
    call("udevadm", "trigger", *which, ok=None)
    call("udevadm", "settle", "--timeout=30", ok=None)


def wait(known, begun, seconds, trouble=None):
    """Repeat choose() until there is a data disk or the time is up: disks may appear late."""
    end = time.monotonic() + seconds
    while True:
        call("udevadm", "settle", "--timeout=10", ok=None)
        try:
            return choose(known, begun, trouble)
        except BackupError:
            if time.monotonic() >= end:
                raise
            time.sleep(2)


def tell(trouble, state):
    """Report the problems of a volume that can still be used, and keep them for `itree-backup status` to show."""
    for line in trouble:
        print(f"itree-backup-volume: {line}", file=sys.stderr)
    path = state.with_name(VOLUME_TROUBLE)
    if trouble:
        write_file(path, "".join(f"{line}\n" for line in trouble))
    else:
        path.unlink(missing_ok=True)


def read_state(path):
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return ""


def main():
    parser = argparse.ArgumentParser(
        prog="itree-backup-volume",
        description="Find the data disk of the backup appliance, and make its file system if the disk is empty.",
        epilog="A disk that carries anything not made here is refused, never formatted. Exit code: 0 done, 1 failed, "
        "2 wrong usage, 6 refused. See itree-backup-volume(8).",
    )
    parser.add_argument("what", choices=("check", "provision"), help="check only says what provision would do")
    parser.add_argument("disk", nargs="?", help="default: the one that is ours, else the one that is empty")
    parser.add_argument("--wait", metavar="S", type=float, default=0, help="wait that long for the disk to appear")
    parser.add_argument("--state", metavar="FILE", type=pathlib.Path, default=STATE, help=f"default: {STATE}")
    args = parser.parse_args()
    if os.geteuid():
        print("itree-backup-volume: working on disks needs root: use sudo", file=sys.stderr)
        return USAGE
    note = args.state.with_name(f"{args.state.name}.format") if args.state.parent.is_dir() else None
    try:
        known, begun = read_state(args.state), read_state(note) if note else ""
        trouble = []
        verdict = look(args.disk, begun) if args.disk else wait(known, begun, args.wait, trouble)
        if args.what == "check":
            print(f"{verdict.disk}: {verdict.kind}" + (f": {verdict.why}" if verdict.why else ""))
            return REFUSED if verdict.kind == "foreign" else 0
        print(provision(verdict, note, trouble))
        tell(trouble, args.state)
        now = look(verdict.disk)
        if note and known != now.uuid:
            write_file(args.state, now.uuid + "\n")
        # systemd sets this for the service. A call by hand must not change what is mounted.
        if os.environ.get("RUNTIME_DIRECTORY") == str(RUN):
            announce(now)
        elif note and known != now.uuid:
            print("It is mounted from the next boot on, or by: systemctl restart itree-backup-volume.service")
    except BackupError as err:
        print(f"itree-backup-volume {args.what}: {err}", file=sys.stderr)
        return err.code
    except OSError as err:
        print(f"itree-backup-volume {args.what}: {err}", file=sys.stderr)
        return FAILED
    return 0
