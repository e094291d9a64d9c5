// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "absence.h"
#include "executor.h"
#include "lib/base/clock.h"
#include "prefetch.h"

#define SWEEP_NS 500000000ULL

struct executor {
	struct plane *plane;
	struct executor_config config;
	struct ring_buffer *ring;      /* maps/requests */
	struct worker *worker;
	int epoll;                     /* the ring, the worker's end */
	uint64_t stale;                /* malformed requests, and those of processes that hang */
	struct prefetcher *prefetcher;
	struct absence *absence;
	uint64_t swept_ns, beat_ns;
};

enum { EVENT_REQUESTS, EVENT_STOP };

static bool well_formed(const struct ebb_request *r, size_t size)
{
	if (size < sizeof(*r) || !r->stride || r->count > EBB_REQUEST_MAX ||
	    r->source >= EBB_SOURCES)
		return false;
	if (r->op == EBB_OP_MEMORY)
		return size >= sizeof(struct ebb_memory);
	return (r->op != EBB_OP_LIST && r->op != EBB_OP_COLD_LIST) ||
	       (size >= sizeof(struct ebb_list_request) && r->count <= EBB_LIST_MAX);
}

static int on_request(void *data, void *record, size_t size)
{
	struct ebb_list_request asked = { 0 };
	const struct ebb_request *head = record;
	struct executor *x = data;

	worker_beat(x->worker);
	if (!well_formed(record, size) || worker_excludes(x->worker, head->tgid, head->owner)) {
		x->stale++;
		return 0;
	}
	if (head->op == EBB_OP_MEMORY) {
		prefetcher_learn(x->prefetcher, record);
		return 0;
	}
	memcpy(&asked, record, size < sizeof(asked) ? size : sizeof(asked));
	prefetcher_request(x->prefetcher, &asked);
	return 0;
}

/* A record during which the previous thread hung is still the next one. */
static void run(struct worker *w, void *data)
{
	struct epoll_event ev[2], wake = { .events = EPOLLIN, .data.u32 = EVENT_STOP };
	struct executor *x = data;
	bool more = false;
	uint64_t now;
	int n;

	prefetcher_begin(x->prefetcher, w);
	/* Of a previous thread: EEXIST. */
	epoll_ctl(x->epoll, EPOLL_CTL_ADD, worker_wake(w), &wake);
	for (;;) {
		n = epoll_wait(x->epoll, ev, 2, more ? 0 : 500);
		for (int i = 0; i < n; i++)
			if (ev[i].data.u32 == EVENT_STOP)
				return;
		worker_beat(w);
		ring_buffer__consume(x->ring);
		more = prefetcher_run(x->prefetcher);
		now = now_ns();
		/* The verifier may keep the main thread busy for seconds. */
		if (now - x->beat_ns > EBB_QUIET_NS / 8) {
			plane_heartbeat(x->plane);
			x->beat_ns = now;
		}
		if (now - x->swept_ns > SWEEP_NS) {
			prefetcher_sweep(x->prefetcher, now);
			x->swept_ns = now;
		}
	}
}

static void hung(void *data, uint32_t tgid, uint64_t owner)
{
	prefetcher_leave(((struct executor *)data)->prefetcher, tgid, owner);
}

static const struct worker_kind kind = { "ebbd-prefetch", "prefetching", run, hung,
					 WORKER_REST_NS };

static void executor_free(struct executor *x)
{
	prefetcher_free(&x->prefetcher);
	absence_stop(&x->absence);
	ring_buffer__free(x->ring);
	if (x->epoll >= 0)
		close(x->epoll);
	free(x);
}

int executor_start(struct executor **out, struct plane *plane, struct budget_table *budgets,
		   const struct executor_config *config, struct error *e)
{
	struct epoll_event ring = { .events = EPOLLIN, .data.u32 = EVENT_REQUESTS };
	struct executor *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return fail(e, ENOMEM, "executor: out of memory");
	x->plane = plane;
	x->config = *config;
	x->epoll = epoll_create1(EPOLL_CLOEXEC);
	x->ring = ring_buffer__new(x->plane->requests, on_request, x, NULL);
	if (!x->ring ||
	    epoll_ctl(x->epoll, EPOLL_CTL_ADD, ring_buffer__epoll_fd(x->ring), &ring)) {
		r = fail(e, errno, "prefetching: cannot read the ring buffer: %m");
		goto out;
	}
	r = absence_start(&x->absence, plane->devices, e);
	if (r)
		goto out;
	x->prefetcher = prefetcher_new(plane, budgets, &x->config, x->absence);
	r = x->prefetcher ? worker_start(&x->worker, &kind, x, plane_stack(plane), e) :
			    fail(e, ENOMEM, "prefetching: out of memory");
	if (r)
		goto out;
	*out = x;
	return 0;
out:
	executor_free(x);
	return r;
}

void executor_stop(struct executor **px)
{
	struct executor *x = *px;

	if (!x)
		return;
	worker_stop(&x->worker);
	executor_free(x);
	*px = NULL;
}

struct worker *executor_worker(struct executor *x)
{
	return x->worker;
}

struct device_view executor_pace(const struct executor *x, uint32_t dev)
{
	const struct pace_view *v = prefetcher_paces(x->prefetcher);

	for (int i = 0; i < EBB_MAX_DEVICES; i++)
		if (v->device[i].dev == dev)
			return v->device[i];
	return (struct device_view){ .limit = UINT32_MAX };
}

void executor_read_stats(const struct executor *x, struct executor_stats *s)
{
	*s = *prefetcher_stats(x->prefetcher);
	s->requests += x->stale;
	s->stale += x->stale;
}
