/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Lends memory to kernel borrowers (kmod-swap) over RDMA: they read and write it
 * themselves, this program only answers HELLO, MAP, UNMAP and PING, and asks
 * everything back before it ends.  It has its own memory and its own thread.
 * docs: daemon/wire/wire_rdma.h.
 *
 * A session's queue pairs and the keys of what it was lent belong to one
 * protection domain, so that no other session's can use them.  Nobody is
 * authenticated: whoever reaches the address may borrow.
 */
#ifndef EBB_RDMA_LENDER_H
#define EBB_RDMA_LENDER_H

#include <stdint.h>

#include "common/error.h"
#include "wire/address.h"

struct rdma_lender;

/*
 * Listens on @place with @memory bytes in slabs of @slab_size, locked and zeroed.
 * The caller keeps @place no longer than this call.
 */
int rdma_lender_start(struct rdma_lender **out, struct address *place, uint64_t memory,
		      uint64_t slab_size, struct error *e);
/*
 * Lends nothing more and asks everything back; returns when it has it, after
 * @timeout_ns, or when another SIGTERM or SIGINT, which the caller has blocked, is
 * pending.  Returns the slabs that are lent still.  NULL is fine.
 */
uint32_t rdma_lender_drain(struct rdma_lender *l, uint64_t timeout_ns);
/* Ends all sessions and the thread; NULL is fine. */
void rdma_lender_stop(struct rdma_lender **l);

#endif
