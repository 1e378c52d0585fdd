// SPDX-License-Identifier: GPL-2.0-only
/*
 * The itree core's block operations in ext4: buffers of the directory's own
 * extent map, journaled like any other directory block.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/slab.h>
#include "ext4.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"

/* Blocks to map at once when the segment grows: about as many as it has. */
#define CHUNK_MIN	4U
#define CHUNK_MAX	64U

/*
 * The checksum of a node is computed when the transaction that changes it
 * commits, once for all changes, as for blocks of the orphan file.  Until then
 * this bit is set and t_checksum holds the seed.  The bit is the next one after
 * ext4's own.
 */
#define BH_ITREE_SEED	(BH_BITMAP_UPTODATE + 1)

/* Returns the seed of a node's checksum. */
static u32 node_seed(struct inode *dir, u32 lblk)
{
	__le32 n = cpu_to_le32(lblk);

	return ext4_chksum(EXT4_I(dir)->i_csum_seed, &n, sizeof(n));
}

static __le32 node_csum(struct super_block *sb, void *data, u32 seed)
{
	u32 len = (u8 *)&itree_tail(data, sb->s_blocksize)->t_checksum -
		  (u8 *)data;

	return cpu_to_le32(ext4_chksum(seed, data, len));
}

/**
 * ext4_itree_block_trigger - give a node its checksum
 * @triggers: those of EXT4_JTR_ITREE
 * @bh: node, passed to the journal by op_dirty()
 * @data: of @bh, not of a copy
 * @size: of a block
 *
 * Called by jbd2 with b_state_lock held, before the contents of @bh are written
 * to the journal or copied for that, and only with metadata_csum.  A second
 * call changes nothing, and neither does a call for a block that is not a node
 * any more.
 */
void ext4_itree_block_trigger(struct jbd2_buffer_trigger_type *triggers,
			      struct buffer_head *bh, void *data, size_t size)
{
	struct super_block *sb = EXT4_TRIGGER(triggers)->sb;
	u32 magic = le32_to_cpu(((struct itree_head *)data)->h_magic);
	__le32 *csum = &itree_tail(data, size)->t_checksum;

	if (!test_and_clear_bit(BH_ITREE_SEED, &bh->b_state))
		return;
	if (magic == ITREE_MAGIC || magic == ITREE_FREE_MAGIC)
		*csum = node_csum(sb, data, le32_to_cpu(*csum));
}

static struct ext4_itree *to_et(struct itree *t)
{
	return container_of(t, struct ext4_itree, t);
}

static void take_bh(struct itree_buf *buf, struct buffer_head *bh)
{
	buf->data = bh->b_data;
	buf->priv = bh;
}

/**
 * ext4_itree_cached_block - get a directory's block if it is up to date in
 * memory
 * @dir: directory
 * @lblk: logical block, of the directory itself or of its tree
 *
 * Returns NULL for a hole, and ERR_PTR(-EAGAIN) if mapping or reading the block
 * would need the disk.  A block whose write failed counts as up to date: the
 * disk has an older version.
 */
struct buffer_head *ext4_itree_cached_block(struct inode *dir,
					    ext4_lblk_t lblk)
{
	struct extent_status es;
	struct buffer_head *bh;

	if (!ext4_es_lookup_extent(dir, lblk, NULL, &es, NULL))
		return ERR_PTR(-EAGAIN);
	if (!ext4_es_is_written(&es))
		return NULL;
	bh = sb_find_get_block(dir->i_sb,
			       ext4_es_pblock(&es) + lblk - es.es_lblk);
	if (bh && ext4_buffer_uptodate(bh))
		return bh;
	brelse(bh);
	return ERR_PTR(-EAGAIN);
}

/*
 * Gets a node that is in memory and verified, or NULL.  Saves a look-up of its
 * block with all checks, which were made when it was read.
 */
static struct buffer_head *find_verified(struct inode *dir, u32 lblk)
{
	struct buffer_head *bh = ext4_itree_cached_block(dir, lblk);

	if (IS_ERR_OR_NULL(bh))
		return NULL;
	if (buffer_verified(bh))
		return bh;
	brelse(bh);
	return NULL;
}

static int op_read(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	struct inode *dir = to_et(t)->dir;
	struct buffer_head *bh;

	bh = find_verified(dir, lblk);
	if (bh) {
		take_bh(buf, bh);
		return 1;
	}
	if (to_et(t)->nowait && !ext4_itree_in_memory(dir, lblk)) {
		to_et(t)->missing = lblk;
		return -EAGAIN;
	}
	bh = ext4_bread(NULL, dir, lblk, 0);
	if (IS_ERR(bh))
		return PTR_ERR(bh);
	if (!bh) {
		t->why = "block of the tree is not mapped";
		t->why_lblk = lblk;
		return -EFSCORRUPTED;
	}
	/*
	 * A block of the segment is marked verified after its checksum and its
	 * contents have passed the checks; the mark is freed with the buffer.
	 */
	if (buffer_verified(bh)) {
		take_bh(buf, bh);
		return 1;
	}
	if (ext4_has_feature_metadata_csum(dir->i_sb) &&
	    itree_tail(bh->b_data, t->block_size)->t_checksum !=
	    node_csum(dir->i_sb, bh->b_data, node_seed(dir, lblk))) {
		brelse(bh);
		t->why = "wrong checksum";
		t->why_lblk = lblk;
		return -EFSBADCRC;
	}
	take_bh(buf, bh);
	return 0;
}

static void op_checked(struct itree *t, struct itree_buf *buf)
{
	set_buffer_verified((struct buffer_head *)buf->priv);
}

/* Without a journal, the trigger is never called. */
static enum ext4_journal_trigger_type trigger(struct ext4_itree *et)
{
	return ext4_handle_valid(et->handle) ? EXT4_JTR_ITREE : EXT4_JTR_NONE;
}

/* How many blocks to ask for, so that the segment stays in few pieces. */
static u32 chunk_size(struct ext4_itree *et, u32 lblk)
{
	u32 have = lblk - ITREE_SEG_START;

	if (et->chunk)
		return et->chunk > have ? et->chunk - have : 1;
	return clamp(have, CHUNK_MIN, CHUNK_MAX);
}

/*
 * Maps @lblk and gets a zeroed, journaled buffer for it.  Blocks are mapped in
 * chunks, so it may be mapped already.  It may also be left over from a dropped
 * tree and still be in the journal.  Its old contents do not matter.
 */
static int op_grow(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	struct ext4_itree *et = to_et(t);
	struct super_block *sb = et->dir->i_sb;
	struct ext4_map_blocks map = { .m_lblk = lblk, .m_len = 1 };
	struct buffer_head *bh;
	int ret;

	if (et->more) {
		ret = et->more(et);
		if (ret)
			return ret;
	}
	ret = ext4_map_blocks(NULL, et->dir, &map, 0);
	if (!ret) {
		map.m_len = chunk_size(et, lblk);
		ret = ext4_map_blocks(et->handle, et->dir, &map,
				      EXT4_GET_BLOCKS_CREATE);
	}
	if (ret < 0)
		return ret;
	if (!ret)
		return -ENOSPC;
	bh = sb_getblk(sb, map.m_pblk);
	if (!bh)
		return -ENOMEM;

	lock_buffer(bh);
	if (map.m_flags & EXT4_MAP_NEW)
		ret = ext4_journal_get_create_access(et->handle, sb, bh,
						     trigger(et));
	else
		ret = 0;
	if (!ret && !buffer_uptodate(bh)) {
		memset(bh->b_data, 0, sb->s_blocksize);
		set_buffer_uptodate(bh);
	}
	unlock_buffer(bh);
	if (!ret && !(map.m_flags & EXT4_MAP_NEW))
		ret = ext4_journal_get_write_access(et->handle, sb, bh,
						    trigger(et));
	if (ret) {
		brelse(bh);
		return ret;
	}
	memset(bh->b_data, 0, sb->s_blocksize);
	set_buffer_verified(bh);
	take_bh(buf, bh);
	return 0;
}

static int op_access(struct itree *t, struct itree_buf *buf)
{
	struct ext4_itree *et = to_et(t);

	return ext4_journal_get_write_access(et->handle, et->dir->i_sb,
					     buf->priv, trigger(et));
}

/* Sets the checksum at once if there is no journal, or else the seed. */
static void set_csum(struct ext4_itree *et, struct itree_buf *buf)
{
	struct super_block *sb = et->dir->i_sb;
	struct itree_tail *tail = itree_tail(buf->data, sb->s_blocksize);
	struct buffer_head *bh = buf->priv;
	u32 seed;

	if (!ext4_has_feature_metadata_csum(sb))
		return;
	if (!ext4_handle_valid(et->handle)) {
		seed = node_seed(et->dir, buf->lblk);
		tail->t_checksum = node_csum(sb, buf->data, seed);
		return;
	}
	/* Is the seed still there?  A node that is formatted again is cleared. */
	if (test_bit(BH_ITREE_SEED, &bh->b_state) && tail->t_checksum)
		return;
	tail->t_checksum = cpu_to_le32(node_seed(et->dir, buf->lblk));
	set_bit(BH_ITREE_SEED, &bh->b_state);
	/* The checksum must be there before it is verified. */
	set_buffer_verified(bh);
}

static int op_dirty(struct itree *t, struct itree_buf *buf)
{
	struct ext4_itree *et = to_et(t);

	/*
	 * The block may have been created in an earlier handle.  It has not
	 * been dirtied since, so no commit includes it.
	 */
	if (et->more) {
		int err = IS_ERR(et->handle) ? PTR_ERR(et->handle) :
			  op_access(t, buf);

		if (err)
			return err;
	}
	set_csum(et, buf);
	return ext4_handle_dirty_metadata(et->handle, et->dir, buf->priv);
}

static void op_release(struct itree *t, struct itree_buf *buf)
{
	brelse(buf->priv);
}

static void *op_alloc(struct itree *t, size_t bytes)
{
	return kvzalloc(bytes, GFP_NOFS);
}

static void op_free(struct itree *t, void *mem)
{
	kvfree(mem);
}

static void op_relax(struct itree *t)
{
	cond_resched();
}

static const struct itree_ops ext4_itree_ops = {
	.read		= op_read,
	.checked	= op_checked,
	.grow		= op_grow,
	.access		= op_access,
	.dirty		= op_dirty,
	.release	= op_release,
	.alloc		= op_alloc,
	.free		= op_free,
	.relax		= op_relax,
};

/* The segment cannot have more blocks than the directory owns. */
static u32 owned_blocks(struct inode *dir)
{
	u64 blocks = dir->i_blocks >> (dir->i_sb->s_blocksize_bits - 9);

	return min_t(u64, blocks, ITREE_SEG_MAX - CHUNK_MAX);
}

static int open_tree(struct ext4_itree *et)
{
	et->chunk = 0;
	et->more = NULL;
	return itree_open(&et->t, &ext4_itree_ops, NULL,
			  et->dir->i_sb->s_blocksize,
			  owned_blocks(et->dir) +
			  (et->handle ? CHUNK_MAX : 0));
}

/**
 * ext4_itree_open - open a directory's tree
 * @et: filled in; ext4_itree_close() it after success
 * @handle: to change it in, or NULL
 * @dir: directory with the ITREE flag, i_rwsem held
 *
 * Returns 0 or a negative error; et->t.why is then the reason, if set.
 */
int ext4_itree_open(struct ext4_itree *et, handle_t *handle,
		    struct inode *dir)
{
	et->dir = dir;
	et->handle = handle;
	et->nowait = false;
	return open_tree(et);
}

/**
 * ext4_itree_open_nowait - open a directory's tree without reading from disk
 * @et: filled in; ext4_itree_close() it after success
 * @dir: directory with the ITREE flag, i_rwsem held
 *
 * As ext4_itree_open(), but this call and all that read the tree return -EAGAIN
 * if the block et->missing has to be read, which ext4_itree_load() does.
 */
int ext4_itree_open_nowait(struct ext4_itree *et, struct inode *dir)
{
	et->dir = dir;
	et->handle = NULL;
	et->nowait = true;
	return open_tree(et);
}

/**
 * ext4_itree_format - start a new tree in a directory
 * @et: filled in; ext4_itree_close() it after success
 * @handle: to build it in
 * @dir: directory, i_rwsem held exclusively
 * @blocks: of the finished tree, to be mapped in one piece if possible
 * @hash_version: of the htree
 *
 * As ext4_itree_open() otherwise.  Does not set the ITREE flag.
 */
int ext4_itree_format(struct ext4_itree *et, handle_t *handle,
		      struct inode *dir, u32 blocks, u8 hash_version)
{
	et->dir = dir;
	et->handle = handle;
	et->nowait = false;
	et->chunk = blocks;
	et->more = NULL;
	return itree_format(&et->t, &ext4_itree_ops, NULL,
			    dir->i_sb->s_blocksize, ITREE_SEG_MAX,
			    hash_version);
}

/* Closes the tree and adds its counts to those of the file system. */
void ext4_itree_close(struct ext4_itree *et)
{
	ext4_itree_count(et->dir->i_sb, EXT4_ITREE_SPLITS, et->t.splits);
	ext4_itree_count(et->dir->i_sb, EXT4_ITREE_MERGES, et->t.merges);
	itree_close(&et->t);
}
