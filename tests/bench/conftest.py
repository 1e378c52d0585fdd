# SPDX-License-Identifier: GPL-2.0-only
"""Tests of bench/."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "packaging" / "lib")]
