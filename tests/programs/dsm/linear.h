/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Whether a history of operations on one object is linearizable: whether the operations can be put
 * in one order, each at a time between its invocation and its response, in which all results are
 * right.
 *
 * The search is that of Wing and Gong (Testing and Verifying Concurrent Objects, Journal of
 * Parallel and Distributed Computing 17, 1993), with the remembered configurations of Lowe (Testing
 * for Linearizability, Concurrency and Computation 29, 2017): two prefixes of the same operations
 * that lead to the same state have the same future.  Configurations are remembered by two hashes of
 * 64 bits.  Histories of several objects are checked one object at a time (Herlihy and Wing,
 * Linearizability, TOPLAS 12, 1990).
 */
#ifndef EBB_TEST_LINEAR_H
#define EBB_TEST_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The time of a response that has not come: the operation may have taken effect, or may later. */
#define LINEAR_PENDING UINT64_MAX

struct linear_op {
	uint64_t from, to;  /* times of the invocation and of the response; no two are the same */
	uint32_t kind, by;  /* what, and by which process: the specification's */
	uint64_t in, out;   /* arguments and results, not of pending operations: likewise */
	int64_t result;
};

/* What an object does when operations come one at a time. */
struct linear_spec {
	size_t size;  /* bytes of a state, without padding, at most LINEAR_STATE */
	/*
	 * Executes @op in *@state, which is zero at first.  Returns false if its results are
	 * impossible there; then *@state may be anything.  Results of pending operations are unset.
	 */
	bool (*step)(void *state, const struct linear_op *op);
};

enum { LINEAR_STATE = 128 };

enum linear_verdict { LINEAR_YES, LINEAR_NO, LINEAR_UNKNOWN };

/*
 * Checks the history of @n operations, in any order.  LINEAR_UNKNOWN: after @most configurations
 * there is no answer, or no memory.  If LINEAR_NO, *@stuck is the index of an operation before
 * whose response every order fails.
 */
enum linear_verdict linear_check(const struct linear_spec *spec, const struct linear_op *ops,
				 uint32_t n, uint32_t most, uint32_t *stuck);

#endif
