/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's event loop: one thread and one epoll set for all borrowers.  READ replies leave
 * straight from slab memory; borrowers on this machine map the memory itself.
 */
#ifndef EBB_LOOP_H
#define EBB_LOOP_H

#include "donord/pool/lending_options.h"
#include "lib/base/error.h"
#include "lib/wire/address.h"

struct loop;
struct pool;

/*
 * @pool has no slabs yet.  Reads the keys, and again on SIGHUP.  Blocks SIGTERM, SIGINT and SIGHUP
 * and handles them.  *@out is untouched on failure.
 */
int loop_new(struct loop **out, struct pool *pool, const struct lending_options *o,
	     struct error *e);

/* Listens at one more address; a unix socket needs a shared pool. */
int loop_listen(struct loop *l, struct address *a, struct error *e);

/*
 * Takes RDMA at @a, from borrowers that have a key and connect to where loop_listen()
 * listens; the pool has its places.
 */
int loop_listen_rdma(struct loop *l, const struct address *a, struct error *e);

/* Accepts kernel modules that have a key by RDMA at @a; the pool is initialised. */
int loop_listen_kernels(struct loop *l, const struct address *a, struct error *e);

/*
 * Makes the initial memory, then the pool thread; the calling thread is the loop's from here on.
 * Returns -EINTR, without an error, when SIGTERM or SIGINT arrives meanwhile.
 */
int loop_start(struct loop *l, struct error *e);
void loop_free(struct loop **l);

/*
 * Serves until SIGTERM or SIGINT, then until all slabs are released, options.drain ends or a second
 * signal arrives.  Returns 0 or -errno.
 */
int loop_run(struct loop *l);

#endif
