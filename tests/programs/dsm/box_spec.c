// SPDX-License-Identifier: GPL-2.0-or-later
#include "box_spec.h"

#include <errno.h>

enum hand { OWNED, LENT, BORROWED, RETURNED, GIVEN };

struct box {
	uint64_t value, returned; /* returned: by the borrower, not reclaimed yet */
	uint64_t offer;           /* number of the loan or parcel */
	uint64_t dead;            /* members, a bit each */
	uint32_t owner, borrower; /* numbers plus 1 */
	uint32_t hand, unused;
};

const char *box_op_name(uint32_t kind)
{
	static const char *const names[BOX_OPS] = {
		"new", "write", "read", "lend", "borrow", "return", "give", "accept", "reclaim",
		"die",
	};

	return kind < BOX_OPS ? names[kind] : "?";
}

static bool is_owner(const struct box *b, const struct linear_op *op, enum hand hand)
{
	return b->owner == op->by + 1 && b->hand == hand;
}

/* Whether @op is pending or had result 0. */
static bool succeeds(const struct linear_op *op)
{
	return op->to == LINEAR_PENDING || !op->result;
}

static bool outputs(const struct linear_op *op, uint64_t value)
{
	return op->to == LINEAR_PENDING || op->out == value;
}

static bool offer(struct box *b, const struct linear_op *op, enum hand hand)
{
	if (!is_owner(b, op, OWNED))
		return false;
	b->hand = hand;
	b->offer = op->in;
	return true;
}

/* A borrow or an accept. */
static bool take(struct box *b, const struct linear_op *op, enum hand offered)
{
	bool there = b->hand == offered && b->offer == op->in;

	if (!succeeds(op))
		return op->result == -ESTALE && !there;
	if (!there || !outputs(op, b->value))
		return false;
	if (offered == LENT) {
		b->hand = BORROWED;
		b->borrower = op->by + 1;
	} else {
		b->hand = OWNED;
		b->owner = op->by + 1;
	}
	return true;
}

static bool give_up(struct box *b, const struct linear_op *op)
{
	b->hand = OWNED;
	b->borrower = 0;
	return outputs(op, b->value);
}

static bool reclaim(struct box *b, const struct linear_op *op)
{
	bool ours = b->owner == op->by + 1 && b->offer == op->in && b->hand != OWNED;
	bool dead = b->borrower && b->dead >> (b->borrower - 1) & 1;

	if (op->to == LINEAR_PENDING || !op->result) {
		if (!ours || b->hand == BORROWED)
			return false;
		if (b->hand == RETURNED)
			b->value = b->returned;
		return give_up(b, op);
	}
	switch (op->result) {
	case -EBUSY: /* a loan that is borrowed, or a parcel that was accepted */
		return !ours || b->hand == BORROWED;
	case -ESTALE:
		return !ours;
	case -EOWNERDEAD:
		return ours && (b->hand == BORROWED || b->hand == RETURNED) && dead &&
		       give_up(b, op);
	default:
		return false;
	}
}

static bool step(void *state, const struct linear_op *op)
{
	struct box *b = state;

	switch ((enum box_op)op->kind) {
	case BOX_NEW:
		if (b->owner)
			return false;
		b->owner = op->by + 1;
		b->value = op->in;
		return true;
	case BOX_WRITE:
		if (!is_owner(b, op, OWNED))
			return false;
		b->value = op->in;
		return true;
	case BOX_READ:
		return b->owner && outputs(op, b->value);
	case BOX_LEND:
		return offer(b, op, LENT);
	case BOX_BORROW:
		return take(b, op, LENT);
	case BOX_RETURN:
		if (b->hand != BORROWED || b->borrower != op->by + 1)
			return false;
		b->hand = RETURNED;
		b->returned = op->in;
		return true;
	case BOX_GIVE:
		return offer(b, op, GIVEN);
	case BOX_ACCEPT:
		return take(b, op, GIVEN);
	case BOX_RECLAIM:
		return reclaim(b, op);
	case BOX_DIE:
		b->dead |= 1ull << op->by;
		return true;
	case BOX_OPS:
		break;
	}
	return false;
}

const struct linear_spec box_spec = { .size = sizeof(struct box), .step = step };
