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

#include "executor.h"
#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "prefetch.h"

#define SWEEP_NS 500000000ULL
#define IDLE_NS 500000000ULL

struct executor {
	struct attachments *attachments;
	struct plane *plane;
	struct executor_config config;
	struct ring_buffer *ring;      /* maps/requests */
	pthread_t thread;
	int wake;                      /* eventfd: stop */
	uint64_t stale;                /* malformed requests */
	struct worker *worker;
	uint64_t swept_ns, beat_ns;
	uint64_t filter[EBB_FILTER_WORDS]; /* the next one, while it is made */
};

static bool well_formed(const struct ebb_request *r, size_t size)
{
	if (size < sizeof(*r) || !r->stride || r->count > EBB_REQUEST_MAX)
		return false;
	return (r->op != EBB_OP_LIST && r->op != EBB_OP_COLD_LIST) ||
	       (size >= sizeof(struct ebb_list_request) && r->count <= EBB_LIST_MAX);
}

static int on_request(void *data, void *record, size_t size)
{
	struct ebb_list_request asked = { 0 };
	struct executor *x = data;

	if (!well_formed(record, size)) {
		x->stale++;
		return 0;
	}
	memcpy(&asked, record, size < sizeof(asked) ? size : sizeof(asked));
	worker_request(x->worker, &asked);
	return 0;
}

/*
 * What a throttled cgroup has outstanding for long is forgotten: where accesses are
 * random some of it is used by chance, which would speak for the policy.
 */
static bool expired(const struct executor *x, const struct attachment *a,
		    const struct ebb_prefetch *p, uint64_t now)
{
	if (p->issued_ns + x->config.expire_ns <= now)
		return true;
	return a && a->throttle.sample && throttle_waited(&a->throttle, p->issued_ns);
}

/*
 * Gives up pages that nobody asked for, and those of the dead, and makes the
 * filter anew from the others.  No page is added meanwhile: that takes the lock.
 */
static void sweep(struct executor *x, uint64_t now)
{
	struct ebb_prefetch value[512];
	struct ebb_page page[512];
	uint32_t in = 0, out, n, tgid = 0;
	void *from = NULL;
	bool gone = false;
	int r;

	memset(x->filter, 0, sizeof(x->filter));
	pthread_mutex_lock(&x->attachments->lock);
	for (uint32_t i = 0; i < x->attachments->n; i++)
		x->attachments->item[i]->idle = x->attachments->item[i]->unused = 0;
	do {
		n = 512;
		r = bpf_map_lookup_batch(x->plane->prefetched, from, &out, page, value, &n, NULL);
		if (r && errno != ENOENT)
			break;
		in = out;
		from = &in;
		for (uint32_t i = 0; i < n; i++) {
			struct attachment *a = attachments_find(x->attachments, value[i].owner);

			if (page[i].tgid != tgid) {
				tgid = page[i].tgid;
				gone = process_gone(tgid);
			}
			if (!gone && !expired(x, a, &value[i], now)) {
				filter_add(x->filter, &page[i]);
				if (a && value[i].issued_ns + IDLE_NS < now)
					a->idle++;
				if (a && throttle_waited(&a->throttle, value[i].issued_ns))
					a->unused++;
				continue;
			}
			if (bpf_map_delete_elem(x->plane->prefetched, &page[i]) == 0 && a)
				a->expired++;
		}
	} while (!r);
	/* A look-up that failed half-way must not hide pages. */
	if (r && errno == ENOENT)
		memcpy(x->plane->filter, x->filter, sizeof(x->filter));
	pthread_mutex_unlock(&x->attachments->lock);
	x->swept_ns = now;
}

static void *run(void *data)
{
	struct epoll_event ev[2], ring = { .events = EPOLLIN, .data.u32 = 0 },
			   wake = { .events = EPOLLIN, .data.u32 = 1 };
	struct executor *x = data;
	_cleanup_close_ int ep = epoll_create1(EPOLL_CLOEXEC);
	uint64_t now;
	int n;

	pthread_setname_np(pthread_self(), "ebbd-prefetch");
	worker_begin(x->worker);
	epoll_ctl(ep, EPOLL_CTL_ADD, ring_buffer__epoll_fd(x->ring), &ring);
	epoll_ctl(ep, EPOLL_CTL_ADD, x->wake, &wake);
	for (;;) {
		n = epoll_wait(ep, ev, 2, 500);
		for (int i = 0; i < n; i++)
			if (ev[i].data.u32 == 1)
				return NULL;
		ring_buffer__consume(x->ring);
		now = now_ns();
		/* The main thread is away for seconds while the verifier looks at a long policy. */
		if (now - x->beat_ns > EBB_QUIET_NS / 8) {
			plane_heartbeat(x->plane);
			x->beat_ns = now;
		}
		if (now - x->swept_ns > SWEEP_NS) {
			sweep(x, now);
			worker_tidy(x->worker);
		}
	}
}

static void executor_free(struct executor *x)
{
	worker_free(&x->worker);
	ring_buffer__free(x->ring);
	if (x->wake >= 0)
		close(x->wake);
	free(x);
}

int executor_start(struct executor **out, struct attachments *a,
		   const struct executor_config *config, struct error *e)
{
	struct executor *x = calloc(1, sizeof(*x));
	int r;

	if (!x)
		return fail(e, ENOMEM, "executor: out of memory");
	x->attachments = a;
	x->plane = a->plane;
	x->config = *config;
	x->wake = eventfd(0, EFD_CLOEXEC);
	x->ring = ring_buffer__new(x->plane->requests, on_request, x, NULL);
	if (!x->ring || x->wake < 0) {
		r = fail(e, errno, "executor: cannot read the ring buffer: %m");
		goto out;
	}
	x->worker = worker_new(x->attachments, &x->config);
	r = x->worker ? pthread_create(&x->thread, NULL, run, x) : ENOMEM;
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
		log_err("executor: cannot be stopped: %m");
	pthread_join(x->thread, NULL);
	executor_free(x);
	*px = NULL;
}

void executor_read_stats(const struct executor *x, struct executor_stats *s)
{
	*s = *worker_stats(x->worker);
	s->requests += x->stale;
	s->stale += x->stale;
}
