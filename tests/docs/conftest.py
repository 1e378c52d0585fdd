# SPDX-License-Identifier: GPL-2.0-only
import os
import pathlib
import sys

REPO = pathlib.Path(__file__).resolve().parents[2]
sys.dont_write_bytecode = True

FULL = bool(os.environ.get("ITREE_FULL"))
