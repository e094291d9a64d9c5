// SPDX-License-Identifier: GPL-2.0-or-later
/* The borrower's side of jobs, with donors that are functions and reply what they like. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "lib/base/clock.h"
#include "userlib/far/cycle.h"
#include "userlib/far/member.h"

#include <cmocka.h>

/* A donor that keeps the borrower for ever ends after ENOUGH replies. */
enum { CYCLE = 3, REGIONS = 8, DONORS = 2, ENOUGH = 5000 };

/* A donor, by its handle: what its replies have, and how many it has sent. */
struct donor {
	struct ebbfar far;
	struct wire_job_traced traced;
	uint32_t region;               /* of a set in TRACEs */
	uint32_t next, marked;         /* in ENDs: the first next one, which then grows; a region */
	uint32_t works, pauses;        /* TRACEs with more to do; TRACEs that wait before that */
	uint64_t not_before;           /* ns: it has said to wait that long */
	struct wire_job_evacuated evacuated;
	uint32_t traces, ends, evacuations;
};

static struct donor *donors[DONORS];
static uint32_t named;

static uint32_t trace(struct donor *d, const uint8_t *payload, uint32_t length, uint8_t *reply)
{
	uint8_t *to = reply + WIRE_JOB_TRACED_SIZE;
	struct wire_job_traced told = d->traced;
	struct wire_job_trace t;

	assert_int_equal(wire_parse_job_trace(payload, length, &t), 0);
	told.cycle = t.cycle;
	told.batch = t.batch;
	if (d->traces >= d->pauses)
		told.pause = 0;
	assert_true(now_ns() >= d->not_before);
	d->not_before = now_ns() + told.pause * 1000ull;
	told.queued = d->traces < d->works ? told.queued : 0;
	d->traces++;
	wire_build_job_traced(reply, &told);
	to += wire_put_job_set(to, &(struct wire_job_set){ d->region, 0, 1, NULL });
	put64(to, 1);
	return (uint32_t)(to + 8 - reply);
}

static uint32_t end(struct donor *d, uint8_t *reply)
{
	uint32_t next = d->ends < ENOUGH ? d->next : WIRE_JOB_NO_REGION;
	uint8_t *to = reply + WIRE_JOB_ENDED_SIZE;

	d->ends++;
	d->next += d->next != WIRE_JOB_NO_REGION;
	wire_build_job_ended(reply, &(struct wire_job_ended){ CYCLE, next });
	to += wire_put_job_bits(to, &(struct wire_job_bits){ d->marked, 1, 1, NULL });
	put64(to, 1);
	put64(to + 8, 1);
	return (uint32_t)(to + 16 - reply);
}

static uint32_t evacuate(struct donor *d, const uint8_t *payload, uint32_t length, uint8_t *reply)
{
	struct wire_job_evacuated told = d->evacuated;
	struct wire_job_evacuate e;

	assert_int_equal(wire_parse_job_evacuate(payload, length, &e), 0);
	told.job = e.job;
	if (d->evacuations++ == ENOUGH)
		told = (struct wire_job_evacuated){ .job = e.job, .regions = 2 };
	wire_build_job_evacuated(reply, &told);
	return WIRE_JOB_EVACUATED_SIZE;
}

/* Of the library, whose place these take. */
int client_push(struct client *c, struct wire_frame f, const void *payload,
		struct client_reply reply)
{
	struct donor *d = donors[c != &donors[0]->far.client];
	uint8_t unread[WIRE_JOB_MOST];
	uint32_t got = 0;

	if (f.op == WIRE_JOB_TRACE)
		got = trace(d, payload, f.length, reply.to);
	else if (f.op == WIRE_JOB_END)
		got = end(d, reply.to ?: unread);
	else if (f.op == WIRE_JOB_EVACUATE)
		got = evacuate(d, payload, f.length, reply.to);
	if (reply.got)
		*reply.got = got;
	reply.done(reply.data, 0);
	return 0;
}

int client_settle(struct client *c)
{
	return 0;
}

bool client_go_on(struct client *c)
{
	return false;
}

int client_poll(const struct client *c, struct pollfd *p)
{
	*p = (struct pollfd){ .fd = -1 };
	return 1000;
}

int member_check(const ebbfar_t *far)
{
	return 0;
}

const char *ebbfar_why(const ebbfar_t *far)
{
	return "";
}

static int name(void *data, uint32_t region, uint32_t granule)
{
	assert_in_range(region, 0, REGIONS - 1);
	named++;
	return 0;
}

/* Each donor has a region, the program has the others. */
static int reach(void *data, uint32_t region, uint32_t granule)
{
	assert_in_range(region, 0, REGIONS - 1);
	return region < DONORS ? (int)region : -1;
}

static void take_marks(void *data, uint32_t i, const struct wire_job_bits *b)
{
	assert_in_range(b->region, 0, REGIONS - 1);
}

static const struct cycle_ops ops = { .named = name, .reached = reach, .marks = take_marks };

/* Returns what a cycle with a root at each donor ends with. */
static int run(void)
{
	ebbfar_t *far[DONORS] = { &donors[0]->far, &donors[1]->far };
	struct cycle *c;
	int r = 0;

	assert_int_equal(cycle_new(&c, far, DONORS, CYCLE, REGIONS, &ops, NULL), 0);
	for (uint32_t i = 0; i < DONORS; i++)
		assert_int_equal(cycle_push(c, i, 0), 0);
	r = cycle_run(c, CYCLE_WAITS) ?: cycle_end(c, CYCLE_WAITS);
	/* Both know that it has ended. */
	assert_true(donors[0]->ends && donors[1]->ends);
	cycle_free(&c);
	return r;
}

static int set_up(void **state)
{
	named = 0;
	for (int i = 0; i < DONORS; i++) {
		donors[i] = calloc(1, sizeof(*donors[i]));
		pthread_mutex_init(&donors[i]->far.lock, NULL);
		donors[i]->region = 2;
		donors[i]->next = WIRE_JOB_NO_REGION;
		donors[i]->traced = (struct wire_job_traced){ .visited = 1, .queued = 1 };
	}
	return 0;
}

static int tear_down(void **state)
{
	for (int i = 0; i < DONORS; i++)
		free(donors[i]);
	return 0;
}

static void honest_donors(void **state)
{
	assert_int_equal(run(), 0);
	assert_int_equal(named, 2);
	assert_int_equal(donors[0]->traces, 1);
	/* A region takes many TRACEs if most of their units go to sets. */
	donors[1]->traces = 0;
	donors[1]->works = 1500;
	assert_int_equal(run(), 0);
	assert_int_equal(donors[1]->traces, 1501);
}

/* Each region that is named takes memory, and there are 2^32 of them. */
static void regions_that_the_heap_does_not_have(void **state)
{
	donors[0]->region = REGIONS;
	assert_int_equal(run(), -EPROTO);
	donors[0]->region = UINT32_MAX;
	assert_int_equal(run(), -EPROTO);
	assert_in_range(named, 0, 2);
	donors[0]->region = 2;
	donors[0]->marked = REGIONS;
	assert_int_equal(run(), -EPROTO);
	donors[0]->marked = 0;
	donors[0]->next = REGIONS;
	assert_int_equal(run(), -EPROTO);
	donors[0]->next = 0;
	assert_int_equal(run(), -EPROTO);
	/* One part for each region is not too many. */
	donors[0]->ends = ENOUGH - REGIONS + 1;
	donors[0]->next = 1;
	assert_int_equal(run(), 0);
}

/* The borrower sleeps for as long as a reply says: up to 71 minutes. */
static void a_pause_that_is_too_long(void **state)
{
	donors[0]->traced.pause = WIRE_JOB_PAUSE_MOST + 1;
	donors[0]->works = donors[0]->pauses = 1;
	assert_int_equal(run(), -EPROTO);
	assert_int_equal(donors[0]->traces, 1);
}

static void pauses_without_end(void **state)
{
	donors[0]->traced.pause = 1;
	donors[0]->works = donors[0]->pauses = ENOUGH;
	assert_int_equal(run(), -EPROTO);
	assert_int_equal(donors[0]->traces, JOBS_PAUSES + 1);
}

static void work_without_end(void **state)
{
	donors[0]->works = ENOUGH;
	assert_int_equal(run(), -EPROTO);
	assert_in_range(donors[0]->traces, 1500, 3000);
	/* More objects than the heap has, and fewer than before. */
	donors[0]->traces = donors[0]->works = 0;
	donors[0]->traced.visited = REGIONS * TABLET_SLOTS + 1;
	assert_int_equal(run(), -EPROTO);
	assert_int_equal(donors[0]->traces, 1);
}

/* A donor that waits for its share is not asked before, though another one works. */
static void a_pause_is_waited_for(void **state)
{
	donors[0]->traced.pause = 20000;
	donors[0]->works = donors[0]->pauses = 1;
	donors[1]->works = 100;
	assert_int_equal(run(), 0);
	assert_int_equal(donors[0]->traces, 2);
	assert_int_equal(donors[1]->traces, 101);
}

/* While other threads use the handles: until when a thread has waited for them. */
static bool busy;
static struct timespec waited[2 * DONORS];
static uint32_t waits;

int __real_pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t c, const struct timespec *until);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t c, const struct timespec *until);
int __wrap_pthread_mutex_clocklock(pthread_mutex_t *m, clockid_t c, const struct timespec *until)
{
	if (!busy)
		return __real_pthread_mutex_clocklock(m, c, until);
	assert_in_range(waits, 0, 2 * DONORS - 1);
	waited[waits++] = *until;
	return ETIMEDOUT;
}

/* Donors that cannot be told that the cycle is over take one time-out, not one each. */
static void an_end_that_is_told_in_time(void **state)
{
	ebbfar_t *far[DONORS] = { &donors[0]->far, &donors[1]->far };
	struct cycle *c;

	for (int i = 0; i < DONORS; i++)
		far[i]->client.timeout = 1000;
	donors[0]->traced.pause = WIRE_JOB_PAUSE_MOST + 1;
	donors[0]->works = donors[0]->pauses = 1;
	assert_int_equal(cycle_new(&c, far, DONORS, CYCLE, REGIONS, &ops, NULL), 0);
	for (uint32_t i = 0; i < DONORS; i++)
		assert_int_equal(cycle_push(c, i, 0), 0);
	busy = true;
	waits = 0;
	assert_int_equal(cycle_run(c, CYCLE_WAITS), -EPROTO);
	cycle_abandon(c);
	busy = false;
	assert_int_equal(waits, DONORS);
	assert_memory_equal(&waited[0], &waited[1], sizeof(waited[0]));
	assert_int_equal(cycle_running(c), 3);
	cycle_free(&c);
}

static void more_donors_than_a_cycle_has(void **state)
{
	ebbfar_t *far[FAR_CYCLE_DONORS + 1] = { NULL };
	struct cycle *c;

	assert_int_equal(cycle_new(&c, far, FAR_CYCLE_DONORS + 1, CYCLE, REGIONS, &ops, NULL),
			 -EINVAL);
	assert_int_equal(cycle_new(&c, far, FAR_CYCLE_DONORS, CYCLE, REGIONS, &ops, NULL), 0);
	cycle_free(&c);
}

/* Evacuates two regions to @base of an extent of 1 MiB. */
static int copy(uint32_t base, struct jobs_copy *done)
{
	static const uint64_t all[TABLET_WORDS] = { 1 };
	const struct jobs_keep keep[] = { { 0, 1, 1, all }, { 1, 1, 1, all } };
	const struct ebbfar_extent to = { .size = 1 << 20 };

	return jobs_evacuate(&donors[0]->far, 1, &to, base, keep, 2, JOBS_WAITS, done);
}

static void hostile_evacuations(void **state)
{
	struct wire_job_evacuated *e = &donors[0]->evacuated;
	struct jobs_copy done;

	*e = (struct wire_job_evacuated){ .regions = 1, .bytes = TABLET_REGION };
	assert_int_equal(copy((1 << 20) - 2 * TABLET_REGION, &done), 0);
	assert_int_equal(done.bytes, 2 * TABLET_REGION);
	assert_int_equal(copy((1 << 20) - 2 * TABLET_REGION + 16, &done), -EPROTO);
	e->bytes = TABLET_REGION + 1;
	assert_int_equal(copy(0, &done), -EPROTO);
	e->bytes = UINT32_MAX;
	assert_int_equal(copy(1 << 20, &done), -EPROTO);
	*e = (struct wire_job_evacuated){ .regions = 3 };
	assert_int_equal(copy(0, &done), -EPROTO);
	*e = (struct wire_job_evacuated){ 0 };
	assert_int_equal(copy(0, &done), -EPROTO);
	donors[0]->evacuations = 0;
	e->pause = WIRE_JOB_PAUSE_MOST + 1;
	assert_int_equal(copy(0, &done), -EPROTO);
	assert_int_equal(donors[0]->evacuations, 1);
	donors[0]->evacuations = 0;
	e->pause = 1;
	assert_int_equal(copy(0, &done), -EPROTO);
	assert_int_equal(donors[0]->evacuations, JOBS_PAUSES + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(honest_donors),
		TEST(regions_that_the_heap_does_not_have),
		TEST(a_pause_that_is_too_long),
		TEST(pauses_without_end),
		TEST(work_without_end),
		TEST(a_pause_is_waited_for),
		TEST(an_end_that_is_told_in_time),
		TEST(more_donors_than_a_cycle_has),
		TEST(hostile_evacuations),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
