/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which pages of shared memory are in swap.  A page table has no entry for them; the page cache of
 * their file has: an xarray (include/linux/xarray.h) with a value for each page in swap, read here
 * without a lock.  A file that is freed meanwhile yields any answer; the kernel itself looks again
 * when it reads the pages.  Also part of the unit test of daemon/ebbd/prefetch/target.c, on an
 * xarray of its own.
 */
#ifndef EBB_SHARED_BPF_H
#define EBB_SHARED_BPF_H

#include <ebb/abi.h>

#define XA_TAG 3UL
#define XA_VALUE 1UL                /* bit: a value, not a pointer */
#define XA_INTERNAL 2UL             /* of XA_TAG: a node, or below XA_NODE_MIN a special entry */
#define XA_NODE_MIN 4096UL
#define XA_DEPTH 8
#define SWAP_TYPE_SHIFT 59          /* of a swp_entry_t as a value: SWP_TYPE_SHIFT + 1 */

static __always_inline bool xa_is_a_node(__u64 entry)
{
	return (entry & XA_TAG) == XA_INTERNAL && entry > XA_NODE_MIN;
}

/*
 * Returns the entry of page @index of the address space @file.  The pages of a large swap entry
 * but the first one have a special entry: the kernel does not prefetch them either.
 */
__noinline __u64 page_cache_entry(__u64 file, __u64 index)
{
	__u64 slots = bpf_core_field_size(struct xa_node, slots) / sizeof(void *), at, entry;
	__u64 offset = bpf_core_field_offset(struct xa_node, slots);
	struct address_space *pages = (void *)file;
	struct xa_node *node;
	bool top = true;

	entry = (__u64)BPF_CORE_READ(pages, i_pages.xa_head);
	if (!xa_is_a_node(entry))
		return index ? 0 : entry;
	for (int depth = 0; depth < XA_DEPTH && xa_is_a_node(entry); depth++) {
		node = (void *)(entry - XA_INTERNAL);
		at = index >> (BPF_CORE_READ(node, shift) & 63);
		if (top && at >= slots)
			return 0;
		top = false;
		at = offset + (at & (slots - 1)) * sizeof(entry);
		if (bpf_core_read(&entry, sizeof(entry), (void *)node + at))
			return 0;
	}
	return entry;
}

static __always_inline void shared_look(struct ebb_look *l)
{
	__u64 entry;

	for (__u32 i = 0; i < EBB_BATCH_MAX && i < l->n; i++) {
		entry = page_cache_entry(l->page[i].file, l->page[i].index);
		l->slot[i] = entry >> 1 & ((1ULL << (SWAP_TYPE_SHIFT - 1)) - 1);
		l->type[i] = entry & XA_VALUE ? entry >> SWAP_TYPE_SHIFT : EBB_LOOK_NOT_SWAPPED;
	}
}

#endif
