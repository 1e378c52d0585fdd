# SPDX-License-Identifier: GPL-2.0-only
"""Shutdown and replay. The cases are in kt/."""

GROUP = "crash"


def test_crash(judge):
    judge()
