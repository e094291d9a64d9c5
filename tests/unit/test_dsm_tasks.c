// SPDX-License-Identifier: GPL-2.0-or-later
/* Tasks and placement of libebbdsm, with a donor in this process; workers are threads of it. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define EBBDSM_NO_CHECKS
/* One test changes a build that is shown already. */
#include "userlib/dsm/dsm.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

enum { ADD, BOXES, BORROWED, NEST, SCARCE, FUNCTIONS };

static int end(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	int r = world.threaded ? -EBUSY : 0;

	for (int i = 0; i < 6000 && r == -EBUSY; i++) {
		r = ebbfar_destroy(&o);
		usleep(r == -EBUSY ? 10000 : 0);
	}
	if (r && r != -ENOENT)
		fail_msg("%s", o.error);
	return end_far_donor(state);
}

static ebbdsm_t *join_for(const char *donor, unsigned donors, unsigned timeout_ms)
{
	const char *all[EBBDSM_DONORS];
	struct ebbdsm_options o = { .size = sizeof(o), .donors = all, .donor_count = donors,
				    .pool = "p", .timeout_ms = timeout_ms,
				    .resume_ms = timeout_ms };
	ebbdsm_t *dsm;

	for (unsigned i = 0; i < donors; i++)
		all[i] = donor;
	if (ebbdsm_open(&o, &dsm))
		fail_msg("%s", o.error);
	return dsm;
}

static ebbdsm_t *join_at(const char *donor)
{
	return join_for(donor, 1, 5000);
}

static struct ebbdsm_counts count(ebbdsm_t *dsm)
{
	struct ebbdsm_counts c = { .size = sizeof(c) };

	ebbdsm_count(dsm, &c);
	return c;
}

static struct ebbdsm_box make(ebbdsm_t *dsm, uint64_t value)
{
	struct ebbdsm_box box = { 0 };

	assert_int_equal(ebbdsm_new(dsm, &value, sizeof(value), &box), 0);
	return box;
}

static uint64_t value_of(ebbdsm_t *dsm, struct ebbdsm_box *box)
{
	const uint64_t *p = ebbdsm_borrow(dsm, box);
	uint64_t value;

	if (!p)
		return (uint64_t)-errno;
	value = *p;
	assert_int_equal(ebbdsm_return(dsm, box, p), 0);
	return value;
}

/* Waits until the process has @n places. */
static void settles(ebbdsm_t *dsm, uint64_t n)
{
	for (int i = 0; i < 60000 && count(dsm).places != n; i++) {
		assert_int_equal(ebbdsm_settle(dsm), 0);
		usleep(i ? 1000 : 0);
	}
	assert_int_equal(count(dsm).places, n);
}

/* --- functions -------------------------------------------------------------------- */

/* Returns the sum of the arguments as the result, and their number as the status. */
static int add(ebbdsm_t *dsm, struct ebbdsm_call *call)
{
	const uint64_t *args = call->args;
	uint64_t sum = 0, n = call->args_size / 8;

	for (uint64_t i = 0; i < n; i++)
		sum += args[i];
	if (call->result_size < 8)
		return -1;
	*(uint64_t *)call->result = sum;
	call->result_size = 8;
	return (int)n;
}

/* Adds 10 to box 0, keeps box 1, drops box 2, makes box 3. */
static int boxes(ebbdsm_t *dsm, struct ebbdsm_call *call)
{
	uint64_t *p = ebbdsm_borrow_mut(dsm, &call->box[0]), seven = 7;

	if (!p)
		return -errno;
	*p += 10;
	call->result_size = 0;
	return ebbdsm_return_mut(dsm, &call->box[0], p) ?: ebbdsm_drop(dsm, &call->box[2]) ?:
		       ebbdsm_new(dsm, &seven, sizeof(seven), &call->box[3]);
}

/* Leaves its box borrowed. */
static int borrowed(ebbdsm_t *dsm, struct ebbdsm_call *call)
{
	call->result_size = 0;
	return ebbdsm_borrow(dsm, &call->box[0]) ? 0 : -errno;
}

static int spawn_add(ebbdsm_t *dsm, uint64_t n, ebbdsm_job_t **job)
{
	uint64_t args[] = { n, 1 };
	struct ebbdsm_task t = { .size = sizeof(t), .function = ADD, .args = args,
				 .args_size = sizeof(args), .result_size = 8 };

	return ebbdsm_spawn(dsm, &t, job);
}

/* Executes a task in a task. */
static int nest(ebbdsm_t *dsm, struct ebbdsm_call *call)
{
	struct ebbdsm_result r = { .size = sizeof(r), .bytes = call->result, .bytes_size = 8 };
	ebbdsm_job_t *job = NULL;
	int e = spawn_add(dsm, 41, &job) ?: ebbdsm_join(dsm, &job, 10000, &r);

	call->result_size = 8;
	return e ?: 5;
}

/* A process that lacks memory for places, and for as many offers. */
static ebbdsm_t *scarce_at;
static int failures;

int __real_heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot);
int __wrap_heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot);
struct pending *__real_dsm_pending_new(ebbdsm_t *dsm, uint64_t at, uint64_t loan_at);
struct pending *__wrap_dsm_pending_new(ebbdsm_t *dsm, uint64_t at, uint64_t loan_at);

static bool is_scarce(const struct heap *h)
{
	ebbdsm_t *dsm = __atomic_load_n(&scarce_at, __ATOMIC_ACQUIRE);

	return dsm && h == &dsm->heap;
}

int __wrap_heap_new(struct heap *h, uint32_t donor, size_t size, uint64_t *at, struct slot **slot)
{
	return is_scarce(h) ? -ENOSPC : __real_heap_new(h, donor, size, at, slot);
}

struct pending *__wrap_dsm_pending_new(ebbdsm_t *dsm, uint64_t at, uint64_t loan_at)
{
	if (is_scarce(&dsm->heap) && failures-- > 0)
		return NULL;
	return __real_dsm_pending_new(dsm, at, loan_at);
}

/* The block of the box has few numbers left, so that it has to move. */
static void wear(ebbdsm_t *dsm, const struct ebbdsm_box *box)
{
	const struct slot *slot = heap_find(&dsm->heap, box->at);
	struct heap_part *p = &dsm->heap.part[box->at >> 61];

	for (uint32_t i = 0; i < p->size; i++)
		for (struct block *b = p->table[i]; b; b = b->chain)
			if (slot >= b->slot && slot < b->slot + b->slots)
				b->numbers = DSM_NUMBERS - 8;
}

/* The argument is how many offers fail. */
static int scarce(ebbdsm_t *dsm, struct ebbdsm_call *call)
{
	failures = *(const int *)call->args;
	wear(dsm, &call->box[0]);
	__atomic_store_n(&scarce_at, dsm, __ATOMIC_RELEASE);
	return 0;
}

static const ebbdsm_function table[FUNCTIONS] = { add, boxes, borrowed, nest, scarce };

static void registered(ebbdsm_t *dsm, unsigned waiting, const char *build, unsigned n)
{
	struct ebbdsm_functions f = { .size = sizeof(f), .table = table, .count = n,
				      .waiting = waiting, .build = build };

	if (ebbdsm_register(dsm, &f))
		fail_msg("%s", f.error);
}

/* --- workers ---------------------------------------------------------------------- */

enum { THREADS = 3 };

static struct worker {
	ebbdsm_t *dsm;
	pthread_t t[THREADS];
	int threads, stop, error;
} worker[2];

static void *work(void *data)
{
	struct worker *w = data;

	while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
		int r = ebbdsm_work(w->dsm, 100);

		if (r && r != -EAGAIN)
			w->error = r;
	}
	return NULL;
}

static void start_worker(struct worker *w, const char *donor, int threads)
{
	*w = (struct worker){ .dsm = join_at(donor), .threads = threads };
	registered(w->dsm, 8, NULL, FUNCTIONS);
	for (int i = 0; i < threads; i++)
		pthread_create(&w->t[i], NULL, work, w);
}

static void stop_worker(struct worker *w)
{
	__atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
	for (int i = 0; i < w->threads; i++)
		pthread_join(w->t[i], NULL);
	assert_int_equal(w->error, 0);
}

/* --- tests ------------------------------------------------------------------------ */

static void wrong_use(void **state)
{
	ebbdsm_t *dsm = join_at(at);
	struct ebbdsm_functions f = { .size = sizeof(f), .table = table, .count = FUNCTIONS };
	struct ebbdsm_task t = { .size = sizeof(t) };
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job = NULL;

	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), -EINVAL);
	assert_non_null(strstr(t.error, "call ebbdsm_register()"));
	assert_int_equal(ebbdsm_work(dsm, 0), -EINVAL);
	f.waiting = EBBDSM_TASKS_WAITING + 1;
	assert_int_equal(ebbdsm_register(dsm, &f), -EINVAL);
	assert_non_null(strstr(f.error, "give up to 64"));
	f.waiting = 0;
	f.build = "two words";
	assert_int_equal(ebbdsm_register(dsm, &f), -EINVAL);
	f.build = NULL;
	f.count = 0;
	assert_int_equal(ebbdsm_register(dsm, &f), -EINVAL);
	f.count = FUNCTIONS;
	assert_int_equal(ebbdsm_register(dsm, &f), 0);
	assert_int_equal(ebbdsm_register(dsm, &f), -EALREADY);
	assert_int_equal(ebbdsm_work(dsm, 0), -EINVAL);
	t.function = FUNCTIONS;
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), -ENOEXEC);
	assert_non_null(strstr(t.error, "the table has 5"));
	t.function = ADD;
	t.args_size = EBBDSM_TASK_BYTES;
	t.args = dsm;
	t.result_size = 1;
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), -EINVAL);
	t.args_size = t.result_size = 0;
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), -ESRCH);
	assert_non_null(strstr(t.error, "start one"));
	assert_int_equal(ebbdsm_spawn_at(dsm, EBBDSM_DONOR(1), &t, &job), -EINVAL);
	assert_non_null(strstr(t.error, "no such place"));
	assert_int_equal(ebbdsm_join(dsm, &job, 0, &r), -EINVAL);
	assert_int_equal(ebbdsm_cancel(dsm, NULL), -EINVAL);
	assert_int_equal(count(dsm).places, 0);
	ebbdsm_close(dsm);
}

/* A process says that its desk is where none can be: others are found. */
static void wrong_place(void **state)
{
	ebbdsm_t *dsm = join_at(at), *wrong = join_at(at), *other = join_at(at);
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job = NULL;

	registered(dsm, 0, "b", FUNCTIONS);
	registered(other, 1, "b", FUNCTIONS);
	assert_int_equal(ebbfar_publish(wrong->home->far, (4ull << 32) | DESK_VERSION), 0);
	assert_int_equal(spawn_add(dsm, 1, &job), 0);
	assert_int_equal(ebbdsm_cancel(dsm, job), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), -ECANCELED);
	ebbdsm_close(other);
	ebbdsm_close(wrong);
	ebbdsm_close(dsm);
}

/* EBBDSM_EMPTIEST is no place of a task, also if there are eight donors. */
static void no_place(void **state)
{
	ebbdsm_t *dsm = join_for(at, EBBDSM_DONORS, 5000);
	struct ebbdsm_task t = { .size = sizeof(t) };
	ebbdsm_job_t *job = NULL;

	registered(dsm, 1, "b", FUNCTIONS);
	assert_int_equal(ebbdsm_spawn_at(dsm, EBBDSM_EMPTIEST, &t, &job), -EINVAL);
	assert_non_null(strstr(t.error, "no such place"));
	assert_null(job);
	ebbdsm_close(dsm);
}

static void results(void **state)
{
	ebbdsm_t *dsm = join_at(at);
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job[20] = { NULL };
	uint64_t sum;

	start_worker(&worker[0], at, 2);
	registered(dsm, 0, NULL, FUNCTIONS);
	for (int turn = 0; turn < 30; turn++) {
		for (uint64_t i = 0; i < 8; i++)
			assert_int_equal(spawn_add(dsm, 100 * i, &job[i]), 0);
		for (uint64_t i = 8; i--;) {
			/* The result is larger than the room. */
			r.bytes = &sum;
			r.bytes_size = 4;
			if (i == 3) {
				assert_int_equal(ebbdsm_join(dsm, &job[i], -1, &r), -EMSGSIZE);
				assert_int_equal(r.bytes_size, 8);
			}
			r.bytes_size = sizeof(sum);
			assert_int_equal(ebbdsm_join(dsm, &job[i], -1, &r), 0);
			assert_null(job[i]);
			assert_int_equal(r.status, 2);
			assert_int_equal(r.bytes_size, 8);
			assert_int_equal(sum, 100 * i + 1);
		}
	}
	stop_worker(&worker[0]);
	settles(dsm, 0);
	settles(worker[0].dsm, 0);
	ebbdsm_close(worker[0].dsm);
	ebbdsm_close(dsm);
}

static void boxes_move(void **state)
{
	ebbdsm_t *dsm = join_at(at);
	struct ebbdsm_task t = { .size = sizeof(t), .function = BOXES };
	struct ebbdsm_result r = { .size = sizeof(r) };
	struct ebbdsm_view before;
	ebbdsm_job_t *job = NULL;

	start_worker(&worker[0], at, 1);
	registered(dsm, 0, NULL, FUNCTIONS);
	for (int turn = 0; turn < 30; turn++) {
		for (uint64_t i = 0; i < 3; i++)
			t.box[i] = make(dsm, i);
		before = ebbdsm_lend(&t.box[0]);
		assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
		for (uint64_t i = 0; i < 3; i++)
			assert_int_equal(t.box[i].stamp, 0);
		assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), 0);
		assert_int_equal(r.status, 0);
		assert_int_equal(value_of(dsm, &r.box[0]), 10);
		assert_int_equal(value_of(dsm, &r.box[1]), 1);
		assert_int_equal(r.box[2].stamp, 0);
		assert_int_equal(value_of(dsm, &r.box[3]), 7);
		assert_true(r.box[0].stamp != before.stamp);
		for (uint64_t i = 0; i < 4; i++)
			assert_int_equal(ebbdsm_drop(dsm, &r.box[i]), 0);
	}
	/* A box that is borrowed cannot be sent: all stay. */
	t.box[0] = make(dsm, 0);
	t.box[1] = make(dsm, 1);
	const uint64_t *p = ebbdsm_borrow(dsm, &t.box[1]);

	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), -EBUSY);
	assert_non_null(strstr(t.error, "box 1"));
	assert_int_equal(ebbdsm_return(dsm, &t.box[1], p), 0);
	assert_int_equal(value_of(dsm, &t.box[0]), 0);
	assert_int_equal(ebbdsm_drop(dsm, &t.box[1]), 0);
	/* One that the function leaves borrowed stays there. */
	t.function = BORROWED;
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), 0);
	assert_int_equal(r.box[0].stamp, 0);
	stop_worker(&worker[0]);
	settles(dsm, 0);
	settles(worker[0].dsm, 1);
	ebbdsm_close(worker[0].dsm);
	ebbdsm_close(dsm);
}

/* A worker that lacks memory at the end of a task loses no box of its result. */
static void scarce_memory(void **state)
{
	ebbdsm_t *dsm = join_at(at);
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job = NULL;
	int fails;
	struct ebbdsm_task t = { .size = sizeof(t), .function = SCARCE, .args = &fails,
				 .args_size = sizeof(fails) };

	start_worker(&worker[0], at, 1);
	registered(dsm, 0, NULL, FUNCTIONS);
	for (fails = 0; fails < 4; fails++) {
		t.box[0] = make(dsm, 5);
		assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
		assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), 0);
		__atomic_store_n(&scarce_at, NULL, __ATOMIC_RELEASE);
		assert_int_equal(r.status, 0);
		assert_int_equal(value_of(dsm, &r.box[0]), 5);
		assert_int_equal(ebbdsm_drop(dsm, &r.box[0]), 0);
	}
	/* The spawner exits meanwhile. */
	t.box[0] = make(dsm, 5);
	fails = INT32_MAX;
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	while (!__atomic_load_n(&scarce_at, __ATOMIC_ACQUIRE))
		usleep(1000);
	ebbdsm_close(dsm);
	free(job);
	stop_worker(&worker[0]);
	__atomic_store_n(&scarce_at, NULL, __ATOMIC_RELEASE);
	settles(worker[0].dsm, 0);
	ebbdsm_close(worker[0].dsm);
}

/* A process executes tasks of its own, and tasks of tasks. */
static void own_tasks(void **state)
{
	struct ebbdsm_task t = { .size = sizeof(t), .function = NEST, .result_size = 8 };
	uint64_t sum = 0;
	struct ebbdsm_result r = { .size = sizeof(r), .bytes = &sum, .bytes_size = 8 };
	ebbdsm_job_t *job = NULL;
	ebbdsm_t *dsm;

	start_worker(&worker[0], at, 2);
	dsm = worker[0].dsm;
	t.box[0] = make(dsm, 3);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, 20000, &r), 0);
	assert_int_equal(r.status, 5);
	assert_int_equal(sum, 42);
	assert_int_equal(value_of(dsm, &r.box[0]), 3);
	assert_int_equal(ebbdsm_drop(dsm, &r.box[0]), 0);
	stop_worker(&worker[0]);
	settles(dsm, 0);
	ebbdsm_close(dsm);
}

static void builds(void **state)
{
	ebbdsm_t *dsm = join_at(at), *other = join_at(world.tcp);
	struct ebbdsm_task t = { .size = sizeof(t), .function = ADD };
	ebbdsm_job_t *job = NULL;

	registered(dsm, 0, "one", FUNCTIONS);
	registered(other, 1, "two", FUNCTIONS);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), -ENOEXEC);
	assert_non_null(strstr(t.error, "build one"));
	assert_non_null(strstr(t.error, "build two; start the same program everywhere"));
	ebbdsm_close(other);
	other = join_at(world.tcp);
	registered(other, 1, "one", FUNCTIONS);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	assert_int_equal(ebbdsm_cancel(dsm, job), 0);
	struct ebbdsm_result r = { .size = sizeof(r) };

	assert_int_equal(ebbdsm_join(dsm, &job, 0, &r), -ECANCELED);
	/* A process refuses what is not of its build, whatever its spawner has seen. */
	assert_int_equal(ebbdsm_work(other, 0), -EAGAIN);
	t.box[0] = make(dsm, 1);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	strcpy(other->tasks.build, "three");
	assert_int_equal(ebbdsm_work(other, 5000), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), -ENOEXEC);
	assert_non_null(strstr(r.error, "it has build three"));
	assert_int_equal(value_of(dsm, &r.box[0]), 1);
	assert_int_equal(ebbdsm_drop(dsm, &r.box[0]), 0);
	settles(dsm, 0);
	settles(other, 0);
	ebbdsm_close(other);
	ebbdsm_close(dsm);
}

/* A task that does not begin: cancelled, its process exits, or it has fewer functions. */
static void not_begun(void **state)
{
	ebbdsm_t *dsm = join_at(at), *other = join_at(world.tcp);
	struct ebbdsm_task t = { .size = sizeof(t), .function = BOXES };
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job = NULL, *second = NULL;

	registered(dsm, 0, "b", FUNCTIONS);
	registered(other, 2, "b", 1);
	t.box[0] = make(dsm, 1);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, 50, &r), -EAGAIN);
	assert_int_equal(ebbdsm_cancel(dsm, job), 0);
	assert_int_equal(ebbdsm_cancel(dsm, job), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), -ECANCELED);
	assert_int_equal(value_of(dsm, &r.box[0]), 1);
	/* The worker finds that there is none any more. */
	assert_int_equal(ebbdsm_work(other, 0), -EAGAIN);
	assert_int_equal(count(other).places, 0);
	/* Refused: it has no such function. */
	ebbdsm_move(&t.box[0], &r.box[0]);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	assert_int_equal(ebbdsm_work(other, 5000), 0);
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), -ENOEXEC);
	assert_non_null(strstr(r.error, "build b with 1 functions"));
	assert_int_equal(value_of(dsm, &r.box[0]), 1);
	/* All seats are taken; the process exits. */
	ebbdsm_move(&t.box[0], &r.box[0]);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	assert_int_equal(spawn_add(dsm, 1, &second), 0);
	t.box[0] = make(dsm, 2);
	ebbdsm_job_t *third = NULL;

	assert_int_equal(ebbdsm_spawn(dsm, &t, &third), -EAGAIN);
	assert_non_null(strstr(t.error, "no room"));
	assert_int_equal(value_of(dsm, &t.box[0]), 2);
	ebbdsm_close(other);
	assert_int_equal(ebbdsm_join(dsm, &second, -1, &r), -ECANCELED);
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), -ECANCELED);
	assert_non_null(strstr(r.error, "has exited; spawn it again"));
	assert_int_equal(value_of(dsm, &r.box[0]), 1);
	assert_int_equal(count(dsm).places, 2);
	ebbdsm_close(dsm);
}

/* The spawner leaves: a task that was begun ends, and none leaves anything behind. */
static void spawner_leaves(void **state)
{
	ebbdsm_t *dsm = join_at(at), *other = join_at(world.tcp);
	struct ebbdsm_task t = { .size = sizeof(t), .function = BOXES };
	ebbdsm_job_t *job[2] = { NULL };

	registered(dsm, 0, "b", FUNCTIONS);
	registered(other, 4, "b", FUNCTIONS);
	for (int i = 0; i < 2; i++) {
		for (uint64_t k = 0; k < 3; k++)
			t.box[k] = make(dsm, k);
		assert_int_equal(ebbdsm_spawn(dsm, &t, &job[i]), 0);
	}
	assert_int_equal(ebbdsm_work(other, 5000), 0);
	assert_true(count(other).places >= 3);
	/* It never accepts the result. */
	ebbdsm_close(dsm);
	free(job[0]);
	free(job[1]);
	/* The other one may be as it was until the donor has freed the spawner's memory. */
	int r = ebbdsm_work(other, 0);

	assert_true(!r || r == -EAGAIN);
	assert_int_equal(ebbdsm_work(other, 0), -EAGAIN);
	settles(other, 0);
	ebbdsm_close(other);
}

/* Returns how many seats of others the process has tried since it looked. */
static int seats_tried(ebbdsm_t *dsm)
{
	int n = 0;

	for (uint32_t i = 0; i < dsm->tasks.peers; i++)
		for (uint32_t k = 0; k < DESK_SEATS; k++)
			n += peer_desk(&dsm->tasks.peer[i])->seat[k] == SEAT_TAKEN;
	return n;
}

/* Spawners that have looked at the same time do not all want the same seat. */
static void seats_are_shared(void **state)
{
	enum { SPAWNERS = 16 };
	ebbdsm_t *dsm[SPAWNERS], *other = join_at(at);
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job[SPAWNERS] = { NULL };
	int tried = 0;

	registered(other, EBBDSM_TASKS_WAITING, "b", FUNCTIONS);
	for (int i = 0; i < SPAWNERS; i++) {
		dsm[i] = join_at(i % 2 ? world.tcp : world.local);
		registered(dsm[i], 0, "b", FUNCTIONS);
		assert_int_equal(desk_look(dsm[i], 0), 0);
		/* It looks no more. */
		dsm[i]->tasks.looked_at = INT64_MAX;
	}
	for (int i = 0; i < SPAWNERS; i++) {
		assert_int_equal(spawn_add(dsm[i], 1, &job[i]), 0);
		tried += seats_tried(dsm[i]);
	}
	assert_in_range(tried, SPAWNERS, SPAWNERS + 4);
	for (int i = 0; i < SPAWNERS; i++)
		assert_int_equal(ebbdsm_cancel(dsm[i], job[i]), 0);
	for (int i = 0; i < SPAWNERS; i++) {
		assert_int_equal(ebbdsm_join(dsm[i], &job[i], 0, &r), -ECANCELED);
		ebbdsm_close(dsm[i]);
	}
	ebbdsm_close(other);
}

/* A spawner that joins none of its tasks does not keep the worker from those of others. */
static void not_joined(void **state)
{
	ebbdsm_t *dsm = join_at(at), *next = join_at(world.tcp), *other = join_at(at);
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job[EBBDSM_TASKS_SPAWNED] = { NULL }, *one = NULL;
	uint64_t sum = 0;

	registered(dsm, 0, "b", FUNCTIONS);
	registered(next, 0, "b", FUNCTIONS);
	registered(other, 2, "b", FUNCTIONS);
	for (uint64_t i = 0; i < EBBDSM_TASKS_SPAWNED; i++) {
		assert_int_equal(spawn_add(dsm, i, &job[i]), 0);
		assert_int_equal(ebbdsm_work(other, 5000), 0);
	}
	assert_int_equal(spawn_add(dsm, 1, &one), -ENOBUFS);
	assert_int_equal(spawn_add(next, 7, &one), 0);
	assert_int_equal(ebbdsm_work(other, 5000), 0);
	r.bytes = &sum;
	r.bytes_size = 8;
	assert_int_equal(ebbdsm_join(next, &one, -1, &r), 0);
	assert_int_equal(sum, 8);
	for (uint64_t i = 0; i < EBBDSM_TASKS_SPAWNED; i++) {
		r.bytes_size = 8;
		assert_int_equal(ebbdsm_join(dsm, &job[i], -1, &r), 0);
		assert_int_equal(sum, i + 1);
	}
	settles(dsm, 0);
	settles(other, 0);
	ebbdsm_close(other);
	ebbdsm_close(next);
	ebbdsm_close(dsm);
}

/* Tickets, seats and records are used again. */
static void many(void **state)
{
	ebbdsm_t *dsm = join_at(world.local);
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job[EBBDSM_TASKS_SPAWNED + 1] = { NULL };
	uint64_t sum, spawned = 0;

	for (int i = 0; i < 2; i++)
		start_worker(&worker[i], i ? world.tcp : world.local, THREADS);
	registered(dsm, 0, NULL, FUNCTIONS);
	for (int turn = 0; turn < 20; turn++) {
		uint64_t n = 0;

		while (n < 20) {
			int e = spawn_add(dsm, n, &job[n]);

			if (!e)
				n++;
			else
				assert_int_equal(e, -EAGAIN);
			if (e)
				usleep(100);
		}
		spawned += n;
		while (n--) {
			r.bytes = &sum;
			r.bytes_size = 8;
			assert_int_equal(ebbdsm_join(dsm, &job[n], -1, &r), 0);
			assert_int_equal(sum, n + 1);
		}
	}
	assert_int_equal(spawned, 400);
	for (int i = 0; i < 2; i++)
		stop_worker(&worker[i]);
	settles(dsm, 0);
	for (int i = 0; i < 2; i++)
		ebbdsm_close(worker[i].dsm);
	ebbdsm_close(dsm);
}

/* A worker that waits, and has a home over TCP, sends nothing. */
static void idle(void **state)
{
	struct ebbdsm_counts before;
	ebbdsm_t *dsm = join_at(at);

	registered(dsm, 4, NULL, FUNCTIONS);
	assert_int_equal(ebbdsm_work(dsm, 10), -EAGAIN);
	before = count(dsm);
	assert_int_equal(ebbdsm_work(dsm, 300), -EAGAIN);
	assert_int_equal(count(dsm).round_trips, before.round_trips);
	assert_int_equal(count(dsm).requests, before.requests);
	ebbdsm_close(dsm);
}

/* A child of fork(2) closes the handle, in which threads of its parent wait. */
static void closed_in_child(void **state)
{
	ebbdsm_t *dsm;
	int status;

	start_worker(&worker[0], at, THREADS);
	dsm = worker[0].dsm;
	for (int turn = 0; turn < 3; turn++) {
		pid_t child;

		usleep(30000);
		child = fork();
		if (!child) {
			alarm(60);
			ebbdsm_close(dsm);
			_exit(0);
		}
		assert_int_equal(waitpid(child, &status, 0), child);
		assert_int_equal(status, 0);
	}
	stop_worker(&worker[0]);
	ebbdsm_close(dsm);
}

/* ... and one of which was changing what the lock guards. */
static void closed_in_child_of_a_change(void **state)
{
	ebbdsm_t *dsm = join_at(at);
	int status;
	pid_t child;

	assert_int_equal(dsm_enter(dsm), 0);
	dsm->pending.first = (struct queue_entry *)8;
	child = fork();
	if (!child) {
		signal(SIGSEGV, SIG_DFL);
		ebbdsm_close(dsm);
		_exit(0);
	}
	dsm->pending.first = NULL;
	dsm_leave(dsm, 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	ebbdsm_close(dsm);
}

/* As the exit of the donor does. */
static void end_donor(void)
{
	__atomic_store_n(&world.stop, true, __ATOMIC_RELEASE);
	eventfd_write(world.l->wake_fd, 1);
	pthread_join(world.thread, NULL);
	world.threaded = false;
	for (int i = 0; i < CONNECTIONS; i++)
		if (world.l->sessions.connections[i].member)
			shutdown(world.l->sessions.connections[i].fd, SHUT_RDWR);
}

/* The job ends, too, and no text says that the task can be spawned again. */
static void donor_exits(void **state)
{
	ebbdsm_t *dsm = join_for(at, 1, 200), *other = join_for(at, 1, 200);
	struct ebbdsm_task t = { .size = sizeof(t) };
	struct ebbdsm_result r = { .size = sizeof(r) };
	ebbdsm_job_t *job = NULL;

	registered(dsm, 0, "b", FUNCTIONS);
	registered(other, 1, "b", FUNCTIONS);
	assert_int_equal(ebbdsm_spawn(dsm, &t, &job), 0);
	end_donor();
	assert_int_equal(ebbdsm_join(dsm, &job, -1, &r), -EIO);
	assert_null(job);
	assert_non_null(strstr(r.error, "unknown whether it was executed"));
	ebbdsm_close(other);
	ebbdsm_close(dsm);
}

#define BY_BOTH(test)                                                                    \
	{ #test " by TCP", test, by_tcp, end, NULL }, { #test " mapped", test, by_mapping, end, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_BOTH(wrong_use),
		BY_BOTH(wrong_place),
		BY_BOTH(no_place),
		BY_BOTH(results),
		BY_BOTH(boxes_move),
		BY_BOTH(scarce_memory),
		BY_BOTH(own_tasks),
		BY_BOTH(builds),
		BY_BOTH(not_begun),
		BY_BOTH(spawner_leaves),
		BY_BOTH(seats_are_shared),
		BY_BOTH(not_joined),
		BY_BOTH(idle),
		BY_BOTH(closed_in_child),
		BY_BOTH(closed_in_child_of_a_change),
		BY_BOTH(donor_exits),
		cmocka_unit_test_setup_teardown(many, by_mapping, end),
	};

	return cmocka_run_group_tests_name("dsm tasks", tests, NULL, NULL);
}
