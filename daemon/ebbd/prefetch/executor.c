// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "absence.h"
#include "executor.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/small_thread.h"
#include "prefetch.h"

#define SWEEP_NS 500000000ULL

struct executor {
	struct plane *plane;
	struct executor_config config;
	struct ring_buffer *ring;      /* maps/requests */
	pthread_t thread;
	int wake;                      /* eventfd: stop */
	uint64_t stale;                /* malformed requests */
	struct prefetcher *prefetcher;
	struct absence *absence;
	uint64_t swept_ns, beat_ns;
	struct liveness liveness;
};

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
	struct executor *x = data;

	liveness_beat(&x->liveness);
	if (!well_formed(record, size)) {
		x->stale++;
		return 0;
	}
	if (((struct ebb_request *)record)->op == EBB_OP_MEMORY) {
		prefetcher_learn(x->prefetcher, record);
		return 0;
	}
	memcpy(&asked, record, size < sizeof(asked) ? size : sizeof(asked));
	prefetcher_request(x->prefetcher, &asked);
	return 0;
}

static void *run(void *data)
{
	struct epoll_event ev[2], ring = { .events = EPOLLIN, .data.u32 = 0 },
			   wake = { .events = EPOLLIN, .data.u32 = 1 };
	struct executor *x = data;
	_cleanup_close_ int ep = epoll_create1(EPOLL_CLOEXEC);
	bool more = false;
	uint64_t now;
	int n;

	pthread_setname_np(pthread_self(), "ebbd-prefetch");
	prefetcher_begin(x->prefetcher);
	epoll_ctl(ep, EPOLL_CTL_ADD, ring_buffer__epoll_fd(x->ring), &ring);
	epoll_ctl(ep, EPOLL_CTL_ADD, x->wake, &wake);
	for (;;) {
		n = epoll_wait(ep, ev, 2, more ? 0 : 500);
		for (int i = 0; i < n; i++)
			if (ev[i].data.u32 == 1)
				return NULL;
		liveness_beat(&x->liveness);
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

static void executor_free(struct executor *x)
{
	prefetcher_free(&x->prefetcher);
	absence_stop(&x->absence);
	ring_buffer__free(x->ring);
	if (x->wake >= 0)
		close(x->wake);
	free(x);
}

int executor_start(struct executor **out, struct plane *plane, struct budget_table *budgets,
		   const struct executor_config *config, struct error *e)
{
	struct executor *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return fail(e, ENOMEM, "executor: out of memory");
	x->plane = plane;
	x->config = *config;
	x->wake = eventfd(0, EFD_CLOEXEC);
	x->ring = ring_buffer__new(x->plane->requests, on_request, x, NULL);
	if (!x->ring || x->wake < 0) {
		r = fail(e, errno, "executor: cannot read the ring buffer: %m");
		goto out;
	}
	r = absence_start(&x->absence, plane->devices, e);
	if (r)
		goto out;
	x->prefetcher = prefetcher_new(plane, budgets, &x->config, x->absence);
	r = x->prefetcher ? small_thread_create(&x->thread, plane_stack(plane), run, x) : ENOMEM;
	if (r) {
		r = fail(e, r, "executor: cannot start its thread: %s", strerror(r));
		goto out;
	}
	*out = x;
	return 0;
out:
	executor_free(x);
	return r;
}

void executor_stop(struct executor **px)
{
	struct executor *x = *px;
	uint64_t one = 1;

	if (!x)
		return;
	if (write(x->wake, &one, sizeof(one)) < 0)
		log_err("executor: cannot stop: %m");
	pthread_join(x->thread, NULL);
	executor_free(x);
	*px = NULL;
}

struct liveness *executor_liveness(struct executor *x)
{
	return &x->liveness;
}

uint32_t executor_at(const struct executor *x)
{
	return x->plane->executor->reader.tgid;
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
