# SPDX-License-Identifier: GPL-2.0-only
"""The recorder's parser and its checks; no kernel needed."""

import struct

import pytest

from trace import blocktrace, records
from trace.blocktrace import TraceError
from trace.records import Request

LAYOUT = """\
name: block_rq_issue
ID: 1117
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:unsigned char common_flags;\toffset:2;\tsize:1;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;
\tfield:sector_t sector;\toffset:16;\tsize:8;\tsigned:0;
\tfield:unsigned int nr_sector;\toffset:24;\tsize:4;\tsigned:0;
\tfield:unsigned int bytes;\toffset:28;\tsize:4;\tsigned:0;
\tfield:char rwbs[8];\toffset:34;\tsize:8;\tsigned:0;
\tfield:char comm[16];\toffset:42;\tsize:16;\tsigned:0;
\tfield:__data_loc char[] cmd;\toffset:60;\tsize:4;\tsigned:0;

print fmt: "..."
"""
SECOND = 10**9


def event(delta, rwbs, sector, sectors, comm, kind=1117):
    data = struct.pack("<HBxiIxxxxQIIH8s16sxxI", kind, 0, 7, 0xFE00000, sector, sectors, 0, 0, rwbs, comm, 0)
    assert len(data) == 64 and delta < 1 << 27
    return struct.pack("<I", delta << 5 | len(data) // 4) + data


def long_event(delta, *what):
    """The same with its length in a word of its own, as events longer than 112 bytes have it."""
    body = event(0, *what)[4:] + bytes(64)
    return struct.pack("<II", delta << 5, len(body) + 4) + body


def extend(delta):
    """A gap too long for the 27 bits of an event."""
    return struct.pack("<II", (delta & (1 << 27) - 1) << 5 | 30, delta >> 27)


def page(stamp, *parts, flags=0):
    body = b"".join(parts)
    return struct.pack("<QQ", stamp, len(body) | flags).ljust(16) + body.ljust(4080, b"\0")


FIRST = page(
    12 * SECOND,
    event(100_000, b"R", 64, 8, b"ls"),
    extend(SECOND - 100_000),
    long_event(0, b"FF", 0, 0, b"jbd2/vda-8"),
    struct.pack("<II", 0 << 5 | 29, 0),
)
OTHER_CPU = page(
    12 * SECOND + SECOND // 2,
    event(0, b"WS", 1000, 16, b"kworker/0:1H"),
    struct.pack("<II", 5 << 5 | 29, 8) + bytes(4),
    struct.pack("<II", (14 * SECOND & (1 << 27) - 1) << 5 | 31, 14 * SECOND >> 27),
    event(7, b"RA", 72, 256, b"a b c"),
)
PAGES = OTHER_CPU + FIRST


def stat(reads=0, read_sectors=0, written_sectors=0, in_flight=0):
    return {
        "reads": reads,
        "read_sectors": read_sectors,
        "written_sectors": written_sectors,
        "in_flight": in_flight,
    }


def test_events_of_all_pages_in_order_of_time():
    assert blocktrace.parse(PAGES, LAYOUT) == [
        Request(0.0, "R", 64, 8, "ls"),
        Request(pytest.approx(0.4999), "WS", 1000, 16, "kworker/0:1H"),
        Request(pytest.approx(0.9999), "FF", 0, 0, "jbd2/vda-8"),
        Request(pytest.approx(1.9999), "RA", 72, 256, "a b c"),
    ]


def test_lost_events_are_an_error():
    lost = page(0, event(0, b"R", 64, 8, b"ls"), flags=1 << 31)
    with pytest.raises(TraceError, match="lost"):
        blocktrace.parse(PAGES + lost, LAYOUT)


@pytest.mark.parametrize(
    "pages, match",
    [
        (PAGES[:-20], "whole pages"),
        (struct.pack("<QQ", 0, 5000).ljust(4096, b"\0"), "torn"),
        (page(0, event(0, b"R", 64, 8, b"ls")[:-8]), "leaves its page"),
        (page(0, event(0, b"R", 64, 8, b"ls", kind=9)), "another event"),
        (page(0, struct.pack("<II", 0, 2)), "leaves its page"),
    ],
)
def test_what_is_no_trace_is_an_error(pages, match):
    with pytest.raises(TraceError, match=match):
        blocktrace.parse(pages, LAYOUT)


def test_an_unknown_layout_is_an_error():
    with pytest.raises(TraceError, match="format"):
        blocktrace.parse(PAGES, "nothing")


def test_the_disk_agrees():
    requests = blocktrace.parse(PAGES, LAYOUT)
    before = stat(10, 100, 50)
    blocktrace.check_against_disk(requests, before, stat(12, 364, 66))


@pytest.mark.parametrize(
    "after",
    [stat(13, 364, 66), stat(12, 372, 66), stat(12, 364, 82), stat(12, 364, 66, 1)],
)
def test_the_disk_disagrees(after):
    with pytest.raises(TraceError):
        blocktrace.check_against_disk(blocktrace.parse(PAGES, LAYOUT), stat(10, 100, 50), after)


def test_a_request_issued_twice_counts_once():
    requests = blocktrace.parse(PAGES, LAYOUT)
    reads = [r for r in requests if r.is_read]
    twice = [*requests, reads[-1]]
    before, after = stat(10, 100, 50), stat(12, 364, 66)
    assert blocktrace.without_repeated(twice, before, after) == requests
    # More than the disk counted, but none of them twice: it stays wrong.
    assert len(blocktrace.without_repeated(requests, before, stat(11, 364, 66))) == len(requests)


def test_convert_checks_and_writes(tmp_path):
    raw, trace = tmp_path / "t.raw", tmp_path / "t.gz"
    raw.write_bytes(PAGES)
    recorded = {"events": 4, "layout": LAYOUT, "before": stat(10, 100, 50), "after": stat(12, 364, 66)}
    with pytest.raises(TraceError, match="5 events read, 4 found"):
        blocktrace.convert(raw, trace, {**recorded, "events": 5})
    with pytest.raises(TraceError, match="reads"):
        blocktrace.convert(raw, trace, {**recorded, "after": stat(11, 364, 66)})
    assert not trace.exists()
    assert len(blocktrace.convert(raw, trace, recorded)) == 4
    assert len(records.read_trace(trace)) == 4
    assert not raw.exists()
