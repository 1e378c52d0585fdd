/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * itree_quota.h --- update quota after itrees have been dropped
 */
#ifndef SUPPORT_ITREE_QUOTA_H
#define SUPPORT_ITREE_QUOTA_H

errcode_t quota_rewrite_usage(ext2_filsys fs);

#endif /* SUPPORT_ITREE_QUOTA_H */
