// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree_io.c --- the blocks of a directory's tree, on an io_channel
 *
 * The block operations that the shared core needs.  Blocks are written through
 * as the core dirties them, so a caller that changes a tree in place must be
 * ready to drop it when the change fails.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "itreeP.h"

/*
 * The map of the segment
 */

static errcode_t open_map(ext2fs_itree it)
{
	if (it->handle)
		return 0;
	memset(&it->last, 0, sizeof(it->last));
	return ext2fs_extent_open2(it->fs, it->dir, &it->inode, &it->handle);
}

/* Call this before other code changes the map. */
void itree_close_map(ext2fs_itree it)
{
	if (it->handle)
		ext2fs_extent_free(it->handle);
	it->handle = NULL;
	memset(&it->last, 0, sizeof(it->last));
}

static int extent_holds(const struct ext2fs_extent *ex, blk64_t lblk)
{
	return lblk >= ex->e_lblk && lblk - ex->e_lblk < ex->e_len;
}

/* Sets *pblk to 0 if the block is not mapped. */
errcode_t ext2fs_itree_map(ext2fs_itree it, __u32 lblk, blk64_t *pblk)
{
	ext2_filsys	fs = it->fs;
	errcode_t	retval;

	*pblk = 0;
	if (!extent_holds(&it->last, lblk)) {
		retval = open_map(it);
		if (retval)
			return retval;
		retval = ext2fs_extent_goto(it->handle, lblk);
		if (retval == EXT2_ET_EXTENT_NOT_FOUND)
			return 0;
		if (retval)
			return retval;
		retval = ext2fs_extent_get(it->handle, EXT2_EXTENT_CURRENT,
					   &it->last);
		if (retval)
			return retval;
		if (!extent_holds(&it->last, lblk))
			return 0;
	}
	*pblk = it->last.e_pblk + (lblk - it->last.e_lblk);
	if (*pblk < fs->super->s_first_data_block ||
	    *pblk >= ext2fs_blocks_count(fs->super))
		return EXT2_ET_BAD_BLOCK_NUM;
	return 0;
}

/* Counts the blocks mapped from the start of the segment to the first gap */
errcode_t itree_mapped_blocks(ext2fs_itree it, __u32 *ret)
{
	struct ext2fs_extent	ex;
	errcode_t		retval;
	blk64_t			next = EXT2FS_ITREE_START, pblk;

	*ret = 0;
	retval = ext2fs_itree_map(it, next, &pblk);
	if (retval || !pblk)
		return retval;
	ex = it->last;
	while (extent_holds(&ex, next)) {
		next = ex.e_lblk + ex.e_len;
		retval = ext2fs_extent_get(it->handle, EXT2_EXTENT_NEXT_LEAF,
					   &ex);
		if (retval == EXT2_ET_EXTENT_NO_NEXT)
			break;
		if (retval)
			return retval;
	}
	*ret = next - EXT2FS_ITREE_START;
	return 0;
}

/*
 * Checksums
 */

__u32 itree_dir_csum_seed(ext2_filsys fs, ext2_ino_t dir, __u32 generation)
{
	__u32	inum = ext2fs_cpu_to_le32(dir);
	__u32	gen = ext2fs_cpu_to_le32(generation);
	__u32	crc;

	crc = ext2fs_crc32c_le(fs->csum_seed, (unsigned char *) &inum,
			       sizeof(inum));
	return ext2fs_crc32c_le(crc, (unsigned char *) &gen, sizeof(gen));
}

__u32 itree_block_csum(ext2_filsys fs, __u32 seed, __u32 lblk, void *data)
{
	struct itree_tail *tail = itree_tail(data, fs->blocksize);
	__u32	le_lblk = ext2fs_cpu_to_le32(lblk);
	__u32	crc;

	crc = ext2fs_crc32c_le(seed, (unsigned char *) &le_lblk,
			       sizeof(le_lblk));
	return ext2fs_crc32c_le(crc, data,
				(char *) &tail->t_checksum - (char *) data);
}

static void set_csum(ext2_filsys fs, __u32 seed, __u32 lblk, void *data)
{
	struct itree_tail *tail = itree_tail(data, fs->blocksize);
	__u32	crc = 0;

	if (ext2fs_has_feature_metadata_csum(fs->super))
		crc = itree_block_csum(fs, seed, lblk, data);
	tail->t_checksum = ext2fs_cpu_to_le32(crc);
}

errcode_t ext2fs_itree_block_csum_set(ext2_filsys fs, ext2_ino_t dir,
				      __u32 lblk, void *block)
{
	struct ext2_inode	inode;
	errcode_t		retval;

	retval = ext2fs_read_inode(fs, dir, &inode);
	if (retval)
		return retval;
	set_csum(fs, itree_dir_csum_seed(fs, dir, inode.i_generation), lblk, block);
	return 0;
}

/*
 * Block operations for the core
 */

/* Saves @err for the caller of the core; returns an errno for the core. */
static int op_error(ext2fs_itree it, errcode_t err)
{
	if (!it->err)
		it->err = err;
	if (err == EXT2_ET_NO_MEMORY)
		return -ENOMEM;
	if (err == EXT2_ET_BLOCK_ALLOC_FAIL)
		return -ENOSPC;
	return -EIO;
}

static int op_corrupt(struct itree *t, const char *why, __u32 lblk)
{
	t->why = why;
	t->why_lblk = lblk;
	return -ITREE_CORRUPT;
}

static int op_read(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	ext2fs_itree	it = t->priv;
	ext2_filsys	fs = it->fs;
	errcode_t	retval;
	blk64_t		pblk;
	char		*data;

	retval = ext2fs_itree_map(it, lblk, &pblk);
	if (retval)
		return op_error(it, retval);
	if (!pblk)
		return op_corrupt(t, "block is not mapped", lblk);
	if (it->last.e_flags & EXT2_EXTENT_FLAGS_UNINIT)
		return op_corrupt(t, "block was never written", lblk);
	retval = ext2fs_get_mem(fs->blocksize, &data);
	if (retval)
		return op_error(it, retval);
	retval = io_channel_read_blk64(fs->io, pblk, 1, data);
	if (retval) {
		ext2fs_free_mem(&data);
		return op_error(it, retval);
	}
	if (ext2fs_has_feature_metadata_csum(fs->super) &&
	    !(fs->flags & EXT2_FLAG_IGNORE_CSUM_ERRORS) &&
	    itree_tail(data, fs->blocksize)->t_checksum !=
	    ext2fs_cpu_to_le32(itree_block_csum(fs, it->csum_seed, lblk, data))) {
		ext2fs_free_mem(&data);
		return op_corrupt(t, "wrong checksum", lblk);
	}
	buf->data = data;
	buf->priv = NULL;
	return 0;
}

/*
 * Maps the first block of the segment next to the directory's last one: the
 * library's own goal would extrapolate over the hole in between.
 */
static errcode_t map_first(ext2fs_itree it, blk64_t *ret)
{
	ext2_filsys	fs = it->fs;
	struct blk_alloc_ctx ctx;
	errcode_t	retval;
	blk64_t		goal = 0, pblk, last;

	last = EXT2_I_SIZE(&it->inode) / fs->blocksize;
	if (last) {
		retval = ext2fs_bmap2(fs, it->dir, &it->inode, NULL, 0,
				      last - 1, NULL, &goal);
		if (retval)
			return retval;
	}
	if (goal)
		goal++;
	if (!goal || goal >= ext2fs_blocks_count(fs->super))
		goal = ext2fs_find_inode_goal(fs, it->dir, &it->inode, 0);
	memset(&ctx, 0, sizeof(ctx));
	ctx.ino = it->dir;
	ctx.inode = &it->inode;
	ctx.lblk = EXT2FS_ITREE_START;
	ctx.flags = BLOCK_ALLOC_DATA;
	retval = ext2fs_alloc_block3(fs, goal, NULL, &pblk, &ctx);
	if (retval)
		return retval;
	pblk &= ~EXT2FS_CLUSTER_MASK(fs);
	retval = ext2fs_bmap2(fs, it->dir, &it->inode, NULL, BMAP_SET,
			      EXT2FS_ITREE_START, NULL, &pblk);
	if (retval) {
		ext2fs_block_alloc_stats2(fs, pblk, -1);
		return retval;
	}
	retval = ext2fs_read_inode(fs, it->dir, &it->inode);
	if (retval)
		return retval;
	retval = ext2fs_iblk_add_blocks(fs, &it->inode, 1);
	if (retval)
		return retval;
	*ret = pblk;
	return ext2fs_write_inode(fs, it->dir, &it->inode);
}

/*
 * Maps the first @blocks blocks of an empty segment, in as few extents as free
 * space allows.  Their contents are not written.
 *
 * Returns 0 or an error.  After an error some blocks may be mapped; dropping
 * the tree frees them.
 */
errcode_t itree_map_run(ext2fs_itree it, __u32 blocks)
{
	errcode_t	retval, retval2;
	blk64_t		pblk;

	itree_close_map(it);
	retval = map_first(it, &pblk);
	if (retval || blocks < 2)
		return retval;
	/* Continues after the first block, which sets the allocation goal */
	retval = ext2fs_fallocate(it->fs, EXT2_FALLOCATE_FORCE_INIT |
				  EXT2_FALLOCATE_INIT_BEYOND_EOF, it->dir,
				  &it->inode, ~0ULL, ITREE_SEG_START + 1,
				  blocks - 1);
	retval2 = ext2fs_write_inode(it->fs, it->dir, &it->inode);
	return retval ? retval : retval2;
}

static int op_grow(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	ext2fs_itree	it = t->priv;
	ext2_filsys	fs = it->fs;
	errcode_t	retval;
	blk64_t		pblk;
	char		*data;

	retval = ext2fs_itree_map(it, lblk, &pblk);
	if (!retval && !pblk) {
		itree_close_map(it);
		if (lblk == ITREE_SEG_START)
			retval = map_first(it, &pblk);
		else
			retval = ext2fs_bmap2(fs, it->dir, &it->inode, NULL,
					      BMAP_ALLOC, lblk, NULL, &pblk);
		if (!retval && !pblk)
			retval = EXT2_ET_BLOCK_ALLOC_FAIL;
	}
	if (retval)
		return op_error(it, retval);
	retval = ext2fs_get_memzero(fs->blocksize, &data);
	if (retval)
		return op_error(it, retval);
	buf->data = data;
	buf->priv = NULL;
	return 0;
}

static int op_access(struct itree *t EXT2FS_ATTR((unused)),
		     struct itree_buf *buf EXT2FS_ATTR((unused)))
{
	return 0;
}

static int op_dirty(struct itree *t, struct itree_buf *buf)
{
	ext2fs_itree	it = t->priv;
	errcode_t	retval;
	blk64_t		pblk;

	retval = ext2fs_itree_map(it, buf->lblk, &pblk);
	if (!retval && !pblk)
		retval = EXT2_ET_ITREE_CORRUPT;
	if (retval)
		return op_error(it, retval);
	set_csum(it->fs, it->csum_seed, buf->lblk, buf->data);
	retval = io_channel_write_blk64(it->fs->io, pblk, 1, buf->data);
	return retval ? op_error(it, retval) : 0;
}

static void op_release(struct itree *t EXT2FS_ATTR((unused)),
		       struct itree_buf *buf)
{
	ext2fs_free_mem(&buf->data);
}

static void *op_alloc(struct itree *t EXT2FS_ATTR((unused)), size_t bytes)
{
	return calloc(1, bytes);
}

static void op_free(struct itree *t EXT2FS_ATTR((unused)), void *mem)
{
	free(mem);
}

const struct itree_ops libext2fs_itree_ops = {
	.read		= op_read,
	.grow		= op_grow,
	.access		= op_access,
	.dirty		= op_dirty,
	.release	= op_release,
	.alloc		= op_alloc,
	.free		= op_free,
};

/* Converts the core's return value to an errcode_t */
errcode_t itree_core_error(ext2fs_itree it, int ret,
			    struct ext2fs_itree_fault *fault)
{
	errcode_t	err = it->err;

	it->err = 0;
	if (ret >= 0)
		return 0;
	if (ret == -ITREE_CORRUPT) {
		if (fault) {
			fault->why = it->tree.why;
			fault->lblk = it->tree.why_lblk;
		}
		return EXT2_ET_ITREE_CORRUPT;
	}
	if (err)
		return err;
	if (ret == -ENOMEM)
		return EXT2_ET_NO_MEMORY;
	if (ret == -ENOSPC)
		return EXT2_ET_BLOCK_ALLOC_FAIL;
	return -ret;
}
