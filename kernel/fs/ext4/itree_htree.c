// SPDX-License-Identifier: GPL-2.0-only
/*
 * The index of an htree, for tasks that do not wait for the disk under i_rwsem.
 * Searches and changes of it are in namei.c.
 */
#include <linux/buffer_head.h>
#include <linux/fs.h>
#include <linux/sched/signal.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"

/**
 * ext4_htree_parse - parse an index block of an htree
 * @dir: its directory
 * @bh: block, whose checksum has been verified
 * @block: its logical number; 0 is the root
 * @n: filled in; borrows @bh
 *
 * Returns false if it is not an index block.  For the format, see struct
 * dx_root, dx_node, dx_entry and dx_countlimit in namei.c.
 */
bool ext4_htree_parse(struct inode *dir, struct buffer_head *bh,
		      ext4_lblk_t block, struct ext4_htree_node *n)
{
	bool csum = ext4_has_feature_metadata_csum(dir->i_sb);
	u32 size = dir->i_sb->s_blocksize, head = block ? 8 : 32;
	/* As in dx_node_limit(): with hashes in entries, 8 bytes stay free. */
	u32 room = size - (block ? ext4_dir_rec_len(0, dir) : head);
	struct ext4_dir_entry_2 *de = (struct ext4_dir_entry_2 *)bh->b_data;
	u8 *info = (u8 *)bh->b_data + 24;

	n->bh = bh;
	n->block = block;
	n->at = 0;
	n->levels = 0;
	n->e = (struct ext4_htree_entry *)(bh->b_data + head);
	n->limit = le16_to_cpu(((__le16 *)n->e)[0]);
	n->count = le16_to_cpu(((__le16 *)n->e)[1]);
	if (block) {
		if (de->inode || ext4_rec_len_from_disk(de->rec_len, size) != size)
			return false;
	} else {
		n->levels = info[6];
		if (info[5] != 8 ||
		    n->levels >= ext4_dir_htree_level(dir->i_sb))
			return false;
	}
	return n->limit == room / sizeof(*n->e) - csum &&
	       n->count && n->count <= n->limit;
}

/*
 * Brings blocks of the htree's index into memory, so that searches need not
 * read them.  Reporting a bad index is left to the searches.
 */
static int load_index(struct inode *dir, ext4_lblk_t block, u32 levels, u32 lo,
		      u32 hi)
{
	struct ext4_htree_node n = { .count = 1 };
	struct buffer_head *bh;
	bool behind = false;
	ext4_lblk_t child;
	int err = 0;
	u32 i;

	for (i = 0; !err && !behind && i < n.count; i++) {
		if (fatal_signal_pending(current))
			return -ERESTARTSYS;
		cond_resched();
		err = ext4_itree_load(dir, block, &bh);
		if (!bh)
			return err == -ENOENT ? err : 0;
		if (!ext4_htree_parse(dir, bh, block, &n) || i >= n.count) {
			brelse(bh);
			break;
		}
		if (!block)
			levels = n.levels;
		/* An odd hash: the last hash of the child before continues. */
		while (i + 1 < n.count &&
		       (ext4_htree_hash(&n, i + 1) & ~1) < lo)
			i++;
		/* A search looks at the next leaf, too. */
		behind = i && ext4_htree_hash(&n, i) > hi;
		child = ext4_htree_child(&n, i);
		brelse(bh);
		if (!levels)
			break;
		if (child && child < dir->i_size >> dir->i_blkbits)
			err = load_index(dir, child, levels - 1, lo, hi);
	}
	return err;
}

/**
 * ext4_itree_load_index - bring an htree's index into memory
 * @dir: directory, i_rwsem held shared; released to read
 * @lo: hash, the first that searches will be for
 * @hi: hash, the last
 *
 * Returns 0, or an error: -ENOENT if the directory has been removed meanwhile.
 */
int ext4_itree_load_index(struct inode *dir, u32 lo, u32 hi)
{
	return load_index(dir, 0, 0, lo, hi | 1);
}
