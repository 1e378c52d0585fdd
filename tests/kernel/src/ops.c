// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: every operation that changes a directory, against the model. */
#include "t.h"

#include <dirent.h>
#include <linux/fs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

enum op {
	OP_CREATE,
	OP_MKDIR,
	OP_MKNOD,
	OP_SYMLINK,
	OP_SLOWLINK,
	OP_LINK,
	OP_TMPFILE,
	OP_RENAME,
	OP_ACROSS,
	OP_OVER,
	OP_OVERDIR,
	OP_EXCHANGE,
	OP_EXACROSS,
	OP_WHITEOUT,
	OP_WHITEACROSS,
	OP_NOREPLACE,
	OP_SAME,
	OP_REFUSED,
	OP_UNLINK,
	OP_RMDIR,
	OP_COUNT,
};

static const char *const op_names[OP_COUNT] = {
	"create",
	"mkdir",
	"mknod",
	"symlink",
	"slowlink",
	"link",
	"tmpfile",
	"rename",
	"across",
	"over",
	"overdir",
	"exchange",
	"exchange-across",
	"whiteout",
	"whiteout-across",
	"noreplace",
	"same",
	"refused",
	"unlink",
	"rmdir",
};

const int op_count = OP_COUNT;

const char *op_name(int op)
{
	return op_names[op];
}

/* Renames may drop a tree that has no room; nothing else may. */
bool op_is_rename(int op)
{
	return op >= OP_RENAME && op <= OP_REFUSED;
}

/*
 * Adding a name may take a block, of the directory or of its tree.  Where names
 * only get other inodes or go, stock ext4 needs none.
 */
bool op_needs_space(int op)
{
	switch (op) {
	case OP_OVER:
	case OP_OVERDIR:
	case OP_EXCHANGE:
	case OP_EXACROSS:
	case OP_SAME:
	case OP_REFUSED:
	case OP_UNLINK:
	case OP_RMDIR:
		return false;
	default:
		return true;
	}
}

static int rename2(int from, const char *old, int to, const char *new,
		   unsigned int flags)
{
	return syscall(SYS_renameat2, from, old, to, new, flags) ? -errno : 0;
}

struct two {
	struct model *m, *m2;
	int fd, fd2;
};

static struct ent *any_of(struct model *m, struct rng *r, bool dir)
{
	for (int i = 0; i < 40; i++) {
		struct ent *e = model_any(m, r);

		if (!e)
			return NULL;
		if ((e->type == DT_DIR) == dir)
			return e;
	}
	return NULL;
}

static void learn(struct model *m, int fd, const char *name)
{
	u64 ino = ino_at(fd, name);

	if (!ino)
		bad("%s was made but is not there", show(name));
	model_add(m, name, ino, type_at(fd, name));
}

/* Something refused must have changed nothing. */
static int refused(struct dirs *d, int ret, int want, const char *what)
{
	if (ret != want)
		bad("%s: %s, not %s", what, strerror(-ret), strerror(-want));
	d->refused++;
	return 0;
}

static int do_new(struct dirs *d, struct two *t, int op)
{
	static char target[600];
	char name[NAME_BYTES], self[64];
	struct ent *e;
	int ret, fd;

	fresh_name(t->m, &d->rng, d->style, name);
	switch (op) {
	case OP_CREATE:
		fd = openat(t->fd, name, O_CREAT | O_EXCL | O_WRONLY, 0644);
		ret = fd < 0 ? -1 : 0;
		if (fd >= 0)
			close(fd);
		break;
	case OP_MKDIR:
		ret = mkdirat(t->fd, name, 0755);
		break;
	case OP_MKNOD:
		if (d->user || chance(&d->rng, 50))
			ret = mknodat(t->fd, name, S_IFIFO | 0644, 0);
		else
			ret = mknodat(t->fd, name, S_IFCHR | 0644,
				      makedev(1, 3));
		break;
	case OP_SYMLINK:
		ret = symlinkat("short", t->fd, name);
		break;
	case OP_SLOWLINK:
		memset(target, 's', sizeof(target) - 1);
		ret = symlinkat(target, t->fd, name);
		break;
	case OP_LINK:
		e = any_of(t->m2, &d->rng, false);
		if (!e)
			return -EAGAIN;
		ret = linkat(t->fd2, e->name, t->fd, name, 0);
		if (ret && errno == EMLINK)
			return -EAGAIN;
		break;
	case OP_TMPFILE:
		fd = openat(t->fd, ".", O_TMPFILE | O_WRONLY, 0644);
		if (fd < 0) {
			ret = -1;
			break;
		}
		sprintf(self, "/proc/self/fd/%d", fd);
		ret = linkat(AT_FDCWD, self, t->fd, name, AT_SYMLINK_FOLLOW);
		if (ret)
			ret = -errno;
		close(fd);
		errno = -ret;
		break;
	default:
		return -EINVAL;
	}
	if (ret)
		return -errno;
	learn(t->m, t->fd, name);
	return 0;
}

static int do_rename(struct dirs *d, struct two *t, int op)
{
	unsigned int flags = op == OP_NOREPLACE ? RENAME_NOREPLACE : 0;
	struct ent *e = model_any(t->m, &d->rng), *x;
	char name[NAME_BYTES];
	int ret;

	if (!e)
		return -EAGAIN;
	if (op == OP_WHITEOUT || op == OP_WHITEACROSS) {
		flags = RENAME_WHITEOUT;
		if (e->type == DT_DIR && chance(&d->rng, 50))
			return -EAGAIN;
	}
	if (op == OP_NOREPLACE && chance(&d->rng, 40)) {
		x = model_any(t->m2, &d->rng);
		if (!x || x == e)
			return -EAGAIN;
		ret = rename2(t->fd, e->name, t->fd2, x->name, flags);
		return refused(d, ret, -EEXIST, "RENAME_NOREPLACE onto a name");
	}
	fresh_name(t->m2, &d->rng, d->style, name);
	ret = rename2(t->fd, e->name, t->fd2, name, flags);
	if (ret)
		return ret;
	model_add(t->m2, name, e->ino, e->type);
	if (flags == RENAME_WHITEOUT) {
		struct stat st;

		if (fstatat(t->fd, e->name, &st, AT_SYMLINK_NOFOLLOW) ||
		    !S_ISCHR(st.st_mode) || st.st_rdev)
			bad("no whiteout at %s", show(e->name));
		e->ino = st.st_ino;
		e->type = DT_CHR;
	} else {
		model_del(t->m, e);
	}
	return 0;
}

static int do_over(struct dirs *d, struct two *t, bool dir)
{
	struct ent *e = any_of(t->m, &d->rng, dir);
	struct ent *x = any_of(t->m2, &d->rng, dir);
	int ret;

	if (!e || !x || e == x)
		return -EAGAIN;
	ret = rename2(t->fd, e->name, t->fd2, x->name, 0);
	if (ret)
		return ret;
	/* Two names of one inode: POSIX says that nothing happens. */
	if (e->ino == x->ino)
		return 0;
	x->ino = e->ino;
	x->type = e->type;
	model_del(t->m, e);
	return 0;
}

static int do_exchange(struct dirs *d, struct two *t)
{
	struct ent *e = model_any(t->m, &d->rng);
	struct ent *x = model_any(t->m2, &d->rng);
	u64 ino;
	u8 type;
	int ret;

	if (!e || !x || e == x)
		return -EAGAIN;
	ret = rename2(t->fd, e->name, t->fd2, x->name, RENAME_EXCHANGE);
	if (ret)
		return ret;
	ino = e->ino;
	type = e->type;
	e->ino = x->ino;
	e->type = x->type;
	x->ino = ino;
	x->type = type;
	return 0;
}

static int do_same(struct dirs *d, struct two *t)
{
	struct ent *e = model_any(t->m, &d->rng);
	int ret;

	if (!e)
		return -EAGAIN;
	ret = rename2(t->fd, e->name, t->fd, e->name, 0);
	return refused(d, ret, 0, "rename onto itself");
}

static int do_refused(struct dirs *d, struct two *t)
{
	struct ent *f = any_of(t->m, &d->rng, false);
	struct ent *s = any_of(t->m2, &d->rng, true);
	char name[NAME_BYTES];
	int ret;

	switch (below(&d->rng, 6)) {
	case 0:
		if (!f || !s)
			return -EAGAIN;
		ret = rename2(t->fd, f->name, t->fd2, s->name, 0);
		return refused(d, ret, -EISDIR, "file over directory");
	case 1:
		if (!f || !s)
			return -EAGAIN;
		ret = rename2(t->fd2, s->name, t->fd, f->name, 0);
		return refused(d, ret, -ENOTDIR, "directory over file");
	case 2:
		fresh_name(t->m, &d->rng, d->style, name);
		ret = unlinkat(t->fd, name, 0) ? -errno : 0;
		return refused(d, ret, -ENOENT, "unlink of nothing");
	case 3:
		if (!f)
			return -EAGAIN;
		ret = mkdirat(t->fd, f->name, 0755) ? -errno : 0;
		return refused(d, ret, -EEXIST, "mkdir onto a name");
	case 4:
		if (!f)
			return -EAGAIN;
		fresh_name(t->m2, &d->rng, d->style, name);
		ret = rename2(t->fd, f->name, t->fd2, name, RENAME_EXCHANGE);
		return refused(d, ret, -ENOENT, "exchange with nothing");
	default:
		if (!s)
			return -EAGAIN;
		ret = linkat(t->fd2, s->name, t->fd2, "x-link", 0) ? -errno : 0;
		return refused(d, ret, -EPERM, "link to a directory");
	}
}

static int do_remove(struct dirs *d, struct two *t, bool dir)
{
	struct ent *e = any_of(t->m, &d->rng, dir);

	if (!e)
		return -EAGAIN;
	if (unlinkat(t->fd, e->name, dir ? AT_REMOVEDIR : 0))
		return -errno;
	model_del(t->m, e);
	return 0;
}

static int pick(struct dirs *d, int grow)
{
	static const u8 weight[OP_COUNT] = {
		[OP_CREATE] = 10,   [OP_MKDIR] = 3,    [OP_MKNOD] = 6,
		[OP_SYMLINK] = 4,   [OP_SLOWLINK] = 2, [OP_LINK] = 10,
		[OP_TMPFILE] = 5,   [OP_RENAME] = 8,   [OP_ACROSS] = 6,
		[OP_OVER] = 6,	    [OP_OVERDIR] = 3,  [OP_EXCHANGE] = 5,
		[OP_EXACROSS] = 5,  [OP_WHITEOUT] = 3, [OP_WHITEACROSS] = 2,
		[OP_NOREPLACE] = 3, [OP_SAME] = 1,     [OP_REFUSED] = 3,
		[OP_UNLINK] = 12,   [OP_RMDIR] = 3,
	};
	u32 sum = 0, at;

	/* Growing and shrinking, nine steps in ten. */
	if (grow && chance(&d->rng, 80)) {
		if (grow > 0)
			return below(&d->rng, OP_TMPFILE + 1);
		return chance(&d->rng, 85) ? OP_UNLINK : OP_RMDIR;
	}
	for (int i = 0; i < OP_COUNT; i++)
		sum += weight[i];
	at = below(&d->rng, sum);
	for (int i = 0; i < OP_COUNT; i++) {
		if (at < weight[i])
			return i;
		at -= weight[i];
	}
	return OP_CREATE;
}

/*
 * One random step. 0: done, or refused as it must be; -EAGAIN: not possible
 * now; another negative: the kernel's error. grow: 1, 0, -1.
 */
int op_random(struct dirs *d, int grow)
{
	int a = below(&d->rng, d->n);
	int b = d->n > 1 ? (a + 1 + (int)below(&d->rng, d->n - 1)) % d->n : a;
	int op = pick(d, grow);
	struct two t;
	int ret;

	/* One directory or two. */
	switch (op) {
	case OP_LINK:
	case OP_OVER:
	case OP_OVERDIR:
	case OP_NOREPLACE:
	case OP_REFUSED:
		if (chance(&d->rng, 50))
			b = a;
		break;
	case OP_ACROSS:
	case OP_EXACROSS:
	case OP_WHITEACROSS:
		break;
	default:
		b = a;
	}
	t = (struct two){ d->m[a], d->m[b], d->fd[a], d->fd[b] };
	d->last = op;
	switch (op) {
	case OP_RENAME:
	case OP_ACROSS:
	case OP_WHITEOUT:
	case OP_WHITEACROSS:
	case OP_NOREPLACE:
		ret = do_rename(d, &t, op);
		break;
	case OP_OVER:
		ret = do_over(d, &t, false);
		break;
	case OP_OVERDIR:
		ret = do_over(d, &t, true);
		break;
	case OP_EXCHANGE:
	case OP_EXACROSS:
		ret = do_exchange(d, &t);
		break;
	case OP_SAME:
		ret = do_same(d, &t);
		break;
	case OP_REFUSED:
		ret = do_refused(d, &t);
		break;
	case OP_UNLINK:
		ret = do_remove(d, &t, false);
		break;
	case OP_RMDIR:
		ret = do_remove(d, &t, true);
		break;
	default:
		ret = do_new(d, &t, op);
	}
	if (!ret)
		d->done[op]++;
	else if (ret != -EAGAIN)
		errno = -ret;
	return ret == 0 || ret == -EAGAIN ? ret : ret * 32 - op;
}

static void check_all(struct dirs *d, struct opts *o, u64 step)
{
	static const size_t sizes[] = { 32768, 4096, 600, 0, 131072 };

	for (int i = 0; i < d->n; i++) {
		struct check c = o->check;
		char what[64];

		sprintf(what, "dir %d after step %llu", i,
			(unsigned long long)step);
		c.what = what;
		c.size = sizes[below(&d->rng, ARRAY_SIZE(sizes))];
		if (c.size == 0 && d->m[i]->n > 1500)
			c.size = 300;
		check_list(d->fd[i], d->m[i], &c);
		if (chance(&d->rng, 20)) {
			c.order = false;
			c.cookies = false;
			c.api = chance(&d->rng, 50) ? API_32 : API_32OLD;
			if (!has_compat())
				c.api = API_64;
			c.size = 2000;
			check_list(d->fd[i], d->m[i], &c);
		}
	}
}

/*
 * --plan 50,3000,0: names in all directories together to grow or shrink to,
 * one after the other, with --m random steps at each; a listing after every
 * --n steps.
 */
int cmd_ops(struct opts *o)
{
	struct dirs d = { .n = o->ndirs, .style = o->style };
	const char *plan = o->plan ?: "2000";
	char path[4096];
	u64 step = 0, tried = 0;

	o->n = o->n ?: 1000;
	rng_seed(&d.rng, o->seed);
	for (int i = 0; i < d.n; i++) {
		sprintf(path, "%s/d%d", o->dir, i);
		if (mkdir(path, 0755) && errno != EEXIST)
			die("%s", path);
		d.fd[i] = open_dir(path);
		sprintf(path, "%s.%d", o->model, i);
		d.m[i] = model_load(access(path, F_OK) ? NULL : path);
	}
	while (*plan && findings < 20) {
		u32 target = strtoul(plan, (char **)&plan, 10);
		u64 stay = o->m;

		plan += *plan == ',';
		for (;;) {
			u32 n = 0;
			int grow, ret;

			for (int i = 0; i < d.n; i++)
				n += d.m[i]->n;
			grow = n < target ? 1 : n > target ? -1 : 0;
			if (grow == 0 || stay < o->m) {
				if (stay-- == 0)
					break;
				grow = 0;
			}
			if (target == 0 && n == 0)
				break;
			ret = op_random(&d, grow);
			if (ret && ret != -EAGAIN) {
				int op = -ret % 32;

				bad("step %llu, %s: %s",
				    (unsigned long long)step, op_name(op),
				    strerror(-((ret + op) / 32)));
				if (findings >= 20)
					break;
			}
			if (++tried > 50000000)
				die("the plan does not end");
			if (!ret && ++step % o->n == 0)
				check_all(&d, o, step);
			if (findings >= 20)
				break;
		}
		check_all(&d, o, step);
	}
	for (int i = 0; i < d.n; i++) {
		sprintf(path, "%s.%d", o->model, i);
		model_save(d.m[i], path);
	}
	stat_num("steps", step);
	stat_num("refused", d.refused);
	for (int i = 0; i < OP_COUNT; i++)
		stat_num(op_name(i), d.done[i]);
	return 0;
}
