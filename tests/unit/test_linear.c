// SPDX-License-Identifier: GPL-2.0-or-later
/* The checker of linearizability, with histories whose answer is known. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/programs/dsm/box_spec.h"

/* Last: it makes a macro of fail(). */
#include <cmocka.h>

/* Configurations of long histories; of those of OPS operations. */
enum { MOST = 1 << 20, FEW = 1 << 12 };

/* --- a register ------------------------------------------------------------------- */

enum { SET, GET, ADD };

static bool register_step(void *state, const struct linear_op *op)
{
	uint64_t *value = state;

	switch (op->kind) {
	case SET:
		*value = op->in;
		return true;
	case GET:
		return op->to == LINEAR_PENDING || op->out == *value;
	default: /* returns the value from before */
		if (op->to != LINEAR_PENDING && op->out != *value)
			return false;
		*value += op->in;
		return true;
	}
}

static const struct linear_spec register_spec = { sizeof(uint64_t), register_step };

#define S(from, to, value) { from, to, SET, 0, value, 0, 0 }
#define G(from, to, value) { from, to, GET, 0, 0, value, 0 }
#define A(from, to, before) { from, to, ADD, 0, 1, before, 0 }
#define P LINEAR_PENDING

enum { OPS = 8 };

struct history {
	const char *what;
	enum linear_verdict verdict;
	struct linear_op op[OPS]; /* up to the first whose .from is 0 */
};

static const struct history registers[] = {
	{ "nothing", LINEAR_YES, { { 0 } } },
	{ "one after the other", LINEAR_YES, { S(1, 2, 5), G(3, 4, 5) } },
	{ "an old value after the write", LINEAR_NO, { S(1, 2, 5), G(3, 4, 0) } },
	{ "an old value during the write", LINEAR_YES, { S(1, 4, 5), G(2, 3, 0) } },
	{ "a new value during the write", LINEAR_YES, { S(1, 4, 5), G(2, 3, 5) } },
	{ "new, then old", LINEAR_NO, { S(1, 6, 5), G(2, 3, 5), G(4, 5, 0) } },
	{ "old, then new", LINEAR_YES, { S(1, 6, 5), G(2, 3, 0), G(4, 5, 5) } },
	{ "new and old at once", LINEAR_YES, { S(1, 6, 5), G(2, 4, 5), G(3, 5, 0) } },
	{ "a value that was not written", LINEAR_NO, { S(1, 4, 5), G(2, 3, 6) } },
	{ "the last of two writes at once", LINEAR_YES, { S(1, 3, 5), S(2, 4, 6), G(5, 6, 5) } },
	{ "both of two writes at once, in turn", LINEAR_NO,
	  { S(1, 3, 5), S(2, 4, 6), G(5, 6, 5), G(7, 8, 6) } },
	{ "two readers see two writes in two orders", LINEAR_NO,
	  { S(1, 9, 5), S(2, 10, 6), G(3, 4, 5), G(5, 7, 6), G(11, 12, 5), G(6, 8, 6) } },
	{ "a pending write that took effect", LINEAR_YES, { S(1, P, 5), G(2, 3, 0), G(4, 5, 5) } },
	{ "a pending write that never did", LINEAR_YES, { S(1, P, 5), G(2, 3, 0), G(4, 5, 0) } },
	{ "a pending write that took effect and then not", LINEAR_NO,
	  { S(1, P, 5), G(2, 3, 5), G(4, 5, 0) } },
	{ "all are pending", LINEAR_YES, { S(1, P, 5), G(2, P, 7) } },
	{ "adding twice", LINEAR_YES, { A(1, 4, 1), A(2, 3, 0), G(5, 6, 2) } },
	{ "a lost change", LINEAR_NO, { A(1, 4, 0), A(2, 3, 0), G(5, 6, 1) } },
	{ "responses in another order than in the history", LINEAR_YES,
	  { G(5, 6, 2), A(2, 3, 0), A(1, 4, 1) } },
};

static uint32_t count(const struct history *h)
{
	uint32_t n = 0;

	while (n < OPS && h->op[n].from)
		n++;
	return n;
}

static void check(const struct linear_spec *spec, const struct history *h)
{
	uint32_t stuck = OPS;
	enum linear_verdict v = linear_check(spec, h->op, count(h), FEW, &stuck);

	if (v != h->verdict)
		fail_msg("%s: %d", h->what, v);
	assert_true(v == LINEAR_NO ? stuck < count(h) : stuck == OPS);
}

static void registers_are_checked(void **state)
{
	for (size_t i = 0; i < sizeof(registers) / sizeof(*registers); i++)
		check(&register_spec, &registers[i]);
}

/* --- boxes ------------------------------------------------------------------------ */

#define B(from, to, kind, by, in, out, result) { from, to, BOX_##kind, by, in, out, result }
#define NEW B(1, 2, NEW, 0, 5, 0, 0)

static const struct history boxes[] = {
	{ "a read before there is a box", LINEAR_NO,
	  { B(1, 2, READ, 1, 0, 5, 0), B(3, 4, NEW, 0, 5, 0, 0) } },
	{ "a write by another", LINEAR_NO,
	  { NEW, B(3, 4, WRITE, 1, 6, 0, 0) } },
	{ "a loan", LINEAR_YES,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, 8, RECLAIM, 0, 1, 0, -EBUSY), B(9, 10, RETURN, 1, 6, 0, 0),
	    B(11, 12, READ, 2, 0, 5, 0), B(13, 14, RECLAIM, 0, 1, 6, 0),
	    B(15, 16, READ, 2, 0, 6, 0) } },
	{ "busy after its return", LINEAR_NO,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, 8, RETURN, 1, 6, 0, 0), B(9, 10, RECLAIM, 0, 1, 0, -EBUSY) } },
	{ "busy during its return", LINEAR_YES,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, 10, RETURN, 1, 6, 0, 0), B(8, 9, RECLAIM, 0, 1, 0, -EBUSY) } },
	{ "a borrower's change is lost", LINEAR_NO,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, 8, RETURN, 1, 6, 0, 0), B(9, 10, RECLAIM, 0, 1, 5, 0) } },
	{ "two borrowers", LINEAR_NO,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 7, BORROW, 1, 1, 5, 0),
	    B(6, 8, BORROW, 2, 1, 5, 0) } },
	{ "a second borrower is refused", LINEAR_YES,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 7, BORROW, 1, 1, 5, 0),
	    B(6, 8, BORROW, 2, 1, 0, -ESTALE) } },
	{ "refused, but none has it", LINEAR_NO,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 0, -ESTALE) } },
	{ "a borrower is killed", LINEAR_YES,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, P, RETURN, 1, 6, 0, 0), B(8, P, DIE, 1, 0, 0, 0),
	    B(9, 10, RECLAIM, 0, 1, 5, -EOWNERDEAD) } },
	{ "a borrower is killed, its return took effect", LINEAR_YES,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, P, RETURN, 1, 6, 0, 0), B(8, P, DIE, 1, 0, 0, 0),
	    B(9, 10, RECLAIM, 0, 1, 6, 0) } },
	{ "dead, but not killed", LINEAR_NO,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(9, 10, RECLAIM, 0, 1, 5, -EOWNERDEAD) } },
	{ "a dead borrower's value", LINEAR_NO,
	  { NEW, B(3, 4, LEND, 0, 1, 0, 0), B(5, 6, BORROW, 1, 1, 5, 0),
	    B(7, P, RETURN, 1, 6, 0, 0), B(8, P, DIE, 1, 0, 0, 0),
	    B(9, 10, RECLAIM, 0, 1, 6, -EOWNERDEAD) } },
	{ "a parcel", LINEAR_YES,
	  { NEW, B(3, 4, GIVE, 0, 1, 0, 0), B(5, 7, ACCEPT, 1, 1, 5, 0),
	    B(6, 9, RECLAIM, 0, 1, 0, -EBUSY), B(8, 10, WRITE, 1, 6, 0, 0),
	    B(11, 12, RECLAIM, 0, 1, 0, -ESTALE), B(13, 14, READ, 0, 0, 6, 0) } },
	{ "a parcel, accepted twice", LINEAR_NO,
	  { NEW, B(3, 4, GIVE, 0, 1, 0, 0), B(5, 6, ACCEPT, 1, 1, 5, 0),
	    B(7, 8, ACCEPT, 2, 1, 5, 0) } },
	{ "a parcel, withdrawn", LINEAR_YES,
	  { NEW, B(3, 4, GIVE, 0, 1, 0, 0), B(5, 8, ACCEPT, 1, 1, 0, -ESTALE),
	    B(6, 7, RECLAIM, 0, 1, 5, 0) } },
};

static void boxes_are_checked(void **state)
{
	for (size_t i = 0; i < sizeof(boxes) / sizeof(*boxes); i++)
		check(&box_spec, &boxes[i]);
}

/* --- against every order ---------------------------------------------------------- */

/* Returns whether some order of the operations that @left has, after @value, is right. */
static bool any_order(const struct linear_op *ops, uint32_t left, uint64_t value)
{
	uint64_t first = LINEAR_PENDING;
	bool done = true;

	for (uint32_t i = 0; i < OPS; i++) {
		if (!(left >> i & 1) || ops[i].to == LINEAR_PENDING)
			continue;
		done = false;
		first = ops[i].to < first ? ops[i].to : first;
	}
	for (uint32_t i = 0; i < OPS && !done; i++) {
		uint64_t next = value;

		if (!(left >> i & 1) || ops[i].from > first || !register_step(&next, &ops[i]))
			continue;
		done = any_order(ops, left & ~(1u << i), next);
	}
	return done;
}

/* Random histories of 8 operations: the search agrees with one that tries all. */
static void random_histories(void **state)
{
	enum { TURNS = 20000 };
	uint32_t found[2] = { 0 };

	srandom(1);
	for (int turn = 0; turn < TURNS; turn++) {
		struct linear_op ops[OPS] = { 0 };
		uint64_t time[2 * OPS];
		bool right;

		for (int i = 0; i < 2 * OPS; i++)
			time[i] = (uint64_t)i + 1;
		for (int i = 2 * OPS - 1; i > 0; i--) {
			int k = i - (int)(random() % (i < 5 ? i + 1 : 5));
			uint64_t t = time[i];

			time[i] = time[k];
			time[k] = t;
		}
		for (int i = 0; i < OPS; i++) {
			uint64_t a = time[2 * i], b = time[2 * i + 1];

			ops[i] = (struct linear_op){ .from = a < b ? a : b, .to = a < b ? b : a,
						     .kind = (uint32_t)(random() % 3),
						     .in = (uint64_t)(random() % 2) + 1,
						     .out = (uint64_t)(random() % 3) };
			if (random() % 8 == 0)
				ops[i].to = LINEAR_PENDING;
		}
		right = any_order(ops, (1u << OPS) - 1, 0);
		found[right]++;
		assert_int_equal(linear_check(&register_spec, ops, OPS, FEW, NULL),
				 right ? LINEAR_YES : LINEAR_NO);
	}
	assert_true(found[0] > TURNS / 20 && found[1] > TURNS / 20);
}

/* Many operations, and many at once: remembered configurations keep the search short. */
static void long_histories(void **state)
{
	enum { N = 3000, AT_ONCE = 12 };
	struct linear_op *ops = calloc(N, sizeof(*ops));

	/* A dozen additions at once; their results allow one order. */
	for (uint32_t i = 0; i < N; i++) {
		uint64_t round = i / AT_ONCE, k = i % AT_ONCE, t = round * 3 * AT_ONCE;

		ops[i] = (struct linear_op){ t + k + 1, t + 2 * AT_ONCE - k, ADD, 0, 1, i, 0 };
	}
	assert_int_equal(linear_check(&register_spec, ops, N, MOST, NULL), LINEAR_YES);
	/* One result that never was, at the end. */
	ops[N - 1].out = N + 5;
	assert_int_equal(linear_check(&register_spec, ops, N, MOST, NULL), LINEAR_NO);
	assert_int_equal(linear_check(&register_spec, ops, N, 100, NULL), LINEAR_UNKNOWN);
	free(ops);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(registers_are_checked),
		cmocka_unit_test(boxes_are_checked),
		cmocka_unit_test(random_histories),
		cmocka_unit_test(long_histories),
	};

	return cmocka_run_group_tests_name("linear", tests, NULL, NULL);
}
