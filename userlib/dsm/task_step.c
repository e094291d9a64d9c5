// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "task_step.h"

#include <errno.h>
#include <string.h>

/* Whose verb's status the next call of task_next() gets. */
enum phase {
	ENDED,
	RUNG,      /* and DISCARDED: the last verb */
	DISCARDED,
	SPAWN_BEGIN,
	CHOSEN,
	GIVEN,
	MADE,
	RECORDED,
	POSTED,
	UNDO_WITHDRAWN,
	JOIN_BEGIN, /* from here on, of a join or a cancellation */
	PROBED,
	ASKED,
	WITHDRAWN,
	LOOKED,
	ACCEPTED,
	RETRIEVED,
	CANCEL_BEGIN,
	CANCELLED,
	SERVE_BEGIN, /* from here on, of a worker */
	SEAT_READ,
	RECORD_READ,
	TAKEN,
	UNSEATED,
	UNSEATED_STALE,
	CHECKED,
	ARGUMENT_ACCEPTED,
	RAN,
	RESULT_GIVEN,
	RETURNED,
	KEPT,
	DROPPED,
};

enum { BOXES = 8 };

static void begin(struct task_op *op, enum phase phase)
{
	memset(op, 0, sizeof(*op));
	op->phase = (uint8_t)phase;
}

void task_spawn(struct task_op *op, uint8_t boxes)
{
	begin(op, SPAWN_BEGIN);
	op->boxes = boxes;
}

void task_join(struct task_op *op, uint8_t given, int ended)
{
	begin(op, JOIN_BEGIN);
	op->given = given;
	op->result = ended;
}

void task_cancel(struct task_op *op)
{
	begin(op, CANCEL_BEGIN);
}

void task_serve(struct task_op *op)
{
	begin(op, SERVE_BEGIN);
}

static struct task_verb end(struct task_op *op, int result)
{
	op->phase = ENDED;
	op->result = result;
	return (struct task_verb){ .kind = TASK_ENDED };
}

static struct task_verb ask(struct task_op *op, enum phase next, enum task_verb_kind kind)
{
	op->phase = (uint8_t)next;
	return (struct task_verb){ .kind = kind, .i = op->i };
}

/* Sets *@v to the verb @kind with the first box of @set from @i on; returns false without one. */
static bool ask_of(struct task_op *op, uint8_t set, uint32_t i, enum phase next,
		   enum task_verb_kind kind, struct task_verb *v)
{
	while (i < BOXES && !(set >> i & 1))
		i++;
	if (i == BOXES)
		return false;
	op->i = (uint8_t)i;
	*v = ask(op, next, kind);
	return true;
}

/* --- spawner ---------------------------------------------------------------------- */

static struct task_verb retrieve_from(struct task_op *op, uint32_t i)
{
	struct task_verb v;

	return ask_of(op, op->given, i, RETRIEVED, TASK_RETRIEVE, &v) ? v :
		       ask(op, DISCARDED, TASK_DISCARD);
}

static struct task_verb undo(struct task_op *op, int error)
{
	op->result = error;
	return op->made ? ask(op, UNDO_WITHDRAWN, TASK_WITHDRAW) : retrieve_from(op, 0);
}

static struct task_verb offer_from(struct task_op *op, uint32_t i)
{
	struct task_verb v;

	return ask_of(op, op->boxes, i, GIVEN, TASK_GIVE, &v) ? v : ask(op, MADE, TASK_MAKE);
}

static struct task_verb chosen(struct task_op *op, int status)
{
	if (status)
		return undo(op, status);
	return op->made ? ask(op, RECORDED, TASK_RECORD) : offer_from(op, 0);
}

static struct task_verb given(struct task_op *op, int status)
{
	if (status)
		return undo(op, status);
	op->given |= (uint8_t)(1u << op->i);
	return offer_from(op, op->i + 1u);
}

static struct task_verb posted(struct task_op *op, int status)
{
	if (status == -EAGAIN)
		return ask(op, CHOSEN, TASK_CHOOSE);
	return status ? undo(op, status) : ask(op, RUNG, TASK_RING);
}

/* @status is that of the withdrawal of a loan whose post may have reached the worker. */
static struct task_verb undo_withdrawn(struct task_op *op, int status)
{
	return status == -EBUSY ? end(op, 0) : retrieve_from(op, 0);
}

static struct task_verb join_begin(struct task_op *op)
{
	if (op->result == TASK_RETURNED)
		return ask(op, LOOKED, TASK_LOOK);
	return op->result ? retrieve_from(op, 0) : ask(op, PROBED, TASK_PROBE);
}

static bool may_succeed_later(int status)
{
	return status == -ENOSPC || status == -ENOBUFS || status == -ENOMEM;
}

static struct task_verb probed(struct task_op *op, int status)
{
	if (status == TASK_RETURNED)
		return ask(op, LOOKED, TASK_LOOK);
	if (status == -EAGAIN)
		return ask(op, ASKED, TASK_ALIVE);
	if (status == -EBUSY)
		return end(op, -EAGAIN);
	if (may_succeed_later(status))
		return end(op, status);
	op->result = status;
	return retrieve_from(op, 0);
}

static struct task_verb withdrawn(struct task_op *op, int status)
{
	/* It was taken in time. */
	if (status == -EBUSY)
		return ask(op, PROBED, TASK_PROBE);
	op->result = status ?: -ECANCELED;
	return retrieve_from(op, 0);
}

static struct task_verb accept_from(struct task_op *op, uint32_t i)
{
	struct task_verb v;

	return ask_of(op, op->out, i, ACCEPTED, TASK_ACCEPT, &v) ? v : retrieve_from(op, 0);
}

static struct task_verb looked(struct task_op *op, int status)
{
	if (status == -EMSGSIZE || may_succeed_later(status))
		return end(op, status);
	op->result = status;
	return accept_from(op, 0);
}

static struct task_verb accepted(struct task_op *op, int status)
{
	if (may_succeed_later(status))
		return end(op, status);
	if (status)
		op->result = status == -ESTALE ? -EOWNERDEAD : status;
	return accept_from(op, op->i + 1u);
}

/* --- worker ----------------------------------------------------------------------- */

static struct task_verb taken(struct task_op *op, int status)
{
	if (!status)
		return ask(op, UNSEATED, TASK_UNSEAT);
	return may_succeed_later(status) ? end(op, status) : ask(op, UNSEATED_STALE, TASK_UNSEAT);
}

/* Gives what the worker has to the spawner, then returns the loan. */
static struct task_verb give_from(struct task_op *op, uint32_t i)
{
	struct task_verb v;

	return ask_of(op, op->boxes, i, RESULT_GIVEN, TASK_GIVE, &v) ? v :
		       ask(op, RETURNED, TASK_RETURN);
}

/* The worker has the boxes before @has. */
static struct task_verb refuse(struct task_op *op, uint32_t has, int why)
{
	op->verdict = why;
	op->boxes &= (uint8_t)((1u << has) - 1);
	return give_from(op, 0);
}

static struct task_verb argument_from(struct task_op *op, uint32_t i)
{
	struct task_verb v;

	return ask_of(op, op->boxes, i, ARGUMENT_ACCEPTED, TASK_ACCEPT, &v) ? v :
		       ask(op, RAN, TASK_RUN);
}

static struct task_verb result_given(struct task_op *op, int status)
{
	/* One that is still borrowed stays the worker's. */
	if (!status)
		op->out |= (uint8_t)(1u << op->i);
	return give_from(op, op->i + 1u);
}

static struct task_verb drop_from(struct task_op *op, uint32_t i)
{
	struct task_verb v;

	return ask_of(op, op->out, i, DROPPED, TASK_DROP, &v) ? v : end(op, 0);
}

static struct task_verb returned(struct task_op *op, int status)
{
	/* The spawner is dead. */
	if (status)
		return drop_from(op, 0);
	return op->out ? ask(op, KEPT, TASK_KEEP) : ask(op, RUNG, TASK_RING);
}

/* --- all -------------------------------------------------------------------------- */

static struct task_verb next_of_spawn(struct task_op *op, int status)
{
	switch ((enum phase)op->phase) {
	case SPAWN_BEGIN:
		return ask(op, CHOSEN, TASK_CHOOSE);
	case CHOSEN:
		return chosen(op, status);
	case GIVEN:
		return given(op, status);
	case MADE:
		op->made = !status;
		return status ? undo(op, status) : ask(op, RECORDED, TASK_RECORD);
	case RECORDED:
		return status ? undo(op, status) : ask(op, POSTED, TASK_POST);
	case POSTED:
		return posted(op, status);
	case UNDO_WITHDRAWN:
		return undo_withdrawn(op, status);
	default:
		return end(op, op->result);
	}
}

static struct task_verb next_of_join(struct task_op *op, int status)
{
	switch ((enum phase)op->phase) {
	case JOIN_BEGIN:
		return join_begin(op);
	case PROBED:
		return probed(op, status);
	case ASKED:
		return status == 1 ? end(op, -EAGAIN) : ask(op, WITHDRAWN, TASK_WITHDRAW);
	case WITHDRAWN:
		return withdrawn(op, status);
	case LOOKED:
		return looked(op, status);
	case ACCEPTED:
		return accepted(op, status);
	case RETRIEVED:
		return retrieve_from(op, op->i + 1u);
	case CANCEL_BEGIN:
		return ask(op, CANCELLED, TASK_WITHDRAW);
	case CANCELLED:
		return end(op, status);
	default:
		return end(op, op->result);
	}
}

static struct task_verb next_of_serve(struct task_op *op, int status)
{
	switch ((enum phase)op->phase) {
	case SERVE_BEGIN:
		return ask(op, SEAT_READ, TASK_SEAT);
	case SEAT_READ:
		return status == 1 ? ask(op, RECORD_READ, TASK_READ) : end(op, status ?: -EAGAIN);
	case RECORD_READ:
		return ask(op, status ? UNSEATED_STALE : TAKEN, status ? TASK_UNSEAT : TASK_TAKE);
	case TAKEN:
		return taken(op, status);
	case UNSEATED_STALE:
		return end(op, -ESTALE);
	case UNSEATED:
		return ask(op, CHECKED, TASK_CHECK);
	case CHECKED:
		return status ? refuse(op, 0, status) : argument_from(op, 0);
	case ARGUMENT_ACCEPTED:
		return status ? refuse(op, op->i, status) : argument_from(op, op->i + 1u);
	case RAN:
		return give_from(op, 0);
	case RESULT_GIVEN:
		return result_given(op, status);
	case RETURNED:
		return returned(op, status);
	case KEPT:
		return ask(op, RUNG, TASK_RING);
	case DROPPED:
		return drop_from(op, op->i + 1u);
	default:
		return end(op, op->result);
	}
}

struct task_verb task_next(struct task_op *op, int status)
{
	if (op->phase >= SERVE_BEGIN)
		return next_of_serve(op, status);
	return op->phase >= JOIN_BEGIN ? next_of_join(op, status) : next_of_spawn(op, status);
}
