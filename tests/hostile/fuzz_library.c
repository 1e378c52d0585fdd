// SPDX-License-Identifier: GPL-2.0-only
/*
 * libFuzzer on libext2fs: an input is a list of edits to the nodes, the inode,
 * the extents and the htree of one directory of a good image, checksums made
 * right again; then everything the library does with a tree is done with it.
 *
 * Whatever the edits were, nothing may crash, leak or hang. Where only nodes
 * were edited, what the library calls sound must be sound: keys come in order
 * and as many as promised, a name added and removed leaves an exact tree, and
 * a tree dropped and built is exact.
 *
 *	ITREE_FUZZ_BASES	the images, separated by colons
 *	ITREE_FUZZ_WRITE	a directory: write there what the edits of the
 *				first input changed as file 0, and so on, and do
 *				nothing else; number of the image (le32), then
 *				number and content of each changed KiB
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ext2fs/ext2_fs.h"
#include "ext2fs/ext2fs.h"
#include "ext2fs/ext2fs_itree.h"

#define MAX_BASES 4
#define MAX_NODES 256
#define MAX_DIRTY 65536
#define MAX_EDITS 24

struct base {
	char *good;
	char *work; /* the same but for the dirty blocks */
	size_t size;
	unsigned int bs;
	ext2_ino_t dir;
	blk64_t node[MAX_NODES];
	__u32 lblk[MAX_NODES];
	unsigned int nodes;
	blk64_t extents; /* block of the extent tree or 0 */
	blk64_t htree; /* block of the htree's root */
};

static struct base base[MAX_BASES], *cur;
static unsigned int bases, dirty_blocks;
static uint32_t dirty[MAX_DIRTY];
static unsigned char is_dirty[MAX_DIRTY];

#define CHECK(cond, what)                                                      \
	do {                                                                   \
		if (!(cond)) {                                                 \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,     \
				what);                                         \
			abort();                                               \
		}                                                              \
	} while (0)

/* --- a device in memory that knows what to restore --- */

static void touch(size_t at, size_t len)
{
	size_t b;

	for (b = at / 1024; b <= (at + len - 1) / 1024; b++) {
		if (b < MAX_DIRTY && !is_dirty[b]) {
			is_dirty[b] = 1;
			dirty[dirty_blocks++] = b;
		}
	}
}

static void restore(void)
{
	while (dirty_blocks) {
		size_t b = dirty[--dirty_blocks];

		is_dirty[b] = 0;
		memcpy(cur->work + b * 1024, cur->good + b * 1024, 1024);
	}
}

static struct struct_io_manager mem_manager;

static errcode_t mem_open(const char *name, int flags, io_channel *ret)
{
	io_channel io;

	(void)flags;
	io = calloc(1, sizeof(*io));
	if (!io)
		return EXT2_ET_NO_MEMORY;
	io->magic = EXT2_ET_MAGIC_IO_CHANNEL;
	io->manager = &mem_manager;
	io->name = strdup(name);
	io->block_size = 1024;
	io->refcount = 1;
	*ret = io;
	return 0;
}

static errcode_t mem_close(io_channel io)
{
	if (--io->refcount)
		return 0;
	free(io->name);
	free(io);
	return 0;
}

static errcode_t mem_set_blksize(io_channel io, int size)
{
	io->block_size = size;
	return 0;
}

/* Where count blocks (or -count bytes) from a block on are, or NULL */
static char *mem_at(io_channel io, unsigned long long block, int count,
		    size_t *len)
{
	unsigned long long at = block * io->block_size;

	*len = count < 0 ? (size_t)-count : (size_t)count * io->block_size;
	if (block > cur->size || at > cur->size || *len > cur->size - at)
		return NULL;
	return cur->work + at;
}

static errcode_t mem_read64(io_channel io, unsigned long long block, int count,
			    void *data)
{
	size_t len;
	char *at = mem_at(io, block, count, &len);

	if (!at)
		return EXT2_ET_SHORT_READ;
	memcpy(data, at, len);
	return 0;
}

static errcode_t mem_write64(io_channel io, unsigned long long block, int count,
			     const void *data)
{
	size_t len;
	char *at = mem_at(io, block, count, &len);

	if (!at)
		return EXT2_ET_SHORT_WRITE;
	if (len)
		touch(at - cur->work, len);
	memcpy(at, data, len);
	return 0;
}

static errcode_t mem_read(io_channel io, unsigned long block, int count,
			  void *data)
{
	return mem_read64(io, block, count, data);
}

static errcode_t mem_write(io_channel io, unsigned long block, int count,
			   const void *data)
{
	return mem_write64(io, block, count, data);
}

static errcode_t mem_flush(io_channel io)
{
	(void)io;
	return 0;
}

static struct struct_io_manager mem_manager = {
	.magic = EXT2_ET_MAGIC_IO_MANAGER,
	.name = "memory",
	.open = mem_open,
	.close = mem_close,
	.set_blksize = mem_set_blksize,
	.read_blk = mem_read,
	.write_blk = mem_write,
	.flush = mem_flush,
	.read_blk64 = mem_read64,
	.write_blk64 = mem_write64,
};

static ext2_filsys open_fs(void)
{
	ext2_filsys fs;
	errcode_t err = ext2fs_open("memory", EXT2_FLAG_RW | EXT2_FLAG_64BITS,
				    0, 0, &mem_manager, &fs);

	CHECK(!err, "the base image cannot be opened");
	return fs;
}

/* --- the good images --- */

static int note_node(const struct ext2fs_itree_node *node, void *priv)
{
	struct base *b = priv;

	if (b->nodes < MAX_NODES) {
		b->lblk[b->nodes] = node->lblk;
		b->node[b->nodes++] = node->pblk;
	}
	return 0;
}

static void load(const char *path, size_t len)
{
	struct base *b = &base[bases];
	char name[4096];
	struct ext2_inode inode;
	ext2_extent_handle_t handle;
	struct ext2fs_extent ex;
	ext2_filsys fs;
	FILE *f;

	snprintf(name, sizeof(name), "%.*s", (int)len, path);
	f = fopen(name, "rb");
	CHECK(f, "an image of ITREE_FUZZ_BASES cannot be read");
	fseek(f, 0, SEEK_END);
	b->size = ftell(f);
	rewind(f);
	CHECK(b->size <= MAX_DIRTY * 1024UL, "an image is too large");
	b->good = malloc(b->size);
	b->work = malloc(b->size);
	CHECK(b->good && b->work, "no memory");
	CHECK(fread(b->good, b->size, 1, f) == 1, "an image cannot be read");
	fclose(f);
	memcpy(b->work, b->good, b->size);

	cur = b;
	fs = open_fs();
	b->bs = fs->blocksize;
	CHECK(!ext2fs_namei(fs, EXT2_ROOT_INO, EXT2_ROOT_INO, "/big", &b->dir),
	      "no /big");
	CHECK(!ext2fs_itree_walk_nodes(fs, b->dir, note_node, b) && b->nodes,
	      "/big has no tree");
	CHECK(!ext2fs_read_inode(fs, b->dir, &inode) &&
		      !ext2fs_bmap2(fs, b->dir, &inode, NULL, 0, 0, NULL,
				    &b->htree),
	      "/big has no block");
	CHECK(!ext2fs_extent_open2(fs, b->dir, &inode, &handle) &&
		      !ext2fs_extent_get(handle, EXT2_EXTENT_ROOT, &ex),
	      "/big has no extents");
	if (!(ex.e_flags & EXT2_EXTENT_FLAGS_LEAF))
		b->extents = ex.e_pblk;
	ext2fs_extent_free(handle);
	ext2fs_free(fs);
	restore();
	bases++;
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const char *list = getenv("ITREE_FUZZ_BASES");

	(void)argc;
	(void)argv;
	initialize_ext2_error_table();
	CHECK(list, "ITREE_FUZZ_BASES is not set");
	while (*list && bases < MAX_BASES) {
		size_t len = strcspn(list, ":");

		load(list, len);
		list += len + (list[len] == ':');
	}
	return 0;
}

/* --- the edits --- */

struct input {
	const uint8_t *pos;
	size_t left;
};

static unsigned int take(struct input *in, unsigned int bytes)
{
	unsigned int value = 0, i;

	for (i = 0; i < bytes; i++) {
		value |= (in->left ? *in->pos : 0U) << (8 * i);
		if (in->left) {
			in->pos++;
			in->left--;
		}
	}
	return value;
}

/* Changes up to 12 bytes of a block; returns where it is. */
static char *edit_block(struct input *in, blk64_t block)
{
	char *data = cur->work + block * cur->bs;
	unsigned int at = take(in, 2) % cur->bs, len = 1 + take(in, 1) % 12;

	touch(data - cur->work, cur->bs);
	while (len-- && at < cur->bs)
		data[at++] = take(in, 1);
	return data;
}

static void edit_inode(struct input *in, ext2_filsys fs)
{
	static const struct {
		unsigned char at, len;
	} field[] = { { 0, 2 },	  { 4, 4 },   { 26, 2 },  { 28, 4 },
		      { 32, 4 },  { 40, 12 }, { 52, 12 }, { 64, 12 },
		      { 76, 12 }, { 88, 12 }, { 100, 4 }, { 108, 4 } };
	struct ext2_inode inode;
	unsigned int n = take(in, 1) % (sizeof(field) / sizeof(field[0])), i;

	if (ext2fs_read_inode(fs, cur->dir, &inode))
		return;
	for (i = 0; i < field[n].len; i++)
		((unsigned char *)&inode)[field[n].at + i] ^= take(in, 1);
	ext2fs_write_inode(fs, cur->dir, &inode);
}

/* Returns whether anything but nodes was edited. */
static int edit(struct input *in, ext2_filsys fs)
{
	unsigned int edits, what, n, from;
	int around = 0;
	char *data;
	struct ext2_inode inode;

	for (edits = 0; in->left && edits < MAX_EDITS; edits++) {
		what = take(in, 1) % 8;
		n = take(in, 1) % cur->nodes;
		if (what <= 3) {
			data = edit_block(in, cur->node[n]);
			if (what < 3)
				ext2fs_itree_block_csum_set(fs, cur->dir,
							    cur->lblk[n], data);
		} else if (what == 4) {
			from = take(in, 1) % cur->nodes;
			data = cur->work + cur->node[n] * cur->bs;
			touch(data - cur->work, cur->bs);
			memmove(data, cur->work + cur->node[from] * cur->bs,
				cur->bs);
			ext2fs_itree_block_csum_set(fs, cur->dir, cur->lblk[n],
						    data);
		} else if (what == 5 && cur->extents) {
			data = edit_block(in, cur->extents);
			if (!ext2fs_read_inode(fs, cur->dir, &inode))
				ext2fs_extent_block_csum_set(fs, cur->dir,
							     (void *)data);
			around = 1;
		} else if (what == 6) {
			data = edit_block(in, cur->htree);
			ext2fs_dir_block_csum_set(
				fs, cur->dir, (struct ext2_dir_entry *)data);
			around = 1;
		} else {
			edit_inode(in, fs);
			around = 1;
		}
	}
	return around;
}

/* --- what the library does with it --- */

struct walk {
	__u64 count, last, limit;
	int disorder;
};

static int walk_key(__u64 key, void *priv)
{
	struct walk *w = priv;

	w->disorder |= w->count && key < w->last;
	w->last = key;
	return ++w->count > w->limit ? EXT2FS_ITREE_ABORT : 0;
}

static int walk_node(const struct ext2fs_itree_node *node, void *priv)
{
	unsigned int *nodes = priv;

	return ++*nodes > 100000 || !node->data ? EXT2FS_ITREE_ABORT : 0;
}

/* Is the tree of the directory there, sound and exact?  0, or what is wrong. */
static errcode_t exact(ext2_filsys fs, struct ext2fs_itree_report *report)
{
	struct ext2fs_itree_fault fault;
	ext2fs_itree it;
	__u64 keys, hash;
	errcode_t err;

	err = ext2fs_itree_open(fs, cur->dir, &fault, &it);
	if (err)
		return err;
	err = ext2fs_itree_verify(it, report, &fault);
	ext2fs_itree_close(it);
	if (!err)
		err = ext2fs_itree_sum_dir(fs, cur->dir, &keys, &hash);
	if (!err && (keys != report->keys || hash != report->hash))
		err = EXT2_ET_ITREE_CORRUPT;
	return err;
}

static void look(ext2_filsys fs, int around)
{
	struct ext2fs_itree_report report;
	struct ext2fs_itree_fault fault;
	struct ext2fs_itree_info info;
	struct walk w = { .limit = 20000 };
	ext2fs_itree it;
	errcode_t err, sound;
	unsigned int nodes = 0;

	ext2fs_itree_walk_nodes(fs, cur->dir, walk_node, &nodes);
	if (ext2fs_itree_open(fs, cur->dir, &fault, &it))
		return;
	ext2fs_itree_get_info(it, &info);
	sound = ext2fs_itree_verify(it, &report, &fault);
	err = ext2fs_itree_iterate(it, 0, walk_key, &w);
	CHECK(err || !w.disorder, "keys came out of order without an error");
	if (!sound && !around) {
		CHECK(!err, "a sound tree cannot be walked");
		CHECK(w.count == report.keys, "verify and walk count apart");
	}
	w.count = 0;
	ext2fs_itree_iterate(it, 0x00000040ULL << 32, walk_key, &w);
	ext2fs_itree_close(it);
}

/* Keys into the tree and out again, behind the directory's back. */
static void change_keys(ext2_filsys fs, struct input *in)
{
	struct ext2fs_itree_report before, after;
	struct ext2fs_itree_fault fault;
	ext2fs_itree it;
	errcode_t sound, err = 0;
	__u64 key[16];
	int i, n = 0;

	if (ext2fs_itree_open(fs, cur->dir, &fault, &it))
		return;
	sound = ext2fs_itree_verify(it, &before, &fault);
	for (i = 0; i < 16 && !err; i++) {
		key[i] = (__u64)(1 + take(in, 2)) << 32 | (take(in, 2) & ~1U);
		err = ext2fs_itree_insert(it, key[i]);
		n += !err;
	}
	while (n && !err)
		err = ext2fs_itree_delete(it, key[--n]);
	if (!sound && !err) {
		CHECK(!ext2fs_itree_verify(it, &after, &fault),
		      "a sound tree is not sound after inserts and deletes");
		CHECK(after.keys == before.keys && after.hash == before.hash,
		      "a tree changed that got keys and lost them again");
	}
	ext2fs_itree_close(it);
}

static void change_names(ext2_filsys fs, int around)
{
	struct ext2fs_itree_report report;
	struct ext2_inode inode;
	errcode_t was = exact(fs, &report), err;

	err = ext2fs_link(fs, cur->dir, "a new name", 12, EXT2_FT_REG_FILE);
	if (!err)
		err = ext2fs_unlink(fs, cur->dir, "a new name", 0, 0);
	if (around || was)
		return;
	CHECK(!err, "no name can be added to a sound directory");
	CHECK(!ext2fs_read_inode(fs, cur->dir, &inode), "no inode");
	CHECK(!(inode.i_flags & EXT4_ITREE_FL) || !exact(fs, &report),
	      "a changed directory has a stale tree");
}

static void rebuild(ext2_filsys fs, int around)
{
	struct ext2fs_itree_report report;
	struct ext2_inode inode;
	errcode_t err = ext2fs_itree_drop(fs, cur->dir);
	int segment;

	if (!err) {
		CHECK(!ext2fs_read_inode(fs, cur->dir, &inode), "no inode");
		CHECK(!(inode.i_flags & EXT4_ITREE_FL), "dropped, but flagged");
		CHECK(around || (!ext2fs_itree_has_segment(fs, cur->dir, &inode,
							   &segment) &&
				 !segment),
		      "dropped, but still mapped");
	}
	CHECK(around || !err, "a tree cannot be dropped");
	err = ext2fs_itree_build(fs, cur->dir);
	CHECK(around || !err, "a tree cannot be built");
	CHECK(around || !exact(fs, &report), "a built tree is not exact");
}

/* Writes what has changed for whoever wants to run e2fsck on it. */
static void write_changes(const char *folder)
{
	static unsigned int inputs;
	char name[4096];
	uint32_t which = cur - base;
	unsigned int i;
	FILE *f;

	snprintf(name, sizeof(name), "%s/%u", folder, inputs++);
	f = fopen(name, "wb");
	CHECK(f && fwrite(&which, 4, 1, f) == 1, "cannot write");
	for (i = 0; i < dirty_blocks; i++)
		CHECK(fwrite(&dirty[i], 4, 1, f) == 1 &&
			      fwrite(cur->work + dirty[i] * 1024UL, 1024, 1,
				     f) == 1,
		      "cannot write");
	CHECK(!fclose(f), "cannot write");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = { data, size };
	const char *write = getenv("ITREE_FUZZ_WRITE");
	unsigned int plan;
	ext2_filsys fs;
	int around;

	cur = &base[take(&in, 1) % bases];
	plan = take(&in, 1);
	fs = open_fs();
	around = edit(&in, fs);
	/* Nothing that was cached may hide an edit. */
	ext2fs_free(fs);
	if (write) {
		write_changes(write);
		restore();
		return 0;
	}
	fs = open_fs();
	look(fs, around);
	if (!ext2fs_read_bitmaps(fs)) {
		struct input tail = { data, size };

		if (plan & 1)
			change_keys(fs, &tail);
		if ((plan & 2) && !(plan & 1))
			change_names(fs, around);
		if (plan & 4)
			rebuild(fs, around);
	}
	ext2fs_free(fs);
	restore();
	return 0;
}
