# SPDX-License-Identifier: GPL-2.0-only
"""The reader of dm-log-writes' logs and its choice of cuts, on logs made up here. No machine is started."""

import os
import random
import struct

import pytest
from kt import logwrites
from kt.logwrites import DISCARD, FLUSH, FUA, MARK

SECTOR = 512


def make(path, entries, count=None, end=True):
    """entries: (flags, sector, data) or a string, a mark."""
    entries = [*entries, logwrites.END] if end else list(entries)
    with open(path, "wb") as f:
        f.write(struct.pack("<QQQI", logwrites.MAGIC, 1, len(entries) if count is None else count, SECTOR))
        for entry in entries:
            f.seek(-f.tell() % SECTOR, os.SEEK_CUR)
            if isinstance(entry, str):
                f.write(struct.pack("<QQQQ", 0, 0, MARK, len(entry) + 1) + entry.encode() + b"\0")
                continue
            flags, sector, data = entry
            f.write(struct.pack("<QQQQ", sector, len(data) // SECTOR, flags, 0))
            f.seek(-f.tell() % SECTOR, os.SEEK_CUR)
            f.write(data)
        f.truncate(f.tell() + SECTOR)
    return path


def block(byte, sectors=1):
    return bytes([byte]) * SECTOR * sectors


def some_log(tmp_path):
    rng = random.Random(5)
    entries = ["start"]
    for i in range(400):
        kind = rng.choice((0, 0, 0, 0, FUA, FLUSH, FLUSH | FUA))
        entries.append((kind, i, b"" if kind == FLUSH else block(i % 256)))
    return logwrites.Log(make(tmp_path / "log", entries))


def test_entries_and_data(tmp_path):
    log = logwrites.Log(
        make(tmp_path / "log", ["start", (0, 5, block(1, 3)), (FLUSH, 0, b""), "m", (FUA, 6, block(2))])
    )
    assert [e.mark for e in log.entries] == ["start", "", "", "m", "", logwrites.END]
    with open(tmp_path / "disk", "wb+") as disk:
        for entry in log.entries:
            log.write(disk.fileno(), entry)
        disk.seek(0)
        assert disk.read() == bytes(5 * SECTOR) + block(1) + block(2) + block(1)


def test_a_log_that_is_cut_off(tmp_path):
    with pytest.raises(ValueError, match="cut off"):
        logwrites.Log(make(tmp_path / "log", ["start", (0, 5, block(1))], end=False))


def test_no_log(tmp_path):
    (tmp_path / "log").write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="no log"):
        logwrites.Log(tmp_path / "log")


def test_discards_are_refused(tmp_path):
    log = logwrites.Log(make(tmp_path / "log", [(DISCARD, 5, b"")]))
    with pytest.raises(ValueError, match="discard"):
        log.write(-1, log.entries[0])


def test_cuts(tmp_path):
    log = some_log(tmp_path)
    cuts = logwrites.choose(log, 80, 1)
    assert [c.at for c in cuts] == sorted({c.at for c in cuts}) and len(cuts) == 80
    assert {k: sum(c.kind == k for c in cuts) for k in ("flush", "between", "torn")} == dict(
        flush=40, between=20, torn=20
    )
    for cut in cuts:
        entries = log.entries
        # All that was followed by a flush is there, forced writes are, and nothing that came later.
        last = max((i for i in range(cut.at + 1) if entries[i].flags & FLUSH), default=-1)
        assert cut.flushed == last and set(cut.also) <= set(range(last + 1, cut.at + 1))
        assert all(i in cut.also for i in range(last + 1, cut.at + 1) if entries[i].flags & FUA)
        assert (entries[cut.at].flags & (FLUSH | FUA) != 0) == (cut.kind == "flush")
        if cut.kind != "torn":
            assert cut.also == list(range(last + 1, cut.at + 1))
    assert any(len(c.also) < c.at - c.flushed for c in cuts if c.kind == "torn")


def test_cuts_behind_an_entry_and_fewer_than_asked_for(tmp_path):
    log = some_log(tmp_path)
    assert all(c.at >= 300 for c in logwrites.choose(log, 20, 2, first=300))
    assert 0 < len(logwrites.choose(log, 10000, 2)) <= 400
