# SPDX-License-Identifier: GPL-2.0-only
"""ENOSPC and EDQUOT at every allocation point. The cases are in kt/."""

GROUP = "space"


def test_space(judge):
    judge()
