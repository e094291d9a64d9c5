// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "attachment.h"
#include "benefit.h"
#include "benefit_period.h"
#include "lib/base/clock.h"
#include "lib/base/lock.h"
#include "lib/base/log.h"
#include "lib/base/small_thread.h"
#include "lib/host/cgroup_files.h"

#define MS_NS 1000000
#define PLACEMENT_NS 2000000000ULL /* in which placement=auto judges a change: colocate.h */

/* A cgroup with benefit=on. */
struct job {
	uint64_t owner;
	uint32_t benefits, nexts; /* changes of the setting: in force, and as read in this round */
	bool seen;              /* in the present round */
	bool busy, offloads;
	uint64_t placed_ns;     /* time of the last change by placement=, */
	enum colocation_state placed; /* to this */
	bool settles;           /* its period begins after BENEFIT_SETTLE_NS */
	bool valid;             /* .last is */
	int stat;               /* cpu.stat, or -1 */
	enum benefit_state state;
	struct benefit_period period;
	struct benefit_reading last;
	struct cgroup_ref cgroup;
};

struct benefit {
	struct attachments *attachments;
	struct job *job[EBB_MAX_CGROUPS];
	uint32_t jobs;
	pthread_t thread;
	int wake;               /* eventfd: benefit=on was set, or .stop */
	atomic_bool stop;
};

const char *benefit_source_name(enum ebb_source source)
{
	static const char *const names[EBB_SOURCES] = {
		[EBB_SOURCE_OTHER] = "other", [EBB_SOURCE_STREAMS] = "streams",
		[EBB_SOURCE_REPLAY] = "replay", [EBB_SOURCE_NEAR] = "near",
	};

	return names[source];
}

const char *benefit_state_name(enum governor_state state)
{
	static const char *const names[] = {
		[GOVERNOR_UNKNOWN] = "unknown", [GOVERNOR_GAINS] = "gains",
		[GOVERNOR_BACKS_OFF] = "backs off",
	};

	return names[state];
}

const char *benefit_name(enum benefit_state state)
{
	static const char *const names[] = {
		[BENEFIT_IDLE] = "idle", [BENEFIT_MEASURES] = "measuring",
		[BENEFIT_UNKNOWN] = "unknown speed", [BENEFIT_OFFLOADS] = "offloading",
	};

	return names[state];
}

/* --- one cgroup ------------------------------------------------------------- */

/* Reads the CPU time of its programs.  Version 1 may have its v2 directory later. */
static bool read_user(struct job *j, uint64_t *us)
{
	char path[PATH_MAX + 16], text[1024];
	ssize_t n;

	if (j->stat < 0 && *j->cgroup.twin) {
		snprintf(path, sizeof(path), "%s/cpu.stat", j->cgroup.twin);
		j->stat = open(path, O_RDONLY | O_CLOEXEC);
	}
	n = j->stat < 0 ? -1 : pread(j->stat, text, sizeof(text) - 1, 0);
	if (n <= 0)
		return false;
	text[n] = '\0';
	*us = cgroup_stat(text, "user_usec");
	return true;
}

static bool read_counters(const struct benefit *b, const struct job *j, struct benefit_reading *r)
{
	HOLD(&b->attachments->lock);
	struct attachment *t = attachments_find(b->attachments, j->owner);
	struct ebb_source_counters s;
	struct ebb_counters c;

	if (!t)
		return false;
	plane_counters(b->attachments->plane, j->owner, &c);
	plane_sources(b->attachments->plane, j->owner, &s);
	r->misses = c.misses;
	for (uint32_t i = 0; i < EBB_SOURCES; i++) {
		r->pages[i] = budget_source_pages(t->budget, i);
		r->used[i] = s.used[i];
	}
	return true;
}

static void take_reading(const struct benefit *b, struct job *j)
{
	j->last = (struct benefit_reading){ .now_ns = now_ns() };
	j->valid = read_user(j, &j->last.user_us) && read_counters(b, j, &j->last);
}

static struct source_report report_of(const struct governor *g, uint32_t source)
{
	const struct governor_source *s = &g->source[source];
	struct source_report r = { .state = s->state, .trials = s->trials };

	r.gain = governor_gain(g, source, &r.error);
	if (!isfinite(r.error))
		r.error = 0;
	return r;
}

static void log_change(const struct job *j, uint32_t source, enum governor_state before)
{
	const struct governor_source *s = &j->period.rule.source[source];

	if (s->state == GOVERNOR_BACKS_OFF && before != GOVERNOR_BACKS_OFF)
		log_info("%s: benefit: source %s backs off: programs were %.0f %% faster without it",
			 j->cgroup.rel, benefit_source_name(source), 100 * expm1(-s->found));
	else if (before == GOVERNOR_BACKS_OFF && s->state != GOVERNOR_BACKS_OFF)
		log_info("%s: benefit: source %s returns: programs were %.0f %% faster with it",
			 j->cgroup.rel, benefit_source_name(source), 100 * expm1(s->found));
}

/* Puts the decision into force, and tells others; returns whether sources were switched over. */
static bool tell(const struct benefit *b, struct job *j)
{
	HOLD(&b->attachments->lock);
	struct attachment *t = attachments_find(b->attachments, j->owner);
	uint32_t before = t ? t->paused : 0;

	/* A change since the round began: see take_wish(). */
	if (!t || !t->benefit || t->benefits != j->benefits)
		return false;
	if (attachment_pause(b->attachments, t, j->period.paused))
		log_err("%s: benefit: cannot pause a source: %m", j->cgroup.rel);
	if (t->paused != before)
		budget_trial(t->budget);
	t->judged.state = j->state;
	for (uint32_t i = 0; i < EBB_SOURCES; i++) {
		log_change(j, i, t->judged.source[i].state);
		t->judged.source[i] = report_of(&j->period.rule, i);
	}
	return t->paused != before;
}

/* Ends the period of @j.  A cgroup without faults is left alone, once its trial has ended. */
static void end_period(const struct benefit *b, struct job *j)
{
	enum benefit_state before = j->state;

	j->settles = j->valid = false;
	if (j->busy)
		take_reading(b, j);
	if (j->valid)
		benefit_end(&j->period, &j->last);
	j->state = j->offloads ? BENEFIT_OFFLOADS : !j->busy ? BENEFIT_IDLE :
		   j->valid && j->period.judges ? BENEFIT_MEASURES : BENEFIT_UNKNOWN;
	if (!j->valid && j->state == before)
		return;
	if (!j->valid)
		benefit_end(&j->period, NULL);
	j->settles = tell(b, j);
}

/* --- all of them ------------------------------------------------------------ */

/* @at: where it was found last, near which it is found again. */
static struct job *job_of(struct benefit *b, const struct attachment *t, uint32_t *at)
{
	struct job *j;

	for (uint32_t i = 0; i < b->jobs; i++, ++*at)
		if (b->job[*at % b->jobs]->owner == t->cgroup.id)
			return b->job[*at % b->jobs];
	j = b->jobs < EBB_MAX_CGROUPS ? calloc(1, sizeof(*j)) : NULL;
	if (!j)
		return NULL;
	j->owner = t->cgroup.id;
	j->cgroup = t->cgroup;
	j->stat = -1;
	b->job[b->jobs++] = j;
	return j;
}

static void job_end(struct benefit *b, uint32_t i)
{
	struct job *j = b->job[i];

	if (j->stat >= 0)
		close(j->stat);
	b->job[i] = b->job[--b->jobs];
	free(j);
}

/* The resolution of this clock is the kernel's tick. */
static uint64_t tick_ns(void)
{
	struct timespec t = { .tv_nsec = 10 * MS_NS };

	clock_getres(CLOCK_MONOTONIC_COARSE, &t);
	return (uint64_t)t.tv_nsec;
}

/* A new setting, or another policy, starts afresh. */
static void take_wish(struct job *j)
{
	if (j->benefits == j->nexts)
		return;
	j->benefits = j->nexts;
	j->state = BENEFIT_IDLE;
	benefit_init(&j->period, now_ns() ^ j->owner << 20, tick_ns());
}

/* Others measure, too: a trial would look like a slowdown by what they do. */
static void look(struct job *j, const struct attachment *t)
{
	uint64_t now = now_ns();

	if (t->colocation.state != j->placed)
		j->placed_ns = now;
	j->placed = t->colocation.state;
	j->offloads = t->slowdown;
	j->busy = t->busy_ticks && !t->slowdown && now - j->placed_ns >= PLACEMENT_NS;
}

/* Updates the jobs from the attachments. */
static void collect(struct benefit *b)
{
	struct attachments *a = b->attachments;
	uint32_t at = 0;

	for (uint32_t i = 0; i < b->jobs; i++)
		b->job[i]->seen = false;
	pthread_mutex_lock(&a->lock);
	for (uint32_t i = 0; i < a->n; i++) {
		struct attachment *t = a->item[i];
		struct job *j = t->benefit ? job_of(b, t, &at) : NULL;

		if (!j)
			continue;
		if (!*j->cgroup.twin && *t->cgroup.twin)
			j->cgroup = t->cgroup;
		j->nexts = t->benefits;
		look(j, t);
		j->seen = true;
	}
	pthread_mutex_unlock(&a->lock);
	for (uint32_t i = b->jobs; i-- > 0;) {
		take_wish(b->job[i]);
		if (!b->job[i]->seen)
			job_end(b, i);
	}
}

/* Returns false if the thread is to stop. */
static bool sleep_until(const struct benefit *b, uint64_t until)
{
	struct pollfd wake = { .fd = b->wake, .events = POLLIN };
	uint64_t now;
	eventfd_t n;

	while (!atomic_load(&b->stop) && (now = now_ns()) < until)
		if (poll(&wake, 1, (int)((until - now) / MS_NS) + 1) > 0)
			eventfd_read(b->wake, &n);
	return !atomic_load(&b->stop);
}

/* Waits until benefit=on is set. */
static void wait_for_jobs(const struct benefit *b)
{
	struct pollfd wake = { .fd = b->wake, .events = POLLIN };
	eventfd_t n;

	if (poll(&wake, 1, -1) > 0)
		eventfd_read(b->wake, &n);
}

static void begin_periods(struct benefit *b)
{
	for (uint32_t i = 0; i < b->jobs; i++) {
		struct job *j = b->job[i];

		if (j->settles && j->valid)
			take_reading(b, j);
		if (j->valid)
			benefit_begin(&j->period, &j->last);
	}
}

static void *run(void *data)
{
	struct benefit *b = data;
	bool settle, on = true;

	pthread_setname_np(pthread_self(), "ebbd-benefit");
	while (on) {
		collect(b);
		settle = false;
		for (uint32_t i = 0; i < b->jobs; i++) {
			end_period(b, b->job[i]);
			settle |= b->job[i]->settles;
		}
		if (!b->jobs)
			wait_for_jobs(b);
		on = !settle || sleep_until(b, now_ns() + BENEFIT_SETTLE_NS);
		if (on)
			begin_periods(b);
		on = on && sleep_until(b, b->jobs ? now_ns() + BENEFIT_PERIOD_NS : 0);
	}
	return NULL;
}

int benefit_start(struct benefit **out, struct attachments *a, struct error *e)
{
	struct benefit *b = calloc(1, sizeof(*b));
	int r;

	if (!b)
		return fail(e, ENOMEM, "benefit: out of memory");
	b->attachments = a;
	b->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = b->wake < 0 ? errno : small_thread_create(&b->thread, plane_stack(a->plane), run, b);
	if (r) {
		if (b->wake >= 0)
			close(b->wake);
		free(b);
		return fail(e, r, "benefit: cannot start its thread: %s", strerror(r));
	}
	pthread_mutex_lock(&a->lock);
	a->benefited = b->wake;
	pthread_mutex_unlock(&a->lock);
	eventfd_write(b->wake, 1);
	*out = b;
	return 0;
}

static void resume_all(struct attachments *a)
{
	HOLD(&a->lock);

	a->benefited = -1;
	for (uint32_t i = 0; i < a->n; i++)
		if (attachment_pause(a, a->item[i], 0))
			log_err("%s: benefit: cannot resume a source: %m", a->item[i]->cgroup.rel);
}

void benefit_stop(struct benefit **pb)
{
	struct benefit *b = *pb;

	if (!b)
		return;
	atomic_store(&b->stop, true);
	if (eventfd_write(b->wake, 1))
		log_err("benefit: cannot stop: %m");
	pthread_join(b->thread, NULL);
	resume_all(b->attachments);
	while (b->jobs)
		job_end(b, b->jobs - 1);
	close(b->wake);
	free(b);
	*pb = NULL;
}
