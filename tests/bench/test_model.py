# SPDX-License-Identifier: GPL-2.0-only
"""The disk model against prices worked out by hand."""

import gzip

import pytest

from model import pricing
from model.disks import SAS10K
from trace import records
from trace.records import Request

GB = 1_000_000_000


def req(sector, sectors, rwbs="R"):
    return Request(0.0, rwbs, sector, sectors, "x")


def test_seek_at_the_ends_and_the_middle_of_both_formulas():
    # x = 0.01: 0.4 + 7.3 * 0.1 = 1.13; x = 0.25: 0.4 + 3.65 = 4.05; x = 1: 4.6 + 5.6
    assert SAS10K.seek_ms(int(1.5 * GB)) == pytest.approx(1.13 + 3)
    assert SAS10K.seek_ms(int(37.5 * GB)) == pytest.approx(4.05 + 3)
    assert SAS10K.seek_ms(150 * GB) == pytest.approx(10.2 + 3)
    assert SAS10K.seek_ms(75 * GB) == pytest.approx(4.6 + 8.4 / 6 + 3)


def test_nothing_costs_nothing():
    assert pricing.price([]) == pricing.Price()


def test_sequential_from_zero_is_commands_and_transfer():
    # 75 MB in two requests, end to end: one second, and two commands of 30 us
    half = 75_000_000 // 2 // 512
    total = pricing.price([req(0, half), req(half, half)])
    assert total.requests == 2
    assert total.seeks == 0
    assert total.seconds == pytest.approx(2 * half * 512 / 75e6 + 60e-6, rel=1e-9)


def test_one_far_request():
    # a quarter of the disk: 0.4 ms of command, 7.05 ms of seek and turn, 0.0546 ms of transfer
    sector = 73_242_187
    total = pricing.price([req(sector, 8)])
    x = sector * 512 / 150e9
    assert total.seconds * 1000 == pytest.approx(0.4 + 0.4 + 7.3 * x**0.5 + 3 + 4096 / 75e6 * 1000)
    assert total.seconds * 1000 == pytest.approx(7.5046, abs=1e-3)
    assert (total.requests, total.seeks, total.bytes) == (1, 1, 4096)


def test_small_gap_is_read_through():
    # 75,264 bytes of gap (147 sectors) at 75 MB/s: 1.00352 ms, less than any seek; both commands are cached
    total = pricing.price([req(0, 8), req(8 + 147, 8)])
    assert total.seeks == 1
    assert total.read_through == 1
    assert total.seconds * 1000 == pytest.approx(2 * 0.03 + 1.00352 + 2 * 4096 / 75e3)


def test_one_pass_reads_everything_once_and_in_order():
    # twice, backwards, overlapping, and a write: 16 sectors in one piece, then 8 behind a gap of 147
    order = [req(163, 8), req(8, 8), req(0, 8), req(4, 8), req(163, 8), req(900, 8, "W")]
    assert pricing.one_pass(order) * 1000 == pytest.approx(1.00352 + 3 * 4096 / 75e3)
    assert pricing.price(order).seconds > 5 * pricing.one_pass(order)
    assert pricing.one_pass([req(900, 8, "W")]) == 0


def test_gap_of_2_mib_is_sought_because_that_is_less():
    # 2 MiB at 75 MB/s is 27.96 ms, a seek over it 0.4 + 7.3 * sqrt(1.398e-5) + 3 = 3.4273 ms
    total = pricing.price([req(0, 8), req(8 + 4096, 8)])
    assert total.seeks == 1
    assert total.read_through == 0
    assert total.seconds * 1000 == pytest.approx(0.03 + 0.4 + 3.4273 + 2 * 4096 / 75e3, abs=1e-4)


def test_the_lesser_of_both_turns_over_at_some_257_kb():
    # read through: 3.4096 ms * 75 kB/ms = 255.7 kB, seek 3.4095 ms
    below = pricing.price([req(0, 8), req(8 + 498, 8)])
    above = pricing.price([req(0, 8), req(8 + 501, 8)])
    assert (below.read_through, above.read_through) == (1, 0)


def test_backward_is_a_seek_however_near():
    total = pricing.price([req(0, 16), req(8, 8)])
    assert total.seeks == 1
    x = 4096 / 150e9
    assert total.seconds * 1000 == pytest.approx(0.03 + 0.4 + 0.4 + 7.3 * x**0.5 + 3 + (8192 + 4096) / 75e3, rel=1e-9)


def test_order_is_kept():
    near_first = pricing.price([req(8, 8), req(200_000_000, 8)])
    far_first = pricing.price([req(200_000_000, 8), req(8, 8)])
    assert far_first.seconds > near_first.seconds


def test_flushes_and_discards_are_not_priced():
    total = pricing.summary([req(0, 0, "FF"), req(0, 800, "D"), req(0, 8), req(8, 8, "WS")])
    assert total["flushes"] == 1
    assert total["reads"]["requests"] == 1
    assert total["writes"]["requests"] == 1
    assert total["all"]["requests"] == 2
    assert total["all"]["seeks"] == 0


def test_readahead_and_metadata_flags_are_reads():
    assert req(0, 8, "RA").is_read
    assert req(0, 8, "RM").is_read
    assert req(0, 8, "WFS").is_write
    assert req(0, 8, "FWFS").is_write
    assert not req(0, 8, "WFS").is_read


def test_blocks_written_in_extents():
    extents = [(1000, 80), (5000, 80)]
    writes = [
        req(1000, 8, "WS"),  # one block inside
        req(992, 16, "WS"),  # half of it inside: one block
        req(1072, 16, "WS"),  # one inside, one past the end
        req(100, 8, "W"),  # elsewhere
        req(1000, 8, "R"),  # a read
        req(0, 10_000, "W"),  # over both: 20 blocks
        req(5000, 16, "FWFS"),  # two
        req(0, 0, "FF"),
    ]
    assert records.blocks_written(writes, extents, 4096) == 1 + 1 + 1 + 20 + 2


def test_trace_file_round_trip(tmp_path):
    requests = [Request(0.25, "RA", 7, 8, "a b"), Request(1.5, "WS", 0, 16, "kworker/u4:1")]
    path = tmp_path / "t.gz"
    records.write_trace(path, requests)
    assert records.read_trace(path) == requests


def test_trace_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "t.gz"
    path.write_bytes(gzip.compress(b"hello\n"))
    with pytest.raises(ValueError, match="not a trace"):
        records.read_trace(path)
