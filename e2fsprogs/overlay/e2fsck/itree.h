/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * itree.h --- checking and rebuilding inode-ordered directory indexes
 *
 * Pass 1 records the directories that have a tree.  Pass 1D drops trees whose
 * blocks are multiply claimed.  Pass 2 sums the keys of the entries it reads,
 * and compares the sums with the trees.  Pass 3A rebuilds wrong and dropped
 * trees.  Memory: one struct itree_dir per directory with a tree.
 */
#ifndef E2FSCK_ITREE_H
#define E2FSCK_ITREE_H

#include "ext2fs/ext2fs_itree.h"

#define ITREE_DIR_VERIFY	0x01	/* has a tree, to be checked */
#define ITREE_DIR_CHANGED	0x02	/* pass 2 rewrote some of its blocks */
#define ITREE_DIR_DROP		0x04	/* free its segment in pass 3A */
#define ITREE_DIR_BUILD		0x08	/* make a new tree in pass 3A */

struct itree_dir {
	ext2_ino_t	ino;
	__u8		state;
	__u8		hashversion;	/* for ext2fs_dirhash2() */
	__u64		keys;		/* entries that pass 2 has seen */
	__u64		hash;		/* their ext2fs_itree_hash_key(), summed */
};

/* -D builds trees for directories of at least this many blocks */
#define ITREE_BUILD_BLOCKS	16

/* Is this block of a directory in the tree's segment, used or not? */
static inline int e2fsck_itree_in_segment(e2fsck_t ctx,
					  struct ext2_inode *inode,
					  blk64_t lblk)
{
	return lblk >= EXT2FS_ITREE_START &&
		(ext2fs_has_feature_itree(ctx->fs->super) ||
		 (inode->i_flags & EXT4_ITREE_FL));
}

int e2fsck_itree_check_nondir(e2fsck_t ctx, struct problem_context *pctx);
int e2fsck_itree_check_inode(e2fsck_t ctx, struct problem_context *pctx,
			     int segment);
struct itree_dir *e2fsck_itree_find(e2fsck_t ctx, ext2_ino_t ino);
void e2fsck_itree_add_entry(struct itree_dir *it,
			    struct ext2_dir_entry *dirent,
			    ext2_dirhash_t hash);
void e2fsck_itree_hash_entry(e2fsck_t ctx, struct itree_dir *it,
			     struct ext2_dir_entry *dirent, int casefold);
void e2fsck_itree_check_dirs(e2fsck_t ctx);
int e2fsck_itree_is_unused(e2fsck_t ctx, ext2_ino_t dir);
errcode_t e2fsck_itree_drop(e2fsck_t ctx, ext2_ino_t dir);
int e2fsck_itree_wanted(e2fsck_t ctx, ext2_ino_t dir, __u64 blocks);
void e2fsck_itree_rehashed(e2fsck_t ctx, ext2_ino_t dir, __u64 blocks,
			   __u64 *keys, __u64 count);
void e2fsck_itree_rebuild(e2fsck_t ctx);
void e2fsck_itree_free(e2fsck_t ctx);

#endif /* E2FSCK_ITREE_H */
