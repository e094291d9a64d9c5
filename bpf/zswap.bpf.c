// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which swap slots zswap holds, and how often it does.  ebbd attaches these programs only while
 * zswap is in use (daemon/ebbd/prefetch/zswap.c).
 *
 * No hook in zswap is needed to know the slots: reclaim tells of each folio that it has sent to
 * swap, after its write was queued.  A folio without a write in the same task is held by zswap, or
 * is one of zeros, which the kernel keeps nowhere from Linux 6.12 on.  A later write to the slot,
 * of zswap's shrinker or of another page, clears its bit.  A write that a throttled device queues
 * late clears the bit late.
 *
 * Of the three programs that count hits, ebbd attaches the first that the kernel accepts.
 */
#include "vmlinux.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "track.bpf.h"

#define SWP_TYPE_SHIFT 58 /* of a swp_entry_t on 64-bit machines; include/linux/swapops.h */
#define FOLIO_WORDS 9     /* of the bits of a folio of 512 pages, aligned or not */

/* A bit for each slot, by ebb_slot_bit(); ebbd sets the length, a power of two. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} zswap_held SEC(".maps");

const volatile __u64 slot_mask; /* number of bits - 1 */

/* What the task wrote to swap last. */
struct written {
	__u64 entry;        /* 0 = nothing */
	__u64 counted;      /* pages of it counted as written back */
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct written);
} zswap_written SEC(".maps");

/* An enumerator of enum vm_event_item, which a kernel without zswap lacks. */
enum vm_event_item___zswap {
	ZSWPIN___zswap = 0,
};

static __always_inline bool is_in_swap_cache(unsigned long flags)
{
	unsigned long cached = 1UL << bpf_core_enum_value(enum pageflags, PG_swapcache) |
		1UL << bpf_core_enum_value(enum pageflags, PG_swapbacked);

	return (flags & cached) == cached;
}

/* Sets or clears the bits of @pages slots from @entry on. */
static __always_inline void mark(__u64 entry, __u32 pages, bool held)
{
	__u64 bit = ebb_slot_bit((__u32)(entry >> SWP_TYPE_SHIFT),
				 entry & ((1ULL << SWP_TYPE_SHIFT) - 1)), bits, *word;
	__u32 at, n;

	for (int i = 0; i < FOLIO_WORDS && pages; i++) {
		at = (__u32)((bit & slot_mask) / 64);
		n = 64 - (__u32)(bit & 63);
		n = n < pages ? n : pages;
		bits = (n < 64 ? (1ULL << (n & 63)) - 1 : ~0ULL) << (bit & 63);
		word = bpf_map_lookup_elem(&zswap_held, &at);
		if (!word)
			return;
		if (held)
			__sync_fetch_and_or(word, bits);
		else if (*(volatile __u64 *)word & bits)
			__sync_fetch_and_and(word, ~bits);
		bit += n;
		pages -= n;
	}
}

/* Returns the counters of the attached cgroup that governs @at, or NULL. */
static __always_inline struct ebb_zswap *counts_at(struct cgroup_at at)
{
	struct ebb_zswap fresh = {}, *z;
	__u64 owner = 0;

	if (!at.id || !cgroup_governor(at, &owner))
		return NULL;
	z = bpf_map_lookup_elem(&zswap, &owner);
	if (z)
		return z;
	bpf_map_update_elem(&zswap, &owner, &fresh, BPF_NOEXIST);
	return bpf_map_lookup_elem(&zswap, &owner);
}

/* @memcg_data: of a page. */
static __always_inline struct ebb_zswap *counts_of(unsigned long memcg_data)
{
	return counts_at(charged_cgroup(memcg_data));
}

SEC("tp_btf/block_bio_queue")
int BPF_PROG(zswap_bio, struct bio *bio)
{
	__u32 op = bio->bi_opf & 0xff, pages = bio->bi_iter.bi_size >> EBB_PAGE_SHIFT, dev;
	struct ebb_zswap *z = NULL;
	struct written *last;
	struct page *page;
	__u64 entry;

	if (!pages || (op != REQ_OP_WRITE && op != REQ_OP_READ))
		return 0;
	/* A bio's first page is the head of its folio, of any size. */
	page = bio->bi_io_vec->bv_page;
	if (!is_in_swap_cache(folio_flags((struct folio *)page)))
		return 0;
	dev = bio->bi_bdev->bd_dev;
	if (bpf_map_lookup_elem(&devices, &dev))
		z = counts_of(page->memcg_data);
	if (op == REQ_OP_READ) {
		count_atomic(z, misses, pages);
		return 0;
	}
	entry = page->private;
	mark(entry, pages, false);
	/* zswap_out() subtracts what reclaim itself wrote. */
	count_atomic(z, written_back, pages);
	last = bpf_task_storage_get(&zswap_written, bpf_get_current_task_btf(), 0,
				    BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (last) {
		last->entry = entry;
		last->counted = z ? pages : 0;
	}
	return 0;
}

SEC("tp_btf/mm_vmscan_write_folio")
int BPF_PROG(zswap_out, struct folio *folio)
{
	struct written *last;
	struct ebb_zswap *z;
	__u64 entry = 0;
	__u32 pages;

	/* A folio that has left the swap cache since it was written has no slot any more. */
	if (!is_in_swap_cache(folio_flags(folio)))
		return 0;
	/* Not a load: verifiers take a void * for a pointer. */
	bpf_core_read(&entry, sizeof(entry), &folio->private);
	pages = folio_pages(folio);
	z = counts_of(folio->memcg_data);
	last = bpf_task_storage_get(&zswap_written, bpf_get_current_task_btf(), 0, 0);
	if (last && last->entry == entry) {
		last->entry = 0;
		count_atomic(z, direct, last->counted);
		count_atomic(z, written_back, -last->counted);
		return 0;
	}
	mark(entry, pages, true);
	count_atomic(z, stored, pages);
	return 0;
}

/* Returned a bool, then an int of the opposite meaning; but a folio that it has loaded is valid. */
SEC("fexit/zswap_load")
int BPF_PROG(zswap_in, struct folio *folio)
{
	struct ebb_zswap *z;

	if (!(folio_flags(folio) & 1UL << bpf_core_enum_value(enum pageflags, PG_uptodate)))
		return 0;
	z = counts_of(folio->memcg_data);
	count_atomic(z, hits, 1);
	return 0;
}

/* Before 6.6. */
SEC("fexit/zswap_frontswap_load")
int BPF_PROG(zswap_in_frontswap, unsigned int type, unsigned long offset, struct page *page,
	     int result)
{
	struct ebb_zswap *z;

	if (result)
		return 0;
	z = counts_of(page->memcg_data);
	count_atomic(z, hits, 1);
	return 0;
}

/* From 6.16 on, where no function may be hooked.  Fires for every event of any cgroup. */
SEC("tp_btf/count_memcg_events")
int BPF_PROG(zswap_in_event, struct mem_cgroup *memcg, int item, unsigned long n)
{
	struct cgroup_at at;
	struct ebb_zswap *z;

	if (item != (int)bpf_core_enum_value(enum vm_event_item___zswap, ZSWPIN___zswap))
		return 0;
	at.cgroup = memcg->css.cgroup;
	at.id = at.cgroup->kn->id;
	z = counts_at(at);
	count_atomic(z, hits, n);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
