/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which mappings a thread has told ebbd lately, and how often it may.  Also part of a unit test.
 *
 * To tell costs a fault bpf_find_vma(), a record in the ring that all cgroups share, and a wake-up
 * of ebbd.
 */
#ifndef EBB_TOLD_BPF_H
#define EBB_TOLD_BPF_H

#include <ebb/maps.bpf.h>

#define TOLD_SHIFT 20       /* of ns: a unit is 1.05 ms; they wrap after 52 days */

/* 252 ms.  ebbd forgets after a second where a process faulted (TARGET_SPAN_NS). */
#define TELL_UNITS 240U

/*
 * Mappings that a thread tells in TELL_UNITS, as many as ebbd remembers of a process
 * (TARGET_SPANS).  A thread that faults in more than EBB_TOLD mappings by turns tells at each fault
 * until then: further ones would show ebbd nothing, and fill the ring.
 */
#define TELLS 64

static __always_inline __u32 told_time(__u64 now)
{
	return (__u32)(now >> TOLD_SHIFT);
}

/* Returns whether @s's thread has told ebbd lately that page @vpn is memory, and its cgroup. */
static __always_inline bool is_told(const struct task_stamp *s, __u64 vpn, __u64 leaf, __u64 now)
{
	if (s->leaf != leaf)
		return false;
	for (int i = 0; i < EBB_TOLD; i++) {
		const struct told *t = &s->told[i];

		if (vpn - t->first < t->pages && told_time(now) - t->time < TELL_UNITS)
			return true;
	}
	return false;
}

/* Returns whether @s's thread may tell a mapping now.  The caller counts it in .tells. */
static __always_inline bool may_tell(struct task_stamp *s, __u64 now)
{
	if (told_time(now) - s->tells_from >= TELL_UNITS) {
		s->tells_from = told_time(now);
		s->tells = 0;
	}
	return s->tells < TELLS;
}

/* Notes that it has told pages @first to @end - 1; forgets the mapping told longest ago. */
static __always_inline void told_end(struct task_stamp *s, __u64 first, __u64 end, __u64 leaf,
				     __u64 now)
{
	struct told *t = &s->told[s->turn++ & (EBB_TOLD - 1)];
	__u64 pages = end - first;

	t->first = first;
	t->pages = pages >> 32 ? ~0U : (__u32)pages;
	t->time = told_time(now);
	s->leaf = leaf;
}

#endif
