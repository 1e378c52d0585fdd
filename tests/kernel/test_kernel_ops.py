# SPDX-License-Identifier: GPL-2.0-only
"""Random sequences of every modifying operation. The cases are in kt/."""

GROUP = "ops"


def test_ops(judge):
    judge()
