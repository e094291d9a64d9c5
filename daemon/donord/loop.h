/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's event loop: one thread, one epoll set, borrowers' connections.
 * Replies to READ leave straight from slab memory; borrowers on this machine are
 * given the memory itself.
 */
#ifndef EBB_LENDER_H
#define EBB_LENDER_H

#include "donord/pool/lending_options.h"
#include "lib/base/error.h"
#include "lib/wire/address.h"

struct lender;
struct pool;

/*
 * @pool has no slabs yet.  Reads the keys; SIGHUP has it read them again.  Takes the
 * signals SIGTERM, SIGINT and SIGHUP.  *@out is untouched on failure.
 */
int lender_new(struct lender **out, struct pool *pool, const struct lender_options *o,
	       struct error *e);

/* Listens at @a too; a unix socket there needs a shared pool. */
int lender_listen(struct lender *l, struct address *a, struct error *e);

/*
 * Takes RDMA at @a, from borrowers that have a key and connect to where lender_listen()
 * listens; the pool has its places.
 */
int lender_listen_rdma(struct lender *l, const struct address *a, struct error *e);

/* Takes kernel modules that have a key by RDMA at @a; the pool has its places. */
int lender_listen_kernels(struct lender *l, const struct address *a, struct error *e);

/*
 * Makes the memory there is to be at start, then the pool thread; the calling thread is the
 * loop's from here on.  -EINTR, without an error, when SIGTERM or SIGINT
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
