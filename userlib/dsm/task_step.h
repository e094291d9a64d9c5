/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * The protocol of tasks, one verb at a time, as dsm_step.h: the library and the model checker run
 * this source.
 *
 * A task is an object that its spawner lends: the loan protocol lets one process take it, once, and
 * says what has become of it.  The boxes of its arguments and of its result are parcels whose names
 * are in the object.  A seat (desk.h) tells the worker of the loan.
 *
 *   spawn   parcels of the boxes; the task's object, lent; a record of the loan's name; the seat:
 *           ticket -> record; a ring
 *   serve   the record of a taken seat; takes the loan; a new ticket for the seat; accepts the
 *           boxes; executes; parcels of the boxes of the result; returns the loan; a ring
 *   join    the loan returned: takes the object, then the boxes of the result.  Not taken, and the
 *           worker is dead: withdraws it; it will never be executed.  Taken, and the worker is
 *           dead: it may have been executed.  Boxes that were not accepted are withdrawn
 *
 * Rules for the caller:
 *  - A record stays as it is until the task's loan has ended; it is written before the seat.
 *  - A worker serves a seat by one thread at a time.
 *  - Parcels of a result that was returned are withdrawn, and the boxes dropped, when the spawner
 *    is dead (TASK_KEEP).
 *
 * Pure: no I/O, clock, allocation.
 */
#ifndef EBBDSM_TASK_STEP_H
#define EBBDSM_TASK_STEP_H

#include <stdbool.h>
#include <stdint.h>

/* Call again with the status that is said here, or with a negative errno. */
enum task_verb_kind {
	TASK_ENDED,     /* op->result */
	/* Of the spawner. */
	TASK_CHOOSE,    /* choose a worker and a ticket of its */
	TASK_GIVE,      /* offer box .i; of a worker: box .i of the result */
	TASK_MAKE,      /* make the task's object, and lend it */
	TASK_RECORD,    /* write the record */
	TASK_POST,      /* swap the seat.  -EAGAIN: another was faster; else it may have changed */
	TASK_RING,      /* ring the other process; the status has no effect */
	/*
	 * What has become of the loan: TASK_RETURNED, the object is the spawner's again; -EAGAIN,
	 * not taken; -EBUSY, taken; -EOWNERDEAD, the worker that had taken it is dead.
	 */
	TASK_PROBE,
	TASK_ALIVE,     /* 1: the worker is alive, 0: it is not */
	TASK_WITHDRAW,  /* withdraw the loan.  0: it was not taken; -EBUSY: it was */
	TASK_LOOK,      /* 0: set op->out to the boxes of the result; -EMSGSIZE; not executed */
	TASK_RETRIEVE,  /* withdraw the parcel of box .i, unless it was accepted */
	TASK_ACCEPT,    /* accept the parcel of box .i; of a worker: of an argument */
	TASK_DISCARD,   /* drop the task's object; the record is unused */
	/* Of the worker. */
	TASK_SEAT,      /* 1: the seat is taken, 0: it is not */
	TASK_READ,      /* read the record.  -ESTALE: it is of another ticket */
	TASK_TAKE,      /* take the loan */
	TASK_UNSEAT,    /* offer the seat with a new ticket */
	TASK_CHECK,     /* 0: set op->boxes to those of the arguments; else it is refused */
	TASK_RUN,       /* execute it, and set op->boxes to those of the result */
	TASK_RETURN,    /* write op->verdict and the parcels of op->out; return the loan */
	TASK_KEEP,      /* the boxes of op->out are the spawner's to accept while it is alive */
	TASK_DROP,      /* withdraw the parcel of box .i, and drop the box */
};

enum { TASK_RETURNED = 1 };

struct task_verb {
	enum task_verb_kind kind;
	uint32_t i;
};

struct task_op {
	uint8_t phase, i;
	uint8_t boxes;  /* a bit each: those of the task */
	uint8_t given;  /* ... that are offered */
	uint8_t out;    /* ... of the result */
	uint8_t made;   /* the object is lent */
	int verdict;    /* of a worker: 0 = executed, else why not */
	int result;
};

/* Spawns a task with @boxes.  0, or a negative errno and all is as before. */
void task_spawn(struct task_op *op, uint8_t boxes);

/*
 * Joins a task whose parcels are @given.  @ended: 0; TASK_RETURNED, -ECANCELED or -EIO: an
 * operation before has found that the loan was returned, has withdrawn it, or cannot know.
 * -EAGAIN: it goes on; -EMSGSIZE, -ENOSPC, -ENOBUFS, -ENOMEM: call again; others: it has ended.
 */
void task_join(struct task_op *op, uint8_t given, int ended);

/* Withdraws a task.  0; -EBUSY: a worker has it or had it. */
void task_cancel(struct task_op *op);

/*
 * Serves a seat.  0: a task was executed or refused; -EAGAIN: there is none; -ESTALE: there was
 * none any more; others: there is one, and this process cannot take it.
 */
void task_serve(struct task_op *op);

/* @status is that of the last verb, 0 at first. */
struct task_verb task_next(struct task_op *op, int status);

#endif
