# SPDX-License-Identifier: GPL-2.0-only
"""Kernel tests of the itree; see tests/kernel/README.md."""
