# SPDX-License-Identifier: GPL-2.0-only
"""What writers tell readers, and positions that readers keep. The cases are in kt/."""

GROUP = "open"


def test_open(judge):
    judge()
