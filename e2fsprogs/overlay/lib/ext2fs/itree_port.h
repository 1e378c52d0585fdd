/* SPDX-License-Identifier: GPL-2.0-only OR LGPL-2.0-only */
/*
 * The interface of the portable itree core to libext2fs.  The kernel and the
 * unit tests have their own file of this name.
 */
#ifndef ITREE_PORT_H
#define ITREE_PORT_H

#include "config.h"
#include <stdio.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "ext2fs/ext2_fs.h"
#include "ext2fs/ext2fs.h"

typedef __u8	u8;
typedef __u16	u16;
typedef __u32	u32;
typedef __u64	u64;

#ifndef cpu_to_le32
#define cpu_to_le16(x)	ext2fs_cpu_to_le16(x)
#define cpu_to_le32(x)	ext2fs_cpu_to_le32(x)
#define le16_to_cpu(x)	ext2fs_le16_to_cpu(x)
#define le32_to_cpu(x)	ext2fs_le32_to_cpu(x)
#endif
#ifndef cpu_to_le64
#define cpu_to_le64(x)	ext2fs_cpu_to_le64(x)
#define le64_to_cpu(x)	ext2fs_le64_to_cpu(x)
#endif

#ifndef READ_ONCE
#define READ_ONCE(x) (*(const volatile __typeof__(x) *)&(x))
#endif

#define ITREE_CORRUPT	117		/* EUCLEAN, where there is one */

#endif /* ITREE_PORT_H */
