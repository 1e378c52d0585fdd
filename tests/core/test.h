/* SPDX-License-Identifier: GPL-2.0-only */
/* What the test programs share: checks, cases, random numbers. */
#ifndef TEST_H
#define TEST_H

#include <stdio.h>
#include <stdlib.h>

#include "itree_core.h"

/* Prints and ends the case (a process of its own) as failed. */
void __attribute__((noreturn, format(printf, 3, 4)))
test_fail(const char *file, int line, const char *fmt, ...);

#define CHECK(cond)                                                            \
	do {                                                                   \
		if (!(cond))                                                   \
			test_fail(__FILE__, __LINE__, "%s", #cond);            \
	} while (0)

#define CHECKF(cond, fmt, ...)                                                 \
	do {                                                                   \
		if (!(cond))                                                   \
			test_fail(__FILE__, __LINE__, "%s: " fmt, #cond,       \
				  ##__VA_ARGS__);                              \
	} while (0)

#define CHECK_EQ(a, b)                                                         \
	do {                                                                   \
		long long a_ = (long long)(a), b_ = (long long)(b);            \
                                                                               \
		if (a_ != b_)                                                  \
			test_fail(__FILE__, __LINE__, "%s == %s: %lld, %lld",  \
				  #a, #b, a_, b_);                             \
	} while (0)

/* Shown with a failed check: what was going on. */
extern char test_note[256];
/* Failed checks abort, for the fuzzer to see. */
extern bool test_abort;

/*
 * Runs fn(arg) in a child process with a time limit and prints one TAP line.
 * A crash, a sanitizer report, a leak or a time-out fails the case.
 */
void test_run(const char *name, void (*fn)(void *arg), void *arg);
/* Only cases whose name contains the pattern in ITREE_ONLY run. */
int test_done(void);

u64 env_u64(const char *name, u64 otherwise);

struct rng {
	u64 s;
};

u64 rng_next(struct rng *r);
u64 rng_below(struct rng *r, u64 n);

void *xcalloc(size_t n, size_t size);
void *xrealloc(void *p, size_t size);

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

#endif /* TEST_H */
