/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/*
 * itreeP.h --- shared by itree.c, itree_io.c, itree_keys.c, itree_build.c and
 * itree_change.c only
 */
#ifndef EXT2FS_ITREEP_H
#define EXT2FS_ITREEP_H

#include "ext2_fs.h"
#include "ext2fsP.h"
#include "ext2fs_itree.h"
#include "itree_core.h"

struct ext2fs_struct_itree {
	ext2_filsys		fs;
	ext2_ino_t		dir;
	struct ext2_inode	inode;
	__u32			csum_seed;
	struct itree		tree;
	ext2_extent_handle_t	handle;	/* to read the map, or NULL */
	struct ext2fs_extent	last;	/* where the last block was found */
	errcode_t		err;	/* error of a block operation */
};

/* The keys of a directory, as gathered from its entries */
struct itree_gather {
	struct ext2fs_itree_hasher hasher;
	errcode_t	err;
	__u64		*keys;		/* NULL: only count and sum */
	__u64		count;
	__u64		room;
	__u64		sum;
	__u64		pos;		/* of the next one to be loaded */
};

/* itree.c */
errcode_t itree_new_handle(ext2_filsys fs, ext2_ino_t dir, ext2fs_itree *ret);
void itree_free_handle(ext2fs_itree it);
errcode_t itree_open_handle(ext2fs_itree it, struct ext2fs_itree_fault *fault);

/* itree_io.c */
extern const struct itree_ops libext2fs_itree_ops;
void itree_close_map(ext2fs_itree it);
errcode_t itree_mapped_blocks(ext2fs_itree it, __u32 *ret);
errcode_t itree_map_run(ext2fs_itree it, __u32 blocks);
__u32 itree_dir_csum_seed(ext2_filsys fs, ext2_ino_t dir, __u32 generation);
__u32 itree_block_csum(ext2_filsys fs, __u32 seed, __u32 lblk, void *data);
errcode_t itree_core_error(ext2fs_itree it, int ret,
			   struct ext2fs_itree_fault *fault);

/* itree_keys.c */
errcode_t itree_gather_dir(ext2_filsys fs, ext2_ino_t dir,
			   struct ext2_inode *inode, struct itree_gather *g);

#endif /* EXT2FS_ITREEP_H */
