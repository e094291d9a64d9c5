/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Random programs on libebbgc: threads build, rewire, share and drop graphs, watch and finalize
 * their objects, while a heap in checking mode collects.  Each thread keeps a copy of the values
 * that it relies on.
 */
#ifndef GC_GRAPH_H
#define GC_GRAPH_H

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"

#define THREADS 3
#define ROOTS 24
#define WATCHES 4	/* roots beyond: weak references, then as many ephemerons */
#define ARRAYS 3	/* then arrays */
#define MINE (ROOTS + 2 * WATCHES + ARRAYS)	/* what is in the thread's own shared slot */
#define TABLE (MINE + 1)	/* a table with weak entries, then what it must have */
#define ENTRIES 4
#define FIBRE (TABLE + 1 + 3 * ENTRIES)
#define ALL_ROOTS (FIBRE + 1)
#define STACK 8
#define SHARED 64
#define OTHERS 2	/* further heaps: with three, a thread may have to release one again */

/* A program's table, which no other thread has. */
struct entry {
	ebbgc_ref_t key, value;		/* an ephemeron; EBBGC_CLEAR_LAST, unless `swapped` */
	ebbgc_ref_t weak;		/* cleared when those are not */
};

struct table {
	uint64_t swapped;		/* the key lives while the value does, not conversely */
	struct entry entries[ENTRIES];
};

/* A program's fibre, which no other thread has. */
struct fibre {
	uint64_t state;
	ebbgc_ref_t stack[STACK];
};

struct world {
	struct ebb_arrivals *ring;	/* NULL: no faults are shared */
	ebbgc_heap_t *heap;
	ebbgc_type_t node, refs, leaf, table, fibre;
	struct {			/* further heaps that threads are attached to, if any */
		ebbgc_heap_t *heap;
		ebbgc_type_t node, leaf;
	} others[OTHERS];
	ebbgc_ref_t shared; /* a root range: an array that all threads store to, then own slots */
	size_t spread;			/* its slots between two that are used */
	unsigned int steps;
	bool moves;			/* objects of most types may move */
};

struct worker {
	struct world *world;
	struct {
		ebbgc_mutator_t *m;
		ebbgc_ref_t list;	/* there */
		struct ebbgc_frame frame;	/* for it */
	} others[OTHERS];
	size_t slot;			/* of the shared array: no other thread stores there */
	struct ebbgc_entered entered;
	bool inside;			/* the fibre is entered */
	uint64_t seed;
};

static uint64_t next(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* The thread's, in a heap whose objects move. */
static __thread ebbgc_mutator_t *hasher;

/*
 * Objects carry a checksum of their address, or of their identity, which reveals freed and reused
 * ones.
 */
static uint64_t stamp(ebbgc_ref_t r)
{
	uint64_t identity = hasher ? ebbgc_hash(hasher, r) : (uint64_t)(uintptr_t)ebbgc_ptr(r);

	return identity * 0x9e3779b97f4a7c15u;
}

static ebbgc_ref_t slot_load(const ebbgc_ref_t *slot)
{
	return (ebbgc_ref_t){ __atomic_load_n(&slot->bits, __ATOMIC_ACQUIRE) };
}

/* Writes what ebbd's BPF programs write when a page was swapped out. */
static void fault(struct world *w, ebbgc_ref_t r)
{
	uint64_t n;

	if (!w->ring)
		return;
	n = __atomic_fetch_add(&w->ring->head, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&w->ring->entry[n % EBB_ARRIVALS],
			 ebb_arrival(n, r.bits & EBBGC_ADDRESS_MASK, 0, 0), __ATOMIC_RELEASE);
}

static ebbgc_ref_t new_node(struct world *w, ebbgc_mutator_t *m)
{
	ebbgc_ref_t r = ebbgc_alloc(m, w->node);

	assert_false(ebbgc_is_null(r));
	fault(w, r);
	node_of(r)->value = stamp(r);
	return r;
}

/* Follows a random path and checks each node on it; returns the last. */
static ebbgc_ref_t wander(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t r, uint64_t *s)
{
	for (int i = 0; i < 20; i++) {
		ebbgc_ref_t to;

		fault(w, r);
		assert_int_equal(node_of(r)->value, stamp(r));
		to = ebbgc_load(m, r, next(s) & 1 ? &node_of(r)->left : &node_of(r)->right);
		if (ebbgc_is_null(to))
			break;
		r = to;
	}
	return r;
}

static void check(ebbgc_ref_t r)
{
	if (!ebbgc_is_null(r))
		assert_int_equal(node_of(r)->value, stamp(r));
}

/* The object's targets are unchanged. */
static void finalizer(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	struct world *w = data;

	check(object);
	check(ebbgc_load(m, object, &node_of(object)->left));
	check(ebbgc_load(m, object, &node_of(object)->right));
	/* Some live on. */
	if (stamp(object) & 1024)
		ebbgc_store(m, w->shared, &refs_of(w->shared)->slots[0], object);
}

/* A finalizer may bring back a weak reference without its target. */
static void look_back(ebbgc_mutator_t *m, ebbgc_ref_t object, void *unused)
{
	check(ebbgc_weak_get(m, ebbgc_load(m, object, &refs_of(object)->slots[0])));
}

/* Weak references, ephemerons and finalizers. */
static void watch(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t *roots, uint64_t *s)
{
	unsigned int a = next(s) % ROOTS, b = next(s) % ROOTS, c = ROOTS + next(s) % WATCHES;
	ebbgc_ref_t value;

	switch (next(s) % 7) {
	case 0:
		roots[c] = ebbgc_weak_new(m, roots[a]);
		break;
	case 1:
		if (ebbgc_is_null(roots[c]))
			break;
		roots[a] = ebbgc_weak_get(m, roots[c]);
		check(roots[a]);
		break;
	case 2:
		roots[c + WATCHES] = ebbgc_ephemeron_new(m, roots[a], roots[b]);
		break;
	case 3:
		if (ebbgc_is_null(roots[c + WATCHES]))
			break;
		roots[a] = ebbgc_ephemeron_key(m, roots[c + WATCHES]);
		value = ebbgc_ephemeron_value(m, roots[c + WATCHES]);
		check(roots[a]);
		check(value);
		roots[b] = value;
		break;
	case 4:
		if (!ebbgc_is_null(roots[a]))
			assert_int_equal(ebbgc_finalizer_add(m, roots[a], finalizer, w), 0);
		break;
	case 5:
		ebbgc_finalizers_run(m, next(s) % 4);
		break;
	case 6:
		roots[c] = ebbgc_weak_new(m, roots[a]);
		value = ebbgc_alloc_length(m, w->refs, 1);
		ebbgc_init(&refs_of(value)->slots[0], roots[c]);
		roots[c] = EBBGC_NULL;
		assert_int_equal(ebbgc_finalizer_add(m, value, look_back, w), 0);
		break;
	}
}

/* Some take many pages, and regions of their own. */
static void array(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t *roots, uint64_t *s)
{
	unsigned int a = next(s) % ROOTS, c = ROOTS + 2 * WATCHES + next(s) % ARRAYS;
	ebbgc_ref_t *slot;

	if (ebbgc_is_null(roots[c]) || next(s) % 16 == 0) {
		roots[c] = ebbgc_alloc_length(m, w->refs, next(s) % 4 ? 1 + next(s) % 64 : 10000);
		assert_false(ebbgc_is_null(roots[c]));
	}
	slot = &refs_of(roots[c])->slots[next(s) % refs_of(roots[c])->length];
	if (next(s) & 1) {
		ebbgc_store(m, roots[c], slot, roots[a]);
	} else if (next(s) & 1) {
		/* No other thread has the array. */
		ebbgc_overwrite(m, next(s) % 64 ? roots[c] : EBBGC_NULL, slot_load(slot));
		ebbgc_init(slot, roots[a]);
	} else {
		roots[a] = ebbgc_load(m, roots[c], slot);
		check(roots[a]);
	}
}

static void table_edges(void *object, struct ebbgc_edges *e)
{
	struct table *t = object;
	bool swapped = __atomic_load_n(&t->swapped, __ATOMIC_RELAXED);

	for (size_t i = 0; i < ENTRIES; i++) {
		struct entry *n = &t->entries[i];
		ebbgc_ref_t *key = swapped ? &n->value : &n->key;
		ebbgc_ref_t *value = swapped ? &n->key : &n->value;
		ebbgc_ref_t has_key = slot_load(key), has_value = slot_load(value);

		e->ephemeron(e, key, has_key, value, has_value,
			     swapped ? EBBGC_CLEAR_FIRST : EBBGC_CLEAR_LAST);
		e->weak(e, &n->weak, slot_load(&n->weak),
			swapped ? EBBGC_CLEAR_LAST : EBBGC_CLEAR_FIRST);
	}
}

static void slot_put(ebbgc_mutator_t *m, ebbgc_ref_t table, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	if (stamp(value) & 64)
		ebbgc_overwrite(m, table, slot_load(slot));
	else
		ebbgc_replace(m, slot, slot_load(slot), value);
	ebbgc_init(slot, value);
}

/* What a thread holds is in its entries, in both slots. */
static void table_check(ebbgc_mutator_t *m, ebbgc_ref_t *roots, unsigned int i)
{
	struct table *t = ebbgc_ptr(roots[TABLE]);
	struct entry *n = &t->entries[i];
	enum ebbgc_clear when = t->swapped ? EBBGC_CLEAR_FIRST : EBBGC_CLEAR_LAST;
	ebbgc_ref_t *holds = &roots[TABLE + 1 + 3 * i];
	ebbgc_ref_t key = ebbgc_weak_read(m, slot_load(&n->key), when);
	ebbgc_ref_t value = ebbgc_weak_read(m, slot_load(&n->value), when);
	ebbgc_ref_t weak = ebbgc_weak_read(m, slot_load(&n->weak),
					   t->swapped ? EBBGC_CLEAR_LAST : EBBGC_CLEAR_FIRST);
	bool dead = ebbgc_is_null(t->swapped ? value : key);

	/* An entry without its key has no value. */
	if (!dead) {
		check(key);
		check(value);
	}
	check(weak);
	assert_true(ebbgc_is_null(holds[0]) || ebbgc_same(key, holds[0]));
	assert_true(dead || ebbgc_is_null(holds[1]) || ebbgc_same(value, holds[1]));
	assert_true(ebbgc_is_null(holds[2]) || ebbgc_same(weak, holds[2]));
	if (!ebbgc_is_null(holds[0]) && !ebbgc_is_null(holds[1]))
		assert_false(dead);
}

/* Fills, reuses and forgets entries; finds objects by one reference that others have lost. */
static void table(struct world *w, ebbgc_mutator_t *m, ebbgc_ref_t *roots, uint64_t *s)
{
	unsigned int a = next(s) % ROOTS, b = next(s) % ROOTS, i = next(s) % ENTRIES;
	ebbgc_ref_t *holds = &roots[TABLE + 1 + 3 * i], found;
	struct table *t;
	struct entry *n;

	if (ebbgc_is_null(roots[TABLE]) || next(s) % 256 == 0) {
		for (size_t k = 0; k < 3 * ENTRIES; k++)
			roots[TABLE + 1 + k] = EBBGC_NULL;
		roots[TABLE] = ebbgc_alloc(m, w->table);
		assert_false(ebbgc_is_null(roots[TABLE]));
		t = ebbgc_ptr(roots[TABLE]);
		__atomic_store_n(&t->swapped, next(s) & 1, __ATOMIC_RELAXED);
	}
	t = ebbgc_ptr(roots[TABLE]);
	n = &t->entries[i];
	switch (next(s) % 8) {
	case 0: case 1:
		if (ebbgc_is_null(roots[a]) || ebbgc_is_null(roots[b]))
			break;
		slot_put(m, roots[TABLE], &n->key, roots[a]);
		slot_put(m, roots[TABLE], &n->value, roots[b]);
		holds[0] = roots[a];
		holds[1] = roots[b];
		break;
	case 2:
		/* Its key or its value gets another partner. */
		a = !ebbgc_is_null(holds[0]);
		if (ebbgc_is_null(holds[!a]) || ebbgc_is_null(roots[b]))
			break;
		slot_put(m, roots[TABLE], a ? &n->value : &n->key, roots[b]);
		holds[a] = roots[b];
		break;
	case 3:
		slot_put(m, roots[TABLE], &n->weak, roots[a]);
		holds[2] = roots[a];
		break;
	case 4: case 5:
		holds[next(s) % 3] = EBBGC_NULL;
		break;
	case 6:
		/* What is found last may be stored where it was cleared first, or its child. */
		found = ebbgc_weak_read(m, slot_load(t->swapped ? &n->weak : &n->key),
					EBBGC_CLEAR_LAST);
		if (ebbgc_is_null(found))
			break;
		check(found);
		roots[a] = found;
		if (next(s) & 1)
			roots[a] = ebbgc_load(m, found, &node_of(found)->left);
		if (t->swapped)
			break;
		slot_put(m, roots[TABLE], &n->weak, roots[a]);
		holds[2] = roots[a];
		break;
	}
	table_check(m, roots, i);
}

static void fibre_edges(void *object, struct ebbgc_edges *e)
{
	struct fibre *f = object;

	for (size_t i = 0; i < STACK; i++)
		e->strong(e, &f->stack[i], f->stack[i]);
}

/* Plain loads and stores on a fibre's stack, which is entered at times. */
static void fibre(struct worker *self, ebbgc_mutator_t *m, ebbgc_ref_t *roots)
{
	uint64_t *s = &self->seed;
	unsigned int a = next(s) % ROOTS;
	ebbgc_ref_t *slot;

	if (self->inside && next(s) % 8 == 0) {
		ebbgc_fibre_leave(m, &self->entered);
		self->inside = false;
	}
	if (!self->inside && (ebbgc_is_null(roots[FIBRE]) || next(s) % 256 == 0)) {
		roots[FIBRE] = ebbgc_alloc(m, self->world->fibre);
		assert_false(ebbgc_is_null(roots[FIBRE]));
	}
	if (!self->inside && next(s) % 8 == 0) {
		ebbgc_fibre_enter(m, &self->entered, roots[FIBRE]);
		self->inside = true;
	}
	if (!self->inside)
		ebbgc_fibre_touch(m, roots[FIBRE]);
	slot = &((struct fibre *)ebbgc_ptr(roots[FIBRE]))->stack[next(s) % STACK];
	check(*slot);
	if (next(s) & 1)
		*slot = roots[a];
	else
		roots[a] = *slot;
}

/* A load by another thread may write the slot, but not undo a store. */
static void own(struct worker *self, ebbgc_mutator_t *m, ebbgc_ref_t *roots)
{
	ebbgc_ref_t shared = self->world->shared;
	ebbgc_ref_t *slots = refs_of(shared)->slots, *slot = &slots[self->slot];

	assert_true(ebbgc_same(ebbgc_load(m, shared, slot), roots[MINE]));
	roots[MINE] = roots[next(&self->seed) % ROOTS];
	ebbgc_store(m, shared, slot, roots[MINE]);
	check(ebbgc_load(m, shared,
			 &slots[SHARED * self->world->spread + next(&self->seed) % THREADS]));
}

static void *visitor(void *arg)
{
	struct world *w = arg;
	ebbgc_mutator_t *m;
	ebbgc_ref_t r;

	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	hasher = w->moves ? m : NULL;
	r = new_node(w, m);
	ebbgc_init(&node_of(r)->left,
		   ebbgc_load(m, w->shared, &refs_of(w->shared)->slots[w->spread]));
	ebbgc_store(m, w->shared, &refs_of(w->shared)->slots[w->spread], r);
	ebbgc_detach(m);
	return NULL;
}

/* A thread that leaves at once what it has allocated and stored; no cycle for a while. */
static void visited(struct world *w, ebbgc_mutator_t *m)
{
	pthread_t thread;

	ebbgc_cycles_suspend(m);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	assert_int_equal(pthread_create(&thread, NULL, visitor, w), 0);
	pthread_join(thread, NULL);
	ebbgc_blocked_end(m);
	ebbgc_cycles_resume(m);
}

static void other_attach(struct worker *self, size_t i)
{
	assert_int_equal(ebbgc_attach(self->world->others[i].heap, &self->others[i].m), 0);
	self->others[i].list = EBBGC_NULL;
	ebbgc_frame_push(self->others[i].m, &self->others[i].frame, &self->others[i].list, 1);
}

/* A list that is read from its newest node, among garbage that fills the heap. */
static void other_list(struct worker *self, size_t i)
{
	ebbgc_mutator_t *m = self->others[i].m;
	ebbgc_ref_t r = ebbgc_alloc(m, self->world->others[i].node);

	assert_false(ebbgc_is_null(r));
	node_of(r)->value = stamp(r);
	if (next(&self->seed) % 32)
		ebbgc_store(m, r, &node_of(r)->left, self->others[i].list);
	self->others[i].list = r;
	if (next(&self->seed) % 8 == 0)
		ebbgc_alloc_length(m, self->world->others[i].leaf, next(&self->seed) % 100000);
	for (; !ebbgc_is_null(r); r = ebbgc_load(m, r, &node_of(r)->left))
		check(r);
}

/* Cycles in one heap, safepoints in another: attaching, detaching and waiting there stop here. */
static void other_heap(struct worker *self, ebbgc_mutator_t *m)
{
	uint64_t *s = &self->seed;
	size_t i = next(s) % OTHERS;
	ebbgc_mutator_t *other = self->others[i].m;

	switch (next(s) % 512) {
	case 0:
		assert_int_equal(ebbgc_collect(other), 0);
		break;
	case 1 ... 4:
		ebbgc_collect_start(other);
		break;
	case 5 ... 20:
		assert_int_equal(ebbgc_blocked_begin(other), 0);
		ebbgc_poll(m);
		ebbgc_blocked_end(other);
		break;
	case 21 ... 36:
		assert_int_equal(ebbgc_blocked_begin(m), 0);
		ebbgc_poll(other);
		ebbgc_blocked_end(m);
		break;
	case 37 ... 44:
		ebbgc_detach(other);
		other_attach(self, i);
		break;
	case 45 ... 255:
		ebbgc_poll(other);
		break;
	default:
		other_list(self, i);
	}
}

static void step(struct worker *self, ebbgc_mutator_t *m, ebbgc_ref_t *roots)
{
	struct world *w = self->world;
	uint64_t *s = &self->seed;
	unsigned int a = next(s) % ROOTS, b = next(s) % ROOTS;
	size_t c = next(s) % SHARED * w->spread;
	ebbgc_ref_t at, expected;

	switch (next(s) % 16) {
	case 0 ... 3:
		at = new_node(w, m);
		ebbgc_init(&node_of(at)->left, roots[a]);
		ebbgc_init(&node_of(at)->right, roots[b]);
		roots[a] = at;
		break;
	case 4:
		roots[a] = EBBGC_NULL;
		break;
	case 5:
		if (!ebbgc_is_null(roots[a]))
			roots[b] = wander(w, m, roots[a], s);
		break;
	case 6: case 7:
		if (ebbgc_is_null(roots[a]))
			break;
		at = wander(w, m, roots[a], s);
		/* Moves a subgraph: the only path to it may be the local variable for a while. */
		expected = ebbgc_load(m, at, &node_of(at)->left);
		ebbgc_store(m, at, &node_of(at)->left, EBBGC_NULL);
		if (next(s) & 1)
			roots[b] = expected;
		else
			ebbgc_store(m, at, &node_of(at)->right, expected);
		break;
	case 8:
		ebbgc_store(m, w->shared, &refs_of(w->shared)->slots[c], roots[a]);
		break;
	case 9:
		roots[a] = ebbgc_load(m, w->shared, &refs_of(w->shared)->slots[c]);
		break;
	case 10:
		expected = ebbgc_load(m, w->shared, &refs_of(w->shared)->slots[c]);
		ebbgc_cas(m, w->shared, &refs_of(w->shared)->slots[c], &expected, roots[b]);
		break;
	case 11:
		if (next(s) % 8 == 0) {
			struct refs *shared = refs_of(w->shared);

			ebbgc_copy(m, w->shared, &shared->slots[c / 2], w->shared,
				   &shared->slots[c / 3], SHARED / 4);
			ebbgc_fill(m, w->shared, &shared->slots[c / 2], roots[a], 3);
		}
		/* Objects of every size that die at once. */
		fault(w,
		      ebbgc_alloc_length(m, w->leaf, next(s) % 64 == 0 ? 100000 : next(s) % 4000));
		break;
	case 12: case 13:
		watch(w, m, roots, s);
		break;
	case 14:
		array(w, m, roots, s);
		break;
	case 15:
		own(self, m, roots);
		break;
	}
	/* Heaps whose objects move refuse both. */
	if (!w->moves && next(s) % 8 == 0)
		table(w, m, roots, s);
	if (!w->moves && next(s) % 8 == 0)
		fibre(self, m, roots);
	if (w->others[0].heap)
		other_heap(self, m);
	if (next(s) % 64 == 0)
		ebbgc_poll(m);
	if (next(s) % 512 == 0)
		ebbgc_collect_start(m);
	if (next(s) % (w->steps / 12) == 0)
		visited(w, m);
	/* A dozen times a thread, not more: a waiting thread tests nothing. */
	if (next(s) % (w->steps / 12) == 0) {
		uint64_t before = stats_of(w->heap).cycles;

		/* Give a slow collector its cycles, and the processor for them. */
		for (ebbgc_collect_start(m); stats_of(w->heap).cycles == before; usleep(50))
			ebbgc_poll(m);
	}
	if (next(s) % (w->steps / 12) == 0)
		ebbgc_collect(m);
}

static void *worker(void *arg)
{
	struct worker *self = arg;
	struct world *w = self->world;
	ebbgc_ref_t roots[ALL_ROOTS] = { 0 };
	struct ebbgc_frame frame;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(w->heap, &m), 0);
	hasher = w->moves ? m : NULL;
	ebbgc_frame_push(m, &frame, roots, ALL_ROOTS);
	/* In both orders, so that heaps are also released again. */
	for (size_t i = 0; i < OTHERS && w->others[i].heap; i++)
		other_attach(self, (i + self->slot) % OTHERS);
	for (unsigned int i = 0; i < w->steps; i++)
		step(self, m, roots);
	if (self->inside)
		ebbgc_fibre_leave(m, &self->entered);
	ebbgc_frame_pop(m, &frame);
	/* Otherwise the thread's exit detaches it. */
	if (next(&self->seed) & 1)
		ebbgc_detach(m);
	if (w->others[0].heap && next(&self->seed) & 1)
		ebbgc_detach(self->others[0].m);
	return NULL;
}

/* Options; with "+move" behind, objects of most types may move. */
static const char *const graph_options[] = {
	"mode=concurrent",
	"mode=stop",
	"mode=concurrent,drop",
	"mode=concurrent,address",
	"mode=stop,address",
	"mode=memliner",
	/* Stamps are soon too old: every object is far at first, and postponed. */
	"mode=memliner,residency=simulated,epoch=1,delta=0,delays=6:6:6",
	"mode=memliner,exact,residency=simulated,delays=3:3:3",
	"mode=memliner,park,residency=simulated,drop",
	"mode=memliner,park,drop,depth=0",
	"mode=memliner,arrivals",
	"mode=memliner,park,arrivals,hints,residency=simulated,drop",
	"mode=concurrent,nursery=64K",
	"mode=stop,nursery=256K",
	"mode=concurrent,address,drop,exact,residency=simulated,nursery=128K",
	"mode=memliner,nursery=64K",
	"mode=memliner,park,residency=simulated,drop,nursery=64K",
	"mode=memliner,park,arrivals,hints,residency=simulated,nursery=128K",
	"mode=concurrent+move",
	"mode=stop,address+move",
	"mode=memliner,residency=simulated,epoch=1,delta=0,delays=6:6:6+move",
	"mode=memliner,park,arrivals,hints,residency=simulated,drop+move",
	"mode=concurrent,nursery=64K+move",
	"mode=memliner,park,arrivals,hints,residency=simulated,drop,nursery=64K+move",
};

#define GRAPH_OPTIONS (sizeof(graph_options) / sizeof(*graph_options))

/* Each thread takes so many steps; returns the heap's statistics. */
static struct ebbgc_stats graph_run(const char *options, uint64_t seed, unsigned int steps)
{
	struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};
	static const struct ebbgc_layout table = {
		.name = "table", .flags = EBBGC_ALL_STORES, .size = sizeof(struct table),
		.edges = table_edges,
	};
	static const struct ebbgc_layout fibre = {
		.name = "fibre", .flags = EBBGC_FIBRE | EBBGC_ALL_STORES,
		.size = sizeof(struct fibre), .edges = fibre_edges,
		.fibre_offset = offsetof(struct fibre, state),
	};
	const char *move = strstr(options, "+move");
	struct world w = { .steps = steps, .spread = 1, .moves = move };
	struct ebbgc_layout node = node_layout, refs = refs_layout;
	struct worker workers[THREADS];
	pthread_t threads[THREADS];
	struct ebbgc_stats s;
	ebbgc_mutator_t *m;
	/* Some heaps are destroyed during a cycle. */
	bool in_the_midst = seed % 7 < 3;
	char words[128];

	if (strstr(options, "park")) {
		/* The array is on several pages, and so are nodes at a page's end. */
		w.spread = 20;
		node.size += 16;
	}
	if (move) {
		node.flags |= EBBGC_MOVABLE;
		refs.flags |= EBBGC_MOVABLE;
		leaf.flags |= seed % 2 ? EBBGC_MOVABLE : 0;
	}
	snprintf(words, sizeof(words), "%.*s", (int)(move ? move - options : 127), options);
	w.heap = checked_heap_with(words, 64 << 20);
	/* Pauses without time leave more to concurrent marking and clearing. */
	if (seed % 2)
		w.heap->options.pause_budget_ns = 0;
	if (strstr(options, "arrivals")) {
		w.ring = calloc(1, sizeof(*w.ring));
		assert_non_null(w.ring);
		pthread_mutex_lock(&w.heap->lock);
		arrivals_open(&w.heap->arrivals, w.ring);
		pthread_mutex_unlock(&w.heap->lock);
	}
	assert_int_equal(ebbgc_type_register(w.heap, &node, &w.node), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &refs, &w.refs), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &leaf, &w.leaf), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &table, &w.table), move ? -ENOTSUP : 0);
	assert_int_equal(ebbgc_type_register(w.heap, &fibre, &w.fibre), move ? -ENOTSUP : 0);
	for (size_t i = 0; i < OTHERS && seed % 3 == 0; i++) {
		w.others[i].heap = checked_heap(i ? EBBGC_CONCURRENT : EBBGC_STOP_WORLD, 1 << 20);
		assert_int_equal(
			ebbgc_type_register(w.others[i].heap, &node_layout, &w.others[i].node), 0);
		assert_int_equal(ebbgc_type_register(w.others[i].heap, &leaf, &w.others[i].leaf),
				 0);
	}
	assert_int_equal(ebbgc_attach(w.heap, &m), 0);
	hasher = move ? m : NULL;
	assert_int_equal(ebbgc_roots_add(m, &w.shared, 1), 0);
	w.shared = ebbgc_alloc_length(m, w.refs, SHARED * w.spread + THREADS);
	assert_int_equal(ebbgc_blocked_begin(m), 0);
	for (int i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){
			.world = &w, .slot = SHARED * w.spread + (size_t)i,
			.seed = seed + 77 * (uint64_t)i,
		};
		assert_int_equal(pthread_create(&threads[i], NULL, worker, &workers[i]), 0);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	ebbgc_blocked_end(m);
	for (size_t i = 0; i < OTHERS && w.others[i].heap; i++) {
		s = stats_of(w.others[i].heap);
		assert_int_equal(s.check_failures, 0);
		assert_true(s.cycles > 0);
		assert_int_equal(ebbgc_heap_destroy(w.others[i].heap), 0);
	}
	if (in_the_midst) {
		s = stats_of(w.heap);
		ebbgc_collect_start(m);
		goto end;
	}
	do {
		ebbgc_fill(m, w.shared, refs_of(w.shared)->slots, EBBGC_NULL,
			   refs_of(w.shared)->length);
		assert_int_equal(ebbgc_collect(m), 0);
	} while (ebbgc_finalizers_run(m, SIZE_MAX));
	w.shared = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(m), 0);
	s = stats_of(w.heap);
	assert_int_equal(s.check_failures, 0);
	assert_int_equal(s.checks, s.cycles + s.minor_cycles);
	/* Nothing is reachable any more, so no region is in use. */
	assert_int_equal(s.live_bytes, 0);
	assert_int_equal(ebbgc_roots_remove(m, &w.shared), 0);
end:
	hasher = NULL;
	ebbgc_detach(m);
	assert_int_equal(ebbgc_heap_destroy(w.heap), 0);
	free(w.ring);
	return s;
}

#endif
