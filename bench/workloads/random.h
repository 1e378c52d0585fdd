/* SPDX-License-Identifier: GPL-2.0-only */
/* The random choices of fill and lookup. */
#ifndef BENCH_RANDOM_H
#define BENCH_RANDOM_H

#include <stdint.h>

/* xorshift64*: the same sequence on every machine. state must not be 0. */
static inline uint64_t next_random(uint64_t *state)
{
	uint64_t x = *state;

	x ^= x >> 12;
	x ^= x << 25;
	x ^= x >> 27;
	*state = x;
	return x * 0x2545F4914F6CDD1Dull;
}

#endif /* BENCH_RANDOM_H */
