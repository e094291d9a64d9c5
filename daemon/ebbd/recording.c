// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/files.h"
#include "lib/base/lock.h"
#include "lib/base/log.h"
#include "lib/base/small_thread.h"
#include "lib/host/cgroup_files.h"
#include "lib/trace/trace.h"
#include "recording.h"
#include "recording_file.h"

#define RECORDINGS 8
#define POLL_NS 5000000         /* ns: the ring's 16000 events last for 3 million a second */
#define SAMPLE_POLLS 10         /* between samples */
#define LOOK_POLLS 200          /* polls between checks for other reasons to end */
#define THREADS 4096            /* named in a trace; a power of two */

_Static_assert(TRACE_MISS == (int)EBB_MISS && TRACE_HIT == (int)EBB_HIT &&
	       TRACE_LATE == (int)EBB_LATE && TRACE_OUT == EBB_OUT, "kinds keep their numbers");

struct named_thread {
	struct trace_thread thread; /* tid 0 = unused */
	uint64_t faults;
};

struct recording {
	uint64_t owner;             /* 0 = unused */
	uint64_t start_ns, faults;  /* counted by BPF before the start */
	char cgroup[PATH_MAX];
	struct trace_writer *writer; /* NULL when it has ended, until its result is fetched */
	struct recording_end end;
	struct error error;         /* what ended it early */
	uint64_t watch_ns;          /* ends after this time without recording_check(); 0 = never */
	uint64_t asked_ns;
	bool off;                   /* failed, and switched off in the kernel */
	struct named_thread thread[THREADS];
};

struct recordings {
	struct attachments *attachments;
	struct ring_buffer *ring;
	pthread_t thread;
	pthread_mutex_t lock;       /* taken before that of the attachments */
	pthread_cond_t change;
	struct recording *slot[RECORDINGS];
	uint32_t active;            /* recordings with a writer */
	uint32_t polls;
	bool stop;
};

static uint64_t count_faults(struct recordings *r, uint64_t owner)
{
	struct ebb_counters c;

	plane_counters(r->attachments->plane, owner, &c);
	return c.misses + c.hits + c.late;
}

/* Programs are named by exec, threads shortly after they start: look again later. */
static bool name_is_due(uint64_t faults)
{
	return faults == 1 || faults == 64 || faults == 4096;
}

static void name_thread(struct recording *s, const struct ebb_trace *t)
{
	struct named_thread *n = NULL;
	char path[64], comm[32];

	for (uint32_t i = 0; i < 8 && !n; i++) {
		struct named_thread *at = &s->thread[(t->tid + i) & (THREADS - 1)];

		if (!at->thread.tid || (at->thread.tid == t->tid && at->thread.tgid == t->tgid))
			n = at;
	}
	if (!n)
		return;
	n->thread.tgid = t->tgid;
	n->thread.tid = t->tid;
	if (!name_is_due(++n->faults))
		return;
	snprintf(path, sizeof(path), "/proc/%u/task/%u/comm", t->tgid, t->tid);
	if (file_read(path, comm, sizeof(comm)) <= 0)
		return;
	comm[strcspn(comm, "\n")] = '\0';
	if (!strncmp(comm, n->thread.comm, sizeof(n->thread.comm) - 1))
		return;
	snprintf(n->thread.comm, sizeof(n->thread.comm), "%.15s", comm);
	trace_write_thread(s->writer, &n->thread, &s->error);
}

static const char *busiest_thread(const struct recording *s)
{
	const struct named_thread *best = &s->thread[0];

	for (uint32_t i = 1; i < THREADS; i++)
		if (s->thread[i].faults > best->faults)
			best = &s->thread[i];
	return best->thread.comm;
}

static void write_event(struct recording *s, const struct ebb_trace *t)
{
	struct trace_record record = {
		.time_ns = t->time_ns > s->start_ns ? t->time_ns - s->start_ns : 0,
		.duration_ns = t->duration_ns, .vpn = t->vpn, .ip = t->ip, .tgid = t->tgid,
		.tid = t->tid, .cluster = t->cluster, .kind = t->kind, .role = t->role,
	};

	if (t->tid)
		name_thread(s, t);
	trace_write(s->writer, &record, &s->error);
}

static int on_event(void *data, void *record, size_t size)
{
	const struct ebb_trace *t = record;
	struct recordings *r = data;

	for (int i = 0; size >= sizeof(*t) && t->kind <= EBB_OUT && i < RECORDINGS; i++)
		if (r->slot[i] && r->slot[i]->owner == t->owner && r->slot[i]->writer &&
		    !r->slot[i]->error.code)
			write_event(r->slot[i], t);
	return 0;
}

/* Ends a recording after its last events; requires the lock. */
static void end_recording(struct recordings *r, struct recording *s, uint64_t lost)
{
	struct error late = { 0 };

	s->end = (struct recording_end){ trace_written(s->writer), lost };
	if (trace_writer_end(&s->writer, lost, busiest_thread(s), &late) && !s->error.code)
		s->error = late;
	r->active--;
}

static bool is_attached(struct recordings *r, uint64_t owner)
{
	HOLD(&r->attachments->lock);

	return attachments_find(r->attachments, owner) != NULL;
}

/* Ends a recording that lost its cgroup, attachment or client. */
static void look_at(struct recordings *r, struct recording *s)
{
	bool forgotten = s->watch_ns && now_ns() - s->asked_ns > s->watch_ns;
	uint64_t owner;

	if (is_attached(r, s->owner) && !forgotten)
		return;
	log_info("%s: recording ended: %s", s->cgroup,
		 forgotten ? "its client disconnected" : "its policy was detached");
	attach_record(r->attachments, s->cgroup, RECORD_OFF, &owner, NULL);
	end_recording(r, s, 0);
}

/* Requires the lock of @r, taken before that of the attachments. */
static void take_sample(struct recordings *r, struct recording *s)
{
	struct trace_sample sample = { .time_ns = now_ns() - s->start_ns };
	struct cgroup_memory memory;
	char dir[PATH_MAX] = "";
	struct ebb_counters c;
	struct attachment *t;

	plane_counters(r->attachments->plane, s->owner, &c);
	sample.requests = c.requests;
	sample.request_pages = c.request_pages;
	sample.wasted = c.wasted;
	sample.epochs = c.epochs;
	pthread_mutex_lock(&r->attachments->lock);
	t = attachments_find(r->attachments, s->owner);
	if (t) {
		sample.wasted += budget_expired(t->budget);
		sample.prefetched = budget_prefetched(t->budget);
		snprintf(dir, sizeof(dir), "%s", t->cgroup.path);
	}
	pthread_mutex_unlock(&r->attachments->lock);
	if (!*dir || cgroup_memory_read(dir, &memory))
		return;
	sample.resident = memory.anon >> EBB_PAGE_SHIFT;
	sample.swapped = memory.swapped >> EBB_PAGE_SHIFT;
	trace_write_sample(s->writer, &sample, &s->error);
}

/* Requires the lock. */
static void drain(struct recordings *r)
{
	bool look = ++r->polls % LOOK_POLLS == 0, sample = r->polls % SAMPLE_POLLS == 0;

	ring_buffer__consume(r->ring);
	for (int i = 0; i < RECORDINGS; i++) {
		struct recording *s = r->slot[i];
		uint64_t owner;

		if (!s || !s->writer)
			continue;
		if (s->error.code && !s->off) {
			log_err("%s", s->error.text);
			attach_record(r->attachments, s->cgroup, RECORD_OFF, &owner, NULL);
			s->off = true;
		}
		if (sample && !s->error.code)
			take_sample(r, s);
		if (look)
			look_at(r, s);
	}
}

static void *run(void *data)
{
	struct timespec poll = { .tv_nsec = POLL_NS };
	struct recordings *r = data;

	pthread_setname_np(pthread_self(), "ebbd-record");
	pthread_mutex_lock(&r->lock);
	while (!r->stop) {
		if (!r->active) {
			pthread_cond_wait(&r->change, &r->lock);
			continue;
		}
		drain(r);
		pthread_mutex_unlock(&r->lock);
		nanosleep(&poll, NULL);
		pthread_mutex_lock(&r->lock);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

static int start_thread(struct recordings *r)
{
	return small_thread_create(&r->thread, plane_stack(r->attachments->plane), run, r);
}

int recordings_new(struct recordings **out, struct attachments *a, struct error *e)
{
	struct recordings *r = calloc(1, sizeof(*r));
	int ret;

	if (!r)
		return fail(e, ENOMEM, "recordings: out of memory");
	r->attachments = a;
	pthread_mutex_init(&r->lock, NULL);
	pthread_cond_init(&r->change, NULL);
	r->ring = ring_buffer__new(a->plane->trace, on_event, r, NULL);
	if (!r->ring) {
		ret = fail(e, errno, "recordings: cannot read the ring buffer: %m");
		free(r);
		return ret;
	}
	ret = start_thread(r);
	if (ret) {
		ring_buffer__free(r->ring);
		free(r);
		return fail(e, ret, "recordings: cannot start their thread: %s", strerror(ret));
	}
	*out = r;
	return 0;
}

void recordings_free(struct recordings **pr)
{
	struct recordings *r = *pr;

	if (!r)
		return;
	pthread_mutex_lock(&r->lock);
	r->stop = true;
	pthread_cond_signal(&r->change);
	pthread_mutex_unlock(&r->lock);
	pthread_join(r->thread, NULL);
	drain(r);
	for (int i = 0; i < RECORDINGS; i++) {
		struct recording *s = r->slot[i];
		uint64_t owner;

		if (s && s->writer) {
			attach_record(r->attachments, s->cgroup, RECORD_OFF, &owner, NULL);
			end_recording(r, s, 0);
			if (s->error.code)
				log_err("%s", s->error.text);
		}
		free(s);
	}
	ring_buffer__free(r->ring);
	pthread_cond_destroy(&r->change);
	pthread_mutex_destroy(&r->lock);
	free(r);
	*pr = NULL;
}

static uint64_t realtime_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}

/* Fills in the header for the attached cgroup @owner. */
static void describe(struct recordings *r, uint64_t owner, struct trace_info *info)
{
	struct attachment *t;
	struct utsname u;

	info->page_shift = EBB_PAGE_SHIFT;
	info->page_cluster = (uint32_t)file_number("/proc/sys/vm/page-cluster", 0);
	info->start_ns = now_ns();
	info->start_unix_ns = realtime_ns();
	if (!uname(&u)) {
		snprintf(info->kernel, sizeof(info->kernel), "%.63s", u.release);
		snprintf(info->machine, sizeof(info->machine), "%.31s", u.nodename);
	}
	info->cpus = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN);
	pthread_mutex_lock(&r->attachments->lock);
	t = attachments_find(r->attachments, owner);
	if (t) {
		size_t n = strlen(t->cgroup.rel), room = sizeof(info->cgroup) - 1;

		info->memory = cgroup_limit(&t->cgroup);
		if (info->memory == UINT64_MAX)
			info->memory = 0;
		snprintf(info->policy, sizeof(info->policy), "%.31s", t->policy->name);
		snprintf(info->cgroup, sizeof(info->cgroup), "%s",
			 t->cgroup.rel + (n > room ? n - room : 0));
	}
	pthread_mutex_unlock(&r->attachments->lock);
}

static int open_file(const char *file, const struct trace_info *info, struct trace_writer **w,
		     struct error *e)
{
	int fd, ret = recording_file(file, &fd, e);

	if (ret)
		return ret;
	ret = trace_writer_new(w, fd, file, info, e);
	if (ret)
		unlink(file);
	return ret;
}

static struct recording *find_owner(struct recordings *r, uint64_t owner)
{
	for (int i = 0; i < RECORDINGS; i++)
		if (r->slot[i] && r->slot[i]->owner == owner && r->slot[i]->writer)
			return r->slot[i];
	return NULL;
}

/* Returns an empty slot, or one of a recording that ended by itself. */
static struct recording **free_slot(struct recordings *r)
{
	for (int i = 0; i < RECORDINGS; i++)
		if (!r->slot[i])
			return &r->slot[i];
	for (int i = 0; i < RECORDINGS; i++)
		if (!r->slot[i]->writer) {
			free(r->slot[i]);
			r->slot[i] = NULL;
			return &r->slot[i];
		}
	return NULL;
}

static struct recording **find_cgroup(struct recordings *r, const char *cgroup, struct error *e)
{
	for (int i = 0; i < RECORDINGS; i++)
		if (r->slot[i] && !strcmp(r->slot[i]->cgroup, cgroup))
			return &r->slot[i];
	fail(e, ENOENT, "%s: not recorded; see ebbctl record", cgroup);
	return NULL;
}

static int start_locked(struct recordings *r, const char *cgroup, const char *file,
			uint64_t watch_ns, struct error *e)
{
	struct recording **slot, *s;
	struct trace_info info = { 0 };
	uint64_t owner;
	int ret;

	ret = attach_record(r->attachments, cgroup, RECORD_ON, &owner, e);
	if (ret)
		return ret;
	if (find_owner(r, owner))
		return fail_exit(e, EXIT_REFUSED, EBUSY,
				 "%s: already recorded; end that recording, or run ebbctl policy detach",
				 cgroup);
	/* Drops the result of an earlier recording. */
	slot = find_cgroup(r, cgroup, NULL);
	if (slot) {
		free(*slot);
		*slot = NULL;
	}
	slot = free_slot(r);
	s = slot ? calloc(1, sizeof(*s)) : NULL;
	ret = s ? 0 : slot ? fail(e, ENOMEM, "%s: out of memory", file) :
			     fail(e, EBUSY, "%s: limit of %d recordings reached; end one", file, RECORDINGS);
	if (!ret) {
		describe(r, owner, &info);
		ret = open_file(file, &info, &s->writer, e);
	}
	if (ret) {
		attach_record(r->attachments, cgroup, RECORD_OFF, &owner, NULL);
		free(s);
		return ret;
	}
	snprintf(s->cgroup, sizeof(s->cgroup), "%s", cgroup);
	s->owner = owner;
	s->start_ns = s->asked_ns = info.start_ns;
	s->watch_ns = watch_ns;
	s->faults = count_faults(r, owner);
	take_sample(r, s);
	*slot = s;
	r->active++;
	pthread_cond_signal(&r->change);
	return 0;
}

int recording_start(struct recordings *r, const char *cgroup, const char *file, uint64_t watch_ns,
		    struct error *e)
{
	HOLD(&r->lock);

	return start_locked(r, cgroup, file, watch_ns, e);
}

/* Stops the kernel's events first, then reads the rest of the ring. */
static void stop_locked(struct recordings *r, struct recording *s)
{
	uint64_t faults = count_faults(r, s->owner), written, owner;

	/* Detaching resets the counters. */
	faults = faults > s->faults ? faults - s->faults : 0;
	attach_record(r->attachments, s->cgroup, RECORD_OFF, &owner, NULL);
	drain(r);
	if (!s->writer)
		return;
	if (!s->error.code)
		take_sample(r, s);
	written = trace_faults(s->writer);
	end_recording(r, s, faults > written ? faults - written : 0);
}

int recording_stop(struct recordings *r, const char *cgroup, struct recording_end *end,
		   struct error *e)
{
	HOLD(&r->lock);
	struct recording **slot = find_cgroup(r, cgroup, e);
	int ret;

	if (!slot)
		return -ENOENT;
	if ((*slot)->writer)
		stop_locked(r, *slot);
	*end = (*slot)->end;
	ret = (*slot)->error.code ? fail(e, (*slot)->error.code, "%s", (*slot)->error.text) : 0;
	free(*slot);
	*slot = NULL;
	return ret;
}

int recording_check(struct recordings *r, const char *cgroup, struct error *e)
{
	HOLD(&r->lock);
	struct recording **slot = find_cgroup(r, cgroup, e);

	if (!slot)
		return -ENOENT;
	(*slot)->asked_ns = now_ns();
	if ((*slot)->error.code)
		return fail(e, (*slot)->error.code, "%s", (*slot)->error.text);
	return (*slot)->writer ? 0 : fail(e, ESRCH, "%s: its recording has ended", cgroup);
}
