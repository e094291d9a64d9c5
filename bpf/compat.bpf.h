/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One accessor per kernel difference, newest first, with the change that
 * caused it.
 *
 * Most pointers here are typed: arguments of tp_btf and fexit programs, the current task, and
 * what a load from them yields.  A load through one is an instruction, a bpf_core_read() a call.
 */
#ifndef EBB_COMPAT_BPF_H
#define EBB_COMPAT_BPF_H

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/* 6.2 made rss_stat an array of per-CPU counters (f1a7941243c1). */
struct percpu_counter___from_6_2 {
	__s64 count;
} __attribute__((preserve_access_index));
struct mm_struct___from_6_2 {
	struct percpu_counter___from_6_2 rss_stat[4];
} __attribute__((preserve_access_index));
struct mm_rss_stat___before_6_2 {
	atomic_long_t count[4];
} __attribute__((preserve_access_index));
struct mm_struct___before_6_2 {
	struct mm_rss_stat___before_6_2 rss_stat;
} __attribute__((preserve_access_index));

#define MM_PAGES_FROM_6_2 bpf_core_field_exists(struct mm_struct___from_6_2, rss_stat[0].count)
#define MM_PAGES_BEFORE_6_2 bpf_core_field_exists(struct mm_struct___before_6_2, rss_stat.count)

/*
 * Pages of a process: anonymous and shared memory that it maps, and anonymous pages in swap.
 * From 6.2 on, without what each CPU has not folded into the count: epoch.bpf.h.
 */
struct mm_pages {
	__s64 in, out;
};

static __always_inline struct mm_pages mm_pages_sum(__s64 anon, __s64 shared, __s64 out)
{
	struct mm_pages n;

	n.in = (anon > 0 ? anon : 0) + (shared > 0 ? shared : 0);
	n.out = out > 0 ? out : 0;
	return n;
}

/* @mm is not typed.  A kernel that counts in another form has no pages here: bpf/probe tells. */
static __always_inline struct mm_pages mm_pages_read(struct mm_struct *mm)
{
	struct mm_struct___before_6_2 *old = (void *)mm;
	struct mm_struct___from_6_2 *now = (void *)mm;
	__s64 anon = 0, shared = 0, out = 0;

	if (MM_PAGES_FROM_6_2) {
		bpf_core_read(&anon, sizeof(anon), &now->rss_stat[MM_ANONPAGES].count);
		bpf_core_read(&shared, sizeof(shared), &now->rss_stat[MM_SHMEMPAGES].count);
		bpf_core_read(&out, sizeof(out), &now->rss_stat[MM_SWAPENTS].count);
	} else if (MM_PAGES_BEFORE_6_2) {
		bpf_core_read(&anon, sizeof(anon), &old->rss_stat.count[MM_ANONPAGES].counter);
		bpf_core_read(&shared, sizeof(shared), &old->rss_stat.count[MM_SHMEMPAGES].counter);
		bpf_core_read(&out, sizeof(out), &old->rss_stat.count[MM_SWAPENTS].counter);
	}
	return mm_pages_sum(anon, shared, out);
}

/* @mm is typed. */
static __always_inline struct mm_pages mm_pages(struct mm_struct *mm)
{
	struct mm_struct___from_6_2 *now = (void *)mm;

	/* Verifiers before 6.2 know no array of typedefs. */
	if (!MM_PAGES_FROM_6_2)
		return mm_pages_read(mm);
	return mm_pages_sum(now->rss_stat[MM_ANONPAGES].count, now->rss_stat[MM_SHMEMPAGES].count,
			    now->rss_stat[MM_SWAPENTS].count);
}

/* The flags word comes first, in a page and in a folio; 6.18 wrapped it in a struct. */
static __always_inline unsigned long folio_flags(struct folio *folio)
{
	return *(unsigned long *)folio;
}

/* 6.4 added the iterators with the casts in their present form (06accc8779c1). */
extern void *bpf_rdonly_cast(const void *obj, __u32 btf_id) __ksym __weak;

/*
 * 7.1 charges a page of the LRU lists to an obj_cgroup, one for each memory cgroup and node
 * (01b9da291c49), which passes to the parent when the cgroup is removed.
 */
struct mem_cgroup_per_node___from_7_1 {
	struct obj_cgroup *objcg;
} __attribute__((preserve_access_index));

#define CHARGED_TO_OBJCG bpf_core_field_exists(struct mem_cgroup_per_node___from_7_1, objcg)

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
		pages = now->_nr_pages;
	else if (bpf_core_field_exists(old->_folio_nr_pages))
		pages = old->_folio_nr_pages;
	return pages ? pages : 1;
}

#endif
