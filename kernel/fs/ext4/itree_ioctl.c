// SPDX-License-Identifier: GPL-2.0-only
/*
 * EXT4_IOC_ITREE: the operations on itrees that users may request.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/iversion.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include "ext4.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"
#include "itree_scan.h"

/* Blocks of a tree to read where one is missing. */
#define LOAD_NODES	256U
/* Tries to verify a tree without waiting for the disk under i_rwsem. */
#define VERIFY_TRIES	256U
/* Keys, and differences, to check before i_rwsem is released. */
#define CHECK_KEYS	4096U
#define CHECK_UNLIKE	64U
/* Tries to count a key in a directory that changes. */
#define COUNT_TRIES	64U

/**
 * ext4_itree_possible - can this kind of directory have a tree?
 * @dir: directory of a file system with the feature
 */
bool ext4_itree_possible(struct inode *dir)
{
	return ext4_test_inode_flag(dir, EXT4_INODE_EXTENTS) &&
	       ext4_test_inode_flag(dir, EXT4_INODE_INDEX) &&
	       !ext4_has_inline_data(dir);
}

/* A tree with wrong contents is a result, not an error of the call. */
static int note_bad(struct ext4_itree_args *a, int err, const struct itree *t)
{
	const char *why = t->why;

	if (err != -EFSCORRUPTED && err != -EFSBADCRC && err != -EIO)
		return err;
	a->ia_state |= EXT4_ITREE_BAD;
	if (!why)
		why = err == -EIO ? "cannot be read" : "is corrupt";
	strscpy(a->ia_why, why, sizeof(a->ia_why));
	a->ia_why_block = t->why ? t->why_lblk - ITREE_SEG_START : 0;
	return 0;
}

static void take_info(struct ext4_itree_args *a, struct itree *t)
{
	struct itree_info info;

	itree_get_info(t, &info);
	a->ia_keys = info.keys;
	a->ia_depth = info.depth;
	a->ia_blocks = info.blocks;
	a->ia_free = info.free_count;
}

/* i_rwsem held */
static void basics(struct inode *dir, struct ext4_itree_args *a)
{
	a->ia_block_size = dir->i_sb->s_blocksize;
	a->ia_dir_blocks = dir->i_size >> dir->i_blkbits;
	a->ia_state &= EXT4_ITREE_CHANGED | EXT4_ITREE_MORE;
	if (ext4_itree_possible(dir))
		a->ia_state |= EXT4_ITREE_POSSIBLE;
	if (!ext4_dir_has_itree(dir))
		return;
	a->ia_state |= EXT4_ITREE_HAS_TREE;
	if (ext4_test_inode_state(dir, EXT4_STATE_ITREE_BAD)) {
		a->ia_state |= EXT4_ITREE_BAD;
		strscpy(a->ia_why, "was found bad and is not used any more",
			sizeof(a->ia_why));
	}
}

/*
 * Brings a node and its neighbours into memory with i_rwsem released.  Returns
 * -ESTALE if the tree was dropped meanwhile.
 */
static int load_node(struct inode *dir, u32 lblk, struct buffer_head **pin)
{
	int err;

	if (fatal_signal_pending(current))
		return -EINTR;
	inode_unlock_shared(dir);
	ext4_itree_ahead_range(dir, lblk, LOAD_NODES);
	inode_lock_shared(dir);
	err = ext4_itree_load(dir, lblk, pin);
	return err || ext4_dir_has_itree(dir) ? err : -ESTALE;
}

static int verify(struct ext4_itree_args *a, struct itree *t)
{
	struct itree_report report = { };
	int err = itree_verify(t, &report);

	a->ia_leaves = report.leaves;
	a->ia_nodes = report.nodes;
	a->ia_leaf_slots = report.leaf_slots;
	return err;
}

/*
 * Looks at the tree, or verifies it.  A node that is not in memory is read with
 * i_rwsem released, and the verification starts over.  If memory cannot hold
 * the tree, that would never end, so the last try waits for the disk.  Returns 1
 * if the tree is bad.
 */
static int read_tree(struct inode *dir, struct ext4_itree_args *a, bool all)
{
	struct buffer_head *pin = NULL;
	struct ext4_itree et;
	u32 tries;
	int err;

	for (tries = 0; ; tries++) {
		err = tries < VERIFY_TRIES ? ext4_itree_open_nowait(&et, dir) :
					     ext4_itree_open(&et, NULL, dir);
		if (!err) {
			take_info(a, &et.t);
			if (all)
				err = verify(a, &et.t);
			ext4_itree_close(&et);
		}
		brelse(pin);
		pin = NULL;
		if (err == -EAGAIN)
			err = load_node(dir, et.missing, &pin) ?: -EAGAIN;
		if (err != -EAGAIN)
			break;
	}
	brelse(pin);
	if (err == -ESTALE) {
		basics(dir, a);
		return 0;
	}
	return err ? note_bad(a, err, &et.t) ?: 1 : 0;
}

static int stat_tree(struct inode *dir, struct ext4_itree_args *a)
{
	int err = 0;

	inode_lock_shared(dir);
	basics(dir, a);
	if (a->ia_state & EXT4_ITREE_HAS_TREE)
		err = read_tree(dir, a, a->ia_flags & EXT4_ITREE_VERIFY);
	inode_unlock_shared(dir);
	return min(err, 0);
}

/* --- check --- */

/*
 * The directory may change during a check.  Its names are gathered first, then
 * compared with the tree, piece by piece.  A name that came or went in between
 * looks like a difference: with the directory as it then is, the key is counted
 * again in both indexes.
 */

/* Keys of which names and tree have different numbers. */
struct unlike {
	u64	key;
	s64	more;			/* names than keys */
};

struct check {
	struct ext4_itree_visit visit;
	struct ext4_itree_keys keys;
	struct ext4_itree_args *a;
	u64	version;		/* i_version before the names were gathered */
	u64	lo;			/* keys below have been compared */
	u64	name;			/* the next key of a name, if @have */
	bool	have;
	u32	nr;
	struct unlike unlike[CHECK_UNLIKE];
};

static int check_name(struct ext4_itree_visit *v, u64 key, u32 minor,
		      struct ext4_dir_entry_2 *de)
{
	struct check *c = container_of(v, struct check, visit);

	if (!(c->keys.nr % 4096) && signal_pending(current))
		return -EINTR;
	return ext4_itree_keys_add(&c->keys, key);
}

/* Makes room for the names of a block. */
static int check_room(struct ext4_itree_visit *v, u32 nr)
{
	struct check *c = container_of(v, struct check, visit);
	int err;

	if (ext4_itree_keys_room(&c->keys) >= nr)
		return 0;
	inode_unlock_shared(v->dir);
	ext4_itree_keys_tidy(&c->keys);
	err = ext4_itree_keys_reserve(&c->keys, nr);
	inode_lock_shared(v->dir);
	return err;
}

static int gather_names(struct check *c)
{
	struct inode *dir = c->visit.dir;
	struct buffer_head *root;
	int err;

	inode_lock_shared(dir);
	c->version = inode_query_iversion(dir);
	err = ext4_itree_load(dir, 0, &root);
	if (!err)
		err = ext4_itree_hash_version(dir, &c->visit.hash_version);
	if (!err)
		err = ext4_itree_visit_all(&c->visit);
	brelse(root);
	inode_unlock_shared(dir);
	if (!err)
		err = ext4_itree_keys_merge(&c->keys);
	return err == -ERESTARTSYS ? -EINTR : err;
}

static void next_name(struct check *c)
{
	c->have = ext4_itree_keys_next(&c->keys, &c->name);
}

/* Returns to the first key that has not been compared. */
static void rewind_names(struct check *c)
{
	ext4_itree_keys_seek(&c->keys, c->lo);
	next_name(c);
}

/*
 * Walks tree and names side by side, both in the order of the keys, until
 * enough has been done.  Returns 0, ITREE_END, or a negative error.
 */
static int compare_keys(struct check *c, struct itree *t)
{
	struct itree_cursor cur;
	u32 steps = 0;
	int ret = itree_seek(t, c->lo, &cur);

	while (ret >= 0 && (c->have || !ret) && steps < CHECK_KEYS &&
	       c->nr < CHECK_UNLIKE) {
		u64 key = ret ? c->name : itree_cursor_key(&cur);
		s64 more = 0;

		if (c->have)
			key = min(key, c->name);
		for (; c->have && c->name == key; steps++, more++)
			next_name(c);
		for (; !ret && itree_cursor_key(&cur) == key; steps++, more--)
			ret = itree_next(&cur);
		if (ret < 0)
			break;
		if (more)
			c->unlike[c->nr++] = (struct unlike){ key, more };
		c->lo = key + 1;
	}
	itree_cursor_release(&cur);
	if (ret < 0)
		return ret;
	return c->have || !ret ? 0 : ITREE_END;
}

/* The same for a piece, with i_rwsem held and released to read. */
static int compare_piece(struct check *c, struct ext4_itree *et)
{
	struct inode *dir = c->visit.dir;
	struct buffer_head *pin = NULL;
	int ret;

	while (1) {
		ret = ext4_itree_open_nowait(et, dir);
		if (!ret) {
			ret = compare_keys(c, &et->t);
			ext4_itree_close(et);
		}
		brelse(pin);
		pin = NULL;
		if (ret != -EAGAIN)
			return ret;
		rewind_names(c);
		ret = load_node(dir, et->missing, &pin);
		if (ret) {
			brelse(pin);
			return ret;
		}
	}
}

static int count_names(struct inode *dir, u64 key, u32 *nr)
{
	struct ext4_itree_tally n = {
		.visit = { .dir = dir, .lo = key, .hi = key, .shared = true,
			   .name = ext4_itree_tally_name },
	};
	u32 hash = ITREE_KEY_HASH(key);
	int err;

	err = ext4_itree_hash_version(dir, &n.visit.hash_version) ?:
	      ext4_itree_load_index(dir, hash, hash) ?:
	      ext4_itree_visit_leaves(&n.visit, &key, 1);
	*nr = n.nr;
	return err == ERR_BAD_DX_DIR ? -EFSCORRUPTED : err ?: n.visit.unreadable;
}

/* Counts the keys that have this value. */
static int count_keys(struct inode *dir, u64 key, u32 *nr)
{
	struct buffer_head *pin = NULL;
	struct itree_cursor cur;
	struct ext4_itree et;
	int ret;

	do {
		*nr = 0;
		ret = ext4_itree_open_nowait(&et, dir);
		if (!ret) {
			ret = itree_seek(&et.t, key, &cur);
			for (; !ret && itree_cursor_key(&cur) == key; (*nr)++)
				ret = itree_next(&cur);
			itree_cursor_release(&cur);
			ext4_itree_close(&et);
		}
		brelse(pin);
		pin = NULL;
		if (ret == -EAGAIN)
			ret = load_node(dir, et.missing, &pin) ?: -EAGAIN;
	} while (ret == -EAGAIN);
	brelse(pin);
	return min(ret, 0);
}

/* Counts a key in both indexes of the directory as it is now. */
static int count_again(struct inode *dir, struct unlike *u)
{
	u32 names, keys, tries;
	u64 version;
	int err;

	for (tries = 0; tries < COUNT_TRIES; tries++) {
		version = inode_query_iversion(dir);
		err = count_names(dir, u->key, &names) ?:
		      count_keys(dir, u->key, &keys);
		if (err)
			return err;
		u->more = (s64)names - keys;
		if (inode_eq_iversion(dir, version))
			return 0;
	}
	/* It changes faster than it can be read: no difference is known. */
	u->more = 0;
	return 0;
}

static int report_one(struct ext4_itree_args *a, u64 key, u32 kind)
{
	struct ext4_itree_diff __user *to = u64_to_user_ptr(a->ia_diffs);
	struct ext4_itree_diff d = {
		.id_ino = ITREE_KEY_INO(key),
		.id_hash = ITREE_KEY_HASH(key),
		.id_what = kind,
	};

	if (a->ia_nr_diffs >= a->ia_max_diffs)
		return 0;
	if (copy_to_user(to + a->ia_nr_diffs, &d, sizeof(d)))
		return -EFAULT;
	a->ia_nr_diffs++;
	return 0;
}

static int report_unlike(struct check *c)
{
	int err = 0;
	u32 i;

	for (i = 0; i < c->nr && !err; i++) {
		struct unlike *u = &c->unlike[i];

		for (; u->more > 0 && !err; u->more--, c->a->ia_missing++)
			err = report_one(c->a, u->key, EXT4_ITREE_MISSING);
		for (; u->more < 0 && !err; u->more++, c->a->ia_extra++)
			err = report_one(c->a, u->key, EXT4_ITREE_EXTRA);
	}
	c->nr = 0;
	return err;
}

static int compare(struct check *c)
{
	struct inode *dir = c->visit.dir;
	struct ext4_itree et;
	int ret, err;
	u32 i;

	next_name(c);
	do {
		err = 0;
		inode_lock_shared(dir);
		ret = ext4_dir_has_itree(dir) ? compare_piece(c, &et) : -ESTALE;
		if (ret >= 0 && !inode_eq_iversion(dir, c->version))
			for (i = 0; i < c->nr && !err; i++)
				err = count_again(dir, &c->unlike[i]);
		if (ret == -ESTALE || err == -ESTALE) {
			basics(dir, c->a);
			ret = ITREE_END;
			err = 0;
		}
		inode_unlock_shared(dir);
		if (ret < 0)
			return note_bad(c->a, ret, &et.t);
		if (!err)
			err = report_unlike(c);
		cond_resched();
		if (!err && signal_pending(current))
			err = -EINTR;
	} while (!err && ret != ITREE_END);
	return err;
}

static int check_tree(struct inode *dir, struct ext4_itree_args *a)
{
	struct check *c;
	int err;

	/* Without a tree, there is nothing to compare. */
	err = stat_tree(dir, a);
	if (err || !(a->ia_state & EXT4_ITREE_HAS_TREE))
		return err;
	c = kzalloc(sizeof(*c), GFP_KERNEL_ACCOUNT);
	if (!c)
		return -ENOMEM;
	c->a = a;
	c->visit.dir = dir;
	c->visit.hi = ~0ULL;
	c->visit.name = check_name;
	c->visit.prepare = check_room;
	c->visit.strict = true;
	c->visit.shared = true;
	ext4_itree_keys_init(&c->keys);
	err = gather_names(c);
	a->ia_names = c->keys.nr;
	if (!err) {
		inode_lock_shared(dir);
		basics(dir, a);
		if (a->ia_state & EXT4_ITREE_HAS_TREE)
			err = read_tree(dir, a, true);
		inode_unlock_shared(dir);
	}
	if (!err && (a->ia_state & EXT4_ITREE_HAS_TREE))
		err = compare(c);
	ext4_itree_keys_free(&c->keys);
	kfree(c);
	return min(err, 0);
}

/* --- the call --- */

static int check_args(const struct ext4_itree_args *a)
{
	u32 flags = 0;

	if (a->ia_version != EXT4_ITREE_IOC_VERSION ||
	    a->ia_reserved[0] || a->ia_reserved[1] || a->ia_from > U32_MAX ||
	    (a->ia_from && a->ia_op != EXT4_ITREE_OP_PACK))
		return -EINVAL;
	switch (a->ia_op) {
	case EXT4_ITREE_OP_STAT:
		flags = EXT4_ITREE_VERIFY;
		break;
	case EXT4_ITREE_OP_BUILD:
		flags = EXT4_ITREE_FORCE;
		break;
	case EXT4_ITREE_OP_DROP:
	case EXT4_ITREE_OP_CHECK:
	case EXT4_ITREE_OP_ON:
	case EXT4_ITREE_OP_OFF:
	case EXT4_ITREE_OP_PACK:
		break;
	default:
		return -EINVAL;
	}
	if (a->ia_flags & ~flags)
		return -EINVAL;
	if (a->ia_op != EXT4_ITREE_OP_CHECK && (a->ia_max_diffs || a->ia_diffs))
		return -EINVAL;
	return 0;
}

/* Keeps the caller's fields and clears those of the result. */
static void clear_results(struct ext4_itree_args *a)
{
	memset_startat(a, 0, ia_state);
}

static bool is_switch(const struct ext4_itree_args *a)
{
	return a->ia_op == EXT4_ITREE_OP_ON || a->ia_op == EXT4_ITREE_OP_OFF;
}

static int do_op(struct file *file, struct ext4_itree_args *a)
{
	struct inode *dir = file_inode(file);
	int err = 0;

	switch (a->ia_op) {
	case EXT4_ITREE_OP_CHECK:
		return check_tree(dir, a);
	case EXT4_ITREE_OP_BUILD:
		err = ext4_itree_build_online(file, a);
		break;
	case EXT4_ITREE_OP_DROP:
		err = ext4_itree_drop_online(file, a);
		break;
	case EXT4_ITREE_OP_PACK:
		err = ext4_itree_pack(file, a);
		break;
	}
	return err ? err : stat_tree(dir, a);
}

/**
 * ext4_ioctl_itree - EXT4_IOC_ITREE
 * @file: open directory
 * @arg: struct ext4_itree_args
 *
 * Returns 0 or a negative error, listed in itree_ioctl.h.
 */
int ext4_ioctl_itree(struct file *file, void __user *arg)
{
	struct inode *dir = file_inode(file);
	struct ext4_itree_args a;
	int err;

	BUILD_BUG_ON(sizeof(a) != 240);
	if (!S_ISDIR(dir->i_mode))
		return -ENOTDIR;
	if (copy_from_user(&a, arg, sizeof(a)))
		return -EFAULT;
	err = check_args(&a);
	if (err)
		return err;
	if (!ext4_has_feature_itree(dir->i_sb) && !is_switch(&a) &&
	    a.ia_op != EXT4_ITREE_OP_PACK)
		return -EOPNOTSUPP;
	if (ext4_forced_shutdown(dir->i_sb))
		return -EIO;
	if (is_switch(&a)) {
		if (!capable(CAP_SYS_ADMIN))
			return -EPERM;
		clear_results(&a);
		err = ext4_itree_switch(file, &a);
		/* A failed call also has results: the reason, trees dropped. */
		return copy_to_user(arg, &a, sizeof(a)) ? -EFAULT : err;
	}
	/* Reading a whole tree takes memory and many reads. */
	if ((a.ia_op != EXT4_ITREE_OP_STAT ||
	     (a.ia_flags & EXT4_ITREE_VERIFY)) &&
	    !inode_owner_or_capable(file_mnt_idmap(file), dir))
		return -EPERM;
	clear_results(&a);
	err = do_op(file, &a);
	if (err)
		return err;
	return copy_to_user(arg, &a, sizeof(a)) ? -EFAULT : 0;
}
