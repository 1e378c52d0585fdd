/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A block device in memory behind struct itree_ops.
 *
 * It keeps a checksum with each block, can fail the n-th call of a kind, and
 * watches how the core uses it: a block changed without write access, changed
 * but not passed to dirty, used after its release (its memory is poisoned for
 * ASan then), released twice or never.  Misuse stops the test at once.
 */
#ifndef MEM_H
#define MEM_H

#include "itree_core.h"

enum mem_op { MEM_READ, MEM_GROW, MEM_ACCESS, MEM_DIRTY, MEM_ALLOC, MEM_OPS };

extern const char *const mem_op_name[MEM_OPS];

struct mem_block {
	u8 *data; /* NULL: not mapped */
	u8 *shadow; /* as last handed out or passed to dirty */
	u32 refs;
	bool granted; /* may be modified in this operation */
	bool grown; /* by this operation */
	bool verified; /* passed the core's checks */
	bool touched; /* is in mem_dev.touched */
};

struct mem_handle {
	u32 block;
	u32 generation;
	bool live;
};

struct mem_dev {
	u32 block_size;
	u32 nblocks; /* length of block[] */
	struct mem_block *block;
	struct mem_handle *handle;
	u32 nhandles;
	u32 live_handles;
	u32 live_allocs;
	u32 *touched;
	u32 ntouched;
	u32 touched_room;

	/* set by tests */
	u64 fail_at[MEM_OPS]; /* this call fails; 0: none */
	bool fail_on; /* so do those after it */
	u32 grow_limit; /* as many blocks can be mapped */
	bool no_write; /* grow, access and dirty are misuse */
	bool no_grow; /* grow is misuse */
	bool always_check; /* read never says "verified" */
	u64 share_at; /* at this access the block changes; 0: never */
	u32 share_kind; /* how: see mem_share() */

	/* read by tests */
	u64 calls[MEM_OPS];
	u64 failed; /* failures injected */
	u64 relaxed; /* times that others could have run */
};

extern const struct itree_ops mem_ops; /* with ->checked */
extern const struct itree_ops mem_ops_plain; /* without */

void mem_init(struct mem_dev *d, u32 block_size);
void mem_exit(struct mem_dev *d);
void mem_clear_faults(struct mem_dev *d);

/*
 * Ends an operation of the core: checks that everything modified was passed
 * to dirty, and takes back write access.  @held: bufs that may still be held,
 * 1 for the root of an open tree.  @blocks: the tree's high-water mark;
 * blocks above it may be half done.
 */
void mem_end_op(struct mem_dev *d, u32 held, u32 blocks);
/* The same after an operation that tore the tree. */
void mem_end_torn(struct mem_dev *d, u32 held);

/*
 * Raw access for tests that look at or damage blocks; NULL if not mapped.
 * After changes mem_poke_done() sets the checksum and has the block checked
 * again.
 */
u8 *mem_peek(struct mem_dev *d, u32 lblk);
u8 *mem_poke(struct mem_dev *d, u32 lblk);
void mem_poke_done(struct mem_dev *d, u32 lblk);
/*
 * Changes a node as another directory of a hostile image does that has the
 * block, too, and another lock.  @kind: below MEM_SHARES.
 */
#define MEM_SHARES 9
extern const char *const mem_share_name[MEM_SHARES];
void mem_share(u8 *data, u32 kind);
/* Maps a block and fills it with @fill. */
u8 *mem_map(struct mem_dev *d, u32 lblk, u8 fill);
/* All blocks count as fresh from disk again. */
void mem_drop_caches(struct mem_dev *d);

/* All contents, to compare with and to go back to. */
struct mem_snap {
	u32 block_size;
	u32 nblocks;
	u8 *data;
	bool *mapped;
};

void mem_snap(struct mem_dev *d, struct mem_snap *s);
void mem_restore(struct mem_dev *d, const struct mem_snap *s);
/* The first @blocks blocks are as they were?  Returns the first that is not,
 * or @blocks.
 */
u32 mem_compare(struct mem_dev *d, const struct mem_snap *s, u32 blocks);
void mem_snap_free(struct mem_snap *s);

#endif /* MEM_H */
