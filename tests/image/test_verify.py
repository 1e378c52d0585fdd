# SPDX-License-Identifier: GPL-2.0-only
"""Rolling verification: every file of every snapshot is read again within the cycle, a part of them each day."""

import contextlib
import os
import shutil
import sqlite3

import pytest
from conftest import fill, maildir

CYCLE = 7  # days
DAY = 86400


@pytest.fixture
def backed(appliance, tmp_path):
    """A host with three snapshots, each with files that the next does not have; (appliance, client's directory)."""
    appliance.settings(f"[verify]\ncycle_days = {CYCLE}\n")
    top = tmp_path / "client"
    maildir(top / "mail", 200)
    appliance.host("mx1", "rsyncd", appliance.servers.rsync(all=top), "all")
    for n in range(3):
        fill(top, f"only{n}")
        appliance("run", "mx1")
        shutil.rmtree(top / f"only{n}")
    return appliance, top


def sums(appliance):
    return contextlib.closing(sqlite3.connect(appliance.volume / "mx1" / ".itree-backup" / "sums.sqlite"))


def ages(appliance):
    """{inode: when it was last read}."""
    with sums(appliance) as db:
        return dict(db.execute("select ino, checked from sums"))


def days_pass(appliance, number=1):
    with sums(appliance) as db:
        db.execute("update sums set checked = checked - ?", (number * DAY,))
        db.commit()


def rot(path):
    got = path.stat()
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(got.st_atime_ns, got.st_mtime_ns))


def files(appliance):
    """{inode: path} of all snapshots."""
    return {p.stat().st_ino: p for s in appliance.good("mx1") for p in s.rglob("*") if p.is_file()}


def test_each_file_within_the_cycle_and_no_more_a_day_than_its_share(backed):
    appliance, _ = backed
    every = files(appliance)
    assert len(every) == 203
    share = -(-len(every) // (CYCLE - 1))
    seen = set()
    for day in range(CYCLE):
        days_pass(appliance)
        before = ages(appliance)
        appliance("verify", "--rolling")
        after = ages(appliance)
        read = {ino for ino in after if after[ino] != before[ino]}
        assert len(read) == share, f"day {day}"
        seen |= read
        assert max(after.values()) - min(after.values()) <= CYCLE * DAY
    assert seen == set(every)


def test_rot_in_any_snapshot_is_told_within_the_cycle(backed):
    """In a file of the oldest snapshot alone, of the newest, and in one that all share."""
    appliance, _ = backed
    old, _, new = appliance.good("mx1")
    victims = [old / "only0" / "file", new / "only2" / "file", sorted((new / "mail" / "cur").iterdir())[50]]
    for one in victims:
        rot(one)
    output = ""
    for _ in range(CYCLE):
        days_pass(appliance)
        output += appliance("verify", "--rolling", ok=(0, 7))
    for one in victims:
        assert f"{one.parent.name}/{one.name}: is not what the client sent" in output
    assert "3 damaged files" in appliance("status", ok=(1,))
    # A later day that reads other files does not end the alarm.
    days_pass(appliance)
    appliance("verify", "--rolling", ok=(0, 7))
    assert "3 damaged files" in appliance("status", ok=(1,))


def test_nights_that_were_missed_are_made_up_for(backed):
    appliance, _ = backed
    days_pass(appliance, 60)
    before = ages(appliance)
    appliance("verify", "--rolling")
    after = ages(appliance)
    assert all(after[ino] > before[ino] for ino in after)


def test_records_of_removed_snapshots_take_no_turn(backed):
    """They would be the oldest for ever, and what is there would never be due."""
    appliance, _ = backed
    gone = {(appliance.good("mx1")[0] / "only0" / "file").stat().st_ino}
    appliance("prune", "mx1", "--remove", appliance.good("mx1")[0].name)
    with sums(appliance) as db:
        db.executemany("update sums set checked = 1 where ino = ?", [(ino,) for ino in gone])
        db.executemany("insert into sums values (?, 1, x'00', 1, 0)", [(10**9 + n,) for n in range(500)])
        db.commit()
    appliance("verify", "--rolling")
    assert set(ages(appliance)) == set(files(appliance))


def test_a_day_in_the_future_is_as_good_as_never(backed):
    appliance, _ = backed
    days_pass(appliance, -3650)
    appliance("verify", "--rolling")
    days_pass(appliance, 1)
    assert max(ages(appliance).values()) < max(p.stat().st_ctime for p in files(appliance).values()) + DAY


def test_checksums_find_a_change_that_kept_size_and_time(backed):
    """By size and time it is never fetched; the run with checksums fetches it, and the next is an ordinary one."""
    appliance, top = backed
    victim = sorted((top / "mail" / "cur").iterdir())[0]
    rot(victim)

    def same():
        return (appliance.good("mx1")[-1] / "mail" / "cur" / victim.name).read_bytes() == victim.read_bytes()

    appliance("run", "mx1")
    assert not same()
    appliance.settings("[verify]\nchecksum_days = 30\n")
    appliance("run", "mx1")
    assert same()
    rot(victim)
    appliance("run", "mx1")
    assert not same()
