// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree.c --- inode-ordered directory indexes: opening, reading, verifying
 *
 * Glue between the shared core (itree_core.c, itree_modify.c, itree_bulk.c)
 * and libext2fs.  No tree logic lives here.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "itreeP.h"

errcode_t ext2fs_itree_check_dir(ext2_filsys fs,
				 ext2_ino_t dir EXT2FS_ATTR((unused)),
				 struct ext2_inode *inode)
{
	if (!LINUX_S_ISDIR(inode->i_mode))
		return EXT2_ET_NO_DIRECTORY;
	if (!ext2fs_has_feature_itree(fs->super) ||
	    !ext2fs_has_feature_dir_index(fs->super) ||
	    !(inode->i_flags & EXT4_EXTENTS_FL) ||
	    !(inode->i_flags & EXT2_INDEX_FL) ||
	    (inode->i_flags & EXT4_INLINE_DATA_FL))
		return EXT2_ET_ITREE_UNSUPP;
	return 0;
}

/* Has the directory blocks in the segment, whatever they hold? */
errcode_t ext2fs_itree_has_segment(ext2_filsys fs, ext2_ino_t dir,
				   struct ext2_inode *inode, int *ret)
{
	ext2_extent_handle_t	handle;
	struct ext2fs_extent	ex;
	errcode_t		retval;

	*ret = 0;
	if (!LINUX_S_ISDIR(inode->i_mode) ||
	    !(inode->i_flags & EXT4_EXTENTS_FL) ||
	    (inode->i_flags & EXT4_INLINE_DATA_FL))
		return 0;
	retval = ext2fs_extent_open2(fs, dir, inode, &handle);
	if (retval)
		return retval;
	retval = ext2fs_extent_get(handle, EXT2_EXTENT_ROOT, &ex);
	if (!retval)
		retval = ext2fs_extent_get(handle, EXT2_EXTENT_LAST_LEAF, &ex);
	if (!retval)
		*ret = ex.e_lblk + ex.e_len > EXT2FS_ITREE_START;
	else if (retval == EXT2_ET_EXTENT_NO_NEXT ||
		 retval == EXT2_ET_NO_CURRENT_NODE ||
		 retval == EXT2_ET_EXTENT_NOT_FOUND)
		retval = 0;
	ext2fs_extent_free(handle);
	return retval;
}

errcode_t itree_new_handle(ext2_filsys fs, ext2_ino_t dir, ext2fs_itree *ret)
{
	ext2fs_itree	it;
	errcode_t	retval;

	retval = ext2fs_get_memzero(sizeof(*it), &it);
	if (retval)
		return retval;
	it->fs = fs;
	it->dir = dir;
	retval = ext2fs_read_inode(fs, dir, &it->inode);
	if (!retval)
		retval = ext2fs_itree_check_dir(fs, dir, &it->inode);
	if (retval) {
		ext2fs_free_mem(&it);
		return retval;
	}
	it->csum_seed = itree_dir_csum_seed(fs, dir, it->inode.i_generation);
	*ret = it;
	return 0;
}

void itree_free_handle(ext2fs_itree it)
{
	itree_close_map(it);
	ext2fs_free_mem(&it);
}

/*
 * Opens the tree of a new handle, whether or not the directory's flag is set.
 * Returns 0 or an error; the caller frees the handle.
 */
errcode_t itree_open_handle(ext2fs_itree it, struct ext2fs_itree_fault *fault)
{
	errcode_t	retval;
	__u32		blocks;
	int		err;

	if (fault)
		memset(fault, 0, sizeof(*fault));
	retval = itree_mapped_blocks(it, &blocks);
	if (retval)
		return retval;
	if (!blocks) {
		if (fault) {
			fault->why = "root block is not mapped";
			fault->lblk = ITREE_SEG_START;
		}
		return EXT2_ET_ITREE_CORRUPT;
	}
	err = itree_open(&it->tree, &libext2fs_itree_ops, it,
			 it->fs->blocksize, blocks);
	return itree_core_error(it, err, fault);
}

/*
 * Opens the tree of a directory whose flag is set.  If the tree is corrupt,
 * *fault says why; fault may be NULL.
 *
 * Returns 0, EXT2_ET_ITREE_NONE if the directory has no tree,
 * EXT2_ET_ITREE_UNSUPP if it cannot have one, EXT2_ET_ITREE_CORRUPT, or a
 * read error.
 */
errcode_t ext2fs_itree_open(ext2_filsys fs, ext2_ino_t dir,
			    struct ext2fs_itree_fault *fault,
			    ext2fs_itree *ret)
{
	ext2fs_itree	it;
	errcode_t	retval;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	if (fault)
		memset(fault, 0, sizeof(*fault));
	retval = itree_new_handle(fs, dir, &it);
	if (retval)
		return retval;
	if (it->inode.i_flags & EXT4_ITREE_FL)
		retval = itree_open_handle(it, fault);
	else
		retval = EXT2_ET_ITREE_NONE;
	if (retval) {
		itree_free_handle(it);
		return retval;
	}
	*ret = it;
	return 0;
}

void ext2fs_itree_close(ext2fs_itree it)
{
	if (!it)
		return;
	itree_close(&it->tree);
	itree_free_handle(it);
}

void ext2fs_itree_get_info(ext2fs_itree it, struct ext2fs_itree_info *info)
{
	struct itree_info ti;

	itree_get_info(&it->tree, &ti);
	info->keys = ti.keys;
	info->blocks = ti.blocks;
	info->free_count = ti.free_count;
	info->free_head = ti.free_head;
	info->depth = ti.depth;
	info->hash_version = ti.hash_version;
}

/*
 * Checks every node of the tree: checksums, structure, order, counts, free
 * list.  Does not compare the keys with the directory.
 */
errcode_t ext2fs_itree_verify(ext2fs_itree it,
			      struct ext2fs_itree_report *report,
			      struct ext2fs_itree_fault *fault)
{
	struct itree_report	tr;
	int			err;

	if (fault)
		memset(fault, 0, sizeof(*fault));
	memset(&tr, 0, sizeof(tr));
	err = itree_verify(&it->tree, &tr);
	memset(report, 0, sizeof(*report));
	report->keys = tr.keys;
	report->hash = tr.hash;
	report->first = tr.first;
	report->last = tr.last;
	report->leaf_slots = tr.leaf_slots;
	report->leaves = tr.leaves;
	report->nodes = tr.nodes;
	report->free_count = tr.free_count;
	report->depth = tr.depth;
	return itree_core_error(it, err, fault);
}

/* Calls func for every key that is at least @first, in order. */
errcode_t ext2fs_itree_iterate(ext2fs_itree it, __u64 first,
			       int (*func)(__u64 key, void *priv), void *priv)
{
	struct itree_cursor	cur;
	int			err;

	err = itree_seek(&it->tree, first, &cur);
	while (!err) {
		if (func(itree_cursor_key(&cur), priv) & EXT2FS_ITREE_ABORT)
			break;
		err = itree_next(&cur);
	}
	itree_cursor_release(&cur);
	return itree_core_error(it, err, NULL);
}

/*
 * Passes every mapped block of the segment to func, in logical order and
 * unchecked: debugfs has to show broken trees, too.
 */
errcode_t ext2fs_itree_walk_nodes(ext2_filsys fs, ext2_ino_t dir,
		int (*func)(const struct ext2fs_itree_node *node, void *priv),
		void *priv)
{
	struct ext2fs_itree_node node;
	struct itree_head	*head;
	struct itree_tail	*tail;
	ext2fs_itree		it;
	errcode_t		retval;
	char			*buf = NULL;
	__u32			blocks, i;

	retval = itree_new_handle(fs, dir, &it);
	if (retval)
		return retval;
	retval = itree_mapped_blocks(it, &blocks);
	if (!retval)
		retval = ext2fs_get_mem(fs->blocksize, &buf);
	for (i = 0; !retval && i < blocks; i++) {
		memset(&node, 0, sizeof(node));
		node.lblk = ITREE_SEG_START + i;
		retval = ext2fs_itree_map(it, node.lblk, &node.pblk);
		if (!retval)
			retval = io_channel_read_blk64(fs->io, node.pblk, 1,
						       buf);
		if (retval)
			break;
		head = (struct itree_head *) buf;
		tail = itree_tail(buf, fs->blocksize);
		node.magic = ext2fs_le32_to_cpu(head->h_magic);
		node.in_use = node.magic == ITREE_MAGIC;
		node.is_free = node.magic == ITREE_FREE_MAGIC;
		node.level = head->h_level;
		node.count = ext2fs_le16_to_cpu(head->h_count);
		node.limit = ext2fs_le16_to_cpu(head->h_limit);
		node.next = ext2fs_le32_to_cpu(head->h_next);
		node.csum = ext2fs_le32_to_cpu(tail->t_checksum);
		if (ext2fs_has_feature_metadata_csum(fs->super))
			node.csum_wanted = itree_block_csum(fs, it->csum_seed,
						      node.lblk, buf);
		node.data = buf;
		if (func(&node, priv) & EXT2FS_ITREE_ABORT)
			break;
	}
	if (buf)
		ext2fs_free_mem(&buf);
	itree_free_handle(it);
	return retval;
}
