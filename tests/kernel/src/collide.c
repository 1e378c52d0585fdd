// SPDX-License-Identifier: GPL-2.0-only
/*
 * itree-t: names whose htree hashes (half MD4) are equal, found by search.
 * The hash is that of fs/ext4/hash.c (GPL-2.0), written anew for known seeds.
 */
#include "t.h"

#include <dirent.h>

static u32 rol(u32 x, int s)
{
	return (x << s) | (x >> (32 - s));
}

#define F(x, y, z) ((z) ^ ((x) & ((y) ^ (z))))
#define G(x, y, z) (((x) & (y)) + (((x) ^ (y)) & (z)))
#define H(x, y, z) ((x) ^ (y) ^ (z))
#define ROUND(f, a, b, c, d, x, s)                                             \
	((a) += f((b), (c), (d)) + (x), (a) = rol((a), (s)))

static void half_md4(u32 buf[4], const u32 in[8])
{
	u32 a = buf[0], b = buf[1], c = buf[2], d = buf[3];
	const u32 k2 = 013240474631U, k3 = 015666365641U;
	static const u8 o2[8] = { 1, 3, 5, 7, 0, 2, 4, 6 };
	static const u8 o3[8] = { 3, 7, 2, 6, 1, 5, 0, 4 };
	static const u8 s1[4] = { 3, 7, 11, 19 };
	static const u8 s2[4] = { 3, 5, 9, 13 };
	static const u8 s3[4] = { 3, 9, 11, 15 };

	for (int i = 0; i < 8; i += 4) {
		ROUND(F, a, b, c, d, in[i], s1[0]);
		ROUND(F, d, a, b, c, in[i + 1], s1[1]);
		ROUND(F, c, d, a, b, in[i + 2], s1[2]);
		ROUND(F, b, c, d, a, in[i + 3], s1[3]);
	}
	for (int i = 0; i < 8; i += 4) {
		ROUND(G, a, b, c, d, in[o2[i]] + k2, s2[0]);
		ROUND(G, d, a, b, c, in[o2[i + 1]] + k2, s2[1]);
		ROUND(G, c, d, a, b, in[o2[i + 2]] + k2, s2[2]);
		ROUND(G, b, c, d, a, in[o2[i + 3]] + k2, s2[3]);
	}
	for (int i = 0; i < 8; i += 4) {
		ROUND(H, a, b, c, d, in[o3[i]] + k3, s3[0]);
		ROUND(H, d, a, b, c, in[o3[i + 1]] + k3, s3[1]);
		ROUND(H, c, d, a, b, in[o3[i + 2]] + k3, s3[2]);
		ROUND(H, b, c, d, a, in[o3[i + 3]] + k3, s3[3]);
	}
	buf[0] += a;
	buf[1] += b;
	buf[2] += c;
	buf[3] += d;
}

/* ASCII names only: signed and unsigned give the same. */
static u32 dirhash(const u32 seed[4], const char *name, int len)
{
	u32 buf[4];

	memcpy(buf, seed, sizeof(buf));
	while (len > 0) {
		u32 in[8];
		u32 pad =
			len | (len << 8) | ((u32)len << 16) | ((u32)len << 24);
		u32 val = pad;
		int num = 8, at = 0, n = len > 32 ? 32 : len;

		for (int i = 0; i < n; i++) {
			val = (u8)name[i] + (val << 8);
			if (i % 4 == 3) {
				in[at++] = val;
				val = pad;
				num--;
			}
		}
		if (--num >= 0)
			in[at++] = val;
		while (--num >= 0)
			in[at++] = pad;
		half_md4(buf, in);
		name += 32;
		len -= 32;
	}
	return buf[1] & ~1U;
}

struct cand {
	u32 hash;
	u32 serial;
};

static int cand_cmp(const void *a, const void *b)
{
	const struct cand *x = a, *y = b;

	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	return x->serial < y->serial ? -1 : x->serial > y->serial;
}

static void cand_name(u32 serial, char *buf)
{
	sprintf(buf, "c%08x", serial * 2654435761U);
}

/*
 * In --dir, for up to --n groups of colliding names out of --m candidates:
 * links to one inode under all names of a group. --plan: the hash seed as
 * four comma-separated words. --aux: a file of serials that an earlier run
 * found (made here when it does not exist).
 */
int cmd_collide(struct opts *o)
{
	struct cand *c = malloc(o->m * sizeof(*c));
	u32 seed[4] = {};
	struct model *m = model_load(
		o->model && !access(o->model, F_OK) ? o->model : NULL);
	const char *p = o->plan;
	char name[NAME_BYTES], first[NAME_BYTES];
	u64 groups = 0, names = 0;
	int fd;

	if (!c || !p)
		die("collide: memory or --plan");
	for (int i = 0; i < 4; i++) {
		seed[i] = strtoul(p, (char **)&p, 16);
		p += *p == ',';
	}
	for (u32 i = 0; i < o->m; i++) {
		cand_name(i, name);
		c[i].hash = dirhash(seed, name, strlen(name));
		c[i].serial = i;
	}
	qsort(c, o->m, sizeof(*c), cand_cmp);
	if (!o->dir) {
		for (u64 i = 0; i < 4; i++) {
			cand_name(i, name);
			printf("%s %08x\n", name,
			       dirhash(seed, name, strlen(name)));
		}
		return 0;
	}
	if (mkdir(o->dir, 0755) && errno != EEXIST)
		die("%s", o->dir);
	fd = open_dir(o->dir);
	for (u64 i = 1; i < o->m && groups < o->n; i++) {
		u64 ino;

		if (c[i].hash != c[i - 1].hash)
			continue;
		groups++;
		cand_name(c[i - 1].serial, first);
		if (mknodat(fd, first, S_IFREG | 0644, 0))
			die("mknod %s", first);
		ino = ino_at(fd, first);
		model_add(m, first, ino, DT_REG);
		names++;
		for (; i < o->m && c[i].hash == c[i - 1].hash; i++) {
			cand_name(c[i].serial, name);
			if (linkat(fd, first, fd, name, 0))
				die("link %s", name);
			model_add(m, name, ino, DT_REG);
			names++;
		}
	}
	model_save(m, o->model);
	stat_num("groups", groups);
	stat_num("names", names);
	return 0;
}
