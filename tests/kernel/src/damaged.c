// SPDX-License-Identifier: GPL-2.0-only
/*
 * itree-t: many damaged images, one after the other, as fast as they go.
 *
 * --model FILE   the damage, written by kt/damaged.py: a line "image TEXT" for
 *                each image, then a line "POSITION HEX" for each sector of it
 * --aux FILE     the good image
 * --out FILE     the image that is mounted; --mode /dev/loopN is on top of it
 * --dir DIR      where to mount
 * --fsck E2FSCK  repair each at the end, check it, and list it once more
 *
 * Only nodes of trees are damaged, so every name must be listed and every
 * change must work. A listing may give a name twice if it is the one that
 * finds the tree to be bad. What becomes of a tree must be in the kernel's
 * log, with the directory's inode.
 */
#include "t.h"

#include <dirent.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>

#include "../../../kernel/fs/ext4/itree_ioctl.h"

#define CHANGES 30
#define LINKS 40
#define SECTOR 512
#define LONGEST 60 /* seconds of one image, */
#define LONGEST_FSCK 600 /* with three runs of e2fsck */

static const char *const names[] = { "big", "side" };
#define DIRS ARRAY_SIZE(names)

static struct {
	const char *text; /* what was done to this image */
	char mount[256], dir[DIRS][300];
	struct model *want[DIRS];
	u8 *good, *image;
	size_t bytes;
	int log;
	const char *fsck;
	u64 images, bad, twice, repaired;
} d;

static void say(const char *what)
{
	int fd = open("/dev/kmsg", O_WRONLY);
	char line[900]; /* the kernel takes no more than 1024 bytes */
	int len = snprintf(line, sizeof(line), "itree-test: %.800s\n", what);

	if (fd < 0 || write(fd, line, len) != len)
		die("/dev/kmsg");
	close(fd);
}

static void on_alarm(int sig)
{
	(void)sig;
	errno = ETIMEDOUT;
	die("no end: %s", d.text);
}

static bool sound(int fd)
{
	return (tree_call(fd, EXT4_ITREE_OP_STAT) &
		(EXT4_ITREE_HAS_TREE | EXT4_ITREE_BAD)) == EXT4_ITREE_HAS_TREE;
}

/* Every name, once; n of the model for each. */
static void compare(int n, const char *when)
{
	struct model *m = d.want[n];
	int fd = open_dir(d.dir[n]);
	bool before = sound(fd);
	u64 seen = 0, odd = 0, missing = 0, twice = 0;
	struct reader r;
	struct item it;
	int got;

	for (u32 i = 0; i < m->n; i++)
		m->all[i]->mark = 0;
	reader_init(&r, fd, API_64, 32768);
	while ((got = reader_next(&r, &it)) > 0 && seen <= 3 * m->n + 1000) {
		struct ent *e;

		if (is_dots(&it))
			continue;
		seen++;
		e = model_get(m, it.name, it.len);
		if (!e || e->ino != it.ino)
			odd++;
		else if (e->mark++)
			twice++;
	}
	if (got < 0)
		bad("%s: reading /%s: errno %d: %s", when, names[n], errno,
		    d.text);
	for (u32 i = 0; i < m->n; i++)
		missing += !m->all[i]->mark;
	d.twice += !!twice;
	if (missing || odd || seen > 2 * m->n ||
	    (twice && (!before || sound(fd))))
		bad("%s: /%s: %llu names missing, %llu not its own, %llu twice: %s",
		    when, names[n], (unsigned long long)missing,
		    (unsigned long long)odd, (unsigned long long)twice, d.text);
	reader_end(&r);
	close(fd);
}

static void works(int res, const char *what, int n, int k)
{
	if (res)
		bad("%s %d in /%s: errno %d: %s", what, k, names[n], errno,
		    d.text);
}

/* New inodes, new names, links of old inodes; the directory is as before. */
static void change(int n)
{
	struct model *m = d.want[n];
	int fd = open_dir(d.dir[n]);
	char name[32], other[32];

	for (int k = 0; k < CHANGES; k++) {
		sprintf(name, "new-%d", k);
		works(mknodat(fd, name, S_IFREG | 0600, 0), "creating", n, k);
	}
	for (int k = 0; k < CHANGES; k++) {
		sprintf(name, "new-%d", k);
		sprintf(other, "other-name-%d", k);
		works(renameat(fd, name, fd, other), "renaming", n, k);
	}
	for (u32 k = 0; k < LINKS; k++) {
		struct ent *e = m->all[(u64)k * m->n / LINKS];

		if (e->type != DT_REG)
			continue;
		sprintf(name, "link-%u", k);
		works(linkat(fd, e->name, fd, name, 0), "linking", n, k);
		works(unlinkat(fd, name, 0), "unlinking", n, k);
	}
	for (int k = 0; k < CHANGES; k++) {
		sprintf(other, "other-name-%d", k);
		works(unlinkat(fd, other, 0), "removing", n, k);
	}
	close(fd);
}

/* Bit n: the log has an error or a warning about the tree of names[n]. */
static u32 logged(const u64 *ino)
{
	char line[1024], want[32];
	u32 found = 0;
	ssize_t got;

	while ((got = read(d.log, line, sizeof(line) - 1)) > 0 ||
	       (got < 0 && errno == EPIPE)) {
		if (got < 0)
			continue;
		line[got] = 0;
		if (!strstr(line, "EXT4-fs") || !strstr(line, "itree"))
			continue;
		for (u32 n = 0; n < DIRS; n++) {
			sprintf(want,
				"inode #%llu:", (unsigned long long)ino[n]);
			found |= (u32) !!strstr(line, want) << n;
		}
	}
	return found;
}

/* A tree that is given up or found bad is in the log, with its directory. */
static void judge(const u64 *ino)
{
	u32 in_log = logged(ino);

	for (u32 n = 0; n < DIRS; n++) {
		int fd = open_dir(d.dir[n]);

		if (!sound(fd)) {
			d.bad++;
			if (!(in_log >> n & 1))
				bad("/%s (inode %llu) lost its tree, and the log does not name it: %s",
				    names[n], (unsigned long long)ino[n],
				    d.text);
		}
		close(fd);
	}
}

static void up(const char *dev, const char *options)
{
	if (mount(dev, d.mount, "ext4", 0, options))
		die("mount -o %s: %s", options, d.text);
}

static void down(void)
{
	if (umount(d.mount))
		die("umount: %s", d.text);
}

static int fsck(const char *how, const char *dev)
{
	char cmd[400];
	int status;

	snprintf(cmd, sizeof(cmd), "%s -f%s %s >/dev/null", d.fsck, how, dev);
	status = system(cmd);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* Nothing but the damage has become of it: trees are back, no name is gone. */
static void repair(const char *dev)
{
	int res = fsck("y", dev);

	if (res > 1)
		bad("e2fsck -fy: exit code %d: %s", res, d.text);
	res = fsck("n", dev);
	if (res)
		bad("e2fsck -fn after -fy: exit code %d: %s", res, d.text);
	up(dev, "errors=continue");
	for (u32 n = 0; n < DIRS; n++) {
		u64 twice = d.twice;

		compare(n, "after e2fsck");
		if (d.twice > twice)
			bad("/%s: names twice after e2fsck: %s", names[n],
			    d.text);
	}
	down();
	d.repaired++;
}

static void one(const char *dev)
{
	u64 ino[DIRS];

	say(d.text);
	alarm(d.fsck ? LONGEST_FSCK : LONGEST);
	lseek(d.log, 0, SEEK_END);
	up(dev, "errors=remount-ro");
	for (u32 n = 0; n < DIRS; n++)
		ino[n] = ino_at(AT_FDCWD, d.dir[n]);
	/* Every second image is changed before it was listed. */
	for (int step = d.images & 1; step < 4; step++)
		for (u32 n = 0; n < DIRS; n++)
			if (step & 1)
				compare(n, step == 1 ? "first" : "at the end");
			else
				change(n);
	judge(ino);
	down();
	if (d.fsck)
		repair(dev);
	alarm(0);
	d.images++;
}

static u8 *mapped(const char *path, int prot, size_t *bytes)
{
	int fd = open(path, prot & PROT_WRITE ? O_RDWR : O_RDONLY);
	struct stat st;
	void *at;

	if (fd < 0 || fstat(fd, &st))
		die("%s", path);
	at = mmap(NULL, st.st_size, prot, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		die("mmap of %s", path);
	close(fd);
	*bytes = st.st_size;
	return at;
}

/* The loop device has nothing cached: nobody has had it open since umount. */
static void restore(void)
{
	for (size_t at = 0; at < d.bytes; at += 4096)
		if (memcmp(d.image + at, d.good + at, 4096))
			memcpy(d.image + at, d.good + at, 4096);
}

static u8 nibble(char c)
{
	return c <= '9' ? c - '0' : c - 'a' + 10;
}

static void damage(const char *line)
{
	char *hex;
	u64 at = strtoull(line, &hex, 10);

	errno = EINVAL;
	if (*hex++ != ' ' || strlen(hex) != 2 * SECTOR || at + SECTOR > d.bytes)
		die("not a line of damage: %.40s", line);
	for (int i = 0; i < SECTOR; i++)
		d.image[at + i] =
			nibble(hex[2 * i]) << 4 | nibble(hex[2 * i + 1]);
}

static void learn(const char *dev)
{
	d.text = "the good image";
	up(dev, "ro,noitree");
	for (u32 n = 0; n < DIRS; n++) {
		int fd = open_dir(d.dir[n]);
		struct reader r;
		struct item it;

		d.want[n] = model_new();
		reader_init(&r, fd, API_64, 32768);
		while (reader_next(&r, &it) > 0)
			if (!is_dots(&it))
				model_add(d.want[n], it.name, it.ino, it.type);
		reader_end(&r);
		close(fd);
	}
	down();
}

int cmd_damaged(struct opts *o)
{
	FILE *list = fopen(o->model, "r");
	char *line = NULL, *text = NULL;
	size_t room = 0, out = 0;
	ssize_t len;

	if (!list)
		die("%s", o->model);
	snprintf(d.mount, sizeof(d.mount), "%s", o->dir);
	for (u32 n = 0; n < DIRS; n++)
		snprintf(d.dir[n], sizeof(d.dir[n]), "%s/%s", d.mount,
			 names[n]);
	d.good = mapped(o->aux, PROT_READ, &d.bytes);
	d.image = mapped(o->out, PROT_READ | PROT_WRITE, &out);
	d.log = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	errno = EINVAL;
	if (out != d.bytes || d.log < 0)
		die("the images differ in size, or no /dev/kmsg");
	d.fsck = o->fsck;
	signal(SIGALRM, on_alarm);
	learn(o->mode);
	while ((len = getline(&line, &room, list)) > 0 || text) {
		bool next = len <= 0 || !strncmp(line, "image ", 6);

		if (len > 0)
			line[strcspn(line, "\n")] = 0;
		if (!next) {
			damage(line);
			continue;
		}
		if (text) {
			d.text = text;
			one(o->mode);
			free(text);
			text = NULL;
		}
		if (len > 0) {
			restore();
			text = strdup(line + 6);
		}
	}
	restore();
	fclose(list);
	free(line);
	stat_num("images", d.images);
	stat_num("bad_trees", d.bad);
	stat_num("twice", d.twice);
	stat_num("repaired", d.repaired);
	return 0;
}
