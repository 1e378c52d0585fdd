// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Finds out whether files are in memory already.  Those that are need no order,
 * and checking each of them costs more than an order can save.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

/* Since Linux 6.5; the number is the same everywhere, headers may be older. */
#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

/* After this many files in a row in memory, some are not checked: */
#define ENOUGH 16
#define PASS_FIRST 64
#define PASS_MOST 4096

int dorder_watch_look(struct dorder_watch *watch)
{
	return !dorder_watch_pass(watch, 1);
}

int dorder_watch_pass(struct dorder_watch *watch, uint32_t count)
{
	if (watch->pass < count)
		return 0;
	watch->pass -= count;
	return 1;
}

void dorder_watch_saw(struct dorder_watch *watch, int cached)
{
	if (!cached) {
		watch->row = watch->pass = watch->step = 0;
		return;
	}
	if (++watch->row < ENOUGH)
		return;
	watch->row = 0;
	if (!watch->step)
		watch->step = PASS_FIRST;
	else if (watch->step < PASS_MOST)
		watch->step *= 2;
	watch->pass = watch->step;
}

bool dorder_reads_unseen(int fd, int flags)
{
	const time_t day = 24 * 60 * 60;
	struct statvfs fs;
	struct stat st;

	/* The owner and root may always set it. */
	if (flags & O_NOATIME || fcntl(fd, F_SETFL, flags | O_NOATIME) == 0)
		return true;
	if (fstatvfs(fd, &fs) < 0)
		return false;
	if (fs.f_flag & ST_NOATIME)
		return true;
	/* relatime leaves it if it is under a day old and after the change. */
	return fs.f_flag & ST_RELATIME && fstat(fd, &st) == 0 &&
	       st.st_atime > st.st_mtime && st.st_atime > st.st_ctime &&
	       time(NULL) - st.st_atime < day - 60;
}

/*
 * Linux 6.5 and later have cachestat(2).  It may be refused, by a system call
 * filter, or since 6.14 for another user's file.  RWF_NOWAIT cannot replace it
 * then: on earlier kernels it implied IOCB_NOIO, but since 6.5 it starts reading
 * a file that is not in memory, so that files would be read in the order of the
 * checks.
 */
static bool nowait_reads(void)
{
	unsigned int major, minor;
	struct utsname name;

	return uname(&name) ||
	       sscanf(name.release, "%u.%u", &major, &minor) != 2 ||
	       major > 6 || (major == 6 && minor >= 5);
}

/* Checks whether a byte is in memory.  Starts no I/O, see nowait_reads(). */
static bool comes_at_once(int fd, off_t at)
{
	char byte;
	struct iovec to = { &byte, 1 };

	return preadv2(fd, &to, 1, at, RWF_NOWAIT) == 1;
}

int64_t dorder_cached_pages(int fd, uint64_t from, uint64_t size)
{
	struct {
		uint64_t off, len;
	} range = { from, size };
	struct {
		uint64_t cache, dirty, writeback, evicted, recently_evicted;
	} stat;

	return syscall(SYS_cachestat, fd, &range, &stat, 0)
		       ? -1
		       : (int64_t)stat.cache;
}

static int in_memory(int fd, uint64_t size)
{
	const int64_t page = sysconf(_SC_PAGESIZE);
	int64_t pages = dorder_cached_pages(fd, 0, size);
	int flags, found = -1;

	if (pages >= 0) {
		if (pages >= ((int64_t)size + page - 1) / page)
			return 1;
		return pages ? -1 : 0;
	}
	if (errno != ENOSYS || nowait_reads())
		return -1;
	flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return -1;
	if (dorder_reads_unseen(fd, flags)) {
		found = 0;
		if (comes_at_once(fd, 0))
			found = comes_at_once(fd, size - 1) ? 1 : -1;
	}
	/* Restore the flags: the caller's reads may update the time of access. */
	if (!(flags & O_NOATIME))
		(void)fcntl(fd, F_SETFL, flags);
	return found;
}

int dorder_cached(int fd, off_t size)
{
	int saved = errno, cached;

	if (size <= 0)
		return 0;
	cached = in_memory(fd, size < (off_t)DORDER_AHEAD_FILE
				       ? (uint64_t)size
				       : DORDER_AHEAD_FILE);
	errno = saved;
	return cached;
}
