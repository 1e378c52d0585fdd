// SPDX-License-Identifier: GPL-2.0-only
/*
 * do_itree.c --- look at inode-ordered directory indexes, and break them
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ctype.h>
#ifdef HAVE_GETOPT_H
#include <getopt.h>
#else
extern int optind;
extern char *optarg;
#endif

#include "debugfs.h"
#include "ext2fs/ext2fs_itree.h"
#include "ext2fs/itree_format.h"

static void say_error(const char *cmd, errcode_t errcode,
		      const struct ext2fs_itree_fault *fault)
{
	if (errcode == EXT2_ET_ITREE_CORRUPT && fault->why)
		com_err(cmd, errcode, "(logical block %u: %s)", fault->lblk,
			fault->why);
	else
		com_err(cmd, errcode, "while reading the itree");
}

static ext2fs_itree open_dir(const char *cmd, ext2_ino_t dir)
{
	struct ext2fs_itree_fault fault;
	ext2fs_itree	tree;
	errcode_t	errcode;

	errcode = ext2fs_itree_open(current_fs, dir, &fault, &tree);
	if (!errcode)
		return tree;
	say_error(cmd, errcode, &fault);
	return NULL;
}

static void print_key(FILE *f, __u64 key)
{
	fprintf(f, "%u 0x%08x", EXT2FS_ITREE_KEY_INO(key),
		EXT2FS_ITREE_KEY_HASH(key));
}

/*
 * itree_dump
 */

struct dump {
	FILE	*f;
	int	entries;
};

/* Stops at the end of the block, which a broken node's count may exceed. */
static void dump_entries(struct dump *d, const struct ext2fs_itree_node *node)
{
	const char	*pos = (const char *) node->data +
				sizeof(struct itree_head);
	const char	*end = (const char *) node->data +
				current_fs->blocksize - sizeof(struct itree_tail);
	size_t		size = node->level ? sizeof(struct itree_index_entry) :
					     sizeof(struct itree_leaf_entry);
	struct itree_index_entry ent;
	unsigned int	i;

	if (node->lblk == ITREE_SEG_START)
		pos += sizeof(struct itree_root_info);
	for (i = 0; i < node->count && pos + size <= end; i++, pos += size) {
		memcpy(&ent, pos, size);
		fprintf(d->f, "\tEntry #%u: %u 0x%08x", i,
			ext2fs_le32_to_cpu(ent.i_ino),
			ext2fs_le32_to_cpu(ent.i_hash));
		if (node->level)
			fprintf(d->f, " -> block %u",
				ext2fs_le32_to_cpu(ent.i_child));
		fputc('\n', d->f);
	}
}

static int dump_node(const struct ext2fs_itree_node *node, void *priv)
{
	struct dump	*d = priv;
	struct itree_root_info info;

	fprintf(d->f, "Block %u (+%u), physical %llu: ", node->lblk,
		node->lblk - ITREE_SEG_START,
		(unsigned long long) node->pblk);
	if (node->is_free)
		fprintf(d->f, "free, next %u", node->next);
	else if (node->in_use)
		fprintf(d->f, "%s, level %u, %u of %u entries",
			node->lblk == ITREE_SEG_START ? "root" :
			node->level ? "index" : "leaf",
			node->level, node->count, node->limit);
	else
		fprintf(d->f, "not a node, magic 0x%08x", node->magic);
	if (node->csum != node->csum_wanted)
		fprintf(d->f, ", checksum 0x%08x SHOULD BE 0x%08x",
			node->csum, node->csum_wanted);
	else
		fprintf(d->f, ", checksum 0x%08x", node->csum);
	fputc('\n', d->f);
	if (!node->in_use)
		return 0;
	if (node->lblk == ITREE_SEG_START) {
		memcpy(&info, (const char *) node->data +
		       sizeof(struct itree_head), sizeof(info));
		fprintf(d->f, "\tKeys %llu, blocks %u, %u free from block %u, "
			"hash version %u\n",
			(unsigned long long) ext2fs_le64_to_cpu(info.r_keys),
			ext2fs_le32_to_cpu(info.r_blocks),
			ext2fs_le32_to_cpu(info.r_free_count),
			ext2fs_le32_to_cpu(info.r_free_head),
			info.r_hash_version);
	}
	if (d->entries)
		dump_entries(d, node);
	return 0;
}

static int dump_key(__u64 key, void *priv)
{
	struct dump	*d = priv;

	print_key(d->f, key);
	fputc('\n', d->f);
	return 0;
}

void do_itree_dump(int argc, ss_argv_t argv,
		   int sci_idx EXT2FS_ATTR((unused)),
		   void *infop EXT2FS_ATTR((unused)))
{
	ext2_ino_t	dir;
	errcode_t	errcode;
	ext2fs_itree	tree;
	struct dump	d;
	int		keys = 0, nodes = 0, c;

	reset_getopt();
	while ((c = getopt(argc, argv, "kn")) != EOF) {
		if (c == 'k')
			keys = 1;
		else if (c == 'n')
			nodes = 1;
		else
			goto usage;
	}
	if (optind != argc - 1 || (keys && nodes))
		goto usage;
	if (check_fs_open(argv[0]))
		return;
	dir = string_to_inode(argv[optind]);
	if (!dir)
		return;

	d.f = open_pager();
	d.entries = !nodes;
	if (keys) {
		tree = open_dir(argv[0], dir);
		if (tree) {
			errcode = ext2fs_itree_iterate(tree, 0, dump_key, &d);
			if (errcode)
				com_err(argv[0], errcode,
					"while walking the itree");
			ext2fs_itree_close(tree);
		}
	} else {
		errcode = ext2fs_itree_walk_nodes(current_fs, dir, dump_node,
						  &d);
		if (errcode)
			com_err(argv[0], errcode, "while dumping the itree");
	}
	close_pager(d.f);
	return;
usage:
	com_err(0, 0, "Usage: itree_dump [-k|-n] <dir>");
}

/*
 * itree_stat, itree_verify
 */

static void print_report(const struct ext2fs_itree_info *info,
			 const struct ext2fs_itree_report *report)
{
	printf("Keys: %llu\n", (unsigned long long) report->keys);
	printf("Depth: %u\n", report->depth);
	printf("Blocks: %u\n", info->blocks);
	printf("Nodes: %u\n", report->nodes);
	printf("Leaves: %u\n", report->leaves);
	printf("Free nodes: %u\n", report->free_count);
	printf("Leaf fill: %.1f%%\n", report->leaf_slots ?
	       100.0 * report->keys / report->leaf_slots : 0.0);
	printf("Hash version: %u\n", info->hash_version);
	printf("Content hash: 0x%016llx\n", (unsigned long long) report->hash);
	if (report->keys) {
		printf("First key: ");
		print_key(stdout, report->first);
		printf("\nLast key: ");
		print_key(stdout, report->last);
		fputc('\n', stdout);
	}
}

/* Returns 0 if the tree is sound. */
static int verify_dir(const char *cmd, ext2_ino_t dir, int print)
{
	struct ext2fs_itree_report report;
	struct ext2fs_itree_fault fault;
	struct ext2fs_itree_info info;
	ext2fs_itree	tree = open_dir(cmd, dir);
	errcode_t	errcode;
	__u64		keys, hash;

	if (!tree)
		return 1;
	ext2fs_itree_get_info(tree, &info);
	errcode = ext2fs_itree_verify(tree, &report, &fault);
	ext2fs_itree_close(tree);
	if (print)
		print_report(&info, &report);
	if (errcode) {
		say_error(cmd, errcode, &fault);
		return 1;
	}
	if (print)
		return 0;

	errcode = ext2fs_itree_sum_dir(current_fs, dir, &keys, &hash);
	if (errcode) {
		com_err(cmd, errcode, "while reading the directory");
		return 1;
	}
	if (keys != report.keys || hash != report.hash) {
		com_err(cmd, 0, "itree has %llu keys (0x%016llx), "
			"directory has %llu (0x%016llx)",
			(unsigned long long) report.keys,
			(unsigned long long) report.hash,
			(unsigned long long) keys, (unsigned long long) hash);
		return 1;
	}
	return 0;
}

void do_itree_stat(int argc, ss_argv_t argv,
		   int sci_idx EXT2FS_ATTR((unused)),
		   void *infop EXT2FS_ATTR((unused)))
{
	ext2_ino_t	dir;

	if (common_inode_args_process(argc, argv, &dir, 0))
		return;
	verify_dir(argv[0], dir, 1);
}

void do_itree_verify(int argc, ss_argv_t argv,
		     int sci_idx EXT2FS_ATTR((unused)),
		     void *infop EXT2FS_ATTR((unused)))
{
	ext2_ino_t	dir;

	if (common_inode_args_process(argc, argv, &dir, 0))
		return;
	if (!verify_dir(argv[0], dir, 0))
		printf("itree of directory %u: clean\n", dir);
}

/*
 * itree_lookup
 */

static int lookup_key(__u64 key, void *priv)
{
	ext2_ino_t	*ino = priv;

	if (EXT2FS_ITREE_KEY_INO(key) != *ino)
		return EXT2FS_ITREE_ABORT;
	print_key(stdout, key);
	fputc('\n', stdout);
	return 0;
}

void do_itree_lookup(int argc, ss_argv_t argv,
		     int sci_idx EXT2FS_ATTR((unused)),
		     void *infop EXT2FS_ATTR((unused)))
{
	ext2_ino_t	dir, ino;
	ext2fs_itree	tree;
	errcode_t	errcode;
	int		err;

	if (common_args_process(argc, argv, 3, 3, argv[0], "<dir> <inode>", 0))
		return;
	dir = string_to_inode(argv[1]);
	if (!dir)
		return;
	ino = parse_ulong(argv[2], argv[0], "inode number", &err);
	if (err)
		return;
	tree = open_dir(argv[0], dir);
	if (!tree)
		return;
	errcode = ext2fs_itree_iterate(tree, (__u64) ino << 32, lookup_key,
				       &ino);
	if (errcode)
		com_err(argv[0], errcode, "while walking the itree");
	ext2fs_itree_close(tree);
}

/*
 * itree_build, itree_drop, itree_poke
 */

void do_itree_build(int argc, ss_argv_t argv,
		    int sci_idx EXT2FS_ATTR((unused)),
		    void *infop EXT2FS_ATTR((unused)))
{
	ext2_ino_t	dir;
	errcode_t	errcode;

	if (common_inode_args_process(argc, argv, &dir,
				      CHECK_FS_RW | CHECK_FS_BITMAPS))
		return;
	errcode = ext2fs_itree_build(current_fs, dir);
	if (errcode)
		com_err(argv[0], errcode, "while building the itree");
}

void do_itree_drop(int argc, ss_argv_t argv,
		   int sci_idx EXT2FS_ATTR((unused)),
		   void *infop EXT2FS_ATTR((unused)))
{
	ext2_ino_t	dir;
	errcode_t	errcode;

	if (common_inode_args_process(argc, argv, &dir,
				      CHECK_FS_RW | CHECK_FS_BITMAPS))
		return;
	errcode = ext2fs_itree_drop(current_fs, dir);
	if (errcode)
		com_err(argv[0], errcode, "while dropping the itree");
}

struct poke {
	ext2_ino_t	dir;
	__u32		lblk;
	unsigned int	offset;
	const char	*hex;
	int		keep_csum;
	errcode_t	errcode;
	int		done;
};

static int poke_node(const struct ext2fs_itree_node *node, void *priv)
{
	struct poke	*p = priv;
	unsigned char	*buf = (unsigned char *) node->data;
	const char	*hex = p->hex;
	unsigned int	pos = p->offset, byte;

	if (node->lblk != p->lblk)
		return 0;
	for (; hex[0]; hex += 2, pos++) {
		if (pos >= current_fs->blocksize ||
		    !isxdigit(hex[0]) || !isxdigit(hex[1]) ||
		    sscanf(hex, "%2x", &byte) != 1) {
			p->errcode = EXT2_ET_INVALID_ARGUMENT;
			return EXT2FS_ITREE_ABORT;
		}
		buf[pos] = byte;
	}
	if (!p->keep_csum)
		p->errcode = ext2fs_itree_block_csum_set(current_fs, p->dir,
							 node->lblk, buf);
	if (!p->errcode)
		p->errcode = io_channel_write_blk64(current_fs->io, node->pblk,
						    1, buf);
	p->done = 1;
	return EXT2FS_ITREE_ABORT;
}

void do_itree_poke(int argc, ss_argv_t argv,
		   int sci_idx EXT2FS_ATTR((unused)),
		   void *infop EXT2FS_ATTR((unused)))
{
	struct poke	p;
	errcode_t	errcode;
	int		c, err;

	memset(&p, 0, sizeof(p));
	reset_getopt();
	while ((c = getopt(argc, argv, "c")) != EOF) {
		if (c != 'c')
			goto usage;
		p.keep_csum = 1;
	}
	if (argc - optind != 4)
		goto usage;
	if (check_fs_open(argv[0]) || check_fs_read_write(argv[0]))
		return;
	p.dir = string_to_inode(argv[optind]);
	if (!p.dir)
		return;
	p.lblk = ITREE_SEG_START +
		parse_ulong(argv[optind + 1], argv[0], "block", &err);
	if (err)
		return;
	p.offset = parse_ulong(argv[optind + 2], argv[0], "offset", &err);
	if (err)
		return;
	p.hex = argv[optind + 3];
	errcode = ext2fs_itree_walk_nodes(current_fs, p.dir, poke_node, &p);
	if (!errcode)
		errcode = p.errcode;
	if (!errcode && !p.done)
		errcode = EXT2_ET_BAD_BLOCK_NUM;
	if (errcode)
		com_err(argv[0], errcode, "while changing an itree block");
	return;
usage:
	com_err(0, 0, "Usage: itree_poke [-c] <dir> <block> <offset> <hex bytes>");
}
