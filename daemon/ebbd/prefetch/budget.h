/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The amount that may be prefetched for each attached cgroup: by its limit (headroom), its
 * outstanding pages and its accuracy (throttle).  leaf.h has the limits of cgroups below it,
 * pacing.h those of devices.
 *
 * The main thread publishes budgets as an immutable table; the executor finds its
 * budget there and holds it by count.  No lock is taken: each field has one writer and is
 * atomic.  A function belongs to the main thread or to the executor's, as the sections below say.
 */
#ifndef EBB_BUDGET_H
#define EBB_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "ebbd/plane/events.h"
#include "ebbd/plane/plane.h"
#include "lib/host/cgroup.h"
#include "lib/rules/collapse.h"
#include "settings.h"

struct budget;
struct budget_table;

/* --- main thread ------------------------------------------------------------ */

/* @plane outlives it.  NULL without memory. */
struct budget_table *budget_table_new(const struct plane *plane,
				      const struct executor_config *config);
/* Requires that the executor has ended and that every budget was released. */
void budget_table_free(struct budget_table **t);

/* Returns a budget with its limit read, not published yet; NULL without memory. */
struct budget *budget_new(struct budget_table *t, const struct cgroup_ref *cgroup);
/* Releases @b; after the next publication the executor no longer finds it.  NULL is fine. */
void budget_put(struct budget **b);
/* Publishes the @n budgets @b, by owner, to the executor.  -ENOMEM changes nothing. */
int budget_publish(struct budget_table *t, struct budget *const *b, uint32_t n);

/* Sets the events that detect its hits; NULL while there are none. */
void budget_set_events(struct budget *b, struct event_set *events);
/* Waits until the executor uses no replaced events. */
void budget_quiesce(struct budget_table *t);

/* Reads limit and weight; returns whether that changed the limit of outstanding pages. */
bool budget_read_limit(struct budget *b, const struct cgroup_ref *cgroup);
/* Continues the counters of a previous ebbd; called before the executor runs. */
void budget_restore(struct budget *b, uint64_t prefetched, uint64_t expired);
/* Ten times a second, by the cgroup's counters: judges accuracy and misses. */
void budget_tick(struct budget *b, const struct ebb_counters *c, uint64_t now);
/*
 * One of its sources was just paused for a trial, or resumed after it: misses of this tick and the
 * next one do not have the prefetches of other cgroups limited.
 */
void budget_trial(struct budget *b);

/* --- any thread ------------------------------------------------------------- */

uint64_t budget_limit(const struct budget *b);      /* bytes; UINT64_MAX: none */
uint32_t budget_room(const struct budget *b);       /* pages that may be outstanding */
uint64_t budget_timely_ns(const struct budget *b);  /* 0: not known */
uint64_t budget_prefetched(const struct budget *b); /* pages requested from the kernel */
uint64_t budget_expired(const struct budget *b);    /* those of them that expired unread: wasted */
/* Pages requested from the kernel that @source predicted, since ebbd started. */
uint64_t budget_source_pages(const struct budget *b, uint32_t source);
uint64_t budget_source_expired(const struct budget *b, uint32_t source); /* as budget_expired() */
uint64_t budget_pages_cut(const struct budget *b);  /* pages requested beyond a limit */
uint64_t budget_pages_paced(const struct budget *b); /* pages that the limit of a device delayed */
uint32_t budget_weight(const struct budget *b);     /* by io.weight; 1 to 10000, usually 100 */
uint64_t budget_uses(const struct budget *b);       /* uses of hit detection so far */
/* Stores a copy, possibly amid a change; returns whether the setting allows collapsing. */
bool budget_collapse_report(const struct budget *b, struct collapse *c);
/* Returns the pages prefetched and not used yet, by the counters @c. */
uint64_t budget_outstanding(const struct budget *b, const struct ebb_counters *c);

/* The CPU on which its requests are executed: that to which its programs are pinned. */
#define BUDGET_ANY_CPU (-1)
void budget_place(struct budget *b, int cpu);
int budget_cpu(const struct budget *b);

/*
 * Refreshes the statistics that reclaim of its cgroup uses.
 *
 * Reclaim decides whether to shrink the active list by statistics that the kernel
 * flushes every 2 s.  A page that is swapped in soon after it was paged out goes to the
 * active list; if the inactive list runs empty before the next flush, reclaim fails and
 * the OOM killer ends a program of a cgroup whose pages could all go to swap.  Observed
 * on 6.18 without ebb, too: random accesses to twice its memory are killed one time in
 * eight.  Reading memory.stat flushes.
 */
void budget_refresh_stats(struct budget *b);

/* --- executor's thread ------------------------------------------------------ */

/* Returns the budget of the attached cgroup @owner, or NULL. */
struct budget *budget_hold(struct budget_table *t, uint64_t owner);
void budget_release(struct budget *b);

/* Returns the state of collapsing; it belongs to the executor's thread. */
struct collapse *budget_collapse(struct budget *b);
/* Reads from the counters the pages that the cgroup has swapped in. */
uint64_t budget_swapped_in(const struct budget *b);

/* Returns whether to execute its next request; a throttled cgroup gets only a sample. */
bool budget_passes(struct budget *b);

/*
 * Returns how many of @wanted pages may be requested: at most those that the cgroup's limit leaves,
 * and its share of the prefetched set: a cgroup may hold as many entries, in flight or idle, as are
 * free.  So one cgroup gets half of the set, n of them get 1 / (n + 1) each, and there are always
 * some for another.
 *
 * Reads the counters only if the known values do not allow @wanted.
 */
uint32_t budget_take(struct budget *b, uint32_t wanted, uint64_t now);
/* @pages that its policy requested were not granted, by this or another limit. */
void budget_cut(struct budget *b, uint32_t pages);
/* @pages were requested later than at its turn: the limit of their device was reached. */
void budget_paced(struct budget *b, uint32_t pages);
/* Returns whether the misses of another published cgroup outnumber its hits. */
bool budget_others_wait(const struct budget *b);
/* Switches hit detection on before the first page is requested. */
void budget_detect(struct budget *b);
/*
 * @asked pages were requested and entered the prefetched set.  This, lost and expired pages set the
 * cgroup's bit in maps/active, so that the next tick judges them.
 */
void budget_settle(struct budget *b, uint32_t asked);
/* @pages that @source predicted are being swapped in. */
void budget_predicted(struct budget *b, uint32_t source, uint32_t pages);
/*
 * @lost outstanding pages had been evicted unread, and were read once more because @source
 * predicted them, as it had before or another one.
 */
void budget_lost(struct budget *b, uint32_t source, uint32_t lost);

/* Returns whether a page requested at @issued_ns may still be in flight: others block nothing. */
bool budget_in_flight(uint64_t issued_ns, uint64_t now);

/* A sweep of the prefetched set; one at a time. */
struct budget_sweep;
struct budget_sweep *budget_sweep_begin(struct budget_table *t, uint64_t now);
/* Returns whether a page of @owner requested at @issued_ns stays outstanding. */
bool budget_sweep_keep(struct budget_sweep *s, uint64_t owner, uint64_t issued_ns);
void budget_sweep_expired(struct budget_sweep *s, uint64_t owner, uint32_t source);
void budget_sweep_end(struct budget_sweep *s);

#endif
