# SPDX-License-Identifier: GPL-2.0-only
"""Kernel and tools take turns. The cases are in kt/."""

GROUP = "roundtrip"


def test_roundtrip(judge):
    judge()
