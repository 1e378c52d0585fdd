/* SPDX-License-Identifier: LGPL-2.0-or-later */
/* Interfaces between the parts of libdiskorder. */
#ifndef DISKORDER_INSIDE_H
#define DISKORDER_INSIDE_H

#include <stdbool.h>
#include <stdint.h>

/* Pages of a part of a file that are in memory, or -1 and errno. */
int64_t dorder_cached_pages(int fd, uint64_t from, uint64_t size);

/*
 * Returns whether reading the file leaves its time of access unchanged: tools
 * that preserve or archive times of access read them after us.  flags: those of
 * fd.  Sets O_NOATIME where the kernel allows it; the caller restores the flags.
 */
bool dorder_reads_unseen(int fd, int flags);

/* A file of more bytes is read ahead alone: its requests are large as it is. */
#define DORDER_RUN_FILE (128U << 10)

/*
 * Read count files of DORDER_RUN_FILE bytes at most ahead, DORDER_AHEAD_FILES at
 * most, that lie one after another on a disk, in as few requests as can be.  Sets
 * O_NOATIME on the descriptors where that is allowed.  refused: files cannot be
 * mapped here; false at first, and kept by the caller.
 */
void dorder_read_run(const int *files, const uint32_t *sizes, uint32_t count,
		     bool *refused);

#endif
