// SPDX-License-Identifier: GPL-2.0-or-later
/* Which regions of a heap with a far generation leave first. */
#include "gc_store.h"
#include "oldest.h"
#include "region.h"

/* --- the order ------------------------------------------------------------------------------ */

enum { REGIONS = 200 };

/* The straightforward definition. */
struct member {
	bool there, swept;
	uint64_t arrived;
};

static uint32_t first_of(const struct member *members, size_t count, uint64_t before)
{
	uint32_t first = REGION_NONE;

	for (uint32_t r = 0; r < count; r++) {
		const struct member *m = &members[r];

		if (!m->there || m->arrived >= before)
			continue;
		if (first == REGION_NONE || m->swept > members[first].swept ||
		    (m->swept == members[first].swept && m->arrived < members[first].arrived))
			first = r;
	}
	return first;
}

static uint64_t draw(uint64_t *state, uint64_t below)
{
	*state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (*state >> 33) % below;
}

static void random_regions(void **state)
{
	static struct aged items[2][REGIONS];
	static uint32_t places[REGIONS];
	struct oldest o = { .items = { items[0], items[1] }, .places = places };

	for (uint64_t seed = 0; seed < 50; seed++) {
		struct member members[REGIONS] = { 0 };
		uint64_t random = seed, clock = 0;

		for (unsigned int i = 0; i < 2000; i++) {
			uint32_t r = (uint32_t)draw(&random, REGIONS), first;
			uint64_t before = clock - draw(&random, clock / 2 + 1);

			switch (draw(&random, 4)) {
			case 0:
				members[r].there = false;
				oldest_remove(&o, r);
				break;
			case 1:
				first = first_of(members, REGIONS, before);
				assert_int_equal(oldest_take(&o, before), first);
				if (first != REGION_NONE)
					members[first].there = false;
				break;
			default:
				if (!members[r].there)
					members[r].arrived = clock++;
				members[r].there = true;
				members[r].swept = draw(&random, 2);
				oldest_add(&o, r, members[r].swept, members[r].arrived);
			}
		}
		for (uint32_t first = 0; first != REGION_NONE;) {
			first = first_of(members, REGIONS, clock);
			assert_int_equal(oldest_take(&o, clock), first);
			if (first != REGION_NONE)
				members[first].there = false;
		}
		assert_int_equal(o.count[0] + o.count[1], 0);
	}
}

/* --- of a heap ------------------------------------------------------------------------------ */

enum { SLOTS = 4000 };

struct world {
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t types[3], fixed;
	struct ebbgc_frame frame;
	ebbgc_ref_t roots[1];
	struct store store;
};

static void world_open(struct world *w, size_t max, size_t nursery)
{
	struct ebbgc_layout leaf = { .name = "leaf", .size = 3000, .flags = EBBGC_LEAF };
	struct ebbgc_options o;

	*w = (struct world){ .store = { .lock = PTHREAD_MUTEX_INITIALIZER } };
	ebbgc_options_init(&o);
	o.max_bytes = max;
	o.mode = EBBGC_STOP_WORLD;
	o.nursery_bytes = nursery;
	assert_int_equal(ebbgc_heap_create(&o, &w->heap), 0);
	w->fixed = type_new(w->heap, refs_layout, 0);
	w->types[0] = type_new(w->heap, node_layout, EBBGC_MOVABLE);
	w->types[1] = type_new(w->heap, leaf, EBBGC_MOVABLE);
	leaf.size = 8000;
	w->types[2] = type_new(w->heap, leaf, EBBGC_MOVABLE);
}

static void far_open(struct world *w, size_t local)
{
	struct ebbgc_far_store store = store_of(&w->store);
	struct ebbgc_far_options fo;

	ebbgc_far_options_init(&fo);
	fo.local_bytes = local;
	assert_int_equal(ebbgc_far_attach(w->heap, &store, &fo), 0);
}

static void enter(struct world *w, size_t slots)
{
	assert_int_equal(ebbgc_attach(w->heap, &w->m), 0);
	ebbgc_frame_push(w->m, &w->frame, w->roots, 1);
	w->roots[0] = ebbgc_alloc_length(w->m, w->fixed, slots);
	assert_false(ebbgc_is_null(w->roots[0]));
}

static void world_close(struct world *w)
{
	ebbgc_detach(w->m);
	assert_int_equal(ebbgc_heap_destroy(w->heap), 0);
	assert_int_equal(w->store.places, 0);
}

static void set(struct world *w, size_t i, ebbgc_ref_t r)
{
	ebbgc_store(w->m, w->roots[0], &refs_of(w->roots[0])->slots[i], r);
}

static void fill(struct world *w, size_t i, ebbgc_type_t type)
{
	ebbgc_ref_t r = ebbgc_alloc(w->m, type);

	assert_false(ebbgc_is_null(r));
	set(w, i, r);
}

/* Lock held: adds what is on a list, whose links are right. */
static void list_note(const struct ebbgc_heap *h, const struct region_list *l,
		      struct member *members)
{
	uint32_t last = REGION_NONE;

	for (uint32_t r = l->head; r != REGION_NONE; r = h->regions[r].next) {
		assert_false(members[r].there);
		assert_int_equal(h->regions[r].prev, last);
		members[r] = (struct member){ true, h->regions[r].swept, h->regions[r].arrived };
		last = r;
	}
	assert_int_equal(last, l->tail);
}

static struct aged *items_copy(const struct ebbgc_heap *h, unsigned int swept)
{
	size_t bytes = h->region_count * sizeof(struct aged);
	struct aged *copy = malloc(bytes);

	assert_non_null(copy);
	return memcpy(copy, h->far.oldest.items[swept], bytes);
}

/* What leaves next, and so on, is as defined by the lists. */
static void order_check(const struct world *w)
{
	struct ebbgc_heap *h = w->heap;
	struct member *members = calloc(h->region_count, sizeof(*members));
	size_t bytes = h->region_count * sizeof(uint32_t);
	struct oldest o;
	uint32_t first;

	cycle_ends(h, w->m);
	pthread_mutex_lock(&h->lock);
	o = h->far.oldest;
	o.places = malloc(bytes);
	assert_true(members && o.places);
	memcpy(o.places, h->far.oldest.places, bytes);
	for (unsigned int swept = 0; swept < 2; swept++)
		o.items[swept] = items_copy(h, swept);
	for (unsigned int k = KIND_MOVABLE; k < SMALL_KINDS; k++) {
		assert_int_equal(h->unswept[k].head, REGION_NONE);
		list_note(h, &h->partial[k], members);
		list_note(h, &h->full[k], members);
	}
	do {
		first = first_of(members, h->top, h->far.clock);
		assert_int_equal(oldest_take(&o, h->far.clock), first);
		if (first != REGION_NONE)
			members[first].there = false;
	} while (first != REGION_NONE);
	assert_int_equal(o.count[0] + o.count[1], 0);
	pthread_mutex_unlock(&h->lock);
	free(members);
	free(o.places);
	free(o.items[0]);
	free(o.items[1]);
}

static void step(struct world *w, uint64_t *random)
{
	switch (draw(random, 400)) {
	case 0:
		assert_int_equal(ebbgc_far_evict(w->m), 0);
		break;
	case 1:
		assert_int_equal(ebbgc_collect(w->m), 0);
		break;
	case 2:
		for (size_t from = draw(random, SLOTS / 2), i = 0; i < SLOTS / 4; i++)
			set(w, from + i, EBBGC_NULL);
		break;
	case 3 ... 50:
		ebbgc_load(w->m, w->roots[0], &refs_of(w->roots[0])->slots[draw(random, SLOTS)]);
		break;
	default:
		fill(w, draw(random, SLOTS), w->types[draw(random, 3)]);
		return;
	}
	order_check(w);
}

static void programs(size_t nursery, size_t local)
{
	for (uint64_t seed = 0; seed < 4; seed++) {
		uint64_t random = seed;
		struct world w;

		world_open(&w, 64 << 20, nursery);
		/* What another thread leaves behind may leave. */
		enter(&w, SLOTS);
		for (size_t i = 0; i < SLOTS; i++)
			fill(&w, i, w.types[i % 3]);
		ebbgc_detach(w.m);
		far_open(&w, local);
		enter(&w, SLOTS);
		for (unsigned int i = 0; i < 4000; i++)
			step(&w, &random);
		world_close(&w);
	}
}

static void random_programs(void **state)
{
	programs(0, 64 << 20);
}

static void random_programs_with_a_nursery(void **state)
{
	programs(1 << 20, 64 << 20);
}

static void random_programs_short_of_memory(void **state)
{
	programs(0, 16 << 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_regions),
		cmocka_unit_test(random_programs),
		cmocka_unit_test(random_programs_with_a_nursery),
		cmocka_unit_test(random_programs_short_of_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
