# SPDX-License-Identifier: GPL-2.0-only
"""itree-t, the program that the tests run in the guest: how it is built."""

from __future__ import annotations

import os
import pathlib
import subprocess

SOURCES = pathlib.Path(__file__).resolve().parents[1] / "src"
PROGRAM = SOURCES.parents[2] / "build" / "tests" / "itree-t"


def build() -> pathlib.Path:
    """build/tests/itree-t: static, so that it runs in every guest."""
    sources = sorted(SOURCES.glob("*.c"))
    newest = max(p.stat().st_mtime for p in SOURCES.iterdir())
    if not PROGRAM.exists() or PROGRAM.stat().st_mtime < newest:
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        part = PROGRAM.with_suffix(f".{os.getpid()}")
        cmd = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-static", "-o", part, *sources]
        res = subprocess.run(cmd, capture_output=True, text=True, check=False)
        if res.returncode:
            raise RuntimeError(f"itree-t does not compile:\n{res.stderr}")
        part.rename(PROGRAM)
    return PROGRAM
