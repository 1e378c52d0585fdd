# SPDX-License-Identifier: GPL-2.0-only
import os
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / name) for name in ("docs/site", "packaging/lib", "packaging/sources", "tests/vm",
                                              "tests/packages", "tests/docs")]  # fmt: skip
sys.dont_write_bytecode = True

FULL = bool(os.environ.get("ITREE_FULL"))
