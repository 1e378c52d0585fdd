# SPDX-License-Identifier: GPL-2.0-only
"""Disk models: what a trace costs on them, and estimates for directories that were not traced."""
