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
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>

#define PROGRAM "lookup"
#include "names.h"
#include "random.h"

/* no name that fill or a mail server makes ends like this */
#define MISSING ".no"

static void usage(FILE *to)
{
	fputs("usage: lookup [options] LIST DIRECTORY\n"
	      "  -k COUNT  stat this many of the names (default: all)\n"
	      "  -m        names that are not there: each with " MISSING
	      " behind it\n"
	      "  -S SEED   of the order (default 1)\n",
	      to);
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
