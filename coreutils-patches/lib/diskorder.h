/* SPDX-License-Identifier: LGPL-2.0-or-later */
/*
 * libdiskorder: the names of a directory in the order of their inodes, and
 * files in the order of their data, in bounded memory.
 *
 * It changes the order in which names come and nothing else: every name that
 * the directory gives is given once, and whatever goes wrong in here (no
 * memory, no FIEMAP) means the order the directory has by itself.
 *
 * Objects are not locked: one thread at a time for each.
 */
#ifndef DISKORDER_H
#define DISKORDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that sorting one directory may take unless told otherwise. */
#define DORDER_MEMORY (32U << 20)

/* A directory entry; name is valid until the next call on its reader. */
struct dorder_entry {
	uint64_t ino;
	int64_t next; /* position behind it, for dorder_seek() */
	unsigned char type; /* DT_REG and so on, DT_UNKNOWN */
	const char *name;
};

/*
 * Where entries come from and memory is had; dorder_open() has its own.
 * getdents: as getdents64(2): bytes of records, 0 at the end, -1 and errno.
 * seek: to a position that a record's d_off gave; 0 or -1 and errno.
 */
struct dorder_ops {
	ssize_t (*getdents)(void *ctx, void *buf, size_t size);
	int (*seek)(void *ctx, int64_t position);
	void *(*alloc)(void *ctx, size_t size);
	void (*release)(void *ctx, void *memory, size_t size);
};

struct dorder;

/*
 * Says whether inode order says anything about the disk under fd's file
 * system: 1 on ext2, ext3, ext4 and XFS, 0 elsewhere, when DISKORDER=off is in
 * the environment, and when that cannot be told.  Leaves errno alone.
 */
int dorder_pays(int fd);

/* DISKORDER_MEMORY of the environment (MiB), in bytes, or DORDER_MEMORY. */
size_t dorder_memory(void);

/*
 * A reader of the directory open at fd, which stays the caller's: nobody else
 * may read or seek it meanwhile.  memory: bytes for sorting, 0: no sorting.
 * Returns NULL (ENOMEM) if there is no memory for the reader itself.
 */
struct dorder *dorder_open(int fd, size_t memory);
struct dorder *dorder_open_ops(const struct dorder_ops *ops, void *ctx,
			       size_t memory);
void dorder_close(struct dorder *dir);

/*
 * The next entry: 1, 0 at the end, -1 and errno if the directory could not be
 * read; names read before that are given first.
 */
int dorder_next(struct dorder *dir, struct dorder_entry *entry);

/*
 * dorder_tell() is where dorder_next() will go on.  dorder_seek() goes to such
 * a place, also over names made or removed since; 0 or -1 and errno.  A name
 * may then come twice if the directory changed, none is left out.
 */
int64_t dorder_tell(const struct dorder *dir);
int dorder_seek(struct dorder *dir, int64_t position);

/* Back to the start; forgets what was read.  0 or -1 and errno. */
int dorder_rewind(struct dorder *dir);

/* How many windows were sorted since the start: 0 where the order was good. */
size_t dorder_windows(const struct dorder *dir);

/* For sorting in place, in no further memory; equal keys go by tie. */
struct dorder_key {
	uint64_t key;
	uint32_t tie;
	uint32_t value;
};
void dorder_sort(struct dorder_key *keys, size_t count);

/*
 * The byte address of the first extent of an open file on its disk, 0 if it
 * has none, holds its data in the inode, or the file system does not tell.
 * Does not write delayed data out.  Leaves errno alone.
 */
uint64_t dorder_first_extent(int fd);

/*
 * Start reading a file that will be read soon: at most limit bytes of it.
 * Returns the bytes asked for.  Leaves errno alone.
 */
size_t dorder_will_read(int fd, off_t size, size_t limit);

#ifdef __cplusplus
}
#endif
#endif
