// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where a reader goes on that opened the directory anew.
 *
 * File servers in user space open a directory for each request and seek to a
 * position that they were given earlier, maybe by another boot.  Meanwhile its
 * order may have changed: a tree was built or dropped, the feature was set.  Positions
 * of one order mean nothing in the other, and names would be missed.  So the
 * position itself tells which order it is of: in inode order its upper half
 * is an inode number, which of 2^32 few are, and either kind belongs to a name
 * that in most cases is still there.
 */
#include <linux/fs.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

struct hash_search {
	struct ext4_itree_visit visit;
	u32	hash;
	u32	minor;
	bool	found;
};

static int match_name(struct ext4_itree_visit *v, u64 key, u32 minor,
		      struct ext4_dir_entry_2 *de)
{
	struct hash_search *h = container_of(v, struct hash_search, visit);

	if (ITREE_KEY_HASH(key) == h->hash && minor == h->minor)
		h->found = true;
	return 0;
}

/* Visits the leaves of the htree that hold the hash. */
static int search_leaves(struct hash_search *h)
{
	struct ext4_htree_place at = { .hash = h->hash };
	ext4_lblk_t block;
	u32 next;
	int err;

	do {
		if (fatal_signal_pending(current))
			return -ERESTARTSYS;
		cond_resched();
		err = ext4_htree_find_leaf(h->visit.dir, &at, &block, &next);
		if (!err)
			err = ext4_itree_visit_block(&h->visit, block);
		if (err)
			return err;
		ext4_htree_go_on(&at, next);
		/* Is this leaf one that goes on with the same hash? */
	} while (!h->found && next != ~0U && at.nth && at.hash == h->hash);
	return 0;
}

/* Is there a name whose position in hash order is @pos?  1, 0 or an error. */
static int in_hash_order(struct inode *dir, loff_t pos)
{
	struct hash_search h = {
		.visit = {
			.dir = dir,
			.lo = KEY_DOTDOT + 1,
			.hi = ~0ULL,
			.name = match_name,
		},
		.hash = (u32)(pos >> 32) << 1,
		.minor = (u32)pos,
	};
	int err;

	if (ext4_has_inline_data(dir))
		return 0;
	err = ext4_itree_hash_version(dir, &h.visit.hash_version);
	if (!err && (dir->i_size >> dir->i_blkbits) > EXT4_ITREE_SORT_BLOCKS)
		err = search_leaves(&h);
	else if (!err)
		err = ext4_itree_visit_all(&h.visit);
	/* A damaged directory is what the scan to come will tell of. */
	if (err == ERR_BAD_DX_DIR || err == -EFSCORRUPTED ||
	    err == -EFSBADCRC)
		err = 0;
	return err ? err : h.found;
}

/* Has the tree this very key?  A bad tree has none. */
static bool in_tree(struct inode *dir, loff_t pos)
{
	struct itree_cursor cur;
	struct ext4_itree et;
	bool found = false;

	if (!ext4_itree_usable(dir) || ext4_itree_open(&et, NULL, dir))
		return false;
	if (!itree_seek(&et.t, pos_to_key(pos), &cur))
		found = itree_cursor_key(&cur) == pos_to_key(pos);
	itree_cursor_release(&cur);
	ext4_itree_close(&et);
	return found;
}

/**
 * ext4_itree_resume - choose the order for a directory opened at a position
 * @dir: directory with an htree or one block, i_rwsem held
 * @pos: the 64-bit position, not 0; set to 0 where the reader starts over
 * @inode_order: does a reader that starts now get inode order?
 *
 * Returns 1 for inode order, 0 for hash order, or a negative error.  A name is
 * returned twice rather than missed: who comes with a position in inode order
 * to a directory that has no such order any more starts over.  What is left to
 * chance is a name that is deleted at the position, and whose hash looks like
 * the number of an inode: that is taken for one where there is inode order.
 */
int ext4_itree_resume(struct inode *dir, loff_t *pos, bool inode_order)
{
	u32 ino = (u32)(*pos >> 31);
	int ret;

	if (*pos <= key_to_pos(KEY_DOTDOT))
		return inode_order;
	if (ino < EXT4_FIRST_INO(dir->i_sb) ||
	    ino > le32_to_cpu(EXT4_SB(dir->i_sb)->s_es->s_inodes_count))
		return 0;
	if (inode_order && in_tree(dir, *pos))
		return 1;
	ret = in_hash_order(dir, *pos);
	if (ret)
		return ret < 0 ? ret : 0;
	if (!inode_order)
		*pos = 0;
	return inode_order;
}
