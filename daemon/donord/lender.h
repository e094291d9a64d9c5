/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * The donor's event loop: one thread, one epoll set, borrowers' connections.
 * Replies to READ leave straight from slab memory.
 */
#ifndef EBB_LENDER_H
#define EBB_LENDER_H

#include <stdint.h>

#include "lend.h"

struct lender;

/*
 * Takes the listening @listen_fd over.  Replies to READ are held back for
 * @delay_ns, each by itself.  *@out is untouched on failure.
 */
int lender_new(struct lender **out, int listen_fd, struct lend_pool *pool, uint64_t delay_ns,
	       struct error *e);
void lender_free(struct lender **l);

/* Serves until SIGTERM or SIGINT.  0 or -errno. */
int lender_run(struct lender *l);

#endif
