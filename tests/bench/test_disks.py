# SPDX-License-Identifier: GPL-2.0-only
"""Each disk model against its data sheet, with traces, as it is used."""

import random

import pytest

from model import disks, pricing
from model.disks import DISKS, NET2, NVME, SAS10K, SATA7K, Rotating, Solid
from trace.records import Request

ROTATING = [d for d in DISKS.values() if isinstance(d, Rotating)]
SOLID = [d for d in DISKS.values() if isinstance(d, Solid)]


def by_name(disk):
    return disk.name


def random_reads(disk, count, size=4096, seed=1):
    """Reads of places taken at random from the whole disk."""
    pick = random.Random(seed)
    blocks = disk.capacity // size
    return [Request(0.0, "R", pick.randrange(blocks) * size // 512, size // 512, "x") for _ in range(count)]


def sequential(count, size=1 << 20, rwbs="R"):
    return [Request(0.0, rwbs, i * size // 512, size // 512, "x") for i in range(count)]


@pytest.mark.parametrize("disk", ROTATING, ids=by_name)
def test_average_seek_over_all_pairs_of_places(disk):
    # as the specifications define it: the distance x has the weight 2 * (1 - x)
    steps = 20_000
    places = [(i + 0.5) / steps for i in range(steps)]
    average = sum(2 * (1 - x) * disk.move_ms(x) for x in places) / steps
    assert average == pytest.approx(disk.sheet.average_seek_ms, rel=0.03)


@pytest.mark.parametrize("disk", [d for d in ROTATING if d.sheet.full_stroke_ms], ids=by_name)
def test_full_stroke(disk):
    assert disk.move_ms(1.0) == pytest.approx(disk.sheet.full_stroke_ms, rel=0.03)


@pytest.mark.parametrize("disk", ROTATING, ids=by_name)
def test_half_a_turn_is_the_latency_of_the_sheet(disk):
    assert disk.turn == pytest.approx(disk.sheet.latency_ms, rel=0.01)


@pytest.mark.parametrize("disk", ROTATING, ids=by_name)
def test_longer_seeks_never_take_less(disk):
    times = [disk.move_ms(i / 1000) for i in range(1001)]
    assert all(b >= a - 0.02 for a, b in zip(times, times[1:], strict=False))


@pytest.mark.parametrize("disk", ROTATING, ids=by_name)
def test_random_reads_a_second_follow_from_seek_and_latency(disk):
    sheet = disk.sheet
    expected = 1000 / (disk.miss + sheet.average_seek_ms + sheet.latency_ms + 4.096 / sheet.megabytes_per_second)
    count = 4000
    assert count / pricing.price(random_reads(disk, count), disk).seconds == pytest.approx(expected, rel=0.04)


def test_commands_cost_what_the_sheet_says():
    assert (SAS10K.hit, SAS10K.miss) == (SAS10K.sheet.hit_ms, SAS10K.sheet.miss_ms)


def test_random_reads_take_as_long_as_the_sheet_says():
    count = 4000
    seconds = pricing.price(random_reads(SAS10K, count, 512), SAS10K).seconds
    assert seconds / count * 1000 == pytest.approx(SAS10K.sheet.random_read_ms, rel=0.05)


@pytest.mark.parametrize("disk", ROTATING, ids=by_name)
def test_small_requests_in_order_are_limited_by_their_commands(disk):
    count = 1000
    seconds = pricing.price(sequential(count, 4096), disk).seconds
    assert seconds == pytest.approx(count * (disk.hit + disk.transfer_ms(4096)) / 1000)
    assert count / seconds < 1000 / disk.hit


@pytest.mark.parametrize("disk", ROTATING, ids=by_name)
def test_sequential_rate_of_a_rotating_disk(disk):
    total = pricing.price(sequential(500), disk)
    assert total.bytes / total.seconds / 1e6 == pytest.approx(disk.sheet.megabytes_per_second, rel=0.01)
    assert total.queued == total.seconds


@pytest.mark.parametrize("disk", SOLID, ids=by_name)
def test_one_request_at_a_time_takes_the_latency_of_the_sheet(disk):
    total = pricing.price(random_reads(disk, 1000), disk)
    assert total.seconds == pytest.approx(disk.sheet.latency_ms, rel=0.05)


@pytest.mark.parametrize("disk", SOLID, ids=by_name)
def test_many_requests_in_flight_reach_the_rate_of_the_sheet(disk):
    requests = 100_000
    total = pricing.price(random_reads(disk, requests), disk)
    assert requests / total.queued == pytest.approx(disk.sheet.iops, rel=0.02)


@pytest.mark.parametrize("disk", SOLID, ids=by_name)
def test_large_requests_in_flight_reach_the_bandwidth_of_the_sheet(disk):
    total = pricing.price(sequential(3000), disk)
    assert total.bytes / total.queued / 1e6 == pytest.approx(disk.sheet.megabytes_per_second, rel=0.01)
    assert total.queued < total.seconds


def test_place_does_not_matter_where_nothing_moves():
    near, far = sequential(100, 4096), random_reads(NVME, 100)
    assert pricing.price(near, NVME).seconds == pytest.approx(pricing.price(far, NVME).seconds)
    assert pricing.price(far, SATA7K).seconds > 100 * pricing.price(near, SATA7K).seconds


def test_writes_have_a_price_of_their_own():
    # 20 us and 4,096 bytes at 1,050 MB/s
    assert pricing.price(sequential(1, 4096, "W"), NVME).seconds == pytest.approx(20e-6 + 4096 / 1.05e9)


def test_the_queue_never_makes_it_slower():
    one = pricing.price(sequential(1, 4096), NET2)
    assert one.queued <= one.seconds
    assert pricing.price([], NET2).queued == 0


def test_distance_is_summed_both_ways():
    requests = [Request(0.0, "R", 100, 8, "x"), Request(0.0, "R", 0, 8, "x")]
    assert pricing.price(requests).distance == (100 + 108) * 512


def test_a_trace_is_priced_on_every_disk():
    result = pricing.on_all_disks([*sequential(10, 4096), *sequential(5, 4096, "WS")])
    assert set(result) == set(disks.DISKS)
    for name, seconds in result.items():
        assert 0 < seconds["reads"] < seconds["all"], name
        assert seconds["all_queued"] <= seconds["all"], name


def test_the_disk_of_the_design_is_the_default():
    requests = random_reads(SAS10K, 50)
    assert pricing.price(requests) == pricing.price(requests, SAS10K)
