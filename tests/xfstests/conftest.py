# SPDX-License-Identifier: GPL-2.0-only
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
