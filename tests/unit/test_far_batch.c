// SPDX-License-Identifier: GPL-2.0-or-later
/* Batches of libebbfar, over good links and over links that are cut. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/clock.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_proxy.h"

enum { MANY = 300 };

/* The ABI: programs have arrays of these. */
_Static_assert(sizeof(struct ebbfar_request) == 112, "of release 0.2");

static struct ebbfar_request requests[MANY];

/* Waits for @n requests; each of them completes once, with @result. */
static void all_complete(ebbfar_t *far, int n, int result)
{
	struct ebbfar_request *q;

	for (int i = 0; i < n; i++) {
		assert_int_equal(ebbfar_complete(far, 20000, &q), 0);
		assert_in_range(q - requests, 0, MANY - 1);
		assert_ptr_equal(q->data, q);
		assert_int_equal(q->result, result);
		q->data = NULL;
	}
	assert_int_equal(ebbfar_complete(far, 0, &q), -ENOENT);
}

static struct ebbfar_request *prepare(int i, uint32_t op, const struct ebbfar_extent *x)
{
	requests[i] = (struct ebbfar_request){ .op = op, .data = &requests[i] };
	if (x)
		requests[i].extent = *x;
	return &requests[i];
}

/* More requests than may be without a reply: in the order of submission. */
static void in_order(void **state)
{
	static uint8_t bytes[600000], back[600000];
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x, big;
	uint64_t zero = 0;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_alloc(far, sizeof(bytes), &big), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &zero, 8), 0);
	for (int i = 0; i < MANY; i++)
		prepare(i, EBBFAR_ADD, &x)->desired = 2;
	assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
	all_complete(far, MANY, 0);
	for (int i = 0; i < MANY; i++)
		assert_int_equal(requests[i].old, 2 * i);
	memset(bytes, 7, sizeof(bytes));
	*prepare(0, EBBFAR_WRITE, &big) = (struct ebbfar_request){
		.op = EBBFAR_WRITE, .extent = big, .memory = bytes, .size = sizeof(bytes),
		.data = &requests[0] };
	*prepare(1, EBBFAR_READ, &big) = (struct ebbfar_request){
		.op = EBBFAR_READ, .extent = big, .memory = back, .size = sizeof(back),
		.data = &requests[1] };
	prepare(2, EBBFAR_CAS, &x)->expect = 2 * MANY;
	requests[2].desired = 5;
	assert_int_equal(ebbfar_submit(far, requests, 3), 0);
	all_complete(far, 3, 0);
	assert_int_equal(requests[2].old, 2 * MANY);
	assert_memory_equal(bytes, back, sizeof(bytes));
	ebbfar_close(far);
}

static void allocations(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x[MANY];

	for (int i = 0; i < MANY; i++)
		prepare(i, EBBFAR_ALLOC, NULL)->size = 4096u << i % 3;
	assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
	all_complete(far, MANY, 0);
	for (int i = 0; i < MANY; i++) {
		x[i] = requests[i].extent;
		for (int k = 0; k < i; k++)
			assert_int_not_equal(x[k].place, x[i].place);
		prepare(i, EBBFAR_FREE, &x[i]);
	}
	assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
	all_complete(far, MANY, 0);
	for (int i = 0; i < MANY; i++)
		prepare(i, EBBFAR_FREE, &x[i]);
	assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
	all_complete(far, MANY, -ESTALE);
	ebbfar_close(far);
}

/* A request that cannot be fails alone; one without an operation is not submitted. */
static void failures(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_request *q;
	struct ebbfar_extent x;
	uint64_t word = 3, zero = 0;

	assert_int_equal(ebbfar_complete(far, 0, &q), -ENOENT);
	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &zero, 8), 0);
	prepare(0, EBBFAR_ADD, &x)->offset = 4;
	prepare(1, EBBFAR_READ, &x)->offset = 4096;
	requests[1].memory = &word;
	requests[1].size = 1;
	prepare(2, EBBFAR_ADD, &x)->desired = 9;
	prepare(3, EBBFAR_FREE + 1, &x);
	assert_int_equal(ebbfar_submit(far, requests, 4), -EINVAL);
	assert_int_equal(ebbfar_submit(far, requests, 3), 0);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(ebbfar_complete(far, 5000, &q), 0);
		assert_int_equal(q->result, q == &requests[2] ? 0 : -EINVAL);
	}
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
	assert_int_equal(word, 9);
	ebbfar_close(far);
}

/*
 * READs whose replies are received where they belong, among refusals, words and messages, which
 * come in other places than they seem to.
 */
static void reads_among_others(void **state)
{
	enum { SIZE = 70000, READS = 40 };
	static uint8_t bytes[SIZE], back[READS][SIZE];
	ebbfar_t *far = open_at(at, EBBFAR_CREATE), *other = open_at(at, 0);
	struct ebbfar_extent x, theirs;
	uint32_t from;
	uint64_t word = 0;

	for (int i = 0; i < SIZE; i++)
		bytes[i] = (uint8_t)(i * 37 + (i >> 8));
	assert_int_equal(ebbfar_alloc(far, SIZE, &x), 0);
	assert_int_equal(ebbfar_alloc(other, SIZE, &theirs), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, bytes, SIZE), 0);
	for (int round = 0; round < 5; round++) {
		struct ebbfar_request *q;

		memset(back, 0, sizeof(back));
		for (int i = 0; i < READS; i++) {
			prepare(i, i % 9 == 8 ? EBBFAR_ADD : EBBFAR_READ,
				i % 4 == 3 ? &theirs : &x)->memory = back[i];
			requests[i].offset = i % 9 == 8 ? SIZE + 104 - SIZE % 8 : (unsigned)i;
			requests[i].size = i % 3 ? (unsigned)(SIZE / 2 + i) : (unsigned)i % 5;
		}
		assert_int_equal(ebbfar_submit(far, requests, READS / 2), 0);
		assert_int_equal(ebbfar_notify(other, ebbfar_member(far), 9), 0);
		assert_int_equal(ebbfar_submit(far, requests + READS / 2, READS / 2), 0);
		for (int i = 0; i < READS; i++)
			assert_int_equal(ebbfar_complete(far, 20000, &q), 0);
		for (int i = 0; i < READS; i++) {
			q = &requests[i];
			if (i % 4 == 3 && (i % 9 == 8 || q->size)) {
				assert_int_equal(q->result, -EACCES);
				continue;
			}
			assert_int_equal(q->result, 0);
			if (q->op == EBBFAR_READ)
				assert_memory_equal(back[i], bytes + i, q->size);
		}
		assert_int_equal(ebbfar_wait(far, 5000, &from, &word), 0);
		assert_int_equal(word, 9);
	}
	ebbfar_close(other);
	ebbfar_close(far);
}

/* Each request takes effect once, wherever the link is cut. */
static void cuts(void **state)
{
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	uint64_t word = 0;

	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, &word, 8), 0);
	for (int round = 0; round < 6; round++) {
		for (int i = 0; i < MANY; i++)
			prepare(i, EBBFAR_ADD, &x)->desired = 1;
		set_link(round % 2 ? LINK_LOSES_REPLIES : LINK_LOSES_REQUESTS);
		assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
		usleep(1000 * (unsigned)round);
		set_link(LINK_CUT);
		all_complete(far, MANY, 0);
		for (int i = 0; i < MANY; i++)
			assert_int_equal(requests[i].old, round * MANY + i);
	}
	assert_int_equal(ebbfar_read(far, &x, 0, &word, 8), 0);
	assert_int_equal(word, 6 * MANY);
	assert_true(proxy.cuts >= 6);
	ebbfar_close(far);
}

/* Words of an extent, as requests in their order leave them; and what each finds. */
static uint64_t model[64], wanted[MANY], written[MANY];

static void prepare_any(int i, const struct ebbfar_extent *x, uint64_t *seed)
{
	static const uint32_t ops[] = { EBBFAR_WRITE, EBBFAR_ADD, EBBFAR_CAS, EBBFAR_READ };
	struct ebbfar_request *q = prepare(i, ops[draw_below(seed, 4)], x);
	uint64_t *word = &model[draw_below(seed, 64)];
	static uint64_t read;

	q->offset = 8 * (uint64_t)(word - model);
	q->desired = draw32(seed) % 5;
	q->expect = draw_below(seed, 2) ? *word : 3;
	q->memory = q->op == EBBFAR_READ ? &read : &written[i];
	q->size = 8;
	written[i] = q->desired;
	wanted[i] = *word;
	if (q->op == EBBFAR_WRITE || (q->op == EBBFAR_CAS && *word == q->expect))
		*word = q->desired;
	else if (q->op == EBBFAR_ADD)
		*word += q->desired;
}

/* Requests of all kinds find what those before them have left, wherever the link is cut. */
static void order_over_cuts(void **state)
{
	static const enum link losses[] = { LINK_LOSES_REPLIES, LINK_LOSES_REQUESTS, LINK_CUT };
	ebbfar_t *far = open_at(at, EBBFAR_CREATE);
	uint64_t seed = 9, words[64];
	struct ebbfar_extent x;

	memset(model, 0, sizeof(model));
	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	assert_int_equal(ebbfar_write(far, &x, 0, model, sizeof(model)), 0);
	for (int round = 0; round < 60; round++) {
		for (int i = 0; i < MANY; i++)
			prepare_any(i, &x, &seed);
		set_link(losses[draw_below(&seed, 3)]);
		assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
		usleep(draw_below(&seed, 2000));
		set_link(losses[draw_below(&seed, 3)]);
		all_complete(far, MANY, 0);
		for (int i = 0; i < MANY; i++)
			if (requests[i].op == EBBFAR_CAS || requests[i].op == EBBFAR_ADD)
				assert_int_equal(requests[i].old, wanted[i]);
	}
	set_link(LINK_GOOD);
	assert_int_equal(ebbfar_read(far, &x, 0, words, sizeof(words)), 0);
	assert_memory_equal(words, model, sizeof(words));
	assert_true(proxy.cuts >= 60);
	ebbfar_close(far);
}

/* When the handle fails for good, so do all requests. */
static void lost(void **state)
{
	struct ebbfar_options o = options(at, EBBFAR_CREATE);
	struct ebbfar_extent x;
	ebbfar_t *far;

	o.timeout_ms = o.resume_ms = 1000;
	far = open_with(o);
	assert_int_equal(ebbfar_alloc(far, 4096, &x), 0);
	set_link(LINK_SILENT);
	for (int i = 0; i < MANY; i++)
		prepare(i, i % 100 == 99 ? EBBFAR_FREE : EBBFAR_ADD, &x);
	assert_int_equal(ebbfar_submit(far, requests, MANY), 0);
	all_complete(far, MANY, -ETIMEDOUT);
	ebbfar_close(far);
	set_link(LINK_GOOD);
}

int main(void)
{
#define BOTH(f) \
	{ #f " by tcp", f, by_tcp, end_far_donor, NULL }, \
	{ #f " by mapping", f, by_mapping, end_far_donor, NULL }
	const struct CMUnitTest tests[] = {
		BOTH(in_order),
		BOTH(allocations),
		BOTH(failures),
		{ "reads_among_others by tcp", reads_among_others, by_tcp, end_far_donor, NULL },
		cmocka_unit_test_setup_teardown(cuts, by_proxy, end_by_proxy),
		cmocka_unit_test_setup_teardown(order_over_cuts, by_proxy, end_by_proxy),
		cmocka_unit_test_setup_teardown(lost, by_proxy, end_by_proxy),
	};

	return cmocka_run_group_tests_name("far batches", tests, NULL, NULL);
}
