// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * htree_build.c --- turn a linear directory into an htree
 *
 * The new directory is laid out as
 *
 *	block 0		dx_root
 *	then		the index nodes, level by level
 *	then		the leaves in the order of their hashes
 *
 * so that both the index and the names can be read sequentially.  The width of
 * every level is known before the first block is written: children are
 * distributed evenly, so every node can be computed from the counts alone.
 */
#include "config.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ext2_fs.h"
#include "ext2fsP.h"
#include "ext2fs_htree.h"
#include "ext2fs_itree.h"

#define DX_ROOT_INFO_OFF	24
#define DX_ROOT_HEAD		32	/* "." and "..", dx_root_info */
#define DX_NODE_HEAD		8	/* an unused entry */
#define DOT_REC_LEN		12
#define MIN_REC_LEN		12	/* of a name of one byte */
#define MAX_EXTENT_DEPTH	5

/* Percentage of a leaf that is left free, as e2fsck -D leaves it */
#define LEAF_SLACK		20

struct dx_name {
	ext2_dirhash_t		hash;
	ext2_dirhash_t		minor_hash;
	struct ext2_dir_entry	*dirent;	/* in the copy of the old blocks */
};

struct dx_leaf {
	size_t			first;		/* of its names */
	ext2_dirhash_t		hash;		/* low bit: continued */
};

struct dx_build {
	ext2_filsys		fs;
	ext2_ino_t		dir;
	struct ext2_inode	inode;
	int			hash_version;	/* for ext2fs_dirhash2() */
	unsigned int		leaf_size;	/* bytes for entries */

	blk64_t			old_blocks;
	char			*old;		/* the directory as it was */
	struct ext2_dir_entry	*dot, *dotdot;
	struct dx_name		*names;
	size_t			num_names, max_names;

	struct dx_leaf		*leaves;
	size_t			num_leaves, max_leaves;
	unsigned int		levels;		/* of index nodes, root included */
	size_t			width[EXT4_HTREE_LEVEL];	/* nodes a level */
	blk64_t			new_blocks;

	blk64_t			*map;		/* physical blocks */
};

/* Maps the first @blocks blocks of the directory; fails if there is a hole. */
static errcode_t read_map(struct dx_build *b, blk64_t blocks)
{
	ext2_filsys		fs = b->fs;
	ext2_extent_handle_t	handle;
	struct ext2fs_extent	ex;
	errcode_t		retval;
	blk64_t			lblk = 0, pblk;

	if (b->map)
		ext2fs_free_mem(&b->map);
	retval = ext2fs_get_array(blocks, sizeof(blk64_t), &b->map);
	if (retval)
		return retval;
	retval = ext2fs_extent_open2(fs, b->dir, &b->inode, &handle);
	if (retval)
		return retval;
	retval = ext2fs_extent_goto(handle, 0);
	if (!retval)
		retval = ext2fs_extent_get(handle, EXT2_EXTENT_CURRENT, &ex);
	while (!retval) {
		if (ex.e_lblk != lblk || !ex.e_len ||
		    (ex.e_flags & EXT2_EXTENT_FLAGS_UNINIT)) {
			retval = EXT2_ET_DIR_CORRUPTED;
			break;
		}
		pblk = ex.e_pblk;
		if (pblk < fs->super->s_first_data_block ||
		    pblk + ex.e_len > ext2fs_blocks_count(fs->super)) {
			retval = EXT2_ET_BAD_BLOCK_NUM;
			break;
		}
		while (lblk < blocks && lblk < ex.e_lblk + ex.e_len)
			b->map[lblk++] = pblk++;
		if (lblk == blocks)
			break;
		retval = ext2fs_extent_get(handle, EXT2_EXTENT_NEXT_LEAF, &ex);
	}
	if (retval == EXT2_ET_EXTENT_NO_NEXT ||
	    retval == EXT2_ET_EXTENT_NOT_FOUND ||
	    retval == EXT2_ET_NO_CURRENT_NODE)
		retval = EXT2_ET_DIR_CORRUPTED;
	ext2fs_extent_free(handle);
	return retval;
}

/* Grows the array at *(void **) @ptr if its @count of *@max are in use. */
static errcode_t make_room(void *ptr, size_t size, size_t count, size_t *max)
{
	size_t		room = count ? count * 2 : 64;
	errcode_t	retval;

	if (count < *max)
		return 0;
	if (room > ~0UL / size)
		return EXT2_ET_NO_MEMORY;
	retval = ext2fs_resize_mem(*max * size, room * size, ptr);
	if (!retval)
		*max = room;
	return retval;
}

/*
 * Reading the names
 */

static errcode_t add_name(struct dx_build *b, struct ext2_dir_entry *dirent)
{
	ext2_filsys	fs = b->fs;
	struct dx_name	*name;
	errcode_t	retval;

	retval = make_room(&b->names, sizeof(*name), b->num_names,
			   &b->max_names);
	if (retval)
		return retval;
	name = &b->names[b->num_names++];
	name->dirent = dirent;
	return ext2fs_dirhash2(b->hash_version, dirent->name,
			       ext2fs_dirent_name_len(dirent), fs->encoding,
			       b->inode.i_flags & EXT4_CASEFOLD_FL,
			       fs->super->s_hash_seed, &name->hash,
			       &name->minor_hash);
}

/* "." is 1, ".." is 2, any other name 0 */
static int dots(struct ext2_dir_entry *dirent)
{
	int	len = ext2fs_dirent_name_len(dirent);

	if (len > 2 || dirent->name[0] != '.')
		return 0;
	if (len == 1)
		return 1;
	return dirent->name[1] == '.' ? 2 : 0;
}

static errcode_t add_block(struct dx_build *b, char *block)
{
	ext2_filsys		fs = b->fs;
	struct ext2_dir_entry	*dirent;
	errcode_t		retval;
	unsigned int		offset, rec_len, len;

	for (offset = 0; offset < fs->blocksize; offset += rec_len) {
		dirent = (struct ext2_dir_entry *) (block + offset);
		if (fs->blocksize - offset < EXT2_DIR_ENTRY_HEADER_LEN)
			return EXT2_ET_DIR_CORRUPTED;
		retval = ext2fs_get_rec_len(fs, dirent, &rec_len);
		if (retval)
			return retval;
		len = ext2fs_dirent_name_len(dirent);
		if (rec_len < EXT2_DIR_ENTRY_HEADER_LEN || (rec_len & 3) ||
		    rec_len > fs->blocksize - offset)
			return EXT2_ET_DIR_CORRUPTED;
		if (!dirent->inode)
			continue;
		if (!len || len + EXT2_DIR_ENTRY_HEADER_LEN > rec_len)
			return EXT2_ET_DIR_CORRUPTED;
		switch (dots(dirent)) {
		case 1:
			if (b->dot || block != b->old || offset)
				return EXT2_ET_DIR_CORRUPTED;
			b->dot = dirent;
			break;
		case 2:
			if (b->dotdot || !b->dot || b->num_names)
				return EXT2_ET_DIR_CORRUPTED;
			b->dotdot = dirent;
			break;
		default:
			retval = add_name(b, dirent);
			if (retval)
				return retval;
		}
	}
	return 0;
}

/* By hash; equal names keep their order, so that the result is deterministic */
static EXT2_QSORT_TYPE cmp_names(const void *x, const void *y)
{
	const struct dx_name	*m = x, *n = y;

	if (m->hash != n->hash)
		return m->hash < n->hash ? -1 : 1;
	if (m->minor_hash != n->minor_hash)
		return m->minor_hash < n->minor_hash ? -1 : 1;
	return m->dirent < n->dirent ? -1 : m->dirent > n->dirent;
}

static errcode_t read_names(struct dx_build *b)
{
	ext2_filsys	fs = b->fs;
	errcode_t	retval;
	blk64_t		i;
	char		*block;

	retval = read_map(b, b->old_blocks);
	if (retval)
		return retval;
	retval = ext2fs_get_array(b->old_blocks, fs->blocksize, &b->old);
	if (retval)
		return retval;
	for (i = 0, block = b->old; i < b->old_blocks;
	     i++, block += fs->blocksize) {
		retval = ext2fs_read_dir_block4(fs, b->map[i], block, 0,
						b->dir);
		if (!retval)
			retval = add_block(b, block);
		if (retval)
			return retval;
	}
	if (!b->dot || b->dot->inode != b->dir || !b->dotdot)
		return EXT2_ET_DIR_CORRUPTED;
	if (b->num_names)
		qsort(b->names, b->num_names, sizeof(struct dx_name),
		      cmp_names);
	return 0;
}

/*
 * Laying out the new directory
 */

static unsigned int name_size(const struct dx_name *name)
{
	return ext2fs_dir_rec_len(ext2fs_dirent_name_len(name->dirent), 0);
}

static errcode_t new_leaf(struct dx_build *b, size_t first)
{
	struct dx_leaf	*leaf;
	errcode_t	retval;

	retval = make_room(&b->leaves, sizeof(*leaf), b->num_leaves,
			   &b->max_leaves);
	if (retval)
		return retval;
	leaf = &b->leaves[b->num_leaves++];
	leaf->first = first;
	leaf->hash = first < b->num_names ? b->names[first].hash : 0;
	/* A lookup that starts in the leaf before must continue in this one */
	if (first && leaf->hash == b->names[first - 1].hash)
		leaf->hash |= 1;
	return 0;
}

static errcode_t lay_out_leaves(struct dx_build *b)
{
	unsigned int	slack, left = b->leaf_size, size;
	errcode_t	retval;
	size_t		i;

	slack = b->leaf_size * LEAF_SLACK / 100;
	if (slack < MIN_REC_LEN)
		slack = MIN_REC_LEN;
	retval = new_leaf(b, 0);
	for (i = 0; !retval && i < b->num_names; i++) {
		size = name_size(&b->names[i]);
		if (size > left || left < slack) {
			retval = new_leaf(b, i);
			left = b->leaf_size;
		}
		left -= size;
	}
	return retval;
}

/* How many entries a block of the index has room for */
static size_t dx_limit(const struct dx_build *b, int head)
{
	ext2_filsys	fs = b->fs;
	size_t		size = fs->blocksize - head;

	if (ext2fs_has_feature_metadata_csum(fs->super))
		size -= sizeof(struct ext2_dx_tail);
	return size / sizeof(struct ext2_dx_entry);
}

/* Computes the levels, their widths and the size of the directory. */
static errcode_t lay_out(struct dx_build *b)
{
	ext2_filsys	fs = b->fs;
	size_t		root_limit = dx_limit(b, DX_ROOT_HEAD);
	size_t		node_limit = dx_limit(b, DX_NODE_HEAD), n;
	unsigned int	i;
	errcode_t	retval;

	retval = lay_out_leaves(b);
	if (retval)
		return retval;
	b->levels = 1;
	for (n = b->num_leaves; n > root_limit; b->levels++) {
		if (b->levels == ext2_dir_htree_level(fs))
			return EXT2_ET_FILE_TOO_BIG;
		n = (n + node_limit - 1) / node_limit;
		/* Built from below: the level under the root comes last */
		memmove(b->width + 2, b->width + 1,
			(EXT4_HTREE_LEVEL - 2) * sizeof(b->width[0]));
		b->width[1] = n;
	}
	b->width[0] = 1;
	b->new_blocks = b->num_leaves;
	for (i = 0; i < b->levels; i++)
		b->new_blocks += b->width[i];
	/*
	 * With blocks of 64 KiB neither this library nor the kernel can find
	 * the checksum of an index node: its length does not fit in 16 bits.
	 */
	if (b->levels > 1 && fs->blocksize > 32768 &&
	    ext2fs_has_feature_metadata_csum(fs->super))
		return EXT2_ET_FILE_TOO_BIG;
	if (b->new_blocks > EXT4_DX_BLOCK_MASK)
		return EXT2_ET_FILE_TOO_BIG;
	/* Setting such a size would silently set large_file, too */
	if (ext2fs_needs_large_file_feature(b->new_blocks * fs->blocksize) &&
	    !ext2fs_has_feature_largedir(fs->super))
		return EXT2_ET_FILE_TOO_BIG;
	return 0;
}

/* Nodes of level @level + 1, or leaves below the last level */
static size_t children(const struct dx_build *b, unsigned int level)
{
	return level + 1 < b->levels ? b->width[level + 1] : b->num_leaves;
}

/* The first child of node @i of a level; children are distributed evenly. */
static size_t first_child(const struct dx_build *b, unsigned int level,
			  size_t i)
{
	return (__u64) i * children(b, level) / b->width[level];
}

/* The smallest hash below child @i of a level */
static ext2_dirhash_t child_hash(const struct dx_build *b, unsigned int level,
				 size_t i)
{
	while (++level < b->levels)
		i = first_child(b, level, i);
	return b->leaves[i].hash;
}

/*
 * Making the blocks
 */

static void put_dot(struct ext2_dir_entry *to, struct ext2_dir_entry *from)
{
	memcpy(to, from, EXT2_DIR_ENTRY_HEADER_LEN +
	       ext2fs_dirent_name_len(from));
}

static errcode_t make_node(struct dx_build *b, unsigned int level, size_t i,
			   char *buf)
{
	ext2_filsys			fs = b->fs;
	struct ext2_dir_entry		*dirent = (void *) buf;
	struct ext2_dx_root_info	*info;
	struct ext2_dx_countlimit	*head;
	struct ext2_dx_entry		*ent;
	size_t				from, to, c;
	blk64_t				below = 0;
	unsigned int			l;
	int				size = level ? DX_NODE_HEAD :
						DX_ROOT_HEAD;
	errcode_t			retval;

	memset(buf, 0, fs->blocksize);
	if (level) {
		retval = ext2fs_set_rec_len(fs, fs->blocksize, dirent);
	} else {
		put_dot(dirent, b->dot);
		retval = ext2fs_set_rec_len(fs, DOT_REC_LEN, dirent);
		if (retval)
			return retval;
		dirent = (void *) (buf + DOT_REC_LEN);
		put_dot(dirent, b->dotdot);
		retval = ext2fs_set_rec_len(fs, fs->blocksize - DOT_REC_LEN,
					    dirent);
		info = (void *) (buf + DX_ROOT_INFO_OFF);
		info->hash_version = fs->super->s_def_hash_version;
		info->info_length = sizeof(*info);
		info->indirect_levels = b->levels - 1;
	}
	if (retval)
		return retval;

	for (l = 0; l <= level; l++)
		below += b->width[l];
	from = first_child(b, level, i);
	to = first_child(b, level, i + 1);
	ent = (void *) (buf + size);
	for (c = from; c < to; c++, ent++) {
		ent->hash = ext2fs_cpu_to_le32(child_hash(b, level, c));
		ent->block = ext2fs_cpu_to_le32(below + c);
	}
	/* Overwrites the first hash, which the parent implies */
	head = (void *) (buf + size);
	head->limit = ext2fs_cpu_to_le16(dx_limit(b, size));
	head->count = ext2fs_cpu_to_le16(to - from);
	return 0;
}

static errcode_t make_leaf(struct dx_build *b, size_t leaf, char *buf)
{
	ext2_filsys		fs = b->fs;
	struct ext2_dir_entry	*dirent = (void *) buf;
	size_t			i = b->leaves[leaf].first, end;
	unsigned int		offset = 0, size = 0;
	errcode_t		retval;

	end = leaf + 1 < b->num_leaves ? b->leaves[leaf + 1].first :
		b->num_names;
	memset(buf, 0, fs->blocksize);
	for (; i < end; i++, offset += size) {
		dirent = (void *) (buf + offset);
		size = name_size(&b->names[i]);
		memcpy(dirent, b->names[i].dirent, EXT2_DIR_ENTRY_HEADER_LEN +
		       ext2fs_dirent_name_len(b->names[i].dirent));
		retval = ext2fs_set_rec_len(fs, size, dirent);
		if (retval)
			return retval;
	}
	/* The last entry extends to the end, even if it is the whole leaf */
	retval = ext2fs_set_rec_len(fs, size + b->leaf_size - offset, dirent);
	if (!retval && ext2fs_has_feature_metadata_csum(fs->super))
		ext2fs_initialize_dirent_tail(fs,
				EXT2_DIRENT_TAIL(buf, fs->blocksize));
	return retval;
}

static errcode_t write_blocks(struct dx_build *b)
{
	ext2_filsys	fs = b->fs;
	unsigned int	level = 0;
	errcode_t	retval;
	blk64_t		lblk;
	size_t		i = 0;
	char		*buf = NULL;

	retval = ext2fs_get_mem(fs->blocksize, &buf);
	for (lblk = 0; !retval && lblk < b->new_blocks; lblk++, i++) {
		if (level < b->levels && i == b->width[level]) {
			level++;
			i = 0;
		}
		if (level < b->levels)
			retval = make_node(b, level, i, buf);
		else
			retval = make_leaf(b, i, buf);
		if (!retval)
			retval = ext2fs_write_dir_block4(fs, b->map[lblk], buf,
							 0, b->dir);
	}
	ext2fs_free_mem(&buf);
	return retval;
}

/*
 * Allocates the blocks that the directory has to grow by.  ext2fs_fallocate()
 * leaves blocks mapped when it runs out, so check first that there are enough:
 * the blocks themselves, rounded up to clusters, and those of an extent tree in
 * which every block has its own extent.
 */
static errcode_t grow(struct dx_build *b)
{
	ext2_filsys	fs = b->fs;
	blk64_t		start = b->old_blocks, count, need;
	errcode_t	retval;

	if (b->new_blocks <= start)
		return 0;
	count = b->new_blocks - start;
	need = count + 2 * EXT2FS_CLUSTER_RATIO(fs);
	need += (count / (fs->blocksize / sizeof(struct ext3_extent) - 2) +
		 MAX_EXTENT_DEPTH) * EXT2FS_CLUSTER_RATIO(fs);
	if (need > ext2fs_free_blocks_count(fs->super))
		return EXT2_ET_BLOCK_ALLOC_FAIL;
	retval = ext2fs_fallocate(fs, EXT2_FALLOCATE_FORCE_INIT |
				  EXT2_FALLOCATE_ZERO_BLOCKS, b->dir,
				  &b->inode, ~0ULL, start, count);
	if (!retval)
		retval = ext2fs_write_inode(fs, b->dir, &b->inode);
	if (!retval)
		retval = read_map(b, b->new_blocks);
	if (retval)
		(void) ext2fs_punch(fs, b->dir, &b->inode, NULL, start,
				    start + count - 1);
	return retval;
}

/* All blocks are written: sets the htree's flag and frees the blocks beyond. */
static errcode_t finish(struct dx_build *b)
{
	ext2_filsys	fs = b->fs;
	errcode_t	retval;

	b->inode.i_flags |= EXT2_INDEX_FL;
	retval = ext2fs_inode_size_set(fs, &b->inode,
				       b->new_blocks * fs->blocksize);
	if (!retval)
		retval = ext2fs_write_inode(fs, b->dir, &b->inode);
	if (!retval && b->new_blocks < b->old_blocks)
		retval = ext2fs_punch(fs, b->dir, &b->inode, NULL,
				      b->new_blocks, b->old_blocks - 1);
	return retval;
}

static errcode_t check_dir(struct dx_build *b)
{
	ext2_filsys	fs = b->fs;

	if (!LINUX_S_ISDIR(b->inode.i_mode))
		return EXT2_ET_NO_DIRECTORY;
	if (!ext2fs_has_feature_dir_index(fs->super) ||
	    !(b->inode.i_flags & EXT4_EXTENTS_FL) ||
	    (b->inode.i_flags & (EXT4_INLINE_DATA_FL | EXT4_ITREE_FL)))
		return EXT2_ET_OP_NOT_SUPPORTED;
	if (ext4_hash_in_dirent(&b->inode) ||
	    ((b->inode.i_flags & EXT4_CASEFOLD_FL) && !fs->encoding) ||
	    fs->super->s_def_hash_version > EXT2_HASH_TEA)
		return EXT2_ET_DIRHASH_UNSUPP;
	b->hash_version = fs->super->s_def_hash_version;
	if (fs->super->s_flags & EXT2_FLAGS_UNSIGNED_HASH)
		b->hash_version += EXT2_HASH_LEGACY_UNSIGNED;
	b->leaf_size = fs->blocksize;
	if (ext2fs_has_feature_metadata_csum(fs->super))
		b->leaf_size -= sizeof(struct ext2_dir_entry_tail);
	b->old_blocks = EXT2_I_SIZE(&b->inode) / fs->blocksize;
	if (!b->old_blocks || EXT2_I_SIZE(&b->inode) % fs->blocksize ||
	    b->old_blocks >= EXT2FS_ITREE_START)
		return EXT2_ET_DIR_CORRUPTED;
	return 0;
}

errcode_t ext2fs_htree_build(ext2_filsys fs, ext2_ino_t dir)
{
	struct dx_build	b;
	errcode_t	retval;

	EXT2_CHECK_MAGIC(fs, EXT2_ET_MAGIC_EXT2FS_FILSYS);

	if (!(fs->flags & EXT2_FLAG_RW))
		return EXT2_ET_RO_FILSYS;
	if (!fs->block_map)
		return EXT2_ET_NO_BLOCK_BITMAP;
	memset(&b, 0, sizeof(b));
	b.fs = fs;
	b.dir = dir;
	retval = ext2fs_read_inode(fs, dir, &b.inode);
	if (!retval && LINUX_S_ISDIR(b.inode.i_mode) &&
	    (b.inode.i_flags & EXT2_INDEX_FL))
		return 0;
	if (!retval)
		retval = check_dir(&b);
	if (!retval)
		retval = read_names(&b);
	if (!retval)
		retval = lay_out(&b);
	if (!retval)
		retval = grow(&b);
	if (!retval)
		retval = write_blocks(&b);
	if (!retval)
		retval = finish(&b);
	ext2fs_free_mem(&b.map);
	ext2fs_free_mem(&b.leaves);
	ext2fs_free_mem(&b.names);
	ext2fs_free_mem(&b.old);
	return retval;
}
