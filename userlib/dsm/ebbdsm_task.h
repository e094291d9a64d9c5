/* SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause */
/*
 * Tasks of libebbdsm: functions that run in another process of the space, next to their boxes, and
 * on which donor new boxes lie.  ebbdsm.h includes this file.
 *
 * A task is a function by its index in a table, which each process registers in the same order, and
 * its arguments: bytes, and boxes, whose ownership moves to the task.  ebbdsm_spawn() chooses the
 * process, posts the task there and returns; ebbdsm_join() waits for its end and gets bytes and
 * boxes back.  No code is sent: a process executes tasks of its own build alone, and refuses
 * others.
 *
 * Processes that execute tasks call ebbdsm_work() in threads of their own, which sleep until a task
 * comes and send no messages meanwhile.  The processes of the space that have registered tasks are
 * known from the pools: each has a page of its home donor's memory, in which it says its build, its
 * load and which tasks wait, and where others post tasks.  There is no other server or daemon.
 *
 * At most once.  A task is executed once, or not at all, whichever processes are killed at whatever
 * time.  ebbdsm_join() tells which: 0, it has ended; -ECANCELED, it was not begun and never will
 * be, so that it can be spawned again; -EOWNERDEAD, its process died while it was executed or
 * before its result was fetched.  If a donor exits, -EIO: then it cannot be known.
 *
 * Boxes.  What ebbdsm_spawn() takes is the task's.  When the function returns, the boxes in
 * call->box[] go to the process that joins; those that it has moved out of there are its process's.
 * If the process dies, boxes of a task that was not begun are the spawner's again, and boxes that
 * the task had are lost with it.  If the spawner dies, a task that was not begun is not executed
 * once the donor has freed the spawner's memory, and the boxes of one that was are dropped at its
 * end.  A worker that has no memory to give a result's boxes waits for it at the task's end.
 *
 * A task runs to its end where it began: running threads do not migrate.
 *
 * Where.  Processes with one home donor count as near to each other and to its boxes.  A task goes
 * to a process at the donor of its first box, or at that of @where: the one with the fewest tasks.
 * If all processes there are on machines whose processor or memory is in use above 90 %, or have
 * no room, it goes elsewhere: to a process on a machine below 90 % if there is one.  A task without
 * boxes goes to the process with the fewest tasks on a machine below 90 %, the spawner's own
 * process included.  Loads are up to some seconds old.
 *
 * Units, errors and threads are as in ebbdsm.h.  Any thread may call ebbdsm_spawn() and
 * ebbdsm_work().  Any thread may join or cancel a job, but no two threads at the same time: the
 * join frees it.  A function may spawn and join: it then takes a thread of its process until that
 * ends, and tasks that wait for each other need as many threads.
 *
 * Locks.  A mutex of ebbdsm_sync.h belongs to the call of ebbdsm_lock(), not to a task: a task that
 * locks what its spawner has locked waits until the spawner unlocks it, also in the spawner's own
 * process.  So a spawner that joins the task before it unlocks waits for ever.
 */
#ifndef EBBDSM_TASK_H
#define EBBDSM_TASK_H

#ifndef EBBDSM_H
#error "include ebbdsm.h"
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define EBBDSM_TASK_BOXES 8u
#define EBBDSM_TASK_BYTES ((2u << 20) - 1024u) /* of arguments and result together, at most */
#define EBBDSM_TASKS_WAITING 64u      /* at a process, at most */
#define EBBDSM_TASKS_SPAWNED 128u     /* of a process and not joined, at most */

/* What a function gets.  Pointers are valid until it returns. */
struct ebbdsm_call {
	unsigned function;
	const void *args;  /* aligned to 16 */
	size_t args_size;
	void *result;      /* zeros at first; aligned to 16 */
	size_t result_size; /* of struct ebbdsm_task; set it to the bytes that are used */
	/* The task's arguments; at the end, what goes to the joiner.  Not borrowed at the end. */
	struct ebbdsm_box box[EBBDSM_TASK_BOXES];
};

/* Returns a status for ebbdsm_join() (result->status). */
typedef int (*ebbdsm_function)(ebbdsm_t *dsm, struct ebbdsm_call *call);

/* Zero it, set what is needed.  Later releases add fields at the end. */
struct ebbdsm_functions {
	size_t size;                  /* sizeof(struct ebbdsm_functions) */
	const ebbdsm_function *table; /* the same functions in all processes; valid until close */
	unsigned count;
	/*
	 * Tasks that may wait here, up to EBBDSM_TASKS_WAITING; 0 = none run.  Spawners choose this
	 * process as long as it lives, so keep threads in ebbdsm_work(): without one, tasks wait.
	 */
	unsigned waiting;
	/*
	 * Equal in processes that have the same table: up to 63 printable characters, or NULL: the
	 * build id of the executable.  Set it if the functions are in a shared library.
	 */
	const char *build;
	char error[256];              /* set on failure: "THING: CAUSE; REMEDY" */
};

/*
 * Registers the functions that this process may spawn and, with .waiting, execute; once for each
 * handle.  -EINVAL, -EALREADY, -ENOEXEC: the executable has no build id (ld --build-id), set
 * .build; -EOPNOTSUPP: a donor is too old.
 */
EBBDSM_API int ebbdsm_register(ebbdsm_t *dsm, struct ebbdsm_functions *functions);

/* Zero it, set what is needed.  Later releases add fields at the end. */
struct ebbdsm_task {
	size_t size;        /* sizeof(struct ebbdsm_task) */
	unsigned function;  /* index in the table */
	const void *args;   /* copied */
	size_t args_size;
	size_t result_size; /* bytes of the result at most */
	/* Idle boxes of this process, in any places; zero when they have become the task's. */
	struct ebbdsm_box box[EBBDSM_TASK_BOXES];
	char error[256];    /* set on failure: "THING: CAUSE; REMEDY" */
};

/* A task that was spawned and is not joined.  Join each, also after ebbdsm_cancel(). */
typedef struct ebbdsm_job ebbdsm_job_t;

/*
 * Spawns the task and sets *@job, which ebbdsm_join() ends.  On failure the boxes are the caller's
 * as before, and nothing is executed.  -ESRCH: no process executes tasks; -ENOEXEC: none of this
 * build, or the table has no such function; -EAGAIN: all that could have no room: join tasks, or
 * try again later; -ENOBUFS: EBBDSM_TASKS_SPAWNED.  With a mapped home, 2 round trips if the
 * process that is chosen has its home over TCP, and 2 for each donor over TCP if what is known of
 * processes is half a second old.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_spawn(ebbdsm_t *dsm, struct ebbdsm_task *task,
					   ebbdsm_job_t **job);

/*
 * ... near the object with .at @where (of a box, view, loan or parcel), or EBBDSM_DONOR().
 * -EINVAL also for another @where.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_spawn_at(ebbdsm_t *dsm, uint64_t where,
					      struct ebbdsm_task *task, ebbdsm_job_t **job);

/* Zero it, set what is needed.  Later releases add fields at the end. */
struct ebbdsm_result {
	size_t size;        /* sizeof(struct ebbdsm_result) */
	void *bytes;        /* room for the result */
	size_t bytes_size;  /* of the room; set to the size of the result */
	int status;         /* what the function returned */
	unsigned donor, member; /* where it was spawned: index of the donor, number there */
	/* What the function left in call->box[]; on failure, arguments: the caller's again. */
	struct ebbdsm_box box[EBBDSM_TASK_BOXES];
	char error[256];    /* set on failure: "THING: CAUSE; REMEDY" */
};

/*
 * Waits up to @timeout_ms, -1 = without limit, for the end of the task.  The job has ended when
 * *@job is NULL; while it is not, call again.  A task whose process lives and has no thread in
 * ebbdsm_work() does not begin: ebbdsm_cancel() withdraws it.
 *
 * After these, *@job is as before:
 *
 *	-EAGAIN      not yet
 *	-EMSGSIZE    the result is larger than the room, and stays; .bytes_size is its size
 *	-ENOSPC, -ENOBUFS, -ENOMEM  there is no memory to take the result and its boxes, which stay
 *
 * After 0 and these, it is NULL:
 *
 *	-ECANCELED   it was not begun: its process exited or had no memory, or ebbdsm_cancel()
 *	-ENOEXEC     its process has another build, or no such function; it was not begun
 *	-EOWNERDEAD  its process died after it had begun
 *	-EIO         a donor has exited: it is unknown whether the task was executed
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_join(ebbdsm_t *dsm, ebbdsm_job_t **job, int timeout_ms,
					  struct ebbdsm_result *result);

/*
 * Withdraws a task that has not begun: 0, ebbdsm_join() then returns -ECANCELED and the boxes.
 * -EBUSY: it has begun or ended: join it.  -EINVAL: @job is NULL.
 */
EBBDSM_API int ebbdsm_cancel(ebbdsm_t *dsm, ebbdsm_job_t *job);

/*
 * Waits up to @timeout_ms, -1 = without limit, for a task and executes it.  0: executed or refused
 * one; -EAGAIN: none came; -EINVAL: ebbdsm_register() was not called with .waiting; -ENOSPC,
 * -ENOBUFS, -ENOMEM: a task waits, and there is no memory to take it; -EIO: a donor of the space
 * has exited; if it is not the home donor, call again, and tasks are executed; with replicas,
 * only the home donor, or one that a task needs.  Does what ebbdsm_settle() does, every second.
 */
EBBDSM_API int ebbdsm_work(ebbdsm_t *dsm, int timeout_ms);

/* --- placement ---------------------------------------------------------------------------- */

/*
 * A place for ebbdsm_spawn_at() and ebbdsm_new_at(): the donor with this index, below
 * EBBDSM_DONORS, in the options.
 */
#define EBBDSM_DONOR(index) ((uint64_t)(index) << 61)
/* One for ebbdsm_new_at() alone: the donor with the most free memory, as known a second ago. */
#define EBBDSM_EMPTIEST UINT64_MAX

/*
 * Makes a box as ebbdsm_new() at the donor of @where: of an object's .at, EBBDSM_DONOR(), or
 * EBBDSM_EMPTIEST.  A donor over TCP takes the round trips of ebbdsm.h for all that is done with
 * the box.
 *
 * ebbdsm_new(), and what this process accepts or borrows, is placed at the home donor or, when that
 * has no memory left or more than 90 % in use, at the emptiest other one.
 */
EBBDSM_API EBBDSM_CHECKED int ebbdsm_new_at(ebbdsm_t *dsm, uint64_t where, const void *content,
					    size_t size, struct ebbdsm_box *box);

#ifdef __cplusplus
}
#endif

#endif
