// SPDX-License-Identifier: GPL-2.0-or-later
/* The order that follows the program: stamps, notes, postponing, parking; and its switches. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>
#include "gc_test.h"
#include "location.h"
#include "mark.h"
#include "notes.h"
#include "object.h"
#include "os.h"
#include "park.h"

#define LIST 20000
#define LONG_LIST 200000	/* marking it takes longer than a thread's time slice */

static ebbgc_ref_t list_new(ebbgc_mutator_t *m, ebbgc_type_t type, long n)
{
	ebbgc_ref_t slots[2] = { 0 };
	struct ebbgc_frame frame;

	ebbgc_frame_push(m, &frame, slots, 2);
	for (long i = 0; i < n; i++) {
		slots[1] = ebbgc_alloc(m, type);
		assert_false(ebbgc_is_null(slots[1]));
		node_of(slots[1])->value = (uint64_t)i;
		ebbgc_store(m, slots[1], &node_of(slots[1])->left, slots[0]);
		slots[0] = slots[1];
	}
	ebbgc_frame_pop(m, &frame);
	return slots[0];
}

struct fixture {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node;
	ebbgc_ref_t roots[2];
	struct ebbgc_frame frame;
};

static void begin(struct fixture *f, const char *options)
{
	memset(f, 0, sizeof(*f));
	f->heap = checked_heap_with(options, 64 << 20);
	assert_int_equal(ebbgc_type_register(f->heap, &node_layout, &f->node), 0);
	assert_int_equal(ebbgc_attach(f->heap, &f->m), 0);
	ebbgc_frame_push(f->m, &f->frame, f->roots, 2);
}

static struct ebbgc_stats end(struct fixture *f)
{
	struct ebbgc_stats s = stats_of(f->heap);

	assert_int_equal(s.check_failures, 0);
	ebbgc_detach(f->m);
	assert_int_equal(ebbgc_heap_destroy(f->heap), 0);
	return s;
}

/* A whole concurrent cycle, during which this thread traverses its list repeatedly. */
static void cycle_beside(struct fixture *f, ebbgc_ref_t list)
{
	uint64_t before = stats_of(f->heap).cycles;
	ebbgc_ref_t at = list;

	for (ebbgc_collect_start(f->m); stats_of(f->heap).cycles == before; ebbgc_poll(f->m)) {
		for (int i = 0; i < 100; i++) {
			at = ebbgc_load(f->m, at, &node_of(at)->left);
			if (ebbgc_is_null(at))
				at = list;
		}
	}
}

static void epoch_set(struct fixture *f, uint64_t epoch)
{
	pthread_mutex_lock(&f->heap->update_lock);
	f->heap->epoch.own = epoch;
	f->heap->options.epoch_percent = 100;
	pthread_mutex_unlock(&f->heap->update_lock);
	__atomic_store_n(&f->heap->update_at, 0, __ATOMIC_RELAXED);
	location_update(f->heap);
}

static unsigned int stamp_of(ebbgc_ref_t r)
{
	return (unsigned int)(r.bits >> EBBGC_STAMP_SHIFT);
}

static void references_carry_the_epoch(void **state)
{
	struct fixture f;
	ebbgc_ref_t old;

	begin(&f, "mode=memliner");
	epoch_set(&f, 5);
	f.roots[0] = list_new(f.m, f.node, 2);
	assert_int_equal(stamp_of(f.roots[0]), 5);
	old = node_of(f.roots[0])->left;
	assert_int_equal(stamp_of(old), 5);
	/* Modulo 16. */
	epoch_set(&f, 16 + 7);
	assert_int_equal(stamp_of(node_of(f.roots[0])->left), 5);
	old = ebbgc_load(f.m, f.roots[0], &node_of(f.roots[0])->left);
	assert_int_equal(stamp_of(old), 7);
	assert_int_equal(stamp_of(node_of(f.roots[0])->left), 7);
	assert_true(ebbgc_same(old, node_of(f.roots[0])->left));
	/* A stored reference is about to be used. */
	epoch_set(&f, 9);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->right, old);
	assert_int_equal(stamp_of(node_of(f.roots[0])->right), 9);
	/* Null stays all zeros, and stamps make no difference to a comparison. */
	assert_int_equal(ebbgc_load(f.m, old, &node_of(old)->left).bits, 0);
	assert_true(ebbgc_cas(f.m, f.roots[0], &node_of(f.roots[0])->right, &old, EBBGC_NULL));
	end(&f);
}

static void far_is_many_epochs_away(void **state)
{
	struct fixture f;

	begin(&f, "mode=memliner,delta=2");
	f.roots[0] = list_new(f.m, f.node, 1);
	for (uint64_t epoch = 0; epoch < 16; epoch++) {
		uint64_t away = epoch < 8 ? epoch : 16 - epoch;

		epoch_set(&f, 48 + epoch);
		assert_int_equal(location_is_far(f.heap, ebbgc_ref(ebbgc_ptr(f.roots[0])).bits),
				 away > 2);
	}
	end(&f);
}

static void rings_lose_the_oldest(void **state)
{
	struct fixture f;
	struct mutator *m;
	uint64_t noted, lost, base;

	begin(&f, "mode=memliner");
	m = mutator_of(f.m);
	base = (uint64_t)(uintptr_t)f.heap->base + HEADER;
	for (uint64_t i = 0; i < RING_ENTRIES + 10; i++)
		notes_add(m, base + 16 * i);
	/* Neither the object noted last nor a marked one is noted again. */
	notes_add(m, base + 16 * (RING_ENTRIES + 9));
	bit_set(f.heap->marks, 0);
	notes_add(m, base);
	for (uint64_t i = 10; i < RING_ENTRIES + 10; i++)
		assert_int_equal(notes_next(f.heap), base + 16 * i);
	assert_int_equal(notes_next(f.heap), 0);
	notes_count(f.heap, &noted, &lost);
	assert_int_equal(noted, RING_ENTRIES + 10);
	assert_int_equal(lost, 10);
	f.heap->marks[0] = 0;
	end(&f);
}

/* A leaf holds no slots: only loads of references to it tell that the program uses it. */
static void leaves_are_noted_as_targets(void **state)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 64,
	};
	ebbgc_type_t leaf_type;
	struct fixture f;
	uint64_t noted, lost;

	begin(&f, "mode=memliner");
	assert_int_equal(ebbgc_type_register(f.heap, &leaf, &leaf_type), 0);
	f.roots[0] = list_new(f.m, f.node, 2);
	f.roots[1] = ebbgc_alloc(f.m, leaf_type);
	ebbgc_store(f.m, f.roots[0], &node_of(f.roots[0])->right, f.roots[1]);
	f.m->flags |= EBBGC_NOTING;
	/* Other targets are noted when the program loads from them. */
	ebbgc_load(f.m, f.roots[0], &node_of(f.roots[0])->left);
	assert_int_equal(notes_next(f.heap), f.roots[0].bits);
	assert_int_equal(notes_next(f.heap), 0);
	mutator_of(f.m)->ring->last = 0;
	for (int i = 0; i < 3; i++)
		ebbgc_load(f.m, f.roots[0], &node_of(f.roots[0])->right);
	assert_int_equal(notes_next(f.heap), f.roots[0].bits);
	assert_int_equal(notes_next(f.heap), f.roots[1].bits);
	/* A burst counts accesses, not notes. */
	assert_int_equal(mutator_of(f.m)->ring->left, NOTES_BURST - 4);
	f.m->flags &= ~EBBGC_NOTING;
	notes_count(f.heap, &noted, &lost);
	assert_int_equal(lost, 0);
	end(&f);
}

#define NOTES 200000

static void *take_notes(void *heap)
{
	uint64_t *sum = calloc(1, sizeof(*sum)), object;

	assert_non_null(sum);
	while ((object = notes_next(heap)) != 8)
		*sum += object != 0;
	return sum;
}

/* Two tracers on one ring: each note is lost or taken by one of them. */
static void rings_are_shared(void **state)
{
	uint64_t noted, lost, taken = 0, base;
	pthread_t threads[2];
	struct fixture f;

	begin(&f, "mode=memliner");
	base = (uint64_t)(uintptr_t)f.heap->base + HEADER;
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, take_notes, f.heap), 0);
	for (uint64_t i = 0; i < NOTES; i++)
		notes_add(mutator_of(f.m), base + 16 * (i % 4096));
	/* An end mark, which is no object, for each tracer. */
	for (int i = 0; i < 2; i++) {
		struct ring *r = mutator_of(f.m)->ring;
		uint64_t *sum;

		__atomic_store_n(&r->entries[r->head % RING_ENTRIES], 8, __ATOMIC_RELAXED);
		__atomic_store_n(&r->head, r->head + 1, __ATOMIC_RELEASE);
		__atomic_store_n(&r->entries[r->head % RING_ENTRIES], 8, __ATOMIC_RELAXED);
		__atomic_store_n(&r->head, r->head + 1, __ATOMIC_RELEASE);
		pthread_join(threads[i], (void **)&sum);
		taken += *sum;
		free(sum);
	}
	notes_count(f.heap, &noted, &lost);
	assert_int_equal(noted, NOTES + 4);
	assert_true(taken + lost <= NOTES + 4);
	assert_true(taken + lost + 4 >= NOTES);
	end(&f);
}

/* The program uses the list's tail: notes find it, not its position. */
static void touched_objects_come_first(void **state)
{
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, "mode=memliner");
	f.roots[0] = list_new(f.m, f.node, LONG_LIST);
	/* On a busy machine this thread may not run at all during a cycle. */
	for (int i = 0; i < 100 && !(i > 4 && stats_of(f.heap).explored_objects); i++)
		cycle_beside(&f, f.roots[0]);
	s = end(&f);
	assert_true(s.noted > 0);
	assert_true(s.red_objects > 0);
	assert_true(s.explored_objects > 0);
	assert_true(s.explored_objects <= 3 * s.red_objects);
	assert_int_equal(s.epoch_source, EBBGC_EPOCH_OWN);
}

static void nothing_is_noted_elsewhere(void **state)
{
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, "mode=concurrent");
	f.roots[0] = list_new(f.m, f.node, LIST);
	cycle_beside(&f, f.roots[0]);
	assert_int_equal(stamp_of(f.roots[0]), 0);
	s = end(&f);
	assert_int_equal(s.noted, 0);
	assert_int_equal(s.red_objects, 0);
	assert_int_equal(s.epoch_source, EBBGC_EPOCH_NONE);
}

/* Without accesses, each node of the list is postponed MAX_DL times, and then traced. */
static void old_stamps_are_put_off(void **state)
{
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, "mode=memliner,delays=4:4:4,min=32M");
	f.roots[0] = list_new(f.m, f.node, 100);
	epoch_set(&f, 4);
	assert_int_equal(ebbgc_blocked_begin(f.m), 0);
	ebbgc_collect_start(f.m);
	while (!stats_of(f.heap).cycles)
		nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
	ebbgc_blocked_end(f.m);
	s = end(&f);
	/* The root's reference is as old as the others. */
	assert_int_equal(s.postponed, 4 * 100);
	assert_int_equal(s.marked_objects, 100);
}

/* Runs cycles until there is something to return, or so many. */
static uint64_t explored_in(const char *options, uint64_t epoch, int cycles)
{
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, options);
	/* In checking mode every cycle follows the program. */
	f.heap->options.check = false;
	f.roots[0] = list_new(f.m, f.node, LONG_LIST);
	if (epoch)
		epoch_set(&f, epoch);
	for (int i = 0; i < cycles && !stats_of(f.heap).red_objects; i++)
		cycle_beside(&f, f.roots[0]);
	s = end(&f);
	assert_true(s.marked_objects >= LONG_LIST);
	return s.noted + s.explored_objects;
}

/* While everything is in memory the order does not matter: depth first. */
static void all_in_memory_is_marked_depth_first(void **state)
{
	assert_int_equal(explored_in("mode=memliner", 0, 4), 0);
	assert_int_equal(explored_in("mode=memliner,park", 0, 4), 0);
	assert_true(explored_in("mode=memliner", 1, 100) > 0);
	assert_true(explored_in("mode=memliner,park,residency=simulated", 0, 100) > 0);
}

/* Loads are noted in bursts only. */
static void bursts_end_and_begin(void **state)
{
	struct fixture f;
	struct mutator *m;
	uint64_t base;

	begin(&f, "mode=memliner");
	m = mutator_of(f.m);
	base = (uint64_t)(uintptr_t)f.heap->base + HEADER;
	for (int burst = 0; burst < 3; burst++) {
		/* The request does nothing while a collector's thread has the lock. */
		for (int i = 0; i < 60000 && !(f.m->flags & EBBGC_NOTING); i++) {
			notes_request(f.heap);
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		}
		for (unsigned int i = 0; i < NOTES_BURST; i++) {
			assert_true(f.m->flags & EBBGC_NOTING);
			notes_add(m, base + 16 * (i % 2));
		}
		assert_false(f.m->flags & EBBGC_NOTING);
	}
	end(&f);
}

static void delays_follow_the_room(void **state)
{
	struct fixture f;

	begin(&f, "mode=memliner,delays=5:3:1");
	__atomic_store_n(&f.heap->room, 1000, __ATOMIC_RELAXED);
	for (unsigned int used = 0; used <= 1000; used += 10) {
		__atomic_store_n(&f.heap->room_end, f.heap->allocated_bytes + 1000 - used,
				 __ATOMIC_RELAXED);
		assert_int_equal(location_max_delays(f.heap), used < 500 ? 5 : used <= 850 ? 3 : 1);
	}
	/* No thread waits for postponed work. */
	f.heap->waiting = 1;
	__atomic_store_n(&f.heap->room_end, f.heap->allocated_bytes + 1000, __ATOMIC_RELAXED);
	assert_int_equal(location_max_delays(f.heap), 0);
	f.heap->waiting = 0;
	end(&f);
}

/* MAX_DL with so many bytes of the room above live objects left. */
static unsigned int delays_with(struct fixture *f, uint64_t left)
{
	uint64_t used = f->heap->allocated_bytes;
	unsigned int delays;

	f->heap->allocated_bytes = f->heap->room_end - left;
	delays = location_max_delays(f->heap);
	f->heap->allocated_bytes = used;
	return delays;
}

/* The paper's bands, with `share` of the heap live: `expected` bytes of room in all. */
static void check_bands(const char *options, size_t share, uint64_t expected)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};
	ebbgc_type_t leaves;
	struct fixture f;
	uint64_t room;

	begin(&f, options);
	assert_int_equal(ebbgc_type_register(f.heap, &leaf, &leaves), 0);
	f.roots[0] = ebbgc_alloc_length(f.m, leaves, share - 16);
	assert_false(ebbgc_is_null(f.roots[0]));
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(stats_of(f.heap).live_bytes, share);
	room = f.heap->room;
	assert_int_equal(room, expected);
	if (room) {
		assert_int_equal(location_max_delays(f.heap), 4);
		assert_int_equal(delays_with(&f, room / 2 + 1), 4);
		assert_int_equal(delays_with(&f, room / 2), 2);
		assert_int_equal(delays_with(&f, room * 15 / 100 + 1), 2);
		assert_int_equal(delays_with(&f, room * 14 / 100), 0);
		assert_int_equal(delays_with(&f, 1), 0);
	}
	assert_int_equal(delays_with(&f, 0), 0);
	end(&f);
}

static void delays_by_what_is_live(void **state)
{
	const size_t heap = 64 << 20, region = REGION_SIZE;

	/* Fixed heap: all that is not live. */
	check_bands("mode=memliner,sizing=fixed", heap / 4, heap * 3 / 4);
	check_bands("mode=memliner,sizing=fixed", heap - region, region);
	check_bands("mode=memliner,sizing=fixed", heap, 0);
	/* Growable heap: what may be used before allocation waits, within the limit. */
	check_bands("mode=memliner", heap / 4, heap / 4 * 3 / 2);
	check_bands("mode=memliner", heap * 3 / 4, heap / 4);
	check_bands("mode=memliner", heap, 0);
}

static void parked_work_is_woken_and_fetched(void **state)
{
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, "mode=memliner,park,cold,residency=simulated,delays=2:2:2,min=32M");
	f.roots[0] = list_new(f.m, f.node, LONG_LIST);
	for (int i = 0; i < 100 && !(i > 2 && stats_of(f.heap).woken_objects); i++)
		cycle_beside(&f, f.roots[0]);
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(f.heap->park.count, 0);
	for (size_t i = 0; i < f.heap->bytes / GRANULE / 64; i++)
		assert_int_equal(f.heap->park.objects[i], 0);
	s = end(&f);
	assert_true(s.parked_objects > 0);
	assert_true(s.woken_objects > 0);
	assert_true(s.fetched_pages > 0);
	assert_true(s.fetch_calls > 0);
	assert_true(s.cooled_pages > 0);
	assert_true(s.cooled_pages <= s.fetched_pages);
	assert_true(s.scans > 0);
}

/* Destroying a heap does not wait for pages that the collector waits for. */
static void a_cycle_that_waits_is_abandoned(void **state)
{
	static const char *const options[] = {
		"mode=memliner,park,residency=simulated,min=32M",
		"mode=memliner,park,residency=simulated,min=32M,markers=3",
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		struct fixture f;
		uint64_t cycles;

		begin(&f, options[i]);
		f.roots[0] = list_new(f.m, f.node, LONG_LIST);
		/* Half of the pages that building it touched are out again. */
		assert_int_equal(ebbgc_collect(f.m), 0);
		__atomic_store_n(&f.heap->update_at, 0, __ATOMIC_RELAXED);
		location_update(f.heap);
		/* No scans from now on: no wait counts as fruitless. */
		pthread_mutex_lock(&f.heap->update_lock);
		cycles = stats_of(f.heap).cycles;
		ebbgc_collect_start(f.m);
		while (!__atomic_load_n(&f.heap->park.count, __ATOMIC_RELAXED))
			ebbgc_poll(f.m);
		ebbgc_detach(f.m);
		assert_int_equal(stats_of(f.heap).cycles, cycles);
		assert_int_equal(ebbgc_heap_destroy(f.heap), 0);
	}
}

/* A page that came in wakes its work, with or without a noted access. */
static void a_scan_wakes(void **state)
{
	struct tracer *t;
	struct fixture f;
	uint64_t here, there;

	begin(&f, "mode=memliner,park,residency=simulated,min=32M");
	t = &f.heap->marker.tracers[0];
	here = (uint64_t)(uintptr_t)f.heap->base + HEADER;
	there = here + PAGE_BYTES;
	f.heap->residency.out[0] = 3;
	__atomic_store_n(&f.heap->top, 1, __ATOMIC_RELAXED);
	park_object(t, here);
	park_object(t, there);
	f.heap->residency.scans++;
	park_wake_scanned(t);
	assert_int_equal(t->depth, 0);
	/* Not before the next scan. */
	f.heap->residency.out[0] = 2;
	park_wake_scanned(t);
	assert_int_equal(t->depth, 0);
	f.heap->residency.scans++;
	park_wake_scanned(t);
	assert_int_equal(t->depth, 1);
	assert_int_equal(t->stack[0] & WORK_ADDRESS, here);
	assert_int_equal(f.heap->park.count, 1);
	f.heap->residency.out[0] = 0;
	park_wake(t, 1);
	assert_int_equal(t->depth, 2);
	t->depth = 0;
	__atomic_store_n(&f.heap->top, 0, __ATOMIC_RELAXED);
	end(&f);
}

/* The same graph has the same live set with every source of residency, even a wrong one. */
static void providers_agree_on_what_lives(void **state)
{
	static const char *const options[] = {
		"mode=concurrent", "mode=memliner", "mode=memliner,exact",
		"mode=memliner,exact,residency=pagemap", "mode=memliner,park,residency=mincore",
		"mode=memliner,park,residency=simulated",
		"mode=memliner,exact,residency=simulated,delays=6:6:6",
	};
	uint64_t marked[2][sizeof(options) / sizeof(options[0])];

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		struct ebbgc_stats s;
		struct fixture f;

		begin(&f, options[i]);
		f.roots[0] = list_new(f.m, f.node, LIST);
		f.roots[1] = list_new(f.m, f.node, LIST / 2);
		assert_int_equal(ebbgc_collect(f.m), 0);
		s = stats_of(f.heap);
		marked[0][i] = s.live_bytes;
		f.roots[1] = EBBGC_NULL;
		assert_int_equal(ebbgc_blocked_begin(f.m), 0);
		ebbgc_collect_start(f.m);
		while (stats_of(f.heap).cycles == s.cycles)
			nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
		ebbgc_blocked_end(f.m);
		marked[1][i] = stats_of(f.heap).live_bytes;
		end(&f);
	}
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		assert_int_equal(marked[0][i], marked[0][0]);
		assert_int_equal(marked[1][i], marked[1][0]);
	}
	assert_int_equal(3 * marked[1][0], 2 * marked[0][0]);
}

static void residency_is_the_kernels(void **state)
{
	static const enum ebbgc_residency kinds[] = {
		EBBGC_RESIDENCY_PAGEMAP_SCAN, EBBGC_RESIDENCY_PAGEMAP, EBBGC_RESIDENCY_MINCORE,
	};
	size_t bytes = 256 * PAGE_BYTES;
	char *p = os_map(bytes);

	assert_non_null(p);
	memset(p, 1, bytes);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		struct residency r;

		assert_int_equal(residency_open(&r, kinds[k], p, bytes), 0);
		assert_true(r.kind >= kinds[k]);
		assert_true(residency_scan(&r, bytes) >= 0);
		for (size_t i = 0; i < 256; i++)
			assert_int_equal(residency_state(&r, i), PAGE_RESIDENT);
		if (r.kind == EBBGC_RESIDENCY_MINCORE) {
			/* Without swap, the only way to lose a page: */
			assert_int_equal(madvise(p + 3 * PAGE_BYTES, 2 * PAGE_BYTES, MADV_DONTNEED),
					 0);
			assert_int_equal(residency_scan(&r, bytes), 2);
			for (size_t i = 0; i < 256; i++)
				assert_int_equal(residency_state(&r, i) == PAGE_SWAPPED_OUT,
						 i == 3 || i == 4);
			residency_touched(&r, 3);
			assert_int_equal(residency_state(&r, 3), PAGE_RESIDENT);
		}
		residency_close(&r);
	}
	munmap(p, bytes);
}

/* A page that left since the last scan is recognised before it is touched. */
static void pages_are_looked_at_again(void **state)
{
	size_t bytes = 64 * PAGE_BYTES;
	uint64_t tick = UINT64_C(1) << RESIDENCY_TICK_SHIFT;
	char *p = os_map(bytes);
	struct residency r;

	assert_non_null(p);
	memset(p, 1, bytes);
	assert_int_equal(residency_open(&r, EBBGC_RESIDENCY_MINCORE, p, bytes), 0);
	assert_int_equal(residency_scan(&r, bytes), 0);
	residency_tick(&r, tick);
	assert_false(residency_is_out(&r, 3));
	assert_int_equal(madvise(p + 3 * PAGE_BYTES, 2 * PAGE_BYTES, MADV_DONTNEED), 0);
	/* Once a tick is enough. */
	assert_false(residency_is_out(&r, 3));
	assert_true(residency_is_out(&r, 4));
	residency_tick(&r, 2 * tick);
	assert_true(residency_is_out(&r, 3));
	assert_int_equal(residency_state(&r, 3), PAGE_SWAPPED_OUT);
	/* A touch overrides it. */
	residency_touched(&r, 3);
	assert_false(residency_is_out(&r, 3));
	/* In flight. */
	residency_requested(&r, 4);
	residency_touched(&r, 4);
	assert_int_equal(residency_state(&r, 4), PAGE_CACHED);
	assert_false(residency_is_out(&r, 4));
	residency_tick(&r, 3 * tick);
	assert_true(residency_is_out(&r, 4));
	assert_int_equal(residency_state(&r, 4), PAGE_SWAPPED_OUT);
	residency_close(&r);
	munmap(p, bytes);
}

/* Touching a page in the swap cache needs no read. */
static void what_was_never_touched_is_not_out(void **state)
{
	static const enum ebbgc_residency kinds[] = {
		EBBGC_RESIDENCY_PAGEMAP_SCAN, EBBGC_RESIDENCY_PAGEMAP,
	};
	size_t bytes = 64 * PAGE_BYTES;
	char *p = os_map(bytes);

	assert_non_null(p);
	for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++) {
		struct residency r;

		assert_int_equal(residency_open(&r, kinds[k], p, bytes), 0);
		assert_int_not_equal(r.kind, EBBGC_RESIDENCY_MINCORE);
		assert_int_equal(residency_scan(&r, bytes), 0);
		residency_tick(&r, UINT64_C(1) << RESIDENCY_TICK_SHIFT);
		assert_false(residency_is_out(&r, 5));
		assert_true(residency_is_in(&r, 6));
		residency_close(&r);
	}
	munmap(p, bytes);
}

static void epochs_are_churn(void **state)
{
	struct epoch e = { .source = EBBGC_EPOCH_OWN };

	epoch_churn(&e, 100, 1000, 10);
	assert_int_equal(epoch_now(&e), 0);
	epoch_churn(&e, 1, 1000, 10);
	assert_int_equal(epoch_now(&e), 1);
	epoch_churn(&e, 350, 1000, 10);
	assert_int_equal(epoch_now(&e), 4);
	epoch_churn(&e, 1000, 0, 10);
	assert_int_equal(epoch_now(&e), 4);
}

/* Garbage between survivors: whole pages of it are dropped, survivors are untouched. */
static void garbage_pages_are_dropped(void **state)
{
	static const struct ebbgc_layout leaf = {
		.name = "leaf", .flags = EBBGC_LEAF, .size = 8, .element_size = 1, .length_width = 8,
	};
	ebbgc_type_t refs, leaves;
	struct ebbgc_stats s;
	struct fixture f;

	begin(&f, "mode=stop,drop");
	assert_int_equal(ebbgc_type_register(f.heap, &refs_layout, &refs), 0);
	assert_int_equal(ebbgc_type_register(f.heap, &leaf, &leaves), 0);
	f.roots[0] = ebbgc_alloc_length(f.m, refs, 100);
	/* An allocating thread that sweeps before the collector's thread uses pages again. */
	ebbgc_cycles_suspend(f.m);
	for (size_t i = 0; i < 2000; i++) {
		ebbgc_ref_t r = ebbgc_alloc_length(f.m, leaves, 4000);

		memset((char *)ebbgc_ptr(r) + 8, (int)i, 4000);
		if (i % 20 == 0)
			ebbgc_store(f.m, f.roots[0], &refs_of(f.roots[0])->slots[i / 20], r);
	}
	ebbgc_cycles_resume(f.m);
	assert_int_equal(stats_of(f.heap).cycles, 0);
	assert_int_equal(ebbgc_collect(f.m), 0);
	s = stats_of(f.heap);
	assert_int_equal(s.cycles, 1);
	assert_true(s.dropped_bytes > 1000 * PAGE_BYTES);
	/* A second sweep finds them dropped. */
	assert_int_equal(ebbgc_collect(f.m), 0);
	assert_int_equal(stats_of(f.heap).dropped_bytes, s.dropped_bytes);
	for (size_t i = 0; i < 100; i++) {
		ebbgc_ref_t r = ebbgc_load(f.m, f.roots[0], &refs_of(f.roots[0])->slots[i]);
		const char *bytes = (char *)ebbgc_ptr(r) + 8;

		for (size_t j = 0; j < 4000; j++)
			assert_int_equal(bytes[j], (char)(20 * i));
	}
	end(&f);
}

static void options_are_words(void **state)
{
	static const char *const bad[] = {
		"mode", "mode=fast", "max=1X", "max=", "delays=1:2", "delays=1:2:7", "park=1", "growth=x",
		"epoch=-1", "nonsense",
	};
	struct ebbgc_options o, before;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_debug(&o, "mode=memliner,max=3M,delays=6:1:0,park,lock,epoch=7,"
					      "residency=mincore,growth=1.5,,sizing=fixed"), 0);
	assert_int_equal(o.mode, EBBGC_MEMLINER);
	assert_int_equal(o.max_bytes, 3 << 20);
	assert_int_equal(o.delays[0], 6);
	assert_int_equal(o.delays[2], 0);
	assert_int_equal(o.features, EBBGC_PARK);
	assert_true(o.lock_side);
	assert_int_equal(o.epoch_percent, 7);
	assert_int_equal(o.residency, EBBGC_RESIDENCY_MINCORE);
	assert_true(o.growth == 1.5);
	assert_int_equal(o.sizing, EBBGC_FIXED);
	before = o;
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(ebbgc_debug(&o, bad[i]), -EINVAL);
		assert_memory_equal(&o, &before, sizeof(o));
	}
	assert_int_equal(setenv("EBBGC_OPTIONS", "mode=nothing", 1), 0);
	assert_int_equal(ebbgc_heap_create(NULL, &heap), -EINVAL);
	assert_int_equal(setenv("EBBGC_OPTIONS", "mode=memliner", 1), 0);
	assert_int_equal(ebbgc_heap_create(NULL, &heap), 0);
	assert_int_equal(heap->options.mode, EBBGC_MEMLINER);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	assert_int_equal(unsetenv("EBBGC_OPTIONS"), 0);
}

/* Words for experiments are accepted by one call and the environment. */
static void programs_have_three_modes(void **state)
{
	static const char *const words[] = {
		"mode=memliner", "exact", "park", "drop", "incognito", "cold", "arrivals", "hints", "count",
		"address", "depth=2", "delays=1:1:1", "delta=2", "epoch=5", "scan=4",
		"residency=mincore",
	};
	struct ebbgc_options o, before;
	char text[64];

	ebbgc_options_init(&o);
	assert_int_equal(ebbgc_options_parse(&o, "mode=concurrent,overcommit,plain,newest"), 0);
	assert_int_equal(ebbgc_options_parse(&o, "mode=stop,sizing=fixed,max=4M,markers=2"), 0);
	assert_int_equal(ebbgc_options_parse(&o, "mode=swapping,min=1M,budget=1M,nursery=1M"), 0);
	assert_int_equal(ebbgc_options_parse(&o, "growth=3,lock,check"), 0);
	for (size_t i = 0; i < sizeof(words) / sizeof(*words); i++) {
		before = o;
		snprintf(text, sizeof(text), "max=8M,%s", words[i]);
		assert_int_equal(ebbgc_options_parse(&o, text), -EINVAL);
		assert_memory_equal(&o, &before, sizeof(o));
		assert_int_equal(ebbgc_debug(&o, words[i]), 0);
		assert_memory_not_equal(&o, &before, sizeof(o));
	}
}

/* The mode sets its switches, unless a later word of the environment chooses another one. */
static void swapping_is_a_mode(void **state)
{
	const uint32_t set = EBBGC_EXACT | EBBGC_PARK | EBBGC_DROP;
	struct ebbgc_options o;
	ebbgc_heap_t *heap;

	ebbgc_options_init(&o);
	o.max_bytes = 16 << 20;
	assert_int_equal(ebbgc_debug(&o, "mode=swapping,newest"), 0);
	assert_int_equal(o.mode, EBBGC_SWAPPING);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	assert_int_equal(heap->options.mode, EBBGC_MEMLINER);
	assert_int_equal(heap->options.features, set | EBBGC_NEWEST_FIRST);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	assert_int_equal(setenv("EBBGC_OPTIONS", "mode=concurrent", 1), 0);
	assert_int_equal(ebbgc_heap_create(&o, &heap), 0);
	unsetenv("EBBGC_OPTIONS");
	assert_int_equal(heap->options.mode, EBBGC_CONCURRENT);
	assert_int_equal(heap->options.features, EBBGC_NEWEST_FIRST);
	assert_int_equal(ebbgc_heap_destroy(heap), 0);
	o.features |= EBBGC_ADDRESS_ORDER;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
	o.mode = (enum ebbgc_mode)(EBBGC_SWAPPING + 1);
	o.features = 0;
	assert_int_equal(ebbgc_heap_create(&o, &heap), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(references_carry_the_epoch),
		cmocka_unit_test(far_is_many_epochs_away),
		cmocka_unit_test(rings_lose_the_oldest),
		cmocka_unit_test(leaves_are_noted_as_targets),
		cmocka_unit_test(rings_are_shared),
		cmocka_unit_test(touched_objects_come_first),
		cmocka_unit_test(nothing_is_noted_elsewhere),
		cmocka_unit_test(old_stamps_are_put_off),
		cmocka_unit_test(all_in_memory_is_marked_depth_first),
		cmocka_unit_test(bursts_end_and_begin),
		cmocka_unit_test(delays_follow_the_room),
		cmocka_unit_test(delays_by_what_is_live),
		cmocka_unit_test(parked_work_is_woken_and_fetched),
		cmocka_unit_test(a_cycle_that_waits_is_abandoned),
		cmocka_unit_test(a_scan_wakes),
		cmocka_unit_test(providers_agree_on_what_lives),
		cmocka_unit_test(residency_is_the_kernels),
		cmocka_unit_test(pages_are_looked_at_again),
		cmocka_unit_test(what_was_never_touched_is_not_out),
		cmocka_unit_test(epochs_are_churn),
		cmocka_unit_test(garbage_pages_are_dropped),
		cmocka_unit_test(options_are_words),
		cmocka_unit_test(programs_have_three_modes),
		cmocka_unit_test(swapping_is_a_mode),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
