/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A tree on a memory device next to a sorted array that it must agree with,
 * a second opinion on what a valid tree is (written from itree_format.h, not
 * from the core), and a maker of trees of any shape.
 */
#ifndef TREE_H
#define TREE_H

#include "itree_core.h"
#include "mem.h"

/* A multiset of keys, sorted. */
struct model {
	u64 *key;
	size_t n;
	size_t room;
};

size_t model_lower(const struct model *m, u64 key);
void model_insert(struct model *m, u64 key);
bool model_delete(struct model *m, u64 key);
void model_free(struct model *m);

struct tree {
	struct mem_dev d;
	struct itree t;
	struct model m;
	bool open;
};

#define ROOMY (1U << 20) /* blocks: never the limit in these tests */

void tree_format(struct tree *x, u32 block_size, u32 max_blocks);
/* Takes a device that something else has filled; keys go to the model. */
void tree_open(struct tree *x, u32 max_blocks);
void tree_close(struct tree *x); /* and frees device and model */

u32 tree_blocks(struct tree *x);
void tree_end_op(struct tree *x);
void tree_reserve(struct tree *x, u32 inserts);
void tree_insert(struct tree *x, u64 key); /* reserves first */
void tree_insert_reserved(struct tree *x, u64 key); /* must not grow */
void tree_delete(struct tree *x, u64 key);

/* Bulk loads keys from an array; the arg of bulk_next is struct bulk_keys. */
struct bulk_keys {
	const u64 *key;
	size_t n;
	size_t at;
	size_t fail_at; /* this call returns fail_err */
	int fail_err;
};

int bulk_next(void *arg, u64 *key);
/* Replaces the contents by those of the model. */
void tree_bulk(struct tree *x);

void tree_check_info(struct tree *x); /* root against model */
void tree_check_verify(struct tree *x); /* itree_verify() against model */
void tree_check_scan(struct tree *x); /* seek and next against model */
void tree_check_seek(struct tree *x, u64 key);
void tree_check_oracle(struct tree *x); /* the second opinion */
void tree_check(struct tree *x); /* all of them */

struct oracle {
	const char *why; /* rule broken, or NULL */
	u32 lblk;
	struct model m; /* keys in the order found */
	u32 nodes;
	u32 leaves;
	u32 free_count;
	u32 depth;
	u64 leaf_slots;
	u8 *seen;
};

/* Returns o->why. */
const char *oracle_check(struct mem_dev *d, u32 max_blocks, struct oracle *o);
void oracle_free(struct oracle *o);

/*
 * Shape of a made tree: one path from the root to a leaf with given counts,
 * the nodes next to it with others, all further nodes with one entry.
 */
enum craft_side { CRAFT_FIRST, CRAFT_MIDDLE, CRAFT_LAST };

struct craft {
	u32 block_size;
	u32 depth;
	enum craft_side side;
	u32 path[ITREE_MAX_DEPTH]; /* counts by level; 0: limit */
	u32 near[ITREE_MAX_DEPTH]; /* 0: limit */
	u32 spare; /* nodes on the free list */
	bool equal; /* all keys are the same */
};

#define CRAFT_KEY(n) ITREE_KEY(100 + (n), 0x80000000U)

/*
 * Writes the tree to the fresh device @d and its keys to @m.  Returns the
 * index of the first key of the leaf on the path; *@count: how many it has.
 */
size_t craft_tree(struct mem_dev *d, const struct craft *c, struct model *m,
		  u32 *count);
/* The same into a fixture, opened. */
size_t tree_craft(struct tree *x, const struct craft *c, u32 *count);

#endif /* TREE_H */
