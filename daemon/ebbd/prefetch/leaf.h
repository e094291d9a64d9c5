/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The memory cgroups in which processes are, at or below an attached cgroup: a page is charged to
 * such a leaf, and counts in all its ancestors.  So a leaf gets what its tightest limit allows.
 *
 * All functions belong to the executor's thread.
 */
#ifndef EBB_LEAF_H
#define EBB_LEAF_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/host/cgroup.h"

struct leaf;
struct leaves;

/* @map: descriptor of maps/leaves; @headroom: see settings.h.  NULL without memory. */
struct leaves *leaves_new(int map, uint32_t headroom);
void leaves_free(struct leaves **l);

/* Process @tgid was in the memory cgroup @id at @now. */
void leaves_learn(struct leaves *l, uint32_t tgid, uint64_t id, uint64_t now);
/* Adds the cgroup @c, which is not known yet; of EBB_MAX_LEAVES, the one learnt first goes. */
void leaves_add(struct leaves *l, const struct cgroup_ref *c, uint64_t now);
/*
 * Returns the cgroup with limits that are at most a second old, or NULL if it is not known: then
 * nothing may be prefetched for it.  Valid until the next call of leaves_learn(),
 * leaves_add() or leaves_sweep_end().
 */
struct leaf *leaf_find(struct leaves *l, uint64_t id, uint64_t now);

/* The tightest limit of the cgroup and its ancestors, bytes; UINT64_MAX: none. */
uint64_t leaf_limit(const struct leaf *leaf);
/* Returns how far the cgroup or an ancestor is below its limit, bytes; UINT64_MAX: no limit. */
uint64_t leaf_unused(const struct leaf *leaf);
/* Returns how many of @wanted pages may be requested. */
uint32_t leaf_take(struct leaves *l, struct leaf *leaf, uint32_t wanted);
/*
 * Frees memory for @pages near a limit; returns false to prefetch nothing, as where swap or a limit
 * on it is nearly full.
 */
bool leaf_make_room(struct leaf *leaf, uint32_t pages);
/* @asked pages were requested and entered the prefetched set. */
void leaf_settle(struct leaf *leaf, uint32_t asked);

/* A sweep of the prefetched set counts the pages in flight. */
void leaves_sweep_begin(struct leaves *l);
void leaves_sweep_page(struct leaves *l, uint32_t tgid);
/* Forgets cgroups that were not learnt for a minute. */
void leaves_sweep_end(struct leaves *l, uint64_t now);

#endif
