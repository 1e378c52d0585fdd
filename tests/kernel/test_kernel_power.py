# SPDX-License-Identifier: GPL-2.0-only
"""Power cuts, replayed write by write. The cases are in kt/."""

GROUP = "power"


def test_power(judge):
    judge()
