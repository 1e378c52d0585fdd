# SPDX-License-Identifier: GPL-2.0-only
"""Mount options, flags, counters, other kernels. The cases are in kt/."""

GROUP = "modes"


def test_modes(judge):
    judge()
