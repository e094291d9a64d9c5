// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <string.h>
#include "check.h"
#include "finalize.h"
#include "forward.h"
#include "mark.h"
#include "minor.h"
#include "object.h"
#include "os.h"
#include "region.h"
#include "remember.h"
#include "roots.h"
#include "supply.h"
#include "sweep.h"
#include "trigger.h"
#include "type.h"

#define FEW 16u		/* ephemerons: searching them all costs less than a table */
#define SKIPS_MAX 7u	/* minor cycles that trace nothing, after one that freed too little */
#define BUDGETS 4u	/* pause_budget_ns that a minor cycle may trace for */
/* Objects traced between two looks at the clock: new ones, and remembered ones, perhaps in swap. */
#define LOOK_NEW 256u
#define LOOK_REMEMBERED 16u

struct minor {
	struct ebbgc_heap *h;
	struct vector stack;		/* objects that have become old, to be traced */
	struct vector values;		/* of ephemerons whose keys have become old */
	struct vector weak[2];		/* slots that refer to young objects, by enum ebbgc_clear */
	/* Whose keys are young: quads as of struct tracer. */
	struct vector ephemerons;
	struct keys keys;		/* their values by key, or none */
	uint64_t objects, bytes;	/* that have become old */
	uint64_t most;			/* bytes that may, before it gives up */
	uint64_t deadline;		/* ns */
	unsigned int traced;
	bool failed;			/* no memory, blind, skipped or gave up: it frees nothing */
	bool gave_up;			/* as too much survives, or took too long */
};

#define QUAD 4
#define VALUE_SLOT 1	/* in a quad */
#define KEY 2
#define VALUE 3

static bool lives(const struct ebbgc_heap *h, uint64_t object)
{
	return !in_heap(h, object) || bit_test(h->nursery.old, granule_of(h, object));
}

static void push(struct minor *c, struct vector *v, uint64_t item)
{
	c->failed |= !vector_push(v, item);
}

static void give_up(struct minor *c)
{
	c->failed = c->gave_up = true;
}

static __attribute__((noinline)) void key_lives(struct minor *c, uint64_t key)
{
	uint64_t value;
	size_t at = 0;

	while ((value = keys_next(&c->keys, key, &at)))
		push(c, &c->values, value);
}

static void promote(void *arg, uint64_t object)
{
	struct minor *c = arg;
	struct ebbgc_heap *h = c->h;
	uint8_t kind;

	/* The checking mode reports later what refers to no object: do not crash before. */
	if (!in_heap(h, object) || (EBBGC_UNLIKELY(h->check) && !is_object(h, object)) ||
	    !bit_set(h->nursery.old, granule_of(h, object)))
		return;
	kind = h->kinds[region_of(h, object)];
	c->objects++;
	c->bytes += taken_bytes(h, object, kind);
	if (EBBGC_UNLIKELY(c->bytes > c->most))
		give_up(c);
	if (EBBGC_UNLIKELY(c->keys.pairs != NULL))
		key_lives(c, object);
	if (!kind_is_leaf(kind))
		push(c, &c->stack, object);
}

static void strong_slot(void *arg, ebbgc_ref_t *slot)
{
	struct minor *c = arg;

	promote(c, slot_current(c->h, slot));
}

static void weak_slot(void *arg, ebbgc_ref_t *slot)
{
	struct minor *c = arg;

	if (!lives(c->h, slot_current(c->h, slot)))
		push(c, &c->weak[EBBGC_CLEAR_FIRST], (uint64_t)(uintptr_t)slot);
}

static void ephemeron(struct minor *c, const uint64_t quad[QUAD])
{
	if (lives(c->h, quad[KEY]))
		promote(c, quad[VALUE]);
	else
		c->failed |= !vector_push_all(&c->ephemerons, quad, QUAD);
}

static void trace_ephemeron(struct minor *c, uint64_t object)
{
	ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)object;
	const uint64_t quad[QUAD] = { object | EPHEMERON_OWN, object + sizeof(*slots),
				      slot_current(c->h, &slots[0]),
				      slot_current(c->h, &slots[1]) };

	ephemeron(c, quad);
}

/* A tagged or ambiguous slot. */
static void tagged_slot(void *arg, uint32_t kind, uint64_t target)
{
	struct minor *c = arg;
	uint64_t object = kind == EBBGC_SLOT_AMBIGUOUS ? object_containing(c->h, target) :
							 object_at(c->h, target);

	if (object)
		promote(c, object);
}

struct following {
	struct ebbgc_edges edges;	/* first */
	struct minor *c;
};

static struct minor *minor_of(struct ebbgc_edges *edges)
{
	return ((struct following *)edges)->c;
}

static uint64_t edge_target(struct ebbgc_edges *edges, ebbgc_ref_t ref)
{
	return object_at(minor_of(edges)->h, ref.bits & EBBGC_ADDRESS_MASK);
}

static void edge_strong(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	(void)slot;
	promote(minor_of(edges), edge_target(edges, value));
}

static void edge_weak(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		      enum ebbgc_clear when)
{
	struct minor *c = minor_of(edges);
	uint64_t target = edge_target(edges, value);

	if (!slot)
		promote(c, target);
	else if (!lives(c->h, target))
		push(c, &c->weak[when], (uint64_t)(uintptr_t)slot);
}

static void edge_ephemeron(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			   ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	const uint64_t late = when == EBBGC_CLEAR_LAST ? EPHEMERON_LAST : 0;
	const uint64_t quad[QUAD] = { (uint64_t)(uintptr_t)key_slot | late,
				      (uint64_t)(uintptr_t)value_slot, edge_target(edges, key),
				      edge_target(edges, value) };

	/* A free entry keeps no value. */
	if (ebbgc_is_null(key))
		return edge_weak(edges, value_slot, value, EBBGC_CLEAR_LAST);
	if (key_slot && value_slot)
		return ephemeron(minor_of(edges), quad);
	promote(minor_of(edges), quad[KEY]);
	promote(minor_of(edges), quad[VALUE]);
}

static void trace(struct minor *c, uint64_t object)
{
	struct following following = { { edge_strong, edge_weak, edge_ephemeron }, c };
	uint32_t id = type_id(object);
	const struct type *type = &c->h->types[id];

	if (id == TYPE_EPHEMERON)
		return trace_ephemeron(c, object);
	if (type->flags & EBBGC_WEAK)
		return type_visit(type, object, weak_slot, c);
	type_visit(type, object, strong_slot, c);
	slots_visit(type, object, object, UINT64_MAX, tagged_slot, c);
	if (type->edges)
		type->edges((void *)(uintptr_t)object, &following.edges);
}

/* Gives up once it has taken too long. */
static void look(struct minor *c, unsigned int every)
{
	if (++c->traced % every == 0 && os_now() >= c->deadline)
		give_up(c);
}

/* Traces a remembered object, or a page of a large one. */
static void trace_entry(void *arg, uint64_t entry)
{
	struct minor *c = arg;
	struct ebbgc_heap *h = c->h;
	const struct type *type;
	uint64_t object;

	look(c, LOOK_REMEMBERED);
	if (c->failed)
		return;
	if (entry_is_object(entry))
		return trace(c, is_large(h->kinds[region_of(h, entry)]) ? entry - GRANULE : entry);
	object = (uint64_t)(uintptr_t)region_start(h, region_first(h, region_of(h, entry))) +
		 HEADER;
	type = &h->types[type_id(object)];
	if (type->trace || type->edges)
		return trace(c, object);
	type_visit_part(type, object, entry, entry + PAGE_BYTES,
			type->flags & EBBGC_WEAK ? weak_slot : strong_slot, c);
	slots_visit(type, object, entry, entry + PAGE_BYTES, tagged_slot, c);
}

static void keys_build(struct minor *c)
{
	const struct vector *v = &c->ephemerons;

	keys_free(&c->keys);
	if (v->count <= FEW * QUAD || !keys_reset(&c->keys, v->count / QUAD))
		return;
	for (size_t i = 0; i < v->count; i += QUAD)
		if (v->items[i + VALUE])
			keys_add(&c->keys, v->items[i + KEY], v->items[i + VALUE]);
}

/* Follows the ephemerons whose keys live; returns whether there were any. */
static bool ephemerons_follow(struct minor *c)
{
	struct vector *v = &c->ephemerons;
	size_t kept = 0, count = v->count;

	for (size_t i = 0; i < count; i += QUAD) {
		if (lives(c->h, v->items[i + KEY])) {
			push(c, &c->values, v->items[i + VALUE]);
			continue;
		}
		memmove(&v->items[kept], &v->items[i], QUAD * sizeof(*v->items));
		kept += QUAD;
	}
	v->count = kept;
	if (kept != count)
		keys_build(c);
	return kept != count;
}

static void close_over(struct minor *c)
{
	do {
		while (!c->failed && (c->stack.count || c->values.count)) {
			look(c, LOOK_NEW);
			if (c->stack.count)
				trace(c, c->stack.items[--c->stack.count]);
			else
				promote(c, c->values.items[--c->values.count]);
		}
	} while (!c->failed && ephemerons_follow(c));
	keys_free(&c->keys);
}

static void slot_clear(uint64_t slot)
{
	__atomic_store_n((uint64_t *)(uintptr_t)slot, 0, __ATOMIC_RELEASE);
}

static void slots_clear(struct minor *c, enum ebbgc_clear when, struct ebbgc_stats *s)
{
	struct vector *v = &c->weak[when];

	for (; v->count; v->count--) {
		uint64_t slot = v->items[v->count - 1];

		if (lives(c->h, ref_load((ebbgc_ref_t *)(uintptr_t)slot)))
			continue;
		slot_clear(slot);
		s->weak_cleared++;
	}
}

static void ephemerons_clear(struct minor *c, enum ebbgc_clear when, struct ebbgc_stats *s)
{
	struct vector *v = &c->ephemerons;
	size_t kept = 0, count = v->count;

	for (size_t i = 0; i < count; i += QUAD) {
		const uint64_t *quad = &v->items[i];

		if ((quad[0] & EPHEMERON_LAST) && when != EBBGC_CLEAR_LAST) {
			memmove(&v->items[kept], quad, QUAD * sizeof(*quad));
			kept += QUAD;
			continue;
		}
		slot_clear(quad[0] & ~EPHEMERON_FLAGS);
		/* Of a program's entry, a value that lives stays, as may a word that is none. */
		if ((quad[0] & EPHEMERON_OWN) || !lives(c->h, quad[VALUE]))
			slot_clear(quad[VALUE_SLOT]);
		s->ephemerons_cleared++;
	}
	v->count = kept;
}

/* Clears what refers to objects that die and is to be cleared now; counts it in *s. */
static void weak_clear_young(struct minor *c, enum ebbgc_clear when, struct ebbgc_stats *s)
{
	for (unsigned int w = EBBGC_CLEAR_FIRST; w <= (unsigned int)when; w++)
		slots_clear(c, (enum ebbgc_clear)w, s);
	ephemerons_clear(c, when, s);
}

static void mark(struct minor *c, struct ebbgc_stats *s)
{
	struct ebbgc_heap *h = c->h;

	roots_each(h, strong_slot, c);
	stacks_each(h, strong_slot, c);
	close_over(c);
	if (c->failed)
		return;
	weak_clear_young(c, EBBGC_CLEAR_FIRST, s);
	/* Finalizers keep objects alive only now, and with them perhaps other weak references. */
	s->finalizers_ready = finalizers_collect(h, h->finalizers.old, lives, promote, c);
	close_over(c);
	if (!c->failed)
		weak_clear_young(c, EBBGC_CLEAR_LAST, s);
}

/* Makes all young objects old. */
static void keep_all(struct ebbgc_heap *h)
{
	for (uint32_t r = h->nursery.young; r != REGION_NONE; r = h->regions[r].young_next) {
		for (size_t w = r * REGION_WORDS; w < (r + 1) * REGION_WORDS; w++)
			__atomic_store_n(&h->nursery.old[w],
					 __atomic_load_n(&h->allocated[w], __ATOMIC_RELAXED),
					 __ATOMIC_RELAXED);
	}
}

static void count(struct ebbgc_heap *h, const struct minor *c, const struct ebbgc_stats *s,
		  uint64_t freed)
{
	h->stats.minor_cycles++;
	h->stats.minor_kept += c->failed;
	h->stats.promoted_objects += c->objects;
	h->stats.promoted_bytes += c->bytes;
	h->stats.reclaimed_bytes += freed;
	h->stats.remembered += s->remembered;
	h->stats.weak_cleared += s->weak_cleared;
	h->stats.ephemerons_cleared += s->ephemerons_cleared;
	h->stats.finalizers_ready += s->finalizers_ready;
	/* Not the collector's counts, which it may be changing. */
	if (h->check)
		h->stats.checks++;
	h->stats.check_failures +=
		__atomic_exchange_n(&h->counting.check_failures, 0, __ATOMIC_RELAXED);
}

static void skip_entry(void *arg, uint64_t entry)
{
	(void)arg;
	(void)entry;
}

/*
 * Where less than half of the young bytes die, tracing the others costs more than cycles save: then
 * the next 1, 3 and at last 7 minor cycles keep all.
 */
static void judge(struct ebbgc_heap *h, uint64_t kept, uint64_t freed)
{
	struct nursery *n = &h->nursery;

	/* As at the end of a cycle: too few objects to tell. */
	if (kept + freed < h->options.nursery_bytes / 2)
		return;
	n->skips = freed >= kept ? 0 : n->skips < SKIPS_MAX ? 2 * n->skips + 1 : SKIPS_MAX;
	n->skip = n->skips;
}

/* World stopped, the set is empty: fibres that are entered change until they are left. */
static void entered_remember(struct ebbgc_heap *h)
{
	if (!remembers(h))
		return;
	for (struct mutator *m = h->mutators; m; m = m->next)
		for (struct ebbgc_entered *e = m->public.fibres; e; e = e->up)
			if (!ebbgc_is_null(e->fibre))
				remember_object(m, e->fibre);
}

/*
 * Nothing is young: no thread has a region.  The set still has the objects that ebbgc_overwrite()
 * has entered; the next sweep may free them.
 */
static void collect_nothing(struct ebbgc_heap *h)
{
	remembered_each(h, skip_entry, NULL);
	__atomic_store_n(&h->nursery.blind, false, __ATOMIC_RELAXED);
	pthread_mutex_lock(&h->lock);
	minor_ended(h, 0);
	pthread_mutex_unlock(&h->lock);
	entered_remember(h);
}

/* What is young may not become old for more than half, as in judge(), nor for too long. */
static void limits_set(struct minor *c, uint64_t young)
{
	const struct ebbgc_options *o = &c->h->options;
	uint64_t now = os_now(), ns;

	c->most = young < o->nursery_bytes / 2 ? UINT64_MAX : young / 2;
	if (__builtin_mul_overflow(o->pause_budget_ns, BUDGETS, &ns) || ns > UINT64_MAX - now)
		c->deadline = UINT64_MAX;
	else
		c->deadline = now + ns;
}

uint64_t minor_collect(struct ebbgc_heap *h)
{
	struct nursery *n = &h->nursery;
	struct ebbgc_stats s = { 0 };
	struct minor c = { .h = h };
	uint64_t dropped = 0, young, freed;

	if (!n->old)
		return 0;
	for (struct mutator *m = h->mutators; m; m = m->next) {
		remembered_flush(m);
		dropped += supplies_drop(h, m);
	}
	if (n->young == REGION_NONE) {
		collect_nothing(h);
		return 0;
	}
	young = __atomic_load_n(&h->allocated_bytes, __ATOMIC_RELAXED) - n->since - dropped;
	limits_set(&c, young);
	c.failed = n->skip || __atomic_load_n(&n->blind, __ATOMIC_RELAXED);
	s.remembered = remembered_each(h, c.failed ? skip_entry : trace_entry, &c);
	if (!c.failed)
		mark(&c, &s);
	if (c.failed)
		keep_all(h);
	__atomic_store_n(&n->blind, false, __ATOMIC_RELAXED);
	check_minor(h);
	pthread_mutex_lock(&h->lock);
	freed = sweep_young(h);
	n->skip -= n->skip > 0;
	if (!c.failed || c.gave_up)
		judge(h, c.gave_up ? young : c.bytes, freed);
	minor_ended(h, dropped + freed);
	count(h, &c, &s, dropped + freed);
	pthread_mutex_unlock(&h->lock);
	entered_remember(h);
	vector_free(&c.stack);
	vector_free(&c.values);
	vector_free(&c.weak[EBBGC_CLEAR_FIRST]);
	vector_free(&c.weak[EBBGC_CLEAR_LAST]);
	vector_free(&c.ephemerons);
	keys_free(&c.keys);
	return s.finalizers_ready;
}
