// SPDX-License-Identifier: LGPL-2.0-or-later
/* How much memory there is to keep things in, that memory, and how many files may be open. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Long enough for the lines that matter; the rest of a file is left unread. */
#define TEXT 4096

/* Read the start of a file as text; 0 or -1. */
static int read_text(const char *path, char text[TEXT])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -1;
	n = read(fd, text, TEXT - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	return n > 0 ? 0 : -1;
}

static void lower(size_t *room, unsigned long long bytes)
{
	if (bytes < *room)
		*room = bytes;
}

/* The limits in a control group and in all above it; "max" is none. */
static void group(size_t *room, const char *top, char *path, const char *name)
{
	char file[2 * TEXT], text[TEXT], *slash;
	unsigned long long bytes;
	char *end;

	for (;;) {
		snprintf(file, sizeof(file), "%s%s/%s", top, path, name);
		if (!read_text(file, text)) {
			errno = 0;
			bytes = strtoull(text, &end, 10);
			if (end != text && !errno)
				lower(room, bytes);
		}
		slash = strrchr(path, '/');
		if (!slash)
			return;
		*slash = '\0';
	}
}

/* What control groups allow this process; as many names as there are kinds. */
static void groups(size_t *room, const char *root)
{
	static const struct {
		const char *line, *top, *name;
	} kinds[] = {
		{ "0::", "/sys/fs/cgroup", "memory.max" },
		{ "0::", "/sys/fs/cgroup", "memory.high" },
		{ ":memory:", "/sys/fs/cgroup/memory",
		  "memory.limit_in_bytes" },
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
		group(room, top, path, kinds[n].name);
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
