# SPDX-License-Identifier: GPL-2.0-only
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPO / "tests" / "runner"), str(REPO / "packaging" / "lib")]
