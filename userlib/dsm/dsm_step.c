// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "dsm_step.h"

#include <errno.h>
#include <string.h>

/* What the next call of dsm_next() has to do. */
enum phase {
	ENDED,
	READ_BEGIN,
	READ_DONE,
	READ_ASKED,
	TWIN_BEGIN,
	TWIN_DONE,
	COPY_BEGIN,
	ONE_BEGIN,     /* a change or an offer: one verb */
	ONE_DONE,
	TAKE_BEGIN,
	TAKE_DONE,
	TAKE_CLEARED,
	TAKE_ASKED,
	FINISH_BEGIN,
	BACK_BEGIN,
	BACK_DONE,
	RECLAIM_BEGIN,
	RECLAIM_FOUND,
	RECLAIM_TOLD,
	RECLAIM_ASKED,
	RECLAIM_AGAIN,
	RESTORE_DONE,
};

uint64_t dsm_check(uint64_t at, uint64_t stamp)
{
	uint64_t x = at * 0x9e3779b97f4a7c15ull ^ (stamp + 0x6d73646262650001ull);

	x = (x ^ x >> 32) * 0xd6e8feb86659fd93ull;
	return (x ^ x >> 29) | 1;
}

static bool is_valid(uint64_t at, const struct dsm_head *h)
{
	return h->stamp && h->check == dsm_check(at, h->stamp);
}

static void begin(struct dsm_op *op, enum phase phase, uint64_t at, uint64_t stamp)
{
	memset(op, 0, sizeof(*op));
	op->phase = (uint8_t)phase;
	op->at = at;
	op->stamp = stamp;
}

void dsm_read(struct dsm_op *op, uint64_t at, uint64_t stamp)
{
	begin(op, READ_BEGIN, at, stamp);
}

void dsm_read_twin(struct dsm_op *op, uint64_t at, uint64_t stamp)
{
	begin(op, TWIN_BEGIN, at, stamp);
}

void dsm_copy(struct dsm_op *op, uint64_t at, uint64_t stamp)
{
	begin(op, COPY_BEGIN, at, stamp);
}

void dsm_change(struct dsm_op *op, uint64_t at, uint64_t stamp)
{
	begin(op, ONE_BEGIN, at, stamp);
}

void dsm_offer(struct dsm_op *op, uint64_t at, uint64_t ticket, enum dsm_hold state)
{
	begin(op, ONE_BEGIN, at, ticket);
	op->state = state;
}

void dsm_take(struct dsm_op *op, uint64_t at, uint64_t ticket, enum dsm_hold state, uint64_t claim,
	      uint64_t generation)
{
	begin(op, TAKE_BEGIN, at, ticket);
	op->state = state;
	op->claim = claim;
	op->mine = (struct dsm_record){ .ticket = ticket, .generation = generation };
}

void dsm_finish(struct dsm_op *op, uint64_t at, uint64_t claim)
{
	begin(op, FINISH_BEGIN, at, 0);
	op->claim = claim;
}

void dsm_give_back(struct dsm_op *op, uint64_t at, uint64_t ticket, uint64_t claim,
		   uint64_t generation, uint64_t back_at, uint64_t back_ticket)
{
	begin(op, BACK_BEGIN, at, ticket);
	op->claim = claim;
	op->mine = (struct dsm_record){ ticket, generation, back_at, back_ticket };
}

void dsm_reclaim(struct dsm_op *op, uint64_t at, uint64_t ticket, enum dsm_hold state,
		 bool withdraws)
{
	begin(op, RECLAIM_BEGIN, at, ticket);
	op->state = state;
	op->withdraws = withdraws;
}

void dsm_restore(struct dsm_op *op, uint64_t at, uint64_t hold)
{
	begin(op, RECLAIM_AGAIN, at, 0);
	op->old = op->after.hold = hold;
}

int dsm_reclaim_lost(enum dsm_hold state, int result)
{
	if (result != -EIO && result != -EBUSY)
		return result;
	return state == DSM_HOLD_LENT ? -EOWNERDEAD : -EIO;
}

/* --- verbs ------------------------------------------------------------------------ */

static struct dsm_verb end(struct dsm_op *op, int result)
{
	op->phase = ENDED;
	op->result = result;
	return (struct dsm_verb){ .kind = DSM_ENDED };
}

static struct dsm_verb ask(struct dsm_op *op, enum phase next, enum dsm_verb_kind kind, uint64_t at,
			   uint64_t generation)
{
	op->phase = next;
	return (struct dsm_verb){ .kind = kind, .at = at, .generation = generation };
}

static struct dsm_verb execute(struct dsm_op *op, enum phase next)
{
	op->phase = next;
	return (struct dsm_verb){ .kind = DSM_EXECUTE };
}

static void add(struct dsm_verb *v, enum dsm_part_kind kind, uint64_t at)
{
	v->part[v->parts++] = (struct dsm_part){ .kind = kind, .at = at };
}

static void add_swap(struct dsm_verb *v, uint64_t at, uint64_t expect, uint64_t desired)
{
	v->part[v->parts++] = (struct dsm_part){ DSM_SWAP, at, expect, desired };
}

static void add_stamp(struct dsm_verb *v, uint64_t at, uint64_t stamp)
{
	v->part[v->parts++] = (struct dsm_part){ DSM_STAMP, at, 0, stamp };
}

/* Asks whether the owner of the operation's place is alive: its extent is in the stamp. */
static struct dsm_verb ask_owner(struct dsm_op *op, enum phase next)
{
	return ask(op, next, DSM_ALIVE, op->at, dsm_generation(op->stamp));
}

/* --- operations ------------------------------------------------------------------- */

/* Returns whether the extent is still the same allocation. */
static bool is_same_extent(const struct dsm_op *op)
{
	return is_valid(op->at, &op->after) &&
	       dsm_generation(op->after.stamp) == dsm_generation(op->stamp);
}

bool dsm_was_left(const struct dsm_op *op)
{
	return !is_same_extent(op) || op->after.stamp < op->stamp;
}

static struct dsm_verb read_begin(struct dsm_op *op, enum phase next)
{
	struct dsm_verb v = execute(op, next);

	add(&v, DSM_READ, op->at);
	add(&v, DSM_HEADER, op->at);
	return v;
}

/*
 * The header after the content is the value's.  Before it, it is not where the owner has lost the
 * donor, and what it had sent takes effect late.
 */
static struct dsm_verb found(struct dsm_op *op, enum phase again)
{
	return op->head.stamp == op->stamp ? end(op, 0) : read_begin(op, again);
}

static struct dsm_verb read_done(struct dsm_op *op)
{
	if (is_valid(op->at, &op->after) && op->after.stamp == op->stamp)
		return found(op, READ_DONE);
	/* Its owner has changed the object since. */
	if (is_same_extent(op))
		return end(op, -ESTALE);
	return ask_owner(op, READ_ASKED);
}

static struct dsm_verb twin_done(struct dsm_op *op)
{
	const struct dsm_head *h = &op->after;

	if (is_valid(op->at, h) && h->stamp == op->stamp)
		return found(op, TWIN_DONE);
	/* An earlier stamp: the value has not got here. */
	return end(op, !h->stamp || (is_same_extent(op) && h->stamp > op->stamp) ? -ESTALE : -EIO);
}

static struct dsm_verb copy_begin(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, ONE_DONE);

	add_stamp(&v, op->at, 0);
	add(&v, DSM_WHOLE, op->at);
	add_stamp(&v, op->at, op->stamp);
	return v;
}

static struct dsm_verb one_begin(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, ONE_DONE);

	if (op->state) {
		add_swap(&v, op->at, 0, op->stamp | op->state);
		return v;
	}
	add_stamp(&v, op->at, 0);
	add(&v, DSM_FILL, op->at);
	add_stamp(&v, op->at, op->stamp);
	return v;
}

static struct dsm_verb take_begin(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, TAKE_DONE);

	add(&v, DSM_CLAIM, op->claim);
	add_swap(&v, op->at, op->stamp | op->state, op->claim | DSM_HOLD_TAKEN);
	add(&v, DSM_READ, op->at);
	add(&v, DSM_HEADER, op->at);
	return v;
}

static struct dsm_verb take_done(struct dsm_op *op)
{
	bool taken = op->old == (op->stamp | op->state);
	struct dsm_verb v;

	if (taken && is_valid(op->at, &op->after) &&
	    op->after.hold == (op->claim | DSM_HOLD_TAKEN))
		return end(op, 0);
	/* The memory is another's by now: only a dead owner's is. */
	op->result = taken ? -EOWNERDEAD : -ESTALE;
	memset(&op->mine, 0, sizeof(op->mine));
	v = execute(op, TAKE_CLEARED);
	add(&v, DSM_CLAIM, op->claim);
	return v;
}

static struct dsm_verb finish_begin(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, ONE_DONE);

	add_swap(&v, op->at, op->claim | DSM_HOLD_TAKEN, op->claim | DSM_HOLD_DONE);
	add(&v, DSM_CLAIM, op->claim);
	return v;
}

static struct dsm_verb back_begin(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, BACK_DONE);

	add(&v, DSM_CLAIM, op->claim);
	add_swap(&v, op->at, op->claim | DSM_HOLD_TAKEN, op->claim | DSM_HOLD_RETURNED);
	return v;
}

static struct dsm_verb reclaim_begin(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, RECLAIM_FOUND);
	uint64_t hold = op->stamp | op->state;

	/* Without a withdrawal, the swap reads. */
	add_swap(&v, op->at, hold, op->withdraws ? 0 : hold);
	return v;
}

/* op->old is the hold word. */
static struct dsm_verb reclaim_found(struct dsm_op *op)
{
	struct dsm_verb v;

	if (op->old == (op->stamp | op->state))
		return end(op, op->withdraws ? 0 : -EAGAIN);
	if (dsm_hold_state(op->old) == DSM_HOLD_DONE)
		return end(op, -ESTALE);
	v = execute(op, RECLAIM_TOLD);
	add(&v, DSM_RECORD, dsm_hold_rest(op->old));
	return v;
}

/* Ends the hold of a dead member, unless its last verb has changed the word. */
static struct dsm_verb reclaim_dead(struct dsm_op *op)
{
	struct dsm_verb v = execute(op, RECLAIM_AGAIN);

	add(&v, DSM_HEADER, op->at);
	return v;
}

static struct dsm_verb reclaim_told(struct dsm_op *op)
{
	bool has = op->other.ticket == op->stamp;
	bool returned = dsm_hold_state(op->old) == DSM_HOLD_RETURNED;

	if (returned && has && op->other.at)
		return end(op, DSM_RETURNED);
	/* Without a place, it is a later member's, which has tried the loan in vain. */
	if (!has || returned)
		return reclaim_dead(op);
	return ask(op, RECLAIM_ASKED, DSM_ALIVE_CLAIM, dsm_hold_rest(op->old),
		   op->other.generation);
}

static struct dsm_verb reclaim_again(struct dsm_op *op)
{
	struct dsm_verb v;

	if (op->after.hold != op->old) {
		op->old = op->after.hold;
		return reclaim_found(op);
	}
	/* What a dead member had taken was its own, and so is not the owner's again. */
	if (op->state == DSM_HOLD_OFFERED)
		return end(op, -ESTALE);
	v = execute(op, RESTORE_DONE);
	add_swap(&v, op->at, op->old, 0);
	return v;
}

struct dsm_verb dsm_next(struct dsm_op *op, int status)
{
	switch ((enum phase)op->phase) {
	case READ_BEGIN:
		return read_begin(op, READ_DONE);
	case READ_DONE:
		return read_done(op);
	case READ_ASKED:
		return end(op, status ? -ESTALE : -EOWNERDEAD);
	case TWIN_BEGIN:
		return read_begin(op, TWIN_DONE);
	case TWIN_DONE:
		return twin_done(op);
	case COPY_BEGIN:
		return copy_begin(op);
	case ONE_BEGIN:
		return one_begin(op);
	case ONE_DONE:
		return end(op, 0);
	case TAKE_BEGIN:
		return take_begin(op);
	case TAKE_DONE:
		return take_done(op);
	case TAKE_CLEARED:
		return op->result == -EOWNERDEAD ? end(op, -EOWNERDEAD) :
						   ask_owner(op, TAKE_ASKED);
	case TAKE_ASKED:
		return end(op, status ? -ESTALE : -EOWNERDEAD);
	case FINISH_BEGIN:
		return finish_begin(op);
	case BACK_BEGIN:
		return back_begin(op);
	case BACK_DONE:
		return end(op, op->old == (op->claim | DSM_HOLD_TAKEN) ? 0 : -EOWNERDEAD);
	case RECLAIM_BEGIN:
		return reclaim_begin(op);
	case RECLAIM_FOUND:
		return reclaim_found(op);
	case RECLAIM_TOLD:
		return reclaim_told(op);
	case RECLAIM_ASKED:
		return status ? end(op, -EBUSY) : reclaim_dead(op);
	case RECLAIM_AGAIN:
		return reclaim_again(op);
	case RESTORE_DONE:
		return end(op, -EOWNERDEAD);
	case ENDED:
		break;
	}
	return end(op, op->result);
}
