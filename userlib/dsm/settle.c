// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* The lock, what is pending, and what becomes of it. */
#include <errno.h>
#include <stdlib.h>

#include "dsm.h"

int dsm_enter(ebbdsm_t *dsm)
{
	if (!*dsm->alive)
		return -ECHILD;
	pthread_mutex_lock(&dsm->lock);
	return 0;
}

int dsm_leave(ebbdsm_t *dsm, int result)
{
	twin_unlock(&dsm->heap.told);
	return result;
}

/* --- pending ---------------------------------------------------------------------- */

struct pending *dsm_pending_new(ebbdsm_t *dsm, uint64_t at, uint64_t loan_at)
{
	struct pending *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->at = at;
	p->loan_at = loan_at;
	p->entry.key = loan_at ?: at;
	queue_add(&dsm->pending, &p->entry, dsm->turn);
	return p;
}

struct pending *dsm_pending(ebbdsm_t *dsm, uint64_t at)
{
	struct pending *p = (struct pending *)queue_find(&dsm->pending, at);

	while (p && (p->at != at || p->loan_at))
		p = (struct pending *)p->entry.chain;
	return p;
}

struct pending *dsm_pending_loan(ebbdsm_t *dsm, uint64_t loan_at, uint64_t loan)
{
	struct pending *p = (struct pending *)queue_find(&dsm->pending, loan_at);

	while (p && (p->loan_at != loan_at || p->loan != loan))
		p = (struct pending *)p->entry.chain;
	return p;
}

void dsm_pending_end(ebbdsm_t *dsm, struct pending *pending)
{
	queue_remove(&dsm->pending, &pending->entry);
	free(pending->copy);
	free(pending);
}

int dsm_run_home(ebbdsm_t *dsm, struct dsm_op *op)
{
	int r;

	dsm_leave(dsm, 0);
	r = link_run(dsm_link(dsm, op->at), op, NULL);
	pthread_mutex_lock(&dsm->lock);
	return r;
}

/* What was returned is taken, or never will be. */
void dsm_end_loan(ebbdsm_t *dsm, struct pending *p)
{
	struct name n;

	if (name_parse(p->loan_at, 0, dsm->donors, &n)) {
		dsm_leave(dsm, 0);
		link_unclaim(&dsm->link[n.donor], p->claim);
		pthread_mutex_lock(&dsm->lock);
	}
	heap_free(&dsm->heap, p->at);
	dsm_pending_end(dsm, p);
}

/* --- settling --------------------------------------------------------------------- */

/* Returns whether the owner of a loan that was returned can still take it. */
static bool can_be_taken(ebbdsm_t *dsm, const struct pending *p)
{
	enum link_owner owner = LINK_OWNS;
	struct name n;
	int r = -EIO;

	if (name_parse(p->loan_at, 0, dsm->donors, &n)) {
		dsm_leave(dsm, 0);
		r = link_owner(&dsm->link[n.donor], p->loan_at, p->loan, &owner);
		pthread_mutex_lock(&dsm->lock);
	}
	return !r && owner == LINK_OWNS;
}

/* Looks what has become of what is pending; its slot is WORKING meanwhile. */
static void look(ebbdsm_t *dsm, struct pending *p, struct slot *slot)
{
	struct dsm_op op;
	uint32_t state = slot->state;
	int r;

	slot->state = SLOT_WORKING;
	p->looked = true;
	dsm_reclaim(&op, p->at, slot->ticket, DSM_HOLD_OFFERED, false);
	r = dsm_run_home(dsm, &op);
	if (r == -EAGAIN && state == SLOT_RETURNED && !can_be_taken(dsm, p)) {
		dsm_reclaim(&op, p->at, slot->ticket, DSM_HOLD_OFFERED, true);
		r = dsm_run_home(dsm, &op);
	}
	/*
	 * No other process can take it any more; what was not accepted is lost.  In mapped memory,
	 * a process that has taken it, and cannot finish, looks as if it went on.
	 */
	if ((r == -EIO || r == -EBUSY) && dsm->heap.replicas && link_is_lost(dsm_link(dsm, p->at)))
		r = -ESTALE;
	/* Of ebbdsm_reclaim(). */
	pthread_cond_broadcast(&dsm->changed);
	p->looked = false;
	if (r && r != -ESTALE) {
		slot->state = state;
		return;
	}
	if (state == SLOT_RETURNED) {
		dsm_end_loan(dsm, p);
		return;
	}
	heap_free(&dsm->heap, p->at);
	dsm_pending_end(dsm, p);
}

static struct pending *next_pending(ebbdsm_t *dsm, uint32_t turn, struct slot **slot)
{
	struct pending *p;

	while ((p = (struct pending *)queue_next(&dsm->pending, turn, dsm->turn))) {
		*slot = heap_find(&dsm->heap, p->at);
		if (*slot && ((*slot)->state == SLOT_OFFERED || (*slot)->state == SLOT_RETURNED))
			return p;
	}
	return NULL;
}

int dsm_settle(ebbdsm_t *dsm)
{
	struct pending *p;
	struct slot *slot;
	uint32_t turn;
	dsm_settle_more *more;
	int r = dsm_enter(dsm), error = 0;

	if (r)
		return r;
	turn = ++dsm->turn;
	while ((p = next_pending(dsm, turn, &slot)))
		look(dsm, p, slot);
	more = dsm->settle_more;
	dsm_leave(dsm, 0);
	if (more)
		more(dsm);
	if (dsm->tasks.settle)
		dsm->tasks.settle(dsm);
	for (uint32_t i = 0; i < dsm->donors; i++) {
		r = link_settle(&dsm->link[i]);
		error = error ?: r;
	}
	return error;
}

int ebbdsm_settle(ebbdsm_t *dsm)
{
	int r = dsm_settle(dsm);

	/* With what was noticed now. */
	if (dsm->heap.replicas && !dsm_enter(dsm)) {
		heap_mend(&dsm->heap);
		dsm_leave(dsm, 0);
	}
	return r;
}
