// SPDX-License-Identifier: GPL-2.0-only
/*
 * Reading ahead of readers that get hash order, knfsd above all.
 *
 * A reader in hash order that also looks at inodes reads the inode tables at
 * random.  So once such a reader is past its first names, all that the
 * directory needs is read in one sweep: its own blocks, and those blocks of the
 * inode tables that the tree points to.
 *
 * Each READDIR of an NFS client opens the directory again, so only the reader's
 * position is known.  If the inodes of names before it are in memory, the
 * reader looks at inodes.  If those of the names behind it are not, a sweep
 * helps.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/slab.h>
#include "ext4.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_scan.h"

/* Names that are looked at on either side of the position. */
#define SWEEP_SAMPLES	8U
/* Keys to visit and inodes to take without releasing i_rwsem. */
#define SWEEP_KEYS	16384U
#define SWEEP_INODES	4096U

struct sample {
	struct ext4_itree_visit visit;
	u32	hash;
	u32	minor;
	u32	before[SWEEP_SAMPLES];
	u32	behind[SWEEP_SAMPLES];
	u32	nr_before;
	u32	nr_behind;
};

static int take_sample(struct ext4_itree_visit *v, u64 key, u32 minor,
		       struct ext4_dir_entry_2 *de)
{
	struct sample *s = container_of(v, struct sample, visit);
	u32 hash = ITREE_KEY_HASH(key), ino = le32_to_cpu(de->inode);

	if (hash < s->hash || (hash == s->hash && minor < s->minor)) {
		if (s->nr_before < SWEEP_SAMPLES)
			s->before[s->nr_before++] = ino;
	} else if (s->nr_behind < SWEEP_SAMPLES) {
		s->behind[s->nr_behind++] = ino;
	}
	return 0;
}

/* Does the reader at this place look at inodes, and must it read them? */
static bool sweep_pays(struct inode *dir, u32 hash, u32 minor)
{
	struct sample s = {
		.visit = {
			.dir = dir,
			.lo = KEY_DOTDOT + 1,
			.hi = ~0ULL,
			.shared = true,
			.name = take_sample,
		},
		.hash = hash,
		.minor = minor,
	};
	struct ext4_htree_place at = { .hash = hash & ~1 };
	ext4_lblk_t block;
	u32 next;

	if (ext4_itree_load_index(dir, hash, hash) ||
	    ext4_itree_hash_version(dir, &s.visit.hash_version) ||
	    ext4_htree_find_leaf(dir, &at, &block, &next) ||
	    ext4_itree_visit_block(&s.visit, block))
		return false;
	return ext4_itree_cached(dir->i_sb, s.before, s.nr_before,
				 sizeof(u32)) &&
	       s.nr_behind && !ext4_itree_cached(dir->i_sb, s.behind,
						 s.nr_behind, sizeof(u32));
}

/* Waits for blocks of the tree that are being read. */
static void wait_for_tree(struct inode *dir, u32 blocks)
{
	struct ext4_map_blocks map = { .m_lblk = ITREE_SEG_START };
	u32 i, end = ITREE_SEG_START + blocks;
	struct buffer_head *bh;
	int ret;

	while (map.m_lblk < end && !fatal_signal_pending(current)) {
		map.m_len = end - map.m_lblk;
		ret = ext4_map_blocks(NULL, dir, &map, 0);
		if (ret <= 0)
			return;
		for (i = 0; i < ret; i++) {
			cond_resched();
			bh = ext4_sb_bread(dir->i_sb, map.m_pblk + i,
					   REQ_META | REQ_PRIO);
			if (!IS_ERR(bh))
				brelse(bh);
		}
		map.m_lblk += ret;
	}
}

/*
 * Opens the tree if it still exists and is in memory, and sets *info.  i_rwsem
 * is held, so no node is read: if nodes have been evicted again, a sweep is
 * useless.
 */
static bool open_tree(struct ext4_itree *et, struct inode *dir,
		      struct itree_info *info)
{
	if (IS_DEADDIR(dir) || !ext4_itree_usable(dir) ||
	    ext4_itree_open_nowait(et, dir))
		return false;
	itree_get_info(&et->t, info);
	return true;
}

/**
 * ext4_itree_take_inodes - take the inode numbers of the next keys
 * @dir: directory, i_rwsem held
 * @next: key to start with; set to the one to continue with, or to 0 at the end
 *	or if a node has been evicted
 * @inodes: filled with the numbers, ascending
 * @max: the most numbers to take
 * @group: take only the first of so many neighbouring numbers
 *
 * Returns how many.
 */
u32 ext4_itree_take_inodes(struct inode *dir, u64 *next, u32 *inodes, u32 max,
			   u32 group)
{
	u32 keys = 0, nr = 0, ino, last = ~0U;
	struct itree_cursor cur;
	struct itree_info info;
	struct ext4_itree et;
	u64 lo = *next;
	int ret;

	*next = 0;
	if (!open_tree(&et, dir, &info))
		return 0;
	for (ret = itree_seek(&et.t, lo, &cur); !ret; ret = itree_next(&cur)) {
		if (nr == max || keys++ == SWEEP_KEYS) {
			*next = itree_cursor_key(&cur);
			break;
		}
		ino = ITREE_KEY_INO(itree_cursor_key(&cur));
		if ((ino - 1) / group != last)
			inodes[nr++] = ino;
		last = (ino - 1) / group;
	}
	itree_cursor_release(&cur);
	ext4_itree_close(&et);
	return nr;
}

/* Counts, or reads, the inode table blocks that the tree points to. */
static void sweep_tables(struct inode *dir, bool read, u64 *blocks)
{
	u64 next = KEY_DOTDOT + 1;
	u32 *inodes, nr;

	inodes = kvmalloc_array(SWEEP_INODES, sizeof(u32),
				GFP_KERNEL_ACCOUNT | __GFP_NOWARN);
	if (!inodes)
		return;
	*blocks = 0;
	while (next && !fatal_signal_pending(current)) {
		inode_lock_shared(dir);
		nr = ext4_itree_take_inodes(dir, &next, inodes, SWEEP_INODES,
					    EXT4_SB(dir->i_sb)->s_inodes_per_block);
		inode_unlock_shared(dir);
		*blocks += nr;
		if (*blocks > ext4_itree_ahead_limit())
			break;
		if (read)
			ext4_itree_ahead_inodes(dir->i_sb, inodes, nr,
						sizeof(u32), ~0U);
		cond_resched();
	}
	kvfree(inodes);
}

/* Returns how many blocks the tree has, 0 if its root is not in memory. */
static u32 tree_blocks(struct inode *dir)
{
	struct itree_info info = { };
	struct ext4_itree et;

	if (open_tree(&et, dir, &info))
		ext4_itree_close(&et);
	return info.blocks;
}

/**
 * ext4_itree_start_tree - start reading the blocks of a tree not in memory
 * @dir: directory
 *
 * If the root is not in memory, only the root is read; the next call then reads
 * the rest.
 */
void ext4_itree_start_tree(struct inode *dir)
{
	u32 blocks;

	if (!inode_trylock_shared(dir))
		return;
	blocks = tree_blocks(dir);
	inode_unlock_shared(dir);
	if (blocks)
		ext4_itree_ahead_tree(dir, blocks);
	else
		ext4_itree_ahead_range(dir, ITREE_SEG_START, 1);
}

static void sweep(struct inode *dir)
{
	u64 blocks = 0;
	u32 tree;

	/* The root holds the size of the tree. */
	wait_for_tree(dir, 1);
	inode_lock_shared(dir);
	tree = tree_blocks(dir);
	inode_unlock_shared(dir);
	if (!tree)
		return;
	ext4_itree_ahead_dir(dir, tree);
	ext4_itree_ahead_tree(dir, tree);
	if (tree > ext4_itree_ahead_limit())
		return;
	wait_for_tree(dir, tree);
	sweep_tables(dir, false, &blocks);
	if (blocks && blocks <= ext4_itree_ahead_limit())
		sweep_tables(dir, true, &blocks);
}

/**
 * ext4_itree_sweep - read ahead of a reader in hash order
 * @dir: its directory, i_rwsem held shared; released to read
 * @hash: the reader's position, which is not the start
 * @minor: likewise
 *
 * Returns false if the directory has been removed meanwhile.
 */
bool ext4_itree_sweep(struct inode *dir, u32 hash, u32 minor)
{
	if (!ext4_itree_usable(dir) || !sweep_pays(dir, hash, minor) ||
	    !ext4_itree_may_sweep(dir))
		return !IS_DEADDIR(dir);
	inode_unlock_shared(dir);
	sweep(dir);
	inode_lock_shared(dir);
	return !IS_DEADDIR(dir);
}
