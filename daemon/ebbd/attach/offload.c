// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/host/cgroup_files.h"
#include "offload.h"
#include "offload_pages.h"
#include "offload_room.h"

#define PERIOD_MS 500
#define SOFT_SPREAD 8           /* periods */
#define SOFT_FAULT_NS 3000      /* a fault that finds its page in the swap cache */

/* Offloading state of one cgroup. */
struct offload_job {
	uint64_t owner;
	struct cgroup_ref cgroup;
	uint32_t target;
	bool seen;              /* in the present round */
	bool primed;            /* the members below hold the previous round */
	uint64_t counted_ns, psi_us, running_us, measured_ns;
	uint64_t cached;        /* bytes in the swap cache */
	uint64_t soft_ns;       /* minor faults of trials, not charged yet */
	struct offload_control control;
	struct offload_report report;
	struct offload_pages *pages;
};

struct offload {
	struct attachments *attachments;
	struct offload_job *job[EBB_MAX_CGROUPS];
	uint32_t jobs;
	struct offload_room room;
	struct worker *worker;
};

/* Returns the thread time lost so far by all cgroups with a policy at or below @rel. */
static uint64_t lost_ns(const struct attachments *a, const char *rel)
{
	struct attached_range r = attachments_below(a, rel);
	struct ebb_counters c;
	uint64_t lost = 0;

	for (uint32_t i = r.first; i < r.end; i++) {
		plane_counters(a->plane, a->item[i]->cgroup.id, &c);
		lost += c.miss_ns + c.late_ns + c.hits * SOFT_FAULT_NS;
	}
	return lost;
}

static int read_in(const char *dir, const char *name, char *text, size_t size)
{
	char path[PATH_MAX + 32];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return file_read(path, text, size) > 0 ? 0 : -ENOENT;
}

static void measure_memory(struct offload_job *j)
{
	struct cgroup_memory m;

	if (cgroup_memory_read(j->cgroup.path, &m))
		return;
	j->cached = m.cached;
	j->report.resident = m.anon + m.cached;
	j->report.swapped = m.swapped;
}

/* Returns the CPU time of the cgroup; without a v2 directory assumes one busy thread. */
static uint64_t running_us(const struct cgroup_ref *c, uint64_t now)
{
	char text[1024];

	return *c->twin && !read_in(c->twin, "cpu.stat", text, sizeof(text)) ?
	       cgroup_stat(text, "usage_usec") : now / 1000;
}

static uint64_t psi_us(const struct cgroup_ref *c)
{
	char text[256];
	const char *total;

	if (!*c->twin || read_in(c->twin, "memory.pressure", text, sizeof(text)))
		return 0;
	total = strstr(text, "total=");
	return total ? strtoull(total + 6, NULL, 10) : 0;
}

/* Fills @s with the time since the last call; false the first time. */
static bool measure(struct offload_job *j, uint64_t lost, struct offload_sample *s)
{
	uint64_t now = now_ns(), running = running_us(&j->cgroup, now), psi = psi_us(&j->cgroup);
	bool primed = j->primed;

	measure_memory(j);
	*s = (struct offload_sample){
		.wall_ns = now - j->measured_ns,
		/* The sum shrinks when a cgroup below is removed. */
		.lost_ns = lost > j->counted_ns ? lost - j->counted_ns : 0,
		.running_ns = (running - j->running_us) * 1000, .resident = j->report.resident,
		.target = j->target,
	};
	/* Trials end together; spread their faults, which were spread in time. */
	s->lost_ns += j->soft_ns / SOFT_SPREAD;
	j->soft_ns -= j->soft_ns / SOFT_SPREAD;
	if (s->lost_ns < (psi - j->psi_us) * 1000)
		s->lost_ns = (psi - j->psi_us) * 1000;
	j->measured_ns = now;
	j->counted_ns = lost;
	j->running_us = running;
	j->psi_us = psi;
	j->primed = true;
	if (!primed)
		j->report.at_start = j->report.resident + j->report.swapped;
	return primed;
}

static void advise(const struct worker *w, struct offload_job *j, uint64_t bytes)
{
	struct offload_round round = { .bytes = bytes, .cached = j->cached };

	if (!j->pages)
		j->pages = offload_pages_new(w);
	if (!j->pages)
		return;
	offload_pages_run(j->pages, &j->cgroup, now_ns(), &round);
	j->report.reclaimed += round.out;
	j->report.back += round.back;
	j->soft_ns += round.back * SOFT_FAULT_NS;
}

static void work(struct offload *o, struct offload_job *j, uint64_t lost)
{
	struct offload_sample s;
	uint64_t bytes;

	if (!measure(j, lost, &s))
		return;
	bytes = offload_next(&j->control, &s);
	j->report.slowdown = j->control.slowdown;
	j->report.state = j->control.state;
	if (bytes > o->room.bytes) {
		j->report.state = o->room.why;
		bytes = 0;
	}
	/* Trials in progress are always judged. */
	if (bytes || j->pages)
		advise(o->worker, j, bytes);
}

static struct offload_job *job_of(struct offload *o, struct attachment *t)
{
	struct offload_job *j;

	if (t->job)
		return t->job;
	j = o->jobs < EBB_MAX_CGROUPS ? calloc(1, sizeof(*j)) : NULL;
	if (j) {
		j->owner = t->cgroup.id;
		o->job[o->jobs++] = t->job = j;
	}
	return j;
}

static void job_end(struct offload *o, uint32_t i)
{
	offload_pages_free(&o->job[i]->pages);
	free(o->job[i]);
	o->job[i] = o->job[--o->jobs];
}

/* Updates the jobs from the attachments. */
static void collect(struct offload *o)
{
	struct attachments *a = o->attachments;

	for (uint32_t i = 0; i < o->jobs; i++)
		o->job[i]->seen = false;
	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i];
		struct offload_job *j = t->slowdown ? job_of(o, t) : NULL;

		if (!t->slowdown) {
			t->offload = (struct offload_report){ 0 };
			t->job = NULL;  /* it ends below */
		}
		if (!j)
			continue;
		j->cgroup = t->cgroup;
		j->target = t->slowdown;
		j->seen = true;
	}
	pthread_mutex_unlock(&a->lock);
	for (uint32_t i = o->jobs; i-- > 0;)
		if (!o->job[i]->seen)
			job_end(o, i);
}

static void round_of(struct offload *o)
{
	struct attachments *a = o->attachments;
	struct attachment *t;
	uint64_t lost;

	collect(o);
	if (o->jobs)
		offload_room_look(&o->room, now_ns());
	for (uint32_t i = 0; i < o->jobs; i++) {
		struct offload_job *j = o->job[i];

		worker_beat(o->worker);
		if (worker_excludes(o->worker, 0, j->owner))
			continue;
		pthread_mutex_lock(&a->lock);
		lost = lost_ns(a, j->cgroup.rel);
		pthread_mutex_unlock(&a->lock);
		work(o, j, lost);
		pthread_mutex_lock(&a->lock);
		t = attachments_find(a, j->owner);
		if (t && t->slowdown)
			t->offload = j->report;
		pthread_mutex_unlock(&a->lock);
	}
}

static void run(struct worker *w, void *data)
{
	struct pollfd wake = { .fd = worker_wake(w), .events = POLLIN };
	struct offload *o = data;

	while (poll(&wake, 1, PERIOD_MS) <= 0) {
		worker_beat(w);
		round_of(o);
	}
}

/* Forgets what is known about the pages of the cgroup's processes. */
static void hung(void *data, uint32_t tgid, uint64_t owner)
{
	struct offload *o = data;

	for (uint32_t i = 0; i < o->jobs; i++)
		if (o->job[i]->owner == owner)
			offload_pages_free(&o->job[i]->pages);
}

/* One user's cgroups, one by one, must not keep the threads from being replaced. */
_Static_assert(WORKER_HUNG >= USER_ATTACHMENTS, "each may hang");

static const struct worker_kind kind = { "ebbd-offload", "offloading", run, hung, WORKER_REST_NS };

struct worker *offload_worker(struct offload *o)
{
	return o->worker;
}

int offload_start(struct offload **out, struct attachments *a, struct error *e)
{
	struct offload *o = calloc(1, sizeof(*o));
	int r;

	if (!o)
		return fail(e, ENOMEM, "offloading: out of memory");
	o->attachments = a;
	r = worker_start(&o->worker, &kind, o, plane_stack(a->plane), e);
	if (r) {
		free(o);
		return r;
	}
	*out = o;
	return 0;
}

void offload_stop(struct offload **po)
{
	struct offload *o = *po;

	if (!o)
		return;
	worker_stop(&o->worker);
	while (o->jobs)
		job_end(o, 0);
	free(o);
	*po = NULL;
}
