/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * run=daemon: the processes whose policy runs in ebbd, each with the policy's
 * state.  Belongs to the executor's thread; nobody else calls these.
 *
 * Bounded: RESIDENT_MAX processes (the one that faulted longest ago makes
 * room) and RESIDENT_STATE bytes of state in all; a process that gets none is
 * not prefetched for.
 */
#ifndef EBB_RESIDENT_H
#define EBB_RESIDENT_H

#include "ebbd/attach/attachment.h"

#define RESIDENT_MAX 256
#define RESIDENT_STATE (256u << 20)
#define RESIDENT_REQUESTS 16 /* a fault may make */

struct residents;

struct residents *residents_new(void);
void residents_free(struct residents **r);

/*
 * With the lock of the attachments held: runs the policy of @t on @f and leaves
 * what it asks for in @out; returns how many requests those are.
 */
uint32_t resident_fault(struct residents *r, struct attachment *t, const struct ebb_fault *f,
			struct ebb_list_request out[RESIDENT_REQUESTS]);

/* Forgets processes that have ended. */
void residents_sweep(struct residents *r);

/* How many processes have state. */
uint32_t residents_count(const struct residents *r);

#endif
