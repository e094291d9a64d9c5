// SPDX-License-Identifier: GPL-2.0-or-later
#include <linux/ioprio.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "lib/base/log.h"
#include "lib/base/realtime.h"
#include "collapser.h"
#include "fair_queue.h"
#include "leaf.h"
#include "pacing.h"
#include "page_out.h"
#include "prefetch.h"
#include "prefetch_set.h"
#include "targets.h"

#define WAIT_NS 2000000        /* longest wait for the device: requests get stale */
#define PAUSE_NS 20000
#define RECENT 4096            /* a power of two */

/*
 * Pages requested lately, so that overlapping windows cost no system call.  Direct-mapped: an
 * overwritten page is looked up in the pagemap.
 */
struct recent {
	struct ebb_page page;
	uint64_t until_ns;
};

struct prefetcher {
	const struct executor_config *config;
	const struct worker *worker;
	struct budget_table *budgets;
	struct budget *held;           /* of the request in progress, or NULL */
	const struct absence *absence;
	struct leaves *leaves;
	struct collapser *collapser;
	struct prefetch_set *set;
	struct shared_pages shared;
	struct ebb_executor *counted;  /* mapped: ebbd's reads, and whose pages this thread reads */
	struct executor_stats stats;
	struct targets *targets;
	struct recent recent[RECENT];
	struct pacing *pacing;
	struct zswap *zswap;
	struct fair_queue *queue;
	uint64_t reads, pages, each;   /* ebbd's reads after the previous batch; pages in one */
	cpu_set_t cpus;                /* to which it returns from .cpu */
	int cpu;                       /* as budget_cpu() */
};

/* The request in progress. */
struct job {
	struct fair_request *request;
	struct target *target;
	struct budget *budget;
	struct leaf *leaf;
	struct prefetch_key key;
};

static struct recent *recent_slot(struct prefetcher *p, const struct ebb_page *page)
{
	uint64_t h = (page->vpn ^ ((uint64_t)page->tgid << 32)) * 0x9e3779b97f4a7c15ULL;

	return &p->recent[h >> 52];
}

static bool recent_has(struct prefetcher *p, const struct ebb_page *page, uint64_t now)
{
	struct recent *r = recent_slot(p, page);

	return r->until_ns > now && !memcmp(&r->page, page, sizeof(*page));
}

/*
 * Returns whether the devices have at most inflight pages to read: a miss waits behind all of them.
 * The previous batch tells the pages per block read.
 */
static bool devices_want_more(struct prefetcher *p)
{
	uint64_t reads = p->counted->reads - p->reads, pages = p->counted->pages - p->pages;

	if (reads)
		p->each = (pages + reads - 1) / reads;
	p->reads = p->counted->reads;
	p->pages = p->counted->pages;
	return pacing_reads(p->pacing) * p->each <= p->config->inflight;
}

/*
 * Returns how many pages of @r, of a process whose pages are in swap of @type, may be requested
 * now; 0 = later.
 */
static uint32_t may_request(struct prefetcher *p, struct fair_request *r, uint32_t type,
			    uint64_t now)
{
	uint32_t left = r->asked.head.count - r->done, n = p->config->batch;

	n = left < n ? left : n;
	if (pacing_limits(p->pacing, type)) {
		n = pacing_take(p->pacing, type, n, now);
		r->held |= !n;
		return n;
	}
	if (devices_want_more(p) || (r->waits_since && now - r->waits_since >= WAIT_NS)) {
		r->waits_since = 0;
		return n;
	}
	if (!r->waits_since)
		r->waits_since = now;
	return 0;
}

static uint32_t advise(struct prefetcher *p, const struct job *j, const uint64_t *vpn, uint32_t n)
{
	uint64_t now = now_ns();
	int taken;

	p->counted->reader.tgid = j->key.tgid;
	p->counted->reader.exec = j->key.exec;
	taken = target_advise(j->target, vpn, n, MADV_WILLNEED);
	p->stats.calls++;
	p->stats.call_ns += now_ns() - now;
	return taken > 0 ? (uint32_t)taken : 0;
}

/*
 * Requests outstanding pages again.  Those in the swap cache cost no read; those that are read had
 * been evicted unread: wasted, and prefetched again.
 */
static void prefetch_again(struct prefetcher *p, const struct job *j, const uint64_t *vpn,
			   uint32_t n)
{
	uint64_t before = p->counted->pages, lost;

	advise(p, j, vpn, n);
	lost = p->counted->pages - before;
	lost = lost < n ? lost : n;
	p->stats.repeated += n - lost;
	p->stats.pages += lost;
	p->stats.shared += j->key.shared ? lost : 0;
	if (!lost)
		return;
	pacing_requested(p->pacing, j->target->type, (uint32_t)lost, budget_others_wait(j->budget),
			 now_ns());
	/* Which of them were read is unknown. */
	prefetch_set_renew(p->set, &j->key, vpn, n, now_ns());
	budget_lost(j->budget, j->key.source, (uint32_t)lost);
}

static void prefetch_batch(struct prefetcher *p, const struct job *j, uint64_t *vpn, uint32_t n)
{
	struct prefetch_entered in;
	uint64_t now = now_ns();
	uint32_t taken, unsettled;

	budget_detect(j->budget);
	for (uint32_t i = 0; i < n; i++) {
		struct ebb_page page = { j->key.tgid, j->key.exec, vpn[i] };

		*recent_slot(p, &page) = (struct recent){ page, now + p->config->stale_ns };
	}
	in = prefetch_set_enter(p->set, &j->key, vpn, n, now);
	p->stats.full += in.full;
	p->stats.failed += in.failed;
	p->stats.repeated += in.repeated;
	if (in.again)
		prefetch_again(p, j, vpn + in.fresh, in.again);
	if (j->request->held) {
		p->stats.paced += in.fresh;
		budget_paced(j->budget, in.fresh);
	}
	if (!in.fresh)
		return;
	taken = advise(p, j, vpn, in.fresh);
	/* A page that the kernel rejected but the program has used counts as a hit. */
	unsettled = prefetch_set_withdraw(p->set, &j->key, vpn + taken, in.fresh - taken);
	p->stats.failed += in.fresh - taken;
	p->stats.pages += taken;
	p->stats.shared += j->key.shared ? taken : 0;
	budget_settle(j->budget, in.fresh - unsettled);
	budget_predicted(j->budget, j->key.source, taken);
	leaf_settle(j->leaf, in.fresh - unsettled);
	pacing_requested(p->pacing, j->target->type, taken, budget_others_wait(j->budget),
			 now_ns());
}

static void prefetch_pages(struct prefetcher *p, struct job *j, uint64_t *vpn, uint32_t n)
{
	uint32_t memory = target_keep_memory(j->target, vpn, n, now_ns()), run;
	struct target_kept swapped = target_keep_swapped(j->target, vpn, memory,
							 absence_types(p->absence),
							 zswap_slots(p->zswap), &p->shared);

	p->stats.not_memory += n - memory;
	p->stats.not_swapped += memory - swapped.kept - swapped.held_back - swapped.zswapped;
	p->stats.held_back += swapped.held_back;
	p->stats.zswapped += swapped.zswapped;
	if (!swapped.kept)
		return;
	j->target->type = swapped.type;
	if (!leaf_make_room(j->leaf, swapped.kept)) {
		p->stats.full += swapped.kept;
		return;
	}
	p->stats.not_memory += target_drop_files(j->target, vpn, &swapped);
	/* A list may mix pages of shared memory with others. */
	for (uint32_t i = 0; i < swapped.kept; i += run) {
		j->key.shared = swapped.shared >> i & 1;
		for (run = 1; i + run < swapped.kept; run++)
			if ((swapped.shared >> (i + run) & 1) != j->key.shared)
				break;
		prefetch_batch(p, j, vpn + i, run);
	}
}

/* Cuts the request to the pages that limits leave. */
static void cut(struct prefetcher *p, struct job *j, uint64_t now)
{
	struct ebb_request *r = &j->request->asked.head;
	uint32_t left = r->count - j->request->done, may = budget_take(j->budget, left, now);

	may = leaf_take(p->leaves, j->leaf, may);
	p->stats.full += left - may;
	budget_cut(j->budget, left - may);
	r->count -= left - may;
}

/*
 * Requests the next pages, at most @most, but for those that were requested lately; returns how
 * many.
 */
static uint32_t prefetch(struct prefetcher *p, struct job *j, uint32_t most, uint64_t now)
{
	struct fair_request *r = j->request;
	const struct ebb_request *head = &r->asked.head;
	uint64_t vpn[PREFETCH_BATCH_MAX];
	uint32_t n = 0;

	cut(p, j, now);
	for (; r->done < head->count && n < most; r->done++) {
		struct ebb_page key = {
			j->key.tgid, j->key.exec,
			head->op == EBB_OP_LIST ? r->asked.vpn[r->done] :
						  head->first + (uint64_t)head->stride * r->done,
		};

		if (recent_has(p, &key, now))
			p->stats.repeated++;
		else
			vpn[n++] = key.vpn;
	}
	/* Neighbours in a list become one range. */
	if (head->op == EBB_OP_LIST)
		qsort(vpn, n, sizeof(*vpn), page_compare);
	if (n)
		prefetch_pages(p, j, vpn, n);
	r->held = false;
	return n;
}

/*
 * Executes the next part of the request: at most @most pages if it prefetches, else all of it.
 * Returns the pages that it took.
 */
static uint32_t carry_out(struct prefetcher *p, struct job *j, uint32_t most, uint64_t now)
{
	struct fair_request *r = j->request;
	const struct ebb_request *head = &r->asked.head;
	bool begins = !r->begun;

	r->begun = true;
	switch (head->op) {
	case EBB_OP_COLD:
		p->stats.cold_pages += page_out_range(j->target, head, MADV_COLD);
		break;
	case EBB_OP_OUT:
		p->stats.paged_out += page_out_range(j->target, head, MADV_PAGEOUT);
		break;
	case EBB_OP_COLD_LIST:
		p->stats.cold_pages += page_out_cold_list(j->target, &r->asked);
		break;
	default:
		if (begins && head->op != EBB_OP_LIST)
			p->stats.paged_out += collapser_behind(
				p->collapser,
				&(struct collapse_job){ j->target, j->budget, j->leaf }, head, now);
		return prefetch(p, j, most, now);
	}
	r->done = head->count;
	return head->count;
}

static bool prefetches(const struct fair_request *r)
{
	return r->asked.head.op == EBB_OP_PREFETCH || r->asked.head.op == EBB_OP_LIST;
}

/* Ends request @r of cgroup @flow, of which nothing more is executed. */
static void drop(struct prefetcher *p, int flow, uint64_t *count)
{
	(*count)++;
	fair_done(p->queue, flow);
}

/*
 * Reads which CPUs this thread may use, to return to them.  If that is all that its cpuset allows,
 * it is what the cpuset allows then.
 */
static void read_cpus(struct prefetcher *p)
{
	cpu_set_t all, allowed;

	memset(&all, 0xff, sizeof(all));
	if (sched_getaffinity(0, sizeof(p->cpus), &p->cpus) ||
	    (!sched_setaffinity(0, sizeof(all), &all) &&
	     !sched_getaffinity(0, sizeof(allowed), &allowed) && CPU_EQUAL(&p->cpus, &allowed)))
		p->cpus = all;
}

/* Moves this thread to where @cpu says, see budget_cpu().  If that is offline, any CPU will do. */
static void move_to(struct prefetcher *p, int cpu)
{
	cpu_set_t set;

	if (cpu == p->cpu)
		return;
	if (p->cpu == BUDGET_ANY_CPU)
		read_cpus(p);
	p->cpu = cpu;
	set = p->cpus;
	if (cpu != BUDGET_ANY_CPU) {
		CPU_ZERO(&set);
		CPU_SET(cpu, &set);
	}
	if (sched_setaffinity(0, sizeof(set), &set))
		sched_setaffinity(0, sizeof(p->cpus), &p->cpus);
}

static void release(struct prefetcher *p)
{
	budget_release(p->held);
	p->held = NULL;
}

/*
 * Finds the process of the request and, if it prefetches, its memory cgroup.  Returns what counts
 * the request if it cannot be executed, else NULL.
 */
static uint64_t *find(struct prefetcher *p, struct job *j, uint64_t now)
{
	const struct ebb_request *head = &j->request->asked.head;

	if (!j->budget)
		return &p->stats.stale;
	j->target = targets_find(p->targets, head->tgid, head->exec, head->owner, now);
	if (j->target)
		j->leaf = leaf_find(p->leaves, j->target->leaf, now);
	if (!j->target || (!j->leaf && prefetches(j->request)))
		return &p->stats.unknown;
	return targets_open(p->targets, j->target) ? &p->stats.stale : NULL;
}

/*
 * Executes the next part of the request of cgroup @flow; returns false if its device has enough to
 * read.  *@full has a bit for the swap type of each such device: while a cgroup waits for it, none
 * behind may overtake that with fewer pages.
 */
static bool turn(struct prefetcher *p, int flow, uint64_t now, uint64_t *full)
{
	struct fair_request *r = fair_request(p->queue, flow);
	struct ebb_request *head = &r->asked.head;
	struct job j = { .request = r, .key = { head->tgid, head->exec, head->owner,
						   head->source } };
	uint64_t bit, *dropped;
	uint32_t most = 0, pages;

	if (now - head->time_ns > p->config->stale_ns ||
	    worker_excludes(p->worker, head->tgid, head->owner)) {
		drop(p, flow, &p->stats.stale);
		return true;
	}
	/* Many may wait for one device: looking up their processes would take longer than that. */
	if (r->waits_for & *full)
		return false;
	j.budget = budget_hold(p->budgets, head->owner);
	if (j.budget && prefetches(r) && !r->passed && !budget_passes(j.budget)) {
		drop(p, flow, &p->stats.throttled);
		budget_release(j.budget);
		return true;
	}
	r->passed = true;
	p->held = j.budget;
	dropped = find(p, &j, now);
	if (dropped) {
		drop(p, flow, dropped);
		release(p);
		return true;
	}
	if (prefetches(r)) {
		bit = 1ULL << (j.target->type & 63);
		most = *full & bit ? 0 : may_request(p, r, j.target->type, now);
		r->waits_for = most ? 0 : bit;
		if (!most) {
			*full |= bit;
			release(p);
			return false;
		}
	}
	move_to(p, budget_cpu(j.budget));
	pages = carry_out(p, &j, most, now);
	fair_charge(p->queue, flow, 1 + pages);
	if (r->done >= head->count)
		fair_done(p->queue, flow);
	release(p);
	return true;
}

bool prefetcher_run(struct prefetcher *p)
{
	struct timespec pause = { .tv_nsec = PAUSE_NS };
	uint64_t now = now_ns(), full = 0;

	pacing_adapt(p->pacing, now);
	for (int flow = fair_first(p->queue); flow >= 0; flow = fair_next(p->queue, flow))
		if (turn(p, flow, now, &full))
			return fair_first(p->queue) >= 0;
	if (fair_first(p->queue) < 0)
		return false;
	p->stats.waits++;
	nanosleep(&pause, NULL);
	return true;
}

void prefetcher_request(struct prefetcher *p, const struct ebb_list_request *asked)
{
	struct budget *b = budget_hold(p->budgets, asked->head.owner);

	p->stats.requests++;
	if (!b)
		p->stats.stale++;
	else if (!fair_put(p->queue, asked, budget_weight(b)))
		p->stats.full += asked->head.count;
	budget_release(b);
}

void prefetcher_learn(struct prefetcher *p, const struct ebb_memory *m)
{
	if (targets_learn(p->targets, m, now_ns()))
		leaves_learn(p->leaves, m->tgid, m->leaf, m->time_ns);
}

struct sweep {
	struct budget_sweep *budgets;
	struct leaves *leaves;
	uint64_t now;
	uint64_t oldest_ns;     /* pages requested earlier expire */
	uint32_t tgid;          /* process looked at last */
	bool gone;              /* it has exited */
};

static bool keep(void *data, const struct ebb_page *page, const struct ebb_prefetch *p)
{
	struct sweep *s = data;

	if (page->tgid != s->tgid) {
		s->tgid = page->tgid;
		s->gone = process_gone(page->tgid);
	}
	if (s->gone || p->issued_ns <= s->oldest_ns ||
	    !budget_sweep_keep(s->budgets, p->owner, p->issued_ns))
		return false;
	if (budget_in_flight(p->issued_ns, s->now))
		leaves_sweep_page(s->leaves, page->tgid);
	return true;
}

static void expired(void *data, const struct ebb_prefetch *p)
{
	budget_sweep_expired(((struct sweep *)data)->budgets, p->owner,
			     p->issued_ns & EBB_ISSUED_SOURCE);
}

void prefetcher_sweep(struct prefetcher *p, uint64_t now)
{
	struct sweep s = {
		.budgets = budget_sweep_begin(p->budgets, now),
		.leaves = p->leaves,
		.now = now,
		.oldest_ns = now > p->config->expire_ns ? now - p->config->expire_ns : 0,
	};

	leaves_sweep_begin(p->leaves);
	if (prefetch_set_sweep(p->set, &(struct prefetch_sweep){ keep, expired, &s }))
		leaves_sweep_end(p->leaves, now);
	budget_sweep_end(s.budgets);
	collapser_sweep(p->collapser, now);
	pacing_refresh(p->pacing);
	p->stats.zswap = zswap_watch(p->zswap);
	targets_sweep(p->targets, now);
}

void prefetcher_leave(struct prefetcher *p, uint32_t tgid, uint64_t owner)
{
	targets_leave(p->targets, tgid, owner);
	release(p);
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
 * A device may serve misses before prefetches, for which no thread waits, as kmod-swap does.
 * Without an I/O priority the thread has that of its scheduling policy, here real time.  The lowest
 * of best effort, not idle: mq-deadline delays idle requests for up to 10 s while there are others,
 * and the program may fault on the page.
 */
static void io_priority(void)
{
	int last = IOPRIO_PRIO_VALUE(IOPRIO_CLASS_BE, 7);

	if (syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, last))
		log_warn("executor: cannot lower the I/O priority of prefetches: %m; misses may wait "
			 "behind them");
}

void prefetcher_begin(struct prefetcher *p, const struct worker *w)
{
	p->worker = w;
	p->cpu = BUDGET_ANY_CPU;
	cpu_priority();
	io_priority();
	p->counted->reader.tid = (uint32_t)gettid();
}

const struct executor_stats *prefetcher_stats(const struct prefetcher *p)
{
	return &p->stats;
}

const struct pace_view *prefetcher_paces(const struct prefetcher *p)
{
	return pacing_view(p->pacing);
}

struct prefetcher *prefetcher_new(struct plane *plane, struct budget_table *budgets,
				  const struct executor_config *config,
				  const struct absence *absence)
{
	struct prefetcher *p = calloc(1, sizeof(*p));
	struct prefetch_maps maps;

	if (!p)
		return NULL;
	p->budgets = budgets;
	p->config = config;
	p->absence = absence;
	p->cpu = BUDGET_ANY_CPU;
	p->counted = plane->executor;
	maps = prefetch_set_maps(plane);
	p->set = prefetch_set_new(&maps);
	p->shared = shared_pages_of(plane);
	p->leaves = leaves_new(plane_map(plane, "leaves"), config->headroom);
	p->collapser = collapser_new(config->collapse, p->counted, &p->stats);
	p->targets = p->collapser ? targets_new(p->collapser) : NULL;
	p->pacing = pacing_new(plane, config);
	p->zswap = zswap_new(plane);
	p->queue = fair_queue_new();
	p->each = 1;
	if (!p->set || !p->leaves || !p->collapser || !p->targets || !p->pacing || !p->zswap ||
	    !p->queue)
		prefetcher_free(&p);
	return p;
}

void prefetcher_free(struct prefetcher **pp)
{
	struct prefetcher *p = *pp;

	if (!p)
		return;
	p->counted->reader.tid = 0;
	targets_free(&p->targets);
	pacing_free(&p->pacing);
	zswap_free(&p->zswap);
	fair_queue_free(&p->queue);
	collapser_free(&p->collapser);
	leaves_free(&p->leaves);
	prefetch_set_free(&p->set);
	free(p);
	*pp = NULL;
}
