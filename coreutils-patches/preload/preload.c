// SPDX-License-Identifier: LGPL-2.0-or-later
/*
 * readdir() in inode order for unmodified programs.
 *
 * Callers hold the C library's own DIR.  A table maps its address to our reader
 * of the same descriptor.  The C library's buffer is never used while there is
 * a reader, so the two cannot disagree about the position.  Where order does
 * not pay, or if anything fails, there is no reader and the C library does the
 * work.
 *
 * Each stream has a lock, as in the C library.  The table has one that is held
 * across fork(), so that the child can take it.
 */
#define _GNU_SOURCE
#include "../lib/diskorder.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))
#define BUCKETS 256
/* Limit of memory for sorting in all streams, or one's limit if larger. */
#define STREAMS_MEMORY ((size_t)128 << 20)
/* A directory of more bytes has more than 10,000 names, unless they are long. */
#define FTS_SIZE (1 << 20)

_Static_assert(sizeof(struct dirent) == sizeof(struct dirent64),
	       "readdir and readdir64 are one function here");

struct stream {
	struct stream *next;
	DIR *dir;
	pthread_mutex_t lock;
	struct dorder *reader;
	size_t memory;
	struct dirent64 entry;
};

static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *table[BUCKETS];
static size_t memory_used;

static struct {
	DIR *(*opendir)(const char *);
	DIR *(*fdopendir)(int);
	int (*closedir)(DIR *);
	struct dirent64 *(*readdir)(DIR *);
	int (*readdir_r)(DIR *, struct dirent64 *, struct dirent64 **);
	void (*rewinddir)(DIR *);
	long (*telldir)(DIR *);
	void (*seekdir)(DIR *, long);
} libc;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
	pthread_mutex_lock(&table_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&table_lock);
}

#define FIND(name, symbol) (*(void **)&libc.name = dlsym(RTLD_NEXT, symbol))

static void find_libc(void)
{
	FIND(opendir, "opendir");
	FIND(fdopendir, "fdopendir");
	FIND(closedir, "closedir");
	FIND(readdir, "readdir64");
	FIND(readdir_r, "readdir64_r");
	FIND(rewinddir, "rewinddir");
	FIND(telldir, "telldir");
	FIND(seekdir, "seekdir");
	pthread_atfork(before_fork, after_fork, after_fork);
}

static void init(void)
{
	pthread_once(&once, find_libc);
}

static struct stream **slot_of(DIR *dir)
{
	struct stream **slot = &table[((uintptr_t)dir >> 5) % BUCKETS];

	while (*slot && (*slot)->dir != dir)
		slot = &(*slot)->next;
	return slot;
}

/* Returns our stream, locked, or NULL where the C library does the work. */
static struct stream *take(DIR *dir)
{
	struct stream *s;

	init();
	pthread_mutex_lock(&table_lock);
	s = *slot_of(dir);
	pthread_mutex_unlock(&table_lock);
	/* Closing a stream while it is in use is the caller's mistake. */
	if (s)
		pthread_mutex_lock(&s->lock);
	return s;
}

static void leave(struct stream *s)
{
	pthread_mutex_unlock(&s->lock);
}

/*
 * These programs walk trees with gnulib's fts, which sorts directories of over
 * 10,000 names itself, 100,000 at a time as they come from the file system:
 * in hash order, so that only a part of the directory's blocks has to stay in
 * memory each time.  If we sorted them first, each batch would need blocks from
 * all over the directory.
 */
static bool sorts_itself(int fd)
{
	static const char *const fts[] = { "chcon", "chgrp", "chmod", "chown",
					   "du",    "find",  "grep",  "rm" };
	struct stat st;
	size_t n;

	if (fstat(fd, &st) || st.st_size <= FTS_SIZE)
		return false;
	for (n = 0; n < sizeof(fts) / sizeof(*fts); n++)
		if (!strcmp(program_invocation_short_name, fts[n]))
			return true;
	return false;
}

/* Adds a reader to a stream that was just opened.  Leaves errno alone. */
static DIR *adopt(DIR *dir)
{
	size_t memory, budget;
	int saved = errno;
	struct stream *s;

	if (!dir || !dorder_pays(dirfd(dir)) || sorts_itself(dirfd(dir)))
		goto out;
	s = calloc(1, sizeof(*s));
	if (!s)
		goto out;
	memory = dorder_memory();
	budget = memory > STREAMS_MEMORY ? memory : STREAMS_MEMORY;
	pthread_mutex_lock(&table_lock);
	/* The program may have lowered DISKORDER_MEMORY since. */
	budget -= budget > memory_used ? memory_used : budget;
	if (memory > budget)
		memory = budget;
	memory_used += memory;
	pthread_mutex_unlock(&table_lock);
	s->memory = memory;
	s->reader = memory ? dorder_open(dirfd(dir), memory) : NULL;
	pthread_mutex_init(&s->lock, NULL);
	s->dir = dir;
	pthread_mutex_lock(&table_lock);
	if (s->reader) {
		struct stream **slot = slot_of(dir);

		s->next = *slot ? (*slot)->next : NULL;
		*slot = s;
	} else {
		memory_used -= memory;
	}
	pthread_mutex_unlock(&table_lock);
	if (!s->reader)
		free(s);
out:
	errno = saved;
	return dir;
}

PUBLIC DIR *opendir(const char *name)
{
	init();
	return adopt(libc.opendir(name));
}

PUBLIC DIR *fdopendir(int fd)
{
	init();
	return adopt(libc.fdopendir(fd));
}

PUBLIC int closedir(DIR *dir)
{
	struct stream **slot, *s;

	init();
	pthread_mutex_lock(&table_lock);
	slot = slot_of(dir);
	s = *slot;
	if (s) {
		*slot = s->next;
		memory_used -= s->memory;
	}
	pthread_mutex_unlock(&table_lock);
	if (s) {
		dorder_close(s->reader);
		pthread_mutex_destroy(&s->lock);
		free(s);
	}
	return libc.closedir(dir);
}

/* 1 and the entry copied, 0 at the end, -1 and errno. */
static int next(struct stream *s, struct dirent64 *to)
{
	struct dorder_entry e;
	size_t len;
	int got = dorder_next(s->reader, &e);

	if (got <= 0)
		return got;
	len = strlen(e.name);
	if (len >= sizeof(to->d_name)) {
		errno = EOVERFLOW;
		return -1;
	}
	to->d_ino = e.ino;
	to->d_off = e.next;
	to->d_type = e.type;
	to->d_reclen = (offsetof(struct dirent64, d_name) + len + 8) & ~7UL;
	memcpy(to->d_name, e.name, len + 1);
	return 1;
}

PUBLIC struct dirent64 *readdir64(DIR *dir)
{
	struct stream *s = take(dir);
	struct dirent64 *entry = NULL;
	int saved = errno, got;

	if (!s)
		return libc.readdir(dir);
	got = next(s, &s->entry);
	if (got > 0)
		entry = &s->entry;
	leave(s);
	if (got >= 0)
		errno = saved;
	return entry;
}

PUBLIC struct dirent *readdir(DIR *dir)
{
	return (struct dirent *)readdir64(dir);
}

PUBLIC int readdir64_r(DIR *dir, struct dirent64 *entry,
		       struct dirent64 **result)
{
	struct stream *s = take(dir);
	int got, saved = errno, failed;

	if (!s)
		return libc.readdir_r(dir, entry, result);
	got = next(s, entry);
	failed = got < 0 ? errno : 0;
	leave(s);
	errno = saved;
	*result = got > 0 ? entry : NULL;
	return failed;
}

PUBLIC int readdir_r(DIR *dir, struct dirent *entry, struct dirent **result)
{
	return readdir64_r(dir, (struct dirent64 *)entry,
			   (struct dirent64 **)result);
}

PUBLIC void rewinddir(DIR *dir)
{
	struct stream *s = take(dir);

	if (!s) {
		libc.rewinddir(dir);
		return;
	}
	dorder_rewind(s->reader);
	leave(s);
}

PUBLIC long telldir(DIR *dir)
{
	struct stream *s = take(dir);
	long position;

	if (!s)
		return libc.telldir(dir);
	position = dorder_tell(s->reader);
	leave(s);
	return position;
}

PUBLIC void seekdir(DIR *dir, long position)
{
	struct stream *s = take(dir);

	if (!s) {
		libc.seekdir(dir, position);
		return;
	}
	dorder_seek(s->reader, position);
	leave(s);
}

/*
 * The C library's scandir() calls its own readdir(), not ours; and it sorts
 * nothing if compar is NULL.
 */
static int
scan(DIR *dir, struct dirent64 ***list, int (*filter)(const struct dirent64 *),
     int (*compar)(const struct dirent64 **, const struct dirent64 **))
{
	struct dirent64 **names = NULL, **more, *d, *copy;
	size_t count = 0, room = 0, size;
	int failed = 0, saved = errno;

	if (!dir)
		return -1;
	for (;;) {
		errno = 0;
		d = readdir64(dir);
		if (!d) {
			failed = errno;
			break;
		}
		errno = 0;
		if (filter && !filter(d))
			continue;
		if (count == room) {
			room = room ? room * 2 : 64;
			more = realloc(names, room * sizeof(*names));
			if (!more) {
				failed = ENOMEM;
				break;
			}
			names = more;
		}
		size = offsetof(struct dirent64, d_name) + strlen(d->d_name) +
		       1;
		copy = malloc(size > d->d_reclen ? size : d->d_reclen);
		if (!copy) {
			failed = ENOMEM;
			break;
		}
		memcpy(copy, d, size);
		names[count++] = copy;
	}
	closedir(dir);
	if (failed) {
		while (count)
			free(names[--count]);
		free(names);
		errno = failed;
		return -1;
	}
	if (compar && count)
		qsort(names, count, sizeof(*names),
		      (int (*)(const void *, const void *))compar);
	if (!names)
		names = malloc(sizeof(*names));
	*list = names;
	errno = saved;
	return count;
}

PUBLIC int scandir64(const char *name, struct dirent64 ***list,
		     int (*filter)(const struct dirent64 *),
		     int (*compar)(const struct dirent64 **,
				   const struct dirent64 **))
{
	return scan(opendir(name), list, filter, compar);
}

PUBLIC int scandir(const char *name, struct dirent ***list,
		   int (*filter)(const struct dirent *),
		   int (*compar)(const struct dirent **,
				 const struct dirent **))
{
	return scan(opendir(name), (struct dirent64 ***)list, (void *)filter,
		    (void *)compar);
}

static DIR *open_at(int at, const char *name)
{
	int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (fd >= 0 && !dir)
		close(fd);
	return dir;
}

PUBLIC int scandirat64(int at, const char *name, struct dirent64 ***list,
		       int (*filter)(const struct dirent64 *),
		       int (*compar)(const struct dirent64 **,
				     const struct dirent64 **))
{
	return scan(open_at(at, name), list, filter, compar);
}

PUBLIC int scandirat(int at, const char *name, struct dirent ***list,
		     int (*filter)(const struct dirent *),
		     int (*compar)(const struct dirent **,
				   const struct dirent **))
{
	return scan(open_at(at, name), (struct dirent64 ***)list,
		    (void *)filter, (void *)compar);
}
