// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/*
 * Shared ownership: a value, which is read as any other, and a cell that says which processes have
 * references.  How many each of them has, it knows alone.
 */
#include "cell.h"

/* Runs @op of a user. */
static int run(ebbdsm_t *dsm, struct cell *c, struct sync_op *op)
{
	int r;

	dsm_leave(dsm, 0);
	r = cell_run(c, op, INT64_MAX);
	dsm_enter(dsm);
	c->state = op->word;
	return r == -ENOTRECOVERABLE ? -EOWNERDEAD : r;
}

/* --- settling --------------------------------------------------------------------- */

/* There is no last reference any more: the maker frees the object. */
static void free_object(ebbdsm_t *dsm, struct cell *c)
{
	heap_free(&dsm->heap, c->value_at);
	c->value_at = 0;
	c->joined = false;
	c->references = 0;
	cell_drop(dsm, c->at, c->stamp);
}

/* Ends references of the dead; frees the object after the last one. */
static void settle(ebbdsm_t *dsm, struct cell *c)
{
	struct sync_op op;

	c->calls++;
	cell_turn(dsm, &c->work, INT64_MAX);
	sync_sweep(&op);
	if (!c->references && run(dsm, c, &op) == 1 && !c->references && c->calls == 1) {
		cell_pass(dsm, &c->work);
		c->calls--;
		free_object(dsm, c);
		return;
	}
	cell_pass(dsm, &c->work);
	cell_end(dsm, c);
}

static void settle_arcs(ebbdsm_t *dsm)
{
	struct cell *c;
	uint32_t turn;

	if (dsm_enter(dsm))
		return;
	turn = ++dsm->turn;
	while ((c = cell_next_forgotten(dsm, turn)))
		settle(dsm, c);
	dsm_leave(dsm, 0);
}

/* --- making ----------------------------------------------------------------------- */

/* The box's slot, if it is idle. */
static int idle_slot(ebbdsm_t *dsm, const struct ebbdsm_box *box, struct slot **slot)
{
	int r = dsm_own(dsm, box, slot);

	return r ?: (*slot)->state != SLOT_OWNED || (*slot)->borrows ? -EBUSY : 0;
}

static int make(ebbdsm_t *dsm, struct ebbdsm_box *box, struct ebbdsm_arc *arc)
{
	uint64_t words[SYNC_CONTENT] = { [SYNC_STATE] = 1 };
	struct ebbdsm_arc made = { .value = ebbdsm_lend(box) };
	struct cell *c;
	struct slot *slot;
	int r = idle_slot(dsm, box, &slot);

	if (r)
		return r;
	slot->state = SLOT_WORKING;
	r = cell_own_entry(dsm, dsm->home, &words[SYNC_ENTRY]);
	if (!r)
		r = cell_make(dsm, CELL_COUNTS, words, SYNC_CONTENT, &made.at, &made.stamp);
	if (!r)
		r = cell_begin(dsm, CELL_COUNTS, made.at, made.stamp, &c);
	slot->state = r ? SLOT_OWNED : SLOT_SHARED;
	if (r) {
		if (made.at)
			cell_drop(dsm, made.at, made.stamp);
		return r;
	}
	c->joined = true;
	c->me = words[SYNC_ENTRY];
	c->state = words[SYNC_STATE];
	c->references = 1;
	c->value_at = box->at;
	dsm->settle_more = settle_arcs;
	cell_end(dsm, c);
	*arc = made;
	*box = (struct ebbdsm_box){ 0 };
	return 0;
}

int ebbdsm_arc_new(ebbdsm_t *dsm, struct ebbdsm_box *box, struct ebbdsm_arc *arc)
{
	int r = dsm_enter(dsm);

	return r ?: dsm_leave(dsm, make(dsm, box, arc));
}

/* --- references ------------------------------------------------------------------- */

/* Makes this process a user, in place of a dead one if there are as many as can be. */
static int join(ebbdsm_t *dsm, struct cell *c)
{
	struct sync_op op;
	int r = cell_join(dsm, c);

	if (r != -EUSERS)
		return r;
	/* The maker does not end references of the dead while it has one of its own. */
	sync_sweep(&op);
	r = run(dsm, c, &op);
	return r < 0 ? r : cell_join(dsm, c);
}

static int take(ebbdsm_t *dsm, struct cell *c)
{
	struct sync_op op;
	int r;

	if (c->references) {
		c->references++;
		return 0;
	}
	r = join(dsm, c);
	if (!r) {
		sync_hold(&op, c->me, c->user, c->state);
		r = run(dsm, c, &op);
	}
	c->references = !r;
	c->forgotten = c->forgotten && r;
	/* What is not there any more needs no entry. */
	if (r && !c->value_at)
		c->joined = false;
	return r;
}

int ebbdsm_clone(ebbdsm_t *dsm, const struct ebbdsm_arc *arc)
{
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_begin(dsm, CELL_COUNTS, arc->at, arc->stamp, &c);
	if (r)
		return dsm_leave(dsm, r);
	r = cell_turn(dsm, &c->work, INT64_MAX) ?: take(dsm, c);
	cell_pass(dsm, &c->work);
	cell_end(dsm, c);
	return dsm_leave(dsm, r);
}

/* Ends the process's last reference. */
static int release(ebbdsm_t *dsm, struct cell *c)
{
	struct sync_op op;
	struct name n;
	int r;

	sync_unhold(&op, c->me, c->user, c->state);
	r = run(dsm, c, &op);
	if (c->value_at) {
		c->forgotten = true;
		return r < 0 ? r : 0;
	}
	if (r == 1 && name_parse(c->at, 0, dsm->donors, &n)) {
		/* Perhaps it sleeps, and settles when it is woken. */
		dsm_leave(dsm, 0);
		r = link_notify(c->link, n.member);
		dsm_enter(dsm);
		r = r == -ESRCH ? 0 : link_error(r);
	} else if (!r) {
		sync_leave(&op, c->me, c->user);
		r = run(dsm, c, &op);
	}
	c->joined = false;
	return r;
}

int ebbdsm_unclone(ebbdsm_t *dsm, const struct ebbdsm_arc *arc)
{
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_begin(dsm, CELL_COUNTS, arc->at, arc->stamp, &c);
	if (r)
		return dsm_leave(dsm, r);
	cell_turn(dsm, &c->work, INT64_MAX);
	if (!c->references)
		r = -EINVAL;
	else if (!--c->references)
		r = release(dsm, c);
	cell_pass(dsm, &c->work);
	cell_end(dsm, c);
	return dsm_leave(dsm, r);
}
