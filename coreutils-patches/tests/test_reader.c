// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Tests the reader with fake directories: the same names whatever fails, sorted
 * within windows, memory within its bound, positions that stay valid.
 * Prints TAP.  usage: test_reader [SEED [DIRECTORY]]
 */
#include "../lib/diskorder.h"
#include "chance.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FIXED (256U << 10) /* the reader itself and the list of its windows */

struct file {
	uint64_t ino;
	int64_t where; /* position, ascending, with gaps */
	char name[40];
	bool gone;
};

struct fake {
	struct file *files;
	size_t count, at;
	size_t calls, fail_read; /* this getdents fails once, counted from 1 */
	size_t allocs, fail_alloc; /* this allocation and all after it fail */
	size_t now, peak;
};

static ssize_t fake_getdents(void *ctx, void *buf, size_t size)
{
	struct fake *f = ctx;
	size_t used = 0;

	if (++f->calls == f->fail_read) {
		errno = EIO;
		return -1;
	}
	for (; f->at < f->count; f->at++) {
		const struct file *file = f->files + f->at;
		struct dirent64 *d = (void *)((char *)buf + used);
		size_t len = offsetof(struct dirent64, d_name) +
			     strlen(file->name) + 1;

		len = (len + 7) & ~(size_t)7;
		if (used + len > size)
			break;
		if (file->gone)
			continue;
		d->d_ino = file->ino;
		d->d_off = f->at + 1 < f->count ? f->files[f->at + 1].where
						: INT64_MAX;
		d->d_reclen = len;
		d->d_type = DT_REG;
		strcpy(d->d_name, file->name);
		used += len;
	}
	return used;
}

static int fake_seek(void *ctx, int64_t position)
{
	struct fake *f = ctx;

	for (f->at = 0; f->at < f->count; f->at++)
		if (f->files[f->at].where >= position)
			break;
	return 0;
}

static void *fake_alloc(void *ctx, size_t size)
{
	struct fake *f = ctx;

	if (++f->allocs >= f->fail_alloc && f->fail_alloc)
		return NULL;
	f->now += size;
	f->peak = f->peak > f->now ? f->peak : f->now;
	return malloc(size);
}

static void fake_release(void *ctx, void *memory, size_t size)
{
	((struct fake *)ctx)->now -= size;
	free(memory);
}

static const struct dorder_ops ops = { fake_getdents, fake_seek, fake_alloc,
				       fake_release };

enum kind { RANDOM, ASCENDING, NEARLY };

static void make(struct fake *f, size_t count, enum kind kind)
{
	size_t n;
	int64_t where = 0;

	memset(f, 0, sizeof(*f));
	f->count = count;
	f->files = calloc(count ? count : 1, sizeof(*f->files));
	for (n = 0; n < count; n++) {
		struct file *file = f->files + n;

		file->where = where;
		where += 1 + rnd() % 5;
		file->ino = 12 + n;
		if (kind == RANDOM || (kind == NEARLY && rnd() % 1000 == 0))
			file->ino = 12 + rnd() % (2 * count);
		snprintf(file->name, sizeof(file->name), "%zu.%.*s", n,
			 (int)(rnd() % 10), "aaaaaaaaaa");
	}
	if (count > 1) { /* "." and ".." come anywhere in a hash */
		strcpy(f->files[count / 2].name, "..");
		strcpy(f->files[0].name, ".");
	}
}

/* The number of a file, which its name contains. */
static size_t number(const struct fake *f, const char *name)
{
	if (!strcmp(name, "."))
		return 0;
	return !strcmp(name, "..") ? f->count / 2 : strtoul(name, NULL, 10);
}

struct seen {
	unsigned char *times;
	size_t drops; /* inodes that were less than the one before */
	size_t errors;
};

/* Reads to the end, like a program that continues after errors. */
static struct seen read_all(struct fake *f, struct dorder *dir)
{
	struct seen seen = { calloc(f->count + 1, 1), 0, 0 };
	struct dorder_entry e;
	uint64_t last = 0;
	int got;

	while ((got = dorder_next(dir, &e)) != 0) {
		if (got < 0) {
			if (++seen.errors > 3)
				break;
			continue;
		}
		seen.times[number(f, e.name)]++;
		if (e.name[0] == '.')
			continue;
		seen.drops += e.ino < last;
		last = e.ino;
	}
	return seen;
}

static bool each(const struct fake *f, const struct seen *s, int least,
		 int most)
{
	size_t n;

	for (n = 0; n < f->count; n++)
		if (!f->files[n].gone &&
		    (s->times[n] < least || s->times[n] > most))
			return false;
	return true;
}

static void test_order(void)
{
	static const size_t counts[] = { 0, 1, 2, 3, 50, 5000, 300000 };
	static const size_t memories[] = { 0, 65536, 1 << 20, DORDER_MEMORY };
	char what[100];
	size_t c, m;
	int kind;

	for (c = 0; c < sizeof(counts) / sizeof(*counts); c++)
		for (m = 0; m < 4; m++)
			for (kind = RANDOM; kind <= NEARLY; kind++) {
				struct fake f;
				struct dorder *dir;
				struct seen s;
				bool good;
				size_t windows;

				make(&f, counts[c], kind);
				dir = dorder_open_ops(&ops, &f, memories[m]);
				s = read_all(&f, dir);
				windows = dorder_windows(dir);
				good = each(&f, &s, 1, 1) && !s.errors;
				good &= f.peak <= memories[m] + FIXED;
				/* up to two drops per window: at its start, and
				 * after its first name, which is not sorted */
				if (memories[m])
					good &= s.drops <= 2 * windows;
				if (kind == ASCENDING)
					good &= !windows && f.allocs == 1;
				dorder_close(dir);
				good &= !f.now;
				snprintf(
					what, sizeof(what),
					"%zu names, kind %d, %zu bytes: %zu windows",
					counts[c], kind, memories[m], windows);
				ok(good, what);
				free(s.times);
				free(f.files);
			}
}

/* 300,000 names fit one window of the default size. */
static void test_one_window(void)
{
	struct fake f;
	struct dorder *dir;
	struct seen s;

	make(&f, 300000, RANDOM);
	dir = dorder_open_ops(&ops, &f, DORDER_MEMORY);
	s = read_all(&f, dir);
	ok(dorder_windows(dir) == 1 && each(&f, &s, 1, 1),
	   "300,000 names are one window");
	ok(!dorder_rewind(dir), "rewind");
	free(s.times);
	s = read_all(&f, dir);
	ok(each(&f, &s, 1, 1) && s.drops <= 2, "and once more after it");
	dorder_close(dir);
	free(s.times);
	free(f.files);
}

static void test_faults(void)
{
	size_t n, failed = 0;
	bool good = true;
	struct dorder *dir;
	struct seen s;
	struct fake f;

	for (n = 1; n < 12; n++) {
		make(&f, 8000, RANDOM);
		f.fail_alloc = n;
		dir = dorder_open_ops(&ops, &f, 1 << 20);
		if (n == 1) {
			good &= !dir && errno == ENOMEM;
		} else {
			s = read_all(&f, dir);
			good &= each(&f, &s, 1, 1) && !s.errors;
			free(s.times);
			dorder_close(dir);
		}
		good &= !f.now;
		free(f.files);
	}
	ok(good, "no memory at any point: all names, no error");
	for (good = true, n = 1; n < 15; n++) {
		make(&f, 8000, RANDOM);
		f.fail_read = n;
		dir = dorder_open_ops(&ops, &f, 1 << 18);
		s = read_all(&f, dir);
		failed += s.errors;
		good &= each(&f, &s, 1, 1) && s.errors == (f.calls >= n);
		free(s.times);
		dorder_close(dir);
		good &= !f.now;
		free(f.files);
	}
	ok(good && failed > 3, "a read error comes once and loses no name");
}

static ssize_t garbage(void *ctx, void *buf, size_t size)
{
	struct fake *f = ctx;
	size_t n;

	if (f->calls++)
		return 0;
	for (n = 0; n < size; n++)
		((unsigned char *)buf)[n] = rnd();
	return size;
}

static void test_garbage(void)
{
	static const struct dorder_ops bad_ops = { garbage, fake_seek,
						   fake_alloc, fake_release };
	struct dorder_entry e;
	struct dorder *dir;
	struct fake f;
	int n, got, errors = 0;

	for (n = 0; n < 200; n++) {
		memset(&f, 0, sizeof(f));
		dir = dorder_open_ops(&bad_ops, &f, 1 << 20);
		while ((got = dorder_next(dir, &e)) > 0)
			;
		errors += got < 0 && errno == EIO;
		dorder_close(dir);
	}
	ok(errors > 150, "records that make no sense are EIO");
}

/*
 * Stop anywhere, tell, read on or elsewhere, seek back: exactly the rest
 * follows.  With changes meanwhile, no name that stays is missed.
 */
static void test_seek(bool changing)
{
	struct dorder_entry e;
	bool good = true;
	int round;

	for (round = 0; round < 150; round++) {
		size_t count = 2 + rnd() % 6000, stop = rnd() % count, n;
		struct seen before, after;
		struct dorder *dir;
		struct fake f;
		int64_t place, tail = 0;

		make(&f, count, rnd() % 3);
		dir = dorder_open_ops(&ops, &f, 65536 << rnd() % 4);
		before.times = calloc(count, 1);
		for (n = 0; n < stop; n++) {
			good &= dorder_next(dir, &e) == 1;
			before.times[number(&f, e.name)]++;
			tail = e.next;
		}
		place = dorder_tell(dir);
		if (stop)
			good &= tail == place;
		for (n = rnd() % (count + 1); n; n--)
			dorder_next(dir, &e);
		if (rnd() % 3 == 0) /* somewhere else altogether */
			dorder_seek(dir, f.files[rnd() % count].where);
		if (changing)
			for (n = 0; n < 200; n++)
				f.files[rnd() % count].gone = true;
		good &= !dorder_seek(dir, place);
		after = read_all(&f, dir);
		for (n = 0; n < count; n++) {
			int times = before.times[n] + after.times[n];

			if (f.files[n].gone)
				continue;
			good &= changing ? times >= 1 : times == 1;
		}
		dorder_close(dir);
		good &= !f.now;
		free(before.times);
		free(after.times);
		free(f.files);
	}
	ok(good, changing ? "seek in a directory that changes: none missed"
			  : "tell and seek: each name once");
}

/* Adds or removes names; every other one stays all the time. */
static void change(struct fake *f, bool back)
{
	size_t n, at;

	for (n = 0; n < f->count; n++) {
		at = back ? n : rnd() % f->count;
		if (at % 2)
			f->files[at].gone = back ? at % 4 == 1 : rnd() % 2 == 0;
	}
}

struct mark {
	int64_t place;
	unsigned char *given;
};

/* Reads some names; false if one that was there all the time is missing. */
static bool read_some(struct fake *f, struct dorder *dir, size_t most,
		      unsigned char *given)
{
	struct dorder_entry e;
	size_t n;
	int got;

	while (most-- && (got = dorder_next(dir, &e)) != 0)
		if (got > 0)
			given[number(f, e.name)] = 1;
	if (most + 1)
		for (n = 0; n < f->count; n += 2)
			if (!given[n])
				return false;
	return true;
}

static void set_mark(const struct fake *f, const struct dorder *dir,
		     struct mark *mark, const unsigned char *given)
{
	mark->place = dorder_tell(dir);
	memcpy(mark->given, given, f->count);
}

/*
 * Tells and seeks positions in any order while names come and go, memory runs
 * out and returns, and reads fail.  Names read before telling a position and
 * after seeking to it are complete.
 */
static void test_marks(void)
{
	struct mark marks[6];
	bool good = true;
	size_t m;
	int round, step;

	for (round = 0; round < 300; round++) {
		size_t count = 1000 + rnd() % 5000;
		unsigned char *given = calloc(count, 1);
		struct dorder *dir;
		struct fake f;

		make(&f, count, rnd() % 3);
		change(&f, true);
		dir = dorder_open_ops(&ops, &f, 65536 << rnd() % 4);
		for (m = 0; m < 6; m++) {
			marks[m].given = calloc(count, 1);
			marks[m].place = 0;
		}
		for (step = 0; good && step < 60; step++) {
			m = rnd() % 6;
			switch (rnd() % 8) {
			case 0:
				change(&f, rnd() % 2);
				break;
			case 1:
				f.fail_alloc = rnd() % 2 ? f.allocs + 1 : 0;
				break;
			case 2:
				f.fail_read = f.calls + 1 + rnd() % 8;
				break;
			case 3:
			case 4:
				good &= !dorder_seek(dir, marks[m].place);
				memcpy(given, marks[m].given, count);
				break;
			case 5:
				set_mark(&f, dir, marks + m, given);
				break;
			default:
				good &= read_some(&f, dir, rnd() % 2000, given);
			}
		}
		for (m = 0; m < 6; m++) {
			good &= !dorder_seek(dir, marks[m].place);
			good &= read_some(&f, dir, SIZE_MAX, marks[m].given);
			free(marks[m].given);
		}
		dorder_close(dir);
		free(given);
		free(f.files);
	}
	ok(good, "marks in a directory that changes, with faults: none missed");
}

/*
 * Reads once more a window that no longer holds all names of its range: from
 * each of its positions, and from its new end, to the last name.
 */
static void test_grown(void)
{
	size_t count = 1500, given = 0, n, at;
	struct dorder_entry e;
	int64_t places[1500];
	size_t names[1500];
	struct dorder *dir;
	bool good = true;
	struct seen s;
	struct fake f;

	make(&f, count, RANDOM);
	change(&f, true);
	/* The smallest window, which cannot grow. */
	dir = dorder_open_ops(&ops, &f, 65536);
	s = read_all(&f, dir);
	free(s.times);
	for (n = 0; n < count; n++)
		f.files[n].gone = false;
	good &= !dorder_seek(dir, 0);
	for (; given < count; given++) {
		places[given] = dorder_tell(dir);
		if (dorder_next(dir, &e) != 1)
			break;
		names[given] = number(&f, e.name);
	}
	good &= given == count && dorder_next(dir, &e) == 0;
	for (n = 0; n < given; n++) {
		good &= !dorder_seek(dir, places[n]);
		s = read_all(&f, dir);
		for (at = 0; at < n; at++)
			s.times[names[at]] = 1;
		good &= each(&f, &s, 1, 9);
		free(s.times);
	}
	dorder_close(dir);
	free(f.files);
	ok(good, "a window that has grown out of its memory: none missed");
}

/*
 * Without memory to remember more windows, the reader stops sorting.  Positions
 * in known windows stay valid.
 */
static void test_given_up(void)
{
	struct dorder_entry e;
	struct dorder *dir;
	struct seen s;
	struct fake f;
	size_t n, windows;
	bool good = true;
	int64_t place;
	int round;

	make(&f, 30000, RANDOM);
	/* Memory for the reader, its window and 16 ranges, but not for 32. */
	f.fail_alloc = 4;
	dir = dorder_open_ops(&ops, &f, 65536);
	s = read_all(&f, dir);
	windows = dorder_windows(dir);
	good &= windows == 16 && each(&f, &s, 1, 1) && s.drops > 2 * windows;
	free(s.times);
	for (round = 0; round < 20; round++) {
		struct seen before = { calloc(f.count, 1), 0, 0 };
		size_t stop = rnd() % f.count;

		good &= !dorder_seek(dir, 0);
		for (n = 0; n < stop; n++) {
			good &= dorder_next(dir, &e) == 1;
			before.times[number(&f, e.name)]++;
		}
		place = dorder_tell(dir);
		dorder_next(dir, &e);
		good &= !dorder_seek(dir, place);
		s = read_all(&f, dir);
		for (n = 0; n < f.count; n++)
			s.times[n] += before.times[n];
		good &= each(&f, &s, 1, 1);
		free(before.times);
		free(s.times);
	}
	dorder_close(dir);
	free(f.files);
	ok(good, "sorting stopped: tell and seek, each name once");
}

static void test_sort(void)
{
	struct dorder_key keys[300];
	bool good = true;
	int round;
	size_t n, count;

	for (round = 0; round < 500; round++) {
		uint64_t sum = 0;

		count = rnd() % 300;
		for (n = 0; n < count; n++) {
			keys[n].key = rnd() % 100;
			keys[n].tie = keys[n].value = n;
			sum += keys[n].key * 1000 + n;
		}
		dorder_sort(keys, count);
		for (n = 0; n < count; n++) {
			sum -= keys[n].key * 1000 + keys[n].value;
			good &= !n || keys[n - 1].key < keys[n].key ||
				(keys[n - 1].key == keys[n].key &&
				 keys[n - 1].tie < keys[n].tie);
		}
		good &= !sum;
	}
	ok(good, "sorting is stable and keeps all keys");
}

/* Makes a directory of count files below where; returns its path. */
static char *make_files(const char *where, int count)
{
	char *top = NULL, name[5000];
	int fd, n;

	if (asprintf(&top, "%s/dorder-XXXXXX", where) < 0 || !mkdtemp(top) ||
	    chmod(top, 0755))
		abort();
	for (n = 0; n < count; n++) {
		snprintf(name, sizeof(name), "%s/%0200d", top, n);
		fd = open(name, O_WRONLY | O_CREAT, 0600);
		if (fd < 0 || close(fd))
			abort();
	}
	return top;
}

static void remove_files(char *top, int count)
{
	char name[5000];
	int n;

	for (n = 0; n < count; n++) {
		snprintf(name, sizeof(name), "%s/%0200d", top, n);
		if (unlink(name))
			abort();
	}
	if (rmdir(top))
		abort();
	free(top);
}

/* Sets its times to long ago; its change time becomes now. */
static void age(int fd)
{
	struct timespec times[2] = { { .tv_sec = 500 }, { .tv_sec = 600 } };

	if (futimens(fd, times))
		abort();
}

static bool accessed(int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		abort();
	return st.st_atime != 500;
}

/* A directory of another user is read as by any program. */
static void test_read_names_of_others(int fd)
{
	if (geteuid()) {
		printf("# SKIP: only root can become another user\n");
		return;
	}
	age(fd);
	if (seteuid(65534))
		abort();
	errno = 7;
	dorder_read_names(fd);
	if (errno != 7 || seteuid(0))
		abort();
	ok(accessed(fd), "names of another user's directory are read, too");
}

/* Reading a large directory's names changes nothing that a user can see. */
static void test_read_names(const char *where)
{
	char *top = make_files(where, 1000);
	struct statvfs fs;
	struct stat st;
	int n, seen = 0;
	bool shows;
	DIR *dir;

	dir = opendir(top);
	if (!dir || fstatvfs(dirfd(dir), &fs) || fstat(dirfd(dir), &st))
		abort();
	/* Too small on tmpfs; some mounts keep no times of access. */
	shows = st.st_size >= 65536 &&
		!(fs.f_flag & (ST_NOATIME | ST_NODIRATIME));
	for (n = 0; n < 7; n++)
		readdir(dir);
	age(dirfd(dir));
	errno = 7;
	dorder_read_names(dirfd(dir));
	dorder_read_names(-1);
	ok(errno == 7, "reading names leaves errno alone");
	ok(!accessed(dirfd(dir)), "and the time of access");
	if (shows)
		test_read_names_of_others(dirfd(dir));
	while (readdir(dir))
		seen++;
	ok(seen == 1002 - 7, "and the position of the directory");
	closedir(dir);
	remove_files(top, 1000);
}

/* The names that were read before a directory was removed, and no error. */
static void test_removed(const char *where)
{
	int files, read, fd, n, got = 1;
	struct dorder_entry e;
	struct dorder *dir;
	bool good = true;
	char *top;

	for (files = 0; files <= 300; files += 300)
		for (read = 0; read <= 2; read++) {
			top = make_files(where, files);
			fd = open(top, O_RDONLY | O_DIRECTORY);
			dir = fd < 0 ? NULL : dorder_open(fd, DORDER_MEMORY);
			if (!dir)
				abort();
			for (n = 0; n < read; n++)
				good &= dorder_next(dir, &e) == 1;
			remove_files(top, files);
			errno = 7;
			while ((got = dorder_next(dir, &e)) > 0)
				n++;
			good &= !got && errno == 7 && n >= read;
			/* More names than the one whose successor came. */
			good &= read != 1 || n > 1;
			good &= !dorder_rewind(dir) && !dorder_next(dir, &e);
			dorder_close(dir);
			close(fd);
		}
	ok(good, "a directory that was removed ends");
}

int main(int argc, char **argv)
{
	const char *where = argc > 2 ? argv[2] : "/tmp";

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261121;
	seed = seed ? seed : 1;
	printf("# seed %llu\n", (unsigned long long)seed);
	test_read_names(where);
	test_removed(where);
	test_sort();
	test_order();
	test_one_window();
	test_faults();
	test_garbage();
	test_seek(false);
	test_seek(true);
	test_given_up();
	test_grown();
	test_marks();
	printf("1..%d\n", tests);
	return bad != 0;
}
