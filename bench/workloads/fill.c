// SPDX-License-Identifier: GPL-2.0-only
/*
 * fill - fill one directory with files by the rule of docs/design.md
 *
 * A name is 16 hexadecimal digits of a multiplicative hash of the file's
 * serial number, and ".msg". Aged: each step deletes a random live file with
 * the given probability, else creates one, until the wanted number is live.
 * What it did is printed as one JSON object on standard output, progress goes
 * to standard error.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "random.h"

#define DEFAULT_NAME_LEN 20
#define HASH_DIGITS 16
#define HASH_MULTIPLIER 0x9E3779B97F4A7C15ull
#define MAX_FILE_SIZE (64u << 20)

struct options {
	uint64_t count;
	uint64_t size;
	uint64_t seed;
	uint64_t sync_every;
	double delete_share;
	unsigned int name_len;
	bool quiet;
	const char *dir;
};

static void die(const char *what)
{
	fprintf(stderr, "fill: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void usage(FILE *to)
{
	fputs("usage: fill [options] DIRECTORY\n"
	      "  -n COUNT    files alive at the end (default 1000)\n"
	      "  -s BYTES    data in each file (default 4096)\n"
	      "  -a PERCENT  aged: delete a random live file with this\n"
	      "              probability at each step (0 to 49, default 0)\n"
	      "  -S SEED     of the random choices (default 1)\n"
	      "  -l LENGTH   of the names, 1 to 255 (default 20)\n"
	      "  -y STEPS    syncfs after every STEPS steps (default: never)\n"
	      "  -q          no progress on standard error\n"
	      "The directory is created when it does not exist.\n",
	      to);
}

static uint64_t parse_number(const char *text, const char *what, uint64_t min,
			     uint64_t max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 0);
	if (errno || end == text || *end || *text == '-' || value < min ||
	    value > max) {
		fprintf(stderr,
			"fill: %s '%s': a number from %" PRIu64 " to %" PRIu64
			" is wanted\n",
			what, text, min, max);
		exit(2);
	}
	return value;
}

static double next_unit(uint64_t *state)
{
	return (double)(next_random(state) >> 11) / 9007199254740992.0;
}

/*
 * Names of 20 bytes and more: 16 digits, padding, ".msg". Shorter ones: digits
 * alone. Multiplying by an odd number permutes the integers modulo a power of
 * two, so names differ until all of the digits' values are used.
 */
static void make_name(char *name, uint64_t serial, unsigned int len)
{
	unsigned int digits = HASH_DIGITS;
	uint64_t hash = serial * HASH_MULTIPLIER;

	if (len < DEFAULT_NAME_LEN && len < HASH_DIGITS) {
		digits = len;
		hash &= (UINT64_C(1) << (4 * digits)) - 1;
	}
	snprintf(name, digits + 1, "%0*" PRIx64, (int)digits, hash);
	if (len > digits)
		memset(name + digits, 'x', len - digits);
	if (len >= DEFAULT_NAME_LEN)
		memcpy(name + len - 4, ".msg", 4);
	name[len] = '\0';
}

static double now(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_MONOTONIC, &ts))
		die("clock_gettime");
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static double seconds(const struct timeval *tv)
{
	return (double)tv->tv_sec + (double)tv->tv_usec / 1e6;
}

static void create_file(int dir, const struct options *opt, uint64_t serial,
			char *data)
{
	char name[NAME_MAX + 1];
	uint64_t done = 0;
	int fd;

	make_name(name, serial, opt->name_len);
	fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		die(name);
	/* no two files alike, none of them zeros */
	memcpy(data, &serial, sizeof(serial));
	while (done < opt->size) {
		ssize_t n = write(fd, data + done, opt->size - done);

		if (n < 0) {
			if (errno == EINTR)
				continue;
			die(name);
		}
		done += (uint64_t)n;
	}
	if (close(fd))
		die(name);
}

static void parse_options(int argc, char **argv, struct options *opt)
{
	int c;

	while ((c = getopt(argc, argv, "n:s:a:S:l:y:qh")) != -1) {
		switch (c) {
		case 'n':
			opt->count = parse_number(optarg, "count", 0,
						  UINT64_C(1) << 32);
			break;
		case 's':
			opt->size =
				parse_number(optarg, "size", 0, MAX_FILE_SIZE);
			break;
		case 'a':
			opt->delete_share =
				(double)parse_number(optarg, "percent", 0, 49) /
				100.0;
			break;
		case 'S':
			opt->seed = parse_number(optarg, "seed", 0, UINT64_MAX);
			break;
		case 'l':
			opt->name_len = (unsigned int)parse_number(
				optarg, "name length", 1, NAME_MAX);
			break;
		case 'y':
			opt->sync_every =
				parse_number(optarg, "steps", 0, UINT64_MAX);
			break;
		case 'q':
			opt->quiet = true;
			break;
		case 'h':
			usage(stdout);
			exit(0);
		default:
			usage(stderr);
			exit(2);
		}
	}
	if (optind + 1 != argc) {
		usage(stderr);
		exit(2);
	}
	opt->dir = argv[optind];
}

int main(int argc, char **argv)
{
	struct options opt = {
		.count = 1000,
		.size = 4096,
		.seed = 1,
		.name_len = DEFAULT_NAME_LEN,
	};
	uint64_t live = 0, created = 0, deleted = 0, steps = 0, random;
	char name[NAME_MAX + 1];
	uint64_t *serials;
	double start, shown, end;
	struct rusage ru;
	char *data;
	int dir;

	parse_options(argc, argv, &opt);
	serials = calloc(opt.count + 1, sizeof(*serials));
	data = malloc(opt.size + sizeof(uint64_t));
	if (!serials || !data)
		die("memory");
	memset(data, '.', opt.size + sizeof(uint64_t));
	/* zero would stay zero */
	random = opt.seed * HASH_MULTIPLIER + 1;
	if (!random)
		random = 1;

	if (mkdir(opt.dir, 0755) && errno != EEXIST)
		die(opt.dir);
	dir = open(opt.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		die(opt.dir);

	start = now();
	shown = start;
	while (live < opt.count) {
		if (live && opt.delete_share > 0 &&
		    next_unit(&random) < opt.delete_share) {
			uint64_t i = next_random(&random) % live;

			make_name(name, serials[i], opt.name_len);
			if (unlinkat(dir, name, 0))
				die(name);
			serials[i] = serials[--live];
			deleted++;
		} else {
			create_file(dir, &opt, created, data);
			serials[live++] = created++;
		}
		steps++;
		if (opt.sync_every && steps % opt.sync_every == 0 &&
		    syncfs(dir))
			die("syncfs");
		if (!opt.quiet && steps % 1024 == 0 && now() - shown >= 10) {
			shown = now();
			fprintf(stderr,
				"fill: %" PRIu64 " of %" PRIu64
				" files, %.0f s\n",
				live, opt.count, shown - start);
		}
	}
	end = now();
	if (syncfs(dir))
		die("syncfs");
	if (getrusage(RUSAGE_SELF, &ru))
		die("getrusage");
	printf("{\"live\": %" PRIu64 ", \"created\": %" PRIu64
	       ", \"deleted\": %" PRIu64
	       ", \"seconds\": %.3f, \"seconds_synced\": %.3f"
	       ", \"user_seconds\": %.3f, \"system_seconds\": %.3f}\n",
	       live, created, deleted, end - start, now() - start,
	       seconds(&ru.ru_utime), seconds(&ru.ru_stime));
	if (fflush(stdout) || ferror(stdout))
		die("standard output");
	close(dir);
	free(serials);
	free(data);
	return 0;
}
