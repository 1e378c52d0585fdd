/* SPDX-License-Identifier: LGPL-2.0-or-later */
/* Interfaces between the parts of libdiskorder. */
#ifndef DISKORDER_INSIDE_H
#define DISKORDER_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

/* Counts the pages of a part of a file in memory; -1 and errno on error. */
int64_t dorder_cached_pages(int fd, uint64_t from, uint64_t size);

/*
 * Returns whether reading the file leaves its time of access unchanged: tools
 * that preserve or archive times of access read them after us.  flags: fd's.
 * Sets O_NOATIME where the kernel allows it; the caller restores the flags.
 */
bool dorder_reads_unseen(int fd, int flags);

/* Larger files are read ahead alone: their requests are large anyway. */
#define DORDER_RUN_FILE (128U << 10)

/*
 * Reads ahead, in as few requests as possible, count files (at most
 * DORDER_AHEAD_FILES) of at most DORDER_RUN_FILE bytes, contiguous on the disk.
 * Leaves times of access and the flags of the descriptors alone.  The caller
 * keeps *refused, at first false; it is set if files cannot be mapped here.
 * mapped: NULL, or receives the mapping, which the caller gives to
 * dorder_protect() later.
 */
struct dorder_mapped {
	void *base; /* NULL: nothing could be mapped */
	size_t size;
};
void dorder_read_run(const int *files, const uint32_t *sizes, uint32_t count,
		     bool *refused, struct dorder_mapped *mapped);

/*
 * Waits for the data of a mapping and marks its pages as used more than once:
 * under memory pressure they stay longer than pages that others read or write
 * once.  Before Linux 5.14 it only unmaps.  Leaves errno alone.
 */
void dorder_protect(struct dorder_mapped *mapped);

#endif
