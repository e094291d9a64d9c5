// SPDX-License-Identifier: GPL-2.0-only
/*
 * Faults: counts misses, hits and late prefetches, and calls the policy.
 *
 * Three programs on software perf events, scoped to the attached cgroups:
 *
 *   fault_major  PERF_COUNT_SW_PAGE_FAULTS_MAJ, always on.  Free for minor
 *                faults.
 *   fault_enter  PERF_COUNT_SW_PAGE_FAULTS, at the start of every fault, and
 *   fault_minor  PERF_COUNT_SW_PAGE_FAULTS_MIN, at the end of minor ones: on
 *                only while prefetched pages are outstanding.
 *
 * Faults are classified by facts that all kernels share: whether the page is in
 * the prefetched set, whether the task queued its own swap read, and whether it
 * slept.  The kernel's major/minor flag is unusable: a wait for a page in flight
 * is major before 6.4 and minor since.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "count.bpf.h"
#include "epoch.bpf.h"

#define EEXIST 17
#include "batch.bpf.h"
#include "shared.bpf.h"
#include "told.bpf.h"

/* Human-readable totals, written only by ebbd; defined here for the BTF. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, EBB_MAX_CGROUPS);
	__type(key, __u64);
	__type(value, struct ebb_cgroup_stats);
} cgroup_stats SEC(".maps");

/* enum ebb_hooks: written by ebbd before faults are counted. */
__u32 hooks;

/* Written only by ebbd; see ebb_filter_bit(). */
__u64 filter[EBB_FILTER_WORDS];

/* The pages of a call of set_batch(); belongs to ebbd's executor. */
struct ebb_batch batch;

/* The pages of a call of look_shared(); belongs to ebbd's executor. */
struct ebb_look look;

static __always_inline void count_fault(struct ebb_counters *c, __u32 kind, __u64 ns, __u32 role)
{
	__u32 bucket = log2_bucket(ns);

	if (role == EBB_ROLE_GC) {
		if (kind == EBB_MISS)
			c->gc_misses++;
		else
			c->gc_hits++;
	}

	if (kind == EBB_MISS) {
		c->misses++;
		c->miss_ns += ns;
		if (ns)
			c->miss_hist[bucket]++;
		return;
	}
	if (kind == EBB_LATE) {
		c->late++;
		c->late_ns += ns;
	} else {
		c->hits++;
	}
	if (ns)
		c->hit_hist[bucket]++;
}

static __always_inline void record(const struct ebb_fault *f)
{
	struct ebb_trace *t = bpf_ringbuf_reserve(&trace, sizeof(*t), 0);

	if (!t)
		return;
	t->time_ns = f->time_ns;
	t->duration_ns = f->duration_ns;
	t->vpn = f->vpn;
	t->owner = f->owner;
	t->ip = f->ip;
	t->tgid = f->tgid;
	t->tid = f->tid;
	t->kind = (__u16)f->kind;
	t->role = (__u16)f->role;
	t->cluster = f->cluster;
	/* The reader polls: a wake-up per fault would cost too much. */
	bpf_ringbuf_submit(t, BPF_RB_NO_WAKEUP);
}

/* Adds the fault to the ring of a process that requested one; other CPUs may add concurrently. */
static __always_inline void arrival(const struct ebb_fault *f, __u64 address)
{
	__u32 tgid = f->tgid, *slot = bpf_map_lookup_elem(&epoch_slots, &tgid), i;
	struct ebb_arrivals *a;
	__u64 n;

	if (!slot)
		return;
	i = *slot;
	a = bpf_map_lookup_elem(&arrivals, &i);
	if (!a)
		return;
	n = __sync_fetch_and_add(&a->head, 1);
	a->entry[n % EBB_ARRIVALS] = ebb_arrival(n, address, f->kind, f->role);
}

#define TMPFS_MAGIC 0x01021994
#define S_IFMT 0170000
#define S_IFREG 0100000

struct mapping {
	__u64 first, end;
	bool file;                  /* of a file */
	bool memory;                /* anonymous, or of a file in shared memory */
	__u64 pages, index;         /* shared memory: struct address_space; .first in it */
};

/*
 * Tells memory, of which MADV_WILLNEED reads swap, from files, which it reads ahead even where the
 * mapping is private and its pages are in swap.  A tmpfs has the files of all shared memory.
 */
static long mapping_at(struct task_struct *task, struct vm_area_struct *vma, void *data)
{
	struct mapping *m = data;
	struct file *file = vma->vm_file;
	struct address_space *pages;
	struct inode *inode;

	m->first = vma->vm_start >> EBB_PAGE_SHIFT;
	m->end = vma->vm_end >> EBB_PAGE_SHIFT;
	m->file = file != NULL;
	m->memory = !file;
	if (!file)
		return 0;
	pages = BPF_CORE_READ(file, f_mapping);
	inode = BPF_CORE_READ(pages, host);
	m->memory = BPF_CORE_READ(inode, i_sb, s_magic) == TMPFS_MAGIC &&
		    (BPF_CORE_READ(inode, i_mode) & S_IFMT) == S_IFREG;
	m->pages = (__u64)pages;
	m->index = vma->vm_pgoff;
	return 0;
}

/* Tells ebbd that the fault @f is in memory, and in which cgroup. */
static __always_inline void tell_memory(const struct ebb_fault *f, const struct mapping *at,
					__u64 leaf, struct task_stamp *stamp)
{
	struct ebb_memory *m;

	/* Also if the ring is full: the next faults need not try, too. */
	stamp->tells++;
	m = bpf_ringbuf_reserve(&requests, sizeof(*m), 0);
	if (!m)
		return;
	m->first = at->first;
	m->stride = 1;
	m->end = at->end;
	m->owner = f->owner;
	m->time_ns = f->time_ns;
	m->tgid = f->tgid;
	m->exec = f->exec;
	m->count = 0;
	m->op = EBB_OP_MEMORY;
	m->source = 0;
	m->leaf = leaf;
	m->file = at->pages;
	m->index = at->index;
	/* Wakes: a record without a wake-up would suppress that of the request behind it. */
	bpf_ringbuf_submit(m, 0);
	told_end(stamp, at->first, at->end, leaf, f->time_ns);
}

/* Counts a swap fault and calls the policy of @owner; @issued: time of the page's request. */
static __always_inline int swap_fault(struct bpf_perf_event_data *ctx, struct task_struct *task,
				      struct ebb_cgroup *cg, __u64 owner, struct task_stamp *stamp,
				      __u64 vpn, __u32 kind, __u64 now, __u64 start, __u64 issued)
{
	__u64 ids = bpf_get_current_pid_tgid(), leaf = leaf_of(task);
	bool counted = stamp && is_counted(stamp, task, vpn);
	struct ebb_leaf *l = leaf_used(leaf, kind != EBB_MISS && !counted);
	struct ebb_counters *c = counters_of(owner);
	struct ebb_fault *f;
	struct mapping at = {};
	struct ebb_meta *m;
	__u32 zero = 0, policy = cg->policy;

	f = bpf_map_lookup_elem(&fault_scratch, &zero);
	m = bpf_map_lookup_elem(&meta, &zero);
	if (!f || !m || !c)
		return 0;
	f->vpn = vpn;
	f->time_ns = now;
	f->duration_ns = start && start < now ? now - start : 0;
	f->owner = owner;
	f->tgid = ids >> 32;
	f->tid = (__u32)ids;
	f->exec = (__u32)task->self_exec_id;
	f->kind = kind;
	f->policy = policy;
	f->ip = PT_REGS_IP(&ctx->regs);
	f->role = (__u16)thread_role(task, stamp);
	f->paused = (__u16)(cg->flags >> EBB_CGROUP_PAUSED_SHIFT);
	f->cluster = 0;
	f->room = l && l->room < cg->room ? l->room : cg->room;
	if (stamp) {
		f->cluster = stamp->reads;
		stamp->reads = 0;
		stamp->enter_ns = 0;
		stamp->end_ns = now;
	}
	if (!counted)
		count_fault(c, kind, f->duration_ns, f->role);
	if (stamp)
		stamp->counted = 0;
	if (kind == EBB_HIT && cg->timely_ns && now - issued > cg->timely_ns)
		c->by_chance++;
	if (cg->flags & EBB_CGROUP_RECORD)
		record(f);
	/* Only a stamp distinguishes a collector's fault from the program's. */
	if (stamp)
		arrival(f, ctx->addr);
	if (kind != EBB_HIT || !stamp || !(stamp->hits++ & 15)) {
		struct ebb_proc *p = proc_get(task, f->tgid, f->exec, task->mm, owner);

		if (p)
			proc_look(p, f->tgid, mm_pages(task->mm), owner);
	}
	/* Without ebbd nothing serves requests. */
	if (!policy || now - m->heartbeat_ns >= EBB_QUIET_NS)
		return 0;
	/*
	 * Not at each fault: with interrupts off, bpf_find_vma() has this processor interrupted to
	 * release mmap_lock.  It fails while a thread changes mappings; then only memory known
	 * before is prefetched.
	 */
	if (!stamp || (!is_told(stamp, vpn, leaf, f->time_ns) && may_tell(stamp, f->time_ns))) {
		bpf_find_vma(task, ctx->addr, mapping_at, &at, 0);
		if (at.file && !at.memory)
			return 0;
		if (at.memory && stamp)
			tell_memory(f, &at, leaf, stamp);
	}
	bpf_tail_call(ctx, &policies, policy);
	return 0;
}

/*
 * Returns whether the fault with @s on the prefetched page @vpn, requested at @issued, did not swap
 * it in: the program has unmapped the page, and this one is new.
 */
static __always_inline bool is_replaced(const struct task_stamp *s, __u64 vpn, __u64 issued)
{
	return s->swapped != vpn && hooks == EBB_HOOKS_FENTRY && !(issued & EBB_ISSUED_SHARED);
}

SEC("perf_event")
int fault_enter(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct task_stamp *s;

	s = bpf_task_storage_get(&stamps, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!s)
		return 0;
	s->vpn = ctx->addr >> EBB_PAGE_SHIFT;
	s->enter_ns = bpf_ktime_get_ns();
	s->faults = faults_of(task);
	s->nvcsw = task->nvcsw;
	s->swapped = 0;
	s->read_ns = 0;
	s->reads = 0;
	s->counted = 0;
	return 0;
}

SEC("perf_event")
int fault_minor(struct bpf_perf_event_data *ctx)
{
	struct ebb_page page = {
		.tgid = bpf_get_current_pid_tgid() >> 32,
		.vpn = ctx->addr >> EBB_PAGE_SHIFT,
	};
	__u64 owner, issued, start = 0, now;
	__u32 kind = EBB_HIT, bit = ebb_filter_bit(page.tgid, page.vpn);
	struct task_struct *task;
	struct ebb_prefetch *pre;
	struct ebb_cgroup *cg;
	struct task_stamp *s;

	if (!(filter[bit / 64 & (EBB_FILTER_WORDS - 1)] & 1ULL << (bit & 63)))
		return 0;
	task = bpf_get_current_task_btf();
	page.exec = (__u32)task->self_exec_id;
	pre = bpf_map_lookup_elem(&prefetched, &page);
	if (!pre)
		return 0;
	owner = pre->owner;
	issued = pre->issued_ns;
	s = bpf_task_storage_get(&stamps, task, 0, 0);
	if (s && is_entered(s, task, page.vpn, 1)) {
		if (is_replaced(s, page.vpn, issued))
			return 0;
		start = fault_start(s, true, 0);
		if (s->nvcsw != task->nvcsw)
			kind = EBB_LATE;
	}
	if (bpf_map_delete_elem(&prefetched, &page))
		return 0; /* another thread's fault on the same page came first */
	cg = bpf_map_lookup_elem(&cgroups, &owner);
	if (!cg)
		return 0;
	now = bpf_ktime_get_ns();
	count_source(cg, owner, issued, true);
	return swap_fault(ctx, task, cg, owner, s, page.vpn, kind, now, start, issued);
}

SEC("perf_event")
int fault_major(struct bpf_perf_event_data *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ebb_page page = {
		.tgid = bpf_get_current_pid_tgid() >> 32,
		.exec = (__u32)task->self_exec_id,
		.vpn = ctx->addr >> EBB_PAGE_SHIFT,
	};
	__u64 owner = 0, start = 0, read_ns = 0, issued = 0, now = bpf_ktime_get_ns();
	struct ebb_prefetch *pre;
	struct ebb_counters *c;
	struct ebb_cgroup *cg;
	struct mapping at = {};
	struct task_stamp *s;
	bool late, entered, counted = false;

	if (!task->mm)
		return 0;
	cg = cgroup_governor(memory_cgroup(task), &owner);
	if (!cg)
		return 0;
	c = counters_of(owner);
	if (!c)
		return 0;
	pre = bpf_map_lookup_elem(&prefetched, &page);
	s = bpf_task_storage_get(&stamps, task, 0, 0);
	if (s) {
		entered = is_entered(s, task, page.vpn, 1);
		counted = is_counted(s, task, page.vpn);
		/* Not the read of a fault without an event, which bpf/exact has counted. */
		if (s->read_ip == program_ip(task) && (!s->counted || counted))
			read_ns = s->read_ns;
		s->read_ns = 0;
		start = fault_start(s, entered, read_ns);
		/* Such as a page of a file that had to be read. */
		if (pre && entered && !counted && is_replaced(s, page.vpn, pre->issued_ns))
			pre = NULL;
	}
	late = counted ? s->counted_as == EBB_LATE :
			 pre && (!read_ns || is_overtaken(pre, read_ns));
	if (pre)
		issued = pre->issued_ns;
	if (pre && bpf_map_delete_elem(&prefetched, &page))
		pre = NULL;
	if (pre)
		count_source(cg, owner, issued, late && !counted);
	/* Evicted before its first access, or requested since bpf/exact counted the fault. */
	if (pre && (counted || !late)) {
		c->wasted++;
		leaf_used(leaf_of(task), 1);
	}
	if (late && (pre || counted))
		return swap_fault(ctx, task, cg, owner, s, page.vpn, EBB_LATE, now, start, now);
	if (read_ns) {
		if (s && !counted)
			count_wait(s, read_ns, now);
		return swap_fault(ctx, task, cg, owner, s, page.vpn, EBB_MISS, now, start, now);
	}
	/* Not known while another thread changes mappings. */
	if (bpf_find_vma(task, ctx->addr, mapping_at, &at, 0))
		return 0;
	if (at.file && !at.memory)
		c->file_majors++;
	else
		c->zero_majors++;
	return 0;
}

/* Called by ebbd: a call for each page would cost several times as much. */
SEC("syscall")
int set_batch(void *ctx)
{
	batch_run(&batch);
	return 0;
}

SEC("syscall")
int look_shared(void *ctx)
{
	shared_look(&look);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
