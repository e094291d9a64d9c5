// SPDX-License-Identifier: GPL-2.0-or-later
/* policies/auto.bpf.c and with it collector.h, compiled natively. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "memory_world.h"
#include "policies/auto.bpf.c"

#define PAGES 40000
#define APP 1
#define GC 2

static struct memory *half(void)
{
	return memory_new(&auto_policy, 1, PAGES, PAGES / 2);
}

static void follows(const struct memory *m, double coverage)
{
	assert_true(memory_coverage(m) >= coverage);
	assert_true(memory_accuracy(m) >= 0.9);
}

static void streams_at_once(void **unused)
{
	struct memory *m = half();

	for (uint32_t i = 0; i < PAGES; i++)
		memory_visit(m, 0, 0, i);
	follows(m, 0.98);
	memory_free(m);
}

/* Random ranks between the pages of an edge list must not cost the list its stream. */
static void stream_among_random(void **unused)
{
	struct memory *m = half();
	uint64_t seed = 5;
	uint32_t strays = 0;

	for (uint32_t i = 0; i < PAGES / 4; i++) {
		memory_visit(m, 0, 0, i);
		for (uint32_t k = memory_random(&seed) % 40; k; k--, strays++)
			memory_visit(m, 0, 0, PAGES / 4 + memory_random(&seed) % (PAGES * 3 / 4));
	}
	assert_true(m->count.hits > PAGES / 4 * 0.95);
	memory_free(m);
}

static void order_on_its_second_turn(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = half();

	for (int turn = 0; turn < 3; turn++) {
		memory_count_anew(m);
		for (uint32_t i = 0; i < PAGES; i++)
			memory_visit(m, 0, 0, order[i]);
		if (turn)
			follows(m, 0.9);
		else
			assert_true(m->count.asked * 100 <= m->count.misses);
	}
	memory_free(m);
	free(order);
}

/* Each island of memory is visited once at random: nothing repeats, but accesses are local. */
static void islands(void **unused)
{
	enum { ISLAND = 320, ISLANDS = PAGES / ISLAND };
	uint64_t seed = 11;
	uint32_t *order = memory_permutation(ISLANDS, &seed);
	struct memory *m = half();

	for (uint32_t i = 0; i < PAGES; i++)
		memory_visit(m, 0, 0, i / ISLAND * ISLAND + ISLAND - 1 - i % ISLAND);
	memory_count_anew(m);
	for (uint32_t i = 0; i < ISLANDS; i++)
		for (uint32_t k = 0; k < 4 * ISLAND; k++)
			memory_visit(m, 0, 0, order[i] * ISLAND + memory_random(&seed) % ISLAND);
	assert_true(memory_coverage(m) >= 0.6);
	assert_true(memory_accuracy(m) >= 0.8);
	memory_free(m);
	free(order);
}

static void nothing_to_find(void **unused)
{
	struct memory *m = half();
	uint64_t seed = 3;

	for (uint32_t i = 0; i < 20 * PAGES; i++)
		memory_visit(m, 0, 0, memory_random(&seed) % PAGES);
	assert_true(m->count.asked * 100 <= m->count.misses);
	memory_free(m);
}

/* Pauses @source for a tenth of a pass; returns the misses in the 1000 visits after it. */
static uint64_t pause(struct memory *m, const uint32_t *order, enum ebb_source source)
{
	enum { FROM = PAGES / 2, TO = FROM + 4000, AFTER = 1000 };
	uint64_t missed;

	memory_count_anew(m);
	for (uint32_t i = 0; i < FROM; i++)
		memory_visit(m, 0, 0, order ? order[i] : i);
	for (uint32_t k = 0; k < EBB_SOURCES; k++)
		assert_int_equal(m->count.source[k] > PAGES / 4, k == source);
	memory_count_anew(m);
	m->paused = (uint16_t)(1 << source);
	for (uint32_t i = FROM; i < TO; i++)
		memory_visit(m, 0, 0, order ? order[i] : i);
	assert_int_equal(m->count.source[source], 0);
	assert_true(m->count.misses > (TO - FROM) / 2);
	m->paused = 0;
	missed = m->count.misses;
	for (uint32_t i = TO; i < TO + AFTER; i++)
		memory_visit(m, 0, 0, order ? order[i] : i);
	missed = m->count.misses - missed;
	memory_count_anew(m);
	for (uint32_t i = TO + AFTER; i < PAGES; i++)
		memory_visit(m, 0, 0, order ? order[i] : i);
	follows(m, 0.95);
	return missed;
}

/* A source that is resumed goes on at once, with the window that it had. */
static void a_pause_stops_one_source(void **unused)
{
	uint64_t seed = 7;
	uint32_t *order = memory_permutation(PAGES, &seed);
	struct memory *m = half();

	assert_true(pause(m, NULL, EBB_SOURCE_STREAMS) <= 16);
	memory_free(m);
	m = half();
	for (int turn = 0; turn < 2; turn++)
		for (uint32_t i = 0; i < PAGES; i++)
			memory_visit(m, 0, 0, order[i]);
	assert_true(pause(m, order, EBB_SOURCE_REPLAY) <= 64);
	memory_free(m);
	free(order);
}

/* As islands(), by near alone. */
static void near_is_a_source(void **unused)
{
	enum { ISLAND = 320, ISLANDS = PAGES / ISLAND };
	struct memory *m = half();
	uint64_t seed = 11, before = 0;

	for (uint32_t i = 0; i < 40 * ISLANDS; i++) {
		uint32_t island = memory_random(&seed) % ISLANDS;

		if (i == 20 * ISLANDS) {
			before = m->count.source[EBB_SOURCE_NEAR];
			m->paused = 1 << EBB_SOURCE_NEAR;
		}
		for (uint32_t k = 0; k < 4 * ISLAND; k++)
			memory_visit(m, 0, 0, island * ISLAND + memory_random(&seed) % ISLAND);
	}
	assert_true(before > PAGES);
	assert_int_equal(m->count.source[EBB_SOURCE_NEAR], before);
	memory_free(m);
}

/* One process whose faults the test supplies. */
struct hand {
	struct ebb_policy_sim sim;
	uint32_t prefetched, cold, cold_lists;
};

static int on_request(void *data, const struct ebb_request *r)
{
	struct hand *h = data;

	if (r->op == EBB_OP_PREFETCH || r->op == EBB_OP_LIST)
		h->prefetched += r->count;
	else
		h->cold += r->count;
	h->cold_lists += r->op == EBB_OP_COLD_LIST;
	return 0;
}

static struct hand *hand_new(void)
{
	struct hand *h = calloc(1, sizeof(*h));

	auto_policy.reset();
	h->sim.state = calloc(1, auto_policy.state_size);
	h->sim.request = on_request;
	h->sim.data = h;
	ebb_policy_defaults(&auto_policy, &h->sim.params);
	return h;
}

static void hand_free(struct hand *h)
{
	free(h->sim.state);
	free(h);
}

static void fault(struct hand *h, uint64_t vpn, uint32_t tid, uint32_t role, uint32_t kind,
		  uint64_t ns)
{
	struct ebb_fault f = { .vpn = vpn, .duration_ns = ns, .owner = 1, .tgid = 1, .tid = tid,
			       .exec = 1, .kind = kind, .role = role };

	auto_policy.run(&h->sim, &f);
}

static void miss(struct hand *h, uint64_t vpn, uint32_t tid, uint32_t role, uint64_t ns)
{
	fault(h, vpn, tid, role, EBB_MISS, ns);
}

static void quiet_where_misses_cost_nothing(void **unused)
{
	struct hand *h = hand_new();
	uint32_t before;

	for (uint32_t i = 1; i < 500; i++)
		miss(h, i, APP, EBB_ROLE_APP, 50000);
	assert_true(h->prefetched > 0);
	for (uint32_t i = 500; i < 1000; i++)
		miss(h, i, APP, EBB_ROLE_APP, 900);
	before = h->prefetched;
	for (uint32_t i = 1000; i < 2000; i++)
		miss(h, i, APP, EBB_ROLE_APP, 900);
	assert_int_equal(h->prefetched, before);
	/* And back when they do. */
	for (uint32_t i = 2000; i < 2500; i++)
		miss(h, i, APP, EBB_ROLE_APP, 50000);
	assert_true(h->prefetched > before);
	hand_free(h);
}

static void collectors_pages_are_made_cold(void **unused)
{
	struct hand *h = hand_new();
	uint64_t seed = 9;

	for (uint32_t i = 0; i < 1600; i++)
		miss(h, 1000 + memory_random(&seed) % 1000000, GC, EBB_ROLE_GC, 50000);
	/* All but the last lists, which are still in use. */
	assert_in_range(h->cold, 1600 - 3 * EBB_LIST_MAX, 1600 - EBB_LIST_MAX);
	assert_int_equal(h->cold, h->cold_lists * EBB_LIST_MAX);
	hand_free(h);

	h = hand_new();
	for (uint32_t i = 0; i < 5000; i++)
		fault(h, 1000 + i, GC, EBB_ROLE_GC, i < 4 ? EBB_MISS : EBB_HIT, 50000);
	assert_true(h->cold > 4000);
	hand_free(h);

	h = hand_new();
	for (uint32_t i = 0; i < 5000; i++)
		miss(h, 1000 + i, APP, EBB_ROLE_APP, 50000);
	assert_int_equal(h->cold, 0);
	hand_free(h);
}

/* The collector's wanderings leave the program's stream alone. */
static void collector_apart(void **unused)
{
	struct hand *h = hand_new();
	uint64_t seed = 9;

	for (uint32_t i = 0; i < 4000; i++) {
		miss(h, 100000 + i, APP, EBB_ROLE_APP, 50000);
		miss(h, 1000 + memory_random(&seed) % 1000000, GC, EBB_ROLE_GC, 50000);
	}
	assert_true(h->prefetched > 3500);
	hand_free(h);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(streams_at_once), cmocka_unit_test(stream_among_random),
		cmocka_unit_test(order_on_its_second_turn), cmocka_unit_test(islands),
		cmocka_unit_test(nothing_to_find), cmocka_unit_test(a_pause_stops_one_source),
		cmocka_unit_test(near_is_a_source),
		cmocka_unit_test(quiet_where_misses_cost_nothing),
		cmocka_unit_test(collectors_pages_are_made_cold), cmocka_unit_test(collector_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
