// SPDX-License-Identifier: GPL-2.0-only
/*
 * itree_quota.c --- update quota after itrees have been dropped
 */
#include "config.h"
#include <sys/types.h>

#include "ext2fs/ext2_fs.h"
#include "ext2fs/ext2fs.h"
#include "quotaio.h"
#include "itree_quota.h"

/*
 * Recounts the usage of all users, groups and projects and writes it to the
 * quota files; keeps limits.  Does nothing without quota files.  Needs bitmaps.
 * Returns 0 or an error, after which e2fsck has to correct the usage.
 */
errcode_t quota_rewrite_usage(ext2_filsys fs)
{
	unsigned int	types = 0;
	enum quota_type	type;
	quota_ctx_t	qctx;
	errcode_t	retval;

	if (!ext2fs_has_feature_quota(fs->super))
		return 0;
	for (type = 0; type < MAXQUOTAS; type++)
		if (*quota_sb_inump(fs->super, type))
			types |= 1 << type;
	if (!types)
		return 0;
	retval = quota_init_context(&qctx, fs, types);
	if (retval)
		return retval;
	retval = quota_compute_usage(qctx);
	for (type = 0; !retval && type < MAXQUOTAS; type++) {
		if (!(types & (1 << type)))
			continue;
		retval = quota_read_all_dquots(qctx,
				*quota_sb_inump(fs->super, type), type,
				QREAD_LIMITS);
		if (!retval)
			retval = quota_write_inode(qctx, 1 << type);
	}
	quota_release_context(&qctx);
	return retval;
}
