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
		dorder_read_run(files, sizes, FILES, &asked);
		_exit(asked != refused);
	}
	ok(child > 0 && waitpid(child, &status, 0) == child && !status &&
		   all_read(),
	   what);
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
	for (n = 0; n < FILES; n++)
		unlink(names[n]);
	printf("1..%d\n", tests);
	return bad != 0;
}
