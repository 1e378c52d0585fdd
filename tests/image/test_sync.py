# SPDX-License-Identifier: GPL-2.0-only
"""The second copy: equal to the first, linked as it is, small to send, and nothing in it that the first got wrong."""

import itertools
import os
import random
import re
import subprocess
import time

import pytest
from conftest import farm, maildir, same, state
from test_backup import change_mail

KILLS = 20 if os.environ.get("ITREE_FULL") else 5


@pytest.fixture
def two(make_appliance, tmp_path):
    """An appliance with a mail spool, and another whose volume is to hold the copy. The first one's command is run."""
    one, other = make_appliance(), make_appliance()
    (other.volume / ".itree-backup-volume").unlink()
    (other.volume / ".itree-backup-config").rmdir()
    one.mail = maildir(tmp_path / "mail", 400)
    farm(tmp_path / "mail" / "farm")
    one.host("mx1", "rsyncd", one.servers.rsync(mail=one.mail), "mail", more="[keep]\nlast = 50\n")
    one("run", "mx1")
    return one, other


def sync(one, other, *options, ok=(0,)):
    return one("sync", other.volume, *options, ok=ok)


def used(appliance):
    """Bytes in use on the volume, once all is written."""
    os.sync()
    got = os.statvfs(appliance.volume)
    return (got.f_blocks - got.f_bfree) * got.f_frsize


def files(snapshot):
    """{inode: bytes} of a snapshot's regular files."""
    return {p.lstat().st_ino: p.lstat().st_size for p in snapshot.rglob("*") if p.is_file() and not p.is_symlink()}


def new_bytes(older, newer):
    """Bytes of the files that the newer of two snapshots has for itself."""
    before = files(older)
    return sum(size for inode, size in files(newer).items() if inode not in before)


def equal(one, other, host="mx1"):
    """Snapshots, their trees, what they share, and the sums of both volumes."""
    pairs = list(zip(one.good(host), other.good(host), strict=True))
    for mine, copy in pairs:
        assert mine.name == copy.name
        same(state(mine), state(copy))
        assert sorted(one("sums", host, mine.name).splitlines()) == sorted(other("sums", host, copy.name).splitlines())
    # Files that the snapshots of one volume share are shared on the other.
    shared = [{e.inode() for path in paths for e in os.scandir(path / "cur")} for paths in zip(*pairs, strict=True)]
    assert len(shared[0]) == len(shared[1])
    return len(pairs)


def test_copy_is_equal_and_only_what_is_new_is_sent(two):
    one, other = two
    assert "is no backup volume yet" in sync(one, other, ok=(2,))
    output = sync(one, other, "--init")
    assert "1 snapshots copied" in output and equal(one, other) == 1
    assert "nothing was new" in sync(one, other)
    before = used(one), used(other)
    for _ in range(3):
        change_mail(one.mail)
        (one.mail / "new" / f"big{time.time_ns()}").write_bytes(random.randbytes(3 << 20))
        one("run", "mx1")
    output = sync(one, other)
    assert equal(one, other) == 4
    new = sum(new_bytes(*pair) for pair in itertools.pairwise(one.good("mx1")))
    sent = int(re.search(r"3 snapshots copied, (\d+) MiB", output)[1]) << 20
    grown = used(one) - before[0], used(other) - before[1]
    print(f"{new} bytes were new, about {sent} were sent; the volumes grew by {grown[0]} and {grown[1]}")
    assert sent <= 1.1 * new and grown[1] <= 1.1 * grown[0]
    # The copy can take the first one's place.
    other.settings()
    other("verify", "mx1", "--all")
    assert "mx1" in other("list") and (other.volume / ".itree-backup-config" / "now" / "hosts.d" / "mx1.conf").exists()
    back = other.top / "back"
    back.mkdir()
    assert "compared and right" in other("restore", "mx1", "latest", "--to", back)


def test_killed_it_goes_on(two):
    """kill -9 at random moments: what was good in the copy stays, the next one completes, nothing is left behind."""
    one, other = two
    sync(one, other, "--init")
    chance, killed = random.Random(3), 0
    for _ in range(KILLS):
        for _ in range(2):
            for size in (*[3000] * 40, 1 << 20):
                (one.mail / "new" / f"{time.time_ns()}").write_bytes(chance.randbytes(size))
            min((one.mail / "cur").iterdir()).unlink()
            one("run", "mx1")
        before = {p.name: state(p) for p in other.good("mx1")}
        proc = subprocess.Popen([str(a) for a in one.argv("sync", other.volume, "--bandwidth", "2000")],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(chance.uniform(0.1, 2.5))
        killed += proc.poll() is None
        proc.kill()
        proc.wait()
        for name, was in before.items():
            same(was, state(other.volume / "mx1" / name))
        # The rsync of the killed one may have the lock for a moment.
        for _ in range(100):
            if "is at work" not in sync(one, other, ok=(0, 3)):
                break
            time.sleep(0.1)
        equal(one, other)
        assert not other.partial("mx1")
    assert killed >= KILLS // 2, f"only {killed} of {KILLS} were still at work when they were killed"


def message(snapshot, number=150):
    return sorted((snapshot / "cur").iterdir())[number]


def test_what_rotted_is_not_copied(two):
    """The snapshots with a damaged file are left out and named; the others are copied; the repaired one follows."""
    one, other = two
    change_mail(one.mail)
    one("run", "mx1")
    first, second = one.good("mx1")
    victim = next(p for p in sorted((second / "new").iterdir()) if p.stat().st_nlink == 1)
    was, data = victim.stat(), victim.read_bytes()
    victim.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    os.utime(victim, ns=(was.st_mtime_ns,) * 2)
    output = sync(one, other, "--init", ok=(7,))
    assert victim.name in output and "damaged" in output and f"{second.name} is not" not in output
    assert [p.name for p in other.good("mx1")] == [first.name] and not other.partial("mx1")
    victim.write_bytes(data)
    os.utime(victim, ns=(was.st_mtime_ns,) * 2)
    sync(one, other)
    assert equal(one, other) == 2


def test_file_that_kept_size_and_time_is_not_linked_to_the_older_one(two):
    """rsync would take it for unchanged: the sums say that it is not."""
    one, other = two
    sync(one, other, "--init")
    victim = sorted((one.mail / "cur").iterdir())[150]
    was = victim.stat()
    victim.write_bytes(victim.read_bytes()[::-1])
    os.utime(victim, ns=(was.st_mtime_ns,) * 2)
    one.settings("[verify]\nchecksum_days = 1\n")
    one("run", "mx1")
    a, b = (p / "cur" / victim.name for p in one.good("mx1"))
    assert a.read_bytes() != b.read_bytes() and a.stat().st_mtime_ns == b.stat().st_mtime_ns
    output = sync(one, other)
    assert "copying them again" in output
    assert equal(one, other) == 2


def test_places_that_hold_no_second_copy_are_refused(two, tmp_path):
    one, other = two
    assert "is not a directory" in one("sync", tmp_path / "nothing", ok=(2,))
    inside = one.volume / "copy"
    inside.mkdir()
    assert "on the same file system" in one("sync", inside, ok=(2,))
    inside.rmdir()
    (other.volume / "somebody's").write_text("file\n")
    assert "is not empty" in sync(one, other, "--init", ok=(1,))
    (other.volume / "somebody's").unlink()
    assert "no snapshots of mx2" in sync(one, other, "mx2", "--init", ok=(2,))


def test_snapshot_with_gaps_stays_one_and_prune_keeps_what_is_to_be_kept(two):
    one, other = two
    for _ in range(3):
        change_mail(one.mail)
        one("run", "mx1")
    last = one.good("mx1")[-1]
    last.rename(last.with_name(last.name + ".gaps"))
    sync(one, other, "--init")
    assert len(other.good("mx1")) == 3 and len(other.with_gaps("mx1")) == 1
    same(state(one.with_gaps("mx1")[0]), state(other.with_gaps("mx1")[0]))
    one.host("mx1", "rsyncd", 1, "mail", more="[keep]\nlast = 1\ndaily = 0\nweekly = 0\nmonthly = 0\n")
    # While the snapshots here are held, for a client that was wiped, those there are, too.
    held = one.volume / "mx1" / ".itree-backup" / "held.json"
    held.write_text('{"why": "the client had more", "before": {}}')
    assert "Nothing is pruned on" in sync(one, other, "--prune") and len(other.good("mx1")) == 3
    held.unlink()
    output = sync(one, other, "--prune")
    assert output.count("removing") >= 2 and len(other.good("mx1")) == 1 and len(one.good("mx1")) == 3
