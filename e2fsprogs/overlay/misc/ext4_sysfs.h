/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ext4_sysfs.h --- what the kernel shows of a mounted file system
 */
#ifndef EXT4_SYSFS_H
#define EXT4_SYSFS_H

#include <stdio.h>

/*
 * Opens the attribute @attr of the file system that @fd is open on, for
 * reading: /sys/fs/ext4/DEVICE/ATTR, or that of ext4itree.  Returns NULL
 * without such an attribute, and where /sys is not mounted.
 */
FILE *ext4_sysfs_open(int fd, const char *attr);

#endif /* EXT4_SYSFS_H */
