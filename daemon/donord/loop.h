/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's event loop: one thread, one epoll set, borrowers' connections.
 * Replies to READ leave straight from slab memory; borrowers on this machine are
 * given the memory itself.
 */
#ifndef EBB_LENDER_H
#define EBB_LENDER_H

#include <stdint.h>

#include "donord/pool/pool.h"
#include "lib/base/options.h"
#include "lib/wire/address.h"
#include "lib/wire/key.h"

struct lender;
struct registration;

#define LENDER_PLACES 4

struct lender_options {
	/*
	 * Bytes to leave to the machine's own programs: slabs come and go with its
	 * needs, up to the pool's places.  0 = all places are filled at start and stay.
	 */
	uint64_t headroom;
	uint64_t quota;       /* bytes a borrower may have; 0 = no limit */
	/* Most from one address, of those that no key tells apart; 0 = as many as there are. */
	uint64_t peer_connections;
	uint64_t key_connections; /* most with keys of one name, from wherever; 0 likewise */
	uint64_t keep;        /* ns: what a borrower has waits so long for its successor */
	uint64_t drain;       /* ns to wait for slabs to leave before the end */
	uint64_t overdue;     /* ns: what was asked back longer ago is reported; 0 = nothing is */
	uint64_t revoke;      /* ns: ... is taken when the machine runs out; 0 = never */
	uint64_t delay;       /* ns: replies to READ are held back, each by itself */
	struct registration *registration; /* withdrawn while draining; or NULL */
	/*
	 * Files and directories of borrowers' keys.  With one, who comes by the network
	 * has to have a key; without, only this machine can come.
	 */
	struct option_list keys;
	const char *machine;  /* directory for machine_sample(); NULL = /proc */
};

/*
 * @pool has no slabs yet.  Reads the keys; SIGHUP has it read them again.  Takes the
 * signals SIGTERM, SIGINT and SIGHUP.  *@out is untouched on failure.
 */
int lender_new(struct lender **out, struct lend_pool *pool, const struct lender_options *o,
	       struct error *e);

/*
 * Listens at @a too, LENDER_PLACES times at most.  Who comes there by a unix
 * socket is given slabs to map, which needs a shared pool.
 */
int lender_listen(struct lender *l, struct address *a, struct error *e);

/*
 * Takes RDMA at @a, from those who come with a key to where lender_listen() listens; the
 * pool has its places.
 */
int lender_listen_rdma(struct lender *l, const struct address *a, struct error *e);

/*
 * @kernels, which has slabs of the same size and outlives the loop, keeps HeadRoom with the
 * lender, and drains with it; what it lends is asked back last.
 */
struct rdma_lender;
void lender_heed_kernels(struct lender *l, struct rdma_lender *kernels);

/*
 * Who takes RDMA from kernels knows the same keys: @call is told them at once, and whenever
 * SIGHUP has had them read again.  They stay the lender's.  0, or what @call returned.
 */
typedef int lender_keys_call(void *data, const struct keyring *keys);
int lender_tell_keys(struct lender *l, lender_keys_call *call, void *data);

/*
 * Makes the memory there is to be at start, then the other threads; the calling
 * thread is the loop's from here on.  -EINTR, without an error, when SIGTERM or SIGINT
 * came meanwhile.
 */
int lender_start(struct lender *l, struct error *e);
void lender_free(struct lender **l);

/*
 * Serves until SIGTERM or SIGINT, then until what was lent is back (or
 * options.drain, or a second signal).  0 or -errno.
 */
int lender_run(struct lender *l);

#endif
