# SPDX-License-Identifier: GPL-2.0-only
"""The cells of both tables: what they run, how results are kept and put together."""
