/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One accessor per kernel difference, newest first, with the change that
 * caused it.
 */
#ifndef EBB_COMPAT_BPF_H
#define EBB_COMPAT_BPF_H

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* 6.2 made rss_stat an array of per-CPU counters (f1a7941243c1). */
struct mm_rss_stat___before_6_2 {
	atomic_long_t count[4];
} __attribute__((preserve_access_index));
struct mm_struct___before_6_2 {
	struct mm_rss_stat___before_6_2 rss_stat;
} __attribute__((preserve_access_index));

/* Returns the pages of one kind, without other CPUs' unfolded counts. */
static __always_inline __s64 mm_pages(struct mm_struct *mm, int member)
{
	struct mm_struct___before_6_2 *old = (void *)mm;
	__s64 pages = 0;

	if (bpf_core_field_exists(mm->rss_stat[0].count))
		bpf_core_read(&pages, sizeof(pages), &mm->rss_stat[member].count);
	else
		bpf_core_read(&pages, sizeof(pages), &old->rss_stat.count[member].counter);
	return pages > 0 ? pages : 0;
}

/* The flags word comes first; 6.18 wrapped it in a struct. */
static __always_inline unsigned long folio_flags(struct folio *folio)
{
	unsigned long flags = 0;

	bpf_probe_read_kernel(&flags, sizeof(flags), folio);
	return flags;
}

/* Pages of a large folio: _folio_nr_pages on 6.1 and 6.12, _nr_pages on 6.18. */
struct folio___old {
	unsigned int _folio_nr_pages;
} __attribute__((preserve_access_index));
struct folio___now {
	unsigned int _nr_pages;
} __attribute__((preserve_access_index));

static __always_inline __u32 folio_pages(struct folio *folio)
{
	struct folio___now *now = (void *)folio;
	struct folio___old *old = (void *)folio;
	__u32 pages = 1;

	if (!(folio_flags(folio) & (1UL << bpf_core_enum_value(enum pageflags, PG_head))))
		return 1;
	if (bpf_core_field_exists(now->_nr_pages))
		bpf_core_read(&pages, sizeof(pages), &now->_nr_pages);
	else if (bpf_core_field_exists(old->_folio_nr_pages))
		bpf_core_read(&pages, sizeof(pages), &old->_folio_nr_pages);
	return pages ? pages : 1;
}

#endif
