// SPDX-License-Identifier: GPL-2.0-only
/*
 * e4itree_report.c --- e4itree's output: lines, JSON, progress, errors
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include "config.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "e4itree.h"

static char *path;			/* of the current directory */
static size_t path_len, path_size;

void out_of_memory(void)
{
	fprintf(stderr, "e4itree: out of memory\n");
	exit(EXIT_SOME);
}

/* --- the path --- */

/* Appends a name; returns the length to give to path_cut() afterwards. */
size_t path_add(const char *name)
{
	size_t old = path_len, need = path_len + strlen(name) + 2;
	char *p;

	if (need > path_size) {
		p = realloc(path, need * 2);
		if (!p)
			out_of_memory();
		path = p;
		path_size = need * 2;
	}
	if (path_len && path[path_len - 1] != '/')
		path[path_len++] = '/';
	strcpy(path + path_len, name);
	path_len += strlen(name);
	return old;
}

void path_cut(size_t len)
{
	path_len = len;
	if (path)
		path[len] = 0;
}

/* --- output --- */

/* Length of the UTF-8 character at @s, or 0. */
static int utf8_char(const unsigned char *s)
{
	static const unsigned int least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	unsigned int c;
	int n, i;

	if (*s < 0x80)
		return 1;
	n = (*s & 0xe0) == 0xc0 ? 2 : (*s & 0xf0) == 0xe0 ? 3 :
	    (*s & 0xf8) == 0xf0 ? 4 : 0;
	if (!n)
		return 0;
	c = *s & (0x7f >> n);
	for (i = 1; i < n; i++) {
		if ((s[i] & 0xc0) != 0x80)
			return 0;
		c = c << 6 | (s[i] & 0x3f);
	}
	if (c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
		return 0;
	return n;
}

/*
 * A byte that is not part of valid UTF-8 becomes \udcXX, which Python's
 * "surrogateescape" and many others turn back into the byte.
 */
static void json_string(const char *key, const char *text)
{
	const unsigned char *s = (const unsigned char *) text;
	int n;

	printf("\"%s\": \"", key);
	for (; *s; s += n) {
		n = utf8_char(s);
		if (!n) {
			printf("\\udc%02x", *s);
			n = 1;
		} else if (*s == '"' || *s == '\\') {
			printf("\\%c", *s);
		} else if (*s < 0x20 || *s == 0x7f) {
			printf("\\u%04x", *s);
		} else {
			fwrite(s, 1, n, stdout);
		}
	}
	putchar('"');
}

void progress_clear(void)
{
	if (opt.progress)
		fprintf(stderr, "\r\033[K");
}

void progress_show(unsigned int blocks)
{
	static struct timespec last;
	struct timespec now;

	if (!opt.progress)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (blocks < 1024 && now.tv_sec == last.tv_sec &&
	    now.tv_nsec - last.tv_nsec < 200000000)
		return;
	last = now;
	fprintf(stderr, "\r\033[K%llu directories, %llu done, %llu entries: "
		"%.200s", sum.dirs, sum.done, sum.entries, path);
	if (blocks >= 1024)
		fprintf(stderr, " (%u blocks)", blocks);
	fflush(stderr);
}

static void json_begin(const char *result)
{
	putchar('{');
	json_string("path", path);
	printf(", \"op\": \"%s\", \"result\": \"%s\"", opt.op_name, result);
}

static void json_end(void)
{
	printf("}\n");
	fflush(stdout);
}

/* Reports an error of the current directory, and what to do next. */
void fail(int err, const char *what)
{
	const char *todo = "";

	if (err == EPERM && opt.op == EXT4_ITREE_OP_STAT)
		todo = ": only the owner and root may use --verify on it";
	else if (err == EPERM && opt.op == EXT4_ITREE_OP_CHECK)
		todo = ": only the directory's owner and root may check it";
	else if (err == EPERM)
		todo = ": only the directory's owner and root may do this, "
			"and not while it is immutable";
	else if (err == EROFS)
		todo = ": remount it read-write first";
	else if (err == EBUSY)
		todo = ": a build, drop or pack of it is under way; try again "
			"later";
	else if (err == EAGAIN)
		todo = ": it changes too fast; try again when it is less busy";
	else if (err == ENODATA)
		todo = ": it has no htree (made without dir_index or "
			"extents; e2fsck -fD makes htrees)";
	else if (err == EUCLEAN || err == EBADMSG)
		todo = ": unmount the file system and run e2fsck on it";
	else if (opt.op == OP_ARRANGE && (err == ENOSPC || err == EDQUOT))
		todo = ": 64 MiB and a fiftieth of the file system must be "
			"free";
	else if (err == ENOSPC || err == EDQUOT)
		todo = ": free some space; a tree takes about 8 to 16 bytes "
			"per name";
	progress_clear();
	fprintf(stderr, "e4itree: %s: %s: %s%s\n", path, what, strerror(err),
		todo);
	sum.failed++;
	if (opt.json) {
		json_begin("failed");
		printf(", \"errno\": %d, ", err);
		json_string("error", strerror(err));
		json_end();
	}
}

void skip(const char *result, unsigned int dir_blocks, const char *why)
{
	sum.skipped++;
	if (opt.json && (opt.verbose || !opt.recursive)) {
		json_begin(result);
		printf(", \"dir_blocks\": %u", dir_blocks);
		json_end();
	} else if (!opt.json && !opt.quiet &&
		   (opt.verbose || !opt.recursive)) {
		progress_clear();
		printf("%s: %s\n", path, why);
	}
}

static void print_tree(const char *result, const struct ext4_itree_args *a,
		       unsigned int packed)
{
	unsigned long long bytes = (unsigned long long) a->ia_blocks *
				   a->ia_block_size;
	double fill = a->ia_leaf_slots ?
		      100.0 * a->ia_keys / a->ia_leaf_slots : 0;

	sum.done++;
	sum.entries += a->ia_keys;
	if (opt.json) {
		json_begin(result);
		printf(", \"keys\": %llu, \"depth\": %u, \"dir_blocks\": %u, "
		       "\"tree_blocks\": %u, \"free_nodes\": %u, "
		       "\"block_size\": %u",
		       (unsigned long long) a->ia_keys, a->ia_depth,
		       a->ia_dir_blocks, a->ia_blocks, a->ia_free,
		       a->ia_block_size);
		if (a->ia_nodes)
			printf(", \"leaves\": %u, \"nodes\": %u, "
			       "\"leaf_slots\": %llu", a->ia_leaves,
			       a->ia_nodes,
			       (unsigned long long) a->ia_leaf_slots);
		if (opt.op == EXT4_ITREE_OP_BUILD)
			printf(", \"logged\": %llu, \"rounds\": %u, "
			       "\"locked_us\": %u",
			       (unsigned long long) a->ia_logged, a->ia_rounds,
			       a->ia_locked_us);
		if (packed)
			printf(", \"packed_blocks\": %u", packed);
		json_end();
		return;
	}
	if (opt.quiet)
		return;
	progress_clear();
	printf("%s: %s, %llu keys, depth %u, %u blocks (%llu KiB), %u free",
	       path, result, (unsigned long long) a->ia_keys, a->ia_depth,
	       a->ia_blocks, bytes / 1024, a->ia_free);
	if (a->ia_leaf_slots)
		printf(", leaves %.1f %% full", fill);
	if (opt.verbose && opt.op == EXT4_ITREE_OP_BUILD)
		printf(", %llu changes meanwhile, writers shut out for %u us",
		       (unsigned long long) a->ia_logged, a->ia_locked_us);
	if (packed)
		printf("; the directory has %u blocks, packed about %u",
		       a->ia_dir_blocks, packed);
	putchar('\n');
}

void report_tree(const char *result, const struct ext4_itree_args *a)
{
	print_tree(result, a, 0);
}

/* @packed: blocks that the directory would have after packing, or 0 */
void report_stat(const struct ext4_itree_args *a, unsigned int packed)
{
	print_tree("tree", a, packed);
}

/* Reports a tree that violates the format. */
void report_bad(const struct ext4_itree_args *a)
{
	sum.failed++;
	progress_clear();
	if (opt.json) {
		json_begin("bad");
		printf(", \"block\": %u, ", a->ia_why_block);
		json_string("why", a->ia_why);
		json_end();
		return;
	}
	printf("%s: bad tree: block %u: %s; run e4itree build --force, or "
	       "e2fsck when it is unmounted\n", path, a->ia_why_block,
	       a->ia_why);
}

void report_diffs(const struct ext4_itree_args *a,
			 const struct ext4_itree_diff *d)
{
	unsigned int i;

	sum.failed++;
	progress_clear();
	if (opt.json) {
		json_begin("differs");
		printf(", \"missing\": %llu, \"extra\": %llu, \"diffs\": [",
		       (unsigned long long) a->ia_missing,
		       (unsigned long long) a->ia_extra);
		for (i = 0; i < a->ia_nr_diffs; i++)
			printf("%s{\"inode\": %u, \"hash\": %u, \"what\": "
			       "\"%s\"}", i ? ", " : "", d[i].id_ino,
			       d[i].id_hash, d[i].id_what ==
			       EXT4_ITREE_MISSING ? "missing" : "extra");
		putchar(']');
		json_end();
		return;
	}
	printf("%s: differs: %llu names have no key in the tree, %llu keys "
	       "have no name; run e4itree build --force\n", path,
	       (unsigned long long) a->ia_missing,
	       (unsigned long long) a->ia_extra);
	for (i = 0; i < a->ia_nr_diffs && !opt.quiet; i++)
		printf("    inode %u, hash 0x%08x: %s\n", d[i].id_ino,
		       d[i].id_hash, d[i].id_what == EXT4_ITREE_MISSING ?
		       "no key" : "no name");
}

/* --- arrange --- */

void progress_files(const char *what, unsigned long long nr)
{
	static struct timespec last;
	struct timespec now;

	if (!opt.progress || nr % 64)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (now.tv_sec == last.tv_sec && now.tv_nsec - last.tv_nsec < 200000000)
		return;
	last = now;
	fprintf(stderr, "\r\033[K%llu directories, %llu done: %.200s: %s "
		"%llu files", sum.dirs, sum.done, path, what, nr);
	fflush(stderr);
}

void report_arranged(const struct arrange_result *r)
{
	sum.done++;
	sum.entries += r->moved;
	if (opt.json) {
		json_begin(opt.dry_run ? "would-arrange" : "arranged");
		printf(", \"files\": %llu, \"scattered\": %llu, \"moved\": "
		       "%llu, \"bytes\": %llu, \"busy\": %llu, "
		       "\"no_place\": %llu, \"reads_before\": %llu, "
		       "\"reads_after\": %llu", r->files, r->wanted, r->moved,
		       r->bytes, r->busy, r->scattered, r->before, r->after);
		json_end();
		return;
	}
	if (opt.quiet)
		return;
	progress_clear();
	if (opt.dry_run) {
		printf("%s: would move %llu of %llu files; in the order of the "
		       "inodes they take %llu reads now\n", path, r->wanted,
		       r->files, r->before);
		return;
	}
	printf("%s: moved %llu of %llu files, %llu KiB; reading them in "
	       "inode order took %llu reads before and %llu now", path,
	       r->moved, r->files, r->bytes / 1024, r->before, r->after);
	if (r->busy)
		printf("; %llu were in use or changed", r->busy);
	if (r->scattered)
		printf("; %llu found no free space in one piece",
		       r->scattered);
	putchar('\n');
}

/* --- pack --- */

void progress_blocks(unsigned int freed)
{
	if (!opt.progress)
		return;
	fprintf(stderr, "\r\033[K%llu directories, %llu done: %.200s: %u blocks "
		"freed", sum.dirs, sum.done, path, freed);
	fflush(stderr);
}

void report_packed(const struct pack_result *r)
{
	sum.done++;
	sum.entries += r->dir_before - r->dir_after;
	if (opt.json) {
		json_begin(opt.dry_run ? "would-pack" : "packed");
		printf(", \"dir_blocks_before\": %u, \"dir_blocks\": %u, "
		       "\"tree_blocks_before\": %u, \"tree_blocks\": %u, "
		       "\"block_size\": %u", r->dir_before, r->dir_after,
		       r->tree_before, r->tree_after, r->block_size);
		json_end();
		return;
	}
	if (opt.quiet)
		return;
	progress_clear();
	printf("%s: %s %u directory blocks and %u tree blocks, %s %u and %u "
	       "after packing\n", path, opt.dry_run ? "has" : "had",
	       r->dir_before, r->tree_before,
	       opt.dry_run ? "would have about" : "has", r->dir_after,
	       r->tree_after);
}

/* Reports that the command cannot work on the current argument. */
void report_lacking(int err)
{
	progress_clear();
	sum.lacking++;
	if (opt.op == OP_ARRANGE && err == EOPNOTSUPP)
		fprintf(stderr, "e4itree: %s: files can be moved only on ext4 "
			"with a journal and /sys mounted, not with "
			"data=journal or bigalloc\n", path);
	else if (opt.op == OP_ARRANGE)
		fprintf(stderr, "e4itree: %s: not on ext4\n", path);
	else if (opt.op == EXT4_ITREE_OP_PACK)
		fprintf(stderr, "e4itree: %s: not on ext4, or this kernel "
			"cannot pack directories; e2fsck -fD packs those of "
			"an unmounted file system\n", path);
	else if (err == EOPNOTSUPP)
		fprintf(stderr, "e4itree: %s: its file system lacks the itree "
			"feature; run tune2fs -O itree on its device\n",
			path);
	else
		fprintf(stderr, "e4itree: %s: not on ext4, or this kernel "
			"does not know itrees\n", path);
	if (opt.json) {
		json_begin("lacking");
		printf(", \"errno\": %d", err);
		json_end();
	}
}

/* Prints the totals. */
void report_summary(void)
{
	progress_clear();
	if (opt.json) {
		printf("{\"summary\": true, \"op\": \"%s\", \"directories\": "
		       "%llu, \"done\": %llu, \"skipped\": %llu, \"failed\": "
		       "%llu, \"lacking\": %llu, \"entries\": %llu, "
		       "\"cancelled\": %s}\n", opt.op_name, sum.dirs, sum.done,
		       sum.skipped, sum.failed, sum.lacking, sum.entries,
		       cancelled ? "true" : "false");
		return;
	}
	if (cancelled)
		fprintf(stderr, opt.op == OP_ARRANGE ?
			"e4itree: cancelled; files that were moved stay where "
			"they are now\n" : opt.op == EXT4_ITREE_OP_PACK ?
			"e4itree: cancelled; blocks that were freed stay "
			"free\n" :
			"e4itree: cancelled; a build under way has been "
			"undone; trees of earlier directories stay\n");
	if (opt.quiet || (!opt.recursive && !cancelled))
		return;
	printf("%llu directories: %llu %s, %llu skipped, %llu failed; "
	       "%llu %s\n", sum.dirs, sum.done, opt.op ==
	       EXT4_ITREE_OP_BUILD ? "built" : opt.op == EXT4_ITREE_OP_DROP ?
	       "dropped" : opt.op == EXT4_ITREE_OP_CHECK ? "exact" :
	       opt.op == OP_ARRANGE ? opt.dry_run ? "to arrange" : "arranged" :
	       opt.op == EXT4_ITREE_OP_PACK ? opt.dry_run ? "to pack" :
	       "packed" : "with a tree", sum.skipped, sum.failed, sum.entries,
	       opt.op == EXT4_ITREE_OP_PACK ? "blocks freed" : "entries");
}
