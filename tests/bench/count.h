/* SPDX-License-Identifier: GPL-2.0-or-later */
/* Maps of count.bpf.c, which count.c reads. */
#ifndef EBB_BENCH_COUNT_H
#define EBB_BENCH_COUNT_H

#define COUNT_CALLS_MAX 65536

struct count_key {
	__u32 pid; /* of the process */
	__s32 call;
};

struct count_calls {
	__u64 calls;
	__u64 returned; /* sum of positive results: bytes, for calls that move bytes */
};

/* Kinds of count_time: the kernel's softirqs first, in its order. */
enum count_kind {
	COUNT_SOFTIRQS = 10,
	COUNT_CALL = COUNT_SOFTIRQS,
	COUNT_CALL_SINGLE,
	COUNT_RESCHEDULE,
	COUNT_IRQ_WORK,
	COUNT_TIMER,
	COUNT_DEVICE,
	COUNT_KINDS,
};

struct count_time {
	__u64 n;
	__u64 ns;
	__u64 idle_ns; /* part of @ns that interrupted the idle task */
};

#endif
