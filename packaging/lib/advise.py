# SPDX-License-Identifier: GPL-2.0-only
"""itree-advise as a package: a program of bench/, the rooms of bench/ it imports from, its man page and completion."""

import treebuild as tb

BENCH = tb.REPO / "bench"
SHARE = "usr/share/itree-advise"
ROOMS = ("draw", "model", "trace")


def files():
    """Return {path in the package: file}. The packages link usr/sbin/itree-advise to the program in SHARE."""
    return {
        f"{SHARE}/itree-advise": BENCH / "itree-advise",
        **{f"{SHARE}/{p.relative_to(BENCH)}": p for room in ROOMS for p in sorted((BENCH / room).glob("*.py"))},
        "usr/share/man/man8/itree-advise.8": BENCH / "itree-advise.8",
        "usr/share/bash-completion/completions/itree-advise": tb.REPO / "packaging" / "advise" / "completion",
    }
