/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * What the control thread has the loop thread do: one order at a time, through a
 * mailbox.  What is to be allocated or looked up by name is done before.
 */
#ifndef EBB_ORDERS_H
#define EBB_ORDERS_H

#include <stdint.h>

#include "lib/base/error.h"

struct swapd;

enum order_kind {
	ORDER_USE,     /* the donor, from now on: it is new, or was removed and not yet gone */
	ORDER_REMOVE,  /* the donor: its slabs move away, then its entry goes */
	ORDER_DRAIN,   /* the donor: the same, but it stays on the list */
	ORDER_UNDRAIN,
	ORDER_TRUST,   /* the donor, which is quarantined */
	ORDER_MIGRATE, /* a copy of the slab, to the donor or, if that is -1, to any */
};

struct order {
	enum order_kind kind;
	int donor;      /* index */
	uint32_t slab;
	int result;     /* 0 or -errno */
	const char *why; /* cause and remedy of a failure */
};

struct orders {
	struct order order;
	int post_fd;    /* eventfds: to the loop, and back */
	int done_fd;
	uint32_t under_way; /* the loop has not answered the last one */
};

int orders_open(struct orders *o, struct error *e);
void orders_close(struct orders *o);

/* Control thread: has @order done and waits for it, up to 5 s. */
int orders_give(struct orders *o, const struct order *order, const char *what, struct error *e);

/* Loop thread: post_fd is readable. */
void orders_take(struct swapd *s);

#endif
