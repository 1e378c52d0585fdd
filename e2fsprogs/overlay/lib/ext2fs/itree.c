// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree.c --- inode-ordered directory indexes, on an io_channel
 *
 * Glue between the shared core (itree_core.c, itree_modify.c, itree_bulk.c)
 * and libext2fs.  No tree logic lives here.  Blocks are written through as
 * the core hands them over, so a caller that changes a tree in place must be
 * ready to drop it when the change fails.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>

#include "ext2_fs.h"
#include "ext2fsP.h"
#include "ext2fs_itree.h"
#include "itree_core.h"

#define DX_ROOT_INFO_OFF	24

struct ext2fs_struct_itree {
	ext2_filsys		fs;
	ext2_ino_t		dir;
	struct ext2_inode	inode;
	__u32			csum_seed;
	struct itree		tree;
	ext2_extent_handle_t	handle;	/* to read the map, or NULL */
	struct ext2fs_extent	last;	/* where the last block was found */
	errcode_t		err;	/* what a block operation met with */
};

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

/* To be called before somebody else changes the map. */
static void close_map(ext2fs_itree it)
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
static errcode_t map_block(ext2fs_itree it, __u32 lblk, blk64_t *pblk)
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

/* Blocks that are mapped from the start of the segment without a gap */
static errcode_t mapped_blocks(ext2fs_itree it, __u32 *ret)
{
	struct ext2fs_extent	ex;
	errcode_t		retval;
	blk64_t			next = EXT2FS_ITREE_START, pblk;

	*ret = 0;
	retval = map_block(it, next, &pblk);
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

errcode_t ext2fs_itree_map(ext2fs_itree it, __u32 lblk, blk64_t *pblk)
{
	return map_block(it, lblk, pblk);
}

/*
 * Checksums
 */

static __u32 dir_csum_seed(ext2_filsys fs, ext2_ino_t dir, __u32 generation)
{
	__u32	inum = ext2fs_cpu_to_le32(dir);
	__u32	gen = ext2fs_cpu_to_le32(generation);
	__u32	crc;

	crc = ext2fs_crc32c_le(fs->csum_seed, (unsigned char *) &inum,
			       sizeof(inum));
	return ext2fs_crc32c_le(crc, (unsigned char *) &gen, sizeof(gen));
}

static __u32 block_csum(ext2_filsys fs, __u32 seed, __u32 lblk, void *data)
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
		crc = block_csum(fs, seed, lblk, data);
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
	set_csum(fs, dir_csum_seed(fs, dir, inode.i_generation), lblk, block);
	return 0;
}

/*
 * Block operations for the core
 */

/* Keeps @err for the caller of the core; returns what the core is told. */
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

	retval = map_block(it, lblk, &pblk);
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
	    ext2fs_cpu_to_le32(block_csum(fs, it->csum_seed, lblk, data))) {
		ext2fs_free_mem(&data);
		return op_corrupt(t, "wrong checksum", lblk);
	}
	buf->data = data;
	buf->priv = NULL;
	return 0;
}

/*
 * Maps the first block of the segment next to the directory's last one.  The
 * library would extrapolate over the hole in between.
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

static int op_grow(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	ext2fs_itree	it = t->priv;
	ext2_filsys	fs = it->fs;
	errcode_t	retval;
	blk64_t		pblk;
	char		*data;

	retval = map_block(it, lblk, &pblk);
	if (!retval && !pblk) {
		close_map(it);
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

	retval = map_block(it, buf->lblk, &pblk);
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

static const struct itree_ops libext2fs_itree_ops = {
	.read		= op_read,
	.grow		= op_grow,
	.access		= op_access,
	.dirty		= op_dirty,
	.release	= op_release,
	.alloc		= op_alloc,
	.free		= op_free,
};

/* The core's answer as an errcode_t */
static errcode_t core_error(ext2fs_itree it, int ret,
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

/*
 * Opening and looking
 */

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

static errcode_t new_handle(ext2_filsys fs, ext2_ino_t dir, ext2fs_itree *ret)
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
	it->csum_seed = dir_csum_seed(fs, dir, it->inode.i_generation);
	*ret = it;
	return 0;
}

static void free_handle(ext2fs_itree it)
{
	close_map(it);
	ext2fs_free_mem(&it);
}

/*
 * Opens the tree of a directory whose flag says that it has one.  If it is
 * corrupt, *fault tells why; fault may be NULL.
 */
errcode_t ext2fs_itree_open(ext2_filsys fs, ext2_ino_t dir,
			    struct ext2fs_itree_fault *fault,
			    ext2fs_itree *ret)
{
	ext2fs_itree	it;
	errcode_t	retval;
	__u32		blocks;
	int		err;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	if (fault)
		memset(fault, 0, sizeof(*fault));
	retval = new_handle(fs, dir, &it);
	if (retval)
		return retval;
	if (!(it->inode.i_flags & EXT4_ITREE_FL)) {
		retval = EXT2_ET_ITREE_NONE;
		goto fail;
	}
	retval = mapped_blocks(it, &blocks);
	if (retval)
		goto fail;
	if (!blocks) {
		if (fault) {
			fault->why = "root block is not mapped";
			fault->lblk = ITREE_SEG_START;
		}
		retval = EXT2_ET_ITREE_CORRUPT;
		goto fail;
	}
	err = itree_open(&it->tree, &libext2fs_itree_ops, it, fs->blocksize,
			 blocks);
	retval = core_error(it, err, fault);
	if (retval)
		goto fail;
	*ret = it;
	return 0;
fail:
	free_handle(it);
	return retval;
}

void ext2fs_itree_close(ext2fs_itree it)
{
	if (!it)
		return;
	itree_close(&it->tree);
	free_handle(it);
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
 * list.  Says nothing about whether the keys are those of the directory.
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
	return core_error(it, err, fault);
}

/* Calls func for every key from the first not below @first on, in order. */
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
	return core_error(it, err, NULL);
}

/*
 * Shows every block that is mapped in the segment, in the order of their
 * logical numbers and unchecked: for debugfs, which has to look at broken
 * trees too.
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

	retval = new_handle(fs, dir, &it);
	if (retval)
		return retval;
	retval = mapped_blocks(it, &blocks);
	if (!retval)
		retval = ext2fs_get_mem(fs->blocksize, &buf);
	for (i = 0; !retval && i < blocks; i++) {
		memset(&node, 0, sizeof(node));
		node.lblk = ITREE_SEG_START + i;
		retval = map_block(it, node.lblk, &node.pblk);
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
			node.csum_wanted = block_csum(fs, it->csum_seed,
						      node.lblk, buf);
		node.data = buf;
		if (func(&node, priv) & EXT2FS_ITREE_ABORT)
			break;
	}
	if (buf)
		ext2fs_free_mem(&buf);
	free_handle(it);
	return retval;
}

/*
 * Keys
 */

__u64 ext2fs_itree_hash_key(__u64 key)
{
	return itree_hash_key(key);
}

/*
 * Learns from the root of a directory's htree how its names are hashed.
 */
errcode_t ext2fs_itree_hasher_init(ext2_filsys fs, ext2_ino_t dir,
				   struct ext2_inode *inode,
				   struct ext2fs_itree_hasher *hasher)
{
	struct ext2_dx_root_info *root;
	errcode_t	retval;
	blk64_t		pblk;
	char		*buf;
	int		flags;

	memset(hasher, 0, sizeof(*hasher));
	hasher->fs = fs;
	hasher->hash_flags = inode->i_flags & EXT4_CASEFOLD_FL;
	hasher->in_dirent = ext4_hash_in_dirent(inode);

	retval = ext2fs_itree_check_dir(fs, dir, inode);
	if (retval)
		return retval;
	retval = ext2fs_bmap2(fs, dir, inode, NULL, 0, 0, &flags, &pblk);
	if (retval)
		return retval;
	if (!pblk || (flags & BMAP_RET_UNINIT))
		return EXT2_ET_DIR_CORRUPTED;
	retval = ext2fs_get_mem(fs->blocksize, &buf);
	if (retval)
		return retval;
	retval = ext2fs_read_dir_block4(fs, pblk, buf, 0, dir);
	if (retval)
		goto out;
	root = (struct ext2_dx_root_info *) (buf + DX_ROOT_INFO_OFF);
	hasher->disk_version = root->hash_version;
	hasher->version = root->hash_version;
	switch (root->hash_version) {
	case EXT2_HASH_LEGACY:
	case EXT2_HASH_HALF_MD4:
	case EXT2_HASH_TEA:
		if (hasher->in_dirent)
			retval = EXT2_ET_DIRHASH_UNSUPP;
		if (fs->super->s_flags & EXT2_FLAGS_UNSIGNED_HASH)
			hasher->version += EXT2_HASH_LEGACY_UNSIGNED;
		break;
	case EXT2_HASH_SIPHASH:
		if (!hasher->in_dirent)
			retval = EXT2_ET_DIRHASH_UNSUPP;
		break;
	default:
		retval = EXT2_ET_DIRHASH_UNSUPP;
	}
out:
	ext2fs_free_mem(&buf);
	return retval;
}

/*
 * The key of a directory entry.  *has_key is cleared for entries that have
 * none: "." and "..", and those not in use.
 */
errcode_t ext2fs_itree_dirent_key(const struct ext2fs_itree_hasher *hasher,
				  struct ext2_dir_entry *dirent,
				  __u64 *key, int *has_key)
{
	ext2_filsys	fs = hasher->fs;
	int		len = ext2fs_dirent_name_len(dirent);
	ext2_dirhash_t	hash;
	errcode_t	retval;
	unsigned int	rec_len;

	*has_key = 0;
	if (!dirent->inode)
		return 0;
	if (dirent->name[0] == '.' &&
	    (len == 1 || (len == 2 && dirent->name[1] == '.')))
		return 0;
	if (hasher->in_dirent) {
		retval = ext2fs_get_rec_len(fs, dirent, &rec_len);
		if (retval)
			return retval;
		if (rec_len < ext2fs_dir_rec_len(len, 1))
			return EXT2_ET_DIR_CORRUPTED;
		hash = EXT2_DIRENT_HASH(dirent);
	} else {
		retval = ext2fs_dirhash2(hasher->version, dirent->name, len,
					 fs->encoding, hasher->hash_flags,
					 fs->super->s_hash_seed, &hash, NULL);
		if (retval)
			return retval;
	}
	*key = ITREE_KEY(dirent->inode, hash & ~1U);
	*has_key = 1;
	return 0;
}

struct gather {
	struct ext2fs_itree_hasher hasher;
	errcode_t	err;
	__u64		*keys;		/* NULL: only count and sum */
	__u64		count;
	__u64		room;
	__u64		sum;
	__u64		pos;		/* of next_key() */
};

static errcode_t gather_add(struct gather *g, __u64 key)
{
	errcode_t	retval;
	__u64		room;

	if (g->count == g->room) {
		room = g->room * 2;
		if (room > ~0UL / sizeof(__u64))
			return EXT2_ET_NO_MEMORY;
		retval = ext2fs_resize_mem(g->room * sizeof(__u64),
					   room * sizeof(__u64), &g->keys);
		if (retval)
			return retval;
		g->room = room;
	}
	g->keys[g->count] = key;
	return 0;
}

static int gather_proc(ext2_ino_t dir EXT2FS_ATTR((unused)),
		       int entry EXT2FS_ATTR((unused)),
		       struct ext2_dir_entry *dirent,
		       int offset EXT2FS_ATTR((unused)),
		       int blocksize EXT2FS_ATTR((unused)),
		       char *buf EXT2FS_ATTR((unused)), void *priv_data)
{
	struct gather	*g = priv_data;
	__u64		key;
	int		has_key;

	g->err = ext2fs_itree_dirent_key(&g->hasher, dirent, &key, &has_key);
	if (g->err)
		return DIRENT_ABORT;
	if (!has_key)
		return 0;
	if (g->keys) {
		g->err = gather_add(g, key);
		if (g->err)
			return DIRENT_ABORT;
	}
	g->count++;
	g->sum += itree_hash_key(key);
	return 0;
}

static errcode_t gather_dir(ext2_filsys fs, ext2_ino_t dir,
			    struct ext2_inode *inode, struct gather *g)
{
	errcode_t	retval;

	retval = ext2fs_itree_hasher_init(fs, dir, inode, &g->hasher);
	if (retval)
		return retval;
	retval = ext2fs_dir_iterate2(fs, dir, 0, NULL, gather_proc, g);
	return g->err ? g->err : retval;
}

errcode_t ext2fs_itree_sum_dir(ext2_filsys fs, ext2_ino_t dir,
			       __u64 *keys, __u64 *hash)
{
	struct ext2_inode	inode;
	struct gather		g;
	errcode_t		retval;

	memset(&g, 0, sizeof(g));
	retval = ext2fs_read_inode(fs, dir, &inode);
	if (!retval)
		retval = gather_dir(fs, dir, &inode, &g);
	*keys = g.count;
	*hash = g.sum;
	return retval;
}

/*
 * Building and dropping
 */

static int cmp_keys(const void *a, const void *b)
{
	__u64	x = *(const __u64 *) a, y = *(const __u64 *) b;

	return x < y ? -1 : x > y;
}

static int next_key(void *arg, u64 *key)
{
	struct gather	*g = arg;

	if (g->pos == g->count)
		return ITREE_END;
	*key = g->keys[g->pos++];
	return 0;
}

static errcode_t load_tree(ext2fs_itree it, struct gather *g)
{
	ext2_filsys	fs = it->fs;
	int		err;
	__u64		blocks;

	qsort(g->keys, g->count, sizeof(__u64), cmp_keys);
	blocks = itree_bulk_blocks(fs->blocksize, g->count);
	if (!blocks || blocks > ITREE_SEG_MAX)
		return EXT2_ET_FILE_TOO_BIG;
	err = itree_format(&it->tree, &libext2fs_itree_ops, it, fs->blocksize,
			   ITREE_SEG_MAX, g->hasher.disk_version);
	if (err)
		return core_error(it, err, NULL);
	err = itree_bulk_load(&it->tree, g->count, next_key, g);
	itree_close(&it->tree);
	return core_error(it, err, NULL);
}

/*
 * Gives a directory a tree of full nodes, made from what it holds now.  A
 * tree that it has already is dropped first.  The flag is set last, so that
 * an interruption leaves at worst blocks that nobody uses.
 */
errcode_t ext2fs_itree_build(ext2_filsys fs, ext2_ino_t dir)
{
	ext2fs_itree	it;
	struct gather	g;
	errcode_t	retval;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	if (!(fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;

	memset(&g, 0, sizeof(g));
	retval = new_handle(fs, dir, &it);
	if (retval)
		return retval;
	free_handle(it);
	retval = ext2fs_itree_drop(fs, dir);
	if (retval)
		return retval;
	retval = new_handle(fs, dir, &it);
	if (retval)
		return retval;
	g.room = EXT2_I_SIZE(&it->inode) / 24 + 16;
	retval = ext2fs_get_array(g.room, sizeof(__u64), &g.keys);
	if (retval)
		goto out;
	retval = gather_dir(fs, dir, &it->inode, &g);
	if (retval)
		goto out;
	retval = load_tree(it, &g);
	close_map(it);
	if (retval) {
		(void) ext2fs_itree_drop(fs, dir);
		goto out;
	}
	it->inode.i_flags |= EXT4_ITREE_FL;
	retval = ext2fs_write_inode(fs, dir, &it->inode);
out:
	if (g.keys)
		ext2fs_free_mem(&g.keys);
	free_handle(it);
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
