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

/* Default of the bytes that sorting one directory may take. */
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
 * dorder_tell() is where dorder_next() will go on.  dorder_seek() goes to such
 * a place, also over names made or removed since; 0 or -1 and errno.  A name
 * may then come twice if the directory changed, none is left out.
 */
int64_t dorder_tell(const struct dorder *dir);
int dorder_seek(struct dorder *dir, int64_t position);

/* Returns to the start and drops the names read.  0, or -1 and errno. */
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
 * Evicts the data of a file that was read only once.  On our ext4 its inode and
 * name are evicted, too, with the last close (POSIX_FADV_NOREUSE).  Dirty and
 * mapped pages stay, and so does a file that others have open.  Leaves errno
 * alone.  ctx is not used: this is a dorder_window_ops.drop, or .forget.
 */
void dorder_will_not_read(void *ctx, int fd);

/* Read ahead of the file at hand: so many files, bytes, bytes of one file. */
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

/* One more file: whether to look at it (1), or use it as it comes (0). */
int dorder_watch_look(struct dorder_watch *watch);

/* Returns whether count files can all go unchecked, and counts them if so. */
int dorder_watch_pass(struct dorder_watch *watch, uint32_t count);

/* Records the result of a check; dorder_window_add() does it itself. */
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
 * Returns how many bytes of memory this process can use without evicting the
 * data of others: MemAvailable, or the rest of its control group's limit if that
 * is less.  Of the group's use, file pages count as free.  Returns SIZE_MAX if
 * neither is known.  Leaves errno alone.  root is put before all paths ("").
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
 * A window: files that will be read, put into the order of their data on the
 * disk and read ahead in that order.  Only the caller knows the files; items are
 * numbered from 0 in the order they were added.
 *
 * open: open an item for reading, as cheaply as possible, or return -1 to
 * leave it out of reading ahead; the window closes it.
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
 * The others may be NULL.  The defaults: cached is dorder_cached(), place
 * dorder_first_extent(), room dorder_room(), memory dorder_pages(), and ahead
 * dorder_will_read() of at most DORDER_AHEAD_FILE.  Files that are neighbours on
 * the disk get fewer and larger requests instead; their descriptors get
 * O_NOATIME where that is allowed.
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

/* Bytes of memory that a window needs for a file. */
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
 * Returns whether adding more files would not help, or would harm.  That is so
 * when exactly DORDER_HOLD_FILES have been added and all but a sixteenth are in
 * the order of their data.  It is also so when their metadata, DORDER_READ_BYTES
 * a file, does not fit into memory: each stretch would then read all of it from
 * the disk.  Call it after each file added.
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
 * The next item in disk order: 1, or 0 when all that were to be handed out have
 * been, and left the window; their numbers are given out again.  The first call
 * sorts; each reads ahead.
 */
int dorder_window_next(struct dorder_window *window, uint32_t *item);

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
