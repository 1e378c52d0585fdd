// SPDX-License-Identifier: GPL-2.0-only
/*
 * EXT4_IOC_ITREE: the operations on itrees that users may request.
 */
#include <linux/fs.h>
#include <linux/buffer_head.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>
#include "ext4.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"

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

static int verify(struct inode *dir, struct ext4_itree_args *a,
		  struct itree *t)
{
	struct itree_report report;
	int err;

	ext4_itree_ahead_tree(dir, a->ia_blocks);
	err = itree_verify(t, &report);
	a->ia_leaves = report.leaves;
	a->ia_nodes = report.nodes;
	a->ia_leaf_slots = report.leaf_slots;
	return err;
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

static int stat_tree(struct inode *dir, struct ext4_itree_args *a)
{
	struct ext4_itree et;
	int err = 0;

	inode_lock_shared(dir);
	basics(dir, a);
	if (a->ia_state & EXT4_ITREE_HAS_TREE) {
		err = ext4_itree_open(&et, NULL, dir);
		if (!err) {
			take_info(a, &et.t);
			if (a->ia_flags & EXT4_ITREE_VERIFY)
				err = verify(dir, a, &et.t);
			ext4_itree_close(&et);
		}
		if (err)
			err = note_bad(a, err, &et.t);
	}
	inode_unlock_shared(dir);
	return err;
}

/* --- check --- */

struct check {
	struct ext4_itree_visit visit;
	struct ext4_itree_keys keys;
	struct ext4_itree_args *a;
};

static int check_name(struct ext4_itree_visit *v, u64 key, u32 minor,
		      struct ext4_dir_entry_2 *de)
{
	struct check *c = container_of(v, struct check, visit);

	if (!(c->keys.nr % 4096) && signal_pending(current))
		return -EINTR;
	return ext4_itree_keys_add(&c->keys, key);
}

static int differ(struct ext4_itree_args *a, u64 key, u32 what)
{
	struct ext4_itree_diff __user *to = u64_to_user_ptr(a->ia_diffs);
	struct ext4_itree_diff d = {
		.id_ino = ITREE_KEY_INO(key),
		.id_hash = ITREE_KEY_HASH(key),
		.id_what = what,
	};

	if (what == EXT4_ITREE_MISSING)
		a->ia_missing++;
	else
		a->ia_extra++;
	if (a->ia_nr_diffs >= a->ia_max_diffs)
		return 0;
	if (copy_to_user(to + a->ia_nr_diffs, &d, sizeof(d)))
		return -EFAULT;
	a->ia_nr_diffs++;
	return 0;
}

/* Walks tree and names side by side, both in the order of the keys. */
static int compare(struct check *c, struct itree *t)
{
	struct itree_cursor cur;
	u64 name = 0, key = 0;
	bool have = ext4_itree_keys_next(&c->keys, &name);
	int ret = itree_seek(t, 0, &cur), err = 0;
	u32 steps = 0;

	while (ret >= 0 && !err && (have || !ret)) {
		if (!(++steps % 4096)) {
			cond_resched();
			if (signal_pending(current)) {
				err = -EINTR;
				break;
			}
		}
		if (!ret)
			key = itree_cursor_key(&cur);
		if (have && (ret || name < key)) {
			err = differ(c->a, name, EXT4_ITREE_MISSING);
			have = ext4_itree_keys_next(&c->keys, &name);
			continue;
		}
		if (!have || key < name)
			err = differ(c->a, key, EXT4_ITREE_EXTRA);
		else
			have = ext4_itree_keys_next(&c->keys, &name);
		ret = itree_next(&cur);
	}
	itree_cursor_release(&cur);
	return err ? err : min(ret, 0);
}

static int check_tree(struct inode *dir, struct ext4_itree_args *a)
{
	struct check c = {
		.visit = { .dir = dir, .hi = ~0ULL, .name = check_name,
			   .strict = true },
		.a = a,
	};
	struct ext4_itree et;
	int err;

	ext4_itree_keys_init(&c.keys);
	inode_lock_shared(dir);
	basics(dir, a);
	if (!(a->ia_state & EXT4_ITREE_HAS_TREE)) {
		inode_unlock_shared(dir);
		return 0;
	}
	err = ext4_itree_hash_version(dir, &c.visit.hash_version);
	if (!err)
		err = ext4_itree_visit_all(&c.visit);
	if (err == -ERESTARTSYS)
		err = -EINTR;
	if (!err)
		err = ext4_itree_keys_merge(&c.keys);
	if (err)
		goto out;
	a->ia_names = c.keys.nr;
	err = ext4_itree_open(&et, NULL, dir);
	if (!err) {
		take_info(a, &et.t);
		err = verify(dir, a, &et.t);
		if (!err)
			err = compare(&c, &et.t);
		ext4_itree_close(&et);
	}
	if (err)
		err = note_bad(a, err, &et.t);
out:
	inode_unlock_shared(dir);
	ext4_itree_keys_free(&c.keys);
	return err;
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
	/* Reading a whole tree keeps writers out for a long time. */
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
