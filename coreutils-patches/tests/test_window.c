// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Tests the window, most with fake files: each file once and in the order of places,
 * whatever fails; readahead within its bounds; no more memory than documented.
 * Prints TAP.  usage: test_window [SEED [DIRECTORY]]
 */
#include "../lib/diskorder.h"
#include "../lib/hold.h"
#include "chance.h"
#include "tap.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX 3000
#define USUAL 20261121 /* seed, if none is given */

struct fake {
	uint64_t places[MAX]; /* by number given as fd; 0: FIEMAP fails */
	off_t sizes[MAX];
	uint64_t at[MAX]; /* by item */
	unsigned char opened[MAX]; /* by item */
	uint32_t opening;
	size_t ahead, most; /* bytes read ahead and not yet handed out */
	size_t asked[MAX]; /* by item */
	unsigned fail_open; /* one in this many cannot be opened */
	unsigned char cached[MAX]; /* by number given as fd */
	unsigned looked; /* how often cached was read */
	bool fail_alloc;
	size_t memory;
};

static int fake_open(void *ctx, uint32_t item)
{
	struct fake *f = ctx;

	f->opened[item]++;
	f->opening = item;
	errno = EMFILE;
	if (f->fail_open && rnd() % f->fail_open == 0)
		return -1;
	return open("/dev/null", O_RDONLY);
}

static int fake_cached(void *ctx, int fd, off_t size)
{
	struct fake *f = ctx;

	f->looked++;
	errno = EPERM;
	return size > 0 && f->cached[fd];
}

static uint64_t fake_place(void *ctx, int fd)
{
	errno = EOPNOTSUPP;
	return ((struct fake *)ctx)->places[fd];
}

static size_t fake_ahead(void *ctx, int fd, size_t size)
{
	struct fake *f = ctx;

	if (fcntl(fd, F_GETFD) < 0 || size > DORDER_AHEAD_FILE)
		f->most = SIZE_MAX;
	f->asked[f->opening] = size;
	f->ahead += size;
	if (f->most < f->ahead)
		f->most = f->ahead;
	return size;
}

static void *fake_alloc(void *ctx, size_t size)
{
	struct fake *f = ctx;

	if (f->fail_alloc)
		return NULL;
	f->memory += size;
	return malloc(size);
}

static void fake_release(void *ctx, void *memory, size_t size)
{
	((struct fake *)ctx)->memory -= size;
	free(memory);
}

static const struct dorder_window_ops ops = { .open = fake_open,
					      .cached = fake_cached,
					      .place = fake_place,
					      .ahead = fake_ahead,
					      .alloc = fake_alloc,
					      .release = fake_release };

/* Adds count files, some without a place; returns how many were taken. */
static uint32_t add(struct dorder_window *w, struct fake *f, int count,
		    off_t size, unsigned fail_place, bool *good)
{
	uint32_t taken = dorder_window_count(w);
	int64_t got;
	int n;

	for (n = 0; n < count; n++) {
		f->places[n] = rnd() % fail_place ? 1 + rnd() % 100000 : 0;
		f->sizes[n] = rnd() % size;
		errno = 0;
		got = dorder_window_add(w, n, f->sizes[n]);
		*good &= !errno;
		if (!f->places[n] || !f->sizes[n]) {
			*good &= got == -1;
			continue;
		}
		*good &= got == taken;
		f->at[taken++] = f->places[n];
	}
	*good &= dorder_window_count(w) == taken;
	return taken;
}

static void test_next(unsigned fail_place, unsigned fail_open, off_t size)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w = dorder_window_new(&ops, f, MAX, NULL);
	bool good = w && f->memory <= DORDER_WINDOW_FILE * MAX + 4096;
	char what[100];
	uint32_t item, taken, seen, n;
	uint64_t last;
	int round;

	f->fail_open = fail_open;
	for (round = 0; good && round < 5; round++) {
		memset(f->opened, 0, sizeof(f->opened));
		memset(f->asked, 0, sizeof(f->asked));
		f->ahead = f->most = 0;
		taken = add(w, f, rnd() % MAX, size, fail_place, &good);
		for (seen = 0, last = 0; dorder_window_next(w, &item); seen++) {
			good &= item < taken && f->at[item] >= last;
			good &= f->opened[item] == 1;
			/* this one is no longer ahead */
			f->ahead -= f->asked[item];
			last = f->at[item];
			f->at[item] = 0; /* not twice */
			good &= dorder_window_add(w, 0, 1) == -1;
		}
		for (n = 0; n < taken; n++)
			good &= !f->at[n];
		good &= seen == taken && !dorder_window_count(w);
		good &= f->most < DORDER_AHEAD_BYTES + DORDER_AHEAD_FILE;
	}
	dorder_window_free(w);
	good &= !f->memory;
	free(f);
	snprintf(what, sizeof(what),
		 "1/%u without a place, 1/%u not opened, up to %lld bytes",
		 fail_place, fail_open, (long long)size);
	ok(good, what);
}

static void test_read_all(void)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w = dorder_window_new(&ops, f, MAX, NULL);
	bool good = true;
	uint32_t taken, n;
	size_t sum = 0;

	taken = add(w, f, MAX, 5000, 7, &good);
	good &= taken > MAX / 2;
	good &= dorder_window_read_all(w) == f->ahead && f->ahead;
	for (n = 0; n < taken; n++) {
		good &= f->opened[n] == 1;
		sum += f->asked[n];
	}
	good &= sum == f->ahead && !dorder_window_count(w);
	good &= !dorder_window_read_all(w);
	dorder_window_free(w);
	free(f);
	ok(good, "all are read ahead once");
}

static void test_bounds(void)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w;
	uint32_t item;
	bool good;
	int n;

	f->fail_alloc = true;
	errno = 0;
	ok(!dorder_window_new(&ops, f, 10, NULL) && errno == ENOMEM,
	   "no memory");
	f->fail_alloc = false;
	w = dorder_window_new(&ops, f, 10, NULL);
	ok(!dorder_window_next(w, &item), "an empty window");
	for (good = true, n = 0; n < 20; n++) {
		f->places[n] = 100 - n;
		good &= dorder_window_add(w, n, 1) == (n < 10 ? n : -1);
	}
	ok(good, "a full window takes no more");
	for (good = true, n = 9; n >= 0; n--)
		good &= dorder_window_next(w, &item) && item == (uint32_t)n;
	good &= !dorder_window_next(w, &item);
	ok(good && !dorder_window_add(w, 0, 1), "and is filled again");
	dorder_window_free(w);
	free(f);
}

/* More files than are held at a time. */
#define LOTS (2 * DORDER_HOLD_FILES + DORDER_HOLD_FILES / 2)

struct lots {
	unsigned char held[LOTS], dropped[LOTS], forgotten[LOTS]; /* by item */
	int fd[LOTS]; /* the descriptor that holds an item */
	uint32_t by_fd[2 * LOTS]; /* the item opened last as a descriptor */
	uint32_t last, holds, falls, firsts;
	bool early; /* opened before it was held */
	uint32_t gone, back; /* files after which a directory is evicted, and
				after which reading it again is useless */
	uint32_t read_at, reads, asks;
};

static int lots_open(void *ctx, uint32_t item)
{
	struct lots *l = ctx;
	int fd = open("/dev/null", O_RDONLY);

	l->early |= !l->held[item];
	if (fd >= 0)
		l->by_fd[fd] = item;
	return fd;
}

/* Waits caused by reading a directory. */
#define READING 100

static int lots_hold(void *ctx, uint32_t item, int first)
{
	struct lots *l = ctx;
	uint32_t n;
	bool fall = !l->holds || item < l->last;

	l->falls += fall;
	l->firsts += fall && first;
	l->asks += first;
	for (n = 0; first && l->gone && n < READING; n++)
		usleep(1);
	if (first && l->holds < l->back) {
		l->read_at = l->holds;
		l->reads++;
	}
	/* The directory is evicted: this look-up waits for the disk. */
	if (l->gone && l->holds >= l->read_at + l->gone)
		usleep(1);
	l->holds++;
	l->last = item;
	l->held[item]++;
	l->fd[item] = open("/dev/null", O_PATH);
	errno = ENOENT;
	return l->fd[item];
}

static uint32_t open_files(void)
{
	uint32_t count = 0;
	DIR *dir = opendir("/proc/self/fd");

	while (dir && readdir(dir))
		count++;
	closedir(dir);
	return count;
}

static struct rlimit limit_now(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		abort();
	return limit;
}

/* How many files may be held: the program keeps its limit, or half of it. */
static uint32_t allowance(void)
{
	struct rlimit limit = limit_now();
	rlim_t more = limit.rlim_max - limit.rlim_cur;

	if (more < limit.rlim_max / 2)
		more = limit.rlim_max / 2;
	return more < LOTS ? more : LOTS;
}

static void lots_drop(void *ctx, int fd)
{
	struct lots *l = ctx;

	l->dropped[l->by_fd[fd]]++;
	errno = fcntl(fd, F_GETFD) < 0 ? EBADF : EIO;
}

static void lots_forget(void *ctx, int fd)
{
	((struct lots *)ctx)->forgotten[fd]++;
	errno = EIO;
}

/* By the number given as fd: partly in memory, or not at all. */
static int lots_cached(void *ctx, int fd, off_t size)
{
	(void)ctx;
	(void)size;
	return fd % 3 ? 0 : -1;
}

static uint64_t lots_place(void *ctx, int fd)
{
	(void)ctx;
	return 1 + (uint32_t)fd * 2654435761u % 1000000;
}

static size_t lots_ahead(void *ctx, int fd, size_t size)
{
	(void)ctx;
	(void)fd;
	return size;
}

/* The room of the test's machine. */
static size_t lots_room_bytes;

static size_t lots_room(void *ctx)
{
	(void)ctx;
	return lots_room_bytes;
}

static const struct dorder_window_ops lots_ops = { .open = lots_open,
						   .hold = lots_hold,
						   .drop = lots_drop,
						   .forget = lots_forget,
						   .cached = lots_cached,
						   .place = lots_place,
						   .ahead = lots_ahead,
						   .room = lots_room };

/* files: how many inodes there is room for. */
static void test_hold(uint32_t count, uint32_t chunks, size_t files)
{
	struct lots *l = calloc(1, sizeof(*l));
	struct dorder_watch watch = { 0, 0, 0 };
	uint32_t item, seen, dropped, n, most, before = open_files();
	uint32_t allowed = allowance(), wanted;
	rlim_t soft = limit_now().rlim_cur;
	struct dorder_window *w;
	uint32_t stretches = 0, next = 0, pause = 1, asks;
	bool good = true;
	char what[160];
	int round;

	wanted = files < DORDER_HOLD_LEAST ? DORDER_HOLD_LEAST : files;
	wanted = wanted < count ? wanted : count;
	/* At a time no more than may be open, but at least HOLD_LEAST. */
	if (chunks && allowed < wanted) {
		wanted = allowed > DORDER_HOLD_LEAST ? allowed
						     : DORDER_HOLD_LEAST;
		chunks = (count + wanted - 1) / wanted;
	}
	lots_room_bytes = files * 3 * DORDER_HOLD_BYTES;
	w = dorder_window_new(&lots_ops, l, LOTS, &watch);
	/* Twice: the second round must not see what the first one held. */
	for (round = 0; round < 2 && l && w; round++) {
		memset(l, 0, sizeof(*l));
		l->early = !chunks;
		for (n = 0; n < count; n++)
			good &= dorder_window_add(w, n,
						  n % 7 ? 4096 : 2 << 20) == n;
		errno = 7;
		for (most = seen = 0; dorder_window_next(w, &item); seen++) {
			if (l->dropped[item])
				good = false; /* it is still in use */
			if (chunks && allowed >= wanted)
				good &= fcntl(l->fd[item], F_GETFD) >= 0;
			if (seen % 4001)
				continue;
			n = open_files() - before;
			most = n > most ? n : most;
		}
		good &= errno == 7 && seen == count;
		good &= l->holds == (chunks ? count : 0);
		/* With enough memory, names in memory are read less often. */
		stretches += chunks;
		for (asks = 0; next < stretches; asks++, pause *= 2)
			next += 1 + (files < DORDER_HOLD_FILES ? 0 : pause);
		good &= l->falls == chunks && l->firsts == asks;
		good &= l->early == !chunks;
		/* Everything was released, and not too many held at a time. */
		good &= open_files() == before;
		good &= limit_now().rlim_cur == soft;
		good &= most <= wanted + DORDER_AHEAD_FILES && most <= allowed;
		good &= !chunks || 2 * most > wanted || 2 * most > allowed;
		good &= chunks || (most && most <= DORDER_AHEAD_FILES);
		for (dropped = n = 0; n < count; n++) {
			good &= l->held[n] == !!chunks;
			good &= l->dropped[n] == (n % 3 && n % 7 ? 1 : 0);
			/* From the first check that found memory short. */
			good &= l->forgotten[n] ==
				(n % 3 && n + 1 >= DORDER_HOLD_LEAST &&
				 files < DORDER_HOLD_FILES);
			dropped += l->dropped[n];
		}
		good &= dropped > count / 2;
	}
	/* Freed in the middle: nothing stays open, the limit is restored. */
	for (n = 0; n < count; n++)
		good &= dorder_window_add(w, n, 4096) == n;
	for (n = 0; n < 300; n++)
		good &= dorder_window_next(w, &item);
	good &= open_files() > before;
	dorder_window_free(w);
	good &= open_files() == before && limit_now().rlim_cur == soft;
	free(l);
	snprintf(what, sizeof(what),
		 "%u files are held in %u rows, with room for %zu, %u may be",
		 count, chunks, files, allowed);
	ok(good, what);
}

/* A directory that is evicted repeatedly is read again. */
static void test_lost(uint32_t files, uint32_t gone, uint32_t back,
		      uint32_t least, uint32_t most)
{
	struct lots *l = calloc(1, sizeof(*l));
	struct dorder_window *w = dorder_window_new(&lots_ops, l, 16000, NULL);
	uint32_t item, n;
	char what[160];
	bool good;

	lots_room_bytes = files * 3 * DORDER_HOLD_BYTES;
	l->gone = gone;
	l->back = back;
	for (n = 0; n < 16000; n++)
		dorder_window_add(w, n, 4096);
	while (dorder_window_next(w, &item))
		;
	dorder_window_free(w);
	good = l->holds == 16000 && least <= l->reads && l->reads <= most;
	/* Useless readings cost no more than never reading it. */
	good &= (l->asks - l->reads) * READING <= 16000 * 3 / 4;
	good &= l->gone || l->asks <= 3;
	snprintf(
		what, sizeof(what),
		"%u at a time, gone after %u, read again until %u: read %u times of %u",
		files, gone, back, l->reads, l->asks);
	ok(good, what);
	free(l);
}

/* Only waits of look-ups show that names are lost, not other waits. */
static void test_looks(bool inside, uint32_t least, uint32_t most)
{
	struct dorder_hold hold = { 0 };
	uint32_t n, lost = 0;
	char what[100];

	for (n = 1; n <= 2000; n++) {
		dorder_hold_go_on(&hold);
		lost += dorder_hold_lost(&hold, n);
		if (inside)
			usleep(1);
		dorder_hold_rest(&hold);
		if (!inside)
			usleep(1);
	}
	snprintf(what, sizeof(what), "waits %s look-ups: lost %u times",
		 inside ? "in" : "between", lost);
	ok(lost >= least && lost <= most, what);
}

/* Three windows of files scattered over the disk, handed out by halves. */
#define SPREAD 60000
#define PLACES 100000

struct spread {
	uint64_t places[SPREAD]; /* by file */
	uint32_t file[SPREAD]; /* by item */
	uint32_t opened, last, falls; /* breaks of the order of adding */
};

static uint64_t spread_place(void *ctx, int fd)
{
	return ((struct spread *)ctx)->places[fd];
}

static int spread_open(void *ctx, uint32_t item)
{
	((struct spread *)ctx)->opened += item < SPREAD;
	return -1;
}

static int spread_hold(void *ctx, uint32_t item, int first)
{
	struct spread *s = ctx;

	(void)first;
	s->falls += s->file[item] < s->last;
	s->last = s->file[item];
	return -1;
}

static size_t spread_room(void *ctx)
{
	(void)ctx;
	return (size_t)1 << 30;
}

/* most: limit of sweeps over the disk, in tenths; a whole window takes one. */
static void test_part(uint32_t max, bool ordered, uint32_t most)
{
	static const struct dorder_window_ops spread_ops = {
		.open = spread_open,
		.hold = spread_hold,
		.place = spread_place,
		.room = spread_room
	};
	struct spread *s = calloc(1, sizeof(*s));
	struct dorder_window *w = dorder_window_new(&spread_ops, s, max, NULL);
	unsigned char *seen = calloc(1, SPREAD), *used = calloc(1, SPREAD);
	uint32_t n, left, given, item, rounds = 0, all = 0;
	uint64_t at = 0, way = 0;
	bool good = true;
	char what[120];
	int64_t got;

	for (n = 0; n < SPREAD; n++)
		s->places[n] = 1 + (ordered ? n : rnd() % PLACES);
	for (n = 0; n < SPREAD;) {
		got = dorder_window_add(w, n, 4096);
		good &= got >= 0 && got < max && !used[got];
		if (!good)
			break;
		used[got] = 1;
		s->file[got] = n++;
		if (n < SPREAD && dorder_window_count(w) < max)
			continue;
		left = dorder_window_count(w);
		if (n < SPREAD)
			dorder_window_part(w);
		s->falls = given = 0;
		s->last = 0;
		while (dorder_window_next(w, &item)) {
			dorder_window_part(w);
			good &= used[item] && !seen[s->file[item]];
			seen[s->file[item]] = 1;
			used[item] = 0;
			way += s->places[s->file[item]] - at;
			way += s->places[s->file[item]] < at ? PLACES : 0;
			at = s->places[s->file[item]];
			given++;
		}
		rounds++;
		all += given;
		left -= given;
		good &= dorder_window_count(w) == left;
		good &= left == (n < SPREAD && !ordered ? max - max / 2 : 0);
		/* Inodes are read in the order in which they were added. */
		good &= s->falls <= 1 + given / DORDER_HOLD_LEAST;
	}
	good &= all == SPREAD && s->opened >= SPREAD &&
		10 * way <= most * PLACES;
	for (n = 0; n < SPREAD; n++)
		good &= seen[n] == 1;
	dorder_window_free(w);
	free(seen);
	free(used);
	free(s);
	snprintf(what, sizeof(what),
		 "%u at a time, %s, by halves: %u rounds, %u.%u sweeps", max,
		 ordered ? "in order" : "anywhere", rounds,
		 (unsigned)(way / PLACES), (unsigned)(10 * way / PLACES % 10));
	ok(good, what);
}

/* The limit in a child made by fork(). */
static rlim_t limit_of_child(void)
{
	pid_t child = fork();
	int ends = -1;

	if (!child)
		_exit(limit_now().rlim_cur == 600);
	if (child < 0 || waitpid(child, &ends, 0) < 0 || !WIFEXITED(ends))
		abort();
	return WEXITSTATUS(ends) ? 600 : 0;
}

/* Two holds at once; the first one ends first. */
static void test_limit(void)
{
	struct rlimit before = limit_now(), low = before;
	struct dorder_hold one = { 0 }, other = { 0 };
	bool good;

	low.rlim_cur = 600;
	if (low.rlim_max < 6000) {
		printf("# SKIP: the hard limit of open files is %llu\n",
		       (unsigned long long)low.rlim_max);
		return;
	}
	if (setrlimit(RLIMIT_NOFILE, &low))
		abort();
	good = dorder_hold_start(&one, 2000) && one.most == 2000;
	good &= limit_now().rlim_cur == 2600;
	ok(limit_of_child() == 600, "a child has the original limit");
	ok(good && limit_now().rlim_cur == 2600,
	   "and its parent the raised one");
	good = dorder_hold_start(&other, 3000) && other.most == 3000;
	ok(good && limit_now().rlim_cur == 5600, "two raise it for both");
	dorder_hold_end(&one);
	good = limit_of_child() == 600;
	dorder_hold_end(&other);
	ok(good && limit_now().rlim_cur == 600,
	   "it is restored when both have ended");
	if (setrlimit(RLIMIT_NOFILE, &before))
		abort();
}

/* Files kept open for two windows are used without opening them again. */
static void test_keep(rlim_t soft)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w = dorder_window_new(&ops, f, 400, NULL);
	struct rlimit limit = limit_now(), before = limit;
	uint32_t open_before = open_files(), n, most;
	int last[800], total = 0, round, fd, i, more;
	bool good = true;
	char what[80];

	limit.rlim_cur = soft;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		abort();
	most = before.rlim_max - soft > 800 ? 800 : soft / 2;
	for (n = 0; n < 400; n++) {
		f->places[n] = 1 + rnd() % 100;
		f->sizes[n] = 4096;
	}
	for (round = 0; round < 12; round++) {
		memset(f->opened, 0, sizeof(f->opened));
		f->ahead = 0;
		n = round ? 1 + rnd() % 400 : 400;
		for (i = 0; i < (int)n; i++) {
			fd = open("/dev/null", O_PATH);
			last[total++ % 800] = fd;
			errno = 7;
			dorder_window_keep(w, dorder_window_add(w, i, 4096),
					   fd);
			good &= errno == 7;
		}
		good &= dorder_window_read_all(w) == n * 4096;
		for (i = 0; i < (int)n; i++)
			good &= most < 800 || !f->opened[i];
		for (i = 0; i < 800 && i < total && most == 800; i++)
			good &= fcntl(last[i], F_GETFD) >= 0;
		i = total < (int)most ? total : (int)most;
		good &= open_files() - open_before == (uint32_t)i;
	}
	fd = open("/dev/null", O_PATH);
	dorder_window_keep(w, dorder_window_add(w, 0, 0), fd);
	good &= fcntl(fd, F_GETFD) < 0;
	/* Used files are closed one by one; files added then are kept. */
	for (i = 0; i < total; i++)
		dorder_window_used(w);
	good &= open_files() == open_before;
	for (more = 0; more < 200; more++) {
		fd = open("/dev/null", O_PATH);
		dorder_window_keep(w, dorder_window_add(w, more, 4096), fd);
	}
	good &= open_files() - open_before == 200;
	dorder_window_read_all(w);
	for (i = 0; i < more; i++) {
		dorder_window_used(w);
		good &= open_files() - open_before == 199 - (uint32_t)i;
	}
	dorder_window_free(w);
	good &= open_files() == open_before && limit_now().rlim_cur == soft;
	if (setrlimit(RLIMIT_NOFILE, &before))
		abort();
	free(f);
	snprintf(what, sizeof(what), "of two windows %u files are kept open",
		 most);
	ok(good && total > 800, what);
}

/* A reused number does not get the descriptor kept for its earlier file. */
static void test_not_kept(void)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w = dorder_window_new(&ops, f, 1, NULL);
	uint32_t before = open_files();
	bool good = true;
	int round;

	f->places[0] = 1;
	for (round = 0; round < 5; round++) {
		memset(f->opened, 0, sizeof(f->opened));
		good &= !dorder_window_add(w, 0, 1);
		if (round < 2)
			dorder_window_keep(w, 0, open("/dev/null", O_PATH));
		good &= dorder_window_read_all(w) == 1;
		good &= f->opened[0] == (round >= 2);
	}
	good &= open_files() == before;
	dorder_window_free(w);
	free(f);
	ok(good, "one that is not kept is opened");
}

static void all_holds(void)
{
	test_hold(DORDER_HOLD_LEAST, 0, 1 << 20);
	test_hold(DORDER_HOLD_FILES, 1, 1 << 20);
	test_hold(DORDER_HOLD_FILES + 1, 2, 1 << 20);
	test_hold(LOTS, 3, 1 << 20);
	test_hold(30000, 2, 20000);
	test_hold(20000, 1, 20000);
	test_hold(10000, 2, 6000);
	test_hold(2 * DORDER_HOLD_LEAST + 1, 3, 1);
}

/* With the usual limit, and with one that cannot be raised. */
static void test_holds(void)
{
	struct rlimit low = limit_now();

	/* A busy machine adds a few other waits. */
	test_lost(20000, 0, 16000, 1, 3);
	test_lost(20000, 1000, 16000, 16000 / 1350, 16000 / 1000);
	test_lost(20000, 1000, 5000, 5000 / 1350, 5000 / 1000);
	test_lost(20000, 1, 1, 1, 1);
	/* If reading names has to wait, each stretch begins with it. */
	test_lost(4000, 5000, 16000, 4, 4);

	low.rlim_cur = 1024;
	if (setrlimit(RLIMIT_NOFILE, &low))
		abort();
	all_holds();
	low.rlim_cur = low.rlim_max = 600;
	if (setrlimit(RLIMIT_NOFILE, &low))
		abort();
	all_holds();
	test_keep(600);
}

/* Writes a file below top, and makes its directories. */
static void put(const char *top, const char *path, const char *text)
{
	char name[300], *at;
	FILE *out;

	snprintf(name, sizeof(name), "%s%s", top, path);
	for (at = name + strlen(top) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(name, 0700);
		*at = '/';
	}
	out = fopen(name, "w");
	if (!out || fputs(text, out) < 0 || fclose(out))
		abort();
}

static void test_room(void)
{
	char top[] = "/tmp/dorder-room-XXXXXX", command[100];

	ok(dorder_room() > 1 << 20, "this machine has room");
	ok(dorder_handles() > 100, "and open files to spare");
	if (!mkdtemp(top))
		abort();
	errno = 7;
	ok(dorder_room_at(top) == SIZE_MAX && errno == 7, "nothing tells");
	put(top, "/proc/meminfo",
	    "MemTotal: 900 kB\nMemFree: 5 kB\nMemAvailable:     700 kB\n");
	ok(dorder_room_at(top) == 700 << 10, "what the machine has");
	put(top, "/proc/self/cgroup", "0::/a.slice/b.service\n");
	put(top, "/sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
	ok(dorder_room_at(top) == 700 << 10, "no limit");
	put(top, "/sys/fs/cgroup/a.slice/memory.high", "600000\n");
	ok(dorder_room_at(top) == 600000, "a limit above");
	put(top, "/sys/fs/cgroup/a.slice/b.service/memory.max", "500000\n");
	ok(dorder_room_at(top) == 500000, "the lowest limit");
	put(top, "/sys/fs/cgroup/a.slice/b.service/memory.current", "300000\n");
	ok(dorder_room_at(top) == 200000, "what is left of it");
	put(top, "/sys/fs/cgroup/a.slice/b.service/memory.stat",
	    "anon 1\ninactive_file 40000\nactive_file 50000\n"
	    "slab_reclaimable 9000\nworkingset_refault_inactive_file 7\n");
	ok(dorder_room_at(top) == 299000, "and what can be reclaimed");
	put(top, "/sys/fs/cgroup/a.slice/memory.current", "590000\n");
	ok(dorder_room_at(top) == 10000, "a limit above is nearly reached");
	put(top, "/sys/fs/cgroup/a.slice/memory.current", "700000\n");
	ok(dorder_room_at(top) == 0, "or exceeded");
	put(top, "/proc/self/cgroup",
	    "5:memory:/m\n4:cpu,cpuacct:/c\n1:name=systemd:/s\n0::/\n");
	put(top, "/sys/fs/cgroup/memory/m/memory.limit_in_bytes", "400000\n");
	put(top, "/sys/fs/cgroup/memory/memory.limit_in_bytes",
	    "9223372036854771712\n");
	ok(dorder_room_at(top) == 400000, "of the older kind");
	put(top, "/sys/fs/cgroup/memory/m/memory.usage_in_bytes", "390000\n");
	put(top, "/sys/fs/cgroup/memory/m/memory.stat",
	    "inactive_file 1\nactive_file 2\ntotal_inactive_file 30000\n"
	    "total_active_file 20000\n");
	ok(dorder_room_at(top) == 60000, "what is left of that");
	put(top, "/sys/fs/cgroup/memory/m/memory.kmem.usage_in_bytes",
	    "5000\n");
	ok(dorder_room_at(top) == 65000, "inodes and names can be reclaimed");
	errno = 7;
	ok(dorder_handles_at(top) == SIZE_MAX && errno == 7,
	   "the limit of open files is unknown");
	put(top, "/proc/sys/fs/file-nr", "1000\t0\t9000\n");
	ok(dorder_handles_at(top) == 2000, "a quarter of what is left of them");
	put(top, "/proc/sys/fs/file-nr", "9001\t0\t9000\n");
	ok(dorder_handles_at(top) == 0, "none is left");
	snprintf(command, sizeof(command), "rm -r %s", top);
	if (system(command))
		abort();
}

/* One in this many files lies before the previous one. */
static uint32_t one_of;

static uint64_t enough_place(void *ctx, int fd)
{
	(void)ctx;
	return 1000000 + (uint64_t)fd * 10 - (fd % one_of ? 0 : 15);
}

/* How often dorder_window_enough() was true, and at which file last. */
static uint32_t enough(uint32_t count, uint32_t *at)
{
	static const struct dorder_window_ops real = { .open = lots_open,
						       .cached = lots_cached,
						       .place = enough_place,
						       .ahead = lots_ahead,
						       .room = lots_room };
	struct lots *l = calloc(1, sizeof(*l));
	struct dorder_window *w = dorder_window_new(&real, l, LOTS, NULL);
	uint32_t n, times = dorder_window_enough(w), item;

	for (n = 0; n < count; n++) {
		(void)dorder_window_add(w, n, 3000);
		if (dorder_window_enough(w)) {
			times++;
			*at = n + 1;
		}
	}
	while (dorder_window_next(w, &item))
		;
	times += dorder_window_enough(w);
	dorder_window_free(w);
	free(l);
	return times;
}

static void test_enough(void)
{
	uint32_t at = 0;

	lots_room_bytes = SIZE_MAX;
	one_of = LOTS;
	ok(enough(LOTS, &at) == 1 && at == DORDER_HOLD_FILES,
	   "in order: enough, once");
	ok(!enough(DORDER_HOLD_FILES - 1, &at), "too few: not enough");
	one_of = 17;
	ok(enough(DORDER_HOLD_FILES, &at) == 1, "one of 17 lies before");
	one_of = 15;
	ok(!enough(LOTS, &at), "one of 15: more may help");
	lots_room_bytes = (size_t)100000 * DORDER_READ_BYTES;
	ok(enough(100000, &at) == 1 && at == 100000, "no room for more");
	ok(!enough(100000 - 1, &at), "but for so many");
	lots_room_bytes = 1 << 20;
	ok(enough(DORDER_HOLD_FILES, &at) == 1 && at == DORDER_HOLD_FILES,
	   "so many are always taken");
}

/* Files without FIEMAP or data are refused without harm. */
/* More real files than are read ahead at a time. */
#define REAL (2 * DORDER_AHEAD_FILES)

struct real_files {
	char path[400];
	size_t dir; /* length of the directory's part of the path */
	ino_t ino[REAL]; /* by item */
	unsigned char opened[REAL], dropped[REAL]; /* by item */
	uint32_t using; /* the item handed out last */
	bool wrong;
};

static int real_open(void *ctx, uint32_t item)
{
	struct real_files *r = ctx;
	int fd;

	snprintf(r->path + r->dir, sizeof(r->path) - r->dir, "/f%u", item);
	fd = open(r->path, O_RDONLY | O_CLOEXEC);
	r->opened[item] += fd >= 0;
	return fd;
}

static void real_drop(void *ctx, int fd)
{
	struct real_files *r = ctx;
	struct stat st;

	r->wrong |= fstat(fd, &st) != 0 || st.st_ino != r->ino[r->using];
	r->dropped[r->using]++;
}

static int never_cached(void *ctx, int fd, off_t size)
{
	(void)ctx;
	(void)fd;
	(void)size;
	return 0;
}

/*
 * A file is opened once to read it ahead, to use it and to drop it: by a
 * descriptor of the file itself, at its start, whose reads update the time of
 * access.  Where the limit of open files is low, it is opened as before.
 */
static bool file_once(const char *where, bool all)
{
	static const struct dorder_window_ops real = { .open = real_open,
						       .drop = real_drop,
						       .cached = never_cached };
	struct real_files *r = calloc(1, sizeof(*r));
	struct dorder_watch watch = { 0, 0, 0 };
	struct dorder_window *w = dorder_window_new(&real, r, REAL, &watch);
	uint32_t before = open_files(), item, seen, ready = 0;
	bool good = true;
	struct stat st;
	int fd;

	r->dir = snprintf(r->path, sizeof(r->path) - 20, "%s/files-XXXXXX",
			  where);
	if (!mkdtemp(r->path))
		abort();
	for (item = 0; item < REAL; item++) {
		snprintf(r->path + r->dir, 20, "/f%u", item);
		fd = open(r->path, O_RDWR | O_CREAT | O_EXCL, 0600);
		good &= write(fd, "data", 4) == 4 && !fsync(fd);
		good &= !fstat(fd, &st) && dorder_window_add(w, fd, 4) == item;
		r->ino[item] = st.st_ino;
		close(fd);
	}
	for (seen = 0; dorder_window_next(w, &item); seen++) {
		char text[5] = "";

		r->using = item;
		errno = 7;
		fd = dorder_window_file(w);
		good &= errno == 7;
		ready += fd >= 0;
		if (fd < 0)
			continue;
		good &= !fstat(fd, &st) && st.st_ino == r->ino[item];
		good &= !(fcntl(fd, F_GETFL) & O_NOATIME);
		good &= fcntl(fd, F_GETFD) == FD_CLOEXEC;
		good &= read(fd, text, 5) == 4 && !strcmp(text, "data");
		good &= !close(fd);
	}
	good &= seen == REAL && dorder_window_file(w) == -1 && !r->wrong;
	for (item = 0; item < REAL; item++) {
		good &= r->dropped[item] == 1;
		good &= r->opened[item] == 1 || (!all && r->opened[item] == 2);
	}
	good &= all ? ready == REAL : ready < REAL;
	good &= open_files() == before;
	for (item = 0; item < REAL; item++) {
		snprintf(r->path + r->dir, 20, "/f%u", item);
		unlink(r->path);
	}
	r->path[r->dir] = 0;
	rmdir(r->path);
	dorder_window_free(w);
	free(r);
	return good;
}

/* The limit cannot be raised again: it is lowered in a child. */
static void test_file(const char *where)
{
	const struct rlimit few = { 200, 200 };
	int status = -1;
	pid_t child;

	ok(file_once(where, true), "files are opened once");
	child = fork();
	if (!child) {
		if (setrlimit(RLIMIT_NOFILE, &few))
			abort();
		_exit(!file_once(where, false));
	}
	ok(child > 0 && waitpid(child, &status, 0) == child && !status,
	   "most are opened again where few may be open");
}

static void test_real(void)
{
	static const struct dorder_window_ops real = { .open = fake_open };
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w = dorder_window_new(&real, f, 10, NULL);
	bool good = true;
	int ends[2], fd;

	if (pipe(ends) == 0) {
		errno = 7;
		good &= dorder_window_add(w, ends[0], 1) == -1 && errno == 7;
		close(ends[0]);
		close(ends[1]);
	}
	fd = open("/proc/self/status", O_RDONLY);
	good &= fd >= 0 && dorder_window_add(w, fd, 1) == -1;
	close(fd);
	good &= dorder_window_add(w, fd, 1) == -1; /* closed */
	ok(good, "no place: a pipe, /proc, a closed descriptor");
	dorder_window_free(w);
	free(f);
}

/* Only devices whose files have no place are given up. */
static void test_devices(void)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_window *w = dorder_window_new(&ops, f, MAX, NULL);
	uint32_t n, tried[4] = { 0 };
	bool good = true;
	int round;

	/* Of the third, one has a place; the fourth has a few files. */
	for (n = 0; n < 40; n++)
		f->places[n] = n == 20;
	for (round = 0; round < 40; round++)
		for (n = 0; n < 4; n++) {
			for (int i = 0; i < (n < 3 ? 40 : 1); i++) {
				if (!dorder_window_device(w, n))
					continue;
				tried[n]++;
				f->places[100] = n == 2 && i == 20;
				(void)dorder_window_add(w, 100, 1);
			}
		}
	good = tried[0] >= 64 && tried[0] < 40 * 40 && tried[2] == 40 * 40 &&
	       tried[3] == 40;
	ok(good, "devices with and without places in turn");
	memset(tried, 0, sizeof(tried));
	for (n = 0; n < 1000; n++) {
		tried[0] += dorder_window_device(w, 10);
		f->places[100] = 0;
		(void)dorder_window_add(w, 100, 1);
	}
	ok(tried[0] == DORDER_GIVE_UP, "one without is given up");
	good = dorder_window_device(w, 11) && !dorder_window_device(w, 10);
	ok(good, "and stays so");
	dorder_window_free(w);
	free(f);
}

/*
 * Visits count files from number from on, as a tool does; returns how many were
 * deferred.  looked: how many were checked.
 */
static unsigned go(struct dorder_window *w, struct dorder_watch *watch,
		   struct fake *f, int from, int count, unsigned *looked)
{
	unsigned before = f->looked;
	uint32_t item, off = 0;
	int n;

	for (n = from; n < from + count; n++)
		if (dorder_watch_look(watch))
			off += dorder_window_add(w, n % MAX, 4096) >= 0;
	*looked = f->looked - before;
	for (n = 0; dorder_window_next(w, &item); n++)
		;
	return (uint32_t)n == off ? off : UINT32_MAX;
}

/* Nothing in memory, everything, one half, every other file. */
static void test_watch(void)
{
	struct fake *f = calloc(1, sizeof(*f));
	struct dorder_watch watch = { 0, 0, 0 };
	struct dorder_window *w = dorder_window_new(&ops, f, MAX, &watch);
	unsigned looked, off;
	bool good;
	int n;

	for (n = 0; n < MAX; n++)
		f->places[n] = MAX - n;
	off = go(w, &watch, f, 0, MAX, &looked);
	ok(off == MAX && looked == MAX, "nothing in memory: all are deferred");

	memset(f->cached, 1, MAX);
	off = go(w, &watch, f, 0, MAX, &looked);
	ok(!off && looked >= 16 && looked <= 16 * 7,
	   "all in memory: none is deferred, few are checked");
	off = go(w, &watch, f, 0, MAX * 10, &looked);
	ok(!off && looked >= 16 && looked <= MAX * 10 / 4096 * 16 + 32,
	   "and ever fewer");

	/* At most the longest pass is missed once files are not in memory. */
	for (n = 0; n < 10; n++)
		(void)go(w, &watch, f, 0, MAX, &looked);
	memset(f->cached, 0, MAX);
	off = go(w, &watch, f, 0, MAX * 3, &looked);
	ok(off >= 1 && off == looked, "no longer in memory: it is noticed");
	off = go(w, &watch, f, 0, MAX, &looked);
	ok(off == MAX, "and from then on all are deferred");

	memset(&watch, 0, sizeof(watch));
	memset(f->cached, 1, MAX / 2);
	off = go(w, &watch, f, 0, MAX, &looked);
	ok(off >= MAX / 2 - 1024 && off <= MAX / 2, "half in memory");

	for (n = 0; n < MAX; n++)
		f->cached[n] = n % 2;
	memset(&watch, 0, sizeof(watch));
	off = go(w, &watch, f, 0, MAX, &looked);
	ok(off == MAX / 2 && looked == MAX, "every other one in memory");

	memset(&watch, 0, sizeof(watch));
	memset(f->cached, 1, MAX);
	good = !dorder_watch_pass(&watch, 1);
	(void)go(w, &watch, f, 0, 16, &looked);
	good &= looked == 16 && dorder_watch_pass(&watch, 60);
	good &= !dorder_watch_pass(&watch, 5) && dorder_watch_pass(&watch, 4);
	good &= dorder_watch_look(&watch) == 1;
	errno = 7;
	good &= dorder_window_add(w, 0, 1) == -1 && errno == 7;
	ok(good, "whole directories are passed; errno stays");
	dorder_window_free(w);
	free(f);
}

int main(int argc, char **argv)
{
	unsigned long long first;

	seed = argc > 1 ? strtoull(argv[1], NULL, 0) : USUAL;
	seed = seed ? seed : 1;
	first = seed;
	printf("# seed %llu\n", (unsigned long long)seed);
	test_next(1000000, 1000000, 5000);
	test_next(3, 1000000, 5000);
	test_next(1000000, 3, 5000);
	test_next(4, 4, 64 << 20);
	test_next(1, 2, 5000);
	test_read_all();
	test_looks(true, 2, 12);
	test_looks(false, 0, 0);
	test_part(20000, false, 26);
	test_part(20000, true, 6);
	test_part(10000, false, 48);
	test_not_kept();
	test_limit();
	test_keep(600);
	test_room();
	test_enough();
	test_bounds();
	test_real();
	if (argc > 2)
		test_file(argv[2]);
	test_devices();
	test_watch();
	/* These take long and do not depend on the seed. */
	if (first == USUAL)
		test_holds();
	printf("1..%d\n", tests);
	return bad != 0;
}
