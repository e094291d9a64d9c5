// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events that only fexit shows, where the kernel allows it: misses and late
 * prefetches of faults without an event, such as direct I/O's, and every page that
 * leaves a process, including pages dropped clean.
 *
 * Trampolines may be preempted but not migrated: each addition is atomic.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "count.bpf.h"
#include "epoch.bpf.h"

#define FAULT_NOT_DONE \
	(VM_FAULT_OOM | VM_FAULT_SIGBUS | VM_FAULT_SIGSEGV | VM_FAULT_HWPOISON | \
	 VM_FAULT_HWPOISON_LARGE | VM_FAULT_FALLBACK | VM_FAULT_RETRY)

/*
 * Takes the page out of the prefetched set; returns whether the program overtook its prefetch.
 * Otherwise one that is in the set was read and evicted unused.
 */
static __always_inline bool take_overtaken(struct task_struct *task, struct ebb_counters *c,
					   const struct ebb_cgroup *cg, __u64 owner, __u64 vpn,
					   __u64 read_ns)
{
	struct ebb_page page = {
		.tgid = task->tgid, .exec = (__u32)task->self_exec_id, .vpn = vpn,
	};
	struct ebb_prefetch *pre = bpf_map_lookup_elem(&prefetched, &page);
	bool late = pre && is_overtaken(pre, read_ns);
	__u64 issued = pre ? pre->issued_ns : 0;

	/* Another thread's fault on the same page may come first. */
	if (!pre || bpf_map_delete_elem(&prefetched, &page))
		return false;
	count_source(cg, owner, issued, late);
	if (!late)
		count_atomic(c, wasted, 1);
	leaf_used(leaf_of(task), 1);
	return late;
}

static __always_inline void count_late(struct ebb_counters *c, __u64 ns, __u32 role)
{
	count_atomic(c, late, 1);
	count_atomic(c, late_ns, ns);
	if (ns)
		count_atomic(c, hit_hist[log2_bucket(ns)], 1);
	if (role == EBB_ROLE_GC)
		count_atomic(c, gc_hits, 1);
}

static __always_inline void count_miss(struct ebb_counters *c, __u64 ns, __u32 role)
{
	count_atomic(c, misses, 1);
	count_atomic(c, miss_ns, ns);
	if (ns)
		count_atomic(c, miss_hist[log2_bucket(ns)], 1);
	if (role == EBB_ROLE_GC)
		count_atomic(c, gc_misses, 1);
}

/*
 * Counts misses and overtaken prefetches as bpf/fault defines them: the task queued its own read,
 * and the fault is major, or would be if it were not a retry (mm_account_fault).  bpf/fault, which
 * may get an event of the same fault, then does not count it again.  A fault without an event and
 * without a read stays uncounted: nothing here tells whether it waited for a prefetch.
 */
SEC("fexit/do_swap_page")
int BPF_PROG(exact_in, struct vm_fault *vmf, __u32 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u64 owner = 0, vpn, start, now, ns;
	struct ebb_counters *c;
	struct ebb_cgroup *cg;
	struct task_stamp *s;
	bool late;

	s = bpf_task_storage_get(&stamps, task, 0, 0);
	if (!s)
		return 0;
	vpn = vmf->address >> EBB_PAGE_SHIFT;
	s->swapped = vpn;
	if (!s->read_ns || s->counted || (result & FAULT_NOT_DONE))
		return 0;
	if (s->read_ip != program_ip(task))
		return 0;
	if (!(result & VM_FAULT_MAJOR) && !(vmf->flags & FAULT_FLAG_TRIED))
		return 0;
	cg = cgroup_governor(memory_cgroup(task), &owner);
	if (!cg)
		return 0;
	c = counters_of(owner);
	if (!c)
		return 0;
	now = bpf_ktime_get_ns();
	start = fault_start(s, is_entered(s, task, vpn, 0), s->read_ns);
	ns = start < now ? now - start : 0;
	/* ptrace() and process_vm_readv() fault in the memory of another process. */
	late = vmf->vma->vm_mm == task->mm &&
	       take_overtaken(task, c, cg, owner, vpn, s->read_ns);
	if (late) {
		count_late(c, ns, thread_role(task, s));
	} else {
		count_miss(c, ns, thread_role(task, s));
		count_wait(s, s->read_ns, now);
	}
	s->counted = vpn;
	s->counted_as = late ? EBB_LATE : EBB_MISS;
	s->counted_faults = faults_of(task);
	return 0;
}

/* Returns whether no page table maps the folio; large folios are unmapped as a whole. */
static __always_inline bool unmapped(struct folio *folio, __u32 pages)
{
	return pages > 1 || folio->_mapcount.counter < 0;
}

/* @done is a bool: the upper bits of its register are undefined. */
SEC("fexit/try_to_unmap_one")
int BPF_PROG(exact_out, struct folio *folio, struct vm_area_struct *vma, __u64 address, void *arg,
	     __u64 done)
{
	unsigned long mapping = 0, flags;
	struct task_struct *task;
	struct ebb_counters *c;
	struct cgroup_at at;
	struct mm_struct *mm;
	struct ebb_proc *p;
	__u64 owner = 0;
	__u32 pages;

	if (!(done & 0xff))
		return 0;
	bpf_core_read(&mapping, sizeof(mapping), &folio->mapping);
	if (!mapping_is_anon(mapping))
		return 0;
	flags = folio_flags(folio);
	/* Freed by MADV_FREE: the folio is dropped, not swapped out. */
	if (!(flags & 1UL << bpf_core_enum_value(enum pageflags, PG_swapbacked)))
		return 0;
	at = charged_cgroup(folio->memcg_data);
	if (!at.id || !cgroup_governor(at, &owner))
		return 0;
	pages = folio_pages(folio);
	/* The page tables' dirty bits are already in the folio's flags. */
	if (!(flags & 1UL << bpf_core_enum_value(enum pageflags, PG_dirty)) &&
	    unmapped(folio, pages)) {
		c = counters_of(owner);
		count_atomic(c, clean, pages);
	}
	mm = vma->vm_mm;
	task = mm->owner;
	if (!task)
		return 0;
	p = proc_get(task, task->tgid, (__u32)task->self_exec_id, mm, owner);
	if (p) {
		__sync_fetch_and_add(&p->swapped_out, pages);
		proc_look(p, task->tgid, mm_pages(mm), owner);
	}
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
