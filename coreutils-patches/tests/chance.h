/* SPDX-License-Identifier: LGPL-2.0-or-later */
/* Reproducible random numbers for the unit tests. */
#ifndef DISKORDER_TESTS_CHANCE_H
#define DISKORDER_TESTS_CHANCE_H

#include <stdint.h>

static uint64_t seed;

/* xorshift64; seed must not be 0 */
static uint64_t rnd(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

#endif
