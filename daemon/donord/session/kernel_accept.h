/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Lends memory to kernel borrowers (kmod-swap) over RDMA: they read and write it
 * themselves, this program only answers HELLO, MAP, UNMAP and PING, and asks
 * everything back before it ends.  It has its own memory and its own thread.
 * docs: daemon/lib/wire/wire_rdma.h.
 *
 * A session's queue pairs and the keys of what it was lent belong to one
 * protection domain, so that no other session's can use them.  Borrower and donor prove to
 * each other that they have a key (lib/wire/wire_proof.h); the donor lends nothing before.
 */
#ifndef EBB_RDMA_LENDER_H
#define EBB_RDMA_LENDER_H

#include <stdint.h>

#include "lib/base/error.h"
#include "lib/wire/address.h"
#include "lib/wire/key.h"

struct rdma_lender;

struct rdma_lender_options {
	uint64_t memory, slab_size; /* bytes */
	uint64_t quota;             /* bytes that a borrower may have; 0 = no limit */
	uint64_t key_connections;   /* most with keys of one name; 0 = no limit */
};

/*
 * Listens on @place and lends memory that is locked and zeroed.  The caller keeps @place and
 * @o no longer than this call.
 */
int rdma_lender_start(struct rdma_lender **out, struct address *place,
		      const struct rdma_lender_options *o, struct error *e);
/*
 * From any thread: these are the keys from now on, of which a copy is taken; none were there
 * before.  Who came with one that is gone is hung up on.  @data is the lender; 0 or -errno.
 */
int rdma_lender_keys(void *data, const struct keyring *keys);
/*
 * From any thread: of its slabs so many may stay, or come back; with @drain it lends none, and
 * asks everything back.
 */
void rdma_lender_follow(struct rdma_lender *l, uint32_t most, bool drain);
/* From any thread: slabs in all, those that have memory, and of these those that are lent. */
struct rdma_lent { uint32_t count, present, lent; };
struct rdma_lent rdma_lender_lent(const struct rdma_lender *l);
/*
 * Lends nothing more and asks everything back; returns when it has it, after
 * @timeout_ns, or when another SIGTERM or SIGINT, which the caller has blocked, is
 * pending.  Returns the slabs that are lent still.  NULL is fine.
 */
uint32_t rdma_lender_drain(struct rdma_lender *l, uint64_t timeout_ns);
/* Ends all sessions and the thread; NULL is fine. */
void rdma_lender_stop(struct rdma_lender **l);

#endif
