// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "job_trace.h"
#include "lib/base/bytes.h"

/* Entries of the table of regions that an END looks at: about 100 us. */
#define END_REGIONS (64u << 10)
/* Least work of a TRACE, so that each goes on. */
#define WORK_LEAST (64 * JOB_PARTS)

static void spend(struct job_heap *h, uint32_t parts)
{
	h->work = parts < h->work ? h->work - parts : 0;
}

/* --- marks ------------------------------------------------------------------------ */

/* Returns the region with bits of the present cycle, or NULL: it is not here. */
static struct job_region *region_in_cycle(struct job_heap *h, uint32_t number)
{
	struct job_region *r = job_region_find(h, number);

	if (r && r->cycle != h->cycle.cycle) {
		spend(h, r->words / JOB_PARTS);
		memset(r->marks, 0, r->words * 8);
		memset(r->traced, 0, r->words * 8);
		memset(r->named, 0, r->words * 8);
		r->cycle = h->cycle.cycle;
		r->ready = 0;
		r->queued = false;
	}
	return r;
}

enum found { FOUND_HERE, FOUND_ELSEWHERE, FOUND_ODD };

/* Finds the object at a granule of a region that may be NULL. */
static enum found find_slot(const struct job_region *r, uint32_t granule, uint32_t *slot)
{
	if (!r)
		return FOUND_ELSEWHERE;
	*slot = tablet_slot_at(granule * TABLET_GRANULE, r->slot_bytes);
	if (*slot == r->slots)
		return FOUND_ODD;
	/* A ghost is traced without a mark. */
	return tablet_has(r->live, *slot) &&
	       (!tablet_has(r->traced, *slot) || tablet_has(r->marks, *slot)) ? FOUND_HERE :
									       FOUND_ELSEWHERE;
}

static void mark(struct job_heap *h, struct job_region *r, uint32_t slot)
{
	uint64_t bit = UINT64_C(1) << slot % 64;

	if (r->marks[slot / 64] & bit)
		return;
	r->marks[slot / 64] |= bit;
	h->traced.visited++;
	h->jobs->counts.marked++;
	if (r->leaf) {
		r->traced[slot / 64] |= bit;
		return;
	}
	r->ready |= UINT64_C(1) << slot / 64;
	job_region_queue(h, r);
}

/* Calls fn(h, r, slot) for the set's objects; returns WIRE_BAD_REGION if one is not here. */
static uint16_t for_each(struct job_heap *h, const struct wire_job_set *s,
			 void (*fn)(struct job_heap *, struct job_region *, uint32_t))
{
	struct job_region *r = region_in_cycle(h, s->region);

	for (uint32_t i = 0; i < s->words; i++)
		for (uint64_t bits = get64(s->bits + 8 * i); bits; bits &= bits - 1) {
			uint32_t granule = 64 * (s->first + i) + (uint32_t)__builtin_ctzll(bits);
			uint32_t slot;

			if (find_slot(r, granule, &slot) != FOUND_HERE)
				return WIRE_BAD_REGION;
			spend(h, 1);
			fn(h, r, slot);
		}
	return WIRE_OK;
}

/* Applies fn() to all sets behind the payload's head. */
static int apply(struct job_heap *h, const uint8_t *payload, uint32_t length, size_t at,
		 void (*fn)(struct job_heap *, struct job_region *, uint32_t), uint16_t *status)
{
	struct wire_job_set s;
	int r;

	while ((r = wire_next_job_set(payload, length, &at, &s)) > 0) {
		*status = for_each(h, &s, fn);
		if (*status != WIRE_OK)
			break;
	}
	/* The borrower's view is another one: it abandons the cycle. */
	if (r < 0 || *status != WIRE_OK) {
		h->jobs->counts.abandoned++;
		far_cycle_aborts(&h->cycle, h->cycle.cycle);
	}
	return r < 0 ? r : 0;
}

static void clear_outs(struct job_heap *h)
{
	memset(h->outs, 0, JOB_OUT_PLACES * sizeof(*h->outs));
	h->out_count = 0;
}

/* --- BEGIN ------------------------------------------------------------------------ */

static void make_ghost(struct job_heap *h, struct job_region *r, uint32_t slot)
{
	r->traced[slot / 64] |= UINT64_C(1) << slot % 64;
}

/* Of a repeated BEGIN, ghosts are ghosts already. */
static uint16_t add_ghosts(struct job_heap *h, const struct wire_job_set *s)
{
	struct job_region *r = region_in_cycle(h, s->region);

	for (uint32_t i = 0; i < s->words; i++)
		for (uint64_t bits = get64(s->bits + 8 * i); bits; bits &= bits - 1) {
			uint32_t granule = 64 * (s->first + i) + (uint32_t)__builtin_ctzll(bits);
			uint32_t slot = 0;

			if (!r || find_slot(r, granule, &slot) == FOUND_ODD ||
			    !tablet_has(r->live, slot))
				return WIRE_BAD_REGION;
			make_ghost(h, r, slot);
		}
	return WIRE_OK;
}

int job_begin(struct job_heap *h, const uint8_t *payload, uint32_t length, uint16_t *status)
{
	size_t at = WIRE_JOB_BEGIN_SIZE;
	bool runs = far_cycle_runs(&h->cycle);
	struct wire_job_begin b;
	struct wire_job_set s;
	int r;

	if (wire_parse_job_begin(payload, length, &b))
		return -EPROTO;
	*status = WIRE_OK;
	switch (far_cycle_begins(&h->cycle, b.cycle)) {
	case FAR_CYCLE_STALE:
		*status = WIRE_OLD_CYCLE;
		return 0;
	case FAR_CYCLE_NEW:
		h->jobs->counts.cycles++;
		h->jobs->counts.abandoned += runs;
		job_region_unqueue_all(h);
		h->traced = (struct wire_job_traced){ .cycle = b.cycle };
		clear_outs(h);
		break;
	default:
		break;
	}
	while ((r = wire_next_job_set(payload, length, &at, &s)) > 0 && *status == WIRE_OK)
		*status = add_ghosts(h, &s);
	if (*status != WIRE_OK)
		far_cycle_aborts(&h->cycle, b.cycle);
	return r < 0 ? r : 0;
}

/* --- TRACE ------------------------------------------------------------------------ */

/* Adds an object that is not here to the reply; returns false if that has no place for it. */
static bool add_out(struct job_heap *h, uint32_t region, uint32_t granule)
{
	uint32_t key = region * TABLET_WORDS + granule / 64 + 1;
	uint32_t place = (key * 0x9E3779B1u) >> 20;

	/* A borrower may choose references whose keys collide. */
	for (; h->outs[place].key && h->outs[place].key != key; spend(h, 1))
		place = (place + 1) % JOB_OUT_PLACES;
	if (!h->outs[place].key) {
		if (h->out_count == JOB_OUTS)
			return false;
		h->outs[place] = (struct job_out){ .key = key };
		h->out_count++;
	}
	h->outs[place].bits |= UINT64_C(1) << granule % 64;
	return true;
}

/* Follows a reference; returns false if the reply has no place for it. */
static bool follow(struct job_heap *h, uint64_t reference)
{
	uint64_t offset = (reference & h->mask) - h->base;
	struct job_region *r;
	uint32_t granule, slot;

	/* Outside of the heap, null included, all objects live. */
	if (!(reference & h->mask) || offset >= (uint64_t)h->regions * TABLET_REGION)
		return true;
	granule = (uint32_t)(offset % TABLET_REGION) / TABLET_GRANULE;
	r = region_in_cycle(h, (uint32_t)(offset / TABLET_REGION));
	switch (offset % TABLET_GRANULE == LAYOUT_HEADER ? find_slot(r, granule, &slot) :
							    FOUND_ODD) {
	case FOUND_HERE:
		r->named[slot / 64] |= UINT64_C(1) << slot % 64;
		mark(h, r, slot);
		return true;
	case FOUND_ELSEWHERE:
		return add_out(h, (uint32_t)(offset / TABLET_REGION), granule);
	default:
		h->traced.odd++;
		return true;
	}
}

/* Returns whether the turn can go on: an object takes a unit, and each reference another one. */
static bool goes_on(const struct job_heap *h)
{
	return h->work >= 2 * JOB_PARTS;
}

/*
 * Traces the object of @slot, whose region's bytes are at @memory, or what is left of it.  Returns
 * false if the turn ends within it.
 */
static bool trace_object(struct job_heap *h, struct job_region *r, uint32_t slot,
			 const uint8_t *memory)
{
	const uint8_t *bytes = memory + tablet_place(r->live, r->before, slot, r->slot_bytes, 0);
	uint64_t type = get64(bytes), *references = h->jobs->references;
	const struct layout *l = job_type_find(h, (uint32_t)type);
	uint32_t at = h->part == r && h->part_slot == slot ? h->part_reference : 0, first = at;
	int n = l ? layout_references(l, bytes + LAYOUT_HEADER, r->slot_bytes - LAYOUT_HEADER,
				      references) : -1;
	bool whole;

	h->traced.odd += n < 0;
	spend(h, JOB_PARTS);
	while (n > 0 && at < (uint32_t)n && h->work >= JOB_PARTS && follow(h, references[at])) {
		spend(h, JOB_PARTS);
		at++;
	}
	whole = n <= 0 || at >= (uint32_t)n;
	h->part = whole ? NULL : r;
	h->part_slot = slot;
	h->part_reference = at;
	h->jobs->counts.references += at - first;
	return whole;
}

/* Traces objects of the region; returns false when the turn is over. */
static bool trace_region(struct job_heap *h, struct job_region *r)
{
	const uint8_t *memory = job_region_memory(h, r);

	if (!memory) {
		h->traced.odd++;
		spend(h, JOB_PARTS);
		r->ready = 0;
	}
	while (r->ready) {
		uint32_t word = (uint32_t)__builtin_ctzll(r->ready);
		uint64_t work = r->marks[word] & ~r->traced[word];

		if (!work) {
			r->ready &= r->ready - 1;
			continue;
		}
		if (!goes_on(h) || !trace_object(h, r, 64 * word + (uint32_t)__builtin_ctzll(work),
						 memory))
			return false;
		r->traced[word] |= work & -work;
	}
	job_region_unqueue(h, r);
	return true;
}

static void trace(struct job_heap *h)
{
	while (h->first && goes_on(h) && trace_region(h, h->first))
		;
}

static uint32_t build_traced(const struct job_heap *h, uint32_t pause, uint8_t *reply)
{
	struct wire_job_traced t = h->traced;
	uint8_t *to = reply + WIRE_JOB_TRACED_SIZE;

	t.queued = h->queued;
	t.pause = pause;
	wire_build_job_traced(reply, &t);
	for (uint32_t i = 0; i < JOB_OUT_PLACES; i++) {
		uint32_t key = h->outs[i].key - 1;

		if (!h->outs[i].key)
			continue;
		to += wire_put_job_set(to, &(struct wire_job_set){
			.region = key / TABLET_WORDS, .first = (uint16_t)(key % TABLET_WORDS),
			.words = 1 });
		put64(to, h->outs[i].bits);
		to += 8;
	}
	return (uint32_t)(to - reply);
}

int job_trace(struct job_heap *h, const uint8_t *payload, uint32_t length, enum job_work work,
	      uint32_t pause, uint8_t reply[static WIRE_JOB_MOST], uint32_t *size,
	      uint16_t *status)
{
	struct wire_job_trace t;
	int r = 0;

	if (wire_parse_job_trace(payload, length, &t))
		return -EPROTO;
	*status = WIRE_OK;
	switch (far_cycle_traces(&h->cycle, t.cycle, t.batch)) {
	case FAR_CYCLE_STALE:
		*status = WIRE_OLD_CYCLE;
		return 0;
	case FAR_CYCLE_NEW:
		clear_outs(h);
		h->traced.batch = t.batch;
		h->work = JOB_PARTS * (t.units && t.units < JOB_UNITS ? t.units : JOB_UNITS);
		r = apply(h, payload, length, WIRE_JOB_TRACE_SIZE, mark, status);
		if (r || *status != WIRE_OK)
			return r;
		if (h->work < WORK_LEAST)
			h->work = WORK_LEAST;
		if (work == JOB_WORK)
			trace(h);
		break;
	default:
		break;
	}
	*size = build_traced(h, work == JOB_WORK ? 0 : pause, reply);
	return 0;
}

/* --- END -------------------------------------------------------------------------- */

/* Adds the region's bits to the reply if it has room for them. */
static bool put_region(struct job_heap *h, uint32_t number, uint8_t *reply, uint32_t *size)
{
	struct job_region *r = region_in_cycle(h, number);
	uint8_t *to = reply + *size;

	if (!r)
		return true;
	if (*size + WIRE_JOB_BITS_SIZE + 16 * r->words > WIRE_JOB_MOST)
		return false;
	to += wire_put_job_bits(to, &(struct wire_job_bits){
		.region = number, .version = r->version, .words = r->words });
	for (uint32_t i = 0; i < r->words; i++, to += 8)
		put64(to, r->marks[i]);
	for (uint32_t i = 0; i < r->words; i++, to += 8)
		put64(to, r->named[i]);
	*size = (uint32_t)(to - reply);
	return true;
}

static uint32_t put_regions(struct job_heap *h, uint32_t number, uint8_t *reply, uint32_t *size)
{
	for (uint32_t n = 0; number < h->regions; number++) {
		if (!h->leaves[number >> JOB_LEAF_SHIFT])
			number |= JOB_LEAF - 1;
		else if (n++ == END_REGIONS || !put_region(h, number, reply, size))
			return number;
	}
	return WIRE_JOB_NO_REGION;
}

int job_end(struct job_heap *h, const uint8_t *payload, uint32_t length,
	    uint8_t reply[static WIRE_JOB_MOST], uint32_t *size, uint16_t *status)
{
	struct wire_job_ended ended = { .next = WIRE_JOB_NO_REGION };
	struct wire_job_end e;

	if (wire_parse_job_end(payload, length, &e))
		return -EPROTO;
	*status = WIRE_OK;
	*size = WIRE_JOB_ENDED_SIZE;
	ended.cycle = e.cycle;
	if (e.verb == WIRE_JOB_ABORT) {
		h->jobs->counts.abandoned += far_cycle_runs(&h->cycle) && h->cycle.cycle == e.cycle;
		far_cycle_aborts(&h->cycle, e.cycle);
	} else if (!far_cycle_commits(&h->cycle, e.cycle, h->queued)) {
		*status = h->cycle.active && h->cycle.cycle == e.cycle ? WIRE_CYCLE_RUNS :
									  WIRE_OLD_CYCLE;
		return 0;
	} else if (h->traced.odd) {
		*status = WIRE_BAD_REGION;
		return 0;
	} else {
		ended.next = put_regions(h, e.first, reply, size);
		/* The marks stay, for a borrower that asks again. */
		if (ended.next == WIRE_JOB_NO_REGION)
			far_cycle_committed(&h->cycle);
	}
	wire_build_job_ended(reply, &ended);
	return 0;
}
