/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Sessions of kernel modules (kmod-swap), by RDMA: they read and write their slabs themselves,
 * the donor answers HELLO, MAP, UNMAP and PING, and asks for slabs by EVICT
 * (wire/wire_rdma.h).
 *
 * Borrower and donor prove to each other that they have a key (wire/wire_proof.h); the donor
 * lends nothing before.  A session's queue pairs and the keys of its slabs belong to one
 * protection domain.  The loop's thread.
 */
#ifndef EBB_RDMA_LENDER_H
#define EBB_RDMA_LENDER_H

#include "kernel_session.h"
#include "lib/wire/address.h"

#define RDMA_SESSIONS 64

struct rdma_lender {
	struct rdma_env env;
	struct kernel_export export;
	const struct keyring *keys;
	uint64_t key_connections;    /* most with keys of one name; 0 = no limit */
	int epoll_fd;
	uint64_t first_key;          /* the listener's; session i has the key behind it and i */
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	struct rdma_session *sessions[RDMA_SESSIONS];
	uint32_t mapped;             /* session that got the last slab */
	uint64_t told_at;            /* ns: from then on so many lines about strangers: */
	uint32_t told;
	/* Ended, while the pool thread invalidates their keys. */
	struct rdma_session *ended[2 * RDMA_SESSIONS];
};

#define RDMA_LENDER_KEYS (1 + RDMA_SESSIONS)

/*
 * Listens at @a for borrowers of the pool of l->env, which has its places.  The caller has
 * filled in l->env (but for the export), keys, key_connections, epoll_fd and first_key.
 */
int rdma_lender_open(struct rdma_lender *l, const struct address *a, struct error *e);
/* Something happened at @key of the epoll set. */
void rdma_lender_event(struct rdma_lender *l, uint64_t key);
/* In each turn of the loop: goes on with sessions that have work left. */
void rdma_lender_turn(struct rdma_lender *l);
/* Ends sessions whose time to prove their key is over; returns ns until the next turn is due. */
uint64_t rdma_lender_wait(struct rdma_lender *l, uint64_t now);
/* The keys have changed: ends the sessions whose key is gone. */
void rdma_lender_keys(struct rdma_lender *l);
/* Ends all sessions; their keys are invalidated by the pool thread, or pool_work(). */
void rdma_lender_end(struct rdma_lender *l);
/* After that. */
void rdma_lender_close(struct rdma_lender *l);

#endif
