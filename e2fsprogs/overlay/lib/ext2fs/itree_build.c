// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree_build.c --- giving a directory a tree, and taking it away
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "itreeP.h"

#define GUESS_MAX	(1U << 20)	/* names to make room for at first */

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

/* The part of building that comes after the keys are known, if at all */
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

/* Opens a handle for a new tree, the old one being dropped. */
static errcode_t start_build(ext2_filsys fs, ext2_ino_t dir, ext2fs_itree *ret)
{
	ext2fs_itree	it;
	errcode_t	retval;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	if (!(fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;

	/* Only to see whether the directory may have a tree at all */
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
 * Gives a directory a tree of full nodes, made from what it holds now.  A
 * tree that it has already is dropped first.  The flag is set last, so that
 * an interruption leaves at worst blocks that nobody uses.
 *
 * Takes 8 bytes of memory a name.  Returns 0 or an error
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
	/* A first guess: a damaged i_size must not ask for all memory */
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
 * The same for a caller who knows the keys of all names already, such as one
 * who has just written the directory.  They may be in any order, and are
 * sorted where they are.
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
 * To be called before the names in a directory change by other means than
 * the functions of this library: a stale tree is worse than none.  Clearing
 * the flag has to succeed; blocks that cannot be freed, be it for want of
 * bitmaps, stay behind as an unused segment, which e2fsck frees.
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

/* Drops every tree and every unused segment of a file system. */
errcode_t ext2fs_itree_drop_all(ext2_filsys fs, unsigned int *dropped)
{
	struct ext2_inode	inode;
	ext2_inode_scan		scan;
	ext2_ino_t		ino;
	errcode_t		retval;
	int			segment;

	if (dropped)
		*dropped = 0;
	retval = ext2fs_open_inode_scan(fs, 0, &scan);
	if (retval)
		return retval;
	while (1) {
		retval = ext2fs_get_next_inode(scan, &ino, &inode);
		if (retval == EXT2_ET_BAD_BLOCK_IN_INODE_TABLE)
			continue;
		if (retval || !ino)
			break;
		if (!LINUX_S_ISDIR(inode.i_mode) || !inode.i_links_count)
			continue;
		retval = ext2fs_itree_has_segment(fs, ino, &inode, &segment);
		if (retval)
			break;
		if (!segment && !(inode.i_flags & EXT4_ITREE_FL))
			continue;
		retval = ext2fs_itree_drop(fs, ino);
		if (retval)
			break;
		if (dropped)
			(*dropped)++;
	}
	ext2fs_close_inode_scan(scan);
	return retval;
}
