# SPDX-License-Identifier: GPL-2.0-only
"""itree-advise as a package: the program, its man page and completion, and the packages of bench/ that it imports."""

import treebuild as tb

BENCH = tb.REPO / "bench"
HERE = tb.REPO / "packaging" / "advise"
SHARE = "usr/share/itree-advise"
ROOMS = ("draw", "model", "trace")


def files():
    """Return {path in the package: file}. The packages link usr/sbin/itree-advise to the program in SHARE."""
    return {
        f"{SHARE}/itree-advise": HERE / "itree-advise",
        **{f"{SHARE}/{p.relative_to(BENCH)}": p for room in ROOMS for p in sorted((BENCH / room).glob("*.py"))},
        "usr/share/man/man8/itree-advise.8": HERE / "itree-advise.8",
        "usr/share/bash-completion/completions/itree-advise": HERE / "completion",
    }
