// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Loans and parcels: what processes hand to each other. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "dsm.h"

/* --- offers ----------------------------------------------------------------------- */

/* Offers the box; *@at and *@ticket are the name of the loan or parcel.  @caller: check.h. */
static int offer(ebbdsm_t *dsm, struct ebbdsm_box *box, enum dsm_hold state, uint64_t *at,
		 uint64_t *ticket, const void *caller)
{
	struct pending *p = NULL;
	const struct content *memory;
	struct slot *slot;
	struct dsm_op op;
	int r = dsm_own(dsm, box, &slot);

	if (r)
		check_stale(dsm->check, box->at, box->stamp, caller);
	memory = heap_memory(&dsm->heap, box->at);
	if (!r && memory && slot->state == SLOT_OWNED)
		check_value(dsm->check, box->at, box->stamp, memory->bytes, slot->size);
	if (!r && (slot->state != SLOT_OWNED || slot->borrows))
		r = -EBUSY;
	if (!r)
		r = dsm_refresh(dsm, box, &slot);
	/* Without memory for another place, it stays where it is while that has numbers. */
	if (!r || r == -ENOSPC || r == -ENOBUFS || r == -ENOMEM) {
		slot->ticket = heap_stamp(&dsm->heap, box->at);
		r = slot->ticket ? 0 : r ?: -EBUSY;
	}
	if (!r && state == DSM_HOLD_OFFERED) {
		p = dsm_pending_new(dsm, box->at, 0);
		r = p ? 0 : -ENOMEM;
	}
	if (r)
		return r;
	slot->state = SLOT_WORKING;
	dsm_offer(&op, box->at, slot->ticket, state);
	dsm_leave(dsm, 0);
	r = link_run(dsm_link(dsm, box->at), &op, NULL);
	pthread_mutex_lock(&dsm->lock);
	slot->state = r ? SLOT_OWNED : state == DSM_HOLD_LENT ? SLOT_LENT : SLOT_OFFERED;
	if (r && p)
		dsm_pending_end(dsm, p);
	if (r)
		return r;
	*at = box->at;
	*ticket = slot->ticket;
	return 0;
}

int ebbdsm_lend_mut(ebbdsm_t *dsm, struct ebbdsm_box *box, struct ebbdsm_loan *loan)
{
	int r = dsm_enter(dsm);

	return r ?: dsm_leave(dsm, offer(dsm, box, DSM_HOLD_LENT, &loan->at, &loan->stamp,
					 CHECK_CALLER));
}

int ebbdsm_give(ebbdsm_t *dsm, struct ebbdsm_box *box, struct ebbdsm_parcel *parcel)
{
	int r = dsm_enter(dsm);

	return r ?: dsm_leave(dsm, offer(dsm, box, DSM_HOLD_OFFERED, &parcel->at, &parcel->stamp,
					 CHECK_CALLER));
}

/* --- taking ----------------------------------------------------------------------- */

/* What a take has got. */
struct taken {
	struct link *link; /* of the place that it is from */
	uint64_t from, claim;
	uint64_t at;       /* the place for it, WORKING */
	uint64_t stamp, ticket; /* two that the place has not had */
	struct slot *slot;
	struct copy *copy; /* the content, and its size */
};

/* A take has failed, or was not made. */
static int untake(ebbdsm_t *dsm, struct taken *t, int r)
{
	if (t->slot)
		heap_free(&dsm->heap, t->at);
	if (t->claim) {
		dsm_leave(dsm, 0);
		link_unclaim(t->link, t->claim);
		pthread_mutex_lock(&dsm->lock);
	}
	free(t->copy);
	return r;
}

/*
 * Takes what is offered as @from, @ticket.  What a take needs is there before it: then it cannot
 * fail but for the object's owner, or for a donor.
 */
static int take(ebbdsm_t *dsm, uint64_t from, uint64_t ticket, enum dsm_hold state,
		struct taken *t)
{
	struct dsm_op op;
	struct name n;
	uint64_t generation;
	int r;

	*t = (struct taken){ .from = from };
	if (!ticket || !name_parse(from, 0, dsm->donors, &n) || n.bytes <= DSM_HEAD)
		return -EINVAL;
	t->link = &dsm->link[n.donor];
	r = dsm_place_best(dsm, n.bytes - DSM_HEAD, &t->at, &t->slot);
	if (r)
		return r;
	t->stamp = heap_stamp(&dsm->heap, t->at);
	t->ticket = heap_stamp(&dsm->heap, t->at);
	t->copy = copy_new(n.bytes);
	dsm_leave(dsm, 0);
	r = t->copy ? link_claim(t->link, &t->claim, &generation) : -ENOMEM;
	if (!r) {
		dsm_take(&op, from, ticket, state, t->claim, generation);
		r = link_run(t->link, &op, &t->copy->content);
	}
	pthread_mutex_lock(&dsm->lock);
	if (!r && !dsm_size_fits(from, op.after.size))
		r = -ESTALE;
	if (r)
		return untake(dsm, t, r);
	t->copy->content.head = (struct dsm_head){ .size = op.after.size };
	t->slot->size = (uint32_t)op.after.size;
	return 0;
}

/* Makes what was taken the box's, and lets the giver free its place. */
static int settle_in(ebbdsm_t *dsm, struct taken *t, struct ebbdsm_box *box)
{
	int r = dsm_store(dsm, t->at, t->stamp, t->copy, box);

	if (r)
		heap_free(&dsm->heap, t->at);
	dsm_leave(dsm, 0);
	link_finish(t->link, t->from, t->claim);
	pthread_mutex_lock(&dsm->lock);
	return r;
}

int ebbdsm_accept(ebbdsm_t *dsm, const struct ebbdsm_parcel *parcel, struct ebbdsm_box *box)
{
	struct taken t;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = take(dsm, parcel->at, parcel->stamp, DSM_HOLD_OFFERED, &t);
	return dsm_leave(dsm, r ?: settle_in(dsm, &t, box));
}

/* --- borrowers -------------------------------------------------------------------- */

void *ebbdsm_borrow_loan(ebbdsm_t *dsm, const struct ebbdsm_loan *loan, size_t *size)
{
	struct content *memory;
	struct pending *p;
	struct taken t;
	int r = dsm_enter(dsm);

	if (r)
		return dsm_fail(r);
	p = dsm_pending_new(dsm, 0, loan->at);
	r = p ? take(dsm, loan->at, loan->stamp, DSM_HOLD_LENT, &t) : -ENOMEM;
	if (r) {
		if (p)
			dsm_pending_end(dsm, p);
		return dsm_fail(dsm_leave(dsm, r));
	}
	p->at = t.at;
	p->loan = loan->stamp;
	p->claim = t.claim;
	p->stamp = t.stamp;
	p->ticket = t.ticket;
	p->copy = t.copy;
	t.slot->state = SLOT_GUEST;
	if (size)
		*size = t.slot->size;
	memory = heap_memory(&dsm->heap, t.at);
	if (memory) {
		memcpy(memory->bytes, t.copy->content.bytes, t.slot->size);
		free(t.copy);
		p->copy = NULL;
	} else {
		memory = &t.copy->content;
	}
	check_borrow(dsm->check, CHECK_LOAN, loan->at, loan->stamp, memory->bytes, t.slot->size,
		     CHECK_CALLER);
	dsm_leave(dsm, 0);
	return memory->bytes;
}

/* Offers the content, which is complete, at this process's place.  Gives the lock up meanwhile. */
static int offer_back(ebbdsm_t *dsm, struct pending *p, struct slot *slot)
{
	struct content *memory = heap_memory(&dsm->heap, p->at);
	int r;

	if (memory) {
		dsm_publish(memory, p->at, p->stamp, slot->size, p->ticket | DSM_HOLD_OFFERED);
		return 0;
	}
	dsm_publish(&p->copy->content, p->at, p->stamp, slot->size, p->ticket | DSM_HOLD_OFFERED);
	dsm_leave(dsm, 0);
	r = link_write(dsm_link(dsm, p->at), p->at, &p->copy->content, DSM_HEAD + slot->size);
	pthread_mutex_lock(&dsm->lock);
	free(p->copy);
	p->copy = NULL;
	return r;
}

int ebbdsm_return_loan(ebbdsm_t *dsm, const struct ebbdsm_loan *loan, void *content)
{
	struct content *memory;
	struct pending *p;
	struct slot *slot;
	struct dsm_op op;
	struct name n;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	check_return(dsm->check, CHECK_LOAN, loan->at, loan->stamp, content, CHECK_CALLER);
	p = dsm_pending_loan(dsm, loan->at, loan->stamp);
	slot = p ? heap_find(&dsm->heap, p->at) : NULL;
	if (!slot || slot->state != SLOT_GUEST || !name_parse(loan->at, 0, dsm->donors, &n))
		return dsm_leave(dsm, -EINVAL);
	memory = heap_memory(&dsm->heap, p->at);
	if (content != (memory ?: &p->copy->content)->bytes)
		return dsm_leave(dsm, -EINVAL);
	slot->state = SLOT_WORKING;
	slot->ticket = p->ticket;
	r = offer_back(dsm, p, slot);
	if (!r) {
		struct link *l = &dsm->link[n.donor];

		dsm_leave(dsm, 0);
		dsm_give_back(&op, loan->at, loan->stamp, p->claim,
			      link_claim_generation(l, p->claim), p->at, p->ticket);
		r = link_run(l, &op, NULL);
		pthread_mutex_lock(&dsm->lock);
	}
	if (r)
		dsm_end_loan(dsm, p);
	else
		slot->state = SLOT_RETURNED;
	return dsm_leave(dsm, r);
}

/* --- owners ----------------------------------------------------------------------- */

/* The object is at a borrower's place: takes it.  @slot, WORKING, is the old place's. */
static int take_returned(ebbdsm_t *dsm, struct ebbdsm_box *box, struct slot *slot,
			 const struct dsm_op *found)
{
	uint64_t old = box->at;
	struct taken t;
	struct dsm_op op;
	int r = take(dsm, found->other.at, found->other.back, DSM_HOLD_OFFERED, &t);

	if (r == -ESTALE || r == -EOWNERDEAD || r == -EINVAL || r == -EIO) {
		/* The borrower is dead, or its donor is. */
		dsm_restore(&op, old, found->old);
		r = dsm_run_home(dsm, &op);
		slot->state = r == -EOWNERDEAD ? SLOT_OWNED : SLOT_LENT;
		return r;
	}
	if (!r)
		r = settle_in(dsm, &t, box);
	if (r) {
		slot->state = SLOT_LENT;
		return r;
	}
	heap_free(&dsm->heap, old);
	return 0;
}

/* The box is the owner's, and nothing is pending. */
static void get_back(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct slot *slot)
{
	struct pending *p = dsm_pending(dsm, box->at);
	struct content *memory = heap_memory(&dsm->heap, box->at);

	/* A late return finds that. */
	if (memory && heap_is_cut(&dsm->heap, box->at))
		__atomic_store_n(&memory->head.hold, 0, __ATOMIC_SEQ_CST);
	slot->state = SLOT_OWNED;
	if (p)
		dsm_pending_end(dsm, p);
}

/* As dsm_own(), when ebbdsm_settle() of another thread does not look at the box. */
static int own_settled(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct slot **slot)
{
	const struct pending *p;
	int r;

	while (!(r = dsm_own(dsm, box, slot)) && (*slot)->state == SLOT_WORKING &&
	       (p = dsm_pending(dsm, box->at)) && p->looked)
		pthread_cond_wait(&dsm->changed, &dsm->lock);
	return r;
}

int dsm_take_back(ebbdsm_t *dsm, struct ebbdsm_box *box, bool withdraws)
{
	struct pending *p;
	struct slot *slot;
	struct dsm_op op;
	uint32_t state;
	int r = own_settled(dsm, box, &slot);

	if (r)
		return r;
	state = slot->state;
	if (state != SLOT_LENT && state != SLOT_OFFERED)
		return state == SLOT_WORKING ? -EBUSY : -EINVAL;
	slot->state = SLOT_WORKING;
	dsm_reclaim(&op, box->at, slot->ticket,
		    state == SLOT_LENT ? DSM_HOLD_LENT : DSM_HOLD_OFFERED, withdraws);
	r = dsm_run_home(dsm, &op);
	if (r == DSM_RETURNED) {
		r = take_returned(dsm, box, slot, &op);
		if (r != -EIO)
			return r ?: DSM_RETURNED;
	}
	/* In mapped memory, a borrower that cannot return it looks alive. */
	if (r == -EBUSY && dsm->heap.replicas) {
		dsm_leave(dsm, 0);
		link_settle(dsm_link(dsm, box->at));
		pthread_mutex_lock(&dsm->lock);
	}
	if (heap_is_cut(&dsm->heap, box->at))
		r = dsm_reclaim_lost(state == SLOT_LENT ? DSM_HOLD_LENT : DSM_HOLD_OFFERED, r);
	if (!r || r == -EOWNERDEAD) {
		get_back(dsm, box, slot);
	} else if (r == -ESTALE) {
		p = dsm_pending(dsm, box->at);
		if (p)
			dsm_pending_end(dsm, p);
		heap_free(&dsm->heap, box->at);
		*box = (struct ebbdsm_box){ 0 };
	} else {
		slot->state = state;
	}
	return r;
}

int ebbdsm_reclaim(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = dsm_take_back(dsm, box, true);
	return dsm_leave(dsm, r == DSM_RETURNED ? 0 : r);
}
