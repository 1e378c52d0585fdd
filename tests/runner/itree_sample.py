# SPDX-License-Identifier: GPL-2.0-only
"""A pytest plugin that records durations and runs a part of a suite; tests/run loads it.

Tests that a change concerns come first, then a sample of the others. Both fit a number of seconds. The order in
which tests are considered is a hash of their name and of a seed, so different commits sample different tests.

Existing plugins do not fit. pytest-testmon traces imports, but most of these tests run programs. pytest-picked knows
only changed test files. pytest-split cuts a suite into equal parts; it has no changed tests first and no time limit.
"""

import fcntl
import fnmatch
import hashlib
import json
import os
import pathlib
import time

import pytest

HERE = str(pathlib.Path(__file__).resolve().parent)
# Programs that the tests start do not need to find this module.
if os.environ.get("PYTHONPATH"):
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in os.environ["PYTHONPATH"].split(os.pathsep) if p != HERE)

# Seconds that any test takes, fixtures included.
LEAST = 0.05


def pytest_addoption(parser):
    group = parser.getgroup("itree: a part of a suite")
    group.addoption("--durations-file", metavar="FILE", help="read and record the seconds of each test here")
    group.addoption("--seed", default="", help="text that decides which tests the sample holds")
    group.addoption("--changed", action="append", default=[], metavar="GLOB", help="files of tests that come first")
    group.addoption("--changed-seconds", type=float, default=0, metavar="S", help="time for these")
    group.addoption("--sample-seconds", type=float, metavar="S", help="time for a sample of the others")
    group.addoption("--guess", type=float, default=2, metavar="S", help="seconds of a test that was never timed")
    group.addoption("--until", type=float, metavar="T", help="start no test after this time (seconds of the epoch)")


def rank(seed, name):
    return hashlib.sha256(f"{seed} {name}".encode()).digest()


def fit(names, seconds, cost, seed):
    """Return the names whose costs fit together, tried in the seed's order, and the seconds that are left.

    The cheapest is returned if none fits: a suite that was chosen runs at least one test.
    """
    taken, left = set(), seconds
    for name in sorted(names, key=lambda n: rank(seed, n)):
        if cost(name) <= left:
            taken.add(name)
            left -= cost(name)
    if names and seconds > 0 and not taken:
        taken = {min(names, key=lambda n: (cost(n), rank(seed, n)))}
        left = 0
    return taken, left


def estimate(known, guess):
    """Return a function that gives a test's seconds: recorded, the mean of its file or folder, or a guess."""
    means = {}
    for name, seconds in known.items():
        path = pathlib.PurePath(name.split("::")[0])
        for place in (path, path.parent):
            total, count = means.get(place, (0, 0))
            means[place] = total + seconds, count + 1

    def cost(name):
        if name in known:
            return max(known[name], LEAST)
        path = pathlib.PurePath(name.split("::")[0])
        total, count = means.get(path) or means.get(path.parent) or (guess, 1)
        return max(total / count, LEAST)

    return cost


def matches(name, globs):
    return any(fnmatch.fnmatchcase(name.split("::")[0], glob) for glob in globs)


def choose(names, globs, seconds, cost, seed):
    """Return the tests to run: (those that match the globs, a sample of the others); seconds: of each."""
    first = [n for n in names if matches(n, globs)]
    wanted, left = fit(first, seconds[0], cost, seed) if first else (set(), seconds[0])
    others = [n for n in names if n not in first]
    return wanted, fit(others, seconds[1] + left, cost, seed)[0]


def read_durations(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


def record_durations(path, new):
    """Add to a file that two suites may write at a time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(path.name + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = json.dumps(read_durations(path) | new, indent=0, sort_keys=True)
        made = path.with_name(path.name + ".new")
        made.write_text(text + "\n")
        made.replace(path)


class Part:
    def __init__(self, config):
        opt = config.option
        self.opt = opt
        self.path = pathlib.Path(opt.durations_file) if opt.durations_file else None
        self.lines, self.seconds, self.left_out = [], {}, 0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        opt = self.opt
        if opt.sample_seconds is None:
            return
        known = read_durations(self.path) if self.path else {}
        names = [i.nodeid for i in items]
        seconds = (opt.changed_seconds, opt.sample_seconds)
        wanted, sample = choose(names, opt.changed, seconds, estimate(known, opt.guess), opt.seed)
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid not in wanted | sample])
        # What changed runs first, in case the time is up. Files stay together for the sake of their fixtures.
        items[:] = [i for i in items if i.nodeid in wanted] + [i for i in items if i.nodeid in sample]
        concerned = sum(matches(n, opt.changed) for n in names)
        self.lines.append(f"chosen: {len(wanted)} of {concerned} tests that the change concerns, "
                          f"{len(sample)} of {len(names) - concerned} others")  # fmt: skip

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if self.opt.until and time.time() > self.opt.until:
            self.left_out += 1
            return True
        return None

    def pytest_runtest_logreport(self, report):
        # Skipped tests take no time, and may take some on another day.
        if report.skipped:
            self.seconds.pop(report.nodeid, None)
            return
        # A test of tests/kernel waits for its machine; the time in the guest is its own.
        own = dict(report.user_properties).get("guest_seconds")
        before = self.seconds.get(report.nodeid, 0)
        self.seconds[report.nodeid] = round(own if own is not None else before + report.duration, 2)

    def pytest_sessionfinish(self):
        if self.path and self.seconds:
            record_durations(self.path, self.seconds)

    def pytest_terminal_summary(self, terminalreporter):
        if self.left_out:
            if os.environ.get("ITREE_LEFT_OUT"):
                pathlib.Path(os.environ["ITREE_LEFT_OUT"]).write_text(f"{self.left_out}\n")
            self.lines.append(f"left out: {self.left_out} tests: the time was up")
        for line in self.lines:
            terminalreporter.write_line(line)


def pytest_configure(config):
    config.pluginmanager.register(Part(config), "itree-part")
