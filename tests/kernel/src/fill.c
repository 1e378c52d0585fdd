// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: filling, ageing and emptying a directory. */
#include "t.h"

#include <dirent.h>
#include <sys/sysmacros.h>

static char long_target[600];

/* Make one object; 0 or -errno. */
static int make_one(int fd, const char *name, struct rng *r, bool mixed,
		    struct model *m)
{
	u32 x = mixed ? below(r, 100) : 0;
	char old[NAME_BYTES];
	struct ent *e;
	int ret;

	if (x < 70)
		ret = mknodat(fd, name, S_IFREG | 0644, 0);
	else if (x < 72)
		ret = mkdirat(fd, name, 0755);
	else if (x < 77)
		ret = symlinkat("target", fd, name);
	else if (x < 78)
		ret = symlinkat(long_target, fd, name);
	else if (x < 83)
		ret = mknodat(fd, name, S_IFIFO | 0644, 0);
	else if (x < 88)
		ret = mknodat(fd, name, S_IFCHR | 0644, makedev(1, 3));
	else if (x < 91)
		ret = mknodat(fd, name, S_IFSOCK | 0644, 0);
	else {
		e = model_any(m, r);
		if (!e || e->type == DT_DIR) {
			ret = mknodat(fd, name, S_IFREG | 0644, 0);
		} else {
			memcpy(old, e->name, e->len + 1);
			ret = linkat(fd, old, fd, name, 0);
		}
	}
	return ret ? -errno : 0;
}

static void add_one(int fd, struct model *m, struct rng *r, struct opts *o)
{
	char name[NAME_BYTES];
	int ret;

	fresh_name(m, r, o->style, name);
	ret = make_one(fd, name, r, o->mixed, m);
	if (ret) {
		errno = -ret;
		die("entry %u (%s)", m->n, show(name));
	}
	model_add(m, name, ino_at(fd, name), type_at(fd, name));
}

static void remove_one(int fd, struct model *m, struct ent *e)
{
	if (unlinkat(fd, e->name, e->type == DT_DIR ? AT_REMOVEDIR : 0))
		die("removing %s", show(e->name));
	model_del(m, e);
}

/* Fill up to n names (those of --model, if it exists, are there already). */
int cmd_fill(struct opts *o)
{
	struct model *m;
	struct rng r;
	int fd;

	memset(long_target, 't', sizeof(long_target) - 1);
	if (mkdir(o->dir, 0755) && errno != EEXIST)
		die("%s", o->dir);
	m = model_load(o->model && !access(o->model, F_OK) ? o->model : NULL);
	fd = open_dir(o->dir);
	rng_seed(&r, o->seed);
	while (m->n < o->n)
		add_one(fd, m, &r, o);
	model_save(m, o->model);
	stat_num("names", m->n);
	return 0;
}

/* Delete a share of the names at random, then create as many others. */
int cmd_age(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);
	u32 had = m->n;
	u32 keep = had - (u64)had * o->percent / 100;
	struct rng r;

	memset(long_target, 't', sizeof(long_target) - 1);
	rng_seed(&r, o->seed);
	/* Three rounds: deletes meet holes of the round before. */
	for (int round = 1; round <= 3; round++) {
		u32 low = had - (had - keep) * round / 3;

		while (m->n > low)
			remove_one(fd, m, model_any(m, &r));
		if (round == 2)
			while (m->n < had - (had - keep) / 3)
				add_one(fd, m, &r, o);
	}
	while (o->n == 0 && m->n < had)
		add_one(fd, m, &r, o);
	model_save(m, o->model);
	stat_num("names", m->n);
	return 0;
}

/* n more hard links to one inode. */
int cmd_links(struct opts *o)
{
	struct model *m;
	char first[NAME_BYTES], name[NAME_BYTES];
	struct rng r;
	u64 ino;
	int fd;

	if (mkdir(o->dir, 0755) && errno != EEXIST)
		die("%s", o->dir);
	m = model_load(o->model && !access(o->model, F_OK) ? o->model : NULL);
	fd = open_dir(o->dir);
	rng_seed(&r, o->seed);
	fresh_name(m, &r, o->style, first);
	if (mknodat(fd, first, S_IFREG | 0644, 0))
		die("mknod");
	ino = ino_at(fd, first);
	model_add(m, first, ino, DT_REG);
	for (u64 i = 1; i < o->n; i++) {
		fresh_name(m, &r, o->style, name);
		if (linkat(fd, first, fd, name, 0))
			die("link %llu", (unsigned long long)i);
		model_add(m, name, ino, DT_REG);
	}
	model_save(m, o->model);
	stat_num("names", m->n);
	return 0;
}

/*
 * As rm -r does: one pass of readdir, each name removed as it comes. All but
 * the last m names of the model.
 */
int cmd_empty(struct opts *o)
{
	struct model *m = model_load(o->model);
	int fd = open_dir(o->dir);
	u64 keep = o->m;
	struct reader r;
	struct item it;
	int got;
	u64 gone = 0;

	for (u32 i = 0; i < m->n; i++)
		m->all[i]->mark = i + keep >= m->n;
	reader_init(&r, fd, o->check.api, o->check.size);
	while ((got = reader_next(&r, &it)) > 0) {
		struct ent *e;

		if (is_dots(&it))
			continue;
		e = model_get(m, it.name, it.len);
		if (!e) {
			bad("%s comes but is gone or never was", show(it.name));
			continue;
		}
		if (e->mark)
			continue;
		remove_one(fd, m, e);
		gone++;
	}
	if (got < 0)
		bad("getdents: %s", strerror(-got));
	if (m->n > keep)
		bad("one pass left %u names, wanted %llu", m->n,
		    (unsigned long long)keep);
	check_list(fd, m, &o->check);
	model_save(m, o->model);
	stat_num("removed", gone);
	return 0;
}
