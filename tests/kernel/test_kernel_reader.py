# SPDX-License-Identifier: GPL-2.0-only
"""Readers on slow and failing disks. The cases are in kt/."""

GROUP = "reader"


def test_reader(judge):
    judge()
