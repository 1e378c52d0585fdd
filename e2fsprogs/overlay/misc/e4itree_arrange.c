// SPDX-License-Identifier: GPL-2.0-only
/*
 * e4itree_arrange.c --- put the data of small files in the order of their
 * inodes, while they are in use
 *
 * In an aged directory, files with consecutive inode numbers are scattered
 * over the disk, so a backup that reads them in that order seeks for each.
 * Like e4defrag, which gathers the pieces of one file, this moves blocks with
 * EXT4_IOC_MOVE_EXT: a run of files exchanges its blocks with those of a
 * temporary file, whose blocks lie together.  The kernel copies the data of
 * each page and exchanges its blocks in one transaction, and writes the data
 * before that commits.  So after a crash a file is in its old place or in its
 * new one.
 *
 * Works on any ext4 with a journal, with or without itrees.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "config.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "e4itree.h"
#include "ext4_sysfs.h"

/*
 * Data that one run moves: the blocks of a temporary file.  A run is first read
 * in the order of the disk, so a longer one seeks less; but data that is
 * evicted before it is moved is read twice.
 */
#define RUN_LEAST	(64ULL << 20)
#define RUN_MOST	(1ULL << 30)
#define MEMORY_SHARE	4
/* A run of one piece, plus one per this many files, is left as it is. */
#define GOOD_SHARE	64
/* A disk reads through gaps up to this size instead of seeking. */
#define GAP_BYTES	(64U << 10)
/* Free space to leave, besides that for a run. */
#define LEAVE_SHARE	50
/* A file of more extents does not count as small. */
#define MAX_EXTENTS	32
/* file.at, if the temporary file has no contiguous blocks for the file. */
#define NOWHERE		UINT64_MAX
/* Files with these attributes (see lsattr(1)) are left alone. */
#define LEAVE_FLAGS	(FS_IMMUTABLE_FL | FS_APPEND_FL | FS_ENCRYPT_FL | \
			 FS_VERITY_FL | FS_DAX_FL | FS_JOURNAL_DATA_FL | \
			 FS_NOCOW_FL)

#ifndef FS_DAX_FL
#define FS_DAX_FL	0x02000000
#endif
#ifndef FS_VERITY_FL
#define FS_VERITY_FL	0x00100000
#endif

struct move_extent {
	uint32_t	reserved;
	uint32_t	donor_fd;
	uint64_t	orig_start;	/* in blocks, like the next ones */
	uint64_t	donor_start;
	uint64_t	len;
	uint64_t	moved_len;
};

#ifndef EXT4_IOC_MOVE_EXT
#define EXT4_IOC_MOVE_EXT	_IOWR('f', 15, struct move_extent)
#endif

struct file {
	char		*name;
	ino_t		ino;
	off_t		size;
	struct timespec	mtime;
	uint64_t	first;		/* byte on the disk, 0: left alone */
	uint64_t	end;		/* behind its last one */
	unsigned int	extents;
	uint64_t	at;		/* block of the temporary file */
};

/* The current directory. */
struct job {
	int		dir;
	struct file	*file;
	size_t		nr, room;
	unsigned int	block;		/* bytes */
	unsigned int	align;		/* blocks of a page */
	struct arrange_result result;
};

static int by_ino(const void *a, const void *b)
{
	const struct file *x = a, *y = b;

	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

static int by_place(const void *a, const void *b)
{
	const struct file *const *x = a, *const *y = b;

	return (*x)->first < (*y)->first ? -1 : (*x)->first > (*y)->first;
}

/* --- finding out --- */

static int open_file(const struct job *j, const struct file *f, int how)
{
	struct stat st;
	int fd = openat(j->dir, f->name, how | O_NOFOLLOW | O_NONBLOCK |
			O_NOCTTY | O_CLOEXEC | O_NOATIME);

	if (fd < 0)
		return -1;
	/* Is it still the file that look_at() has seen? */
	if (fstat(fd, &st) || st.st_ino != f->ino || !S_ISREG(st.st_mode) ||
	    st.st_size != f->size || st.st_mtim.tv_sec != f->mtime.tv_sec ||
	    st.st_mtim.tv_nsec != f->mtime.tv_nsec) {
		close(fd);
		errno = ESTALE;
		return -1;
	}
	return fd;
}

/* Finds a file's place.  Leaves first at 0 if the file cannot be moved. */
static void look_at(struct job *j, struct file *f)
{
	struct {
		struct fiemap		map;
		struct fiemap_extent	ext[MAX_EXTENTS];
	} m;
	const unsigned int wrong = ~(FIEMAP_EXTENT_LAST |
				     FIEMAP_EXTENT_MERGED);
	unsigned int flags = 0, i;
	uint64_t next = 0;
	int fd;

	f->first = f->end = 0;
	fd = open_file(j, f, O_RDONLY);
	if (fd < 0)
		return;
	memset(&m, 0, sizeof(m));
	m.map.fm_length = FIEMAP_MAX_OFFSET;
	m.map.fm_flags = FIEMAP_FLAG_SYNC;
	m.map.fm_extent_count = MAX_EXTENTS;
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) || (flags & LEAVE_FLAGS) ||
	    ioctl(fd, FS_IOC_FIEMAP, &m.map) || !m.map.fm_mapped_extents)
		goto out;
	for (i = 0; i < m.map.fm_mapped_extents; i++) {
		if (m.ext[i].fe_logical != next ||
		    (m.ext[i].fe_flags & wrong))
			goto out;		/* a hole, or not plain data */
		next += m.ext[i].fe_length;
	}
	if (!(m.ext[i - 1].fe_flags & FIEMAP_EXTENT_LAST) ||
	    next < (uint64_t) f->size ||
	    next - f->size >= j->block)
		goto out;
	f->first = m.ext[0].fe_physical;
	f->end = m.ext[i - 1].fe_physical + m.ext[i - 1].fe_length;
	f->extents = i;
out:
	close(fd);
}

static void add(struct job *j, const char *name, const struct stat *st)
{
	struct file *f;

	if (j->nr == j->room) {
		j->room = j->room ? 2 * j->room : 1024;
		f = realloc(j->file, j->room * sizeof(*f));
		if (!f)
			out_of_memory();
		j->file = f;
	}
	f = &j->file[j->nr++];
	memset(f, 0, sizeof(*f));
	f->name = strdup(name);
	if (!f->name)
		out_of_memory();
	f->ino = st->st_ino;
	f->size = st->st_size;
	f->mtime = st->st_mtim;
}

/* Collects the small files of a directory and sorts them by inode number. */
static int take_files(struct job *j)
{
	struct dirent *de;
	struct stat st;
	size_t i, n = 0;
	DIR *dir;
	int err;

	dir = open_listing(j->dir);
	if (!dir)
		return errno;
	while (!cancelled && (errno = 0, de = readdir(dir))) {
		if (de->d_type != DT_REG && de->d_type != DT_UNKNOWN)
			continue;
		memset(&st, 0, sizeof(st));
		st.st_ino = de->d_ino;
		add(j, de->d_name, &st);
	}
	err = cancelled ? 0 : errno;
	closedir(dir);
	if (err)
		return err;
	/* The order of their inodes on the disk. */
	qsort(j->file, j->nr, sizeof(*j->file), by_ino);
	for (i = 0; i < j->nr; i++) {
		struct file f = j->file[i];

		if (cancelled || (n && j->file[n - 1].ino == f.ino) ||
		    fstatat(j->dir, f.name, &st, AT_SYMLINK_NOFOLLOW) ||
		    st.st_ino != f.ino || !S_ISREG(st.st_mode) ||
		    !st.st_size || (unsigned long long) st.st_size >
				   opt.max_size) {
			free(f.name);
			continue;
		}
		f.size = st.st_size;
		f.mtime = st.st_mtim;
		j->file[n++] = f;
		progress_files("looking at", n);
	}
	j->nr = n;
	return 0;
}

static uint64_t blocks_of(const struct job *j, const struct file *f)
{
	return (f->size + j->block - 1) / j->block;
}

/* Blocks of the temporary file, where each file begins on a new page. */
static uint64_t room_of(const struct job *j, const struct file *f)
{
	return (blocks_of(j, f) + j->align - 1) / j->align * j->align;
}

/*
 * Counts the reads that these files take in the order of their inodes, on a
 * disk that reads through small gaps.
 */
static unsigned long long pieces(const struct file *f, size_t nr)
{
	unsigned long long n = 0;
	uint64_t end = 0;
	size_t i;

	for (i = 0; i < nr; i++) {
		if (!f[i].first)
			continue;
		n += f[i].extents - 1;
		n += !end || f[i].first < end || f[i].first - end > GAP_BYTES;
		end = f[i].end;
	}
	return n;
}

/* --- moving --- */

/* A contiguous piece of the temporary file. */
struct place {
	uint64_t	first;		/* byte on the disk */
	uint64_t	block;		/* of the temporary file */
	uint64_t	blocks;
};

static int by_disk(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	return x->first < y->first ? -1 : x->first > y->first;
}

/* Lists the temporary file's pieces in the order of the disk; 0 or an error. */
static int places(const struct job *j, int donor, struct place **list,
		  size_t *nr)
{
	struct {
		struct fiemap		map;
		struct fiemap_extent	ext[256];
	} m;
	uint64_t next = 0;
	struct place *p;
	unsigned int i;

	*list = NULL;
	*nr = 0;
	do {
		memset(&m, 0, sizeof(m));
		m.map.fm_start = next;
		m.map.fm_length = FIEMAP_MAX_OFFSET - next;
		m.map.fm_extent_count = 256;
		if (ioctl(donor, FS_IOC_FIEMAP, &m.map))
			return errno;
		p = realloc(*list, (*nr + 256) * sizeof(*p));
		if (!p)
			out_of_memory();
		*list = p;
		for (i = 0; i < m.map.fm_mapped_extents; i++) {
			p[*nr].first = m.ext[i].fe_physical;
			p[*nr].block = m.ext[i].fe_logical / j->block;
			p[*nr].blocks = m.ext[i].fe_length / j->block;
			(*nr)++;
			next = m.ext[i].fe_logical + m.ext[i].fe_length;
		}
	} while (i == 256 && !(m.ext[i - 1].fe_flags & FIEMAP_EXTENT_LAST));
	qsort(*list, *nr, sizeof(**list), by_disk);
	return 0;
}

/*
 * Gives each file its blocks of the temporary file.  Returns how many pieces
 * that will make.
 */
static unsigned long long assign(struct job *j, struct file *f, size_t nr,
				 const struct place *p, size_t nr_places)
{
	unsigned long long n = nr_places ? 1 : 0;
	uint64_t used = 0, skip = 0;
	size_t i, at = 0;

	for (i = 0; i < nr; i++) {
		f[i].at = NOWHERE;
		if (!f[i].first)
			continue;
		while (at < nr_places) {
			skip = (j->align - (p[at].block + used) % j->align) %
			       j->align;
			if (used + skip + blocks_of(j, &f[i]) <= p[at].blocks)
				break;
			at++;
			n += at < nr_places;
			used = 0;
		}
		if (at == nr_places) {
			j->result.scattered++;
			continue;
		}
		f[i].at = p[at].block + used + skip;
		used += skip + room_of(j, &f[i]);
		if (used > p[at].blocks)
			used = p[at].blocks;
	}
	return n;
}

/* Starts reading a run in the order of the disk. */
static void read_run(const struct job *j, struct file *f, size_t nr)
{
	struct file **order = malloc(nr * sizeof(*order));
	size_t i, n = 0;
	int fd;

	if (!order)
		return;
	for (i = 0; i < nr; i++)
		if (f[i].first && f[i].at != NOWHERE)
			order[n++] = &f[i];
	qsort(order, n, sizeof(*order), by_place);
	for (i = 0; i < n && !cancelled; i++) {
		fd = open_file(j, order[i], O_RDONLY);
		if (fd < 0)
			continue;
		posix_fadvise(fd, 0, order[i]->size, POSIX_FADV_WILLNEED);
		close(fd);
	}
	free(order);
}

/* Returns 0, or an error that applies to the next files, too. */
static int move_file(struct job *j, struct file *f, int donor)
{
	struct move_extent m = {
		.donor_fd = donor,
		.donor_start = f->at,
		.len = blocks_of(j, f),
	};
	int fd, err = 0;

	if (!f->first || f->at == NOWHERE)
		return 0;
	fd = open_file(j, f, O_RDWR);
	if (fd < 0) {
		j->result.busy++;
		return 0;
	}
	/*
	 * A write lease is granted only if no other process has the file open.
	 * A process that opens it now waits until the lease is given back.
	 */
	if (fcntl(fd, F_SETLEASE, F_WRLCK)) {
		j->result.busy++;
		close(fd);
		return 0;
	}
	if (ioctl(fd, EXT4_IOC_MOVE_EXT, &m))
		err = errno;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	close(fd);
	if (m.moved_len) {
		j->result.moved++;
		j->result.bytes += m.moved_len * j->block;
	}
	switch (err) {
	case 0:
		return 0;
	case EBUSY:
	case ETXTBSY:
	case EINVAL:
	case ENODATA:
		j->result.busy++;
		return 0;
	}
	return err;
}

static int enough_space(const struct job *j, uint64_t bytes)
{
	struct statfs fs;

	if (fstatfs(j->dir, &fs))
		return errno;
	return (uint64_t) fs.f_bavail * fs.f_bsize >=
	       bytes + (uint64_t) fs.f_blocks / LEAVE_SHARE * fs.f_bsize ?
	       0 : ENOSPC;
}

static int move_run(struct job *j, struct file *f, size_t nr, uint64_t bytes)
{
	unsigned long long before = pieces(f, nr);
	struct place *list = NULL;
	size_t i, nr_places;
	int donor, err;

	err = enough_space(j, bytes);
	if (err)
		return err;
	donor = openat(j->dir, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (donor < 0)
		return errno;
	if (fallocate(donor, 0, 0, bytes))
		err = errno;
	if (!err)
		err = places(j, donor, &list, &nr_places);
	if (!err && assign(j, f, nr, list, nr_places) * 2 > before) {
		/* Free space is just as fragmented. */
		for (i = 0; i < nr; i++)
			j->result.scattered += f[i].at != NOWHERE;
		goto out;
	}
	if (!err)
		read_run(j, f, nr);
	for (i = 0; i < nr && !err && !cancelled; i++) {
		err = move_file(j, &f[i], donor);
		progress_files("moved", j->result.moved);
	}
	/*
	 * Write the data and commit the transactions before the old blocks
	 * are freed and can be reused.
	 */
	if (fdatasync(donor) && !err)
		err = errno;
out:
	free(list);
	close(donor);
	return err;
}

/* Bytes of a run: a share of available memory, and not all free space. */
static uint64_t run_bytes(const struct job *j)
{
	uint64_t most = RUN_LEAST, space;
	unsigned long long kib;
	struct statfs fs;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "r");

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			most = kib * 1024 / MEMORY_SHARE;
	if (f)
		fclose(f);
	if (most > RUN_MOST)
		most = RUN_MOST;
	space = fstatfs(j->dir, &fs) ? 0 : (uint64_t) fs.f_bavail *
					   fs.f_bsize / 2;
	if (most > space)
		most = space;
	return most < RUN_LEAST ? RUN_LEAST : most;
}

/*
 * Calls move_run() for one run of files after the other, or with --dry-run
 * only counts them.
 */
static int move_all(struct job *j)
{
	uint64_t bytes, most;
	size_t first, nr;
	int err = 0;

	for (first = 0; first < j->nr && !err && !cancelled; first += nr) {
		bytes = 0;
		most = run_bytes(j);
		for (nr = 0; first + nr < j->nr && bytes < most; nr++)
			if (j->file[first + nr].first)
				bytes += room_of(j, &j->file[first + nr]) *
					 j->block;
		if (pieces(j->file + first, nr) <= 1 + nr / GOOD_SHARE)
			continue;
		j->result.wanted += nr;
		if (!opt.dry_run)
			err = move_run(j, j->file + first, nr, bytes);
	}
	return err;
}

/* --- the directory --- */

/* Fails unless the file system has a journal, which orders data writes. */
static int check_journal(int fd)
{
	FILE *f = ext4_sysfs_open(fd, "journal_task");
	char line[64];
	int err = EOPNOTSUPP;

	if (!f)
		return err;
	/* "<none>" without a journal */
	if (fgets(line, sizeof(line), f) && line[0] >= '0' && line[0] <= '9')
		err = 0;
	fclose(f);
	return err;
}

/*
 * Let the I/O of everything else go first; schedulers without classes ignore
 * this.
 */
void arrange_be_idle(void)
{
	/* IOPRIO_WHO_PROCESS, this one, IOPRIO_CLASS_IDLE */
	syscall(SYS_ioprio_set, 1, 0, 3 << 13);
}

/*
 * Arranges the files of the directory that is open as @fd.  Returns 0, or an
 * error that applies to the whole file system.
 */
int arrange(int fd)
{
	struct job j;
	struct statfs fs;
	size_t i;
	int err;

	memset(&j, 0, sizeof(j));
	j.dir = fd;
	if (fstatfs(fd, &fs))
		return errno;
	if (fs.f_type != EXT4_SUPER_MAGIC)
		return ENOTTY;
	err = check_journal(fd);
	if (err)
		return err;
	j.block = fs.f_bsize;
	j.align = sysconf(_SC_PAGESIZE) / j.block;
	if (!j.align)
		j.align = 1;
	err = take_files(&j);
	if (err) {
		fail(err, "cannot be read");
		err = 0;
	} else if (j.nr < opt.min_files) {
		skip("few", 0, "has few small files (see --min-files)");
	} else if (!cancelled) {
		for (i = 0; i < j.nr && !cancelled; i++)
			look_at(&j, &j.file[i]);
		for (i = 0; i < j.nr; i++)
			j.result.files += !!j.file[i].first;
		j.result.before = pieces(j.file, j.nr);
		if (!cancelled)
			err = move_all(&j);
		if (j.result.moved)
			for (i = 0; i < j.nr && !cancelled; i++)
				look_at(&j, &j.file[i]);
		j.result.after = pieces(j.file, j.nr);
		if (err == EOPNOTSUPP)
			goto out;
		if (err)
			fail(err, "its files could not be arranged");
		err = 0;
		if (j.result.wanted || j.result.moved)
			report_arranged(&j.result);
		else
			skip("already", 0, "lies in order already");
	}
out:
	for (i = 0; i < j.nr; i++)
		free(j.file[i].name);
	free(j.file);
	return err;
}
