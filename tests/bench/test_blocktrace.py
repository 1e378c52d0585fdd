# SPDX-License-Identifier: GPL-2.0-only
"""The recorder's parser and its checks; no kernel needed."""

import blocktrace
import model
import pytest
from blocktrace import TraceError
from model import Request

LINES = """\
              ls-123     [001] .....    12.000100: block_rq_issue: 254,0 R 4096 () 64 + 8 none,0,0 [ls]
    kworker/0:1H-77      [000] d..1.    12.500000: block_rq_issue: 254,0 WS 8192 () 1000 + 16 be,4,0 [kworker/0:1H]
     jbd2/vda-8-50      [000] .....    13.000000: block_rq_issue: 254,0 FF 0 () 0 + 0 none,0,0 [jbd2/vda-8]

         a b c-9       [000] .....    13.250100: block_rq_issue: 254,0 RA 131072 () 72 + 256 [a b c]
"""


def stat(reads=0, read_sectors=0, written_sectors=0, in_flight=0):
    return {
        "reads": reads,
        "read_sectors": read_sectors,
        "written_sectors": written_sectors,
        "in_flight": in_flight,
    }


def test_lines_of_the_event():
    assert blocktrace.parse(LINES.splitlines()) == [
        Request(0.0, "R", 64, 8, "ls"),
        Request(pytest.approx(0.4999), "WS", 1000, 16, "kworker/0:1H"),
        Request(pytest.approx(0.9999), "FF", 0, 0, "jbd2/vda-8"),
        Request(pytest.approx(1.25), "RA", 72, 256, "a b c"),
    ]


def test_lost_events_are_an_error():
    with pytest.raises(TraceError, match="line 1"):
        blocktrace.parse(["CPU:1 [LOST 17 EVENTS]", *LINES.splitlines()])


def test_torn_line_is_an_error():
    with pytest.raises(TraceError):
        blocktrace.parse(LINES[:-20].splitlines())


def test_the_disk_agrees():
    requests = blocktrace.parse(LINES.splitlines())
    before = stat(10, 100, 50)
    blocktrace.check_against_disk(requests, before, stat(12, 364, 66))


@pytest.mark.parametrize(
    "after",
    [stat(13, 364, 66), stat(12, 372, 66), stat(12, 364, 82), stat(12, 364, 66, 1)],
)
def test_the_disk_disagrees(after):
    with pytest.raises(TraceError):
        blocktrace.check_against_disk(blocktrace.parse(LINES.splitlines()), stat(10, 100, 50), after)


def test_convert_checks_and_writes(tmp_path):
    raw, trace = tmp_path / "t.raw", tmp_path / "t.gz"
    raw.write_text(LINES)
    recorded = {"events": 4, "before": stat(10, 100, 50), "after": stat(12, 364, 66)}
    with pytest.raises(TraceError, match="5 events read, 4 lines"):
        blocktrace.convert(raw, trace, {**recorded, "events": 5})
    with pytest.raises(TraceError, match="reads"):
        blocktrace.convert(raw, trace, {**recorded, "after": stat(11, 364, 66)})
    assert not trace.exists()
    assert len(blocktrace.convert(raw, trace, recorded)) == 4
    assert len(model.read_trace(trace)) == 4
    assert not raw.exists()
