/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * e4itree.h --- shared by the parts of e4itree
 */
#ifndef E4ITREE_H
#define E4ITREE_H

#include <dirent.h>
#include <signal.h>
#include <stddef.h>

#include "ext2fs/itree_ioctl.h"

#define MAX_DIFFS	20	/* reported per directory */

/* Exit codes of the program */
enum exit_code {
	EXIT_DONE = 0,		/* everything was done */
	EXIT_SOME = 1,		/* some directories failed or differ */
	EXIT_USAGE = 2,
	EXIT_LACKING = 3,	/* kernel or file system has no support */
	EXIT_SIGNAL = 128	/* + number of the signal */
};

/* Not an operation of the ioctl: see e4itree_arrange.c */
#define OP_ARRANGE	100

extern struct e4itree_options {
	int		op;
	const char	*op_name;
	int		recursive;
	int		dry_run;
	int		verbose;
	int		quiet;
	int		force;
	int		json;
	int		progress;
	int		verify;
	unsigned long	min_blocks;
	unsigned long	min_files;
	unsigned long	max_size;
	unsigned long	pace;		/* percent */
} opt;

extern struct e4itree_sum {
	unsigned long long dirs;	/* visited */
	unsigned long long done;	/* built, dropped, correct, reported */
	unsigned long long skipped;
	unsigned long long failed;	/* or differing */
	unsigned long long entries;	/* of those done */
	unsigned long long lacking;	/* arguments without support */
} sum;

extern volatile sig_atomic_t cancelled;

void out_of_memory(void);
DIR *open_listing(int fd);
int skip_immutable(int fd, unsigned int dir_blocks);
int itree_call(int fd, int op, unsigned int flags, unsigned long long from,
	       struct ext4_itree_args *a, struct ext4_itree_diff *diffs);

/* The path of the current directory */
size_t path_add(const char *name);
void path_cut(size_t len);

/* Progress on standard error, results on standard output */
void progress_clear(void);
void progress_show(unsigned int blocks);
void fail(int err, const char *what);
void skip(const char *result, unsigned int dir_blocks, const char *why);
void report_tree(const char *result, const struct ext4_itree_args *a);
void report_stat(const struct ext4_itree_args *a, unsigned int packed);
void report_bad(const struct ext4_itree_args *a);
void report_diffs(const struct ext4_itree_args *a,
		  const struct ext4_itree_diff *d);
void report_lacking(int err);

/* Counts of a directory's files. */
struct arrange_result {
	unsigned long long files;	/* that can be moved */
	unsigned long long wanted;	/* files of runs that were scattered */
	unsigned long long moved;
	unsigned long long bytes;
	unsigned long long busy;	/* open, or changed or removed since */
	unsigned long long scattered;	/* lacking contiguous free space */
	unsigned long long before;	/* reads, in the order of the inodes */
	unsigned long long after;
};

int arrange(int fd);
void arrange_be_idle(void);
void report_arranged(const struct arrange_result *r);
void progress_files(const char *what, unsigned long long nr);
void report_summary(void);

/* Blocks of a directory and of its tree. */
struct pack_result {
	unsigned int	block_size;
	unsigned int	dir_before;
	unsigned int	dir_after;
	unsigned int	tree_before;
	unsigned int	tree_after;
};

int pack(int fd);
unsigned int packed_size(int fd, const struct ext4_itree_args *st);
void report_packed(const struct pack_result *r);
void progress_blocks(unsigned int freed);

#endif /* E4ITREE_H */
