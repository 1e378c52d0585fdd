// SPDX-License-Identifier: GPL-2.0-only
/*
 * lookup - stat the names of a list in random order
 *
 * What a mail or web server does with a large directory: it knows the name and
 * asks for that file. The list (one name a line) is read and shuffled by a
 * fixed seed before the directory is touched, so that the trace holds the
 * lookups alone. What it saw is printed as one JSON object.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "random.h"

/* no name that fill or a mail server makes ends like this */
#define MISSING ".no"

static void die(const char *what)
{
	fprintf(stderr, "lookup: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void usage(FILE *to)
{
	fputs("usage: lookup [options] LIST DIRECTORY\n"
	      "  -k COUNT  stat this many of the names (default: all)\n"
	      "  -m        names that are not there: each with " MISSING
	      " behind it\n"
	      "  -S SEED   of the order (default 1)\n",
	      to);
}

static uint64_t parse_number(const char *text)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-') {
		fprintf(stderr, "lookup: '%s' is not a number\n", text);
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

int main(int argc, char **argv)
{
	uint64_t count, limit = UINT64_MAX, random = 1, found = 0, i;
	char name[NAME_MAX + sizeof(MISSING)];
	bool missing = false;
	char **names, *text;
	struct stat st;
	size_t size;
	int dir, c;

	while ((c = getopt(argc, argv, "k:mS:h")) != -1) {
		switch (c) {
		case 'k':
			limit = parse_number(optarg);
			break;
		case 'm':
			missing = true;
			break;
		case 'S':
			/* zero would stay zero */
			random = parse_number(optarg) | 1;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind + 2 != argc) {
		usage(stderr);
		return 2;
	}
	text = read_all(argv[optind], &size);
	names = split(text, size, &count);
	for (i = count; i > 1; i--) {
		uint64_t other = next_random(&random) % i;
		char *swap = names[i - 1];

		names[i - 1] = names[other];
		names[other] = swap;
	}
	if (limit < count)
		count = limit;

	dir = open(argv[optind + 1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		die(argv[optind + 1]);
	for (i = 0; i < count; i++) {
		snprintf(name, sizeof(name), "%s%s", names[i],
			 missing ? MISSING : "");
		if (!fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
			found++;
		else if (errno != ENOENT)
			die(name);
	}
	close(dir);
	printf("{\"asked\": %" PRIu64 ", \"found\": %" PRIu64 "}\n", count,
	       found);
	if (fflush(stdout) || ferror(stdout))
		die("standard output");
	free(names);
	free(text);
	return 0;
}
