# SPDX-License-Identifier: GPL-2.0-only
"""Listings of every size of directory on every kind of file system. The cases are in kt/."""

GROUP = "matrix"


def test_matrix(judge):
    judge()
