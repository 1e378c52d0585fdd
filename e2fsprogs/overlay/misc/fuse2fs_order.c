// SPDX-License-Identifier: GPL-2.0-only
/*
 * fuse2fs_order.c --- the names of a directory in order of inode number
 *
 * FUSE's library keeps all names of a directory it lists anyway, so sorting
 * them in memory costs it little more, and saves following the tree.
 */
#include "config.h"
#include <stdlib.h>
#include <string.h>

#include "ext2fs/ext2_fs.h"
#include "fuse2fs_order.h"

struct entry {
	ext2_ino_t	ino;
	size_t		name;		/* offset in names */
};

struct fuse2fs_order {
	struct entry	*entries;
	size_t		count;
	size_t		room;
	char		*names;		/* each ends with a zero */
	size_t		used;
	size_t		size;
	errcode_t	err;
};

/* Doubles an array until it holds @want of something. */
static errcode_t grow(void *array, size_t *room, size_t want, size_t each)
{
	size_t		more = *room ? *room : 1024;
	errcode_t	retval;

	while (more < want)
		more *= 2;
	if (more == *room)
		return 0;
	retval = ext2fs_resize_mem(*room * each, more * each, array);
	if (!retval)
		*room = more;
	return retval;
}

static int add_name(ext2_ino_t dir EXT2FS_ATTR((unused)), int kind,
		    struct ext2_dir_entry *dirent,
		    int offset EXT2FS_ATTR((unused)),
		    int blocksize EXT2FS_ATTR((unused)),
		    char *buf EXT2FS_ATTR((unused)), void *priv)
{
	fuse2fs_order	o = priv;
	size_t		len = ext2fs_dirent_name_len(dirent);
	struct entry	*e;

	o->err = grow(&o->entries, &o->room, o->count + 1, sizeof(*e));
	if (!o->err)
		o->err = grow(&o->names, &o->size, o->used + len + 1, 1);
	if (o->err)
		return DIRENT_ABORT;
	e = &o->entries[o->count++];
	/* "." and ".." come first */
	e->ino = kind == DIRENT_OTHER_FILE ? dirent->inode : 0;
	e->name = o->used;
	memcpy(o->names + o->used, dirent->name, len);
	o->names[o->used + len] = 0;
	o->used += len + 1;
	return 0;
}

/* By inode, and as they were found for names of the same inode */
static int by_inode(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return x->name < y->name ? -1 : x->name > y->name;
}

/*
 * Reads the names of a directory.  Returns 0 and a list to be freed by
 * fuse2fs_order_free(), or an error.
 */
errcode_t fuse2fs_order_read(ext2_filsys fs, ext2_ino_t dir,
			     fuse2fs_order *ret)
{
	fuse2fs_order	o;
	errcode_t	retval;

	retval = ext2fs_get_memzero(sizeof(*o), &o);
	if (retval)
		return retval;
	retval = ext2fs_dir_iterate2(fs, dir, 0, NULL, add_name, o);
	if (!retval)
		retval = o->err;
	if (retval) {
		fuse2fs_order_free(o);
		return retval;
	}
	if (o->count)
		qsort(o->entries, o->count, sizeof(*o->entries), by_inode);
	*ret = o;
	return 0;
}

/* Calls @func with each name, until it returns something else than 0. */
int fuse2fs_order_each(fuse2fs_order order,
		       int (*func)(const char *name, void *priv), void *priv)
{
	size_t	i;
	int	ret = 0;

	for (i = 0; !ret && i < order->count; i++)
		ret = func(order->names + order->entries[i].name, priv);
	return ret;
}

void fuse2fs_order_free(fuse2fs_order order)
{
	if (!order)
		return;
	ext2fs_free_mem(&order->entries);
	ext2fs_free_mem(&order->names);
	ext2fs_free_mem(&order);
}
