# SPDX-License-Identifier: GPL-2.0-only
"""The file system's device behind device mapper."""

from __future__ import annotations

from kt.guest import Guest


class Mapped:
    """From here to remove(), g.dev is a mapped device with this table; raw is the device below."""

    def __init__(self, g: Guest, name: str, table: str):
        self.g, self.raw, self.name = g, g.dev, name
        self.dmsetup("create", name, "--table", table)
        g.dev = "/dev/dm-" + self.dmsetup("info", "-c", "--noheadings", "-o", "minor", name).strip()

    def dmsetup(self, *args) -> str:
        # There is no udev in the guest: only the kernel's own names of devices.
        return self.g.run("dmsetup", "--noudevsync", "--noudevrules", *args).stdout

    def remove(self) -> None:
        self.dmsetup("remove", self.name)
        self.g.dev = self.raw
