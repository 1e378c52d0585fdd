// SPDX-License-Identifier: GPL-2.0-only
/*
 * ext4_sysfs.c --- attributes of a mounted file system in /sys
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "config.h"
#include <limits.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/types.h>
#endif

#include "ext4_sysfs.h"

FILE *ext4_sysfs_open(int fd, const char *attr)
{
#ifdef __linux__
	static const char * const types[] = { "ext4", "ext4itree" };
	char	link[64], target[PATH_MAX], path[2 * PATH_MAX], *name;
	struct stat st;
	ssize_t	len;
	FILE	*f;
	size_t	i;

	if (fstat(fd, &st))
		return NULL;
	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u",
		 major(st.st_dev), minor(st.st_dev));
	len = readlink(link, target, sizeof(target) - 1);
	if (len < 0)
		return NULL;
	target[len] = 0;
	name = strrchr(target, '/');
	for (i = 0; name && i < sizeof(types) / sizeof(types[0]); i++) {
		snprintf(path, sizeof(path), "/sys/fs/%s%s/%s", types[i], name,
			 attr);
		f = fopen(path, "r");
		if (f)
			return f;
	}
#else
	(void) fd;
	(void) attr;
#endif
	return NULL;
}
