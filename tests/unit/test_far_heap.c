// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * A heap of libebbgc whose far generation is in a pool of libebbfar, over both transports, with a
 * donor in the same process.  With EBB_TEST_TIMES set, writes what a load costs.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "lib/base/clock.h"
#include "userlib/gc/ebbgc_far.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

#define NODES 60000u

struct node {
	ebbgc_ref_t next;
	uint64_t value[6];
};

static const struct ebbgc_layout node_layout = {
	.name = "node", .flags = EBBGC_MOVABLE, .size = sizeof(struct node), .bitmap = 1,
};

struct refs {
	uint64_t length;
	ebbgc_ref_t slots[];
};

static const struct ebbgc_run refs_run = { sizeof(struct refs), EBBGC_COUNT_LENGTH, 8 };

static const struct ebbgc_layout refs_layout = {
	.name = "references", .size = sizeof(struct refs), .element_size = 8, .length_width = 8,
	.runs = &refs_run, .run_count = 1,
};

struct user {
	ebbfar_t *pool;
	ebbgc_heap_t *heap;
	ebbgc_mutator_t *m;
	ebbgc_type_t node, refs;
	ebbgc_ref_t root;
	struct ebbgc_frame frame;
	int error;
	jmp_buf out;
};

static enum ebbgc_far_verdict failed(void *arg, ebbgc_heap_t *heap, int error)
{
	struct user *u = arg;

	(void)heap;
	u->error = error;
	longjmp(u->out, 1);
}

static void user_open(struct user *u, bool check, size_t local)
{
	struct ebbfar_options fo = options(at, EBBFAR_CREATE);
	struct ebbgc_far_options o;
	struct ebbgc_far_store store;
	struct ebbgc_options go;

	*u = (struct user){ 0 };
	fo.timeout_ms = 1500;
	fo.resume_ms = 1500;
	u->pool = open_with(fo);
	ebbgc_options_init(&go);
	go.max_bytes = 256 << 20;
	go.check = check;
	assert_int_equal(ebbgc_heap_create(&go, &u->heap), 0);
	ebbgc_far_pool(&store, u->pool);
	ebbgc_far_options_init(&o);
	o.local_bytes = local;
	o.failed = failed;
	o.failed_arg = u;
	assert_int_equal(ebbgc_far_attach(u->heap, &store, &o), 0);
	assert_int_equal(ebbgc_type_register(u->heap, &node_layout, &u->node), 0);
	assert_int_equal(ebbgc_type_register(u->heap, &refs_layout, &u->refs), 0);
	assert_int_equal(ebbgc_attach(u->heap, &u->m), 0);
	ebbgc_frame_push(u->m, &u->frame, &u->root, 1);
}

static void user_close(struct user *u)
{
	ebbgc_detach(u->m);
	assert_int_equal(ebbgc_heap_destroy(u->heap), 0);
	ebbfar_close(u->pool);
}

static struct node *node_of(ebbgc_ref_t r)
{
	return ebbgc_ptr(r);
}

static ebbgc_ref_t *slot_of(struct user *u, size_t i)
{
	return &((struct refs *)ebbgc_ptr(u->root))->slots[i];
}

static ebbgc_ref_t load(struct user *u, size_t i)
{
	return ebbgc_load(u->m, u->root, slot_of(u, i));
}

static void fill(struct user *u, size_t count)
{
	u->root = ebbgc_alloc_length(u->m, u->refs, count);
	for (size_t i = 0; i < count; i++) {
		ebbgc_ref_t r = ebbgc_alloc(u->m, u->node);

		assert_false(ebbgc_is_null(r));
		for (size_t k = 0; k < 6; k++)
			node_of(r)->value[k] = i * 6 + k;
		if (i)
			ebbgc_store(u->m, r, &node_of(r)->next, load(u, i - 1));
		ebbgc_store(u->m, u->root, slot_of(u, i), r);
	}
}

static void check(struct user *u, ebbgc_ref_t r, size_t i)
{
	(void)u;
	for (size_t k = 0; k < 6; k++)
		assert_int_equal(node_of(r)->value[k], i * 6 + k);
}

static struct ebbgc_stats stats_of(struct user *u)
{
	struct ebbgc_stats s;

	ebbgc_stats_get(u->heap, &s, sizeof(s));
	return s;
}

static void all_leaves_and_comes_back(void **state)
{
	const size_t few = at == world.local ? NODES / 4 : 500;
	struct user u;

	(void)state;
	user_open(&u, true, 32 << 20);
	fill(&u, NODES / 4);
	for (int round = 0; round < 3; round++) {
		ebbgc_ref_t r;

		assert_int_equal(ebbgc_far_evict(u.m), 0);
		assert_true(stats_of(&u).far_bytes >= NODES / 4 * sizeof(struct node));
		/* Every third of some by the table, then all of these by the list. */
		for (size_t i = NODES / 4 - few; i < NODES / 4; i += 3)
			check(&u, load(&u, i), i);
		r = load(&u, NODES / 4 - 1);
		for (size_t i = NODES / 4; i-- > NODES / 4 - few;
		     r = ebbgc_load(u.m, r, &node_of(r)->next))
			check(&u, r, i);
		assert_int_equal(ebbgc_collect(u.m), 0);
	}
	assert_int_equal(stats_of(&u).check_failures, 0);
	assert_int_equal(stats_of(&u).far_failures, 0);
	user_close(&u);
}

/* More than local memory and, with the heap's garbage, more than the pool has at a time. */
static void the_budget_decides(void **state)
{
	struct user u;

	(void)state;
	user_open(&u, false, 2 << 20);
	fill(&u, NODES);
	/* Over TCP each is a round trip. */
	for (size_t i = 0; i < (at == world.local ? 3 * NODES : 2000); i++) {
		size_t n = i * 7919 % NODES;

		check(&u, load(&u, n), n);
		ebbgc_poll(u.m);
	}
	assert_true(stats_of(&u).fetched_objects > (at == world.local ? NODES : 1000));
	assert_int_equal(stats_of(&u).far_failures, 0);
	user_close(&u);
}

/* Ends the donor's thread: for the library as if the donor hung, or had exited. */
static void donor_stop(void)
{
	__atomic_store_n(&world.stop, true, __ATOMIC_RELEASE);
	eventfd_write(world.l->wake_fd, 1);
	pthread_join(world.thread, NULL);
	world.threaded = false;
}

static void the_donor_dies(void **state)
{
	struct user u;
	size_t i = 0;

	(void)state;
	user_open(&u, false, 32 << 20);
	fill(&u, NODES / 4);
	assert_int_equal(ebbgc_far_evict(u.m), 0);
	check(&u, load(&u, 7), 7);
	donor_stop();
	if (!setjmp(u.out)) {
		load(&u, 8);
		fail_msg("a read of a dead donor returned");
	}
	assert_int_equal(u.error, -ETIMEDOUT);
	/* At once, from here on. */
	u.error = 0;
	if (!setjmp(u.out))
		load(&u, 9);
	assert_int_equal(u.error, -ETIMEDOUT);
	/* What is in memory can be used, and the rest of the heap goes on. */
	check(&u, load(&u, 7), 7);
	for (i = 0; i < 1000; i++)
		assert_false(ebbgc_is_null(ebbgc_alloc(u.m, u.node)));
	assert_int_equal(ebbgc_collect(u.m), 0);
	assert_true(stats_of(&u).far_failures >= 2);
	user_close(&u);
	/* The donor frees the pool as it ends. */
}

static uint64_t ns_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Claims nothing about time; prints what EBB_TEST_TIMES asks for. */
static void times(void **state)
{
	enum { LOADS = NODES / 4 };
	const bool measures = getenv("EBB_TEST_TIMES");
	const int rounds = measures ? 50 : 1;
	/* Over TCP each is a round trip. */
	const size_t fetches = measures ? LOADS : 200;
	static uint64_t took[LOADS];
	uint64_t begin, best[3] = { UINT64_MAX, UINT64_MAX, UINT64_MAX };
	struct user u;

	(void)state;
	user_open(&u, false, 32 << 20);
	fill(&u, LOADS);
	for (int far = 0; far < 2; far++) {
		for (int round = 0; round < rounds; round++) {
			begin = ns_now();
			for (size_t i = 0; i < LOADS; i++)
				__asm__ volatile("" ::"r"(load(&u, i).bits));
			begin = ns_now() - begin;
			best[far] = begin < best[far] ? begin : best[far];
		}
		if (far)
			break;
		/* What is loaded returns; the regions that it has left are EMPTY, or AWAY. */
		assert_int_equal(ebbgc_far_evict(u.m), 0);
		for (size_t i = 0; i < fetches; i++) {
			size_t n = i * 7919 % LOADS;

			begin = ns_now();
			load(&u, n);
			took[i] = ns_now() - begin;
		}
	}
	qsort(took, fetches, sizeof(*took), by_value);
	if (measures)
		printf("load of an array: %.2f ns, with something far %.2f ns; fetch: median %llu "
		       "ns, p10 %llu, p90 %llu, p99 %llu\n",
		       (double)best[0] / LOADS, (double)best[1] / LOADS,
		       (unsigned long long)took[fetches / 2],
		       (unsigned long long)took[fetches / 10],
		       (unsigned long long)took[fetches * 9 / 10],
		       (unsigned long long)took[fetches * 99 / 100]);
	assert_true(stats_of(&u).fetched_objects >= fetches);
	user_close(&u);
}

static int end(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	int r = -EBUSY;

	for (int i = 0; world.threaded && i < 6000 && r == -EBUSY; i++) {
		r = ebbfar_destroy(&o);
		usleep(r == -EBUSY ? 10000 : 0);
	}
	return end_far_donor(state);
}

#define BOTH(test) \
	{ #test ", mapped", test, by_mapping, end, NULL }, \
	{ #test ", TCP", test, by_tcp, end, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BOTH(all_leaves_and_comes_back),
		BOTH(the_budget_decides),
		{ "the_donor_dies, TCP", the_donor_dies, by_tcp, end_far_donor, NULL },
		BOTH(times),
	};

	alarm(300);
	(void)open_at;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
