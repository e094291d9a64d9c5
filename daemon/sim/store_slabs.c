// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Swap devices made of slabs.  The kernel gives out swap slots by clusters of 2 MiB: each
 * processor fills one of its own, then takes the free cluster that has been free for longest, then
 * holes of used ones.  It discards a cluster when its last slot is free; the device releases a
 * slab when its last cluster has been discarded (daemon/swapd/replicas/repair.c).
 *
 * Pages of a slab that found no donor are on the disk until one has room: repair.c asks for it.
 *
 * With .pages, the unit is a page of a cluster instead, so that slabs play no part: it is lent when
 * it is first written, and free with the discard of its cluster.
 */
#include <errno.h>
#include <stdlib.h>

#include "lib/rules/placement.h"
#include "store.h"

#define NOWHERE UINT32_MAX
#define DONORS 2    /* FineMem's two memory nodes */
#define EMPTY_FOR 5 /* seconds, as in repair.c */

enum cluster_state { CLUSTER_FREE, CLUSTER_CURRENT, CLUSTER_USED };

struct cluster {
	uint16_t live, room; /* pages; room is what its processor has yet to fill */
	uint8_t state;
	bool written;        /* since it was last free */
	bool queued;         /* among those with holes */
	bool fresh;          /* was free when its processor took it */
};

struct ring {
	uint32_t *v, size, from, count;
};

struct slab {
	uint32_t donor;   /* or NOWHERE */
	uint32_t used;    /* clusters */
	uint32_t live;    /* pages */
	uint32_t emptied; /* second */
	bool listed;      /* among the emptied */
	bool waits;       /* among those on the disk */
};

struct device {
	struct cluster *clusters;
	struct ring free, holes;
	struct slab *slabs;
	uint32_t *emptied, n_emptied;
	struct ring waiting; /* slabs on the disk */
	uint32_t current[MIX_CPUS];
	uint32_t at[DONORS]; /* slabs of this device */
};

struct slabs {
	struct store store;
	struct store_slabs_config config;
	uint32_t clusters, per_slab, n_slabs, now; /* of a device */
	uint64_t seed;
	struct place_donor donors[DONORS];
	struct device devices[MIX_NODES];
};

static void ring_new(struct ring *r, uint32_t size)
{
	*r = (struct ring){ .v = calloc(size, sizeof(*r->v)), .size = size };
}

static void ring_put(struct ring *r, uint32_t v)
{
	r->v[(r->from + r->count++) % r->size] = v;
}

static uint32_t ring_get(struct ring *r)
{
	uint32_t v = r->v[r->from];

	r->from = (r->from + 1) % r->size;
	r->count--;
	return v;
}

static void release(struct slabs *s, struct device *d, struct slab *slab)
{
	s->donors[slab->donor].free += s->config.slab;
	s->donors[slab->donor].used -= s->config.slab;
	d->at[slab->donor]--;
	slab->donor = NOWHERE;
	s->store.lent -= s->config.slab / EBB_PAGE;
	s->store.unmaps++;
}

/* Releases slabs of @d that have been empty for @seconds. */
static void release_emptied(struct slabs *s, struct device *d, uint32_t seconds)
{
	uint32_t kept = 0;

	for (uint32_t i = 0; i < d->n_emptied; i++) {
		struct slab *slab = &d->slabs[d->emptied[i]];

		if (!slab->used && s->now - slab->emptied < seconds) {
			d->emptied[kept++] = d->emptied[i];
			continue;
		}
		slab->listed = false;
		if (!slab->used)
			release(s, d, slab);
	}
	d->n_emptied = kept;
}

static int choose(struct slabs *s, const struct device *d)
{
	const struct place_rule rule = { PLACE_CHOICES, PLACE_SPREAD };

	for (int i = 0; i < DONORS; i++)
		s->donors[i].slabs = d->at[i];
	return place_choose_by(s->donors, DONORS, s->config.slab, &rule, &s->seed);
}

static bool map(struct slabs *s, struct device *d, struct slab *slab)
{
	int donor = choose(s, d);

	/* A write waits 10 s for a slab: by then the emptied ones are back at their donors. */
	for (int i = 0; i < MIX_NODES && donor < 0; i++)
		if (s->devices[i].n_emptied) {
			release_emptied(s, &s->devices[i], 0);
			donor = choose(s, d);
		}
	if (donor < 0)
		return false;
	s->donors[donor].free -= s->config.slab;
	s->donors[donor].used += s->config.slab;
	d->at[donor]++;
	slab->donor = (uint32_t)donor;
	s->store.live += slab->live;
	s->store.lent += s->config.slab / EBB_PAGE;
	s->store.maps++;
	return true;
}

static void discard(struct slabs *s, struct device *d, uint32_t c)
{
	struct cluster *cluster = &d->clusters[c];
	struct slab *slab = &d->slabs[c / s->per_slab];

	cluster->state = CLUSTER_FREE;
	ring_put(&d->free, c);
	if (!cluster->written)
		return;
	cluster->written = false;
	if (s->config.pages) {
		s->store.lent -= STORE_RUN - cluster->room;
		s->store.unmaps += STORE_RUN - cluster->room;
		return;
	}
	if (--slab->used || slab->donor == NOWHERE)
		return;
	slab->emptied = s->now;
	if (!slab->listed)
		d->emptied[d->n_emptied++] = c / s->per_slab;
	slab->listed = true;
}

/* A cluster that no processor fills now. */
static void settle(struct slabs *s, struct device *d, uint32_t c)
{
	struct cluster *cluster = &d->clusters[c];

	cluster->state = CLUSTER_USED;
	if (!cluster->live) {
		discard(s, d, c);
	} else if (cluster->live < STORE_RUN && !cluster->queued) {
		cluster->queued = true;
		ring_put(&d->holes, c);
	}
}

/* Returns the next cluster to fill; NOWHERE if the device is full. */
static uint32_t next_cluster(struct device *d)
{
	if (d->free.count) {
		uint32_t c = ring_get(&d->free);

		d->clusters[c].room = STORE_RUN;
		d->clusters[c].fresh = true;
		return c;
	}
	while (d->holes.count) {
		uint32_t c = ring_get(&d->holes);
		struct cluster *cluster = &d->clusters[c];

		cluster->queued = false;
		if (cluster->state != CLUSTER_USED || cluster->live == STORE_RUN)
			continue;
		cluster->room = STORE_RUN - cluster->live;
		cluster->fresh = false;
		return c;
	}
	return NOWHERE;
}

static void write_slab(struct slabs *s, struct device *d, uint32_t c, uint32_t pages)
{
	uint32_t number = c / s->per_slab;
	struct slab *slab = &d->slabs[number];

	slab->used += !d->clusters[c].written;
	if (slab->donor == NOWHERE && !map(s, d, slab)) {
		s->store.refused++;
		if (!slab->waits)
			ring_put(&d->waiting, number);
		slab->waits = true;
	}
	slab->live += pages;
	if (slab->donor != NOWHERE)
		s->store.live += pages;
}

/* Returns how many of @pages find memory. */
static uint32_t lend_pages(struct slabs *s, const struct cluster *cluster, uint32_t pages)
{
	/* Holes are pages that are still lent. */
	if (!cluster->fresh)
		return pages;
	if (pages > STORE_PAGES - s->store.lent)
		pages = (uint32_t)(STORE_PAGES - s->store.lent);
	s->store.lent += pages;
	s->store.maps += pages;
	s->store.refused += !pages;
	return pages;
}

static uint32_t take(struct store *store, uint32_t node, uint32_t cpu, uint32_t pages, uint32_t *at)
{
	struct slabs *s = (struct slabs *)store;
	struct device *d = &s->devices[node];
	uint32_t c = d->current[cpu];
	struct cluster *cluster;

	if (c == NOWHERE || !d->clusters[c].room) {
		if (c != NOWHERE)
			settle(s, d, c);
		c = d->current[cpu] = next_cluster(d);
		if (c == NOWHERE) {
			s->store.refused++;
			return 0;
		}
		d->clusters[c].state = CLUSTER_CURRENT;
	}
	cluster = &d->clusters[c];
	if (pages > cluster->room)
		pages = cluster->room;
	if (s->config.pages) {
		pages = lend_pages(s, cluster, pages);
		s->store.live += pages;
	} else {
		write_slab(s, d, c, pages);
	}
	if (!pages)
		return 0;
	cluster->written = true;
	cluster->room -= pages;
	cluster->live += pages;
	*at = c;
	return pages;
}

static void put(struct store *store, uint32_t node, uint32_t at, uint32_t pages)
{
	struct slabs *s = (struct slabs *)store;
	struct device *d = &s->devices[node];

	struct slab *slab = &d->slabs[at / s->per_slab];

	if (s->config.pages || slab->donor != NOWHERE)
		s->store.live -= pages;
	if (!s->config.pages)
		slab->live -= pages;
	d->clusters[at].live -= pages;
	if (d->clusters[at].state == CLUSTER_USED)
		settle(s, d, at);
}

/* Requests slabs for what is on the disk, while there are any. */
static void repair(struct slabs *s, struct device *d)
{
	for (uint32_t n = d->waiting.count; n && choose(s, d) >= 0; n--) {
		uint32_t number = ring_get(&d->waiting);
		struct slab *slab = &d->slabs[number];

		slab->waits = false;
		if (slab->live && slab->donor == NOWHERE)
			map(s, d, slab);
	}
}

static void second(struct store *store, uint32_t now)
{
	struct slabs *s = (struct slabs *)store;

	s->now = now;
	for (int i = 0; i < MIX_NODES; i++)
		release_emptied(s, &s->devices[i], EMPTY_FOR);
	/* The first machine changes each second. */
	for (uint32_t i = 0; i < MIX_NODES; i++)
		repair(s, &s->devices[(now + i) % MIX_NODES]);
}

static void tear_down(struct store *store)
{
	struct slabs *s = (struct slabs *)store;

	for (int i = 0; i < MIX_NODES; i++) {
		struct device *d = &s->devices[i];

		free(d->clusters);
		free(d->free.v);
		free(d->holes.v);
		free(d->slabs);
		free(d->emptied);
		free(d->waiting.v);
	}
	free(s);
}

static int set_up(struct slabs *s, struct device *d)
{
	d->clusters = calloc(s->clusters, sizeof(*d->clusters));
	ring_new(&d->free, s->clusters);
	ring_new(&d->holes, s->clusters);
	ring_new(&d->waiting, s->n_slabs);
	d->slabs = calloc(s->n_slabs, sizeof(*d->slabs));
	d->emptied = calloc(s->n_slabs, sizeof(*d->emptied));
	if (!d->clusters || !d->free.v || !d->holes.v || !d->waiting.v || !d->slabs || !d->emptied)
		return -ENOMEM;
	for (uint32_t column = 0; column < s->config.columns; column++)
		for (uint32_t c = column; c < s->clusters; c += s->config.columns)
			ring_put(&d->free, c);
	for (uint32_t i = 0; i < s->n_slabs; i++)
		d->slabs[i].donor = NOWHERE;
	for (int i = 0; i < MIX_CPUS; i++)
		d->current[i] = NOWHERE;
	return 0;
}

int store_slabs_new(struct store **out, const struct store_slabs_config *config)
{
	static const struct store_ops ops = { take, put, second, tear_down };
	struct slabs *s = calloc(1, sizeof(*s));
	int r = 0;

	if (!s)
		return -ENOMEM;
	s->store.ops = &ops;
	s->config = *config;
	s->seed = config->seed;
	s->per_slab = (uint32_t)(config->slab / (STORE_RUN * EBB_PAGE));
	s->n_slabs = (uint32_t)(config->device / config->slab);
	s->clusters = s->n_slabs * s->per_slab;
	for (int i = 0; i < DONORS; i++)
		s->donors[i] = (struct place_donor){
			.usable = true, .total = MIX_LENT / DONORS, .free = MIX_LENT / DONORS,
			.memory = MIX_LENT / DONORS,
		};
	for (int i = 0; !r && i < MIX_NODES; i++)
		r = set_up(s, &s->devices[i]);
	if (r)
		tear_down(&s->store);
	else
		*out = &s->store;
	return r;
}
