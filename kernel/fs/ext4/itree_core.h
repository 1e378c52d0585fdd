/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/*
 * The itree algorithms: one source for fs/ext4, libext2fs and the unit tests.
 * The core reaches blocks only through struct itree_ops and allocates memory
 * only through it, knows nothing of journals or devices, and takes no locks.
 *
 * Locking: callers serialise.  Any number of readers (seek, next, last,
 * verify) may run at once; format, bulk load, reserve, insert and delete need
 * the tree to themselves.
 *
 * Errors are negative errno values.  -ITREE_CORRUPT means that a block breaks
 * a rule of the format; t->why and t->why_lblk then hold the rule and the
 * block.  A modifying call that fails has left the tree as it was, unless
 * t->torn is set: then the caller must stop using the tree and drop it.
 */
#ifndef ITREE_CORE_H
#define ITREE_CORE_H

#include "itree_format.h"

/* Answer of seek, next and last when there is no (further) key. */
#define ITREE_END	1

/* A key: inode number in the upper, hash in the lower 32 bits. */
#define ITREE_KEY(ino, hash)	(((u64)(ino) << 32) | (u32)(hash))
#define ITREE_KEY_INO(key)	((u32)((key) >> 32))
#define ITREE_KEY_HASH(key)	((u32)(key))

struct itree;

/* One block in memory.  data and priv belong to read() or grow(). */
struct itree_buf {
	void	*data;		/* block_size bytes, or NULL: empty buf */
	void	*priv;		/* for the block operations */
	u32	lblk;		/* logical block in the directory */
};

/*
 * Operations that the embedding code provides.
 *
 * read:    fill @buf with logical block @lblk.  Verifies the checksum.
 *          Returns 0 for a block not checked since it was read from disk,
 *          1 for one that has passed itree's checks since (then the order of
 *          its entries is not checked again).
 * checked: may be NULL; called when @buf has passed the checks.
 * grow:    map @lblk, unless it is mapped already, and fill @buf with a zeroed
 *          block that may be modified at once.
 * access:  @buf is about to be modified (journal write access).  Must not
 *          change anything visible.
 * dirty:   @buf was modified: set its checksum and pass it to the journal.
 * release: undo read or grow.
 * alloc, free: zeroed memory for itree_verify().
 * relax:   may be NULL.  itree_verify() calls it for each node, so that the
 *          caller can let other tasks run.  In a bulk load, "next" can do that.
 */
struct itree_ops {
	int	(*read)(struct itree *t, u32 lblk, struct itree_buf *buf);
	void	(*checked)(struct itree *t, struct itree_buf *buf);
	int	(*grow)(struct itree *t, u32 lblk, struct itree_buf *buf);
	int	(*access)(struct itree *t, struct itree_buf *buf);
	int	(*dirty)(struct itree *t, struct itree_buf *buf);
	void	(*release)(struct itree *t, struct itree_buf *buf);
	void	*(*alloc)(struct itree *t, size_t bytes);
	void	(*free)(struct itree *t, void *mem);
	void	(*relax)(struct itree *t);
};

/* An open tree.  All fields but ops, priv and max_blocks belong to the core. */
struct itree {
	const struct itree_ops *ops;
	void		*priv;		/* for the block operations */
	u32		block_size;	/* bytes, a power of two */
	u32		max_blocks;	/* most blocks the segment can have */
	struct itree_buf root;
	bool		torn;		/* a failed call left the tree broken */
	const char	*why;		/* rule that was broken, or NULL */
	u32		why_lblk;	/* in this block */
	u32		splits;		/* nodes split since open */
	u32		merges;		/* nodes merged or removed since open */
};

/* Contents of the root. */
struct itree_info {
	u64	keys;
	u32	blocks;		/* of the segment, root and free nodes included */
	u32	free_count;
	u32	free_head;	/* logical block or 0 */
	u32	depth;		/* levels, 1 = the root is a leaf */
	u8	hash_version;
};

struct itree_step {
	struct itree_buf buf;	/* the root's is borrowed from struct itree */
	u32	pos;		/* entry in this node */
	u64	lo;		/* keys below this node lie in lo..hi */
	u64	hi;
};

/* A position in the tree: one step per level, step[0] is the leaf. */
struct itree_cursor {
	struct itree	*t;
	u32		level;		/* of the root */
	u64		steps;		/* keys passed: bounds hostile trees */
	struct itree_step step[ITREE_MAX_DEPTH];
};

/* Result of itree_verify(). */
struct itree_report {
	u64	keys;
	u64	hash;		/* itree_hash_key() of all keys, summed */
	u32	leaves;
	u32	nodes;		/* leaves and index nodes, root included */
	u32	free_count;
	u32	depth;
	u64	leaf_slots;	/* entries that would fit in the leaves */
	u64	first;		/* smallest and largest key, if keys > 0 */
	u64	last;
};

u32 itree_limit(u32 block_size, bool root, u32 level);
struct itree_tail *itree_tail(void *data, u32 block_size);
u64 itree_hash_key(u64 key);
int itree_check_node(struct itree *t, const struct itree_buf *buf);

int itree_open(struct itree *t, const struct itree_ops *ops, void *priv,
	       u32 block_size, u32 max_blocks);
int itree_format(struct itree *t, const struct itree_ops *ops, void *priv,
		 u32 block_size, u32 max_blocks, u8 hash_version);
void itree_close(struct itree *t);
void itree_get_info(struct itree *t, struct itree_info *info);

int itree_seek(struct itree *t, u64 key, struct itree_cursor *cur);
int itree_next(struct itree_cursor *cur);
u64 itree_cursor_key(const struct itree_cursor *cur);
void itree_cursor_release(struct itree_cursor *cur);
int itree_last(struct itree *t, u64 *key);

bool itree_has_room(struct itree *t);
int itree_reserve(struct itree *t, u32 inserts);
int itree_insert(struct itree *t, u64 key);
int itree_delete(struct itree *t, u64 key);

int itree_bulk_load(struct itree *t, u64 keys,
		    int (*next)(void *arg, u64 *key), void *arg);
u64 itree_bulk_blocks(u32 block_size, u64 keys);

int itree_verify(struct itree *t, struct itree_report *report);

#endif /* ITREE_CORE_H */
