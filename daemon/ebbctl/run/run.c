// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ebbctl/call.h"
#include "ebbctl/device/list.h"
#include "ebbctl/device/scope_all.h"
#include "ebbctl/device/swaps.h"
#include "lib/base/cleanup.h"
#include "lib/base/json.h"
#include "lib/control/control.h"
#include "lib/host/cgroup.h"
#include "lib/host/cgroup_files.h"
#include "lib/host/systemd.h"
#include "record.h"
#include "run.h"

#define GRACE_MS 5000
/* Large enough for a program at a quarter of its size, with spare slots. */
#define DEVICE_PER_LIMIT 16
#define DEVICE_MIN (1ULL << 30)

static bool device_is_on(void)
{
	struct json_object *rows = device_describe_all();
	bool on = false;

	for (size_t i = 0; i < json_object_array_length(rows); i++)
		on |= json_object_get_boolean(json_member(json_object_array_get_idx(rows, i),
							  "on"));
	json_object_put(rows);
	return on;
}

static bool daemon_runs(struct error *e)
{
	struct json_object *status = NULL;
	int r = daemon_call(control_request("status"), &status, e);

	json_object_put(status);
	return !r;
}

/* Checks for daemon and device, or starts them (--start). */
static int prepare(struct run *run, struct error *e)
{
	const struct run_options *o = run->o;
	uint64_t memory = o->donor_memory;
	struct error no_daemon = { 0 };
	bool daemon, device;

	/* Without a limit nothing is swapped out. */
	if (!o->mem)
		return 0;
	run->lock = services_use(&run->program, e);
	if (run->lock < 0)
		return run->lock;
	daemon = o->no_track || daemon_runs(&no_daemon);
	device = device_is_on();
	if (o->start) {
		uint64_t half = memory_available() / 2;

		if (!memory) {
			memory = o->mem * DEVICE_PER_LIMIT > DEVICE_MIN ?
					 o->mem * DEVICE_PER_LIMIT :
					 DEVICE_MIN;
			memory = memory < half ? memory : half;
		}
		return started_begin(&run->started, daemon, device, memory, e);
	}
	if (!daemon) {
		*e = no_daemon;
		return no_daemon.code;
	}
	if (!device)
		return fail_exit(e, EXIT_REFUSED, ENODEV,
				 "run: no ebb device is on; run \"ebbctl device create\" or add --start");
	return 0;
}

/*
 * Creates a scope of systemd, if it manages the tree: systemctl then shows the program, and
 * a daemon-reload keeps the limit.  Not with --keep, because systemd removes an empty scope.
 */
static int make_scope(struct run *run, const char *name)
{
	struct transient_limit limit = { .memory_max = run->o->mem };
	char where[PATH_MAX];
	pid_t pids[2];
	bool v2;
	int r;

	cgroup_memory_mount(&v2);
	if (!v2 || run->o->keep || program_keep(&run->program, NULL))
		return -EOPNOTSUPP;
	pids[0] = run->program.pid;
	pids[1] = run->program.keeper;
	snprintf(run->scope, sizeof(run->scope), "%.56s.scope", name);
	r = transient_scope(run->scope, pids, 2, where, sizeof(where), &limit);
	if (!r)
		r = cgroup_resolve(where, &run->cgroup, NULL);
	if (r) {
		program_keep_end(&run->program);
		run->scope[0] = '\0';
	}
	return r;
}

static int make_cgroup(struct run *run, struct error *e)
{
	char path[64];

	if (run->o->name)
		snprintf(path, sizeof(path), "/ebb-%s", run->o->name);
	else
		snprintf(path, sizeof(path), "/ebb-run-%d", getpid());
	return make_scope(run, path + 1) ? cgroup_create(path, run->o->mem, &run->cgroup, e) : 0;
}

static int attach(struct run *run, struct error *e)
{
	struct json_object *request = control_request("policy.attach");
	int r;

	json_add_text(request, "cgroup", run->cgroup.path);
	json_add_text(request, "policy", run->o->policy);
	r = daemon_add_params(request, run->o->params.v, run->o->params.n, e);
	if (!r)
		r = daemon_tell(json_object_get(request), e);
	json_object_put(request);
	run->attached = !r;
	return r;
}

static int start_recording(struct run *run, struct error *e)
{
	struct json_object *request;
	char file[PATH_MAX];
	int r = record_path(run->o->record, file, sizeof(file), e);

	if (r)
		return r;
	request = control_request("record.start");
	json_add_text(request, "cgroup", run->cgroup.path);
	json_add_text(request, "file", file);
	r = daemon_tell(request, e);
	run->recording = !r;
	return r;
}

/* Tracks the peak of required memory, without page cache that no process maps. */
static void watch_memory(void *data)
{
	struct run *run = data;
	struct cgroup_memory m;
	uint64_t needed;

	if (cgroup_memory_read(run->cgroup.path, &m))
		return;
	needed = m.anon + m.mapped + m.kernel;
	run->needed = needed > run->needed ? needed : run->needed;
}

/* All steps up to the program's exit. */
static int execute(struct run *run, char **argv, struct error *e)
{
	const struct run_options *o = run->o;
	int r = prepare(run, e);

	if (r)
		return r;
	r = program_fork(&run->program, argv, o->as_root ? USER_SELF : USER_INVOKING, e);
	if (!r)
		r = make_cgroup(run, e);
	if (r)
		return r;
	run->created = true;
	if (!o->no_track)
		r = attach(run, e);
	/* Attached first, or another ebbctl could exclude the cgroup from swap again. */
	if (!r)
		scope_apply_all(run->cgroup.path);
	if (!r && o->record)
		r = start_recording(run, e);
	if (!r && program_interrupted(&run->program))
		r = fail_exit(e, 128 + SIGINT, EINTR, "run: interrupted before the program started");
	if (!r)
		r = program_go(&run->program, *run->scope ? NULL : &run->cgroup, e);
	return r ? r : program_wait(&run->program, &run->end, e);
}

static double seconds(struct timeval t)
{
	return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

static void add_stats(struct run *run)
{
	struct json_object *request = control_request("stats"), *answer = NULL, *rows, *row;

	json_add_text(request, "cgroup", run->cgroup.path);
	if (daemon_call(request, &answer, NULL))
		return;
	rows = json_member(answer, "cgroups");
	row = rows ? json_object_array_get_idx(rows, 0) : NULL;
	if (row) {
		daemon_derive(row);
		json_object_object_add(run->summary, "stats", json_object_get(row));
	}
	json_object_put(answer);
}

static void summarise(struct run *run, const char *program)
{
	struct json_object *o = run->summary = json_object_new_object();

	json_add_text(o, "program", program);
	json_add_int(o, "exit", run->end.status);
	json_add_int(o, "signal", run->end.signal);
	json_add_double(o, "seconds", run->end.seconds);
	json_add_double(o, "user_seconds", seconds(run->end.usage.ru_utime));
	json_add_double(o, "system_seconds", seconds(run->end.usage.ru_stime));
	json_add_text(o, "cgroup", run->cgroup.path);
	json_add_int(o, "limit", (int64_t)run->o->mem);
	json_add_int(o, "peak", (int64_t)cgroup_peak(&run->cgroup));
	json_add_int(o, "oom_kills", (int64_t)cgroup_oom_kills(&run->cgroup));
	json_add_text(o, "policy", run->o->no_track ? NULL : run->o->policy);
	json_add_bool(o, "tracked", run->attached);
	if (run->attached)
		add_stats(run);
}

static void tell_about_cgroup(struct run *run, const char *verb)
{
	struct json_object *request = control_request(verb);

	json_add_text(request, "cgroup", run->cgroup.path);
	daemon_tell(request, NULL);
}

/* The program has run: a full disk is a warning, not a failure. */
static void stop_recording(struct run *run)
{
	struct json_object *answer = NULL;
	struct error e = { 0 };

	if (record_stop(run->cgroup.path, &answer, &e))
		fprintf(stderr, "ebbctl: %s\n", e.text);
	else if (json_int(answer, "lost", 0))
		fprintf(stderr, "ebbctl: %s: %lld faults missing: their rate was too high\n",
			run->o->record, (long long)json_int(answer, "lost", 0));
	json_object_put(answer);
}

int run_begin(struct run *run, char **argv, struct error *e)
{
	int r = program_block_signals(&run->program, e);

	run->lock = -1;
	if (r)
		return r;
	if (run->o->watch) {
		run->program.tick = watch_memory;
		run->program.tick_data = run;
	}
	r = execute(run, argv, e);
	if (r)
		return r;
	/* The program may have exited before the first sample. */
	if (run->needed < (uint64_t)run->end.usage.ru_maxrss << 10)
		run->needed = (uint64_t)run->end.usage.ru_maxrss << 10;
	summarise(run, argv[0]);
	return 0;
}

void run_end(struct run *run)
{
	struct error e = { 0 };
	char command[128];

	if (run->recording)
		stop_recording(run);
	if (run->attached && !run->o->keep)
		tell_about_cgroup(run, "policy.detach");
	program_close(&run->program);
	if (run->created && !run->o->keep) {
		int n = program_clear_cgroup(&run->cgroup, GRACE_MS);

		if (n)
			fprintf(stderr, "ebbctl: ended %d processes that the program left behind; use --keep to keep them\n",
				n);
		/* Succeeds if systemd has removed the empty scope. */
		if (cgroup_remove(&run->cgroup, &e))
			fprintf(stderr, "ebbctl: %s\n", e.text);
		scope_apply_all(NULL);
	}
	e = (struct error){ 0 };
	if (!run->o->keep && started_end(&run->started, run->lock, &e))
		fprintf(stderr, "ebbctl: %s\n", e.text);
	if (started_any(&run->started))
		fprintf(stderr, "ebbctl: services of --start still run; when they are not needed any more, run \"%s\"\n",
			started_format(&run->started, command, sizeof(command)));
	close_fdp(&run->lock);
	run->lock = -1;
	json_object_put(run->summary);
	run->summary = NULL;
	program_restore_pipe(&run->program);
}
