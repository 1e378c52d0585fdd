/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * switch_itree.h --- set or clear the itree feature of a mounted file system
 */
#ifndef SWITCH_ITREE_H
#define SWITCH_ITREE_H

/*
 * Asks the kernel to set (@on) or clear the feature of the file system that is
 * mounted at @mntpt, and waits until it has.  Shows on standard error how many
 * trees have gone, if that is a terminal.  Returns 0 or, after saying why, 1:
 * the feature is then as it was.
 */
int switch_itree_mounted(const char *mntpt, int on);

#endif /* SWITCH_ITREE_H */
