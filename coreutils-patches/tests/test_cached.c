// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Whether a file is in memory, against files in DIRECTORY.
 * Prints TAP.  usage: test_cached [SEED [DIRECTORY]]; the seed is not used.
 */
#include "../lib/diskorder.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A file just written is in memory; put out of it, it is not. */
static void test_cached(const char *where)
{
	char name[4096], data[70000] = "x";
	int fd;

	snprintf(name, sizeof(name), "%s/test_cached.XXXXXX", where);
	fd = mkstemp(name);
	ok(fd >= 0 && write(fd, data, sizeof(data)) == sizeof(data) &&
		   fsync(fd) == 0,
	   "a file to try");
	ok(dorder_cached(fd, sizeof(data)) == 1, "written: in memory");
	ok(dorder_cached(fd, 0) == 0, "empty: nothing in memory");
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	errno = 7;
	if (dorder_cached(fd, sizeof(data)) == 1)
		printf("# SKIP: the file system at %s keeps all in memory\n",
		       where);
	else
		ok(errno == 7, "dropped: not in memory, errno stays");
	ok(pread(fd, data, 1, 0) == 1 && pread(fd, data, 1, 65536) == 1 &&
		   pread(fd, data, sizeof(data), 0) == sizeof(data) &&
		   dorder_cached(fd, sizeof(data)) == 1,
	   "read: in memory");
	errno = 7;
	dorder_will_not_read(NULL, fd);
	if (dorder_cached(fd, sizeof(data)) == 1)
		printf("# SKIP: the file system at %s keeps all in memory\n",
		       where);
	else
		ok(errno == 7, "not wanted any longer: not in memory");
	ok(pread(fd, data, 1, 0) == 1 &&
		   posix_fadvise(fd, 4096, 0, POSIX_FADV_DONTNEED) == 0 &&
		   dorder_cached(fd, sizeof(data)) != 0,
	   "a part: not out of it");
	close(fd);
	unlink(name);
	ok(dorder_cached(fd, 1) == -1, "closed");
}

/*
 * What nobody, who may only read, is told about a file: 0, 1 or 3 (nothing for
 * sure); -1: cannot try.
 */
static int told_nobody(const char *name, off_t size)
{
	pid_t child = fork();
	int status, fd;

	if (!child) {
		fd = open(name, O_RDONLY);
		if (fd < 0 || setuid(65534))
			_exit(2);
		_exit(dorder_cached(fd, size) & 3);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status) == 2 ? -1 : WEXITSTATUS(status);
}

/*
 * Kernels tell about files of others to nobody (6.14), or to none (before
 * 6.5): what is done instead leaves times of access as they are.
 */
static void test_other_owner(const char *where)
{
	char name[4096], data[70000] = "x";
	struct timespec times[2] = { { 0, 0 }, { 1000, 0 } };
	struct iovec to = { data, 1 };
	struct statvfs fs;
	struct stat st;
	int fd, told;

	if (geteuid()) {
		printf("# SKIP: only root can be somebody else\n");
		return;
	}
	snprintf(name, sizeof(name), "%s/test_cached.XXXXXX", where);
	fd = mkstemp(name);
	times[0].tv_sec = 500; /* before it changed: reading would show */
	ok(fd >= 0 && fchmod(fd, 0644) == 0 &&
		   write(fd, data, sizeof(data)) == sizeof(data) &&
		   fsync(fd) == 0 && fstatvfs(fd, &fs) == 0 &&
		   futimens(fd, times) == 0,
	   "a file of root's");
	told = told_nobody(name, sizeof(data));
	ok(told >= 0 && fstat(fd, &st) == 0 && st.st_atime == 500,
	   "its time of access stays");
	times[0].tv_sec = time(NULL) + 100;
	ok(futimens(fd, times) == 0, "read since it changed");
	told = told_nobody(name, sizeof(data));
	if (preadv2(fd, &to, 1, 0, RWF_NOWAIT) != 1)
		printf("# SKIP: %s does not know RWF_NOWAIT\n", where);
	else if (fs.f_flag & (ST_NOATIME | ST_RELATIME))
		ok(told == 1, "written: in memory");
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	/* RWF_NOWAIT starts reading, which may be done before it is asked. */
	if (!dorder_cached(fd, sizeof(data)))
		ok(!told_nobody(name, sizeof(data)) ||
			   dorder_cached(fd, sizeof(data)),
		   "dropped: not in memory, unless it was read since");
	ok(fstat(fd, &st) == 0 && st.st_atime == times[0].tv_sec,
	   "its time of access stays");
	close(fd);
	unlink(name);
}

int main(int argc, char **argv)
{
	test_cached(argc > 2 ? argv[2] : ".");
	test_other_owner(argc > 2 ? argv[2] : ".");
	printf("1..%d\n", tests);
	return bad != 0;
}
