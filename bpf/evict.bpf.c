// SPDX-License-Identifier: GPL-2.0-only
/*
 * Swap-outs, swap-ins, epochs, and the life cycle of tracked processes and cgroups.
 *
 * The hooked events are rare compared with faults: a page queued to a swap
 * device, a folio written by reclaim, an exit, a cgroup removed.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "count.bpf.h"
#include "epoch.bpf.h"

/*
 * Epochs end when churn exceeds a share of a process's pages: of the folios that reclaim writes,
 * one in this many, at random, is attributed to a process.  A power of two.
 */
#define LOOK_PAGES 8
#define ANON_VMA_DEPTH 24 /* height of a red-black tree of thousands of mappings */
#define SWP_TYPE_SHIFT 58 /* of a swp_entry_t on 64-bit machines; include/linux/swapops.h */

/* Counts @pages that @tid, a thread of ebbd, reads for the process that it prefetches for. */
static __always_inline void executor_read(__u32 tid, __u32 pages)
{
	struct ebb_executor *x;
	struct ebb_proc *p;
	__u32 zero = 0, tgid;

	x = bpf_map_lookup_elem(&executor, &zero);
	if (!x)
		return;
	__sync_fetch_and_add(&x->reads, 1);
	__sync_fetch_and_add(&x->pages, pages);
	if (x->reader.tid != tid)
		return;
	tgid = x->reader.tgid;
	p = bpf_map_lookup_elem(&procs, &tgid);
	if (p && p->exec == x->reader.exec)
		__sync_fetch_and_add(&p->swapped_in, pages);
}

/* Counts @pages that reclaim writes, if ebbd's prefetch thread pages them out. */
static __always_inline void executor_wrote(__u64 pages)
{
	struct ebb_executor *x;
	__u32 zero = 0;

	x = bpf_map_lookup_elem(&executor, &zero);
	if (x && x->reader.tid == (__u32)bpf_get_current_pid_tgid())
		__sync_fetch_and_add(&x->written, pages);
}

/* Learns the swap type of a device from @page, which is written to it or read from it. */
static __always_inline void learn_swap_type(__u32 *type, struct page *page)
{
	unsigned long flags = folio_flags((struct folio *)page), cached =
		1UL << bpf_core_enum_value(enum pageflags, PG_swapcache) |
		1UL << bpf_core_enum_value(enum pageflags, PG_swapbacked);
	__u32 now;

	if ((flags & cached) != cached)
		return;
	now = EBB_SWAP_TYPE + (__u32)(page->private >> SWP_TYPE_SHIFT);
	if (*type != now)
		*type = now;
}

/* Counts pages written to or read from one of our devices. */
SEC("tp_btf/block_bio_queue")
int BPF_PROG(swap_bio, struct bio *bio)
{
	__u32 dev = bio->bi_bdev->bd_dev, zero = 0, op, pages, *type;
	struct task_struct *task;
	struct ebb_counters *c;
	struct task_stamp *s;
	struct cgroup_at at;
	struct page *page;
	struct ebb_meta *m;
	struct ebb_proc *p;
	__u64 owner = 0, ip;

	type = bpf_map_lookup_elem(&devices, &dev);
	if (!type)
		return 0;
	/* A bio's first page is the head of its folio, of any size. */
	page = bio->bi_io_vec->bv_page;
	learn_swap_type(type, page);
	at = charged_cgroup(page->memcg_data);
	if (!at.id || !cgroup_governor(at, &owner))
		return 0;
	c = counters_of(owner);
	op = bio->bi_opf & 0xff;
	pages = bio->bi_iter.bi_size >> EBB_PAGE_SHIFT;
	if (op == REQ_OP_WRITE) {
		count_atomic(c, swapped_out, pages);
		return 0;
	}
	if (op != REQ_OP_READ)
		return 0;
	count_atomic(c, swapped_in, pages);

	task = bpf_get_current_task_btf();
	m = bpf_map_lookup_elem(&meta, &zero);
	if (m && m->daemon_tgid == (__u32)task->tgid) {
		executor_read((__u32)task->pid, pages);
		return 0;
	}
	if (!task->mm)
		return 0;
	s = bpf_task_storage_get(&stamps, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (s) {
		ip = program_ip(task);
		if (s->counted || s->read_ip != ip) {
			s->counted = 0;
			s->read_ns = 0;
			s->read_ip = ip;
			s->reads = 0;
		}
		if (!s->read_ns)
			s->read_ns = bpf_ktime_get_ns();
		s->device = *type;
		s->reads += pages;
	}
	p = proc_get(task, task->tgid, (__u32)task->self_exec_id, task->mm, owner);
	if (p)
		__sync_fetch_and_add(&p->swapped_in, pages);
	return 0;
}

static __always_inline void record_out(__u64 owner, __u64 vpn, __u32 tgid, __u64 pages)
{
	struct ebb_trace *t;

	t = bpf_ringbuf_reserve(&trace, sizeof(*t), 0);
	if (!t)
		return;
	__builtin_memset(t, 0, sizeof(*t));
	t->time_ns = bpf_ktime_get_ns();
	t->vpn = vpn;
	t->owner = owner;
	t->tgid = tgid;
	t->kind = EBB_OUT;
	t->cluster = pages > 1 ? (__u32)pages : 0;
	bpf_ringbuf_submit(t, BPF_RB_NO_WAKEUP);
}

static __always_inline struct anon_vma_chain *chain_of(struct rb_node *node)
{
	return node ? (void *)node - bpf_core_field_offset(struct anon_vma_chain, rb) : NULL;
}

/*
 * Returns the mapping that covers page @index of an anon_vma, or NULL.  Adjacent
 * mappings of one process, which could be merged later, share an anon_vma too:
 * the heaps of many allocators.  In the interval tree (mm/interval_tree.c), each
 * node has the last page of its subtree.
 */
static __always_inline struct vm_area_struct *vma_covering(struct rb_node *node, __u64 index)
{
	for (int depth = 0; depth < ANON_VMA_DEPTH && node; depth++) {
		struct anon_vma_chain *avc = chain_of(node), *left, *right;
		struct vm_area_struct *vma = BPF_CORE_READ(avc, vma);
		__u64 first = BPF_CORE_READ(vma, vm_pgoff), pages;

		left = chain_of(BPF_CORE_READ(node, rb_left));
		if (left && BPF_CORE_READ(left, rb_subtree_last) >= index) {
			node = BPF_CORE_READ(node, rb_left);
			continue;
		}
		pages = (BPF_CORE_READ(vma, vm_end) - BPF_CORE_READ(vma, vm_start)) >>
			EBB_PAGE_SHIFT;
		if (index >= first && index < first + pages)
			return vma;
		right = chain_of(BPF_CORE_READ(node, rb_right));
		if (index < first || !right || BPF_CORE_READ(right, rb_subtree_last) < index)
			return NULL;
		node = BPF_CORE_READ(node, rb_right);
	}
	return NULL;
}

/* Reclaim writes a folio: counts memory, and finds the owner of an anonymous one. */
SEC("tp_btf/mm_vmscan_write_folio")
int BPF_PROG(swap_write, struct folio *folio)
{
	struct cgroup_at at = charged_cgroup(folio->memcg_data);
	struct vm_area_struct *vma;
	unsigned long mapping = 0;
	struct ebb_counters *c;
	struct task_struct *task;
	struct ebb_cgroup *cg;
	struct mm_struct *mm;
	struct rb_node *node;
	struct ebb_proc *p;
	__u64 owner = 0, index, pages, swapbacked;
	__u32 tgid;

	cg = at.id ? cgroup_governor(at, &owner) : NULL;
	if (!cg)
		return 0;
	/* Not typed: its low bits are flags. */
	bpf_core_read(&mapping, sizeof(mapping), &folio->mapping);
	swapbacked = folio_flags(folio) & 1UL << bpf_core_enum_value(enum pageflags, PG_swapbacked);
	/* Shared memory has left its file by now: its pages have no address any more. */
	if (!mapping_is_anon(mapping) && (mapping || !swapbacked))
		return 0;
	c = counters_of(owner);
	pages = folio_pages(folio);
	count_atomic(c, written, pages);
	executor_wrote(pages);
	if (!mapping)
		return 0;

	node = BPF_CORE_READ((struct anon_vma *)(mapping & ~PAGE_MAPPING_FLAGS),
			     rb_root.rb_root.rb_node);
	if (!node)
		return 0;
	if (BPF_CORE_READ(node, rb_left) || BPF_CORE_READ(node, rb_right))
		count_atomic(c, shared, pages);
	if (!(cg->flags & EBB_CGROUP_RECORD) && bpf_get_prandom_u32() & (LOOK_PAGES - 1))
		return 0;
	index = folio->index;
	vma = vma_covering(node, index);
	if (!vma)
		return 0;
	/* After a fork, the first process found need not map this page any more. */
	mm = BPF_CORE_READ(vma, vm_mm);
	task = BPF_CORE_READ(mm, owner);
	if (!task)
		return 0;
	tgid = BPF_CORE_READ(task, tgid);
	if (cg->flags & EBB_CGROUP_RECORD)
		record_out(owner, (BPF_CORE_READ(vma, vm_start) >> EBB_PAGE_SHIFT) + index -
			   BPF_CORE_READ(vma, vm_pgoff), tgid, pages);
	p = proc_get(task, tgid, (__u32)BPF_CORE_READ(task, self_exec_id), mm, owner);
	if (p)
		proc_look(p, tgid, mm_pages_read(mm), owner);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(proc_exit, struct task_struct *task)
{
	__u32 tgid = task->tgid;

	if (task->signal->live.counter == 0) {
		bpf_map_delete_elem(&procs, &tgid);
		bpf_map_delete_elem(&epoch_slots, &tgid);
	}
	return 0;
}

/* Frees a cached entry, or has ebbd free an attached cgroup's; cgroup ids are never reused. */
SEC("tp_btf/cgroup_rmdir")
int BPF_PROG(cgroup_gone, struct cgroup *cg)
{
	__u64 id = cg->kn->id;
	struct ebb_cgroup *c = bpf_map_lookup_elem(&cgroups, &id);
	struct ebb_active *a;
	__u32 zero = 0;

	if (!c) {
		bpf_map_delete_elem(&governors, &id);
		return 0;
	}
	a = bpf_map_lookup_elem(&active, &zero);
	if (a)
		set_bit(a->removed, ebb_active_bit(id));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
