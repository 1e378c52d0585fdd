# SPDX-License-Identifier: GPL-2.0-only
"""Snapshots of hosts made with rsync on hard links, each verified before it counts; see itree-backup(8)."""
