# SPDX-License-Identifier: GPL-2.0-only
"""Images whose trees are damaged. The cases are in kt/."""

GROUP = "damaged"


def test_damaged(judge):
    judge()
