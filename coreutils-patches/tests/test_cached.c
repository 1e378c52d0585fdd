// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Tests whether a file is in memory, with files in DIRECTORY.
 * Prints TAP.  usage: test_cached [SEED [DIRECTORY]]; the seed is not used.
 */
#include "../lib/diskorder.h"
#include "tap.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A file is in memory after it was written, and not after it was dropped. */
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
		ok(errno == 7, "dropped: not in memory, errno unchanged");
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
		ok(errno == 7, "not needed any longer: not in memory");
	ok(pread(fd, data, 1, 0) == 1 &&
		   posix_fadvise(fd, 4096, 0, POSIX_FADV_DONTNEED) == 0 &&
		   dorder_cached(fd, sizeof(data)) != 0,
	   "partly in memory");
	close(fd);
	unlink(name);
	ok(dorder_cached(fd, 1) == -1, "closed");
}

/* All that is requested is read, and exactly that is reported. */
static void test_will_read(const char *where)
{
	char name[4096], *data = calloc(1, DORDER_AHEAD_FILE);
	size_t asked;
	int fd, n;

	snprintf(name, sizeof(name), "%s/test_cached.XXXXXX", where);
	fd = mkstemp(name);
	memset(data, 'x', DORDER_AHEAD_FILE);
	ok(fd >= 0 && data && write(fd, data, DORDER_AHEAD_FILE) > 0 &&
		   fsync(fd) == 0,
	   "a file of a MiB");
	free(data);
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (dorder_cached(fd, DORDER_AHEAD_FILE)) {
		printf("# SKIP: the file system at %s keeps all in memory\n",
		       where);
	} else {
		asked = dorder_will_read(fd, 4 << 20, DORDER_AHEAD_FILE);
		ok(asked == DORDER_AHEAD_FILE, "all of it is asked for");
		/* 30 s: the disk may be busy with others. */
		for (n = 0; n < 3000 && dorder_cached(fd, asked) != 1; n++)
			usleep(10000);
		ok(dorder_cached(fd, asked) == 1, "and read");
	}
	ok(!dorder_will_read(fd, 0, 10) && !dorder_will_read(fd, 10, 0) &&
		   !dorder_will_read(-1, 10, 10),
	   "nothing to read");
	close(fd);
	unlink(name);
}

/* Installs a system call filter that hides cachestat(2). */
static int hide_cachestat(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 451, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* Who checks a file: root or nobody, on a kernel with or without cachestat. */
enum who { NOBODY = 1, FILTERED = 2, OLD = 4 };

/* The answer, 0 to 3 (3: unknown).  4: the flags changed.  -1: not tested. */
static int answer(const char *name, off_t size, int who)
{
	pid_t child = fork();
	int status, fd, flags, found;

	if (!child) {
		/* The child must not print results of tests. */
		fd = open(name, O_RDONLY);
		if (fd < 0 || (who & NOBODY && setuid(65534)) ||
		    (who & OLD && personality(UNAME26) < 0) ||
		    (who & (OLD | FILTERED) && hide_cachestat()))
			_exit(100);
		flags = fcntl(fd, F_GETFL);
		found = dorder_cached(fd, size) & 3;
		_exit(flags == fcntl(fd, F_GETFL) ? found : 4);
	}
	if (child < 0 || waitpid(child, &status, 0) < 0 || !WIFEXITED(status))
		return -1;
	return WEXITSTATUS(status) == 100 ? -1 : WEXITSTATUS(status);
}

/*
 * cachestat(2) refuses files of others (6.14), or does not exist (before 6.5,
 * or under a system call filter).  Times of access, flags and what is in memory
 * must not change.
 */
static void test_without_cachestat(const char *where)
{
	static const int whos[] = { NOBODY, FILTERED, NOBODY | FILTERED, OLD,
				    NOBODY | OLD };
	char name[4096], data[70000] = "x", what[80];
	struct timespec times[2] = { { 0, 0 }, { 1000, 0 } };
	struct stat st;
	int fd, got;
	size_t n;

	if (geteuid()) {
		printf("# SKIP: only root can become another user\n");
		return;
	}
	snprintf(name, sizeof(name), "%s/test_cached.XXXXXX", where);
	fd = mkstemp(name);
	times[0].tv_sec = 500; /* before its change: reading updates it */
	ok(fd >= 0 && fchmod(fd, 0644) == 0 &&
		   write(fd, data, sizeof(data)) == sizeof(data) &&
		   fsync(fd) == 0 && futimens(fd, times) == 0,
	   "a file of root's");
	for (n = 0; n < sizeof(whos) / sizeof(*whos); n++) {
		got = answer(name, sizeof(data), whos[n]);
		snprintf(what, sizeof(what), "in memory, asked as %d: %d",
			 whos[n], got);
		ok(got == 1 || (got == 3 && whos[n] != OLD), what);
		ok(fstat(fd, &st) == 0 && st.st_atime == 500,
		   "its time of access stays");
	}
	/* Read since it changed: relatime would let anybody read it unseen. */
	times[0].tv_sec = time(NULL) + 100;
	ok(futimens(fd, times) == 0, "read since it changed");
	for (n = 0; n < sizeof(whos) / sizeof(*whos); n++) {
		/* A kernel that only claims to be old starts reading. */
		if (whos[n] & OLD)
			continue;
		(void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
		if (dorder_cached(fd, sizeof(data)))
			continue;
		got = answer(name, sizeof(data), whos[n]);
		usleep(20000);
		snprintf(what, sizeof(what),
			 "dropped, asked as %d: %d, not read", whos[n], got);
		ok((got == 0 || got == 3) && !dorder_cached(fd, sizeof(data)),
		   what);
	}
	ok(fstat(fd, &st) == 0 && st.st_atime == times[0].tv_sec,
	   "its time of access stays");
	close(fd);
	unlink(name);
}

int main(int argc, char **argv)
{
	test_cached(argc > 2 ? argv[2] : ".");
	test_will_read(argc > 2 ? argv[2] : ".");
	test_without_cachestat(argc > 2 ? argv[2] : ".");
	printf("1..%d\n", tests);
	return bad != 0;
}
