# SPDX-License-Identifier: GPL-2.0-only
"""A test that still writes is slow, one that does not hangs."""

import pytest
from watching import LONGEST, STUCK, Watch

TEST = "generic/027"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def guest(tmp_path):
    (tmp_path / "results" / "generic").mkdir(parents=True)
    (tmp_path / "check.out").write_text(f"{TEST}   ")
    clock = Clock()
    return tmp_path, clock, Watch(tmp_path, "4k itree", 10, 0, clock)


def write(path, text: str) -> None:
    with open(path, "a") as handle:
        handle.write(text)


def test_silence_is_a_hang(guest):
    _, clock, watch = guest
    assert not watch.hangs()
    clock.now += STUCK
    assert not watch.hangs()
    clock.now += 1
    assert watch.hangs()


@pytest.mark.parametrize("name", ["check.out", f"results/{TEST}.full"])
def test_writing_is_no_hang(guest, name):
    share, clock, watch = guest
    for _ in range(3):
        assert not watch.hangs()
        clock.now += STUCK
        write(share / name, " 1")
    assert not watch.hangs()


def test_writing_without_end_is_a_hang(guest):
    share, clock, watch = guest
    assert not watch.hangs()
    for _ in range(LONGEST // STUCK):
        clock.now += STUCK
        write(share / "results" / f"{TEST}.full", " 1")
        assert not watch.hangs()
    clock.now += 1
    write(share / "results" / f"{TEST}.full", " 1")
    assert watch.hangs()
    # The next test has all of its time.
    write(share / "check.out", "3600s\ngeneric/028   ")
    assert not watch.hangs()
