/* SPDX-License-Identifier: GPL-2.0-or-later */
/* One run of a program in a cgroup of its own, for the verbs that need one. */
#ifndef EBB_RUN_H
#define EBB_RUN_H

#include <json-c/json.h>

#include "ebbctl/run/program.h"
#include "ebbctl/run/run_services.h"
#include "lib/base/options.h"

/* As `run` takes them; text belongs to the caller. */
struct run_options {
	const char *policy, *record, *name, *json_file;
	uint64_t mem, donor_memory;    /* bytes; mem 0 = no limit, only with no_track */
	struct option_list params;
	bool start, keep, no_track, as_root, quiet;
	bool watch;                     /* find out how much memory it needs; not an option */
};

struct run {
	const struct run_options *o;
	struct program program;
	struct program_end end;
	struct started started;
	struct cgroup_ref cgroup;
	char scope[64];             /* systemd's name of the cgroup, or "" */
	bool created, attached, recording;
	uint64_t needed;            /* bytes at its peak, with o->watch: anonymous, mapped, the kernel's */
	struct json_object *summary;
};

/*
 * Runs the program to its end; all but @run->o is zero.  The summary is there
 * then, run->end says how it ended.
 */
int run_begin(struct run *run, char **argv, struct error *e);

/*
 * Undoes what was done, in reverse, also after a failure, and ends the recording.
 * Frees the summary.  Signals stay blocked; run->program.mask is what was before.
 */
void run_end(struct run *run);

#endif
