/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_RECORD_H
#define EBB_RECORD_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/host/cgroup.h"

/* @name as an absolute path, for ebbd. */
int record_path(const char *name, char *path, size_t size, struct error *e);

struct record_plan {
	const char *file;       /* absolute */
	uint64_t ns;            /* for how long; 0 = until a signal */
	uint64_t full;          /* leave the cgroup that much memory meanwhile, bytes; 0 = as it is */
};

/*
 * Records @c, from its beginning to its end: when the time is up, ^C or the like
 * comes, or the recording ends by itself (a full disk).  ebbd ends it some seconds
 * after this process is killed.  *@answer has "records" and "lost"; the caller's.
 */
int record_for(const struct cgroup_ref *c, const struct record_plan *plan,
	       struct json_object **answer, struct error *e);

/* Ends the recording of @cgroup; *@answer has "records" and "lost". */
int record_stop(const char *cgroup, struct json_object **answer, struct error *e);

#endif
