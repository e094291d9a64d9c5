// SPDX-License-Identifier: GPL-2.0-or-later
/* run=daemon: a policy's native build, called as ebbd calls it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "policies/stride.bpf.c"
#include "ebbd/prefetch/native.h"
#include "ebbd/prefetch/resident.h"

struct world {
	struct residents *r;
	struct native native;
	struct policy policy;
	struct attachment t;
	struct ebb_list_request out[RESIDENT_REQUESTS];
};

static struct world *world_new(void)
{
	struct world *w = calloc(1, sizeof(*w));

	w->r = residents_new();
	w->native = (struct native){ .policy = &stride_policy, .serial = 1 };
	w->policy.native = &w->native;
	w->t.policy = &w->policy;
	w->t.place = RUN_DAEMON;
	ebb_policy_defaults(&stride_policy, &w->t.params);
	return w;
}

static void world_free(struct world *w)
{
	residents_free(&w->r);
	free(w);
}

static uint32_t fault(struct world *w, uint32_t tgid, uint32_t exec, uint64_t vpn)
{
	struct ebb_fault f = { .vpn = vpn, .tgid = tgid, .tid = tgid, .exec = exec, .owner = 7 };

	return resident_fault(w->r, &w->t, &f, w->out);
}

static void requests_come_out(void **unused)
{
	struct world *w = world_new();

	assert_int_equal(fault(w, 100, 1, 1000), 0);
	assert_int_equal(fault(w, 100, 1, 1005), 0);
	assert_int_equal(fault(w, 100, 1, 1010), 1);
	assert_int_equal(w->out[0].head.op, EBB_OP_PREFETCH);
	assert_int_equal(w->out[0].head.first, 1015);
	assert_int_equal(w->out[0].head.stride, 5);
	assert_int_equal(w->out[0].head.tgid, 100);
	assert_int_equal(w->out[0].head.owner, 7);
	assert_int_equal(w->t.calls, 3);
	assert_int_equal(w->t.requests, 1);
	assert_int_equal(w->t.request_pages, w->out[0].head.count);
	world_free(w);
}

static void processes_do_not_see_each_other(void **unused)
{
	struct world *w = world_new();

	for (int i = 0; i < 2; i++) {
		assert_int_equal(fault(w, 100, 1, 1000 + 5 * i), 0);
		assert_int_equal(fault(w, 200, 1, 9000 + 3 * i), 0);
	}
	assert_int_equal(residents_count(w->r), 2);
	assert_int_equal(fault(w, 100, 1, 1010), 1);
	assert_int_equal(w->out[0].head.stride, 5);
	assert_int_equal(fault(w, 200, 1, 9006), 1);
	assert_int_equal(w->out[0].head.stride, 3);
	world_free(w);
}

/* Asks for the pages before and after, to come or to go, and more often than fits. */
static void list_run(struct ebb_policy_sim *sim, const struct ebb_fault *f)
{
	__u64 vpn[EBB_LIST_MAX] = { f->vpn - 1, f->vpn + 1 };

	sim->fault = *f;
	ebb_prefetch_list(&sim->fault, vpn, 2);
	ebb_cold_list(&sim->fault, vpn, 2);
	for (int i = 0; i < RESIDENT_REQUESTS; i++)
		ebb_out(&sim->fault, f->vpn, 1, 1);
}

static void lists_are_whole(void **unused)
{
	static const struct ebb_policy policy = { .info = &stride_info, .run = list_run };
	struct world *w = world_new();

	w->native.policy = &policy;
	assert_int_equal(fault(w, 100, 1, 1000), RESIDENT_REQUESTS);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(w->out[i].head.op, i ? EBB_OP_COLD_LIST : EBB_OP_LIST);
		assert_int_equal(w->out[i].head.count, 2);
		assert_int_equal(w->out[i].vpn[0], 999);
		assert_int_equal(w->out[i].vpn[1], 1001);
	}
	assert_int_equal(w->out[2].head.op, EBB_OP_OUT);
	assert_int_equal(w->t.requests, 1);
	assert_int_equal(w->t.request_pages, 2);
	world_free(w);
}

/* A new program, and new code, begin with nothing learnt. */
static void exec_and_reload_start_over(void **unused)
{
	struct world *w = world_new();

	fault(w, 100, 1, 1000);
	fault(w, 100, 1, 1005);
	assert_int_equal(fault(w, 100, 2, 1010), 0);
	fault(w, 100, 2, 1015);
	w->native.serial = 2;
	assert_int_equal(fault(w, 100, 2, 1020), 0);
	assert_int_equal(residents_count(w->r), 1);
	world_free(w);
}

static void kernel_place_and_no_code_do_nothing(void **unused)
{
	struct world *w = world_new();

	w->t.place = RUN_KERNEL;
	for (int i = 0; i < 5; i++)
		assert_int_equal(fault(w, 100, 1, 1000 + i), 0);
	w->t.place = RUN_DAEMON;
	w->policy.native = NULL;
	for (int i = 0; i < 5; i++)
		assert_int_equal(fault(w, 100, 1, 1000 + i), 0);
	assert_int_equal(w->t.calls, 0);
	world_free(w);
}

static void bounded_and_the_oldest_goes(void **unused)
{
	struct world *w = world_new();

	fault(w, 1, 1, 1000);
	for (uint32_t i = 2; i < 2 * RESIDENT_MAX; i++)
		fault(w, i, 1, 1000);
	assert_int_equal(residents_count(w->r), RESIDENT_MAX);
	/* The newest is there still. */
	fault(w, 2 * RESIDENT_MAX - 1, 1, 1001);
	assert_int_equal(fault(w, 2 * RESIDENT_MAX - 1, 1, 1002), 1);
	/* The first was forgotten. */
	fault(w, 1, 1, 1001);
	assert_int_equal(fault(w, 1, 1, 1002), 0);
	world_free(w);
}

static void the_dead_are_forgotten(void **unused)
{
	struct world *w = world_new();
	pid_t child = fork();

	if (!child)
		_exit(0);
	fault(w, (uint32_t)getpid(), 1, 1000);
	fault(w, (uint32_t)child, 1, 1000);
	assert_int_equal(residents_count(w->r), 2);
	waitpid(child, NULL, 0);
	residents_sweep(w->r);
	assert_int_equal(residents_count(w->r), 1);
	world_free(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(requests_come_out),
		cmocka_unit_test(processes_do_not_see_each_other),
		cmocka_unit_test(lists_are_whole),
		cmocka_unit_test(exec_and_reload_start_over),
		cmocka_unit_test(kernel_place_and_no_code_do_nothing),
		cmocka_unit_test(bounded_and_the_oldest_goes),
		cmocka_unit_test(the_dead_are_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
