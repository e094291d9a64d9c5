// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "job_heap.h"
#include "lib/base/bytes.h"

#define LEAVES (WIRE_JOB_REGIONS / JOB_LEAF)
#define TYPE_LEAVES (WIRE_JOB_TYPES / JOB_TYPES)
#define LEAVES_BYTES (LEAVES * sizeof(struct job_region **))
#define LEAF_BYTES (JOB_LEAF * sizeof(struct job_region *))
#define TYPE_LEAVES_BYTES (TYPE_LEAVES * sizeof(struct layout **))
#define TYPE_LEAF_BYTES (JOB_TYPES * sizeof(struct layout *))
#define OUTS_BYTES (JOB_OUT_PLACES * sizeof(struct job_out))

_Static_assert(OUTS_BYTES <= JOB_CHUNK, "it is a block");
_Static_assert(WIRE_JOB_TRACED_SIZE + JOB_OUTS * (WIRE_JOB_SET_SIZE + 8) <= WIRE_JOB_MOST,
	       "all of them fit a reply");
_Static_assert(WIRE_JOB_REGIONS < UINT32_MAX / TABLET_WORDS, "a key has 32 bits");
_Static_assert(LEAVES_BYTES <= JOB_CHUNK && LEAF_BYTES <= JOB_CHUNK, "tables are blocks");
_Static_assert(WIRE_JOB_RUNS == LAYOUT_RUNS, "a layout has the runs of a frame");

int jobs_new(struct jobs **out, uint64_t bytes, uint32_t percent)
{
	struct jobs *j = calloc(1, sizeof(*j));

	if (!j || job_memory_init(&j->memory, bytes)) {
		free(j);
		return -ENOMEM;
	}
	j->percent = percent;
	/* The first turn of a loop is not this one. */
	j->worked = UINT64_MAX;
	*out = j;
	return 0;
}

void jobs_free(struct jobs **jobs)
{
	if (*jobs)
		job_memory_free(&(*jobs)->memory);
	free(*jobs);
	*jobs = NULL;
}

static void *take(struct job_heap *h, size_t bytes)
{
	return job_take(&h->jobs->memory, &h->share, bytes);
}

static void give(struct job_heap *h, void *block, size_t bytes)
{
	job_give(&h->jobs->memory, &h->share, block, bytes);
}

/* --- regions ---------------------------------------------------------------------- */

struct job_region *job_region_find(const struct job_heap *h, uint32_t number)
{
	struct job_region **leaf = number < h->regions ? h->leaves[number >> JOB_LEAF_SHIFT] : NULL;

	return leaf ? leaf[number & (JOB_LEAF - 1)] : NULL;
}

uint8_t *job_region_memory(const struct job_heap *h, const struct job_region *r)
{
	uint8_t *memory = NULL;

	if (!h->member || far_extent_memory(h->member, &r->extent, &memory) != WIRE_OK)
		return NULL;
	return memory + r->base;
}

static size_t region_bytes(uint32_t words)
{
	return sizeof(struct job_region) + words * (4 * sizeof(uint64_t) + sizeof(uint16_t));
}

void job_region_queue(struct job_heap *h, struct job_region *r)
{
	if (r->queued)
		return;
	r->queued = true;
	r->next = NULL;
	r->previous = h->last;
	if (h->last)
		h->last->next = r;
	else
		h->first = r;
	h->last = r;
	h->queued++;
}

void job_region_unqueue(struct job_heap *h, struct job_region *r)
{
	if (!r->queued || r->cycle != h->cycle.cycle)
		return;
	*(r->previous ? &r->previous->next : &h->first) = r->next;
	*(r->next ? &r->next->previous : &h->last) = r->previous;
	r->queued = false;
	h->queued--;
}

void job_region_unqueue_all(struct job_heap *h)
{
	h->first = h->last = h->part = NULL;
	h->queued = 0;
}

static void drop_region(struct job_heap *h, struct job_region *r)
{
	struct job_region **leaf = h->leaves[r->number >> JOB_LEAF_SHIFT];

	job_region_unqueue(h, r);
	if (h->part == r)
		h->part = NULL;
	leaf[r->number & (JOB_LEAF - 1)] = NULL;
	h->placed--;
	h->jobs->regions--;
	give(h, r, region_bytes(r->words));
}

/* Returns the entry of region @number, or NULL without memory. */
static struct job_region **region_entry(struct job_heap *h, uint32_t number)
{
	struct job_region ***leaf = &h->leaves[number >> JOB_LEAF_SHIFT];

	if (!*leaf)
		*leaf = take(h, LEAF_BYTES);
	return *leaf ? *leaf + (number & (JOB_LEAF - 1)) : NULL;
}

static bool add_region(struct job_heap *h, const struct wire_job_place *p, const uint8_t *bits)
{
	struct job_region **entry = region_entry(h, p->region);
	struct job_region *r = entry ? take(h, region_bytes(p->words)) : NULL;

	if (!r)
		return false;
	*r = (struct job_region){
		.number = p->region, .version = p->version, .slot_bytes = p->slot_bytes,
		.slots = tablet_slots(p->slot_bytes), .words = p->words,
		.leaf = p->flags & WIRE_JOB_LEAF,
		.extent = { p->arena, p->class, p->at, p->generation }, .base = p->base,
		.live = r->tables, .marks = r->tables + p->words,
		.traced = r->tables + 2 * p->words, .named = r->tables + 3 * p->words,
		.before = (uint16_t *)(r->tables + 4 * p->words),
	};
	for (uint32_t i = 0; i < p->words; i++)
		r->live[i] = get64(bits + 8 * i);
	tablet_index(r->live, r->slots, r->before);
	/* What leaves during a cycle lives in it: the borrower has traced it. */
	if (far_cycle_keeps(&h->cycle)) {
		r->cycle = h->cycle.cycle;
		memcpy(r->marks, r->live, p->words * 8);
		memcpy(r->traced, r->live, p->words * 8);
	}
	*entry = r;
	h->placed++;
	h->jobs->regions++;
	return true;
}

/* --- PLACE ------------------------------------------------------------------------ */

/* Returns whether @p is the record that the region has. */
static bool is_present(const struct job_region *r, const struct wire_job_place *p,
		       const uint8_t *bits)
{
	if (r->version != p->version || r->slot_bytes != p->slot_bytes || r->words != p->words ||
	    r->leaf != (p->flags & WIRE_JOB_LEAF) || r->base != p->base ||
	    r->extent.arena != p->arena || r->extent.class != p->class || r->extent.at != p->at ||
	    r->extent.generation != p->generation)
		return false;
	for (uint32_t i = 0; i < p->words; i++)
		if (r->live[i] != get64(bits + 8 * i))
			return false;
	return true;
}

/* Returns WIRE_OK if the region's objects lie in an extent of the member. */
static uint16_t check_bytes(const struct job_heap *h, const struct wire_job_place *p,
			    const uint8_t *bits)
{
	const struct far_extent e = { p->arena, p->class, p->at, p->generation };
	uint32_t slots = tablet_slots(p->slot_bytes);
	uint64_t live[TABLET_WORDS];
	uint8_t *memory;
	uint16_t st;

	if (!slots || p->words != tablet_words(slots) || p->base % TABLET_GRANULE)
		return WIRE_BAD_REGION;
	for (uint32_t i = 0; i < p->words; i++)
		live[i] = get64(bits + 8 * i);
	if (!tablet_fits(live, slots))
		return WIRE_BAD_REGION;
	st = far_extent_memory(h->member, &e, &memory);
	if (st != WIRE_OK)
		return st;
	return (uint64_t)p->base + tablet_bytes(live, slots, p->slot_bytes) <=
	       ebb_far_bytes(p->class) ? WIRE_OK : WIRE_BAD_REGION;
}

static uint16_t check_place(const struct job_heap *h, const struct wire_job_place *p,
			    const uint8_t *bits)
{
	const struct job_region *r = job_region_find(h, p->region);

	if (p->region >= h->regions || !p->version)
		return WIRE_BAD_REGION;
	if (r && p->slot_bytes && is_present(r, p, bits))
		return WIRE_OK;
	if (r && p->version <= r->version)
		return WIRE_OLD_VERSION;
	/* Its marks are those of objects in the old place, and some of these are not traced yet. */
	if (r && far_cycle_runs(&h->cycle))
		return WIRE_CYCLE_RUNS;
	if (!p->slot_bytes)
		return p->words ? WIRE_BAD_REGION : WIRE_OK;
	return check_bytes(h, p, bits);
}

static uint16_t take_record(struct job_heap *h, const struct wire_job_place *p, const uint8_t *bits)
{
	struct job_region *r = job_region_find(h, p->region);

	/* Of two records of a region in a frame, the first may have changed it. */
	if (r && p->slot_bytes && is_present(r, p, bits))
		return WIRE_OK;
	if (r && p->version <= r->version)
		return WIRE_OLD_VERSION;
	if (r)
		drop_region(h, r);
	return !p->slot_bytes || add_region(h, p, bits) ? WIRE_OK : WIRE_OVER_QUOTA;
}

int job_heap_place(struct job_heap *h, const uint8_t *payload, uint32_t length, uint16_t *status)
{
	struct wire_job_place p;
	const uint8_t *bits;
	size_t at = 0;
	int r;

	*status = WIRE_OK;
	while ((r = wire_next_job_place(payload, length, &at, &p, &bits)) > 0 && *status == WIRE_OK)
		*status = check_place(h, &p, bits);
	if (r < 0 || *status != WIRE_OK)
		return r < 0 ? r : 0;
	at = 0;
	while (*status == WIRE_OK && wire_next_job_place(payload, length, &at, &p, &bits) > 0)
		*status = take_record(h, &p, bits);
	return 0;
}

/* --- HEAP ------------------------------------------------------------------------- */

const struct layout *job_type_find(const struct job_heap *h, uint32_t type)
{
	struct layout **leaf = type < WIRE_JOB_TYPES ? h->types[type >> JOB_TYPES_SHIFT] : NULL;

	return leaf ? leaf[type & (JOB_TYPES - 1)] : NULL;
}

static uint16_t add_type(struct job_heap *h, uint32_t type, const struct layout *l)
{
	struct layout ***leaf = &h->types[type >> JOB_TYPES_SHIFT], **entry;

	if (!*leaf)
		*leaf = take(h, TYPE_LEAF_BYTES);
	if (!*leaf)
		return WIRE_OVER_QUOTA;
	entry = *leaf + (type & (JOB_TYPES - 1));
	if (*entry)
		return memcmp(*entry, l, sizeof(*l)) ? WIRE_BAD_LAYOUT : WIRE_OK;
	*entry = take(h, sizeof(*l));
	if (!*entry)
		return WIRE_OVER_QUOTA;
	**entry = *l;
	return WIRE_OK;
}

/* Adds the types behind the head of HEAP. */
static int add_types(struct job_heap *h, const uint8_t *payload, uint32_t length, uint32_t count,
		     uint16_t *status)
{
	struct wire_job_run runs[WIRE_JOB_RUNS];
	size_t at = WIRE_JOB_HEAP_SIZE;
	struct wire_job_layout w;
	uint32_t n = 0;
	int r;

	for (*status = WIRE_OK; *status == WIRE_OK; n++) {
		struct layout l;

		r = wire_next_job_layout(payload, length, &at, &w, runs);
		if (r <= 0)
			return r ?: n == count ? 0 : -EPROTO;
		/* All of it, padding included, so that equal ones compare as such. */
		memset(&l, 0, sizeof(l));
		l.size = w.size;
		l.element_size = w.element_size;
		l.length_offset = w.length_offset;
		l.length_width = w.length_width;
		l.runs = w.runs;
		l.bitmap = w.bitmap;
		for (uint32_t i = 0; i < w.runs; i++) {
			l.run[i].offset = runs[i].offset;
			l.run[i].stride = runs[i].stride;
			l.run[i].count = runs[i].count;
		}
		*status = layout_is_valid(&l) ? add_type(h, w.type, &l) : WIRE_BAD_LAYOUT;
	}
	return 0;
}

static bool free_some(struct job_heap *h);

static struct job_heap *heap_new(struct jobs *jobs, const struct far_member *m,
				 const struct wire_job_heap *w)
{
	struct job_share share;
	struct job_heap *h;

	job_share_init(&share);
	h = job_take(&jobs->memory, &share, sizeof(*h));
	if (!h)
		return NULL;
	*h = (struct job_heap){
		.jobs = jobs, .member = m, .base = w->base, .mask = w->mask, .regions = w->regions,
		.share = share,
	};
	h->leaves = take(h, LEAVES_BYTES);
	h->types = take(h, TYPE_LEAVES_BYTES);
	h->outs = take(h, OUTS_BYTES);
	jobs->heaps++;
	if (h->leaves && h->types && h->outs)
		return h;
	while (!free_some(h))
		;
	return NULL;
}

int job_heap_describe(struct jobs *jobs, struct job_heap **heap, const struct far_member *m,
		      const uint8_t *payload, uint32_t length, uint16_t *status)
{
	struct job_heap *h = *heap;
	struct wire_job_heap w;

	if (wire_parse_job_heap(payload, length, &w))
		return -EPROTO;
	*status = WIRE_OK;
	if (!h)
		h = *heap = heap_new(jobs, m, &w);
	else if (h->base != w.base || h->mask != w.mask || h->regions != w.regions)
		*status = WIRE_NO_HEAP;
	if (!h)
		*status = WIRE_OVER_QUOTA;
	return *status == WIRE_OK ? add_types(h, payload, length, w.layouts, status) : 0;
}

/* --- the share of the processor --------------------------------------------------- */

/* Returns how many heaps share the processor at @now, when @h has worked for @took. */
static uint32_t users_of(struct jobs *jobs, struct job_heap *h, uint64_t took, uint64_t now)
{
	uint64_t window = now / JOB_WINDOW + 1, share = JOB_WINDOW * jobs->percent / 100;
	uint32_t users;

	if (jobs->window != window) {
		jobs->users_before = jobs->window + 1 == window ? jobs->users : 0;
		jobs->users = 0;
		jobs->window = window;
	}
	if (h->window != window) {
		h->window = window;
		h->used = 0;
		h->is_user = false;
	}
	h->used += took;
	/* One that uses less than half of an equal part leaves the rest to the others. */
	if (!h->is_user && h->used >= share / jobs->heaps / 2) {
		h->is_user = true;
		jobs->users++;
	}
	users = jobs->users > jobs->users_before ? jobs->users : jobs->users_before;
	/* Members that have left count no more. */
	users = users < jobs->heaps ? users : jobs->heaps;
	return users ?: 1;
}

void job_heap_charge(struct job_heap *h, uint64_t begun, uint64_t now)
{
	uint64_t took = now - begun, percent = h->jobs->percent;
	uint64_t from = h->next_at > begun ? h->next_at : now;

	h->served_at = now;
	h->next_at = from + took * (100ull * users_of(h->jobs, h, took, now) - percent) / percent;
}

uint32_t job_heap_pause(struct job_heap *h, uint64_t now)
{
	if (!h->told_at && h->next_at > now)
		h->told_at = h->next_at < now + JOB_WINDOW ? h->next_at : now + JOB_WINDOW;
	if (h->told_at <= now) {
		h->told_at = 0;
		return 0;
	}
	h->jobs->counts.postponed++;
	return (uint32_t)((h->told_at - now + 999) / 1000);
}

uint64_t job_heap_wait(const struct job_heap *h, enum wire_job_op op, uint64_t now)
{
	uint64_t until = h->next_at > JOB_BURST ? h->next_at - JOB_BURST : 0;

	if (until > h->served_at + JOB_WINDOW)
		until = h->served_at + JOB_WINDOW;
	if (job_may_pause(op) && until > h->told_at)
		until = h->told_at;
	return until > now ? until - now : 0;
}

/* --- the end ---------------------------------------------------------------------- */

static void free_leaf(struct job_heap *h, struct job_region ***leaf)
{
	for (uint32_t i = 0; i < JOB_LEAF; i++)
		if ((*leaf)[i])
			drop_region(h, (*leaf)[i]);
	give(h, *leaf, LEAF_BYTES);
	*leaf = NULL;
}

static void free_types(struct job_heap *h, struct layout **leaf)
{
	for (uint32_t i = 0; i < JOB_TYPES; i++)
		give(h, leaf[i], sizeof(*leaf[i]));
	give(h, leaf, TYPE_LEAF_BYTES);
}

/* Frees a piece; returns true when nothing is left, the heap itself included. */
static bool free_some(struct job_heap *h)
{
	struct jobs *jobs = h->jobs;
	struct job_share share;

	for (; h->leaves && h->end_leaf < LEAVES; h->end_leaf++)
		if (h->leaves[h->end_leaf]) {
			free_leaf(h, &h->leaves[h->end_leaf]);
			return false;
		}
	for (; h->types && h->end_type < TYPE_LEAVES; h->end_type++)
		if (h->types[h->end_type]) {
			free_types(h, h->types[h->end_type++]);
			return false;
		}
	give(h, h->leaves, LEAVES_BYTES);
	give(h, h->types, TYPE_LEAVES_BYTES);
	give(h, h->outs, OUTS_BYTES);
	jobs->heaps--;
	share = h->share;
	job_give(&jobs->memory, &share, h, sizeof(*h));
	return true;
}

void job_heap_end(struct job_heap **heap)
{
	struct job_heap *h = *heap;

	*heap = NULL;
	if (!h)
		return;
	h->jobs->counts.abandoned += far_cycle_runs(&h->cycle);
	h->member = NULL;
	h->next = h->jobs->ending;
	h->jobs->ending = h;
}

bool jobs_turn(struct jobs *jobs)
{
	struct job_heap *h = jobs->ending, *next = h ? h->next : NULL;

	if (h && free_some(h))
		jobs->ending = next;
	return jobs->ending;
}
