// SPDX-License-Identifier: GPL-2.0-or-later
/* Budgets, on counters of the test's own, and their table under two threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail
#include <bpf/bpf.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ebbd/prefetch/budget.h"

#define LIMIT (64ULL << 20)
#define ROOM (LIMIT / 4096 / 8)
#define SECOND 1000000000ULL
#define MANY 64

static const struct executor_config config = {
	.batch = 64, .headroom = 8, .inflight = 128, .beside = 16, .expire_ns = 10 * SECOND,
};
static struct ebb_active active;
static const struct plane plane = { .cpus = 1, .active = &active };
static struct ebb_counters counters;
static atomic_uint reads;
static char directory[] = "/tmp/ebb-test-budget-of-cgroups.XXXXXX";

int bpf_map_lookup_elem(int fd, const void *key, void *value)
{
	atomic_fetch_add(&reads, 1);
	memcpy(value, &counters, sizeof(counters));
	return 0;
}

static void cgroup_of(uint64_t id, struct cgroup_ref *c)
{
	memset(c, 0, sizeof(*c));
	snprintf(c->path, sizeof(c->path), "%s", directory);
	c->id = id;
	c->v2 = true;
}

/* 0 = none. */
static int limit_to(uint64_t bytes)
{
	char path[128];
	FILE *f;

	snprintf(path, sizeof(path), "%s/memory.max", directory);
	f = fopen(path, "w");
	if (!f || (bytes ? fprintf(f, "%llu\n", (unsigned long long)bytes) : fputs("max\n", f)) < 0)
		return -1;
	return fclose(f);
}

static struct budget *budget_of(struct budget_table *t, uint64_t id)
{
	static struct cgroup_ref c;

	cgroup_of(id, &c);
	return budget_new(t, &c);
}

struct world {
	struct budget_table *table;
	struct budget *own[2], *held[2];
};

/* Two cgroups, 1 and 2, each held once. */
static void begin(struct world *w)
{
	memset(&counters, 0, sizeof(counters));
	w->table = budget_table_new(&plane, &config);
	for (int i = 0; i < 2; i++)
		w->own[i] = budget_of(w->table, 2 - (uint64_t)i);
	assert_int_equal(budget_publish(w->table, w->own, 2), 0);
	for (int i = 0; i < 2; i++)
		w->held[i] = budget_hold(w->table, 1 + (uint64_t)i);
	assert_ptr_equal(w->held[0], w->own[1]);
	assert_null(budget_hold(w->table, 3));
	atomic_store(&reads, 0);
}

static void end(struct world *w)
{
	for (int i = 0; i < 2; i++) {
		budget_release(w->held[i]);
		budget_put(&w->own[i]);
	}
	budget_table_free(&w->table);
}

static void the_limit_bounds_what_is_outstanding(void **unused)
{
	struct world w;
	struct budget *b;

	begin(&w);
	b = w.held[0];
	assert_int_equal(budget_limit(b), LIMIT);
	assert_int_equal(budget_room(b), ROOM);
	assert_int_equal(budget_take(b, ROOM - 8, SECOND), ROOM - 8);
	budget_settle(b, ROOM - 8);
	assert_int_equal(budget_take(b, 8, SECOND), 8);
	assert_int_equal(atomic_load(&reads), 0);
	/* Short of room it looks at the counters, */
	assert_int_equal(budget_take(b, 64, SECOND), 8);
	counters.hits = 30;
	counters.late = 20;
	counters.wasted = 6;
	assert_int_equal(budget_take(b, 64, SECOND), 64);
	assert_int_equal(atomic_load(&reads), 2);
	/* and remembers them. */
	assert_int_equal(budget_take(b, 64, SECOND), 64);
	assert_int_equal(atomic_load(&reads), 2);
	assert_int_equal(budget_outstanding(b, &counters), ROOM - 8 - 56);
	/* The other's is its own. */
	assert_int_equal(budget_take(w.held[1], ROOM, SECOND), ROOM);
	end(&w);
}

static void lost_pages_are_wasted_and_prefetched_again(void **unused)
{
	struct world w;

	begin(&w);
	budget_settle(w.held[0], 100);
	budget_predicted(w.held[0], EBB_SOURCE_REPLAY, 100);
	budget_lost(w.held[0], EBB_SOURCE_REPLAY, 10);
	assert_int_equal(budget_source_pages(w.held[0], EBB_SOURCE_REPLAY), 110);
	assert_int_equal(budget_source_expired(w.held[0], EBB_SOURCE_REPLAY), 10);
	assert_int_equal(budget_source_pages(w.held[0], EBB_SOURCE_STREAMS), 0);
	assert_int_equal(budget_prefetched(w.held[0]), 110);
	assert_int_equal(budget_expired(w.held[0]), 10);
	assert_int_equal(budget_outstanding(w.held[0], &counters), 100);
	end(&w);
}

/* Returns whether the next tick looks at the cgroup @id; clears its bit, as a tick does. */
static bool told(uint64_t id)
{
	uint32_t bit = ebb_active_bit(id);
	uint64_t *word = (uint64_t *)&active.counted[bit / 64], mask = 1ULL << (bit & 63);
	bool is = *word & mask;

	*word &= ~mask;
	return is;
}

/* A call may wait for a device until its cgroup is idle, of which no counter changes. */
static void a_tick_learns_what_the_executor_counts(void **unused)
{
	struct budget_sweep *s;
	struct world w;

	begin(&w);
	told(1);
	budget_take(w.held[0], 8, SECOND);
	assert_false(told(1));
	budget_settle(w.held[0], 8);
	assert_true(told(1));
	budget_lost(w.held[0], EBB_SOURCE_NEAR, 4);
	assert_true(told(1));
	s = budget_sweep_begin(w.table, 2 * SECOND);
	assert_true(budget_sweep_keep(s, 1, SECOND));
	assert_false(told(1));
	budget_sweep_expired(s, 1, EBB_SOURCE_NEAR);
	assert_true(told(1));
	budget_sweep_end(s);
	assert_false(told(1));
	assert_false(told(2));
	end(&w);
}

/* A program that uses half of what is prefetched is not throttled, and leaves the rest behind. */
static void idle_pages_of_one_leave_entries_for_others(void **unused)
{
	uint32_t most = EBB_MAX_PREFETCHED / 2, taken;
	struct budget_sweep *s;
	struct world w;

	limit_to(0);
	begin(&w);
	assert_int_equal(budget_take(w.held[0], most + 1, SECOND), most);
	budget_settle(w.held[0], 30000);
	s = budget_sweep_begin(w.table, 10 * SECOND);
	for (int i = 0; i < 30000; i++)
		assert_true(budget_sweep_keep(s, 1, SECOND));
	budget_sweep_end(s);
	assert_int_equal(budget_take(w.held[0], 10000, SECOND), EBB_MAX_PREFETCHED - 60000);
	budget_settle(w.held[0], EBB_MAX_PREFETCHED - 60000);
	/* The other gets half of what the first one left. */
	taken = budget_take(w.held[1], most, 2 * SECOND);
	assert_int_equal(taken, 30000);
	budget_settle(w.held[1], 15000);
	assert_int_equal(budget_take(w.held[1], most, 3 * SECOND), 0);
	assert_int_equal(budget_take(w.held[0], 64, 3 * SECOND), 0);
	/* Used pages free their entries. */
	counters.hits = 10000;
	assert_int_equal(budget_take(w.held[1], 64, 4 * SECOND), 64);
	assert_int_equal(budget_pages_cut(w.held[0]), 0);
	budget_cut(w.held[0], 64);
	assert_int_equal(budget_pages_cut(w.held[0]), 64);
	end(&w);
	limit_to(LIMIT);
}

static void a_sweep_finds_idle_and_expired_pages(void **unused)
{
	struct budget_sweep *s;
	struct world w;

	begin(&w);
	budget_settle(w.held[0], ROOM);
	assert_int_equal(budget_take(w.held[0], 64, SECOND), 0);
	s = budget_sweep_begin(w.table, 10 * SECOND);
	for (int i = 0; i < 40; i++)
		assert_true(budget_sweep_keep(s, 1, 9 * SECOND));
	assert_true(budget_sweep_keep(s, 1, 10 * SECOND));
	assert_true(budget_sweep_keep(s, 3, 9 * SECOND));
	for (int i = 0; i < 5; i++)
		budget_sweep_expired(s, 1, EBB_SOURCE_NEAR);
	budget_sweep_expired(s, 3, EBB_SOURCE_NEAR);
	budget_sweep_end(s);
	assert_int_equal(budget_expired(w.held[0]), 5);
	assert_int_equal(budget_source_expired(w.held[0], EBB_SOURCE_NEAR), 5);
	assert_int_equal(budget_source_expired(w.held[0], EBB_SOURCE_OTHER), 0);
	assert_int_equal(budget_take(w.held[0], 64, SECOND), 45);
	/* What one sweep found idle counts until the next one. */
	budget_sweep_end(budget_sweep_begin(w.table, 11 * SECOND));
	assert_int_equal(budget_take(w.held[0], 64, SECOND), 5);
	end(&w);
}

static void few_used_pages_throttle(void **unused)
{
	struct budget_sweep *s;
	uint32_t passed = 0;
	struct world w;

	begin(&w);
	assert_true(budget_passes(w.held[0]));
	for (uint64_t tick = 1; tick <= 20; tick++) {
		counters.hits += 1000;
		counters.wasted += 9000;
		budget_tick(w.own[1], &counters, tick * SECOND / 10);
	}
	for (int i = 0; i < 160; i++)
		passed += budget_passes(w.held[0]);
	assert_int_equal(passed, 10);
	assert_true(budget_passes(w.held[1]));
	/* Its old pages are forgotten, another's are not. */
	s = budget_sweep_begin(w.table, 100 * SECOND);
	assert_true(budget_timely_ns(w.held[0]));
	assert_false(budget_sweep_keep(s, 1, 1));
	assert_true(budget_sweep_keep(s, 2, 1));
	budget_sweep_end(s);
	end(&w);
}

static void misses_that_outnumber_hits_wait(void **unused)
{
	struct world w;

	begin(&w);
	assert_false(budget_others_wait(w.held[1]));
	/* Those of a trial do not count. */
	budget_trial(w.own[1]);
	for (uint64_t misses = 100; misses <= 200; misses += 100) {
		counters.misses = misses;
		budget_tick(w.own[1], &counters, SECOND);
		assert_false(budget_others_wait(w.held[1]));
	}
	counters.misses = 1000;
	budget_tick(w.own[1], &counters, SECOND);
	assert_true(budget_others_wait(w.held[1]));
	/* Its own misses pace no program. */
	assert_false(budget_others_wait(w.held[0]));
	budget_tick(w.own[0], &counters, SECOND);
	assert_true(budget_others_wait(w.held[0]));
	assert_true(budget_others_wait(w.held[1]));
	/* It is detached. */
	assert_int_equal(budget_publish(w.table, &w.own[0], 1), 0);
	assert_null(budget_hold(w.table, 1));
	assert_false(budget_others_wait(w.held[1]));
	end(&w);
}

/* Weights of a user's cgroup are among its siblings. */
static void root_gives_weights(void **unused)
{
	static const struct { const char *text; uint32_t weight; } is[] = {
		{ "default 300\n", 300 }, { "default 1\n8:16 200\n", 1 }, { "default 0\n", 100 },
		{ "default 10001\n", 100 }, { "none\n", 100 }, { "", 100 },
	};
	struct cgroup_ref c;
	struct world w;
	char path[128];
	FILE *f;

	begin(&w);
	cgroup_of(1, &c);
	assert_int_equal(budget_weight(w.held[0]), 100);
	snprintf(path, sizeof(path), "%s/io.weight", directory);
	for (size_t i = 0; i < sizeof(is) / sizeof(*is); i++) {
		f = fopen(path, "w");
		assert_non_null(f);
		fputs(is[i].text, f);
		fclose(f);
		budget_read_limit(w.own[1], &c);
		assert_int_equal(budget_weight(w.held[0]), geteuid() ? 100 : is[i].weight);
	}
	if (!geteuid()) {
		f = fopen(path, "w");
		fputs("default 300\n", f);
		fclose(f);
		assert_int_equal(chown(path, 1000, 1000), 0);
		budget_read_limit(w.own[1], &c);
		assert_int_equal(budget_weight(w.held[0]), 100);
	}
	unlink(path);
	end(&w);
}

struct race {
	struct budget_table *table;
	atomic_bool stop;
	_Atomic uint64_t found;
};

static void *executor(void *data)
{
	struct race *r = data;

	for (uint64_t i = 0; !atomic_load(&r->stop); i++) {
		struct budget *b = budget_hold(r->table, i % MANY);
		struct budget_sweep *s;

		if (b && budget_passes(b)) {
			budget_settle(b, budget_take(b, 8, SECOND));
			budget_detect(b);
			r->found++;
		}
		if (i % 64 == 0) {
			s = budget_sweep_begin(r->table, i);
			budget_sweep_keep(s, i % MANY, i);
			budget_sweep_expired(s, i % MANY, EBB_SOURCE_NEAR);
			budget_sweep_end(s);
		}
		budget_release(b);
	}
	return NULL;
}

/* Budgets come and go while another thread works with them; to be run with ThreadSanitizer too. */
static void the_table_changes_under_the_executor(void **unused)
{
	struct race r = { .table = budget_table_new(&plane, &config) };
	struct budget *b[MANY];
	pthread_t thread;
	uint64_t used = 0;
	uint32_t n = 0;

	memset(&counters, 0, sizeof(counters));
	counters.hits = 1 << 30;
	assert_int_equal(pthread_create(&thread, NULL, executor, &r), 0);
	/* On a busy machine the executor may have yet to begin. */
	for (int i = 0; i < 3000 || !r.found; i++) {
		if (n == MANY || (n && i % 3 == 0)) {
			struct budget *gone = b[--n];

			budget_set_events(gone, NULL);
			budget_quiesce(r.table);
			assert_int_equal(budget_publish(r.table, b, n), 0);
			used += budget_prefetched(gone);
			budget_put(&gone);
		} else {
			b[n] = budget_of(r.table, n);
			n++;
			assert_int_equal(budget_publish(r.table, b, n), 0);
		}
		for (uint32_t k = 0; k < n; k++) {
			budget_tick(b[k], &counters, (uint64_t)i);
			used += budget_outstanding(b[k], &counters);
		}
	}
	atomic_store(&r.stop, true);
	pthread_join(thread, NULL);
	/* The first ones may have taken all entries of the set. */
	while (n) {
		used += budget_prefetched(b[--n]);
		budget_put(&b[n]);
	}
	budget_table_free(&r.table);
	assert_true(r.found > 0 && used > 0);
}

static int make_cgroup(void **unused)
{
	return mkdtemp(directory) ? limit_to(LIMIT) : -1;
}

static int remove_cgroup(void **unused)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/memory.max", directory);
	return unlink(path) || rmdir(directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_limit_bounds_what_is_outstanding),
		cmocka_unit_test(lost_pages_are_wasted_and_prefetched_again),
		cmocka_unit_test(a_tick_learns_what_the_executor_counts),
		cmocka_unit_test(idle_pages_of_one_leave_entries_for_others),
		cmocka_unit_test(a_sweep_finds_idle_and_expired_pages),
		cmocka_unit_test(few_used_pages_throttle),
		cmocka_unit_test(misses_that_outnumber_hits_wait),
		cmocka_unit_test(root_gives_weights),
		cmocka_unit_test(the_table_changes_under_the_executor),
	};

	return cmocka_run_group_tests(tests, make_cgroup, remove_cgroup);
}
