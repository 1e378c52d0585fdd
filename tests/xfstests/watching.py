# SPDX-License-Identifier: GPL-2.0-only
"""Tells a slow test of xfstests from one that hangs."""

from __future__ import annotations

import pathlib
import sys
import time

import results

STUCK = 1200  # seconds without a word from the suite or in the log of the running test
LONGEST = 3 * 3600  # seconds that a test may take; generic/027 starts 100,000 processes, and takes an hour in UML
HANGS = f"it hung: no word for {STUCK} s, or no end in {LONGEST} s"


class Watch:
    """Prints the progress of a guest each minute, and knows whether its test hangs.

    share is the directory that the guest writes to; before is the number of tests that earlier guests have done.
    """

    def __init__(self, share: pathlib.Path, label: str, all_tests: int, before: int, clock=time.monotonic):
        self._share, self._label, self._all, self._before, self._clock = share, label, all_tests, before, clock
        self._sizes = (0, 0)  # of the suite's output, and of the log of the running test
        self._changed = self._began = self._printed = clock()

    def hangs(self) -> bool:
        now = self._clock()
        out = self._share / "check.out"
        text = out.read_text(errors="replace") if out.is_file() else ""
        running = results.running(out)
        log = self._share / "results" / f"{running}.full"
        sizes = (len(text), log.stat().st_size if log.is_file() else 0)
        if sizes[0] != self._sizes[0]:
            self._began = now
        if sizes != self._sizes:
            self._sizes, self._changed = sizes, now
        if now - self._printed > 60:
            self._printed = now
            count = self._before + len(results.STARTED.findall(text))
            print(f"  ... {self._label}: {running or 'starting'}, {count} of {self._all}", file=sys.stderr, flush=True)
        return now - self._changed > STUCK or now - self._began > LONGEST
