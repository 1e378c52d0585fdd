// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Files in the order of their data: collects files, sorts them by their first
 * extents and reads ahead in that order.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"
#include "hold.h"
#include "inside.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Devices for which we remember whether files have places. */
#define DEVICES 8
/* In keys, above all addresses: the device's number in devices. */
#define DEVICE_SHIFT 60
/* In placeless. */
#define PLACED UINT32_MAX

struct dorder_window {
	const struct dorder_window_ops *ops;
	void *ctx;
	struct dorder_watch *watch;
	uint32_t max, count;
	uint32_t top; /* item numbers below have been used since it was empty */
	uint32_t free; /* the first free one of these, plus 1; 0: none */
	uint32_t order; /* of adding, for the next file */
	uint32_t until; /* how many to hand out; the others stay */
	uint64_t front; /* where the last part ended, on the disk */
	uint64_t last; /* the place of the file added last */
	uint32_t most; /* files for whose metadata there is room, or 0 */
	uint32_t stretch; /* how many inodes are read at a time */
	bool tight; /* the metadata of many files does not fit into memory */
	bool sorted;
	bool refused; /* files cannot be mapped to read them ahead */
	uint32_t next; /* place in keys: next to be handed out, */
	uint32_t ahead; /* next to be read ahead, */
	uint32_t looked; /* next inode to be read */
	size_t ahead_bytes; /* requested from next to ahead */
	uint32_t falls; /* files whose data is before the previous file's */
	/* bytes requested of files read ahead, by place in keys */
	uint32_t asked[DORDER_AHEAD_FILES];
	uint32_t *sizes; /* by item: at most DORDER_AHEAD_FILE, and KEEP; of a
			    free item: the next free one */
	struct dorder_key *keys;
	struct dorder_key *round; /* a stretch: item and place in keys */
	struct dorder_hold looks; /* counts waits of looking files up to add */
	uint32_t nr_looks; /* how many look-ups so far */
	struct dorder_hold hold; /* by place in keys, modulo stretch */
	/* Files read ahead, until used: by place, modulo DORDER_AHEAD_FILES. */
	struct dorder_hold open;
	uint32_t first; /* for kept files: the place of item 0 in hold, */
	uint32_t used; /* and the place that will be used next */
	struct {
		dev_t number;
		uint32_t placeless; /* files so far; PLACED: one has a place */
	} devices[DEVICES];
	uint32_t nr_devices, device; /* seen so far; of the next file */
};

/* File systems allocate whole blocks, of at least this many bytes. */
#define BLOCK 4096

/* Where fewer files may be held, the program needs these descriptors itself. */
#define FEW_FILES 64

/* In sizes: the file's data is not dropped. */
#define KEEP ((uint32_t)1 << 31)

static size_t bytes_of(uint32_t max)
{
	return sizeof(struct dorder_window) +
	       max * (sizeof(struct dorder_key) + sizeof(uint32_t));
}

static size_t round_bytes(const struct dorder_window *window)
{
	return window->stretch * sizeof(*window->round);
}

/* Removes items that have been returned; the others stay. */
static void leave(struct dorder_window *window)
{
	int saved = errno;
	uint32_t n, item;

	if (window->round) {
		dorder_hold_end(&window->hold);
		dorder_pages_free(window->round, round_bytes(window));
	}
	dorder_hold_end(&window->open);
	errno = saved;
	for (n = 0; n < window->until; n++) {
		item = window->keys[n].value;
		window->sizes[item] = window->free;
		window->free = item + 1;
	}
	window->count -= window->until;
	memmove(window->keys, window->keys + window->until,
		window->count * sizeof(*window->keys));
	window->round = NULL;
	window->next = window->ahead = window->looked = window->until = 0;
	window->ahead_bytes = 0;
	window->falls = window->count;
	window->sorted = false;
	if (window->count)
		return;
	window->top = window->free = window->order = 0;
	window->front = 0;
	window->tight = false;
}

static void empty(struct dorder_window *window)
{
	window->until = window->count;
	leave(window);
}

struct dorder_window *dorder_window_new(const struct dorder_window_ops *ops,
					void *ctx, uint32_t max,
					struct dorder_watch *watch)
{
	size_t bytes = bytes_of(max);
	struct dorder_window *window;

	window = ops->alloc ? ops->alloc(ctx, bytes) : dorder_pages(bytes);
	if (!window) {
		errno = ENOMEM;
		return NULL;
	}
	*window = (struct dorder_window){
		.ops = ops, .ctx = ctx, .watch = watch, .max = max
	};
	window->keys = (struct dorder_key *)(window + 1);
	window->sizes = (uint32_t *)(window->keys + max);
	return window;
}

void dorder_window_free(struct dorder_window *window)
{
	if (!window)
		return;
	empty(window);
	dorder_hold_end(&window->hold);
	if (window->ops->release)
		window->ops->release(window->ctx, window,
				     bytes_of(window->max));
	else
		dorder_pages_free(window, bytes_of(window->max));
}

/* As dorder_cached(); the watch records the result. */
static int cached(struct dorder_window *window, int fd, off_t size)
{
	int found;

	if (!window->watch)
		return -1;
	found = window->ops->cached ? window->ops->cached(window->ctx, fd, size)
				    : dorder_cached(fd, size);
	dorder_watch_saw(window->watch, found > 0);
	return found;
}

static size_t room(struct dorder_window *window)
{
	size_t bytes = window->ops->room ? window->ops->room(window->ctx)
					 : dorder_room();

	/* Half of it, in files, must fit in 32 bits. */
	return bytes < UINT32_MAX ? bytes : UINT32_MAX;
}

/*
 * Returns how many files there is room to hold.  Callers without drop keep the
 * data, or write it elsewhere, and need more memory themselves.
 */
static size_t holdable(struct dorder_window *window)
{
	return room(window) / (window->ops->drop ? 3 : 4) / DORDER_HOLD_BYTES;
}

/* How many files to read ahead: fewer if memory is short, to lose less. */
static uint32_t ahead_files(const struct dorder_window *window)
{
	return window->tight && !window->ops->drop ? DORDER_AHEAD_FILES / 4
						   : DORDER_AHEAD_FILES;
}

/* Where an item is in hold between dorder_window_add() and read_all(). */
static uint32_t slot_of(const struct dorder_window *window, uint32_t item)
{
	return (window->first + item) % (2 * window->max);
}

/* The file dorder_window_keep() was given for an item, or -1. */
static int kept(const struct dorder_window *window, uint32_t item)
{
	if (!window->hold.files || window->round)
		return -1;
	return window->hold.files[slot_of(window, item)];
}

int64_t dorder_window_add(struct dorder_window *window, int fd, off_t size)
{
	uint32_t *placeless = &window->devices[window->device].placeless;
	struct dorder_key *key = window->keys + window->count;
	int saved = errno, found;
	uint64_t place;
	uint32_t item;

	if (size <= 0 || window->sorted || window->count == window->max)
		return -1;
	if (window->nr_looks)
		dorder_hold_rest(&window->looks);
	found = cached(window, fd, size);
	if (found > 0) {
		errno = saved;
		return -1;
	}
	place = window->ops->place ? window->ops->place(window->ctx, fd)
				   : dorder_first_extent(fd);
	errno = saved;
	if (!place) {
		if (*placeless < DORDER_GIVE_UP)
			++*placeless;
		return -1;
	}
	*placeless = PLACED;
	/* Addresses on different devices are unrelated: sort by device. */
	place += (uint64_t)window->device << DEVICE_SHIFT;
	if (window->free) {
		item = window->free - 1;
		window->free = window->sizes[item];
	} else {
		item = window->top++;
	}
	/* Release what may still be kept for a file of an earlier window. */
	dorder_hold_release(&window->hold, slot_of(window, item));
	window->falls += window->count && place < window->last;
	window->last = place;
	key->key = place;
	key->tie = window->order++;
	key->value = item;
	if ((window->count + 1) % DORDER_HOLD_LEAST == 0)
		window->tight = holdable(window) < DORDER_HOLD_FILES;
	/*
	 * It will be looked up again only after so many others that it would be
	 * evicted by then, and would make others be evicted.
	 */
	if (window->tight && !found && window->ops->forget)
		window->ops->forget(window->ctx, fd);
	if (window->count + 1 == DORDER_HOLD_FILES)
		window->most = room(window) / DORDER_READ_BYTES;
	window->sizes[item] =
		(uintmax_t)size < DORDER_AHEAD_FILE ? size : DORDER_AHEAD_FILE;
	/* Leaves alone data that others use, and large files. */
	if (found < 0 || size > DORDER_AHEAD_FILE)
		window->sizes[item] |= KEEP;
	window->count++;
	return item;
}

int dorder_window_device(struct dorder_window *window, dev_t device)
{
	uint32_t n = window->device;

	if (!window->nr_devices || window->devices[n].number != device) {
		for (n = 0; n < DEVICES && n < window->nr_devices; n++)
			if (window->devices[n].number == device)
				break;
		if (n == DEVICES || n == window->nr_devices) {
			n = window->nr_devices++ % DEVICES;
			window->devices[n].number = device;
			window->devices[n].placeless = 0;
		}
		window->device = n;
	}
	return window->devices[n].placeless != DORDER_GIVE_UP;
}

void dorder_window_look(struct dorder_window *window, int fd)
{
	int saved = errno;

	/* Not the first of a stretch: the caller has just read the names. */
	dorder_hold_go_on(&window->looks);
	window->nr_looks += window->nr_looks == UINT32_MAX ? 2 : 1;
	if (dorder_hold_lost(&window->looks, window->nr_looks))
		dorder_read_names(fd);
	errno = saved;
}

void dorder_window_keep(struct dorder_window *window, int64_t item, int fd)
{
	int saved = errno;

	if (item >= 0 && !window->hold.files)
		dorder_hold_start(&window->hold, 2 * window->max);
	if (item >= 0 && window->hold.files)
		dorder_hold_take(&window->hold, slot_of(window, item), fd);
	else
		close(fd);
	errno = saved;
}

void dorder_window_used(struct dorder_window *window)
{
	int saved = errno;

	dorder_hold_release(&window->hold, window->used++);
	window->used %= 2 * window->max;
	errno = saved;
}

int dorder_window_enough(const struct dorder_window *window)
{
	if (window->count < DORDER_HOLD_FILES)
		return 0;
	return window->count >= window->most ||
	       (window->count == DORDER_HOLD_FILES &&
		window->falls < window->count / 16);
}

uint32_t dorder_window_count(const struct dorder_window *window)
{
	return window->count;
}

/* Opens the file at a place in the order, or returns its kept descriptor. */
static int open_place(struct dorder_window *window, uint32_t place, bool *keep)
{
	uint32_t item = window->keys[place].value;
	int fd = kept(window, item);

	*keep = fd >= 0;
	return *keep ? fd : window->ops->open(window->ctx, item);
}

/* Closes a file that has been read ahead, or keeps it until it is used. */
static void close_place(struct dorder_window *window, uint32_t place, int fd)
{
	if (window->open.files)
		dorder_hold_take(&window->open, place % DORDER_AHEAD_FILES, fd);
	else
		close(fd);
}

/* How many bytes to read ahead of the file at a place in the order. */
static uint32_t size_at(const struct dorder_window *window, uint32_t place)
{
	return window->sizes[window->keys[place].value] & ~KEEP;
}

/* Starts readahead of the file at a place in the order; bytes requested. */
static size_t read_ahead(struct dorder_window *window, uint32_t place)
{
	uint32_t size = size_at(window, place);
	size_t bytes = 0;
	bool keep;
	int fd = open_place(window, place, &keep);

	if (fd < 0)
		return 0;
	bytes = window->ops->ahead
			? window->ops->ahead(window->ctx, fd, size)
			: dorder_will_read(fd, size, DORDER_AHEAD_FILE);
	if (!keep)
		close_place(window, place, fd);
	return bytes;
}

/*
 * How many of the next count files from a place in the order are contiguous on
 * the disk.  Files in blocks smaller than BLOCK may be closer, and count, too.
 */
static uint32_t run_length(const struct dorder_window *window, uint32_t place,
			   uint32_t count)
{
	const struct dorder_key *key = window->keys + place;
	uint32_t n, size;

	if (window->ops->ahead || count > DORDER_AHEAD_FILES)
		count = window->ops->ahead ? 1 : DORDER_AHEAD_FILES;
	for (n = 0; n < count; n++) {
		size = size_at(window, place + n);
		if (size > DORDER_RUN_FILE)
			break;
		if (n + 1 < count && key[n + 1].key - key[n].key >
					     ((size - 1) | (BLOCK - 1)) + 1)
			return n + 1;
	}
	return n ? n : 1;
}

/* Starts readahead of contiguous files; asked: bytes requested of each. */
static void read_run(struct dorder_window *window, uint32_t place,
		     uint32_t count, uint32_t *asked,
		     struct dorder_mapped *mapped)
{
	int files[DORDER_AHEAD_FILES];
	uint32_t sizes[DORDER_AHEAD_FILES], places[DORDER_AHEAD_FILES];
	uint32_t n, opened = 0;
	bool keep[DORDER_AHEAD_FILES];

	for (n = 0; n < count; n++) {
		files[opened] = open_place(window, place + n, keep + opened);
		/* Short of descriptors: one at a time. */
		if (files[opened] < 0 && opened &&
		    (errno == EMFILE || errno == ENFILE))
			break;
		asked[n] = 0;
		if (files[opened] < 0)
			continue;
		asked[n] = sizes[opened] = size_at(window, place + n);
		places[opened++] = place + n;
	}
	if (opened)
		dorder_read_run(files, sizes, opened, &window->refused, mapped);
	while (opened--)
		if (!keep[opened])
			close_place(window, places[opened], files[opened]);
	for (; n < count; n++)
		asked[n] = read_ahead(window, place + n);
}

/*
 * Starts readahead of count files from a place in the order, contiguous ones
 * together.  Returns the bytes requested; asked: of each.  mapped: NULL, or
 * receives their mapping for dorder_protect().
 */
static size_t read_files(struct dorder_window *window, uint32_t place,
			 uint32_t count, uint32_t *asked,
			 struct dorder_mapped *mapped)
{
	size_t bytes = 0;
	uint32_t n;

	if (mapped)
		mapped->base = NULL;
	if (count == 1 && (!mapped || window->ops->ahead ||
			   size_at(window, place) > DORDER_RUN_FILE))
		asked[0] = read_ahead(window, place);
	else
		read_run(window, place, count, asked, mapped);
	for (n = 0; n < count; n++)
		bytes += asked[n];
	return bytes;
}

/* How many inodes to read and hold at a time. */
static uint32_t stretch(struct dorder_window *window)
{
	size_t files = holdable(window);

	window->hold.tight = files < DORDER_HOLD_FILES;
	if (files < DORDER_HOLD_LEAST)
		files = DORDER_HOLD_LEAST;
	if (files > DORDER_HOLD_FILES)
		files = DORDER_HOLD_FILES;
	return files < window->until ? files : window->until;
}

/* Prepares to hold files, if there are enough; without memory holds none. */
static void start_holding(struct dorder_window *window)
{
	if (!window->ops->hold || window->hold.files ||
	    window->until <= DORDER_HOLD_LEAST)
		return;
	window->stretch = stretch(window);
	if (!dorder_hold_start(&window->hold, window->stretch))
		return;
	/* Inodes that cannot be held would be evicted before use. */
	if (window->stretch > window->hold.most)
		window->stretch = window->hold.most > DORDER_HOLD_LEAST
					  ? window->hold.most
					  : DORDER_HOLD_LEAST;
	window->round = dorder_pages(round_bytes(window));
	if (!window->round)
		dorder_hold_end(&window->hold);
}

/* Prepares to keep files that are read ahead open until they are used. */
static void start_opening(struct dorder_window *window)
{
	if (window->ops->drop &&
	    dorder_hold_start(&window->open, DORDER_AHEAD_FILES) &&
	    window->open.most < FEW_FILES)
		dorder_hold_end(&window->open);
}

/*
 * Sorts the files: those from where the last part ended to the end of the disk,
 * then those from its beginning.
 */
static void sort(struct dorder_window *window)
{
	uint32_t n;

	if (window->sorted)
		return;
	for (n = 0; window->front && n < window->count; n++)
		window->keys[n].key -= window->front;
	dorder_sort(window->keys, window->count);
	for (n = 0; window->front && n < window->count; n++)
		window->keys[n].key += window->front;
	window->sorted = true;
	window->until = window->count;
}

void dorder_window_part(struct dorder_window *window)
{
	if (window->sorted)
		return;
	sort(window);
	if (window->count < 2 * DORDER_HOLD_LEAST ||
	    window->falls < window->count / 16)
		return;
	window->until = window->count / 2;
	window->front = window->keys[window->until - 1].key;
}

/*
 * Reads and pins the inodes of the next files, in the order they were added,
 * which is inode order.  One at a time, in the order of their data, each could
 * be a seek.
 */
static void look(struct dorder_window *window)
{
	uint32_t rest = window->until - window->looked, n;
	struct dorder_key *key = window->round;
	int saved = errno, fd;
	uint32_t item;

	if (rest > window->stretch)
		rest = window->stretch;
	for (n = 0; n < rest; n++) {
		key[n].value = window->looked + n;
		key[n].tie = 0;
		key[n].key = window->keys[key[n].value].tie;
	}
	dorder_sort(key, rest);
	for (n = 0; n < rest; n++) {
		item = window->keys[key[n].value].value;
		fd = window->ops->hold(window->ctx, item,
				       dorder_hold_lost(&window->hold, n));
		dorder_hold_take(&window->hold, key[n].value % window->stretch,
				 fd);
	}
	window->looked += rest;
	errno = saved;
}

/* The descriptor by which the file handed out last was read ahead, or -1. */
static int held_open(const struct dorder_window *window)
{
	if (!window->next || !window->open.files)
		return -1;
	return window->open.files[(window->next - 1) % DORDER_AHEAD_FILES];
}

int dorder_window_file(const struct dorder_window *window)
{
	int saved = errno, fd = held_open(window);

	if (fd >= 0)
		fd = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	errno = saved;
	return fd;
}

/*
 * The file handed out last has been used: evict its data, which was not in
 * memory before.  Otherwise directory blocks and inode tables, which are needed
 * again, would be evicted.
 */
static void drop(struct dorder_window *window)
{
	uint32_t item = window->keys[window->next - 1].value;
	void (*give_back)(void *ctx, int fd) = window->ops->drop;
	int fd;

	if (!give_back && window->tight)
		give_back = window->ops->forget;
	if (!give_back || window->sizes[item] & KEEP)
		return;
	fd = held_open(window);
	if (fd >= 0) {
		give_back(window->ctx, fd);
		return;
	}
	fd = window->ops->open(window->ctx, item);
	if (fd >= 0) {
		give_back(window->ctx, fd);
		close(fd);
	}
}

/* Releases the file handed out last. */
static void done(struct dorder_window *window)
{
	int saved = errno;

	if (!window->next)
		return;
	drop(window);
	dorder_hold_release(&window->open,
			    (window->next - 1) % DORDER_AHEAD_FILES);
	if (window->round)
		dorder_hold_release(&window->hold,
				    (window->next - 1) % window->stretch);
	errno = saved;
}

/*
 * Reads more ahead only once half of it has been used: file by file, there
 * would be no neighbours whose requests merge.
 */
static void refill(struct dorder_window *window)
{
	const uint32_t most = ahead_files(window);
	uint32_t asked[DORDER_AHEAD_FILES], end = window->until, count, n;

	if (window->ahead - window->next > most / 2 ||
	    window->ahead_bytes > DORDER_AHEAD_BYTES / 2)
		return;
	if (end - window->next > most)
		end = window->next + most;
	if (window->round && end > window->looked)
		end = window->looked;
	while (window->ahead < end &&
	       window->ahead_bytes < DORDER_AHEAD_BYTES) {
		count = run_length(window, window->ahead, end - window->ahead);
		window->ahead_bytes +=
			read_files(window, window->ahead, count, asked, NULL);
		for (n = 0; n < count; n++)
			window->asked[window->ahead++ % DORDER_AHEAD_FILES] =
				asked[n];
	}
}

int dorder_window_next(struct dorder_window *window, uint32_t *item)
{
	int saved = errno;

	sort(window);
	if (!window->next) {
		start_holding(window);
		start_opening(window);
	}
	errno = saved;
	done(window);
	if (window->next == window->until) {
		leave(window);
		return 0;
	}
	/* Before refill(): this takes memory, and would evict its data. */
	if (window->round && window->next == window->looked)
		look(window);
	refill(window);
	errno = saved;
	window->ahead_bytes -= window->asked[window->next % DORDER_AHEAD_FILES];
	*item = window->keys[window->next++].value;
	return 1;
}

size_t dorder_window_read_all(struct dorder_window *window)
{
	struct dorder_mapped runs[DORDER_AHEAD_FILES]; /* not protected yet */
	uint32_t asked[DORDER_AHEAD_FILES], n, count, first = 0, last = 0;
	bool protect = window->ops->protect;
	size_t bytes = 0, waiting = 0;
	struct dorder_mapped *run;
	int saved = errno;

	sort(window);
	for (n = 0; n < window->count; n += count) {
		/* Waits for the oldest run, while the disk reads the others. */
		while (last - first == DORDER_AHEAD_FILES ||
		       (first != last && waiting > DORDER_AHEAD_BYTES)) {
			run = runs + first++ % DORDER_AHEAD_FILES;
			waiting -= run->size;
			dorder_protect(run);
		}
		count = run_length(window, n, window->count - n);
		run = runs + last % DORDER_AHEAD_FILES;
		bytes += read_files(window, n, count, asked,
				    protect ? run : NULL);
		if (protect && run->base) {
			waiting += run->size;
			last++;
		}
	}
	while (first != last)
		dorder_protect(runs + first++ % DORDER_AHEAD_FILES);
	errno = saved;
	window->first += window->count;
	window->first %= 2 * window->max;
	empty(window);
	return bytes;
}
