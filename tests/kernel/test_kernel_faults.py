# SPDX-License-Identifier: GPL-2.0-only
"""Disks that fail, memory that runs out. The cases are in kt/."""

GROUP = "faults"


def test_faults(judge):
    judge()
