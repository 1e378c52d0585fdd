// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Reading a directory in inode order.
 *
 * While entries come in ascending order, they are passed on from the buffer
 * they were read into.  The first out of order starts a window: entries are
 * copied until the memory is used up or the directory ends, sorted, and handed
 * out; then entries are passed on again.  So a file system that sorts by itself
 * costs nothing, and one that hashes costs one sort per window.
 *
 * A position is where the entry starts in the file system's own order.  The
 * ranges of the windows are kept, so that a position identifies the window to
 * read again.  The entry that starts a window stays its first one, because the
 * caller gets the position before it before the window exists.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#define IO_SIZE 32768
#define FIRST_WINDOW 65536
#define MAX_RANGES 4096 /* 128 KiB; sorting ends after this many windows */
#define ITREE_FL 0x08000000 /* of FS_IOC_GETFLAGS: see docs/format.md */
#define SMALL 65536 /* a few look-ups read a directory of fewer bytes */

/* A record of the kernel's getdents64; its size is a multiple of 8. */
struct record {
	uint64_t ino;
	int64_t off;
	uint16_t reclen;
	uint8_t type;
	char name[];
};

struct range {
	int64_t start, end;
	uint64_t first; /* inode of the entry at start */
	uint64_t sum; /* over all positions and inodes; 0: matches none */
};

struct dorder {
	const struct dorder_ops *ops;
	void *ctx;
	int fd;
	size_t memory;
	bool sorting;
	uint64_t last; /* inode passed on last */
	int64_t start; /* of the next record in io */
	/*
	 * Windows are fixed up to here: a position that was returned before
	 * must not be in another window later.
	 */
	int64_t settled;
	size_t pos, len;
	int error; /* from reading a window, not yet returned */
	/* the window: records from below, keys from above */
	char *window;
	size_t size, used;
	uint32_t count, index;
	struct range now;
	struct range *ranges;
	size_t nranges, maxranges, windows;
	_Alignas(8) char io[IO_SIZE];
};

/*
 * The kernel returns ENOENT for a directory that has been removed; treat that
 * as the end of the directory.
 */
static ssize_t sys_getdents(void *ctx, void *buf, size_t size)
{
	int saved = errno;
	ssize_t got;

	got = syscall(SYS_getdents64, ((struct dorder *)ctx)->fd, buf, size);
	if (got >= 0 || errno != ENOENT)
		return got;
	errno = saved;
	return 0;
}

static int sys_seek(void *ctx, int64_t position)
{
	return lseek64(((struct dorder *)ctx)->fd, position, SEEK_SET) < 0 ? -1
									   : 0;
}

static void *sys_alloc(void *ctx, size_t size)
{
	(void)ctx;
	return malloc(size);
}

static void sys_release(void *ctx, void *memory, size_t size)
{
	(void)ctx;
	(void)size;
	free(memory);
}

static const struct dorder_ops sys_ops = { sys_getdents, sys_seek, sys_alloc,
					   sys_release };

struct dorder *dorder_open_ops(const struct dorder_ops *ops, void *ctx,
			       size_t memory)
{
	struct dorder *dir = ops->alloc(ctx, sizeof(*dir));

	if (!dir) {
		errno = ENOMEM;
		return NULL;
	}
	memset(dir, 0, offsetof(struct dorder, io));
	dir->ops = ops;
	dir->ctx = ctx;
	dir->fd = -1;
	dir->memory = memory;
	dir->sorting = memory >= FIRST_WINDOW;
	return dir;
}

struct dorder *dorder_open(int fd, size_t memory)
{
	struct dorder *dir = dorder_open_ops(&sys_ops, NULL, memory);

	if (dir) {
		dir->ctx = dir;
		dir->fd = fd;
		/* The caller may have read a part of the directory before. */
		dir->start = lseek64(fd, 0, SEEK_CUR);
		if (dir->start < 0)
			dir->start = 0;
	}
	return dir;
}

void dorder_close(struct dorder *dir)
{
	if (!dir)
		return;
	if (dir->window)
		dir->ops->release(dir->ctx, dir->window, dir->size);
	if (dir->ranges)
		dir->ops->release(dir->ctx, dir->ranges,
				  dir->maxranges * sizeof(struct range));
	dir->ops->release(dir->ctx, dir, sizeof(*dir));
}

size_t dorder_windows(const struct dorder *dir)
{
	return dir->windows;
}

static struct dorder_key *keys_of(const struct dorder *dir)
{
	return (struct dorder_key *)(dir->window + dir->size) - dir->count;
}

/* The record of key n of a window. */
static struct record *record_of(const struct dorder *dir, uint32_t n)
{
	return (struct record *)(dir->window + keys_of(dir)[n].value);
}

/* The position of record n of the window, which precedes its copy. */
static int64_t start_of(const struct dorder *dir, uint32_t n)
{
	return *(int64_t *)((char *)record_of(dir, n) - sizeof(int64_t));
}

/* Makes a record readable at io + pos: 1, 0 at the end, -1 and errno. */
static int fill(struct dorder *dir)
{
	const struct record *rec;
	ssize_t got;

	if (dir->pos >= dir->len) {
		got = dir->ops->getdents(dir->ctx, dir->io, IO_SIZE);
		if (got <= 0)
			return (int)got;
		dir->pos = 0;
		dir->len = got;
	}
	rec = (const struct record *)(dir->io + dir->pos);
	if (dir->len - dir->pos < sizeof(*rec) ||
	    rec->reclen <= offsetof(struct record, name) || rec->reclen % 8 ||
	    rec->reclen > dir->len - dir->pos) {
		/* Not a valid record, so nothing after it can be trusted */
		dir->pos = dir->len;
		errno = EIO;
		return -1;
	}
	return 1;
}

static struct record *take(struct dorder *dir)
{
	struct record *rec = (struct record *)(dir->io + dir->pos);

	dir->pos += rec->reclen;
	dir->start = rec->off;
	if (dir->settled < dir->start)
		dir->settled = dir->start;
	return rec;
}

/*
 * Makes room for need bytes between records and keys.  The limit covers the new
 * memory and the old, which is kept until everything is copied.
 */
static bool room(struct dorder *dir, size_t need)
{
	size_t keys = dir->count * sizeof(struct dorder_key), size;
	char *window;

	if (dir->window && dir->size - dir->used - keys >= need)
		return true;
	size = dir->size ? dir->size * 4 : FIRST_WINDOW;
	/* The last step takes all memory that is left, so take it early. */
	if (dir->size && size * 7 / 2 > dir->memory)
		size = (dir->memory - dir->size) & ~(size_t)15;
	/* A few more names are not worth the copying. */
	if (size < dir->size * 3 / 2 || size < dir->used + keys + need ||
	    size > UINT32_MAX)
		return false;
	window = dir->ops->alloc(dir->ctx, size);
	if (!window)
		return false;
	if (dir->window) {
		memcpy(window, dir->window, dir->used);
		memcpy(window + size - keys, dir->window + dir->size - keys,
		       keys);
		dir->ops->release(dir->ctx, dir->window, dir->size);
	}
	dir->window = window;
	dir->size = size;
	return true;
}

/* Copies the current record into the window. */
static bool keep(struct dorder *dir)
{
	const struct record *rec = (const struct record *)(dir->io + dir->pos);
	size_t bytes = sizeof(int64_t) + rec->reclen;
	struct dorder_key *key;

	if (!room(dir, bytes + sizeof(*key)))
		return false;
	memcpy(dir->window + dir->used, &dir->start, sizeof(int64_t));
	memcpy(dir->window + dir->used + sizeof(int64_t), rec, rec->reclen);
	dir->count++;
	/* The newest key is the lowest, so that no key has to move. */
	key = keys_of(dir);
	key->key = rec->ino;
	key->tie = key->value = dir->used + sizeof(int64_t);
	dir->used += bytes;
	take(dir);
	return true;
}

static void empty(struct dorder *dir)
{
	dir->used = 0;
	dir->count = dir->index = 0;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	a = (a ^ b << 32 ^ b >> 32) * 0x9e3779b97f4a7c15;
	return (a ^ a >> 29) * (b | 1);
}

/*
 * Reads a window from here and sorts it: to the end of a known window, else
 * until memory is used up.  Returns false if not even one entry fits.
 */
static bool gather(struct dorder *dir, struct range *known)
{
	struct dorder_key *keys, first;
	bool whole = false;
	uint32_t n;
	int got;

	empty(dir);
	/* This may be the rest of a known one; a seek then reads all of it. */
	dir->now.start = dir->start;
	do {
		got = fill(dir);
		if (got < 0)
			dir->error = errno;
		whole = !got || (known && dir->start >= known->end);
	} while (got > 0 && !whole && keep(dir));
	dir->now.end = known && whole ? known->end : dir->start;
	if (!dir->count)
		return false;
	keys = keys_of(dir);
	/* The first entry has the last key: move it to the front. */
	n = dir->count - 1;
	first = keys[n];
	memmove(keys + 1, keys, n * sizeof(*keys));
	keys[0] = first;
	dir->now.first = first.key;
	dir->now.sum = dir->count;
	for (n = 0; n < dir->count; n++)
		dir->now.sum += mix(keys[n].key, start_of(dir, n));
	/*
	 * The window has other names now, or only some of them, because they no
	 * longer fit or because of an error.  Positions from here on do not
	 * apply to its earlier names, nor to those after a complete read.
	 */
	if (known && dir->now.sum != known->sum)
		known->sum = 0;
	n = dir->count - 1;
	/* The first entry stays in front, unless it is gone: then sort all. */
	if (known && known->first != first.key)
		dorder_sort(keys, n + 1);
	else
		dorder_sort(keys + 1, n);
	return true;
}

/* Records the window's range, without which no position can be found again. */
static bool note_range(struct dorder *dir)
{
	struct range *more;
	size_t max;

	if (dir->nranges == dir->maxranges) {
		max = dir->maxranges ? dir->maxranges * 2 : 16;
		if (max > MAX_RANGES)
			return false;
		more = dir->ops->alloc(dir->ctx, max * sizeof(*more));
		if (!more)
			return false;
		if (dir->ranges) {
			memcpy(more, dir->ranges, dir->nranges * sizeof(*more));
			dir->ops->release(dir->ctx, dir->ranges,
					  dir->maxranges * sizeof(*more));
		}
		dir->ranges = more;
		dir->maxranges = max;
	}
	/* The end is set when the window has been read. */
	dir->ranges[dir->nranges].start = dir->start;
	dir->ranges[dir->nranges++].end = dir->start;
	return true;
}

static bool dots(const char *name)
{
	return name[0] == '.' && (!name[1] || (name[1] == '.' && !name[2]));
}

static struct range *range_of(const struct dorder *dir, int64_t position)
{
	size_t n;

	for (n = 0; n < dir->nranges; n++)
		if (dir->ranges[n].start <= position &&
		    position < dir->ranges[n].end)
			return dir->ranges + n;
	return NULL;
}

static void give(const struct record *rec, int64_t next,
		 struct dorder_entry *entry)
{
	entry->ino = rec->ino;
	entry->next = next;
	entry->type = rec->type;
	entry->name = rec->name;
}

/* Starts a window with the current record if one has to begin there. */
static bool start_window(struct dorder *dir)
{
	const struct record *rec = (const struct record *)(dir->io + dir->pos);
	struct range *known;
	size_t slot;

	if (dir->start < dir->settled) {
		/*
		 * Read again after a seek: with the same bounds, and sorted
		 * even if sorting has ended since, as its positions were.
		 */
		known = range_of(dir, dir->start);
		return known && gather(dir, known);
	}
	if (!dir->sorting || dots(rec->name) || rec->ino >= dir->last)
		return false;
	empty(dir);
	if (!room(dir, IO_SIZE) || !note_range(dir)) {
		dir->sorting = false;
		return false;
	}
	slot = dir->nranges - 1;
	if (!gather(dir, NULL)) {
		dir->nranges--;
		return false;
	}
	dir->ranges[slot] = dir->now;
	dir->windows++;
	return true;
}

int dorder_next(struct dorder *dir, struct dorder_entry *entry)
{
	struct record *rec;
	uint32_t n;
	int got;

	for (;;) {
		if (dir->index < dir->count) {
			n = dir->index++;
			rec = record_of(dir, n);
			dir->last = dir->last > rec->ino ? dir->last : rec->ino;
			give(rec,
			     n + 1 < dir->count ? start_of(dir, n + 1)
						: dir->now.end,
			     entry);
			return 1;
		}
		if (dir->error) {
			errno = dir->error;
			dir->error = 0;
			return -1;
		}
		got = fill(dir);
		if (got <= 0)
			return got;
		rec = (struct record *)(dir->io + dir->pos);
		if (start_window(dir)) {
			dir->last = 0;
			continue;
		}
		if (!dots(rec->name))
			dir->last = rec->ino;
		empty(dir);
		take(dir);
		give(rec, dir->start, entry);
		return 1;
	}
}

/*
 * Does the file system read all of this directory ahead when its first names
 * are read?  ext4 does so if it has an itree and takes, tree included, at most
 * an eighth of the memory.
 */
static bool ahead_by_itself(int fd, const struct stat *st)
{
	struct sysinfo info;
	int flags = 0;

	return !ioctl(fd, FS_IOC_GETFLAGS, &flags) && flags & ITREE_FL &&
	       !sysinfo(&info) &&
	       (uintmax_t)st->st_size / 4 * 5 <=
		       (uintmax_t)info.totalram * info.mem_unit / 8;
}

void dorder_read_names(int fd)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC;
	int saved = errno, dir;
	struct stat st;
	char *io;
	bool all;

	if (!fstat(fd, &st) && st.st_size >= SMALL &&
	    (uintmax_t)st.st_size <= dorder_room() / 2) {
		dir = openat(fd, ".", flags | O_NOATIME);
		/* Another user's directory: read it as any reader does. */
		if (dir < 0 && errno == EPERM)
			dir = openat(fd, ".", flags);
		io = dir < 0 ? NULL : dorder_pages(IO_SIZE);
		all = io && !ahead_by_itself(dir, &st);
		while (io && syscall(SYS_getdents64, dir, io, IO_SIZE) > 0 &&
		       all)
			;
		dorder_pages_free(io, IO_SIZE);
		if (dir >= 0)
			close(dir);
	}
	errno = saved;
}

int64_t dorder_tell(const struct dorder *dir)
{
	if (dir->index < dir->count)
		return start_of(dir, dir->index);
	if (dir->count)
		return dir->now.end;
	return dir->start;
}

int dorder_seek(struct dorder *dir, int64_t position)
{
	struct range *range = range_of(dir, position);
	int64_t to = range ? range->start : position;
	uint32_t n;

	if (!range || !dir->count || dir->now.start != range->start) {
		if (dir->ops->seek(dir->ctx, to) < 0)
			return -1;
		empty(dir);
		dir->pos = dir->len = 0;
		dir->start = to;
		dir->last = 0;
		dir->error = 0;
		if (!range)
			return 0;
		/* No memory any longer: names come in the directory's order. */
		if (!gather(dir, range))
			return 0;
	}
	/*
	 * If the names of a window have changed, some that now come before the
	 * position may not have been returned: restart the window.
	 */
	dir->index = 0;
	if (dir->now.sum != range->sum)
		return 0;
	for (n = 0; position != range->start && n < dir->count; n++)
		if (start_of(dir, n) == position) {
			dir->index = n;
			break;
		}
	return 0;
}

int dorder_rewind(struct dorder *dir)
{
	if (dir->ops->seek(dir->ctx, 0) < 0)
		return -1;
	empty(dir);
	dir->pos = dir->len = 0;
	dir->start = 0;
	dir->last = 0;
	dir->error = 0;
	dir->settled = 0;
	dir->nranges = dir->windows = 0;
	dir->sorting = dir->memory >= FIRST_WINDOW;
	return 0;
}
