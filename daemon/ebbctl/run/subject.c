// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ebb/page.h>
#include "subject.h"
#include "ebbctl/process.h"
#include "ebbctl/run/record.h"
#include "lib/base/text.h"
#include "lib/base/cleanup.h"
#include "lib/base/files.h"
#include "lib/base/paths.h"
#include "lib/base/size.h"
#include "lib/control/control.h"
#include "run.h"

/* Below this, libraries, page tables and the shell dominate. */
#define NEEDED_MIN (24ULL << 20)
/* In the directory that ebbd can always write. */
#define TEMPORARY "advise-XXXXXX"
#define TEMPORARY_FILE "/faults.trace"

static void hold_signals(struct subject *s)
{
	sigset_t stop;

	process_ending_signals(&stop);
	sigprocmask(SIG_BLOCK, &stop, &s->mask);
	s->holds_signals = true;
}

static int choose_file(struct subject *s, const struct subject_plan *o, struct error *e)
{
	int r;

	if (o->output)
		return record_path(o->output, s->trace, sizeof(s->trace), e);
	snprintf(s->trace, sizeof(s->trace), "%.2000s/" TEMPORARY, ebb_state_dir());
	r = file_make_dirs(ebb_state_dir(), 0755);
	if (r)
		return fail(e, r, "%s: cannot create: %s; keep the trace with -o FILE",
			    ebb_state_dir(), strerror(-r));
	if (!mkdtemp(s->trace))
		return fail(e, errno, "%s: cannot create: %s; keep the trace with -o FILE",
			    s->trace, strerror(errno));
	s->temporary = true;
	strcat(s->trace, TEMPORARY_FILE);
	return 0;
}

void subject_end(struct subject *s)
{
	if (s->temporary) {
		unlink(s->trace);
		s->trace[strlen(s->trace) - strlen(TEMPORARY_FILE)] = '\0';
		rmdir(s->trace);
		s->temporary = false;
	}
	if (s->holds_signals)
		sigprocmask(SIG_SETMASK, &s->mask, NULL);
	s->holds_signals = false;
}

/* Runs the program once; fails if the run is not representative. */
static int run_once(struct subject *s, struct run *run, char **argv, struct error *e)
{
	int r;

	if (process_interrupted())
		return fail_exit(e, 128 + SIGINT, EINTR, "advise: interrupted; try again");
	/* The program gets its signal mask and the start of its input. */
	sigprocmask(SIG_SETMASK, &s->mask, NULL);
	lseek(STDIN_FILENO, 0, SEEK_SET);
	r = run_begin(run, argv, e);
	if (!r && json_int(run->summary, "oom_kills", 0))
		r = fail(e, ENOMEM, "%s: OOM killer invoked with %llu MiB of memory; give a higher --floor",
			 argv[0], (unsigned long long)(run->o->mem >> 20));
	if (!r && run->end.status)
		r = fail(e, ECHILD, "%s: exit status %d, run not representative; give a program that succeeds",
			 argv[0], run->end.status);
	run_end(run);
	return r;
}

static int run_twice(struct subject *s, const struct subject_plan *o, uint64_t floor,
		     char **argv, struct error *e)
{
	const struct run_options free_options = { .policy = "none", .no_track = true, .watch = true,
						  .as_root = o->as_root };
	struct run_options options = { .policy = "none", .record = s->trace, .start = o->start,
				       .as_root = o->as_root };
	struct run with_all = { .o = &free_options }, recorded = { .o = &options };
	char needs[16];
	int r = run_once(s, &with_all, argv, e);

	if (r)
		return r;
	s->needed = with_all.needed;
	s->full_seconds = with_all.end.seconds;
	if (s->needed < NEEDED_MIN)
		return fail_exit(e, EXIT_REFUSED, ERANGE,
				 "%s: needs only %s of memory; give a program that needs at least %llu MiB",
				 argv[0], size_format(s->needed, needs, sizeof(needs)),
				 NEEDED_MIN >> 20);
	options.mem = s->needed * floor / 100 / EBB_PAGE * EBB_PAGE;
	r = run_once(s, &recorded, argv, e);
	s->recorded_seconds = recorded.end.seconds;
	return r;
}

int subject_run(struct subject *s, const struct subject_plan *o, uint64_t floor, char **argv,
		struct error *e)
{
	int ours, r;

	hold_signals(s);
	s->name = argv[0];
	r = choose_file(s, o, e);
	if (r)
		return r;
	fflush(stdout);
	ours = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
	if (ours < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0)
		return fail(e, errno, "stdout: %s", strerror(errno));
	r = run_twice(s, o, floor, argv, e);
	dup2(ours, STDOUT_FILENO);
	close(ours);
	return r;
}

int subject_record(struct subject *s, const struct subject_plan *o, struct error *e)
{
	_cleanup_json_ struct json_object *answer = NULL;
	struct cgroup_ref c;
	int r = cgroup_resolve(o->cgroup, &c, e);

	hold_signals(s);
	s->name = o->cgroup;
	if (!r)
		r = choose_file(s, o, e);
	return r ? r : record_for(&c, &(struct record_plan){ s->trace, o->seconds, o->full },
				  &answer, e);
}
