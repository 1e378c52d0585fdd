// SPDX-License-Identifier: GPL-2.0-only
/*
 * walk - read one directory and stat every entry in the order it came
 *
 * getdents64, then fstatat of each name, as ls -l, tar, rsync and backup
 * programs do; with -r each regular file is read as well. What it saw is
 * printed as one JSON object on standard output.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* what the C library's readdir() asks for at once */
#define DENTS_BYTES 32768
#define READ_BYTES 65536

struct linux_dirent64 {
	uint64_t d_ino;
	int64_t d_off;
	uint16_t d_reclen;
	uint8_t d_type;
	char d_name[];
};

struct walk {
	uint64_t entries; /* without "." and ".." */
	uint64_t descents; /* an inode number below the one before */
	uint64_t last_ino;
	uint64_t bytes;
	bool no_stat;
	bool read_data;
	FILE *sequence;
	FILE *names;
};

static void die(const char *what)
{
	fprintf(stderr, "walk: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void usage(FILE *to)
{
	fputs("usage: walk [options] DIRECTORY\n"
	      "  -o FILE  write the inode numbers there, one a line, in the\n"
	      "           order readdir returned them\n"
	      "  -N FILE  write the names there, one a line\n"
	      "  -c       read the directory with the C library's readdir, so\n"
	      "           that a library preloaded can change the order\n"
	      "  -r       read the data of regular files too\n"
	      "  -n       names only: no stat\n",
	      to);
}

static double now(void)
{
	struct timespec ts;

	if (clock_gettime(CLOCK_MONOTONIC, &ts))
		die("clock_gettime");
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t read_file(int dir, const char *name)
{
	static char data[READ_BYTES];
	uint64_t bytes = 0;
	ssize_t n;
	int fd;

	fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		die(name);
	while ((n = read(fd, data, sizeof(data))) != 0) {
		if (n < 0) {
			if (errno == EINTR)
				continue;
			die(name);
		}
		bytes += (uint64_t)n;
	}
	if (close(fd))
		die(name);
	return bytes;
}

static void visit(struct walk *w, int dir, uint64_t ino, const char *name)
{
	struct stat st;

	if (!strcmp(name, ".") || !strcmp(name, ".."))
		return;
	if (w->entries && ino < w->last_ino)
		w->descents++;
	w->last_ino = ino;
	w->entries++;
	if (w->sequence && fprintf(w->sequence, "%" PRIu64 "\n", ino) < 0)
		die("writing the sequence");
	if (w->names && fprintf(w->names, "%s\n", name) < 0)
		die("writing the names");
	if (w->no_stat)
		return;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		die(name);
	if (w->read_data && S_ISREG(st.st_mode))
		w->bytes += read_file(dir, name);
}

static void walk_system(struct walk *w, const char *path)
{
	static char buf[DENTS_BYTES] __attribute__((aligned(8)));
	long n, at;
	int dir;

	dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		die(path);
	while ((n = syscall(SYS_getdents64, dir, buf, sizeof(buf))) != 0) {
		if (n < 0)
			die("getdents64");
		for (at = 0; at < n;) {
			const struct linux_dirent64 *de = (void *)(buf + at);

			visit(w, dir, de->d_ino, de->d_name);
			at += de->d_reclen;
		}
	}
	if (close(dir))
		die(path);
}

static void walk_library(struct walk *w, const char *path)
{
	const struct dirent *de;
	DIR *dir;

	dir = opendir(path);
	if (!dir)
		die(path);
	for (;;) {
		errno = 0;
		de = readdir(dir);
		if (!de)
			break;
		visit(w, dirfd(dir), de->d_ino, de->d_name);
	}
	if (errno)
		die("readdir");
	if (closedir(dir))
		die(path);
}

static FILE *list(const char *path)
{
	FILE *out = fopen(path, "we");

	if (!out)
		die(path);
	return out;
}

int main(int argc, char **argv)
{
	struct walk w = { 0 };
	bool library = false;
	double start;
	int c;

	while ((c = getopt(argc, argv, "o:N:crnh")) != -1) {
		switch (c) {
		case 'o':
			w.sequence = list(optarg);
			break;
		case 'N':
			w.names = list(optarg);
			break;
		case 'c':
			library = true;
			break;
		case 'r':
			w.read_data = true;
			break;
		case 'n':
			w.no_stat = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	}
	if (optind + 1 != argc || (w.no_stat && w.read_data)) {
		usage(stderr);
		return 2;
	}

	start = now();
	if (library)
		walk_library(&w, argv[optind]);
	else
		walk_system(&w, argv[optind]);
	if (w.sequence && fclose(w.sequence))
		die("writing the sequence");
	if (w.names && fclose(w.names))
		die("writing the names");
	printf("{\"entries\": %" PRIu64 ", \"descents\": %" PRIu64
	       ", \"bytes\": %" PRIu64 ", \"seconds\": %.3f}\n",
	       w.entries, w.descents, w.bytes, now() - start);
	if (fflush(stdout) || ferror(stdout))
		die("standard output");
	return 0;
}
