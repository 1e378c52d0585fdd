# SPDX-License-Identifier: GPL-2.0-only
"""What lives beside, above and below the file system. The cases are in kt/."""

GROUP = "neighbours"


def test_neighbours(judge):
    judge()
