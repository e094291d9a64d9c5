// SPDX-License-Identifier: GPL-2.0-only
/*
 * Threads that ebbd pins to a CPU (placement=), and those that inherit the affinity.
 *
 * ebbd enters a thread before it pins it.  From then on, these programs follow it through fork,
 * exec and exit, also while no ebbd runs, so that every affinity can be restored and no thread is
 * taken for another one that had its number.  Loaded from the first pin on, until no attached
 * cgroup has placement=together and nothing is recorded.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include <ebb/abi.h>

#define CLONE_THREAD 0x00010000
#define PF_EXITING 0x4

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, EBB_MAX_PINNED);
	__type(key, __u32);
	__type(value, struct ebb_pinned);
} pinned SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} born SEC(".maps");

const volatile __u32 mask_bytes = 8; /* of a set of CPUs in the kernel; written by ebbd */
__u32 held[EBB_MAX_CGROUPS];        /* entries of one owner each, by ebb_pinned.slot */
__u32 entries;                      /* of all owners */
__u32 share;                        /* of one owner, beyond which heirs enter only while there are
				     * few entries; written by ebbd */
__u64 lost;                         /* heirs beyond that, or beyond EBB_MAX_PINNED */

/* Since Linux 6.2, the set of each thread that had a sched_setaffinity() (8f9ea86fdf99). */
static __always_inline cpumask_t *user_mask(struct task_struct *task)
{
	return BPF_CORE_READ(task, user_cpus_ptr);
}

/* Copies a set of CPUs; empty if it is longer than @to, which ebbd does not allow. */
static __always_inline void copy_mask(__u64 to[EBB_PINNED_WORDS], const void *mask)
{
	if (mask_bytes <= EBB_PINNED_WORDS * sizeof(*to))
		bpf_probe_read_kernel(to, mask_bytes, mask);
}

static __always_inline bool is_only(const cpumask_t *set, __u32 cpu)
{
	__u64 mask[EBB_PINNED_WORDS] = {};

	copy_mask(mask, set);
	for (__u32 i = 0; i < EBB_PINNED_WORDS; i++)
		if (mask[i] != (i == cpu / 64 ? 1ULL << cpu % 64 : 0))
			return false;
	return true;
}

/* Returns whether the affinity of @task is @cpu alone. */
static __always_inline bool has_only(struct task_struct *task, __u32 cpu)
{
	return is_only(user_mask(task) ?: &task->cpus_mask, cpu);
}

/*
 * Returns flags for the thread @task that the thread of @p has created, or 0 if its affinity is not
 * ebbd's.
 */
static __always_inline __u32 heir(struct task_struct *task, const struct ebb_pinned *p)
{
	struct task_struct *parent = bpf_get_current_task_btf();
	bool ours = !(p->flags & EBB_PINNED_SET) || (__u64)user_mask(parent) == p->id;

	/* The kernel copies the set in force first, the set of the user some time later. */
	bool late = is_only(&task->cpus_mask, (__u32)p->cpu);

	if (p->flags & EBB_PINNED_RELEASED)
		return late && (ours || !has_only(parent, (__u32)p->cpu)) ? EBB_PINNED_LATE : 0;
	/* The parent's user has set the affinity since. */
	if (!ours)
		return 0;
	if (has_only(task, (__u32)p->cpu))
		return p->flags | EBB_PINNED_SET;
	return late ? EBB_PINNED_LATE : 0;
}

static __always_inline void count(__u32 slot, int change)
{
	__sync_fetch_and_add(&held[slot], change);
	__sync_fetch_and_add(&entries, change);
}

/* The numbers follow each entry that is really added or deleted; ebbd counts its own. */
static __always_inline void leave(__u32 tid)
{
	struct ebb_pinned *e = bpf_map_lookup_elem(&pinned, &tid);
	__u32 slot;

	if (!e)
		return;
	slot = e->slot & (EBB_MAX_CGROUPS - 1);
	if (!bpf_map_delete_elem(&pinned, &tid))
		count(slot, -1);
}

static __always_inline void enter(__u32 tid, const struct ebb_pinned *e)
{
	__u32 slot = e->slot & (EBB_MAX_CGROUPS - 1);

	/* Of an exited thread that had the number. */
	leave(tid);
	count(slot, 1);
	if (!bpf_map_update_elem(&pinned, &tid, e, BPF_NOEXIST))
		return;
	count(slot, -1);
	__sync_fetch_and_add(&lost, 1);
}

SEC("tp_btf/task_newtask")
int BPF_PROG(place_born, struct task_struct *task, __u64 clone_flags)
{
	__u32 parent = (__u32)bpf_get_current_pid_tgid(), tid = (__u32)task->pid;
	struct ebb_pinned *old = bpf_map_lookup_elem(&pinned, &parent), e;
	__u32 flags = old ? heir(task, old) : 0;

	if (!flags)
		return 0;
	e = *old;
	/* Its parent is not pinned yet, but was when the fork began. */
	if (!(e.flags & EBB_PINNED_READ)) {
		const cpumask_t *user = user_mask(bpf_get_current_task_btf());

		__builtin_memset(e.user, 0, sizeof(e.user));
		if (user)
			copy_mask(e.user, user);
	}
	e.id = (__u64)user_mask(task);
	e.start = task->start_boottime;
	e.tgid = (__u32)task->tgid;
	e.flags = flags | EBB_PINNED_READ;
	if (!(clone_flags & CLONE_THREAD))
		e.flags |= EBB_PINNED_BORN;
	/* One cgroup that starts very many must leave place for the heirs of others. */
	if (held[e.slot & (EBB_MAX_CGROUPS - 1)] < share || entries < EBB_MAX_PINNED / 2)
		enter(tid, &e);
	else
		__sync_fetch_and_add(&lost, 1);
	bpf_ringbuf_output(&born, &tid, sizeof(tid), 0);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(place_exit, struct task_struct *task)
{
	leave((__u32)task->pid);
	return 0;
}

/* A thread that executes a program takes the number of the first thread, which has exited. */
SEC("tp_btf/sched_process_exec")
int BPF_PROG(place_exec, struct task_struct *task, int old_pid)
{
	__u32 tid = (__u32)task->pid, old = (__u32)old_pid;
	struct ebb_pinned *p = tid == old ? NULL : bpf_map_lookup_elem(&pinned, &old), e;

	if (!p)
		return 0;
	e = *p;
	/* It takes that, too. */
	e.start = task->start_boottime;
	leave(old);
	enter(tid, &e);
	return 0;
}

SEC("iter/task")
int place_read(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct ebb_pin row = {};
	struct ebb_pinned *e;
	cpumask_t *mask;

	if (!task)
		return 0;
	row.tid = (__u32)task->pid;
	e = bpf_map_lookup_elem(&pinned, &row.tid);
	if (!e)
		return 0;
	if (!e->start)
		e->start = task->start_boottime;
	/* Entered after sched_process_exit, or another thread's number; or no longer needed. */
	if (task->flags & PF_EXITING || e->start != task->start_boottime ||
	    (e->flags & EBB_PINNED_RELEASED &&
	     bpf_ktime_get_ns() - e->released > EBB_PINNED_FORK_NS)) {
		leave(row.tid);
		return 0;
	}
	mask = user_mask(task);
	row.now = (__u64)mask;
	if (mask)
		copy_mask(row.mask, mask);
	if (!(e->flags & EBB_PINNED_READ)) {
		__builtin_memcpy(e->user, row.mask, sizeof(e->user));
		e->flags |= EBB_PINNED_READ;
	}
	row.e = *e;
	bpf_seq_write(ctx->meta->seq, &row, sizeof(row));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
