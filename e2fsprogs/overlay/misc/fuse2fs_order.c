// SPDX-License-Identifier: GPL-2.0-only
/*
 * fuse2fs_order.c --- the entries of a directory in order of inode number
 *
 * libfuse keeps all entries of a directory that it lists in memory anyway.
 * Sorting them there costs little more, and needs no tree.
 */
#include "config.h"
#include <stdlib.h>
#include <string.h>

#include "ext2fs/ext2_fs.h"
#include "fuse2fs_order.h"

struct place {
	ext2_ino_t	key;
	int		kind;		/* DIRENT_DOT_FILE and so on */
	size_t		at;		/* offset in dirents */
};

struct order {
	struct place	*places;
	size_t		count;
	size_t		room;
	char		*dirents;	/* copies, each at a multiple of 4 */
	size_t		used;
	size_t		size;
	errcode_t	err;
};

/* Doubles an array until it has room for @want elements. */
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

static int add_entry(ext2_ino_t dir EXT2FS_ATTR((unused)), int kind,
		     struct ext2_dir_entry *dirent,
		     int offset EXT2FS_ATTR((unused)),
		     int blocksize EXT2FS_ATTR((unused)),
		     char *buf EXT2FS_ATTR((unused)), void *priv)
{
	struct order	*o = priv;
	size_t		len = ext2fs_dirent_name_len(dirent);
	size_t		room = EXT2_DIR_REC_LEN(len);
	struct place	*p;

	o->err = grow(&o->places, &o->room, o->count + 1, sizeof(*p));
	if (!o->err)
		o->err = grow(&o->dirents, &o->size, o->used + room, 1);
	if (o->err)
		return DIRENT_ABORT;
	p = &o->places[o->count++];
	/* "." and ".." come first */
	p->key = kind == DIRENT_OTHER_FILE ? dirent->inode : 0;
	p->kind = kind;
	p->at = o->used;
	memset(o->dirents + o->used, 0, room);
	memcpy(o->dirents + o->used, dirent, EXT2_DIR_ENTRY_HEADER_LEN + len);
	o->used += room;
	return 0;
}

/* By inode; entries of one inode keep their order on disk */
static int by_inode(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

/*
 * Calls @func for each entry of @dir, as ext2fs_dir_iterate2() does with no
 * flags, but in order of inode number.  The entries are copies: @func cannot
 * change the directory, and gets no offset, block size or buffer.  It may
 * return DIRENT_ABORT to end.  All entries are in memory meanwhile.
 *
 * Returns 0 or an error; after an error, some entries may be missing.
 */
errcode_t fuse2fs_order_iterate(ext2_filsys fs, ext2_ino_t dir,
				fuse2fs_order_func func, void *priv)
{
	struct order	o = { 0 };
	errcode_t	retval;
	size_t		i;

	retval = ext2fs_dir_iterate2(fs, dir, 0, NULL, add_entry, &o);
	if (!retval)
		retval = o.err;
	if (!retval && o.count)
		qsort(o.places, o.count, sizeof(*o.places), by_inode);
	for (i = 0; !retval && i < o.count; i++)
		if (func(dir, o.places[i].kind,
			 (struct ext2_dir_entry *)(o.dirents + o.places[i].at),
			 0, 0, NULL, priv) & DIRENT_ABORT)
			break;
	ext2fs_free_mem(&o.places);
	ext2fs_free_mem(&o.dirents);
	return retval;
}
