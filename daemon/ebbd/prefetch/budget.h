/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * How much may be prefetched for each attached cgroup: by its limit (headroom), by what is
 * outstanding, by its accuracy (throttle) and by other cgroups' misses (pace).
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
#include "settings.h"

struct budget;
struct budget_table;

/* --- main thread ------------------------------------------------------------ */

/* @plane outlives it.  NULL without memory. */
struct budget_table *budget_table_new(const struct plane *plane,
				      const struct executor_config *config);
/* The executor has ended, and every budget was put. */
void budget_table_free(struct budget_table **t);

/* With its limit read, not published yet.  NULL without memory. */
struct budget *budget_new(struct budget_table *t, const struct cgroup_ref *cgroup);
/* The executor finds it no more after the next publication.  NULL is fine. */
void budget_put(struct budget **b);
/* The @n budgets @b are what the executor finds from now on, by owner.  -ENOMEM: as before. */
int budget_publish(struct budget_table *t, struct budget *const *b, uint32_t n);

/* The events that see its hits; NULL while there are none. */
void budget_set_events(struct budget *b, struct event_set *events);
/* When it returns, the executor uses no events that were replaced before. */
void budget_quiesce(struct budget_table *t);

/* Reads the limit; true when it changed how much may be outstanding. */
bool budget_read_limit(struct budget *b, const struct cgroup_ref *cgroup);
/* Continues what an earlier ebbd counted; before the executor runs. */
void budget_restore(struct budget *b, uint64_t prefetched, uint64_t expired);
/* Ten times a second, by the cgroup's counters: judges accuracy and misses. */
void budget_tick(struct budget *b, const struct ebb_counters *c, uint64_t now);

/* --- any thread ------------------------------------------------------------- */

uint64_t budget_limit(const struct budget *b);      /* bytes; UINT64_MAX: none */
uint32_t budget_room(const struct budget *b);       /* pages that may be outstanding */
uint64_t budget_timely_ns(const struct budget *b);  /* 0: not known */
uint64_t budget_prefetched(const struct budget *b); /* pages requested of the kernel */
uint64_t budget_expired(const struct budget *b);    /* of them expired unread: wasted */
uint64_t budget_uses(const struct budget *b);       /* of hit detection so far */
/* Pages prefetched and not used yet, by the counters @c. */
uint64_t budget_outstanding(const struct budget *b, const struct ebb_counters *c);

/*
 * Refreshes the statistics that reclaim of its cgroup goes by.
 *
 * Reclaim decides whether the active list must be shrunk by statistics that
 * the kernel flushes every 2 s.  A page that is swapped in soon after it was paged
 * out goes to the active list; once the inactive list has run dry before that
 * is noticed, nothing is reclaimed and the OOM killer strikes a cgroup whose
 * pages could all go to swap.  Seen on 6.18 without ebb too: a random walk over
 * twice its memory is killed one time in eight.  Reading memory.stat flushes,
 * and tells how much is under writeback.
 */
void budget_refresh_stats(struct budget *b);

/* --- executor's thread ------------------------------------------------------ */

/* The budget of the attached cgroup @owner, or NULL. */
struct budget *budget_hold(struct budget_table *t, uint64_t owner);
void budget_release(struct budget *b);

/* Whether its next request is carried out; a throttled cgroup gets a sample. */
bool budget_passes(struct budget *b);

struct budget_grant {
	uint32_t pages;         /* of those wanted */
	uint32_t batch, before; /* pages a call, and in flight when it is made */
};

/* Reads the counters only when what it knows of them does not allow @wanted. */
struct budget_grant budget_take(struct budget *b, uint32_t wanted);
/* Before the first page is requested: switches hit detection on. */
void budget_detect(struct budget *b);
/* Makes room for @pages where the limit would be felt; false: prefetch nothing. */
bool budget_make_room(struct budget *b, uint32_t pages);
/* @asked pages were requested and entered the prefetched set. */
void budget_settle(struct budget *b, uint32_t asked);
/* @lost outstanding pages had been evicted unread, and were read once more. */
void budget_lost(struct budget *b, uint32_t lost);

/* A sweep of the prefetched set; one at a time. */
struct budget_sweep;
struct budget_sweep *budget_sweep_begin(struct budget_table *t, uint64_t now);
/* Whether a page of @owner requested at @issued_ns stays outstanding. */
bool budget_sweep_keep(struct budget_sweep *s, uint64_t owner, uint64_t issued_ns);
void budget_sweep_expired(struct budget_sweep *s, uint64_t owner);
void budget_sweep_end(struct budget_sweep *s);

#endif
