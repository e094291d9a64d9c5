// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "peer.h"

#define GROUP_FILE "/etc/group"
/* Limit of groups; a process with more has no level. */
#define GROUPS_MOST 1024

static gid_t gid_of(const char *name)
{
	gid_t gid = PEER_NO_GROUP;
	struct group *entry;
	FILE *f;
	char *end;
	unsigned long n = strtoul(name, &end, 10);

	if (*name >= '0' && *name <= '9' && !*end)
		return (gid_t)n;
	f = fopen(GROUP_FILE, "re");
	while (f && gid == PEER_NO_GROUP && (entry = fgetgrent(f)))
		if (!strcmp(entry->gr_name, name))
			gid = entry->gr_gid;
	if (f)
		fclose(f);
	return gid;
}

static void find(struct peer_group *g, const char *variable, const char *usual)
{
	const char *name = getenv(variable);

	snprintf(g->name, sizeof(g->name), "%s", name && *name ? name : usual);
	g->gid = gid_of(g->name);
}

void peer_groups_find(struct peer_groups *g)
{
	find(&g->readers, "EBB_GROUP", "ebb");
	find(&g->admins, "EBB_ADMIN_GROUP", "ebb-admin");
}

enum peer_level peer_judge(const struct peer_groups *g, uid_t own, uid_t uid, const gid_t *groups,
			   int n)
{
	enum peer_level level = PEER_STRANGER;

	if (uid == 0 || uid == own)
		return PEER_OWNER;
	for (int i = 0; g && i < n; i++) {
		if (groups[i] == PEER_NO_GROUP)
			continue;
		if (groups[i] == g->admins.gid)
			return PEER_ADMIN;
		if (groups[i] == g->readers.gid)
			level = PEER_READER;
	}
	return level;
}

int peer_read(int fd, const struct peer_groups *g, struct peer_info *p)
{
	gid_t groups[GROUPS_MOST];
	struct ucred who;
	socklen_t len = sizeof(who);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0)
		return -errno;
	groups[0] = who.gid;
	len = sizeof(groups) - sizeof(groups[0]);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups + 1, &len) < 0)
		len = 0;
	p->uid = who.uid;
	p->pid = who.pid;
	p->level = peer_judge(g, geteuid(), who.uid, groups, 1 + (int)(len / sizeof(groups[0])));
	return 0;
}
