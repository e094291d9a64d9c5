// SPDX-License-Identifier: GPL-2.0-or-later
/* policies/streams.bpf.c, compiled natively. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "policies/streams.bpf.c"
#include "policy_world.h"

#define LATENCY 8

static struct world *world(void)
{
	struct world *w = world_new(&streams_policy);

	w->latency = LATENCY;
	w->issue = LATENCY / 2;
	return w;
}

static void finds(int64_t stride, unsigned int count)
{
	struct world *w = world();

	world_walk(w, stride < 0 ? WORLD_PAGES - 1 : 0, stride, count);
	assert_true(w->misses + w->late <= 20);
	assert_true(world_accuracy(w) > 0.9);
	world_free(w);
}

static void one_stream(void **unused)
{
	finds(1, 20000);
	finds(-1, 20000);
	finds(2, 20000);
	finds(7, 20000);
	finds(64, 10000);
	/* Rows of 16 MiB. */
	finds(4096, 250);
}

/* n arrays of pages each, walked together. */
static void together(unsigned int n, unsigned int pages)
{
	struct world *w = world();

	for (unsigned int i = 0; i < pages; i++)
		for (unsigned int k = 0; k < n; k++)
			world_visit(w, (uint64_t)k * (WORLD_PAGES / n) + i);
	assert_true(world_coverage(w) > 0.95);
	assert_true(world_accuracy(w) > 0.8);
	world_free(w);
}

static void many_streams(void **unused)
{
	together(3, 4000);
	together(8, 4000);
	together(24, 2000);
}

/* Threads on neighbouring parts, taking turns of irregular length. */
static void many_threads(void **unused)
{
	struct world *w = world();
	uint64_t seed = 7, at[8] = { 0 };

	for (unsigned int i = 0; i < 40000; i++) {
		unsigned int k = world_random(&seed) % 8;

		w->tid = k + 1;
		world_visit(w, k * 8192 + at[k]++);
	}
	assert_true(world_coverage(w) > 0.95);
	world_free(w);
}

/* A random page here and there does not end a stream. */
static void noise(void **unused)
{
	struct world *w = world();
	uint64_t seed = 3;
	unsigned int stray = 0;

	for (unsigned int i = 0; i < 20000; i++) {
		world_visit(w, i);
		if (world_random(&seed) % 4 == 0) {
			world_visit(w, 100000 + world_random(&seed) % 800000);
			stray++;
		}
	}
	assert_true(w->misses + w->late < stray + 1000);
	world_free(w);
}

/* Two streams of different strides through the same memory. */
static void crossing(void **unused)
{
	struct world *w = world();

	for (unsigned int i = 0; i < 2000; i++) {
		world_visit(w, 64 * (uint64_t)i);
		world_visit(w, 200001 - 3 * (uint64_t)i);
	}
	assert_true(world_coverage(w) > 0.95);
	world_free(w);
}

static void random_pages(uint64_t pages)
{
	struct world *w = world();
	uint64_t seed = 11;

	for (unsigned int i = 0; i < 200000; i++)
		world_visit(w, world_random(&seed) % pages);
	assert_true(w->asked_pages <= w->misses / 100);
	world_free(w);
}

static void nothing_to_find(void **unused)
{
	random_pages(WORLD_PAGES);
	random_pages(1 << 16);
	random_pages(1 << 14);
}

/* Where accesses were random it is looked for streams in bursts: those that begin are found. */
static void after_random_pages(void **unused)
{
	struct world *w = world();
	unsigned int misses;
	uint64_t seed = 5;

	/* It ends between two bursts. */
	for (unsigned int i = 0; i < 20000 || w->misses % STREAM_REST != 2 * STREAM_BURST; i++)
		world_visit(w, world_random(&seed) % (WORLD_PAGES / 2));
	misses = w->misses;
	for (unsigned int i = 0; i < 4000; i++)
		for (unsigned int k = 0; k < 4; k++)
			world_visit(w, WORLD_PAGES / 2 + k * 100000 + (uint64_t)i * (k + 1));
	assert_in_range(w->misses - misses, STREAM_REST / 2, STREAM_REST + 100);
	world_free(w);
}

/* Filled front to back, then walked in lanes: the old stream must not catch every lane. */
static void lanes(void **unused)
{
	struct world *w = world();
	unsigned int asked;

	world_walk(w, 0, 1, 30000);
	asked = w->asked_pages;
	for (unsigned int lane = 0; lane < 7; lane++)
		world_walk(w, 100000 + lane, 7, 4000);
	assert_true(w->asked_pages - asked < 7 * 4000 * 1.2);
	assert_true(world_coverage(w) > 0.97);
	world_free(w);
}

/* What is asked for ahead shares the cgroup's room. */
static void shares_room(void **unused)
{
	struct world *w = world();

	w->room = 256;
	for (unsigned int i = 0; i < 4000; i++)
		for (unsigned int k = 0; k < 8; k++)
			world_visit(w, (uint64_t)k * (WORLD_PAGES / 8) + i);
	assert_true(world_coverage(w) > 0.95);
	assert_true(w->last.count <= 256 / 8);
	world_free(w);
}

/* A long stream says how far it has come, so that ebbd pages out behind it. */
static void tells_its_run(void **unused)
{
	struct world *w = world();

	world_walk(w, 0, 1, 10000);
	assert_true(w->last.run > 9000);
	assert_in_range(w->last.passed, 64, 256);
	world_free(w);
}

/* No address space is that large, but arithmetic on addresses must be defined (SANITIZE=1). */
static void strides_grow_without_bound(void **unused)
{
	struct world *w = world();
	struct ebb_fault f = { .owner = 1, .tgid = 1, .tid = 1, .exec = 1, .kind = EBB_MISS };
	uint64_t stride = 1;

	for (int power = 0; power < 41; power++, stride *= 3)
		for (int i = 0; i < 16; i++) {
			f.vpn += stride;
			f.time_ns += 1000;
			w->policy->run(&w->sim, &f);
		}
	assert_true(w->requests > 0);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_stream), cmocka_unit_test(many_streams),
		cmocka_unit_test(many_threads), cmocka_unit_test(noise), cmocka_unit_test(crossing),
		cmocka_unit_test(nothing_to_find), cmocka_unit_test(after_random_pages),
		cmocka_unit_test(lanes), cmocka_unit_test(shares_room),
		cmocka_unit_test(tells_its_run),
		cmocka_unit_test(strides_grow_without_bound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
