# SPDX-License-Identifier: GPL-2.0-only
"""Damaged trees. The cases are in kt/."""

GROUP = "corrupt"


def test_corrupt(judge):
    judge()
