# SPDX-License-Identifier: GPL-2.0-only
"""Pictures of traces and results."""
