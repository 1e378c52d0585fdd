// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: findings, random numbers, names, the model, reading directories. */
#include "t.h"

#include <ctype.h>
#include <dirent.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "../../../kernel/fs/ext4/itree_ioctl.h"

#define SHOWN 12

unsigned long findings;

void bad(const char *fmt, ...)
{
	va_list ap;

	if (findings++ >= SHOWN)
		return;
	va_start(ap, fmt);
	printf("FAIL: ");
	vprintf(fmt, ap);
	printf("\n");
	va_end(ap);
	fflush(stdout);
}

void die(const char *fmt, ...)
{
	va_list ap;
	int err = errno;

	va_start(ap, fmt);
	printf("DIED: ");
	vprintf(fmt, ap);
	printf(" (errno %d: %s)\n", err, strerror(err));
	va_end(ap);
	fflush(stdout);
	_exit(2);
}

void stat_num(const char *key, u64 value)
{
	printf("STAT: %s %llu\n", key, (unsigned long long)value);
	fflush(stdout);
}

const char *show(const char *name)
{
	static char ring[4][NAME_BYTES * 4 + 1];
	static int turn;
	char *out = ring[turn++ & 3];
	char *p = out;

	for (int i = 0; *name; name++, i++) {
		unsigned char c = *name;

		if (i == 24) {
			p += sprintf(p, "...");
			break;
		}
		if (isgraph(c) && c != '\\')
			*p++ = c;
		else
			p += sprintf(p, "\\x%02x", c);
	}
	*p = 0;
	return out;
}

void rng_seed(struct rng *r, u64 seed)
{
	r->s = seed * 0x9e3779b97f4a7c15ULL + 0x1234567;
	rng_next(r);
}

u64 rng_next(struct rng *r)
{
	u64 z = (r->s += 0x9e3779b97f4a7c15ULL);

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
	return z ^ (z >> 31);
}

u32 below(struct rng *r, u32 n)
{
	return n ? (u32)((rng_next(r) >> 16) % n) : 0;
}

bool chance(struct rng *r, u32 percent)
{
	return below(r, 100) < percent;
}

enum style style_of(const char *name)
{
	static const char *const names[] = { "mixed", "skew", "ascii",
					     "hex",   "max",  "short" };

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (!strcmp(name, names[i]))
			return (enum style)i;
	errno = EINVAL;
	die("no name style %s", name);
}

size_t make_name(struct rng *r, enum style style, char *buf)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyz0123456789_-.";
	u64 x = rng_next(r);
	size_t len = 0;

	switch (style) {
	case S_HEX:
		return sprintf(buf, "%016llx.msg", (unsigned long long)x);
	case S_MAX:
		len = 255;
		break;
	case S_MIXED:
		len = 1 + x % 255;
		break;
	case S_SHORT:
		len = 4 + x % 12;
		break;
	case S_SKEW:
	case S_ASCII:
		len = (x & 0xff) < 12 ? 1 + (x >> 8) % 255 : 6 + (x >> 8) % 26;
		break;
	}
	for (size_t i = 0; i < len; i++) {
		u32 c;

		if (!(i & 7))
			x = rng_next(r);
		c = (x >> (8 * (i & 7))) & 0xff;
		if (style == S_ASCII || style == S_SHORT)
			buf[i] = plain[c % (sizeof(plain) - 1)];
		else
			buf[i] = !c || c == '/' ? 'x' : (char)c;
	}
	buf[len] = 0;
	if (buf[0] == '.')
		buf[0] = 'd';
	return len;
}

static u64 hash_name(const char *name, size_t len)
{
	u64 h = 0xcbf29ce484222325ULL;

	for (size_t i = 0; i < len; i++)
		h = (h ^ (unsigned char)name[i]) * 0x100000001b3ULL;
	return h ^ (h >> 29);
}

static void *grab(size_t bytes)
{
	void *p = calloc(1, bytes);

	if (!p)
		die("out of memory (%zu bytes)", bytes);
	return p;
}

struct model *model_new(void)
{
	struct model *m = grab(sizeof(*m));

	m->buckets = 1024;
	m->tab = grab(m->buckets * sizeof(*m->tab));
	return m;
}

void model_free(struct model *m)
{
	for (u32 i = 0; i < m->n; i++)
		free(m->all[i]);
	free(m->all);
	free(m->tab);
	free(m);
}

struct ent *model_get(struct model *m, const char *name, size_t len)
{
	struct ent *e = m->tab[hash_name(name, len) & (m->buckets - 1)];

	while (e && (e->len != len || memcmp(e->name, name, len)))
		e = e->next;
	return e;
}

static void model_rehash(struct model *m)
{
	free(m->tab);
	m->buckets *= 4;
	m->tab = grab(m->buckets * sizeof(*m->tab));
	for (u32 i = 0; i < m->n; i++) {
		struct ent *e = m->all[i];
		u64 h = hash_name(e->name, e->len) & (m->buckets - 1);

		e->next = m->tab[h];
		m->tab[h] = e;
	}
}

struct ent *model_add(struct model *m, const char *name, u64 ino, u8 type)
{
	size_t len = strlen(name);
	struct ent *e = grab(sizeof(*e) + len + 1);
	u64 h;

	if (m->n == m->cap) {
		m->cap = m->cap ? m->cap * 2 : 256;
		m->all = realloc(m->all, m->cap * sizeof(*m->all));
		if (!m->all)
			die("out of memory");
	}
	e->name = (char *)(e + 1);
	memcpy(e->name, name, len + 1);
	e->len = len;
	e->ino = ino;
	e->type = type;
	e->idx = m->n;
	m->all[m->n++] = e;
	if (m->n > m->buckets)
		model_rehash(m);
	else {
		h = hash_name(name, len) & (m->buckets - 1);
		e->next = m->tab[h];
		m->tab[h] = e;
	}
	return e;
}

void model_del(struct model *m, struct ent *e)
{
	u64 h = hash_name(e->name, e->len) & (m->buckets - 1);
	struct ent **p = &m->tab[h];

	while (*p != e)
		p = &(*p)->next;
	*p = e->next;
	m->n--;
	m->all[e->idx] = m->all[m->n];
	m->all[e->idx]->idx = e->idx;
	free(e);
}

struct ent *model_any(struct model *m, struct rng *r)
{
	return m->n ? m->all[below(r, m->n)] : NULL;
}

void model_save(struct model *m, const char *path)
{
	FILE *f;

	if (!path)
		return;
	f = fopen(path, "w");
	if (!f)
		die("%s", path);
	for (u32 i = 0; i < m->n; i++) {
		struct ent *e = m->all[i];

		fwrite(&e->ino, sizeof(e->ino), 1, f);
		fwrite(&e->type, 1, 1, f);
		fwrite(&e->len, sizeof(e->len), 1, f);
		fwrite(e->name, e->len, 1, f);
	}
	if (fclose(f))
		die("%s", path);
}

struct model *model_load(const char *path)
{
	struct model *m = model_new();
	char name[NAME_BYTES];
	u64 ino;
	u16 len;
	u8 type;
	FILE *f;

	if (!path)
		return m;
	f = fopen(path, "r");
	if (!f)
		die("%s", path);
	while (fread(&ino, sizeof(ino), 1, f) == 1) {
		if (fread(&type, 1, 1, f) != 1 ||
		    fread(&len, sizeof(len), 1, f) != 1 || len >= NAME_BYTES ||
		    fread(name, len, 1, f) != 1)
			die("%s is cut short", path);
		name[len] = 0;
		model_add(m, name, ino, type);
	}
	fclose(f);
	return m;
}

size_t fresh_name(struct model *m, struct rng *r, enum style style, char *buf)
{
	size_t len;

	do
		len = make_name(r, style, buf);
	while (model_get(m, buf, len));
	return len;
}

enum api api_of(const char *name)
{
	if (!strcmp(name, "64"))
		return API_64;
	if (!strcmp(name, "32"))
		return API_32;
	if (!strcmp(name, "32old"))
		return API_32OLD;
	errno = EINVAL;
	die("no API %s", name);
}

/*
 * The 32-bit entry of the kernel, from a 64-bit program: the kernel takes the
 * caller for a 32-bit one.  The buffer must lie below 4 GiB.
 */
static long call32(long nr, long a, long b, long c, long d, long e)
{
	long ret;

	asm volatile("int $0x80"
		     : "=a"(ret)
		     : "0"(nr), "b"(a), "c"(b), "d"(c), "S"(d), "D"(e)
		     : "memory", "cc", "r8", "r9", "r10", "r11");
	return (int)ret;
}

/* Not where the kernel is a program of the host: set by kt/guest.py. */
bool has_compat(void)
{
	return !getenv("ITREE_T_NO_COMPAT");
}

#define NR32_GETDENTS 141
#define NR32_GETDENTS64 220
#define NR32_LLSEEK 140
#define DENTS_MAX (1U << 18)

struct dent64 {
	u64 ino;
	s64 off;
	u16 reclen;
	u8 type;
	char name[];
};

struct dent32 {
	u32 ino;
	u32 off;
	u16 reclen;
	char name[];
};

ssize_t dents_raw(int fd, enum api api, void *buf, size_t size)
{
	long ret;

	if (api == API_64) {
		ret = syscall(SYS_getdents64, fd, buf, size);
		return ret < 0 ? -errno : ret;
	}
	if (!has_compat())
		die("this kernel runs no 32-bit programs");
	return call32(api == API_32 ? NR32_GETDENTS64 : NR32_GETDENTS, fd,
		      (long)buf, size, 0, 0);
}

void reader_init(struct reader *r, int fd, enum api api, size_t size)
{
	memset(r, 0, sizeof(*r));
	r->fd = fd;
	r->api = api;
	r->size = size;
	if (size > DENTS_MAX)
		r->size = DENTS_MAX;
	r->buf = mmap(NULL, DENTS_MAX, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	if (r->buf == MAP_FAILED)
		die("mmap");
}

static int reader_fill(struct reader *r)
{
	ssize_t got;
	size_t size;

	r->pos = 0;
	r->have = 0;
	if (r->size) {
		got = dents_raw(r->fd, r->api, r->buf, r->size);
		r->calls++;
	} else {
		for (size = 16; size <= 288; size += 8) {
			got = dents_raw(r->fd, r->api, r->buf, size);
			r->calls++;
			if (got != -EINVAL)
				break;
		}
	}
	if (got > 0)
		r->have = got;
	return got;
}

/* 1: an entry, 0: the end, negative: error. */
int reader_next(struct reader *r, struct item *it)
{
	if (r->pos >= r->have) {
		int got = reader_fill(r);

		if (got <= 0)
			return got;
	}
	if (r->api == API_32OLD) {
		struct dent32 *d = (void *)(r->buf + r->pos);

		it->ino = d->ino;
		it->off = d->off;
		it->name = d->name;
		it->type = ((u8 *)d)[d->reclen - 1];
		r->pos += d->reclen;
	} else {
		struct dent64 *d = (void *)(r->buf + r->pos);

		it->ino = d->ino;
		it->off = d->off;
		it->name = d->name;
		it->type = d->type;
		r->pos += d->reclen;
	}
	it->len = strlen(it->name);
	return 1;
}

s64 reader_seek(struct reader *r, s64 off, int whence)
{
	s64 ret;

	r->pos = 0;
	r->have = 0;
	if (r->api == API_64) {
		ret = lseek(r->fd, off, whence);
		return ret < 0 ? -errno : ret;
	}
	ret = call32(NR32_LLSEEK, r->fd, (long)((u64)off >> 32),
		     (long)(off & 0xffffffff), (long)r->buf, whence);
	return ret < 0 ? ret : *(s64 *)r->buf;
}

void reader_end(struct reader *r)
{
	munmap(r->buf, DENTS_MAX);
}

bool is_dots(const struct item *it)
{
	return !strcmp(it->name, ".") || !strcmp(it->name, "..");
}

int open_dir(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		die("open %s", path);
	return fd;
}

u64 ino_at(int dirfd, const char *name)
{
	struct stat st;

	return fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) ? 0 : st.st_ino;
}

u32 tree_call(int dirfd, u32 op)
{
	struct ext4_itree_args a = { .ia_version = EXT4_ITREE_IOC_VERSION,
				     .ia_op = op };

	if (ioctl(dirfd, EXT4_IOC_ITREE, &a))
		die("EXT4_IOC_ITREE, operation %u", op);
	return a.ia_state;
}

bool has_tree(int dirfd)
{
	return tree_call(dirfd, EXT4_ITREE_OP_STAT) & EXT4_ITREE_HAS_TREE;
}

u8 type_at(int dirfd, const char *name)
{
	struct stat st;

	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW))
		return DT_UNKNOWN;
	return IFTODT(st.st_mode);
}
