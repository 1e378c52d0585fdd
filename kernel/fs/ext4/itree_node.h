/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/* The core's own view of a node; not for users of the core. */
#ifndef ITREE_NODE_H
#define ITREE_NODE_H

#include "itree_core.h"

static inline struct itree_head *node_head(const struct itree_buf *b)
{
	return b->data;
}

static inline struct itree_root_info *node_info(const struct itree_buf *b)
{
	return (struct itree_root_info *)(node_head(b) + 1);
}

static inline bool node_is_root(const struct itree_buf *b)
{
	return b->lblk == ITREE_SEG_START;
}

static inline u32 node_level(const struct itree_buf *b)
{
	return node_head(b)->h_level;
}

static inline u32 node_count(const struct itree_buf *b)
{
	return le16_to_cpu(node_head(b)->h_count);
}

static inline u32 node_limit(const struct itree_buf *b)
{
	return le16_to_cpu(node_head(b)->h_limit);
}

/* The same for a node that may change: forces a single read. */
static inline u32 node_count_once(const struct itree_buf *b)
{
	return le16_to_cpu(READ_ONCE(node_head(b)->h_count));
}

static inline void node_set_count(struct itree_buf *b, u32 count)
{
	node_head(b)->h_count = cpu_to_le16(count);
}

static inline void *node_entries(const struct itree_buf *b)
{
	if (node_is_root(b))
		return node_info(b) + 1;
	return node_head(b) + 1;
}

static inline size_t level_entry_size(u32 level)
{
	return level ? sizeof(struct itree_index_entry) :
		       sizeof(struct itree_leaf_entry);
}

static inline void *node_entry(const struct itree_buf *b, u32 pos)
{
	return (char *)node_entries(b) + pos * level_entry_size(node_level(b));
}

/* Leaf and index entries both begin with the key. */
static inline u64 node_key(const struct itree_buf *b, u32 pos)
{
	const struct itree_leaf_entry *e = node_entry(b, pos);

	return ITREE_KEY(le32_to_cpu(e->l_ino), le32_to_cpu(e->l_hash));
}

static inline void node_set_key(struct itree_buf *b, u32 pos, u64 key)
{
	struct itree_leaf_entry *e = node_entry(b, pos);

	e->l_ino = cpu_to_le32(ITREE_KEY_INO(key));
	e->l_hash = cpu_to_le32(ITREE_KEY_HASH(key));
}

static inline u32 node_child(const struct itree_buf *b, u32 pos)
{
	const struct itree_index_entry *e = node_entry(b, pos);

	return le32_to_cpu(e->i_child);
}

static inline void node_set_child(struct itree_buf *b, u32 pos, u32 lblk)
{
	struct itree_index_entry *e = node_entry(b, pos);

	e->i_child = cpu_to_le32(lblk);
}

static inline void itree_buf_clear(struct itree_buf *b)
{
	b->data = NULL;
	b->priv = NULL;
}

int itree_corrupt(struct itree *t, const char *why, u32 lblk);
void itree_put(struct itree *t, struct itree_buf *b);
void itree_node_init(struct itree *t, struct itree_buf *b, u32 magic,
		     u32 level);
int itree_read_node(struct itree *t, u32 lblk, struct itree_buf *b);
int itree_read_free(struct itree *t, u32 lblk, struct itree_buf *b);
int itree_read_child(struct itree_cursor *cur, u32 level);
int itree_node_dirty(struct itree *t, struct itree_buf *b, int err);
int itree_node_put_entry(struct itree *t, struct itree_buf *b, u32 level,
			 u32 pos, u64 key, u32 child);

/* The one of equal keys that a descent looks for. */
enum itree_side { ITREE_FIRST, ITREE_AFTER };

u32 itree_node_search(const struct itree_buf *b, u64 key,
		      enum itree_side side);
int itree_descend(struct itree *t, u64 key, enum itree_side side,
		  struct itree_cursor *cur);

#endif /* ITREE_NODE_H */
