/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One run of a program in its own cgroup, for `run` and `advise`. */
#ifndef EBB_RUN_H
#define EBB_RUN_H

#include <json-c/json.h>

#include "ebbctl/run/program.h"
#include "ebbctl/run/run_services.h"
#include "lib/base/options.h"

/* Options of `run`; the caller owns the strings. */
struct run_options {
	const char *policy, *record, *name, *json_file;
	uint64_t mem, donor_memory;    /* bytes; mem 0: no limit, requires no_track */
	struct option_list params;
	bool start, keep, no_track, as_root, quiet;
	bool watch;                     /* measure the memory that it needs; not an option */
};

struct run {
	const struct run_options *o;
	struct program program;
	struct program_end end;
	struct started started;
	int lock;                   /* of services_use(), or -1 */
	struct cgroup_ref cgroup;
	char scope[64];             /* systemd scope of the cgroup, or "" */
	bool created, attached, recording;
	uint64_t needed; /* bytes: peak of anonymous, mapped and kernel memory, with o->watch */
	struct json_object *summary;
};

/*
 * Runs the program to its exit; all members but @run->o must be zero.  Fills in the
 * summary and run->end.
 */
int run_begin(struct run *run, char **argv, struct error *e);

/*
 * Undoes all steps in reverse order, also after a failure, and ends the recording.
 * Frees the summary.  Signals stay blocked; run->program.mask has the previous mask.
 */
void run_end(struct run *run);

#endif
