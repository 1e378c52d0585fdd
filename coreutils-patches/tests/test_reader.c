// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * The reader against directories made up here: same names whatever fails,
 * sorted within windows, memory within its bound, positions that hold.
 * Prints TAP.  usage: test_reader [SEED]
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
	size_t calls, fail_read; /* this getdents fails, once; from 1 */
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

/* Which file a name is: its number is in it. */
static size_t number(const struct fake *f, const char *name)
{
	if (!strcmp(name, "."))
		return 0;
	return !strcmp(name, "..") ? f->count / 2 : strtoul(name, NULL, 10);
}

struct seen {
	unsigned char *times;
	size_t drops; /* how often an inode was less than the one before */
	size_t errors;
};

/* Read to the end, over errors, as a patient program would. */
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
				/* up to two falls a window: into it, and at
				 * its first name, which is not sorted */
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
	ok(good && failed > 3, "a read error is told once and loses no name");
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
 * Stop anywhere, tell, wander about, seek back: the rest and nothing but the
 * rest.  With changes meanwhile: no name that stays is left out.
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

/* Where a directory is large enough to be read, nobody notices. */
static void test_read_names(void)
{
	char top[] = "/tmp/dorder-names-XXXXXX", name[300], command[100];
	struct stat st;
	int fd, n, seen = 0;
	DIR *dir;

	if (!mkdtemp(top))
		abort();
	for (n = 0; n < 1000; n++) {
		snprintf(name, sizeof(name), "%s/%0200d", top, n);
		fd = open(name, O_WRONLY | O_CREAT, 0600);
		if (fd < 0 || close(fd))
			abort();
	}
	dir = opendir(top);
	if (!dir || fstat(dirfd(dir), &st))
		abort();
	for (n = 0; n < 7; n++)
		readdir(dir);
	errno = 7;
	dorder_read_names(dirfd(dir));
	dorder_read_names(-1);
	ok(errno == 7, "reading names leaves errno alone");
	while (readdir(dir))
		seen++;
	ok(seen == 1002 - 7, "and the position of the directory");
	closedir(dir);
	snprintf(command, sizeof(command), "rm -r %s", top);
	if (system(command))
		abort();
}

int main(int argc, char **argv)
{
	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261121;
	seed = seed ? seed : 1;
	printf("# seed %llu\n", (unsigned long long)seed);
	test_read_names();
	test_sort();
	test_order();
	test_one_window();
	test_faults();
	test_garbage();
	test_seek(false);
	test_seek(true);
	printf("1..%d\n", tests);
	return bad != 0;
}
