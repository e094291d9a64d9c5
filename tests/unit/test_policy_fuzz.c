// SPDX-License-Identifier: GPL-2.0-or-later
/* Two seconds of `make fuzz-policy` over all policies, and the checker itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include <cmocka.h>

#include "policies/native.h"
#include "tests/fuzz/policy.h"

#define FAULTS 8192

static void every_policy(void **unused)
{
	clock_t end = clock() + 2 * CLOCKS_PER_SEC;
	uint8_t program[512];

	for (uint64_t seed = 1; clock() < end; seed++) {
		size_t size = 1 + seed * 37 % sizeof(program);

		fuzz_program(seed, program, size);
		for (const struct ebb_policy *const *p = ebb_policies; *p; p++) {
			struct fuzz_result r;

			fuzz_policy(*p, program, size, FAULTS, &r);
			if (*r.wrong)
				fail_msg("%s (program %llu)", r.wrong, (unsigned long long)seed);
		}
	}
}

/* Nothing survives reset(), in the policy's tables or elsewhere. */
static void same_faults_same_requests(void **unused)
{
	for (const struct ebb_policy *const *p = ebb_policies; *p; p++)
		for (uint64_t seed = 1; seed < 20; seed++) {
			struct fuzz_result first, second;
			uint8_t program[256];

			fuzz_program(seed, program, sizeof(program));
			fuzz_policy(*p, program, sizeof(program), FAULTS, &first);
			fuzz_policy(*p, program, sizeof(program), FAULTS, &second);
			assert_true(first.faults > 0);
			assert_int_equal(first.faults, second.faults);
			assert_int_equal(first.sum, second.sum);
		}
}

/* The programs get through to what policies do. */
static void policies_are_reached(void **unused)
{
	for (const struct ebb_policy *const *p = ebb_policies; *p; p++) {
		uint64_t requests = 0;

		for (uint64_t seed = 1; seed < 20; seed++) {
			struct fuzz_result r;
			uint8_t program[512];

			fuzz_program(seed, program, sizeof(program));
			fuzz_policy(*p, program, sizeof(program), FAULTS, &r);
			requests += r.requests;
		}
		if (strcmp((*p)->info->name, "none"))
			assert_true(requests > 100);
		else
			assert_int_equal(requests, 0);
	}
}

/* A policy that does what the fault's page says, to check the checker. */
enum bad {
	GOOD, STRIDE_0, OUTSIDE, TOO_MANY, LONG_LIST, PAGE_0, OFTEN, NAME, BESIDE, PARAMS, BADS
};

static void bad_run(struct ebb_policy_sim *sim, const struct ebb_fault *f)
{
	struct ebb_list_request r = { .head = {
		.first = 100, .stride = 1, .count = 1, .at = f->vpn, .owner = f->owner,
		.time_ns = f->time_ns, .tgid = f->tgid, .exec = f->exec,
	} };
	int times = 1;

	switch ((enum bad)(f->vpn & 15)) {
	default:
		break;
	case STRIDE_0:
		r.head.stride = 0;
		break;
	case OUTSIDE:
		r.head.first = EBB_VPN_END - 1;
		r.head.count = 2;
		break;
	case TOO_MANY:
		r.head.count = EBB_REQUEST_MAX + 1;
		break;
	case LONG_LIST:
		r.head.op = EBB_OP_LIST;
		r.head.count = EBB_LIST_MAX + 1;
		break;
	case PAGE_0:
		r.head.op = EBB_OP_LIST;
		break;
	case OFTEN:
		times = FUZZ_CALL_REQUESTS + 1;
		break;
	case NAME:
		r.head.tgid++;
		break;
	case BESIDE:
		((char *)sim->state)[8] = 0;
		break;
	case PARAMS:
		sim->params.v[7]++;
		break;
	}
	while (times--)
		sim->request(sim->data, &r.head);
}

static void bad_reset(void)
{
}

static void checker_notices(void **unused)
{
	static const struct ebb_policy_info info = { .abi = EBB_ABI, .name = "bad" };
	static const struct ebb_policy bad = { &info, 8, bad_run, bad_reset };

	for (uint8_t what = GOOD; what < BADS; what++) {
		/* Lane 0 to page 0x...0 + what - 1 (action 10), then a step (action 0). */
		uint8_t program[] = { 10 * 8, 0, 0, 1, 0, what + 15, 0 };
		struct fuzz_result r;

		fuzz_policy(&bad, program, sizeof(program), FAULTS, &r);
		assert_int_equal(r.faults, 1);
		if (what == GOOD)
			assert_string_equal(r.wrong, "");
		else
			assert_string_not_equal(r.wrong, "");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_policy),
		cmocka_unit_test(same_faults_same_requests),
		cmocka_unit_test(policies_are_reached),
		cmocka_unit_test(checker_notices),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
