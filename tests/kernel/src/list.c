// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: listing a directory and comparing with what must be in it. */
#include "t.h"

#include <dirent.h>
#include <fts.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

struct check check_default = { .api = API_64, .size = 32768 };

struct pair {
	u64 ino;
	u8 type;
};

static int pair_cmp(const void *a, const void *b)
{
	const struct pair *x = a, *y = b;

	if (x->ino != y->ino)
		return x->ino < y->ino ? -1 : 1;
	return (int)x->type - (int)y->type;
}

/* Without the key names are encoded: compare the inodes and types. */
static void compare_pairs(struct pair *got, u64 n, struct model *m,
			  const char *what)
{
	struct pair *want = calloc(m->n + 1, sizeof(*want));

	if (!want)
		die("out of memory");
	for (u32 i = 0; i < m->n; i++) {
		want[i].ino = m->all[i]->ino;
		want[i].type = m->all[i]->type;
	}
	qsort(want, m->n, sizeof(*want), pair_cmp);
	qsort(got, n, sizeof(*got), pair_cmp);
	for (u64 i = 0; i < n && i < m->n; i++) {
		if (!pair_cmp(&got[i], &want[i]))
			continue;
		bad("%s: entry %llu by inode is %llu type %u, not %llu type %u",
		    what, (unsigned long long)i, (unsigned long long)got[i].ino,
		    got[i].type, (unsigned long long)want[i].ino, want[i].type);
		break;
	}
	free(want);
}

struct progress {
	const char *what;
	u64 prev_ino;
	s64 prev_off;
	u64 n;
	u64 descents;
	u64 cookies;
	u64 unknown;
	u64 twice;
	u32 dots;
};

static void check_order(struct progress *p, const struct item *it,
			const struct check *c)
{
	if (it->ino < p->prev_ino && !p->descents++)
		bad("%s: inode order broken: %llu (%s) after %llu, entry %llu",
		    p->what, (unsigned long long)it->ino, show(it->name),
		    (unsigned long long)p->prev_ino, (unsigned long long)p->n);
	if (c->cookies && p->prev_off >= 0 &&
	    ((u64)p->prev_off >> 30 < p->prev_ino ||
	     (u64)p->prev_off >> 30 > it->ino) &&
	    !p->cookies++)
		bad("%s: cookie %llx between inodes %llu and %llu", p->what,
		    (unsigned long long)p->prev_off,
		    (unsigned long long)p->prev_ino,
		    (unsigned long long)it->ino);
	p->prev_ino = it->ino;
}

static void check_dots(struct progress *p, const struct item *it,
		       const struct check *c)
{
	u32 bit = it->name[1] ? 2 : 1;

	if (p->dots & bit)
		bad("%s: %s twice", p->what, it->name);
	p->dots |= bit;
	if (it->type != DT_DIR)
		bad("%s: %s has type %u", p->what, it->name, it->type);
	if (c->order && p->n != bit - 1)
		bad("%s: %s is entry %llu", p->what, it->name,
		    (unsigned long long)p->n);
}

static void check_entry(struct progress *p, const struct item *it,
			struct model *m, const struct check *c)
{
	struct ent *e;

	if (it->type == DT_UNKNOWN)
		bad("%s: %s has no type", p->what, show(it->name));
	if (c->nokey)
		return;
	e = model_get(m, it->name, it->len);
	if (!e) {
		if (!c->subset && !p->unknown++)
			bad("%s: %s (inode %llu) must not be there", p->what,
			    show(it->name), (unsigned long long)it->ino);
		return;
	}
	if (e->seen[3]++ && !p->twice++)
		bad("%s: %s (inode %llu) twice", p->what, show(it->name),
		    (unsigned long long)it->ino);
	if (e->ino != it->ino)
		bad("%s: %s has d_ino %llu, not %llu", p->what, show(it->name),
		    (unsigned long long)it->ino, (unsigned long long)e->ino);
	if (e->type != it->type)
		bad("%s: %s has type %u, not %u", p->what, show(it->name),
		    it->type, e->type);
}

/* Returns the number of names other than "." and "..". */
u64 check_list(int dirfd, struct model *m, const struct check *c)
{
	struct progress p = { .what = c->what ?: "list", .prev_off = -1 };
	struct pair *pairs = NULL;
	struct model *names = NULL;
	struct reader r;
	struct item it;
	u64 missing = 0, limit;
	u64 n = 0;
	int fd, got;

	fd = openat(dirfd, ".", O_RDONLY | O_DIRECTORY);
	if (fd < 0)
		die("open directory");
	for (u32 i = 0; i < m->n; i++)
		m->all[i]->seen[3] = 0;
	limit = c->subset ? ~0ULL : 2 * (u64)m->n + 1000;
	if (c->nokey) {
		pairs = calloc(limit + 1, sizeof(*pairs));
		names = model_new();
		if (!pairs)
			die("out of memory");
	}
	reader_init(&r, fd, c->api, c->size);
	while ((got = reader_next(&r, &it)) > 0) {
		if (c->api != API_64 && (it.off < 0 || it.off > 0x7fffffff))
			bad("%s: cookie %llx does not fit 32 bits", p.what,
			    (unsigned long long)it.off);
		if (is_dots(&it)) {
			check_dots(&p, &it, c);
		} else {
			if (c->order)
				check_order(&p, &it, c);
			check_entry(&p, &it, m, c);
			if (c->nokey) {
				pairs[n].ino = it.ino;
				pairs[n].type = it.type;
				if (model_get(names, it.name, it.len))
					bad("%s: %s twice", p.what, it.name);
				else
					model_add(names, it.name, it.ino, 0);
			}
			if (++n >= limit) {
				bad("%s: no end after %llu names", p.what,
				    (unsigned long long)n);
				break;
			}
		}
		p.n++;
		p.prev_off = is_dots(&it) ? -1 : it.off;
		if (c->seek) {
			s64 to = reader_seek(&r, it.off, SEEK_SET);

			if (to != it.off) {
				bad("%s: lseek to %llx gives %lld", p.what,
				    (unsigned long long)it.off, (long long)to);
				break;
			}
		}
	}
	if (got < 0)
		bad("%s: getdents: %s", p.what, strerror(-got));
	if (p.dots != 3)
		bad("%s: . or .. missing", p.what);
	if (p.descents > 1)
		bad("%s: inode order broken %llu times in %llu", p.what,
		    (unsigned long long)p.descents, (unsigned long long)n);
	if (p.cookies > 1)
		bad("%s: %llu cookies wrong", p.what,
		    (unsigned long long)p.cookies);
	if (p.unknown > 1)
		bad("%s: %llu names must not be there", p.what,
		    (unsigned long long)p.unknown);
	if (p.twice > 1)
		bad("%s: %llu repetitions", p.what,
		    (unsigned long long)p.twice);
	if (c->nokey) {
		compare_pairs(pairs, n, m, p.what);
		free(pairs);
		model_free(names);
	} else {
		for (u32 i = 0; i < m->n; i++)
			if (!m->all[i]->seen[3] && !missing++)
				bad("%s: %s (inode %llu) missing", p.what,
				    show(m->all[i]->name),
				    (unsigned long long)m->all[i]->ino);
		if (missing > 1)
			bad("%s: %llu of %u names missing", p.what,
			    (unsigned long long)missing, m->n);
	}
	if (!c->subset && n != m->n)
		bad("%s: %llu names, not %u", p.what, (unsigned long long)n,
		    m->n);
	reader_end(&r);
	close(fd);
	return n;
}

int cmd_list(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);

	stat_num("names", check_list(fd, m, &o->check));
	return 0;
}

/* Every name resolves, to the inode that the model has. */
int cmd_lookup(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);

	for (u32 i = 0; i < m->n; i++) {
		struct ent *e = m->all[i];
		u64 ino = ino_at(fd, e->name);

		if (ino != e->ino)
			bad("lookup of %s gives inode %llu, not %llu",
			    show(e->name), (unsigned long long)ino,
			    (unsigned long long)e->ino);
	}
	stat_num("names", m->n);
	return 0;
}

/* No model: names unique, in order, d_ino and d_type as lstat has them. */
static u64 self(int fd, struct check c, struct model *m)
{
	bool nokey = c.nokey;
	struct reader r;
	struct item it;

	reader_init(&r, fd, API_64, 32768);
	while (reader_next(&r, &it) > 0) {
		if (is_dots(&it))
			continue;
		if (model_get(m, it.name, it.len)) {
			bad("%s: %s twice", c.what ? c.what : "listed",
			    show(it.name));
			continue;
		}
		if (nokey)
			model_add(m, it.name, it.ino, it.type);
		else
			model_add(m, it.name, ino_at(fd, it.name),
				  type_at(fd, it.name));
	}
	reader_end(&r);
	c.nokey = false;
	c.what = c.what ? c.what : "again";
	return check_list(fd, m, &c);
}

/* Every directory of a volume; in order where there is a tree. */
static void self_below(struct opts *o)
{
	char *top[] = { (char *)o->dir, NULL };
	FTS *walk = fts_open(top, FTS_PHYSICAL | FTS_NOCHDIR | FTS_XDEV, NULL);
	u64 dirs = 0, names = 0;
	FTSENT *at;

	if (!walk)
		die("%s", o->dir);
	while ((at = fts_read(walk))) {
		struct check c = o->check;
		struct model *m;
		long flags = 0;
		int fd;

		if (at->fts_info == FTS_DNR || at->fts_info == FTS_ERR ||
		    at->fts_info == FTS_NS)
			bad("%s: %s", at->fts_path, strerror(at->fts_errno));
		if (at->fts_info != FTS_D)
			continue;
		fd = open_dir(at->fts_path);
		if (ioctl(fd, FS_IOC_GETFLAGS, &flags))
			bad("%s: flags: %s", at->fts_path, strerror(errno));
		c.order = c.order && flags & FL_ITREE;
		c.cookies = c.order && c.cookies;
		c.what = at->fts_path;
		m = model_new();
		names += self(fd, c, m);
		model_free(m);
		close(fd);
		dirs++;
	}
	fts_close(walk);
	stat_num("directories", dirs);
	stat_num("names", names);
}

int cmd_self(struct opts *o)
{
	struct model *m;
	int fd;

	if (o->below) {
		self_below(o);
		return 0;
	}
	m = model_new();
	fd = open_dir(o->dir);
	stat_num("names", self(fd, o->check, m));
	model_save(m, o->out);
	return 0;
}

/* The listing as text: what readdir gives, byte for byte. */
int cmd_dump(struct opts *o)
{
	FILE *out = o->out ? fopen(o->out, "w") : stdout;
	struct reader r;
	struct item it;
	int fd = open_dir(o->dir);
	int got;
	u64 n = 0;

	if (!out)
		die("%s", o->out);
	reader_init(&r, fd, o->check.api, o->check.size);
	while ((got = reader_next(&r, &it)) > 0) {
		fprintf(out, "%llx %llu %u ", (unsigned long long)it.off,
			(unsigned long long)it.ino, it.type);
		for (u16 i = 0; i < it.len; i++)
			fprintf(out, "%02x", (u8)it.name[i]);
		fputc('\n', out);
		n++;
	}
	if (got < 0)
		bad("getdents: %s", strerror(-got));
	if (o->out && fclose(out))
		die("%s", o->out);
	stat_num("entries", n);
	return 0;
}

/* Counts the names of a directory and keeps none; with --mode lstat, stats. */
int cmd_pass(struct opts *o)
{
	bool stats = o->mode && !strcmp(o->mode, "lstat");
	int fd = open_dir(o->dir);
	struct reader r;
	struct item it;
	u64 names = 0;

	reader_init(&r, fd, API_64, 32768);
	while (reader_next(&r, &it) > 0) {
		if (is_dots(&it))
			continue;
		if (stats && !ino_at(fd, it.name))
			bad("lstat of %s: %s", show(it.name), strerror(errno));
		names++;
	}
	reader_end(&r);
	stat_num("names", names);
	return 0;
}
