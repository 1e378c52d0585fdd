// SPDX-License-Identifier: GPL-2.0-only
/*
 * Building and dropping the itree of a directory that is in use.
 *
 * The keys are gathered in hash order, one leaf of the htree at a time, under
 * the shared i_rwsem, which is released to read a leaf.  The builder's cursor
 * is the hash up to which all names have been gathered.  Writers log changes to
 * names below it; the builder will meet those above it.  Both read the cursor
 * under i_rwsem.
 *
 * The tree is then loaded and the log applied without i_rwsem: no other task
 * uses the segment while the ITREE flag is off and a builder registered, and
 * i_data_sem protects the extent map, as it does under writeback.  Changes
 * logged meanwhile are applied in rounds; the last, short round and the
 * setting of the flag exclude writers.  Until then a crash leaves an unused
 * segment, which the next build or e2fsck frees.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/iversion.h>
#include <linux/ktime.h>
#include <linux/memcontrol.h>
#include <linux/mount.h>
#include <linux/quotaops.h>
#include "ext4.h"
#include "ext4_extents.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"

#include <trace/events/ext4.h>

/* The cursor behind all hashes. */
#define ALL_HASHES	0x100000000ULL
/* The last round, which excludes writers, applies fewer changes than this. */
#define LAST_ROUND	256U
/* After so many rounds, the next one is the last in any case. */
#define MAX_ROUNDS	16U
/*
 * Tries to gather a leaf without waiting for the disk under i_rwsem.  It takes
 * more than two only if many leaves share a hash.
 */
#define LEAF_TRIES	256U
/* Blocks of the segment to free before writers have their turn. */
#define FREE_AT_ONCE	2048U

/**
 * ext4_itree_check_dir - can this directory's tree be built, dropped or packed?
 * @dir: i_rwsem held
 *
 * Returns 0, or a negative error as listed in itree_ioctl.h.
 */
int ext4_itree_check_dir(struct inode *dir)
{
	if (IS_DEADDIR(dir))
		return -ENOENT;
	if (ext4_forced_shutdown(dir->i_sb))
		return -EIO;
	if (!ext4_itree_possible(dir))
		return -ENODATA;
	return 0;
}

/* May the build continue?  i_rwsem held. */
static int check_builder(struct ext4_itree_builder *b)
{
	int err = ext4_itree_check_dir(b->dir);

	return err ? err : b->err;
}

/* --- freeing the segment --- */

/* First logical block of the segment's last piece, 0 if it has none. */
static int last_piece(struct inode *dir, ext4_lblk_t *first)
{
	struct ext4_ext_path *path;
	struct ext4_extent *ex;
	u32 end;

	*first = 0;
	down_read(&EXT4_I(dir)->i_data_sem);
	path = ext4_find_extent(dir, EXT_MAX_BLOCKS - 1, NULL,
				EXT4_EX_NOCACHE);
	if (!IS_ERR(path)) {
		ex = path[ext_depth(dir)].p_ext;
		end = ex ? le32_to_cpu(ex->ee_block) +
			   ext4_ext_get_actual_len(ex) : 0;
		if (end > ITREE_SEG_START)
			*first = max(end - FREE_AT_ONCE, ITREE_SEG_START);
		ext4_free_ext_path(path);
	}
	up_read(&EXT4_I(dir)->i_data_sem);
	return PTR_ERR_OR_ZERO(path);
}

/**
 * ext4_itree_free_range - free blocks of a directory
 * @dir: i_rwsem held exclusively, a handle started
 * @first: logical block
 * @last: logical block
 */
int ext4_itree_free_range(struct inode *dir, ext4_lblk_t first,
			  ext4_lblk_t last)
{
	int err;

	down_write(&EXT4_I(dir)->i_data_sem);
	/* Discarding a preallocation later would free its blocks twice. */
	ext4_discard_preallocations(dir);
	ext4_es_remove_extent(dir, first, last - first + 1);
	err = ext4_ext_remove_space(dir, first, last);
	up_write(&EXT4_I(dir)->i_data_sem);
	return err;
}

static int free_from(struct inode *dir, ext4_lblk_t first)
{
	handle_t *handle;
	int err, err2;

	handle = ext4_journal_start(dir, EXT4_HT_TRUNCATE,
				    ext4_chunk_trans_extent(dir, 1));
	if (IS_ERR(handle))
		return PTR_ERR(handle);
	err = ext4_itree_free_range(dir, first, EXT_MAX_BLOCKS - 1);
	err2 = ext4_mark_inode_dirty(handle, dir);
	if (!err)
		err = err2;
	err2 = ext4_journal_stop(handle);
	return err ? err : err2;
}

/*
 * Frees all blocks of the segment from its end, some at a time.  The ITREE flag
 * is off and the builder is registered, so no other task uses them.
 */
static int free_segment(struct ext4_itree_builder *b)
{
	struct inode *dir = b->dir;
	ext4_lblk_t first;
	int err;

	while (1) {
		err = ext4_itree_let_freeze(b);
		if (err)
			return err;
		inode_lock(dir);
		/* The blocks of a removed directory go with its inode. */
		err = IS_DEADDIR(dir) ? -ENOENT : last_piece(dir, &first);
		if (!err && first)
			err = free_from(dir, first);
		inode_unlock(dir);
		if (err || !first)
			return err;
	}
}

/* --- gathering --- */

struct gather_leaf {
	struct ext4_itree_visit visit;
	struct ext4_itree_builder *b;
	u32	next;			/* the leaf's hashes are below */
};

static int gather_name(struct ext4_itree_visit *v, u64 key, u32 minor,
		       struct ext4_dir_entry_2 *de)
{
	struct gather_leaf *g = container_of(v, struct gather_leaf, visit);
	u32 hash = ITREE_KEY_HASH(key);

	/* A name in the wrong leaf: lookup cannot find it. */
	if (hash < g->b->cursor || hash >= g->next)
		return -EFSCORRUPTED;
	return ext4_itree_keys_add(&g->b->keys, key);
}

/*
 * Gathers the names of the leaf at the cursor, and of the next leaves while
 * they continue its last hash, and moves the cursor behind them.  Returns
 * -EAGAIN if a leaf has to be read first, unless @missing is NULL.
 */
static int try_leaf(struct ext4_itree_builder *b, ext4_lblk_t *missing)
{
	struct gather_leaf g = {
		.visit = { .dir = b->dir, .hash_version = b->hash_version,
			   .hi = ~0ULL, .name = gather_name, .strict = true },
		.b = b,
	};
	struct ext4_htree_place at = { .hash = b->cursor };
	u64 nr = b->keys.nr;
	ext4_lblk_t block;
	u32 next;
	int err;

	while (1) {
		err = ext4_htree_find_leaf(b->dir, &at, &block, &next);
		if (err)
			return err == ERR_BAD_DX_DIR ? -EFSCORRUPTED : err;
		if (missing && !ext4_itree_in_memory(b->dir, block)) {
			*missing = block;
			b->keys.nr = nr;
			return -EAGAIN;
		}
		g.next = next;
		err = ext4_itree_visit_block(&g.visit, block);
		if (err)
			return err;
		if (next == ~0U) {
			b->cursor = ALL_HASHES;
			return 0;
		}
		/* If @next is odd, the next leaf continues the last hash. */
		if (!(next & 1)) {
			b->cursor = next;
			return 0;
		}
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
		ext4_htree_go_on(&at, next);
	}
}

/* The same, with i_rwsem released to read. */
static int gather_leaf(struct ext4_itree_builder *b)
{
	struct buffer_head *pin = NULL;
	ext4_lblk_t missing;
	u32 tries = 0;
	int err;

	inode_lock_shared(b->dir);
	do {
		err = ext4_itree_load_index(b->dir, b->cursor, b->cursor);
		if (!err)
			err = check_builder(b);
		if (!err)
			err = try_leaf(b, tries++ < LEAF_TRIES ? &missing : NULL);
		brelse(pin);
		pin = NULL;
		if (err == -EAGAIN)
			err = ext4_itree_load(b->dir, missing, &pin) ?: -EAGAIN;
	} while (err == -EAGAIN);
	brelse(pin);
	inode_unlock_shared(b->dir);
	return err == -ERESTARTSYS ? -EINTR : err;
}

static int gather(struct ext4_itree_builder *b)
{
	u32 names = ext4_itree_block_names(b->dir->i_sb);
	int err = 0;

	/* Leaves are read in random order: read them ahead if they fit. */
	ext4_itree_ahead_dir(b->dir, 0);
	while (!err && b->cursor < ALL_HASHES) {
		/* Gathering may take minutes if the directory is not cached. */
		err = ext4_itree_let_freeze(b);
		if (!err)
			err = ext4_itree_check_stop(b);
		/* Room for a leaf; only neighbours with equal hashes need more. */
		if (!err)
			err = ext4_itree_keys_reserve(&b->keys, names);
		if (err)
			break;
		err = gather_leaf(b);
		ext4_itree_keys_tidy(&b->keys);
	}
	return err ? err : ext4_itree_keys_merge(&b->keys);
}

/* --- loading --- */

struct load {
	struct ext4_itree et;
	struct ext4_itree_builder *b;
	u32	calls;
};

/* The core asks for a new node: is there room for it in the handle? */
static int load_more(struct ext4_itree *et)
{
	struct load *l = container_of(et, struct load, et);
	int err;

	if (!ext4_itree_used_up(et->handle))
		return 0;
	/* Check with a handle: after an error, the core still writes. */
	err = ext4_itree_check_stop(l->b);
	if (err)
		return err;
	err = ext4_journal_stop(et->handle);
	et->handle = ERR_PTR(-EIO);
	if (!err)
		err = ext4_itree_let_freeze(l->b);
	if (err)
		return err;
	et->handle = ext4_itree_start(et->dir);
	if (IS_ERR(et->handle))
		return PTR_ERR(et->handle);
	/* The core still changes the root, which may be in a commit. */
	return ext4_journal_get_write_access(et->handle, et->dir->i_sb,
					     et->t.root.priv, EXT4_JTR_NONE);
}

static int load_key(void *arg, u64 *key)
{
	struct load *l = arg;

	if (!(++l->calls % 4096)) {
		int err = ext4_itree_check_stop(l->b);

		if (err)
			return err;
		cond_resched();
	}
	return ext4_itree_keys_next(&l->b->keys, key) ? 0 : -EFSCORRUPTED;
}

static int load(struct ext4_itree_builder *b)
{
	struct ext4_sb_info *sbi = EXT4_SB(b->dir->i_sb);
	struct load l = { .b = b };
	handle_t *handle;
	u64 blocks;
	int err, err2;

	blocks = itree_bulk_blocks(b->dir->i_sb->s_blocksize, b->keys.nr);
	if (!blocks)
		return -EFBIG;
	/* Nodes for the first insert. */
	blocks += 3;
	if (percpu_counter_compare(&sbi->s_freeclusters_counter,
				   EXT4_NUM_B2C(sbi, blocks) + 32) < 0)
		return -ENOSPC;
	handle = ext4_itree_start(b->dir);
	if (IS_ERR(handle))
		return PTR_ERR(handle);
	err = ext4_itree_format(&l.et, handle, b->dir, blocks,
				b->hash_version);
	if (err) {
		ext4_journal_stop(handle);
		return err;
	}
	l.et.more = load_more;
	err = itree_bulk_load(&l.et.t, b->keys.nr, load_key, &l);
	ext4_itree_close(&l.et);
	if (!IS_ERR(l.et.handle)) {
		err2 = ext4_journal_stop(l.et.handle);
		if (!err)
			err = err2;
	}
	ext4_itree_keys_free(&b->keys);
	return err;
}

/* --- catching up --- */

/*
 * Listings have another order from now on.  NFS clients cache the old one until
 * the directory's change attribute changes.
 */
static void order_changed(struct inode *dir)
{
	inode_set_ctime_current(dir);
	inode_inc_iversion(dir);
}

/* Sets the flag; from here on changes of the directory follow the tree. */
static int set_flag(struct ext4_itree_builder *b)
{
	struct inode *dir = b->dir;
	handle_t *handle = ext4_itree_start(dir);
	int err;

	if (IS_ERR(handle))
		return PTR_ERR(handle);
	ext4_clear_inode_state(dir, EXT4_STATE_ITREE_BAD);
	ext4_clear_inode_state(dir, EXT4_STATE_ITREE_NOBUILD);
	ext4_set_inode_flag(dir, EXT4_INODE_ITREE);
	order_changed(dir);
	err = ext4_mark_inode_dirty(handle, dir);
	if (err)
		ext4_clear_inode_flag(dir, EXT4_INODE_ITREE);
	else
		WRITE_ONCE(ext4_itree_dir(dir)->builder, NULL);
	ext4_journal_stop(handle);
	return err;
}

static int catch_up(struct ext4_itree_builder *b)
{
	struct inode *dir = b->dir;
	struct itree_info info = { };
	struct ext4_itree et;
	LIST_HEAD(log);
	ktime_t start;
	bool last;
	int err;

	do {
		inode_lock(dir);
		start = ktime_get();
		last = b->logged < LAST_ROUND ||
		       ++b->args->ia_rounds > MAX_ROUNDS;
		ext4_itree_take_log(b, &log);
		err = check_builder(b);
		if (!err && last) {
			err = ext4_itree_apply_log(b, &log, true);
			if (!err)
				err = ext4_itree_open(&et, NULL, dir);
			if (!err) {
				itree_get_info(&et.t, &info);
				ext4_itree_close(&et);
				err = set_flag(b);
			}
			b->args->ia_locked_us = ktime_us_delta(ktime_get(),
							       start);
		}
		inode_unlock(dir);
		if (!err && !last)
			err = ext4_itree_apply_log(b, &log, false);
	} while (!err && !last);
	ext4_itree_free_log(&log);
	if (err)
		return err;
	b->args->ia_names = info.keys;
	ext4_itree_count(dir->i_sb, EXT4_ITREE_BUILDS, 1);
	trace_ext4_itree_build(dir, info.keys);
	return 0;
}

/* --- the two operations --- */

/* Takes the tree out of use.  i_rwsem held exclusively. */
static int drop_flag(struct inode *dir)
{
	handle_t *handle;
	int err;

	if (!ext4_test_inode_flag(dir, EXT4_INODE_ITREE))
		return 0;
	handle = ext4_journal_start(dir, EXT4_HT_DIR, 8);
	if (IS_ERR(handle))
		return PTR_ERR(handle);
	order_changed(dir);
	ext4_itree_drop(handle, dir, NULL);
	ext4_clear_inode_state(dir, EXT4_STATE_ITREE_BAD);
	err = ext4_journal_stop(handle);
	return err;
}

/*
 * Registers the builder, with no tree in use any more.  Returns 1 if there is
 * a good tree, which is to stay.
 */
static int register_builder(struct ext4_itree_builder *b)
{
	bool build = b->args->ia_op == EXT4_ITREE_OP_BUILD;
	bool keep = build && !(b->args->ia_flags & EXT4_ITREE_FORCE);
	struct inode *dir = b->dir;
	struct ext4_itree_dir *d = ext4_itree_make_dir(dir);
	int err;

	if (!d)
		return -ENOMEM;
	inode_lock(dir);
	err = d->builder || d->packing ? -EBUSY : IS_DEADDIR(dir) ? -ENOENT : 0;
	/* Freeing trees when the feature changes is invisible to users. */
	if (!err && IS_IMMUTABLE(dir) &&
	    (build || b->args->ia_op == EXT4_ITREE_OP_DROP))
		err = -EPERM;
	if (!err && keep && ext4_dir_has_itree(dir) &&
	    !ext4_test_inode_state(dir, EXT4_STATE_ITREE_BAD))
		err = 1;
	if (!err && build)
		err = ext4_itree_hash_version(dir, &b->hash_version);
	if (!err) {
		if (ext4_test_inode_flag(dir, EXT4_INODE_ITREE))
			b->args->ia_state |= EXT4_ITREE_CHANGED;
		err = drop_flag(dir);
	}
	if (!err) {
		b->memcg = get_mem_cgroup_from_mm(current->mm);
		WRITE_ONCE(d->builder, b);
	}
	inode_unlock(dir);
	return err;
}

static void unregister_builder(struct ext4_itree_builder *b)
{
	inode_lock(b->dir);
	if (ext4_itree_builder(b->dir) == b)
		WRITE_ONCE(ext4_itree_dir(b->dir)->builder, NULL);
	inode_unlock(b->dir);
	ext4_itree_free_log(&b->log);
	mem_cgroup_put(b->memcg);
	ext4_itree_keys_free(&b->keys);
}

static int init_builder(struct ext4_itree_builder *b, struct file *file,
			struct inode *dir, struct ext4_itree_args *a)
{
	int err;

	memset(b, 0, sizeof(*b));
	b->file = file;
	b->dir = dir;
	b->args = a;
	INIT_LIST_HEAD(&b->log);
	ext4_itree_keys_init(&b->keys);
	err = mnt_want_write_file(file);
	if (err)
		return err;
	/* The blocks of the tree count towards quotas like any others. */
	err = dquot_initialize(b->dir);
	if (err) {
		mnt_drop_write_file(file);
		return err;
	}
	b->can_write = true;
	return 0;
}

/**
 * ext4_itree_build_online - build the tree of a directory in use
 * @file: the open directory
 * @a: flags in, figures out
 *
 * Sleeps, holds locks only for short times, and ends at a signal.  Returns 0,
 * also if there is a tree already, or a negative error as listed in
 * itree_ioctl.h; the directory then has no tree, or the one that it had.
 */
int ext4_itree_build_online(struct file *file, struct ext4_itree_args *a)
{
	struct super_block *sb = file_inode(file)->i_sb;
	struct ext4_itree_builder b;
	int err;

	if (!ext4_itree_possible(file_inode(file)))
		return -ENODATA;
	if (!ext4_itree_build_begin(sb))
		return ext4_has_feature_itree(sb) ? -EBUSY : -EOPNOTSUPP;
	err = init_builder(&b, file, file_inode(file), a);
	if (err)
		goto out;
	err = register_builder(&b);
	if (!err) {
		err = free_segment(&b);
		if (!err)
			err = gather(&b);
		if (!err)
			err = load(&b);
		if (!err)
			err = catch_up(&b);
		/* e2fsck frees blocks that cannot be freed now. */
		if (err && b.can_write)
			free_segment(&b);
		if (!err)
			a->ia_state |= EXT4_ITREE_CHANGED;
		unregister_builder(&b);
	}
	if (b.can_write)
		mnt_drop_write_file(file);
out:
	ext4_itree_build_end(sb);
	return min(err, 0);
}

/**
 * ext4_itree_drop_online - drop the tree of a directory and free its blocks
 * @file: the open directory
 * @a: figures out
 *
 * As ext4_itree_build_online().  Also frees blocks left by an interrupted
 * build.  Open scans continue without the tree.
 */
int ext4_itree_drop_online(struct file *file, struct ext4_itree_args *a)
{
	struct super_block *sb = file_inode(file)->i_sb;
	int err;

	if (!ext4_itree_build_begin(sb))
		return ext4_has_feature_itree(sb) ? -EBUSY : -EOPNOTSUPP;
	err = ext4_itree_drop_dir(file, file_inode(file), a);
	ext4_itree_build_end(sb);
	return err;
}

/**
 * ext4_itree_drop_dir - drop the tree of a directory that need not be open
 * @file: any open directory of the file system
 * @dir: directory, on which a reference is held
 * @a: figures out
 *
 * Also works without the feature.
 */
int ext4_itree_drop_dir(struct file *file, struct inode *dir,
			struct ext4_itree_args *a)
{
	struct ext4_itree_builder b;
	int err;

	if (!ext4_test_inode_flag(dir, EXT4_INODE_EXTENTS) ||
	    ext4_has_inline_data(dir))
		return 0;
	err = init_builder(&b, file, dir, a);
	if (err)
		return err;
	err = register_builder(&b);
	if (!err) {
		err = free_segment(&b);
		unregister_builder(&b);
	}
	if (b.can_write)
		mnt_drop_write_file(file);
	return err;
}
