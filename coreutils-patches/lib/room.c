// SPDX-License-Identifier: LGPL-2.0-or-later
/* Available memory, allocating pages, and how many files may be open. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Long enough for the lines that matter; the rest of a file is not read. */
#define TEXT 4096

/* Reads the start of a file as text, less than TEXT - 1 bytes; 0 or -1. */
static int read_text(const char *path, char *text)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, text, TEXT - 2);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0 ? 0 : -1;
}

static void lower(size_t *room, unsigned long long bytes)
{
	if (bytes < *room)
		*room = bytes;
}

/* The file names of a limit in control groups, version 2 or 1. */
struct kind {
	const char *line, *top; /* in /proc/self/cgroup; mount point */
	const char *limit, *used;
	const char *kernel; /* its usage is mostly inodes and names; or NULL */
	const char *const *stat; /* reclaimable memory in memory.stat */
};

/* Reads a number from a file of a control group; false: none, or "max". */
static bool number(const char *folder, const char *name,
		   unsigned long long *value)
{
	char file[3 * TEXT], text[TEXT], *end;

	snprintf(file, sizeof(file), "%s/%s", folder, name);
	if (read_text(file, text))
		return false;
	errno = 0;
	*value = strtoull(text, &end, 10);
	return end != text && !errno;
}

/* Bytes of a control group that cannot be reclaimed; 0 if unknown. */
static unsigned long long kept(const char *folder, const struct kind *kind)
{
	unsigned long long used, part;
	char file[3 * TEXT], text[TEXT];
	const char *const *key;
	const char *at;

	if (!number(folder, kind->used, &used))
		return 0;
	snprintf(file, sizeof(file), "%s/memory.stat", folder);
	text[0] = '\n';
	if (read_text(file, text + 1))
		text[1] = '\0';
	if (kind->kernel && number(folder, kind->kernel, &part))
		used -= part < used ? part : used;
	for (key = kind->stat; *key; key++) {
		at = strstr(text, *key);
		part = at ? strtoull(at + strlen(*key), NULL, 10) : 0;
		used -= part < used ? part : used;
	}
	return used;
}

/* Lowers *room to what a control group and its ancestors still allow. */
static void group(size_t *room, const char *top, char *path,
		  const struct kind *kind)
{
	unsigned long long limit, used;
	char folder[2 * TEXT], *slash;

	for (;;) {
		snprintf(folder, sizeof(folder), "%s%s", top, path);
		if (number(folder, kind->limit, &limit)) {
			used = kept(folder, kind);
			lower(room, limit - (used < limit ? used : limit));
		}
		slash = strrchr(path, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* Lowers *room to what the control groups of this process still allow. */
static void groups(size_t *room, const char *root)
{
	static const char *const stat[] = { "\ninactive_file ",
					    "\nactive_file ",
					    "\nslab_reclaimable ", NULL };
	/* Without "total_", the values exclude the group's descendants. */
	static const char *const old_stat[] = { "\ntotal_inactive_file ",
						"\ntotal_active_file ", NULL };
	static const struct kind kinds[] = {
		{ "0::", "/sys/fs/cgroup", "memory.max", "memory.current", NULL,
		  stat },
		{ "0::", "/sys/fs/cgroup", "memory.high", "memory.current",
		  NULL, stat },
		{ ":memory:", "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
		  "memory.usage_in_bytes", "memory.kmem.usage_in_bytes",
		  old_stat },
	};
	char text[TEXT], path[TEXT], top[TEXT];
	const char *at, *end;
	size_t n;

	snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
	if (read_text(path, text))
		return;
	for (n = 0; n < sizeof(kinds) / sizeof(*kinds); n++) {
		at = strstr(text, kinds[n].line);
		if (!at)
			continue;
		at += strlen(kinds[n].line);
		end = strchrnul(at, '\n');
		memcpy(path, at, end - at);
		path[end - at] = '\0';
		snprintf(top, sizeof(top), "%s%s", root, kinds[n].top);
		group(room, top, path, &kinds[n]);
	}
}

size_t dorder_room_at(const char *root)
{
	size_t room = SIZE_MAX;
	char path[TEXT], text[TEXT];
	const char *found;
	int saved = errno;

	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	if (!read_text(path, text)) {
		found = strstr(text, "\nMemAvailable:");
		if (found)
			lower(&room, 1024 * strtoull(found + 14, NULL, 10));
	}
	groups(&room, root);
	errno = saved;
	return room;
}

size_t dorder_room(void)
{
	return dorder_room_at("");
}

size_t dorder_handles_at(const char *root)
{
	unsigned long long used, unused, most;
	char path[TEXT], text[TEXT];
	size_t files = SIZE_MAX;
	int saved = errno;

	snprintf(path, sizeof(path), "%s/proc/sys/fs/file-nr", root);
	if (!read_text(path, text) &&
	    sscanf(text, "%llu %llu %llu", &used, &unused, &most) == 3) {
		files = 0;
		if (most > used)
			files = (most - used) / 4;
	}
	errno = saved;
	return files;
}

size_t dorder_handles(void)
{
	return dorder_handles_at("");
}

void *dorder_pages(size_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return memory == MAP_FAILED ? NULL : memory;
}

void dorder_pages_free(void *memory, size_t size)
{
	if (memory)
		munmap(memory, size);
}
