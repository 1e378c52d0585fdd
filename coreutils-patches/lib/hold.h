/* SPDX-License-Identifier: LGPL-2.0-or-later */
/*
 * Files held open, by small numbers, so that neither their inodes nor their
 * names leave memory before they are used.  Inside libdiskorder only.
 */
#ifndef DISKORDER_HOLD_H
#define DISKORDER_HOLD_H

#include <stdbool.h>
#include <stdint.h>

struct dorder_hold {
	int *files; /* -1: none held at this place; NULL: not started */
	uint32_t slots;
	uint32_t most, count; /* files that may be held, that are held */
	long waits; /* this thread's waits at the last check */
	long rest; /* its waits when dorder_hold_rest() was called, or 0 */
	long usual; /* waits between two checks for inodes alone */
	long extra, limit; /* waits beyond these; limit of them: read again */
	long cost; /* waits of a reading that is yet to be judged; 0: none */
	bool coming; /* one check has passed since that reading */
	uint32_t pause; /* stretches to skip a reading, as it was useless */
	uint32_t pass; /* how many of these are left */
	bool tight; /* memory is short: each stretch begins with a reading */
	bool reading; /* the names are read with the file before this one */
};

/*
 * Prepares to hold up to slots files.  Raises the process's soft limit of open
 * files by as many, within the hard limit; where that is not enough, files beyond
 * half of the limit are not held.  Returns false without memory; then no file is
 * held.  A hold that is all 0 has not been started.  The limit is that of the
 * process.  It is restored when the last hold ends, in any order, and at once in
 * a child made by fork().  Children of posix_spawn() inherit the raised limit.
 */
bool dorder_hold_start(struct dorder_hold *hold, uint32_t slots);

/*
 * Returns whether a directory's names should be read again with the next file.
 * Inodes make this thread wait only when the next piece of inode tables is read.
 * A name that has been evicted makes it wait for a block of its own, while all
 * names together take few requests.  So a stretch begins by reading the names,
 * since later reads may have evicted them.  If memory is not short and they are
 * still there, the next stretch does without, then two, four and so on.  Call it
 * before each file that is opened to be held; n counts them from the first one
 * of a stretch.
 */
bool dorder_hold_lost(struct dorder_hold *hold, uint32_t n);

/* Waits of this thread between the two calls do not count. */
void dorder_hold_rest(struct dorder_hold *hold);
void dorder_hold_go_on(struct dorder_hold *hold);

/* Takes over fd (or -1) at the free place at (below slots); may close it. */
void dorder_hold_take(struct dorder_hold *hold, uint32_t at, int fd);

/* Releases the file at place at, if one is held there. */
void dorder_hold_release(struct dorder_hold *hold, uint32_t at);

/* Releases all files. */
void dorder_hold_end(struct dorder_hold *hold);

#endif
