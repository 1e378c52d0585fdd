/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ext4_sysfs.h --- attributes of a mounted file system in /sys
 */
#ifndef EXT4_SYSFS_H
#define EXT4_SYSFS_H

#include <stdio.h>

/*
 * Opens the attribute @attr of the file system of @fd for reading:
 * /sys/fs/ext4/DEVICE/ATTR, or the same below ext4itree.  Returns NULL if
 * there is no such attribute or /sys is not mounted.
 */
FILE *ext4_sysfs_open(int fd, const char *attr);

#endif /* EXT4_SYSFS_H */
