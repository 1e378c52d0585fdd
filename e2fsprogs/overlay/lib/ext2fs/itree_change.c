// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree_change.c --- keeping a tree in step with its directory
 *
 * The library has no transactions.  So a directory's flag is cleared while a
 * name is added or removed.  A program that dies in between leaves unused
 * blocks, not a stale tree.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "itreeP.h"

/*
 * Adds a key to an open tree, or removes one.
 *
 * Returns 0 or an error (EXT2_ET_ITREE_CORRUPT also if the key to be removed
 * is not there).  After an error the tree may be broken: drop it.
 */
errcode_t ext2fs_itree_insert(ext2fs_itree it, __u64 key)
{
	int	err;

	if (!(it->fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;
	err = itree_reserve(&it->tree, 1);
	if (!err)
		err = itree_insert(&it->tree, key);
	return itree_core_error(it, err, NULL);
}

errcode_t ext2fs_itree_delete(ext2fs_itree it, __u64 key)
{
	int	err;

	if (!(it->fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;
	err = itree_delete(&it->tree, key);
	if (err == -ENOENT)
		return EXT2_ET_ITREE_CORRUPT;
	return itree_core_error(it, err, NULL);
}

/*
 * Call this before changing one name of a directory.  Clears the flag of a
 * directory that has a tree; ext2fs_itree_resume() sets it again.
 *
 * Returns 0 or an error.  After an error nothing has changed.
 */
errcode_t ext2fs_itree_suspend(ext2_filsys fs, ext2_ino_t dir,
			       struct ext2fs_itree_hold *hold)
{
	struct ext2_inode	inode;
	errcode_t		retval;

	memset(hold, 0, sizeof(*hold));
	if (!ext2fs_has_feature_itree(fs->super))
		return 0;
	retval = ext2fs_read_inode(fs, dir, &inode);
	if (retval || !(inode.i_flags & EXT4_ITREE_FL))
		return retval;
	/* Drops trees whose keys cannot be computed, or that cannot grow */
	if (!fs->block_map ||
	    ext2fs_itree_hasher_init(fs, dir, &inode, &hold->hasher))
		return ext2fs_itree_forget(fs, dir);
	inode.i_flags &= ~EXT4_ITREE_FL;
	retval = ext2fs_write_inode(fs, dir, &inode);
	if (!retval)
		hold->held = 1;
	return retval;
}

/* Records that @dirent is about to be removed. */
errcode_t ext2fs_itree_hold_removal(struct ext2fs_itree_hold *hold,
				    struct ext2_dir_entry *dirent)
{
	errcode_t	retval;
	int		has_key;

	if (!hold->held)
		return 0;
	retval = ext2fs_itree_dirent_key(&hold->hasher, dirent, &hold->key,
					 &has_key);
	if (!retval && has_key)
		hold->change = -1;
	return retval;
}

/* Records that a name for @ino is about to be added. */
errcode_t ext2fs_itree_hold_addition(struct ext2fs_itree_hold *hold,
				     const char *name, int len, ext2_ino_t ino)
{
	errcode_t	retval;

	if (!hold->held)
		return 0;
	retval = ext2fs_itree_name_key(&hold->hasher, name, len, ino,
				       &hold->key);
	if (!retval)
		hold->change = 1;
	return retval;
}

/* Applies the recorded change to the tree and sets the flag again. */
static errcode_t apply(ext2_filsys fs, ext2_ino_t dir,
		       const struct ext2fs_itree_hold *hold)
{
	ext2fs_itree	it;
	errcode_t	retval;

	retval = itree_new_handle(fs, dir, &it);
	if (retval)
		return retval;
	if (hold->change) {
		retval = itree_open_handle(it, NULL);
		if (retval)
			goto out;
		/* Opening limited the tree to its mapped blocks; let it grow */
		it->tree.max_blocks = ITREE_SEG_MAX;
		if (hold->change > 0)
			retval = ext2fs_itree_insert(it, hold->key);
		else
			retval = ext2fs_itree_delete(it, hold->key);
		itree_close(&it->tree);
		itree_close_map(it);
	}
	if (!retval) {
		it->inode.i_flags |= EXT4_ITREE_FL;
		retval = ext2fs_write_inode(fs, dir, &it->inode);
	}
out:
	itree_free_handle(it);
	return retval;
}

/*
 * The counterpart of ext2fs_itree_suspend().  @err is the result of changing
 * the directory.  EXT2_ET_DIR_NO_SPACE means that the directory is unchanged,
 * so its tree is kept as it is.  After any other error, or if the tree cannot
 * be updated, the tree is dropped.
 *
 * Returns @err.
 */
errcode_t ext2fs_itree_resume(ext2_filsys fs, ext2_ino_t dir,
			      struct ext2fs_itree_hold *hold, errcode_t err)
{
	int	held = hold->held;

	hold->held = 0;
	if (!held)
		return err;
	if (err)
		hold->change = 0;
	if ((err && err != EXT2_ET_DIR_NO_SPACE) || apply(fs, dir, hold))
		(void) ext2fs_itree_drop(fs, dir);
	return err;
}
