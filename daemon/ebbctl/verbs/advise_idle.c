// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <ebb/page.h>
#include "advise_idle.h"
#include "ebbctl/call.h"
#include "ebbctl/idle/references.h"
#include "ebbctl/idle/watch.h"
#include "ebbctl/process.h"
#include "lib/base/clock.h"
#include "lib/base/size.h"
#include "lib/base/text.h"
#include "lib/control/control.h"
#include "lib/host/cgroup_files.h"

#define NS_PER_S 1000000000ULL

/* A watch of one cgroup, from its source's opening to its close. */
struct watch {
	const struct advise_idle *o;
	struct cgroup_ref cgroup;
	struct idle_plan plan;
	struct idle_report report;
	void *state;
};

static bool wait_until(uint64_t begin, uint64_t ns)
{
	sigset_t stop;

	process_ending_signals(&stop);
	for (;;) {
		uint64_t past = now_ns() - begin, left = past < ns ? ns - past : 0;
		struct timespec t = { .tv_sec = (time_t)(left / NS_PER_S),
				      .tv_nsec = (long)(left % NS_PER_S) };

		if (!left)
			return true;
		if (sigtimedwait(&stop, NULL, &t) > 0)
			return false;
	}
}

/* "1.0 min", "30.0 s". */
static const char *time_text(double seconds, char *buf, size_t size)
{
	if (seconds < 60)
		snprintf(buf, size, "%.1f s", seconds);
	else
		snprintf(buf, size, "%.1f min", seconds / 60);
	return buf;
}

static void show_progress(void *data, uint64_t ns, uint64_t idle, uint64_t total)
{
	const struct watch *w = data;
	char when[32], a[16], b[16];

	size_format(total, b, sizeof(b));
	if (!ns)
		fprintf(stderr, "watching %s of %s by %s for %s; ^C ends it and reports\n", b,
			w->cgroup.rel, idle_references.name,
			time_text((double)w->o->duration / 1e9, when, sizeof(when)));
	else
		fprintf(stderr, "after %s: %s of %s idle\n",
			time_text((double)ns / 1e9, when, sizeof(when)),
			size_format(idle, a, sizeof(a)), b);
}

/* Returns the longest median latency of a miss at a device; 0 without ebbd or misses. */
static uint64_t measured_page_ns(void)
{
	_cleanup_json_ struct json_object *answer = NULL;
	struct json_object *list;
	int64_t most = 0;

	if (daemon_call(control_request("status"), &answer, NULL))
		return 0;
	list = json_member(answer, "pacing");
	for (size_t i = 0; list && i < json_object_array_length(list); i++) {
		int64_t ns = json_int(json_object_array_get_idx(list, i), "idle_miss_ns", 0);

		most = ns > most ? ns : most;
	}
	return (uint64_t)most;
}

static struct json_object *describe_row(const struct idle_row *row, uint64_t memory,
					uint64_t page_ns, uint64_t slab)
{
	struct json_object *o = json_object_new_object();
	double pages = (double)row->returned / EBB_PAGE;
	double rate = row->window_ns ? pages * 1e9 / (double)row->window_ns : 0;

	json_add_double(o, "idle_s", (double)row->idle_ns / 1e9);
	json_add_int(o, "bytes", row->bytes);
	json_object_object_add(o, "share", NULL);
	if (memory)
		json_add_double(o, "share", (double)row->bytes / (double)memory);
	json_add_int(o, "donor", (row->bytes + slab - 1) / slab * slab);
	json_object_object_add(o, "returned", NULL);
	json_object_object_add(o, "returned_per_s", NULL);
	json_object_object_add(o, "cost", NULL);
	json_add_double(o, "window_s", (double)row->window_ns / 1e9);
	if (!row->window_ns)
		return o;
	json_add_int(o, "returned", row->returned);
	json_add_double(o, "returned_per_s", rate);
	if (page_ns)
		json_add_double(o, "cost", rate * (double)page_ns / 1e9);
	return o;
}

static struct json_object *describe(const struct watch *w)
{
	struct json_object *o = json_object_new_object(), *rows = json_object_new_array();
	struct json_object *unreached = json_object_new_array();
	uint64_t page_ns = w->o->page_ns ?: measured_page_ns(), memory = 0;
	struct cgroup_memory m;

	if (!cgroup_memory_read(w->cgroup.path, &m))
		memory = m.anon + m.shared;
	json_add_text(o, "cgroup", w->cgroup.path);
	json_add_text(o, "source", idle_references.name);
	json_add_double(o, "seconds", (double)w->report.watched / 1e9);
	json_add_int(o, "memory", memory);
	json_add_int(o, "seen", w->report.seen);
	json_add_int(o, "slab", w->o->slab);
	json_object_object_add(o, "page_ns", NULL);
	if (page_ns)
		json_add_int(o, "page_ns", page_ns);
	for (uint32_t i = 0; i < w->report.n; i++)
		json_object_array_add(rows, describe_row(&w->report.row[i], memory, page_ns,
							 w->o->slab));
	json_object_object_add(o, "idle", rows);
	for (uint32_t i = w->report.reached; i < w->plan.n; i++)
		json_object_array_add(unreached,
				      json_object_new_double((double)w->plan.times[i] / 1e9));
	json_object_object_add(o, "unreached", unreached);
	return o;
}

static void print_notes(struct json_object *o)
{
	struct json_object *unreached = json_member(o, "unreached");
	uint64_t memory = (uint64_t)json_int(o, "memory", 0), seen = (uint64_t)json_int(o, "seen", 0);
	char a[16], when[32];

	printf("\nRETURNED: accessed or freed until the next reading, pages/s.  DONOR: memory to lend\n"
	       "for one replica, in slabs of %s.\n", size_format(json_int(o, "slab", 0), a, sizeof(a)));
	if (json_member(o, "page_ns"))
		printf("COST: time that programs wait, at %s a page.\n",
		       duration_format(json_int(o, "page_ns", 0), a, sizeof(a)));
	else
		printf("COST: unknown without misses at a device; give --page-cost, such as 40us.\n");
	if (memory > seen + (1 << 20))
		printf("%s more is locked or shared, and not examined.\n",
		       size_format(memory - seen, a, sizeof(a)));
	for (size_t i = 0; i < json_object_array_length(unreached); i++) {
		double s = json_object_get_double(json_object_array_get_idx(unreached, i));

		printf("%s: not reached; give a longer --for\n", time_text(s, when, sizeof(when)));
	}
}

static void print_report(struct json_object *o)
{
	static const struct column columns[] = {
		{ "idle", "IDLE FOR", COLUMN_TEXT }, { "bytes", "COULD MOVE", COLUMN_BYTES },
		{ "share", "SHARE", COLUMN_PERCENT }, { "returned_per_s", "RETURNED", COLUMN_RATE },
		{ "cost_text", "COST", COLUMN_TEXT }, { "donor", "DONOR", COLUMN_BYTES },
		{ NULL, NULL, COLUMN_TEXT },
	};
	struct json_object *rows = json_member(o, "idle");
	char memory[16], text[32];

	printf("%s: %s of anonymous and shared memory, watched for %s by %s\n\n",
	       json_text(o, "cgroup", ""), size_format(json_int(o, "memory", 0), memory, sizeof(memory)),
	       time_text(json_double(o, "seconds", 0), text, sizeof(text)), json_text(o, "source", ""));
	for (size_t i = 0; i < json_object_array_length(rows); i++) {
		struct json_object *row = json_object_array_get_idx(rows, i);

		json_add_text(row, "idle", time_text(json_double(row, "idle_s", 0), text, sizeof(text)));
		if (!json_member(row, "cost"))
			continue;
		snprintf(text, sizeof(text), "%.3g ms/s", json_double(row, "cost", 0) * 1e3);
		json_add_text(row, "cost_text", text);
	}
	output_table(rows, columns, "no memory was idle");
	print_notes(o);
}

static int prepare(struct watch *w, struct error *e)
{
	int r;

	w->plan = (struct idle_plan){ .n = IDLE_TIMES_MAX, .duration = w->o->duration,
				      .progress = show_progress, .data = w, .wait = wait_until };
	r = durations_parse(w->o->times, "--idle", w->plan.times, &w->plan.n, e);
	if (!r)
		r = cgroup_resolve(w->o->cgroup, &w->cgroup, e);
	return r ? r : idle_references.open(&w->cgroup, &w->state, e);
}

static int finish(struct watch *w, int failure, struct error *e)
{
	_cleanup_json_ struct json_object *o = NULL;

	if (!failure && !w->report.seen)
		return fail_exit(e, EXIT_REFUSED, ENODATA,
				 "%.200s: no anonymous memory; give the cgroup of a running program",
				 w->cgroup.rel);
	if (failure && !w->report.n)
		return failure;
	if (failure)
		fprintf(stderr, "ebbctl: warning: %s\n", e->text);
	/* The report has what was known until then. */
	*e = (struct error){ 0 };
	o = describe(w);
	output(w->o->json, o, print_report);
	return 0;
}

int advise_idle(const struct advise_idle *o, struct error *e)
{
	struct watch w = { .o = o };
	sigset_t stop;
	int r = prepare(&w, e);

	if (r)
		return r;
	process_ending_signals(&stop);
	sigprocmask(SIG_BLOCK, &stop, NULL);
	r = idle_watch(&idle_references, w.state, &w.plan, &w.report, e);
	idle_references.close(w.state);
	return finish(&w, r, e);
}
