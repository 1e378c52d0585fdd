/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The interface of the portable itree core to the kernel.  libext2fs and the
 * unit tests have their own file of this name.
 */
#ifndef ITREE_PORT_H
#define ITREE_PORT_H

#include <linux/compiler.h>
#include <linux/types.h>
#include <linux/errno.h>
#include <linux/string.h>
#include <linux/bitops.h>
#include <asm/byteorder.h>

#define ITREE_CORRUPT	EUCLEAN		/* EFSCORRUPTED, as ext4.h has it */

#endif /* ITREE_PORT_H */
