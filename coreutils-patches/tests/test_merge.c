// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Tests readahead of runs of files in DIRECTORY: everything is read, for any
 * user and whatever is refused, and times of access do not change.
 * Prints TAP.  usage: test_merge [SEED [DIRECTORY]]; the seed is not used.
 */
#include "../lib/diskorder.h"
#include "../lib/inside.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILES 40

static char names[FILES][4096];
static uint32_t sizes[FILES];

/* Evicts the files, and sets times of access that reading would change. */
static bool forget(void)
{
	struct timespec times[2] = { { 500, 0 }, { 1000, 0 } };
	bool good = true;
	int n, fd;

	for (n = 0; n < FILES; n++) {
		fd = open(names[n], O_RDONLY);
		good &= fd >= 0 && !futimens(fd, times);
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		good &= !dorder_cached(fd, sizes[n]);
		close(fd);
	}
	return good;
}

static bool all_read(void)
{
	bool good = false;
	int n, fd, tries;
	struct stat st;

	/* 30 s: the reads have been started, but the disk may be busy. */
	for (tries = 0; !good && tries < 3000; tries++) {
		usleep(10000);
		for (good = true, n = 0; n < FILES; n++) {
			fd = open(names[n], O_RDONLY);
			good &= dorder_cached(fd, sizes[n]) == 1;
			close(fd);
		}
	}
	for (n = 0; n < FILES; n++)
		good &= !stat(names[n], &st) && st.st_atime == 500;
	return good;
}

/* In a child with these flags of open(), as nobody, short of address space. */
static void test_run(int flags, bool nobody, bool tight, bool refused,
		     const char *what)
{
	struct rlimit limit = { 1 << 20, 1 << 20 };
	int files[FILES], n, status = -1;
	bool asked = false;
	pid_t child;

	if (!forget()) {
		printf("# SKIP: the file system keeps all in memory\n");
		return;
	}
	child = fork();
	if (!child) {
		for (n = 0; n < FILES; n++)
			files[n] = open(names[n], flags);
		if ((nobody && setuid(65534)) ||
		    (tight && setrlimit(RLIMIT_AS, &limit)))
			_exit(2);
		dorder_read_run(files, sizes, FILES, &asked, NULL);
		_exit(asked != refused);
	}
	ok(child > 0 && waitpid(child, &status, 0) == child && !status &&
		   all_read(),
	   what);
}

/* Is the page of the file at this address of memory on the active list? */
static bool is_active(const volatile char *page, int places, int flags)
{
	const uint64_t active = 1 << 6, mask = ((uint64_t)1 << 55) - 1;
	uint64_t place = 0, flag = 0;
	/* Without a first read there is no place. */
	char first = *page;

	(void)first;
	if (pread(places, &place, 8,
		  (uintptr_t)page / sysconf(_SC_PAGESIZE) * 8) != 8 ||
	    pread(flags, &flag, 8, (place & mask) * 8) != 8)
		return false;
	return flag & active;
}

/* Counts the files whose first page is on the active list. */
static int count_active(int places, int flags)
{
	int count = 0, n, fd;
	void *page;

	for (n = 0; n < FILES; n++) {
		fd = open(names[n], O_RDONLY | O_NOATIME);
		page = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
		close(fd);
		if (page == MAP_FAILED)
			continue;
		count += is_active(page, places, flags);
		munmap(page, 1);
	}
	return count;
}

/* Data that is protected goes to the active list, and only this. */
static void test_protect(void)
{
	int places = open("/proc/self/pagemap", O_RDONLY);
	int flags = open("/proc/kpageflags", O_RDONLY);
	int files[FILES], n, pass, count[2] = { 0 };
	struct dorder_mapped mapped;
	bool asked = false;

	if (places < 0 || flags < 0 || geteuid() ||
	    !access("/sys/kernel/mm/lru_gen/enabled", F_OK)) {
		printf("# SKIP: the kernel does not show the active list\n");
		return;
	}
	for (pass = 0; pass < 2; pass++) {
		if (!forget()) {
			printf("# SKIP: the file system keeps all in memory\n");
			return;
		}
		for (n = 0; n < FILES; n++)
			files[n] = open(names[n], O_RDONLY);
		dorder_read_run(files, sizes, FILES, &asked,
				pass ? &mapped : NULL);
		if (pass)
			dorder_protect(&mapped);
		for (n = 0; n < FILES; n++)
			close(files[n]);
		ok(all_read(), pass ? "protected" : "not protected");
		count[pass] = count_active(places, flags);
	}
	printf("# active: %d, %d of %d\n", count[0], count[1], FILES);
	/* The kernel moves pages in batches: not all of them are there yet. */
	ok(count[0] < FILES / 4 && count[1] > FILES / 2, "active");
}

int main(int argc, char **argv)
{
	char data[20000];
	int n, fd;

	memset(data, 'x', sizeof(data));
	for (n = 0; n < FILES; n++) {
		snprintf(names[n], sizeof(names[n]), "%s/test_merge.XXXXXX",
			 argc > 2 ? argv[2] : ".");
		fd = mkstemp(names[n]);
		sizes[n] = 1 + n * 499;
		if (fd < 0 || fchmod(fd, 0666) ||
		    write(fd, data, sizes[n]) != (ssize_t)sizes[n] || fsync(fd))
			abort();
		close(fd);
	}
	test_run(O_RDONLY, false, false, false, "mapped");
	test_run(O_RDONLY | O_NOATIME, false, false, false, "with O_NOATIME");
	test_run(O_WRONLY, false, false, true, "mapping is refused");
	test_run(O_RDONLY, false, true, false, "no address space");
	if (!geteuid())
		test_run(O_RDONLY, true, false, false, "files of others");
	test_protect();
	for (n = 0; n < FILES; n++)
		unlink(names[n]);
	printf("1..%d\n", tests);
	return bad != 0;
}
