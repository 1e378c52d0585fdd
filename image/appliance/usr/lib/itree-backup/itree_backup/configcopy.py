# SPDX-License-Identifier: GPL-2.0-only
"""A copy of the configuration on the backup volume: it survives the system disk.

    VOLUME/.itree-backup-config/now    hosts, keys, known hosts, the page's password and certificate

`prepare` updates it before each backup. An appliance with a new or rewritten
system disk takes it over at its first boot. Only root can read the copy, as
only root can read the volume with all the clients' data. The directory is never
replaced, so that the status page's unit can hide it.
"""

import shutil

from .store import Flusher, check_volume, fsync_directory, write_file

NAME = ".itree-backup-config"
PARTS = ("itree-backup.conf", "hosts.d", "ssh", "page")


def contents(top):
    """{path: data} of the parts of a configuration, without other files and half-written ones."""
    found = {}
    for part in PARTS:
        path = top / part
        files = [path] if path.is_file() else sorted(path.iterdir()) if path.is_dir() else []
        found |= {p.relative_to(top): p.read_bytes() for p in files if p.is_file() and not p.name.startswith(".")}
    return found


def places(volume):
    """Paths of the copy, of a new one in the making, and of the old one while it is replaced."""
    return tuple(volume / NAME / name for name in ("now", "new", "old"))


def make_directory(base):
    """Make the directory of the copy. Raises OSError."""
    (base.volume / NAME).mkdir(mode=0o700, exist_ok=True)


def write(files, top):
    """Write {path: data} below a directory, readable by root alone."""
    for path, data in files.items():
        where = top / path
        where.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(where, data)


def save(base):
    """Update the copy; returns whether it was out of date. A power cut leaves the old one or the new one."""
    check_volume(base)
    make_directory(base)
    place, fresh, old = places(base.volume)
    files = contents(base.conf)
    if place.is_dir() and contents(place) == files:
        return False
    for path in (fresh, old) if place.is_dir() else (fresh,):
        shutil.rmtree(path, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    write(files, fresh)
    flusher = Flusher(base.volume)
    try:
        flusher.flush()
    finally:
        flusher.close()
    if place.is_dir():
        place.rename(old)
    fresh.rename(place)
    fsync_directory(place.parent)
    shutil.rmtree(old, ignore_errors=True)
    return True


def take_over(base, defaults):
    """Copy the files that the configuration lacks; returns their paths below it.

    defaults: the configuration file that a first boot writes. It counts as missing.
    """
    place, _, old = places(base.volume)
    source = next((path for path in (place, old) if path.is_dir()), None)
    if not source:
        return []
    mine = contents(base.conf)
    if not any(path.parent.name == "hosts.d" for path in mine):
        # No client knows the key yet that a set-up without the volume made.
        mine = {path: data for path, data in mine.items() if path.name not in ("id", "id.pub")}
    files = {path: data for path, data in contents(source).items()
             if path not in mine or (str(path) == "itree-backup.conf" and mine[path] == defaults)}  # fmt: skip
    write(files, base.conf)
    return sorted(map(str, files))
