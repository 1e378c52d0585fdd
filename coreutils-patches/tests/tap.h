/* SPDX-License-Identifier: LGPL-2.0-or-later */
/* TAP, as the unit tests print it. */
#ifndef DISKORDER_TESTS_TAP_H
#define DISKORDER_TESTS_TAP_H

#include <stdbool.h>
#include <stdio.h>

static int tests, bad;

static void ok(bool good, const char *what)
{
	tests++;
	bad += !good;
	printf("%sok %d - %s\n", good ? "" : "not ", tests, what);
}

#endif
