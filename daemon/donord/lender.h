/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's event loop: one thread, one epoll set, borrowers' connections.
 * Replies to READ leave straight from slab memory; borrowers on this machine are
 * given the memory itself.
 */
#ifndef EBB_LENDER_H
#define EBB_LENDER_H

#include <stdint.h>

#include "lend.h"
#include "wire/address.h"

struct lender;

#define LENDER_PLACES 4

/*
 * Replies to READ are held back for @delay_ns, each by itself.  *@out is
 * untouched on failure.
 */
int lender_new(struct lender **out, struct lend_pool *pool, uint64_t delay_ns, struct error *e);

/*
 * Listens at @a too, LENDER_PLACES times at most.  Who comes there by a unix
 * socket is given slabs to map, which needs a shared pool.
 */
int lender_listen(struct lender *l, struct address *a, struct error *e);
void lender_free(struct lender **l);

/* Serves until SIGTERM or SIGINT.  0 or -errno. */
int lender_run(struct lender *l);

#endif
