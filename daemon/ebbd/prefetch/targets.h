/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The processes that ebbd prefetches for.
 *
 * bpf/fault tells a mapping only four times a second and thread (bpf/told.bpf.h): what it tells has
 * to last until then, however many processes take turns.  So ebbd knows thousands of processes, of
 * 0.3 KB each, or 2.7 KB with TARGET_SPANS mappings; descriptors are kept for those that were
 * prefetched for last.
 *
 * All functions but targets_leave() belong to the executor's thread.  Those that may make calls on
 * a process's memory say so: the thread may end there (worker.h).
 */
#ifndef EBB_TARGETS_H
#define EBB_TARGETS_H

#include "collapser.h"
#include "target.h"

#define TARGETS_MAX 4096         /* processes known: at most 11 MiB, which are locked */
#define TARGETS_OPEN 256         /* of them with descriptors */
#define TARGETS_UNUSED_NS 60000000000ULL

struct targets;

/* @collapser outlives it, and forgets a process before its descriptors are closed. */
struct targets *targets_new(struct collapser *collapser);
/* Makes no call on a process's memory.  NULL is fine. */
void targets_free(struct targets **t);

/*
 * A process faulted in the mapping @m.  Returns it, valid until the next call here, or NULL without
 * memory.  Beyond TARGETS_MAX, forgets the process used longest ago, with calls on its memory.
 */
struct target *targets_learn(struct targets *t, const struct ebb_memory *m, uint64_t now);
/*
 * Returns the process, now of the attached cgroup @owner; NULL if it is not known, or has executed
 * another program since.
 */
struct target *targets_find(struct targets *t, uint32_t tgid, uint32_t exec, uint64_t owner,
			    uint64_t now);
/*
 * Opens @one, of targets_find(), unless it is open; closes another one beyond TARGETS_OPEN.  Makes
 * calls on the memory of both.  -ESRCH: it has exited, and is forgotten.
 */
int targets_open(struct targets *t, struct target *one);
/*
 * Twice a second: forgets processes that have exited, which is known of those with descriptors, and
 * some of those that were not used for TARGETS_UNUSED_NS.  Makes calls on their memory.
 */
void targets_sweep(struct targets *t, uint64_t now);
/*
 * Forgets process @tgid, and the processes of the attached cgroup @owner, without a call on their
 * memory.  Called while no thread executes the others.
 */
void targets_leave(struct targets *t, uint32_t tgid, uint64_t owner);

#endif
