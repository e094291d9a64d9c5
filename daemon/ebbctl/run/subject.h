/* SPDX-License-Identifier: GPL-2.0-or-later */
/* The program or cgroup of `advise`, and its recording. */
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
	bool temporary;         /* remove the recording with the subject */
	bool holds_signals;     /* while a temporary file exists */
	sigset_t mask;          /* previous mask */
	uint64_t needed; /* bytes with which it hardly swaps; 0: derive it from the recording */
	double full_seconds;    /* run time with all its memory; 0: unknown */
	double recorded_seconds;
};

/*
 * Runs @argv twice: without a limit, then recorded with @floor per cent of the memory that
 * it needed.  Its standard output goes to standard error.
 */
int subject_run(struct subject *s, const struct subject_plan *o, uint64_t floor, char **argv,
		struct error *e);

/* Records a running cgroup. */
int subject_record(struct subject *s, const struct subject_plan *o, struct error *e);

/* Removes a temporary recording, which may be open; idempotent. */
void subject_end(struct subject *s);

#define _cleanup_subject_ __attribute__((cleanup(subject_end)))

#endif
