// SPDX-License-Identifier: GPL-2.0-only
/*
 * Setting and clearing the itree feature on a mounted file system.
 *
 * With the feature set, a directory's ITREE flag means that its tree is right.
 * Tools that ignored the feature may have left flags and segments behind.
 * Without the feature, kernels and e2fsck treat blocks beyond a directory's
 * size as errors.  So setting and clearing begin alike: builds are held back,
 * and a walk of all inode tables frees each tree and each segment.  Only then
 * does one transaction change the superblock.  A crash before that leaves the
 * feature as it was, with fewer trees, and a consistent file system.
 *
 * Open directories continue as they began.  Those that began without the
 * feature keep their positions, and positions given out with the feature stay
 * valid until the file system is unmounted: see s_itree_orders.  Positions from
 * before the feature was set cannot be told from its own.  A file server in
 * user space that reopens a directory at such a position starts the listing
 * over, and in one case of 4,096 continues at another place.
 */
#include <linux/blkdev.h>
#include <linux/buffer_head.h>
#include <linux/fs.h>
#include <linux/mount.h>
#include <linux/sched/signal.h>
#include <linux/wait_bit.h>
#include "ext4.h"
#include "ext4_extents.h"
#include "ext4_jbd2.h"
#include "itree.h"
#include "itree_glue.h"
#include "itree_online.h"

/* Blocks of an inode table to read ahead at once. */
#define TABLE_AHEAD	128U
/* Extents that the inode itself has room for. */
#define IN_INODE	((sizeof(((struct ext4_inode *)0)->i_block) - \
			  sizeof(struct ext4_extent_header)) / \
			 sizeof(struct ext4_extent))

/* --- holding back builds --- */

/**
 * ext4_itree_build_end - end a build or drop of a tree
 * @sb: file system, after ext4_itree_build_begin() returned true
 */
void ext4_itree_build_end(struct super_block *sb)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);

	if (atomic_dec_and_test(&sbi->s_itree_builders))
		wake_up_var(&sbi->s_itree_builders);
}

/**
 * ext4_itree_build_begin - may a tree be built now?
 * @sb: file system
 *
 * Returns false without the feature, and while it is being set or cleared;
 * otherwise the caller has to call ext4_itree_build_end().  Never waits.
 */
bool ext4_itree_build_begin(struct super_block *sb)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);

	atomic_inc(&sbi->s_itree_builders);
	/* Pairs with the barrier in hold_builds(). */
	smp_mb__after_atomic();
	if (!READ_ONCE(sbi->s_itree_switching) && ext4_has_feature_itree(sb))
		return true;
	ext4_itree_build_end(sb);
	return false;
}

/* Prevents new builds and waits for those under way, which stop. */
static int hold_builds(struct ext4_sb_info *sbi)
{
	if (cmpxchg(&sbi->s_itree_switching, 0, 1))
		return -EBUSY;
	/* Pairs with the barrier in ext4_itree_build_begin(). */
	smp_mb();
	if (!wait_var_event_interruptible(&sbi->s_itree_builders,
					  !atomic_read(&sbi->s_itree_builders)))
		return 0;
	WRITE_ONCE(sbi->s_itree_switching, 0);
	return -EINTR;
}

/* --- the walk --- */

struct walk {
	struct file *file;
	struct super_block *sb;
	struct ext4_itree_args *a;
};

/* Does the raw inode show that it is a directory that may have a segment? */
static bool worth_a_look(const struct ext4_inode *raw)
{
	struct ext4_extent_header *eh;
	u32 flags = le32_to_cpu(raw->i_flags);
	struct ext4_extent *last;

	if (!S_ISDIR(le16_to_cpu(raw->i_mode)) || !raw->i_links_count ||
	    !(flags & EXT4_EXTENTS_FL) || flags & EXT4_INLINE_DATA_FL)
		return false;
	eh = (struct ext4_extent_header *)raw->i_block;
	if (flags & EXT4_ITREE_FL || eh->eh_magic != EXT4_EXT_MAGIC ||
	    eh->eh_depth || le16_to_cpu(eh->eh_entries) > IN_INODE)
		return true;
	if (!eh->eh_entries)
		return false;
	last = EXT_LAST_EXTENT(eh);
	return le32_to_cpu(last->ee_block) + ext4_ext_get_actual_len(last) >
	       ITREE_SEG_START;
}

static int free_tree(struct walk *w, u32 ino)
{
	struct inode *dir = ext4_iget(w->sb, ino, EXT4_IGET_HANDLE);
	int err = 0;

	/* A directory that has been removed meanwhile frees its own blocks. */
	if (IS_ERR(dir))
		return PTR_ERR(dir) == -ESTALE ? 0 : PTR_ERR(dir);
	if (S_ISDIR(dir->i_mode)) {
		w->a->ia_state = 0;
		err = ext4_itree_drop_dir(w->file, dir, w->a);
		if (err == -ENOENT)
			err = 0;
		w->a->ia_keys += !!(w->a->ia_state & EXT4_ITREE_CHANGED);
		w->a->ia_names++;
		/* If the feature comes back, it may have a tree again. */
		ext4_clear_inode_state(dir, EXT4_STATE_ITREE_NOBUILD);
	}
	iput(dir);
	return err;
}

static int walk_block(struct walk *w, struct buffer_head *bh, u32 ino, u32 nr)
{
	u32 size = EXT4_INODE_SIZE(w->sb), i;
	int err;

	for (i = 0; i < nr; i++) {
		if (!worth_a_look((struct ext4_inode *)(bh->b_data + i * size)))
			continue;
		if (signal_pending(current))
			return -EINTR;
		err = free_tree(w, ino + i);
		if (err)
			return err;
	}
	return 0;
}

static void table_ahead(struct super_block *sb, ext4_fsblk_t table, u32 nr)
{
	struct blk_plug plug;
	u32 i;

	blk_start_plug(&plug);
	for (i = 0; i < nr; i++)
		ext4_sb_breadahead_unmovable(sb, table + i);
	blk_finish_plug(&plug);
}

/*
 * Each change of an inode is copied into its table block at once, so it is
 * enough to read the blocks.  Skips groups that count no directories.
 */
static int walk_group(struct walk *w, ext4_group_t group)
{
	struct super_block *sb = w->sb;
	struct ext4_group_desc *gdp = ext4_get_group_desc(sb, group, NULL);
	u32 per_block = EXT4_SB(sb)->s_inodes_per_block;
	u32 used = EXT4_INODES_PER_GROUP(sb), unused, i, at;
	struct buffer_head *bh;
	ext4_fsblk_t table;
	int err = 0;

	if (!gdp)
		return -EFSCORRUPTED;
	if (!ext4_used_dirs_count(sb, gdp))
		return 0;
	if (ext4_has_group_desc_csum(sb)) {
		if (gdp->bg_flags & cpu_to_le16(EXT4_BG_INODE_UNINIT))
			return 0;
		unused = ext4_itable_unused_count(sb, gdp);
		used -= min(used, unused);
	}
	table = ext4_inode_table(sb, gdp);
	for (i = 0; i < used && !err; i += per_block) {
		at = i / per_block;
		if (!(at % TABLE_AHEAD))
			table_ahead(sb, table + at,
				    min(DIV_ROUND_UP(used - i, per_block),
					TABLE_AHEAD));
		bh = ext4_sb_bread(sb, table + at, REQ_META | REQ_PRIO);
		if (IS_ERR(bh))
			return PTR_ERR(bh);
		err = walk_block(w, bh, group * EXT4_INODES_PER_GROUP(sb) +
				 i + 1, min(used - i, per_block));
		brelse(bh);
		cond_resched();
	}
	return err;
}

static int walk_all(struct walk *w)
{
	ext4_group_t group;
	int err = 0;

	for (group = 0; !err && group < ext4_get_groups_count(w->sb); group++) {
		if (signal_pending(current))
			return -EINTR;
		if (ext4_forced_shutdown(w->sb))
			return -EIO;
		err = walk_group(w, group);
	}
	return err;
}

/* --- the call --- */

/* Says why the feature cannot be set, or returns 0. */
static int check_possible(struct super_block *sb, struct ext4_itree_args *a)
{
	struct ext4_sb_info *sbi = EXT4_SB(sb);
	const char *why = NULL;
	int err = -EOPNOTSUPP;

	if (!ext4_has_feature_extents(sb) || !ext4_has_feature_dir_index(sb)) {
		why = "it requires the extent and dir_index features";
	} else if (ext4_has_feature_fast_commit(sb) ||
		   test_opt2(sb, JOURNAL_FAST_COMMIT)) {
		why = "it cannot be combined with fast commits";
	} else if (sbi->s_es->s_creator_os == cpu_to_le32(EXT4_OS_HURD)) {
		why = "the file system was made for the Hurd";
	} else if ((sbi->s_mount_state | le16_to_cpu(sbi->s_es->s_state)) &
		   EXT4_ERROR_FS) {
		why = "errors are recorded, run e2fsck";
		err = -EFSCORRUPTED;
	}
	if (!why)
		return 0;
	strscpy(a->ia_why, why, sizeof(a->ia_why));
	return err;
}

static int set_feature(struct file *file, struct super_block *sb, bool on)
{
	int err = mnt_want_write_file(file);

	if (err)
		return err;
	/* Before any position that needs it is given out. */
	if (on)
		WRITE_ONCE(EXT4_SB(sb)->s_itree_orders, true);
	err = ext4_itree_set_feature(sb, on);
	if (!err && EXT4_SB(sb)->s_journal)
		err = ext4_force_commit(sb);
	mnt_drop_write_file(file);
	return err;
}

/**
 * ext4_itree_switch - set or clear the feature
 * @file: open directory of the file system
 * @a: in: ia_op; out: ia_names, the directories looked at closely, ia_keys, the
 *	trees dropped, and ia_why, the reason for -EOPNOTSUPP and -EFSCORRUPTED
 *
 * Sleeps, reads the inode tables of all groups that have directories, and ends
 * at a signal.  Returns 0, also if the feature is already as wanted, or a
 * negative error as listed in itree_ioctl.h; the feature is then unchanged.
 */
int ext4_itree_switch(struct file *file, struct ext4_itree_args *a)
{
	struct super_block *sb = file_inode(file)->i_sb;
	struct walk w = { .file = file, .sb = sb, .a = a };
	bool on = a->ia_op == EXT4_ITREE_OP_ON;
	int err;

	if (!ext4_has_feature_itree(sb) == !on)
		return 0;
	err = on ? check_possible(sb, a) : 0;
	if (err)
		return err;
	err = hold_builds(EXT4_SB(sb));
	if (err)
		return err;
	err = walk_all(&w);
	a->ia_state = 0;
	if (!err && !ext4_has_feature_itree(sb) == on)
		err = set_feature(file, sb, on);
	if (!err) {
		a->ia_state = EXT4_ITREE_CHANGED;
		ext4_msg(sb, KERN_INFO, "itree feature %s", on ? "set" :
			 "cleared");
	}
	WRITE_ONCE(EXT4_SB(sb)->s_itree_switching, 0);
	return err;
}
