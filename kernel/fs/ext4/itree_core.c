// SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only
/*
 * itree core: nodes, their checks, opening, searching, iterating.
 *
 * Nothing read from the device is trusted before it is checked.  A node is
 * checked on its own when it comes into memory (itree_check_node) and against
 * its parent each time a descent goes through it (itree_read_child).  Each step
 * of a descent goes one level down, so it cannot run in circles.  A walk passes
 * at most as many keys as the root counts, and the root cannot count more than
 * fit into its blocks, so no walk can run for ever.
 */
#include "itree_node.h"

/* Records the broken rule for the caller's message.  Returns -ITREE_CORRUPT. */
int itree_corrupt(struct itree *t, const char *why, u32 lblk)
{
	t->why = why;
	t->why_lblk = lblk;
	return -ITREE_CORRUPT;
}

/**
 * itree_limit - entries that fit into a node
 * @block_size: bytes
 * @root: the root holds struct itree_root_info as well
 * @level: 0 for leaves
 */
u32 itree_limit(u32 block_size, bool root, u32 level)
{
	u32 room = block_size - sizeof(struct itree_head) -
		   sizeof(struct itree_tail);

	if (root)
		room -= sizeof(struct itree_root_info);
	return room / level_entry_size(level);
}

/* Returns the tail, which holds the checksum, of the node at @data. */
struct itree_tail *itree_tail(void *data, u32 block_size)
{
	return (struct itree_tail *)((char *)data + block_size) - 1;
}

/**
 * itree_hash_key - a key's share of the content hash
 * @key: of the name
 *
 * The content hash of a tree or directory is the sum of its keys' shares
 * modulo 2^64, so it does not depend on their order.  The mixing is the
 * finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
 */
u64 itree_hash_key(u64 key)
{
	key += 0x9e3779b97f4a7c15ULL;
	key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9ULL;
	key = (key ^ (key >> 27)) * 0x94d049bb133111ebULL;
	return key ^ (key >> 31);
}

void itree_put(struct itree *t, struct itree_buf *b)
{
	if (b->data)
		t->ops->release(t, b);
	itree_buf_clear(b);
}

/* Makes @b an empty node.  The caller has write access. */
void itree_node_init(struct itree *t, struct itree_buf *b, u32 magic,
		     u32 level)
{
	struct itree_head *h = b->data;

	memset(b->data, 0, t->block_size);
	h->h_magic = cpu_to_le32(magic);
	h->h_version = ITREE_VERSION;
	h->h_level = level;
	if (magic == ITREE_MAGIC)
		h->h_limit = cpu_to_le16(itree_limit(t->block_size,
						     node_is_root(b), level));
}

/*
 * Hands a changed node to the journal.  Returns @err, an earlier failure of the
 * same change, if it is set, so that calls can be chained.  A failure here
 * leaves the tree torn, as blocks have already changed in memory.
 */
int itree_node_dirty(struct itree *t, struct itree_buf *b, int err)
{
	int ret = t->ops->dirty(t, b);

	if (ret)
		t->torn = true;
	return err ? err : ret;
}

static bool lblk_in_segment(u32 lblk, u32 blocks)
{
	return lblk > ITREE_SEG_START && lblk - ITREE_SEG_START < blocks;
}

static int check_root_info(struct itree *t, const struct itree_buf *b)
{
	const struct itree_root_info *info = node_info(b);
	u32 blocks = le32_to_cpu(info->r_blocks);
	u32 free_head = le32_to_cpu(info->r_free_head);
	u32 free_count = le32_to_cpu(info->r_free_count);
	u64 keys = le64_to_cpu(info->r_keys);

	if (!blocks || blocks > t->max_blocks)
		return itree_corrupt(t, "bad number of blocks", b->lblk);
	if (free_count >= blocks || !free_count != !free_head ||
	    (free_head && !lblk_in_segment(free_head, blocks)))
		return itree_corrupt(t, "bad free list in root", b->lblk);
	if (keys > (u64)(blocks - free_count) *
		   itree_limit(t->block_size, false, 0))
		return itree_corrupt(t, "bad number of keys", b->lblk);
	if (!node_level(b) && keys != node_count(b))
		return itree_corrupt(t, "root leaf does not hold all keys",
				     b->lblk);
	return 0;
}

static int check_root_reserved(struct itree *t, const struct itree_buf *b)
{
	const struct itree_root_info *info = node_info(b);
	unsigned int i;

	for (i = 0; i < sizeof(info->r_reserved); i++)
		if (info->r_reserved[i])
			return itree_corrupt(t, "reserved field set", b->lblk);
	return 0;
}

static int check_order(struct itree *t, const struct itree_buf *b)
{
	u32 count = node_count(b), i;
	u64 last = 0, key;

	for (i = 0; i < count; i++) {
		key = node_key(b, i);
		if (node_level(b) && !i && key)
			return itree_corrupt(t, "first index key is not 0",
					     b->lblk);
		if (key < last)
			return itree_corrupt(t, "keys out of order", b->lblk);
		last = key;
	}
	return 0;
}

/* Checks the cheap rules, even for a block that has passed before. */
static int check_head(struct itree *t, const struct itree_buf *b)
{
	const struct itree_head *h = node_head(b);
	u32 level = h->h_level;

	if (le32_to_cpu(h->h_magic) != ITREE_MAGIC)
		return itree_corrupt(t, "bad magic number", b->lblk);
	if (h->h_version != ITREE_VERSION)
		return itree_corrupt(t, "unknown format version", b->lblk);
	if (level >= ITREE_MAX_DEPTH)
		return itree_corrupt(t, "too many levels", b->lblk);
	if (h->h_reserved || h->h_next ||
	    itree_tail(b->data, t->block_size)->t_reserved)
		return itree_corrupt(t, "reserved field set", b->lblk);
	if (node_limit(b) != itree_limit(t->block_size, node_is_root(b), level))
		return itree_corrupt(t, "bad limit", b->lblk);
	if (node_count(b) > node_limit(b))
		return itree_corrupt(t, "more entries than fit", b->lblk);
	if (!node_count(b) && (level || !node_is_root(b)))
		return itree_corrupt(t, "empty node", b->lblk);
	return node_is_root(b) ? check_root_info(t, b) : 0;
}

/**
 * itree_check_node - check a node in use, without its parent
 * @t: open tree, or one that is being opened when @buf is the root
 * @buf: node whose checksum has been verified
 *
 * Costs a pass over the entries, so do it once for a block that stays in
 * memory.  Returns 0 or -ITREE_CORRUPT.
 */
int itree_check_node(struct itree *t, const struct itree_buf *buf)
{
	int err = check_head(t, buf);

	if (!err && node_is_root(buf))
		err = check_root_reserved(t, buf);
	return err ? err : check_order(t, buf);
}

static int check_or_put(struct itree *t, struct itree_buf *b, int err)
{
	if (err)
		itree_put(t, b);
	return err;
}

/*
 * Reads and checks a node in use.  On success the caller releases @b; on
 * failure there is nothing to release.
 */
int itree_read_node(struct itree *t, u32 lblk, struct itree_buf *b)
{
	int ret;

	itree_buf_clear(b);
	b->lblk = lblk;
	ret = t->ops->read(t, lblk, b);
	if (ret < 0) {
		itree_buf_clear(b);
		return ret;
	}
	/*
	 * In a bad tree, a block that passed the checks may since have been
	 * freed through another pointer to it.
	 */
	if (ret)
		return check_or_put(t, b, check_head(t, b));
	ret = check_or_put(t, b, itree_check_node(t, b));
	if (!ret && t->ops->checked)
		t->ops->checked(t, b);
	return ret;
}

/* Reads and checks a node of the free list, as itree_read_node() does. */
int itree_read_free(struct itree *t, u32 lblk, struct itree_buf *b)
{
	u32 blocks = le32_to_cpu(node_info(&t->root)->r_blocks);
	const struct itree_head *h;
	u32 next;
	int ret;

	if (!lblk_in_segment(lblk, blocks))
		return itree_corrupt(t, "free list leaves the segment",
				     ITREE_SEG_START);
	itree_buf_clear(b);
	b->lblk = lblk;
	ret = t->ops->read(t, lblk, b);
	if (ret < 0) {
		itree_buf_clear(b);
		return ret;
	}
	h = node_head(b);
	next = le32_to_cpu(h->h_next);
	if (le32_to_cpu(h->h_magic) != ITREE_FREE_MAGIC ||
	    h->h_version != ITREE_VERSION || h->h_level || h->h_count ||
	    h->h_limit || h->h_reserved ||
	    itree_tail(b->data, t->block_size)->t_reserved ||
	    (next && !lblk_in_segment(next, blocks))) {
		itree_put(t, b);
		return itree_corrupt(t, "bad node in free list", lblk);
	}
	return 0;
}

static void itree_init(struct itree *t, const struct itree_ops *ops,
		       void *priv, u32 block_size, u32 max_blocks)
{
	memset(t, 0, sizeof(*t));
	t->ops = ops;
	t->priv = priv;
	t->block_size = block_size;
	t->max_blocks = max_blocks;
	if (t->max_blocks > ITREE_SEG_MAX)
		t->max_blocks = ITREE_SEG_MAX;
}

static bool bad_block_size(u32 block_size)
{
	return block_size < ITREE_MIN_BLOCK || block_size > ITREE_MAX_BLOCK ||
	       (block_size & (block_size - 1));
}

/**
 * itree_open - open the tree of a directory
 * @t: filled in; itree_close() it after success
 * @ops: block operations
 * @priv: for the operations, in t->priv
 * @block_size: bytes
 * @max_blocks: most blocks the segment can have (those the directory owns)
 *
 * Reads and checks the root.  Returns 0 or a negative error; after a failure
 * t->why is set if the root is corrupt.
 */
int itree_open(struct itree *t, const struct itree_ops *ops, void *priv,
	       u32 block_size, u32 max_blocks)
{
	itree_init(t, ops, priv, block_size, max_blocks);
	if (bad_block_size(block_size))
		return -EINVAL;
	return itree_read_node(t, ITREE_SEG_START, &t->root);
}

/**
 * itree_format - make an empty tree and open it
 * @t: filled in; itree_close() it after success
 * @ops: block operations
 * @priv: for the operations, in t->priv
 * @block_size: bytes
 * @max_blocks: most blocks the segment can have
 * @hash_version: of the directory's htree, kept in the root
 *
 * The other arguments are those of itree_open().  The root block is mapped if
 * it is not yet.  Returns 0 or a negative error.
 */
int itree_format(struct itree *t, const struct itree_ops *ops, void *priv,
		 u32 block_size, u32 max_blocks, u8 hash_version)
{
	struct itree_root_info *info;
	int err;

	itree_init(t, ops, priv, block_size, max_blocks);
	if (bad_block_size(block_size))
		return -EINVAL;
	t->root.lblk = ITREE_SEG_START;
	err = ops->grow(t, ITREE_SEG_START, &t->root);
	if (err) {
		itree_buf_clear(&t->root);
		return err;
	}
	itree_node_init(t, &t->root, ITREE_MAGIC, 0);
	info = node_info(&t->root);
	info->r_blocks = cpu_to_le32(1);
	info->r_hash_version = hash_version;
	err = itree_node_dirty(t, &t->root, 0);
	if (err)
		itree_close(t);
	return err;
}

/* Releases the buffers of an open tree. */
void itree_close(struct itree *t)
{
	itree_put(t, &t->root);
}

/* Reports the contents of the root of an open tree. */
void itree_get_info(struct itree *t, struct itree_info *info)
{
	const struct itree_root_info *r = node_info(&t->root);

	info->keys = le64_to_cpu(r->r_keys);
	info->blocks = le32_to_cpu(r->r_blocks);
	info->free_count = le32_to_cpu(r->r_free_count);
	info->free_head = le32_to_cpu(r->r_free_head);
	info->depth = node_level(&t->root) + 1;
	info->hash_version = r->r_hash_version;
}

/*
 * Finds where @key belongs in a node.  In a leaf, that is the first entry not
 * below @key (ITREE_FIRST) or above it (ITREE_AFTER), or the count.  In an
 * index node, it is the child that a descent for @key enters.
 */
u32 itree_node_search(const struct itree_buf *b, u64 key, enum itree_side side)
{
	u32 index = node_level(b) ? 1 : 0;
	u32 lo = index, hi = node_count(b);
	u32 mid = hi - 1;	/* try the last first: most keys are appended */

	for (; lo < hi; mid = lo + (hi - lo) / 2) {
		u64 k = node_key(b, mid);

		if (k < key || (k == key && side == ITREE_AFTER))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo - index;
}

/*
 * Reads the child below cur->step[level] and checks that it fits there: its
 * level, and that its keys lie between the separators around it.
 */
int itree_read_child(struct itree_cursor *cur, u32 level)
{
	struct itree_step *up = &cur->step[level], *down = up - 1;
	struct itree *t = cur->t;
	u32 blocks = le32_to_cpu(node_info(&t->root)->r_blocks);
	u32 lblk = node_child(&up->buf, up->pos);
	u32 count, first;
	int err;

	if (!lblk_in_segment(lblk, blocks))
		return itree_corrupt(t, "child outside the segment",
				     up->buf.lblk);
	err = itree_read_node(t, lblk, &down->buf);
	if (err)
		return err;
	count = node_count(&down->buf);
	down->pos = 0;
	down->lo = up->pos ? node_key(&up->buf, up->pos) : up->lo;
	down->hi = up->pos + 1 < node_count(&up->buf) ?
		   node_key(&up->buf, up->pos + 1) : up->hi;
	if (node_level(&down->buf) != level - 1) {
		err = itree_corrupt(t, "child on the wrong level", lblk);
		goto fail;
	}
	/* The first key of an index node has no meaning. */
	first = level - 1 ? 1 : 0;
	if (count > first && (node_key(&down->buf, first) < down->lo ||
			      node_key(&down->buf, count - 1) > down->hi)) {
		err = itree_corrupt(t, "keys outside their parent's bounds",
				    lblk);
		goto fail;
	}
	return 0;
fail:
	itree_put(t, &down->buf);
	return err;
}

/**
 * itree_cursor_release - release the blocks that a cursor holds
 * @cur: cursor
 *
 * Call it after every seek, whatever that returned.  Further calls are
 * harmless.
 */
void itree_cursor_release(struct itree_cursor *cur)
{
	u32 i;

	for (i = 0; i < cur->level; i++)
		itree_put(cur->t, &cur->step[i].buf);
	cur->level = 0;
	itree_buf_clear(&cur->step[0].buf);
}

/* Descends from the root to the leaf for @key and to its place in there. */
int itree_descend(struct itree *t, u64 key, enum itree_side side,
		  struct itree_cursor *cur)
{
	struct itree_step *s;
	u32 level;
	int err;

	memset(cur, 0, sizeof(*cur));
	cur->t = t;
	/* The root is held since the open: a hostile image may share it. */
	err = check_head(t, &t->root);
	if (err)
		return err;
	cur->level = node_level(&t->root);
	s = &cur->step[cur->level];
	s->buf = t->root;
	s->hi = ~0ULL;
	for (level = cur->level; level; level--) {
		s = &cur->step[level];
		s->pos = itree_node_search(&s->buf, key, side);
		err = itree_read_child(cur, level);
		if (err) {
			itree_cursor_release(cur);
			return err;
		}
	}
	cur->step[0].pos = itree_node_search(&cur->step[0].buf, key, side);
	return 0;
}

/*
 * Moves from behind the last entry of a leaf to the first entry of the next
 * leaf.
 */
static int next_leaf(struct itree_cursor *cur)
{
	u32 level;
	int err;

	for (level = 1; level <= cur->level; level++)
		if (cur->step[level].pos + 1 <
		    node_count(&cur->step[level].buf))
			break;
	if (level > cur->level)
		return ITREE_END;
	cur->step[level].pos++;
	for (; level; level--) {
		itree_put(cur->t, &cur->step[level - 1].buf);
		err = itree_read_child(cur, level);
		if (err)
			return err;
	}
	return 0;
}

/**
 * itree_seek - find the first key not below @key
 * @t: open tree
 * @key: to look for
 * @cur: filled in; call itree_cursor_release() in any case
 *
 * Returns 0, ITREE_END if all keys are below @key, or a negative error.  The
 * cursor is valid until the tree is modified or closed.
 */
int itree_seek(struct itree *t, u64 key, struct itree_cursor *cur)
{
	int ret = itree_descend(t, key, ITREE_FIRST, cur);

	if (!ret && cur->step[0].pos >= node_count(&cur->step[0].buf))
		ret = next_leaf(cur);
	return ret;
}

/**
 * itree_next - go to the next key
 * @cur: cursor on a key
 *
 * Returns 0, ITREE_END behind the last key, or a negative error.
 */
int itree_next(struct itree_cursor *cur)
{
	struct itree *t = cur->t;

	/* A walk in circles would return more keys than the tree has. */
	if (++cur->steps > le64_to_cpu(node_info(&t->root)->r_keys))
		return itree_corrupt(t, "more keys than the root counts",
				     ITREE_SEG_START);
	if (++cur->step[0].pos < node_count(&cur->step[0].buf))
		return 0;
	return next_leaf(cur);
}

/* Returns the key under a cursor for which seek or next returned 0. */
u64 itree_cursor_key(const struct itree_cursor *cur)
{
	return node_key(&cur->step[0].buf, cur->step[0].pos);
}

/**
 * itree_last - find the largest key
 * @t: open tree
 * @key: set on success
 *
 * Returns 0, ITREE_END if the tree is empty, or a negative error.
 */
int itree_last(struct itree *t, u64 *key)
{
	struct itree_cursor cur;
	u32 count;
	int ret;

	ret = itree_descend(t, ~0ULL, ITREE_AFTER, &cur);
	if (ret)
		return ret;
	count = node_count(&cur.step[0].buf);
	if (count)
		*key = node_key(&cur.step[0].buf, count - 1);
	itree_cursor_release(&cur);
	return count ? 0 : ITREE_END;
}
