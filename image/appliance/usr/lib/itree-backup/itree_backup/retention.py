# SPDX-License-Identifier: GPL-2.0-only
"""Which snapshots stay.

Retention counts days, weeks and months that have a snapshot, not age: neither
a clock that jumped forward nor a client that was away for a year expires any.
"""

import datetime

from . import timelock
from .errors import BUSY, DAMAGED, FAILED, BackupError
from .store import GAPS, when

SLACK = datetime.timedelta(minutes=10)
BUCKETS = {"daily": "%Y-%m-%d", "weekly": "%G-W%V", "monthly": "%Y-%m"}


def kept(names, keep):
    """Names that stay, and why, as {name: [daily, ...]}: the last N, and the newest of each of N days, weeks, months.

    The newest of all stays whatever keep says.
    """
    names = sorted(names, reverse=True)
    found = {name: ["last"] for name in names[: keep["last"]]}
    for kind, form in BUCKETS.items():
        seen = set()
        for name in names:
            bucket = when(name).strftime(form)
            if bucket not in seen:
                if len(seen) >= keep[kind]:
                    break
                seen.add(bucket)
                found.setdefault(name, []).append(kind)
    if names:
        found.setdefault(names[0], []).append("newest")
    return found


def check_clock(host, names):
    """Raise if the newest snapshot is dated in the future: the clock is wrong, or was when the snapshot was made."""
    now = datetime.datetime.now(datetime.UTC)
    if names and when(names[-1]) > now + SLACK:
        raise BackupError(
            f"{host}: the newest snapshot is {names[-1]}, and the clock says {now:%Y-%m-%dT%H-%M-%SZ}: one of them is "
            "wrong. Nothing is pruned until they agree. Set the clock (timedatectl); if the snapshot's name is wrong, "
            f"remove it with 'itree-backup prune --remove {names[-1]} {host}'",
            FAILED,
        )


def doomed(store, keep):
    """Names of a store that do not stay and are not locked, oldest first.

    Raises BackupError if nothing may be pruned now.
    """
    names = store.snapshots()
    check_clock(store.name, names)
    if store.held():
        raise BackupError(f"{store.name}: {store.held()}. Nothing is pruned until you confirm this with "
                          f"'itree-backup accept {store.name}', or until lost files are back", FAILED)  # fmt: skip
    if names and store.record(names[-1]).get("damaged"):
        raise BackupError(
            f"{store.name}: the newest snapshot, {names[-1]}, has damaged files, and older ones may hold the good "
            "ones: nothing is pruned. Restore what you need; a new good run ends this",
            DAMAGED,
        )
    stay = kept(names, keep)
    # Snapshots with gaps take no place: good ones are chosen as if the others did not exist.
    gaps = store.with_gaps()
    every = kept([*names, *(n.removesuffix(GAPS) for n in gaps)], keep)
    found = sorted([n for n in names if n not in stay] + [n for n in gaps if n.removesuffix(GAPS) not in every])
    return [name for name in found if not timelock.locked(store, name)]


def prune(store, keep, say):
    """Remove the doomed snapshots, except those being read; returns the names that are gone."""
    store.finish_removals()
    gone = []
    for name in doomed(store, keep):
        say(f"{store.name}: removing {name}")
        try:
            store.remove(name)
            gone.append(name)
        except BackupError as err:
            if err.code != BUSY:
                raise
            say(str(err))
    return gone
