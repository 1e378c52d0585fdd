// SPDX-License-Identifier: GPL-2.0-only
/*
 * Preloaded into e4itree: answers EXT4_IOC_ITREE as kernel/fs/ext4 does, for
 * one directory of 100 blocks that is not there.
 *
 *  ITREE_FAKE_TREE    none, good, or bad: a root that breaks a rule on disk,
 *                     of which the kernel has taken no notice yet
 *  ITREE_FAKE_EINTR   so many calls are ended by a signal
 *  ITREE_FAKE_SIGNAL  that signal's number; it is really sent
 *  ITREE_FAKE_BUILT   bad: what a build makes is found bad at once
 *                     gone: it is dropped by somebody else at once
 *                     other: somebody else's build comes first
 *  ITREE_FAKE_OTHER   1: the caller does not own the directory
 *  ITREE_FAKE_LOG     gets a line for each call: operation, flags, seconds
 *                     until an alarm that e4itree has set
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "itree_ioctl.h"

static enum { NONE, GOOD, BAD } tree;
static long interrupts;

static const char *text(const char *name)
{
	const char *value = getenv(name);

	return value ? value : "";
}

static void start(void)
{
	static int started;

	if (started++)
		return;
	tree = !strcmp(text("ITREE_FAKE_TREE"), "good")	 ? GOOD
	       : !strcmp(text("ITREE_FAKE_TREE"), "bad") ? BAD
							 : NONE;
	interrupts = atol(text("ITREE_FAKE_EINTR"));
}

static void note(const struct ext4_itree_args *a)
{
	FILE *log = fopen(text("ITREE_FAKE_LOG"), "a");

	if (!log)
		abort();
	fprintf(log, "%u %u %u\n", a->ia_op, a->ia_flags, alarm(0));
	fclose(log);
}

static int interrupted(void)
{
	if (!interrupts)
		return 0;
	interrupts--;
	raise(atoi(text("ITREE_FAKE_SIGNAL")));
	return EINTR;
}

static int build(struct ext4_itree_args *a)
{
	const char *then = text("ITREE_FAKE_BUILT");

	if (!strcmp(then, "other"))
		tree = GOOD;
	if (tree != NONE && !(a->ia_flags & EXT4_ITREE_FORCE))
		return 0;
	tree = NONE;
	if (interrupted())
		return EINTR;
	tree = !strcmp(then, "bad") ? BAD : !strcmp(then, "gone") ? NONE : GOOD;
	a->ia_state |= EXT4_ITREE_CHANGED;
	return 0;
}

static int drop(struct ext4_itree_args *a)
{
	if (tree != NONE)
		a->ia_state |= EXT4_ITREE_CHANGED;
	tree = NONE;
	return interrupted();
}

static void look(struct ext4_itree_args *a)
{
	a->ia_block_size = 4096;
	a->ia_dir_blocks = 100;
	a->ia_state |= EXT4_ITREE_POSSIBLE;
	if (tree == NONE)
		return;
	a->ia_state |= EXT4_ITREE_HAS_TREE;
	if (tree == BAD) {
		a->ia_state |= EXT4_ITREE_BAD;
		strcpy(a->ia_why, "bad magic number");
		return;
	}
	a->ia_keys = a->ia_names = 1234;
	a->ia_depth = 2;
	a->ia_blocks = 5;
}

static int answer(struct ext4_itree_args *a)
{
	int plain = a->ia_op == EXT4_ITREE_OP_STAT && !a->ia_flags;
	int err = 0;

	if (!plain && !strcmp(text("ITREE_FAKE_OTHER"), "1"))
		return EPERM;
	if (a->ia_state || a->ia_keys)
		abort(); /* not made anew */
	if (a->ia_op == EXT4_ITREE_OP_BUILD)
		err = build(a);
	else if (a->ia_op == EXT4_ITREE_OP_DROP)
		err = drop(a);
	else if (!plain)
		err = interrupted();
	if (!err)
		look(a);
	else
		memset(&a->ia_state, 0xff, sizeof(a->ia_state));
	return err;
}

int ioctl(int fd, unsigned long request, ...)
{
	static int (*next)(int, unsigned long, ...);
	va_list list;
	void *arg;
	int err;

	va_start(list, request);
	arg = va_arg(list, void *);
	va_end(list);
	if (!next)
		next = dlsym(RTLD_NEXT, "ioctl");
	if (request != EXT4_IOC_ITREE)
		return next(fd, request, arg);
	start();
	note(arg);
	err = answer(arg);
	errno = err;
	return err ? -1 : 0;
}
