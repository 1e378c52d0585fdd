// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * Files in the order of their data: collected, sorted by first extents, read
 * ahead along that order.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "diskorder.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct dorder_window {
	const struct dorder_window_ops *ops;
	void *ctx;
	struct dorder_watch *watch;
	uint32_t max, count;
	uint32_t stretch; /* inodes that memory holds; known when sorted */
	bool sorted;
	uint32_t next; /* to be handed out, */
	uint32_t ahead; /* to be read ahead, */
	uint32_t looked; /* and to be looked at: places in keys */
	size_t ahead_bytes; /* asked for from next to ahead */
	uint32_t falls; /* files whose data is in front of the one before's */
	/* what was asked for, by place in keys, of those read ahead */
	uint32_t asked[DORDER_AHEAD_FILES];
	uint32_t *sizes; /* by item, at most DORDER_AHEAD_FILE; KEEP */
	struct dorder_key *keys;
	uint64_t *chunk; /* a bit an item: to be looked at now */
};

#define BITS 64

/* In sizes: the file's data is not dropped. */
#define KEEP ((uint32_t)1 << 31)

static size_t bytes_of(uint32_t max)
{
	return sizeof(struct dorder_window) +
	       max * (sizeof(struct dorder_key) + sizeof(uint32_t)) +
	       (max / BITS + 2) * sizeof(uint64_t);
}

static void empty(struct dorder_window *window)
{
	window->count = window->next = window->ahead = window->looked = 0;
	window->ahead_bytes = 0;
	window->falls = 0;
	window->sorted = false;
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
	window->ops = ops;
	window->ctx = ctx;
	window->watch = watch;
	window->max = max;
	window->keys = (struct dorder_key *)(window + 1);
	window->chunk = (uint64_t *)(window->keys + max);
	window->sizes = (uint32_t *)(window->chunk + max / BITS + 1);
	memset(window->chunk, 0, (max / BITS + 1) * sizeof(uint64_t));
	empty(window);
	return window;
}

void dorder_window_free(struct dorder_window *window)
{
	if (!window)
		return;
	if (window->ops->release)
		window->ops->release(window->ctx, window,
				     bytes_of(window->max));
	else
		dorder_pages_free(window, bytes_of(window->max));
}

/* As dorder_cached(); the watch is told. */
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

int64_t dorder_window_add(struct dorder_window *window, int fd, off_t size)
{
	struct dorder_key *key = window->keys + window->count;
	int saved = errno, found;
	uint64_t place;

	if (size <= 0 || window->sorted || window->count == window->max)
		return -1;
	found = cached(window, fd, size);
	if (found > 0) {
		errno = saved;
		return -1;
	}
	place = window->ops->place ? window->ops->place(window->ctx, fd)
				   : dorder_first_extent(fd);
	errno = saved;
	if (!place)
		return -1;
	window->falls += window->count && place < key[-1].key;
	key->key = place;
	key->tie = key->value = window->count;
	window->sizes[window->count] =
		(uintmax_t)size < DORDER_AHEAD_FILE ? size : DORDER_AHEAD_FILE;
	/* What others use stays, and a large file as any reader leaves it. */
	if (found < 0 || size > DORDER_AHEAD_FILE)
		window->sizes[window->count] |= KEEP;
	return window->count++;
}

int dorder_window_enough(const struct dorder_window *window)
{
	return window->count == DORDER_LOOK_FILES &&
	       window->falls < window->count / 16;
}

uint32_t dorder_window_count(const struct dorder_window *window)
{
	return window->count;
}

/* Start reading the file at a place in the order; the bytes asked for. */
static size_t read_ahead(struct dorder_window *window, uint32_t place)
{
	uint32_t item = window->keys[place].value;
	uint32_t size = window->sizes[item] & ~KEEP;
	int saved = errno, fd;
	size_t bytes = 0;

	fd = window->ops->open(window->ctx, item);
	if (fd >= 0) {
		bytes = window->ops->ahead
				? window->ops->ahead(window->ctx, fd, size)
				: dorder_will_read(fd, size, DORDER_AHEAD_FILE);
		close(fd);
	}
	errno = saved;
	return bytes;
}

/* How many inodes to bring in at a time.  Few files do not need to ask. */
static uint32_t stretch(struct dorder_window *window)
{
	size_t files;

	if (!window->ops->look || window->count <= DORDER_LOOK_LEAST)
		return DORDER_LOOK_LEAST;
	files = window->ops->room ? window->ops->room(window->ctx)
				  : dorder_room();
	files /= 4 * DORDER_LOOK_BYTES;
	if (files < DORDER_LOOK_LEAST)
		return DORDER_LOOK_LEAST;
	return files < DORDER_LOOK_FILES ? files : DORDER_LOOK_FILES;
}

static void sort(struct dorder_window *window)
{
	if (window->sorted)
		return;
	dorder_sort(window->keys, window->count);
	window->stretch = stretch(window);
	window->sorted = true;
}

/*
 * Bring in what the file system keeps of the next files, in the order they
 * were added, which is the order of their inodes.  One at a time, in the order
 * of their data, each could be a seek.
 */
static void look(struct dorder_window *window)
{
	uint32_t end = window->looked + window->stretch, n, item;
	int saved = errno;
	uint64_t bits;

	if (end > window->count)
		end = window->count;
	for (n = window->looked; n < end; n++) {
		item = window->keys[n].value;
		window->chunk[item / BITS] |= (uint64_t)1 << item % BITS;
	}
	for (n = 0; n <= window->count / BITS; n++) {
		for (bits = window->chunk[n]; bits; bits &= bits - 1)
			window->ops->look(window->ctx,
					  n * BITS + __builtin_ctzll(bits));
		window->chunk[n] = 0;
	}
	window->looked = end;
	errno = saved;
}

/*
 * The file handed out last was used: give the memory of its data back, which
 * was not there before.  It would push out directory blocks and inode tables,
 * which are needed again.
 */
static void drop(struct dorder_window *window)
{
	uint32_t item;
	int saved = errno, fd;

	if (!window->ops->drop || !window->next)
		return;
	item = window->keys[window->next - 1].value;
	if (window->sizes[item] & KEEP)
		return;
	fd = window->ops->open(window->ctx, item);
	if (fd >= 0) {
		window->ops->drop(window->ctx, fd);
		close(fd);
	}
	errno = saved;
}

int dorder_window_next(struct dorder_window *window, uint32_t *item)
{
	uint32_t slot;

	sort(window);
	drop(window);
	if (window->next == window->count) {
		empty(window);
		return 0;
	}
	while (window->ahead < window->count &&
	       window->ahead < window->next + DORDER_AHEAD_FILES &&
	       window->ahead_bytes < DORDER_AHEAD_BYTES) {
		/* What fits at once was opened a moment ago. */
		if (window->ahead == window->looked && window->ops->look &&
		    window->count > window->stretch)
			look(window);
		slot = window->ahead % DORDER_AHEAD_FILES;
		window->asked[slot] = read_ahead(window, window->ahead);
		window->ahead_bytes += window->asked[slot];
		window->ahead++;
	}
	window->ahead_bytes -= window->asked[window->next % DORDER_AHEAD_FILES];
	*item = window->keys[window->next++].value;
	return 1;
}

size_t dorder_window_read_all(struct dorder_window *window)
{
	size_t bytes = 0;
	uint32_t n;

	sort(window);
	for (n = 0; n < window->count; n++)
		bytes += read_ahead(window, n);
	empty(window);
	return bytes;
}
