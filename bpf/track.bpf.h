/* SPDX-License-Identifier: GPL-2.0-only */
/* Finds the cgroup that governs a task or page, and the record of a process that pages. */
#ifndef EBB_TRACK_BPF_H
#define EBB_TRACK_BPF_H

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include <ebb/maps.bpf.h>
#include "compat.bpf.h"

#define CGROUP_DEPTH 16
#define PAGE_MAPPING_FLAGS 3UL
#define PAGE_MAPPING_ANON 1UL

/* Returns whether a folio with this mapping is anonymous: neither shmem nor KSM. */
static __always_inline bool mapping_is_anon(unsigned long mapping)
{
	return (mapping & PAGE_MAPPING_FLAGS) == PAGE_MAPPING_ANON;
}

/* A cgroup, and its id. */
struct cgroup_at {
	struct cgroup *cgroup;
	__u64 id;           /* 0 = none */
};

/* Returns the memory cgroup of @task, which is typed. */
static __always_inline struct cgroup_at memory_cgroup(struct task_struct *task)
{
	struct css_set *set = task->cgroups;
	struct cgroup_subsys_state **css = (void *)set + bpf_core_field_offset(set->subsys);
	struct cgroup_at at;

	css += bpf_core_enum_value(enum cgroup_subsys_id, memory_cgrp_id);
	at.cgroup = (*css)->cgroup;
	at.id = at.cgroup->kn->id;
	return at;
}

static __always_inline struct ebb_cgroup *cgroup_attached(__u64 id)
{
	struct ebb_cgroup *c = bpf_map_lookup_elem(&cgroups, &id);

	return c && (c->flags & EBB_CGROUP_ATTACHED) ? c : NULL;
}

/*
 * Returns the cgroup or its nearest ancestor with a policy, and stores that id in
 * @owner.  Caches the result in maps/governors, so that it seldom searches.
 */
static __always_inline struct ebb_cgroup *cgroup_governor(struct cgroup_at at, __u64 *owner)
{
	struct ebb_cgroup *c = cgroup_attached(at.id);
	struct cgroup *cg = at.cgroup;
	__u64 id = at.id, up = id, *known;

	if (!c) {
		known = bpf_map_lookup_elem(&governors, &id);
		if (known) {
			up = *known;
			c = up ? cgroup_attached(up) : NULL;
		} else {
			for (int i = 0; !c && i < CGROUP_DEPTH; i++) {
				/* The css in struct cgroup is its first member. */
				cg = (void *)BPF_CORE_READ(cg, self.parent);
				if (!cg)
					break;
				up = BPF_CORE_READ(cg, kn, id);
				c = cgroup_attached(up);
			}
			up = c ? up : 0;
			bpf_map_update_elem(&governors, &id, &up, BPF_NOEXIST);
		}
	}
	if (c)
		*owner = up;
	return c;
}

/* Returns the cgroup to which a page with @memcg_data is charged. */
static __always_inline struct cgroup_at charged_cgroup(unsigned long memcg_data)
{
	struct mem_cgroup *memcg = (void *)memcg_data;
	struct obj_cgroup *objcg = (void *)memcg_data;
	struct cgroup_at at = {};
	struct cgroup *cgroup;

	/* The low bits mark slab and kernel memory, which is never swapped. */
	if (!memcg_data || (memcg_data & 3))
		return at;
	if (bpf_core_type_exists(struct bpf_iter_num)) {
		if (CHARGED_TO_OBJCG) {
			objcg = bpf_rdonly_cast(objcg, bpf_core_type_id_kernel(struct obj_cgroup));
			memcg = objcg->memcg;
		} else {
			memcg = bpf_rdonly_cast(memcg, bpf_core_type_id_kernel(struct mem_cgroup));
		}
		at.cgroup = memcg->css.cgroup;
		at.id = at.cgroup->kn->id;
	} else {
		cgroup = BPF_CORE_READ(memcg, css.cgroup);
		at.cgroup = cgroup;
		at.id = BPF_CORE_READ(cgroup, kn, id);
	}
	return at;
}

static __always_inline void set_bit(__u64 *words, __u32 bit)
{
	__u64 *word = &words[bit / 64 & (EBB_ACTIVE_WORDS - 1)], mask = 1ULL << (bit & 63);

	/* Most are set already: a plain load keeps the cache line shared. */
	if (!(*(volatile __u64 *)word & mask))
		__sync_fetch_and_or(word, mask);
}

/* Tells ebbd that the attached cgroup @owner is active. */
static __always_inline struct ebb_counters *counters_of(__u64 owner)
{
	struct ebb_active *a;
	__u32 zero = 0;

	a = bpf_map_lookup_elem(&active, &zero);
	if (a)
		set_bit(a->counted, ebb_active_bit(owner));
	return bpf_map_lookup_elem(&counters, &owner);
}

/* tp_btf programs may be preempted and migrated between load and store. */
#define count_atomic(c, field, n) \
	do { \
		if (c) \
			__sync_fetch_and_add(&(c)->field, (n)); \
	} while (0)

/* @tgid and @exec are @task's; @mm is its memory. */
static __always_inline struct ebb_proc *proc_get(struct task_struct *task, __u32 tgid, __u32 exec,
						 struct mm_struct *mm, __u64 owner)
{
	struct ebb_proc *p = bpf_map_lookup_elem(&procs, &tgid);
	struct ebb_proc fresh = {};

	if (p && p->exec == exec)
		return p;
	fresh.cgroup = owner;
	fresh.exec = exec;
	fresh.swapents = mm_pages_read(mm).out;
	BPF_CORE_READ_STR_INTO(&fresh.comm, task, group_leader, comm);
	bpf_map_update_elem(&procs, &tgid, &fresh, BPF_ANY);
	return bpf_map_lookup_elem(&procs, &tgid);
}

#endif
