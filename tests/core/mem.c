// SPDX-License-Identifier: GPL-2.0-only
/* A block device in memory that watches how the core uses it. */
#include <sanitizer/asan_interface.h>

#include "mem.h"
#include "test.h"

#define MISUSE(...) test_fail(__FILE__, __LINE__, "API misuse: " __VA_ARGS__)

const char *const mem_op_name[MEM_OPS] = { "read", "grow", "access", "dirty",
					   "alloc" };

/* Cheap, and position dependent. */
static u32 block_csum(const u8 *data, u32 block_size, u32 lblk)
{
	const u32 words = block_size / 8 - 1;
	u64 sum = lblk + 1, w;
	u32 i;

	for (i = 0; i < words; i++) {
		memcpy(&w, data + (size_t)i * 8, 8);
		sum = (sum ^ w) * 0x9e3779b97f4a7c15ULL;
		sum ^= sum >> 29;
	}
	return (u32)(sum ^ (sum >> 32)) | 1;
}

static __le32 *csum_field(u8 *data, u32 block_size)
{
	return (__le32 *)(data + block_size - 4);
}

static u32 lblk_of(u32 idx)
{
	return ITREE_SEG_START + idx;
}

static void unpoison(struct mem_dev *d, struct mem_block *b)
{
	ASAN_UNPOISON_MEMORY_REGION(b->data, d->block_size);
}

/* A block nobody holds must not be looked at. */
static void repoison(struct mem_dev *d, struct mem_block *b)
{
	if (!b->refs)
		ASAN_POISON_MEMORY_REGION(b->data, d->block_size);
}

void mem_init(struct mem_dev *d, u32 block_size)
{
	memset(d, 0, sizeof(*d));
	d->block_size = block_size;
	d->grow_limit = ~0U;
}

static void unmap(struct mem_dev *d, struct mem_block *b)
{
	if (!b->data)
		return;
	unpoison(d, b);
	free(b->data);
	free(b->shadow);
	b->data = NULL;
	b->shadow = NULL;
}

void mem_exit(struct mem_dev *d)
{
	u32 i;

	if (d->live_handles)
		MISUSE("%u bufs leaked", d->live_handles);
	if (d->live_allocs)
		MISUSE("%u allocations leaked", d->live_allocs);
	for (i = 0; i < d->nblocks; i++)
		unmap(d, &d->block[i]);
	free(d->block);
	free(d->handle);
	free(d->touched);
	memset(d, 0, sizeof(*d));
}

void mem_clear_faults(struct mem_dev *d)
{
	memset(d->fail_at, 0, sizeof(d->fail_at));
	memset(d->calls, 0, sizeof(d->calls));
	d->fail_on = false;
	d->failed = 0;
}

static bool inject(struct mem_dev *d, enum mem_op op)
{
	u64 call = ++d->calls[op], at = d->fail_at[op];

	if (at && (call == at || (d->fail_on && call > at))) {
		d->failed++;
		return true;
	}
	return false;
}

static void need_blocks(struct mem_dev *d, u32 n)
{
	if (n <= d->nblocks)
		return;
	n = n > 2 * d->nblocks ? n : 2 * d->nblocks;
	d->block = xrealloc(d->block, n * sizeof(*d->block));
	memset(d->block + d->nblocks, 0, (n - d->nblocks) * sizeof(*d->block));
	d->nblocks = n;
}

static void map(struct mem_dev *d, u32 idx)
{
	struct mem_block *b;

	need_blocks(d, idx + 1);
	b = &d->block[idx];
	if (b->data)
		return;
	b->data = xcalloc(1, d->block_size);
	b->shadow = xcalloc(1, d->block_size);
	repoison(d, b);
}

static void touch(struct mem_dev *d, u32 idx)
{
	if (d->block[idx].touched)
		return;
	d->block[idx].touched = true;
	if (d->ntouched == d->touched_room) {
		d->touched_room = d->touched_room * 2 + 16;
		d->touched = xrealloc(d->touched,
				      d->touched_room * sizeof(*d->touched));
	}
	d->touched[d->ntouched++] = idx;
}

static void hold(struct mem_dev *d, u32 idx, struct itree_buf *buf)
{
	struct mem_block *b = &d->block[idx];
	u32 h;

	for (h = 0; h < d->nhandles && d->handle[h].live; h++)
		;
	if (h == d->nhandles) {
		d->nhandles += 64;
		d->handle =
			xrealloc(d->handle, d->nhandles * sizeof(*d->handle));
		memset(d->handle + h, 0, 64 * sizeof(*d->handle));
	}
	d->handle[h].live = true;
	d->handle[h].block = idx;
	d->handle[h].generation++;
	d->live_handles++;
	b->refs++;
	unpoison(d, b);
	touch(d, idx);
	buf->data = b->data;
	buf->lblk = lblk_of(idx);
	buf->priv =
		(void *)((uintptr_t)d->handle[h].generation << 32 | (h + 1));
}

/* The handle of a buf that must be held. */
static struct mem_handle *held(struct mem_dev *d, const struct itree_buf *buf)
{
	uintptr_t v = (uintptr_t)buf->priv;
	u32 h = (u32)v - 1;

	if (!buf->data || !buf->priv)
		MISUSE("empty buf (block %#x)", buf->lblk);
	if (h >= d->nhandles || !d->handle[h].live ||
	    d->handle[h].generation != v >> 32)
		MISUSE("buf of block %#x used after its release", buf->lblk);
	if (lblk_of(d->handle[h].block) != buf->lblk ||
	    d->block[d->handle[h].block].data != buf->data)
		MISUSE("buf of block %#x was changed", buf->lblk);
	return &d->handle[h];
}

static u32 to_idx(struct itree *t, u32 lblk, const char *what)
{
	if (lblk < ITREE_SEG_START || (lblk != ITREE_SEG_START &&
				       lblk - ITREE_SEG_START >= t->max_blocks))
		MISUSE("%s of block %#x, outside the segment", what, lblk);
	return lblk - ITREE_SEG_START;
}

static int mem_read(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	struct mem_dev *d = t->priv;
	u32 idx = to_idx(t, lblk, "read");
	struct mem_block *b;

	if (inject(d, MEM_READ))
		return -EIO;
	if (idx >= d->nblocks || !d->block[idx].data)
		return -ENXIO;
	b = &d->block[idx];
	if (!b->verified && !b->touched) {
		u8 *data = b->data;
		bool bad;

		unpoison(d, b);
		bad = le32_to_cpu(*csum_field(data, d->block_size)) !=
		      block_csum(data, d->block_size, lblk);
		repoison(d, b);
		if (bad)
			return -EBADMSG;
	}
	hold(d, idx, buf);
	return b->verified && !d->always_check;
}

static void mem_checked(struct itree *t, struct itree_buf *buf)
{
	struct mem_dev *d = t->priv;

	d->block[held(d, buf)->block].verified = true;
}

static int mem_grow(struct itree *t, u32 lblk, struct itree_buf *buf)
{
	struct mem_dev *d = t->priv;
	u32 idx = to_idx(t, lblk, "grow");
	struct mem_block *b;

	if (d->no_write || d->no_grow)
		MISUSE("grow not expected here");
	if (inject(d, MEM_GROW) || idx >= d->grow_limit)
		return -ENOSPC;
	map(d, idx);
	b = &d->block[idx];
	if (b->refs)
		MISUSE("grow of block %#x, which is held", lblk);
	unpoison(d, b);
	memset(b->data, 0, d->block_size);
	memset(b->shadow, 0, d->block_size);
	b->verified = false;
	b->grown = true;
	hold(d, idx, buf);
	return 0;
}

static int mem_access(struct itree *t, struct itree_buf *buf)
{
	struct mem_dev *d = t->priv;
	struct mem_block *b = &d->block[held(d, buf)->block];

	if (d->no_write)
		MISUSE("access by a reader");
	if (inject(d, MEM_ACCESS))
		return -EROFS;
	if (!b->granted && !b->grown &&
	    memcmp(b->data, b->shadow, d->block_size))
		MISUSE("block %#x changed before access", buf->lblk);
	b->granted = true;
	if (d->calls[MEM_ACCESS] == d->share_at)
		mem_share(b->data, d->share_kind);
	return 0;
}

static int mem_dirty(struct itree *t, struct itree_buf *buf)
{
	struct mem_dev *d = t->priv;
	struct mem_block *b = &d->block[held(d, buf)->block];

	if (d->no_write)
		MISUSE("dirty by a reader");
	if (!b->granted && !b->grown)
		MISUSE("dirty of block %#x without access", buf->lblk);
	if (inject(d, MEM_DIRTY))
		return -EROFS;
	*csum_field(b->data, d->block_size) =
		cpu_to_le32(block_csum(b->data, d->block_size, buf->lblk));
	memcpy(b->shadow, b->data, d->block_size);
	return 0;
}

static void mem_release(struct itree *t, struct itree_buf *buf)
{
	struct mem_dev *d = t->priv;
	struct mem_handle *h = held(d, buf);
	struct mem_block *b = &d->block[h->block];

	h->live = false;
	d->live_handles--;
	b->refs--;
	repoison(d, b);
	/* Whoever relies on these after release shall notice. */
	buf->priv = NULL;
	buf->data = NULL;
}

static void *mem_alloc(struct itree *t, size_t bytes)
{
	struct mem_dev *d = t->priv;

	if (inject(d, MEM_ALLOC))
		return NULL;
	d->live_allocs++;
	return xcalloc(1, bytes);
}

static void mem_free(struct itree *t, void *mem)
{
	struct mem_dev *d = t->priv;

	if (!mem)
		return;
	if (!d->live_allocs)
		MISUSE("free without alloc");
	d->live_allocs--;
	free(mem);
}

static void mem_relax(struct itree *t)
{
	struct mem_dev *d = t->priv;

	d->relaxed++;
}

const struct itree_ops mem_ops = {
	.read = mem_read,
	.checked = mem_checked,
	.grow = mem_grow,
	.access = mem_access,
	.dirty = mem_dirty,
	.release = mem_release,
	.alloc = mem_alloc,
	.free = mem_free,
	.relax = mem_relax,
};

const struct itree_ops mem_ops_plain = {
	.read = mem_read,
	.grow = mem_grow,
	.access = mem_access,
	.dirty = mem_dirty,
	.release = mem_release,
	.alloc = mem_alloc,
	.free = mem_free,
};

static void end_op(struct mem_dev *d, u32 held_bufs, u32 blocks, bool torn)
{
	u32 i;

	if (d->live_handles != held_bufs)
		MISUSE("%u bufs held after the call, not %u", d->live_handles,
		       held_bufs);
	if (d->live_allocs)
		MISUSE("%u allocations leaked", d->live_allocs);
	for (i = 0; i < d->ntouched; i++) {
		u32 idx = d->touched[i];
		struct mem_block *b = &d->block[idx];

		unpoison(d, b);
		if (memcmp(b->data, b->shadow, d->block_size)) {
			if (!b->granted && !b->grown)
				MISUSE("block %#x changed without access",
				       lblk_of(idx));
			if (!torn && !(b->grown && idx >= blocks))
				MISUSE("block %#x changed but not dirty",
				       lblk_of(idx));
			memcpy(b->shadow, b->data, d->block_size);
		}
		b->granted = false;
		b->grown = false;
		b->touched = false;
		repoison(d, b);
	}
	d->ntouched = 0;
	/* The buf still held, if any, stays watched. */
	for (i = 0; i < d->nhandles; i++)
		if (d->handle[i].live)
			touch(d, d->handle[i].block);
}

void mem_end_op(struct mem_dev *d, u32 held_bufs, u32 blocks)
{
	end_op(d, held_bufs, blocks, false);
}

void mem_end_torn(struct mem_dev *d, u32 held_bufs)
{
	end_op(d, held_bufs, 0, true);
}

u8 *mem_peek(struct mem_dev *d, u32 lblk)
{
	u32 idx = lblk - ITREE_SEG_START;

	if (lblk < ITREE_SEG_START || idx >= d->nblocks || !d->block[idx].data)
		return NULL;
	/* The shadow is what the device would hold; it is never poisoned. */
	return d->block[idx].shadow;
}

u8 *mem_poke(struct mem_dev *d, u32 lblk)
{
	if (!mem_peek(d, lblk))
		return NULL;
	unpoison(d, &d->block[lblk - ITREE_SEG_START]);
	return d->block[lblk - ITREE_SEG_START].data;
}

void mem_poke_done(struct mem_dev *d, u32 lblk)
{
	struct mem_block *b = &d->block[lblk - ITREE_SEG_START];

	unpoison(d, b);
	*csum_field(b->data, d->block_size) =
		cpu_to_le32(block_csum(b->data, d->block_size, lblk));
	memcpy(b->shadow, b->data, d->block_size);
	b->verified = false;
	repoison(d, b);
}

const char *const mem_share_name[MEM_SHARES] = {
	"empty", "one entry",	   "full", "more than fit", "leaf",
	"index", "a level higher", "free", "no node",
};

void mem_share(u8 *data, u32 kind)
{
	struct itree_head *h = (struct itree_head *)data;

	switch (kind) {
	case 0:
		h->h_count = 0;
		break;
	case 1:
		h->h_count = cpu_to_le16(1);
		break;
	case 2:
		h->h_count = h->h_limit;
		break;
	case 3:
		h->h_count = cpu_to_le16(0xffff);
		break;
	case 4:
		h->h_level = 0;
		break;
	case 5:
		h->h_level = 1;
		break;
	case 6:
		h->h_level++;
		break;
	case 7:
		memset(h, 0, sizeof(*h));
		h->h_magic = cpu_to_le32(ITREE_FREE_MAGIC);
		h->h_version = ITREE_VERSION;
		break;
	case 8:
		/* names in a block of a directory, which anybody can choose */
		memset(h, 'x', sizeof(*h));
		h->h_limit = cpu_to_le16(0xffff);
		break;
	}
}

u8 *mem_map(struct mem_dev *d, u32 lblk, u8 fill)
{
	u8 *data;

	map(d, lblk - ITREE_SEG_START);
	data = mem_poke(d, lblk);
	memset(data, fill, d->block_size);
	mem_poke_done(d, lblk);
	return mem_poke(d, lblk);
}

void mem_drop_caches(struct mem_dev *d)
{
	u32 i;

	for (i = 0; i < d->nblocks; i++)
		d->block[i].verified = false;
}

void mem_snap(struct mem_dev *d, struct mem_snap *s)
{
	u32 i;

	s->block_size = d->block_size;
	s->nblocks = d->nblocks;
	s->data = xcalloc(d->nblocks, d->block_size);
	s->mapped = xcalloc(d->nblocks, sizeof(bool));
	for (i = 0; i < d->nblocks; i++) {
		s->mapped[i] = d->block[i].data;
		if (s->mapped[i])
			memcpy(s->data + (size_t)i * d->block_size,
			       d->block[i].shadow, d->block_size);
	}
}

void mem_restore(struct mem_dev *d, const struct mem_snap *s)
{
	u32 i;

	need_blocks(d, s->nblocks);
	for (i = 0; i < d->nblocks; i++) {
		struct mem_block *b = &d->block[i];

		if (i >= s->nblocks || !s->mapped[i]) {
			if (b->data && b->refs)
				MISUSE("restore unmaps a held block");
			unmap(d, b);
			continue;
		}
		map(d, i);
		unpoison(d, b);
		memcpy(b->data, s->data + (size_t)i * d->block_size,
		       d->block_size);
		memcpy(b->shadow, b->data, d->block_size);
		b->verified = false;
		repoison(d, b);
	}
}

u32 mem_compare(struct mem_dev *d, const struct mem_snap *s, u32 blocks)
{
	u32 i;

	for (i = 0; i < blocks; i++) {
		struct mem_block *b;
		bool differ;

		if (i >= d->nblocks || i >= s->nblocks || !s->mapped[i])
			return i;
		b = &d->block[i];
		if (!b->data)
			return i;
		unpoison(d, b);
		differ = memcmp(b->data, s->data + (size_t)i * d->block_size,
				d->block_size);
		repoison(d, b);
		if (differ)
			return i;
	}
	return blocks;
}

void mem_snap_free(struct mem_snap *s)
{
	free(s->data);
	free(s->mapped);
	memset(s, 0, sizeof(*s));
}
