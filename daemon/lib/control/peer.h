/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Identity and rights of the process at the other end of a Unix socket.  The kernel
 * reports the credentials that the process had when it connected (SO_PEERCRED,
 * SO_PEERGROUPS).
 */
#ifndef EBB_PEER_H
#define EBB_PEER_H

#include <sys/types.h>

enum peer_level {
	PEER_STRANGER, /* nothing */
	PEER_READER,   /* group ebb: read-only requests */
	PEER_ADMIN,    /* group ebb-admin: also the policies of cgroups */
	PEER_OWNER,    /* root and the server's user: everything */
};

#define PEER_NO_GROUP ((gid_t)-1)

struct peer_group {
	char name[33];
	gid_t gid;     /* PEER_NO_GROUP: no such group */
};

struct peer_groups {
	struct peer_group readers, admins;
};

struct peer_info {
	uid_t uid;
	pid_t pid;
	enum peer_level level;
};

/*
 * The groups "ebb" and "ebb-admin" of /etc/group, or those that EBB_GROUP and
 * EBB_ADMIN_GROUP give by name or number.  Reads only /etc/group: other sources would
 * load their libraries into daemons that lock their memory.
 */
void peer_groups_find(struct peer_groups *g);

/* Returns the level of user @uid in the @n @groups; @own is the server's user. */
enum peer_level peer_judge(const struct peer_groups *g, uid_t own, uid_t uid, const gid_t *groups,
			   int n);

/* Reads the peer of the connected socket @fd; 0 or -errno.  @g NULL: only the owner has a level. */
int peer_read(int fd, const struct peer_groups *g, struct peer_info *p);

#endif
