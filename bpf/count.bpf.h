/* SPDX-License-Identifier: GPL-2.0-only */
/* Duration of a fault and role of its thread, for all programs that count faults. */
#ifndef EBB_COUNT_BPF_H
#define EBB_COUNT_BPF_H

#include <bpf/bpf_tracing.h>

#include "track.bpf.h"

static __always_inline __u32 log2_bucket(__u64 ns)
{
	__u32 bucket = 0;

	if (ns >> 32) {
		return EBB_HIST - 1;
	}
	if (ns >> 16) {
		ns >>= 16;
		bucket = 16;
	}
	if (ns >> 8) {
		ns >>= 8;
		bucket += 8;
	}
	if (ns >> 4) {
		ns >>= 4;
		bucket += 4;
	}
	if (ns >> 2) {
		ns >>= 2;
		bucket += 2;
	}
	if (ns >> 1)
		bucket += 1;
	return bucket & (EBB_HIST - 1);
}

/* Returns the role by the thread's name; searches again only when the name has changed. */
static __always_inline __u32 thread_role(struct task_struct *task, struct task_stamp *s)
{
	struct ebb_role_pattern *r;
	__u64 name[2], old[2];
	__u32 i, k;

	if (!s)
		return EBB_ROLE_APP;
	__builtin_memcpy(name, task->comm, sizeof(name));
	__builtin_memcpy(old, s->comm, sizeof(old));
	if (s->named && name[0] == old[0] && name[1] == old[1])
		return s->role;
	__builtin_memcpy(s->comm, name, sizeof(name));
	s->named = 1;
	s->role = EBB_ROLE_APP;
	for (i = 0; i < EBB_MAX_ROLES; i++) {
		k = i;
		r = bpf_map_lookup_elem(&roles, &k);
		if (!r || !r->mask[0])
			break;
		if (!(((name[0] ^ r->name[0]) & r->mask[0]) |
		      ((name[1] ^ r->name[1]) & r->mask[1]))) {
			s->role = r->role;
			break;
		}
	}
	return s->role;
}

/* A page that was requested at @issued was used, or wasted; not for cgroups without benefit=on. */
static __always_inline void count_source(const struct ebb_cgroup *cg, __u64 owner, __u64 issued,
					 bool used)
{
	struct ebb_source_counters *s;
	__u64 i = issued & EBB_ISSUED_SOURCE;

	if (!(cg->flags & EBB_CGROUP_BENEFIT))
		return;
	s = bpf_map_lookup_elem(&sources, &owner);
	if (!s)
		return;
	if (used)
		__sync_fetch_and_add(&s->used[i], 1);
	else
		__sync_fetch_and_add(&s->wasted[i], 1);
}

/* Number of @task's faults that have ended. */
static __always_inline __u64 faults_of(struct task_struct *task)
{
	return task->min_flt + task->maj_flt;
}

/*
 * Returns whether @s is the stamp of the fault on page @vpn, of which @ended is 1 where it is
 * counted as ended.  An older stamp may be of the page, too: from before detection was switched
 * off.
 */
static __always_inline bool is_entered(const struct task_stamp *s, struct task_struct *task,
				       __u64 vpn, __u32 ended)
{
	return s->vpn == vpn && s->enter_ns && s->faults + ended == faults_of(task);
}

/*
 * Returns the program's instruction that is interrupted: the same one at a fault's read and at its
 * end.  Reads of an madvise() or a direct I/O have another.
 */
static __always_inline __u64 program_ip(struct task_struct *task)
{
	struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);

	return PT_REGS_IP(regs);
}

/*
 * Returns the start of a fault: exact while hits are detected, else the time of its read.  Faults
 * of a thread never overlap, so their sum cannot exceed the time that it ran.
 */
static __always_inline __u64 fault_start(const struct task_stamp *s, bool entered, __u64 read_ns)
{
	__u64 start = entered ? s->enter_ns : read_ns;

	return start && start < s->end_ns ? s->end_ns : start;
}

/* Returns whether the program read the page of @p at @read_ns itself, before ebbd could. */
static __always_inline bool is_overtaken(const struct ebb_prefetch *p, __u64 read_ns)
{
	return read_ns < p->issued_ns + EBB_EVICTED_NS;
}

/*
 * Returns whether bpf/exact has counted the fault on page @vpn that has just ended.  An older fault
 * on the page, without an event, may be the last one that it counted.
 */
static __always_inline bool is_counted(const struct task_stamp *s, struct task_struct *task,
				       __u64 vpn)
{
	return s->counted == vpn && s->counted_faults + 1 == faults_of(task);
}

/*
 * Counts the miss of the task with @s, which queued its read at @read_ns, for the device that it
 * read from.  Not from the start of the fault: what precedes the read, such as reclaim, is no wait
 * for the device, and is timed only while hits are detected.
 */
static __always_inline void count_wait(const struct task_stamp *s, __u64 read_ns, __u64 now)
{
	__u64 start = fault_start(s, false, read_ns), ns = start < now ? now - start : 0;
	__u32 type = s->device - EBB_SWAP_TYPE, zero = 0;
	struct ebb_waits *w;

	if (!ns || type >= EBB_SWAP_TYPES)
		return;
	w = bpf_map_lookup_elem(&waits, &zero);
	if (w)
		__sync_fetch_and_add(&w->misses[type & (EBB_SWAP_TYPES - 1)]
					       [ebb_wait_bucket(ns, log2_bucket(ns)) &
						(EBB_WAITS - 1)], 1);
}

/* Memory is charged to the cgroup of the leader, where version 1 has threads in several. */
static __always_inline __u64 leaf_of(struct task_struct *task)
{
	return memory_cgroup(task->group_leader).id;
}

/* A prefetched page of @task's memory cgroup was used, or wasted. */
static __always_inline struct ebb_leaf *leaf_used(__u64 leaf, __u64 pages)
{
	struct ebb_leaf *l = bpf_map_lookup_elem(&leaves, &leaf);

	if (l && pages)
		__sync_fetch_and_add(&l->used, pages);
	return l;
}

#endif
