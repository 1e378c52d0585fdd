// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: no space, no quota; shutdown in the middle of work. */
#include "t.h"

#include <dirent.h>
#include <linux/fs.h>
#include <linux/quota.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/quota.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#include "../../../kernel/fs/ext4/itree_ioctl.h"

#define FAILURES 14 /* of each amount of space left */
#define TESTER 1000 /* whose quota it is */
#define ROOM 400 /* blocks for a tree */

static int ballast_fd;
static u64 block;

static u64 free_blocks(void)
{
	struct statvfs v;

	if (fstatvfs(ballast_fd, &v))
		die("statvfs");
	return v.f_bfree;
}

static void settle(void)
{
	if (syncfs(ballast_fd))
		die("syncfs");
}

/* Leave at most k blocks free. */
static void leave(u64 k)
{
	off_t size;

	settle();
	for (u64 chunk = 1 << 20; chunk >= block;) {
		size = lseek(ballast_fd, 0, SEEK_END);
		if (free_blocks() <= k)
			break;
		if (chunk / block > free_blocks() - k && chunk > block) {
			chunk /= 2;
			continue;
		}
		if (fallocate(ballast_fd, 0, size, chunk)) {
			if (errno != ENOSPC)
				die("fallocate");
			settle();
			chunk /= 2;
		}
	}
	for (int tries = 0; free_blocks() < k && tries < 100; tries++) {
		size = lseek(ballast_fd, 0, SEEK_END);
		if (size < (off_t)block ||
		    ftruncate(ballast_fd,
			      size - (off_t)(block * (k - free_blocks()))))
			die("ftruncate");
		settle();
	}
}

static int quota_set(const char *dev, u64 bytes_hard)
{
	struct dqblk q = {};

	q.dqb_bhardlimit = bytes_hard / 1024;
	q.dqb_valid = QIF_BLIMITS;
	return quotactl(QCMD(Q_SETQUOTA, USRQUOTA), dev, TESTER, (caddr_t)&q);
}

static u64 quota_used(const char *dev)
{
	struct dqblk q = {};

	if (quotactl(QCMD(Q_GETQUOTA, USRQUOTA), dev, TESTER, (caddr_t)&q))
		die("Q_GETQUOTA");
	return q.dqb_curspace;
}

/* Trees for directories that have lost theirs, with room for them. */
static void build_trees(struct dirs *d, const char *dev, bool quota, u64 *built)
{
	off_t room = ROOM * block, size;

	for (int i = 0; i < d->n; i++) {
		if (has_tree(d->fd[i]))
			continue;
		size = lseek(ballast_fd, 0, SEEK_END);
		if (quota ? quota_set(dev, 0)
			  : size > room && ftruncate(ballast_fd, size - room))
			die("making room for a tree");
		settle();
		if (!(tree_call(d->fd[i], EXT4_ITREE_OP_BUILD) &
		      EXT4_ITREE_HAS_TREE))
			bad("no tree of directory %d could be built", i);
		++*built;
	}
}

static void list_all(struct dirs *d, struct opts *o, u64 k)
{
	char what[64];

	for (int i = 0; i < d->n; i++) {
		struct check c = o->check;

		sprintf(what, "dir %d with %llu blocks left", i,
			(unsigned long long)k);
		c.what = what;
		c.order = c.order && has_tree(d->fd[i]);
		c.cookies = c.cookies && c.order;
		check_list(d->fd[i], d->m[i], &c);
	}
}

/*
 * With k blocks left, for every k up to --n: random steps until they fail
 * FAILURES times; each failure leaves everything as it was. Deleting, and
 * giving names other inodes, never fails. A rename may drop the tree, which is
 * built again for the next k; nothing else may. --mode enospc | edquot (--aux: the device). --m: names to begin
 * with, in two directories.
 */
int cmd_space(struct opts *o)
{
	struct dirs d = { .n = 2, .style = o->style };
	bool quota = !strcmp(o->mode, "edquot");
	int want = quota ? EDQUOT : ENOSPC;
	u64 failed[24] = {}, ok = 0, total = 0, built = 0;
	bool had[2] = {};
	char path[4096];

	rng_seed(&d.rng, o->seed);
	for (int i = 0; i < d.n; i++) {
		sprintf(path, "%s/d%d", o->dir, i);
		if (mkdir(path, 0777) || chown(path, TESTER, TESTER))
			die("%s", path);
		d.fd[i] = open_dir(path);
		d.m[i] = model_new();
	}
	sprintf(path, "%s/ballast", o->dir);
	ballast_fd = open(path, O_CREAT | O_RDWR, 0600);
	if (ballast_fd < 0)
		die("%s", path);
	struct statvfs v;

	if (fstatvfs(ballast_fd, &v))
		die("statvfs");
	block = v.f_bsize;
	d.user = quota;
	if (quota && (setegid(TESTER) || seteuid(TESTER)))
		die("seteuid");
	while (d.m[0]->n + d.m[1]->n < o->m) {
		int ret = op_random(&d, 1);

		if (ret && ret != -EAGAIN)
			die("filling: %s", op_name(-ret % 32));
	}
	for (u64 k = 0; k <= o->n && findings < 20; k++) {
		u32 fails = 0;

		if (quota && seteuid(0))
			die("seteuid");
		build_trees(&d, o->aux, quota, &built);
		if (quota) {
			settle();
			if (quota_set(o->aux, quota_used(o->aux) + k * block))
				die("Q_SETQUOTA");
			if (seteuid(TESTER))
				die("seteuid");
		} else {
			leave(k);
			if (free_blocks() > k + 1)
				bad("%llu blocks left, wanted %llu",
				    (unsigned long long)free_blocks(),
				    (unsigned long long)k);
		}
		for (u32 tries = 0; fails < FAILURES && tries < 20000;
		     tries++) {
			int ret = op_random(&d, chance(&d.rng, 60));
			int op, err;

			total++;
			for (int i = 0; i < d.n; i++) {
				bool has = has_tree(d.fd[i]);

				if (had[i] && !has && !op_is_rename(d.last))
					bad("%s drops a tree", op_name(d.last));
				had[i] = has;
			}
			if (!ret) {
				ok++;
				continue;
			}
			if (ret == -EAGAIN)
				continue;
			op = -ret % 32;
			err = -((ret + op) / 32);
			if (err != want)
				bad("%llu blocks left, %s: %s, not %s",
				    (unsigned long long)k, op_name(op),
				    strerror(err), strerror(want));
			if (!op_needs_space(op))
				bad("%s needs space", op_name(op));
			failed[op]++;
			fails++;
			if (findings >= 20)
				break;
		}
		if (fails < FAILURES && findings < 20)
			bad("%llu blocks never run out", (unsigned long long)k);
		list_all(&d, o, k);
		/* Make holes, so that not every insert is a split. */
		for (u32 i = below(&d.rng, 60); i; i--) {
			int ret = op_random(&d, -1);

			if (ret && ret != -EAGAIN && -ret % 32 >= 18)
				bad("deleting fails with %llu blocks left",
				    (unsigned long long)k);
		}
	}
	if (quota && seteuid(0))
		die("seteuid");
	build_trees(&d, o->aux, quota, &built);
	list_all(&d, o, 999);
	for (int i = 0; i < d.n; i++) {
		sprintf(path, "%s.%d", o->model, i);
		model_save(d.m[i], path);
	}
	stat_num("steps", total);
	stat_num("done", ok);
	stat_num("built", built);
	for (int i = 0; i < op_count; i++) {
		char key[48];

		sprintf(key, "failed_%s", op_name(i));
		stat_num(key, failed[i]);
	}
	return 0;
}

/* ---- shutdown ---- */

#define SHUTDOWN_IOCTL _IOR('X', 125, u32)

/*
 * Random steps with fsync now and then, then the file system is shut down
 * (--percent: the ioctl's flags; --mode none: return without). --model.must.N
 * gets the names that must be there afterwards: as they were at the last sync
 * and not touched since.
 */
int cmd_durable(struct opts *o)
{
	struct dirs d = { .n = o->ndirs, .style = o->style };
	struct model *must[4];
	u32 flags = o->percent;
	char path[4096];
	u64 step = 0, syncs = 0, last;

	rng_seed(&d.rng, o->seed);
	for (int i = 0; i < d.n; i++) {
		sprintf(path, "%s/d%d", o->dir, i);
		if (mkdir(path, 0755) && errno != EEXIST)
			die("%s", path);
		d.fd[i] = open_dir(path);
		sprintf(path, "%s.%d", o->model, i);
		d.m[i] = model_load(access(path, F_OK) ? NULL : path);
		must[i] = model_new();
	}
	last = o->n - 1 - below(&d.rng, 40);
	while (step < o->n) {
		int ret = op_random(&d, chance(&d.rng, 30));

		if (ret == -EAGAIN)
			continue;
		if (ret)
			die("step %llu: %s", (unsigned long long)step,
			    op_name(-ret % 32));
		step++;
		if (step < last && chance(&d.rng, 8)) {
			/* A new file, then fsync: what fast commit is for. */
			char name[NAME_BYTES];
			int k = below(&d.rng, d.n);
			int fd;

			fresh_name(d.m[k], &d.rng, d.style, name);
			fd = openat(d.fd[k], name, O_CREAT | O_EXCL | O_WRONLY,
				    0644);
			if (fd < 0 || write(fd, name, 1) != 1 || fsync(fd))
				die("fsync of a new file");
			close(fd);
			model_add(d.m[k], name, ino_at(d.fd[k], name), DT_REG);
			syncs++;
		}
		if (step == last) {
			if (syncfs(d.fd[0]))
				die("syncfs");
			for (int i = 0; i < d.n; i++)
				for (u32 k = 0; k < d.m[i]->n; k++) {
					struct ent *e = d.m[i]->all[k];

					model_add(must[i], e->name, e->ino,
						  e->type);
				}
		}
	}
	/* Files synced one by one, with nothing but fast commits since. */
	for (int i = 0; i < 30; i++) {
		char name[NAME_BYTES];
		int k = below(&d.rng, d.n);
		int fd;

		fresh_name(d.m[k], &d.rng, d.style, name);
		fd = openat(d.fd[k], name, O_CREAT | O_EXCL | O_WRONLY, 0644);
		if (fd < 0 || write(fd, name, 1) != 1 || fsync(fd))
			die("fsync of a new file");
		close(fd);
		model_add(d.m[k], name, ino_at(d.fd[k], name), DT_REG);
		model_add(must[k], name, ino_at(d.fd[k], name), DT_REG);
		syncs++;
		if (chance(&d.rng, 40)) {
			struct ent *e = model_any(d.m[k], &d.rng);
			struct ent *x = model_get(must[k], e->name, e->len);

			/* Lost or not, both are right. */
			if (e->type != DT_DIR) {
				if (unlinkat(d.fd[k], e->name, 0))
					die("unlink");
				if (x)
					model_del(must[k], x);
				model_del(d.m[k], e);
			}
		}
	}
	for (int i = 0; i < d.n; i++) {
		/* Touched since the sync: no promise. */
		for (u32 k = must[i]->n; k > 0; k--) {
			struct ent *x = must[i]->all[k - 1];
			struct ent *e = model_get(d.m[i], x->name, x->len);

			if (!e || e->ino != x->ino || e->type != x->type)
				model_del(must[i], x);
		}
		sprintf(path, "%s.must.%d", o->model, i);
		model_save(must[i], path);
		sprintf(path, "%s.now.%d", o->model, i);
		model_save(d.m[i], path);
	}
	stat_num("steps", step);
	stat_num("syncs", syncs);
	if (o->mode && !strcmp(o->mode, "none"))
		return 0;
	if (ioctl(d.fd[0], SHUTDOWN_IOCTL, &flags))
		die("shutdown ioctl");
	return 0;
}
