// SPDX-License-Identifier: GPL-2.0-only
/*
 * Self-test of the fields that the other programs read from a page.  At start, while this program
 * is attached, ebbd touches pages of its own and compares the values with the right ones.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "track.bpf.h"

/* Pages first to end - 1 of process tgid; written by ebbd. */
__u32 tgid;
__u64 first, end;

__u64 seen;         /* pages of the process that came to the LRU lists */
__u64 found;        /* those that were recognized */
__u64 page_cgroup;  /* of the last one; 0 = none */
__u64 task_cgroup;  /* of the process */
__u32 mm_known;     /* bpf/compat knows how the kernel counts the pages of a process */

SEC("tp_btf/mm_lru_insertion")
int BPF_PROG(probe_page, struct folio *folio)
{
	struct task_struct *task = bpf_get_current_task_btf();
	unsigned long mapping = 0;
	__u64 index;

	if (!tgid || (__u32)task->tgid != tgid)
		return 0;
	seen++;
	bpf_core_read(&mapping, sizeof(mapping), &folio->mapping);
	index = folio->index;
	if (!mapping_is_anon(mapping) || index < first || index >= end)
		return 0;
	found++;
	mm_known = MM_PAGES_FROM_6_2 || MM_PAGES_BEFORE_6_2;
	page_cgroup = charged_cgroup(folio->memcg_data).id;
	task_cgroup = memory_cgroup(task).id;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
