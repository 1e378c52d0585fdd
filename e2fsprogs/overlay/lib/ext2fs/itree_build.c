// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree_build.c --- building and dropping the tree of a directory
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "itreeP.h"

#define GUESS_MAX	(1U << 20)	/* most names in the first guess */

static int cmp_keys(const void *a, const void *b)
{
	__u64	x = *(const __u64 *) a, y = *(const __u64 *) b;

	return x < y ? -1 : x > y;
}

static int next_key(void *arg, u64 *key)
{
	struct itree_gather	*g = arg;

	if (g->pos == g->count)
		return ITREE_END;
	*key = g->keys[g->pos++];
	return 0;
}

static errcode_t load_tree(ext2fs_itree it, struct itree_gather *g)
{
	ext2_filsys	fs = it->fs;
	errcode_t	retval;
	int		err;
	__u64		blocks;

	qsort(g->keys, g->count, sizeof(__u64), cmp_keys);
	blocks = itree_bulk_blocks(fs->blocksize, g->count);
	if (!blocks || blocks > ITREE_SEG_MAX)
		return EXT2_ET_FILE_TOO_BIG;
	retval = itree_map_run(it, blocks);
	if (retval)
		return retval;
	err = itree_format(&it->tree, &libext2fs_itree_ops, it, fs->blocksize,
			   ITREE_SEG_MAX, g->hasher.disk_version);
	if (err)
		return itree_core_error(it, err, NULL);
	err = itree_bulk_load(&it->tree, g->count, next_key, g);
	itree_close(&it->tree);
	return itree_core_error(it, err, NULL);
}

/* Writes the tree, then sets the flag; an error drops the tree. */
static errcode_t build_tree(ext2fs_itree it, struct itree_gather *g)
{
	ext2_filsys	fs = it->fs;
	errcode_t	retval;

	retval = load_tree(it, g);
	itree_close_map(it);
	if (retval) {
		(void) ext2fs_itree_drop(fs, it->dir);
		return retval;
	}
	it->inode.i_flags |= EXT4_ITREE_FL;
	return ext2fs_write_inode(fs, it->dir, &it->inode);
}

/* Drops the old tree and opens a handle for a new one. */
static errcode_t start_build(ext2_filsys fs, ext2_ino_t dir, ext2fs_itree *ret)
{
	ext2fs_itree	it;
	errcode_t	retval;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	if (!(fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;

	/* Fail before the drop if the directory cannot have a tree */
	retval = itree_new_handle(fs, dir, &it);
	if (retval)
		return retval;
	itree_free_handle(it);
	retval = ext2fs_itree_drop(fs, dir);
	if (retval)
		return retval;
	retval = ext2fs_read_bitmaps(fs);
	if (retval)
		return retval;
	return itree_new_handle(fs, dir, ret);
}

/*
 * Builds a tree of full nodes from the names of a directory, after dropping
 * the tree it had.  The flag is set last, so that an interruption leaves
 * unused blocks at worst.
 *
 * Takes 8 bytes of memory per name.  Returns 0 or an error
 * (EXT2_ET_ITREE_UNSUPP: the directory cannot have a tree;
 * EXT2_ET_BLOCK_ALLOC_FAIL; ...), after which the directory has no tree.
 */
errcode_t ext2fs_itree_build(ext2_filsys fs, ext2_ino_t dir)
{
	struct itree_gather	g;
	ext2fs_itree		it;
	errcode_t		retval;

	retval = start_build(fs, dir, &it);
	if (retval)
		return retval;
	memset(&g, 0, sizeof(g));
	/* A capped guess: a damaged i_size must not claim all memory */
	g.room = EXT2_I_SIZE(&it->inode) / 24 + 16;
	if (g.room > GUESS_MAX)
		g.room = GUESS_MAX;
	retval = ext2fs_get_array(g.room, sizeof(__u64), &g.keys);
	if (!retval)
		retval = itree_gather_dir(fs, dir, &it->inode, &g);
	if (!retval)
		retval = build_tree(it, &g);
	if (g.keys)
		ext2fs_free_mem(&g.keys);
	itree_free_handle(it);
	return retval;
}

/*
 * The same for callers that know the keys of all names already, for instance
 * because they have just written the directory.  The keys may be in any order,
 * and are sorted in place.
 */
errcode_t ext2fs_itree_build_keys(ext2_filsys fs, ext2_ino_t dir,
				  __u64 *keys, __u64 count)
{
	struct itree_gather	g;
	ext2fs_itree		it;
	errcode_t		retval;

	retval = start_build(fs, dir, &it);
	if (retval)
		return retval;
	memset(&g, 0, sizeof(g));
	g.keys = keys;
	g.count = count;
	retval = ext2fs_itree_hasher_init(fs, dir, &it->inode, &g.hasher);
	if (!retval)
		retval = build_tree(it, &g);
	itree_free_handle(it);
	return retval;
}

/*
 * Takes the tree off an inode: clears the flag, then frees whatever is
 * mapped in the segment.  Does nothing if there is neither.
 */
errcode_t ext2fs_itree_drop(ext2_filsys fs, ext2_ino_t dir)
{
	struct ext2_inode	inode;
	errcode_t		retval;
	int			segment;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	retval = ext2fs_read_inode(fs, dir, &inode);
	if (retval)
		return retval;
	retval = ext2fs_itree_has_segment(fs, dir, &inode, &segment);
	if (retval)
		return retval;
	if (!segment && !(inode.i_flags & EXT4_ITREE_FL))
		return 0;
	if (!(fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;
	if (inode.i_flags & EXT4_ITREE_FL) {
		inode.i_flags &= ~EXT4_ITREE_FL;
		retval = ext2fs_write_inode(fs, dir, &inode);
		if (retval)
			return retval;
	}
	if (!segment)
		return 0;
	retval = ext2fs_read_bitmaps(fs);
	if (retval)
		return retval;
	return ext2fs_punch(fs, dir, &inode, NULL, EXT2FS_ITREE_START, ~0ULL);
}

/*
 * Call this before changing the names in a directory without the functions of
 * this library: a stale tree is worse than none.  Only clearing the flag must
 * succeed.  Blocks that cannot be freed, for instance because the bitmaps are
 * not loaded, stay behind as an unused segment, which e2fsck frees.
 */
errcode_t ext2fs_itree_forget(ext2_filsys fs, ext2_ino_t dir)
{
	struct ext2_inode	inode;
	errcode_t		retval;

	if (!ext2fs_has_feature_itree(fs->super))
		return 0;
	retval = ext2fs_read_inode(fs, dir, &inode);
	if (retval || !(inode.i_flags & EXT4_ITREE_FL))
		return retval;
	inode.i_flags &= ~EXT4_ITREE_FL;
	retval = ext2fs_write_inode(fs, dir, &inode);
	if (retval)
		return retval;
	if (fs->block_map)
		(void) ext2fs_itree_drop(fs, dir);
	return 0;
}

/*
 * Calls @func for every directory that has a tree or an unused segment.  After
 * an error, *at is the inode that caused it, or 0.
 */
static errcode_t for_each_tree(ext2_filsys fs, ext2_ino_t *at,
			       errcode_t (*func)(ext2_filsys fs, ext2_ino_t dir,
						 struct ext2_inode *inode,
						 void *priv), void *priv)
{
	struct ext2_inode	inode;
	ext2_inode_scan		scan;
	ext2_ino_t		ino;
	errcode_t		retval;
	int			segment;

	retval = ext2fs_open_inode_scan(fs, 0, &scan);
	if (retval)
		return retval;
	while (1) {
		*at = 0;
		retval = ext2fs_get_next_inode(scan, &ino, &inode);
		if (retval == EXT2_ET_BAD_BLOCK_IN_INODE_TABLE)
			continue;
		if (retval || !ino)
			break;
		*at = ino;
		if (!LINUX_S_ISDIR(inode.i_mode) || !inode.i_links_count)
			continue;
		retval = ext2fs_itree_has_segment(fs, ino, &inode, &segment);
		if (retval)
			break;
		if (!segment && !(inode.i_flags & EXT4_ITREE_FL))
			continue;
		retval = func(fs, ino, &inode, priv);
		if (retval)
			break;
	}
	ext2fs_close_inode_scan(scan);
	return retval;
}

static errcode_t drop_one(ext2_filsys fs, ext2_ino_t dir,
			  struct ext2_inode *inode EXT2FS_ATTR((unused)),
			  void *priv)
{
	unsigned int	*dropped = priv;
	errcode_t	retval;

	retval = ext2fs_itree_drop(fs, dir);
	if (!retval)
		(*dropped)++;
	return retval;
}

/* Drops every tree and every unused segment of a file system. */
errcode_t ext2fs_itree_drop_all(ext2_filsys fs, unsigned int *dropped)
{
	unsigned int	count = 0;
	ext2_ino_t	at;
	errcode_t	retval;

	retval = for_each_tree(fs, &at, drop_one, &count);
	if (dropped)
		*dropped = count;
	return retval;
}

struct claims {
	ext2fs_block_bitmap	map;	/* clusters that have an owner */
	struct ext2fs_itree_fault *fault;
};

static errcode_t claim(ext2_filsys fs, struct claims *claims, blk64_t blk,
		       blk64_t len, blk64_t shared)
{
	blk64_t	end = blk + len;

	if (!len || blk < fs->super->s_first_data_block || end < blk ||
	    end > ext2fs_blocks_count(fs->super)) {
		claims->fault->why = "a block is outside of the file system";
		return EXT2_ET_ITREE_CORRUPT;
	}
	for (blk &= ~EXT2FS_CLUSTER_MASK(fs); blk < end;
	     blk += EXT2FS_CLUSTER_RATIO(fs)) {
		if (!ext2fs_test_block_bitmap2(fs->block_map, blk)) {
			claims->fault->why = "a block is not marked in use";
			return EXT2_ET_ITREE_CORRUPT;
		}
		if (ext2fs_test_block_bitmap2(claims->map, blk) &&
		    blk != shared) {
			claims->fault->why = "a block has two owners";
			return EXT2_ET_ITREE_CORRUPT;
		}
		ext2fs_mark_block_bitmap2(claims->map, blk);
	}
	return 0;
}

/* Claims the blocks of a directory: names, tree, and the extent tree itself. */
static errcode_t claim_dir(ext2_filsys fs, ext2_ino_t dir,
			   struct ext2_inode *inode, struct claims *claims)
{
	ext2_extent_handle_t	handle;
	struct ext2fs_extent	ex;
	errcode_t		retval;
	blk64_t			shared = ~0ULL;
	int			op = EXT2_EXTENT_ROOT;

	retval = ext2fs_extent_open2(fs, dir, inode, &handle);
	if (retval)
		return retval;
	while (1) {
		retval = ext2fs_extent_get(handle, op, &ex);
		if (retval)
			break;
		op = EXT2_EXTENT_NEXT;
		if (ex.e_flags & EXT2_EXTENT_FLAGS_SECOND_VISIT)
			continue;
		claims->fault->lblk = ex.e_lblk;
		if (!(ex.e_flags & EXT2_EXTENT_FLAGS_LEAF)) {
			retval = claim(fs, claims, ex.e_pblk, 1, ~0ULL);
		} else {
			/* The next extent may continue in the same cluster */
			retval = claim(fs, claims, ex.e_pblk, ex.e_len, shared);
			shared = (ex.e_pblk + ex.e_len - 1) &
				 ~EXT2FS_CLUSTER_MASK(fs);
		}
		if (retval)
			break;
	}
	ext2fs_extent_free(handle);
	return retval == EXT2_ET_EXTENT_NO_NEXT ? 0 : retval;
}

static errcode_t check_one(ext2_filsys fs, ext2_ino_t dir,
			   struct ext2_inode *inode, void *priv)
{
	struct ext2fs_itree_report report;
	struct claims	*claims = priv;
	ext2fs_itree	it;
	errcode_t	retval;

	if (!ext2fs_test_inode_bitmap2(fs->inode_map, dir)) {
		claims->fault->why = "the inode is not marked in use";
		return EXT2_ET_ITREE_CORRUPT;
	}
	if (!(inode->i_flags & EXT4_ITREE_FL)) {
		claims->fault->why = "the blocks have no valid itree";
		return EXT2_ET_ITREE_CORRUPT;
	}
	retval = ext2fs_itree_open(fs, dir, claims->fault, &it);
	if (retval)
		return retval;
	retval = ext2fs_itree_verify(it, &report, claims->fault);
	ext2fs_itree_close(it);
	return retval ? retval : claim_dir(fs, dir, inode, claims);
}

static void claim_metadata(ext2_filsys fs, ext2fs_block_bitmap map)
{
	dgrp_t	i;

	for (i = 0; i < fs->group_desc_count; i++) {
		ext2fs_reserve_super_and_bgd(fs, i, map);
		ext2fs_mark_block_bitmap2(map, ext2fs_block_bitmap_loc(fs, i));
		ext2fs_mark_block_bitmap2(map, ext2fs_inode_bitmap_loc(fs, i));
		ext2fs_mark_block_bitmap_range2(map,
						ext2fs_inode_table_loc(fs, i),
						fs->inode_blocks_per_group);
	}
}

/*
 * Checks, without changing anything, that ext2fs_itree_drop_all() would free
 * the blocks of trees and no others: every tree is sound, its blocks are in
 * use, and neither another directory with a tree nor the file system's own
 * metadata uses them too.  Other inodes are not checked; that takes e2fsck.
 *
 * Returns 0 or an error.  On error, *dir is the directory at fault, or 0, and
 * *fault says why if that is known.
 */
errcode_t ext2fs_itree_check_all(ext2_filsys fs, ext2_ino_t *dir,
				 struct ext2fs_itree_fault *fault)
{
	struct claims	claims = { .fault = fault };
	errcode_t	retval;

	*dir = 0;
	memset(fault, 0, sizeof(*fault));
	retval = ext2fs_read_bitmaps(fs);
	if (retval)
		return retval;
	retval = ext2fs_allocate_block_bitmap(fs, "blocks with an owner",
					      &claims.map);
	if (retval)
		return retval;
	claim_metadata(fs, claims.map);
	retval = for_each_tree(fs, dir, check_one, &claims);
	ext2fs_free_block_bitmap(claims.map);
	return retval;
}
