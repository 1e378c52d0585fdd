# SPDX-License-Identifier: GPL-2.0-only
"""Directories of 300,000 and 1,000,000 entries. The cases are in kt/."""

GROUP = "big"


def test_big(judge):
    judge()
