// SPDX-License-Identifier: GPL-2.0-only
/*
 * volume: changes a volume through libext2fs, one line of standard input at a
 * time, and shows what a volume holds.
 *
 * An operation either succeeds or leaves the volume as it was; the answer to
 * each line is "ok ..." or "error: ...".
 */
#include <ctype.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <et/com_err.h>
#include <ext2fs/ext2_fs.h>
#include <ext2fs/ext2fs.h>
#include <ext2fs/ext3_extents.h>

#include "ext2fs/ext2fs_htree.h"
#include "ext2fs/ext2fs_itree.h"

#define MAX_LINE 2048
#define MAX_WORDS 8
#define BALLAST "ballast"
#define ENTRIES_AT sizeof(struct ext3_extent_header)

static ext2_filsys fs;

static void die(errcode_t err, const char *what)
{
	if (!err)
		return;
	fprintf(stderr, "volume: %s: %s\n", what, error_message(err));
	exit(2);
}

static void *resized(void *old, size_t size)
{
	void *data = realloc(old, size);

	if (!data)
		die(EXT2_ET_NO_MEMORY, "memory");
	return data;
}

/* --- random numbers, the same on every machine --- */

static uint64_t state;

static uint32_t below(uint32_t limit)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return limit ? (state >> 33) % limit : 0;
}

/* --- names --- */

/* Splits @path into its directory, which must exist, and the last name. */
static errcode_t parent_of(char *path, ext2_ino_t *dir, char **name)
{
	char *slash = strrchr(path, '/');
	errcode_t err;

	if (!slash || !slash[1])
		return EXT2_ET_INVALID_ARGUMENT;
	*slash = 0;
	err = ext2fs_namei(fs, EXT2_ROOT_INO, EXT2_ROOT_INO, *path ? path : "/",
			   dir);
	*slash = '/';
	*name = slash + 1;
	return err;
}

static errcode_t at(const char *path, ext2_ino_t *ino)
{
	return ext2fs_namei(fs, EXT2_ROOT_INO, EXT2_ROOT_INO, path, ino);
}

static int type_of(const struct ext2_inode *inode)
{
	if (LINUX_S_ISDIR(inode->i_mode))
		return EXT2_FT_DIR;
	if (LINUX_S_ISLNK(inode->i_mode))
		return EXT2_FT_SYMLINK;
	return EXT2_FT_REG_FILE;
}

static errcode_t add_name(ext2_ino_t dir, const char *name, ext2_ino_t ino,
			  int type)
{
	errcode_t err = ext2fs_link(fs, dir, name, ino, type);

	if (err != EXT2_ET_DIR_NO_SPACE)
		return err;
	err = ext2fs_expand_dir(fs, dir);
	return err ? err : ext2fs_link(fs, dir, name, ino, type);
}

static errcode_t count_links(ext2_ino_t ino, int change)
{
	struct ext2_inode inode;
	errcode_t err = ext2fs_read_inode(fs, ino, &inode);

	if (err)
		return err;
	/* A directory of too many subdirectories has no count. */
	if (LINUX_S_ISDIR(inode.i_mode) && inode.i_links_count == 1)
		return 0;
	inode.i_links_count += change;
	return ext2fs_write_inode(fs, ino, &inode);
}

static errcode_t free_inode(ext2_ino_t ino)
{
	struct ext2_inode_large inode;
	struct ext2_inode *small = EXT2_INODE(&inode);
	int is_dir;
	errcode_t err;

	memset(&inode, 0, sizeof(inode));
	err = ext2fs_read_inode_full(fs, ino, small, sizeof(inode));
	if (err)
		return err;
	is_dir = LINUX_S_ISDIR(inode.i_mode);
	inode.i_links_count = 0;
	ext2fs_set_dtime(fs, small);
	err = ext2fs_write_inode_full(fs, ino, small, sizeof(inode));
	if (err)
		return err;
	err = ext2fs_free_ext_attr(fs, ino, &inode);
	if (!err && ext2fs_inode_has_valid_blocks2(fs, small))
		err = ext2fs_punch(fs, ino, small, NULL, 0, ~0ULL);
	if (err)
		return err;
	ext2fs_inode_alloc_stats2(fs, ino, -1, is_dir);
	return 0;
}

/* One name less for @ino */
static errcode_t forget_name(ext2_ino_t ino)
{
	struct ext2_inode inode;
	errcode_t err = ext2fs_read_inode(fs, ino, &inode);

	if (err)
		return err;
	if (inode.i_links_count > 1)
		return count_links(ino, -1);
	return free_inode(ino);
}

/* --- operations --- */

static errcode_t op_file(char **arg)
{
	struct ext2_inode inode;
	ext2_ino_t dir, ino;
	ext2_file_t file;
	unsigned int size = atoi(arg[1]), done = 0;
	char *name, *data;
	errcode_t err = parent_of(arg[0], &dir, &name);
	int is_inline = ext2fs_has_feature_inline_data(fs->super);

	if (err)
		return err;
	err = ext2fs_new_inode(fs, dir, 0100644, NULL, &ino);
	if (err)
		return err;
	memset(&inode, 0, sizeof(inode));
	inode.i_mode = LINUX_S_IFREG | 0644;
	inode.i_links_count = 1;
	if (is_inline)
		inode.i_flags |= EXT4_INLINE_DATA_FL;
	else
		inode.i_flags |= EXT4_EXTENTS_FL;
	err = ext2fs_write_new_inode(fs, ino, &inode);
	if (err)
		return err;
	ext2fs_inode_alloc_stats2(fs, ino, 1, 0);
	if (is_inline) {
		err = ext2fs_inline_data_init(fs, ino);
	} else {
		ext2_extent_handle_t handle;

		/* Opening it makes an empty map. */
		err = ext2fs_extent_open2(fs, ino, &inode, &handle);
		if (!err) {
			ext2fs_extent_free(handle);
			err = ext2fs_write_inode(fs, ino, &inode);
		}
	}
	if (!err && size) {
		data = resized(NULL, size);
		for (unsigned int i = 0; i < size; i++)
			data[i] = name[i % strlen(name)];
		err = ext2fs_file_open(fs, ino, EXT2_FILE_WRITE, &file);
		if (!err) {
			errcode_t closed;

			err = ext2fs_file_write(file, data, size, &done);
			closed = ext2fs_file_close(file);
			err = err ? err : closed;
		}
		free(data);
	}
	if (!err)
		err = add_name(dir, name, ino, EXT2_FT_REG_FILE);
	if (err)
		die(free_inode(ino), "freeing a file that got no name");
	return err;
}

static errcode_t op_link(char **arg)
{
	struct ext2_inode inode;
	ext2_ino_t ino, dir;
	char *name;
	errcode_t err = at(arg[0], &ino);

	if (!err)
		err = parent_of(arg[1], &dir, &name);
	if (!err)
		err = ext2fs_read_inode(fs, ino, &inode);
	if (!err)
		err = add_name(dir, name, ino, type_of(&inode));
	return err ? err : count_links(ino, 1);
}

static errcode_t op_unlink(char **arg)
{
	ext2_ino_t dir, ino;
	char *name;
	errcode_t err = parent_of(arg[0], &dir, &name);

	if (!err)
		err = ext2fs_lookup(fs, dir, name, strlen(name), NULL, &ino);
	if (!err)
		err = ext2fs_unlink(fs, dir, name, ino, 0);
	return err ? err : forget_name(ino);
}

static errcode_t op_mkdir(char **arg)
{
	ext2_ino_t dir, ino;
	char *name;
	errcode_t err = parent_of(arg[0], &dir, &name);

	if (err)
		return err;
	err = ext2fs_new_inode(fs, dir, 040755, NULL, &ino);
	if (!err)
		err = ext2fs_mkdir(fs, dir, ino, NULL);
	if (err)
		return err;
	/* ext2fs_mkdir() counts the link of the parent, name or not. */
	err = add_name(dir, name, ino, EXT2_FT_DIR);
	if (err) {
		die(free_inode(ino), "freeing a directory that got no name");
		die(count_links(dir, -1), "links of the parent");
	}
	return err;
}

static errcode_t op_rmdir(char **arg)
{
	ext2_ino_t dir, ino;
	char *name;
	errcode_t err = parent_of(arg[0], &dir, &name);

	if (!err)
		err = ext2fs_lookup(fs, dir, name, strlen(name), NULL, &ino);
	if (!err)
		err = ext2fs_unlink(fs, dir, name, ino, 0);
	if (!err)
		err = free_inode(ino);
	return err ? err : count_links(dir, -1);
}

static errcode_t op_symlink(char **arg)
{
	ext2_ino_t dir, ino;
	char *name;
	errcode_t err = parent_of(arg[0], &dir, &name);

	if (err)
		return err;
	err = ext2fs_new_inode(fs, dir, 0120777, NULL, &ino);
	if (!err)
		err = ext2fs_symlink(fs, dir, ino, NULL, arg[1]);
	if (err)
		return err;
	err = add_name(dir, name, ino, EXT2_FT_SYMLINK);
	if (err)
		die(free_inode(ino), "freeing a symlink that got no name");
	return err;
}

static int new_parent(struct ext2_dir_entry *entry, int offset, int blocksize,
		      char *buf, void *priv)
{
	(void)offset, (void)blocksize, (void)buf;
	if (ext2fs_dirent_name_len(entry) != 2 || memcmp(entry->name, "..", 2))
		return 0;
	entry->inode = *(ext2_ino_t *)priv;
	return DIRENT_ABORT | DIRENT_CHANGED;
}

/* Over an existing name too, if it is not a directory's */
static errcode_t op_rename(char **arg)
{
	struct ext2_inode inode;
	ext2_ino_t from, to, ino, old;
	char *name, *new_name;
	errcode_t err = parent_of(arg[0], &from, &name);

	if (!err)
		err = parent_of(arg[1], &to, &new_name);
	if (!err)
		err = ext2fs_lookup(fs, from, name, strlen(name), NULL, &ino);
	if (!err)
		err = ext2fs_read_inode(fs, ino, &inode);
	if (err)
		return err;
	err = ext2fs_lookup(fs, to, new_name, strlen(new_name), NULL, &old);
	if (!err) {
		err = ext2fs_unlink(fs, to, new_name, old, 0);
		/* There is room now. */
		if (!err)
			err = ext2fs_link(fs, to, new_name, ino,
					  type_of(&inode));
		die(err, "renaming over a name");
		err = forget_name(old);
	} else if (err == EXT2_ET_FILE_NOT_FOUND) {
		err = add_name(to, new_name, ino, type_of(&inode));
	}
	if (err)
		return err;
	die(ext2fs_unlink(fs, from, name, ino, 0), "removing the old name");
	if (LINUX_S_ISDIR(inode.i_mode) && from != to) {
		die(ext2fs_dir_iterate(fs, ino, 0, NULL, new_parent, &to),
		    "the new parent");
		die(count_links(from, -1), "links of the old parent");
		die(count_links(to, 1), "links of the new parent");
	}
	return 0;
}

static errcode_t op_build(char **arg)
{
	ext2_ino_t dir;
	errcode_t err = at(arg[0], &dir);

	return err ? err : ext2fs_itree_build(fs, dir);
}

static errcode_t op_drop(char **arg)
{
	ext2_ino_t dir;
	errcode_t err = at(arg[0], &dir);

	return err ? err : ext2fs_itree_drop(fs, dir);
}

static errcode_t op_htree(char **arg)
{
	ext2_ino_t dir;
	errcode_t err = at(arg[0], &dir);

	return err ? err : ext2fs_htree_build(fs, dir);
}

static errcode_t op_flags(char **arg)
{
	struct ext2_inode inode;
	ext2_ino_t ino;
	errcode_t err = at(arg[0], &ino);

	if (!err)
		err = ext2fs_read_inode(fs, ino, &inode);
	if (err)
		return err;
	inode.i_flags |= strtoul(arg[1], NULL, 0);
	return ext2fs_write_inode(fs, ino, &inode);
}

static errcode_t op_expand(char **arg)
{
	ext2_ino_t dir;
	errcode_t err = at(arg[0], &dir);

	for (int i = atoi(arg[1]); !err && i > 0; i--)
		err = ext2fs_expand_dir(fs, dir);
	return err;
}

/* --- extents --- */

struct map {
	struct ext2fs_extent *extents;
	unsigned int count;
	blk64_t *nodes; /* blocks of the extent tree itself */
	unsigned int num_nodes;
	unsigned int depth;
	unsigned int leaves;
	int last_room; /* entries that still fit into the last leaf */
	int leaf_begins; /* a leaf that is not the root starts with the tree */
	int index_begins; /* so does an index block */
	unsigned int segment; /* blocks of the tree */
};

static unsigned int node_limit(int root)
{
	return root ? 4
		    : (fs->blocksize - ENTRIES_AT) / sizeof(struct ext3_extent);
}

/* Reads the extent tree from @node down as it is on the disk. */
static errcode_t read_node(ext2_ino_t ino, char *node, unsigned int depth,
			   struct map *map)
{
	struct ext3_extent_header *head = (void *)node;
	unsigned int count = ext2fs_le16_to_cpu(head->eh_entries);
	struct ext3_extent_idx *index = (void *)(node + ENTRIES_AT);
	struct ext3_extent *leaf = (void *)(node + ENTRIES_AT);
	errcode_t err = 0;
	char *child;

	if (ext2fs_le16_to_cpu(head->eh_depth) != depth ||
	    count > ext2fs_le16_to_cpu(head->eh_max))
		return EXT2_ET_EXTENT_HEADER_BAD;
	if (!depth) {
		map->extents =
			resized(map->extents,
				(map->count + count) * sizeof(*map->extents));
		for (unsigned int i = 0; i < count; i++) {
			struct ext2fs_extent *new = map->extents + map->count++;

			memset(new, 0, sizeof(*new));
			new->e_lblk = ext2fs_le32_to_cpu(leaf[i].ee_block);
			new->e_len = ext2fs_le16_to_cpu(leaf[i].ee_len);
			if (new->e_len > EXT_INIT_MAX_LEN)
				return EXT2_ET_EXTENT_INVALID_LENGTH;
			new->e_pblk =
				ext2fs_le32_to_cpu(leaf[i].ee_start) |
				(blk64_t)ext2fs_le16_to_cpu(leaf[i].ee_start_hi)
					<< 32;
			if (new->e_lblk >= EXT2FS_ITREE_START)
				map->segment += new->e_len;
		}
		map->leaves++;
		map->last_room = ext2fs_le16_to_cpu(head->eh_max) - count;
		return 0;
	}
	child = resized(NULL, fs->blocksize);
	for (unsigned int i = 0; i < count && !err; i++) {
		blk64_t block = ext2fs_le32_to_cpu(index[i].ei_leaf) |
				(blk64_t)ext2fs_le16_to_cpu(index[i].ei_leaf_hi)
					<< 32;

		map->nodes = resized(map->nodes, (map->num_nodes + 1) *
							 sizeof(*map->nodes));
		map->nodes[map->num_nodes++] = block;
		err = io_channel_read_blk64(fs->io, block, 1, child);
		if (!err)
			err = ext2fs_extent_header_verify(child, fs->blocksize);
		if (err)
			break;
		if (ext2fs_le32_to_cpu(*(__le32 *)(child + ENTRIES_AT)) ==
		    EXT2FS_ITREE_START) {
			map->leaf_begins |= depth == 1;
			map->index_begins |= depth > 1;
		}
		err = read_node(ino, child, depth - 1, map);
	}
	free(child);
	return err;
}

static void free_map(struct map *map)
{
	free(map->extents);
	free(map->nodes);
}

static errcode_t read_map(ext2_ino_t ino, struct ext2_inode *inode,
			  struct map *map)
{
	struct ext3_extent_header *head = (void *)inode->i_block;

	memset(map, 0, sizeof(*map));
	map->depth = ext2fs_le16_to_cpu(head->eh_depth);
	return read_node(ino, (char *)inode->i_block, map->depth, map);
}

struct shape {
	int packed; /* fill nodes to the brim, those of the old tree first */
	int cut; /* begin a leaf with the tree, always */
};

/* How many of @left things come into the next node */
static unsigned int next_count(const struct shape *shape, unsigned int left,
			       unsigned int limit)
{
	unsigned int count = limit;

	/* Seldom one alone, for every node takes a block. */
	if (!shape->packed && below(4))
		count = 1 + below(limit);
	if (!shape->packed && !below(6))
		count = 1 + below(3);
	return count < left ? count : left;
}

struct entry {
	uint32_t lblk;
	blk64_t block;
};

/*
 * Gives @ino an extent tree of the extents of @map, in nodes of at most
 * @limit entries: any such tree may come about as a file grows and shrinks.
 * The blocks of the old tree are freed; if there is no room for the new one,
 * nothing changes, unless it is to be packed: that must not fail.
 */
static errcode_t write_map(ext2_ino_t ino, struct ext2_inode *inode,
			   struct map *map, const struct shape *shape,
			   unsigned int limit)
{
	struct entry *level = NULL;
	unsigned int num = map->count, depth = 0, used = 0;
	blk64_t *fresh = NULL, goal = 0;
	char *node = resized(NULL, fs->blocksize);
	errcode_t err = 0;

	if (limit > node_limit(0))
		limit = node_limit(0);
	if (shape->packed)
		for (unsigned int i = 0; i < map->num_nodes; i++)
			ext2fs_block_alloc_stats2(fs, map->nodes[i], -1);
	/* Too many for the root: a level of nodes takes them in. */
	while (num > node_limit(1)) {
		struct entry *above = NULL;
		unsigned int made = 0;

		for (unsigned int i = 0; i < num && !err;) {
			unsigned int count = next_count(shape, num - i, limit);
			struct ext3_extent_header *head = (void *)node;
			blk64_t block;

			if (!depth && shape->cut)
				for (unsigned int j = 1; j < count; j++)
					if (map->extents[i + j].e_lblk ==
					    EXT2FS_ITREE_START)
						count = j;
			/* A level must become smaller. */
			if (depth && count < 2 && num - i > 1)
				count = 2;
			err = ext2fs_alloc_block2(fs, goal, NULL, &block);
			if (err)
				break;
			goal = block;
			fresh = resized(fresh, (used + 1) * sizeof(*fresh));
			fresh[used++] = block;
			memset(node, 0, fs->blocksize);
			head->eh_magic = ext2fs_cpu_to_le16(EXT3_EXT_MAGIC);
			head->eh_entries = ext2fs_cpu_to_le16(count);
			head->eh_max = ext2fs_cpu_to_le16(node_limit(0));
			head->eh_depth = ext2fs_cpu_to_le16(depth);
			above = resized(above, (made + 1) * sizeof(*above));
			above[made].block = block;
			above[made].lblk =
				depth ? level[i].lblk : map->extents[i].e_lblk;
			made++;
			for (unsigned int j = 0; j < count; j++, i++) {
				void *to = node + ENTRIES_AT +
					   j * sizeof(struct ext3_extent);

				if (depth) {
					struct ext3_extent_idx *index = to;

					index->ei_block = ext2fs_cpu_to_le32(
						level[i].lblk);
					index->ei_leaf = ext2fs_cpu_to_le32(
						level[i].block);
				} else {
					struct ext3_extent *leaf = to;
					struct ext2fs_extent *e =
						map->extents + i;

					leaf->ee_block =
						ext2fs_cpu_to_le32(e->e_lblk);
					leaf->ee_len =
						ext2fs_cpu_to_le16(e->e_len);
					leaf->ee_start =
						ext2fs_cpu_to_le32(e->e_pblk);
				}
			}
			err = ext2fs_extent_block_csum_set(fs, ino, head);
			if (!err)
				err = io_channel_write_blk64(fs->io, block, 1,
							     node);
		}
		free(level);
		level = above;
		num = made;
		depth++;
		if (err)
			goto out;
		/* A tree may be higher than it needs to be, but not too high. */
		if (depth > 4) {
			err = EXT2_ET_CANT_INSERT_EXTENT;
			goto out;
		}
	}

	memset(inode->i_block, 0, sizeof(inode->i_block));
	{
		struct ext3_extent_header *head = (void *)inode->i_block;
		struct ext3_extent_idx *index = (void *)(head + 1);
		struct ext3_extent *leaf = (void *)(head + 1);

		head->eh_magic = ext2fs_cpu_to_le16(EXT3_EXT_MAGIC);
		head->eh_entries = ext2fs_cpu_to_le16(num);
		head->eh_max = ext2fs_cpu_to_le16(node_limit(1));
		head->eh_depth = ext2fs_cpu_to_le16(depth);
		for (unsigned int i = 0; i < num; i++)
			if (depth) {
				index[i].ei_block =
					ext2fs_cpu_to_le32(level[i].lblk);
				index[i].ei_leaf =
					ext2fs_cpu_to_le32(level[i].block);
			} else {
				leaf[i].ee_block = ext2fs_cpu_to_le32(
					map->extents[i].e_lblk);
				leaf[i].ee_len = ext2fs_cpu_to_le16(
					map->extents[i].e_len);
				leaf[i].ee_start = ext2fs_cpu_to_le32(
					map->extents[i].e_pblk);
			}
	}
	inode->i_flags |= EXT4_EXTENTS_FL;
	if (!shape->packed)
		for (unsigned int i = 0; i < map->num_nodes; i++)
			ext2fs_block_alloc_stats2(fs, map->nodes[i], -1);
	if (used >= map->num_nodes)
		ext2fs_iblk_add_blocks(fs, inode, used - map->num_nodes);
	else
		ext2fs_iblk_sub_blocks(fs, inode, map->num_nodes - used);
	err = ext2fs_write_inode(fs, ino, inode);
	used = 0;
out:
	while (used)
		ext2fs_block_alloc_stats2(fs, fresh[--used], -1);
	free(fresh);
	free(level);
	free(node);
	return err;
}

/* reshape PATH SEED LIMIT CUT */
static errcode_t op_reshape(char **arg)
{
	struct shape shape = { 0, atoi(arg[3]) };
	struct ext2_inode inode;
	ext2_ino_t ino;
	struct map map;
	errcode_t err = at(arg[0], &ino);

	if (!err)
		err = ext2fs_read_inode(fs, ino, &inode);
	if (err)
		return err;
	if (!(inode.i_flags & EXT4_EXTENTS_FL) ||
	    (inode.i_flags & EXT4_INLINE_DATA_FL))
		return 0;
	state = strtoull(arg[1], NULL, 0);
	err = read_map(ino, &inode, &map);
	if (!err)
		err = write_map(ino, &inode, &map, &shape, atoi(arg[2]));
	free_map(&map);
	return err;
}

/* --- many names at once --- */

/*
 * names DIR PREFIX FIRST COUNT LENGTH SOURCE LEAVES: links to a file.  With
 * LEAVES it ends as soon as there are so many leaves of extents and the last
 * has room for one more.  A tree that is built next takes it with its first
 * extent; the second opens a leaf, and takes the first along.
 */
static errcode_t op_names(char **arg, unsigned int *made)
{
	unsigned int first = atoi(arg[2]), count = atoi(arg[3]);
	unsigned int length = atoi(arg[4]), full = atoi(arg[6]);
	struct ext2_inode inode;
	ext2_ino_t dir, ino;
	errcode_t err = at(arg[0], &dir);
	struct map map;
	char name[256];

	if (!err)
		err = at(arg[5], &ino);
	if (length > 255)
		err = EXT2_ET_INVALID_ARGUMENT;
	for (*made = 0; !err && *made < count;) {
		size_t used = snprintf(name, sizeof(name), "%s%06u", arg[1],
				       first + *made);

		if (used < length)
			memset(name + used, 'n', length - used);
		name[used < length ? length : used] = 0;
		if (full) {
			err = ext2fs_read_inode(fs, dir, &inode);
			if (!err)
				err = read_map(dir, &inode, &map);
			if (err)
				break;
			free_map(&map);
			if (map.last_room == 1 && map.leaves >= full)
				break;
		}
		err = add_name(dir, name, ino, EXT2_FT_REG_FILE);
		if (!err)
			++*made;
	}
	if (*made) {
		errcode_t counted = count_links(ino, *made);

		return err ? err : counted;
	}
	return err;
}

/* --- free space --- */

static errcode_t ballast(ext2_ino_t *ino)
{
	struct ext2_inode inode;
	errcode_t err = ext2fs_lookup(fs, EXT2_ROOT_INO, BALLAST,
				      strlen(BALLAST), NULL, ino);

	if (err != EXT2_ET_FILE_NOT_FOUND)
		return err;
	err = ext2fs_new_inode(fs, EXT2_ROOT_INO, 0100644, NULL, ino);
	if (err)
		return err;
	memset(&inode, 0, sizeof(inode));
	inode.i_mode = LINUX_S_IFREG | 0644;
	inode.i_links_count = 1;
	inode.i_flags = EXT4_EXTENTS_FL;
	err = ext2fs_write_new_inode(fs, *ino, &inode);
	if (err)
		return err;
	ext2fs_inode_alloc_stats2(fs, *ino, 1, 0);
	return add_name(EXT2_ROOT_INO, BALLAST, *ino, EXT2_FT_REG_FILE);
}

static errcode_t ballast_done(ext2_ino_t ino, struct ext2_inode *inode,
			      struct map *map)
{
	struct shape packed = { 1, 0 };
	struct ext2fs_extent *last = map->extents + map->count - 1;
	ext2_off64_t end = map->count ? last->e_lblk + last->e_len : 0;
	errcode_t err;

	err = ext2fs_inode_size_set(fs, inode, end * fs->blocksize);
	if (!err)
		err = write_map(ino, inode, map, &packed, node_limit(0));
	return err;
}

/* The ballast's number, inode and extents; free_map() after success */
static errcode_t open_ballast(ext2_ino_t *ino, struct ext2_inode *inode,
			      struct map *map)
{
	errcode_t err = ballast(ino);

	if (!err)
		err = ext2fs_read_inode(fs, *ino, inode);
	if (!err)
		err = read_map(*ino, inode, map);
	return err;
}

/*
 * eat PERIOD COUNT: a file takes all free clusters but every PERIODth; no more
 * than COUNT are left.
 */
static errcode_t op_eat(char **arg)
{
	unsigned int period = atoi(arg[0]), leave = atoi(arg[1]), seen = 0;
	unsigned int ratio = EXT2FS_CLUSTER_RATIO(fs), taken = 0, most, nodes;
	blk64_t end = ext2fs_blocks_count(fs->super), block;
	struct ext2_inode inode;
	ext2_ino_t ino;
	struct map map;
	errcode_t err = open_ballast(&ino, &inode, &map);

	if (err)
		return err;
	/* The file's own map needs some: clusters that stay free first. */
	most = ext2fs_free_blocks_count(fs->super) / ratio;
	nodes = most / node_limit(0) + 8;
	if (most / period < nodes) {
		free_map(&map);
		return EXT2_ET_BLOCK_ALLOC_FAIL;
	}
	leave += nodes;
	for (block = fs->super->s_first_data_block; block < end;
	     block += ratio) {
		struct ext2fs_extent *last = map.extents + map.count - 1;
		blk64_t lblk = map.count ? last->e_lblk + last->e_len : 0;

		/* The last cluster may be cut off. */
		if (block / ratio == (end - 1) / ratio && end % ratio)
			break;
		if (ratio > 1)
			block &= ~(blk64_t)(ratio - 1);
		if (ext2fs_test_block_bitmap2(fs->block_map, block))
			continue;
		if (seen++ % period == 0 && leave) {
			leave--;
			continue;
		}
		lblk = (lblk + ratio - 1) / ratio * ratio;
		if (map.count && last->e_pblk + last->e_len == block &&
		    last->e_lblk + last->e_len == lblk &&
		    last->e_len + ratio <= EXT_INIT_MAX_LEN) {
			last->e_len += ratio;
		} else {
			map.extents =
				resized(map.extents,
					(map.count + 1) * sizeof(*map.extents));
			last = map.extents + map.count++;
			memset(last, 0, sizeof(*last));
			last->e_lblk = lblk;
			last->e_pblk = block;
			last->e_len = ratio;
		}
		ext2fs_block_alloc_stats2(fs, block, 1);
		taken++;
	}
	ext2fs_iblk_add_blocks(fs, &inode, taken);
	err = ballast_done(ino, &inode, &map);
	die(err, "the map of the ballast");
	free_map(&map);
	return 0;
}

/* release COUNT SEED: gives back single clusters of that file */
static errcode_t op_release(char **arg)
{
	unsigned int count = atoi(arg[0]), ratio = EXT2FS_CLUSTER_RATIO(fs);
	struct ext2_inode inode;
	ext2_ino_t ino;
	struct map map;
	errcode_t err = open_ballast(&ino, &inode, &map);

	if (err)
		return err;
	state = strtoull(arg[1], NULL, 0);
	while (count-- && map.count) {
		struct ext2fs_extent *e = map.extents + below(map.count);

		/* From the end of an extent: the rest stays one. */
		ext2fs_block_alloc_stats2(fs, e->e_pblk + e->e_len - ratio, -1);
		ext2fs_iblk_sub_blocks(fs, &inode, 1);
		e->e_len -= ratio;
		if (!e->e_len)
			memmove(e, e + 1,
				(map.extents + --map.count - e) * sizeof(*e));
	}
	err = ballast_done(ino, &inode, &map);
	die(err, "the map of the ballast");
	free_map(&map);
	return 0;
}

static const struct op {
	const char *name;
	int args;
	errcode_t (*run)(char **arg);
} ops[] = {
	{ "file", 2, op_file },	      { "link", 2, op_link },
	{ "unlink", 1, op_unlink },   { "rename", 2, op_rename },
	{ "mkdir", 1, op_mkdir },     { "rmdir", 1, op_rmdir },
	{ "symlink", 2, op_symlink }, { "build", 1, op_build },
	{ "drop", 1, op_drop },	      { "htree", 1, op_htree },
	{ "flags", 2, op_flags },     { "expand", 2, op_expand },
	{ "reshape", 4, op_reshape }, { "eat", 2, op_eat },
	{ "release", 2, op_release },
};

static void run(void)
{
	char line[MAX_LINE], *word[MAX_WORDS];

	while (fgets(line, sizeof(line), stdin)) {
		const struct op *op = NULL;
		unsigned int made = 0;
		errcode_t err;
		int count = 0;

		for (char *p = strtok(line, " \n"); p && count < MAX_WORDS;
		     p = strtok(NULL, " \n"))
			word[count++] = p;
		if (count == 8 && !strcmp(word[0], "names")) {
			err = op_names(word + 1, &made);
			/* What was made before an error stays. */
			printf("ok %u %s\n", made,
			       err ? error_message(err) : "");
			continue;
		}
		for (size_t i = 0; i < sizeof(ops) / sizeof(*ops); i++)
			if (count && !strcmp(word[0], ops[i].name))
				op = ops + i;
		if (!op || count != op->args + 1)
			die(EXT2_ET_INVALID_ARGUMENT, count ? word[0] : "line");
		err = op->run(word + 1);
		if (err)
			printf("error: %s\n", error_message(err));
		else
			printf("ok\n");
	}
}

/* --- showing --- */

static char *seen;

static uint32_t data_sum(ext2_ino_t ino, uint64_t size)
{
	char buf[4096];
	uint32_t sum = ~0U;
	unsigned int got;
	ext2_file_t file;

	die(ext2fs_file_open(fs, ino, 0, &file), "opening a file");
	while (size) {
		die(ext2fs_file_read(file, buf, sizeof(buf), &got), "reading");
		if (!got)
			break;
		sum = ext2fs_crc32c_le(sum, (unsigned char *)buf, got);
		size -= got < size ? got : size;
	}
	ext2fs_file_close(file);
	return sum;
}

static char *target_of(ext2_ino_t ino, struct ext2_inode *inode)
{
	size_t size = EXT2_I_SIZE(inode);
	char *buf = calloc(1, fs->blocksize + 1);
	blk64_t block;

	if (!buf)
		die(EXT2_ET_NO_MEMORY, "memory");
	if (ext2fs_is_fast_symlink(inode)) {
		memcpy(buf, inode->i_block, sizeof(inode->i_block));
	} else if (inode->i_flags & EXT4_INLINE_DATA_FL) {
		die(ext2fs_inline_data_get(fs, ino, inode, buf, NULL),
		    "reading a symlink");
	} else {
		die(ext2fs_bmap2(fs, ino, inode, NULL, 0, 0, NULL, &block),
		    "reading a symlink");
		die(io_channel_read_blk64(fs->io, block, 1, buf),
		    "reading a symlink");
	}
	buf[size <= fs->blocksize ? size : fs->blocksize] = 0;
	return buf;
}

struct found {
	ext2_ino_t *dirs;
	unsigned int count;
};

static int show_entry(struct ext2_dir_entry *entry, int offset, int blocksize,
		      char *buf, void *priv)
{
	struct found *todo = priv;
	int len = ext2fs_dirent_name_len(entry);

	(void)offset, (void)blocksize, (void)buf;
	if ((len == 1 && entry->name[0] == '.') ||
	    (len == 2 && !memcmp(entry->name, "..", 2)))
		return 0;
	printf("E %u %d %.*s\n", entry->inode, ext2fs_dirent_file_type(entry),
	       len, entry->name);
	if (ext2fs_dirent_file_type(entry) == EXT2_FT_DIR) {
		todo->dirs = resized(todo->dirs,
				     (todo->count + 1) * sizeof(*todo->dirs));
		todo->dirs[todo->count++] = entry->inode;
	} else if (entry->inode <= fs->super->s_inodes_count) {
		seen[entry->inode] = 1;
	}
	return 0;
}

static void show(void)
{
	ext2_ino_t root = EXT2_ROOT_INO;
	struct found todo = { NULL, 0 };
	struct ext2_inode inode;
	struct map map;

	todo.dirs = resized(NULL, sizeof(*todo.dirs));
	todo.dirs[todo.count++] = root;
	seen = calloc(1, fs->super->s_inodes_count + 1);
	if (!seen)
		die(EXT2_ET_NO_MEMORY, "memory");
	for (unsigned int i = 0; i < todo.count; i++) {
		ext2_ino_t dir = todo.dirs[i];

		die(ext2fs_read_inode(fs, dir, &inode), "reading a directory");
		memset(&map, 0, sizeof(map));
		if ((inode.i_flags & EXT4_EXTENTS_FL) &&
		    !(inode.i_flags & EXT4_INLINE_DATA_FL))
			die(read_map(dir, &inode, &map), "reading a map");
		/* inode, flags, size, depth, extents, leaf and index block that
		 * begin with the tree, its blocks
		 */
		printf("D %u %x %llu %u %u %d %d %u\n", dir, inode.i_flags,
		       (unsigned long long)EXT2_I_SIZE(&inode), map.depth,
		       map.count, map.leaf_begins, map.index_begins,
		       map.segment);
		free_map(&map);
		die(ext2fs_dir_iterate(fs, dir, 0, NULL, show_entry, &todo),
		    "reading a directory");
	}
	for (ext2_ino_t ino = 1; ino <= fs->super->s_inodes_count; ino++) {
		if (!seen[ino])
			continue;
		die(ext2fs_read_inode(fs, ino, &inode), "reading an inode");
		if (LINUX_S_ISLNK(inode.i_mode)) {
			char *target = target_of(ino, &inode);

			printf("L %u %s\n", ino, target);
			free(target);
		} else {
			uint64_t size = EXT2_I_SIZE(&inode);

			/* Not of the ballast, which is never written */
			printf("F %u %llu %08x\n", ino,
			       (unsigned long long)size,
			       size < 100000 ? data_sum(ino, size) : 0);
		}
	}
	printf("S %llu %u\n",
	       (unsigned long long)ext2fs_free_blocks_count(fs->super),
	       fs->super->s_free_inodes_count);
}

int main(int argc, char **argv)
{
	int write = argc == 3 && !strcmp(argv[1], "run");
	errcode_t err;

	initialize_ext2_error_table();
	if (argc != 3 || (!write && strcmp(argv[1], "show"))) {
		fprintf(stderr, "usage: volume run|show IMAGE\n");
		return 2;
	}
	err = ext2fs_open(argv[2],
			  EXT2_FLAG_64BITS | EXT2_FLAG_THREADS |
				  (write ? EXT2_FLAG_RW : 0),
			  0, 0, unix_io_manager, &fs);
	die(err, argv[2]);
	if (getenv("E2FSPROGS_FAKE_TIME"))
		fs->now = strtoll(getenv("E2FSPROGS_FAKE_TIME"), NULL, 0);
	if (write) {
		die(ext2fs_read_bitmaps(fs), "bitmaps");
		run();
	} else {
		show();
	}
	die(ext2fs_close_free(&fs), "closing");
	return 0;
}
