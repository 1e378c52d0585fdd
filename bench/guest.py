#!/usr/bin/env python3
# SPDX-License-Identifier: GPL-2.0-only
"""Carry out a list of steps on one disk inside the guest; see bench/README.md.

The job is a JSON file that bench/lab.py writes; results go to result.json
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

import blocktrace

MOUNTPOINT = Path("/run/itree-bench")
QUEUE = ("scheduler", "rotational", "read_ahead_kb", "max_sectors_kb", "nr_requests")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def run(command: list[str], timeout: float = 300) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=timeout)


def put(path: Path, text: str) -> None:
    path.write_text(text)


class Guest:
    def __init__(self, job: dict, share: Path):
        self.job = job
        self.share = share
        self.disk = job["disk"]
        self.mounted = ""

    def mount(self, options: str) -> None:
        MOUNTPOINT.mkdir(parents=True, exist_ok=True)
        run(["mount", "-t", self.job["fstype"], "-o", options, f"/dev/{self.disk}", MOUNTPOINT])
        self.mounted = options

    def umount(self) -> None:
        if self.mounted:
            run(["umount", MOUNTPOINT], timeout=900)
            self.mounted = ""

    def settle(self) -> None:
        """Leave nothing dirty and nothing cached."""
        os.sync()
        put(Path("/proc/sys/vm/drop_caches"), "3")
        for _ in range(300):
            if not blocktrace.disk_stat(self.disk)["in_flight"]:
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.disk} does not come to rest")

    def queue(self) -> dict[str, str]:
        base = Path(f"/sys/block/{self.disk}/queue")
        return {name: (base / name).read_text().strip() for name in QUEUE}

    def journal(self) -> dict[str, int]:
        """Commits so far, as jbd2 counts them."""
        for info in Path("/proc/fs/jbd2").glob(f"{self.disk}-*/info"):
            words = info.read_text().split()
            return {"commits": int(words[0])}
        return {}

    def counters(self) -> dict[str, int]:
        """The tree's own counters, where the kernel has them."""
        found = {}
        base = Path(f"/sys/fs/ext4/{self.disk}")
        for path in sorted(base.glob("itree*")) + sorted(base.glob("itree*/*")):
            if path.is_file():
                try:
                    found[path.name] = int(path.read_text())
                except (ValueError, OSError):
                    continue
        return found

    def step(self, step: dict) -> dict:
        options = step["options"]
        if step["cold"] or options != self.mounted:
            self.umount()
            self.mount(options)
        if step["cold"]:
            self.settle()
        command = [part.replace("{mnt}", str(MOUNTPOINT)) for part in step["command"]]
        output = self.share / f"{step['name']}.out"
        told: dict[str, object] = {"name": step["name"], "command": command, "options": options}
        commits = self.journal().get("commits", 0)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        if step["trace"]:
            told |= blocktrace.record(
                command,
                self.disk,
                self.share / f"{step['name']}.trace.gz",
                output,
                step["timeout"],
            )
        else:
            begin = time.monotonic()
            with open(output, "wb") as out:
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    timeout=step["timeout"],
                    check=False,
                )
            told |= {"status": done.returncode, "wall": time.monotonic() - begin}
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        told["cpu_seconds"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        told["commits"] = self.journal().get("commits", 0) - commits
        told["counters"] = self.counters()
        if told["status"]:
            raise RuntimeError(f"{step['name']}: {command[0]} ended with {told['status']}")
        return told

    def main(self) -> None:
        scheduler = Path(f"/sys/block/{self.disk}/queue/scheduler")
        # one queue of a rotating disk: what a SATA or SAS disk gets by default
        put(scheduler, "mq-deadline")
        memory = Path("/proc/meminfo").read_text().splitlines()[0].split()
        result: dict[str, object] = {
            "kernel": os.uname().release,
            "memory_kib": int(memory[1]),
            "itree": Path("/sys/fs/ext4/features/itree").exists(),
            "queue": self.queue(),
            "steps": [],
        }
        try:
            for step in self.job["steps"]:
                begin = time.monotonic()
                told = self.step(step)
                result["steps"].append(told)
                (self.share / "result.json").write_text(json.dumps(result))
                say(f"    {step['title']}: {told['wall']:.1f} s")
                if time.monotonic() - begin > told["wall"] + 30:
                    say(f"    ({time.monotonic() - begin:.0f} s with mounting and settling)")
        finally:
            self.umount()
        (self.share / "result.json").write_text(json.dumps({**result, "done": True}))


def main() -> int:
    path = Path(sys.argv[1])
    try:
        Guest(json.loads(path.read_text()), path.parent).main()
    except (RuntimeError, OSError, blocktrace.TraceError, subprocess.SubprocessError) as error:
        say(f"guest: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
