/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A list of names, one a line, for programs that ask for the files of a
 * directory by name. It is read before the directory is touched, so that the
 * trace holds the accesses alone. PROGRAM is what messages begin with.
 */
#ifndef BENCH_NAMES_H
#define BENCH_NAMES_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", PROGRAM, what, strerror(errno));
	exit(1);
}

static uint64_t parse_number(const char *text)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-') {
		fprintf(stderr, "%s: '%s' is not a number\n", PROGRAM, text);
		exit(2);
	}
	return value;
}

/* All of the file, ended by a zero; the caller frees it. */
static char *read_all(const char *path, size_t *size)
{
	struct stat st;
	size_t done = 0;
	char *text;
	ssize_t n;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st))
		die(path);
	*size = (size_t)st.st_size;
	text = malloc(*size + 1);
	if (!text)
		die("memory");
	while (done < *size) {
		n = read(fd, text + done, *size - done);
		if (n < 0)
			die(path);
		if (n == 0)
			break;
		done += (size_t)n;
	}
	*size = done;
	text[done] = '\0';
	close(fd);
	return text;
}

/* Pointers to the lines of text, which is cut up in place. */
static char **split(char *text, size_t size, uint64_t *count)
{
	char **names, *at;
	uint64_t n = 0;

	for (at = text; at < text + size; at++)
		n += *at == '\n';
	names = calloc(n + 1, sizeof(*names));
	if (!names)
		die("memory");
	*count = 0;
	for (at = text; *count < n; at += strlen(at) + 1) {
		*strchr(at, '\n') = '\0';
		if (*at)
			names[(*count)++] = at;
		else
			n--;
	}
	return names;
}

#endif /* BENCH_NAMES_H */
