/* SPDX-License-Identifier: LGPL-2.0-or-later */
/* What the parts of libdiskorder ask of each other. */
#ifndef DISKORDER_INSIDE_H
#define DISKORDER_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

/* Pages of a part of a file that are in memory, or -1 and errno. */
int64_t dorder_cached_pages(int fd, uint64_t from, uint64_t size);

/*
 * Whether reading the file leaves its time of access as it is: a tool that
 * preserves times of access, or archives them, looks at them after us.  flags:
 * those of fd; O_NOATIME is set where the kernel allows it, and stays set until
 * the caller restores them.
 */
bool dorder_reads_unseen(int fd, int flags);

#endif
