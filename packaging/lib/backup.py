# SPDX-License-Identifier: GPL-2.0-only
"""itree-backup as a package for any host: the files of the appliance without those that make it one.

The appliance formats an empty disk. A host with other work must never do
that: there the admin mounts a volume on /srv/backup, and `itree-backup init`
marks it.
"""

import fnmatch

import treebuild as tb

TOP = tb.REPO / "image" / "appliance"
# Paths below TOP that are left out, as patterns.
APPLIANCE_ONLY = (
    "usr/sbin/itree-backup-volume", "usr/share/man/man8/itree-backup-volume.8", "usr/lib/udev/*",
    "usr/lib/itree-backup/repart.d/*",
    "usr/lib/itree-backup/itree_backup/volume.py", "usr/lib/itree-backup/smart*", "usr/lib/itree-backup/write-issue",
    "usr/lib/systemd/system-preset/*", "usr/lib/systemd/system/itree-backup-volume.service",
    "usr/lib/systemd/system/itree-backup-grow.service", "usr/lib/systemd/system/itree-backup-setup.service",
    "usr/lib/systemd/system/itree-backup-console.*", "usr/lib/systemd/system/srv-backup.mount",
    "usr/lib/systemd/system/e2scrub*", "usr/lib/systemd/system/smartmontools*",
    "usr/lib/systemd/system/itree-check.*", "usr/lib/systemd/system/itree-pack.*",
    "usr/lib/systemd/system/itree-arrange.*",
)  # fmt: skip


def files():
    """{path in the package: file} of the package. A pattern in APPLIANCE_ONLY that matches nothing is an error."""
    every = tb.files_below(TOP)
    for pattern in APPLIANCE_ONLY:
        if not fnmatch.filter(every, pattern):
            raise tb.BuildError(f"packaging/lib/backup.py leaves out {pattern}, and image/appliance has no such file")
    return {name: TOP / name for name in every if not any(fnmatch.fnmatch(name, p) for p in APPLIANCE_ONLY)}
