# SPDX-License-Identifier: GPL-2.0-only
"""Block traces: recording, the ring buffer's pages, and requests as files."""
