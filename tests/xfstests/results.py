# SPDX-License-Identifier: GPL-2.0-only
"""What a run of xfstests gave, and how two of them differ."""

from __future__ import annotations

import dataclasses
import pathlib
import re
import xml.etree.ElementTree as ET

# A line of `check` about a test begins with its name and a pad; the outcome follows when the test has ended.
STARTED = re.compile(r"^((?:generic|ext4|shared)/\d{3})\s", re.M)
RUN = re.compile(r"run fstests (\S+) at ")
TREE = re.compile(r"EXT4-fs (?:warning|error) .*itree")


@dataclasses.dataclass(frozen=True)
class Result:
    """state: passed, failed, notrun or died; why: the suite's reason."""

    state: str
    why: str = ""


def read(base: pathlib.Path) -> dict[str, Result]:
    """The tests that have ended, by name, from the report below a RESULT_BASE; the suite renews it after each test."""
    found: dict[str, Result] = {}
    for path in sorted(base.rglob("result.xml")):
        try:
            root = ET.parse(path).getroot()
        except ET.ParseError:
            continue  # the guest died while it was written
        for case in root.iter("testcase"):
            failure, skipped = case.find("failure"), case.find("skipped")
            if failure is not None:
                result = Result("failed", failure.get("message", ""))
            elif skipped is not None:
                result = Result("notrun", skipped.get("message", ""))
            else:
                result = Result("passed")
            found[case.get("name", "")] = result
    return found


def running(out: pathlib.Path) -> str | None:
    """The test that `check` named last; None if it has named none."""
    names = STARTED.findall(out.read_text(errors="replace")) if out.is_file() else []
    return names[-1] if names else None


def group(tests: pathlib.Path, name: str) -> list[str]:
    """The tests of generic and ext4 in a group."""
    found = []
    for directory in ("generic", "ext4"):
        for line in (tests / directory / "group.list").read_text().splitlines():
            words = line.split("#")[0].split()
            if name in words[1:]:
                found.append(f"{directory}/{words[0]}")
    return found


def tree_lines(log: pathlib.Path) -> list[str]:
    """What the kernel said of trees, each line after the test that ran."""
    test, found = "before the first test", []
    for line in log.read_text(errors="replace").splitlines() if log.is_file() else []:
        started = RUN.search(line)
        if started:
            test = started[1]
        elif TREE.search(line):
            found.append(f"{test}: {line}")
    return found


@dataclasses.dataclass
class Comparison:
    """Tests of one configuration, by what the two kinds of volume gave."""

    ran: int
    passed: list[str]
    notrun: dict[str, str]
    both: dict[str, str]
    alone: dict[str, str]
    stock_alone: dict[str, str]

    def lines(self) -> list[str]:
        """The differences, and what fails on both."""
        out = [f"{test} FAILS WITH THE FEATURE ALONE: {why}" for test, why in self.alone.items()]
        out += [f"{test} fails without the feature alone: {why}" for test, why in self.stock_alone.items()]
        out += [f"{test} fails on both: {why}" for test, why in self.both.items()]
        return out


def compare(itree: dict[str, Result], stock: dict[str, Result], tests: list[str]) -> Comparison:
    """What tests gave with and without the feature; one that only one side could run counts as failed on the other."""
    found = Comparison(0, [], {}, {}, {}, {})
    for test in tests:
        ours = itree.get(test, Result("died", "no result"))
        theirs = stock.get(test, Result("died", "no result"))
        bad, bad_stock = ours.state in ("failed", "died"), theirs.state in ("failed", "died")
        if ours.state == theirs.state == "notrun":
            found.notrun[test] = ours.why
            continue
        found.ran += 1
        if bad and bad_stock:
            found.both[test] = ours.why
        elif bad or ours.state == "notrun":
            found.alone[test] = ours.why
        elif bad_stock or theirs.state == "notrun":
            found.stock_alone[test] = theirs.why
        else:
            found.passed.append(test)
    return found


def table(rows: list[tuple[str, Comparison, int]]) -> list[str]:
    """A table in Markdown, as docs/trust.md has it."""
    out = [
        "| configuration | run | passed | not run | failed on both | without it alone | with it alone | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, c, seconds in rows:
        out.append(
            f"| {name} | {c.ran} | {len(c.passed)} | {len(c.notrun)} | {len(c.both)} | {len(c.stock_alone)} | "
            f"{len(c.alone)} | {seconds / 60:.0f} |"
        )
    return out
