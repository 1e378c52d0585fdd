# SPDX-License-Identifier: GPL-2.0-only
"""filefrag, e4defrag, e2scrub, e2fsck without the key. The cases are in kt/."""

GROUP = "tools"


def test_tools(judge):
    judge()
