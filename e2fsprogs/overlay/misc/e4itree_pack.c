// SPDX-License-Identifier: GPL-2.0-only
/*
 * e4itree_pack.c --- shrink directories from which names have been deleted
 *
 * ext4 never takes blocks away from a directory.  The kernel merges blocks
 * whose names fit into one, in calls of about a tenth of a second each.  Then
 * the tree is rebuilt, if much of it is free too.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "config.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "e4itree.h"

/* The kernel fills blocks to four fifths, as e2fsck -fD does. */
#define FULL(bytes)		((bytes) * 4 / 5)
/* Overhead of a tree's node, of a directory's leaf, of an index block. */
#define NODE_REST		32U
#define LEAF_REST		12U
#define INDEX_REST		16U
#define KEY_SIZE		8U
/* Packing costs writes, so it has to gain a quarter of the blocks. */
#define LEAST_GAIN		4U
/* Names read to estimate the average length. */
#define SAMPLE			1024U

struct names {
	unsigned long long nr;
	unsigned long long bytes;	/* of their entries on the disk */
};

/* Counts the names of the directory, at most @most of them. */
static int count_names(int fd, unsigned long long most, struct names *n)
{
	DIR *dir = open_listing(fd);
	struct dirent *de;
	int err;

	memset(n, 0, sizeof(*n));
	if (!dir)
		return errno;
	while (n->nr < most && !cancelled && (errno = 0, de = readdir(dir))) {
		n->nr++;
		n->bytes += (8 + strlen(de->d_name) + 3) & ~3ULL;
	}
	err = errno;
	closedir(dir);
	return err;
}

/* Blocks that a directory of these names will have after packing. */
static unsigned int dir_blocks(unsigned int size, const struct names *n)
{
	unsigned long long leaves, nodes;

	leaves = n->bytes / FULL(size - LEAF_REST) + 1;
	nodes = leaves / FULL((size - INDEX_REST) / KEY_SIZE) + 1;
	return leaves + nodes;
}

static unsigned int tree_blocks(unsigned int size, unsigned long long keys)
{
	return keys * KEY_SIZE / (size - NODE_REST) * 51 / 50 + 4;
}

/*
 * Estimates from some of its names how many blocks the directory of a tree
 * would have after packing; 0 if they cannot be read.
 */
unsigned int packed_size(int fd, const struct ext4_itree_args *st)
{
	struct names n;

	if (count_names(fd, SAMPLE, &n) || !n.nr)
		return 0;
	n.bytes = n.bytes * st->ia_keys / n.nr;
	return dir_blocks(st->ia_block_size, &n);
}

static int size_of(int fd, struct pack_result *r, unsigned int *blocks)
{
	struct stat st;

	if (fstat(fd, &st))
		return errno;
	*blocks = st.st_size / r->block_size;
	return 0;
}

/* Sleeps so that the calls take at most --pace percent of the time. */
static void rest(const struct timespec *start)
{
	struct timespec now, pause;
	long long ns;

	if (opt.pace >= 100)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	ns = (now.tv_sec - start->tv_sec) * 1000000000LL + now.tv_nsec -
	     start->tv_nsec;
	ns = ns * (long long) (100 - opt.pace) / (long long) opt.pace;
	pause.tv_sec = ns / 1000000000LL;
	pause.tv_nsec = ns % 1000000000LL;
	nanosleep(&pause, NULL);
}

/* Returns 0 or an errno; EINTR if the program should end. */
static int pack_names(int fd, struct pack_result *r)
{
	struct ext4_itree_args a;
	struct timespec start;
	unsigned long long from = 0;
	int err;

	do {
		clock_gettime(CLOCK_MONOTONIC, &start);
		err = itree_call(fd, EXT4_ITREE_OP_PACK, 0, from, &a, NULL);
		if (err)
			return err;
		from = a.ia_next;
		progress_blocks(r->dir_before - a.ia_dir_blocks);
		if (a.ia_state & EXT4_ITREE_MORE)
			rest(&start);
	} while ((a.ia_state & EXT4_ITREE_MORE) && !cancelled);
	return cancelled ? EINTR : 0;
}

/* Rebuilds the tree if that frees a good part of it. */
static int pack_tree(int fd, struct pack_result *r)
{
	struct ext4_itree_args a;
	unsigned int best;
	int err;

	err = itree_call(fd, EXT4_ITREE_OP_STAT, 0, 0, &a, NULL);
	if (err || !(a.ia_state & EXT4_ITREE_HAS_TREE))
		return err == EOPNOTSUPP ? 0 : err;
	r->tree_after = a.ia_blocks;
	best = tree_blocks(r->block_size, a.ia_keys);
	if (a.ia_blocks < best + best / LEAST_GAIN)
		return 0;
	err = itree_call(fd, EXT4_ITREE_OP_BUILD, EXT4_ITREE_FORCE, 0, &a,
			 NULL);
	if (!err)
		r->tree_after = a.ia_blocks;
	return err;
}

/*
 * Packs the directory that is open as @fd.  Returns 0, or an error that
 * applies to the whole file system.
 */
int pack(int fd)
{
	struct ext4_itree_args st;
	struct pack_result r;
	struct statfs fs;
	struct names n;
	int err;

	memset(&r, 0, sizeof(r));
	if (fstatfs(fd, &fs))
		return errno;
	if (fs.f_type != EXT4_SUPER_MAGIC)
		return ENOTTY;
	r.block_size = fs.f_bsize;
	/* Packing works without the feature; there are no trees then. */
	err = itree_call(fd, EXT4_ITREE_OP_STAT, 0, 0, &st, NULL);
	if (err == ENOTTY || err == ENOSYS)
		return err;
	if (!err && (st.ia_state & EXT4_ITREE_HAS_TREE))
		r.tree_before = st.ia_blocks;
	err = size_of(fd, &r, &r.dir_before);
	if (!err && r.dir_before < opt.min_blocks) {
		skip("small", r.dir_before, "too small to gain from packing (see "
			  "--min-blocks)");
		return 0;
	}
	if (!err)
		err = count_names(fd, ~0ULL, &n);
	if (err) {
		fail(err, "cannot be read");
		return 0;
	}
	r.dir_after = dir_blocks(r.block_size, &n);
	r.tree_after = r.tree_before ? tree_blocks(r.block_size, n.nr) : 0;
	if (!opt.force && r.dir_after + r.dir_before / LEAST_GAIN >
	    r.dir_before) {
		skip("already", r.dir_before, "packing it would gain less than a "
			  "quarter of its blocks (see --force)");
		return 0;
	}
	if (skip_immutable(fd, r.dir_before))
		return 0;
	if (opt.dry_run) {
		report_packed(&r);
		return 0;
	}
	err = cancelled ? EINTR : pack_names(fd, &r);
	if (err == ENODATA) {
		skip("no-index", r.dir_before, "has no htree; e2fsck -fD packs it "
			  "when it is unmounted");
		return 0;
	}
	/* The kernel supports trees, but not packing. */
	if (err == EINVAL)
		return ENOTTY;
	if (!err)
		err = pack_tree(fd, &r);
	/* A timer packs all directories again, so it needs no alarm. */
	if (err == EBUSY && opt.recursive) {
		skip("busy", r.dir_before, "another build, drop or pack of it is "
			  "under way");
		return 0;
	}
	if (err && err != EINTR) {
		fail(err, "it could not be packed");
		return 0;
	}
	if (!err)
		err = size_of(fd, &r, &r.dir_after);
	if (!err)
		report_packed(&r);
	return 0;
}
