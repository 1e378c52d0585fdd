// SPDX-License-Identifier: GPL-2.0-only
/* Writes the fuzzer's seeds into a directory; see fuzz_node.c. */
#include "test.h"
#include "tree.h"

static const char *dir;
static u32 number;

static FILE *create(void)
{
	char path[512];
	FILE *f;

	snprintf(path, sizeof(path), "%s/seed-%03u", dir, number++);
	f = fopen(path, "wb");
	if (!f) {
		perror(path);
		exit(2);
	}
	return f;
}

static void finish(FILE *f)
{
	if (fclose(f)) {
		perror("fclose");
		exit(2);
	}
}

static void put_ops(FILE *f, u32 n)
{
	u32 i;

	fputc((int)n, f);
	for (i = 0; i < n; i++) {
		static const u8 op[] = {
			0, 1, 2, 3, 4, 0x46, 5, 6, 0x84, 0xc6
		};

		fputc(op[i % sizeof(op)], f);
		fputc((int)(i * 37 % 256), f);
	}
}

static void put_blocks(FILE *f, const struct craft *c)
{
	struct mem_dev d;
	struct model m = { 0 };
	u32 i;

	mem_init(&d, c->block_size);
	craft_tree(&d, c, &m, NULL);
	for (i = 0; i < d.nblocks && d.block[i].data; i++)
		fwrite(mem_peek(&d, ITREE_SEG_START + i), c->block_size, 1, f);
	mem_exit(&d);
	model_free(&m);
}

/* The blocks of a made tree as they are. */
static void raw(const struct craft *c, u8 flags, u32 ops)
{
	FILE *f = create();

	fputc(flags, f);
	fputc(c->block_size == 1024 ? 0 : 1, f);
	put_ops(f, ops);
	put_blocks(f, c);
	finish(f);
}

/* One insert or delete, during which another directory changes a node. */
static void shared(const struct craft *c, u32 access, u32 kind)
{
	u32 op;

	for (op = 0; op < 2; op++) {
		FILE *f = create();

		fputc(0, f);
		fputc(0, f);
		fputc(1, f);
		fputc((int)(0x60 | access << 3 | op), f);
		/* both the key, behind the first ones of the leaf, and kind */
		fputc((int)(25 * MEM_SHARES + kind), f);
		put_blocks(f, c);
		finish(f);
	}
}

/* Trees in short: each node's level, count, first key; then entries. */
static void brief(const u8 *p, size_t n, u8 flags, u32 ops)
{
	FILE *f = create();

	fputc(flags | 1, f);
	fputc(0, f);
	put_ops(f, ops);
	fwrite(p, n, 1, f);
	finish(f);
}

int main(int argc, char **argv)
{
	/* clang-format off */
	static const u8 leaf[] = { 0, 5, 1, 2, 2, 2, 0, 2 };
	static const u8 two[] = {
		1, 2, 0, 0, 1, 0x85, 2,			/* root */
		0, 3, 1, 1, 0x81, 0x81,			/* 1: leaf */
		0, 3, 5, 1, 0x81, 0x81,			/* 2: leaf */
		8, 0, 0, 8, 0, 0, 8, 0, 0,		/* free */
	};
	static const u8 full[] = {
		1, 2, 0, 0, 1, 0x8a, 2,
		16, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,	/* many: 8 steps */
		16, 0, 10, 0, 0x81, 0, 0, 0, 0, 0, 0,
		8, 0, 0, 8, 0, 0, 8, 0, 0,
	};
	static const u8 three[] = {
		2, 2, 0, 0, 1, 0x8a, 2,
		1, 2, 0, 0, 3, 0x85, 4,
		1, 2, 10, 0, 5, 0x85, 6,
		0, 2, 1, 1, 0x81,
		0, 2, 5, 1, 0x81,
		0, 2, 10, 1, 0x81,
		0, 2, 15, 1, 0x81,
		8, 0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 0,
	};
	/* clang-format on */
	u32 depth, side, ops, access, kind;

	if (argc != 2) {
		fprintf(stderr, "usage: make_corpus DIRECTORY\n");
		return 2;
	}
	dir = argv[1];
	for (depth = 1; depth <= ITREE_MAX_DEPTH; depth++) {
		for (side = CRAFT_FIRST; side <= CRAFT_LAST; side++) {
			struct craft c = {
				.block_size = 1024,
				.depth = depth,
				.side = side,
				.spare = 3,
				.path = { 3, 2, 2, 2, 2 },
				.near = { 2, 2, 2, 2, 2 },
			};

			raw(&c, 0, 10);
			c.equal = true;
			raw(&c, 8, 20);
			c.path[0] = 31;
			raw(&c, 2, 1);
			c.block_size = 2048;
			raw(&c, 0, 10);
		}
	}
	for (depth = 1; depth <= 3; depth++) {
		struct craft c = {
			.block_size = 1024,
			.depth = depth,
			.spare = 4,
			.path = { 0, 3, 3 },
			.near = { 2, 2, 2 },
		};

		for (access = 0; access < 4; access++)
			for (kind = 0; kind < MEM_SHARES; kind++) {
				/* full: it splits; a quarter: it merges */
				c.path[0] = 0;
				shared(&c, access, kind);
				c.path[0] = 31;
				shared(&c, access, kind);
			}
	}
	for (ops = 1; ops < 64; ops = ops * 3 + 1) {
		brief(leaf, sizeof(leaf), 0, ops);
		brief(two, sizeof(two), 0, ops);
		brief(two, sizeof(two), 4, ops);
		brief(full, sizeof(full), 16, ops);
		brief(three, sizeof(three), 0, ops);
		brief(three, sizeof(three), 8, ops);
	}
	return 0;
}
