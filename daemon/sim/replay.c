// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/size.h"
#include "lib/rules/throttle.h"
#include "replay.h"

#define HIT_NS 1000             /* about the time of a fault on a page in the swap cache */
#define TICK_NS 100000000       /* as daemon/ebbd/main.c */
#define OWNER 1                 /* of all faults: one cgroup */
/*
 * Pages in a row are one request: each occupies the device for 1 / this of the time
 * (docs/trace.md).
 */
#define IN_A_ROW 3
/* Limit of pages that a miss waits behind: ebb.conf(5), [prefetch] inflight. */
#define INFLIGHT 128
/* Drop-behind behind long streams, as in daemon/ebbd/prefetch/page_out.c. */
#define BEHIND_LAG 64
#define BEHIND_SHARE 8

enum where {
	SWAPPED,
	RESIDENT,               /* in the memory that existed in the recording */
	AROUND,                 /* the kernel read it along with a miss */
	COMING,                 /* prefetched, not yet asked for */
	SURPLUS,                /* in the additional memory */
};

struct state {
	enum where where;
	bool early;             /* paged out by the policy before it left in the recording */
	uint64_t issue_ns, ready_ns; /* of a prefetch */
	uint64_t arrival;       /* sequence number among arrived pages */
};

/* A prefetched page in order of arrival. */
struct unread {
	uint32_t page;
	uint64_t arrival;
};

struct replay {
	const struct sim_history *h;
	const struct sim_config *config;
	struct sim_result *result;
	struct state *state;
	struct surplus surplus;
	struct surplus_page *surplus_page;
	uint32_t *surplus_member;
	uint64_t surplus_max;   /* pages of additional memory */
	uint64_t early_pages;   /* early page-outs, whose place others have meanwhile */
	uint64_t inactive;      /* pages that may come in before an unread one is reclaimed */
	uint64_t arrivals, unread_pages;
	uint64_t room;          /* limit of pages in flight */
	struct unread *unread;  /* ring of pages + 1 */
	uint32_t unread_first, unread_last;
	uint64_t *clock;        /* of each thread: time of its next access */
	uint32_t *at;           /* that access */
	uint32_t *heap, heap_n; /* threads, the earliest first */
	uint64_t channel_ns;    /* time at which the device has sent all requested pages */
	uint64_t asked_vpn;     /* page that was prefetched last */
	struct throttle throttle;
	uint64_t ticked_ns;     /* time of the throttle's last tick */
	uint64_t by_chance;     /* hits that came too late to have been foreseen */
	struct ebb_policy_sim *process;
};

int sim_memory_check(const struct sim_history *h, uint64_t memory, struct error *e)
{
	char had[16], asked[16];

	if (!h->info.memory)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "trace: recorded without a memory limit, which predicts no size; record with \"ebbctl run --mem\"");
	if (memory < h->info.memory)
		return fail_exit(e, EXIT_USAGE, EINVAL,
				 "--memory: %s is below the recorded %s, and accesses to resident pages are not recorded; record with that size",
				 size_format(memory, asked, sizeof(asked)),
				 size_format(h->info.memory, had, sizeof(had)));
	return 0;
}

/* --- threads in order of time -------------------------------------------- */

static bool earlier(const struct replay *r, uint32_t a, uint32_t b)
{
	return r->clock[a] != r->clock[b] ? r->clock[a] < r->clock[b] : r->at[a] < r->at[b];
}

static void sink(struct replay *r, uint32_t i)
{
	for (;;) {
		uint32_t child = 2 * i + 1, t = r->heap[i];

		if (child >= r->heap_n)
			return;
		if (child + 1 < r->heap_n && earlier(r, r->heap[child + 1], r->heap[child]))
			child++;
		if (!earlier(r, r->heap[child], t))
			return;
		r->heap[i] = r->heap[child];
		r->heap[child] = t;
		i = child;
	}
}

/* --- memory -------------------------------------------------------------- */

/*
 * Returns the room for pages that left in the recording: the additional memory and pages that the
 * policy has paged out early, less prefetched pages.
 */
static uint64_t surplus_room(const struct replay *r)
{
	uint64_t room = r->surplus_max + r->early_pages;

	return room > r->unread_pages ? room - r->unread_pages : 0;
}

static void fit_surplus(struct replay *r)
{
	uint32_t page;

	while (surplus_pages(&r->surplus) > surplus_room(r)) {
		page = surplus_evict(&r->surplus);
		if (page != SIM_NONE)
			r->state[page].where = SWAPPED;
	}
}

/* Removes a page from the recorded memory. */
static void leave(struct replay *r, uint32_t page)
{
	struct state *s = &r->state[page];

	if (s->early) {
		s->early = false;
		r->early_pages--;
		fit_surplus(r);
		return;
	}
	if (s->where != RESIDENT && s->where != AROUND)
		return;
	s->where = SURPLUS;
	surplus_add(&r->surplus, page);
	fit_surplus(r);
}

static void page_out(struct replay *r, uint32_t page)
{
	struct state *s = &r->state[page];

	if (s->where == SURPLUS) {
		surplus_take(&r->surplus, page);
	} else if (s->where == RESIDENT || s->where == AROUND) {
		s->early = true;
		r->early_pages++;
	} else {
		return;
	}
	s->where = SWAPPED;
	r->result->paged_out++;
}

/* Counts pages that are swapped in: unused prefetched ones reach the end of the inactive list. */
static void arrive(struct replay *r, uint64_t pages)
{
	r->arrivals += pages;
	while (r->unread_first != r->unread_last) {
		struct unread *u = &r->unread[r->unread_first % (r->h->pages + 1)];
		struct state *s = &r->state[u->page];
		bool waits = s->where == COMING && s->arrival == u->arrival;

		if (waits && r->arrivals - u->arrival <= r->inactive)
			return;
		r->unread_first++;
		if (!waits)
			continue;
		s->where = SWAPPED;
		r->unread_pages--;
		r->result->wasted++;
	}
}

/* --- the device ---------------------------------------------------------- */

enum place {
	ANYWHERE,
	NEXT,                   /* next to the page read before */
};

/* Returns the time for which a page occupies the device. */
static uint64_t busy_ns(const struct replay *r, enum place place)
{
	uint64_t size = 1ULL << r->h->info.page_shift, busy = r->config->busy_ns, sent = 0;

	if (place == NEXT)
		busy /= IN_A_ROW;
	if (r->config->bandwidth)
		sent = size * 1000000000ULL / r->config->bandwidth;
	return busy > sent ? busy : sent;
}

/* Queues a page at the device; returns when the device begins with it. */
static uint64_t device_add(struct replay *r, uint64_t now, enum place place)
{
	uint64_t begin = r->channel_ns > now ? r->channel_ns : now;

	r->channel_ns = begin + busy_ns(r, place);
	return begin;
}

/* Returns when a page requested at @now arrives, if the device begins with it at @begin. */
static uint64_t device_read(const struct replay *r, uint64_t begin, uint64_t now, enum place place)
{
	uint64_t done = now + r->config->latency_ns, sent = begin + busy_ns(r, place);

	return done > sent ? done : sent;
}

static uint64_t device_prefetch(struct replay *r, uint64_t now, uint32_t page)
{
	uint64_t vpn = r->h->page[page].vpn;
	enum place place = vpn == r->asked_vpn + 1 || vpn + 1 == r->asked_vpn ? NEXT : ANYWHERE;

	r->asked_vpn = vpn;
	return device_read(r, device_add(r, now, place), now, place);
}

/* Bounds the wait of a miss as the executor does, to INFLIGHT pages. */
static uint64_t device_miss(struct replay *r, uint64_t now)
{
	uint64_t begin = device_add(r, now, ANYWHERE), most = now + INFLIGHT * r->config->busy_ns;

	if (r->config->busy_ns && begin > most)
		begin = most;
	return device_read(r, begin, now, ANYWHERE);
}

/* --- what a policy asks for ---------------------------------------------- */

static void prefetch_page(struct replay *r, uint32_t page, uint64_t issue_ns)
{
	struct state *s = page == SIM_NONE ? NULL : &r->state[page];

	if (!s || s->where != SWAPPED) {
		r->result->not_swapped++;
		return;
	}
	arrive(r, 1);
	s->where = COMING;
	s->arrival = r->arrivals;
	s->issue_ns = issue_ns;
	s->ready_ns = device_prefetch(r, issue_ns, page);
	r->unread[r->unread_last++ % (r->h->pages + 1)] = (struct unread){ page, s->arrival };
	r->unread_pages++;
	r->result->prefetched++;
	fit_surplus(r);
}

static void prefetch(struct replay *r, const struct ebb_request *q)
{
	const struct ebb_list_request *list = q->op == EBB_OP_LIST ? (const void *)q : NULL;
	uint64_t room = r->room > r->unread_pages ? r->room - r->unread_pages : 0, n = q->count;

	r->result->requests++;
	r->result->request_pages += n;
	if (n > room) {
		r->result->dropped += n - room;
		n = room;
	}
	for (uint64_t i = 0; i < n; i++) {
		uint64_t vpn = list ? list->vpn[i] : q->first + (uint64_t)q->stride * i;

		prefetch_page(r, sim_page_find(r->h, q->tgid, vpn),
			      q->time_ns + r->config->wakeup_ns);
	}
}

static void page_out_range(struct replay *r, uint32_t tgid, struct ebb_range range)
{
	for (uint64_t i = 0; i < range.count; i++) {
		uint32_t page = sim_page_find(r->h, tgid, range.first + (uint64_t)range.stride * i);

		if (page != SIM_NONE)
			page_out(r, page);
	}
}

static void page_out_behind(struct replay *r, const struct ebb_request *q)
{
	uint64_t back = (uint64_t)BEHIND_LAG + q->passed;

	if (q->passed && q->run >= back &&
	    q->run >= (r->config->memory >> r->h->info.page_shift) / BEHIND_SHARE)
		page_out_range(r, q->tgid, (struct ebb_range){
			q->at - (uint64_t)q->stride * back, q->stride, q->passed });
}

/* Judges accuracy like ebbd at its ticks. */
static void judge(struct replay *r, uint64_t now)
{
	const struct sim_result *x = r->result;
	struct throttle *t = &r->throttle;

	if (now - r->ticked_ns >= TICK_NS) {
		throttle_tick(t, x->misses + x->hits + x->late, r->by_chance, (uint32_t)r->room,
			      now);
		r->ticked_ns = now;
	}
	throttle_judge(t, x->hits - t->by_chance + x->late, x->wasted + t->by_chance);
}

static int on_request(void *data, const struct ebb_request *q)
{
	struct replay *r = data;

	switch (q->op) {
	case EBB_OP_COLD:
	case EBB_OP_COLD_LIST:
		r->result->cold_pages += q->count;
		break;
	case EBB_OP_OUT:
		page_out_range(r, q->tgid, (struct ebb_range){ q->first, q->stride, q->count });
		break;
	case EBB_OP_PREFETCH:
	case EBB_OP_LIST:
		judge(r, q->time_ns);
		if (!throttle_passes(&r->throttle)) {
			r->result->throttled++;
			break;
		}
		page_out_behind(r, q);
		prefetch(r, q);
		break;
	default:
		return -EOPNOTSUPP;
	}
	return 0;
}

/* --- accesses ------------------------------------------------------------ */

static void count(struct sim_result *x, const struct ebb_fault *f)
{
	uint64_t *of[] = { &x->misses, &x->hits, &x->late };

	(*of[f->kind])++;
	if (f->kind == EBB_MISS)
		x->miss_ns += f->duration_ns;
	if (f->kind == EBB_LATE)
		x->late_ns += f->duration_ns;
	if (f->role == EBB_ROLE_GC)
		*(f->kind == EBB_MISS ? &x->gc_misses : &x->gc_hits) += 1;
}

/* Reads the pages that the kernel read with this one in the recording. */
static uint32_t read_around(struct replay *r, uint32_t i, uint64_t now)
{
	const struct sim_access *a = &r->h->access[i];
	uint32_t read = 1, left = a->read_with;

	while (left-- && a->next != SIM_NONE) {
		a = &r->h->access[a->next];
		if (r->state[a->page].where != SWAPPED)
			continue;
		r->state[a->page].where = AROUND;
		if (r->config->busy_ns)
			device_add(r, now, NEXT);
		read++;
	}
	arrive(r, read);
	return read;
}

/* Finds kind and duration of the fault of access @i at @now; returns whether there is one. */
static bool fault_of(struct replay *r, uint32_t i, uint64_t now, struct ebb_fault *f)
{
	uint32_t page = r->h->access[i].page;
	struct state *s = &r->state[page];

	switch (s->where) {
	case AROUND:
		r->result->readahead++;
		return false;
	case RESIDENT:
		r->result->spared++;
		return false;
	case SURPLUS:
		surplus_take(&r->surplus, page);
		r->result->spared++;
		return false;
	case COMING:
		r->unread_pages--;
		if (now >= s->ready_ns) {
			if (r->throttle.timely_ns && now - s->issue_ns > r->throttle.timely_ns)
				r->by_chance++;
			f->kind = EBB_HIT;
			f->duration_ns = HIT_NS;
			return true;
		}
		if (now >= s->issue_ns) {
			f->kind = EBB_LATE;
			f->duration_ns = s->ready_ns - now + HIT_NS;
			return true;
		}
		/* The executor is too late, and finds it in flight. */
		r->result->prefetched--;
		break;
	case SWAPPED:
		break;
	}
	f->kind = EBB_MISS;
	f->duration_ns = device_miss(r, now) - now;
	f->cluster = read_around(r, i, now);
	surplus_refault(&r->surplus, page);
	return true;
}

/* Simulates one access; returns when the thread continues. */
static uint64_t access_page(struct replay *r, uint32_t i, uint64_t now)
{
	const struct sim_access *a = &r->h->access[i];
	const struct sim_thread *t = &r->h->thread[a->thread];
	struct ebb_policy_sim *sim = &r->process[t->process];
	struct ebb_fault f = {
		.vpn = r->h->page[a->page].vpn, .owner = OWNER, .ip = a->ip, .tgid = t->tgid,
		.tid = t->tid, .exec = 1, .policy = 1, .role = a->role,
		.room = (uint32_t)r->room,
	};
	struct state *s = &r->state[a->page];
	bool faults = fault_of(r, i, now, &f);

	s->where = RESIDENT;
	if (s->early) {
		s->early = false;
		r->early_pages--;
	}
	if (!faults)
		return now;
	f.time_ns = now + f.duration_ns;
	count(r->result, &f);
	r->config->policy->run(sim, &f);
	return f.time_ns;
}

/* Removes pages that left before access @i was made. */
static void leave_before(struct replay *r, uint32_t i)
{
	const struct sim_history *h = r->h;

	for (uint32_t k = h->leave_from[i]; k < h->leave_from[i + 1]; k++)
		leave(r, h->leave[k]);
}

static void run(struct replay *r)
{
	const struct sim_history *h = r->h;
	uint64_t begin = UINT64_MAX, end = 0;
	uint32_t passed = 0;

	while (r->heap_n) {
		uint32_t t = r->heap[0], i = r->at[t];

		if (r->clock[t] < begin)
			begin = r->clock[t];
		/* Threads may get ahead of each other; departures keep to the recorded order. */
		while (passed <= i)
			leave_before(r, passed++);
		r->clock[t] = access_page(r, i, r->clock[t]);
		if (r->clock[t] > end)
			end = r->clock[t];
		r->at[t] = h->access[i].next;
		if (r->at[t] == SIM_NONE)
			r->heap[0] = r->heap[--r->heap_n];
		else
			r->clock[t] += h->access[r->at[t]].think_ns;
		sink(r, 0);
	}
	r->result->span_ns = end > begin ? end - begin : 0;
	r->result->outstanding = r->unread_pages;
}

static int prepare(struct replay *r)
{
	const struct sim_history *h = r->h;
	const struct ebb_policy *policy = r->config->policy;
	uint64_t pages = r->config->memory >> h->info.page_shift;

	r->state = calloc(h->pages + 1, sizeof(*r->state));
	r->surplus_page = calloc(h->pages + 1, sizeof(*r->surplus_page));
	r->surplus_member = calloc(h->pages + 1, sizeof(*r->surplus_member));
	r->unread = calloc(h->pages + 1, sizeof(*r->unread));
	r->clock = calloc(h->threads + 1, sizeof(*r->clock));
	r->at = calloc(h->threads + 1, sizeof(*r->at));
	r->heap = calloc(h->threads + 1, sizeof(*r->heap));
	r->process = calloc(h->processes + 1, sizeof(*r->process));
	if (!r->state || !r->surplus_page || !r->surplus_member || !r->unread || !r->clock ||
	    !r->at || !r->heap || !r->process)
		return -ENOMEM;
	r->inactive = pages / 2;
	r->room = pages / r->config->headroom;
	if (r->room > EBB_MAX_PREFETCHED / 2)
		r->room = EBB_MAX_PREFETCHED / 2;
	r->surplus_max = (r->config->memory - h->info.memory) >> h->info.page_shift;
	surplus_init(&r->surplus, r->config->order, r->surplus_page, r->surplus_member, pages / 2);
	for (uint32_t i = 0; i < h->pages; i++)
		r->state[i].where = h->page[i].resident ? RESIDENT : SWAPPED;
	for (uint32_t i = 0; i < h->processes; i++) {
		r->process[i] = (struct ebb_policy_sim){ .params = r->config->params,
							 .request = on_request, .data = r };
		r->process[i].state = calloc(1, policy->state_size ? policy->state_size : 1);
		if (!r->process[i].state)
			return -ENOMEM;
	}
	for (uint32_t i = 0; i < h->threads; i++)
		if (h->thread[i].first != SIM_NONE) {
			r->at[i] = h->thread[i].first;
			r->clock[i] = h->access[r->at[i]].think_ns;
			r->heap[r->heap_n++] = i;
		}
	for (uint32_t i = r->heap_n; i-- > 0;)
		sink(r, i);
	policy->reset();
	return 0;
}

int sim_replay(const struct sim_history *h, const struct sim_config *config,
	       struct sim_result *result, struct error *e)
{
	struct replay r = { .h = h, .config = config, .result = result };
	int ret = sim_memory_check(h, config->memory, e);

	if (ret)
		return ret;
	*result = (struct sim_result){ 0 };
	ret = prepare(&r);
	if (ret)
		fail(e, ret, "trace: too large for this machine: %s", strerror(-ret));
	else
		run(&r);
	for (uint32_t i = 0; r.process && i < h->processes; i++)
		free(r.process[i].state);
	free(r.state);
	free(r.surplus_page);
	free(r.surplus_member);
	free(r.unread);
	free(r.clock);
	free(r.at);
	free(r.heap);
	free(r.process);
	return ret;
}
