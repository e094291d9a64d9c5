/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Memory for kernel modules by RDMA: a slab is registered in the protection domain of the
 * session that borrows it, so that no other session's queue pairs can use its key.  The pool
 * thread registers slabs and invalidates keys, which takes milliseconds.
 */
#ifndef EBB_KERNEL_EXPORT_H
#define EBB_KERNEL_EXPORT_H

#include <infiniband/verbs.h>

#include "donor_log.h"
#include "pool.h"

/* A borrower's protection domain; the borrower's priv. */
struct kernel_domain {
	struct ibv_pd *pd;
	uint32_t keys; /* registrations; the domain outlives them */
};

struct kernel_key;

struct kernel_export {
	struct export x;
	struct donor_log *log;
	struct kernel_key *keys; /* by slab, owned */
};

/* For @pool, which is initialised.  Returns 0 or -ENOMEM. */
int kernel_export_init(struct kernel_export *x, struct pool *pool, struct donor_log *log);
/* After the last loan has ended and its task is done. */
void kernel_export_free(struct kernel_export *x);

#endif
