/* SPDX-License-Identifier: GPL-2.0-or-later */
#ifndef EBB_RECORD_H
#define EBB_RECORD_H

#include <json-c/json.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/host/cgroup.h"

/* Sets @path to @name as an absolute path, for ebbd. */
int record_path(const char *name, char *path, size_t size, struct error *e);

struct record_plan {
	const char *file;       /* absolute */
	uint64_t ns;            /* duration; 0: until a signal */
	uint64_t full;          /* bytes: temporary memory limit of the cgroup; 0: unchanged */
};

/*
 * Records @c until the time is up, a signal such as ^C arrives, or the recording ends by
 * itself (full disk).  ebbd ends it some seconds after this process is killed.
 * The caller owns *@answer, which has "records" and "lost".
 */
int record_for(const struct cgroup_ref *c, const struct record_plan *plan,
	       struct json_object **answer, struct error *e);

/* Ends the recording of @cgroup; *@answer has "records" and "lost". */
int record_stop(const char *cgroup, struct json_object **answer, struct error *e);

#endif
