// SPDX-License-Identifier: GPL-2.0-only
/*
 * bigdir: linear directories without end, and ext2fs_htree_build() on them.
 *
 * Adding names with ext2fs_link() takes time in the square of their number,
 * so the blocks of the directory are written whole here.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <et/com_err.h>
#include <ext2fs/ext2_fs.h>
#include <ext2fs/ext2fs.h>

#include "ext2fs/ext2fs_htree.h"

#define MAX_NAME 255

static ext2_filsys fs;

static void check(errcode_t err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "bigdir: %s: %s\n", what, error_message(err));
	exit(2);
}

static ext2_ino_t new_file(void)
{
	struct ext2_inode inode;
	ext2_ino_t ino;

	check(ext2fs_new_inode(fs, EXT2_ROOT_INO, 0100644, NULL, &ino),
	      "no inode left");
	memset(&inode, 0, sizeof(inode));
	inode.i_mode = LINUX_S_IFREG | 0644;
	/* Not empty: e2fsck may throw such files away. */
	inode.i_size = 1;
	check(ext2fs_write_new_inode(fs, ino, &inode), "writing an inode");
	ext2fs_inode_alloc_stats2(fs, ino, 1, 0);
	return ino;
}

static void one_more_link(ext2_ino_t ino)
{
	struct ext2_inode inode;

	check(ext2fs_read_inode(fs, ino, &inode), "reading an inode");
	inode.i_links_count++;
	check(ext2fs_write_inode(fs, ino, &inode), "writing an inode");
}

/* The blocks of the directory, the first one with its dots */
static char *blocks;
static size_t num_blocks;

static char *add_block(ext2_ino_t dir, ext2_ino_t parent)
{
	char *block;

	check(ext2fs_resize_mem(0, (num_blocks + 1) * fs->blocksize, &blocks),
	      "memory");
	check(ext2fs_new_dir_block(fs, dir, parent, &block), "memory");
	memcpy(blocks + num_blocks * fs->blocksize, block, fs->blocksize);
	ext2fs_free_mem(&block);
	return blocks + num_blocks++ * fs->blocksize;
}

/* Takes the room from the last entry of the block. */
static int put_name(char *block, ext2_ino_t ino, const char *name, int len)
{
	struct ext2_dir_entry *entry;
	unsigned int rec_len = 0, used, end = fs->blocksize;

	if (ext2fs_has_feature_metadata_csum(fs->super))
		end -= sizeof(struct ext2_dir_entry_tail);
	for (char *p = block; p < block + end; p += rec_len) {
		entry = (struct ext2_dir_entry *)p;
		check(ext2fs_get_rec_len(fs, entry, &rec_len), "own block");
	}
	used = entry->inode
		       ? ext2fs_dir_rec_len(ext2fs_dirent_name_len(entry), 0)
		       : 0;
	if (rec_len < used + ext2fs_dir_rec_len(len, 0))
		return 0;
	if (used)
		check(ext2fs_set_rec_len(fs, used, entry), "own entry");
	entry = (struct ext2_dir_entry *)((char *)entry + used);
	entry->inode = ino;
	check(ext2fs_set_rec_len(fs, rec_len - used, entry), "own entry");
	ext2fs_dirent_set_name_len(entry, len);
	ext2fs_dirent_set_file_type(entry, EXT2_FT_REG_FILE);
	memcpy(entry->name, name, len);
	return 1;
}

/* The names on standard input; @links of them are one file. */
static void fill(const char *path, int links)
{
	struct ext2_inode inode;
	char line[MAX_NAME + 2], *block;
	ext2_ino_t dir, ino = 0;
	blk64_t pblk;
	size_t count = 0;

	check(ext2fs_mkdir(fs, EXT2_ROOT_INO, 0, path), "mkdir");
	check(ext2fs_lookup(fs, EXT2_ROOT_INO, path, strlen(path), NULL, &dir),
	      "lookup");
	block = add_block(dir, EXT2_ROOT_INO);
	while (fgets(line, sizeof(line), stdin)) {
		int len = strcspn(line, "\n");

		if (count++ % links == 0)
			ino = new_file();
		one_more_link(ino);
		if (!put_name(block, ino, line, len)) {
			block = add_block(0, 0);
			if (!put_name(block, ino, line, len))
				check(EXT2_ET_DIR_NO_SPACE, line);
		}
	}
	check(ext2fs_read_inode(fs, dir, &inode), "reading the directory");
	check(ext2fs_fallocate(fs, EXT2_FALLOCATE_FORCE_INIT, dir, &inode,
			       ~0ULL, 0, num_blocks),
	      "allocating the directory");
	check(ext2fs_inode_size_set(fs, &inode,
				    (ext2_off64_t)num_blocks * fs->blocksize),
	      "size");
	check(ext2fs_write_inode(fs, dir, &inode), "writing the directory");
	for (size_t i = 0; i < num_blocks; i++) {
		check(ext2fs_bmap2(fs, dir, &inode, NULL, 0, i, NULL, &pblk),
		      "map of the directory");
		check(ext2fs_write_dir_block4(
			      fs, pblk, blocks + i * fs->blocksize, 0, dir),
		      "writing the directory");
	}
	printf("%zu blocks\n", num_blocks);
}

/*
 * Leaves about so many blocks free: the rest goes into a file.  If they are
 * to be scattered, it takes all and then gives back every second block.
 */
static void eat(blk64_t leave_free, int scattered)
{
	blk64_t leave = scattered ? 0 : leave_free;
	blk64_t have = ext2fs_free_blocks_count(fs->super), at = 0, step, blk;
	ext2_ino_t ino = new_file();
	struct ext2_inode inode;

	check(ext2fs_link(fs, EXT2_ROOT_INO, "ballast", ino, EXT2_FT_REG_FILE),
	      "linking the ballast");
	one_more_link(ino);
	check(ext2fs_read_inode(fs, ino, &inode), "reading the ballast");
	inode.i_flags |= EXT4_EXTENTS_FL;
	check(ext2fs_inode_size_set(fs, &inode,
				    (ext2_off64_t)have * fs->blocksize),
	      "size of the ballast");
	/* The map of the file takes blocks, too: the last ones singly. */
	for (step = have; step > 64; step /= 2) {
		while (have >= leave + step + 64) {
			check(ext2fs_fallocate(fs, EXT2_FALLOCATE_FORCE_INIT,
					       ino, &inode, ~0ULL, at, step),
			      "filling up");
			at += step;
			have = ext2fs_free_blocks_count(fs->super);
		}
	}
	check(ext2fs_write_inode(fs, ino, &inode), "writing the ballast");
	while (ext2fs_free_blocks_count(fs->super) > leave)
		if (ext2fs_bmap2(fs, ino, &inode, NULL, BMAP_ALLOC, at++, NULL,
				 &blk))
			break;
	for (; scattered && at > 2; at -= 2) {
		if (ext2fs_free_blocks_count(fs->super) >= leave_free)
			break;
		check(ext2fs_punch(fs, ino, &inode, NULL, at - 2, at - 2),
		      "giving back");
	}
	check(ext2fs_write_inode(fs, ino, &inode), "writing the ballast");
	printf("%llu blocks free\n",
	       (unsigned long long)ext2fs_free_blocks_count(fs->super));
}

struct pair {
	uint32_t hash;
	uint32_t number;
};

static int by_hash(const void *x, const void *y)
{
	const struct pair *a = x, *b = y;

	return a->hash < b->hash ? -1 : a->hash > b->hash;
}

/* Of @count names, those that share their hash with another */
static void collide(size_t count)
{
	int version = fs->super->s_def_hash_version;
	struct pair *all = calloc(count, sizeof(*all));
	char name[40];

	if (!all)
		check(EXT2_ET_NO_MEMORY, "pairs");
	if (fs->super->s_flags & EXT2_FLAGS_UNSIGNED_HASH)
		version += EXT2_HASH_LEGACY_UNSIGNED;
	for (size_t i = 0; i < count; i++) {
		int len = sprintf(name, "c%07zx", i);

		all[i].number = i;
		check(ext2fs_dirhash2(version, name, len, NULL, 0,
				      fs->super->s_hash_seed, &all[i].hash,
				      NULL),
		      "hash");
	}
	qsort(all, count, sizeof(*all), by_hash);
	for (size_t i = 0; i < count; i++)
		if ((i && all[i - 1].hash == all[i].hash) ||
		    (i + 1 < count && all[i + 1].hash == all[i].hash))
			printf("c%07x\n", all[i].number);
	free(all);
}

/* Returns 1 if there was an error to report; the image is kept. */
static int htree(const char *path)
{
	errcode_t err;
	ext2_ino_t dir;

	check(ext2fs_namei(fs, EXT2_ROOT_INO, EXT2_ROOT_INO, path, &dir), path);
	err = ext2fs_htree_build(fs, dir);
	printf("%s\n", err ? error_message(err) : "done");
	return err != 0;
}

int main(int argc, char **argv)
{
	int ret = 0;

	initialize_ext2_error_table();
	if (argc < 4) {
		fprintf(stderr,
			"usage: bigdir fill IMAGE NAME [LINKS]\n"
			"       bigdir eat IMAGE BLOCKS-TO-LEAVE [scattered]\n"
			"       bigdir collide IMAGE COUNT\n"
			"       bigdir htree IMAGE PATH\n");
		return 2;
	}
	check(ext2fs_open(argv[2], EXT2_FLAG_RW | EXT2_FLAG_64BITS, 0, 0,
			  unix_io_manager, &fs),
	      argv[2]);
	check(ext2fs_read_bitmaps(fs), "bitmaps");
	if (!strcmp(argv[1], "fill"))
		fill(argv[3], argc > 4 ? atoi(argv[4]) : 1);
	else if (!strcmp(argv[1], "eat"))
		eat(strtoull(argv[3], NULL, 0), argc > 4);
	else if (!strcmp(argv[1], "collide"))
		collide(strtoull(argv[3], NULL, 0));
	else if (!strcmp(argv[1], "htree"))
		ret = htree(argv[3]);
	else
		check(EXT2_ET_INVALID_ARGUMENT, argv[1]);
	check(ext2fs_close_free(&fs), "closing");
	return ret;
}
