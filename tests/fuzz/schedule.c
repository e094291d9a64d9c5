// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * One thread has the turn and passes it on by a futex, which no sanitizer sees.  All other state
 * here belongs to the thread with the turn.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#define SCHEDULER
#include "schedule.h"

#define THREADS 64
#define STEPS_MAX UINT64_C(50000000)	/* ten times the longest of the first 300 programs */
#define SPURIOUS 64		/* one in so many waits ends without a signal */
#define SECOND UINT64_C(1000000000)

enum state { NONE, READY, BLOCKED, ENDED };

struct thread {
	enum state state;
	uint64_t priority;
	const void *on;		/* BLOCKED: mutex, condition or struct thread; NULL: time alone */
	uint64_t until;		/* BLOCKED: when it is ready in any case; 0: never */
	uint32_t turn;		/* futex */
	bool ending;
	pthread_t id;
	void *(*fn)(void *);
	void *arg;
};

/* Used by the thread with the turn. */
static struct thread threads[THREADS];
static uint64_t random_state, steps, change_at, lowest, now, digest;
static unsigned int change_every, slow_every;
static bool sink; /* an interrupted thread gets the lowest priority, else a random one */
static pthread_key_t end_key;
static __thread struct thread *self;

static void end(void *arg);

static uint64_t next(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state * UINT64_C(0x2545f4914f6cdd1d) >> 8;
}

static void wrong(const char *what)
{
	fprintf(stderr, "schedule: %s after %llu steps\n", what, (unsigned long long)steps);
	for (struct thread *t = threads; t < threads + THREADS; t++)
		if (t->state == READY || t->state == BLOCKED)
			fprintf(stderr, "  thread %td: %s\n", t - threads,
				t->state == READY ? "ready" : "blocked");
	abort();
}

static void turn_give(struct thread *t)
{
	__atomic_store_n(&t->turn, 1, __ATOMIC_RELEASE);
	syscall(SYS_futex, &t->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void turn_await(void)
{
	while (!__atomic_load_n(&self->turn, __ATOMIC_ACQUIRE))
		syscall(SYS_futex, &self->turn, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	__atomic_store_n(&self->turn, 0, __ATOMIC_RELAXED);
}

static void wake_due(void)
{
	for (struct thread *t = threads; t < threads + THREADS; t++)
		if (t->state == BLOCKED && t->until && t->until <= now)
			t->state = READY;
}

/* Where all wait, time passes. */
static struct thread *choose(void)
{
	for (;;) {
		struct thread *first = NULL;
		uint64_t earliest = UINT64_MAX;

		wake_due();
		for (struct thread *t = threads; t < threads + THREADS; t++) {
			if (t->state == READY && (!first || t->priority > first->priority))
				first = t;
			if (t->state == BLOCKED && t->until && t->until < earliest)
				earliest = t->until;
		}
		if (first)
			return first;
		if (earliest == UINT64_MAX)
			wrong("deadlock");
		now = earliest;
	}
}

static void yield(void)
{
	struct thread *to = choose();

	digest = (digest ^ (uint64_t)(to - threads) ^ steps << 8) * UINT64_C(0x100000001b3);
	if (to == self)
		return;
	turn_give(to);
	turn_await();
}

static void block(const void *on, uint64_t until)
{
	self->state = BLOCKED;
	self->on = on;
	self->until = until;
	yield();
}

static bool blocked_on(const struct thread *t, const void *on)
{
	return t->state == BLOCKED && t->on == on;
}

static void wake_all(const void *on)
{
	for (struct thread *t = threads; t < threads + THREADS; t++)
		if (blocked_on(t, on))
			t->state = READY;
}

void schedule_begin(uint64_t seed)
{
	static const unsigned int apart[] = { 8, 32, 128, 512, 4096, 32768 };

	for (struct thread *t = threads; t < threads + THREADS; t++)
		*t = (struct thread){ .state = NONE };
	pthread_key_create(&end_key, end);
	random_state = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15);
	for (int i = 0; i < 8; i++)
		next();
	change_every = apart[next() % (sizeof(apart) / sizeof(*apart))];
	slow_every = next() & 1 ? 100 : 10000;
	sink = next() & 1;
	steps = digest = 0;
	now = SECOND;
	lowest = UINT64_C(1) << 32;
	change_at = 1 + next() % change_every;
	self = threads;
	self->state = READY;
	self->priority = lowest + next();
}

uint64_t schedule_end(void)
{
	self = NULL;
	pthread_key_delete(end_key);
	return digest;
}

void schedule_point(void)
{
	if (!self || ++steps < change_at)
		return;
	if (steps > STEPS_MAX)
		wrong("no end");
	change_at = steps + 1 + next() % (2 * change_every);
	self->priority = sink ? --lowest : (UINT64_C(1) << 32) + next();
	yield();
}

int schedule_lock(pthread_mutex_t *mutex)
{
	if (!self)
		return pthread_mutex_lock(mutex);
	schedule_point();
	while (pthread_mutex_trylock(mutex))
		block(mutex, 0);
	return 0;
}

int schedule_trylock(pthread_mutex_t *mutex)
{
	schedule_point();
	return pthread_mutex_trylock(mutex);
}

int schedule_unlock(pthread_mutex_t *mutex)
{
	int r = pthread_mutex_unlock(mutex);

	if (!self)
		return r;
	wake_all(mutex);
	schedule_point();
	return r;
}

int schedule_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
	uint64_t end = until ? (uint64_t)until->tv_sec * SECOND + (uint64_t)until->tv_nsec : 0;

	pthread_mutex_unlock(mutex);
	wake_all(mutex);
	if (next() % SPURIOUS)
		block(cond, end);
	schedule_lock(mutex);
	return end && end <= now ? ETIMEDOUT : 0;
}

int schedule_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return schedule_timedwait(cond, mutex, NULL);
}

int schedule_signal(pthread_cond_t *cond)
{
	unsigned int waiting = 0;

	for (struct thread *t = threads; t < threads + THREADS; t++)
		waiting += blocked_on(t, cond);
	if (waiting) {
		struct thread *t = threads;

		for (uint64_t n = next() % waiting; n || !blocked_on(t, cond); t++)
			n -= blocked_on(t, cond);
		t->state = READY;
	}
	schedule_point();
	return 0;
}

int schedule_broadcast(pthread_cond_t *cond)
{
	wake_all(cond);
	schedule_point();
	return 0;
}

/*
 * What threads leave is cleared up by destructors, which are scheduled, too: all of the first
 * round.
 */
static void end(void *arg)
{
	if (!self->ending) {
		self->ending = true;
		pthread_setspecific(end_key, arg);
		return;
	}
	self->state = ENDED;
	wake_all(self);
	turn_give(choose());
}

static void *run(void *arg)
{
	self = arg;
	pthread_setspecific(end_key, self);
	turn_await();
	return self->fn(self->arg);
}

int schedule_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	struct thread *t = threads;
	int r;

	while (t->state != NONE)
		if (++t == threads + THREADS)
			return EAGAIN;
	*t = (struct thread){
		.state = READY, .priority = (UINT64_C(1) << 32) + next(), .fn = fn, .arg = arg,
	};
	r = pthread_create(thread, attr, run, t);
	if (r) {
		t->state = NONE;
		return r;
	}
	t->id = *thread;
	schedule_point();
	return 0;
}

int schedule_join(pthread_t thread, void **result)
{
	struct thread *t = threads;
	int r;

	while (t->state == NONE || t == self || !pthread_equal(t->id, thread))
		t++;
	while (t->state != ENDED)
		block(t, 0);
	r = pthread_join(thread, result);
	t->state = NONE;
	return r;
}

int schedule_sleep(const struct timespec *time, struct timespec *left)
{
	block(NULL, now + 1 + (uint64_t)time->tv_sec * SECOND + (uint64_t)time->tv_nsec);
	return 0;
}

int schedule_usleep(useconds_t us)
{
	const struct timespec time = { 0, (long)us * 1000 };

	return schedule_sleep(&time, NULL);
}

/* Now and then much time has passed: a page was read, or another program ran. */
int schedule_clock(clockid_t clock, struct timespec *time)
{
	if (!self)
		return clock_gettime(clock, time);
	schedule_point();
	now += 50 + next() % 100;
	if (next() % slow_every == 0)
		now += next() % (SECOND / 100);
	*time = (struct timespec){ (time_t)(now / SECOND), (long)(now % SECOND) };
	return 0;
}
