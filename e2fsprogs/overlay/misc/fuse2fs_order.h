/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * fuse2fs_order.h --- the names of a directory in order of inode number
 */
#ifndef FUSE2FS_ORDER_H
#define FUSE2FS_ORDER_H

#include "ext2fs/ext2fs.h"

typedef struct fuse2fs_order *fuse2fs_order;

errcode_t fuse2fs_order_read(ext2_filsys fs, ext2_ino_t dir,
			     fuse2fs_order *ret);
int fuse2fs_order_each(fuse2fs_order order,
		       int (*func)(const char *name, void *priv), void *priv);
void fuse2fs_order_free(fuse2fs_order order);

#endif /* FUSE2FS_ORDER_H */
