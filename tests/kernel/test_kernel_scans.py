# SPDX-License-Identifier: GPL-2.0-only
"""Open scans while the directory changes. The cases are in kt/."""

GROUP = "scans"


def test_scans(judge):
    judge()
