// SPDX-License-Identifier: GPL-2.0-or-later
/* What language runtimes need: edges, root callbacks, fibres, order of finalizers, and more. */
#include <errno.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"

/* A hash table's part: entries whose keys, values or both are weak, as its mode says. */
struct entry {
	ebbgc_ref_t key, value;
};

struct table {
	uint64_t length;
	/*
	 * 'k': keys are ephemerons'; 'v': values are weak; 'a': both are; 's': values are weak, and
	 * keys live while they do.
	 */
	uint64_t mode;
	struct entry entries[];
};

static void table_edges(void *object, struct ebbgc_edges *e)
{
	struct table *t = object;
	uint64_t mode = __atomic_load_n(&t->mode, __ATOMIC_RELAXED);

	for (uint64_t i = 0; i < t->length; i++) {
		struct entry *n = &t->entries[i];
		ebbgc_ref_t key = { __atomic_load_n(&n->key.bits, __ATOMIC_ACQUIRE) };
		ebbgc_ref_t value = { __atomic_load_n(&n->value.bits, __ATOMIC_ACQUIRE) };

		if (mode == 'k') {
			e->ephemeron(e, &n->key, key, &n->value, value, EBBGC_CLEAR_LAST);
			continue;
		}
		if (mode == 's') {
			e->ephemeron(e, &n->value, value, &n->key, key, EBBGC_CLEAR_FIRST);
			continue;
		}
		if (mode == 'a')
			e->weak(e, &n->key, key, EBBGC_CLEAR_LAST);
		else
			e->strong(e, &n->key, key);
		e->weak(e, &n->value, value, EBBGC_CLEAR_FIRST);
	}
}

static const struct ebbgc_layout table_layout = {
	.name = "table", .size = sizeof(struct table), .element_size = sizeof(struct entry),
	.length_width = 8, .edges = table_edges,
};

/* A fibre, whose stack is C memory. */
struct fibre {
	uint64_t state;
	ebbgc_ref_t *stack;
	uint64_t top;
};

static void fibre_edges(void *object, struct ebbgc_edges *e)
{
	struct fibre *f = object;

	for (uint64_t i = 0; i < f->top; i++)
		e->strong(e, &f->stack[i], f->stack[i]);
}

static const struct ebbgc_layout fibre_layout = {
	.name = "fibre", .flags = EBBGC_FIBRE, .size = sizeof(struct fibre), .edges = fibre_edges,
	.fibre_offset = offsetof(struct fibre, state),
};

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, table, fibre, refs;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[4];
};

static void world_open(struct world *w, const char *words)
{
	*w = (struct world){ .heap = checked_heap_with(words, 64 << 20) };
	assert_int_equal(ebbgc_type_register(w->heap, &node_layout, &w->node), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &refs_layout, &w->refs), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &table_layout, &w->table), 0);
	assert_int_equal(ebbgc_type_register(w->heap, &fibre_layout, &w->fibre), 0);
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 4);
}

static void world_close(struct world *w)
{
	assert_int_equal(stats_of(w->heap).check_failures, 0);
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
}

static ebbgc_ref_t node_new(struct world *w, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(w->m, w->node);

	node_of(r)->value = value;
	return r;
}

static struct table *table_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

/* Runs one cycle in the heap's own mode. */
static void cycle(struct world *w)
{
	uint64_t before = stats_of(w->heap).cycles;

	ebbgc_collect_start(w->m);
	while (stats_of(w->heap).cycles == before) {
		ebbgc_poll(w->m);
		usleep(100);
	}
}

static ebbgc_ref_t table_new(struct world *w, uint64_t mode, uint64_t length)
{
	ebbgc_ref_t r = ebbgc_alloc_length(w->m, w->table, length);

	table_of(r)->mode = mode;
	return r;
}

static void put(struct world *w, ebbgc_ref_t table, uint64_t i, ebbgc_ref_t key, ebbgc_ref_t value)
{
	struct entry *n = &table_of(table)->entries[i];

	ebbgc_overwrite(w->m, table, n->key);
	n->key = key;
	ebbgc_overwrite(w->m, table, n->value);
	n->value = value;
}

static void weak_entries(void **state)
{
	struct world w;
	struct table *t;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'v', 2);
	w.roots[1] = node_new(&w, 1);
	put(&w, w.roots[0], 0, node_new(&w, 2), w.roots[1]);
	put(&w, w.roots[0], 1, node_new(&w, 3), node_new(&w, 4));
	t = table_of(w.roots[0]);
	cycle(&w);
	assert_true(ebbgc_same(ebbgc_weak_read(w.m, t->entries[0].value, EBBGC_CLEAR_FIRST),
			       w.roots[1]));
	assert_int_equal(node_of(t->entries[0].key)->value, 2);
	assert_int_equal(node_of(t->entries[1].key)->value, 3);
	assert_true(ebbgc_is_null(t->entries[1].value));
	t->mode = 'a';
	w.roots[1] = EBBGC_NULL;
	cycle(&w);
	assert_true(ebbgc_is_null(t->entries[0].key));
	assert_true(ebbgc_is_null(t->entries[0].value));
	world_close(&w);
}

/* A value keeps neither its key nor, once that is dead, itself. */
static void ephemeron_entries(void **state)
{
	struct world w;
	struct table *t;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'k', 3);
	w.roots[1] = node_new(&w, 1);
	w.roots[2] = node_new(&w, 2);
	put(&w, w.roots[0], 0, w.roots[1], w.roots[2]);
	put(&w, w.roots[0], 1, w.roots[2], node_new(&w, 3));
	w.roots[2] = node_new(&w, 4);
	node_of(w.roots[2])->left = w.roots[2];
	put(&w, w.roots[0], 2, w.roots[2], w.roots[2]);
	w.roots[2] = EBBGC_NULL;
	t = table_of(w.roots[0]);
	cycle(&w);
	assert_int_equal(node_of(t->entries[0].value)->value, 2);
	assert_int_equal(node_of(t->entries[1].value)->value, 3);
	assert_true(ebbgc_is_null(t->entries[2].key));
	assert_true(ebbgc_is_null(t->entries[2].value));
	w.roots[1] = EBBGC_NULL;
	cycle(&w);
	for (int i = 0; i < 3; i++)
		assert_true(ebbgc_is_null(t->entries[i].key));
	assert_int_equal(stats_of(w.heap).ephemerons_cleared, 3);
	world_close(&w);
}

static void count(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	ebbgc_ref_t *seen = data;

	*seen = object;
}

/* Before finalizers run, values are cleared; keys stay until the object is dead for good. */
static void keys_are_cleared_after_finalizers(void **state)
{
	ebbgc_ref_t seen = EBBGC_NULL, key;
	struct world w;

	world_open(&w, *state);
	key = node_new(&w, 42);
	w.roots[1] = key;
	w.roots[0] = table_new(&w, 'k', 1);
	w.roots[2] = table_new(&w, 'v', 1);
	put(&w, w.roots[0], 0, key, node_new(&w, 43));
	put(&w, w.roots[2], 0, EBBGC_NULL, key);
	assert_int_equal(ebbgc_finalizer_add(w.m, key, count, &seen), 0);
	w.roots[1] = EBBGC_NULL;
	cycle(&w);
	assert_true(ebbgc_is_null(table_of(w.roots[2])->entries[0].value));
	assert_true(ebbgc_same(table_of(w.roots[0])->entries[0].key, key));
	assert_int_equal(node_of(table_of(w.roots[0])->entries[0].value)->value, 43);
	assert_int_equal(ebbgc_finalizers_run(w.m, 2), 1);
	assert_true(ebbgc_same(seen, key));
	cycle(&w);
	assert_true(ebbgc_is_null(table_of(w.roots[0])->entries[0].key));
	world_close(&w);
}

/* The collector waits after the cycle's second pause, until `go`. */
struct settled {
	unsigned int pauses;	/* of this cycle */
	bool waiting, go;	/* atomic, both */
};

static void hold_settled(void *arg, const struct ebbgc_event *e)
{
	struct settled *s = arg;

	if (e->kind != EBBGC_EVENT_PAUSE_END || ++s->pauses != 2)
		return;
	__atomic_store_n(&s->waiting, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&s->go, __ATOMIC_ACQUIRE))
		usleep(100);
}

/* Begins a cycle; returns while dead references read as null and are not cleared yet. */
static void settle(struct world *w, struct settled *s)
{
	w->heap->options.event = hold_settled;
	w->heap->options.event_arg = s;
	w->heap->options.pause_budget_ns = 0;
	for (ebbgc_collect_start(w->m); !__atomic_load_n(&s->waiting, __ATOMIC_ACQUIRE);
	     usleep(100))
		ebbgc_poll(w->m);
}

static void settle_end(struct world *w, struct settled *s)
{
	uint64_t before = stats_of(w->heap).cycles;

	__atomic_store_n(&s->go, true, __ATOMIC_RELEASE);
	while (stats_of(w->heap).cycles == before) {
		ebbgc_poll(w->m);
		usleep(100);
	}
}

/*
 * While references are cleared for good, the program finds an object by one that is cleared last,
 * and moves what only that object refers to.
 */
static void what_is_cleared_last_can_be_found(void **state)
{
	struct settled s = { .pauses = 0 };
	ebbgc_ref_t key;
	struct world w;
	uint64_t before;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'v', 1);
	put(&w, w.roots[0], 0, EBBGC_NULL, node_new(&w, 1));
	w.roots[1] = table_new(&w, 'a', 1);
	w.roots[3] = node_new(&w, 2);
	ebbgc_store(w.m, w.roots[3], &node_of(w.roots[3])->left, node_new(&w, 42));
	put(&w, w.roots[1], 0, w.roots[3], EBBGC_NULL);
	w.roots[3] = EBBGC_NULL;
	before = stats_of(w.heap).cycles;
	settle(&w, &s);
	assert_int_equal(stats_of(w.heap).cycles, before);
	assert_true(ebbgc_is_null(ebbgc_weak_read(w.m, table_of(w.roots[0])->entries[0].value,
						  EBBGC_CLEAR_FIRST)));
	w.roots[2] = ebbgc_alloc(w.m, w.node);
	key = ebbgc_weak_read(w.m, table_of(w.roots[1])->entries[0].key, EBBGC_CLEAR_LAST);
	assert_false(ebbgc_is_null(key));
	ebbgc_store(w.m, w.roots[2], &node_of(w.roots[2])->left,
		    ebbgc_load(w.m, key, &node_of(key)->left));
	ebbgc_store(w.m, key, &node_of(key)->left, EBBGC_NULL);
	settle_end(&w, &s);
	assert_int_equal(stats_of(w.heap).check_failures, 0);
	assert_int_equal(node_of(ebbgc_load(w.m, w.roots[2], &node_of(w.roots[2])->left))->value,
			 42);
	assert_true(ebbgc_is_null(table_of(w.roots[0])->entries[0].value));
	world_close(&w);
}

/* The key is dead: before the collector clears the entry, the program gives the value a new key. */
static void entries_are_reused_for_their_values(void **state)
{
	struct settled s = { .pauses = 0 };
	struct world w;
	struct entry *n;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'k', 1);
	w.roots[1] = node_new(&w, 42);
	put(&w, w.roots[0], 0, node_new(&w, 1), w.roots[1]);
	n = table_of(w.roots[0])->entries;
	settle(&w, &s);
	assert_true(ebbgc_is_null(ebbgc_weak_read(w.m, n->key, EBBGC_CLEAR_LAST)));
	w.roots[2] = node_new(&w, 2);
	put(&w, w.roots[0], 0, w.roots[2], w.roots[1]);
	settle_end(&w, &s);
	assert_true(ebbgc_same(n->key, w.roots[2]));
	assert_true(ebbgc_same(n->value, w.roots[1]));
	world_close(&w);
}

/* The same where it is the value that is dead, and the key that another value gets. */
static void entries_are_reused_for_their_keys(void **state)
{
	struct settled s = { .pauses = 0 };
	struct world w;
	struct entry *n;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 's', 1);
	w.roots[1] = node_new(&w, 42);
	put(&w, w.roots[0], 0, w.roots[1], node_new(&w, 1));
	n = table_of(w.roots[0])->entries;
	settle(&w, &s);
	assert_true(ebbgc_is_null(ebbgc_weak_read(w.m, n->value, EBBGC_CLEAR_FIRST)));
	w.roots[2] = node_new(&w, 2);
	put(&w, w.roots[0], 0, w.roots[1], w.roots[2]);
	settle_end(&w, &s);
	assert_true(ebbgc_same(n->key, w.roots[1]));
	assert_true(ebbgc_same(n->value, w.roots[2]));
	world_close(&w);
}

/*
 * An object is found by a reference that is cleared last: the other one that the program stores,
 * in a slot which the collector is about to clear, reads as the object and stays.
 */
static void what_is_found_again_is_not_cleared(void **state)
{
	struct settled s = { .pauses = 0 };
	struct world w;
	struct entry *weak, *last;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'v', 1);
	w.roots[1] = table_new(&w, 'a', 1);
	w.roots[3] = node_new(&w, 42);
	put(&w, w.roots[0], 0, EBBGC_NULL, w.roots[3]);
	put(&w, w.roots[1], 0, w.roots[3], EBBGC_NULL);
	weak = table_of(w.roots[0])->entries;
	last = table_of(w.roots[1])->entries;
	w.roots[3] = EBBGC_NULL;
	settle(&w, &s);
	assert_true(ebbgc_is_null(ebbgc_weak_read(w.m, weak->value, EBBGC_CLEAR_FIRST)));
	w.roots[2] = ebbgc_weak_read(w.m, last->key, EBBGC_CLEAR_LAST);
	assert_false(ebbgc_is_null(w.roots[2]));
	put(&w, w.roots[0], 0, EBBGC_NULL, w.roots[2]);
	assert_true(ebbgc_same(ebbgc_weak_read(w.m, weak->value, EBBGC_CLEAR_FIRST), w.roots[2]));
	settle_end(&w, &s);
	assert_true(ebbgc_same(weak->value, w.roots[2]));
	assert_true(ebbgc_same(last->key, w.roots[2]));
	world_close(&w);
}

/* A finalizer: moves the reference that the object holds to the object in @data. */
static void take(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	ebbgc_ref_t to = *(const ebbgc_ref_t *)data;

	ebbgc_store(m, to, &node_of(to)->left, ebbgc_load(m, object, &node_of(object)->left));
	ebbgc_store(m, object, &node_of(object)->left, EBBGC_NULL);
}

/* All finalizers become ready while references are cleared for good: the dead live again. */
static void the_dead_are_finalized_while_references_are_cleared(void **state)
{
	struct settled s = { .pauses = 0 };
	struct world w;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'v', 1);
	put(&w, w.roots[0], 0, EBBGC_NULL, node_new(&w, 1));
	w.roots[3] = node_new(&w, 2);
	ebbgc_store(w.m, w.roots[3], &node_of(w.roots[3])->left, node_new(&w, 42));
	assert_int_equal(ebbgc_finalizer_add(w.m, w.roots[3], take, &w.roots[2]), 0);
	w.roots[3] = EBBGC_NULL;
	settle(&w, &s);
	w.roots[2] = ebbgc_alloc(w.m, w.node);
	ebbgc_finalizers_all(w.m);
	assert_int_equal(ebbgc_finalizers_run(w.m, 2), 1);
	settle_end(&w, &s);
	assert_int_equal(stats_of(w.heap).check_failures, 0);
	assert_int_equal(node_of(ebbgc_load(w.m, w.roots[2], &node_of(w.roots[2])->left))->value,
			 42);
	world_close(&w);
}

/* A value that outlives its key may stay in its slot, which does not keep it. */
static void null_keys_keep_no_value(void **state)
{
	struct world w;
	struct entry *n;

	world_open(&w, *state);
	w.roots[0] = table_new(&w, 'k', 1);
	w.roots[1] = node_new(&w, 42);
	put(&w, w.roots[0], 0, node_new(&w, 1), w.roots[1]);
	n = table_of(w.roots[0])->entries;
	cycle(&w);
	assert_true(ebbgc_is_null(n->key));
	w.roots[2] = ebbgc_weak_new(w.m, w.roots[1]);
	w.roots[1] = EBBGC_NULL;
	cycle(&w);
	assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[2])));
	assert_true(ebbgc_is_null(n->value));
	assert_int_equal(stats_of(w.heap).ephemerons_cleared, 1);
	world_close(&w);
}

struct registry {
	ebbgc_ref_t slot;
	unsigned int calls;
};

static void registry_roots(void *arg, struct ebbgc_edges *e)
{
	struct registry *r = arg;

	ebbgc_ref_t inside = { r->slot.bits ? r->slot.bits + 16 : 0 };

	r->calls++;
	e->strong(e, &r->slot, r->slot);
	/* No object begins there: to be ignored. */
	e->strong(e, NULL, inside);
}

static void callbacks_pass_roots(void **state)
{
	struct registry r = { .calls = 0 };
	struct world w;

	world_open(&w, *state);
	assert_int_equal(ebbgc_roots_call(w.m, NULL, &r), -22);
	assert_int_equal(ebbgc_roots_call(w.m, registry_roots, &r), 0);
	r.slot = node_new(&w, 42);
	w.roots[0] = ebbgc_weak_new(w.m, r.slot);
	cycle(&w);
	assert_true(r.calls > 0);
	assert_false(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[0])));
	assert_int_equal(ebbgc_roots_call_end(w.m, registry_roots, &r), 0);
	assert_int_equal(ebbgc_roots_call_end(w.m, registry_roots, &r), -2);
	cycle(&w);
	assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[0])));
	world_close(&w);
}

struct held {
	bool waiting, go;	/* atomic, both */
};

/* The collector waits before it marks anything. */
static void hold(void *arg, const struct ebbgc_event *e)
{
	struct held *h = arg;

	if (e->kind != EBBGC_EVENT_MARK_BEGIN || __atomic_load_n(&h->go, __ATOMIC_ACQUIRE))
		return;
	__atomic_store_n(&h->waiting, true, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&h->go, __ATOMIC_ACQUIRE))
		usleep(100);
}

enum how { TOUCHED, ENTERED, OVERWRITTEN };

/*
 * After the snapshot, before anything is marked, moves the only reference to an object from a
 * suspended or an entered fibre, or from a table, to an object that is traced already.
 */
static void moves(const char *words, enum how how)
{
	struct ebbgc_entered entered;
	ebbgc_ref_t stack[1] = { 0 };
	struct held h = { .go = false };
	struct fibre *f;
	struct world w;
	uint64_t before;

	world_open(&w, words);
	w.heap->options.event = hold;
	w.heap->options.event_arg = &h;
	w.roots[0] = ebbgc_alloc(w.m, w.fibre);
	w.roots[2] = table_new(&w, 'v', 1);
	f = ebbgc_ptr(w.roots[0]);
	f->stack = stack;
	f->top = 1;
	if (how == ENTERED)
		ebbgc_fibre_enter(w.m, &entered, w.roots[0]);
	stack[0] = node_new(&w, 42);
	if (how == OVERWRITTEN) {
		put(&w, w.roots[2], 0, stack[0], EBBGC_NULL);
		stack[0] = EBBGC_NULL;
	}
	before = stats_of(w.heap).cycles;
	for (ebbgc_collect_start(w.m); !__atomic_load_n(&h.waiting, __ATOMIC_ACQUIRE); usleep(100))
		ebbgc_poll(w.m);
	w.roots[1] = ebbgc_alloc(w.m, w.node);
	if (how == TOUCHED)
		ebbgc_fibre_touch(w.m, w.roots[0]);
	ebbgc_store(w.m, w.roots[1], &node_of(w.roots[1])->left,
		    how == OVERWRITTEN ? table_of(w.roots[2])->entries[0].key : stack[0]);
	stack[0] = EBBGC_NULL;
	put(&w, w.roots[2], 0, EBBGC_NULL, EBBGC_NULL);
	__atomic_store_n(&h.go, true, __ATOMIC_RELEASE);
	while (stats_of(w.heap).cycles == before) {
		ebbgc_poll(w.m);
		usleep(100);
	}
	if (how == ENTERED)
		ebbgc_fibre_leave(w.m, &entered);
	assert_int_equal(node_of(ebbgc_load(w.m, w.roots[1], &node_of(w.roots[1])->left))->value,
			 42);
	world_close(&w);
}

static void touched_fibres_are_traced(void **state)
{
	moves(*state, TOUCHED);
}

static void entered_fibres_are_roots(void **state)
{
	moves(*state, ENTERED);
}

static void overwritten_references_are_logged(void **state)
{
	moves(*state, OVERWRITTEN);
}

/* An entered fibre changes while the collector marks: it is traced in the pause alone. */
static void entered_fibres_are_traced_in_the_pause(void **state)
{
	struct ebbgc_entered entered;
	ebbgc_ref_t stack[64] = { 0 };
	struct fibre *f;
	struct world w;
	uint64_t before;

	world_open(&w, *state);
	w.roots[0] = ebbgc_alloc(w.m, w.fibre);
	f = ebbgc_ptr(w.roots[0]);
	f->stack = stack;
	ebbgc_fibre_enter(w.m, &entered, w.roots[0]);
	/* What keeps it is that it is entered. */
	w.roots[0] = EBBGC_NULL;
	before = stats_of(w.heap).cycles;
	for (unsigned int i = 0; stats_of(w.heap).cycles < before + 8; i++) {
		ebbgc_ref_t r;

		if (i % 10000 == 0)
			ebbgc_collect_start(w.m);
		r = ebbgc_alloc(w.m, w.node);
		node_of(r)->value = 42;
		f->top = f->top < 64 ? f->top + 1 : 1 + i % 64;
		for (uint64_t k = 0; k + 1 < f->top; k++)
			if (!ebbgc_is_null(stack[k]))
				assert_int_equal(node_of(stack[k])->value, 42);
		stack[f->top - 1] = r;
		for (uint64_t k = f->top; k < 64; k++)
			stack[k] = EBBGC_NULL;
	}
	ebbgc_fibre_leave(w.m, &entered);
	assert_null(w.m->fibres);
	world_close(&w);
}

/* A fibre that nothing refers to dies with what is on its stack. */
static void dead_fibres_are_not_traced(void **state)
{
	ebbgc_ref_t stack[1];
	struct fibre *f;
	struct world w;

	world_open(&w, *state);
	w.roots[0] = ebbgc_alloc(w.m, w.fibre);
	f = ebbgc_ptr(w.roots[0]);
	f->stack = stack;
	f->top = 1;
	stack[0] = w.roots[0];
	w.roots[1] = ebbgc_weak_new(w.m, w.roots[0]);
	w.roots[0] = EBBGC_NULL;
	cycle(&w);
	assert_true(ebbgc_is_null(ebbgc_weak_get(w.m, w.roots[1])));
	world_close(&w);
}

static void in_order(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	uint64_t *next = data;

	assert_int_equal(node_of(object)->value, --*next);
}

static void newest_finalizers_run_first(void **state)
{
	uint64_t next = 10;
	struct world w;

	world_open(&w, "mode=concurrent,newest");
	for (uint64_t i = 0; i < 10; i++) {
		w.roots[0] = node_new(&w, i);
		assert_int_equal(ebbgc_finalizer_add(w.m, w.roots[0], in_order, &next), 0);
	}
	w.roots[0] = EBBGC_NULL;
	cycle(&w);
	assert_int_equal(ebbgc_finalizers_run(w.m, SIZE_MAX), 10);
	assert_int_equal(next, 0);
	world_close(&w);
}

/* At the end of a program, live objects are finalized, too. */
static void all_finalizers_run(void **state)
{
	uint64_t next = 3;
	struct world w;

	world_open(&w, "mode=concurrent,newest");
	w.roots[0] = ebbgc_alloc_length(w.m, w.refs, 3);
	for (uint64_t i = 0; i < 3; i++) {
		ebbgc_ref_t r = node_new(&w, i);

		ebbgc_store(w.m, w.roots[0], &refs_of(w.roots[0])->slots[i], r);
		assert_int_equal(ebbgc_finalizer_add(w.m, r, in_order, &next), 0);
	}
	ebbgc_finalizers_all(w.m);
	w.roots[0] = EBBGC_NULL;
	cycle(&w);
	assert_int_equal(ebbgc_finalizers_run(w.m, SIZE_MAX), 3);
	assert_int_equal(next, 0);
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_int_equal(ebbgc_finalizers_run(w.m, SIZE_MAX), 0);
	world_close(&w);
}

static void fill(struct world *w, size_t bytes)
{
	for (size_t i = 0; i < bytes; i += 32)
		assert_false(ebbgc_is_null(ebbgc_alloc(w->m, w->node)));
}

static void suspended_cycles_do_not_begin(void **state)
{
	struct world w;

	world_open(&w, *state);
	/* One that was requested ends first. */
	ebbgc_collect_start(w.m);
	ebbgc_cycles_suspend(w.m);
	assert_int_equal(stats_of(w.heap).cycles, 1);
	fill(&w, 16 << 20);
	usleep(2000);
	assert_int_equal(stats_of(w.heap).cycles, 1);
	/* Requested ones do. */
	assert_int_equal(ebbgc_collect(w.m), 0);
	fill(&w, 16 << 20);
	assert_int_equal(stats_of(w.heap).cycles, 2);
	ebbgc_cycles_resume(w.m);
	fill(&w, 16 << 20);
	/* Of the collector's thread. */
	for (int i = 0; i < 60000 && stats_of(w.heap).cycles <= 2; i++) {
		ebbgc_poll(w.m);
		usleep(1000);
	}
	assert_true(stats_of(w.heap).cycles > 2);
	world_close(&w);
}

/* Objects of inline allocation are as good as any: zeroed, marked while marking, counted. */
static void allocation_is_inline(void **state)
{
	struct ebbgc_layout big = node_layout;
	struct ebbgc_site site;
	ebbgc_type_t large;
	struct world w;
	uint64_t before;

	world_open(&w, *state);
	big.size = 8192;
	assert_int_equal(ebbgc_type_register(w.heap, &big, &large), 0);
	assert_int_equal(ebbgc_site_init(w.heap, large, &site), -22);
	assert_int_equal(ebbgc_site_init(w.heap, w.refs, &site), -22);
	assert_int_equal(ebbgc_site_init(w.heap, 12345, &site), -22);
	assert_int_equal(ebbgc_site_init(w.heap, w.node, &site), 0);
	before = stats_of(w.heap).cycles;
	/* A list of 1000 that is replaced again and again. */
	for (uint64_t i = 0; stats_of(w.heap).cycles < before + 6; i++) {
		ebbgc_ref_t r = ebbgc_alloc_site(w.m, &site);

		if (i % 5000 == 0)
			ebbgc_collect_start(w.m);
		assert_int_equal(ebbgc_type_of(r), w.node);
		assert_int_equal(node_of(r)->value, 0);
		assert_true(ebbgc_is_null(node_of(r)->right));
		node_of(r)->value = i;
		ebbgc_init(&node_of(r)->left, i % 1000 ? w.roots[0] : EBBGC_NULL);
		w.roots[0] = r;
		if (i % 1000 == 999)
			for (uint64_t k = 0; k < 1000; k++, r = node_of(r)->left)
				assert_int_equal(node_of(r)->value, i - k);
	}
	world_close(&w);
}

struct text {
	uint32_t hash, length;
	char bytes[];
};

static const struct ebbgc_layout text_layout = {
	.name = "text", .flags = EBBGC_LEAF, .size = sizeof(struct text), .element_size = 1,
	.length_offset = 4, .length_width = 4,
};

/* Every length up to the largest, and some beyond, with a length field of 4 or 8 bytes. */
static void allocation_with_a_length_is_inline(void **state)
{
	struct ebbgc_length_site texts, arrays, site;
	struct ebbgc_layout big = text_layout;
	ebbgc_type_t text, large;
	struct world w;
	uint64_t before;

	world_open(&w, *state);
	big.size = 8192;
	assert_int_equal(ebbgc_type_register(w.heap, &big, &large), 0);
	assert_int_equal(ebbgc_type_register(w.heap, &text_layout, &text), 0);
	assert_int_equal(ebbgc_length_site_init(w.heap, large, &site), -22);
	assert_int_equal(ebbgc_length_site_init(w.heap, w.node, &site), -22);
	assert_int_equal(ebbgc_length_site_init(w.heap, 12345, &site), -22);
	assert_int_equal(ebbgc_length_site_init(w.heap, text, &texts), 0);
	assert_int_equal(ebbgc_length_site_init(w.heap, w.refs, &arrays), 0);
	assert_int_equal(texts.most, 8192 - 8 - sizeof(struct text));
	for (uint32_t n = 0; n < 8300; n++) {
		struct text *t;

		w.roots[0] = ebbgc_alloc_length_site(w.m, &texts, n);
		t = ebbgc_ptr(w.roots[0]);
		assert_int_equal(ebbgc_type_of(w.roots[0]), text);
		assert_int_equal(t->length, n);
		assert_int_equal(ebbgc_size_of(w.m, w.roots[0]), sizeof(*t) + n);
		/* Zeroed, and no object that comes later lies in it. */
		for (uint32_t i = 0; i < n; i += 1 + n / 16)
			assert_int_equal(t->bytes[i], 0);
		memset(t->bytes, 0xff, n);
		w.roots[1] = ebbgc_alloc_length_site(w.m, &arrays, n % 1024);
		assert_int_equal(refs_of(w.roots[1])->length, n % 1024);
		if (n % 1024)
			assert_true(ebbgc_is_null(refs_of(w.roots[1])->slots[n % 1024 - 1]));
		assert_int_equal(t->length, n);
	}
	/* What overflows is left to ebbgc_alloc_length(). */
	assert_true(ebbgc_is_null(ebbgc_alloc_length_site(w.m, &texts, SIZE_MAX)));
	/* Arrays that are replaced again and again, while cycles run. */
	before = stats_of(w.heap).cycles;
	for (uint64_t i = 0; stats_of(w.heap).cycles < before + 6; i++) {
		ebbgc_ref_t r = ebbgc_alloc_length_site(w.m, &arrays, 1 + i % 40);

		if (i % 5000 == 0)
			ebbgc_collect_start(w.m);
		ebbgc_init(&refs_of(r)->slots[i % 40], i % 100 ? w.roots[2] : EBBGC_NULL);
		w.roots[2] = r;
		for (uint64_t k = i; !ebbgc_is_null(r) && k + 10 > i;
		     r = refs_of(r)->slots[k % 40], k--)
			assert_int_equal(refs_of(r)->length, 1 + k % 40);
	}
	world_close(&w);
}

/* A layout that forgets the collector's word has it where its length or a reference is. */
static void the_word_of_a_fibre_is_its_own(void **state)
{
	static const struct ebbgc_run run = { 8, 2, 8 };
	struct ebbgc_layout l[4] = { fibre_layout, fibre_layout, fibre_layout, fibre_layout };
	ebbgc_type_t type;
	struct world w;

	(void)state;
	world_open(&w, "mode=stop");
	l[0].length_width = 8;
	l[0].element_size = 1;
	l[1].bitmap = 1;
	l[2].fibre_offset = 16;
	l[2].runs = &run;
	l[2].run_count = 1;
	for (int i = 0; i < 3; i++)
		assert_int_equal(ebbgc_type_register(w.heap, &l[i], &type), -EINVAL);
	l[3].bitmap = 2;
	assert_int_equal(ebbgc_type_register(w.heap, &l[3], &type), 0);
	world_close(&w);
}

/* A type each for a program's records. */
static void there_may_be_many_types(void **state)
{
	struct world w;
	ebbgc_type_t type = 0;

	world_open(&w, "mode=stop");
	for (int i = 0; i < 5000; i++)
		assert_int_equal(ebbgc_type_register(w.heap, &node_layout, &type), 0);
	w.roots[0] = ebbgc_alloc(w.m, type);
	ebbgc_store(w.m, w.roots[0], &node_of(w.roots[0])->left, node_new(&w, 42));
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_int_equal(ebbgc_type_of(w.roots[0]), type);
	assert_int_equal(node_of(node_of(w.roots[0])->left)->value, 42);
	world_close(&w);
}

static void external_bytes_begin_cycles(void **state)
{
	struct world w;
	uint64_t before;

	world_open(&w, "mode=stop");
	for (int i = 0; i < 64; i++) {
		ebbgc_external_bytes(w.m, 1 << 20);
		fill(&w, 32 << 10);
		ebbgc_external_bytes(w.m, -(1 << 20));
	}
	before = stats_of(w.heap).cycles;
	assert_true(before > 3);
	/* As much as lives, on top: it doubles the target size. */
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_int_equal(w.heap->target, 1 << 20);
	ebbgc_external_bytes(w.m, 32 << 20);
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_true(w.heap->target >= 64 << 20);
	world_close(&w);
}

struct counted {
	size_t nodes, tables;
	ebbgc_type_t node, table;
	ebbgc_ref_t last;
};

static void count_object(void *arg, ebbgc_ref_t object)
{
	struct counted *c = arg;

	assert_true((uint64_t)object.bits > c->last.bits);
	c->last = object;
	c->nodes += ebbgc_type_of(object) == c->node;
	c->tables += ebbgc_type_of(object) == c->table;
}

static void live_objects_are_listed(void **state)
{
	struct counted c = { 0 };
	struct world w;

	world_open(&w, *state);
	c.node = w.node;
	c.table = w.table;
	w.roots[0] = table_new(&w, 'k', 10);
	for (int i = 0; i < 10; i++)
		put(&w, w.roots[0], i, EBBGC_NULL, EBBGC_NULL);
	w.roots[1] = ebbgc_alloc_length(w.m, w.refs, 1000);
	for (int i = 0; i < 1000; i++) {
		ebbgc_store(w.m, w.roots[1], &refs_of(w.roots[1])->slots[i], node_new(&w, i));
		node_new(&w, i);
	}
	assert_int_equal(ebbgc_heap_each(w.m, count_object, &c), 0);
	assert_int_equal(c.nodes, 1000);
	assert_int_equal(c.tables, 1);
	/* Once. */
	assert_int_equal(ebbgc_collect(w.m), 0);
	assert_int_equal(c.nodes, 1000);
	world_close(&w);
}

#define IN_MODES(test)                                                        \
	{ #test ", concurrent", test, NULL, NULL, (void *)"mode=concurrent" },    \
	{ #test ", stop", test, NULL, NULL, (void *)"mode=stop" },                \
	{ #test ", parked", test, NULL, NULL,                                     \
	  (void *)"mode=memliner,plain,park,residency=simulated" }

int main(void)
{
	const struct CMUnitTest tests[] = {
		IN_MODES(weak_entries),
		IN_MODES(ephemeron_entries),
		IN_MODES(keys_are_cleared_after_finalizers),
		{ "what is cleared last can be found", what_is_cleared_last_can_be_found, NULL,
		  NULL, (void *)"mode=concurrent" },
		{ "entries are reused for their values", entries_are_reused_for_their_values, NULL,
		  NULL, (void *)"mode=concurrent" },
		{ "entries are reused for their keys", entries_are_reused_for_their_keys, NULL,
		  NULL, (void *)"mode=concurrent" },
		{ "what is found again is not cleared", what_is_found_again_is_not_cleared, NULL,
		  NULL, (void *)"mode=concurrent" },
		{ "the dead are finalized while references are cleared",
		  the_dead_are_finalized_while_references_are_cleared, NULL, NULL,
		  (void *)"mode=concurrent" },
		IN_MODES(null_keys_keep_no_value),
		IN_MODES(callbacks_pass_roots),
		{ "touched fibres are traced", touched_fibres_are_traced, NULL, NULL,
		  (void *)"mode=concurrent" },
		{ "entered fibres are roots", entered_fibres_are_roots, NULL, NULL,
		  (void *)"mode=concurrent" },
		{ "overwritten references are logged", overwritten_references_are_logged, NULL,
		  NULL, (void *)"mode=concurrent" },
		{ "memliner: touched fibres are traced", touched_fibres_are_traced, NULL, NULL,
		  (void *)"mode=memliner,plain,residency=simulated" },
		IN_MODES(entered_fibres_are_traced_in_the_pause),
		IN_MODES(dead_fibres_are_not_traced),
		cmocka_unit_test(newest_finalizers_run_first),
		cmocka_unit_test(all_finalizers_run),
		IN_MODES(suspended_cycles_do_not_begin),
		IN_MODES(allocation_is_inline),
		IN_MODES(allocation_with_a_length_is_inline),
		cmocka_unit_test(the_word_of_a_fibre_is_its_own),
		cmocka_unit_test(there_may_be_many_types),
		cmocka_unit_test(external_bytes_begin_cycles),
		IN_MODES(live_objects_are_listed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
