/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A configured policy: a [cgroup "/path/glob"] section of ebb.conf, or the xattr
 * user.ebb.policy of one cgroup's directory.
 */
#ifndef EBB_DECLARATION_H
#define EBB_DECLARATION_H

#include <stdbool.h>

#include "attachment.h"

#define DECLARATION_PARAMS (EBB_PARAMS + 4) /* and detect, slowdown, placement, benefit */
#define DECLARATION_XATTR "user.ebb.policy"

struct declaration {
	char glob[PATH_MAX];            /* "" for an xattr */
	char file[PATH_MAX];            /* configuration file, or name of the xattr */
	int line;                       /* of the section; 0 for an xattr */
	char policy[24];
	int policy_line;
	bool in_daemon;                 /* "run=daemon" was given, which is ignored */
	uint32_t n;
	char name[DECLARATION_PARAMS][24];
	const char *names[DECLARATION_PARAMS]; /* set by declaration_wish() */
	uint64_t value[DECLARATION_PARAMS];
	int value_line[DECLARATION_PARAMS];
	char inactive[512];             /* why the kernel rejects its policy; "" = it does not */
	char source[128];               /* "/etc/ebb/ebb.conf:12", set by declaration_wish() */
};

/* The [cgroup] sections of a configuration, in their order. */
struct declarations {
	struct declaration *item;
	uint32_t n;
};

/*
 * Sets @key (policy, run or a parameter) of line @line to @value.  The error names
 * no file or line: "pw_max: 'x' is not a whole number".
 */
int declaration_key(struct declaration *d, const char *key, const char *value, int line,
		    struct error *e);

/* Parses an xattr's "leap pw_max=64" into zeroed @d; does not warn of @d->in_daemon. */
int declaration_parse(struct declaration *d, const char *text, struct error *e);

/*
 * Returns whether the glob, with or without the mount, matches the cgroup at @rel
 * below its hierarchy's mount @mount.  '*' does not match '/'.
 */
bool declaration_matches(const struct declaration *d, const char *mount, const char *rel);

/* @wish points into @d. */
void declaration_wish(struct declaration *d, struct attach_wish *wish);

/* Stores "FILE:LINE" of @parameter (NULL: of the policy) in @buf and returns @buf. */
const char *declaration_where(const struct declaration *d, const char *parameter, char *buf,
			      size_t size);

/* Checks policy and parameters against the loaded policies; errors name file and line. */
int declaration_check(struct declaration *d, struct attachments *a, struct error *e);
/* Loads its policy into the kernel.  A rejection leaves the section valid. */
int declaration_load(struct declaration *d, struct attachments *a, struct error *e);

#endif
