// SPDX-License-Identifier: GPL-2.0-only
/*
 * Events that only fexit shows, where the kernel allows it: misses of faults
 * without an event, such as direct I/O's, and every page that leaves a process,
 * including pages dropped clean.
 *
 * Trampolines may be preempted but not migrated: each addition is atomic.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "count.bpf.h"

#define FAULT_NOT_DONE \
	(VM_FAULT_OOM | VM_FAULT_SIGBUS | VM_FAULT_SIGSEGV | VM_FAULT_HWPOISON | \
	 VM_FAULT_HWPOISON_LARGE | VM_FAULT_FALLBACK | VM_FAULT_RETRY)

/*
 * Counts misses as bpf/fault defines them: the task queued its own read, and the
 * fault is major, or would be if it were not a retry (mm_account_fault).
 */
SEC("fexit/do_swap_page")
int BPF_PROG(exact_in, struct vm_fault *vmf, __u32 result)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct ebb_page page = {};
	__u64 owner = 0, vpn, start, now, ns;
	struct ebb_prefetch *pre;
	struct ebb_counters *c;
	struct task_stamp *s;

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
	if (!cgroup_governor(memory_cgroup(task), &owner))
		return 0;
	c = counters_of(owner);
	if (!c)
		return 0;
	now = bpf_ktime_get_ns();
	page.tgid = task->tgid;
	page.exec = (__u32)task->self_exec_id;
	page.vpn = vpn;
	pre = bpf_map_lookup_elem(&prefetched, &page);
	if (pre && is_overtaken(pre, s->read_ns))
		return 0; /* late: bpf/fault counts it */
	start = fault_start(s, is_entered(s, task, vpn, 0), s->read_ns);
	ns = start < now ? now - start : 0;
	s->counted = vpn;
	count_atomic(c, misses, 1);
	count_atomic(c, miss_ns, ns);
	if (ns)
		count_atomic(c, miss_hist[log2_bucket(ns)], 1);
	if (thread_role(task, s) == EBB_ROLE_GC)
		count_atomic(c, gc_misses, 1);
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
