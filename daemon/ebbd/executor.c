// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "common/cleanup.h"
#include "common/log.h"
#include "common/realtime.h"
#include "ebbd/executor.h"
#include "ebbd/inflight.h"
#include "ebbd/resident.h"
#include "ebbd/target.h"

#define TARGETS 64
#define BATCH_MAX 64
#define FLUSH_SHARE 256  /* see keep_stats_fresh() */
#define WAIT_NS 2000000        /* at most, for the device: a request gets stale */
#define PAUSE_NS 20000
#define SWEEP_NS 500000000ULL
#define IDLE_NS 500000000ULL
#define RECENT 4096   /* slots of the memory of what was asked for; a power of two */

/*
 * What was asked for lately, so that overlapping windows cost no system call.
 * Direct-mapped and forgetful: a page forgotten is looked up in the pagemap.
 */
struct recent {
	struct ebb_page page;
	uint64_t until_ns;
};

struct executor {
	struct attachments *attachments;
	struct plane *plane;
	struct executor_config config;
	struct executor_stats stats;   /* written by the thread alone */
	struct target target[TARGETS];
	struct recent recent[RECENT];
	struct ring_buffer *ring;      /* maps/requests and maps/faults */
	struct residents *residents;
	pthread_t thread;
	struct inflight inflight;
	uint64_t reads, pages;         /* of the map, after the batch before */
	int wake;                      /* eventfd: stop */
	uint64_t swept_ns, beat_ns;
	uint64_t filter[EBB_FILTER_WORDS]; /* the next one, while it is made */
};

static struct recent *recent_slot(struct executor *x, const struct ebb_page *page)
{
	uint64_t h = (page->vpn ^ ((uint64_t)page->tgid << 32)) * 0x9e3779b97f4a7c15ULL;

	return &x->recent[h >> 52];
}

static bool recent_has(struct executor *x, const struct ebb_page *page, uint64_t now)
{
	struct recent *r = recent_slot(x, page);

	return r->until_ns > now && !memcmp(&r->page, page, sizeof(*page));
}

static struct target *target_get(struct executor *x, const struct ebb_request *r, uint64_t now)
{
	struct target *oldest = &x->target[0];

	for (struct target *t = x->target; t < x->target + TARGETS; t++) {
		if (t->tgid == r->tgid && t->exec == r->exec) {
			t->used_ns = now;
			return t;
		}
		if (t->used_ns < oldest->used_ns)
			oldest = t;
	}
	target_close(oldest);
	if (target_open(oldest, r->tgid, r->exec)) {
		oldest->tgid = 0;
		oldest->used_ns = 0;
		return NULL;
	}
	oldest->owner = r->owner;
	oldest->used_ns = now;
	return oldest;
}

/* How many more pages may be outstanding for @t. */
static uint64_t room(struct executor *x, const struct attachment *t)
{
	uint64_t out = attachment_outstanding(x->attachments, t);

	/* What nobody asked for in a while is no longer in flight, or it would block the rest. */
	out = out > t->idle ? out - t->idle : 0;
	return t->room > out ? t->room - out : 0;
}

/* Of the limit: with more than this on its way out, nothing more is brought in. */
#define WRITEBACK_SHARE 4

/*
 * Over memory.high a charge would throttle this thread, at memory.max it can reach
 * the OOM killer, although pages on their way out will be free soon: reclaim
 * ahead what is about to be charged, and bring nothing in where that fails.
 * Version 1 has no file for it; there the charge itself reclaims.
 */
static bool make_room(struct attachment *a, uint32_t pages)
{
	uint64_t need = (uint64_t)pages << EBB_PAGE_SHIFT, usage;
	char path[PATH_MAX], text[32];
	_cleanup_close_ int fd = -1;
	int n;

	if (a->limit == UINT64_MAX)
		return true;
	if (a->writeback > a->limit / WRITEBACK_SHARE) {
		attachment_refresh_stats(a);
		if (a->writeback > a->limit / WRITEBACK_SHARE)
			return false;
	}
	usage = a->cgroup.v2 ? cgroup_usage(&a->cgroup) : 0;
	if (usage + need <= a->limit)
		return true;
	if (snprintf(path, sizeof(path), "%s/memory.reclaim", a->cgroup.path) >= (int)sizeof(path))
		return true;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	n = snprintf(text, sizeof(text), "%llu", (unsigned long long)(usage + need - a->limit));
	return write(fd, text, n) == n || cgroup_usage(&a->cgroup) + need <= a->limit;
}

/* Between two ticks the inactive list can run dry at the pace of a prefetch. */
static void keep_stats_fresh(struct attachment *a, uint32_t pages)
{
	a->unflushed += pages;
	if (a->limit != UINT64_MAX && a->unflushed >= (a->limit >> EBB_PAGE_SHIFT) / FLUSH_SHARE)
		attachment_refresh_stats(a);
}

static void filter_add(uint64_t *filter, const struct ebb_page *page)
{
	uint32_t bit = ebb_filter_bit(page->tgid, page->vpn);

	__atomic_fetch_or(&filter[bit / 64], 1ULL << (bit & 63), __ATOMIC_RELEASE);
}

/*
 * Enters the @n pages @vpn in the prefetched set, before they are in the cache,
 * or a quick hit would go unseen.  Keeps in @vpn those that were not in it yet
 * (a page counts once however often it is asked for) and returns how many.
 */
static uint32_t enter_pages(struct executor *x, const struct target *t, const struct attachment *a,
			    uint64_t *vpn, uint32_t n, uint64_t now)
{
	struct ebb_prefetch value = { now, a->cgroup.id };
	uint32_t kept = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { t->tgid, t->exec, vpn[i] };

		*recent_slot(x, &page) = (struct recent){ page, now + x->config.stale_ns };
		filter_add(x->plane->filter, &page);
		if (bpf_map_update_elem(x->plane->prefetched, &page, &value, BPF_NOEXIST) == 0)
			vpn[kept++] = vpn[i];
		else if (errno == EEXIST)
			x->stats.repeated++;
		else
			x->stats.full++;
	}
	return kept;
}

/*
 * Waits until the devices have less than config.inflight pages to read: whoever
 * misses now waits behind all of them.  What a block read carries is known from the
 * batch before: 64 pages in a row, one where there are strides.
 */
static void wait_for_device(struct executor *x)
{
	struct ebb_executor *counted = x->plane->executor;
	uint64_t reads = counted->reads - x->reads, pages = counted->pages - x->pages;
	uint64_t each = reads ? (pages + reads - 1) / reads : 1, until = monotonic_ns() + WAIT_NS;
	struct timespec pause = { .tv_nsec = PAUSE_NS };

	x->reads = counted->reads;
	x->pages = counted->pages;
	while (inflight_reads(&x->inflight) * each > x->config.inflight && monotonic_ns() < until) {
		x->stats.waits++;
		nanosleep(&pause, NULL);
	}
}

static void prefetch_batch(struct executor *x, struct target *t, struct attachment *a, uint64_t *vpn,
			   uint32_t n)
{
	uint64_t now, after;
	int taken;

	wait_for_device(x);
	now = monotonic_ns();
	n = enter_pages(x, t, a, vpn, n, now);
	if (!n)
		return;
	a->prefetched += n;
	x->plane->executor->tgid = t->tgid;
	x->plane->executor->exec = t->exec;
	taken = target_advise(t, vpn, n, MADV_WILLNEED);
	after = monotonic_ns();
	x->stats.calls++;
	x->stats.call_ns += after - now;
	if (taken < (int)n) {
		/* What the kernel did not take is not on its way. */
		uint32_t from = taken > 0 ? (uint32_t)taken : 0;

		for (uint32_t i = from; i < n; i++) {
			struct ebb_page page = { t->tgid, t->exec, vpn[i] };

			if (bpf_map_delete_elem(x->plane->prefetched, &page) == 0)
				a->prefetched--;
		}
		x->stats.failed += n - from;
		n = from;
	}
	x->stats.pages += n;
	keep_stats_fresh(a, n);
}

static int by_page(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void prefetch_pages(struct executor *x, struct target *t, struct attachment *a, uint64_t *vpn,
			   uint32_t n)
{
	uint32_t kept = target_keep_swapped(t, vpn, n);

	x->stats.not_swapped += n - kept;
	if (!kept)
		return;
	attachment_detect(x->attachments, a);
	if (make_room(a, kept))
		prefetch_batch(x, t, a, vpn, kept);
	else
		x->stats.full += kept;
}

/* @list holds the pages of an EBB_OP_LIST, NULL for others. */
static void prefetch(struct executor *x, struct target *t, struct attachment *a,
		     const struct ebb_request *r, const __u64 *list, uint64_t now)
{
	uint64_t vpn[BATCH_MAX], left = room(x, a);
	uint32_t todo = r->count, n = 0;

	if (todo > left) {
		x->stats.full += todo - left;
		todo = (uint32_t)left;
	}
	for (uint32_t i = 0; i < todo; i++) {
		uint64_t page = list ? list[i] : r->first + (uint64_t)r->stride * i;
		struct ebb_page key = { t->tgid, t->exec, page };

		if (recent_has(x, &key, now)) {
			x->stats.repeated++;
			continue;
		}
		vpn[n++] = page;
		if (n == x->config.batch && !list) {
			prefetch_pages(x, t, a, vpn, n);
			n = 0;
		}
	}
	/* A list fits one batch; neighbours in it become one range. */
	if (list)
		qsort(vpn, n, sizeof(*vpn), by_page);
	if (n)
		prefetch_pages(x, t, a, vpn, n);
}
_Static_assert(EBB_LIST_MAX <= BATCH_MAX, "a list is one batch");

/* Pages first, first + stride, ... of @t get @advice; returns how many it reached. */
static uint64_t advise_range(const struct target *t, uint64_t first, int64_t stride, uint64_t count,
			     int advice)
{
	uint64_t vpn[BATCH_MAX], reached = 0;
	uint32_t n = 0;
	int taken;

	for (uint64_t i = 0; i < count; i++) {
		vpn[n++] = first + (uint64_t)stride * i;
		if (n < BATCH_MAX && i + 1 < count)
			continue;
		taken = target_advise(t, vpn, n, advice);
		reached += taken > 0 ? (uint64_t)taken : 0;
		n = 0;
	}
	return reached;
}

/* Pages between the fault and what is paged out behind it: they may be in use still. */
#define BEHIND_LAG 64
/* A stream shorter than limit / this is left to the kernel's LRU. */
#define BEHIND_SHARE 8

/*
 * Pages out behind a long stream what it brings in ahead.  A stream longer than
 * the memory it may use comes back to a page only after LRU would have evicted
 * it, and in the meantime LRU evicts what the stream has not reached yet; so
 * the newest pages go first.  One call unmaps many pages with one TLB flush,
 * while a charge over the limit would flush for every 32, and it keeps reclaim
 * out of the faults.  (Leap evicts consumed pages eagerly; a stock kernel
 * lets only mapped ones be paged out.)
 */
static void page_out_behind(struct executor *x, struct target *t, const struct attachment *a,
			    const struct ebb_request *r)
{
	uint64_t back = (uint64_t)BEHIND_LAG + r->passed;

	if (!r->passed || a->limit == UINT64_MAX ||
	    r->run < (a->limit >> EBB_PAGE_SHIFT) / BEHIND_SHARE || r->run < back)
		return;
	x->stats.paged_out += advise_range(t, r->at - (uint64_t)r->stride * back, r->stride, r->passed,
					   MADV_PAGEOUT);
}

static void cold_list(struct executor *x, const struct target *t, const struct ebb_list_request *list)
{
	uint64_t vpn[EBB_LIST_MAX];
	int taken;

	for (uint32_t i = 0; i < list->head.count; i++)
		vpn[i] = list->vpn[i];
	qsort(vpn, list->head.count, sizeof(*vpn), by_page);
	taken = target_advise(t, vpn, list->head.count, MADV_COLD);
	x->stats.cold_pages += taken > 0 ? (uint64_t)taken : 0;
}

static int on_request(void *data, void *record, size_t size)
{
	const struct ebb_list_request *list = record;
	const struct ebb_request *r = record;
	struct executor *x = data;
	uint64_t now = monotonic_ns();
	struct attachment *a;
	struct target *t;

	x->stats.requests++;
	if (size < sizeof(*r) || !r->stride || r->count > EBB_REQUEST_MAX ||
	    ((r->op == EBB_OP_LIST || r->op == EBB_OP_COLD_LIST) &&
	     (size < sizeof(*list) || r->count > EBB_LIST_MAX)) ||
	    now - r->time_ns > x->config.stale_ns) {
		x->stats.stale++;
		return 0;
	}
	pthread_mutex_lock(&x->attachments->lock);
	a = attachments_find(x->attachments, r->owner);
	t = a ? target_get(x, r, now) : NULL;
	if (!t) {
		x->stats.stale++;
		goto out;
	}
	if ((r->op == EBB_OP_PREFETCH || r->op == EBB_OP_LIST) && !throttle_passes(&a->throttle)) {
		x->stats.throttled++;
		goto out;
	}
	switch (r->op) {
	case EBB_OP_COLD:
		x->stats.cold_pages += advise_range(t, r->first, r->stride, r->count, MADV_COLD);
		break;
	case EBB_OP_OUT:
		x->stats.paged_out += advise_range(t, r->first, r->stride, r->count, MADV_PAGEOUT);
		break;
	case EBB_OP_COLD_LIST:
		cold_list(x, t, list);
		break;
	case EBB_OP_LIST:
		prefetch(x, t, a, r, list->vpn, now);
		break;
	default:
		page_out_behind(x, t, a, r);
		prefetch(x, t, a, r, NULL, now);
	}
out:
	pthread_mutex_unlock(&x->attachments->lock);
	return 0;
}

/*
 * A fault of a cgroup whose policy runs here.  What it asks for takes the road
 * of what comes from the kernel; the lock is not held then, for that takes it.
 */
static int on_fault(void *data, void *record, size_t size)
{
	struct ebb_list_request asked[RESIDENT_REQUESTS];
	const struct ebb_fault *f = record;
	struct executor *x = data;
	struct attachment *a;
	uint32_t n = 0;

	if (size < sizeof(*f) || monotonic_ns() - f->time_ns > x->config.stale_ns)
		return 0;
	pthread_mutex_lock(&x->attachments->lock);
	a = attachments_find(x->attachments, f->owner);
	if (a)
		n = resident_fault(x->residents, a, f, asked);
	pthread_mutex_unlock(&x->attachments->lock);
	for (uint32_t i = 0; i < n; i++)
		on_request(x, &asked[i], sizeof(asked[i]));
	return 0;
}

static bool process_gone(uint32_t tgid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u", tgid);
	return access(path, F_OK) < 0;
}

/*
 * What a throttled cgroup has outstanding for long is forgotten: where accesses are
 * random some of it is used by chance, which would speak for the policy.
 */
static bool expired(const struct executor *x, const struct attachment *a,
		    const struct ebb_prefetch *p, uint64_t now)
{
	uint64_t wait = x->config.expire_ns;

	if (a && a->throttle.sample && wait > THROTTLE_WAIT_NS)
		wait = THROTTLE_WAIT_NS;
	return p->issued_ns + wait <= now;
}

/*
 * Gives up pages that nobody asked for, and those of the dead, and makes the
 * filter anew from the others.  No page is added meanwhile: this is the thread
 * that adds them.
 */
static void sweep(struct executor *x, uint64_t now)
{
	struct ebb_prefetch value[512];
	struct ebb_page page[512];
	uint32_t in = 0, out, n, tgid = 0;
	void *from = NULL;
	bool gone = false;
	int r;

	residents_sweep(x->residents);
	inflight_refresh(&x->inflight);
	memset(x->filter, 0, sizeof(x->filter));
	for (struct target *t = x->target; t < x->target + TARGETS; t++)
		if (t->tgid && process_gone(t->tgid)) {
			target_close(t);
			t->tgid = 0;
		}
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
				if (a && value[i].issued_ns + THROTTLE_WAIT_NS < now)
					a->unused++;
				continue;
			}
			if (bpf_map_delete_elem(x->plane->prefetched, &page[i]) == 0 && a)
				a->expired++;
		}
	} while (!r);
	pthread_mutex_unlock(&x->attachments->lock);
	/* A look-up that failed half-way must not hide pages. */
	if (r && errno == ENOENT)
		memcpy(x->plane->filter, x->filter, sizeof(x->filter));
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
	/*
	 * A prefetch that waits for its turn comes too late: with eight runnable
	 * threads on two CPUs coverage is 0.70 at nice -10 and 0.91 like this.  Not
	 * on one CPU: reclaim in a charge would keep it from those who write pages out.
	 */
	if (sysconf(_SC_NPROCESSORS_ONLN) < 2 || realtime_enter())
		setpriority(PRIO_PROCESS, (id_t)gettid(), -10);
	epoll_ctl(ep, EPOLL_CTL_ADD, ring_buffer__epoll_fd(x->ring), &ring);
	epoll_ctl(ep, EPOLL_CTL_ADD, x->wake, &wake);
	for (;;) {
		n = epoll_wait(ep, ev, 2, 500);
		for (int i = 0; i < n; i++)
			if (ev[i].data.u32 == 1)
				return NULL;
		ring_buffer__consume(x->ring);
		now = monotonic_ns();
		/* The main thread is away for seconds while the verifier looks at a long policy. */
		if (now - x->beat_ns > EBB_QUIET_NS / 8) {
			plane_heartbeat(x->plane);
			x->beat_ns = now;
		}
		if (now - x->swept_ns > SWEEP_NS)
			sweep(x, now);
	}
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
	for (int i = 0; i < TARGETS; i++)
		x->target[i].pidfd = x->target[i].pagemap = -1;
	x->wake = eventfd(0, EFD_CLOEXEC);
	x->ring = ring_buffer__new(x->plane->requests, on_request, x, NULL);
	x->residents = residents_new();
	if (!x->ring || x->wake < 0 || !x->residents ||
	    ring_buffer__add(x->ring, x->plane->faults, on_fault, x)) {
		r = fail(e, errno, "executor: cannot read the ring buffer: %m");
		goto out;
	}
	r = pthread_create(&x->thread, NULL, run, x);
	if (r) {
		r = fail(e, r, "executor: cannot start its thread: %s", strerror(r));
		goto out;
	}
	*out = x;
	return 0;
out:
	ring_buffer__free(x->ring);
	residents_free(&x->residents);
	if (x->wake >= 0)
		close(x->wake);
	free(x);
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
	ring_buffer__free(x->ring);
	residents_free(&x->residents);
	for (int i = 0; i < TARGETS; i++)
		target_close(&x->target[i]);
	inflight_close(&x->inflight);
	close(x->wake);
	free(x);
	*px = NULL;
}

void executor_read_stats(const struct executor *x, struct executor_stats *s)
{
	*s = x->stats;
}
