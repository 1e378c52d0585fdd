/* SPDX-License-Identifier: LGPL-2.0-or-later */
/*
 * libdiskorder returns the names of a directory in the order of their inodes,
 * and files in the order of their data, in bounded memory.
 *
 * It changes nothing but the order: it returns every name of the directory
 * exactly once.  Where something fails in here (no memory, no FIEMAP), names
 * come in the directory's own order.
 *
 * Objects are not locked: only one thread at a time may use one.
 */
#ifndef DISKORDER_H
#define DISKORDER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Default limit of the bytes for sorting one directory. */
#define DORDER_MEMORY (32U << 20)

/* A directory entry; name is valid until the next call on its reader. */
struct dorder_entry {
	uint64_t ino;
	int64_t next; /* position after it, for dorder_seek() */
	unsigned char type; /* DT_REG and so on, DT_UNKNOWN */
	const char *name;
};

/*
 * Sources of entries and memory; dorder_open() has its own.
 * getdents: as getdents64(2): bytes of records, 0 at the end, -1 and errno.
 * seek: to a position from a record's d_off; 0, or -1 and errno.
 */
struct dorder_ops {
	ssize_t (*getdents)(void *ctx, void *buf, size_t size);
	int (*seek)(void *ctx, int64_t position);
	void *(*alloc)(void *ctx, size_t size);
	void (*release)(void *ctx, void *memory, size_t size);
};

struct dorder;

/* Returns 0 if DISKORDER=off (or no, 0) is in the environment, else 1. */
int dorder_allowed(void);

/*
 * Returns 1 if inode numbers of fd's file system follow the order of the disk:
 * on ext2, ext3, ext4 and XFS.  Returns 0 elsewhere, if the file system is not
 * known, and if DISKORDER=off is in the environment.  Leaves errno alone.
 */
int dorder_pays(int fd);

/* DISKORDER_MEMORY of the environment (MiB), in bytes, or DORDER_MEMORY. */
size_t dorder_memory(void);

/*
 * Makes a reader of the directory open at fd.  The caller keeps fd, and must not
 * read or seek it meanwhile.  memory: bytes for sorting, 0: no sorting.
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
 * dorder_tell() returns the position of the next entry.  dorder_seek() goes to
 * such a position; 0, or -1 and errno.  If the directory has changed since,
 * names may be returned twice, but none is missed.
 */
int64_t dorder_tell(const struct dorder *dir);
int dorder_seek(struct dorder *dir, int64_t position);

/* Returns to the start and drops buffered names.  0, or -1 and errno. */
int dorder_rewind(struct dorder *dir);

/* Returns the windows sorted since the start: 0 if names came in order. */
size_t dorder_windows(const struct dorder *dir);

/* For sorting in place without more memory; equal keys are ordered by tie. */
struct dorder_key {
	uint64_t key;
	uint32_t tie;
	uint32_t value;
};
void dorder_sort(struct dorder_key *keys, size_t count);

/*
 * Returns the byte address on disk of an open file's first extent.  Returns 0
 * if it has no extent, if the inode holds the data, or if the file system does
 * not say.  Does not flush delayed allocation.  Leaves errno alone.
 */
uint64_t dorder_first_extent(int fd);

/*
 * Starts readahead of a file that will be read soon, of at most limit bytes.
 * Returns the bytes requested.  Leaves errno alone.
 */
size_t dorder_will_read(int fd, off_t size, size_t limit);

/*
 * Evicts the data of a file that was read only once.  On our ext4 its inode and
 * name are evicted, too, with the last close (POSIX_FADV_NOREUSE).  Dirty and
 * mapped pages stay, and so does a file that others have open.  Leaves errno
 * alone.  ctx is not used: this is a dorder_window_ops.drop, or .forget.
 */
void dorder_will_not_read(void *ctx, int fd);

/* Most readahead beyond the current file: files, bytes, bytes of one file. */
#define DORDER_AHEAD_FILES 256
#define DORDER_AHEAD_BYTES (8U << 20)
#define DORDER_AHEAD_FILE (1U << 20)

/*
 * Checks whether an open file of size bytes, or its first DORDER_AHEAD_FILE
 * bytes, is in memory.  Returns 1 if all of it is, 0 if none of it is.  Returns
 * -1 if a part is, or if the check would change the time of access: before
 * Linux 6.5, and for files that the user neither owns nor may write.  Leaves
 * errno alone.
 */
int dorder_cached(int fd, off_t size);

/*
 * Files in memory need no order, and checking each of them makes a program
 * slower.  A watch records the results of earlier checks.  All 0 is a new
 * watch; use one for all directories.  After 16 files in a row that are in
 * memory, the next 64 are not checked, then 16 are, the next 128 are not, and
 * so on up to 4,096.  A file that has to be read from the disk resets the watch.
 */
struct dorder_watch {
	uint32_t row, pass, step;
};

/* Returns whether the next file should be checked (1) or used at once (0). */
int dorder_watch_look(struct dorder_watch *watch);

/* Returns whether count files can all go unchecked, and counts them if so. */
int dorder_watch_pass(struct dorder_watch *watch, uint32_t count);

/* Records the result of a check; dorder_window_add() does it itself. */
void dorder_watch_saw(struct dorder_watch *watch, int cached);

/*
 * Returns zeroed memory from the kernel, or NULL and ENOMEM.  Not malloc():
 * long-lived blocks would take the place in the heap of a program's buffers, so
 * that glibc maps and unmaps cp's buffer for each file, which costs as much as
 * copying a small file.
 */
void *dorder_pages(size_t size);
void dorder_pages_free(void *memory, size_t size);

/*
 * Reads the names of the directory open at fd, if it is large, so that its
 * blocks are in memory when names are looked up in another order.  A directory
 * with a tree is read ahead in one sweep.  One larger than half of the room is
 * left alone.  Leaves fd's position and errno alone.  Leaves the time of access
 * alone if fd's user owns the directory or is root.  For others it changes as
 * by any read (unless relatime prevents that): they could not restore it.
 */
void dorder_read_names(int fd);

/*
 * Returns how many bytes of memory this process can use without evicting the
 * data of others: MemAvailable, or the rest of its control group's limit if that
 * is less.  The group's file pages count as free.  Returns SIZE_MAX if neither
 * is known.  Leaves errno alone.  root is the prefix of all paths ("").
 */
size_t dorder_room(void);
size_t dorder_room_at(const char *root);

/*
 * Returns how many files this process can open without exhausting the kernel's
 * limit: a quarter of those left (fs.file-max).  Returns SIZE_MAX if that is not
 * known.  Leaves errno alone.
 */
size_t dorder_handles(void);
size_t dorder_handles_at(const char *root);

/*
 * A window holds files that will be read, sorts them by the place of their data
 * on the disk and reads ahead in that order.  It knows files only as items,
 * numbered from 0 in the order in which they were added.
 *
 * open: open an item for reading, as cheaply as possible, or return -1 to
 * leave it out of reading ahead; the window closes it.  With drop, open it as
 * the caller does to use it: see dorder_window_file().
 * hold: open an item with O_PATH, which makes the file system read its inode and
 * pin it together with the name, or return -1; the window closes it after the
 * file has been used.  With many files, the window opens as many as memory has
 * room for their inodes, in the order they were added, before it reads the first
 * of them ahead.  first is 1 if the names of the item's directory may have been
 * evicted and should be read again.  Meanwhile the process's soft limit of open
 * files is higher.  NULL: never.
 * drop: evict an open file's data (dorder_will_not_read()).  Called for each
 * file that was not in memory and was read ahead whole, once the next is asked
 * for.  NULL: never.  Needs a watch.
 * forget: the same, where memory does not have room for the metadata of
 * DORDER_HOLD_FILES files; this is checked each time that DORDER_HOLD_LEAST more
 * have been added.  Also called for such files as they are added: they will be
 * opened again, but only after so many others that they would be evicted by
 * then.  For files that were used, drop is called first.  NULL: never.
 * protect: mark data that dorder_window_read_all() has read as used more than
 * once, for windows that are used much later: otherwise it would be evicted
 * before data that others have written or read only once since then.
 * dorder_window_read_all() then waits for the data.
 * The others may be NULL.  The defaults: cached is dorder_cached(), place
 * dorder_first_extent(), room dorder_room(), memory dorder_pages(), and ahead
 * dorder_will_read() of at most DORDER_AHEAD_FILE.  Files that are neighbours on
 * the disk get fewer and larger requests instead.
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
	int protect;
};

/*
 * The most and the fewest inodes to hold at a time: few enough to fit into a
 * third of the room (DORDER_HOLD_BYTES each in ext4, with dentry and open
 * file), many enough that reading them takes only a few sweeps over the disk.
 * A window of at most DORDER_HOLD_LEAST files holds none.
 */
#define DORDER_HOLD_FILES 65536
#define DORDER_HOLD_LEAST 4096
#define DORDER_HOLD_BYTES 1600

struct dorder_window;

/* Bytes of memory that a window needs per file. */
#define DORDER_WINDOW_FILE 20

/*
 * Makes a window of at most max files (more than 0).  Allocates all of its
 * memory, DORDER_WINDOW_FILE bytes per file; pages of dorder_pages() are used
 * only as files are added.  Keeps ops and watch, does not copy them.  watch
 * NULL: take files that are in memory, too.  Returns NULL and ENOMEM on error.
 */
struct dorder_window *dorder_window_new(const struct dorder_window_ops *ops,
					void *ctx, uint32_t max,
					struct dorder_watch *watch);
void dorder_window_free(struct dorder_window *window);

/*
 * Adds the file of size bytes open at fd, which the caller keeps.  Returns its
 * number, or -1 if the caller should use the file at once: its data is in
 * memory or has no place on the disk, the file system does not say, or the
 * window is full or being handed out.  Leaves errno alone.
 */
int64_t dorder_window_add(struct dorder_window *window, int fd, off_t size);

/*
 * Call this before adding files of another device, or more often.  Returns 0
 * if opening and adding files of this device is useless, because none of its
 * first DORDER_GIVE_UP had a place on the disk (NFS, FUSE, ZFS, tmpfs).  Files
 * in memory do not count.
 */
#define DORDER_GIVE_UP 64
int dorder_window_device(struct dorder_window *window, dev_t device);

/*
 * Call this before looking up a file to add in the directory open at fd.  Reads
 * the directory's names again if they have been evicted, which it infers from
 * the waits of earlier look-ups.  Leaves fd's position and errno alone.
 */
void dorder_window_look(struct dorder_window *window, int fd);

/*
 * Returns whether adding more files would not help, or would harm.  That is so
 * when exactly DORDER_HOLD_FILES have been added and all but a sixteenth are in
 * the order of their data.  It is also so when their metadata, DORDER_READ_BYTES
 * a file, does not fit into memory: each stretch would then read all of it from
 * the disk.  Call it after each file added.
 */
#define DORDER_READ_BYTES 400
int dorder_window_enough(const struct dorder_window *window);

/*
 * Takes over fd, of the file that was added last as number item, and keeps it
 * open, so that the file's name and inode are in memory when the caller opens
 * it.  Closes fd at once if item is negative or the limit of open files (see
 * hold) is reached.  Only for windows that dorder_window_read_all() empties.
 *
 * Call dorder_window_used() for each file that was added, in that order, once
 * it has been opened.  At most two windows are kept.  Both leave errno alone.
 */
void dorder_window_keep(struct dorder_window *window, int64_t item, int fd);
void dorder_window_used(struct dorder_window *window);

/* Returns how many files are in the window. */
uint32_t dorder_window_count(const struct dorder_window *window);

/*
 * For callers that stop because dorder_window_enough() returned true, and will
 * add more.  The following calls of dorder_window_next() return only the half of
 * the files that comes first on the disk.  The others stay, with their numbers,
 * and the next round continues where this half ended.  Otherwise each window
 * would sweep over the whole disk for its share of the files.  (Replacement
 * selection makes runs twice as long as memory in the same way.)  A window with
 * few files, or with files in the order of their data, is returned whole.  Has
 * no effect between the first dorder_window_next() and its 0.
 */
void dorder_window_part(struct dorder_window *window);

/*
 * Sets *item to the next one in disk order and returns 1.  Returns 0 when all
 * have been handed out and have left the window, so that their numbers can be
 * reused.  The first call sorts; each call reads ahead.
 */
int dorder_window_next(struct dorder_window *window, uint32_t *item);

/*
 * Returns a duplicate of the descriptor by which the file handed out last has
 * been read ahead, so that the caller need not open the file once more, and
 * closes it itself; never 0 to 2.  The offset is 0 the first time.  Returns -1 if
 * the file has to be opened: the window has no drop, or the limit of open files
 * is low.  The name may be that of another file by now: compare.  Leaves errno
 * alone.
 */
int dorder_window_file(const struct dorder_window *window);

/*
 * Reads all files ahead in disk order and empties the window: for callers that
 * use the files in an order of their own.  Returns the bytes requested; callers
 * bound their sum by the files they add.
 */
size_t dorder_window_read_all(struct dorder_window *window);

#ifdef __cplusplus
}
#endif
#endif
