// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Tests the C library's directory functions on a directory of FILES names, from
 * several threads at once, in forked children, and through every entry point.
 * usage: test_preload DIRECTORY FILES [sorted]; prints TAP.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tap.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* readdir_r */

static const char *path;
static long files;
static bool sorted;

struct sum {
	long names, drops;
	unsigned long hash; /* the same for the same names in any order */
	ino_t last;
};

static unsigned long hash_of(const char *name)
{
	unsigned long h = 5381;

	while (*name)
		h = h * 33 ^ (unsigned char)*name++;
	return h * h;
}

static void add(struct sum *s, const struct dirent *d)
{
	if (!strcmp(d->d_name, ".") || !strcmp(d->d_name, ".."))
		return;
	s->names++;
	s->hash += hash_of(d->d_name);
	s->drops += d->d_ino < s->last;
	s->last = d->d_ino;
}

static struct sum rest(DIR *dir)
{
	struct sum s = { 0 };
	struct dirent *d;

	errno = 0;
	while ((d = readdir(dir)))
		add(&s, d);
	if (errno)
		s.names = -1;
	return s;
}

static struct sum whole;

static bool right(struct sum s)
{
	return s.names == files && s.hash == whole.hash &&
	       (!sorted || s.drops <= 2);
}

/* Stop, tell, read on, seek back: the same names must follow. */
static bool back_and_forth(unsigned int seed)
{
	DIR *dir = opendir(path);
	bool good = dir;
	int round;

	for (round = 0; good && round < 20; round++) {
		long stop = rand_r(&seed) % files, n, place;
		struct sum before = { 0 }, once, again;

		rewinddir(dir);
		for (n = 0; n < stop; n++)
			add(&before, readdir(dir));
		place = telldir(dir);
		once = rest(dir);
		seekdir(dir, place);
		again = rest(dir);
		good = once.names == again.names && once.hash == again.hash &&
		       before.names + once.names == files &&
		       before.hash + once.hash == whole.hash;
	}
	if (dir)
		closedir(dir);
	return good;
}

static void *thread(void *arg)
{
	return (void *)(long)back_and_forth((unsigned int)(long)arg);
}

static DIR *shared;

/* Threads share one stream: each name goes to one of them. */
static void *reader(void *arg)
{
	struct sum *s = arg;
	struct dirent entry, *d;

	while (!readdir_r(shared, &entry, &d) && d)
		add(s, d);
	return NULL;
}

static int only_a(const struct dirent *d)
{
	return d->d_name[0] == 'a';
}

static void test_scandir(void)
{
	struct dirent **list;
	struct sum s = { 0 };
	int n, count, fd;
	bool good = true;

	count = scandir(path, &list, NULL, alphasort);
	for (n = 0; n < count; n++) {
		good &= !n ||
			strcoll(list[n - 1]->d_name, list[n]->d_name) <= 0;
		add(&s, list[n]);
	}
	for (n = 0; n < count; n++)
		free(list[n]);
	free(list);
	ok(good && s.names == files && s.hash == whole.hash,
	   "scandir sorts by name with alphasort");
	fd = open("/", O_RDONLY | O_DIRECTORY);
	count = scandirat(fd, path + 1, &list, only_a, NULL);
	for (good = count > 0, n = 0; n < count; n++) {
		good &= list[n]->d_name[0] == 'a';
		free(list[n]);
	}
	free(list);
	close(fd);
	ok(good, "scandirat, with a filter");
	ok(scandir("/nowhere/at all", &list, NULL, NULL) == -1 &&
		   errno == ENOENT,
	   "scandir of a missing directory");
}

/* The names that were read before a directory was removed, and no error. */
static bool removed(int read)
{
	char top[4096], name[5000];
	bool good = true;
	struct sum s;
	DIR *dir;
	int fd, n;

	snprintf(top, sizeof(top), "%s-XXXXXX", path);
	if (!mkdtemp(top))
		return false;
	for (n = 0; n < 100; n++) {
		snprintf(name, sizeof(name), "%s/%d", top, n);
		fd = open(name, O_WRONLY | O_CREAT, 0600);
		good &= fd >= 0 && !close(fd);
	}
	dir = opendir(top);
	for (n = 0; dir && n < read; n++)
		good &= readdir(dir) != NULL;
	for (n = 0; n < 100; n++) {
		snprintf(name, sizeof(name), "%s/%d", top, n);
		good &= !unlink(name);
	}
	good &= !rmdir(top) && dir;
	if (!dir)
		return false;
	s = rest(dir);
	good &= read ? s.names >= 100 - read : s.names == 0;
	return !closedir(dir) && good;
}

int main(int argc, char **argv)
{
	pthread_t threads[4];
	struct sum sums[4] = { { 0 } }, all = { 0 };
	bool good = true;
	DIR *dir;
	void *result;
	long n;
	int fd, status;
	pid_t pid;

	if (argc < 3)
		return 2;
	path = argv[1];
	files = atol(argv[2]);
	sorted = argc > 3;
	dir = opendir(path);
	if (!dir)
		return 2;
	whole = rest(dir);
	ok(right(whole), "opendir, readdir");
	ok(!readdir(dir), "the end stays the end");
	rewinddir(dir);
	ok(right(rest(dir)), "rewinddir");
	fd = dirfd(dir);
	ok(fd >= 0 && !closedir(dir) && fcntl(fd, F_GETFD) < 0, "closedir");

	fd = open(path, O_RDONLY | O_DIRECTORY);
	dir = fdopendir(fd);
	ok(dir && dirfd(dir) == fd && right(rest(dir)), "fdopendir");
	closedir(dir);
	ok(!opendir("/nowhere/at all") && errno == ENOENT,
	   "opendir of a missing directory");

	ok(back_and_forth(1), "telldir, seekdir");
	for (n = 0; n < 4; n++)
		pthread_create(threads + n, NULL, thread, (void *)(n + 2));
	pid = fork();
	if (!pid)
		_exit(!back_and_forth(9));
	for (n = 0; n < 4; n++) {
		pthread_join(threads[n], &result);
		good &= result != NULL;
	}
	ok(good, "telldir, seekdir in four threads");
	waitpid(pid, &status, 0);
	ok(status == 0, "and in a child forked from among them");

	shared = opendir(path);
	for (n = 0; n < 4; n++)
		pthread_create(threads + n, NULL, reader, sums + n);
	for (n = 0; n < 4; n++) {
		pthread_join(threads[n], NULL);
		all.names += sums[n].names;
		all.hash += sums[n].hash;
	}
	closedir(shared);
	ok(all.names == files && all.hash == whole.hash,
	   "one stream read by four threads with readdir_r");
	test_scandir();
	ok(removed(0), "a directory that was removed ends");
	ok(removed(1), "and names read before come");
	printf("1..%d\n", tests);
	return bad != 0;
}
