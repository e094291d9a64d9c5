/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Accepts kernel modules (kmod-swap) by RDMA.  They read and write their slabs; the donor answers
 * HELLO, MAP, UNMAP and PING, and recalls slabs by EVICT (lib/wire/wire_rdma.h).
 *
 * Borrower and donor prove to each other that they have a key (lib/wire/wire_proof.h); the donor
 * lends nothing before.  A session's queue pairs and the keys of its slabs belong to one protection
 * domain.  The loop's thread.
 */
#ifndef EBB_KERNEL_ACCEPT_H
#define EBB_KERNEL_ACCEPT_H

#include "kernel_session.h"
#include "lib/wire/address.h"

#define KERNEL_SESSIONS 64
#define KERNEL_CLAIMS 1024

struct kernel_accept {
	struct kernel_env env;
	struct kernel_export export;
	const struct keyring *keys;
	uint64_t key_connections;    /* most with keys of one name; 0 = no limit */
	bool ending;                 /* the donor is ending: the grace period is at most 3 s */
	int epoll_fd;
	uint64_t first_key;          /* the listener's key; session i has first_key + 1 + i */
	struct rdma_event_channel *events;
	struct rdma_cm_id *listener;
	struct kernel_session *sessions[KERNEL_SESSIONS];
	uint32_t mapped;             /* session that got the last slab */
	uint64_t told_at;            /* ns: start of the second of .told */
	uint32_t told;
	uint64_t seed;               /* draws sessions that make room */
	uint8_t claimed[KERNEL_CLAIMS][WIRE_MARK]; /* MACs of the latest requests that had one */
	uint32_t claims;             /* as many so far */
	struct kernel_session *ended; /* sessions that the pool thread destroys */
	struct kernel_session *kept; /* parted, KERNEL_SESSIONS at most: may be resumed */
};

/*
 * Listens at @a for borrowers of the pool of l->env, which is initialised.  The caller has set
 * l->env (except the export), keys, key_connections, epoll_fd and first_key.
 */
int kernel_accept_open(struct kernel_accept *l, const struct address *a, struct error *e);
/* Handles an event of @key in the epoll set. */
void kernel_accept_event(struct kernel_accept *l, uint64_t key);
/* In each turn of the loop: continues sessions that have work left. */
void kernel_accept_turn(struct kernel_accept *l);
/* Ends sessions whose time for proof, or grace period, is over; returns ns until the next turn. */
uint64_t kernel_accept_wait(struct kernel_accept *l, uint64_t now);
/* Ends sessions whose key was removed; call after a change of the keys. */
void kernel_accept_keys(struct kernel_accept *l);
/* Ends all sessions; pool_work() destroys their queue pairs and keys. */
void kernel_accept_end(struct kernel_accept *l);
/* Stops listening, after kernel_accept_end() and the last pool_work(). */
void kernel_accept_close(struct kernel_accept *l);

#endif
