// SPDX-License-Identifier: GPL-2.0-only
/*
 * How many names the windows of scans may have.
 *
 * Each window of a large directory takes a visit of most of its blocks, so
 * that few large windows cost less than many small ones: in processor time
 * always, and in reads where the directory does not stay in memory.  Names are
 * memory of the kernel's, though, held as long as a reader likes.  So windows
 * grow with the memory of the machine, those of all scans together are
 * bounded, and when that much is out, a scan goes on with windows of
 * WINDOW_MAX names, which anybody may have.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include "ext4.h"
#include "itree.h"
#include "itree_scan.h"

/* One window may take a 32nd of the memory, all of them together a 16th. */
#define ONE_SHARE	32
#define ALL_SHARE	16

static atomic_long_t borrowed = ATOMIC_LONG_INIT(0);

static unsigned long memory(unsigned int share)
{
	return totalram_pages() / share * PAGE_SIZE;
}

/* Of a name in a window: its text is no longer than its entry in a block. */
static u32 name_bytes(const struct ext4_itree_scan *s)
{
	u64 entry = div64_u64(s->dir->i_size, max(s->total, 1ULL));

	return sizeof(struct scan_name) + sizeof(u64) +
	       min_t(u64, entry, EXT4_NAME_LEN);
}

/**
 * ext4_itree_window_limit - names that the windows of a scan may grow to
 * @s: the scan
 *
 * Returns WINDOW_MAX to WINDOW_LARGE.
 */
u32 ext4_itree_window_limit(const struct ext4_itree_scan *s)
{
	return clamp_t(unsigned long, memory(ONE_SHARE) / name_bytes(s),
		       WINDOW_MAX, WINDOW_LARGE);
}

/**
 * ext4_itree_borrow_room - ask for a window of more than WINDOW_MAX names
 * @s: the scan, which has none borrowed; s->want says how many names
 *
 * Returns false if others have too much.
 */
bool ext4_itree_borrow_room(struct ext4_itree_scan *s)
{
	unsigned long bytes = (unsigned long)s->want * name_bytes(s);

	if (atomic_long_add_return(bytes, &borrowed) > memory(ALL_SHARE)) {
		atomic_long_sub(bytes, &borrowed);
		return false;
	}
	s->borrowed = bytes;
	return true;
}

/**
 * ext4_itree_return_room - give back what ext4_itree_borrow_room() gave
 * @s: the scan, with anything borrowed or nothing
 */
void ext4_itree_return_room(struct ext4_itree_scan *s)
{
	atomic_long_sub(s->borrowed, &borrowed);
	s->borrowed = 0;
}
