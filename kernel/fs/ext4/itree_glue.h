/* SPDX-License-Identifier: GPL-2.0-only */
/* Declarations that only the files of the itree in ext4 share. */
#ifndef _EXT4_ITREE_GLUE_H
#define _EXT4_ITREE_GLUE_H

/* An open tree, the directory it belongs to and the handle it changes in. */
struct ext4_itree {
	struct itree	t;
	struct inode	*dir;
	handle_t	*handle;	/* NULL: read only */
	u32		chunk;		/* blocks to map at once, 0: choose */
	bool		nowait;		/* -EAGAIN instead of reading a node */
	ext4_lblk_t	missing;	/* the node that has to be read */
	/*
	 * Set for a load that takes more than one handle.  Called before each
	 * new block, may switch to another handle; if that fails, handle is an
	 * ERR_PTR.
	 */
	int		(*more)(struct ext4_itree *et);
};

int ext4_itree_open(struct ext4_itree *et, handle_t *handle,
		    struct inode *dir);
int ext4_itree_format(struct ext4_itree *et, handle_t *handle,
		      struct inode *dir, u32 blocks, u8 hash_version);
int ext4_itree_open_nowait(struct ext4_itree *et, struct inode *dir);
void ext4_itree_close(struct ext4_itree *et);
struct buffer_head *ext4_itree_cached_block(struct inode *dir,
					    ext4_lblk_t lblk);

void ext4_itree_count(struct super_block *sb, enum ext4_itree_stat stat,
		      u32 n);
void ext4_itree_bad(struct inode *dir, int err, const struct itree *t);
int ext4_itree_hash_version(struct inode *dir, u8 *version);
int ext4_itree_hash_name(struct inode *dir, u8 version, const char *name,
			 u32 len, u32 *hash, u32 *minor);
int ext4_itree_hash_entry(struct inode *dir, u8 version,
			  struct ext4_dir_entry_2 *de, u32 *hash, u32 *minor);

/*
 * Called for each name of a directory block but "." and "..".  The key is
 * computed only for inode numbers in lo..hi.
 */
struct ext4_itree_visit {
	struct inode	*dir;
	u8		hash_version;
	u64		lo;		/* keys wanted, both inclusive */
	u64		hi;
	bool		strict;		/* a bad entry or a hole is an error */
	/*
	 * A reader's visit: i_rwsem is held shared and released to read a
	 * block, so the directory may change meanwhile.  Blocks that cannot be
	 * read are skipped.
	 */
	bool		shared;
	int		unreadable;	/* why a block was skipped, or 0 */
	u32		held;		/* blocks visited since the release */
	/*
	 * Called before each block, to make room for @nr names.  In a reader's
	 * visit, it may release i_rwsem.  Returns 0 or a negative error.
	 */
	int		(*prepare)(struct ext4_itree_visit *v, u32 nr);
	int		(*name)(struct ext4_itree_visit *v, u64 key, u32 minor,
				struct ext4_dir_entry_2 *de);
};

/* Names that a directory block can hold at most. */
static inline u32 ext4_itree_block_names(const struct super_block *sb)
{
	return sb->s_blocksize / ext4_dir_rec_len(1, NULL);
}

int ext4_itree_visit_block(struct ext4_itree_visit *v, ext4_lblk_t block);
int ext4_itree_visit_all(struct ext4_itree_visit *v);

/* An index block of an htree, as struct dx_root and dx_node in namei.c. */
struct ext4_htree_entry {
	__le32	hash;		/* of the first: __le16 limit and count */
	__le32	block;
};

struct ext4_htree_node {
	struct buffer_head *bh;
	ext4_lblk_t	block;
	struct ext4_htree_entry *e;
	u32		count;
	u32		limit;
	u32		at;		/* for the caller */
	u32		levels;		/* root: of index blocks below it */
};

/* itree_htree.c */
int ext4_itree_load_index(struct inode *dir, u32 lo, u32 hi);
bool ext4_htree_parse(struct inode *dir, struct buffer_head *bh,
		      ext4_lblk_t block, struct ext4_htree_node *n);

/* The first hash of an entry but the first, whose field holds limit and count. */
static inline u32 ext4_htree_hash(const struct ext4_htree_node *n, u32 i)
{
	return le32_to_cpu(n->e[i].hash);
}

/* The block that an entry points to; the upper four bits are reserved. */
static inline ext4_lblk_t ext4_htree_child(const struct ext4_htree_node *n,
					   u32 i)
{
	return le32_to_cpu(n->e[i].block) & 0x0fffffff;
}

/* itree_ahead.c: reading without i_rwsem */
int ext4_itree_relax(struct inode *dir);
bool ext4_itree_in_memory(struct inode *dir, ext4_lblk_t block);
int ext4_itree_load(struct inode *dir, ext4_lblk_t block,
		    struct buffer_head **pin);
void ext4_itree_load_inode(struct inode *dir, u32 ino);

/* itree_ahead.c: reading ahead */
void ext4_itree_ahead_range(struct inode *dir, ext4_lblk_t first, u32 count);
void ext4_itree_ahead_dir(struct inode *dir, u32 tree_blocks);
void ext4_itree_ahead_tree(struct inode *dir, u32 tree_blocks);
bool ext4_itree_dir_kept(struct inode *dir);
void ext4_itree_keep_dir(struct inode *dir);
u32 ext4_itree_ahead_limit(void);
unsigned long ext4_itree_memory(void);
bool ext4_itree_make_room(struct super_block *sb, unsigned int inodes);
u32 ext4_itree_ahead_inodes(struct super_block *sb, const u32 *ino, u32 nr,
			    size_t stride, u32 blocks);
struct buffer_head *ext4_itree_cached_itable(struct super_block *sb, u32 ino);

/* itree_sweep.c */
void ext4_itree_start_tree(struct inode *dir);
u32 ext4_itree_take_inodes(struct inode *dir, u64 *next, u32 *inodes, u32 max,
			   u32 group);

/* itree_dentry.c */
bool ext4_itree_inode_busy(struct super_block *sb, u32 ino);

#endif /* _EXT4_ITREE_GLUE_H */
