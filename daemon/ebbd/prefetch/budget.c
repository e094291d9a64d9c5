// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "budget.h"
#include "fair_queue.h"
#include "lib/base/files.h"
#include "lib/base/log.h"
#include "lib/rules/pace.h"
#include "lib/rules/throttle.h"

#define IDLE_NS 500000000ULL
#define RECOUNT_NS 20000000 /* least time between counts of all entries, of up to 1024 cgroups */

struct budget {
	struct budget_table *table;
	uint64_t owner;
	char *path;                            /* the cgroup's directory */
	int stat_fd;                           /* memory.stat, or -1 */
	atomic_uint refs;                      /* its attachment, tables, the executor */
	_Atomic(struct event_set *) events;    /* from here on written by the main thread */
	_Atomic uint64_t limit;
	_Atomic uint32_t room, weight;
	_Atomic uint32_t sample;               /* copies of throttle's, like the next three */
	_Atomic uint64_t timely_ns, resumed_ns, active_ns;
	atomic_int cpu;                        /* where its requests are executed */
	atomic_bool waits;                     /* it mostly misses: pace.h */
	struct throttle throttle;
	struct neighbour neighbour;
	uint32_t trial;                        /* ticks whose misses do not count */
	_Atomic uint64_t prefetched, expired;  /* from here on written by the executor */
	_Atomic uint64_t cut;                  /* pages that a limit did not grant */
	_Atomic uint64_t paced;                /* pages that the limit of a device delayed */
	_Atomic uint64_t source[EBB_SOURCES];  /* pages that each source predicted, */
	_Atomic uint64_t unread[EBB_SOURCES];  /* and those of them that expired */
	_Atomic uint64_t unused; /* pages outstanding so long that they are hardly needed */
	_Atomic uint64_t uses;
	uint64_t idle; /* pages outstanding too long to be in flight */
	uint64_t used; /* hits, late and wasted, when the counters were read */
	uint64_t sweep_idle, sweep_unused;
	uint32_t turn;
	struct collapse collapse;
};

struct view {
	atomic_uint refs;       /* the table, a sweep */
	uint32_t n;
	struct budget *item[];  /* by owner */
};

struct budget_sweep {
	struct view *view;
	struct budget *last;
	uint64_t now;
};

struct budget_table {
	const struct plane *plane;
	struct executor_config config;
	_Atomic(struct view *) view;
	atomic_uint
		readers; /* threads between loading a pointer and taking or dropping a reference */
	_Atomic uint32_t waiting; /* budgets in @view that wait; written by the main thread */
	struct budget_sweep sweep;
	uint64_t entries;       /* of all cgroups when they were counted, and those added since */
	uint64_t counted_ns;
};

static uint64_t get(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

/* For the only writer of @v. */
static void add(_Atomic uint64_t *v, uint64_t n)
{
	atomic_store_explicit(v, get(v) + n, memory_order_relaxed);
}

static void budget_unref(struct budget *b)
{
	if (atomic_fetch_sub(&b->refs, 1) != 1)
		return;
	if (b->stat_fd >= 0)
		close(b->stat_fd);
	free(b->path);
	free(b);
}

static void view_unref(struct view *v)
{
	if (!v || atomic_fetch_sub(&v->refs, 1) != 1)
		return;
	for (uint32_t i = 0; i < v->n; i++)
		budget_unref(v->item[i]);
	free(v);
}

static struct budget *find(const struct view *v, uint64_t owner)
{
	uint32_t low = 0, high = v ? v->n : 0;

	while (low < high) {
		uint32_t at = (low + high) / 2;

		if (v->item[at]->owner == owner)
			return v->item[at];
		if (v->item[at]->owner < owner)
			low = at + 1;
		else
			high = at;
	}
	return NULL;
}

/* --- main thread ------------------------------------------------------------ */

struct budget_table *budget_table_new(const struct plane *plane,
				      const struct executor_config *config)
{
	struct budget_table *t = calloc(1, sizeof(*t));

	if (t) {
		t->plane = plane;
		t->config = *config;
	}
	return t;
}

void budget_table_free(struct budget_table **t)
{
	if (*t)
		view_unref(atomic_load(&(*t)->view));
	free(*t);
	*t = NULL;
}

struct budget *budget_new(struct budget_table *t, const struct cgroup_ref *cgroup)
{
	struct budget *b = calloc(1, sizeof(*b));
	char path[PATH_MAX + 16];

	if (!b)
		return NULL;
	b->table = t;
	b->owner = cgroup->id;
	b->path = strdup(cgroup->path);
	if (!b->path) {
		free(b);
		return NULL;
	}
	atomic_init(&b->refs, 1);
	atomic_init(&b->cpu, BUDGET_ANY_CPU);
	/* On failure reads of it fail, without further effect. */
	snprintf(path, sizeof(path), "%s/memory.stat", cgroup->path);
	b->stat_fd = open(path, O_RDONLY | O_CLOEXEC);
	budget_read_limit(b, cgroup);
	return b;
}

void budget_put(struct budget **b)
{
	if (*b)
		budget_unref(*b);
	*b = NULL;
}

static int by_owner(const void *a, const void *b)
{
	uint64_t x = (*(struct budget *const *)a)->owner, y = (*(struct budget *const *)b)->owner;

	return x < y ? -1 : x > y;
}

void budget_quiesce(struct budget_table *t)
{
	/* A reader stays for some instructions, or for opening events. */
	while (atomic_load(&t->readers))
		sched_yield();
}

int budget_publish(struct budget_table *t, struct budget *const *b, uint32_t n)
{
	struct view *v = malloc(sizeof(*v) + n * sizeof(v->item[0])), *old;
	uint32_t waiting = 0;

	if (!v)
		return -ENOMEM;
	atomic_init(&v->refs, 1);
	v->n = n;
	for (uint32_t i = 0; i < n; i++) {
		v->item[i] = b[i];
		atomic_fetch_add(&b[i]->refs, 1);
		waiting += atomic_load(&b[i]->waits);
	}
	qsort(v->item, n, sizeof(v->item[0]), by_owner);
	atomic_store(&t->waiting, waiting);
	old = atomic_exchange(&t->view, v);
	budget_quiesce(t);
	view_unref(old);
	return 0;
}

void budget_set_events(struct budget *b, struct event_set *events)
{
	atomic_store(&b->events, events);
}

/*
 * Returns io.weight, which cgroup v2 has where the io controller is enabled; else FAIR_WEIGHT.
 * It is relative to siblings, so a user's cgroup must not raise its share among all by it.
 */
static uint32_t read_weight(const struct budget *b)
{
	char path[PATH_MAX + 16], text[64];
	uint32_t weight;
	struct stat st;

	snprintf(path, sizeof(path), "%s/io.weight", b->path);
	if (stat(path, &st) < 0 || st.st_uid || file_read(path, text, sizeof(text)) <= 0 ||
	    sscanf(text, "default %u", &weight) != 1 || !weight || weight > FAIR_WEIGHT_MAX)
		return FAIR_WEIGHT;
	return weight;
}

bool budget_read_limit(struct budget *b, const struct cgroup_ref *cgroup)
{
	uint64_t limit = cgroup_limit(cgroup), room = EBB_MAX_PREFETCHED / 2;
	uint32_t before = atomic_load(&b->room);

	if (limit != UINT64_MAX && (limit >> EBB_PAGE_SHIFT) / b->table->config.headroom < room)
		room = (limit >> EBB_PAGE_SHIFT) / b->table->config.headroom;
	atomic_store(&b->weight, read_weight(b));
	atomic_store(&b->limit, limit);
	atomic_store(&b->room, (uint32_t)room);
	return room != before;
}

void budget_restore(struct budget *b, uint64_t prefetched, uint64_t expired)
{
	atomic_store(&b->prefetched, prefetched);
	atomic_store(&b->expired, expired);
}

void budget_trial(struct budget *b)
{
	b->trial = 2;
}

void budget_tick(struct budget *b, const struct ebb_counters *c, uint64_t now)
{
	struct throttle *t = &b->throttle;
	bool waited = atomic_load(&b->waits), waits;

	if (b->trial) {
		b->trial--;
		neighbour_pass(&b->neighbour, c->misses, c->hits + c->late, c->miss_ns);
	} else {
		neighbour_tick(&b->neighbour, c->misses, c->hits + c->late, c->miss_ns);
	}
	waits = neighbour_waits(&b->neighbour);
	if (waits != waited) {
		atomic_store(&b->waits, waits);
		atomic_fetch_add(&b->table->waiting, waits ? 1 : UINT32_MAX);
	}
	throttle_tick(t, c->misses + c->hits + c->late, c->by_chance, budget_room(b), now);
	throttle_judge(t, c->hits - t->by_chance + c->late,
		       c->wasted + get(&b->expired) + get(&b->unused) + t->by_chance);
	atomic_store(&b->sample, t->sample);
	atomic_store(&b->timely_ns, t->timely_ns);
	atomic_store(&b->resumed_ns, t->resumed_ns);
	atomic_store(&b->active_ns, t->active_ns);
}

/* --- any thread ------------------------------------------------------------- */

uint64_t budget_limit(const struct budget *b)
{
	return get(&b->limit);
}

uint32_t budget_room(const struct budget *b)
{
	return atomic_load(&b->room);
}

uint64_t budget_timely_ns(const struct budget *b)
{
	return get(&b->timely_ns);
}

uint64_t budget_prefetched(const struct budget *b)
{
	return get(&b->prefetched);
}

uint64_t budget_expired(const struct budget *b)
{
	return get(&b->expired);
}

uint64_t budget_pages_cut(const struct budget *b)
{
	return get(&b->cut);
}

uint64_t budget_pages_paced(const struct budget *b)
{
	return get(&b->paced);
}

uint64_t budget_source_pages(const struct budget *b, uint32_t source)
{
	return get(&b->source[source]);
}

uint64_t budget_source_expired(const struct budget *b, uint32_t source)
{
	return get(&b->unread[source]);
}

uint32_t budget_weight(const struct budget *b)
{
	return atomic_load(&b->weight);
}

bool budget_collapse_report(const struct budget *b, struct collapse *c)
{
	*c = b->collapse;
	return b->table->config.collapse == COLLAPSE_AUTO;
}

uint64_t budget_uses(const struct budget *b)
{
	return atomic_load(&b->uses);
}

void budget_place(struct budget *b, int cpu)
{
	atomic_store(&b->cpu, cpu);
}

int budget_cpu(const struct budget *b)
{
	return atomic_load(&b->cpu);
}

static uint64_t outstanding(const struct budget *b, uint64_t used)
{
	uint64_t gone = used + get(&b->expired), all = get(&b->prefetched);

	return all > gone ? all - gone : 0;
}

uint64_t budget_outstanding(const struct budget *b, const struct ebb_counters *c)
{
	return outstanding(b, c->hits + c->late + c->wasted);
}

void budget_refresh_stats(struct budget *b)
{
	char text[4096];

	if (pread(b->stat_fd, text, sizeof(text), 0) < 0)
		log_debug("%s/memory.stat: %m", b->path);
}

/* --- executor's thread ------------------------------------------------------ */

struct budget *budget_hold(struct budget_table *t, uint64_t owner)
{
	struct budget *b;

	atomic_fetch_add(&t->readers, 1);
	b = find(atomic_load(&t->view), owner);
	if (b)
		atomic_fetch_add(&b->refs, 1);
	atomic_fetch_sub(&t->readers, 1);
	return b;
}

void budget_release(struct budget *b)
{
	if (b)
		budget_unref(b);
}

struct collapse *budget_collapse(struct budget *b)
{
	return &b->collapse;
}

uint64_t budget_swapped_in(const struct budget *b)
{
	struct ebb_counters c;

	plane_counters(b->table->plane, b->owner, &c);
	return c.swapped_in;
}

bool budget_passes(struct budget *b)
{
	uint32_t sample = atomic_load(&b->sample);

	return !sample || b->turn++ % sample == 0;
}

/* Returns the pages that may be requested, by the last counters. */
static uint64_t left(const struct budget *b)
{
	uint64_t out = outstanding(b, b->used), room = budget_room(b);

	/* Idle pages are no longer in flight, and would block the others. */
	out = out > b->idle ? out - b->idle : 0;
	return room > out ? room - out : 0;
}

static struct view *view_hold(struct budget_table *t)
{
	struct view *v;

	atomic_fetch_add(&t->readers, 1);
	v = atomic_load(&t->view);
	if (v)
		atomic_fetch_add(&v->refs, 1);
	atomic_fetch_sub(&t->readers, 1);
	return v;
}

static void read_used(struct budget *b)
{
	struct ebb_counters c;

	plane_counters(b->table->plane, b->owner, &c);
	b->used = c.hits + c.late + c.wasted;
}

static void count_entries(struct budget_table *t, uint64_t now)
{
	struct view *v = view_hold(t);

	t->counted_ns = now;
	t->entries = 0;
	for (uint32_t i = 0; v && i < v->n; i++) {
		struct budget *b = v->item[i];

		/* Without requests since it was 0, it still is. */
		if (outstanding(b, b->used))
			read_used(b);
		t->entries += outstanding(b, b->used);
	}
	view_unref(v);
}

/* Returns the entries of the prefetched set that the cgroup may take. */
static uint64_t share(const struct budget *b)
{
	uint64_t all = b->table->entries, own = outstanding(b, b->used);
	uint64_t unused = all < EBB_MAX_PREFETCHED ? EBB_MAX_PREFETCHED - all : 0;

	return unused > own ? unused - own : 0;
}

uint32_t budget_take(struct budget *b, uint32_t wanted, uint64_t now)
{
	uint64_t may = left(b);

	if (may < wanted) {
		read_used(b);
		may = left(b);
	}
	if (share(b) < wanted && now - b->table->counted_ns >= RECOUNT_NS)
		count_entries(b->table, now);
	may = share(b) < may ? share(b) : may;
	return may < wanted ? (uint32_t)may : wanted;
}

void budget_cut(struct budget *b, uint32_t pages)
{
	add(&b->cut, pages);
}

void budget_paced(struct budget *b, uint32_t pages)
{
	add(&b->paced, pages);
}

bool budget_others_wait(const struct budget *b)
{
	return atomic_load(&b->table->waiting) > atomic_load(&b->waits);
}

void budget_detect(struct budget *b)
{
	struct event_set *events;

	/*
	 * Count the use first: the main thread, which switches unused detection off, checks the
	 * count again afterwards.
	 */
	atomic_store(&b->uses, atomic_load(&b->uses) + 1);
	atomic_fetch_add(&b->table->readers, 1);
	events = atomic_load(&b->events);
	if (events && !events_detecting(events))
		events_detect_on(events);
	atomic_fetch_sub(&b->table->readers, 1);
}

/*
 * Has the next tick look at the cgroup, as the BPF programs do: it may have become idle while a
 * call waited for a device.  Comes after the change that the tick is to see.
 */
static void tell_tick(const struct budget *b)
{
	uint32_t bit = ebb_active_bit(b->owner);

	__atomic_fetch_or(&b->table->plane->active->counted[bit / 64], 1ULL << (bit & 63),
			  __ATOMIC_RELEASE);
}

void budget_settle(struct budget *b, uint32_t asked)
{
	add(&b->prefetched, asked);
	b->table->entries += asked;
	tell_tick(b);
}

void budget_predicted(struct budget *b, uint32_t source, uint32_t pages)
{
	if (source < EBB_SOURCES)
		add(&b->source[source], pages);
}

void budget_lost(struct budget *b, uint32_t source, uint32_t lost)
{
	budget_predicted(b, source, lost);
	if (source < EBB_SOURCES)
		add(&b->unread[source], lost);
	add(&b->expired, lost);
	add(&b->prefetched, lost);
	tell_tick(b);
}

bool budget_in_flight(uint64_t issued_ns, uint64_t now)
{
	return issued_ns + IDLE_NS >= now;
}

struct budget_sweep *budget_sweep_begin(struct budget_table *t, uint64_t now)
{
	struct budget_sweep *s = &t->sweep;

	s->view = view_hold(t);
	s->last = NULL;
	s->now = now;
	for (uint32_t i = 0; s->view && i < s->view->n; i++)
		s->view->item[i]->sweep_idle = s->view->item[i]->sweep_unused = 0;
	return s;
}

static struct budget *sweep_find(struct budget_sweep *s, uint64_t owner)
{
	if (!s->last || s->last->owner != owner)
		s->last = find(s->view, owner);
	return s->last;
}

bool budget_sweep_keep(struct budget_sweep *s, uint64_t owner, uint64_t issued_ns)
{
	struct budget *b = sweep_find(s, owner);
	struct throttle t;
	bool waited;

	if (!b)
		return true;
	t = (struct throttle){ .timely_ns = get(&b->timely_ns), .resumed_ns = get(&b->resumed_ns),
			       .active_ns = get(&b->active_ns) };
	waited = throttle_waited(&t, issued_ns);
	/*
	 * Old pages of a throttled cgroup are forgotten: where accesses are random, some are
	 * used by chance, which would speak for the policy.
	 */
	if (waited && atomic_load(&b->sample))
		return false;
	b->sweep_idle += !budget_in_flight(issued_ns, s->now);
	b->sweep_unused += waited;
	return true;
}

void budget_sweep_expired(struct budget_sweep *s, uint64_t owner, uint32_t source)
{
	struct budget *b = sweep_find(s, owner);

	if (!b)
		return;
	add(&b->expired, 1);
	if (source < EBB_SOURCES)
		add(&b->unread[source], 1);
	tell_tick(b);
}

void budget_sweep_end(struct budget_sweep *s)
{
	for (uint32_t i = 0; s->view && i < s->view->n; i++) {
		struct budget *b = s->view->item[i];

		b->idle = b->sweep_idle;
		atomic_store(&b->unused, b->sweep_unused);
	}
	view_unref(s->view);
	s->view = NULL;
}
