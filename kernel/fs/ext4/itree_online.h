/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Trees of directories in use: itree_keys.c, itree_log.c, itree_online.c,
 * itree_pack.c, itree_ioctl.c.  Scans use itree_keys.c as well.
 */
#ifndef _EXT4_ITREE_ONLINE_H
#define _EXT4_ITREE_ONLINE_H

#include "itree_ioctl.h"

/*
 * All keys of a directory, 8 bytes each, in runs that are sorted one by one and
 * merged when they are read.  This avoids large allocations and long sorts.
 */
struct ext4_itree_keys {
	u64	**run;
	u32	*pos;		/* reading: the next key of each run */
	u32	*heap;		/* reading: runs by their next key */
	u32	nr_runs;
	u32	max_runs;
	u32	nr_heap;
	u32	sorted;		/* runs */
	u64	nr;		/* keys */
	u64	max;		/* refuse more */
};

/* Keys in a run: sorted in a few milliseconds. */
#define EXT4_ITREE_RUN_KEYS	32768U

void ext4_itree_keys_init(struct ext4_itree_keys *k);
int ext4_itree_keys_reserve(struct ext4_itree_keys *k, u32 nr);
int ext4_itree_keys_add(struct ext4_itree_keys *k, u64 key);
u64 ext4_itree_keys_room(const struct ext4_itree_keys *k);
void ext4_itree_keys_tidy(struct ext4_itree_keys *k);
int ext4_itree_keys_merge(struct ext4_itree_keys *k);
void ext4_itree_keys_seek(struct ext4_itree_keys *k, u64 key);
bool ext4_itree_keys_next(struct ext4_itree_keys *k, u64 *key);
void ext4_itree_keys_free(struct ext4_itree_keys *k);
u32 ext4_itree_find_key(const u64 *keys, u32 nr, u64 key, u32 guess);

/*
 * Registered in the directory's inode.  Fields belong to the building task
 * unless their comments name another owner.
 */
struct ext4_itree_builder {
	struct file	*file;
	struct inode	*dir;
	struct ext4_itree_args *args;
	struct ext4_itree_keys keys;
	bool		can_write;	/* mnt_want_write_file() holds */
	u8		hash_version;
	struct mem_cgroup *memcg;	/* pays for the log */

	/* Changed under exclusive i_rwsem; the cursor under shared. */
	u64		cursor;
	int		err;		/* the log has lost something */
	u32		logged;
	struct list_head log;
};

int ext4_itree_check_dir(struct inode *dir);
int ext4_itree_free_range(struct inode *dir, ext4_lblk_t first,
			  ext4_lblk_t last);
int ext4_itree_check_stop(struct ext4_itree_builder *b);
int ext4_itree_let_freeze(struct ext4_itree_builder *b);
handle_t *ext4_itree_start(struct inode *dir);
bool ext4_itree_used_up(handle_t *handle);
int ext4_itree_apply_log(struct ext4_itree_builder *b, struct list_head *log,
			 bool locked);
void ext4_itree_take_log(struct ext4_itree_builder *b, struct list_head *log);
void ext4_itree_free_log(struct list_head *log);

int ext4_itree_build_online(struct file *file, struct ext4_itree_args *a);
int ext4_itree_drop_online(struct file *file, struct ext4_itree_args *a);
int ext4_itree_drop_dir(struct file *file, struct inode *dir,
			struct ext4_itree_args *a);
int ext4_itree_pack(struct file *file, struct ext4_itree_args *a);
int ext4_itree_switch(struct file *file, struct ext4_itree_args *a);
bool ext4_itree_possible(struct inode *dir);

#endif /* _EXT4_ITREE_ONLINE_H */
