// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel's readahead for anonymous memory, as a policy, for comparison under
 * equal conditions.  Set vm.page-cluster to 0 with it, or the kernel reads ahead, too.
 *
 * The rules are those of mm/swap_state.c in Linux 6.x:
 *  - __swapin_nr_pages(): the window, from hits and the window before;
 *  - swap_vma_readahead() with swap_ra_info(), later swap_vma_ra_win(): where
 *    the window lies, within the 2 MiB that one page table maps;
 *  - lookup_swap_cache(), later swap_cache_get_folio(): hits are counted up to
 *    63, and any fault on a page in the swap cache moves the place.
 *
 * Differences: the kernel keeps position, window and hits per VMA, and ends a window
 * with the VMA.  A policy sees no VMAs: it keeps them per 1 GiB of address space
 * (REGIONS of them, by hash), and ebbd skips unmapped pages.  The kernel reads the
 * window before it completes the fault, the policy requests it afterwards.
 */
#include <ebb/policy.h>

#undef linux    /* predefined by GNU C */

enum { PAGE_CLUSTER };

EBB_POLICY(linux, "the kernel's readahead around a miss, for comparison (set vm.page-cluster to 0)",
	EBB_PARAM(PAGE_CLUSTER, "page_cluster", 3, 0, 5,
		  "log2 of the largest window, like vm.page-cluster"))

#define REGIONS 16
#define REGION_SHIFT (30 - EBB_PAGE_SHIFT)
#define TABLE_PAGES 512         /* pages that one page table maps: PMD_SIZE */
#define FIRST_HITS 4            /* initial hits of a VMA without swap-ins */
#define MAX_HITS 63

struct linux_region {
	__u64 number;           /* 1 + its number in the address space; 0 = unused */
	__u64 last;             /* page of the last fault */
	__u32 window;
	__u32 hits;             /* faults on pages read ahead, since the last miss */
};

struct linux_state {
	struct linux_region region[REGIONS];
};

/* Returns the number of pages to read for a miss, including its own. */
static __always_inline __u64 linux_window(const struct linux_region *r, __u64 vpn, __u64 max)
{
	__u64 pages = 1;

	if (r->hits) {
		/* hits + 2 rounded up to a power of two: 4, 8, ... 128. */
		__u64 below = r->hits + 1;

		below |= below >> 1;
		below |= below >> 2;
		below |= below >> 4;
		pages = below + 1 < 4 ? 4 : below + 1;
	} else if (vpn == r->last + 1 || vpn == r->last - 1) {
		pages = 2;
	}
	if (pages > max)
		pages = max;
	return pages < r->window / 2 ? r->window / 2 : pages;
}

/* Requests the window without the faulting page, which the fault has swapped in. */
static __always_inline void linux_read(const struct ebb_fault *f, __u64 last, __u64 window)
{
	__u64 low = f->vpn & ~(__u64)(TABLE_PAGES - 1), high = low + TABLE_PAGES;
	__u64 first, end;

	if (f->vpn == last + 1)
		first = f->vpn;
	else if (last == f->vpn + 1)
		first = f->vpn - window + 1;
	else
		first = f->vpn - (window - 1) / 2;
	end = first + window;
	if ((__s64)first < (__s64)low)
		first = low;
	if (end > high)
		end = high;
	if (end > f->vpn + 1)
		ebb_prefetch(f, f->vpn + 1, 1, end - f->vpn - 1);
	if (first < f->vpn)
		ebb_prefetch(f, f->vpn - 1, -1, f->vpn - first);
}

static __always_inline void linux_fault(const struct ebb_fault *f, struct linux_state *s,
					const struct ebb_params *p)
{
	__u64 number = (f->vpn >> REGION_SHIFT) + 1, max = 1ULL << (p->v[PAGE_CLUSTER] & 7), last;
	struct linux_region *r = &s->region[(number ^ number / REGIONS) % REGIONS];

	if (r->number != number) {
		__builtin_memset(r, 0, sizeof(*r));
		r->number = number;
		r->hits = FIRST_HITS;
	}
	last = r->last;
	if (f->kind != EBB_MISS) {
		r->last = f->vpn;
		if (r->hits < MAX_HITS)
			r->hits++;
		return;
	}
	/* The kernel then does not update position and hits either. */
	if (max == 1)
		return;
	r->window = linux_window(r, f->vpn, max);
	r->hits = 0;
	r->last = f->vpn;
	if (r->window > 1)
		linux_read(f, last, r->window);
}
EBB_POLICY_ENTRY(linux, struct linux_state, linux_fault)
