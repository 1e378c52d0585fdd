// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: what an open scan returns while the directory changes. */
#include "t.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#define READERS 3

static int rename2(int from, const char *old, int to, const char *new,
		   unsigned int flags)
{
	return syscall(SYS_renameat2, from, old, to, new, flags);
}

static void create(int fd, const char *name)
{
	if (mknodat(fd, name, S_IFREG | 0644, 0))
		die("mknod %s", show(name));
}

static struct ent *create_new(int fd, struct model *m, struct rng *r,
			      enum style style)
{
	char name[NAME_BYTES];

	fresh_name(m, r, style, name);
	create(fd, name);
	return model_add(m, name, ino_at(fd, name), DT_REG);
}

static void forget(struct model *m)
{
	for (u32 i = 0; i < m->n; i++)
		memset(m->all[i]->seen, 0, sizeof(m->all[i]->seen));
}

/* ---- names moved from ahead of a scan to behind it ---- */

enum { KEPT, MOVED, FRESH };

struct over {
	int fd, aux;
	struct model *m, *pool;
	struct reader rd[READERS];
	bool done[READERS];
	int n;
	struct rng rng;
	struct opts *o;
	u64 lower, higher, exchanged, queued_gone, whiteouts, rewound, twice,
		names;
};

/* Read up to n entries with reader k. */
static void advance(struct over *t, int k, u32 n)
{
	struct item it;

	while (n-- && !t->done[k]) {
		int got = reader_next(&t->rd[k], &it);
		struct ent *e;

		if (got < 0) {
			bad("getdents: %s", strerror(-got));
			t->done[k] = true;
			return;
		}
		if (!got) {
			t->done[k] = true;
			return;
		}
		if (is_dots(&it))
			continue;
		t->names++;
		e = model_get(t->m, it.name, it.len);
		if (e)
			e->seen[k]++;
		else if (t->names > 1000000000)
			die("no end");
	}
}

static struct ent *pick_seen(struct over *t, bool seen)
{
	for (int i = 0; i < 200; i++) {
		struct ent *e = model_any(t->m, &t->rng);

		if (e && e->kind == KEPT && !!e->seen[0] == seen)
			return e;
	}
	return NULL;
}

/* The file of the pool with the lowest or the highest inode. */
static struct ent *pick_pool(struct over *t, bool high)
{
	struct ent *best = NULL;

	for (u32 i = 0; i < t->pool->n; i++) {
		struct ent *e = t->pool->all[i];

		if (!best || (high ? e->ino > best->ino : e->ino < best->ino))
			best = e;
	}
	return best;
}

static u64 last_ino(struct over *t)
{
	u64 last = 0;

	for (u32 i = 0; i < t->m->n; i++)
		if (t->m->all[i]->ino > last)
			last = t->m->all[i]->ino;
	return last;
}

static void note(struct over *t, struct ent *a, u64 ino, u64 end)
{
	if (ino < a->ino)
		t->lower++;
	else if (ino > end)
		t->higher++;
	a->ino = ino;
	a->kind = MOVED;
}

static void swap_types(struct ent *a, struct ent *b)
{
	u8 type = a->type;

	a->type = b->type;
	b->type = type;
}

static void move_one(struct over *t, u64 end)
{
	u8 type;
	struct ent *a = pick_seen(t, false);
	struct ent *b = pick_seen(t, true);
	struct ent *p;
	char spare[NAME_BYTES];
	u64 ino;

	if (!a)
		return;
	switch (below(&t->rng, 8)) {
	case 0: /* by a name behind, in this directory */
		if (!b)
			return;
		if (rename2(t->fd, b->name, t->fd, a->name, 0))
			die("rename over");
		note(t, a, b->ino, end);
		a->type = b->type;
		model_del(t->m, b);
		return;
	case 1: /* by a file from elsewhere: lowest or highest inode */
	case 2:
		p = pick_pool(t, chance(&t->rng, 50));
		if (!p)
			return;
		if (rename2(t->aux, p->name, t->fd, a->name, 0))
			die("rename over from the pool");
		note(t, a, p->ino, end);
		a->type = p->type;
		model_del(t->pool, p);
		return;
	case 3: /* exchanged with a name behind */
		if (!b)
			return;
		if (rename2(t->fd, b->name, t->fd, a->name, RENAME_EXCHANGE))
			die("exchange");
		ino = a->ino;
		note(t, a, b->ino, end);
		b->ino = ino;
		b->kind = MOVED;
		swap_types(a, b);
		t->exchanged++;
		return;
	case 4: /* exchanged with a name elsewhere */
		p = pick_pool(t, chance(&t->rng, 50));
		if (!p)
			return;
		if (rename2(t->aux, p->name, t->fd, a->name, RENAME_EXCHANGE))
			die("exchange with the pool");
		ino = a->ino;
		note(t, a, p->ino, end);
		p->ino = ino;
		swap_types(a, p);
		t->exchanged++;
		return;
	case 5: /* as editors and rsync do: write a new file, rename it over */
		sprintf(spare, ".tmp-%u", below(&t->rng, 1000000));
		create(t->fd, spare);
		ino = ino_at(t->fd, spare);
		if (rename2(t->fd, spare, t->fd, a->name, 0))
			die("rename over");
		note(t, a, ino, end);
		a->type = DT_REG;
		return;
	case 6: /* renamed, a whiteout in its place */
		fresh_name(t->m, &t->rng, t->o->style, spare);
		if (rename2(t->fd, a->name, t->fd, spare, RENAME_WHITEOUT))
			die("whiteout");
		p = model_add(t->m, spare, a->ino, a->type);
		p->kind = FRESH;
		note(t, a, ino_at(t->fd, a->name), end);
		a->type = DT_CHR;
		t->whiteouts++;
		return;
	default: /* moved behind, then gone or moved on */
		if (!b)
			return;
		if (rename2(t->fd, b->name, t->fd, a->name, 0))
			die("rename over");
		type = b->type;
		model_del(t->m, b);
		t->queued_gone++;
		if (chance(&t->rng, 50)) {
			if (unlinkat(t->fd, a->name, 0))
				die("unlink");
			model_del(t->m, a);
			return;
		}
		fresh_name(t->m, &t->rng, t->o->style, spare);
		ino = ino_at(t->fd, a->name);
		if (rename2(t->fd, a->name, t->fd, spare, 0))
			die("rename");
		model_del(t->m, a);
		model_add(t->m, spare, ino, type)->kind = FRESH;
	}
}

static void judge(struct over *t, u64 round)
{
	for (u32 i = 0; i < t->m->n; i++) {
		struct ent *e = t->m->all[i];

		for (int k = 0; k < t->n; k++) {
			if (e->kind == FRESH)
				continue;
			if (!e->seen[k])
				bad("round %llu, scan %d: %s (inode %llu%s) not returned",
				    (unsigned long long)round, k, show(e->name),
				    (unsigned long long)e->ino,
				    e->kind == MOVED ? ", moved" : "");
			else if (e->kind == KEPT && e->seen[k] > 1)
				bad("round %llu, scan %d: %s returned %u times, untouched",
				    (unsigned long long)round, k, show(e->name),
				    e->seen[k]);
			else if (e->seen[k] > 1)
				t->twice++;
		}
	}
}

static void top_up(struct over *t, u32 names, u32 pool)
{
	while (t->m->n < names)
		create_new(t->fd, t->m, &t->rng, t->o->style);
	while (t->pool->n < pool)
		create_new(t->aux, t->pool, &t->rng, S_SHORT);
}

/*
 * --n rounds over --dir, with a pool of other files in --aux. Up to --m moves
 * a round (3). Regular files only.
 */
int cmd_over(struct opts *o)
{
	static const size_t sizes[] = { 300, 1000, 4096, 0, 32768 };
	struct over t = { .o = o };
	u32 names, pool = 40;

	if (mkdir(o->aux, 0755) && errno != EEXIST)
		die("%s", o->aux);
	t.m = model_load(o->model);
	t.pool = model_new();
	t.fd = open_dir(o->dir);
	t.aux = open_dir(o->aux);
	rng_seed(&t.rng, o->seed);
	names = t.m->n;
	for (u64 round = 0; round < o->n && findings < 20; round++) {
		u64 end;

		top_up(&t, names, pool);
		end = last_ino(&t);
		for (u32 i = 0; i < t.m->n; i++) {
			struct ent *e = t.m->all[i];

			memset(e->seen, 0, sizeof(e->seen));
			e->kind = KEPT;
		}
		t.n = chance(&t.rng, 20) ? 1 + below(&t.rng, READERS) : 1;
		for (int k = 0; k < t.n; k++) {
			int fd = openat(t.fd, ".", O_RDONLY | O_DIRECTORY);

			if (fd < 0)
				die("open");
			reader_init(&t.rd[k], fd, API_64,
				    sizes[below(&t.rng, ARRAY_SIZE(sizes))]);
			t.done[k] = false;
			advance(&t, k, below(&t.rng, names + 2));
		}
		for (u32 i = 1 + below(&t.rng, o->m ?: 3); i; i--) {
			move_one(&t, end);
			if (chance(&t.rng, 30))
				advance(&t, 0, below(&t.rng, 20));
		}
		/* rewinddir half way: from here on everything once. */
		if (chance(&t.rng, 8)) {
			forget(t.m);
			for (u32 i = 0; i < t.m->n; i++)
				t.m->all[i]->kind = KEPT;
			for (int k = 0; k < t.n; k++) {
				reader_seek(&t.rd[k], 0, SEEK_SET);
				t.done[k] = false;
			}
			t.rewound++;
		}
		for (int k = 0; k < t.n; k++)
			advance(&t, k, ~0U);
		judge(&t, round);
		for (int k = 0; k < t.n; k++) {
			/* After rewinddir: everything once, nothing queued. */
			if (chance(&t.rng, 3)) {
				for (u32 i = 0; i < t.m->n; i++) {
					t.m->all[i]->seen[k] = 0;
					t.m->all[i]->kind = KEPT;
				}
				reader_seek(&t.rd[k], 0, SEEK_SET);
				t.done[k] = false;
				advance(&t, k, ~0U);
				for (u32 i = 0; i < t.m->n; i++)
					if (t.m->all[i]->seen[k] != 1)
						bad("after rewinddir %s comes %u times",
						    show(t.m->all[i]->name),
						    t.m->all[i]->seen[k]);
			}
			reader_end(&t.rd[k]);
			close(t.rd[k].fd);
		}
	}
	check_list(t.fd, t.m, &o->check);
	model_save(t.m, o->model);
	stat_num("moved_lower", t.lower);
	stat_num("moved_above_end", t.higher);
	stat_num("exchanged", t.exchanged);
	stat_num("queued_then_gone", t.queued_gone);
	stat_num("whiteouts", t.whiteouts);
	stat_num("rewound", t.rewound);
	stat_num("returned_again", t.twice);
	stat_num("names", t.names);
	return 0;
}

/* ---- loops that change the directory for each name they read ---- */

int cmd_loop(struct opts *o)
{
	struct model *m = model_load(o->model);
	struct model *all = model_load(o->model);
	u64 limit = 6 * (u64)m->n + 5000;
	int fd = open_dir(o->dir);
	char name[NAME_BYTES];
	struct reader r;
	struct item it;
	struct rng rng;
	u64 read = 0;
	int got;

	rng_seed(&rng, o->seed);
	reader_init(&r, fd, API_64, o->check.size);
	while ((got = reader_next(&r, &it)) > 0) {
		struct ent *e, *was;

		if (is_dots(&it))
			continue;
		if (++read > limit) {
			bad("the %s loop has read %llu names and goes on",
			    o->mode, (unsigned long long)read);
			break;
		}
		was = model_get(all, it.name, it.len);
		if (was)
			was->seen[0]++;
		e = model_get(m, it.name, it.len);
		if (!strcmp(o->mode, "create")) {
			create_new(fd, m, &rng, o->style);
		} else if (!strcmp(o->mode, "link")) {
			if (!e || e->type == DT_DIR)
				continue;
			fresh_name(m, &rng, o->style, name);
			if (linkat(fd, it.name, fd, name, 0))
				die("link");
			model_add(m, name, e->ino, e->type);
		} else if (!strcmp(o->mode, "rename")) {
			if (!e)
				continue;
			fresh_name(m, &rng, o->style, name);
			if (rename2(fd, it.name, fd, name, 0))
				die("rename");
			model_add(m, name, e->ino, e->type);
			model_del(m, e);
		} else if (!strcmp(o->mode, "replace")) {
			/* sed -i on everything: new file, renamed over */
			create(fd, ".sed");
			if (!e || e->type == DT_DIR) {
				unlinkat(fd, ".sed", 0);
				continue;
			}
			e->ino = ino_at(fd, ".sed");
			e->type = DT_REG;
			if (rename2(fd, ".sed", fd, it.name, 0))
				die("rename over");
		} else {
			errno = EINVAL;
			die("no loop %s", o->mode);
		}
	}
	if (got < 0)
		bad("getdents: %s", strerror(-got));
	for (u32 i = 0; i < all->n; i++)
		if (!all->all[i]->seen[0])
			bad("%s was there from the start and not returned",
			    show(all->all[i]->name));
	check_list(fd, m, &o->check);
	model_save(m, o->model);
	stat_num("read", read);
	return 0;
}

/* ---- telldir and seekdir ---- */

struct mark {
	s64 cookie; /* of what follows the entry */
	char *name;
	u16 len;
};

static void mutate(int fd, struct model *m, struct rng *rng, struct opts *o)
{
	u32 how = below(rng, 4);
	u32 n = m->n;
	u32 del = how == 0 ? n * 7 / 10 : how == 1 ? n / 20 : n / 4;
	u32 add = how == 3 ? n : n / 4;
	char name[NAME_BYTES];

	/* Runs of neighbours go too, so that whole nodes empty. */
	while (del && m->n > 20) {
		struct ent *e = model_any(m, rng);
		u64 ino = e->ino;

		if (unlinkat(fd, e->name, e->type == DT_DIR ? AT_REMOVEDIR : 0))
			die("unlink");
		model_del(m, e);
		del--;
		(void)ino;
	}
	while (add--) {
		struct ent *e = model_any(m, rng);

		if (chance(rng, 50) && e->type != DT_DIR) {
			/* Keys in the middle: splits there. */
			fresh_name(m, rng, o->style, name);
			if (linkat(fd, e->name, fd, name, 0)) {
				if (errno == EMLINK)
					continue;
				die("link");
			}
			model_add(m, name, e->ino, e->type)->mark = 1;
		} else {
			create_new(fd, m, rng, o->style)->mark = 1;
		}
	}
}

static void seek_check(struct opts *o, struct model *m, struct reader *r,
		       struct mark *marks, u32 n, u32 at)
{
	struct item it;
	u32 after = 0;
	int got;
	s64 to = at ? marks[at - 1].cookie : 0;
	s64 where = reader_seek(r, to, SEEK_SET);

	if (where != to)
		bad("lseek to %llx gives %lld", (unsigned long long)to,
		    (long long)where);
	for (u32 i = 0; i < m->n; i++)
		m->all[i]->seen[0] = 0;
	while ((got = reader_next(r, &it)) > 0) {
		struct ent *e = model_get(m, it.name, it.len);

		if (e)
			e->seen[0]++;
		if (++after > 3 * m->n + 1000) {
			bad("no end after seekdir");
			break;
		}
	}
	if (got < 0)
		bad("getdents after lseek: %s", strerror(-got));
	for (u32 i = 0; i < n; i++) {
		struct ent *e = model_get(m, marks[i].name, marks[i].len);

		if (!e || e->mark)
			continue;
		if (i >= at && e->seen[0] != 1)
			bad("seekdir to entry %u (%llx): %s, entry %u, comes %u times",
			    at, (unsigned long long)to, show(e->name), i,
			    e->seen[0]);
		/* Equal keys share a cookie and may come again. */
		if (i + 1 < at && marks[i].cookie != to && e->seen[0])
			bad("seekdir to entry %u (%llx): %s, entry %u, comes again",
			    at, (unsigned long long)to, show(e->name), i);
	}
	(void)o;
}

/*
 * --n rounds of changes; --m positions tried after each; --percent: on another
 * open file.
 */
int cmd_seek(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);
	u32 size = m->n;
	struct rng rng;
	u64 tried = 0;

	rng_seed(&rng, o->seed);
	for (u64 round = 0; round < o->n && findings < 20; round++) {
		struct mark *marks;
		struct reader r;
		struct item it;
		u32 n = 0, cap;
		int got;

		/* Back to the size that we came with. */
		while (m->n > size) {
			struct ent *e = model_any(m, &rng);

			if (unlinkat(fd, e->name,
				     e->type == DT_DIR ? AT_REMOVEDIR : 0))
				die("unlink");
			model_del(m, e);
		}
		while (m->n < size)
			create_new(fd, m, &rng, o->style);
		cap = m->n + 100;
		marks = calloc(cap, sizeof(*marks));
		for (u32 i = 0; i < m->n; i++)
			m->all[i]->mark = 0;
		reader_init(&r, openat(fd, ".", O_RDONLY | O_DIRECTORY),
			    o->check.api, chance(&rng, 50) ? 700 : 32768);
		while ((got = reader_next(&r, &it)) > 0 && n < cap) {
			if (is_dots(&it))
				continue;
			marks[n].cookie = it.off;
			marks[n].name = strdup(it.name);
			marks[n++].len = it.len;
		}
		if (n != m->n)
			bad("round %llu: %u names, not %u",
			    (unsigned long long)round, n, m->n);
		for (int step = 0; step < 3; step++) {
			mutate(fd, m, &rng, o);
			for (u64 i = 0; i < o->m; i++, tried++)
				seek_check(o, m, &r, marks, n,
					   below(&rng, n + 1));
			/* As file servers do: the cookie on a new file. */
			if (!o->percent)
				continue;
			close(r.fd);
			r.fd = openat(fd, ".", O_RDONLY | O_DIRECTORY);
		}
		reader_end(&r);
		close(r.fd);
		for (u32 i = 0; i < n; i++)
			free(marks[i].name);
		free(marks);
	}
	check_list(fd, m, &o->check);
	model_save(m, o->model);
	stat_num("positions", tried);
	return 0;
}

/* ---- rewinddir, ends, shared positions ---- */

static u32 drain(struct reader *r, struct model *m, int slot)
{
	struct item it;
	u32 n = 0;
	int got;

	while ((got = reader_next(r, &it)) > 0) {
		struct ent *e = model_get(m, it.name, it.len);

		n++;
		if (e)
			e->seen[slot]++;
		else if (!is_dots(&it))
			bad("%s must not be there", show(it.name));
	}
	if (got < 0)
		bad("getdents: %s", strerror(-got));
	return n;
}

static void once(struct model *m, int slots, const char *what)
{
	u64 wrong = 0;

	for (u32 i = 0; i < m->n; i++) {
		u32 seen = 0;

		for (int k = 0; k < slots; k++)
			seen += m->all[i]->seen[k];
		if (seen != 1 && !wrong++)
			bad("%s: %s comes %u times", what,
			    show(m->all[i]->name), seen);
	}
	if (wrong > 1)
		bad("%s: %llu names wrong", what, (unsigned long long)wrong);
}

int cmd_rewind(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);
	s64 end = o->check.api == API_64 ? EOF_COOKIE_64 : EOF_COOKIE_32;
	struct reader r, r2;
	struct item it;
	struct rng rng;
	s64 at;

	rng_seed(&rng, o->seed);
	reader_init(&r, fd, o->check.api, 500);
	for (int round = 0; round < 20; round++) {
		for (u32 i = below(&rng, m->n); i; i--)
			reader_next(&r, &it);
		if (reader_seek(&r, 0, SEEK_SET))
			bad("rewinddir fails");
		forget(m);
		drain(&r, m, 0);
		once(m, 1, "after rewinddir");
		if (reader_next(&r, &it) != 0)
			bad("something after the end");
	}
	/* Names made after the end has been reached stay unseen. */
	create_new(fd, m, &rng, o->style);
	if (reader_next(&r, &it) != 0)
		bad("a name after the end");
	reader_seek(&r, 0, SEEK_SET);
	forget(m);
	drain(&r, m, 0);
	once(m, 1, "rewinddir after a create");
	/* The end by its cookie and by SEEK_END. */
	reader_seek(&r, 0, SEEK_SET);
	reader_next(&r, &it);
	at = reader_seek(&r, end, SEEK_SET);
	if (at != end)
		bad("lseek to the end gives %lld", (long long)at);
	if (reader_next(&r, &it) != 0)
		bad("a name after lseek to the end");
	reader_seek(&r, 0, SEEK_SET);
	at = reader_seek(&r, 0, SEEK_END);
	if (at < 0)
		bad("SEEK_END: %s", strerror((int)-at));
	if (reader_next(&r, &it) != 0)
		bad("a name after SEEK_END");
	if (reader_seek(&r, -1, SEEK_SET) != -EINVAL)
		bad("lseek to -1 is taken");
	/* A position of nothing, between keys and far away: no crash. */
	for (int i = 0; i < 200; i++) {
		s64 to = rng_next(&rng) >> (1 + below(&rng, 62));

		if (o->check.api != API_64)
			to &= 0x7fffffff;
		reader_seek(&r, to, SEEK_SET);
		forget(m);
		drain(&r, m, 0);
		for (u32 k = 0; k < m->n; k++)
			if (m->all[k]->seen[0] > 1)
				bad("after lseek to %llx: %s twice",
				    (unsigned long long)to,
				    show(m->all[k]->name));
	}
	/* dup shares the position: together each name once. */
	reader_seek(&r, 0, SEEK_SET);
	forget(m);
	reader_init(&r2, dup(fd), o->check.api, 300);
	for (;;) {
		int a = reader_next(&r, &it);
		int b;

		if (a > 0) {
			struct ent *e = model_get(m, it.name, it.len);

			if (e)
				e->seen[0]++;
		}
		b = reader_next(&r2, &it);
		if (b > 0) {
			struct ent *e = model_get(m, it.name, it.len);

			if (e)
				e->seen[1]++;
		}
		if (a <= 0 && b <= 0)
			break;
	}
	once(m, 2, "two readers on one open file");
	/* A second open has a position of its own. */
	close(r2.fd);
	r2.fd = open_dir(o->dir);
	r2.have = r2.pos = 0;
	reader_seek(&r, 0, SEEK_SET);
	forget(m);
	for (int i = 0; i < 5; i++)
		reader_next(&r2, &it);
	drain(&r, m, 0);
	once(m, 1, "next to a second open file");
	model_save(m, o->model);
	return 0;
}

/* ---- a scan open while the directory changes its form ---- */

/*
 * --mode grow: --m entries at first, grown by --n while a scan is open after
 * each of a few entries; --mode shrink: all but the first --m deleted;
 * --mode wave: grown, shrunk, grown.
 */
int cmd_morph(struct opts *o)
{
	struct model *m = model_new();
	struct rng rng;
	struct reader r[READERS];
	static const u32 skip[READERS] = { 0, 3, 1000000 };
	u32 first, keep, reads[READERS];
	struct ent **old;
	int fd;

	if (mkdir(o->dir, 0755))
		die("%s", o->dir);
	fd = open_dir(o->dir);
	rng_seed(&rng, o->seed);
	first = o->m;
	while (m->n < first)
		create_new(fd, m, &rng, o->style);
	old = calloc(first, sizeof(*old));
	memcpy(old, m->all, first * sizeof(*old));
	for (int k = 0; k < READERS; k++) {
		u32 n = skip[k] > first ? first / 2 : skip[k];

		reader_init(&r[k], openat(fd, ".", O_RDONLY | O_DIRECTORY),
			    API_64, k == 2 ? 400 : 0);
		for (reads[k] = 0; reads[k] < n; reads[k]++) {
			struct item it;
			struct ent *e;

			if (reader_next(&r[k], &it) <= 0)
				break;
			e = model_get(m, it.name, it.len);
			if (e)
				e->seen[k]++;
		}
	}
	keep = first;
	if (strcmp(o->mode, "shrink")) {
		/* Grow: new names only. */
		while (m->n < first + o->n)
			create_new(fd, m, &rng, o->style);
	}
	if (strcmp(o->mode, "grow")) {
		u32 spare = first / 50 + 1;

		/* The first names of the model stay; the rest goes. */
		if (!strcmp(o->mode, "shrink"))
			keep = spare;
		for (u32 i = m->n; i > 0; i--) {
			struct ent *e = m->all[i - 1];
			bool stay = false;

			for (u32 k = 0; k < keep && !stay; k++)
				stay = old[k] == e;
			if (stay)
				continue;
			if (unlinkat(fd, e->name, 0))
				die("unlink");
			for (u32 k = keep; k < first; k++)
				if (old[k] == e)
					old[k] = NULL;
			model_del(m, e);
		}
	}
	if (!strcmp(o->mode, "wave"))
		while (m->n < first + o->n / 2)
			create_new(fd, m, &rng, o->style);
	for (int k = 0; k < READERS; k++) {
		struct item it;
		u64 n = 0, before = r[k].calls;
		int got;

		while ((got = reader_next(&r[k], &it)) > 0) {
			struct ent *e = model_get(m, it.name, it.len);

			/* What the kernel says now must be true now. */
			if (r[k].calls > before && !is_dots(&it) &&
			    (!e || e->ino != it.ino))
				bad("scan %d: %s (inode %llu) is gone", k,
				    show(it.name), (unsigned long long)it.ino);
			if (e)
				e->seen[k]++;
			if (++n > 3 * (first + o->n) + 100) {
				bad("scan %d does not end", k);
				break;
			}
		}
		if (got < 0)
			bad("getdents: %s", strerror(-got));
		for (u32 i = 0; i < keep; i++)
			if (old[i]->seen[k] != 1)
				bad("scan %d, opened at %u names, %u read: %s comes %u times",
				    k, first, reads[k], show(old[i]->name),
				    old[i]->seen[k]);
		reader_end(&r[k]);
		close(r[k].fd);
	}
	check_list(fd, m, &o->check);
	model_save(m, o->model);
	stat_num("names", m->n);
	return 0;
}

/*
 * Read --m entries, say so, wait for the file --aux to appear, read on: each
 * name of the model once. For changes from outside (remount, corruption).
 */
int cmd_hold(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);
	struct reader r;
	struct item it;
	u64 n = 0;
	int got = 0;

	reader_init(&r, fd, API_64, o->check.size);
	while (n < o->m && (got = reader_next(&r, &it)) > 0) {
		struct ent *e = model_get(m, it.name, it.len);

		n++;
		if (e)
			e->seen[0]++;
	}
	printf("READY\n");
	fflush(stdout);
	for (int i = 0; i < 6000 && access(o->aux, F_OK); i++)
		usleep(20000);
	while ((got = reader_next(&r, &it)) > 0) {
		struct ent *e = model_get(m, it.name, it.len);

		if (e)
			e->seen[0]++;
		if (++n > 4 * (u64)m->n + 1000) {
			bad("no end");
			break;
		}
	}
	if (got < 0)
		bad("getdents: %s", strerror(-got));
	for (u32 i = 0; i < m->n; i++) {
		struct ent *e = m->all[i];

		/* --percent: 1 if names may come again. */
		if (!e->seen[0] || (e->seen[0] > 1 && !o->percent))
			bad("%s comes %u times", show(e->name), e->seen[0]);
	}
	stat_num("entries", n);
	return 0;
}

/* ---- readers and writers together ---- */

static void stress_writer(struct opts *o, struct model *m, int id, time_t end)
{
	struct {
		char name[24];
		bool dir;
	} own[200] = {};
	int fd = open_dir(o->dir);
	struct rng rng;
	char name[32];
	u64 serial = 0, done = 0;

	rng_seed(&rng, o->seed * 100 + id);
	while (time(NULL) < end) {
		u32 at = below(&rng, ARRAY_SIZE(own));
		u32 to = below(&rng, ARRAY_SIZE(own));
		struct ent *p;
		int ret = 0;

		for (int i = 0; i < 64; i++) {
			p = model_any(m, &rng);
			if (p->kind == MOVED)
				break;
		}
		if (!own[at].name[0]) {
			sprintf(name, "w%d-%llu", id,
				(unsigned long long)serial++);
			own[at].dir = chance(&rng, 10);
			if (own[at].dir)
				ret = mkdirat(fd, name, 0755);
			else if (chance(&rng, 30))
				ret = linkat(fd, p->name, fd, name, 0);
			else
				ret = mknodat(fd, name, S_IFREG | 0644, 0);
			/* The inode of a replaced name may be gone. */
			if (ret && errno != ENOENT && errno != EMLINK)
				bad("writer %d: make: %s", id, strerror(errno));
			if (!ret)
				strcpy(own[at].name, name);
			done++;
			continue;
		}
		switch (below(&rng, 5)) {
		case 0:
			ret = unlinkat(fd, own[at].name,
				       own[at].dir ? AT_REMOVEDIR : 0);
			own[at].name[0] = 0;
			break;
		case 1:
			sprintf(name, "w%d-%llu", id,
				(unsigned long long)serial++);
			ret = rename2(fd, own[at].name, fd, name, 0);
			strcpy(own[at].name, name);
			break;
		case 2: /* over a name that always exists */
			if (own[at].dir || p->kind != MOVED)
				break;
			ret = rename2(fd, own[at].name, fd, p->name, 0);
			/* A link of it: nothing happens, both stay. */
			if (!ret && !faccessat(fd, own[at].name, F_OK,
					       AT_SYMLINK_NOFOLLOW))
				break;
			own[at].name[0] = 0;
			break;
		case 3:
			if (own[at].dir || p->kind != MOVED)
				break;
			ret = rename2(fd, own[at].name, fd, p->name,
				      RENAME_EXCHANGE);
			break;
		default:
			if (at == to || !own[to].name[0])
				break;
			ret = rename2(fd, own[at].name, fd, own[to].name,
				      RENAME_EXCHANGE);
			if (!ret) {
				bool d = own[at].dir;

				own[at].dir = own[to].dir;
				own[to].dir = d;
			}
		}
		if (ret)
			bad("writer %d: %s", id, strerror(errno));
		done++;
	}
	printf("STAT: writer%d %llu\n", id, (unsigned long long)done);
}

static void stress_reader(struct opts *o, struct model *m, int id, time_t end)
{
	static const size_t sizes[] = { 32768, 1024, 8192, 300 };
	int fd = open_dir(o->dir);
	struct reader r;
	struct item it;
	u64 scans = 0, names = 0;

	reader_init(&r, fd, API_64, 32768);
	while (time(NULL) < end && !findings) {
		u64 n = 0;
		int got;

		r.size = sizes[(id + scans) % ARRAY_SIZE(sizes)];
		for (u32 i = 0; i < m->n; i++)
			m->all[i]->seen[0] = 0;
		if (scans % 3 == 2) {
			close(fd);
			r.fd = fd = open_dir(o->dir);
		}
		reader_seek(&r, 0, SEEK_SET);
		while ((got = reader_next(&r, &it)) > 0) {
			struct ent *e = model_get(m, it.name, it.len);

			if (e)
				e->seen[0]++;
			if (++n > 50 * (u64)m->n + 100000) {
				bad("reader %d: no end", id);
				break;
			}
		}
		if (got < 0)
			bad("reader %d: getdents: %s", id, strerror(-got));
		for (u32 i = 0; i < m->n; i++) {
			struct ent *e = m->all[i];

			if (!e->seen[0])
				bad("reader %d, scan %llu: %s not returned%s",
				    id, (unsigned long long)scans,
				    show(e->name),
				    e->kind == MOVED ? " (replaced)" : "");
			else if (e->kind == KEPT && e->seen[0] > 1)
				bad("reader %d, scan %llu: %s comes %u times",
				    id, (unsigned long long)scans,
				    show(e->name), e->seen[0]);
		}
		names += n;
		scans++;
	}
	printf("STAT: reader%d_scans %llu\n", id, (unsigned long long)scans);
	printf("STAT: reader%d_names %llu\n", id, (unsigned long long)names);
}

/*
 * The model's names: four in five untouched, one in five replaced all the
 * time. --readers, --writers, --seconds.
 */
int cmd_stress(struct opts *o)
{
	struct model *m = model_load(o->model);
	time_t end = time(NULL) + o->seconds;
	u32 n = o->readers + o->writers;
	int status;

	for (u32 i = 0; i < m->n; i++)
		m->all[i]->kind =
			m->all[i]->type == DT_REG && i % 5 == 0 ? MOVED : KEPT;
	fflush(stdout);
	for (u32 i = 0; i < n; i++) {
		pid_t pid = fork();

		if (pid < 0)
			die("fork");
		if (pid)
			continue;
		if (i < o->readers)
			stress_reader(o, m, i, end);
		else
			stress_writer(o, m, i - o->readers, end);
		fflush(stdout);
		_exit(findings ? 1 : 0);
	}
	for (u32 i = 0; i < n; i++) {
		if (wait(&status) < 0)
			die("wait");
		if (status)
			findings++;
	}
	/* The untouched ones are where they were. */
	for (u32 i = m->n; i > 0; i--)
		if (m->all[i - 1]->kind == MOVED)
			model_del(m, m->all[i - 1]);
	model_save(m, o->out);
	return 0;
}
