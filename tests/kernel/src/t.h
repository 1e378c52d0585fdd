/* SPDX-License-Identifier: GPL-2.0-only */
/* itree-t: what its parts share. */
#ifndef ITREE_T_H
#define ITREE_T_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t s64;

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define NAME_BYTES 256
#define EOF_COOKIE_64 0x7fffffffffffffffLL
#define EOF_COOKIE_32 0x7fffffffLL

/* Findings: counted, the first ones printed as "FAIL: ...". */
extern unsigned long findings;
void bad(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void stat_num(const char *key, u64 value);
const char *show(const char *name); /* printable, static ring of buffers */

/* Random numbers: a seed gives the same run everywhere. */
struct rng {
	u64 s;
};

void rng_seed(struct rng *r, u64 seed);
u64 rng_next(struct rng *r);
u32 below(struct rng *r, u32 n); /* 0 .. n - 1 */
bool chance(struct rng *r, u32 percent);

/* Names by style: mixed, skew, ascii, hex, max. */
enum style { S_MIXED, S_SKEW, S_ASCII, S_HEX, S_MAX, S_SHORT };

enum style style_of(const char *name);
size_t make_name(struct rng *r, enum style style, char *buf);

/* The model of one directory: what must be in it. */
struct ent {
	char *name;
	struct ent *next;
	u64 ino;
	u32 idx; /* in model.all */
	u32 mark; /* for the test at hand */
	u32 order; /* for the test at hand */
	u16 len;
	u8 type; /* DT_* */
	u8 kind; /* for the test at hand */
	u16 seen[4]; /* by reader */
};

struct model {
	struct ent **all;
	struct ent **tab;
	u32 n;
	u32 cap;
	u32 buckets;
};

struct model *model_new(void);
void model_free(struct model *m);
struct ent *model_get(struct model *m, const char *name, size_t len);
struct ent *model_add(struct model *m, const char *name, u64 ino, u8 type);
void model_del(struct model *m, struct ent *e);
struct ent *model_any(struct model *m, struct rng *r);
void model_save(struct model *m, const char *path);
struct model *model_load(const char *path);
size_t fresh_name(struct model *m, struct rng *r, enum style style, char *buf);

#define FL_ITREE 0x08000000 /* of a directory's flags: it has a tree */

/* Reading a directory. */
enum api { API_64, API_32, API_32OLD };
bool has_compat(void); /* may the two others be used? */

struct item {
	u64 ino;
	s64 off;
	const char *name;
	u16 len;
	u8 type;
};

/*
 * size 0: one entry a call, by finding the smallest buffer that the kernel
 * accepts.
 */
struct reader {
	int fd;
	enum api api;
	size_t size;
	char *buf;
	size_t have;
	size_t pos;
	u64 calls;
};

enum api api_of(const char *name);
void reader_init(struct reader *r, int fd, enum api api, size_t size);
int reader_next(struct reader *r, struct item *it);
s64 reader_seek(struct reader *r, s64 off, int whence);
void reader_end(struct reader *r);
bool is_dots(const struct item *it);
ssize_t dents_raw(int fd, enum api api, void *buf, size_t size);

/* A full listing against the model. */
struct check {
	bool order; /* inode order wanted */
	bool cookies; /* d_off must follow (ino << 31) | (hash >> 1) */
	bool seek; /* lseek to d_off after each entry */
	bool nokey; /* names are unknown: compare inodes and types */
	bool subset; /* more names than the model's may be there */
	enum api api;
	size_t size;
	const char *what;
};

extern struct check check_default;
u64 check_list(int dirfd, struct model *m, const struct check *c);
int open_dir(const char *path);
u64 ino_at(int dirfd, const char *name);
u8 type_at(int dirfd, const char *name);

/* EXT4_IOC_ITREE; returns ia_state. */
u32 tree_call(int dirfd, u32 op);
bool has_tree(int dirfd);

/* One modifying step on a directory, with the model kept in step. */
struct dirs {
	struct model *m[4];
	int fd[4];
	int n;
	struct rng rng;
	enum style style;
	bool user; /* not root: no device nodes */
	u64 done[24];
	u64 refused;
	int last; /* the step that was done last */
};

int op_random(struct dirs *d, int grow);
bool op_is_rename(int op);
bool op_needs_space(int op);
const char *op_name(int op);
extern const int op_count;

/* Options, the same for every subcommand. */
struct opts {
	const char *dir;
	const char *model;
	const char *aux;
	const char *out;
	const char *mode;
	const char *fsck;
	const char *plan;
	enum style style;
	u64 seed;
	u64 n;
	u64 m;
	u32 percent;
	u32 ndirs;
	u32 seconds;
	u32 readers;
	u32 writers;
	bool mixed;
	bool below; /* dir and all directories below it */
	struct check check;
};

int cmd_fill(struct opts *o);
int cmd_age(struct opts *o);
int cmd_links(struct opts *o);
int cmd_empty(struct opts *o);
int cmd_list(struct opts *o);
int cmd_self(struct opts *o);
int cmd_dump(struct opts *o);
int cmd_lookup(struct opts *o);
int cmd_pass(struct opts *o);
int cmd_ops(struct opts *o);
int cmd_over(struct opts *o);
int cmd_loop(struct opts *o);
int cmd_seek(struct opts *o);
int cmd_rewind(struct opts *o);
int cmd_morph(struct opts *o);
int cmd_hold(struct opts *o);
int cmd_stress(struct opts *o);
int cmd_space(struct opts *o);
int cmd_durable(struct opts *o);
int cmd_collide(struct opts *o);
int cmd_crypt(struct opts *o);
int cmd_damaged(struct opts *o);

#endif
