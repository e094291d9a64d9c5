/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What a prefetch policy is written against.
 *
 * A policy is one file, policies/NAME.bpf.c: parameters, a state that starts
 * as zeroes, and one function that is called for every miss and every hit on a
 * prefetched page of a process:
 *
 *	#include "ebb_policy.h"
 *
 *	enum { WINDOW };
 *	EBB_POLICY(next, "the pages after each miss",
 *		EBB_PARAM(WINDOW, "window", 8, 1, 1024, "pages asked for at once"))
 *
 *	struct next {
 *		__u64 misses;
 *	};
 *
 *	static __always_inline void next_fault(const struct ebb_fault *f, struct next *s,
 *					       const struct ebb_params *p)
 *	{
 *		if (f->kind != EBB_MISS)
 *			return;
 *		s->misses++;
 *		ebb_prefetch(f, f->vpn + 1, 1, p->v[WINDOW]);
 *	}
 *	EBB_POLICY_ENTRY(next, struct next, next_fault)
 *
 * The same file compiles in two ways:
 *  - for BPF, a perf_event program that the fault program tail-calls.  State is
 *    per process (task storage of the group leader) and dies with it; an exec
 *    zeroes it.  When two threads fault at once one of the faults is not seen.
 *  - natively, `const struct ebb_policy NAME_policy`, for tests and simulation.
 *
 * What the code may use: no signed division or modulo (BPF has none below cpu
 * v4), loops with a constant bound, no more than 512 bytes of stack, no floats.
 */
#ifndef EBB_POLICY_H
#define EBB_POLICY_H

#ifdef __bpf__
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include "bpf/maps.bpf.h"
#else
#include <stddef.h>
#include <string.h>
#include "bpf/ebb_abi.h"
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#endif

#define EBB_REQUEST_MAX 1024            /* pages in one request: one iovec each */
#define EBB_VPN_END (1ULL << (57 - EBB_PAGE_SHIFT)) /* past any user address, 5-level tables too */

/*
 * Parameter INDEX of a policy: p->v[INDEX].  ebbd refuses values outside
 * MIN..MAX before the policy sees them.
 */
#define EBB_PARAM(index, name_, initial_, min_, max_, help_)				\
	[index] = { .name = name_, .initial = initial_, .min = min_, .max = max_, .help = help_ }

#define EBB_POLICY(policy, help_, ...)							\
	extern const struct ebb_policy_info policy##_info;				\
	const struct ebb_policy_info policy##_info					\
	__attribute__((section(".rodata.policy"), used)) = {				\
		.abi = EBB_ABI,								\
		.params = sizeof((struct ebb_param_info[]){ __VA_ARGS__ }) /		\
			  sizeof(struct ebb_param_info),				\
		.name = #policy,							\
		.help = help_,								\
		.param = { __VA_ARGS__ },						\
	};

/*
 * Before a loop.  Rolled: a long program is slower to verify and to run.
 * Unrolled: needs a constant number of turns.  Linux 6.1 refuses a loop that
 * repeats by falling through ("back-edge"), which is how clang may lay out one
 * loop around others.
 */
#ifdef __clang__
#define EBB_ROLLED _Pragma("clang loop unroll(disable)")
#define EBB_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define EBB_ROLLED
#define EBB_UNROLLED
#endif

/* 1 if a and b differ, else 0, by arithmetic the compiler cannot turn into a branch. */
static __always_inline __u64 ebb_differ(__u64 a, __u64 b)
{
	__u64 x = a ^ b;

	x |= -x;
	asm volatile("" : "+r"(x));
	return x >> 63;
}

/* |stride|; unsigned because that is the only division there is. */
static __always_inline __u64 ebb_magnitude(__s64 stride)
{
	return stride < 0 ? -(__u64)stride : (__u64)stride;
}

/*
 * The delta as the program made it.  What the kernel's readahead brought in
 * along with a miss is touched unseen: a process that reads page after page is
 * seen at every 8th.  A delta within the cluster of the fault before is a step
 * of one page.  Pages of the cluster that were there already were not read, so
 * it may be up to twice as long as what was.
 */
static __always_inline __s64 ebb_unhide(__s64 delta, __u32 cluster)
{
	if (cluster < 2 || ebb_magnitude(delta) >= 2 * (__u64)cluster)
		return delta;
	return delta < 0 ? -1 : 1;
}

/*
 * How many times stride leads from one page to another; -1 when it does not
 * lead there.
 */
static __always_inline __s64 ebb_steps(__u64 from, __u64 to, __s64 stride)
{
	__u64 distance = stride < 0 ? from - to : to - from;
	__u64 step = ebb_magnitude(stride);
	__u64 steps;

	if (!step || (__s64)distance < 0)
		return -1;
	steps = distance / step;
	return steps * step == distance ? (__s64)steps : -1;
}

/* How many of count pages from first on lie in the address space (page 0 does not). */
static __always_inline __u64 ebb_clip(__u64 first, __s64 stride, __u64 count)
{
	__u64 step = ebb_magnitude(stride);
	__u64 room;

	if (!step || step >= EBB_VPN_END || !first || first >= EBB_VPN_END)
		return 0;
	room = (stride < 0 ? first - 1 : EBB_VPN_END - 1 - first) / step + 1;
	if (count > room)
		count = room;
	return count < EBB_REQUEST_MAX ? count : EBB_REQUEST_MAX;
}

#ifdef __bpf__

static __always_inline __u64 ebb_ask(const struct ebb_fault *f, __u64 first, __s64 stride,
				     __u64 count, __u32 op)
{
	struct ebb_counters *c;
	struct ebb_request *r;
	__u64 owner = f->owner;

	count = ebb_clip(first, stride, count);
	if (!count)
		return 0;
	c = bpf_map_lookup_elem(&counters, &owner);
	r = bpf_ringbuf_reserve(&requests, sizeof(*r), 0);
	if (!r) {
		if (c)
			c->dropped++;
		return 0;
	}
	r->first = first;
	r->stride = stride;
	r->at = f->vpn;
	r->owner = owner;
	r->time_ns = f->time_ns;
	r->tgid = f->tgid;
	r->exec = f->exec;
	r->count = count;
	r->op = op;
	bpf_ringbuf_submit(r, 0);
	if (c && op == EBB_OP_PREFETCH) {
		c->requests++;
		c->request_pages += count;
	}
	return count;
}

char LICENSE[] SEC("license") = "GPL";

/*
 * busy is a lock that is only tried: perf_event programs cannot wait, and a
 * fault that goes unlogged now and then is no loss.
 */
#define EBB_POLICY_ENTRY(policy, state_type, fault)					\
	struct policy##_slot {								\
		__u32 busy;								\
		__u32 exec;								\
		state_type state;							\
	};										\
	struct {									\
		__uint(type, BPF_MAP_TYPE_TASK_STORAGE);				\
		__uint(map_flags, BPF_F_NO_PREALLOC);					\
		__type(key, int);							\
		__type(value, struct policy##_slot);					\
	} state SEC(".maps");								\
	SEC("perf_event") int policy(void *ctx)						\
	{										\
		struct policy##_slot *slot;						\
		const struct ebb_params *p;						\
		const struct ebb_fault *f;						\
		__u32 zero = 0;								\
		__u64 owner;								\
											\
		f = bpf_map_lookup_elem(&fault_scratch, &zero);				\
		if (!f)									\
			return 0;							\
		owner = f->owner;							\
		p = bpf_map_lookup_elem(&params, &owner);				\
		if (!p)									\
			return 0;							\
		slot = bpf_task_storage_get(&state,					\
					    bpf_get_current_task_btf()->group_leader,	\
					    NULL, BPF_LOCAL_STORAGE_GET_F_CREATE);	\
		if (!slot || __sync_val_compare_and_swap(&slot->busy, 0, 1))		\
			return 0;							\
		if (slot->exec != f->exec) {						\
			__builtin_memset(&slot->state, 0, sizeof(slot->state));		\
			slot->exec = f->exec;						\
		}									\
		fault(f, &slot->state, p);						\
		__sync_lock_test_and_set(&slot->busy, 0);				\
		return 0;								\
	}

/* For a policy that remembers nothing; fault(f, p). */
#define EBB_POLICY_STATELESS(policy, fault)						\
	SEC("perf_event") int policy(void *ctx)						\
	{										\
		const struct ebb_params *p;						\
		const struct ebb_fault *f;						\
		__u32 zero = 0;								\
		__u64 owner;								\
											\
		f = bpf_map_lookup_elem(&fault_scratch, &zero);				\
		if (!f)									\
			return 0;							\
		owner = f->owner;							\
		p = bpf_map_lookup_elem(&params, &owner);				\
		if (p)									\
			fault(f, p);							\
		return 0;								\
	}

#else /* native */

/*
 * One process as a policy sees it.  The caller zeroes it, sets params (see
 * ebb_policy_defaults()), state (policy->state_size zeroed bytes of the
 * caller's, suitably aligned) and request, and calls policy->run() for each
 * fault.  fault and exec belong to the policy's side.
 */
struct ebb_policy_sim {
	struct ebb_fault fault;
	struct ebb_params params;
	__u32 exec;
	void *state;
	/* Called for each request; returns 0, or -errno to drop it. */
	int (*request)(void *data, const struct ebb_request *request);
	void *data;
};

struct ebb_policy {
	const struct ebb_policy_info *info;
	size_t state_size;
	void (*run)(struct ebb_policy_sim *sim, const struct ebb_fault *fault);
};

static inline void ebb_policy_defaults(const struct ebb_policy *policy, struct ebb_params *p)
{
	memset(p, 0, sizeof(*p));
	for (__u32 i = 0; i < policy->info->params; i++)
		p->v[i] = policy->info->param[i].initial;
}

/* f is always &sim->fault: that is how the request finds its way back without a global. */
static inline __u64 ebb_ask(const struct ebb_fault *f, __u64 first, __s64 stride, __u64 count,
			    __u32 op)
{
	struct ebb_policy_sim *sim =
		(struct ebb_policy_sim *)((char *)f - offsetof(struct ebb_policy_sim, fault));
	struct ebb_request r = {
		.first = first, .stride = stride, .owner = f->owner, .time_ns = f->time_ns,
		.tgid = f->tgid, .exec = f->exec, .op = op,
	};

	r.count = ebb_clip(first, stride, count);
	return r.count && !sim->request(sim->data, &r) ? r.count : 0;
}

#define EBB_POLICY_NATIVE(policy, size)							\
	extern const struct ebb_policy policy##_policy;					\
	const struct ebb_policy policy##_policy = {					\
		.info = &policy##_info, .state_size = size, .run = policy##_run,	\
	};

#define EBB_POLICY_ENTRY(policy, state_type, policy_fault)				\
	static void policy##_run(struct ebb_policy_sim *sim, const struct ebb_fault *f)	\
	{										\
		state_type *s = sim->state;						\
											\
		sim->fault = *f;							\
		if (sim->exec != f->exec) {						\
			memset(s, 0, sizeof(*s));					\
			sim->exec = f->exec;						\
		}									\
		policy_fault(&sim->fault, s, &sim->params);				\
	}										\
	EBB_POLICY_NATIVE(policy, sizeof(state_type))

#define EBB_POLICY_STATELESS(policy, policy_fault)					\
	static void policy##_run(struct ebb_policy_sim *sim, const struct ebb_fault *f)	\
	{										\
		sim->fault = *f;							\
		policy_fault(&sim->fault, &sim->params);				\
	}										\
	EBB_POLICY_NATIVE(policy, 0)

#endif

/*
 * Asks for count pages: first, first + stride, ...  Pages outside the address
 * space are left out, and so are those past EBB_REQUEST_MAX.  Returns how many
 * were asked for; 0 also when the request had to be dropped.  ebbd skips pages
 * that are resident or on their way, so asking twice costs time, not I/O.
 */
static __always_inline __u64 ebb_prefetch(const struct ebb_fault *f, __u64 first, __s64 stride,
					  __u64 count)
{
	return ebb_ask(f, first, stride, count, EBB_OP_PREFETCH);
}

/*
 * The same for pages the program is done with: first in line for reclaim.
 * Only mapped pages feel it: a stock kernel cannot be told to drop a prefetched
 * page that was never touched.
 */
static __always_inline __u64 ebb_cold(const struct ebb_fault *f, __u64 first, __s64 stride,
				      __u64 count)
{
	return ebb_ask(f, first, stride, count, EBB_OP_COLD);
}

#endif
