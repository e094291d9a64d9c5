// SPDX-License-Identifier: GPL-2.0-or-later
/* Some seconds of `make fuzz-gc`, and the scheduler itself. */
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/fuzz/gc.h"
#include "gc_test.h"

#define SEEDS 200		/* in which a bug of two steps has to be found */

static void graphs(void **unused)
{
	time_t end = time(NULL) + (getenv("EBB_TEST_LONG") ? 4 : 2);

	for (uint64_t seed = 1; time(NULL) < end; seed++) {
		struct fuzz_gc_result r;
		int status = fuzz_apart(fuzz_gc, seed, &r);

		if (status)
			fail_msg("schedule %llu, %s: status %x; again: make fuzz-gc, then "
				 "build/fuzz/gc_plain 0 %llu", (unsigned long long)seed,
				 fuzz_gc_options(seed), (unsigned int)status,
				 (unsigned long long)seed);
		assert_true(r.cycles > 3);
	}
}

static void same_seed_same_schedule(void **unused)
{
	for (uint64_t seed = 1; seed < (getenv("EBB_TEST_LONG") ? 12 : 5); seed++) {
		struct fuzz_gc_result first, second, other;

		assert_int_equal(fuzz_apart(fuzz_gc, seed, &first), 0);
		assert_int_equal(fuzz_apart(fuzz_gc, seed, &second), 0);
		assert_int_equal(fuzz_apart(fuzz_gc, seed + FUZZ_GC_KINDS, &other), 0);
		assert_int_equal(first.digest, second.digest);
		assert_int_not_equal(first.digest, other.digest);
	}
}

static uint64_t counter;

static void *count(void *unused)
{
	uint64_t was = __atomic_load_n(&counter, __ATOMIC_RELAXED);

	__atomic_store_n(&counter, was + 1, __ATOMIC_RELAXED);
	return NULL;
}

static pthread_mutex_t locks[2];

static void *lock_both(void *first)
{
	pthread_mutex_t *one = first, *other = one == locks ? locks + 1 : locks;

	pthread_mutex_lock(one);
	pthread_mutex_lock(other);
	pthread_mutex_unlock(other);
	pthread_mutex_unlock(one);
	return NULL;
}

static void both(uint64_t seed, void *(*fn)(void *), void *a, void *b)
{
	pthread_t threads[2];

	schedule_begin(seed);
	pthread_create(&threads[0], NULL, fn, a);
	pthread_create(&threads[1], NULL, fn, b);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	schedule_end();
}

static void counts(uint64_t seed, struct fuzz_gc_result *r)
{
	counter = 0;
	both(seed, count, NULL, NULL);
	r->cycles = counter;
}

static void locking(uint64_t seed, struct fuzz_gc_result *unused)
{
	/* It is meant to abort. */
	prctl(PR_SET_DUMPABLE, 0);
	pthread_mutex_init(&locks[0], NULL);
	pthread_mutex_init(&locks[1], NULL);
	both(seed, lock_both, &locks[0], &locks[1]);
}

static void finds_what_it_is_to_find(void **unused)
{
	unsigned int lost = 0, right = 0, dead = 0, alive = 0;

	for (uint64_t seed = 0; seed < SEEDS; seed++) {
		struct fuzz_gc_result r;
		int status;

		assert_int_equal(fuzz_apart(counts, seed, &r), 0);
		assert_in_range(r.cycles, 1, 2);
		lost += r.cycles == 1;
		right += r.cycles == 2;
		status = fuzz_apart(locking, seed, &r);
		dead += WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
		alive += !status;
	}
	assert_true(lost && right);
	assert_true(dead && alive);
	assert_int_equal(dead + alive, SEEDS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(finds_what_it_is_to_find),
		cmocka_unit_test(same_seed_same_schedule),
		cmocka_unit_test(graphs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
