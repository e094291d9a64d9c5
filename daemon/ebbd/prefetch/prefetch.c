// SPDX-License-Identifier: GPL-2.0-or-later
#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ioprio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/cleanup.h"
#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/realtime.h"
#include "lib/host/inflight.h"
#include "prefetch.h"
#include "target.h"

#define TARGETS 64
#define BATCH_MAX 64
#define FLUSH_SHARE 256  /* see keep_stats_fresh() */
#define WAIT_NS 2000000        /* at most, for the device: a request gets stale */
#define PAUSE_NS 20000
#define AGAIN_NS 20000000      /* an unread page requested so long ago may be evicted by now */
#define RECENT 4096   /* slots of the memory of what was asked for; a power of two */

/*
 * What was asked for lately, so that overlapping windows cost no system call.
 * Direct-mapped and forgetful: a page forgotten is looked up in the pagemap.
 */
struct recent {
	struct ebb_page page;
	uint64_t until_ns;
};

struct worker {
	struct attachments *attachments;
	struct plane *plane;
	const struct executor_config *config;
	struct ebb_reader *marked;     /* mapped: whose pages this thread reads */
	struct executor_stats stats;
	struct target target[TARGETS];
	struct recent recent[RECENT];
	struct inflight inflight;
	uint64_t reads, pages;         /* after the batch before */
};

static void lock(struct worker *w)
{
	pthread_mutex_lock(&w->attachments->lock);
}

static void unlock(struct worker *w)
{
	pthread_mutex_unlock(&w->attachments->lock);
}

static struct recent *recent_slot(struct worker *w, const struct ebb_page *page)
{
	uint64_t h = (page->vpn ^ ((uint64_t)page->tgid << 32)) * 0x9e3779b97f4a7c15ULL;

	return &w->recent[h >> 52];
}

static bool recent_has(struct worker *w, const struct ebb_page *page, uint64_t now)
{
	struct recent *r = recent_slot(w, page);

	return r->until_ns > now && !memcmp(&r->page, page, sizeof(*page));
}

static struct target *target_get(struct worker *w, uint32_t tgid, uint32_t exec, uint64_t now)
{
	struct target *oldest = &w->target[0];

	for (struct target *t = w->target; t < w->target + TARGETS; t++) {
		if (t->tgid == tgid && t->exec == exec) {
			t->used_ns = now;
			return t;
		}
		if (t->used_ns < oldest->used_ns)
			oldest = t;
	}
	target_close(oldest);
	if (target_open(oldest, tgid, exec)) {
		oldest->tgid = 0;
		oldest->used_ns = 0;
		return NULL;
	}
	oldest->used_ns = now;
	return oldest;
}

/* With the lock held: how many more pages may be outstanding for @t. */
static uint64_t room(struct worker *w, const struct attachment *t)
{
	uint64_t out = attachment_outstanding(w->attachments, t);

	/* What nobody asked for in a while is no longer in flight, or it would block the rest. */
	out = out > t->idle ? out - t->idle : 0;
	return t->room > out ? t->room - out : 0;
}

/* Bytes; UINT64_MAX without a limit. */
static uint64_t limit_of(struct worker *w, const struct attachment *a)
{
	uint64_t limit;

	lock(w);
	limit = a->limit;
	unlock(w);
	return limit;
}

/* Of the limit: with more than this on its way out, nothing more is brought in. */
#define WRITEBACK_SHARE 4

/*
 * Over memory.high a charge would throttle this thread, at memory.max it can reach
 * the OOM killer, although pages on their way out will be free soon: reclaim
 * ahead what is about to be charged, and bring nothing in where that fails.
 * Version 1 has no file for it; there the charge itself reclaims.
 */
static bool make_room(struct worker *w, struct attachment *a, uint32_t pages)
{
	uint64_t need = (uint64_t)pages << EBB_PAGE_SHIFT, limit = limit_of(w, a), usage;
	char path[PATH_MAX], text[32];
	_cleanup_close_ int fd = -1;
	bool drained;
	int n;

	if (limit == UINT64_MAX)
		return true;
	lock(w);
	if (a->writeback > limit / WRITEBACK_SHARE)
		attachment_refresh_stats(a);
	drained = a->writeback <= limit / WRITEBACK_SHARE;
	unlock(w);
	if (!drained)
		return false;
	usage = a->cgroup.v2 ? cgroup_usage(&a->cgroup) : 0;
	if (usage + need <= limit)
		return true;
	if (snprintf(path, sizeof(path), "%s/memory.reclaim", a->cgroup.path) >= (int)sizeof(path))
		return true;
	fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return true;
	n = snprintf(text, sizeof(text), "%llu", (unsigned long long)(usage + need - limit));
	return write(fd, text, n) == n || cgroup_usage(&a->cgroup) + need <= limit;
}

/* With the lock held.  Between two ticks the inactive list can run dry at the pace of a prefetch. */
static void keep_stats_fresh(struct attachment *a, uint32_t pages)
{
	a->unflushed += pages;
	if (a->limit != UINT64_MAX && a->unflushed >= (a->limit >> EBB_PAGE_SHIFT) / FLUSH_SHARE)
		attachment_refresh_stats(a);
}

void filter_add(uint64_t *filter, const struct ebb_page *page)
{
	uint32_t bit = ebb_filter_bit(page->tgid, page->vpn);

	__atomic_fetch_or(&filter[bit / 64], 1ULL << (bit & 63), __ATOMIC_RELEASE);
}

/* Pages to request: new in the prefetched set, and in it for AGAIN_NS. */
struct entered {
	uint64_t again[BATCH_MAX];
	uint32_t fresh, repeated;
};

/*
 * Enters the @n pages @vpn, or as many as there is room for, in the prefetched set,
 * before they are in the swap cache, or an early hit would go unseen.  Keeps in @vpn those
 * that were not in it yet.
 */
static void enter_pages(struct worker *w, const struct target *t, struct attachment *a,
			uint64_t *vpn, uint32_t n, uint64_t now, struct entered *in)
{
	struct ebb_prefetch value = { now, a->cgroup.id };
	struct ebb_prefetch old;
	uint64_t left;

	in->fresh = in->repeated = 0;
	lock(w);
	if (!a->detached)
		attachment_detect(w->attachments, a);
	left = room(w, a);
	if (n > left) {
		w->stats.full += n - left;
		n = (uint32_t)left;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { t->tgid, t->exec, vpn[i] };

		*recent_slot(w, &page) = (struct recent){ page, now + w->config->stale_ns };
		filter_add(w->plane->filter, &page);
		if (bpf_map_update_elem(w->plane->prefetched, &page, &value, BPF_NOEXIST) == 0)
			vpn[in->fresh++] = vpn[i];
		else if (errno != EEXIST)
			w->stats.full++;
		else if (bpf_map_lookup_elem(w->plane->prefetched, &page, &old) == 0 &&
			 old.issued_ns + AGAIN_NS <= now)
			in->again[in->repeated++] = vpn[i];
		else
			w->stats.repeated++;
	}
	a->prefetched += in->fresh;
	unlock(w);
}

/* How fast @a may go, by who else uses the devices. */
static struct pace pace_for(struct worker *w, const struct attachment *a)
{
	const struct attachments *all = w->attachments;
	uint32_t others = 0;

	lock(w);
	for (uint32_t i = 0; i < all->n; i++)
		others += all->item[i] != a && neighbour_waits(&all->item[i]->neighbour);
	unlock(w);
	return pace_of(w->config->batch, w->config->inflight, w->config->beside, others);
}

/*
 * Waits until the devices have no more than @most pages to read: whoever
 * misses now waits behind all of them.  What a block read carries is known from the
 * batch before: 64 pages in a row, one where there are strides.
 */
static void wait_for_device(struct worker *w, uint32_t most)
{
	struct ebb_executor *counted = w->plane->executor;
	uint64_t reads = counted->reads - w->reads, pages = counted->pages - w->pages;
	uint64_t each = reads ? (pages + reads - 1) / reads : 1, until = now_ns() + WAIT_NS;
	struct timespec pause = { .tv_nsec = PAUSE_NS };

	w->reads = counted->reads;
	w->pages = counted->pages;
	while (inflight_reads(&w->inflight) * each > most && now_ns() < until) {
		w->stats.waits++;
		nanosleep(&pause, NULL);
	}
}

static int advise_willneed(struct worker *w, const struct target *t, const uint64_t *vpn, uint32_t n)
{
	uint64_t now = now_ns();
	int taken;

	w->marked->tgid = t->tgid;
	w->marked->exec = t->exec;
	taken = target_advise(t, vpn, n, MADV_WILLNEED);
	w->stats.calls++;
	w->stats.call_ns += now_ns() - now;
	return taken;
}

/*
 * Requests again the @n pages @vpn of the prefetched set.  Those still in the swap cache cost no
 * read; those that are read were evicted unread: wasted, and prefetched once more.
 */
static void prefetch_again(struct worker *w, const struct target *t, struct attachment *a,
			   const uint64_t *vpn, uint32_t n)
{
	uint64_t before = w->plane->executor->pages, lost;
	struct ebb_prefetch value = { now_ns(), a->cgroup.id };

	advise_willneed(w, t, vpn, n);
	lost = w->plane->executor->pages - before;
	lost = lost < n ? lost : n;
	w->stats.repeated += n - lost;
	w->stats.pages += lost;
	if (!lost)
		return;
	lock(w);
	a->prefetched += lost;
	a->expired += lost;
	/* Which of them were read is unknown.  A page that the program used meanwhile stays out. */
	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { t->tgid, t->exec, vpn[i] };

		bpf_map_update_elem(w->plane->prefetched, &page, &value, BPF_EXIST);
	}
	keep_stats_fresh(a, (uint32_t)lost);
	unlock(w);
}

static void prefetch_batch(struct worker *w, struct target *t, struct attachment *a, uint64_t *vpn,
			   uint32_t n, uint32_t before)
{
	struct entered in;
	uint64_t now;
	int taken;

	wait_for_device(w, before);
	now = now_ns();
	enter_pages(w, t, a, vpn, n, now, &in);
	if (in.repeated)
		prefetch_again(w, t, a, in.again, in.repeated);
	n = in.fresh;
	if (!n)
		return;
	taken = advise_willneed(w, t, vpn, n);
	lock(w);
	if (taken < (int)n) {
		/* What the kernel did not take is not on its way. */
		uint32_t from = taken > 0 ? (uint32_t)taken : 0;

		for (uint32_t i = from; i < n; i++) {
			struct ebb_page page = { t->tgid, t->exec, vpn[i] };

			if (bpf_map_delete_elem(w->plane->prefetched, &page) == 0)
				a->prefetched--;
		}
		w->stats.failed += n - from;
		n = from;
	}
	w->stats.pages += n;
	keep_stats_fresh(a, n);
	unlock(w);
}

static int by_page(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void prefetch_pages(struct worker *w, struct target *t, struct attachment *a, uint64_t *vpn,
			   uint32_t n, uint32_t before)
{
	uint32_t kept = target_keep_swapped(t, vpn, n);

	w->stats.not_swapped += n - kept;
	if (!kept)
		return;
	if (make_room(w, a, kept))
		prefetch_batch(w, t, a, vpn, kept, before);
	else
		w->stats.full += kept;
}

/* @list holds the pages of an EBB_OP_LIST, NULL for others. */
static void prefetch(struct worker *w, struct target *t, struct attachment *a,
		     const struct ebb_request *r, const __u64 *list, uint64_t now)
{
	struct pace pace = pace_for(w, a);
	uint64_t vpn[BATCH_MAX], left;
	uint32_t todo = r->count, n = 0;

	lock(w);
	left = room(w, a);
	unlock(w);
	if (todo > left) {
		w->stats.full += todo - left;
		todo = (uint32_t)left;
	}
	for (uint32_t i = 0; i < todo; i++) {
		uint64_t page = list ? list[i] : r->first + (uint64_t)r->stride * i;
		struct ebb_page key = { t->tgid, t->exec, page };

		if (recent_has(w, &key, now)) {
			w->stats.repeated++;
			continue;
		}
		vpn[n++] = page;
		if (n == pace.batch && !list) {
			prefetch_pages(w, t, a, vpn, n, pace.before);
			n = 0;
		}
	}
	/* A list fits one batch; neighbours in it become one range. */
	if (list)
		qsort(vpn, n, sizeof(*vpn), by_page);
	if (n)
		prefetch_pages(w, t, a, vpn, n, pace.before);
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
static void page_out_behind(struct worker *w, struct target *t, const struct attachment *a,
			    const struct ebb_request *r)
{
	uint64_t back = (uint64_t)BEHIND_LAG + r->passed, limit = limit_of(w, a);

	if (!r->passed || limit == UINT64_MAX ||
	    r->run < (limit >> EBB_PAGE_SHIFT) / BEHIND_SHARE || r->run < back)
		return;
	w->stats.paged_out += advise_range(t, r->at - (uint64_t)r->stride * back, r->stride, r->passed,
					   MADV_PAGEOUT);
}

static void cold_list(struct worker *w, const struct target *t, const struct ebb_list_request *list)
{
	uint64_t vpn[EBB_LIST_MAX];
	int taken;

	for (uint32_t i = 0; i < list->head.count; i++)
		vpn[i] = list->vpn[i];
	qsort(vpn, list->head.count, sizeof(*vpn), by_page);
	taken = target_advise(t, vpn, list->head.count, MADV_COLD);
	w->stats.cold_pages += taken > 0 ? (uint64_t)taken : 0;
}

static void act(struct worker *w, struct target *t, struct attachment *a,
		const struct ebb_list_request *asked, uint64_t now)
{
	const struct ebb_request *r = &asked->head;

	switch (r->op) {
	case EBB_OP_COLD:
		w->stats.cold_pages += advise_range(t, r->first, r->stride, r->count, MADV_COLD);
		break;
	case EBB_OP_OUT:
		w->stats.paged_out += advise_range(t, r->first, r->stride, r->count, MADV_PAGEOUT);
		break;
	case EBB_OP_COLD_LIST:
		cold_list(w, t, asked);
		break;
	case EBB_OP_LIST:
		prefetch(w, t, a, r, asked->vpn, now);
		break;
	default:
		page_out_behind(w, t, a, r);
		prefetch(w, t, a, r, NULL, now);
	}
}

void worker_request(struct worker *w, const struct ebb_list_request *asked)
{
	const struct ebb_request *r = &asked->head;
	uint64_t now = now_ns();
	struct attachment *a;
	bool passes = true;
	struct target *t;

	w->stats.requests++;
	if (now - r->time_ns > w->config->stale_ns) {
		w->stats.stale++;
		return;
	}
	lock(w);
	a = attachments_find(w->attachments, r->owner);
	if (a && (r->op == EBB_OP_PREFETCH || r->op == EBB_OP_LIST))
		passes = throttle_passes(&a->throttle);
	if (a)
		attachment_hold(a);
	unlock(w);
	t = a && passes ? target_get(w, r->tgid, r->exec, now) : NULL;
	if (!passes)
		w->stats.throttled++;
	else if (!t)
		w->stats.stale++;
	else
		act(w, t, a, asked, now);
	if (!a)
		return;
	lock(w);
	attachment_release(a);
	unlock(w);
}

bool process_gone(uint32_t tgid)
{
	char path[32];

	snprintf(path, sizeof(path), "/proc/%u", tgid);
	return access(path, F_OK) < 0;
}

void worker_tidy(struct worker *w)
{
	inflight_refresh(&w->inflight);
	for (struct target *t = w->target; t < w->target + TARGETS; t++)
		if (t->tgid && target_gone(t)) {
			target_close(t);
			t->tgid = 0;
		}
}

static void cpu_priority(void)
{
	/*
	 * A prefetch that waits for a CPU is late: with eight runnable threads on
	 * two CPUs coverage is 0.91 at real-time priority and 0.70 at nice -10.  On one
	 * CPU, direct reclaim at real-time priority would starve the writeback it waits for.
	 */
	int r = sysconf(_SC_NPROCESSORS_ONLN) < 2 ? 1 : realtime_enter();

	if (!r)
		return;
	setpriority(PRIO_PROCESS, (id_t)gettid(), -10);
	if (r < 0)
		log_warn("executor: cannot get real-time priority: %s; prefetches may be late; grant "
			 "CAP_SYS_NICE and do not set RestrictRealtime=", strerror(-r));
}

/*
 * Nobody waits for what is fetched ahead, and a device may serve those who do first, as
 * kmod-swap does.  A thread without an I/O priority has that of its scheduling policy, so
 * ours would be real time.  The last of best effort, not idle: of that mq-deadline does
 * nothing for 10 s while others have work, and a program may come to want the page.
 */
static void io_priority(void)
{
	int last = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7);

	if (syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, last))
		log_warn("prefetches go with the I/O priority of programs: ioprio_set: %m");
}

void worker_begin(struct worker *w)
{
	cpu_priority();
	io_priority();
	w->marked->tid = (uint32_t)gettid();
}

const struct executor_stats *worker_stats(const struct worker *w)
{
	return &w->stats;
}

struct worker *worker_new(struct attachments *a, const struct executor_config *config)
{
	struct worker *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->attachments = a;
	w->plane = a->plane;
	w->config = config;
	w->marked = &a->plane->executor->reader;
	for (int i = 0; i < TARGETS; i++)
		w->target[i].pidfd = w->target[i].pagemap = -1;
	return w;
}

void worker_free(struct worker **pw)
{
	struct worker *w = *pw;

	if (!w)
		return;
	w->marked->tid = 0;
	for (int i = 0; i < TARGETS; i++)
		target_close(&w->target[i]);
	inflight_close(&w->inflight);
	free(w);
	*pw = NULL;
}
