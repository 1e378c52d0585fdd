# SPDX-License-Identifier: GPL-2.0-only
"""The data disk of the appliance: found, and formatted only if it is certainly empty.

What is on a disk decides, in this order:

    a partition of our type, ext4 labelled itree-backup   ours: used, grown if the disk grew
    a partition of our type without any signature         ours, cut off in mid-format: formatted
    nothing at all                                        partitioned and formatted
    anything else                                         refused, whatever it is
"""

import argparse
import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time

from .errors import FAILED, REFUSED, USAGE, BackupError
from .store import write_file

SYS = pathlib.Path("/sys/class/block")
DEFINITIONS = pathlib.Path(__file__).resolve().parents[1] / "repart.d"
LABEL = "itree-backup"
TYPE = re.search(r"^Type=(\S+)", (DEFINITIONS / "50-data.conf").read_text(), re.M)[1]
SMALLEST = 48 << 20
STATE = pathlib.Path("/var/lib/itree-backup/volume")
EDGE = 1 << 20  # bytes at either end of a disk that must be zero


@dataclasses.dataclass
class Verdict:
    """kind: ours, unformatted, empty or foreign; part, uuid: our partition, if there is one; why: for people."""

    kind: str
    disk: str
    part: str = ""
    why: str = ""
    uuid: str = ""


def call(*argv, ok=(0,)):
    """Run a tool; (exit code, standard output). Raises BackupError with what it said."""
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
    found = [p for p in base.iterdir() if (p / "partition").exists()] if base.is_dir() else []
    return [f"/dev/{p.name}" for p in sorted(found, key=lambda p: int((p / "start").read_text()))]


def probe(device):
    """What blkid finds on a device, as {NAME: value}; {} if it finds nothing."""
    # 2: nothing found; 8: several signatures, none of which it wants to choose.
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


def look(disk):
    """The Verdict on a disk. Reads only."""
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
            return look_inside(disk, part, facts)
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


def look_inside(disk, part, facts):
    """The same for a disk that has our partition."""
    if facts.get("TYPE") == "ext4" and facts.get("LABEL") == LABEL:
        return Verdict("ours", disk, part, uuid=facts.get("PART_ENTRY_UUID", ""))
    found = signatures(part)
    if not found and "AMBIVALENT" not in facts:
        return Verdict("unformatted", disk, part)
    what = ", ".join(found) or "several signatures"
    return Verdict("foreign", disk, part, f"{part} is of our type, but carries {what}")


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


def choose(known):
    """The Verdict on the one disk that is, or can become, the data disk.

    known: UUID of the partition that was the volume before, if one was: then no other disk will do, however empty.
    """
    verdicts = [look(disk) for disk in candidates()]
    if known:
        for verdict in verdicts:
            if verdict.kind == "ours" and verdict.uuid == known:
                return verdict
        raise BackupError(
            f"the backup volume of this machine, partition {known}, is not there. Is its disk connected? To begin "
            f"with another disk, name it: itree-backup-volume provision DISK",
            REFUSED,
        )
    for kinds in (("ours", "unformatted"), ("empty",)):
        fit = [v for v in verdicts if v.kind in kinds]
        if len(fit) > 1:
            raise BackupError(
                f"{' and '.join(v.disk for v in fit)} could each be the data disk: leave one in the machine, or "
                "name it: itree-backup-volume provision DISK",
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
    call("systemd-repart", f"--definitions={DEFINITIONS}", f"--empty={empty}", "--dry-run=no", "--no-pager", disk)
    # Some kernels and releases of systemd do not agree on how to tell the kernel.
    call("partx", "--update", disk, ok=None)
    # udev makes the links that the mount unit waits for; without udev the kernel's own nodes are enough.
    call("udevadm", "settle", "--timeout=30", ok=None)


def mke2fs(part, options):
    return call("mke2fs", "-t", "ext4", "-T", "backup", "-O", "itree", "-L", LABEL, "-m", "1", *options, part)


def format_(part):
    """Make the file system on a partition of ours that carries nothing."""
    if signatures(part):
        raise BackupError(f"{part} carries a signature: not formatted", REFUSED)
    # -n: e2fsprogs that do not know the feature say so before anything is written.
    mke2fs(part, ("-n",))
    mke2fs(part, ("-q",))
    os.sync()


def provision(verdict):
    """Make a disk the data disk, as far as it is not. Returns what was done, in words."""
    if verdict.kind == "foreign":
        raise BackupError(
            f"{verdict.disk} is not touched: {verdict.why}. If nothing on it is needed, empty it yourself: "
            "wipefs --all on its partitions and on it, and zeros at both ends",
            REFUSED,
        )
    if verdict.kind == "ours":
        repart(verdict.disk, "refuse")
        return f"{verdict.part} is the backup volume already"
    if verdict.kind == "empty":
        call("mke2fs", "-n", "-t", "ext4", "-O", "itree", verdict.disk, "8192")
        repart(verdict.disk, "require")
        again = look(verdict.disk)
        if again.kind != "unformatted":
            raise BackupError(f"{verdict.disk}: after partitioning it is {again.kind}: {again.why or 'no partition'}")
        verdict = again
    format_(verdict.part)
    after = look(verdict.disk)
    if after.kind != "ours":
        raise BackupError(f"{verdict.part} was formatted and yet is {after.kind}: {after.why}", FAILED)
    return f"{verdict.part} was formatted: it is the backup volume now"


def wait(known, seconds):
    """choose(), again until there is a data disk or the time is up: disks appear when they like."""
    end = time.monotonic() + seconds
    while True:
        call("udevadm", "settle", "--timeout=10", ok=None)
        try:
            return choose(known)
        except BackupError:
            if time.monotonic() >= end:
                raise
            time.sleep(2)


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
        print("itree-backup-volume: disks take root: use sudo", file=sys.stderr)
        return USAGE
    try:
        verdict = look(args.disk) if args.disk else wait(read_state(args.state), args.wait)
        if args.what == "check":
            print(f"{verdict.disk}: {verdict.kind}" + (f": {verdict.why}" if verdict.why else ""))
            return REFUSED if verdict.kind == "foreign" else 0
        print(provision(verdict))
        uuid = look(verdict.disk).uuid
        if args.state.parent.is_dir() and read_state(args.state) != uuid:
            write_file(args.state, uuid + "\n")
    except BackupError as err:
        print(f"itree-backup-volume {args.what}: {err}", file=sys.stderr)
        return err.code
    except OSError as err:
        print(f"itree-backup-volume {args.what}: {err}", file=sys.stderr)
        return FAILED
    return 0
