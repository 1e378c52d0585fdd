// SPDX-License-Identifier: GPL-2.0-only
/*
 * Positions of readdir: the order, the pass and the name that each encodes.
 *
 * File servers in user space open a directory for each request, so a file may
 * be closed between two calls of one listing.  Trees are built and dropped,
 * mount options change, machines reboot.  So a position holds all that is
 * needed to continue behind it.  Of its 63 bits,
 *
 *	bit  62		is 0 in inode order, 1 in hash order,
 *	bits 61..30	are the inode, or 31 bits of the hash and a 0,
 *	bits 29..18	are the number of the pass (itree_open.c).  In hash order,
 *			that pass returns only names that moved, and 0 stands for
 *			a pass that returns all names,
 *	bits 17..0	are the highest bits of the hash, or of the minor hash.
 *
 * GlusterFS puts the number of a brick into the lowest bits, which are 0 when
 * the position comes back.  Then the place lies before the name, among names of
 * the same inode or hash, as with the positions that ext4 always had.
 *
 * A position whose pass has been forgotten is continued by a pass in hash order
 * that starts over and returns all names.  So a name may be returned twice, but
 * none is missed, and none is returned a third time, since hash order needs no
 * memory of the pass.
 *
 * knfsd, readers with 32 bits and file systems without the feature have the
 * positions that ext4 always had.
 */
#include <linux/fs.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/**
 * ext4_itree_hash_pos - position in hash order
 * @id: the pass, or 0
 * @hash: of the name
 * @minor: of the name
 */
loff_t ext4_itree_hash_pos(u32 id, u32 hash, u32 minor)
{
	return POS_HASH | ((loff_t)(hash >> 1) << 31) |
	       ((loff_t)id << POS_PASS_SHIFT) | minor >> 14;
}

u32 ext4_itree_pos_hash(loff_t pos)
{
	return (u32)((pos & ~POS_HASH) >> 31) << 1;
}

u32 ext4_itree_pos_minor(loff_t pos)
{
	return (u32)(pos & POS_LOW_MASK) << 14;
}

static int hash_order(struct dir_private_info *info, u32 id)
{
	info->order = EXT4_ITREE_HASH_ORDER;
	info->itree_pass = id;
	return info->order;
}

static int hash_order_anew(struct dir_private_info *info, loff_t *pos)
{
	*pos = ext4_itree_hash_pos(0, 0, 0);
	return hash_order(info, 0);
}

/* Makes the open file follow the pass of this number, if that is known. */
static bool follow_pass(struct inode *dir, struct ext4_itree_scan **scanp,
			u32 id)
{
	struct ext4_itree_pass *pass;

	if (*scanp && (*scanp)->pass->id == id) {
		(*scanp)->over = false;
		return true;
	}
	pass = ext4_itree_find_pass(dir, id);
	return pass && !ext4_itree_scan_follow(dir, scanp, pass);
}

/**
 * ext4_itree_choose_order - choose the order in which a listing continues
 * @file: open directory with an htree or one block, with 64-bit positions
 * @pos: its position, which may change: see above
 * @inode_order: a reader that starts now gets inode order
 *
 * Returns one of enum ext4_itree_order.  i_rwsem is held.
 */
int ext4_itree_choose_order(struct file *file, loff_t *pos, bool inode_order)
{
	struct dir_private_info *info = file->private_data;
	struct inode *dir = file_inode(file);
	bool first = info->order == EXT4_ITREE_NO_ORDER;
	u32 id = *pos >> POS_PASS_SHIFT & (PASS_IDS - 1);

	if (info->order == EXT4_ITREE_NARROW_ORDER &&
	    *pos == EXT4_HTREE_EOF_32BIT)
		*pos = EXT4_HTREE_EOF_64BIT;
	/* The end is the same in all orders.  No name has its hash. */
	if (*pos >= round_down(EXT4_HTREE_EOF_64BIT, BIT_ULL(31))) {
		*pos = EXT4_HTREE_EOF_64BIT;
		if (info->itree_scan)
			info->itree_scan->over = true;
		return first ? EXT4_ITREE_OTHER_ORDER : info->order;
	}
	if (!*pos) {
		if (!inode_order ||
		    ext4_itree_scan_follow(dir, &info->itree_scan,
					   ext4_itree_begin_pass(dir)))
			return hash_order(info, 0);
		info->order = EXT4_ITREE_INODE_ORDER;
		return info->order;
	}
	if (info->order == EXT4_ITREE_NARROW_ORDER) {
		*pos = ext4_itree_hash_pos(0, *pos << 1, 0);
		return hash_order(info, 0);
	}
	/* An offset in a directory whose htree is bad. */
	if (info->order == EXT4_ITREE_OTHER_ORDER ||
	    *pos <= min_t(loff_t, dir->i_size, POS_FIRST - 1)) {
		info->order = EXT4_ITREE_OTHER_ORDER;
		return info->order;
	}
	if (first)
		ext4_itree_note_anew(dir);
	if (*pos & POS_HASH) {
		if (!id || follow_pass(dir, &info->itree_scan, id))
			return hash_order(info, id);
		return hash_order_anew(info, pos);
	}
	/* The option does not affect a file in the middle of a listing. */
	if ((first && !inode_order) ||
	    !follow_pass(dir, &info->itree_scan, id))
		return hash_order_anew(info, pos);
	info->order = EXT4_ITREE_INODE_ORDER;
	return info->order;
}

/**
 * ext4_itree_no_htree - read an open directory block by block
 * @info: of the file
 * @dir: its inode
 * @pos: its position; reset to 0 if it is not an offset
 */
void ext4_itree_no_htree(struct dir_private_info *info, struct inode *dir,
			 loff_t *pos)
{
	if (*pos > dir->i_size && *pos != EXT4_HTREE_EOF_64BIT &&
	    info->order != EXT4_ITREE_OTHER_ORDER)
		*pos = 0;
	if (info->order != EXT4_ITREE_NARROW_ORDER)
		info->order = EXT4_ITREE_OTHER_ORDER;
}

/**
 * ext4_itree_end_inode_order - end the part of a pass that is in inode order
 * @file: open directory
 * @pos: set to where the file continues
 *
 * Returns true if the pass continues in hash order.
 */
bool ext4_itree_end_inode_order(struct file *file, loff_t *pos)
{
	struct dir_private_info *info = file->private_data;
	struct inode *dir = file_inode(file);
	struct ext4_itree_pass *pass = info->itree_scan->pass;
	u32 id = 0, hash = 0, minor = 0;

	if (!ext4_itree_pass_whole(dir, pass)) {
		if (!ext4_itree_next_moved(dir, pass, &hash, &minor)) {
			*pos = EXT4_HTREE_EOF_64BIT;
			return false;
		}
		id = pass->id;
	}
	*pos = ext4_itree_hash_pos(id, 0, 0);
	hash_order(info, id);
	return true;
}

/**
 * ext4_itree_skip - find the next name that a pass in hash order returns
 * @info: of an open directory
 * @dir: its inode
 * @hash: hash to start from, set to that of the next name
 * @minor: likewise
 *
 * Returns false at the end.
 */
bool ext4_itree_skip(struct dir_private_info *info, struct inode *dir,
		     u32 *hash, u32 *minor)
{
	if (info->order != EXT4_ITREE_HASH_ORDER || !info->itree_pass)
		return true;
	return ext4_itree_next_moved(dir, info->itree_scan->pass, hash, minor);
}

/**
 * ext4_itree_wanted - does a pass in hash order return this name?
 * @info: of an open directory
 * @dir: its inode
 * @hash: of the name
 * @minor: likewise
 */
bool ext4_itree_wanted(struct dir_private_info *info, struct inode *dir,
		       u32 hash, u32 minor)
{
	if (info->order != EXT4_ITREE_HASH_ORDER || !info->itree_pass)
		return true;
	return ext4_itree_has_moved(dir, info->itree_scan->pass, hash, minor);
}
