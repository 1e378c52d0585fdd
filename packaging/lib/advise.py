# SPDX-License-Identifier: GPL-2.0-only
"""itree-advise as a package: a program of bench/, the modules it imports, its man page and completion."""

import treebuild as tb

BENCH = tb.REPO / "bench"
SHARE = "usr/share/itree-advise"
MODULES = ("blocktrace", "disks", "estimate", "model", "pictures", "ringbuffer")


def files():
    """Return {path in the package: file}. The packages link usr/sbin/itree-advise to the program in SHARE."""
    return {
        f"{SHARE}/itree-advise": BENCH / "itree-advise",
        **{f"{SHARE}/{name}.py": BENCH / f"{name}.py" for name in MODULES},
        "usr/share/man/man8/itree-advise.8": BENCH / "itree-advise.8",
        "usr/share/bash-completion/completions/itree-advise": tb.REPO / "packaging" / "advise" / "completion",
    }
