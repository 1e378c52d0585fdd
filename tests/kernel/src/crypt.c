// SPDX-License-Identifier: GPL-2.0-only
/* itree-t: fscrypt, version 2 policies by ioctl. */
#include "t.h"

#include <linux/fscrypt.h>
#include <sys/ioctl.h>

/*
 * --mode add: give the key to the file system of --dir; set: the same and
 * make --dir (empty) encrypted; remove: take the key away.
 */
int cmd_crypt(struct opts *o)
{
	u8 raw[sizeof(struct fscrypt_add_key_arg) + 64] = {};
	struct fscrypt_add_key_arg *add = (void *)raw;
	struct fscrypt_policy_v2 pol = {
		.version = FSCRYPT_POLICY_V2,
		.contents_encryption_mode = FSCRYPT_MODE_AES_256_XTS,
		.filenames_encryption_mode = FSCRYPT_MODE_AES_256_CTS,
		.flags = FSCRYPT_POLICY_FLAGS_PAD_32,
	};
	struct fscrypt_remove_key_arg rem = {};
	int fd;

	if (!strcmp(o->mode, "set") && mkdir(o->dir, 0755) && errno != EEXIST)
		die("%s", o->dir);
	fd = open_dir(o->dir);
	add->key_spec.type = FSCRYPT_KEY_SPEC_TYPE_IDENTIFIER;
	add->raw_size = 64;
	for (int i = 0; i < 64; i++)
		add->raw[i] = (u8)(i * 7 + o->seed);
	if (ioctl(fd, FS_IOC_ADD_ENCRYPTION_KEY, add))
		die("FS_IOC_ADD_ENCRYPTION_KEY");
	memcpy(pol.master_key_identifier, add->key_spec.u.identifier,
	       FSCRYPT_KEY_IDENTIFIER_SIZE);
	if (!strcmp(o->mode, "set") &&
	    ioctl(fd, FS_IOC_SET_ENCRYPTION_POLICY, &pol))
		die("FS_IOC_SET_ENCRYPTION_POLICY");
	if (!strcmp(o->mode, "remove")) {
		rem.key_spec = add->key_spec;
		close(fd);
		fd = open_dir(o->aux);
		if (ioctl(fd, FS_IOC_REMOVE_ENCRYPTION_KEY, &rem))
			die("FS_IOC_REMOVE_ENCRYPTION_KEY");
		stat_num("still_in_use", rem.removal_status_flags);
	}
	return 0;
}
