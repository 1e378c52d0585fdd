/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The itree in ext4: what namei.c, dir.c, super.c and sysfs.c see of it.
 *
 * A directory's tree changes only under its exclusive i_rwsem, in the handle
 * that changes the directory; readdir reads it under the shared i_rwsem.
 */
#ifndef _EXT4_ITREE_H
#define _EXT4_ITREE_H

#include "itree_core.h"

struct ext4_itree_scan;

/* Directories get a tree when they reach this many blocks ... */
#define EXT4_ITREE_MIN_BLOCKS	16
/*
 * ... or later, when that failed, up to this many: beyond, the build does not
 * fit into the transaction of the create that causes it.  readdir sorts
 * directories without a tree in memory up to here.
 */
#define EXT4_ITREE_SORT_BLOCKS	64

/*
 * Bytes of a directory for each name, to estimate the size of a tree before the
 * names are read.  An estimate that is too small is corrected later; one that
 * is too large fails a build that would have fitted into the transaction.
 */
#define EXT4_ITREE_LIKELY_ENTRY	64U

/* Counters of a mounted file system, shown in sysfs. */
enum ext4_itree_stat {
	EXT4_ITREE_BUILDS,
	EXT4_ITREE_DROPS,
	EXT4_ITREE_SPLITS,
	EXT4_ITREE_MERGES,
	EXT4_ITREE_INSERTS,
	EXT4_ITREE_DELETES,
	EXT4_ITREE_VISITS,	/* of directory blocks, by scans */
	EXT4_ITREE_AHEAD_RUNS,	/* read ahead, itree_files.c: runs, ... */
	EXT4_ITREE_AHEAD_FILES,	/* ... files, ... */
	EXT4_ITREE_AHEAD_BYTES,	/* ... their pages, ... */
	EXT4_ITREE_AHEAD_USED,	/* ... and files that were then used */
	EXT4_ITREE_NR_STATS
};

/*
 * State of a directory besides its inode, allocated on first use.  The log that
 * writers keep for readers follows it, see itree_open.c.
 */
struct ext4_itree_dir {
	struct ext4_itree_builder *builder;	/* changes under i_rwsem */
	struct ext4_itree_streams *streams;	/* itree_files.c */
	atomic_t visits;	/* ext4_itree_visit_all() by readers */
	u32	nr_moved;	/* names in the log of itree_open.c */
	u16	missed;		/* blocks that had to be read, itree_ahead.c */
	bool	packing;	/* changes under i_rwsem */
};

/* ext4_itree_entry_key() returns this for entries without a key. */
#define EXT4_ITREE_NO_KEY	0ULL		/* the directory has no tree */
#define EXT4_ITREE_BAD_KEY	1ULL		/* the tree cannot be read */

/* itree_dir.c: keeping the tree with the directory */
bool ext4_dir_has_itree(struct inode *dir);
int ext4_itree_credits(struct inode *dir);
int ext4_itree_reserve(handle_t *handle, struct inode *dir, u32 inserts);
void ext4_itree_reserve_rename(handle_t *handle, struct inode *old_dir,
			       bool old_stays, struct inode *new_dir);
void ext4_itree_add(handle_t *handle, struct inode *dir, u32 ino, u32 hash);
u64 ext4_itree_entry_key(struct inode *dir, struct ext4_dir_entry_2 *de);
void ext4_itree_remove(handle_t *handle, struct inode *dir, u64 key);
void ext4_itree_renumber(handle_t *handle, struct inode *dir,
			 struct ext4_dir_entry_2 *de, u64 old_key, u32 old_ino);
void ext4_itree_drop(handle_t *handle, struct inode *dir, const char *why);

/* The order in which an open directory returns its names. */
enum ext4_itree_order {
	EXT4_ITREE_NO_ORDER,		/* not yet known */
	EXT4_ITREE_OTHER_ORDER,		/* as without the feature */
	EXT4_ITREE_NARROW_ORDER,	/* that, with positions of 32 bits */
	EXT4_ITREE_HASH_ORDER,		/* with positions of itree_pos.c */
	EXT4_ITREE_INODE_ORDER,
};

/*
 * Do readers get the orders and positions of itree_pos.c?  True with the
 * feature or the option inode_order, and after these are cleared, until
 * unmount.
 */
static inline bool ext4_itree_orders(struct super_block *sb)
{
	return READ_ONCE(EXT4_SB(sb)->s_itree_orders);
}

/* itree_scan.c: readdir in inode order */
int ext4_itree_readdir(struct file *file, struct dir_context *ctx,
		       struct ext4_itree_scan *s);
void ext4_itree_scan_free(struct ext4_itree_scan *scan);
bool ext4_itree_sorts(struct inode *dir);
int ext4_itree_init(void);
void ext4_itree_exit(void);
int ext4_itree_store_dirent(struct ext4_itree_scan *s, u32 hash,
			    struct ext4_dir_entry_2 *de,
			    const struct fscrypt_str *name);

/* itree_open.c: what writers tell readers */
void ext4_itree_readers_renumber(struct inode *dir,
				 struct ext4_dir_entry_2 *de);
struct ext4_itree_dir *ext4_itree_make_dir(struct inode *dir);
void ext4_itree_readers_added(struct inode *dir, u32 hash);
void ext4_itree_readers_lose_added(struct inode *dir);
void ext4_itree_readers_doubt(struct inode *dir);
void ext4_itree_forget_readers(struct inode *dir);

/* itree_pos.c: orders and positions */
loff_t ext4_itree_hash_pos(u32 id, u32 hash, u32 minor);
u32 ext4_itree_pos_hash(loff_t pos);
u32 ext4_itree_pos_minor(loff_t pos);
int ext4_itree_choose_order(struct file *file, loff_t *pos, bool inode_order);
void ext4_itree_no_htree(struct dir_private_info *info, struct inode *dir,
			 loff_t *pos);
bool ext4_itree_skip(struct dir_private_info *info, struct inode *dir,
		     u32 *hash, u32 *minor);
bool ext4_itree_wanted(struct dir_private_info *info, struct inode *dir,
		       u32 hash, u32 minor);

/* itree_sweep.c: reading ahead of readers in hash order */
bool ext4_itree_sweep(struct inode *dir, u32 hash, u32 minor);

/* itree_block.c: checksums of nodes when a transaction commits */
void ext4_itree_block_trigger(struct jbd2_buffer_trigger_type *triggers,
			      struct buffer_head *bh, void *data, size_t size);

/* itree_ahead.c: reading ahead of look-ups */
void ext4_itree_ahead_miss(struct inode *dir, ext4_lblk_t block);

/* itree_switch.c: the feature of a mounted file system */
bool ext4_itree_build_begin(struct super_block *sb);
void ext4_itree_build_end(struct super_block *sb);

/* In ioctl.c, for itree_switch.c */
int ext4_itree_set_feature(struct super_block *sb, bool on);

/* itree_online.c, itree_ioctl.c: trees of directories in use */
void ext4_itree_log(struct inode *dir, u64 key, bool gone);
u8 ext4_itree_builder_version(struct inode *dir);
void ext4_itree_builder_stop(struct inode *dir, int err);
int ext4_ioctl_itree(struct file *file, void __user *arg);

static inline struct ext4_itree_dir *ext4_itree_dir(struct inode *dir)
{
	/* Pairs with the cmpxchg_release() in itree_open.c. */
	return smp_load_acquire(&EXT4_I(dir)->i_itree_dir);
}

/* For tasks that build or drop the tree; i_rwsem held. */
static inline struct ext4_itree_builder *ext4_itree_builder(struct inode *dir)
{
	struct ext4_itree_dir *d = ext4_itree_dir(dir);

	return d ? READ_ONCE(d->builder) : NULL;
}

/* Is a tree being built, so that changes are to be logged? */
static inline bool ext4_itree_building(struct inode *dir)
{
	return ext4_itree_builder(dir);
}

/* In namei.c, for itree_dir.c, itree_scan.c and itree_pack.c. */
struct buffer_head *ext4_read_any_dirblock(struct inode *dir,
					   ext4_lblk_t block);
int ext4_handle_dirty_dx_node(handle_t *handle, struct inode *inode,
			      struct buffer_head *bh);

/* A leaf of an htree: the one of a hash, or the nth one behind that. */
struct ext4_htree_place {
	u32	hash;		/* even */
	u32	nth;
};

int ext4_htree_find_leaf(struct inode *dir, const struct ext4_htree_place *at,
			 ext4_lblk_t *block, u32 *next);

/*
 * Moves to the next leaf, which starts at @next.  Among leaves that continue
 * the same hash, a search finds only the first, or by the odd hash the last.
 */
static inline void ext4_htree_go_on(struct ext4_htree_place *at, u32 next)
{
	u32 hash = next & ~1;

	at->nth = !(next & 1) ? 0 : hash == at->hash ? at->nth + 1 : 1;
	at->hash = hash;
}

#endif /* _EXT4_ITREE_H */
