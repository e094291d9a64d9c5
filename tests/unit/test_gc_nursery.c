// SPDX-License-Identifier: GPL-2.0-or-later
/* Minor cycles: what they free, keep and clear, alone and while a cycle marks. */
#include <errno.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gc_test.h"
#include "heap.h"
#include "object.h"
#include "trigger.h"
#include "world.h"

#define ROOTS 8
#define MIB ((size_t)1 << 20)

static bool failing;		/* no table grows; atomic */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FAILS 0		/* they have a realloc() of their own */
#else
#define FAILS 1

void *__libc_realloc(void *p, size_t size);

void *realloc(void *p, size_t size)
{
	return __atomic_load_n(&failing, __ATOMIC_RELAXED) ? NULL : __libc_realloc(p, size);
}
#endif

/* Lets the collector wait after the snapshot, and counts events. */
struct watch {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool armed, waits;
	unsigned int failures;
	uint64_t ready, ended;
	char text[128];
};

struct fixture {
	struct watch watch;
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs, leaf, weak;
	ebbgc_ref_t roots[ROOTS];
	struct ebbgc_frame frame;
};

static void on_event(void *arg, const struct ebbgc_event *e)
{
	struct watch *w = arg;

	pthread_mutex_lock(&w->lock);
	if (e->kind == EBBGC_EVENT_MARK_BEGIN && w->armed) {
		w->waits = true;
		while (w->armed)
			pthread_cond_wait(&w->changed, &w->lock);
		w->waits = false;
	} else if (e->kind == EBBGC_EVENT_CHECK_FAILED) {
		w->failures++;
		strncpy(w->text, e->text, sizeof(w->text) - 1);
	} else if (e->kind == EBBGC_EVENT_FINALIZERS_READY) {
		w->ready += e->value;
	} else if (e->kind == EBBGC_EVENT_CYCLE_END) {
		w->ended++;
	}
	pthread_mutex_unlock(&w->lock);
}

static void begin(struct fixture *f, const char *words)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};
	struct ebbgc_layout weak = refs_layout;
	struct ebbgc_options o;

	memset(f, 0, sizeof(*f));
	pthread_mutex_init(&f->watch.lock, NULL);
	pthread_cond_init(&f->watch.changed, NULL);
	ebbgc_options_init(&o);
	o.max_bytes = 64 * MIB;
	o.check = true;
	o.event = on_event;
	o.event_arg = &f->watch;
	/* A minor cycle that takes long, in a thread that waits for a processor, frees nothing. */
	o.pause_budget_ns = UINT64_MAX;
	assert_int_equal(ebbgc_debug(&o, words), 0);
	assert_int_equal(ebbgc_heap_create(&o, &f->heap), 0);
	weak.flags = EBBGC_WEAK;
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &refs_layout, &f->refs), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &leaf, &f->leaf), 0);
	assert_int_equal(ebbgc_type_register(f->heap, &weak, &f->weak), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, ROOTS);
}

static void end(struct fixture *f)
{
	assert_int_equal(f->watch.failures, 0);
	assert_int_equal(stats_of(f->heap).check_failures, 0);
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
}

static ebbgc_ref_t node(struct fixture *f, uint64_t value)
{
	ebbgc_ref_t r = ebbgc_alloc(f->m, f->node);

	node_of(r)->value = value;
	return r;
}

/* Runs a minor cycle; returns the statistics since the last call. */
static struct ebbgc_stats minor(struct fixture *f)
{
	struct ebbgc_stats before = stats_of(f->heap), after;

	/* So that there is something young. */
	ebbgc_alloc_length(f->m, f->leaf, 1);
	pthread_mutex_lock(&f->heap->lock);
	minor_request(f->heap);
	pthread_mutex_unlock(&f->heap->lock);
	do {
		ebbgc_poll(f->m);
		usleep(50);
		after = stats_of(f->heap);
	} while (after.minor_cycles == before.minor_cycles);
	after.minor_cycles -= before.minor_cycles;
	after.cycles -= before.cycles;
	after.promoted_objects -= before.promoted_objects;
	after.reclaimed_bytes -= before.reclaimed_bytes;
	after.remembered -= before.remembered;
	after.weak_cleared -= before.weak_cleared;
	after.ephemerons_cleared -= before.ephemerons_cleared;
	after.finalizers_ready -= before.finalizers_ready;
	assert_int_equal(after.minor_cycles, 1);
	assert_int_equal(after.cycles, 0);
	return after;
}

/* From here to cycle_end() a cycle has its snapshot and marks nothing. */
static void cycle_begin(struct fixture *f)
{
	bool waits;

	pthread_mutex_lock(&f->watch.lock);
	f->watch.armed = true;
	pthread_mutex_unlock(&f->watch.lock);
	ebbgc_collect_start(f->m);
	do {
		ebbgc_poll(f->m);
		usleep(50);
		pthread_mutex_lock(&f->watch.lock);
		waits = f->watch.waits;
		pthread_mutex_unlock(&f->watch.lock);
	} while (!waits);
}

static void cycle_end(struct fixture *f)
{
	uint64_t cycles = stats_of(f->heap).cycles;

	pthread_mutex_lock(&f->watch.lock);
	f->watch.armed = false;
	pthread_cond_broadcast(&f->watch.changed);
	pthread_mutex_unlock(&f->watch.lock);
	while (stats_of(f->heap).cycles == cycles) {
		ebbgc_poll(f->m);
		usleep(50);
	}
}

/* Is the reference's slot taken? */
static bool exists(const struct fixture *f, ebbgc_ref_t r)
{
	return bit_test(f->heap->allocated,
			granule_of(f->heap, (uint64_t)(uintptr_t)ebbgc_ptr(r)));
}

static bool is_old(const struct fixture *f, ebbgc_ref_t r)
{
	return bit_test(f->heap->nursery.old,
			granule_of(f->heap, (uint64_t)(uintptr_t)ebbgc_ptr(r)));
}

/* Returns the number of regions that wait for allocation, of all kinds. */
static uint32_t recycled(struct fixture *f)
{
	uint32_t count = 0;

	pthread_mutex_lock(&f->heap->lock);
	for (unsigned int k = 0; k < SMALL_KINDS; k++)
		for (uint32_t r = f->heap->recycled[k].head; r != REGION_NONE;
		     r = f->heap->regions[r].next)
			count++;
	assert_int_equal(count, f->heap->nursery.recycled);
	pthread_mutex_unlock(&f->heap->lock);
	return count;
}

/* A hundred nurseries of garbage: no cycle, and the heap stays small. */
static void garbage_is_recycled(void **state)
{
	const size_t count = 25 * MIB / 32;
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, *state);
	for (size_t i = 0; i < count; i++)
		f.roots[i % ROOTS] = node(&f, i);
	s = stats_of(f.heap);
	assert_int_equal(s.cycles, 0);
	assert_true(s.minor_cycles >= 40);
	assert_true(s.reclaimed_bytes >= s.allocated_bytes - MIB);
	assert_true(s.heap_bytes <= 2 * MIB);
	assert_true(recycled(&f) <= f.heap->options.nursery_bytes / REGION_SIZE);
	for (size_t i = count - ROOTS; i < count; i++)
		assert_int_equal(node_of(f.roots[i % ROOTS])->value, i);
	end(&f);
}

/* Where all survives, most minor cycles trace nothing; soon after it dies again, all free. */
static void survivors_are_not_traced(void **state)
{
	struct ebbgc_stats before, s;
	struct fixture f;
	ebbgc_ref_t r;

	begin(&f, "mode=concurrent,min=48M,nursery=256K");
	f.roots[1] = node(&f, 0);
	for (size_t i = 0; i < 8 * MIB / 32; i++) {
		r = node(&f, i);
		ebbgc_init(&node_of(r)->left, f.roots[0]);
		f.roots[0] = r;
		/* And stores are not slower. */
		assert_int_equal(!(ebbgc_flags(f.m) & EBBGC_MARKING), f.heap->nursery.skip > 0);
		ebbgc_store(f.m, f.roots[1], &node_of(f.roots[1])->left, r);
	}
	before = stats_of(f.heap);
	assert_int_equal(before.cycles, 0);
	assert_true(before.minor_cycles >= 12);
	assert_true(before.minor_kept > before.minor_cycles / 2);
	/* Some have traced, until they gave up. */
	assert_in_range(before.promoted_bytes, 2 * MIB / 8, 2 * MIB);
	for (size_t i = 0; i < 8 * MIB / 32; i++)
		node(&f, i);
	s = stats_of(f.heap);
	assert_int_equal(s.cycles, 0);
	/* A cycle that is due with survivors and garbage may give up, and then 7 trace nothing. */
	assert_true(s.minor_kept <= before.minor_kept + 1 + 7);
	assert_true(s.reclaimed_bytes - before.reclaimed_bytes > 2 * MIB);
	r = f.roots[0];
	for (size_t i = 8 * MIB / 32; i-- > 0; r = ebbgc_load(f.m, r, &node_of(r)->left))
		assert_int_equal(node_of(r)->value, i);
	end(&f);
}

/* Threads begin in regions that a minor cycle has emptied, not in new ones. */
static void recycled_regions_come_first(void **state)
{
	struct fixture f;
	ebbgc_ref_t first;
	uint64_t ended;
	uint32_t top;

	begin(&f, "nursery=4M");
	first = node(&f, 1);
	for (size_t i = 0; i < MIB / 32; i++)
		node(&f, i);
	minor(&f);
	top = f.heap->top;
	assert_true(recycled(&f) >= MIB / REGION_SIZE);
	assert_false(exists(&f, first));
	for (size_t i = 0; i < MIB / 32; i++)
		node(&f, i);
	assert_int_equal(f.heap->top, top);
	/* A cycle leaves them; a full one does not. */
	minor(&f);
	cycle_begin(&f);
	cycle_end(&f);
	/* Swept. */
	do {
		pthread_mutex_lock(&f.watch.lock);
		ended = f.watch.ended;
		pthread_mutex_unlock(&f.watch.lock);
	} while (!ended);
	assert_true(recycled(&f) >= MIB / REGION_SIZE);
	assert_int_equal(ebbgc_collect(f.m), 0);
	ebbgc_alloc_length(f.m, f.leaf, 1);
	assert_true(stats_of(f.heap).heap_bytes <= 2 * REGION_SIZE);
	end(&f);
}

enum way { BY_STORE, BY_CAS, BY_COPY, BY_FILL, WAYS };

static void store_by(struct fixture *f, enum way way, ebbgc_ref_t object, ebbgc_ref_t *slot,
		     ebbgc_ref_t value)
{
	ebbgc_ref_t was = ebbgc_load(f->m, object, slot);

	switch (way) {
	case BY_STORE:
		ebbgc_store(f->m, object, slot, value);
		break;
	case BY_CAS:
		assert_true(ebbgc_cas(f->m, object, slot, &was, value));
		break;
	case BY_COPY:
		ebbgc_copy(f->m, object, slot, EBBGC_NULL, &value, 1);
		break;
	default:
		ebbgc_fill(f->m, object, slot, value, 1);
		break;
	}
}

static void old_objects_keep_young_ones(void **state)
{
	for (enum way way = 0; way < WAYS; way++) {
		struct ebbgc_stats s;
		struct fixture f;
		ebbgc_ref_t young, garbage;

		begin(&f, *state);
		f.roots[0] = node(&f, 1);
		s = minor(&f);
		assert_int_equal(s.promoted_objects, 1);
		assert_true(is_old(&f, f.roots[0]));
		young = node(&f, 2);
		store_by(&f, way, young, &node_of(young)->right, node(&f, 3));
		store_by(&f, way, f.roots[0], &node_of(f.roots[0])->left, young);
		garbage = node(&f, 4);
		s = minor(&f);
		assert_int_equal(s.remembered, 1);
		assert_int_equal(s.promoted_objects, 2);
		assert_false(exists(&f, garbage));
		young = ebbgc_load(f.m, f.roots[0], &node_of(f.roots[0])->left);
		assert_int_equal(node_of(young)->value, 2);
		assert_int_equal(
			node_of(ebbgc_load(f.m, young, &node_of(young)->right))->value, 3);
		/* Old to old, and null. */
		store_by(&f, way, f.roots[0], &node_of(f.roots[0])->right, young);
		store_by(&f, way, f.roots[0], &node_of(f.roots[0])->left, EBBGC_NULL);
		assert_int_equal(minor(&f).remembered, 0);
		/* Old garbage is a cycle's. */
		store_by(&f, way, f.roots[0], &node_of(f.roots[0])->right, EBBGC_NULL);
		minor(&f);
		assert_true(exists(&f, young));
		assert_int_equal(ebbgc_collect(f.m), 0);
		ebbgc_alloc(f.m, f.node);
		assert_false(is_old(&f, young));
		end(&f);
	}
}

/* An object is remembered once a minor cycle; of a large one, a page is. */
static void an_object_is_remembered_once(void **state)
{
	const size_t length = 8 * REGION_SIZE / 8, per_page = PAGE_BYTES / 8;
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 0);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, length);
	minor(&f);
	for (int round = 0; round < 3; round++) {
		for (size_t i = 0; i < 1000; i++) {
			ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, node(&f, i));
			ebbgc_store(f.m, f.roots[1], &refs_of(f.roots[1])->slots[i % 100],
				    node(&f, i));
		}
		/* One slot of each page but the first. */
		for (size_t i = per_page; i < length; i += per_page)
			ebbgc_store(f.m, f.roots[1], &refs_of(f.roots[1])->slots[i], node(&f, i));
		s = minor(&f);
		assert_int_equal(s.remembered, 1 + 1 + (length - 1) / per_page);
		assert_int_equal(s.promoted_objects, 1 + 100 + (length - 1) / per_page);
		for (size_t i = per_page; i < length; i += per_page)
			assert_int_equal(node_of(refs_of(f.roots[1])->slots[i])->value, i);
	}
	end(&f);
}

/* More than a thread's buffer holds, each once. */
static void many_objects_are_remembered(void **state)
{
	const size_t count = 5 * SATB_ENTRIES + 1;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, count);
	for (size_t i = 0; i < count; i++)
		ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[i], node(&f, i));
	minor(&f);
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t holder = refs_of(f.roots[0])->slots[i];

		ebbgc_store(f.m, holder, &node_of(holder)->left, node(&f, i));
	}
	assert_int_equal(minor(&f).remembered, count);
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t holder = refs_of(f.roots[0])->slots[i];

		assert_int_equal(node_of(node_of(holder)->left)->value, i);
	}
	end(&f);
}

struct indirect {
	ebbgc_ref_t *slots;		/* of the program's memory */
	size_t count;
};

static void indirect_trace(void *object, ebbgc_visit_fn visit, void *arg)
{
	struct indirect *i = object;

	for (size_t n = 0; i->slots && n < i->count; n++)
		visit(arg, &i->slots[n]);
}

/* The slots that a callback visits lie outside of the object, also in another one. */
static void callbacks_are_called(void **state)
{
	const struct ebbgc_layout small = {
		.name = "indirect", .size = sizeof(struct indirect), .trace = indirect_trace,
	};
	struct ebbgc_layout large = small;
	ebbgc_ref_t outside[2][4] = { 0 }, *slots[3] = { outside[0], outside[1], NULL };
	struct fixture f;

	begin(&f, *state);
	large.size = 3 * REGION_SIZE;
	f.roots[3] = ebbgc_alloc_length(f.m, f.leaf, sizeof(outside[0]));
	slots[2] = refs_of(f.roots[3])->slots;
	for (size_t i = 0; i < 3; i++) {
		struct indirect *in;
		ebbgc_type_t type;

		assert_int_equal(ebbgc_type_register(f.heap, i ? &large : &small, &type), 0);
		f.roots[i] = ebbgc_alloc(f.m, type);
		in = ebbgc_ptr(f.roots[i]);
		in->count = 4;
		in->slots = slots[i];
	}
	minor(&f);
	for (size_t i = 0; i < 3; i++)
		for (size_t n = 0; n < 4; n++)
			ebbgc_store(f.m, f.roots[i], &slots[i][n], node(&f, n));
	assert_int_equal(minor(&f).remembered, 3);
	for (size_t i = 0; i < 3; i++)
		for (size_t n = 0; n < 4; n++)
			assert_int_equal(node_of(slots[i][n])->value, n);
	end(&f);
}

/* Handles and ranges, and the value of a hash. */
static void roots_keep_young_objects(void **state)
{
	ebbgc_ref_t range[2] = { 0 };
	ebbgc_handle_t *handle;
	struct fixture f;
	uint32_t hash;

	begin(&f, *state);
	assert_int_equal(ebbgc_roots_add(f.m, range, 2), 0);
	range[1] = node(&f, 1);
	handle = ebbgc_handle_new(f.m, node(&f, 2));
	hash = ebbgc_hash(f.m, range[1]);
	assert_int_equal(minor(&f).promoted_objects, 2);
	assert_int_equal(node_of(range[1])->value, 1);
	assert_int_equal(node_of(ebbgc_handle_get(handle))->value, 2);
	assert_int_equal(ebbgc_hash(f.m, range[1]), hash);
	ebbgc_handle_free(f.m, handle);
	assert_int_equal(ebbgc_roots_remove(f.m, range), 0);
	end(&f);
}

static void stacks_keep_young_objects(void **state)
{
	struct fixture f = { .heap = NULL };
	volatile ebbgc_ref_t local;
	struct ebbgc_options o;

	ebbgc_options_init(&o);
	o.max_bytes = 16 * MIB;
	o.check = true;
	o.stacks = EBBGC_CONSERVATIVE;
	o.nursery_bytes = MIB / 4;
	assert_int_equal(ebbgc_heap_create(&o, &f.heap), 0);
	assert_int_equal(ebbgc_type_register(f.heap, &node_layout, &f.node), 0);
	assert_int_equal(ebbgc_attach(f.heap, &f.m), 0);
	local = node(&f, 17);
	pthread_mutex_lock(&f.heap->lock);
	minor_request(f.heap);
	pthread_mutex_unlock(&f.heap->lock);
	while (!stats_of(f.heap).minor_cycles)
		ebbgc_poll(f.m);
	assert_int_equal(node_of(local)->value, 17);
	assert_true(is_old(&f, local));
	ebbgc_detach(f.m);
	assert_int_equal(ebbgc_heap_destroy(f.heap), 0);
}

/* Weak references to what dies young are cleared, others not; the weak objects young or old. */
static void weak_references_are_cleared(void **state)
{
	struct ebbgc_stats s;
	ebbgc_ref_t *slots;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc_length(f.m, f.weak, 3);
	f.roots[1] = node(&f, 1);
	minor(&f);
	/* 0: dies young; 1: lives; 2: is old, and is garbage. */
	ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[0], node(&f, 2));
	ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[2], f.roots[1]);
	f.roots[1] = node(&f, 3);
	ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[1], f.roots[1]);
	f.roots[2] = ebbgc_weak_new(f.m, node(&f, 4));
	f.roots[3] = ebbgc_weak_new(f.m, f.roots[1]);
	s = minor(&f);
	assert_int_equal(s.weak_cleared, 2);
	assert_int_equal(s.remembered, 1);
	slots = refs_of(f.roots[0])->slots;
	assert_true(ebbgc_is_null(ebbgc_load_weak(f.m, f.roots[0], &slots[0])));
	assert_true(ebbgc_same(ebbgc_load_weak(f.m, f.roots[0], &slots[1]), f.roots[1]));
	assert_false(ebbgc_is_null(ebbgc_load_weak(f.m, f.roots[0], &slots[2])));
	assert_true(ebbgc_is_null(ebbgc_weak_get(f.m, f.roots[2])));
	assert_true(ebbgc_same(ebbgc_weak_get(f.m, f.roots[3]), f.roots[1]));
	/* Weak references alone keep nothing alive. */
	f.roots[1] = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_true(ebbgc_is_null(ebbgc_weak_get(f.m, f.roots[3])));
	end(&f);
}

#define CHAIN 200u

/* Ephemerons of which each value is the next one's key, the last first. */
static void ephemerons_are_followed(void **state)
{
	struct ebbgc_stats s;
	struct fixture f;
	ebbgc_ref_t value;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, CHAIN);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, CHAIN + 1);
	for (size_t i = 0; i <= CHAIN; i++)
		ebbgc_store(f.m, f.roots[1], &refs_of(f.roots[1])->slots[i], node(&f, i));
	for (size_t i = 0; i < CHAIN; i++)
		ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[i],
			    ebbgc_ephemeron_new(f.m, refs_of(f.roots[1])->slots[i],
						refs_of(f.roots[1])->slots[i + 1]));
	f.roots[2] = refs_of(f.roots[1])->slots[0];
	f.roots[1] = EBBGC_NULL;
	/* Its key dies. */
	f.roots[3] = ebbgc_ephemeron_new(f.m, node(&f, 1), node(&f, 2));
	s = minor(&f);
	assert_int_equal(s.ephemerons_cleared, 1);
	assert_true(ebbgc_is_null(ebbgc_ephemeron_key(f.m, f.roots[3])));
	assert_true(ebbgc_is_null(ebbgc_ephemeron_value(f.m, f.roots[3])));
	for (size_t i = 0; i < CHAIN; i++) {
		value = ebbgc_ephemeron_value(f.m, refs_of(f.roots[0])->slots[i]);
		assert_int_equal(node_of(value)->value, i + 1);
		assert_true(is_old(&f, value));
	}
	/* The key is old, and garbage: alive to a minor cycle. */
	f.roots[3] = ebbgc_ephemeron_new(f.m, f.roots[2], node(&f, 3));
	f.roots[2] = EBBGC_NULL;
	assert_int_equal(minor(&f).ephemerons_cleared, 0);
	assert_int_equal(node_of(ebbgc_ephemeron_value(f.m, f.roots[3]))->value, 3);
	end(&f);
}

static void count_call(ebbgc_mutator_t *m, ebbgc_ref_t object, void *calls)
{
	assert_int_equal(node_of(object)->value, 1);
	object = ebbgc_load(m, object, &node_of(object)->left);
	assert_int_equal(node_of(object)->value, 2);
	++*(int *)calls;
}

static void finalizers_become_ready(void **state)
{
	struct fixture f;
	int calls = 0;

	begin(&f, *state);
	/* Old, and alive until a cycle. */
	f.roots[0] = node(&f, 1);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, node(&f, 2));
	assert_int_equal(ebbgc_finalizer_add(f.m, f.roots[0], count_call, &calls), 0);
	assert_int_equal(minor(&f).finalizers_ready, 0);
	f.roots[0] = node(&f, 1);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, node(&f, 2));
	assert_int_equal(ebbgc_finalizer_add(f.m, f.roots[0], count_call, &calls), 0);
	f.roots[1] = ebbgc_weak_new(f.m, f.roots[0]);
	f.roots[0] = EBBGC_NULL;
	assert_int_equal(minor(&f).finalizers_ready, 1);
	assert_true(ebbgc_is_null(ebbgc_weak_get(f.m, f.roots[1])));
	minor(&f);
	assert_int_equal(ebbgc_finalizers_run(f.m, SIZE_MAX), 1);
	assert_int_equal(calls, 1);
	/* The event of the first minor cycle came before the second. */
	pthread_mutex_lock(&f.watch.lock);
	assert_int_equal(f.watch.ready, 1);
	pthread_mutex_unlock(&f.watch.lock);
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(ebbgc_finalizers_run(f.m, SIZE_MAX), 1);
	end(&f);
}

/* The pause of a snapshot finds them, and the program need not wait for the cycle's end. */
static void finalizers_of_a_snapshot_are_ready(void **state)
{
	struct fixture f;
	int calls = 0;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, node(&f, 2));
	assert_int_equal(ebbgc_finalizer_add(f.m, f.roots[0], count_call, &calls), 0);
	f.roots[0] = EBBGC_NULL;
	cycle_begin(&f);
	pthread_mutex_lock(&f.watch.lock);
	assert_int_equal(f.watch.ready, 1);
	pthread_mutex_unlock(&f.watch.lock);
	assert_int_equal(ebbgc_finalizers_run(f.m, SIZE_MAX), 1);
	assert_int_equal(calls, 1);
	cycle_end(&f);
	pthread_mutex_lock(&f.watch.lock);
	assert_int_equal(f.watch.ready, 1);
	pthread_mutex_unlock(&f.watch.lock);
	end(&f);
}

static void large_objects_die_young(void **state)
{
	struct fixture f;
	ebbgc_ref_t dead;
	uint64_t used;

	begin(&f, *state);
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, 2 * REGION_SIZE / 8);
	ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[9000], node(&f, 9));
	minor(&f);
	used = stats_of(f.heap).heap_bytes;
	dead = ebbgc_alloc_length(f.m, f.leaf, 3 * REGION_SIZE);
	assert_true(minor(&f).reclaimed_bytes >= 4 * REGION_SIZE);
	assert_false(exists(&f, dead));
	assert_int_equal(stats_of(f.heap).heap_bytes, used);
	assert_int_equal(node_of(refs_of(f.roots[0])->slots[9000])->value, 9);
	end(&f);
}

static void *short_thread(void *arg)
{
	struct fixture *f = arg;
	ebbgc_mutator_t *m;
	ebbgc_ref_t r;

	assert_int_equal(ebbgc_attach(f->heap, &m), 0);
	r = ebbgc_alloc(m, f->node);
	node_of(r)->value = 7;
	ebbgc_store(m, f->roots[0], &node_of(f->roots[0])->right, r);
	ebbgc_detach(m);
	return NULL;
}

/* The slot of a store is unknown: nothing may be freed. */
static void blind_stores_free_nothing(void **state)
{
	struct fixture f;
	ebbgc_ref_t garbage;
	pthread_t thread;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	minor(&f);
	garbage = node(&f, 2);
	/* As ebbgc_cas() of 0.1.0. */
	ebbgc_init(&node_of(f.roots[0])->left, node(&f, 3));
	ebbgc_log_old(f.m, EBBGC_NULL);
	assert_int_equal(pthread_create(&thread, NULL, short_thread, &f), 0);
	pthread_join(thread, NULL);
	minor(&f);
	assert_true(is_old(&f, garbage));
	assert_int_equal(node_of(node_of(f.roots[0])->right)->value, 7);
	assert_int_equal(node_of(node_of(f.roots[0])->left)->value, 3);
	garbage = node(&f, 4);
	minor(&f);
	assert_false(exists(&f, garbage));
	assert_int_equal(ebbgc_collect(f.m), 0);
	end(&f);
}

/* After such a store, a minor cycle writes no bitmap as large as the heap. */
static void blind_stores_cost_no_bitmap(void **state)
{
	struct fixture f;
	size_t granule;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	minor(&f);
	/* A bit that no object has. */
	granule = granule_of(f.heap, f.roots[0].bits & EBBGC_ADDRESS_MASK) + 1;
	bit_set(f.heap->nursery.remembered, granule);
	node(&f, 2);
	ebbgc_overwrite(f.m, EBBGC_NULL, f.roots[0]);
	minor(&f);
	assert_true(bit_test(f.heap->nursery.remembered, granule));
	f.heap->nursery.remembered[granule >> 6] = 0;
	end(&f);
}

static void visit_no_edges(void *object, struct ebbgc_edges *edges)
{
	(void)object;
	(void)edges;
}

/* Without EBBGC_ALL_STORES. */
static void types_are_refused(void **state)
{
	static const struct ebbgc_slots slots = {
		.kind = EBBGC_SLOT_AMBIGUOUS, .count = 1, .stride = 8,
	};
	static const struct ebbgc_layout layouts[] = {
		{ .name = "slots", .size = 8, .slots = &slots, .slot_count = 1,
		  .slot_size = sizeof(slots) },
		{ .name = "edges", .size = 8, .edges = visit_no_edges },
		{ .name = "fibre", .flags = EBBGC_FIBRE, .size = 8, .edges = visit_no_edges },
	};
	ebbgc_heap_t *heap;
	struct fixture f;

	begin(&f, *state);
	assert_int_equal(ebbgc_heap_create(NULL, &heap), 0);
	for (size_t i = 0; i < sizeof(layouts) / sizeof(*layouts); i++) {
		ebbgc_type_t type;

		assert_int_equal(ebbgc_type_register(f.heap, &layouts[i], &type), -ENOTSUP);
		assert_int_equal(ebbgc_type_register(heap, &layouts[i], &type), 0);
	}
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	end(&f);
}

static void overwrite(struct fixture *f, ebbgc_ref_t object, ebbgc_ref_t *slot, ebbgc_ref_t value)
{
	ebbgc_overwrite(f->m, object, *slot);
	ebbgc_init(slot, value);
}

/* Any slot may have changed, also on pages of a large object that no store has entered. */
static void overwritten_objects_are_remembered(void **state)
{
	ebbgc_ref_t garbage, *slots;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, 2 * REGION_SIZE / 8);
	slots = refs_of(f.roots[1])->slots;
	minor(&f);
	overwrite(&f, f.roots[0], &node_of(f.roots[0])->left, node(&f, 2));
	ebbgc_store(f.m, f.roots[1], &slots[0], node(&f, 3));
	overwrite(&f, f.roots[1], &slots[9000], node(&f, 4));
	garbage = node(&f, 5);
	assert_int_equal(minor(&f).remembered, 3);
	assert_false(exists(&f, garbage));
	assert_int_equal(node_of(node_of(f.roots[0])->left)->value, 2);
	assert_int_equal(node_of(slots[0])->value, 3);
	assert_int_equal(node_of(slots[9000])->value, 4);
	/* Young objects are traced anyhow. */
	f.roots[2] = node(&f, 6);
	overwrite(&f, f.roots[2], &node_of(f.roots[2])->left, node(&f, 7));
	assert_int_equal(minor(&f).remembered, 0);
	/* The object is unknown. */
	garbage = node(&f, 8);
	overwrite(&f, EBBGC_NULL, &slots[0], node(&f, 9));
	minor(&f);
	assert_true(is_old(&f, garbage));
	assert_int_equal(node_of(slots[0])->value, 9);
	end(&f);
}

/* No minor cycle has anything to do before a sweep frees what was entered. */
static void overwritten_garbage_is_forgotten(void **state)
{
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, 2 * REGION_SIZE / 8);
	minor(&f);
	overwrite(&f, f.roots[0], &node_of(f.roots[0])->left, EBBGC_NULL);
	overwrite(&f, f.roots[1], &refs_of(f.roots[1])->slots[0], EBBGC_NULL);
	f.roots[0] = f.roots[1] = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(minor(&f).remembered, 0);
	end(&f);
}

static void note_value(ebbgc_mutator_t *m, ebbgc_ref_t object, void *data)
{
	uint64_t **at = data;

	(void)m;
	*(*at)++ = node_of(object)->value;
}

/* They come in the order asked for; neither readying all nor a weak read keeps garbage. */
static void finalizers_are_ordered(void **state)
{
	uint64_t values[5] = { 0 }, *at = values;
	ebbgc_ref_t garbage;
	struct fixture f;

	begin(&f, *state);
	for (uint64_t i = 1; i <= 3; i++)
		assert_int_equal(ebbgc_finalizer_add(f.m, node(&f, i), note_value, &at), 0);
	assert_int_equal(minor(&f).finalizers_ready, 3);
	f.roots[0] = node(&f, 5);
	assert_int_equal(ebbgc_finalizer_add(f.m, f.roots[0], note_value, &at), 0);
	assert_int_equal(ebbgc_finalizer_add(f.m, node(&f, 4), note_value, &at), 0);
	garbage = node(&f, 6);
	ebbgc_finalizers_all(f.m);
	assert_true(ebbgc_same(ebbgc_weak_read(f.m, f.roots[0], EBBGC_CLEAR_LAST), f.roots[0]));
	assert_int_equal(minor(&f).finalizers_ready, 0);
	assert_false(exists(&f, garbage));
	assert_int_equal(ebbgc_finalizers_run(f.m, SIZE_MAX), 5);
	for (uint64_t i = 0; i < 5; i++)
		assert_int_equal(values[i], i < 3 ? 3 - i : i + 1);
	end(&f);
}

static void minor_cycles_are_suspended(void **state)
{
	struct fixture f;
	uint64_t before;

	begin(&f, *state);
	for (size_t i = 0; i < 2 * MIB / 32; i++)
		node(&f, i);
	ebbgc_cycles_suspend(f.m);
	before = stats_of(f.heap).minor_cycles;
	assert_true(before > 0);
	for (size_t i = 0; i < 4 * MIB / 32; i++)
		node(&f, i);
	assert_int_equal(stats_of(f.heap).minor_cycles, before);
	/* One that is asked for ends no suspension. */
	minor(&f);
	for (size_t i = 0; i < 4 * MIB / 32; i++)
		node(&f, i);
	assert_int_equal(stats_of(f.heap).minor_cycles, before + 1);
	ebbgc_cycles_resume(f.m);
	for (size_t i = 0; i < 4 * MIB / 32; i++)
		node(&f, i);
	assert_true(stats_of(f.heap).minor_cycles > before + 1);
	end(&f);
}

static void *suspender(void *arg)
{
	struct fixture *f = arg;
	ebbgc_mutator_t *m;

	assert_int_equal(ebbgc_attach(f->heap, &m), 0);
	ebbgc_cycles_suspend(m);
	ebbgc_cycles_resume(m);
	ebbgc_detach(m);
	return NULL;
}

/* While a thread waits for the minor cycle in flight, others request no cycle. */
static void suspension_begins_at_once(void **state)
{
	pthread_t thread;
	struct fixture f;
	bool suspended;

	begin(&f, *state);
	pause_begin(f.heap);
	pthread_mutex_lock(&f.heap->lock);
	minor_request(f.heap);
	pthread_mutex_unlock(&f.heap->lock);
	assert_int_equal(pthread_create(&thread, NULL, suspender, &f), 0);
	do {
		usleep(50);
		pthread_mutex_lock(&f.heap->lock);
		suspended = f.heap->suspended;
		pthread_mutex_unlock(&f.heap->lock);
	} while (!suspended);
	/* Enough for a cycle, not so much that this thread waits. */
	for (size_t i = 0; i < 20 * MIB / 2048; i++)
		ebbgc_alloc_length(f.m, f.leaf, 2000);
	pthread_mutex_lock(&f.heap->lock);
	assert_int_equal(f.heap->requested, f.heap->ended);
	pthread_mutex_unlock(&f.heap->lock);
	pause_end(f.heap);
	assert_int_equal(ebbgc_blocked_begin(f.m), 0);
	pthread_join(thread, NULL);
	ebbgc_blocked_end(f.m);
	end(&f);
}

/* Waiting for the end of a minor cycle's pause stops no thread. */
static void pauses_are_counted_apart(void **state)
{
	struct fixture f;

	begin(&f, *state);
	pause_begin(f.heap);
	ebbgc_collect_start(f.m);
	usleep(2000000);
	pause_end(f.heap);
	cycle_begin(&f);
	cycle_end(&f);
	assert_true(stats_of(f.heap).pause_max_ns < 1900000000);
	end(&f);
}

/* Inline allocation takes no slot of before a minor cycle. */
static void sites_lose_their_slots(void **state)
{
	struct ebbgc_site site;
	struct fixture f;

	begin(&f, *state);
	assert_int_equal(ebbgc_site_init(f.heap, f.node, &site), 0);
	for (uint64_t i = 0; i < 100; i++) {
		ebbgc_ref_t r = ebbgc_alloc_site(f.m, &site);

		assert_int_equal(node_of(r)->value, 0);
		node_of(r)->value = i;
		assert_false(is_old(&f, r));
		if (i % 10)
			continue;
		ebbgc_init(&node_of(r)->left, f.roots[0]);
		f.roots[0] = r;
		minor(&f);
		assert_ptr_equal(f.m->supplies[site.kind].next, f.m->supplies[site.kind].end);
	}
	for (uint64_t i = 90; i; i -= 10, f.roots[0] = node_of(f.roots[0])->left)
		assert_int_equal(node_of(f.roots[0])->value, i);
	end(&f);
}

/* And a word into the object, which is to be ignored. */
static void one_root(void *arg, struct ebbgc_edges *edges)
{
	ebbgc_ref_t *slot = arg, inside = { slot->bits ? slot->bits + GRANULE : 0 };

	edges->weak(edges, slot, *slot, EBBGC_CLEAR_FIRST);
	edges->strong(edges, NULL, inside);
}

static void root_callbacks_keep_young_objects(void **state)
{
	ebbgc_ref_t root = EBBGC_NULL, garbage;
	struct fixture f;

	begin(&f, *state);
	assert_int_equal(ebbgc_roots_call(f.m, one_root, &root), 0);
	root = node(&f, 1);
	garbage = node(&f, 2);
	minor(&f);
	assert_true(is_old(&f, root));
	assert_false(exists(&f, garbage));
	assert_int_equal(node_of(root)->value, 1);
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(node_of(root)->value, 1);
	assert_int_equal(ebbgc_roots_call_end(f.m, one_root, &root), 0);
	end(&f);
}

/* Without memory for its work, a minor cycle frees nothing; nor without some for the set. */
static void without_memory_nothing_is_freed(void **state)
{
	const size_t count = 2 * SATB_ENTRIES;
	struct fixture f;
	ebbgc_ref_t garbage;

	if (!FAILS)
		skip();
	begin(&f, *state);
	f.roots[0] = ebbgc_alloc_length(f.m, f.refs, count);
	for (size_t i = 0; i < count; i++)
		ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[i], node(&f, i));
	garbage = node(&f, 1);
	__atomic_store_n(&failing, true, __ATOMIC_RELAXED);
	minor(&f);
	__atomic_store_n(&failing, false, __ATOMIC_RELAXED);
	assert_true(is_old(&f, garbage));
	for (int round = 0; round < 2; round++) {
		/* The set is lost once. */
		for (size_t i = 0; i < count; i++) {
			ebbgc_ref_t holder = refs_of(f.roots[0])->slots[i];

			if (i == 0)
				__atomic_store_n(&failing, !round, __ATOMIC_RELAXED);
			ebbgc_store(f.m, holder, &node_of(holder)->left, node(&f, 2 * i));
		}
		__atomic_store_n(&failing, false, __ATOMIC_RELAXED);
		garbage = node(&f, 1);
		assert_int_equal(minor(&f).remembered, round ? count : count - SATB_ENTRIES);
		assert_int_equal(is_old(&f, garbage), !round);
		for (size_t i = 0; i < count; i++) {
			ebbgc_ref_t holder = refs_of(f.roots[0])->slots[i];

			assert_int_equal(node_of(node_of(holder)->left)->value, 2 * i);
		}
	}
	end(&f);
}

/* A store that bypasses ebbgc_store() is found. */
static void checking_finds_raw_stores(void **state)
{
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	minor(&f);
	ebbgc_init(&node_of(f.roots[0])->left, node(&f, 2));
	minor(&f);
	assert_int_equal(f.watch.failures, 1);
	assert_string_equal(f.watch.text, "refers to what a minor cycle frees");
	assert_int_equal(stats_of(f.heap).check_failures, 1);
	ebbgc_init(&node_of(f.roots[0])->left, EBBGC_NULL);
	ebbgc_detach(f.m);
	assert_int_equal(ebbgc_heap_destroy(f.heap), 0);
}

/* While a cycle marks, what was allocated since is freed; what the snapshot had is not. */
static void minor_cycles_run_during_marking(void **state)
{
	const size_t count = 8 * MIB / 32;
	ebbgc_ref_t snapshot, since, large;
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	snapshot = node(&f, 2);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, snapshot);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, 100);
	cycle_begin(&f);
	assert_true(is_old(&f, snapshot));
	/* Only the log leads to it now. */
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->left, EBBGC_NULL);
	since = node(&f, 3);
	f.roots[2] = ebbgc_weak_new(f.m, node(&f, 4));
	large = ebbgc_alloc_length(f.m, f.refs, REGION_SIZE / 4);
	minor(&f);
	assert_true(exists(&f, snapshot));
	assert_false(exists(&f, since));
	assert_false(exists(&f, large));
	assert_true(ebbgc_is_null(ebbgc_weak_get(f.m, f.roots[2])));
	/* A tracer that has loaded a reference to it must find it marked. */
	assert_true(object_marked(f.heap, (uint64_t)(uintptr_t)ebbgc_ptr(since)));
	assert_int_equal(f.heap->kinds[region_of(f.heap, (uint64_t)(uintptr_t)ebbgc_ptr(large))],
			 KIND_LARGE);
	for (size_t i = 0; i < count; i++) {
		since = node(&f, i);
		if (i % 64 == 0)
			ebbgc_store(f.m, f.roots[1], &refs_of(f.roots[1])->slots[i / 64 % 100],
				    since);
	}
	s = stats_of(f.heap);
	assert_int_equal(s.cycles, 0);
	assert_true(s.minor_concurrent >= 10);
	assert_true(s.heap_bytes <= 4 * MIB);
	f.roots[3] = snapshot;		/* it is reachable by the log */
	/* As if work were lost: marked objects are searched for, but not young ones. */
	__atomic_store_n(&f.heap->marker.overflow, true, __ATOMIC_RELAXED);
	cycle_end(&f);
	s = stats_of(f.heap);
	assert_true(s.live_bytes < 4 * MIB);
	assert_int_equal(node_of(f.roots[3])->value, 2);
	/* And freed by the next one. */
	f.roots[3] = EBBGC_NULL;
	assert_int_equal(ebbgc_collect(f.m), 0);
	minor(&f);
	assert_false(is_old(&f, snapshot));
	end(&f);
}

/* Objects carry their own address, which reveals freed and reused ones. */
static void churn(struct fixture *f, uint64_t seed, size_t steps)
{
	struct refs *refs = refs_of(f->roots[1]);

	for (size_t i = 0; i < steps; i++) {
		ebbgc_ref_t *slot = &refs->slots[seed % refs->length], r;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		r = ebbgc_load(f->m, f->roots[1], slot);
		if (!ebbgc_is_null(r))
			assert_int_equal(node_of(r)->value,
					 (uint64_t)(uintptr_t)ebbgc_ptr(r));
		r = node(f, 0);
		node_of(r)->value = (uint64_t)(uintptr_t)ebbgc_ptr(r);
		if (seed >> 60 < 4)
			ebbgc_store(f->m, f->roots[1], slot, r);
	}
}

static void programs_survive(void **state)
{
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, *state);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, 20000);
	do {
		ebbgc_collect_start(f.m);
		churn(&f, 1, 40000);
		s = stats_of(f.heap);
	} while (s.cycles < 4);
	assert_true(s.minor_cycles > 2 * s.cycles);
	end(&f);
}

/* What a thread has remembered outlives it. */
static void exited_threads_have_remembered(void **state)
{
	struct fixture f;
	pthread_t thread;

	begin(&f, *state);
	f.roots[0] = node(&f, 1);
	minor(&f);
	assert_int_equal(pthread_create(&thread, NULL, short_thread, &f), 0);
	pthread_join(thread, NULL);
	assert_int_equal(minor(&f).remembered, 1);
	assert_int_equal(node_of(node_of(f.roots[0])->right)->value, 7);
	end(&f);
}

/* The child stores more than a thread's buffer holds, and reads. */
static void child(struct fixture *f)
{
	struct refs *refs = refs_of(f->roots[1]);
	ebbgc_ref_t young = node(f, 5);

	alarm(60);
	if (ebbgc_is_null(young))
		_exit(1);
	for (size_t i = 0; i < refs->length; i++)
		ebbgc_store(f->m, refs->slots[i], &node_of(refs->slots[i])->left, young);
	for (size_t i = 0; i < refs->length; i++)
		if (node_of(ebbgc_load(f->m, refs->slots[i],
				       &node_of(refs->slots[i])->left))->value != 5)
			_exit(2);
	while (!ebbgc_is_null(ebbgc_alloc(f->m, f->node)))
		;
	if (errno != ECHILD)
		_exit(3);
	_exit(ebbgc_heap_destroy(f->heap) ? 4 : 0);
}

static void forks_in_the_middle(void **state)
{
	struct fixture f;
	int status;
	pid_t pid;

	if (!FORKS)
		skip();
	begin(&f, *state);
	f.roots[1] = ebbgc_alloc_length(f.m, f.refs, 3 * SATB_ENTRIES);
	for (size_t i = 0; i < 3 * SATB_ENTRIES; i++)
		ebbgc_store(f.m, f.roots[1], &refs_of(f.roots[1])->slots[i], node(&f, i));
	minor(&f);
	for (int marking = 0; marking < 2; marking++) {
		if (marking)
			cycle_begin(&f);
		f.roots[2] = node(&f, 5);
		ebbgc_store(f.m, f.roots[1], &refs_of(f.roots[1])->slots[0], f.roots[2]);
		pid = fork();
		if (!pid)
			child(&f);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	cycle_end(&f);
	minor(&f);
	end(&f);
}

static void options_are_checked(void **state)
{
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	assert_int_equal(o.nursery_bytes, 0);
	assert_int_equal(ebbgc_debug(&o, "nursery=8M,max=16M"), 0);
	assert_int_equal(o.nursery_bytes, 8 * MIB);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(heap->options.nursery_bytes, 4 * MIB);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	assert_int_equal(ebbgc_debug(&o, "nursery"), -EINVAL);
	o.nursery_bytes = 1000;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	o.nursery_bytes = 0;
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_null(heap->nursery.old);
	assert_int_equal(stats_of(heap).minor_cycles, 0);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
}

#define IN(mode, test) { #test ", " mode, test, NULL, NULL, (void *)mode }
#define CONCURRENT "mode=concurrent,nursery=256K"
#define ROOMY "mode=concurrent,nursery=16M"
#define STOP "mode=stop,nursery=256K"
#define ADDRESS "mode=concurrent,address,nursery=256K"
#define MEMLINER "mode=memliner,park,drop,residency=simulated,nursery=256K"

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(options_are_checked),
		IN(CONCURRENT, garbage_is_recycled),
		IN(STOP, garbage_is_recycled),
		IN(MEMLINER, garbage_is_recycled),
		cmocka_unit_test(survivors_are_not_traced),
		cmocka_unit_test(recycled_regions_come_first),
		IN(ROOMY, old_objects_keep_young_ones),
		IN(MEMLINER, old_objects_keep_young_ones),
		IN(ROOMY, an_object_is_remembered_once),
		IN(ROOMY, many_objects_are_remembered),
		IN(ROOMY, callbacks_are_called),
		IN(ROOMY, roots_keep_young_objects),
		cmocka_unit_test(stacks_keep_young_objects),
		IN(ROOMY, weak_references_are_cleared),
		IN(ROOMY, ephemerons_are_followed),
		IN(ROOMY, finalizers_become_ready),
		IN(ROOMY, finalizers_of_a_snapshot_are_ready),
		IN(ROOMY, large_objects_die_young),
		IN(ROOMY, blind_stores_free_nothing),
		IN(ROOMY, blind_stores_cost_no_bitmap),
		IN(ROOMY, types_are_refused),
		IN(ROOMY, overwritten_objects_are_remembered),
		IN(ROOMY, overwritten_garbage_is_forgotten),
		IN(ROOMY ",newest", finalizers_are_ordered),
		IN("mode=concurrent,nursery=1M", minor_cycles_are_suspended),
		IN(ROOMY, suspension_begins_at_once),
		IN(ROOMY, pauses_are_counted_apart),
		IN(ROOMY, sites_lose_their_slots),
		IN(ROOMY, root_callbacks_keep_young_objects),
		IN(ROOMY, without_memory_nothing_is_freed),
		IN(ROOMY, checking_finds_raw_stores),
		IN(CONCURRENT, minor_cycles_run_during_marking),
		IN(ADDRESS, minor_cycles_run_during_marking),
		IN(MEMLINER, minor_cycles_run_during_marking),
		IN(CONCURRENT, programs_survive),
		IN(ADDRESS, programs_survive),
		IN(MEMLINER, programs_survive),
		IN(ROOMY, exited_threads_have_remembered),
		IN(ROOMY, forks_in_the_middle),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
