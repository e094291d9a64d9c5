/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Runs a policy on faults made from arbitrary bytes and checks what it asks for.
 *
 * The bytes are a program for eight lanes, each a thread with a page and a
 * stride of its own: steps, loops over permutations, random pages, pages at the
 * ends of the address space and beyond, threads and programs that change, other
 * parameters, and other answers to requests.  Every byte string is a valid
 * program, and the same one makes the same faults.
 */
#ifndef FUZZ_POLICY_H
#define FUZZ_POLICY_H

#include <stddef.h>
#include <stdint.h>

#include <ebb/policy.h>

/*
 * What a policy may ask for at one fault.  Three requests are a prefetch on each
 * side of the page and one to page out; leave some room.
 */
#define FUZZ_CALL_REQUESTS 8
#define FUZZ_CALL_PAGES (2 * EBB_REQUEST_MAX)

struct fuzz_result {
	uint64_t faults;
	uint64_t requests, pages;       /* to prefetch */
	uint64_t sum;                   /* of all requests: the same program, the same sum */
	char wrong[160];                /* empty if nothing was */
};

/* At most most_faults faults. Zeroes the policy's tables first. */
void fuzz_policy(const struct ebb_policy *policy, const uint8_t *program, size_t size,
		 uint64_t most_faults, struct fuzz_result *result);

/* A program of size random bytes that is likely to come far. */
void fuzz_program(uint64_t seed, uint8_t *program, size_t size);

#endif
