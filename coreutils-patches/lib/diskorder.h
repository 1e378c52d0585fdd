/* SPDX-License-Identifier: LGPL-2.0-or-later */
/*
 * libdiskorder: the names of a directory in the order of their inodes, and
 * files in the order of their data, in bounded memory.
 *
 * It changes the order in which names come and nothing else: every name that
 * the directory gives is given once, and whatever goes wrong in here (no
 * memory, no FIEMAP) means the order the directory has by itself.
 *
 * Objects are not locked: one thread at a time for each.
 */
#ifndef DISKORDER_H
#define DISKORDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes that sorting one directory may take unless told otherwise. */
#define DORDER_MEMORY (32U << 20)

/* A directory entry; name is valid until the next call on its reader. */
struct dorder_entry {
	uint64_t ino;
	int64_t next; /* position behind it, for dorder_seek() */
	unsigned char type; /* DT_REG and so on, DT_UNKNOWN */
	const char *name;
};

/*
 * Where entries come from and memory is had; dorder_open() has its own.
 * getdents: as getdents64(2): bytes of records, 0 at the end, -1 and errno.
 * seek: to a position that a record's d_off gave; 0 or -1 and errno.
 */
struct dorder_ops {
	ssize_t (*getdents)(void *ctx, void *buf, size_t size);
	int (*seek)(void *ctx, int64_t position);
	void *(*alloc)(void *ctx, size_t size);
	void (*release)(void *ctx, void *memory, size_t size);
};

struct dorder;

/* Says whether DISKORDER=off (no, 0) is not in the environment. */
int dorder_allowed(void);

/*
 * Says whether inode order says anything about the disk under fd's file
 * system: 1 on ext2, ext3, ext4 and XFS, 0 elsewhere, when DISKORDER=off is in
 * the environment, and when that cannot be told.  Leaves errno alone.
 */
int dorder_pays(int fd);

/* DISKORDER_MEMORY of the environment (MiB), in bytes, or DORDER_MEMORY. */
size_t dorder_memory(void);

/*
 * A reader of the directory open at fd, which stays the caller's: nobody else
 * may read or seek it meanwhile.  memory: bytes for sorting, 0: no sorting.
 * Returns NULL (ENOMEM) if there is no memory for the reader itself.
 */
struct dorder *dorder_open(int fd, size_t memory);
struct dorder *dorder_open_ops(const struct dorder_ops *ops, void *ctx,
			       size_t memory);
void dorder_close(struct dorder *dir);

/*
 * The next entry: 1, 0 at the end, -1 and errno if the directory could not be
 * read; names read before that are given first.  A directory that was removed
 * meanwhile is at its end, as for readdir().
 */
int dorder_next(struct dorder *dir, struct dorder_entry *entry);

/*
 * dorder_tell() is where dorder_next() will go on.  dorder_seek() goes to such
 * a place, also over names made or removed since; 0 or -1 and errno.  A name
 * may then come twice if the directory changed, none is left out.
 */
int64_t dorder_tell(const struct dorder *dir);
int dorder_seek(struct dorder *dir, int64_t position);

/* Back to the start; forgets what was read.  0 or -1 and errno. */
int dorder_rewind(struct dorder *dir);

/* How many windows were sorted since the start: 0 where the order was good. */
size_t dorder_windows(const struct dorder *dir);

/* For sorting in place, in no further memory; equal keys go by tie. */
struct dorder_key {
	uint64_t key;
	uint32_t tie;
	uint32_t value;
};
void dorder_sort(struct dorder_key *keys, size_t count);

/*
 * The byte address of the first extent of an open file on its disk, 0 if it
 * has none, holds its data in the inode, or the file system does not tell.
 * Does not write delayed data out.  Leaves errno alone.
 */
uint64_t dorder_first_extent(int fd);

/*
 * Start reading a file that will be read soon: at most limit bytes of it.
 * Returns the bytes asked for.  Leaves errno alone.
 */
size_t dorder_will_read(int fd, off_t size, size_t limit);

/*
 * The data of a file that was not in memory and was read once need not stay, nor
 * its name and inode where the file system knows that (POSIX_FADV_NOREUSE on
 * our ext4, with the last close).  Changes that are not written yet stay; so
 * does what is mapped, and what others have open.  Leaves errno alone.  ctx is
 * not used: this is a dorder_window_ops.drop, or .forget.
 */
void dorder_will_not_read(void *ctx, int fd);

/* Read ahead of the file at hand: so many files, bytes, bytes of one file. */
#define DORDER_AHEAD_FILES 256
#define DORDER_AHEAD_BYTES (8U << 20)
#define DORDER_AHEAD_FILE (1U << 20)

/*
 * Says whether an open file of size bytes, or the first DORDER_AHEAD_FILE of
 * them, is in memory: 1, or 0 if it is not.  -1 if some of it is, or where that
 * cannot be told without changing its time of access: before Linux 6.5, and
 * for a file that fd's user neither owns nor may write.  Leaves errno alone.
 */
int dorder_cached(int fd, off_t size);

/*
 * Where files are in memory there is nothing to put in order, and whoever asks
 * every one of them is slower than without.  A watch keeps how it was with the
 * files before; all 0 is a new one, and it is best kept for all directories.
 * After 16 files in memory in a row the next 64 are passed, then 16 are looked
 * at again, the next 128 are passed, and so on to 4,096.  One file that has to
 * be read from the disk starts it all over.
 */
struct dorder_watch {
	uint32_t row, pass, step;
};

/* One more file: whether to look at it (1), or use it as it comes (0). */
int dorder_watch_look(struct dorder_watch *watch);

/* Whether all of count files can be used as they come; counts them if so. */
int dorder_watch_pass(struct dorder_watch *watch, uint32_t count);

/* What came out for a file that was looked at; dorder_window_add() tells. */
void dorder_watch_saw(struct dorder_watch *watch, int cached);

/*
 * Memory from the kernel, zeroed; NULL and ENOMEM without.  Not malloc(): what
 * is kept for as long as a directory is copied would be where a program finds
 * its next buffer, and one that is mapped and unmapped for every file (as cp's
 * then is) costs as much as copying a small file.
 */
void *dorder_pages(size_t size);
void dorder_pages_free(void *memory, size_t size);

/*
 * Read the names of the directory open at fd, if it is a large one, so that its
 * blocks are in memory when they are looked up in another order.  With a tree
 * they are read ahead in one sweep.  One that half the memory there is does not
 * hold is left alone.  Leaves fd's position and errno alone, and the directory's
 * time of access where fd's user owns it or is root.  Others could not set it
 * back either: for them it is as after any read, which relatime may pass over.
 */
void dorder_read_names(int fd);

/*
 * How many bytes of memory this process can have without pushing others out:
 * MemAvailable, or what is left of its control group's limit if that is less:
 * the group uses some already, of which file pages can be reclaimed.  SIZE_MAX if
 * nothing tells.  Leaves errno alone.  root stands before all paths ("").
 */
size_t dorder_room(void);
size_t dorder_room_at(const char *root);

/*
 * How many files this process can open without leaving others short of them: a
 * quarter of what the kernel still has (fs.file-max).  SIZE_MAX if nothing
 * tells.  Leaves errno alone.
 */
size_t dorder_handles(void);
size_t dorder_handles_at(const char *root);

/*
 * A window: files that will be read, put in the order in which their data
 * lies on the disk and read ahead in that order.  What the files are is the
 * caller's business: items are numbered from 0 in the order they were added.
 *
 * open: item for reading, as cheaply as can be, or -1 to leave it out of
 * reading ahead; the window closes it.
 * hold: open item with O_PATH, which makes the file system read its inode and
 * keep it together with the name, or -1; the window closes it when the file was
 * used.  With many files, as many as memory holds the inodes of are opened, in
 * the order they were added, before the first of them is read ahead; first is
 * 1 for one with which the names of its directory are worth reading again, which
 * may have gone from memory.  Meanwhile the process's soft limit of open files is higher.
 * NULL: never.
 * drop: give the memory of an open file's data back (dorder_will_not_read()).
 * Called for each file that was read ahead whole and not in memory before, once
 * the next is asked for.  NULL: never.  Only where there is a watch.
 * forget: the same where memory does not hold what is read of DORDER_HOLD_FILES
 * files, as it was each time that DORDER_HOLD_LEAST more had been added.  Called
 * also for such files as they are added: they will be opened again, but after
 * so many others that they would be gone by then, and others with them.  drop
 * goes before it for files that were used.  NULL: never.
 * The others may be NULL: cached is dorder_cached(), place
 * dorder_first_extent(), ahead dorder_will_read() of at most
 * DORDER_AHEAD_FILE, or for files that lie one after another on the disk fewer and
 * larger requests (their descriptors get O_NOATIME, where that is allowed), room dorder_room(), memory dorder_pages().
 */
struct dorder_window_ops {
	int (*open)(void *ctx, uint32_t item);
	int (*hold)(void *ctx, uint32_t item, int first);
	void (*drop)(void *ctx, int fd);
	void (*forget)(void *ctx, int fd);
	int (*cached)(void *ctx, int fd, off_t size);
	uint64_t (*place)(void *ctx, int fd);
	size_t (*ahead)(void *ctx, int fd, size_t size);
	size_t (*room)(void *ctx);
	void *(*alloc)(void *ctx, size_t size);
	void (*release)(void *ctx, void *memory, size_t size);
};

/*
 * So many inodes are held at a time, at most and at least: few enough for a
 * third of the room (DORDER_HOLD_BYTES each in ext4, with dentry and open
 * file), many enough that reading them goes over the disk a few times only.  A
 * window of no more than the least does without.
 */
#define DORDER_HOLD_FILES 65536
#define DORDER_HOLD_LEAST 4096
#define DORDER_HOLD_BYTES 1600

struct dorder_window;

/* What a window takes for a file, in bytes. */
#define DORDER_WINDOW_FILE 20

/*
 * A window of at most max files (more than 0).  Its memory is asked for at
 * once, DORDER_WINDOW_FILE bytes for each; that of dorder_pages() is taken
 * when a file is added.  ops and watch (NULL: all files are taken, in memory or not)
 * are kept, not copied.  NULL and ENOMEM without memory.
 */
struct dorder_window *dorder_window_new(const struct dorder_window_ops *ops,
					void *ctx, uint32_t max,
					struct dorder_watch *watch);
void dorder_window_free(struct dorder_window *window);

/*
 * Add the file open at fd, which stays the caller's, of size bytes.  Returns
 * its number, or -1 if there is no sense in waiting for its turn: its data is
 * in memory or has no place on the disk, the file system does not tell, the
 * window is full or being handed out.  Leaves errno alone.
 */
int64_t dorder_window_add(struct dorder_window *window, int fd, off_t size);

/*
 * To be called before the files of another device are looked at, and as often
 * as the caller likes.  Returns 0 if there is no sense in opening and adding
 * them: none of the first DORDER_GIVE_UP had a place on the disk (NFS, FUSE, ZFS,
 * tmpfs).  Files in memory do not count.
 */
#define DORDER_GIVE_UP 64
int dorder_window_device(struct dorder_window *window, dev_t device);

/*
 * To be called before a file is looked up in the directory open at fd, to be
 * added: reads the directory's names again where they have left memory since,
 * which the look-ups' waits tell.  Leaves fd's position and errno alone.
 */
void dorder_window_look(struct dorder_window *window, int fd);

/*
 * Says whether more files would be for nothing, or harm: DORDER_HOLD_FILES were
 * added, no more and no less, and all but a sixteenth in the order of their
 * data; or so many that the room does not hold what is read of them,
 * DORDER_READ_BYTES each of inode tables and directories, and every stretch
 * would read all of that from the disk.  To be asked after each file added.
 */
#define DORDER_READ_BYTES 400
int dorder_window_enough(const struct dorder_window *window);

/*
 * Take over fd, of the file that was added last and is item number item, and
 * keep it open: its name and its inode will be in memory when the caller opens
 * it.  Closes fd at once if item is negative and where the limit of open files
 * (see hold) does not let it.  dorder_window_used() is to be called when a file
 * has been opened, for each that was added, in that order; those of two windows
 * are kept at most.  For windows that dorder_window_read_all() empties.  Both
 * leave errno alone.
 */
void dorder_window_keep(struct dorder_window *window, int64_t item, int fd);
void dorder_window_used(struct dorder_window *window);

/* How many files are in it that have not left it. */
uint32_t dorder_window_count(const struct dorder_window *window);

/*
 * For the caller who stops because dorder_window_enough() says so, and will add
 * more: only the half of the files that comes first on the disk is handed out by
 * the following calls of dorder_window_next(); the others stay, with their
 * numbers, and the next time it goes on behind where this half ended.  Else each
 * window would be a sweep over all of the disk, whatever it has of it.  (As a
 * sort by replacement selection makes runs twice as long as its memory.)  A
 * window with few files, or with files in the order of their data, is handed out
 * whole.  No effect between the first dorder_window_next() and its 0.
 */
void dorder_window_part(struct dorder_window *window);

/*
 * The next item in disk order: 1, or 0 when all that were to be handed out have
 * been, and left the window; their numbers are given out again.  The first call
 * sorts; each reads ahead.
 */
int dorder_window_next(struct dorder_window *window, uint32_t *item);

/*
 * Read all files ahead in disk order and empty the window: for callers who
 * use them in an order of their own.  Returns the bytes asked for; the caller
 * bounds their sum by what it adds.
 */
size_t dorder_window_read_all(struct dorder_window *window);

#ifdef __cplusplus
}
#endif
#endif
