// SPDX-License-Identifier: GPL-2.0-or-later
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "policy.h"

#define LANES 8
#define PROCESSES 3
#define GUARD 64                /* bytes before and after a policy's state */
#define GUARD_BYTE 0xa5
#define ASKED 8192              /* pages asked for that are remembered, by hash */

/* How faults answer requests. */
enum answer { TRUE_TO_LIFE, ALWAYS_LATE, IN_VAIN, BACKWARDS, AT_RANDOM, ANSWERS };

struct lane {
	uint64_t vpn;
	int64_t stride;
	uint32_t tid, process, step;
};

struct fuzz {
	const struct ebb_policy *policy;
	struct fuzz_result *result;
	const uint8_t *program, *end;
	uint64_t seed, most_faults, now;
	struct lane lane[LANES];
	struct process {
		struct ebb_policy_sim sim;
		unsigned char *memory;  /* guard, state, guard */
		uint32_t exec;
	} process[PROCESSES];
	enum answer answer;
	struct ebb_fault extra;         /* role, cluster and the like of faults to come */
	const struct ebb_fault *current;
	uint64_t asked[ASKED];
	unsigned int requests;          /* in this call */
	uint64_t pages;
};

static uint64_t random_next(uint64_t *seed)
{
	*seed += 0x9e3779b97f4a7c15ULL;
	uint64_t x = *seed;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return x ^ x >> 31;
}

__attribute__((format(printf, 2, 3)))
static void wrong(struct fuzz *z, const char *format, ...)
{
	char *text = z->result->wrong;
	va_list arguments;
	int n;

	if (*text)
		return;
	n = snprintf(text, sizeof(z->result->wrong), "policy %s: fault %llu: ",
		     z->policy->info->name, (unsigned long long)z->result->faults);
	va_start(arguments, format);
	vsnprintf(text + n, sizeof(z->result->wrong) - (size_t)n, format, arguments);
	va_end(arguments);
}

static void sum(struct fuzz *z, uint64_t value)
{
	z->result->sum = (z->result->sum ^ value) * 0x100000001b3ULL;
}

static uint64_t *asked_at(struct fuzz *z, const struct ebb_fault *f, uint64_t vpn)
{
	return &z->asked[((vpn ^ (uint64_t)f->tgid << 50) * 0x9e3779b97f4a7c15ULL) >> 51];
}

/* A page of a request; only those of prefetches are remembered. */
static void check_page(struct fuzz *z, const struct ebb_request *r, uint64_t vpn)
{
	if (!vpn || vpn >= EBB_VPN_END)
		wrong(z, "page %llx is outside the address space", (unsigned long long)vpn);
	sum(z, vpn);
	if (r->op == EBB_OP_PREFETCH || r->op == EBB_OP_LIST)
		*asked_at(z, z->current, vpn) = vpn;
}

static int check_request(void *data, const struct ebb_request *r)
{
	const struct ebb_list_request *list = (const struct ebb_list_request *)r;
	const struct ebb_fault *f;
	struct fuzz *z = data;

	f = z->current;
	if (r->at != f->vpn || r->owner != f->owner || r->tgid != f->tgid || r->exec != f->exec ||
	    r->time_ns != f->time_ns)
		wrong(z, "a request in another's name");
	if (r->source >= EBB_SOURCES)
		wrong(z, "source %u", r->source);
	else if ((r->op == EBB_OP_PREFETCH || r->op == EBB_OP_LIST) && f->paused >> r->source & 1)
		wrong(z, "a request of paused source %u", r->source);
	switch (r->op) {
	case EBB_OP_PREFETCH:
	case EBB_OP_COLD:
	case EBB_OP_OUT:
		if (!r->stride)
			wrong(z, "stride 0");
		if (!r->count || r->count > EBB_REQUEST_MAX)
			wrong(z, "%u pages in a request", r->count);
		else
			for (uint32_t i = 0; i < r->count; i++)
				check_page(z, r, r->first + (uint64_t)r->stride * i);
		break;
	case EBB_OP_LIST:
	case EBB_OP_COLD_LIST:
		if (!r->count || r->count > EBB_LIST_MAX)
			wrong(z, "%u pages in a list", r->count);
		else
			for (uint32_t i = 0; i < r->count; i++)
				check_page(z, r, list->vpn[i]);
		break;
	default:
		wrong(z, "operation %u", r->op);
	}
	z->requests++;
	z->pages += r->count;
	if (z->requests > FUZZ_CALL_REQUESTS || z->pages > FUZZ_CALL_PAGES)
		wrong(z, "%u requests of %llu pages at once", z->requests,
		      (unsigned long long)z->pages);
	if (r->op == EBB_OP_PREFETCH || r->op == EBB_OP_LIST) {
		z->result->requests++;
		z->result->pages += r->count;
	}
	return z->answer == IN_VAIN ? -1 : 0;
}

static void check_guards(struct fuzz *z, const struct process *p)
{
	for (size_t i = 0; i < GUARD; i++)
		if (p->memory[i] != GUARD_BYTE ||
		    p->memory[GUARD + z->policy->state_size + i] != GUARD_BYTE)
			wrong(z, "wrote beside its state");
}

static uint32_t answer_of(struct fuzz *z, uint64_t *asked, uint64_t vpn)
{
	int was_asked = *asked == vpn;

	if (was_asked)
		*asked = 0;
	switch (z->answer) {
	case TRUE_TO_LIFE:
		return was_asked ? EBB_HIT : EBB_MISS;
	case ALWAYS_LATE:
		return was_asked ? EBB_LATE : EBB_MISS;
	case BACKWARDS:
		return was_asked ? EBB_MISS : EBB_HIT;
	case AT_RANDOM:
		return random_next(&z->seed) % 3;
	default:
		return EBB_MISS;
	}
}

static void fault(struct fuzz *z, struct lane *lane, uint64_t vpn)
{
	struct process *p = &z->process[lane->process];
	struct ebb_fault f = z->extra, before;
	struct ebb_params params = p->sim.params;

	if (z->result->faults >= z->most_faults || *z->result->wrong)
		return;
	f.vpn = vpn;
	f.time_ns = z->now += 1000;
	f.owner = lane->process + 1;
	f.tgid = lane->process + 1;
	f.tid = lane->tid;
	f.exec = p->exec;
	f.kind = answer_of(z, asked_at(z, &f, vpn), vpn);
	before = f;
	z->current = &f;
	z->requests = 0;
	z->pages = 0;
	z->policy->run(&p->sim, &f);
	z->result->faults++;
	if (memcmp(&f, &before, sizeof(f)) || memcmp(&params, &p->sim.params, sizeof(params)))
		wrong(z, "changed what it was given");
}

static uint64_t take(struct fuzz *z, int bytes)
{
	uint64_t value = 0;

	while (bytes-- && z->program < z->end)
		value = value << 8 | *z->program++;
	return value;
}

static void new_params(struct fuzz *z, struct process *p)
{
	const struct ebb_policy_info *info = z->policy->info;

	for (uint32_t i = 0; i < info->params; i++) {
		const struct ebb_param_info *a = &info->param[i];
		uint64_t r = random_next(&z->seed);

		p->sim.params.v[i] = r & 3 ? a->min + (r >> 2) % (a->max - a->min + 1)
					   : r & 4 ? a->min : a->max;
	}
}

static const uint64_t special[] = {
	0, 1, 2, EBB_VPN_END - 1, EBB_VPN_END, EBB_VPN_END + 1, EBB_VPN_END - EBB_REQUEST_MAX,
	1ULL << 32, 1ULL << 35, ~0ULL, 1ULL << 63, ~0ULL >> 1, ~0ULL - EBB_REQUEST_MAX,
	0x7ffffffff, 0x7fff00000, 512,
};

/* The i-th of a permutation of 2^bits pages, by an odd factor and a shift that can be undone. */
static uint64_t permuted(uint64_t i, unsigned int bits, uint64_t seed)
{
	uint64_t mask = (1ULL << bits) - 1;

	for (int round = 0; round < 3; round++) {
		i = (i * (seed | 1) + (seed >> 32)) & mask;
		i ^= i >> (bits / 2 + 1);
	}
	return i;
}

static void act(struct fuzz *z)
{
	uint8_t byte = (uint8_t)take(z, 1);
	struct lane *lane = &z->lane[byte % LANES], *other = &z->lane[(byte + 1) % LANES];
	struct process *p = &z->process[lane->process];
	uint64_t a;

	switch (byte / LANES) {
	default:
		for (uint64_t n = 16ULL << take(z, 1) % 8; n; n--)
			fault(z, lane, lane->vpn += (uint64_t)lane->stride);
		break;
	case 0:
		fault(z, lane, lane->vpn += (uint64_t)lane->stride);
		break;
	case 1: /* two lanes in turns */
		for (uint64_t n = take(z, 1) * 4; n; n--) {
			fault(z, lane, lane->vpn += (uint64_t)lane->stride);
			fault(z, other, other->vpn += (uint64_t)other->stride);
		}
		break;
	case 2: /* all lanes in turns */
		for (uint64_t n = take(z, 1) * LANES; n; n--) {
			struct lane *l = &z->lane[n % LANES];

			fault(z, l, l->vpn += (uint64_t)l->stride);
		}
		break;
	case 3:
	case 4:
	case 5: /* go on in a permutation */
		a = take(z, 1);
		for (uint64_t n = 64ULL << a % 8; n; n--)
			fault(z, lane, lane->vpn + permuted(lane->step++, 4 + a / 32, a * 77));
		break;
	case 6:
		a = take(z, 1);
		for (uint64_t n = 16ULL << a % 8; n; n--)
			fault(z, lane, lane->vpn + random_next(&z->seed) % (16ULL << a / 8));
		break;
	case 7: /* one page, or two in turns */
		for (uint64_t n = take(z, 1); n; n--)
			fault(z, lane, lane->vpn + (n & 1) * (uint64_t)lane->stride);
		break;
	case 8:
		lane->stride = (int8_t)take(z, 1);
		break;
	case 9:
		lane->stride = (int64_t)take(z, 8);
		break;
	case 10:
		lane->vpn = take(z, 5);
		break;
	case 11:
		lane->vpn = take(z, 8);
		break;
	case 12:
		lane->vpn = special[take(z, 1) % (sizeof(special) / sizeof(special[0]))];
		break;
	case 13:
		p->exec = take(z, 1) % 4;
		break;
	case 14:
		lane->tid = (uint32_t)take(z, 2);
		break;
	case 15:
		lane->process = take(z, 1) % PROCESSES;
		break;
	case 16:
		z->answer = take(z, 1) % ANSWERS;
		break;
	case 17:
		new_params(z, p);
		break;
	case 18: /* every fault by another thread */
		for (uint64_t n = take(z, 1) * 8; n; n--) {
			lane->tid++;
			fault(z, lane, lane->vpn += (uint64_t)lane->stride);
		}
		break;
	case 19: /* anything in the fields that no other action sets */
		for (size_t i = 0; i < sizeof(z->extra); i++)
			((uint8_t *)&z->extra)[i] = (uint8_t)random_next(&z->seed);
		z->extra.role %= EBB_ROLES;
		a = take(z, 1);
		if (a & 1)
			z->extra.cluster %= 32;
		/* Mostly no source is paused. */
		z->extra.paused &= a & 2 && a & 4 ? (1 << EBB_SOURCES) - 1 : 0;
		break;
	case 20: /* time stands still, or leaps */
		z->now += take(z, 5) << take(z, 1) % 24;
		break;
	}
}

void fuzz_policy(const struct ebb_policy *policy, const uint8_t *program, size_t size,
		 uint64_t most_faults, struct fuzz_result *result)
{
	struct fuzz *z = calloc(1, sizeof(*z));

	memset(result, 0, sizeof(*result));
	z->policy = policy;
	z->result = result;
	z->program = program;
	z->end = program + size;
	z->most_faults = most_faults;
	z->seed = size;
	for (int i = 0; i < LANES; i++) {
		z->lane[i] = (struct lane){ 0x7f0000000 + 0x100000ULL * (unsigned int)i, 1,
					    (uint32_t)i + 1, (uint32_t)i / 4, 0 };
	}
	for (int i = 0; i < PROCESSES; i++) {
		struct process *p = &z->process[i];

		/* The state ends where the allocation does, less the guard. */
		p->memory = aligned_alloc(GUARD, (2 * GUARD + policy->state_size + GUARD - 1) /
					  GUARD * GUARD);
		memset(p->memory, GUARD_BYTE, 2 * GUARD + policy->state_size);
		memset(p->memory + GUARD, 0, policy->state_size);
		p->sim.state = p->memory + GUARD;
		p->sim.request = check_request;
		p->sim.data = z;
		ebb_policy_defaults(policy, &p->sim.params);
	}
	policy->reset();
	while (z->program < z->end && result->faults < most_faults && !*result->wrong) {
		act(z);
		for (int i = 0; i < PROCESSES; i++)
			check_guards(z, &z->process[i]);
	}
	for (int i = 0; i < PROCESSES; i++)
		free(z->process[i].memory);
	free(z);
}

void fuzz_program(uint64_t seed, uint8_t *program, size_t size)
{
	/* Few of the actions that change everything, or no stream gets long. */
	unsigned int calm = 1 + random_next(&seed) % 8;

	for (size_t i = 0; i < size; i++) {
		uint64_t r = random_next(&seed);

		program[i] = (uint8_t)r;
		if (program[i] / LANES > 7 && (r >> 8) % 8 < calm)
			program[i] %= 8 * LANES;
	}
}
