# SPDX-License-Identifier: GPL-2.0-only
"""What itree-advise works out, on layouts small enough to count by hand."""

import random

import pytest

from model import estimate
from model.disks import NVME, SAS10K
from model.estimate import Geometry

# two groups of 4,096 inodes: 256 blocks of table each, 8 windows of 32 blocks
WHERE = Geometry(4096, 256, 4096, [1000, 50_000])
PER_WINDOW = 32 * 16


def blocks_of(requests):
    return [r.sector // 8 for r in requests]


def test_the_block_of_an_inode():
    assert [WHERE.block_of(n) for n in (1, 16, 17, 4096, 4097)] == [1000, 1000, 1001, 1255, 50_000]
    assert [WHERE.window_of(n) for n in (1, PER_WINDOW, PER_WINDOW + 1, 4097)] == [1000, 1000, 1032, 50_000]


def test_an_inode_beyond_the_last_group_is_an_error():
    with pytest.raises(ValueError, match="group 2"):
        WHERE.block_of(2 * 4096 + 1)


def test_in_tree_order_everything_is_read_once_and_forwards():
    inodes = random.Random(1).sample(range(1, 8193), 4000)
    requests = estimate.in_tree_order(inodes, [70_001, 70_000, 90_000], WHERE)
    directory, tables = requests[:3], requests[3:]
    assert blocks_of(directory) == [70_000, 90_000, 90_001]  # the last is the tree: 9 bytes an entry
    assert directory[0].sectors == 16 and directory[2].sectors == 9 * 8
    assert sum(r.sectors for r in tables) == 2 * 256 * 8  # both tables
    assert blocks_of(tables) == sorted(blocks_of(tables))


def test_in_hash_order_each_window_is_sought_once_while_memory_lasts():
    inodes = random.Random(1).sample(range(1, 8193), 4000)
    blocks = list(range(70_000, 70_040))
    requests = estimate.in_readdir_order(inodes, blocks, True, WHERE, 1 << 30)
    assert len(requests) == 40 + 16
    assert sorted(b for b in blocks_of(requests) if b >= 70_000) == blocks
    scarce = estimate.in_readdir_order(inodes, blocks, True, WHERE, 1 << 20)
    assert len(scarce) > 1000  # 8 windows of 16 fit


def test_without_an_index_the_directory_is_read_in_its_order():
    requests = estimate.in_readdir_order([1, 2, 3, 4], [70_005, 70_001], False, WHERE, 1 << 20)
    assert blocks_of(requests) == [70_005, 1000, 70_001]


def test_a_directory_in_inode_order_gains_little():
    inodes = list(range(1, 4001))
    now = estimate.in_readdir_order(inodes, list(range(70_000, 70_040)), False, WHERE, 1 << 30)
    tree = estimate.in_tree_order(inodes, list(range(70_000, 70_040)), WHERE)
    mixed = random.Random(2).sample(inodes, len(inodes))
    hashed = estimate.in_readdir_order(mixed, list(range(70_000, 70_040)), True, WHERE, 1 << 20)
    assert len(hashed) == len(now) == 40 + 8
    assert estimate.seconds(hashed, SAS10K) > estimate.seconds(now, SAS10K) > estimate.seconds(tree, SAS10K)
    assert estimate.seconds(hashed, SAS10K) > 5 * estimate.seconds(tree, SAS10K)


def test_a_handful_of_files_costs_the_same_either_way():
    inodes = [12, 15, 11, 14]
    now = estimate.in_readdir_order(inodes, [70_000], False, WHERE, 1 << 20)
    assert estimate.seconds(now, SAS10K) == estimate.seconds(estimate.in_tree_order(inodes, [70_000], WHERE), SAS10K)


def test_data_in_disk_order_and_in_any_order():
    places = [(i * 8192, 4096) for i in range(1000)]
    mixed = random.Random(3).sample(places, len(places))
    now, then = estimate.data_seconds(mixed, 1000, SAS10K)
    ordered, same = estimate.data_seconds(places, 1000, SAS10K)
    assert now > 20 * then
    assert ordered == pytest.approx(same) == pytest.approx(then)


def test_a_sample_stands_for_all_files():
    pick = random.Random(4)
    places = [(i * 8192, 4096) for i in range(20_000)]
    mixed = pick.sample(places, len(places))
    now, then = estimate.data_seconds(mixed, len(places), SAS10K)
    some_now, some_then = estimate.data_seconds(mixed[:1000], len(places), SAS10K)
    assert some_now == pytest.approx(now, rel=0.1)
    assert some_then == pytest.approx(then, rel=0.1)


def test_order_is_nothing_to_a_disk_that_does_not_seek():
    mixed = random.Random(5).sample([(i * 8192, 4096) for i in range(100)], 100)
    now, then = estimate.data_seconds(mixed, 100, NVME)
    assert now == pytest.approx(then)


def test_no_data_costs_nothing():
    assert estimate.data_seconds([], 0, SAS10K) == (0.0, 0.0)
