/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What ebbd does to many pages of maps/prefetched in one call.  Also part of the unit test of
 * daemon/ebbd/prefetch/prefetch_set.c, on a map of its own.
 */
#ifndef EBB_BATCH_BPF_H
#define EBB_BATCH_BPF_H

#include <ebb/abi.h>

/* Enters a page that is not in the set; of one that is, tells whether it may be evicted by now. */
static __always_inline __u8 batch_enter(const struct ebb_batch *b, const struct ebb_page *page)
{
	struct ebb_prefetch fresh = { .issued_ns = b->now_ns, .owner = b->owner }, *old;
	long r = bpf_map_update_elem(&prefetched, page, &fresh, BPF_NOEXIST);

	if (!r)
		return EBB_BATCH_DONE;
	if (r != -EEXIST)
		return EBB_BATCH_FULL;
	old = bpf_map_lookup_elem(&prefetched, page);
	return old && old->issued_ns + EBB_EVICTED_NS <= b->now_ns ? EBB_BATCH_OLD :
								     EBB_BATCH_YOUNG;
}

/* Restarts the age of a page; one that was used meanwhile stays out. */
static __always_inline __u8 batch_renew(const struct ebb_batch *b, const struct ebb_page *page)
{
	struct ebb_prefetch *old = bpf_map_lookup_elem(&prefetched, page), value;

	if (!old)
		return EBB_BATCH_FULL;
	/* A page stays charged to the owner that counted it, whichever cgroup requests it now. */
	value.issued_ns = (b->now_ns & ~EBB_ISSUED_BITS) | (old->issued_ns & EBB_ISSUED_BITS);
	value.owner = old->owner;
	return bpf_map_update_elem(&prefetched, page, &value, BPF_EXIST) ? EBB_BATCH_FULL :
									   EBB_BATCH_DONE;
}

static __always_inline void batch_run(struct ebb_batch *b)
{
	struct ebb_page page = { .tgid = b->tgid, .exec = b->exec };

	for (__u32 i = 0; i < EBB_BATCH_MAX && i < b->n; i++) {
		page.vpn = b->vpn[i];
		if (b->op == EBB_BATCH_ENTER)
			b->state[i] = batch_enter(b, &page);
		else if (b->op == EBB_BATCH_RENEW)
			b->state[i] = batch_renew(b, &page);
		else if (!bpf_map_delete_elem(&prefetched, &page))
			b->state[i] = EBB_BATCH_DONE;
	}
}

#endif
