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
 *
 * How many names fit is guessed from those of earlier windows; what counts is
 * the memory they take.
 */
#include <linux/fs.h>
#include <linux/mm.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/*
 * One window may take a 16th of the memory, or half of that if the directory
 * stays in memory as well: that is worth more then.  All of them together may
 * take an eighth.
 */
#define ONE_SHARE	16
#define KEPT_SHARE	32
#define ALL_SHARE	8

static atomic_long_t borrowed = ATOMIC_LONG_INIT(0);

static unsigned long memory(unsigned int share)
{
	return totalram_pages() / share * PAGE_SIZE;
}

/*
 * Of a name in a window, but its text: its place and its key, which is there
 * twice while the window is filled.
 */
#define PLACE_BYTES	(sizeof(struct scan_name) + 2 * sizeof(u64))

/* Before there is a window, text is taken to be as long as its entry. */
static u32 text_bytes(const struct ext4_itree_scan *s)
{
	u64 bytes = s->dir->i_size, names = max(s->total, 1ULL);

	if (s->text_names) {
		bytes = s->text_bytes + s->text_bytes / 8;
		names = s->text_names;
	}
	return min_t(u64, div64_u64(bytes, names) + 1, EXT4_NAME_LEN);
}

/**
 * ext4_itree_window_limit - names that the windows of a scan may grow to
 * @s: the scan
 *
 * Returns WINDOW_MAX to WINDOW_LARGE.
 */
u32 ext4_itree_window_limit(const struct ext4_itree_scan *s)
{
	unsigned int share = ext4_itree_dir_kept(s->dir) ? KEPT_SHARE :
							    ONE_SHARE;

	return clamp_t(unsigned long,
		       memory(share) / (PLACE_BYTES + text_bytes(s)),
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
	unsigned long names = min_t(u64, s->want,
				    max_t(u64, s->total, WINDOW_MAX));
	unsigned long text = names * text_bytes(s);
	unsigned long bytes = names * PLACE_BYTES + text;

	if (atomic_long_add_return(bytes, &borrowed) > memory(ALL_SHARE)) {
		atomic_long_sub(bytes, &borrowed);
		return false;
	}
	s->borrowed = bytes;
	s->text_room = text;
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
	s->text_room = 0;
}
