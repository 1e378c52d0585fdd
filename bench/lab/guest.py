#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Run a list of steps on disks inside the guest; see bench/README.md.

The job is a JSON file that bench/lab/ writes; results go to result.json
next to it after every step. A step runs one command, cold (fresh mount and
dropped caches) or not, with the disk's requests recorded or not.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from trace import blocktrace

MOUNTPOINT = Path("/run/itree-bench")
QUEUE = ("scheduler", "rotational", "read_ahead_kb", "max_sectors_kb", "nr_requests")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], timeout: float = 300) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=timeout)


def put(path: Path, text: str) -> None:
    path.write_text(text)


class Disk:
    """One of the guest's disks and its file system."""

    def __init__(self, name: str, fstype: str):
        self.name = name
        self.fstype = fstype
        self.options = ""
        self.where = MOUNTPOINT / name

    def mount(self, options: str) -> None:
        self.where.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", self.fstype, "-o", options, f"/dev/{self.name}", self.where])
        self.options = options

    def umount(self) -> None:
        if self.options:
            run(["umount", self.where], timeout=900)
            self.options = ""

    def settle(self) -> None:
        """Write back everything dirty and drop caches."""
        os.sync()
        put(Path("/proc/sys/vm/drop_caches"), "3")
        for _ in range(300):
            if not blocktrace.disk_stat(self.name)["in_flight"]:
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} does not come to rest")

    def queue(self) -> dict[str, str]:
        base = Path(f"/sys/block/{self.name}/queue")
        return {name: (base / name).read_text().strip() for name in QUEUE}

    def commits(self) -> int:
        """Journal commits since the mount, as jbd2 counts them."""
        for info in Path("/proc/fs/jbd2").glob(f"{self.name}-*/info"):
            return int(info.read_text().split()[0])
        return 0

    def counters(self) -> dict[str, int]:
        """The tree's own counters, where the kernel has them."""
        found = {}
        base = Path(f"/sys/fs/ext4/{self.name}")
        for path in sorted(base.glob("itree*")) + sorted(base.glob("itree*/*")):
            if path.is_file():
                try:
                    found[path.name] = int(path.read_text())
                except (ValueError, OSError):
                    continue
        return found


def carry_out(disk: Disk, second: Disk | None, step: dict, share: Path) -> dict:
    options = step["options"]
    if second:
        second.umount()
        # the volume that is read may be mounted read-only, but not the target of copies
        second.mount(",".join(o for o in options.split(",") if o != "ro"))
    if step["cold"] or options != disk.options:
        disk.umount()
        disk.mount(options)
    if step["cold"]:
        disk.settle()
    places = {"{mnt}": str(disk.where), "{share}": str(share), "{second}": str(second.where) if second else ""}
    command = step["command"]
    for name, path in places.items():
        command = [part.replace(name, path) for part in command]
    output = share / f"{step['name']}.out"
    outcome: dict[str, object] = {"name": step["name"], "command": command, "options": options}
    commits = disk.commits()
    written = blocktrace.disk_stat(second.name)["written_sectors"] if second else 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    if step["trace"]:
        raw = share / f"{step['name']}.trace.raw"
        outcome |= blocktrace.record(command, disk.name, raw, output, step["timeout"])
    else:
        begin = time.monotonic()
        with open(output, "wb") as out:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, timeout=step["timeout"], check=False)
        outcome |= {"status": done.returncode, "wall": time.monotonic() - begin}
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    outcome["cpu_seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    outcome["commits"] = disk.commits() - commits
    if second:
        outcome["second_sectors"] = blocktrace.disk_stat(second.name)["written_sectors"] - written
    outcome["counters"] = disk.counters()
    if outcome["status"] and not step["may_fail"]:
        raise RuntimeError(f"{step['name']}: {command[0]} ended with {outcome['status']}")
    return outcome


def limits_as_booted() -> None:
    """Set the limit of open files that systemd would set (systemd-system.conf(5), DefaultLimitNOFILE=)."""
    put(Path("/proc/sys/fs/file-max"), str(2**63 - 1))
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 524288))


def carry_out_all(job: dict, share: Path) -> None:
    limits_as_booted()
    disks = {name: Disk(name, fstype) for name, fstype in job["disks"].items()}
    for name in disks:
        # the default scheduler of rotating SATA and SAS disks, which have one queue
        put(Path(f"/sys/block/{name}/queue/scheduler"), "mq-deadline")
    memory = Path("/proc/meminfo").read_text().splitlines()[0].split()
    result: dict = {
        "kernel": os.uname().release,
        "memory_kib": int(memory[1]),
        "itree": Path("/sys/fs/ext4/features/itree").exists(),
        "queue": {name: disk.queue() for name, disk in disks.items()},
        "steps": [],
    }
    try:
        for number, step in enumerate(job["steps"]):
            disk = disks[step["disk"]]
            begin = time.monotonic()
            outcome = carry_out(disk, disks.get(step.get("second")), step, share)
            result["steps"].append(outcome)
            (share / "result.json").write_text(json.dumps(result))
            around = time.monotonic() - begin - outcome["wall"]
            say(f"    {step['title']}: {outcome['wall']:.1f} s (and {around:.1f} s to mount and settle)")
            later = [other["disk"] for other in job["steps"][number + 1 :]]
            if disk.name not in later:
                disk.umount()
    finally:
        for disk in disks.values():
            disk.umount()
    (share / "result.json").write_text(json.dumps({**result, "done": True}))


def main() -> int:
    path = Path(sys.argv[1])
    try:
        carry_out_all(json.loads(path.read_text()), path.parent)
    except (RuntimeError, OSError, blocktrace.TraceError, subprocess.SubprocessError) as error:
        say(f"guest: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
