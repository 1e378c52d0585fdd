/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fuse2fs_order.h --- the entries of a directory in order of inode number
 */
#ifndef FUSE2FS_ORDER_H
#define FUSE2FS_ORDER_H

#include "ext2fs/ext2fs.h"

/* The arguments of ext2fs_dir_iterate2()'s @func */
typedef int (*fuse2fs_order_func)(ext2_ino_t dir, int entry,
				  struct ext2_dir_entry *dirent, int offset,
				  int blocksize, char *buf, void *priv);

errcode_t fuse2fs_order_iterate(ext2_filsys fs, ext2_ino_t dir,
				fuse2fs_order_func func, void *priv);

#endif /* FUSE2FS_ORDER_H */
