# SPDX-License-Identifier: GPL-2.0-only
"""Reports to others: status.json, metrics for Prometheus, mail and webhook after a failure."""

import dataclasses
import datetime
import os
import re
import statistics
import time

from . import config, outbox, quota, setup
from . import store as store_
from .errors import GAPS, NAMES, BackupError

# Precedes the name of a file in hosts.d that cannot be the name of a host.
MISNAMED = "not backed up, because the file name is not a valid host name:"
NO_HOSTS = "no hosts yet: itree-backup add HOST PATH..."
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
    "quota_bytes": "Limit of what the host may take of the volume; 0 if there is none.",
    "quota_used_bytes": "What the host takes of that limit.",
    "quota_inodes": "Limit of the inodes the host may take; 0 if there is none.",
    "quota_used_inodes": "What the host takes of that limit.",
}


def values(health):
    """The metrics of a host: {name: number}."""
    status, limits = health.status, health.usage or quota.Usage(0, 0, 0, 0)
    space, _, inodes = store_.free_of(health.store.base)
    return {
        "last_run_timestamp_seconds": status.get("ended", 0),
        "last_run_success": int(status.get("state") == "ok"),
        "last_success_timestamp_seconds": status.get("last_good_time", 0),
        "last_run_duration_seconds": status.get("seconds", 0),
        "new_files": status.get("files", 0),
        "new_bytes": status.get("bytes", 0),
        "snapshots": len(health.good),
        "snapshots_with_gaps": len(health.with_gaps),
        "gaps": status.get("gaps", 0),
        "partial_snapshots": len(health.partial),
        "damaged_files": health.damaged,
        "last_verify_timestamp_seconds": status.get("verified", 0),
        "volume_free_bytes": space,
        "volume_free_inodes_ratio": round(inodes / 100, 4),
        "quota_bytes": limits.limit,
        "quota_used_bytes": limits.used,
        "quota_inodes": limits.inode_limit,
        "quota_used_inodes": limits.inodes,
    }


def metrics(healths):
    """The metrics of these hosts in the text format of Prometheus and OpenMetrics, without an end mark."""
    found = {health.store.name: values(health) for health in healths if health.store.path.is_dir()}
    out = []
    for name in HELP:
        full = f"itree_backup_{name}"
        out += [f"# HELP {full} {HELP[name]}", f"# TYPE {full} gauge"]
        out += [f'{full}{{host="{host}"}} {numbers[name]}' for host, numbers in found.items()]
    return "\n".join(out) + "\n"


def publish(store, status):
    """Write status and metrics; returns a warning if the metrics fail, which is not an error of the backup."""
    store.write_status(status)
    if store.base.metrics:
        try:
            store.base.metrics.mkdir(parents=True, exist_ok=True)
            path = store.base.metrics / f"itree_backup_{store.name}.prom"
            store_.write_file(path, metrics([health(store, time.time(), store.base.max_age)]))
            path.chmod(0o644)
        except OSError as err:
            return f"metrics could not be written: {err}"
    return None


def unpublish(store):
    """Remove the metrics of a host whose snapshots were removed."""
    if store.base.metrics:
        (store.base.metrics / f"itree_backup_{store.name}.prom").unlink(missing_ok=True)


def age(seconds):
    """A time span in words of one unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


@dataclasses.dataclass(frozen=True)
class Problem:
    """Something that is wrong, with a host or the machine.

    kind: identifies it; unlike the text, it does not change with ages and sizes. amount: if it grows, the problem has
    become worse, and an alarm reports it again.
    """

    kind: str
    text: str
    amount: int = 0

    def __str__(self):
        return self.text


def without_numbers(text):
    """A message without its numbers, which change from run to run."""
    return re.sub(r"\d+(\.\d+)?", "#", text)


@dataclasses.dataclass
class Health:
    """The state of a host. It alone decides whether the host is well; status, page, metrics and alarms read it.

    state: as in status.json, or "interrupted", "retired"; good, with_gaps, partial: names, oldest first; records: the
    record of each snapshot, by name; age: seconds since the newest good one; problems: Problems, none if all is well;
    usage: a quota.Usage, or None.
    """

    store: store_.Store
    configured: bool
    status: dict
    state: str
    good: list
    with_gaps: list
    partial: list
    records: dict
    age: float | None
    problems: list
    usage: quota.Usage | None = None

    @property
    def damaged(self):
        """Files found damaged, summed over the snapshots; a file that several share counts in each."""
        return sum(store_.damaged_in(record) for record in self.records.values())

    @property
    def well(self):
        return not self.problems


def health(store, now, max_age, configured=True):
    """The Health of a host. now: seconds since the epoch; max_age: hours.

    A host that is no longer configured gets no new snapshots, so only damage counts as a problem.
    """
    status = store.status()
    good, with_gaps, partial = store.listed()
    records = {name: store.record(name) for name in sorted(good + with_gaps)}
    last = status.get("last_good_time") if good else None
    state = status.get("state", "never run")
    # A run that was killed could not record it.
    if state == "running" and not is_locked(store):
        state = "interrupted"
    problems = []
    age_ = max(now - last, 0) if last else None
    if not configured:
        state = "retired"
    else:
        if state not in ("ok", "running"):
            text = first_line(status.get("message", ""))
            if state == "interrupted":
                text = "the last run was killed, or the machine lost power"
            amount = status.get("gaps", 0) if state == NAMES[GAPS] else 0
            # A run that never was has no message, and is reported as the missing snapshot.
            if text or state != "never run":
                text = text or "the last run failed; see the journal"
                problems.append(Problem(f"{state}: {without_numbers(text)}", text, amount))
        if age_ is None:
            problems.append(Problem("no good snapshot", "no good snapshot"))
        elif age_ > max_age * 3600:
            problems.append(Problem("old", f"newest good snapshot is older than {max_age:g} h"))
    usage = quota.usage(store) if store.path.is_dir() else None
    made = Health(store, configured, status, state, good, with_gaps, partial, records, age_, problems, usage)
    if usage and configured and usage.percent > 100 - store.base.warn_free:
        problems.append(Problem("quota", f"{quota.text_of(usage)} are used ([quota])", int(usage.percent)))
    if made.damaged:
        problems.append(Problem("damaged", f"{made.damaged} damaged files", made.damaged))
    for kind in ("hook", "prune") if configured else ():
        text = first_line(status.get(f"{kind}_message", ""))
        if text:
            problems.append(Problem(f"{kind}: {without_numbers(text)}", text))
    return made


def first_line(text):
    return text.partition("\n")[0]


@dataclasses.dataclass
class State:
    """The state of the hosts and of the machine. Status, page, console and alarms all show this one.

    others: Problems that belong to no host; space: free bytes; percent, inodes: how much of them is free.
    """

    base: config.Settings
    healths: list
    others: list
    space: int
    percent: float
    inodes: float

    @property
    def well(self):
        return not self.others and all(one.well for one in self.healths)

    def amounts(self):
        """All problems as {kind: amount}; the kinds of a host's begin with its name."""
        found = {f"{one.store.name}: {p.kind}": p.amount for one in self.healths for p in one.problems}
        return found | {p.kind: p.amount for p in self.others}

    def lines(self):
        """What status prints."""
        found = [overview(one) for one in self.healths] or [NO_HOSTS]
        return [*found, *map(str, self.others), f"{self.base.volume}: {self.space >> 20} MiB free "
                f"({self.percent:.0f} %), {self.inodes:.0f} % of the inodes"]  # fmt: skip

    def facts(self):
        """Everything as a dictionary, for programs."""
        return {"volume": str(self.base.volume), "free_bytes": self.space, "free_percent": round(self.percent, 2),
                "free_inodes_percent": round(self.inodes, 2), "well": self.well,
                "problems": [str(p) for p in self.others],
                "hosts": {one.store.name: facts(one) for one in self.healths}}  # fmt: skip


def machine_problems(base):
    """The Problems that belong to no host and not to the volume."""
    lines = [f"{MISNAMED} {path}" for path in config.misnamed(base)]
    lines += [f"set-up: {line}" for line in setup.problems(base.conf)]
    return [Problem(line, line) for line in lines]


def state(base, name=None):
    """The State of all hosts, or of one of them. Raises BackupError."""
    found = healths(base, store_.stores(base, name))
    space, percent, inodes = store_.free(base.volume)
    others = machine_problems(base)
    least = min(percent, inodes)
    if least < base.warn_free:
        text = f"{base.volume}: less than {base.warn_free:g} % of space or inodes are free ([status] warn_free_percent)"
        # Each percent less is worse.
        others.append(Problem("space", text, int(base.warn_free - least)))
    return State(base, found, others, space, percent, inodes)


def healths(base, found):
    """The Health of each of these stores."""
    configured, now = config.hosts(base), time.time()
    return [health(store, now, base.max_age, store.name in configured) for store in found]


def facts(one):
    """A Health as a dictionary, for programs."""
    return {**one.status, "damaged_files": one.damaged, "snapshots": one.good, "with_gaps": one.with_gaps,
            "partial": one.partial, "retired": not one.configured, "well": one.well,
            "problems": [str(p) for p in one.problems],
            "quota": one.usage and dataclasses.asdict(one.usage)}  # fmt: skip


def overview(one):
    """The lines about a host that status prints; one: its Health."""
    last = f"{one.good[-1]} ({age(one.age)} ago)" if one.age is not None else "-"
    line = f"{one.store.name:20} {one.state:12} {len(one.good):4} good  newest {last}"
    line += f"  {len(one.with_gaps)} with gaps" * bool(one.with_gaps)
    line += f"  quota {quota.text_of(one.usage)}" if one.usage else ""
    return "\n    ".join([line, *map(str, one.problems)])


def forecast(healths, free, now, days=30):
    """Days until the volume is full at the rate of the last `days`; None if it does not fill, or too little is known.

    free: bytes free now. The rate is that of a line fitted to the free space recorded with each snapshot.
    """
    since = now - days * 86400
    points = [(r["ended"], r["free_bytes"]) for one in healths for r in one.records.values()
              if r.get("free_bytes") is not None and since <= r.get("ended", 0) <= now]  # fmt: skip
    if len({at // 86400 for at, _ in points}) < 3:
        return None
    slope = statistics.linear_regression(*zip(*sorted(points), strict=True)).slope
    return free / -slope / 86400 if slope < 0 else None


def is_locked(store):
    """Whether somebody holds the lock of the host, found out without trying to take it."""
    try:
        wanted = os.stat(store.meta / "lock").st_ino
        with open("/proc/locks") as handle:
            return any(f":{wanted} " in line and "FLOCK" in line for line in handle)
    except OSError:
        return False


def failed_unit():
    """The failed unit whose OnFailure= started this, as systemd (251 or later) tells; empty if it does not."""
    unit, code = os.environ.get("MONITOR_UNIT", ""), os.environ.get("MONITOR_EXIT_STATUS", "")
    return unit + f" (ended with {code})" * bool(unit and code)


def notify(store, failed=False):
    """Report a host's last run by mail and webhook, as configured. Returns what was done; raises BackupError.

    failed: a unit of the host has failed. If the status shows no failure, it was not in the run itself.
    """
    status = store.status()
    state = status.get("state", "never run")
    if state == "running" and not is_locked(store):
        state = "interrupted"
    ended = "never"
    if "ended" in status:
        ended = f"{datetime.datetime.fromtimestamp(status['ended'], datetime.UTC):%Y-%m-%d %H:%M} UTC"
    message = status.get("message") or f"see journalctl -u backup@{store.name}"
    if failed and state in ("ok", "running", "never run"):
        code = os.environ.get("MONITOR_EXIT_STATUS", "")
        state = name_of(int(code)) if code.isdecimal() else "failed"
        unit = os.environ.get("MONITOR_UNIT") or f"backup@{store.name}.service"
        message = (f"{failed_unit() or unit} has failed, before a backup began or after it had succeeded: see "
                   f"journalctl -u {unit}. {status.get('prune_message', '')}".rstrip())  # fmt: skip
    newest = (store.snapshots() or [None])[-1]
    text = f"{message}\n\nlast run ended: {ended}\nnewest good snapshot: {newest or 'none'}\n"
    facts = {"host": store.name, "state": state, "message": message, "newest_good": newest}
    return tell(store.base, f"backup of {store.name}: {state}", text, facts)


def tell(base, subject, text, facts, problems=None):
    """Send a text by mail, facts by webhook. Returns what was sent; raises BackupError if a way failed.

    problems: as in outbox.news(), if this is an alarm that is not to be repeated while nothing is worse.
    """
    done, wrong, kept = outbox.put(base, subject, text, facts, problems)
    if wrong:
        later = "; it is kept, and sent again every ten minutes (backup-notify.timer)" if kept else ""
        raise BackupError(f"{subject}; could not be delivered by {'; '.join(wrong)}{later}")
    sent = f"sent by {', '.join(done)}" if done else "not sent: [notify] has neither mail_to, webhook nor apprise"
    return f"{subject}; {sent}"


def name_of(code):
    return NAMES.get(code, "failed")
