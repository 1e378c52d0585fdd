// SPDX-License-Identifier: GPL-2.0-only
/*
 * switch_itree.c --- set or clear the itree feature of a mounted file system
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "config.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>

#include "ext2fs/itree_ioctl.h"
#include "ext4_sysfs.h"
#endif

#include "switch_itree.h"
#include "support/nls-enable.h"

#ifdef __linux__

static int read_counter(FILE *f, unsigned long long *count)
{
	rewind(f);
	return fscanf(f, "%llu", count) == 1;
}

/* The kernel does it all in one call, so a child shows the progress. */
static pid_t show_progress(int fd)
{
	unsigned long long first, now;
	FILE	*f;
	pid_t	parent = getpid(), pid;

	if (!isatty(STDERR_FILENO))
		return -1;
	f = ext4_sysfs_open(fd, "itree_drops");
	if (!f)
		return -1;
	setbuf(f, NULL);
	pid = fork();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* The parent may have died before that. */
		if (getppid() != parent || !read_counter(f, &first))
			_exit(0);
		while (sleep(1) == 0 && read_counter(f, &now))
			fprintf(stderr, _("\rreading inode tables, %llu itrees "
					  "dropped"), now - first);
		_exit(0);
	}
	fclose(f);
	return pid;
}

static void end_progress(pid_t pid)
{
	if (pid < 0)
		return;
	kill(pid, SIGKILL);
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
	fputs("\r\033[K", stderr);
}

static const char *what_to_do(int err, const struct ext4_itree_args *a)
{
	switch (err) {
	case ENOTTY:
	case EINVAL:
		return _("this kernel can do that only while the file system "
			 "is unmounted");
	case EOPNOTSUPP:
	case EUCLEAN:
		return a->ia_why[0] ? a->ia_why : strerror(err);
	case EBUSY:
		return _("another change of the feature, a build of an itree "
			 "or an online resize is under way; try again later");
	case EROFS:
		return _("it is mounted read-only");
	}
	return strerror(err);
}

int switch_itree_mounted(const char *mntpt, int on)
{
	struct ext4_itree_args a;
	int	fd, err;
	pid_t	progress;

	if (!mntpt[0]) {
		fputs(_("tune2fs: the file system is mounted where this "
			"process cannot see it; its itree feature is "
			"unchanged.  Run tune2fs where it is mounted.\n"),
		      stderr);
		return 1;
	}
	fd = open(mntpt, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0) {
		fprintf(stderr, _("tune2fs: mount point %s cannot be opened: "
				  "%s.  The itree feature is unchanged.\n"),
			mntpt, strerror(errno));
		return 1;
	}
	progress = show_progress(fd);
	/* Restart it after a signal that does not end this program. */
	do {
		memset(&a, 0, sizeof(a));
		a.ia_version = EXT4_ITREE_IOC_VERSION;
		a.ia_op = on ? EXT4_ITREE_OP_ON : EXT4_ITREE_OP_OFF;
		err = ioctl(fd, EXT4_IOC_ITREE, &a) ? errno : 0;
	} while (err == EINTR);
	end_progress(progress);
	close(fd);
	if (err) {
		fprintf(stderr, on ?
			_("tune2fs: the itree feature of %s could not be set: "
			  "%s.\n") :
			_("tune2fs: the itree feature of %s could not be "
			  "cleared: %s.\n"), mntpt, what_to_do(err, &a));
		return 1;
	}
	if (!on && a.ia_keys)
		printf(_("Dropped the itrees of %llu directories.\n"),
		       (unsigned long long) a.ia_keys);
	else if (on && (a.ia_state & EXT4_ITREE_CHANGED))
		printf(_("Directories get an itree as they grow; e4itree build "
			 "-r %s builds those of directories that are large "
			 "already.\n"), mntpt);
	return 0;
}

#else /* !__linux__ */

int switch_itree_mounted(const char *mntpt, int on)
{
	(void) on;
	fprintf(stderr, _("tune2fs: the itree feature may only be set or "
			  "cleared while %s is unmounted.\n"), mntpt);
	return 1;
}

#endif
