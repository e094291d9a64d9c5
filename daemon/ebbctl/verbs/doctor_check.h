/* SPDX-License-Identifier: GPL-2.0-or-later */
/* `ebbctl doctor`: prerequisites, one row each. */
#ifndef EBB_DOCTOR_CHECK_H
#define EBB_DOCTOR_CHECK_H

#include <json-c/json.h>

enum verdict {
	HAVE,      /* available */
	MISSING,   /* ebb does not work without it */
	DEGRADED,  /* ebb works with the restriction that the remedy names */
	NOTE,      /* for information */
};

struct doctor {
	struct json_object *checks; /* [{"name", "state", "found", "remedy"}] */
	int missing;
};

/* Adds a row; @found as for printf(3), @remedy NULL if none. */
void doctor_add(struct doctor *d, enum verdict v, const char *name, const char *remedy,
		const char *found, ...) __attribute__((format(printf, 5, 6)));

#endif
