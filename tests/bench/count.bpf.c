// SPDX-License-Identifier: GPL-2.0-or-later
/* Counts system calls by process, and times softirqs and interrupts. */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "tests/bench/count.h"

enum { SOFTIRQ, INTERRUPT, LEVELS };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, COUNT_CALLS_MAX);
	__type(key, struct count_key);
	__type(value, struct count_calls);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNT_KINDS);
	__type(key, __u32);
	__type(value, struct count_time);
} times SEC(".maps");

/* ns at which a softirq or an interrupt began on this CPU; 0: none runs. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, LEVELS);
	__type(key, __u32);
	__type(value, __u64);
} begun SEC(".maps");

const volatile __u32 only; /* the process whose calls are counted; 0 = all */
__u64 lost; /* calls that found the map full */

static __always_inline void begin(__u32 level)
{
	__u64 *at = bpf_map_lookup_elem(&begun, &level);

	if (at)
		*at = bpf_ktime_get_ns();
}

static __always_inline void end(__u32 level, __u32 kind)
{
	__u32 softirq = SOFTIRQ;
	__u64 *at = bpf_map_lookup_elem(&begun, &level), *outer, ns;
	struct count_time *t = bpf_map_lookup_elem(&times, &kind);

	if (!at || !*at || !t)
		return;
	ns = bpf_ktime_get_ns() - *at;
	*at = 0;
	t->n++;
	t->ns += ns;
	if (!(__u32)bpf_get_current_pid_tgid())
		t->idle_ns += ns;
	if (level != INTERRUPT)
		return;
	/* An interrupt's time is not the softirq's that it interrupted. */
	outer = bpf_map_lookup_elem(&begun, &softirq);
	if (outer && *outer)
		*outer += ns;
}

SEC("raw_tp/sys_exit")
int BPF_PROG(count_call, struct pt_regs *regs, long result)
{
	struct count_key key = {
		.pid = bpf_get_current_pid_tgid() >> 32,
		.call = BPF_CORE_READ(regs, orig_ax),
	};
	struct count_calls first = { 0 }, *c;

	if (only && key.pid != only)
		return 0;
	c = bpf_map_lookup_elem(&calls, &key);
	if (!c) {
		bpf_map_update_elem(&calls, &key, &first, BPF_NOEXIST);
		c = bpf_map_lookup_elem(&calls, &key);
	}
	if (!c) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	__sync_fetch_and_add(&c->calls, 1);
	if (result > 0)
		__sync_fetch_and_add(&c->returned, result);
	return 0;
}

SEC("raw_tp/softirq_entry")
int BPF_PROG(count_softirq_in)
{
	begin(SOFTIRQ);
	return 0;
}

SEC("raw_tp/softirq_exit")
int BPF_PROG(count_softirq, unsigned int number)
{
	if (number < COUNT_SOFTIRQS)
		end(SOFTIRQ, number);
	return 0;
}

#define INTERRUPT_PROGRAMS(name, kind)       \
	SEC("raw_tp/" #name "_entry")        \
	int BPF_PROG(count_##name##_in)      \
	{                                    \
		begin(INTERRUPT);            \
		return 0;                    \
	}                                    \
	SEC("raw_tp/" #name "_exit")         \
	int BPF_PROG(count_##name)           \
	{                                    \
		end(INTERRUPT, kind);        \
		return 0;                    \
	}

INTERRUPT_PROGRAMS(call_function, COUNT_CALL)
INTERRUPT_PROGRAMS(call_function_single, COUNT_CALL_SINGLE)
INTERRUPT_PROGRAMS(reschedule, COUNT_RESCHEDULE)
INTERRUPT_PROGRAMS(irq_work, COUNT_IRQ_WORK)
INTERRUPT_PROGRAMS(local_timer, COUNT_TIMER)
INTERRUPT_PROGRAMS(irq_handler, COUNT_DEVICE)

char LICENSE[] SEC("license") = "GPL";
