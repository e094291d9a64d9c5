// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "check.h"
#include "event.h"
#include "far_image.h"
#include "far_room.h"
#include "forward.h"
#include "os.h"
#include "roots.h"
#include "type.h"
#include "vector.h"

struct check {
	uint64_t *reached;	/* bitmap: reachable at the end */
	uint64_t *before;	/* bitmap: reachable by any path at the snapshot */
	uint64_t *existed;	/* bitmap: allocated at the snapshot */
	struct vector stack, ephemerons;
	uint64_t before_move;	/* number of reachable objects */
};

enum walk_kind { WALK_STRONG, WALK_ANY };

struct walk {
	struct ebbgc_heap *h;
	uint64_t *seen;
	enum walk_kind kind;
	bool stacks;		/* words on stacks are roots */
	bool certain;		/* ambiguous words that point to unmarked objects are numbers */
	bool healed;		/* no slot names where an object was */
	uint64_t from;		/* the object whose slots are visited; 0 for a root */
};

static size_t bitmap_bytes(const struct ebbgc_heap *h)
{
	return (size_t)h->region_count * REGION_WORDS * sizeof(uint64_t);
}

int check_create(struct ebbgc_heap *h)
{
	struct check *c;

	if (!h->options.check)
		return 0;
	c = h->check = calloc(1, sizeof(*c));
	if (!c)
		return -ENOMEM;
	c->reached = os_map(bitmap_bytes(h));
	c->before = os_map(bitmap_bytes(h));
	c->existed = os_map(bitmap_bytes(h));
	return c->reached && c->before && c->existed ? 0 : -ENOMEM;
}

void check_destroy(struct ebbgc_heap *h)
{
	struct check *c = h->check;

	if (!c)
		return;
	if (c->reached)
		munmap(c->reached, bitmap_bytes(h));
	if (c->before)
		munmap(c->before, bitmap_bytes(h));
	if (c->existed)
		munmap(c->existed, bitmap_bytes(h));
	if (!os_forked(h->pid)) {
		vector_free(&c->stack);
		vector_free(&c->ephemerons);
	}
	free(c);
}

static void failed(struct ebbgc_heap *h, uint64_t object, const char *text)
{
	/* By threads that check a minor cycle and that trace, at the same time. */
	__atomic_fetch_add(&h->counting.check_failures, 1, __ATOMIC_RELAXED);
	event_send(h, EBBGC_EVENT_CHECK_FAILED, object, text);
	if (h->options.event)
		return;
	fprintf(stderr, "ebbgc: object 0x%" PRIx64 ": %s; a store without ebbgc_store(), a missing "
		"root or a wrong layout\n", object, text);
	abort();
}

/*
 * Returns where the bytes of an object are: those of one in the store are kept in this mode.  0: it
 * has none.  Within far_hold().
 */
static uint64_t image_of(const struct ebbgc_heap *h, uint64_t object)
{
	uint32_t region = region_of(h, object);
	const struct far_stored *r;
	uint8_t kind = h->kinds[region];
	size_t slot;

	if (!region_is_out(h, region) || region_state(h, region) == FAR_LEAVING)
		return object;
	r = far_stored_of(&h->far.regions[region]);
	slot = (object & (REGION_SIZE - 1)) / h->slot_size[kind];
	if (!r->tablet || !tablet_has(r->tablet, (uint32_t)slot))
		return 0;
	return (uint64_t)(uintptr_t)r->shadow + far_offset(h, r, slot, kind) + HEADER;
}

static void walk_slot(void *arg, ebbgc_ref_t *slot)
{
	struct walk *w = arg;
	uint64_t object = ref_load(slot);

	if (forward(w->h, object) != object) {
		/* A forward of the far generation may be newer than the cycle. */
		if (w->healed && region_state(w->h, region_of(w->h, object)) == FAR_MOVED)
			return failed(w->h, w->from, "refers to where an object was");
		object = forward(w->h, object);
	}
	/* References to aligned addresses outside of the heap are allowed. */
	if (!object || (!in_heap(w->h, object) && object % 8 == 0))
		return;
	if (!is_object(w->h, object))
		return failed(w->h, w->from ? w->from : object, "refers to no object");
	if (bit_set(w->seen, granule_of(w->h, object)) && !vector_push(&w->h->check->stack, object))
		abort();	/* a check that cannot finish must not pass */
}

static void walk_reference(struct walk *w, uint64_t object)
{
	ebbgc_ref_t ref = { object };

	walk_slot(w, &ref);
}

/* An ephemeron, whose value is reached once its key is. */
static void walk_pair(struct walk *w, uint64_t key, uint64_t value)
{
	const uint64_t triple[] = { key, value, w->from };

	if (key && !vector_push_all(&w->h->check->ephemerons, triple, 3))
		abort();
}

static void walk_target(void *arg, uint32_t kind, uint64_t target)
{
	struct walk *w = arg;

	if (kind == EBBGC_SLOT_AMBIGUOUS) {
		target = object_containing(w->h, target);
		if (w->certain && target && !object_marked(w->h, target))
			return;
	}
	walk_reference(w, target);
}

struct walking {
	struct ebbgc_edges edges;	/* first */
	struct walk *w;
};

static void walk_strong(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	(void)slot;
	walk_reference(((struct walking *)edges)->w, value.bits);
}

static void walk_weak(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		      enum ebbgc_clear when)
{
	struct walk *w = ((struct walking *)edges)->w;

	(void)when;
	/* Without a slot it cannot be cleared. */
	if (w->kind == WALK_ANY || !slot)
		walk_reference(w, value.bits);
}

static void walk_ephemeron(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			   ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	struct walk *w = ((struct walking *)edges)->w;
	uint64_t k = key.bits & EBBGC_ADDRESS_MASK;

	if (!k)
		return walk_weak(edges, value_slot, value, when);
	if (w->kind == WALK_STRONG && key_slot && value_slot && is_object(w->h, k)) {
		walk_pair(w, k, value.bits & EBBGC_ADDRESS_MASK);
		return;
	}
	walk_reference(w, k);
	walk_reference(w, value.bits);
}

static void walk_object(struct walk *w, uint64_t object)
{
	const struct type *type;

	w->from = object;
	/* It has no references any more. */
	if (region_is_out(w->h, region_of(w->h, object)) &&
	    region_lost(w->h, region_of(w->h, object)))
		return;
	object = image_of(w->h, object);
	if (!object)
		return failed(w->h, w->from, "is far, and not in the store");
	type = &w->h->types[type_id(object)];
	if (w->kind == WALK_STRONG && type_id(object) == TYPE_EPHEMERON) {
		ebbgc_ref_t *slots = (ebbgc_ref_t *)(uintptr_t)object;

		walk_pair(w, ref_load(&slots[0]), ref_load(&slots[1]));
	} else if (w->kind == WALK_ANY || !(type->flags & EBBGC_WEAK)) {
		struct walking walking = { { walk_strong, walk_weak, walk_ephemeron }, w };

		type_visit(type, object, walk_slot, w);
		slots_visit(type, object, object, UINT64_MAX, walk_target, w);
		if (type->edges)
			type->edges((void *)(uintptr_t)object, &walking.edges);
	}
}

static bool walk_ephemerons(struct walk *w)
{
	struct vector *v = &w->h->check->ephemerons;
	size_t kept = 0, count = v->count;

	for (size_t i = 0; i < count; i += 3) {
		const uint64_t *triple = &v->items[i];
		uint64_t key = triple[0];

		w->from = triple[2];
		if (!in_heap(w->h, key) || bit_test(w->seen, granule_of(w->h, key))) {
			walk_reference(w, triple[1]);
			continue;
		}
		for (size_t k = 0; k < 3; k++)
			v->items[kept++] = triple[k];
	}
	v->count = kept;
	return kept != count;
}

static void walk_named(struct walk *w)
{
	const struct ebbgc_heap *h = w->h;

	for (size_t word = 0; h->far.on && word < (size_t)h->top * REGION_WORDS; word++) {
		for (uint64_t bits = h->far.named[word]; bits; bits &= bits - 1) {
			size_t granule = 64 * word + (size_t)__builtin_ctzll(bits);

			walk_reference(w, (uint64_t)(uintptr_t)h->base +
					  (granule << GRANULE_SHIFT) + HEADER);
		}
	}
}

/* Sets w->seen for all reachable objects. */
static void walk_all(struct walk *w)
{
	struct vector *stack = &w->h->check->stack;

	if (w->h->far.on)
		far_hold(w->h);
	memset(w->seen, 0, (size_t)w->h->top * REGION_WORDS * sizeof(uint64_t));
	w->h->check->ephemerons.count = 0;
	w->from = 0;
	roots_each(w->h, walk_slot, w);
	if (w->stacks)
		stacks_each(w->h, walk_slot, w);
	walk_named(w);
	if (w->kind == WALK_ANY) {
		struct finalizer_list *l = &w->h->finalizers;

		for (size_t i = 0; i < l->count; i++) {
			ebbgc_ref_t object = { l->items[i].object };

			walk_slot(w, &object);
		}
	}
	do {
		while (stack->count)
			walk_object(w, stack->items[--stack->count]);
	} while (walk_ephemerons(w));
	if (w->h->far.on)
		far_release(w->h);
}

void check_snapshot(struct ebbgc_heap *h)
{
	struct walk w = { .h = h, .kind = WALK_ANY, .stacks = true };

	if (!h->check)
		return;
	w.seen = h->check->before;
	memcpy(h->check->existed, h->allocated, (size_t)h->top * REGION_WORDS * sizeof(uint64_t));
	memset(h->check->existed + (size_t)h->top * REGION_WORDS, 0,
	       (size_t)(h->region_count - h->top) * REGION_WORDS * sizeof(uint64_t));
	for (struct mutator *m = h->mutators; m; m = m->next)
		for (unsigned int k = 0; k < SMALL_KINDS; k++)
			for (char *p = m->supply[k].next; p < m->supply[k].end;
			     p += h->slot_size[k]) {
				size_t i = granule_of(h, (uint64_t)(uintptr_t)p);

				/* A free slot: no object yet. */
				h->check->existed[i >> 6] &= ~(UINT64_C(1) << (i & 63));
			}
	walk_all(&w);
}

void check_listed(struct ebbgc_heap *h)
{
	if (h->check)
		memcpy(h->check->before, h->check->existed, bitmap_bytes(h));
}

static void minor_slot(void *arg, ebbgc_ref_t *slot)
{
	const struct walk *w = arg;
	uint64_t object = forward(w->h, ref_load(slot));

	if (!in_heap(w->h, object))
		return;
	if (!is_object(w->h, object) || !bit_test(w->h->nursery.old, granule_of(w->h, object)))
		failed(w->h, w->from ? w->from : object, "refers to what a minor cycle frees");
}

static void minor_reference(struct walk *w, uint64_t object)
{
	ebbgc_ref_t ref = { object };

	/* Other words are no references. */
	if (object_at(w->h, object))
		minor_slot(w, &ref);
}

static void minor_target(void *arg, uint32_t kind, uint64_t target)
{
	struct walk *w = arg;

	minor_reference(w, kind == EBBGC_SLOT_AMBIGUOUS ? object_containing(w->h, target) : target);
}

/* Weak references to what is freed were cleared. */
static void minor_edge(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	(void)slot;
	minor_reference(((struct walking *)edges)->w, value.bits & EBBGC_ADDRESS_MASK);
}

static void minor_weak(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
		       enum ebbgc_clear when)
{
	(void)when;
	minor_edge(edges, slot, value);
}

static void minor_ephemeron(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
			    ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	(void)when;
	minor_edge(edges, key_slot, key);
	minor_edge(edges, value_slot, value);
}

static void minor_object(struct walk *w)
{
	struct walking walking = { { minor_edge, minor_weak, minor_ephemeron }, w };
	const struct type *type = &w->h->types[type_id(w->from)];

	type_visit(type, w->from, minor_slot, w);
	slots_visit(type, w->from, w->from, UINT64_MAX, minor_target, w);
	if (type->edges)
		type->edges((void *)(uintptr_t)w->from, &walking.edges);
}

void check_minor(struct ebbgc_heap *h)
{
	struct walk w = { .h = h };

	if (!h->check)
		return;
	roots_each(h, minor_slot, &w);
	stacks_each(h, minor_slot, &w);
	for (size_t word = 0; word < (size_t)h->top * REGION_WORDS; word++) {
		for (uint64_t bits = h->nursery.old[word]; bits; bits &= bits - 1) {
			size_t granule = 64 * word + (size_t)__builtin_ctzll(bits);

			w.from = (uint64_t)(uintptr_t)h->base + (granule << GRANULE_SHIFT) + HEADER;
			if (region_is_out(h, region_of(h, w.from)))
				break;
			if (type_id(w.from) == TYPE_NONE)
				failed(h, w.from, "is old, but no object");
			minor_object(&w);
		}
	}
}

void check_traced(struct ebbgc_heap *h, uint64_t object)
{
	if (h->nursery.old && !bit_test(h->nursery.old, granule_of(h, object)))
		failed(h, object, "is young, and traced");
}

static void root_slot(void *arg, ebbgc_ref_t *slot)
{
	struct ebbgc_heap *h = arg;
	uint64_t object = ref_load(slot);

	if (forward(h, object) != object)
		failed(h, object, "a root refers to where an object was");
}

void check_roots(struct ebbgc_heap *h)
{
	if (h->check)
		roots_each(h, root_slot, h);
}

/* Returns the number of objects that can be reached by any path. */
static uint64_t reached(struct ebbgc_heap *h)
{
	struct walk w = { .h = h, .kind = WALK_ANY, .stacks = true, .seen = h->check->reached };
	uint64_t count = 0;

	walk_all(&w);
	for (size_t word = 0; word < (size_t)h->top * REGION_WORDS; word++)
		count += (uint64_t)__builtin_popcountll(w.seen[word]);
	return count;
}

void check_move(struct ebbgc_heap *h)
{
	if (h->check)
		h->check->before_move = reached(h);
}

void check_moved(struct ebbgc_heap *h)
{
	uint64_t after;

	if (!h->check)
		return;
	check_roots(h);
	after = reached(h);
	/* A word left over on a stack may name what was free, and keep garbage there now. */
	if (after < h->check->before_move ||
	    (after > h->check->before_move && h->options.stacks != EBBGC_CONSERVATIVE))
		failed(h, 0, "objects were lost as others moved");
	for (uint32_t r = h->moving.regions.head; r != REGION_NONE; r = h->regions[r].next) {
		size_t size = h->slot_size[h->kinds[r]];

		for (size_t i = 0; i < REGION_SIZE / size; i++) {
			uint64_t object = (uint64_t)(uintptr_t)region_start(h, r) + i * size +
					  HEADER;
			uint64_t now = forward(h, object);

			if (now != object && (!is_object(h, now) || is_object(h, object) ||
					      memcmp(header_of(now), header_of(object), size)))
				failed(h, now, "is no copy of the object that has moved");
		}
	}
}

struct weak_check {
	struct ebbgc_edges edges;	/* first */
	struct ebbgc_heap *h;
	uint64_t from;
};

static void check_weak_slot(void *arg, ebbgc_ref_t *slot)
{
	struct weak_check *c = arg;
	uint64_t object = ref_load(slot);

	if (!object_marked(c->h, object))
		failed(c->h, c->from, "weakly refers to what is about to be freed");
}

static void check_strong_edge(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	(void)edges;
	(void)slot;
	(void)value;
}

static void check_weak_edge(struct ebbgc_edges *edges, ebbgc_ref_t *slot, ebbgc_ref_t value,
			    enum ebbgc_clear when)
{
	(void)slot;
	(void)when;
	check_weak_slot(edges, &value);
}

static void check_ephemeron_edge(struct ebbgc_edges *edges, ebbgc_ref_t *key_slot, ebbgc_ref_t key,
				 ebbgc_ref_t *value_slot, ebbgc_ref_t value, enum ebbgc_clear when)
{
	check_weak_edge(edges, key_slot, key, when);
	check_weak_edge(edges, value_slot, value, when);
}

static void check_object(struct ebbgc_heap *h, uint64_t object, bool exact)
{
	size_t i = granule_of(h, object);
	bool marked = bit_test(h->marks, i), reached = bit_test(h->check->reached, i);
	bool far = region_is_out(h, region_of(h, object));
	struct weak_check c = { { check_strong_edge, check_weak_edge, check_ephemeron_edge }, h,
				object };
	const struct type *type;

	if (reached && !marked)
		return failed(h, object, "reachable, but not marked");
	if (!marked || far)
		return;
	type = &h->types[type_id(object)];
	if (exact && !reached)
		return failed(h, object, "survives, but is not reachable");
	if (!exact && bit_test(h->check->existed, i) && !bit_test(h->check->before, i))
		return failed(h, object, "survives, but was not reachable when the cycle began");
	if ((type->flags & EBBGC_WEAK) || type_id(object) == TYPE_EPHEMERON) {
		type_visit(type, object, check_weak_slot, &c);
	}
	if (type->edges)
		type->edges((void *)(uintptr_t)object, &c.edges);
}

struct far_check {
	struct ebbgc_heap *h;
	uint64_t from;
};

static void far_slot(void *arg, ebbgc_ref_t *slot)
{
	const struct far_check *c = arg;
	uint64_t name = ref_load(slot), object = forward(c->h, name);

	if (!in_heap(c->h, name))
		return;
	if (!is_named(c->h, name))
		failed(c->h, c->from, "is far, and refers to what is not named");
	if (!is_object(c->h, object))
		failed(c->h, c->from, "is far, and refers to no object");
}

/* Of each object in the store that was not brought: what it refers to is named, and is there. */
static void check_store(struct ebbgc_heap *h)
{
	struct far_check c = { .h = h };

	for (uint32_t r = 0; r < h->top; r++) {
		enum far_state state = region_state(h, r);
		uint32_t size, slots, place = 0;
		const struct far_stored *f;

		/* The region may become AWAY meanwhile, but not EMPTY. */
		if (state != FAR_AWAY || region_lost(h, r))
			continue;
		f = far_stored_of(&h->far.regions[r]);
		if (!f->shadow)
			continue;
		size = (uint32_t)h->slot_size[h->kinds[r]];
		slots = tablet_slots(size);
		for (uint32_t i = tablet_next(f->tablet, slots, 0); i < slots;
		     i = tablet_next(f->tablet, slots, i + 1), place += size) {
			uint64_t shadow = (uint64_t)(uintptr_t)f->shadow + place + HEADER;

			c.from = (uint64_t)(uintptr_t)region_start(h, r) + (uint64_t)i * size +
				 HEADER;
			if (bit_test(h->allocated, granule_of(h, c.from)) &&
			    object_marked(h, c.from))
				type_visit(&h->types[type_id(shadow)], shadow, far_slot, &c);
		}
	}
}

void check_marks(struct ebbgc_heap *h, bool exact)
{
	/*
	 * A word that appeared during a concurrent cycle on a stack may be left over from a frame
	 * that has returned, and one in an ambiguous slot may be a number: what they point to need
	 * not be marked.
	 */
	struct walk w = { .h = h, .kind = WALK_STRONG, .stacks = exact, .certain = !exact,
			  .healed = true };

	if (!h->check)
		return;
	if (h->far.on)
		check_store(h);
	h->counting.checks++;
	w.seen = h->check->reached;
	walk_all(&w);
	for (size_t word = 0; word < (size_t)h->top * REGION_WORDS; word++) {
		uint64_t bits = h->allocated[word];

		for (; bits; bits &= bits - 1) {
			size_t granule = 64 * word + (size_t)__builtin_ctzll(bits);
			uint64_t object = (uint64_t)(uintptr_t)h->base +
					  (granule << GRANULE_SHIFT) + HEADER;

			if (region_is_out(h, region_of(h, object)) ||
			    type_id(object) != TYPE_NONE)
				check_object(h, object, exact);
		}
	}
}
