/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What somebody declared about cgroups: a [cgroup "/path/glob"] section of
 * ebb.conf, or the xattr user.ebb.policy of one cgroup's directory.
 */
#ifndef EBB_DECLARATION_H
#define EBB_DECLARATION_H

#include <stdbool.h>

#include "attachment.h"

#define DECLARATION_PARAMS (EBB_PARAMS + 2) /* and detect, slowdown */
#define DECLARATION_XATTR "user.ebb.policy"

struct declaration {
	char glob[PATH_MAX];            /* "" for an xattr */
	char file[PATH_MAX];            /* the configuration's, or the xattr's name */
	int line;                       /* of the section; 0 for an xattr */
	char policy[24];
	int policy_line;
	uint32_t n;
	char name[DECLARATION_PARAMS][24];
	const char *names[DECLARATION_PARAMS]; /* set by declaration_wish() */
	uint64_t value[DECLARATION_PARAMS];
	int value_line[DECLARATION_PARAMS];
	char inactive[512];             /* why the kernel does not take its policy; "" = it does */
	char source[128];               /* "/etc/ebb/ebb.conf:12", set by declaration_wish() */
};

/* The [cgroup] sections of a configuration, in their order. */
struct declarations {
	struct declaration *item;
	uint32_t n;
};

/*
 * Takes @value for @key (policy, run or a parameter) of line @line.  The error
 * does not name the place: "pw_max: 'x' is not a whole number".
 */
int declaration_key(struct declaration *d, const char *key, const char *value, int line,
		    struct error *e);

/* Parses an xattr's "leap pw_max=64" into zeroed @d. */
int declaration_parse(struct declaration *d, const char *text, struct error *e);

/*
 * Whether the glob means the cgroup at @rel below its hierarchy's mount @mount;
 * it may be written with the mount too.  '*' does not match '/'.
 */
bool declaration_matches(const struct declaration *d, const char *mount, const char *rel);

/* @wish points into @d. */
void declaration_wish(struct declaration *d, struct attach_wish *wish);

/* "FILE:LINE" of what @parameter (NULL: the policy) says, for messages; @buf is returned. */
const char *declaration_where(const struct declaration *d, const char *parameter, char *buf,
			      size_t size);

/* Whether it can be granted by what is there; errors name file and line. */
int declaration_check(struct declaration *d, struct attachments *a, struct error *e);
/* Has the kernel take its policy.  No error of the declaration's: another kernel may take it. */
int declaration_load(struct declaration *d, struct attachments *a, struct error *e);

#endif
