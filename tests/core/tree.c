// SPDX-License-Identifier: GPL-2.0-only
/* A tree, its model, a second opinion, and a maker of trees. */
#include "tree.h"
#include "test.h"

/* --- model --- */

size_t model_lower(const struct model *m, u64 key)
{
	size_t lo = 0, hi = m->n;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (m->key[mid] < key)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static void model_push(struct model *m, u64 key)
{
	if (m->n == m->room) {
		m->room = m->room * 2 + 64;
		m->key = xrealloc(m->key, m->room * sizeof(*m->key));
	}
	m->key[m->n++] = key;
}

void model_insert(struct model *m, u64 key)
{
	size_t i = model_lower(m, key);

	model_push(m, 0);
	memmove(m->key + i + 1, m->key + i, (m->n - 1 - i) * sizeof(u64));
	m->key[i] = key;
}

bool model_delete(struct model *m, u64 key)
{
	size_t i = model_lower(m, key);

	if (i == m->n || m->key[i] != key)
		return false;
	m->n--;
	memmove(m->key + i, m->key + i + 1, (m->n - i) * sizeof(u64));
	return true;
}

void model_free(struct model *m)
{
	free(m->key);
	memset(m, 0, sizeof(*m));
}

/* --- fixture --- */

u32 tree_blocks(struct tree *x)
{
	struct itree_info info;

	itree_get_info(&x->t, &info);
	return info.blocks;
}

void tree_end_op(struct tree *x)
{
	mem_end_op(&x->d, x->open, x->open ? tree_blocks(x) : 0);
}

void tree_format(struct tree *x, u32 block_size, u32 max_blocks)
{
	memset(x, 0, sizeof(*x));
	mem_init(&x->d, block_size);
	CHECK_EQ(itree_format(&x->t, &mem_ops, &x->d, block_size, max_blocks,
			      1),
		 0);
	x->open = true;
	tree_end_op(x);
}

void tree_open(struct tree *x, u32 max_blocks)
{
	CHECK_EQ(itree_open(&x->t, &mem_ops, &x->d, x->d.block_size,
			    max_blocks),
		 0);
	x->open = true;
	tree_end_op(x);
}

void tree_close(struct tree *x)
{
	if (x->open) {
		itree_close(&x->t);
		x->open = false;
		CHECK(!x->t.root.data);
		mem_end_op(&x->d, 0, 0);
	}
	mem_exit(&x->d);
	model_free(&x->m);
}

void tree_reserve(struct tree *x, u32 inserts)
{
	CHECK_EQ(itree_reserve(&x->t, inserts), 0);
	tree_end_op(x);
}

void tree_insert_reserved(struct tree *x, u64 key)
{
	bool saved = x->d.no_grow;

	x->d.no_grow = true;
	CHECK_EQ(itree_insert(&x->t, key), 0);
	x->d.no_grow = saved;
	tree_end_op(x);
	model_insert(&x->m, key);
}

void tree_insert(struct tree *x, u64 key)
{
	tree_reserve(x, 1);
	tree_insert_reserved(x, key);
}

void tree_delete(struct tree *x, u64 key)
{
	bool there = model_delete(&x->m, key);

	x->d.no_grow = true;
	CHECK_EQ(itree_delete(&x->t, key), there ? 0 : -ENOENT);
	x->d.no_grow = false;
	tree_end_op(x);
}

int bulk_next(void *arg, u64 *key)
{
	struct bulk_keys *b = arg;

	if (b->fail_err && b->at == b->fail_at)
		return b->fail_err;
	/* One call too many is an error of its own, not a crash. */
	if (b->at >= b->n)
		return ITREE_END;
	*key = b->key[b->at++];
	return 0;
}

void tree_bulk(struct tree *x)
{
	struct bulk_keys b = { .key = x->m.key, .n = x->m.n };

	CHECK_EQ(itree_bulk_load(&x->t, x->m.n, bulk_next, &b), 0);
	CHECK_EQ(b.at, x->m.n);
	tree_end_op(x);
}

/* --- checks --- */

void tree_check_info(struct tree *x)
{
	struct itree_info info;
	u64 last = 0;
	int ret;

	itree_get_info(&x->t, &info);
	CHECK_EQ(info.keys, x->m.n);
	CHECK(info.blocks <= x->t.max_blocks);
	CHECK(info.free_count < info.blocks);
	CHECK(!info.free_head == !info.free_count);
	CHECK(info.depth >= 1 && info.depth <= ITREE_MAX_DEPTH);
	x->d.no_write = true;
	ret = itree_last(&x->t, &last);
	x->d.no_write = false;
	tree_end_op(x);
	CHECK_EQ(ret, x->m.n ? 0 : ITREE_END);
	if (x->m.n)
		CHECK(last == x->m.key[x->m.n - 1]);
}

void tree_check_verify(struct tree *x)
{
	struct itree_report r;
	struct itree_info info;
	struct itree before = x->t;
	u64 hash = 0;
	size_t i;
	int ret;

	memset(&r, 0xa5, sizeof(r));
	x->d.no_write = true;
	ret = itree_verify(&x->t, &r);
	x->d.no_write = false;
	CHECKF(!ret, "%d, %s, block %#x", ret, x->t.why ? x->t.why : "-",
	       x->t.why_lblk);
	CHECK(!memcmp(&before, &x->t, sizeof(before)));
	tree_end_op(x);
	itree_get_info(&x->t, &info);
	for (i = 0; i < x->m.n; i++)
		hash += itree_hash_key(x->m.key[i]);
	CHECK_EQ(r.keys, x->m.n);
	CHECK(r.hash == hash);
	CHECK_EQ(r.nodes + r.free_count, info.blocks);
	CHECK_EQ(r.free_count, info.free_count);
	CHECK_EQ(r.depth, info.depth);
	CHECK(r.leaves >= 1 && r.leaves <= r.nodes);
	CHECK(r.leaf_slots >= r.keys);
	if (x->m.n) {
		CHECK(r.first == x->m.key[0]);
		CHECK(r.last == x->m.key[x->m.n - 1]);
	}
}

void tree_check_scan(struct tree *x)
{
	struct itree before = x->t;
	struct itree_cursor cur;
	size_t i = 0;
	int ret;

	x->d.no_write = true;
	for (ret = itree_seek(&x->t, 0, &cur); !ret; ret = itree_next(&cur)) {
		CHECK(i < x->m.n);
		CHECKF(itree_cursor_key(&cur) == x->m.key[i],
		       "key %zu of %zu: %llx, %llx", i, x->m.n,
		       itree_cursor_key(&cur), x->m.key[i]);
		i++;
	}
	CHECKF(ret == ITREE_END, "%d, %s", ret, x->t.why ? x->t.why : "-");
	CHECK_EQ(i, x->m.n);
	itree_cursor_release(&cur);
	itree_cursor_release(&cur); /* harmless */
	x->d.no_write = false;
	CHECK(!memcmp(&before, &x->t, sizeof(before)));
	tree_end_op(x);
}

/* The key found and the two after it. */
void tree_check_seek(struct tree *x, u64 key)
{
	size_t i = model_lower(&x->m, key), more = i + 3;
	struct itree_cursor cur;
	int ret;

	x->d.no_write = true;
	ret = itree_seek(&x->t, key, &cur);
	while (i < x->m.n && i < more) {
		CHECK_EQ(ret, 0);
		CHECKF(itree_cursor_key(&cur) == x->m.key[i],
		       "seek %llx: %llx, %llx", key, itree_cursor_key(&cur),
		       x->m.key[i]);
		i++;
		ret = itree_next(&cur);
	}
	if (i == x->m.n)
		CHECK_EQ(ret, ITREE_END);
	itree_cursor_release(&cur);
	x->d.no_write = false;
	tree_end_op(x);
}

void tree_check_oracle(struct tree *x)
{
	struct oracle o;

	oracle_check(&x->d, x->t.max_blocks, &o);
	CHECKF(!o.why, "%s, block %#x", o.why, o.lblk);
	CHECK_EQ(o.m.n, x->m.n);
	CHECK(!o.m.n || !memcmp(o.m.key, x->m.key, o.m.n * sizeof(u64)));
	oracle_free(&o);
}

void tree_check(struct tree *x)
{
	tree_check_info(x);
	tree_check_oracle(x);
	tree_check_verify(x);
	tree_check_scan(x);
}

/* --- second opinion --- */

static u32 get16(const u8 *p)
{
	return p[0] | p[1] << 8;
}

static u32 get32(const u8 *p)
{
	return get16(p) | get16(p + 2) << 16;
}

static u64 get64(const u8 *p)
{
	return get32(p) | (u64)get32(p + 4) << 32;
}

static u64 get_key(const u8 *p)
{
	return (u64)get32(p) << 32 | get32(p + 4);
}

static const char *bad(struct oracle *o, u32 lblk, const char *why)
{
	if (!o->why) {
		o->why = why;
		o->lblk = lblk;
	}
	return o->why;
}

/* Offsets are written out here on purpose: this is the format's own test. */
static const char *oracle_head(struct mem_dev *d, struct oracle *o, u32 lblk,
			       const u8 *p, u32 magic)
{
	if (get32(p) != magic)
		return bad(o, lblk, "magic");
	if (p[4] != 1)
		return bad(o, lblk, "version");
	if (get16(p + 10))
		return bad(o, lblk, "reserved");
	if (get32(p + d->block_size - 8))
		return bad(o, lblk, "tail reserved");
	return NULL;
}

static const char *oracle_node(struct mem_dev *d, struct oracle *o, u32 lblk,
			       u32 blocks, int level, u64 lo, u64 hi)
{
	const u8 *p = mem_peek(d, lblk), *e;
	u32 idx = lblk - ITREE_SEG_START, count, limit, i;
	size_t size = level ? 12 : 8, room = d->block_size - 16 - 8;
	bool root = lblk == ITREE_SEG_START;
	u64 key, last = lo;

	if (!p)
		return bad(o, lblk, "hole");
	if (o->seen[idx]++)
		return bad(o, lblk, "seen twice");
	if (oracle_head(d, o, lblk, p, 0x45525449))
		return o->why;
	if (p[5] != level)
		return bad(o, lblk, "level");
	if (get32(p + 12))
		return bad(o, lblk, "next set");
	e = p + 16;
	if (root) {
		e += 32;
		room -= 32;
	}
	count = get16(p + 6);
	limit = get16(p + 8);
	if (limit != room / size)
		return bad(o, lblk, "limit");
	if (count > limit)
		return bad(o, lblk, "count");
	if (!count && !(root && !level))
		return bad(o, lblk, "empty");
	o->nodes++;
	if (!level) {
		o->leaves++;
		o->leaf_slots += limit;
	}
	for (i = 0; i < count; i++, e += size) {
		key = get_key(e);
		if (level && !i) {
			if (key)
				return bad(o, lblk, "first key");
		} else {
			if (key < last)
				return bad(o, lblk, "order");
			if (key > hi)
				return bad(o, lblk, "above bound");
			last = key;
		}
		if (!level)
			model_push(&o->m, key);
	}
	if (!level)
		return NULL;
	e -= (size_t)count * size;
	for (i = 0; i < count; i++, e += size) {
		u32 child = get32(e + 8);

		if (child <= ITREE_SEG_START ||
		    child - ITREE_SEG_START >= blocks)
			return bad(o, lblk, "child outside");
		if (oracle_node(d, o, child, blocks, level - 1,
				i ? get_key(e) : lo,
				i + 1 < count ? get_key(e + size) : hi))
			return o->why;
	}
	return NULL;
}

static const char *oracle_free_list(struct mem_dev *d, struct oracle *o,
				    u32 lblk, u32 blocks)
{
	const u8 *p;

	while (lblk) {
		if (lblk <= ITREE_SEG_START || lblk - ITREE_SEG_START >= blocks)
			return bad(o, lblk, "free list outside");
		p = mem_peek(d, lblk);
		if (!p)
			return bad(o, lblk, "hole");
		if (o->seen[lblk - ITREE_SEG_START]++)
			return bad(o, lblk, "seen twice");
		if (oracle_head(d, o, lblk, p, 0x46525449))
			return o->why;
		if (p[5] || get16(p + 6) || get16(p + 8))
			return bad(o, lblk, "free node not empty");
		o->free_count++;
		lblk = get32(p + 12);
	}
	return NULL;
}

const char *oracle_check(struct mem_dev *d, u32 max_blocks, struct oracle *o)
{
	const u8 *p = mem_peek(d, ITREE_SEG_START);
	u32 blocks, i;

	memset(o, 0, sizeof(*o));
	if (!p)
		return bad(o, ITREE_SEG_START, "no root");
	blocks = get32(p + 24);
	if (!blocks || blocks > max_blocks || blocks > 0x7ffffffe)
		return bad(o, ITREE_SEG_START, "blocks");
	if (blocks > d->nblocks)
		return bad(o, ITREE_SEG_START, "hole");
	for (i = 37; i < 48; i++)
		if (p[i])
			return bad(o, ITREE_SEG_START, "root reserved");
	if (p[5] >= ITREE_MAX_DEPTH)
		return bad(o, ITREE_SEG_START, "depth");
	o->depth = p[5] + 1;
	o->seen = xcalloc(blocks, 1);
	if (oracle_node(d, o, ITREE_SEG_START, blocks, p[5], 0, ~0ULL))
		return o->why;
	if (oracle_free_list(d, o, get32(p + 28), blocks))
		return o->why;
	if (o->free_count != get32(p + 32))
		return bad(o, ITREE_SEG_START, "free count");
	if (o->m.n != get64(p + 16))
		return bad(o, ITREE_SEG_START, "keys");
	if (o->nodes + o->free_count != blocks)
		return bad(o, ITREE_SEG_START, "lost block");
	return NULL;
}

void oracle_free(struct oracle *o)
{
	free(o->seen);
	model_free(&o->m);
}

/* --- maker --- */

enum craft_class { ON_PATH, NEAR, FAR };

struct craft_run {
	struct mem_dev *d;
	const struct craft *c;
	struct model *m;
	u32 blocks;
	size_t leaf_at;
	u32 leaf_count;
};

static void put16(u8 *p, u32 v)
{
	p[0] = (u8)v;
	p[1] = (u8)(v >> 8);
}

static void put32(u8 *p, u32 v)
{
	put16(p, v);
	put16(p + 2, v >> 16);
}

static void put_key(u8 *p, u64 key)
{
	put32(p, (u32)(key >> 32));
	put32(p + 4, (u32)key);
}

static u32 craft_node(struct craft_run *r, u32 level, enum craft_class class,
		      u64 *first)
{
	u32 lblk = ITREE_SEG_START + r->blocks++;
	bool root = lblk == ITREE_SEG_START;
	size_t size = level ? 12 : 8;
	u32 limit = (r->d->block_size - 24 - (root ? 32 : 0)) / size;
	u32 count = 1, on, i, child;
	u64 key;
	u8 *p, *e;

	if (class == ON_PATH)
		count = r->c->path[level] ? r->c->path[level] : limit;
	if (class == NEAR)
		count = r->c->near[level] ? r->c->near[level] : limit;
	CHECK(count <= limit);
	on = r->c->side == CRAFT_FIRST	? 0
	     : r->c->side == CRAFT_LAST ? count - 1
					: count / 2;

	p = mem_map(r->d, lblk, 0);
	put32(p, 0x45525449);
	p[4] = 1;
	p[5] = (u8)level;
	put16(p + 6, count);
	put16(p + 8, limit);
	e = p + 16 + (root ? 32 : 0);
	if (!level && class == ON_PATH) {
		r->leaf_at = r->m->n;
		r->leaf_count = count;
	}
	for (i = 0; i < count; i++, e += size) {
		if (level) {
			enum craft_class sub = FAR;

			if (class == ON_PATH && i == on)
				sub = ON_PATH;
			else if (class == ON_PATH &&
				 (i + 1 == on || i == on + 1))
				sub = NEAR;
			child = craft_node(r, level - 1, sub, &key);
			put_key(e, i ? key : 0);
			put32(e + 8, child);
		} else {
			key = CRAFT_KEY(r->c->equal ? 0 : r->m->n);
			model_push(r->m, key);
			put_key(e, key);
		}
		if (!i)
			*first = key;
	}
	mem_poke_done(r->d, lblk);
	return lblk;
}

size_t craft_tree(struct mem_dev *d, const struct craft *c, struct model *m,
		  u32 *count)
{
	struct craft_run r = { .d = d, .c = c, .m = m };
	u32 i, next = 0;
	u64 first;
	u8 *p;

	craft_node(&r, c->depth - 1, ON_PATH, &first);
	for (i = 0; i < c->spare; i++) {
		u32 lblk = ITREE_SEG_START + r.blocks++;

		p = mem_map(d, lblk, 0);
		put32(p, 0x46525449);
		p[4] = 1;
		put32(p + 12, next);
		mem_poke_done(d, lblk);
		next = lblk;
	}
	p = mem_poke(d, ITREE_SEG_START);
	put32(p + 16, (u32)m->n);
	put32(p + 24, r.blocks);
	put32(p + 28, next);
	put32(p + 32, c->spare);
	p[36] = 1;
	mem_poke_done(d, ITREE_SEG_START);
	if (count)
		*count = r.leaf_count;
	return r.leaf_at;
}

size_t tree_craft(struct tree *x, const struct craft *c, u32 *count)
{
	size_t at;

	memset(x, 0, sizeof(*x));
	mem_init(&x->d, c->block_size);
	at = craft_tree(&x->d, c, &x->m, count);
	tree_open(x, ROOMY);
	return at;
}
