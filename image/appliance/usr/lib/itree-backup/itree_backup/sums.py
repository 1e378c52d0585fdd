# SPDX-License-Identifier: GPL-2.0-only
"""The checksums of all files on the volume: MD5 by inode, in one SQLite file a host.

Snapshots share the inodes of files that did not change, so one record serves
all of them. A record belongs to (inode number, generation): the generation
changes each time an inode number is reused, so the record of a deleted file is
never taken for that of its successor.

MD5 because rsync gets it from the client anyway: it guards against bad disks,
memory and software, not against somebody who forges files.
"""

import array
import errno
import fcntl
import hashlib
import os
import sqlite3

from .errors import DAMAGED, FAILED, SPACE, BackupError

FS_IOC_GETVERSION = 0x80087601
PATIENCE = 60.0  # seconds to wait for SQLite's lock, which is held for moments
SCHEMA = """
create table if not exists sums (
    ino integer primary key, gen integer not null, md5 blob not null,
    checked integer not null, bad integer not null default 0)
"""


def generation(fd):
    """The generation of an open file's inode; 0 where the file system has none."""
    buf = array.array("l", [0])
    try:
        fcntl.ioctl(fd, FS_IOC_GETVERSION, buf)
    except OSError as err:
        if err.errno in (errno.ENOTTY, errno.EOPNOTSUPP, errno.EINVAL):
            return 0
        raise
    return buf[0] & 0xFFFFFFFF


def digest(fd):
    """MD5 of an open file, read from the disk: its pages are dropped from the cache first."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    md5 = hashlib.md5(usedforsecurity=False)
    while chunk := os.read(fd, 1 << 20):
        md5.update(chunk)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return md5.digest()


class Sums:
    """The records of a host. All methods raise BackupError if the file is damaged.

    A reader holds SQLite's lock for one query at a time, so that a backup can
    commit meanwhile. A writer locks readers out only while it commits.
    """

    def __init__(self, path, writer=True):
        self.path, self.writer, self.pending = path, writer, 0
        name = f"{path.absolute().as_uri()}?mode={'rwc' if writer else 'ro'}"
        nothing = not writer and not path.exists()
        if nothing:
            name = "file::memory:"
        self.db = self.guard(lambda: sqlite3.connect(name, timeout=PATIENCE, isolation_level=None, uri=True))
        if writer:
            # Changes wait in memory for the commit: spilling them earlier would lock readers out until then.
            self.guard(lambda: self.db.execute("pragma cache_spill=off"))
            self.guard(lambda: self.db.execute("pragma synchronous=full"))
        if writer or nothing:
            self.guard(lambda: self.db.execute(SCHEMA))
        if writer:
            self.guard(lambda: self.db.execute("begin"))

    def guard(self, call):
        try:
            return call()
        except sqlite3.OperationalError as err:
            # The file itself is sound: its volume is full or failing, or it is locked.
            full = "full" in str(err)
            raise BackupError(
                f"{self.path}: {err}" + ": make room on the backup volume" * full, SPACE if full else FAILED
            ) from err
        except sqlite3.DatabaseError as err:
            raise BackupError(
                f"{self.path}: {err}. The snapshots do not depend on it. Move it aside, then "
                "'itree-backup verify --adopt HOST' reads all files and rebuilds it",
                DAMAGED,
            ) from err

    def get(self, ino, gen):
        """(md5, time of the last check, whether it was found wrong), or None without a record."""
        query = "select gen, md5, checked, bad from sums where ino = ?"
        row = self.guard(lambda: self.db.execute(query, (ino,)).fetchone())
        return row[1:] if row and row[0] == gen else None

    def due(self, cycle, now):
        """Inodes to read now so that, asked once a day, each is read within `cycle` days (at least 2).

        The same number is due each day, those read longest ago first, so that the files of one long run are not all
        due on one day. More are due if days were missed. now: seconds since the epoch.
        """
        total = self.guard(lambda: self.db.execute("select count(*) from sums").fetchone()[0])
        share = -(-total // (cycle - 1))
        late = int(now) - (cycle - 1) * 86400
        # A date in the future comes from a wrong clock, and counts as never.
        order = "order by case when checked > ?1 then 0 else checked end limit ?2"
        rows = self.guard(lambda: self.db.execute(f"select ino from sums {order}", (int(now), share)).fetchall())
        query = "select ino from sums where checked <= ?1 or checked > ?2"
        rows += self.guard(lambda: self.db.execute(query, (late, int(now))).fetchall())
        return {ino for (ino,) in rows}

    def put(self, ino, gen, md5, checked, bad=False):
        """Note what was read; durable after commit()."""
        values = (ino, gen, md5, int(checked), int(bad))
        self.guard(lambda: self.db.execute("insert or replace into sums values (?, ?, ?, ?, ?)", values))
        self.pending += 1
        if self.pending >= 20000:
            self.commit()

    def mark_bad(self, ino):
        """Note that an inode could not be read; get() checks whether the record is of its generation."""
        self.guard(lambda: self.db.execute("update sums set bad = 1 where ino = ?", (ino,)))

    def bad(self):
        """Inode numbers whose data was found wrong or could not be read."""
        rows = self.guard(lambda: self.db.execute("select ino from sums where bad").fetchall())
        return {ino for (ino,) in rows}

    def forget(self, ino):
        """Remove the record of an inode."""
        self.guard(lambda: self.db.execute("delete from sums where ino = ?", (ino,)))

    def commit(self):
        self.guard(lambda: self.db.execute("commit"))
        self.guard(lambda: self.db.execute("begin"))
        self.pending = 0

    def close(self):
        if self.writer:
            self.guard(lambda: self.db.execute("commit"))
        self.db.close()
