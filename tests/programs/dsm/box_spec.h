/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * A box of libebbdsm as the specification of linear.h.  Its state has the value, the owner, what is
 * lent or given, and which members are dead.
 */
#ifndef EBB_TEST_BOX_SPEC_H
#define EBB_TEST_BOX_SPEC_H

#include "linear.h"

enum box_op {
	BOX_NEW,      /* in: value */
	BOX_WRITE,    /* in: value; by the owner: borrowed mutably, or dropped and made again */
	BOX_READ,     /* out: value; asks for the name, and borrows the view */
	BOX_LEND,     /* in: number of the loan */
	BOX_BORROW,   /* in: number; out: value; result: 0, -ESTALE */
	BOX_RETURN,   /* in: value */
	BOX_GIVE,     /* in: number of the parcel */
	BOX_ACCEPT,   /* in: number; out: value; result: 0, -ESTALE */
	BOX_RECLAIM,  /* in: number; out: value; result: 0, -EBUSY, -ESTALE, -EOWNERDEAD */
	BOX_DIE,      /* @by is killed; never responds */
	BOX_OPS
};

/* Numbers of loans and parcels are never the same; members' numbers are below 64. */
extern const struct linear_spec box_spec;

const char *box_op_name(uint32_t kind);

#endif
