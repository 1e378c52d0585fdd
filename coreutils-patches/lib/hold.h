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
	uint32_t most, count; /* may be held, are held */
	long waits; /* of this thread, when they were looked at last */
	long rest; /* and when something else began; 0: it did not */
	long usual; /* between two looks: inodes alone */
	long extra, limit; /* of those over that, so many cause a new reading */
	long cost; /* waits of a reading that is yet to be judged; 0: none */
	bool coming; /* one look has passed since */
	uint32_t pause; /* stretches to begin without one, when it was no use */
	uint32_t pass; /* and those of them still to come */
	bool tight; /* memory is short: each stretch begins with a reading */
	bool reading; /* the names are read with the file before this one */
};

/*
 * Make ready to hold up to slots files.  As many as that raise the process's
 * soft limit of open files, within its hard limit; where that is not enough,
 * files beyond half of it are not held.  False: without memory, nothing is
 * held.  A hold that is all 0 has not been started.  The limit is that of the
 * process: it returns to what it was when the last hold ends, in any order, and
 * at once in a child made by fork().  What posix_spawn() starts inherits it.
 */
bool dorder_hold_start(struct dorder_hold *hold, uint32_t slots);

/*
 * Whether a directory's names should be read again, with the file opened next.
 * An inode makes this thread wait now and then, when the next piece of inode
 * tables is read; a name that has left memory makes it wait for a block of its
 * own, and all of them together are read in fewer requests.  A stretch begins with
 * reading them, as what was read since the last one may have pushed them out;
 * where memory is not tight and they turn out to be there, one stretch after that
 * begins without, then two, four and so on.  To be asked before each file that is opened to be held; n
 * counts them from the first one of a stretch.
 */
bool dorder_hold_lost(struct dorder_hold *hold, uint32_t n);

/* What this thread waits for between the two is something else. */
void dorder_hold_rest(struct dorder_hold *hold);
void dorder_hold_go_on(struct dorder_hold *hold);

/* Take over fd (or -1) as number at, less than slots and free; may close it. */
void dorder_hold_take(struct dorder_hold *hold, uint32_t at, int fd);

/* Let number at go, if it is held. */
void dorder_hold_release(struct dorder_hold *hold, uint32_t at);

/* Let all go. */
void dorder_hold_end(struct dorder_hold *hold);

#endif
