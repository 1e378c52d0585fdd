/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/*
 * ext2fs_itree.h --- inode-ordered directory indexes
 *
 * Public interface of lib/ext2fs/itree.c.  The format is described in
 * itree_format.h, the algorithms are those of itree_core.c and its siblings,
 * shared with the kernel.
 *
 * A key stands for one directory entry: inode number in the upper, hash of
 * the name in the lower 32 bits.  "." and ".." have no key.
 */
#ifndef EXT2FS_ITREE_H
#define EXT2FS_ITREE_H

#include "ext2fs/ext2fs.h"

/* First logical block a directory's tree may use; directories end below. */
#define EXT2FS_ITREE_START	0x80000000ULL

#define EXT2FS_ITREE_KEY_INO(key)	((ext2_ino_t)((key) >> 32))
#define EXT2FS_ITREE_KEY_HASH(key)	((__u32)(key))

/* The rule of the format that a tree breaks, and the logical block */
struct ext2fs_itree_fault {
	const char	*why;	/* not to be freed; NULL: none known */
	__u32		lblk;
};

/* Contents of the root */
struct ext2fs_itree_info {
	__u64	keys;
	__u32	blocks;		/* root and free nodes included */
	__u32	free_count;
	__u32	free_head;	/* logical block, 0: no free node */
	__u32	depth;		/* levels, 1: the root is a leaf */
	__u8	hash_version;	/* as on disk in the htree's root */
};

/* Result of ext2fs_itree_verify() */
struct ext2fs_itree_report {
	__u64	keys;
	__u64	hash;		/* sum of ext2fs_itree_hash_key() */
	__u64	first;		/* smallest and largest key, if keys > 0 */
	__u64	last;
	__u64	leaf_slots;	/* keys that would fit into the leaves */
	__u32	leaves;
	__u32	nodes;		/* leaves and index nodes, root included */
	__u32	free_count;
	__u32	depth;
};

/* How the keys of a directory are computed */
struct ext2fs_itree_hasher {
	ext2_filsys	fs;
	int		version;	/* for ext2fs_dirhash2() */
	int		hash_flags;
	int		in_dirent;	/* hash is kept in the entry */
	__u8		disk_version;	/* as in the htree's root */
};

/* A tree that is suspended while its directory changes */
struct ext2fs_itree_hold {
	int		held;		/* the flag has been cleared */
	int		change;		/* +1: add the key, -1: remove it */
	__u64		key;
	struct ext2fs_itree_hasher hasher;
};

/* A node as ext2fs_itree_walk_nodes() reports it */
struct ext2fs_itree_node {
	__u32		lblk;
	blk64_t		pblk;
	__u32		magic;
	int		in_use;		/* magic of a node in use */
	int		is_free;	/* magic of a free node */
	unsigned int	level;		/* 0: leaf */
	unsigned int	count;
	unsigned int	limit;
	__u32		next;		/* free node: the next one or 0 */
	__u32		csum;
	__u32		csum_wanted;	/* 0 without metadata_csum */
	const void	*data;		/* the block */
};

/* Callbacks return this bit to end an iteration */
#define EXT2FS_ITREE_ABORT	1

typedef struct ext2fs_struct_itree *ext2fs_itree;

/* Returns 0 if this directory may have a tree, or why it may not. */
errcode_t ext2fs_itree_check_dir(ext2_filsys fs, ext2_ino_t dir,
				 struct ext2_inode *inode);
errcode_t ext2fs_itree_has_segment(ext2_filsys fs, ext2_ino_t dir,
				   struct ext2_inode *inode, int *ret);

errcode_t ext2fs_itree_open(ext2_filsys fs, ext2_ino_t dir,
			    struct ext2fs_itree_fault *fault,
			    ext2fs_itree *ret);
void ext2fs_itree_close(ext2fs_itree it);
void ext2fs_itree_get_info(ext2fs_itree it, struct ext2fs_itree_info *info);
errcode_t ext2fs_itree_verify(ext2fs_itree it,
			      struct ext2fs_itree_report *report,
			      struct ext2fs_itree_fault *fault);
errcode_t ext2fs_itree_iterate(ext2fs_itree it, __u64 first,
			       int (*func)(__u64 key, void *priv), void *priv);
errcode_t ext2fs_itree_walk_nodes(ext2_filsys fs, ext2_ino_t dir,
		int (*func)(const struct ext2fs_itree_node *node, void *priv),
		void *priv);
errcode_t ext2fs_itree_map(ext2fs_itree it, __u32 lblk, blk64_t *pblk);

errcode_t ext2fs_itree_hasher_init(ext2_filsys fs, ext2_ino_t dir,
				   struct ext2_inode *inode,
				   struct ext2fs_itree_hasher *hasher);
errcode_t ext2fs_itree_dirent_key(const struct ext2fs_itree_hasher *hasher,
				  struct ext2_dir_entry *dirent,
				  __u64 *key, int *has_key);
errcode_t ext2fs_itree_name_key(const struct ext2fs_itree_hasher *hasher,
				const char *name, int len, ext2_ino_t ino,
				__u64 *key);
__u64 ext2fs_itree_hash_key(__u64 key);

/* Counts and sums the keys of the directory as ext2fs_itree_verify() does */
errcode_t ext2fs_itree_sum_dir(ext2_filsys fs, ext2_ino_t dir,
			       __u64 *keys, __u64 *hash);

errcode_t ext2fs_itree_build(ext2_filsys fs, ext2_ino_t dir);
errcode_t ext2fs_itree_build_keys(ext2_filsys fs, ext2_ino_t dir,
				  __u64 *keys, __u64 count);
errcode_t ext2fs_itree_drop(ext2_filsys fs, ext2_ino_t dir);
errcode_t ext2fs_itree_forget(ext2_filsys fs, ext2_ino_t dir);
errcode_t ext2fs_itree_drop_all(ext2_filsys fs, unsigned int *dropped);
errcode_t ext2fs_itree_check_all(ext2_filsys fs, ext2_ino_t *dir,
				 struct ext2fs_itree_fault *fault);

/* Changing an open tree; after an error it has to be dropped */
errcode_t ext2fs_itree_insert(ext2fs_itree it, __u64 key);
errcode_t ext2fs_itree_delete(ext2fs_itree it, __u64 key);

/* Changing a directory together with its tree, one name at a time */
errcode_t ext2fs_itree_suspend(ext2_filsys fs, ext2_ino_t dir,
			       struct ext2fs_itree_hold *hold);
errcode_t ext2fs_itree_hold_removal(struct ext2fs_itree_hold *hold,
				    struct ext2_dir_entry *dirent);
errcode_t ext2fs_itree_hold_addition(struct ext2fs_itree_hold *hold,
				     const char *name, int len,
				     ext2_ino_t ino);
errcode_t ext2fs_itree_resume(ext2_filsys fs, ext2_ino_t dir,
			      struct ext2fs_itree_hold *hold, errcode_t err);

/* Rewrites a tree block's checksum; for debugfs and tests */
errcode_t ext2fs_itree_block_csum_set(ext2_filsys fs, ext2_ino_t dir,
				      __u32 lblk, void *block);

#endif /* EXT2FS_ITREE_H */
