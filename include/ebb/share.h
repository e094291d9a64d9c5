/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Shared with a process that requests it (verb epoch.share): the process's epochs and its page
 * faults, in pinned BPF maps that it maps read-only and reads by plain loads.  The process's slot
 * is an index in both maps and belongs to it until it ends.
 */
#ifndef EBB_ABI_SHARE_H
#define EBB_ABI_SHARE_H

#ifndef __bpf__
#include <linux/types.h>
#endif

/* maps/epochs, an array of __u64: epochs of the process that have ended since its request. */
#define EBB_MAX_EPOCH_SLOTS 512

/*
 * maps/arrivals, an array of struct ebb_arrivals for slots below EBB_MAX_ARRIVALS: the process's
 * faults on pages that were swapped out or in flight.  The n-th fault, from 0 on, is
 * entry[n % EBB_ARRIVALS]: a slow reader loses the oldest.  An entry carries the round in which it
 * was written, which tells a reader that it is not yet written or already overwritten.
 */
#define EBB_MAX_ARRIVALS 64
#define EBB_ARRIVALS 256
#define EBB_ARRIVAL_ROUND 56        /* n / EBB_ARRIVALS modulo 256, from this bit on */
#define EBB_ARRIVAL_KIND 54         /* enum ebb_fault_kind */
#define EBB_ARRIVAL_ROLE 53         /* enum ebb_role: 1 for a thread of a garbage collector */
#define EBB_ARRIVAL_SHIFT 4         /* bits below: the address / 2^4 */

/* One page. */
struct ebb_arrivals {
	__u64 head;                 /* faults so far; is ahead of the entries for a moment */
	__u64 entry[EBB_ARRIVALS];
	__u64 unused[255];
};

/* Returns the entry of the n-th fault. */
static inline __u64 ebb_arrival(__u64 n, __u64 address, __u32 kind, __u32 role)
{
	return n / EBB_ARRIVALS << EBB_ARRIVAL_ROUND | (__u64)(kind & 3) << EBB_ARRIVAL_KIND |
	       (__u64)(role & 1) << EBB_ARRIVAL_ROLE |
	       (address >> EBB_ARRIVAL_SHIFT & ((1ULL << EBB_ARRIVAL_ROLE) - 1));
}

/* Returns whether this is the entry of the n-th fault. */
static inline int ebb_arrival_is(__u64 entry, __u64 n)
{
	return entry >> EBB_ARRIVAL_ROUND == (n / EBB_ARRIVALS & 0xff);
}

/* Returns the address that the thread touched, rounded down to 2^EBB_ARRIVAL_SHIFT. */
static inline __u64 ebb_arrival_address(__u64 entry)
{
	return (entry & ((1ULL << EBB_ARRIVAL_ROLE) - 1)) << EBB_ARRIVAL_SHIFT;
}

static inline __u32 ebb_arrival_role(__u64 entry)
{
	return entry >> EBB_ARRIVAL_ROLE & 1;
}

#endif
