// SPDX-License-Identifier: GPL-2.0-only
/*
 * Preloaded into a program: sends it a signal right before it writes to a
 * file for the Nth time.  ITREE_STOP_AT is N (0: never), ITREE_STOP_SIGNAL
 * the signal's number; how many writes there were is told in the file
 * ITREE_STOP_COUNT, if the program gets that far.
 *
 * libext2fs writes by these calls alone, so each N is one state that a
 * program killed at any time can leave on the device, and each state has an N.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

static atomic_long writes;

static long number(const char *name)
{
	const char *text = getenv(name);

	return text ? strtol(text, NULL, 10) : 0;
}

static void count(void)
{
	if (atomic_fetch_add(&writes, 1) + 1 == number("ITREE_STOP_AT"))
		raise((int)number("ITREE_STOP_SIGNAL"));
}

ssize_t pwrite64(int fd, const void *buf, size_t size, off64_t at)
{
	static ssize_t (*next)(int, const void *, size_t, off64_t);

	if (!next)
		next = dlsym(RTLD_NEXT, "pwrite64");
	count();
	return next(fd, buf, size, at);
}

ssize_t pwrite(int fd, const void *buf, size_t size, off_t at)
{
	return pwrite64(fd, buf, size, at);
}

int fallocate64(int fd, int mode, off64_t at, off64_t size)
{
	static int (*next)(int, int, off64_t, off64_t);

	if (!next)
		next = dlsym(RTLD_NEXT, "fallocate64");
	count();
	return next(fd, mode, at, size);
}

int fallocate(int fd, int mode, off_t at, off_t size)
{
	return fallocate64(fd, mode, at, size);
}

__attribute__((destructor)) static void tell(void)
{
	const char *path = getenv("ITREE_STOP_COUNT");
	FILE *out = path ? fopen(path, "w") : NULL;

	if (!out)
		return;
	fprintf(out, "%ld\n", atomic_load(&writes));
	fclose(out);
}
