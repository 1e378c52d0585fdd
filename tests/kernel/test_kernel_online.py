# SPDX-License-Identifier: GPL-2.0-only
"""Trees built, dropped and checked while directories are in use. The cases are in kt/."""

GROUP = "online"


def test_online(judge):
    judge()
