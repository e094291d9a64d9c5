/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The interface of prefetch policies.
 *
 * A policy is one file, policies/NAME.bpf.c: parameters, a state that starts
 * as zeroes, and one function that is called for every miss and every hit on a
 * prefetched page of a process:
 *
 *	#include "policy.h"
 *
 *	enum { WINDOW };
 *	EBB_POLICY(next, "the pages after each miss",
 *		EBB_PARAM(WINDOW, "window", 8, 1, 1024, "pages per request"))
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
 *    zeroes it.  If two threads fault at once, the policy misses one of the faults.
 *  - natively, `const struct ebb_policy NAME_policy`, for tests and simulation.
 * policies/policy.mk compiles it either way, anywhere; see ebb-policy(7).
 *
 * Limits of the code: no signed division or modulo (BPF has none below cpu v4),
 * loops with a constant bound, at most 512 bytes of stack, no floats.
 */
#ifndef EBB_POLICY_H
#define EBB_POLICY_H

#ifdef __bpf__
#include "vmlinux.h"
#include <bpf/bpf_helpers.h>
#include <ebb/maps.bpf.h>
#else
#include <stddef.h>
#include <string.h>
#include <ebb/abi.h>
#ifndef __always_inline
#define __always_inline inline __attribute__((always_inline))
#endif
#endif

#define EBB_VPN_END (1ULL << (57 - EBB_PAGE_SHIFT)) /* past any user address, 5-level tables too */

/*
 * Parameter INDEX of a policy: p->v[INDEX].  ebbd rejects values outside MIN..MAX.
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
 * Written before a loop.  Rolled: a long program is slower to verify and to run.
 * Unrolled: requires a constant number of iterations.  Linux 6.1 rejects a loop
 * that repeats by falling through ("back-edge"), which clang may generate for a
 * loop around other loops.
 */
#ifdef __clang__
#define EBB_ROLLED _Pragma("clang loop unroll(disable)")
#define EBB_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define EBB_ROLLED
#define EBB_UNROLLED
#endif

/*
 * A function that the verifier processes once, not for each path that calls it:
 * for loops with a long body.  Its arguments are numbers and pointers to state,
 * which it must check for NULL.
 */
#ifdef __bpf__
#define EBB_SUBPROGRAM __attribute__((noinline))
#else
#define EBB_SUBPROGRAM static inline
#endif

/* Returns 1 if a and b differ, else 0, without a branch: the compiler cannot add one. */
static __always_inline __u64 ebb_differ(__u64 a, __u64 b)
{
	__u64 x = a ^ b;

	x |= -x;
	asm volatile("" : "+r"(x));
	return x >> 63;
}

/* Returns 1 if a < b, else 0, without a branch; both below 2^63. */
static __always_inline __u64 ebb_less(__u64 a, __u64 b)
{
	__u64 x = a - b;

	asm volatile("" : "+r"(x));
	return x >> 63;
}

/* Returns the smaller one, without a branch. */
static __always_inline __u64 ebb_min(__u64 a, __u64 b)
{
	return b + ((a - b) & -ebb_less(a, b));
}

/* Returns |stride|; unsigned, because BPF has unsigned division only. */
static __always_inline __u64 ebb_magnitude(__s64 stride)
{
	return stride < 0 ? -(__u64)stride : (__u64)stride;
}

/*
 * Returns the program's own delta.  Accesses to pages that the kernel's readahead
 * reads with a miss cause no fault: a sequential scan faults at every 8th page.
 * A delta within the cluster of the previous fault is a step of one page.  The
 * kernel does not read resident pages of the cluster, so the cluster may span up
 * to twice as many pages as were read.
 */
static __always_inline __s64 ebb_unhide(__s64 delta, __u32 cluster)
{
	if (cluster < 2 || ebb_magnitude(delta) >= 2 * (__u64)cluster)
		return delta;
	return delta < 0 ? -1 : 1;
}

/*
 * Returns the number of strides from one page to another; -1 if no whole number
 * of strides connects them.
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

/* Returns how many of count pages from first on are in the address space; page 0 is not. */
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

/* Pages first, first + stride, ... */
struct ebb_range {
	__u64 first;
	__s64 stride;
	__u64 count;
};

/*
 * EBB_TABLE(NAME, TYPE, N): memory that all processes under a policy share, N
 * (a power of two) entries of TYPE that start as zeroes; NAME_at(hash) is the
 * entry at hash mod N.  Entries must name their process (tgid, exec), because
 * entries with the same hash overwrite each other, and several CPUs may write at
 * once.
 */

/*
 * The length of a strided scan, for ebb_prefetch_stream().  A scan that continues
 * elsewhere is the same scan; one that returns to an earlier page is a loop of
 * known length.
 */
struct ebb_walk {
	__u64 at;               /* page of the last request; 0 = none yet */
	__u32 run;              /* pages since it began or returned */
	__u32 loop;             /* length of the loop, pages; 0 = not known */
};

#define EBB_WALK_JITTER 64      /* steps back that do not make a loop */

/* Advances to vpn; returns the pages passed, 0 after a jump. */
static __always_inline __u64 ebb_walk_to(struct ebb_walk *w, __u64 vpn, __s64 stride)
{
	__s64 on = w->at ? ebb_steps(w->at, vpn, stride) : -1, back;

	if (on < 0 && w->at) {
		back = ebb_steps(vpn, w->at, stride);
		if (back > EBB_WALK_JITTER) {
			w->loop = back;
			w->run = 0;
		}
	}
	w->at = vpn;
	if (on < 0)
		return 0;
	w->run += on;
	return on < 2 * EBB_REQUEST_MAX ? on : 0;
}

/*
 * Returns the run that ebbd compares with an eighth of the limit before it pages
 * out behind the stream.  A loop that fits in memory is left to the kernel: soon
 * all of it is resident.
 */
static __always_inline __u64 ebb_walk_run(const struct ebb_walk *w)
{
	if (!w->loop)
		return w->run;
	return (w->run > w->loop ? w->run : w->loop) / 8;
}

/* What a request is, apart from its pages. */
struct ebb_what {
	enum ebb_op op;
	enum ebb_source source;
	__u64 run, passed;      /* of a stream */
};

/*
 * Returns whether ebbd has paused a source of requests, to see whether the program is faster
 * without it.  Its requests are then dropped, as if the ring buffer was full: misses say nothing
 * about the source.
 */
static __always_inline int ebb_paused(const struct ebb_fault *f, enum ebb_source source)
{
	return f->paused >> source & 1;
}

static __always_inline int ebb_drops(const struct ebb_fault *f, struct ebb_what what)
{
	return (what.op == EBB_OP_PREFETCH || what.op == EBB_OP_LIST) && ebb_paused(f, what.source);
}

#ifdef __bpf__

static __always_inline void ebb_head(struct ebb_request *r, const struct ebb_fault *f, __u64 count,
				     struct ebb_what what)
{
	r->at = f->vpn;
	r->owner = f->owner;
	r->time_ns = f->time_ns;
	r->tgid = f->tgid;
	r->exec = f->exec;
	r->count = count;
	r->op = what.op;
	r->source = what.source;
	r->run = what.run;
	r->passed = what.passed;
}

static __always_inline void ebb_count(__u64 owner, __u64 asked, __u64 dropped)
{
	struct ebb_counters *c = bpf_map_lookup_elem(&counters, &owner);

	if (!c)
		return;
	c->dropped += dropped;
	if (asked) {
		c->requests++;
		c->request_pages += asked;
	}
}

static __always_inline __u64 ebb_ask(const struct ebb_fault *f, struct ebb_range pages,
				     struct ebb_what what)
{
	__u64 count = ebb_clip(pages.first, pages.stride, pages.count);
	struct ebb_request *r;

	if (!count || ebb_drops(f, what))
		return 0;
	r = bpf_ringbuf_reserve(&requests, sizeof(*r), 0);
	if (!r) {
		ebb_count(f->owner, 0, 1);
		return 0;
	}
	ebb_head(r, f, count, what);
	r->first = pages.first;
	r->stride = pages.stride;
	bpf_ringbuf_submit(r, 0);
	if (what.op == EBB_OP_PREFETCH)
		ebb_count(f->owner, count, 0);
	return count;
}

static __always_inline __u64 ebb_ask_list(const struct ebb_fault *f, const __u64 *vpn, __u64 count,
					  struct ebb_what what)
{
	struct ebb_list_request *r;

	if (!count || count > EBB_LIST_MAX || ebb_drops(f, what))
		return 0;
	r = bpf_ringbuf_reserve(&requests, sizeof(*r), 0);
	if (!r) {
		ebb_count(f->owner, 0, 1);
		return 0;
	}
	ebb_head(&r->head, f, count, what);
	r->head.first = vpn[0];
	r->head.stride = 1;
	for (int i = 0; i < EBB_LIST_MAX; i++)
		r->vpn[i] = vpn[i];
	bpf_ringbuf_submit(r, 0);
	if (what.op == EBB_OP_LIST)
		ebb_count(f->owner, count, 0);
	return count;
}

#define EBB_TABLE(table, entry, n)							\
	struct {									\
		__uint(type, BPF_MAP_TYPE_ARRAY);					\
		__uint(max_entries, n);							\
		__type(key, __u32);							\
		__type(value, entry);							\
	} table SEC(".maps");								\
	static __always_inline entry *table##_at(__u64 hash)				\
	{										\
		__u32 i = hash & ((n)-1);						\
											\
		return bpf_map_lookup_elem(&table, &i);					\
	}

char LICENSE[] SEC("license") = "GPL";

/*
 * busy is a try-lock: perf_event programs cannot wait, and policies tolerate a
 * missed fault.
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
	SEC("perf_event") int policy##_program(void *ctx)				\
	{										\
		struct task_struct *leader;						\
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
		leader = bpf_get_current_task_btf()->group_leader;			\
		slot = bpf_task_storage_get(&state, leader, NULL,			\
					    BPF_LOCAL_STORAGE_GET_F_CREATE);		\
		if (slot && slot->exec && slot->exec != f->exec) {			\
			bpf_task_storage_delete(&state, leader);			\
			slot = bpf_task_storage_get(&state, leader, NULL,		\
						    BPF_LOCAL_STORAGE_GET_F_CREATE);	\
		}									\
		if (!slot || __sync_val_compare_and_swap(&slot->busy, 0, 1))		\
			return 0;							\
		slot->exec = f->exec;							\
		fault(f, &slot->state, p);						\
		__sync_lock_test_and_set(&slot->busy, 0);				\
		return 0;								\
	}

/* For a policy without state; calls fault(f, p). */
#define EBB_POLICY_STATELESS(policy, fault)						\
	SEC("perf_event") int policy##_program(void *ctx)				\
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
 * One simulated process.  The caller zeroes it, sets params (see
 * ebb_policy_defaults()), state (policy->state_size zeroed bytes, suitably
 * aligned, owned by the caller) and request, and calls policy->run() for each
 * fault.  fault and exec are private to this header.
 */
struct ebb_policy_sim {
	struct ebb_fault fault;
	struct ebb_params params;
	__u32 exec;
	void *state;
	/*
	 * Called for each request; returns 0, or -errno to drop it.  With op
	 * EBB_OP_LIST or EBB_OP_COLD_LIST it is the head of a struct ebb_list_request.
	 */
	int (*request)(void *data, const struct ebb_request *request);
	void *data;
};

struct ebb_policy {
	const struct ebb_policy_info *info;
	size_t state_size;
	void (*run)(struct ebb_policy_sim *sim, const struct ebb_fault *fault);
	void (*reset)(void);    /* zeroes the tables of the policy */
};

static inline void ebb_policy_defaults(const struct ebb_policy *policy, struct ebb_params *p)
{
	memset(p, 0, sizeof(*p));
	for (__u32 i = 0; i < policy->info->params; i++)
		p->v[i] = policy->info->param[i].initial;
}

/* f is always &sim->fault, so that a request needs no global to find its simulation. */
static inline struct ebb_policy_sim *ebb_sim(const struct ebb_fault *f)
{
	return (struct ebb_policy_sim *)((char *)f - offsetof(struct ebb_policy_sim, fault));
}

static inline struct ebb_request ebb_head(const struct ebb_fault *f, struct ebb_range pages,
					  struct ebb_what what)
{
	return (struct ebb_request){
		.first = pages.first, .stride = pages.stride, .at = f->vpn, .owner = f->owner,
		.time_ns = f->time_ns, .tgid = f->tgid, .exec = f->exec, .op = (__u16)what.op,
		.source = (__u16)what.source, .count = (__u32)pages.count,
		.run = (__u32)what.run, .passed = (__u32)what.passed,
	};
}

static inline __u64 ebb_ask(const struct ebb_fault *f, struct ebb_range pages, struct ebb_what what)
{
	struct ebb_policy_sim *sim = ebb_sim(f);
	struct ebb_request r;

	pages.count = ebb_clip(pages.first, pages.stride, pages.count);
	if (!pages.count || ebb_drops(f, what))
		return 0;
	r = ebb_head(f, pages, what);
	return sim->request(sim->data, &r) ? 0 : r.count;
}

static inline __u64 ebb_ask_list(const struct ebb_fault *f, const __u64 *vpn, __u64 count,
				 struct ebb_what what)
{
	struct ebb_policy_sim *sim = ebb_sim(f);
	struct ebb_list_request r;

	if (!count || count > EBB_LIST_MAX || ebb_drops(f, what))
		return 0;
	r.head = ebb_head(f, (struct ebb_range){ vpn[0], 1, count }, what);
	memcpy(r.vpn, vpn, count * sizeof(*vpn));
	return !sim->request(sim->data, &r.head) ? count : 0;
}

/*
 * One instance per process that links the policy; policy->reset() zeroes it.  One
 * section lists the tables of all policies in a program, each with an address
 * that identifies its policy.
 */
struct ebb_table {
	void *at;
	size_t bytes;
	const char *whose;
};

static const char ebb_this_policy = 0;

#define EBB_TABLE(table, entry, n)							\
	static entry table##_entries[n];						\
	static const struct ebb_table table##_table = {					\
		table##_entries, sizeof(table##_entries), &ebb_this_policy,		\
	};										\
	static const struct ebb_table *const table##_listed				\
	__attribute__((section("ebb_tables"), used)) = &table##_table;			\
	static inline entry *table##_at(__u64 hash)					\
	{										\
		return &table##_entries[hash & ((n)-1)];				\
	}

extern const struct ebb_table *const __start_ebb_tables[]
	__attribute__((weak, visibility("hidden")));
extern const struct ebb_table *const __stop_ebb_tables[]
	__attribute__((weak, visibility("hidden")));

static inline void ebb_tables_reset(void)
{
	for (const struct ebb_table *const *t = __start_ebb_tables; t < __stop_ebb_tables; t++)
		if ((*t)->whose == &ebb_this_policy)
			memset((*t)->at, 0, (*t)->bytes);
}

#define EBB_POLICY_NATIVE(policy, size)							\
	static void policy##_reset(void)						\
	{										\
		ebb_tables_reset();							\
	}										\
	extern const struct ebb_policy policy##_policy					\
	__attribute__((visibility("default")));						\
	const struct ebb_policy policy##_policy = {					\
		.info = &policy##_info, .state_size = size, .run = policy##_run,	\
		.reset = policy##_reset,						\
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
 * Requests count pages: first, first + stride, ..., without those outside the
 * address space and those beyond EBB_REQUEST_MAX.  Returns how many it requested,
 * 0 if the ring buffer was full or the source is paused.  ebbd skips resident pages and pages in
 * flight, so requesting a page twice costs time but no I/O.
 */
static __always_inline __u64 ebb_prefetch(const struct ebb_fault *f, __u64 first, __s64 stride,
					  __u64 count)
{
	return ebb_ask(f, (struct ebb_range){ first, stride, count },
		       (struct ebb_what){ .op = EBB_OP_PREFETCH });
}

/* ebb_prefetch() for one source of several in a policy. */
static __always_inline __u64 ebb_prefetch_from(const struct ebb_fault *f, enum ebb_source source,
					       struct ebb_range pages)
{
	return ebb_ask(f, pages, (struct ebb_what){ .op = EBB_OP_PREFETCH, .source = source });
}

/*
 * ebb_prefetch() for a stream that has covered run pages, passed of them since its
 * previous request: ebbd pages out behind a stream that is longer than the memory
 * it may use.  The source is EBB_SOURCE_STREAMS.
 */
static __always_inline __u64 ebb_prefetch_stream(const struct ebb_fault *f, struct ebb_range pages,
						 __u64 run, __u64 passed)
{
	return ebb_ask(f, pages,
		       (struct ebb_what){ EBB_OP_PREFETCH, EBB_SOURCE_STREAMS, run, passed });
}

/* ebb_prefetch() for count arbitrary pages; vpn has EBB_LIST_MAX elements. */
static __always_inline __u64 ebb_prefetch_list(const struct ebb_fault *f, const __u64 *vpn,
					       __u64 count)
{
	return ebb_ask_list(f, vpn, count, (struct ebb_what){ .op = EBB_OP_LIST });
}

/* ebb_prefetch_list() for one source of several in a policy. */
static __always_inline __u64 ebb_prefetch_list_from(const struct ebb_fault *f,
						    enum ebb_source source, const __u64 *vpn,
						    __u64 count)
{
	return ebb_ask_list(f, vpn, count,
			    (struct ebb_what){ .op = EBB_OP_LIST, .source = source });
}

/* ebb_cold() for count arbitrary pages; vpn has EBB_LIST_MAX elements. */
static __always_inline __u64 ebb_cold_list(const struct ebb_fault *f, const __u64 *vpn, __u64 count)
{
	return ebb_ask_list(f, vpn, count, (struct ebb_what){ .op = EBB_OP_COLD_LIST });
}

/*
 * Deactivates pages that the program no longer needs, so that reclaim takes them
 * first.  Affects mapped pages only: a stock kernel has no call to drop a
 * prefetched page that was never touched.
 */
static __always_inline __u64 ebb_cold(const struct ebb_fault *f, __u64 first, __s64 stride,
				      __u64 count)
{
	return ebb_ask(f, (struct ebb_range){ first, stride, count },
		       (struct ebb_what){ .op = EBB_OP_COLD });
}

/* Reclaims pages that the program no longer needs at once. */
static __always_inline __u64 ebb_out(const struct ebb_fault *f, __u64 first, __s64 stride,
				     __u64 count)
{
	return ebb_ask(f, (struct ebb_range){ first, stride, count },
		       (struct ebb_what){ .op = EBB_OP_OUT });
}

#endif
