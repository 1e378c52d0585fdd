// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reading for a scan in inode order: the directory's own blocks, which look-ups
 * are about to touch at random, and the inode table blocks of the next names.
 *
 * A scan never waits for the disk with the directory's i_rwsem held: writers
 * wait for that lock, and look-ups wait behind the writers.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/blkdev.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/sort.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/* Runs of a fragmented directory that are sorted by address at once. */
#define MAX_RUNS	4096U

/*
 * Look-ups that miss blocks within two ticks of each other form a streak.  From
 * its MISS_STREAK-th block on, each is read with its neighbours: as many bytes
 * as ext4 reads ahead in an inode table by default.
 */
#define MISS_TICK	(HZ / 8)
#define MISS_STREAK	8U
#define MISS_BYTES	(128U << 10)
/* In ->missed: the tick in the upper bits, the count in the lower ones. */
#define MISS_COUNT	15U

/*
 * Other tasks may wait for the same blocks, such as a create for the block of
 * its new inode, with i_rwsem held.  I/O controllers such as blk-throttle delay
 * other reads of a group that is over its limit, but let metadata pass and
 * charge for it.
 */
#define META_READ	(REQ_META | REQ_PRIO)

/* Attempts to read a block that packing moves meanwhile: it soon moves on. */
#define LOAD_TRIES	8

struct run {
	ext4_fsblk_t	pblk;
	u32		len;
};

/**
 * ext4_itree_ahead_limit - blocks worth reading ahead of a scan
 *
 * An eighth of the memory: more would be evicted before it is used.  Counts
 * each block as a page, which no file system block exceeds.
 */
u32 ext4_itree_ahead_limit(void)
{
	return min(ext4_itree_memory() / 8, 1UL << 20);
}

/* The second use puts a page among the active ones. */
static void mark_used(struct buffer_head *bh)
{
	touch_buffer(bh);
	touch_buffer(bh);
}

/*
 * Blocks that lie side by side on the disk, collected to be read by one bio: a
 * bio per block would be merged into few requests, but io.max counts bios.
 */
struct batch {
	struct super_block *sb;
	blk_opf_t	opf;
	bool		keep;		/* they will be used more than once */
	u32		nr;
	u32		max;		/* what one request takes */
	struct buffer_head *bh[];
};

/* Ends the reads of the buffers of a folio that a bio has read. */
static void end_buffers(struct folio *folio, size_t from, size_t len,
			bool uptodate)
{
	struct buffer_head *bh = folio_buffers(folio), *next;
	size_t end = from + len;

	while (bh_offset(bh) < from)
		bh = bh->b_this_page;
	/* Once the last one is unlocked, reclaim may free the folio. */
	do {
		next = bh->b_this_page;
		from += bh->b_size;
		put_bh(bh);
		/* After an error, readers read the blocks one by one. */
		end_buffer_read_sync(bh, uptodate);
		bh = next;
	} while (from < end);
}

static void batch_end_io(struct bio *bio)
{
	struct folio_iter fi;

	bio_for_each_folio_all(fi, bio)
		end_buffers(fi.folio, fi.offset, fi.length, !bio->bi_status);
	bio_put(bio);
}

/*
 * Gets the buffer of a block that has to be read.  Unlike
 * ext4_sb_breadahead_unmovable(), this may reclaim: a scan needs readahead most
 * where memory is short, and blocks without a buffer would soon be read one by
 * one.  It locks no buffer, or another task would wait for the block while this
 * one waits for memory.
 */
static struct buffer_head *get_unread(struct super_block *sb, ext4_fsblk_t pblk,
				      bool keep)
{
	struct buffer_head *bh;

	bh = bdev_getblk(sb->s_bdev, pblk, sb->s_blocksize,
			 GFP_NOFS | __GFP_RETRY_MAYFAIL | __GFP_NOWARN);
	if (!bh)
		return NULL;
	if (keep)
		mark_used(bh);
	if (!ext4_buffer_uptodate(bh) && !buffer_locked(bh))
		return bh;
	brelse(bh);
	return NULL;
}

/* Locks a buffer to read it, unless it has been read or is being read. */
static bool lock_unread(struct buffer_head *bh)
{
	if (!trylock_buffer(bh))
		return false;
	if (ext4_buffer_uptodate(bh)) {
		unlock_buffer(bh);
		return false;
	}
	clear_buffer_verified(bh);
	set_buffer_req(bh);
	return true;
}

/*
 * Locks buffers and adds them to a bio, up to the first that is in use.
 * Returns how many.
 */
static u32 fill_bio(struct bio *bio, struct buffer_head **bh, u32 nr)
{
	u32 i;

	bio->bi_iter.bi_sector = bh[0]->b_blocknr *
				 (bh[0]->b_size >> SECTOR_SHIFT);
	bio->bi_end_io = batch_end_io;
	for (i = 0; i < nr && lock_unread(bh[i]); i++) {
		if (bio_add_folio(bio, bh[i]->b_folio, bh[i]->b_size,
				  bh_offset(bh[i])))
			continue;
		unlock_buffer(bh[i]);
		break;
	}
	return i;
}

/* Starts reading adjacent blocks.  Takes over the references. */
static void read_buffers(struct buffer_head **bh, u32 nr, blk_opf_t opf)
{
	while (nr) {
		struct bio *bio = bio_alloc(bh[0]->b_bdev, bio_max_segs(nr),
					    REQ_OP_READ | opf, GFP_NOFS);
		u32 n = fill_bio(bio, bh, nr);

		if (n) {
			submit_bio(bio);
		} else {
			bio_put(bio);
			brelse(bh[0]);
			n = 1;
		}
		bh += n;
		nr -= n;
	}
}

/* Returns NULL if memory is short; the blocks are then read one by one. */
static struct batch *batch_alloc(struct super_block *sb, bool keep)
{
	struct request_queue *q = bdev_get_queue(sb->s_bdev);
	u32 pages = clamp(queue_max_segments(q), 1U, BIO_MAX_VECS);
	struct batch *b;
	u32 bytes, max;

	/* Small blocks may begin and end within a page. */
	if (sb->s_blocksize < PAGE_SIZE && pages > 1)
		pages--;
	bytes = min(pages << PAGE_SHIFT, queue_max_bytes(q));
	max = max(bytes >> sb->s_blocksize_bits, 1U);
	b = kmalloc(struct_size(b, bh, max), GFP_NOFS | __GFP_NOWARN);
	if (b) {
		b->sb = sb;
		b->opf = META_READ | REQ_RAHEAD;
		b->keep = keep;
		b->nr = 0;
		b->max = max;
	}
	return b;
}

static void batch_flush(struct batch *b)
{
	read_buffers(b->bh, b->nr, b->opf);
	b->nr = 0;
}

static void batch_add(struct batch *b, ext4_fsblk_t pblk)
{
	struct buffer_head *bh = get_unread(b->sb, pblk, b->keep);

	if (!bh)
		return;
	if (b->nr == b->max ||
	    (b->nr && b->bh[b->nr - 1]->b_blocknr + 1 != pblk))
		batch_flush(b);
	b->bh[b->nr++] = bh;
}

static void batch_free(struct batch *b)
{
	batch_flush(b);
	kfree(b);
}

static int cmp_runs(const void *a, const void *b)
{
	const struct run *x = a, *y = b;

	return x->pblk < y->pblk ? -1 : x->pblk > y->pblk;
}

/* Adds the runs of logical blocks first..first+count-1; returns their number. */
static u32 map_runs(struct inode *dir, ext4_lblk_t first, u32 count,
		    struct run *runs, u32 nr, u32 max_runs)
{
	while (count && nr < max_runs) {
		struct ext4_map_blocks map = { .m_lblk = first,
					       .m_len = count };
		int ret = ext4_map_blocks(NULL, dir, &map, 0);

		if (ret < 0)
			break;
		if (ret > 0) {
			runs[nr].pblk = map.m_pblk;
			runs[nr++].len = ret;
		}
		/* A hole's length is in m_len. */
		if (!ret)
			ret = clamp(map.m_len, 1U, count);
		cond_resched();
		first += ret;
		count -= ret;
	}
	return nr;
}

static void read_runs(struct super_block *sb, struct run *runs, u32 nr,
		      bool keep)
{
	struct batch *b = batch_alloc(sb, keep);
	struct blk_plug plug;
	u32 i, j;

	if (!b)
		return;
	sort(runs, nr, sizeof(*runs), cmp_runs, NULL);
	blk_start_plug(&plug);
	for (i = 0; i < nr; i++) {
		cond_resched();
		for (j = 0; j < runs[i].len; j++)
			batch_add(b, runs[i].pblk + j);
	}
	batch_free(b);
	blk_finish_plug(&plug);
}

/* Reads the tree, and the directory's blocks from @first on, in one sweep. */
static void ahead_sweep(struct inode *dir, u32 tree_blocks, ext4_lblk_t first,
			u64 blocks, bool keep)
{
	u32 max_runs = min_t(u64, blocks + tree_blocks, MAX_RUNS), nr;
	struct run *runs;

	runs = kvmalloc_array(max_runs, sizeof(*runs),
			      GFP_NOFS | __GFP_NOWARN);
	if (!runs)
		return;
	nr = map_runs(dir, ITREE_SEG_START, tree_blocks, runs, 0, max_runs);
	nr = map_runs(dir, first, blocks, runs, nr, max_runs);
	read_runs(dir->i_sb, runs, nr, keep);
	kvfree(runs);
}

/**
 * ext4_itree_ahead_range - start reading some of a directory's blocks
 * @dir: directory
 * @first: logical block
 * @count: blocks
 */
void ext4_itree_ahead_range(struct inode *dir, ext4_lblk_t first, u32 count)
{
	ahead_sweep(dir, 0, first, count, ext4_itree_dir_kept(dir));
}

/**
 * ext4_itree_ahead_dir - start reading a directory in one sweep
 * @dir: directory
 * @tree_blocks: of its tree
 *
 * Does nothing if not all of it stays in memory.
 */
void ext4_itree_ahead_dir(struct inode *dir, u32 tree_blocks)
{
	u64 blocks = dir->i_size >> dir->i_blkbits;

	if (blocks >= 2 && blocks + tree_blocks <= ext4_itree_ahead_limit())
		ahead_sweep(dir, tree_blocks, 0, blocks, true);
}

/**
 * ext4_itree_ahead_tree - start reading a directory's tree in one sweep
 * @dir: directory
 * @tree_blocks: of its tree
 *
 * In a tree that has grown by splits, the next leaf in key order may be
 * anywhere: a walk would read the leaves singly and at random.  Does nothing if
 * not all of the tree stays in memory until later windows need it.
 */
void ext4_itree_ahead_tree(struct inode *dir, u32 tree_blocks)
{
	if (tree_blocks >= 2 && tree_blocks <= ext4_itree_ahead_limit())
		ahead_sweep(dir, tree_blocks, 0, 0, true);
}

/**
 * ext4_itree_dir_kept - is a directory small enough to be kept in memory?
 * @dir: directory
 *
 * It may take a quarter of the memory, see ext4_itree_keep_dir().
 */
bool ext4_itree_dir_kept(struct inode *dir)
{
	return dir->i_size >> dir->i_blkbits <= 2ULL * ext4_itree_ahead_limit();
}

/* Counts a missing block.  Returns how many came in quick succession. */
static u32 miss_streak(struct inode *dir)
{
	struct ext4_itree_dir *d = ext4_itree_make_dir(dir);
	u16 now = (jiffies / MISS_TICK) * (MISS_COUNT + 1), streak = 0, seen;

	if (!d)
		return 0;
	seen = READ_ONCE(d->missed);
	/* Racing readers may lose a count, and the ticks wrap: harmless. */
	if ((u16)(now - (seen & ~MISS_COUNT)) <= 2 * (MISS_COUNT + 1))
		streak = min((seen & MISS_COUNT) + 1, MISS_COUNT);
	WRITE_ONCE(d->missed, now | streak);
	return streak;
}

/* Starts reading a block and its neighbours on the disk in one bio. */
static void read_cluster(struct inode *dir, ext4_lblk_t block, u32 blocks)
{
	ext4_lblk_t hi = dir->i_size >> dir->i_blkbits, lo, first, end;
	struct super_block *sb = dir->i_sb;
	struct extent_status es;
	struct buffer_head **bh;
	ext4_fsblk_t pblk;

	if (!ext4_es_lookup_extent(dir, block, NULL, &es, NULL) ||
	    !ext4_es_is_written(&es))
		return;
	lo = max(round_down(block, blocks), es.es_lblk);
	hi = min3(hi, round_down(block, blocks) + blocks,
		  es.es_lblk + es.es_len);
	pblk = ext4_es_pblock(&es) - es.es_lblk;
	if (hi - lo < 2)
		return;
	bh = kmalloc_array(hi - lo, sizeof(*bh), GFP_NOFS | __GFP_NOWARN);
	if (!bh)
		return;
	first = block;
	end = block;
	do {
		bh[end - lo] = get_unread(sb, pblk + end, true);
	} while (bh[end - lo] && ++end < hi);
	while (end > block && first > lo) {
		bh[first - 1 - lo] = get_unread(sb, pblk + first - 1, true);
		if (!bh[first - 1 - lo])
			break;
		first--;
	}
	read_buffers(bh + (first - lo), end - first, META_READ);
	kfree(bh);
}

/**
 * ext4_itree_ahead_miss - read neighbours of a directory block that is missing
 * @dir: directory with a tree
 * @block: logical block that is not in memory
 *
 * Looking names up in any order but the directory's own, such as inode order,
 * reads its blocks at random.  Blocks that have been evicted, or were never
 * read, would cost one request each.
 *
 * The neighbours must not delay other tasks.  So they share the request of the
 * block, and are left out while a task changes the directory or waits to.
 * Occasional look-ups do not start this.  Nor do look-ups in directories larger
 * than memory, where the neighbours would be evicted before use.
 */
void ext4_itree_ahead_miss(struct inode *dir, ext4_lblk_t block)
{
	struct request_queue *q = bdev_get_queue(dir->i_sb->s_bdev);
	u32 bytes = min(MISS_BYTES, rounddown_pow_of_two(queue_max_bytes(q)));
	u32 blocks = bytes >> dir->i_blkbits;

	if (test_opt2(dir->i_sb, NOITREE) ||
	    block >= dir->i_size >> dir->i_blkbits || blocks < 2 ||
	    !ext4_itree_dir_kept(dir) || miss_streak(dir) < MISS_STREAK)
		return;
	if (!inode_trylock_shared(dir))
		return;
	inode_unlock_shared(dir);
	read_cluster(dir, block, blocks);
}

static void touch_runs(struct super_block *sb, const struct run *runs, u32 nr)
{
	struct buffer_head *bh;
	u32 i, j;

	for (i = 0; i < nr; i++) {
		cond_resched();
		for (j = 0; j < runs[i].len; j++) {
			bh = sb_find_get_block(sb, runs[i].pblk + j);
			if (bh)
				mark_used(bh);
			brelse(bh);
		}
	}
}

/**
 * ext4_itree_keep_dir - keep a directory in memory that will be visited again
 * @dir: directory
 *
 * Marks its blocks as used, so that inodes and their tables, which will not be
 * used again, are evicted first.  If the directory is small for the memory,
 * reads evicted blocks again, together.  Ignores a directory that takes more
 * than a quarter of the memory.
 */
void ext4_itree_keep_dir(struct inode *dir)
{
	u64 blocks = dir->i_size >> dir->i_blkbits;
	u32 max_runs = min_t(u64, blocks, MAX_RUNS);
	struct run *runs;

	if (blocks <= ext4_itree_ahead_limit()) {
		ext4_itree_ahead_dir(dir, 0);
		return;
	}
	if (!ext4_itree_dir_kept(dir))
		return;
	runs = kvmalloc_array(max_runs, sizeof(*runs),
			      GFP_NOFS | __GFP_NOWARN);
	if (!runs)
		return;
	touch_runs(dir->i_sb, runs,
		   map_runs(dir, 0, blocks, runs, 0, max_runs));
	kvfree(runs);
}

/* Block of the inode table that holds an inode, or 0. */
static ext4_fsblk_t itable_block(struct super_block *sb, u32 ino)
{
	struct ext4_group_desc *gdp;
	u32 index;

	if (!ext4_valid_inum(sb, ino))
		return 0;
	gdp = ext4_get_group_desc(sb, (ino - 1) / EXT4_INODES_PER_GROUP(sb),
				  NULL);
	if (!gdp)
		return 0;
	index = (ino - 1) % EXT4_INODES_PER_GROUP(sb);
	return ext4_inode_table(sb, gdp) +
	       index / EXT4_SB(sb)->s_inodes_per_block;
}

/**
 * ext4_itree_relax - let waiting writers have their turn
 * @dir: directory, i_rwsem held shared
 *
 * Returns 0, or -ENOENT if the directory has been removed meanwhile.
 */
int ext4_itree_relax(struct inode *dir)
{
	inode_unlock_shared(dir);
	cond_resched();
	inode_lock_shared(dir);
	return IS_DEADDIR(dir) ? -ENOENT : 0;
}

/**
 * ext4_itree_in_memory - can a block be used without waiting for the disk?
 * @dir: directory
 * @block: logical block; true for a hole
 */
bool ext4_itree_in_memory(struct inode *dir, ext4_lblk_t block)
{
	struct buffer_head *bh = ext4_itree_cached_block(dir, block);

	if (IS_ERR(bh))
		return false;
	brelse(bh);
	return true;
}

static struct buffer_head *read_block(struct inode *dir, ext4_lblk_t block,
				      int *err)
{
	struct buffer_head *bh = ext4_getblk(NULL, dir, block, 0);

	*err = PTR_ERR_OR_ZERO(bh);
	if (IS_ERR_OR_NULL(bh))
		return NULL;
	if (!ext4_buffer_uptodate(bh))
		*err = ext4_read_bh_lock(bh, META_READ, true);
	return bh;
}

/**
 * ext4_itree_load - bring a block into memory
 * @dir: directory, i_rwsem held shared; released to read
 * @block: logical block
 * @pin: set to the block's buffer, NULL for a hole and after an error
 *
 * Returns 0, or an error: -ENOENT if the directory has been removed meanwhile.
 * Retries if packing maps the logical block to another place during the read.
 */
int ext4_itree_load(struct inode *dir, ext4_lblk_t block,
		    struct buffer_head **pin)
{
	struct buffer_head *bh, *last = NULL;
	int err = 0, tries;

	for (tries = 0; tries < LOAD_TRIES; tries++) {
		bh = ext4_itree_cached_block(dir, block);
		if (!IS_ERR(bh))
			break;
		brelse(last);
		inode_unlock_shared(dir);
		last = read_block(dir, block, &err);
		inode_lock_shared(dir);
		if (IS_DEADDIR(dir))
			err = -ENOENT;
		if (err)
			break;
	}
	brelse(last);
	*pin = err || IS_ERR(bh) ? NULL : bh;
	return err;
}

/**
 * ext4_itree_cached_itable - get the inode table block that holds an inode
 * @sb: file system
 * @ino: the inode's number
 *
 * Returns NULL if it is not in memory.
 */
struct buffer_head *ext4_itree_cached_itable(struct super_block *sb, u32 ino)
{
	ext4_fsblk_t block = itable_block(sb, ino);
	struct buffer_head *bh = block ? sb_find_get_block(sb, block) : NULL;

	if (bh && ext4_buffer_uptodate(bh))
		return bh;
	brelse(bh);
	return NULL;
}

/**
 * ext4_itree_load_inode - bring an inode's table block into memory
 * @dir: directory, i_rwsem held shared; released to read
 * @ino: inode number
 */
void ext4_itree_load_inode(struct inode *dir, u32 ino)
{
	struct super_block *sb = dir->i_sb;
	ext4_fsblk_t block = itable_block(sb, ino);
	struct buffer_head *bh;

	if (!block || ext4_itree_cached(sb, &ino, 1, sizeof(ino)))
		return;
	bh = ext4_itree_cached_itable(sb, ino);
	brelse(bh);
	if (bh)
		return;
	inode_unlock_shared(dir);
	/* A later reader of the inode gets the error again. */
	bh = ext4_sb_bread(sb, block, META_READ);
	if (!IS_ERR(bh))
		brelse(bh);
	inode_lock_shared(dir);
}

/**
 * ext4_itree_ahead_inodes - start reading inode table blocks
 * @sb: file system
 * @ino: inode numbers, ascending
 * @nr: how many
 * @stride: bytes from one to the next
 * @blocks: stop after so many blocks
 *
 * Returns how many of the numbers have been processed.
 */
u32 ext4_itree_ahead_inodes(struct super_block *sb, const u32 *ino, u32 nr,
			    size_t stride, u32 blocks)
{
	struct batch *b = batch_alloc(sb, false);
	ext4_fsblk_t last = 0, block;
	struct blk_plug plug;
	u32 i;

	blk_start_plug(&plug);
	for (i = 0; i < nr && blocks; i++) {
		block = itable_block(sb, *ino);
		ino = (const u32 *)((const char *)ino + stride);
		if (!block || block == last)
			continue;
		if (b)
			batch_add(b, block);
		last = block;
		blocks--;
	}
	if (b)
		batch_free(b);
	blk_finish_plug(&plug);
	return i;
}
