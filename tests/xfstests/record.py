# SPDX-License-Identifier: GPL-2.0-only
"""The directory of one configuration of a run: what it runs on, and which tests have ended.

A full list takes many hours. A run may therefore be stopped at any time, and resumes with the tests that have no
result yet. It keeps copies of the kernel and the tools that it began with, so that all tests run on the same ones.
"""

from __future__ import annotations

import json
import pathlib
import shutil
import time

import results


class Differs(Exception):
    """The directory holds a run of another list or of another version of the suite."""


def _number(start: pathlib.Path) -> int:
    return int(start.name.partition("-")[2])


class Record:
    """One configuration of a run, in a directory of its own."""

    def __init__(self, base: pathlib.Path):
        self.base = base
        self.kernel = base / "linux"
        self.e2fsprogs = base / "e2fsprogs"
        self._begun = base / "begun.json"

    def begin(self, kernel: pathlib.Path, e2fsprogs: pathlib.Path, version: str, tests: list[str], fresh: bool) -> bool:
        """Begin a run, or resume the existing one (True). Raises Differs if that one has other tests."""
        if self._begun.is_file() and not fresh:
            begun = self.begun()
            for field, now in (("version", version), ("tests", tests)):
                if begun[field] != now:
                    raise Differs(field)
            return True
        shutil.rmtree(self.base, ignore_errors=True)
        self.base.mkdir(parents=True)
        shutil.copy2(kernel, self.kernel)
        config = kernel.with_name("config")
        if config.is_file():  # says whether the kernel can have several processors
            shutil.copy2(config, self.base)
        shutil.copytree(e2fsprogs, self.e2fsprogs, symlinks=True)
        release = (kernel.parent / "release").read_text().strip()
        begun = {"date": time.strftime("%-d %B %Y"), "release": release, "version": version, "tests": tests}
        # Written last: a run that was stopped before it had its copies starts again.
        scratch = self.base / "begun.new"
        scratch.write_text(json.dumps(begun, indent=1))
        scratch.rename(self._begun)
        return False

    def begun(self) -> dict:
        """date, release (of Linux), version (of the suite) and tests, as they were when the run began."""
        return json.loads(self._begun.read_text())

    def took(self, seconds: float) -> int:
        """Add to the time that the run has taken; returns all of it, in seconds."""
        path = self.base / "seconds"
        total = seconds + (float(path.read_text()) if path.is_file() else 0)
        path.write_text(f"{total:.1f}\n")
        return int(total)

    def starts(self, side: str) -> list[pathlib.Path]:
        """The directories of the guests of one kind of volume, oldest first."""
        return sorted((self.base / side).glob("start-*"), key=_number)

    def new_start(self, side: str) -> pathlib.Path:
        """A directory for one more guest."""
        number = max(map(_number, self.starts(side)), default=-1) + 1
        path = self.base / side / f"start-{number}"
        path.mkdir(parents=True)
        return path

    @staticmethod
    def died(start: pathlib.Path, test: str, why: str) -> None:
        """Note that a test ended the guest."""
        (start / "died.json").write_text(json.dumps({test: why}))

    def done(self, side: str) -> dict[str, results.Result]:
        """The tests of one kind of volume that have ended; one that has a result keeps it."""
        ended: dict[str, results.Result] = {}
        for start in self.starts(side):
            now = results.read(start / "results")
            died = start / "died.json"
            if died.is_file():
                now |= {test: results.Result("died", why) for test, why in json.loads(died.read_text()).items()}
            ended = now | ended
        return ended

    def tree_lines(self, side: str) -> list[str]:
        """What the kernels of all guests said of trees."""
        return [line for start in self.starts(side) for line in results.tree_lines(start / "kernel.log")]
