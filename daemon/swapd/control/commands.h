/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Commands of the control thread to the loop thread: one order at a time, through a
 * mailbox.  The control thread allocates memory and resolves names before.
 */
#ifndef EBB_COMMANDS_H
#define EBB_COMMANDS_H

#include <stdint.h>

#include "lib/base/error.h"

struct replicas;

enum order_kind {
	ORDER_USE,     /* the donor, from now on: it is new, or still being removed */
	ORDER_REMOVE,  /* the donor: its slabs migrate, then its entry is freed */
	ORDER_DRAIN,   /* the donor: its slabs migrate; its entry stays */
	ORDER_UNDRAIN,
	ORDER_TRUST,   /* the donor, which is quarantined */
	ORDER_MIGRATE, /* a replica of the slab, to the donor or, if that is -1, to any */
};

struct order {
	enum order_kind kind;
	int donor;      /* index */
	uint32_t slab;
	int result;     /* 0 or -errno */
	const char *why; /* cause and remedy of a failure */
};

struct orders {
	struct replicas *replicas;
	struct order order;
	int post_fd;    /* eventfds: to the loop, and back */
	int done_fd;
	uint32_t under_way; /* the loop has not answered the last order */
};

int orders_open(struct orders *o, struct error *e);
void orders_close(struct orders *o);

/* Control thread: gives @order and waits up to 5 s for its result. */
int orders_give(struct orders *o, const struct order *order, const char *what, struct error *e);

/* Loop thread: post_fd is readable. */
void orders_take(struct orders *o);

#endif
