/* SPDX-License-Identifier: GPL-2.0-or-later */
/* What `advise` is asked about, and the recording that answers it. */
#ifndef EBB_ADVISE_SUBJECT_H
#define EBB_ADVISE_SUBJECT_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/base/error.h"

struct subject_plan {
	const char *output;     /* file for the recording, NULL: temporary */
	const char *cgroup;
	uint64_t seconds;       /* ns */
	uint64_t full;          /* bytes */
	bool start, as_root;
};

struct subject {
	const char *name;       /* program, cgroup or file */
	char trace[PATH_MAX];
	bool temporary;         /* the trace goes with the subject */
	bool holds_signals;     /* since there is something to remove */
	sigset_t mask;          /* before that */
	uint64_t needed;        /* bytes with which it would hardly page; 0 = the trace tells */
	double full_seconds;    /* with all its memory, and when it was recorded; 0 = not known */
	double recorded_seconds;
};

/*
 * Runs @argv twice: with all the memory it wants, then recorded with
 * @floor per cent of that.  Its standard output goes to standard error.
 */
int subject_run(struct subject *s, const struct subject_plan *o, uint64_t floor, char **argv,
		struct error *e);

/* Records a running cgroup. */
int subject_record(struct subject *s, const struct subject_plan *o, struct error *e);

/* Removes a temporary trace, which may be open; idempotent. */
void subject_end(struct subject *s);

#define _cleanup_subject_ __attribute__((cleanup(subject_end)))

#endif
