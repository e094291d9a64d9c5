/* SPDX-License-Identifier: GPL-2.0-only */
/* When epochs of processes end.  Also part of a unit test, on maps of its own. */
#ifndef EBB_EPOCH_BPF_H
#define EBB_EPOCH_BPF_H

#include <ebb/abi.h>

#define EPOCHS_PER_LOOK 4       /* at most; more would only measure how wrong the length was */
#define FOLD_PAGES 32           /* percpu_counter_batch: at least this, and two for each CPU */

const volatile __u32 possible_cpus = 1; /* written by ebbd */

/* Publishes the epoch to a process that requested it and reads it by a plain load. */
static __always_inline void epoch_publish(__u32 tgid, __u64 n)
{
	__u32 *slot = bpf_map_lookup_elem(&epoch_slots, &tgid), i;
	__u64 *epoch;

	if (!slot)
		return;
	i = *slot;
	epoch = bpf_map_lookup_elem(&epochs, &i);
	if (epoch)
		__sync_fetch_and_add(epoch, n);
}

/*
 * Returns the churn in pages that ends an epoch.
 *
 * From 6.2 on, each CPU counts up to percpu_counter_batch pages before it adds them to the count
 * that mm_pages() reads: with 256 CPUs, 512 MiB of a process may be missing.  A process counts as
 * having at least so much memory: the error of its count is no smaller anyway.
 */
static __always_inline __u64 epoch_length(struct mm_pages mm, __u32 percent)
{
	__u64 cpus = possible_cpus, pages = (__u64)(mm.in + mm.out), unfolded = 0;

	if (MM_PAGES_FROM_6_2)
		unfolded = cpus * (2 * cpus > FOLD_PAGES ? 2 * cpus : FOLD_PAGES);
	return ((pages > unfolded ? pages : unfolded) * percent + 99) / 100;
}

/*
 * Ends a process's epoch when its churn, pages in plus pages out, exceeds
 * epoch_percent of its memory.
 *
 * Pages out include pages dropped clean, which only bpf/exact sees.  Without it, no
 * event fires for them, but they can be computed: the pages out now are those out at
 * first, plus all pages that left, minus pages swapped in.
 */
static __always_inline void proc_look(struct ebb_proc *p, __u32 tgid, struct mm_pages mm,
				      __u64 owner)
{
	__u64 base = p->base, left, churn, length, past, n;
	struct ebb_counters *c;
	struct ebb_meta *m;
	__u32 zero = 0;

	m = bpf_map_lookup_elem(&meta, &zero);
	if (!m)
		return;
	left = p->swapped_in + mm.out - p->swapents;
	if (m->hooks != EBB_HOOKS_FENTRY && (__s64)left > (__s64)p->swapped_out)
		p->swapped_out = left;
	length = epoch_length(mm, m->epoch_percent);
	churn = p->swapped_in + p->swapped_out - base;
	if (!length || churn <= length || (__s64)churn < 0)
		return;
	n = churn / length;
	past = n * length;
	/* Looks are frequent.  The count was short, or the process has freed most of its memory. */
	if (n > EPOCHS_PER_LOOK) {
		n = EPOCHS_PER_LOOK;
		past = churn;
	}
	/* If two CPUs get here at once, one ends the epoch. */
	if (__sync_val_compare_and_swap(&p->base, base, base + past) != base)
		return;
	__sync_fetch_and_add(&p->epoch, n);
	epoch_publish(tgid, n);
	c = counters_of(owner);
	count_atomic(c, epochs, n);
}

#endif
