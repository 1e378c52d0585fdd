# SPDX-License-Identifier: GPL-2.0-only
"""The cases of kt/, one test for each result. The ID names the group: `test_result[ops:ops-4k]`."""


def test_result(judge):
    judge()
