// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Tasks that this process has spawned. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "task.h"

/* What is known of other processes when a task is spawned may be as old, ms. */
#define LOOK_MS 500
/* Between questions whether a worker is alive, ms. */
#define ASK_MS 500
#define SPAWN_TRIES 16

struct ebbdsm_job {
	struct ebbdsm_box object;
	struct ebbdsm_loan loan;
	struct ebbdsm_box given[EBBDSM_TASK_BOXES], got[EBBDSM_TASK_BOXES];
	struct ebbdsm_parcel in[EBBDSM_TASK_BOXES];
	struct dsm_peer worker;
	uint64_t ticket;
	uint32_t seat, tries;
	int record, ended;  /* record: its number, or -1; ended: of task_join() */
	uint8_t parcels;    /* .given that are offered, a bit each */
	int64_t asked_at;
};

__attribute__((format(printf, 3, 4)))
static int say(char error[static 256], int r, const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	vsnprintf(error, 256, fmt, list);
	va_end(list);
	return r;
}

/* --- records ---------------------------------------------------------------------- */

static int take_record(struct dsm_tasks *t)
{
	int record = -1;

	pthread_mutex_lock(&t->lock);
	for (uint32_t i = 0; i < DESK_RECORDS / 64 && record < 0; i++)
		if (~t->used[i]) {
			uint32_t bit = (uint32_t)__builtin_ctzll(~t->used[i]);

			t->used[i] |= 1ull << bit;
			record = (int)(i * 64 + bit);
		}
	pthread_mutex_unlock(&t->lock);
	return record;
}

static void release_record(struct dsm_tasks *t, int record)
{
	pthread_mutex_lock(&t->lock);
	if (record >= 0)
		t->used[record / 64] &= ~(1ull << record % 64);
	pthread_mutex_unlock(&t->lock);
}

static int write_record(ebbdsm_t *dsm, const struct ebbdsm_job *job)
{
	struct desk_record r = { job->ticket, dsm->tasks.x.generation, job->loan.at,
				 job->loan.stamp };

	return desk_write(dsm, (uint32_t)(offsetof(struct desk, record) +
					  (uint32_t)job->record * sizeof(r)), &r, sizeof(r));
}

/* --- choosing --------------------------------------------------------------------- */

struct choice {
	ebbdsm_t *dsm;
	struct ebbdsm_task *task;
	uint32_t donor;
	ebbdsm_job_t *job;
};

static void describe(const struct desk *d, uint32_t donor, struct choose_worker *w)
{
	uint32_t waiting = 0, unused = 0;

	for (uint32_t i = 0; i < d->seats; i++) {
		waiting += (d->seat[i] & SEAT_BITS) == SEAT_TAKEN;
		unused += (d->seat[i] & SEAT_BITS) == SEAT_FREE;
	}
	*w = (struct choose_worker){
		.donor = donor, .cpu = d->load.cpu, .memory = d->load.memory,
		.tasks = waiting + d->load.running, .has_room = unused,
	};
}

/*
 * Rings the processes of this build: seats of a spawner that died before it rang are not known to
 * be taken, and will be free.
 */
static void ring_workers(ebbdsm_t *dsm)
{
	const struct dsm_tasks *t = &dsm->tasks;

	for (uint32_t i = 0; i < t->peers; i++) {
		const struct desk *d = peer_desk(&t->peer[i]);

		if (d->seats && !strcmp(d->build, t->build))
			dsm_ring(dsm, t->peer[i].donor, t->peer[i].member);
	}
}

/* Says why no process can execute the task; @others execute tasks of other builds. */
static int no_worker(const struct choice *c, uint32_t workers, const struct dsm_peer *other)
{
	struct ebbdsm_task *task = c->task;

	if (workers)
		return say(task->error, -EAGAIN,
			   "task: all %u processes that could execute it have no room; join tasks, or start more processes",
			   workers);
	if (other)
		return say(task->error, -ENOEXEC,
			   "task: build %s: no process executes tasks of this build, member %u of donor %u those of build %s; start the same program everywhere",
			   c->dsm->tasks.build, other->member, other->donor,
			   peer_desk(other)->build);
	return say(task->error, -ESRCH,
		   "task: no process executes tasks; start one that calls ebbdsm_work()");
}

/* Returns where to begin to look for a free seat: spawners that know as much choose others. */
static uint32_t first_seat(const struct choice *c, uint32_t seats)
{
	const struct link *home = c->dsm->home;
	uint64_t x = dsm_check((uint64_t)home->number << 8 | home->member,
			       (uint64_t)c->job->record << 8 | c->job->tries);

	return (uint32_t)(x >> 32) % seats;
}

/* Sets the job's worker, and its ticket to one of a seat that is free.  With .look held. */
static int choose_from_peers(const struct choice *c)
{
	struct dsm_tasks *t = &c->dsm->tasks;
	struct choose_worker *w = calloc(t->peers ?: 1, sizeof(*w));
	struct dsm_peer **of = calloc(t->peers ?: 1, sizeof(*of));
	const struct dsm_peer *other = NULL;
	uint32_t n = 0;
	int best = -1, r = 0;

	for (uint32_t i = 0; w && of && i < t->peers; i++) {
		const struct desk *d = peer_desk(&t->peer[i]);

		if (!d->seats)
			continue;
		if (strcmp(d->build, t->build)) {
			other = &t->peer[i];
			continue;
		}
		describe(d, t->peer[i].donor, &w[n]);
		of[n++] = &t->peer[i];
	}
	if (!w || !of)
		r = say(c->task->error, -ENOMEM, "task: out of memory");
	else
		best = choose_worker(w, n, c->donor);
	if (!r && best < 0)
		r = no_worker(c, n, other);
	if (!r) {
		struct desk *d = (struct desk *)(void *)of[best]->shown;
		uint32_t seat = first_seat(c, d->seats);

		while ((d->seat[seat] & SEAT_BITS) != SEAT_FREE)
			seat = (seat + 1) % d->seats;
		c->job->worker = *of[best];
		c->job->seat = seat;
		c->job->ticket = d->seat[seat] & ~(uint64_t)SEAT_BITS;
		/* Of this process's tasks until the next look. */
		d->seat[seat] = SEAT_TAKEN;
	}
	free(w);
	free(of);
	return r;
}

static int choose(const struct choice *c)
{
	struct dsm_tasks *t = &c->dsm->tasks;
	int r;

	if (c->job->tries++ == SPAWN_TRIES)
		return say(c->task->error, -EAGAIN,
			   "task: other processes were faster each time; try again");
	pthread_mutex_lock(&t->look);
	/* What another one was faster at is old. */
	r = desk_look(c->dsm, c->job->tries > 1 ? 0 : LOOK_MS);
	if (r)
		say(c->task->error, r, "task: cannot look for processes: %s", strerror(-r));
	else
		r = choose_from_peers(c);
	if (r == -EAGAIN || r == -ESRCH || r == -ENOEXEC) {
		/* It may have changed since. */
		r = desk_look(c->dsm, 0);
		if (!r)
			r = choose_from_peers(c);
		if (r == -EAGAIN)
			ring_workers(c->dsm);
	}
	pthread_mutex_unlock(&t->look);
	return r;
}

/* --- spawning --------------------------------------------------------------------- */

static int make_object(const struct choice *c)
{
	const struct ebbdsm_task *task = c->task;
	ebbdsm_job_t *job = c->job;
	struct task_object *o;
	uint64_t size = task_bytes(task->args_size, task->result_size);
	int r;

	o = calloc(1, size);
	if (!o)
		return -ENOMEM;
	*o = (struct task_object){ .function = task->function, .args_size = task->args_size,
				   .result_most = task->result_size };
	memcpy(o->build, c->dsm->tasks.build, sizeof(o->build));
	memcpy(o->in, job->in, sizeof(o->in));
	if (task->args_size)
		memcpy(task_args(o), task->args, task->args_size);
	r = ebbdsm_new(c->dsm, o, size, &job->object);
	free(o);
	if (!r)
		r = ebbdsm_lend_mut(c->dsm, &job->object, &job->loan);
	if (r)
		ebbdsm_drop(c->dsm, &job->object);
	return r;
}

static int post(ebbdsm_t *dsm, const ebbdsm_job_t *job)
{
	uint64_t record = seat_record(dsm->home->number, dsm->home->member, dsm->tasks.x.place,
				      (uint32_t)job->record);

	return desk_swap(dsm, job->worker.donor, &job->worker.x,
			 (uint32_t)(offsetof(struct desk, seat) + 8 * job->seat),
			 job->ticket | SEAT_FREE, record | SEAT_TAKEN);
}

/*
 * Withdraws the loan: 0, or -EBUSY: it was taken, and job->ended says whether it has ended
 * meanwhile.
 */
static int withdraw(ebbdsm_t *dsm, ebbdsm_job_t *job)
{
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = dsm_leave(dsm, dsm_take_back(dsm, &job->object, true));
	if (r == DSM_RETURNED)
		job->ended = TASK_RETURNED;
	else if (r == -EOWNERDEAD)
		job->ended = r;
	return r == DSM_RETURNED || r == -EOWNERDEAD || r == -ENOSPC || r == -ENOBUFS ||
	       r == -ENOMEM ? -EBUSY : r;
}

/* Withdraws parcel @i if it was not accepted: then *@box is the caller's again. */
static void retrieve(ebbdsm_t *dsm, ebbdsm_job_t *job, uint32_t i, struct ebbdsm_box *box)
{
	/* One that is being accepted is freed by ebbdsm_settle(). */
	if (!ebbdsm_reclaim(dsm, &job->given[i]))
		ebbdsm_move(box, &job->given[i]);
	job->parcels &= (uint8_t)~(1u << i);
}

static void discard(ebbdsm_t *dsm, ebbdsm_job_t *job)
{
	ebbdsm_drop(dsm, &job->object);
	release_record(&dsm->tasks, job->record);
	job->record = -1;
}

static int spawn_verb(const struct choice *c, const struct task_verb *v)
{
	ebbdsm_job_t *job = c->job;
	int r;

	switch (v->kind) {
	case TASK_CHOOSE:
		return choose(c);
	case TASK_GIVE:
		ebbdsm_move(&job->given[v->i], &c->task->box[v->i]);
		r = ebbdsm_give(c->dsm, &job->given[v->i], &job->in[v->i]);
		if (r)
			ebbdsm_move(&c->task->box[v->i], &job->given[v->i]);
		else
			job->parcels |= (uint8_t)(1u << v->i);
		return !r ? 0 : say(c->task->error, r, "task: box %u: %s", v->i, strerror(-r));
	case TASK_MAKE:
		r = make_object(c);
		return !r ? 0 : say(c->task->error, r, "task: no place for its object: %s",
				    strerror(-r));
	case TASK_RECORD:
		r = write_record(c->dsm, job);
		return !r ? 0 : say(c->task->error, r, "task: cannot post it: %s", strerror(-r));
	case TASK_POST:
		r = post(c->dsm, job);
		return !r || r == -EAGAIN ? r :
		       say(c->task->error, r, "task: cannot post it: %s", strerror(-r));
	case TASK_RING:
		dsm_ring(c->dsm, job->worker.donor, job->worker.member);
		return 0;
	case TASK_WITHDRAW:
		return withdraw(c->dsm, job);
	case TASK_RETRIEVE:
		retrieve(c->dsm, job, v->i, &c->task->box[v->i]);
		return 0;
	case TASK_DISCARD:
		discard(c->dsm, job);
		return 0;
	default:
		return -EINVAL;
	}
}

static int check_task(ebbdsm_t *dsm, struct ebbdsm_task *task, uint8_t *boxes)
{
	const struct dsm_tasks *t = &dsm->tasks;

	if (task->size < sizeof(*task))
		return -EINVAL;
	*task->error = '\0';
	if (!t->registered)
		return say(task->error, -EINVAL,
			   "task: this process has no functions; call ebbdsm_register()");
	if (task->function >= t->count)
		return say(task->error, -ENOEXEC,
			   "task: function %u: the table has %u; check the index", task->function,
			   t->count);
	if (task->args_size > EBBDSM_TASK_BYTES ||
	    task->result_size > EBBDSM_TASK_BYTES - task->args_size ||
	    (task->args_size && !task->args))
		return say(task->error, -EINVAL,
			   "task: %zu bytes of arguments and %zu of a result; give up to %u, and send more as boxes",
			   task->args_size, task->result_size, EBBDSM_TASK_BYTES);
	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES; i++)
		*boxes |= (uint8_t)((task->box[i].stamp != 0) << i);
	return 0;
}

static int spawn(ebbdsm_t *dsm, uint32_t donor, struct ebbdsm_task *task, ebbdsm_job_t **out)
{
	struct choice c = { .dsm = dsm, .task = task, .donor = donor };
	struct task_op op;
	struct task_verb v;
	uint8_t boxes = 0;
	int r = check_task(dsm, task, &boxes);

	if (r)
		return r;
	c.job = calloc(1, sizeof(*c.job));
	if (!c.job)
		return say(task->error, -ENOMEM, "task: out of memory");
	c.job->record = take_record(&dsm->tasks);
	if (c.job->record < 0) {
		free(c.job);
		return say(task->error, -ENOBUFS, "task: %u are not joined; join some",
			   EBBDSM_TASKS_SPAWNED);
	}
	task_spawn(&op, boxes);
	v = task_next(&op, 0);
	while (v.kind != TASK_ENDED)
		v = task_next(&op, spawn_verb(&c, &v));
	if (op.result) {
		free(c.job);
		return op.result;
	}
	c.job->asked_at = bell_now();
	*out = c.job;
	return 0;
}

int ebbdsm_spawn_at(ebbdsm_t *dsm, uint64_t where, struct ebbdsm_task *task, ebbdsm_job_t **job)
{
	if (!*dsm->alive)
		return -ECHILD;
	if (where != EBBDSM_EMPTIEST && where >> 61 < dsm->donors)
		return spawn(dsm, (uint32_t)(where >> 61), task, job);
	return task->size < sizeof(*task) ? -EINVAL :
	       say(task->error, -EINVAL,
		   "task: no such place; give .at of an object, or EBBDSM_DONOR()");
}

int ebbdsm_spawn(ebbdsm_t *dsm, struct ebbdsm_task *task, ebbdsm_job_t **job)
{
	if (!*dsm->alive)
		return -ECHILD;
	for (uint32_t i = 0; task->size >= sizeof(*task) && i < EBBDSM_TASK_BOXES; i++)
		if (task->box[i].stamp && task->box[i].at >> 61 < dsm->donors)
			return spawn(dsm, (uint32_t)(task->box[i].at >> 61), task, job);
	return spawn(dsm, CHOOSE_ANY, task, job);
}

/* --- joining ---------------------------------------------------------------------- */

static int probe(ebbdsm_t *dsm, ebbdsm_job_t *job)
{
	int r;

	if (job->ended)
		return job->ended;
	r = dsm_enter(dsm);
	if (r)
		return r;
	r = dsm_leave(dsm, dsm_take_back(dsm, &job->object, false));
	if (r == DSM_RETURNED)
		job->ended = TASK_RETURNED;
	return r == DSM_RETURNED ? TASK_RETURNED : r;
}

/* Returns whether the worker is alive, as known when it was asked last. */
static int is_alive(ebbdsm_t *dsm, ebbdsm_job_t *job)
{
	int64_t now = bell_now();
	int r;

	if (now - job->asked_at < ASK_MS)
		return 1;
	r = desk_lives(dsm, job->worker.donor, job->worker.member, &job->worker.x);
	if (r != 1)
		return r;
	job->asked_at = now;
	/* The task waits, or the ring was lost. */
	dsm_ring(dsm, job->worker.donor, job->worker.member);
	return 1;
}

static int not_executed(const ebbdsm_job_t *job, const struct task_object *o,
			struct ebbdsm_result *result)
{
	if (o->verdict != -ENOEXEC)
		return say(result->error, -ECANCELED,
			   "task: member %u of donor %u cannot execute it: %s; spawn it again",
			   job->worker.member, job->worker.donor, strerror(-o->verdict));
	return say(result->error, -ENOEXEC,
		   "task: member %u of donor %u refuses it: it has build %.63s with %u functions; start the same program everywhere",
		   job->worker.member, job->worker.donor, o->build, o->functions[0]);
}

/* Looks at the object, which a worker has returned. */
static int look(ebbdsm_t *dsm, ebbdsm_job_t *job, struct task_op *op,
		struct ebbdsm_result *result)
{
	const struct task_object *o = ebbdsm_borrow(dsm, &job->object);
	int r = 0;

	if (!o)
		return -errno;
	if (o->verdict != TASK_EXECUTED)
		r = not_executed(job, o, result);
	else if (o->result_size > result->bytes_size)
		r = say(result->error, -EMSGSIZE, "task: its result has %llu bytes; give room for them",
			(unsigned long long)o->result_size);
	else if (o->result_size)
		memcpy(result->bytes, task_result((struct task_object *)o), o->result_size);
	if (!r || r == -EMSGSIZE)
		result->bytes_size = o->result_size;
	result->status = o->status;
	memcpy(job->in, o->out, sizeof(job->in));
	for (uint32_t i = 0; i < EBBDSM_TASK_BOXES && r != -EMSGSIZE; i++)
		op->out |= (uint8_t)((o->out[i].stamp && !job->got[i].stamp) << i);
	ebbdsm_return(dsm, &job->object, o);
	return r;
}

static int join_verb(ebbdsm_t *dsm, ebbdsm_job_t *job, struct task_op *op,
		     const struct task_verb *v, struct ebbdsm_result *result)
{
	switch (v->kind) {
	case TASK_PROBE:
		return probe(dsm, job);
	case TASK_ALIVE:
		return is_alive(dsm, job);
	case TASK_WITHDRAW:
		return withdraw(dsm, job);
	case TASK_LOOK:
		return look(dsm, job, op, result);
	case TASK_ACCEPT:
		return ebbdsm_accept(dsm, &job->in[v->i], &job->got[v->i]);
	case TASK_RETRIEVE:
		retrieve(dsm, job, v->i, &job->got[v->i]);
		return 0;
	case TASK_DISCARD:
		discard(dsm, job);
		return 0;
	default:
		return -EINVAL;
	}
}

/* Returns whether the job goes on after @r. */
static bool goes_on(int r)
{
	return r == -EAGAIN || r == -EMSGSIZE || r == -ENOSPC || r == -ENOBUFS || r == -ENOMEM;
}

static int try_join(ebbdsm_t *dsm, ebbdsm_job_t *job, struct ebbdsm_result *result)
{
	struct task_op op;
	struct task_verb v;

	task_join(&op, job->parcels, job->ended);
	v = task_next(&op, 0);
	while (v.kind != TASK_ENDED)
		v = task_next(&op, join_verb(dsm, job, &op, &v, result));
	return op.result;
}

static void explain(const ebbdsm_job_t *job, int r, struct ebbdsm_result *result)
{
	uint32_t member = job->worker.member, donor = job->worker.donor;

	if (r == -EOWNERDEAD)
		say(result->error, r,
		    "task: member %u of donor %u died while it was executed; what it did is unknown",
		    member, donor);
	else if (r == -ECANCELED && !*result->error)
		say(result->error, r,
		    "task: it was not begun: cancelled, or its process has exited; spawn it again");
	else if (r && !*result->error)
		say(result->error, r, "task: member %u of donor %u: %s: %s; see ebbdsm_why()",
		    member, donor, strerror(-r),
		    job->ended == TASK_RETURNED ? "its result is lost" :
						  "unknown whether it was executed");
}

int ebbdsm_join(ebbdsm_t *dsm, ebbdsm_job_t **out, int timeout_ms, struct ebbdsm_result *result)
{
	int64_t until = task_until(timeout_ms), now;
	ebbdsm_job_t *job = *out;
	int r;

	if (!*dsm->alive)
		return -ECHILD;
	if (!job || result->size < sizeof(*result))
		return -EINVAL;
	*result->error = '\0';
	result->donor = job->worker.donor;
	result->member = job->worker.member;
	for (;;) {
		uint32_t rings = bell_rings(&dsm->home->bell);

		r = try_join(dsm, job, result);
		now = bell_now();
		if (r != -EAGAIN || now >= until)
			break;
		r = bell_wait(&dsm->home->bell, dsm->home->far, rings,
			      until - now > ASK_MS ? now + ASK_MS : until);
		/* No ring comes any more: the next turn ends the job. */
		if (r)
			job->ended = link_error(r);
	}
	if (goes_on(r))
		return r;
	explain(job, r, result);
	memcpy(result->box, job->got, sizeof(result->box));
	free(job);
	*out = NULL;
	return r;
}

int ebbdsm_cancel(ebbdsm_t *dsm, ebbdsm_job_t *job)
{
	struct task_op op;
	struct task_verb v;

	if (!*dsm->alive)
		return -ECHILD;
	if (!job)
		return -EINVAL;
	if (job->ended)
		return job->ended == -ECANCELED ? 0 : -EBUSY;
	task_cancel(&op);
	v = task_next(&op, 0);
	while (v.kind != TASK_ENDED)
		v = task_next(&op, withdraw(dsm, job));
	if (!op.result)
		job->ended = -ECANCELED;
	return op.result;
}
