# SPDX-License-Identifier: GPL-2.0-only
"""Record the block requests that a command makes on one disk.

Runs inside the guest, as root. Uses the block_rq_issue event in a tracing
instance of its own; the buffers' pages are drained to a file while the command
runs, so they stay small in a guest of 192 MiB, and are read later, outside.
Three checks make a lost event an error and not a low figure: the buffers' own
overrun counters, the number of events read against the number found in the
pages, and the disk's own counts of completed requests and sectors against the
trace's.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from trace import records, ringbuffer

TRACING = Path("/sys/kernel/tracing")
BUFFER_KIB = 2048
# An issue that is repeated follows the first one within so many requests: what a queue holds.
REPEATED_WITHIN = 256


class TraceError(Exception):
    """The recording cannot be trusted."""


def parse(pages: bytes, layout: str) -> list[records.Request]:
    """Requests in the pages of a ring buffer; @layout is the event's format file. A lost event is an error."""
    requests = []
    try:
        kind, fields = ringbuffer.fields_of(layout)
        found = ringbuffer.events(pages)
    except ringbuffer.RingBufferError as error:
        raise TraceError(str(error)) from error
    for stamp, data in found:
        if ringbuffer.number(data, fields["common_type"]) != kind:
            raise TraceError("the trace holds another event")
        requests.append(
            records.Request(
                (stamp - found[0][0]) / 1e9,
                ringbuffer.string(data, fields["rwbs"]),
                ringbuffer.number(data, fields["sector"]),
                ringbuffer.number(data, fields["nr_sector"]),
                ringbuffer.string(data, fields["comm"]),
            )
        )
    return requests


def disk_stat(disk: str) -> dict[str, int]:
    fields = [int(f) for f in Path(f"/sys/block/{disk}/stat").read_text().split()]
    return {
        "reads": fields[0],
        "read_sectors": fields[2],
        "written_sectors": fields[6],
        "in_flight": fields[8],
    }


def check_against_disk(requests: list[records.Request], before: dict[str, int], after: dict[str, int]) -> None:
    """The disk's own counters must tell what the trace tells.

    Not the number of writes: the kernel counts an empty flush among them, and
    no event tells of it. A lost write shows in the sectors.
    """
    if before["in_flight"] or after["in_flight"]:
        raise TraceError("requests in flight at the start or the end of the recording")
    seen = {
        "reads": sum(1 for r in requests if r.is_read),
        "read_sectors": sum(r.sectors for r in requests if r.is_read),
        "written_sectors": sum(r.sectors for r in requests if r.is_write),
    }
    for what, count in seen.items():
        counted = after[what] - before[what]
        if counted != count:
            raise TraceError(f"{what}: the trace has {count}, the disk counted {counted}")


def without_repeated(
    requests: list[records.Request], before: dict[str, int], after: dict[str, int]
) -> list[records.Request]:
    """The requests without those that the disk's driver could not take at once, which were issued twice.

    Only as many reads as the trace has more than the disk counted, and only if the same one was issued just before.
    """
    excess = sum(r.is_read for r in requests) - (after["reads"] - before["reads"])
    if excess <= 0:
        return requests
    kept: list[records.Request] = []
    recent: collections.deque[tuple[int, int]] = collections.deque(maxlen=REPEATED_WITHIN)
    for request in requests:
        place = (request.sector, request.sectors)
        if excess and request.is_read and place in recent:
            excess -= 1
            continue
        recent.append(place)
        kept.append(request)
    return kept


class Recorder:
    """A tracing instance that records one disk's requests to a file of pages."""

    def __init__(self, disk: str, raw: Path):
        self.disk = disk
        self.raw = raw
        self.dir = TRACING / "instances" / f"itree-{os.getpid()}"
        self.pipes: list[int] = []
        self.layout = ""
        self.before: dict[str, int] = {}
        self.after: dict[str, int] = {}

    def put(self, name: str, value: str) -> None:
        (self.dir / name).write_text(value)

    def start(self) -> None:
        if not (TRACING / "instances").is_dir():
            TRACING.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tracefs", "none", TRACING], check=True, timeout=30)
        self.dir.mkdir()
        self.put("tracing_on", "0")
        self.put("trace_clock", "mono")
        self.put("buffer_size_kb", str(BUFFER_KIB))
        major, minor = Path(f"/sys/block/{self.disk}/dev").read_text().strip().split(":")
        # the kernel's own dev_t: 12 bits of major, 20 of minor
        dev = (int(major) << 20) | int(minor)
        self.put("events/block/block_rq_issue/filter", f"dev == {dev}")
        self.put("events/block/block_rq_issue/enable", "1")
        self.layout = (self.dir / "events/block/block_rq_issue/format").read_text()
        for pipe in sorted(self.dir.glob("per_cpu/cpu*/trace_pipe_raw")):
            self.pipes.append(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))
        self.out = open(self.raw, "wb", buffering=0)  # noqa: SIM115 - closed in close()
        self.before = disk_stat(self.disk)
        self.put("tracing_on", "1")

    def drain(self, wait: float) -> None:
        """Move what the buffers hold to the file; wait for more if empty."""
        select.select(self.pipes, [], [], wait)
        for pipe in self.pipes:
            with contextlib.suppress(BlockingIOError):
                while page := os.read(pipe, ringbuffer.PAGE):
                    self.out.write(page.ljust(ringbuffer.PAGE, b"\0"))

    def stop(self) -> dict[str, object]:
        """What convert() needs to know beside the raw trace."""
        for _ in range(100):
            self.after = disk_stat(self.disk)
            if not self.after["in_flight"]:
                break
            time.sleep(0.1)
        self.put("tracing_on", "0")
        self.drain(0)
        read = 0
        for stats in self.dir.glob("per_cpu/cpu*/stats"):
            stat = dict(line.split(":", 1) for line in stats.read_text().splitlines() if ":" in line)
            for what in ("overrun", "commit overrun", "dropped events"):
                if int(stat[what]):
                    raise TraceError(f"{stats.parent.name}: {what}: {stat[what].strip()}")
            if int(stat["entries"]):
                raise TraceError(f"{stats.parent.name}: events left in the buffer")
            read += int(stat["read events"])
        return {"events": read, "layout": self.layout, "before": self.before, "after": self.after}

    def close(self) -> None:
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = []
        with contextlib.suppress(OSError, AttributeError):
            self.out.close()
        with contextlib.suppress(OSError):
            self.put("tracing_on", "0")
            self.put("events/enable", "0")
        with contextlib.suppress(OSError):
            self.dir.rmdir()


def record(command: list[str], disk: str, raw: Path, output: Path, timeout: float) -> dict[str, object]:
    """Run a command with its disk's requests recorded to a raw trace; its output goes to a file.

    Raises TraceError if an event was lost and TimeoutError if it takes too long.
    """
    recorder = Recorder(disk, raw)
    process = None
    try:
        recorder.start()
        begin = time.monotonic()
        with open(output, "wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=sys.stderr)
            while process.poll() is None:
                if time.monotonic() - begin > timeout:
                    raise TimeoutError(f"{command[0]}: not done in {timeout:.0f} s")
                recorder.drain(0.1)
        wall = time.monotonic() - begin
        return {"status": process.returncode, "wall": wall, "recorded": recorder.stop()}
    finally:
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        recorder.close()


def convert(raw: Path, trace: Path, recorded: dict, alone: bool = True) -> list[records.Request]:
    """Check a raw trace, write it in the compact form and remove it.

    Apart from record() because a small, slow guest is no place to parse in.
    Without `alone` others use the disk too, so that requests may be in flight
    when the recording begins and ends: the disk's counters prove nothing then.
    """
    requests = parse(raw.read_bytes(), recorded["layout"])
    if recorded["events"] != len(requests):
        raise TraceError(f"{recorded['events']} events read, {len(requests)} found in the pages")
    if alone:
        requests = without_repeated(requests, recorded["before"], recorded["after"])
        check_against_disk(requests, recorded["before"], recorded["after"])
    records.write_trace(trace, requests)
    raw.unlink()
    return requests
