// SPDX-License-Identifier: LGPL-2.0-or-later
/* Choosing file systems, sorting, finding a file's data, reading it ahead. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>
#include <unistd.h>

/*
 * File systems whose inode numbers are places on the disk: in ext4 (ext2 and
 * ext3 have the same number) an index into the inode tables, in XFS the
 * address of the inode itself.  Elsewhere the number is a count (tmpfs, NFS,
 * FUSE), another file system's (overlayfs), or a key in a tree (btrfs).  For
 * btrfs it has not been measured whether that order is better than its own.
 */
static const uint32_t inode_is_place[] = {
	0xEF53, /* ext2, ext3, ext4 */
	0x58465342, /* XFS */
};

int dorder_allowed(void)
{
	const char *set = getenv("DISKORDER");

	return !set || (strcasecmp(set, "off") && strcmp(set, "0") &&
			strcasecmp(set, "no"));
}

int dorder_pays(int fd)
{
	int saved = errno;
	struct statfs fs;
	size_t n;

	if (!dorder_allowed())
		return 0;
	if (fstatfs(fd, &fs) < 0) {
		errno = saved;
		return 0;
	}
	for (n = 0; n < sizeof(inode_is_place) / sizeof(*inode_is_place); n++)
		if ((uint32_t)fs.f_type == inode_is_place[n])
			return 1;
	return 0;
}

size_t dorder_memory(void)
{
	const char *set = getenv("DISKORDER_MEMORY");
	int saved = errno;
	char *end = NULL;
	unsigned long mib;

	if (!set)
		return DORDER_MEMORY;
	mib = strtoul(set, &end, 10);
	errno = saved;
	if (end == set || *end || mib < 1 || mib > 2048)
		return DORDER_MEMORY;
	return (size_t)mib << 20;
}

static int before(const struct dorder_key *a, const struct dorder_key *b)
{
	return a->key != b->key ? a->key < b->key : a->tie < b->tie;
}

static void sift(struct dorder_key *keys, size_t root, size_t count)
{
	struct dorder_key moved = keys[root];
	size_t child;

	while ((child = 2 * root + 1) < count) {
		if (child + 1 < count && before(keys + child, keys + child + 1))
			child++;
		if (!before(&moved, keys + child))
			break;
		keys[root] = keys[child];
		root = child;
	}
	keys[root] = moved;
}

/* Heapsort: qsort() of the C library takes memory that no limit counts. */
void dorder_sort(struct dorder_key *keys, size_t count)
{
	struct dorder_key top;
	size_t n;

	for (n = count / 2; n-- > 0;)
		sift(keys, n, count);
	for (n = count; n-- > 1;) {
		top = keys[0];
		keys[0] = keys[n];
		keys[n] = top;
		sift(keys, 0, n);
	}
}

uint64_t dorder_first_extent(int fd)
{
	union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + sizeof(struct fiemap_extent)];
	} u;
	const struct fiemap_extent *extent;
	const uint32_t nowhere =
		FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DATA_INLINE;
	int saved = errno;

	memset(&u, 0, sizeof(u));
	u.map.fm_length = FIEMAP_MAX_OFFSET;
	u.map.fm_extent_count = 1;
	if (ioctl(fd, FS_IOC_FIEMAP, &u.map) < 0) {
		errno = saved;
		return 0;
	}
	extent = (const void *)(u.room + sizeof(struct fiemap));
	if (!u.map.fm_mapped_extents || (extent->fe_flags & nowhere))
		return 0;
	return extent->fe_physical;
}

void dorder_will_not_read(void *ctx, int fd)
{
	int saved = errno;

	(void)ctx;
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	/* Our ext4 then evicts the name and the inode on the last close. */
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_NOREUSE);
	errno = saved;
}

/* The least that one call reads of a large file: the usual read_ahead_kb. */
#define ONE_CALL (128U << 10)

/* Up to where a file, from at on, is in memory or in flight; at: unknown. */
static size_t begun(int fd, size_t at, size_t size)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	int64_t pages = dorder_cached_pages(fd, at, size - at);

	if (pages < 0)
		return at;
	if ((uint64_t)pages < (size - at + page - 1) / page)
		return at + pages * page;
	return size;
}

/*
 * The kernel silently reads no more per call than the larger of the device's
 * read_ahead_kb and max_sectors_kb.
 */
size_t dorder_will_read(int fd, off_t size, size_t limit)
{
	int saved = errno;
	size_t at = 0, next;

	if (size <= 0 || !limit)
		return 0;
	if ((uintmax_t)size < limit)
		limit = size;
	while (at < limit) {
		if (posix_fadvise(fd, at, limit - at, POSIX_FADV_WILLNEED))
			break;
		next = limit - at > ONE_CALL ? begun(fd, at, limit) : limit;
		if (next == at)
			next = at + ONE_CALL;
		at = next;
	}
	errno = saved;
	return at;
}
