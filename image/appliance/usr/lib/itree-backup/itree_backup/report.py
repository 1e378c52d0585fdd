# SPDX-License-Identifier: GPL-2.0-only
"""What others see: status.json, metrics for Prometheus, mail and webhook after a failure."""

import datetime
import os

from . import outbox
from . import store as store_
from .errors import NAMES, BackupError

HELP = {
    "last_run_timestamp_seconds": "When the last run ended.",
    "last_run_success": "1 if the last run ended in a good snapshot.",
    "last_success_timestamp_seconds": "When the newest good snapshot was finished; 0 if there is none.",
    "last_run_duration_seconds": "How long the last run took.",
    "new_files": "Files the last run fetched.",
    "new_bytes": "Bytes of the files the last run fetched.",
    "snapshots": "Good snapshots.",
    "snapshots_with_gaps": "Snapshots that lack files the client could not give; they do not count as good.",
    "gaps": "Files the client could not give in the last run that made a snapshot.",
    "partial_snapshots": "Interrupted runs that the next run will use.",
    "damaged_files": "Files found not to be what the client sent, summed over the snapshots.",
    "last_verify_timestamp_seconds": "When snapshots were last read and compared; 0 if never.",
    "volume_free_bytes": "Free space of the backup volume.",
    "volume_free_inodes_ratio": "Free inodes of the backup volume, from 0 to 1.",
}


def metrics(store):
    """The metrics of a host in Prometheus's text format."""
    status = store.status()
    space, _, inodes = store_.free(store.path)
    values = {
        "last_run_timestamp_seconds": status.get("ended", 0),
        "last_run_success": int(status.get("state") == "ok"),
        "last_success_timestamp_seconds": status.get("last_good_time", 0),
        "last_run_duration_seconds": status.get("seconds", 0),
        "new_files": status.get("files", 0),
        "new_bytes": status.get("bytes", 0),
        "snapshots": len(store.snapshots()),
        "snapshots_with_gaps": len(store.with_gaps()),
        "gaps": status.get("gaps", 0),
        "partial_snapshots": len(store.names(".partial")),
        "damaged_files": store.damaged(),
        "last_verify_timestamp_seconds": status.get("verified", 0),
        "volume_free_bytes": space,
        "volume_free_inodes_ratio": round(inodes / 100, 4),
    }
    out = []
    for name, value in values.items():
        full = f"itree_backup_{name}"
        out += [f"# HELP {full} {HELP[name]}", f"# TYPE {full} gauge", f'{full}{{host="{store.name}"}} {value}']
    return "\n".join(out) + "\n"


def publish(store, status):
    """Write status and metrics. A metrics directory that cannot be written is told, not an error of the backup."""
    store.write_status(status)
    if store.base.metrics:
        try:
            store.base.metrics.mkdir(parents=True, exist_ok=True)
            path = store.base.metrics / f"itree_backup_{store.name}.prom"
            store_.write_file(path, metrics(store))
            path.chmod(0o644)
        except OSError as err:
            return f"metrics could not be written: {err}"
    return None


def unpublish(store):
    """Remove the metrics of a host that is forgotten."""
    if store.base.metrics:
        (store.base.metrics / f"itree_backup_{store.name}.prom").unlink(missing_ok=True)


def age(seconds):
    """A time span in words of one unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def overview(store, now, max_age, configured=True):
    """(one line about a host, whether all is well with it). max_age is in hours.

    Of a host that is not configured any more, nothing new is to come: only damage is a fault.
    """
    status, names = store.status(), store.snapshots()
    good = status.get("last_good_time") if names else None
    old = now - good if good else None
    state = status.get("state", "never run")
    # A run that was killed could not say so itself.
    if state == "running" and not is_locked(store):
        state = "interrupted"
    problems = []
    if configured:
        if state not in ("ok", "running"):
            problems.append(status.get("message", "") if state != "interrupted" else "the run was cut off")
        if good is None:
            problems.append("no good snapshot")
        elif old > max_age * 3600:
            problems.append(f"newest good snapshot is older than {max_age:g} h")
    else:
        state = "retired"
    if store.damaged():
        problems.append(f"{store.damaged()} damaged files")
    if status.get("prune_message") and configured:
        problems.append(status["prune_message"])
    last = f"{names[-1]} ({age(max(old, 0))} ago)" if good else "-"
    gaps = store.with_gaps()
    line = f"{store.name:20} {state:12} {len(names):4} good  newest {last}" + f"  {len(gaps)} with gaps" * bool(gaps)
    return line + "".join(f"\n    {p.splitlines()[0]}" for p in problems if p), not problems


def is_locked(store):
    """Whether a run of the host is at work, as far as can be seen without disturbing it."""
    try:
        wanted = os.stat(store.meta / "lock").st_ino
        with open("/proc/locks") as handle:
            return any(f":{wanted} " in line and "FLOCK" in line for line in handle)
    except OSError:
        return False


def failed_unit():
    """What systemd (251 or later) says of the unit whose OnFailure= this is; nothing if it does not."""
    unit, code = os.environ.get("MONITOR_UNIT", ""), os.environ.get("MONITOR_EXIT_STATUS", "")
    return unit + f" (ended with {code})" * bool(unit and code)


def notify(store, failed=False):
    """Tell of a host's last run by mail and webhook, as configured. Returns what was done; raises BackupError.

    failed: a unit of the host has failed. If the status knows of no failure, it was before a run began.
    """
    status = store.status()
    state = status.get("state", "never run")
    if state == "running" and not is_locked(store):
        state = "interrupted"
    ended = datetime.datetime.fromtimestamp(status.get("ended", 0), datetime.UTC)
    message = status.get("message") or f"see journalctl -u backup@{store.name}"
    if failed and state in ("ok", "running", "never run"):
        code = os.environ.get("MONITOR_EXIT_STATUS", "")
        state = name_of(int(code)) if code.isdecimal() else "failed"
        unit = os.environ.get("MONITOR_UNIT") or f"backup@{store.name}.service"
        message = (f"{failed_unit() or unit} has failed before a backup began, or after one was good: see "
                   f"journalctl -u {unit}. {status.get('prune_message', '')}".rstrip())  # fmt: skip
    newest = (store.snapshots() or [None])[-1]
    text = f"{message}\n\nlast run ended: {ended:%Y-%m-%d %H:%M} UTC\nnewest good snapshot: {newest or 'none'}\n"
    facts = {"host": store.name, "state": state, "message": message, "newest_good": newest}
    return tell(store.base, f"backup of {store.name}: {state}", text, facts)


def tell(base, subject, text, facts):
    """Send a text by mail, facts by webhook. Returns what was done; raises BackupError if somebody was not reached."""
    done, wrong, kept = outbox.put(base, subject, text, facts)
    if wrong:
        later = "; it is kept, and sent again every ten minutes (backup-notify.timer)" if kept else ""
        raise BackupError(f"{subject}; nobody could be told by {'; '.join(wrong)}{later}")
    return f"{subject}; told by {', '.join(done) or 'nobody: neither [notify] mail_to nor webhook is set'}"


def name_of(code):
    return NAMES.get(code, "failed")
