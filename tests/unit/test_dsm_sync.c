// SPDX-License-Identifier: GPL-2.0-or-later
/* ebbdsm_sync.h with a donor in this process, at its unix socket (mapped) and its TCP port. */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Tests make the mistakes that compilers find. */
#define EBBDSM_NO_CHECKS
#include "userlib/dsm/ebbdsm.h"
#include "userlib/dsm/channel_step.h"
#include "userlib/dsm/dsm_step.h"
#include "userlib/dsm/sync_step.h"

/* Last: cmocka.h makes a macro of fail(). */
#include "far_library.h"

static int end(void **state)
{
	struct ebbfar_options o = options(world.tcp, 0);
	int r = -EBUSY;

	for (int i = 0; i < 6000 && r == -EBUSY; i++) {
		r = ebbfar_destroy(&o);
		usleep(r == -EBUSY ? 10000 : 0);
	}
	if (r && r != -ENOENT)
		fail_msg("%s", o.error);
	return end_far_donor(state);
}

static ebbdsm_t *join(const char *donor)
{
	const char *const donors[] = { donor };
	struct ebbdsm_options o = { .size = sizeof(o), .donors = donors, .donor_count = 1,
				    .pool = "p", .timeout_ms = 5000 };
	ebbdsm_t *dsm;

	if (ebbdsm_open(&o, &dsm))
		fail_msg("%s", o.error);
	return dsm;
}

static uint64_t round_trips(ebbdsm_t *dsm)
{
	struct ebbdsm_counts c = { .size = sizeof(c) };

	ebbdsm_count(dsm, &c);
	return c.round_trips;
}

static uint64_t places(ebbdsm_t *dsm)
{
	struct ebbdsm_counts c = { .size = sizeof(c) };

	assert_int_equal(ebbdsm_settle(dsm), 0);
	ebbdsm_count(dsm, &c);
	return c.places;
}

/* Uses all memory, so that none is as a process that has left has left it. */
static void use_all(ebbdsm_t *dsm)
{
	static const size_t size[] = { 1u << 20, 65504, 16000 };
	int r;

	for (size_t i = 0; i < sizeof(size) / sizeof(*size); i++)
		do {
			struct ebbdsm_box box = { 0 };

			r = ebbdsm_new(dsm, NULL, size[i], &box);
		} while (!r);
	assert_int_equal(r, -ENOSPC);
}

/* Over TCP a drop takes effect soon. */
static void becomes_stale(ebbdsm_t *dsm, uint64_t place, uint64_t stamp)
{
	const struct ebbdsm_words words = { place, stamp };
	uint64_t value;
	int r = 0;

	for (int i = 0; i < 60000 && r != -ESTALE; i++) {
		r = ebbdsm_load(dsm, &words, 0, &value);
		usleep(r == -ESTALE ? 0 : 1000);
	}
	assert_int_equal(r, -ESTALE);
}

/* A process that has exited has its number until the donor has freed its memory. */
static void becomes_dead(ebbdsm_t *dsm, const struct ebbdsm_words *words)
{
	uint64_t value;
	int r = 0;

	for (int i = 0; i < 60000 && r != -EOWNERDEAD; i++) {
		r = ebbdsm_load(dsm, words, 0, &value);
		usleep(r == -EOWNERDEAD ? 0 : 1000);
	}
	assert_int_equal(r, -EOWNERDEAD);
}

/* --- without memory --------------------------------------------------------------- */

static _Thread_local bool no_memory;

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);

void *__wrap_malloc(size_t size)
{
	return no_memory ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
	return no_memory ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
	return no_memory ? NULL : __real_realloc(p, size);
}

/* --- threads that listen ---------------------------------------------------------- */

static struct {
	bool holds;   /* a thread that waits for a word begins when that has ended, atomic */
	int listens;  /* that does, atomic */
	int consumed; /* words that calls got that do not wait, atomic */
} doorbell;

int __real_ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word);
int __wrap_ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word);

int __wrap_ebbfar_wait(ebbfar_t *far, int timeout_ms, uint32_t *member, uint64_t *word)
{
	int r;

	while (timeout_ms && __atomic_load_n(&doorbell.holds, __ATOMIC_ACQUIRE)) {
		__atomic_store_n(&doorbell.listens, 1, __ATOMIC_RELEASE);
		usleep(1000);
	}
	r = __real_ebbfar_wait(far, timeout_ms, member, word);
	if (!timeout_ms && !r)
		__atomic_add_fetch(&doorbell.consumed, 1, __ATOMIC_RELEASE);
	return r;
}

/* --- atomics ---------------------------------------------------------------------- */

static void atomics(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	const uint64_t values[3] = { 1, ~0ull, 3 };
	struct ebbdsm_words words = { 0 }, wrong;
	uint64_t value, before;

	assert_int_equal(ebbdsm_words_new(a, values, 0, &words), -EINVAL);
	assert_int_equal(ebbdsm_words_new(a, NULL, EBBDSM_GUARDED_MOST / 8 + 1, &words), -EINVAL);
	assert_int_equal(ebbdsm_words_new(a, values, 3, &words), 0);
	before = round_trips(b);
	assert_int_equal(ebbdsm_load(b, &words, 1, &value), 0);
	assert_int_equal(value, ~0ull);
	assert_int_equal(ebbdsm_add(b, &words, 1, 2, &value), 0);
	assert_int_equal(value, ~0ull);
	assert_int_equal(ebbdsm_store(b, &words, 1, 7), 0);
	assert_int_equal(ebbdsm_cas(b, &words, 1, 7, 8, &value), 0);
	assert_int_equal(value, 7);
	assert_int_equal(ebbdsm_cas(b, &words, 1, 7, 9, &value), 0);
	assert_int_equal(value, 8);
	assert_int_equal(round_trips(b) - before, 5);
	/* Another one changes it: what was seen is old. */
	before = round_trips(a);
	assert_int_equal(ebbdsm_add(a, &words, 1, 1, &value), 0);
	assert_int_equal(value, 8);
	assert_int_equal(round_trips(a) - before, at == world.tcp);
	before = round_trips(b);
	assert_int_equal(ebbdsm_add(b, &words, 1, 1, &value), 0);
	assert_int_equal(value, 9);
	assert_int_equal(round_trips(b) - before, 2);
	assert_int_equal(ebbdsm_load(a, &words, 0, &value), 0);
	assert_int_equal(value, 1);
	assert_int_equal(ebbdsm_load(b, &words, 3, &value), -EINVAL);
	assert_int_equal(ebbdsm_add(a, &words, 3, 1, &value), -EINVAL);
	assert_int_equal(ebbdsm_load(b, &words, 5000, &value), -EINVAL);
	wrong = (struct ebbdsm_words){ words.at, words.stamp + 16 };
	assert_int_equal(ebbdsm_load(b, &wrong, 0, &value), -ESTALE);
	wrong = words;
	assert_int_equal(ebbdsm_words_drop(b, &wrong), -ESTALE);
	assert_int_equal(ebbdsm_words_drop(a, &words), 0);
	becomes_stale(b, wrong.at, wrong.stamp);
	assert_int_equal(ebbdsm_add(b, &wrong, 1, 1, NULL), -ESTALE);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

enum { PROCESSES = 3, TURNS = 200, PASSES = 50 };

static struct {
	struct ebbdsm_words words;
	struct ebbdsm_mutex mutex;
	struct ebbdsm_channel channel;
	int wrong;
} shared;

static void *adds(void *data)
{
	for (int i = 0; i < TURNS; i++)
		if (ebbdsm_add(data, &shared.words, 0, 3, NULL))
			__atomic_add_fetch(&shared.wrong, 1, __ATOMIC_RELAXED);
	return NULL;
}

static void run_all(ebbdsm_t *const dsm[PROCESSES], void *(*function)(void *))
{
	pthread_t t[PROCESSES];

	shared.wrong = 0;
	for (int i = 0; i < PROCESSES; i++)
		pthread_create(&t[i], NULL, function, dsm[i]);
	for (int i = 0; i < PROCESSES; i++)
		pthread_join(t[i], NULL);
	assert_int_equal(shared.wrong, 0);
}

static void no_add_is_lost(void **state)
{
	ebbdsm_t *const dsm[PROCESSES] = { join(at), join(world.tcp), join(world.local) };
	uint64_t value;

	assert_int_equal(ebbdsm_words_new(dsm[0], NULL, 1, &shared.words), 0);
	run_all(dsm, adds);
	assert_int_equal(ebbdsm_load(dsm[1], &shared.words, 0, &value), 0);
	assert_int_equal(value, PROCESSES * TURNS * 3);
	for (int i = 0; i < PROCESSES; i++)
		ebbdsm_close(dsm[i]);
}

/* What an old name names is another's memory by now: it does not change. */
static void old_names_change_nothing(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_words words, many[64];
	struct ebbdsm_mutex mutex;
	void *content;
	uint64_t value;

	assert_int_equal(ebbdsm_words_new(a, NULL, 8, &words), 0);
	assert_int_equal(ebbdsm_add(b, &words, 2, 5, NULL), 0);
	assert_int_equal(ebbdsm_mutex_new(a, NULL, 100, &mutex), 0);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, &content), 0);
	memset(content, 1, 100);
	ebbdsm_close(a);
	a = join(world.local);
	use_all(a);
	ebbdsm_close(a);
	a = join(world.local);
	for (int i = 0; i < 64; i++)
		assert_int_equal(ebbdsm_words_new(a, NULL, 8, &many[i]), 0);
	assert_int_equal(ebbdsm_add(b, &words, 2, 5, NULL), -ESTALE);
	assert_int_equal(ebbdsm_store(b, &words, 2, 5), -ESTALE);
	assert_int_equal(ebbdsm_unlock(b, &mutex, content), -ESTALE);
	for (int i = 0; i < 64; i++)
		for (uint32_t k = 0; k < 8; k++) {
			assert_int_equal(ebbdsm_load(a, &many[i], k, &value), 0);
			assert_int_equal(value, 0);
		}
	ebbdsm_close(a);
	becomes_dead(b, &words);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, &content), -ENOTRECOVERABLE);
	ebbdsm_close(b);
}

/* --- mutexes ---------------------------------------------------------------------- */

static void mutexes(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_mutex mutex, wrong;
	struct ebbdsm_words words;
	uint64_t before;
	void *content, *other;

	assert_int_equal(ebbdsm_mutex_new(a, NULL, 0, &mutex), -EINVAL);
	assert_int_equal(ebbdsm_mutex_new(a, NULL, EBBDSM_GUARDED_MOST + 1, &mutex), -EINVAL);
	assert_int_equal(ebbdsm_mutex_new(a, "abcdefghi", 10, &mutex), 0);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, &content), 0);
	assert_string_equal(content, "abcdefghi");
	assert_int_equal((uintptr_t)content % 16, 0);
	assert_int_equal(ebbdsm_lock(a, &mutex, 0, &other), -EAGAIN);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, &other), -EAGAIN);
	assert_int_equal(ebbdsm_lock(a, &mutex, 20, &other), -ETIMEDOUT);
	assert_int_equal(ebbdsm_lock(b, &mutex, 20, &other), -ETIMEDOUT);
	assert_int_equal(ebbdsm_consistent(b, &mutex), -EINVAL);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), -EINVAL);
	assert_int_equal(ebbdsm_unlock(b, &mutex, (char *)content + 1), -EINVAL);
	assert_int_equal(ebbdsm_leave(b, mutex.at, mutex.stamp), -EBUSY);
	strcpy(content, "ABCDEFGHI");
	assert_int_equal(ebbdsm_unlock(b, &mutex, content), 0);
	assert_int_equal(ebbdsm_unlock(b, &mutex, content), -EINVAL);
	assert_int_equal(ebbdsm_lock(a, &mutex, -1, &content), 0);
	assert_string_equal(content, "ABCDEFGHI");
	assert_int_equal(ebbdsm_mutex_drop(a, &mutex), -EBUSY);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
	/* One round trip each, also after others. */
	for (int i = 0; i < 3; i++) {
		before = round_trips(b);
		assert_int_equal(ebbdsm_lock(b, &mutex, -1, &content), 0);
		assert_int_equal(round_trips(b) - before, 1);
		++*(char *)content;
		assert_int_equal(ebbdsm_unlock(b, &mutex, content), 0);
		assert_int_equal(round_trips(b) - before, 2);
		assert_int_equal(ebbdsm_lock(a, &mutex, -1, &content), 0);
		assert_int_equal(*(char *)content, 'B' + i);
		assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
	}
	/* Another kind. */
	assert_int_equal(ebbdsm_words_new(a, NULL, 100, &words), 0);
	wrong = (struct ebbdsm_mutex){ words.at, words.stamp };
	assert_int_equal(ebbdsm_lock(b, &wrong, 0, &content), -EINVAL);
	assert_int_equal(ebbdsm_leave(b, mutex.at, mutex.stamp), 0);
	assert_int_equal(ebbdsm_leave(b, mutex.at, mutex.stamp), 0);
	wrong = mutex;
	assert_int_equal(ebbdsm_mutex_drop(b, &wrong), -ESTALE);
	assert_int_equal(ebbdsm_mutex_drop(a, &mutex), 0);
	assert_int_equal(mutex.at, 0);
	becomes_stale(b, wrong.at, wrong.stamp);
	assert_int_equal(ebbdsm_lock(b, &wrong, 0, &content), -ESTALE);
	/* One that is dropped is left once. */
	assert_int_equal(ebbdsm_mutex_new(a, NULL, 8, &mutex), 0);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, &content), 0);
	assert_int_equal(ebbdsm_unlock(b, &mutex, content), 0);
	wrong = mutex;
	assert_int_equal(ebbdsm_mutex_drop(a, &mutex), 0);
	becomes_stale(b, wrong.at, wrong.stamp);
	assert_int_equal(ebbdsm_leave(b, wrong.at, wrong.stamp), -ESTALE);
	assert_int_equal(ebbdsm_leave(b, wrong.at, wrong.stamp), 0);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

/* A process that does not use a mutex, or not any more, has not locked it. */
/* Operations on words do not change a mutex, by another process or by its maker. */
static void words_of_a_mutex(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	uint64_t *content, before[2] = { 0, 5 }, old;
	struct ebbdsm_mutex mutex;

	assert_int_equal(ebbdsm_mutex_new(a, before, sizeof(before), &mutex), 0);
	for (int turn = 0; turn < 2; turn++) {
		const struct ebbdsm_words words = { mutex.at, mutex.stamp };
		ebbdsm_t *const by = turn ? a : b;

		for (uint32_t i = 0; i < SYNC_CONTENT + 2; i++) {
			assert_int_equal(ebbdsm_store(by, &words, i, 3), -EINVAL);
			assert_int_equal(ebbdsm_add(by, &words, i, 3, &old), -EINVAL);
			assert_int_equal(ebbdsm_cas(by, &words, i, 0, 3, &old), -EINVAL);
		}
		for (int i = 0; i < 2; i++) {
			assert_int_equal(ebbdsm_lock(by, &mutex, 0, (void **)&content), 0);
			assert_memory_equal(content, before, sizeof(before));
			assert_int_equal(ebbdsm_unlock(by, &mutex, content), 0);
		}
	}
	ebbdsm_close(b);
	ebbdsm_close(a);
}

static void not_locked_here(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_mutex mutex;
	void *content;

	assert_int_equal(ebbdsm_mutex_new(a, NULL, 8, &mutex), 0);
	assert_int_equal(ebbdsm_lock(a, &mutex, 0, &content), 0);
	assert_int_equal(ebbdsm_unlock(b, &mutex, content), -EINVAL);
	assert_int_equal(ebbdsm_consistent(b, &mutex), -EINVAL);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), -EINVAL);
	assert_int_equal(ebbdsm_leave(a, mutex.at, mutex.stamp), 0);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), -EINVAL);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

/* What ends a process's turn or reference needs no memory: others wait for it. */
static void ends_without_memory(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_box box = { 0 };
	struct ebbdsm_mutex mutex;
	struct ebbdsm_view view;
	struct ebbdsm_arc arc;
	uint8_t *content;
	int r;

	assert_int_equal(ebbdsm_mutex_new(a, NULL, EBBDSM_GUARDED_MOST, &mutex), 0);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, (void **)&content), 0);
	memset(content, 1, EBBDSM_GUARDED_MOST);
	no_memory = true;
	r = ebbdsm_unlock(b, &mutex, content);
	no_memory = false;
	assert_int_equal(r, 0);
	assert_int_equal(ebbdsm_lock(a, &mutex, 0, (void **)&content), 0);
	for (uint32_t i = 0; i < EBBDSM_GUARDED_MOST; i++)
		assert_int_equal(content[i], 1);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
	assert_int_equal(ebbdsm_new(a, NULL, 8, &box), 0);
	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), 0);
	assert_int_equal(ebbdsm_clone(b, &arc), 0);
	assert_int_equal(ebbdsm_unclone(a, &arc), 0);
	no_memory = true;
	r = ebbdsm_unclone(b, &arc);
	no_memory = false;
	assert_int_equal(r, 0);
	assert_int_equal(places(a), 1);
	/* A view of what is dropped so is old. */
	assert_int_equal(ebbdsm_new(b, NULL, 8, &box), 0);
	view = ebbdsm_lend(&box);
	no_memory = true;
	r = ebbdsm_drop(b, &box);
	no_memory = false;
	assert_int_equal(r, 0);
	assert_null(ebbdsm_borrow_view(a, &view, NULL));
	assert_int_equal(errno, ESTALE);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

static void *locks(void *data)
{
	for (int i = 0; i < TURNS; i++) {
		uint64_t *content;
		int r = ebbdsm_lock(data, &shared.mutex, -1, (void **)&content);

		if (r || content[0] != content[1])
			__atomic_add_fetch(&shared.wrong, 1, __ATOMIC_RELAXED);
		if (r)
			return NULL;
		content[0]++;
		content[1]++;
		if (ebbdsm_unlock(data, &shared.mutex, content))
			__atomic_add_fetch(&shared.wrong, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void one_at_a_time(void **state)
{
	ebbdsm_t *const dsm[PROCESSES] = { join(at), join(world.tcp), join(world.local) };
	ebbdsm_t *const threads[PROCESSES] = { dsm[1], dsm[1], dsm[1] };
	uint64_t *content, sum = 0;

	assert_int_equal(ebbdsm_mutex_new(dsm[0], NULL, 16, &shared.mutex), 0);
	run_all(dsm, locks);
	run_all(threads, locks);
	for (int i = 0; i < PROCESSES; i++)
		sum += round_trips(dsm[i]);
	print_message("%.1f round trips for a lock and its unlock\n",
		      (double)sum / (2 * PROCESSES * TURNS));
	assert_true(sum <= 12ull * 2 * PROCESSES * TURNS);
	assert_int_equal(ebbdsm_lock(dsm[0], &shared.mutex, 0, (void **)&content), 0);
	assert_int_equal(content[0], 2 * PROCESSES * TURNS);
	assert_int_equal(ebbdsm_unlock(dsm[0], &shared.mutex, content), 0);
	for (int i = 0; i < PROCESSES; i++)
		ebbdsm_close(dsm[i]);
}

/* Executes a step on the state of a mutex alone. */
static void unlock_state(uint64_t *word, uint32_t user)
{
	struct sync_op op;
	struct sync_verb v;

	sync_unlock(&op, 1, user, *word, false);
	for (v = sync_next(&op, 0); v.kind != SYNC_ENDED; v = sync_next(&op, 0))
		for (uint32_t i = 0; v.kind == SYNC_EXECUTE && i < v.parts; i++)
			if (v.part[i].kind == SYNC_SWAP) {
				op.old = *word;
				if (op.old == v.part[i].expect)
					*word = v.part[i].desired;
			}
	assert_int_equal(op.result, 0);
}

/* All wait, always: each has it once in a round. */
static void turns(void **state)
{
	uint64_t word = 6ull << SYNC_HOLDER_SHIFT | (SYNC_BITS & ~(1ull << 5));

	for (int round = 0; round < 3; round++) {
		uint32_t had = 0;

		for (uint32_t i = 0; i < SYNC_USERS; i++) {
			uint32_t user = (uint32_t)sync_holder(word);

			had |= 1u << user;
			/* It waits again as soon as it has unlocked. */
			unlock_state(&word, user);
			word |= 1ull << user;
		}
		assert_int_equal(had, ~0u);
	}
}

static struct {
	bool is_late; /* a thread that is woken comes after others, atomic */
	int waits_at; /* .turns[0] when the first one began to wait; -1 = not yet, atomic */
	int ends;     /* atomic */
	int turns[2]; /* atomic */
} crowd;

int __real_pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
				  const struct timespec *end);
int __wrap_pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
				  const struct timespec *end);

int __wrap_pthread_cond_clockwait(pthread_cond_t *c, pthread_mutex_t *m, clockid_t clock,
				  const struct timespec *end)
{
	int now = __atomic_load_n(&crowd.turns[0], __ATOMIC_RELAXED), none = -1, r;

	__atomic_compare_exchange_n(&crowd.waits_at, &none, now, false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	r = __real_pthread_cond_clockwait(c, m, clock, end);
	if (__atomic_load_n(&crowd.is_late, __ATOMIC_RELAXED)) {
		pthread_mutex_unlock(m);
		usleep(2000);
		pthread_mutex_lock(m);
	}
	return r;
}

static void *locks_again(void *data)
{
	void *content;

	while (!__atomic_load_n(&crowd.ends, __ATOMIC_RELAXED)) {
		assert_int_equal(ebbdsm_lock(data, &shared.mutex, -1, &content), 0);
		__atomic_add_fetch(&crowd.turns[0], 1, __ATOMIC_RELAXED);
		usleep(5000);
		assert_int_equal(ebbdsm_unlock(data, &shared.mutex, content), 0);
	}
	return NULL;
}

/* A thread that locks a mutex again as soon as it has unlocked it does not keep others out. */
static void threads_take_turns(void **state)
{
	ebbdsm_t *a = join(at);
	pthread_t thread;
	void *content;
	int after;

	memset(&crowd, 0, sizeof(crowd));
	crowd.is_late = true;
	crowd.waits_at = -1;
	assert_int_equal(ebbdsm_mutex_new(a, NULL, 8, &shared.mutex), 0);
	assert_int_equal(pthread_create(&thread, NULL, locks_again, a), 0);
	while (!__atomic_load_n(&crowd.turns[0], __ATOMIC_RELAXED))
		usleep(1000);
	assert_int_equal(ebbdsm_lock(a, &shared.mutex, 600000, &content), 0);
	/* The other thread had it then, and once more if this one had waited for less than 1 ms. */
	after = __atomic_load_n(&crowd.turns[0], __ATOMIC_RELAXED);
	print_message("waited for %d turns\n", after - crowd.waits_at);
	if (crowd.waits_at >= 0)
		assert_in_range(after - crowd.waits_at, 0, 2);
	assert_int_equal(ebbdsm_unlock(a, &shared.mutex, content), 0);
	__atomic_store_n(&crowd.ends, 1, __ATOMIC_RELAXED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	crowd.is_late = false;
	ebbdsm_close(a);
}

static void dead_holder(void **state)
{
	ebbdsm_t *a = join(at), *b, *c = join(world.tcp);
	struct ebbdsm_mutex mutex;
	uint64_t *content;

	assert_int_equal(ebbdsm_mutex_new(a, NULL, 8, &mutex), 0);
	for (int waits = 0; waits < 3; waits++) {
		b = join(waits == 1 ? world.local : world.tcp);
		assert_int_equal(ebbdsm_lock(b, &mutex, 0, (void **)&content), 0);
		assert_int_equal(ebbdsm_lock(c, &mutex, 0, (void **)&content), -EAGAIN);
		ebbdsm_close(b);
		/* The member's number and its memory are another's. */
		b = join(world.local);
		if (waits == 2)
			use_all(b);
		assert_int_equal(ebbdsm_lock(c, &mutex, waits ? 5000 : 0, (void **)&content),
				 -EOWNERDEAD);
		assert_int_equal(ebbdsm_consistent(c, &mutex), 0);
		assert_int_equal(ebbdsm_unlock(c, &mutex, content), 0);
		assert_int_equal(ebbdsm_lock(a, &mutex, 0, (void **)&content), 0);
		assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
		ebbdsm_close(b);
	}
	b = join(world.tcp);
	assert_int_equal(ebbdsm_lock(b, &mutex, 0, (void **)&content), 0);
	ebbdsm_close(b);
	assert_int_equal(ebbdsm_lock(a, &mutex, -1, (void **)&content), -EOWNERDEAD);
	assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
	assert_int_equal(ebbdsm_lock(a, &mutex, 0, (void **)&content), -ENOTRECOVERABLE);
	assert_int_equal(ebbdsm_lock(c, &mutex, -1, (void **)&content), -ENOTRECOVERABLE);
	ebbdsm_close(c);
	ebbdsm_close(a);
}

/* Entries of users that have exited are used again, and those of others are not. */
static void many_users(void **state)
{
	ebbdsm_t *a = join(at), *all[EBBDSM_USERS];
	struct ebbdsm_mutex mutex;
	void *content;

	assert_int_equal(ebbdsm_mutex_new(a, NULL, 8, &mutex), 0);
	for (int turn = 0; turn < 2; turn++) {
		for (uint32_t i = 0; i < EBBDSM_USERS; i++) {
			all[i] = join(world.tcp);
			assert_int_equal(ebbdsm_lock(all[i], &mutex, 0, &content), 0);
			assert_int_equal(ebbdsm_unlock(all[i], &mutex, content), 0);
		}
		assert_int_equal(ebbdsm_lock(a, &mutex, 0, &content), -EUSERS);
		assert_int_equal(ebbdsm_leave(all[7], mutex.at, mutex.stamp), 0);
		assert_int_equal(ebbdsm_lock(a, &mutex, 0, &content), 0);
		assert_int_equal(ebbdsm_unlock(a, &mutex, content), 0);
		assert_int_equal(ebbdsm_lock(all[7], &mutex, 0, &content), -EUSERS);
		assert_int_equal(ebbdsm_leave(a, mutex.at, mutex.stamp), 0);
		for (uint32_t i = 0; i < EBBDSM_USERS; i++)
			ebbdsm_close(all[i]);
	}
	ebbdsm_close(a);
}

/* --- channels --------------------------------------------------------------------- */

static void channels(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_channel channel, wrong;
	char bytes[16] = "";
	uint64_t before;
	size_t size;

	assert_int_equal(ebbdsm_channel_new(a, 0, 8, &channel), -EINVAL);
	assert_int_equal(ebbdsm_channel_new(a, 1, 0, &channel), -EINVAL);
	assert_int_equal(ebbdsm_channel_new(a, 1, EBBDSM_GUARDED_MOST - 7, &channel), -EINVAL);
	assert_int_equal(ebbdsm_channel_new(a, EBBDSM_GUARDED_MOST / 16 + 1, 8, &channel), -EINVAL);
	assert_int_equal(ebbdsm_channel_new(a, 2, 10, &channel), 0);
	assert_int_equal(ebbdsm_receive(b, &channel, bytes, 16, &size, 0), -EAGAIN);
	assert_int_equal(ebbdsm_receive(b, &channel, bytes, 16, &size, 20), -ETIMEDOUT);
	assert_int_equal(ebbdsm_send(a, &channel, bytes, 11, 0), -EMSGSIZE);
	assert_int_equal(ebbdsm_send(a, &channel, "one", 4, 0), 0);
	assert_int_equal(ebbdsm_send(a, &channel, "", 0, 0), 0);
	assert_int_equal(ebbdsm_send(a, &channel, "three", 6, 0), -EAGAIN);
	assert_int_equal(ebbdsm_send(a, &channel, "three", 6, 20), -ETIMEDOUT);
	assert_int_equal(ebbdsm_receive(b, &channel, bytes, 3, &size, -1), -EMSGSIZE);
	before = round_trips(b);
	assert_int_equal(ebbdsm_receive(b, &channel, bytes, 16, &size, -1), 0);
	assert_int_equal(round_trips(b) - before, 2);
	assert_int_equal(size, 4);
	assert_string_equal(bytes, "one");
	assert_int_equal(ebbdsm_receive(b, &channel, bytes, 16, &size, -1), 0);
	assert_int_equal(size, 0);
	for (int i = 0; i < 10; i++) {
		assert_int_equal(ebbdsm_send(b, &channel, &i, sizeof(i), -1), 0);
		assert_int_equal(ebbdsm_receive(a, &channel, bytes, 16, &size, -1), 0);
		assert_memory_equal(bytes, &i, sizeof(i));
	}
	assert_int_equal(ebbdsm_send(b, &channel, "last", 5, -1), 0);
	assert_int_equal(ebbdsm_channel_close(a, &channel), 0);
	assert_int_equal(ebbdsm_send(b, &channel, "no", 3, -1), -EPIPE);
	assert_int_equal(ebbdsm_receive(a, &channel, bytes, 16, &size, -1), 0);
	assert_string_equal(bytes, "last");
	assert_int_equal(ebbdsm_receive(a, &channel, bytes, 16, &size, -1), -EPIPE);
	assert_int_equal(ebbdsm_leave(b, channel.at, channel.stamp), 0);
	wrong = channel;
	assert_int_equal(ebbdsm_channel_drop(b, &wrong), -ESTALE);
	assert_int_equal(ebbdsm_channel_drop(a, &channel), 0);
	becomes_stale(b, wrong.at, wrong.stamp);
	assert_int_equal(ebbdsm_send(b, &wrong, "", 0, 0), -ESTALE);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

/* Those on the other side leave, or die: a call that waits for them ends. */
static void lonely(void **state)
{
	ebbdsm_t *a = join(at), *b;
	struct ebbdsm_channel channel;
	uint64_t value = 5;
	size_t size;

	for (int dies = 0; dies < 2; dies++) {
		assert_int_equal(ebbdsm_channel_new(a, 1, 8, &channel), 0);
		b = join(world.tcp);
		assert_int_equal(ebbdsm_send(b, &channel, &value, 8, -1), 0);
		if (!dies)
			assert_int_equal(ebbdsm_leave(b, channel.at, channel.stamp), 0);
		ebbdsm_close(b);
		assert_int_equal(ebbdsm_receive(a, &channel, &value, 8, &size, -1), 0);
		assert_int_equal(ebbdsm_receive(a, &channel, &value, 8, &size, -1), -ECONNRESET);
		b = join(world.local);
		assert_int_equal(ebbdsm_send(b, &channel, &value, 8, -1), 0);
		assert_int_equal(ebbdsm_leave(a, channel.at, channel.stamp), 0);
		assert_int_equal(ebbdsm_send(b, &channel, &value, 8, -1), -ECONNRESET);
		ebbdsm_close(b);
		assert_int_equal(ebbdsm_channel_drop(a, &channel), 0);
	}
	assert_int_equal(ebbdsm_channel_new(a, 1, 8, &channel), 0);
	b = join(world.tcp);
	assert_int_equal(ebbdsm_receive(b, &channel, &value, 8, &size, 0), -EAGAIN);
	ebbdsm_close(a);
	assert_int_equal(ebbdsm_receive(b, &channel, &value, 8, &size, 10000), -EOWNERDEAD);
	ebbdsm_close(b);
}

static void *passes_on(void *data)
{
	for (;;) {
		uint64_t value;
		size_t size;
		int r = ebbdsm_receive(data, &shared.channel, &value, 8, &size, -1);

		if (r == -EPIPE)
			return NULL;
		if (!r && value < PASSES) {
			value++;
			r = ebbdsm_send(data, &shared.channel, &value, 8, -1);
		} else if (!r) {
			r = ebbdsm_channel_close(data, &shared.channel);
		}
		if (r) {
			__atomic_add_fetch(&shared.wrong, 1, __ATOMIC_RELAXED);
			return NULL;
		}
	}
}

/* Sleepers are woken: a lost ring would take half a second each. */
static void a_ring(void **state)
{
	ebbdsm_t *const dsm[PROCESSES] = { join(at), join(world.tcp), join(world.local) };
	ebbdsm_t *const threads[PROCESSES] = { dsm[1], dsm[1], dsm[1] };
	uint64_t value = 0;

	for (int i = 0; i < 2; i++) {
		assert_int_equal(ebbdsm_channel_new(dsm[0], 1, 8, &shared.channel), 0);
		assert_int_equal(ebbdsm_send(dsm[0], &shared.channel, &value, 8, -1), 0);
		run_all(i ? threads : dsm, passes_on);
	}
	for (int i = 0; i < PROCESSES; i++)
		ebbdsm_close(dsm[i]);
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

static void *receives_one(void *data)
{
	uint64_t value;
	size_t size;

	return (void *)(intptr_t)ebbdsm_receive(data, &shared.channel, &value, 8, &size, -1);
}

static void *sends_one(void *data)
{
	const uint64_t value = 7;

	return (void *)(intptr_t)ebbdsm_send(data, &shared.channel, &value, 8, -1);
}

static void *closes(void *data)
{
	return (void *)(intptr_t)ebbdsm_channel_close(data, &shared.channel);
}

/* Ends a wait of a thread of @dsm. */
static void wake_beside(ebbdsm_t *dsm, ebbdsm_t *other, void *(*wakes)(void *))
{
	usleep(50000);
	assert_null(wakes(dsm));
}

/* ... by a word from another process, which a thread that settles gets. */
static void wake_by_settling(ebbdsm_t *dsm, ebbdsm_t *other, void *(*wakes)(void *))
{
	int before = __atomic_load_n(&doorbell.consumed, __ATOMIC_ACQUIRE);

	for (int i = 0; i < 60000 && !__atomic_load_n(&doorbell.listens, __ATOMIC_ACQUIRE); i++)
		usleep(1000);
	assert_null(wakes(other));
	for (int i = 0; i < 60000 && __atomic_load_n(&doorbell.consumed, __ATOMIC_ACQUIRE) ==
				     before; i++)
		assert_int_equal(ebbdsm_settle(dsm), 0);
	__atomic_store_n(&doorbell.holds, false, __ATOMIC_RELEASE);
}

/* Half of the time after which a thread looks that was not woken, ms. */
enum { SOON = 250, TRIES = 8 };

/* Returns the shortest time from the wake-up to the end of the wait, of some. */
static int64_t best_wake_up(ebbdsm_t *a, ebbdsm_t *b, void *(*waits)(void *),
			    void *(*wakes)(void *), bool settles)
{
	int64_t best = INT64_MAX;

	for (int i = 0; i < TRIES && best >= SOON; i++) {
		int64_t began;
		pthread_t thread;

		assert_int_equal(ebbdsm_channel_new(a, 1, 8, &shared.channel), 0);
		if (waits == sends_one)
			assert_null(sends_one(a));
		doorbell.listens = 0;
		doorbell.holds = settles;
		assert_int_equal(pthread_create(&thread, NULL, waits, a), 0);
		(settles ? wake_by_settling : wake_beside)(a, b, wakes);
		began = now_ms();
		assert_int_equal(pthread_join(thread, NULL), 0);
		best = now_ms() - began < best ? now_ms() - began : best;
		assert_int_equal(ebbdsm_channel_drop(a, &shared.channel), 0);
	}
	return best;
}

/* A thread sleeps until a word comes, also if another thread of its process is the reason. */
static void woken_beside(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);

	assert_in_range(best_wake_up(a, b, receives_one, sends_one, false), 0, SOON - 1);
	assert_in_range(best_wake_up(a, b, sends_one, receives_one, false), 0, SOON - 1);
	assert_in_range(best_wake_up(a, b, receives_one, closes, false), 0, SOON - 1);
	assert_in_range(best_wake_up(a, b, receives_one, sends_one, true), 0, SOON - 1);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

static void *leaves_again(void *data)
{
	while (!__atomic_load_n(&crowd.ends, __ATOMIC_RELAXED)) {
		int r = ebbdsm_leave(data, shared.channel.at, shared.channel.stamp);

		if (r && r != -EBUSY)
			__atomic_add_fetch(&shared.wrong, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

/* A call that begins while another thread leaves the channel makes the process a user again. */
static void left_beside_calls(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	pthread_t thread;

	memset(&crowd, 0, sizeof(crowd));
	shared.wrong = 0;
	assert_int_equal(ebbdsm_channel_new(a, 2, 8, &shared.channel), 0);
	assert_int_equal(pthread_create(&thread, NULL, leaves_again, b), 0);
	for (uint64_t i = 0; i < TURNS; i++) {
		uint64_t value = i;
		size_t size;

		assert_int_equal(ebbdsm_send(b, &shared.channel, &value, 8, -1), 0);
		assert_int_equal(ebbdsm_send(a, &shared.channel, &value, 8, -1), 0);
		assert_int_equal(ebbdsm_receive(b, &shared.channel, &value, 8, &size, -1), 0);
		assert_int_equal(value, i);
		assert_int_equal(ebbdsm_receive(a, &shared.channel, &value, 8, &size, -1), 0);
		assert_int_equal(value, i);
	}
	__atomic_store_n(&crowd.ends, 1, __ATOMIC_RELAXED);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_int_equal(shared.wrong, 0);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

/* A receiver without room for a message wakes another one, and does not wait any more. */
static void passed_on(void **state)
{
	uint64_t content[16], message = 1;
	struct channel_call call = { .content = content, .words = (uint32_t)channel_words(2, 8),
				     .side = CHANNEL_RECEIVES, .waits = 1 };
	size_t size;

	channel_make(content, 2, 8);
	for (call.user = 0; call.user < 3; call.user++)
		assert_int_equal(channel_receive(&call, &message, 8, &size), -EAGAIN);
	call = (struct channel_call){ .content = content, .words = call.words, .user = 4,
				      .side = CHANNEL_SENDS };
	assert_int_equal(channel_send(&call, &message, 8), 0);
	assert_int_equal(call.rings, 1);
	for (uint32_t user = 0; user < 3; user++) {
		call = (struct channel_call){ .content = content, .words = call.words,
					      .user = user, .side = CHANNEL_RECEIVES };
		assert_int_equal(channel_receive(&call, &message, 7, &size), -EMSGSIZE);
		assert_int_equal(call.rings, user < 2 ? 2u << user : 0);
	}
}

/* Senders that wait, always: the one that receives wakes each of them in a round. */
static void woken_by_turns(void **state)
{
	uint64_t content[16], message = 1;
	const struct channel_call any = { .content = content, .waits = 1,
					  .words = (uint32_t)channel_words(1, 8) };
	uint32_t sends[4] = { 0 };
	size_t size;

	channel_make(content, 1, 8);
	for (uint32_t user = 0; user < 4; user++) {
		struct channel_call call = any;

		call.user = user;
		call.side = CHANNEL_SENDS;
		assert_int_equal(channel_send(&call, &message, 8), user ? -EAGAIN : 0);
	}
	for (int i = 0; i < 30; i++) {
		struct channel_call receiver = any, sender = any;

		receiver.side = CHANNEL_RECEIVES;
		assert_int_equal(channel_receive(&receiver, &message, 8, &size), 0);
		sender.user = (uint32_t)__builtin_ctz(receiver.rings);
		sender.side = CHANNEL_SENDS;
		assert_int_equal(receiver.rings, 1u << sender.user);
		assert_int_equal(channel_send(&sender, &message, 8), 0);
		/* Its next message. */
		assert_int_equal(channel_send(&sender, &message, 8), -EAGAIN);
		sends[sender.user]++;
	}
	for (uint32_t user = 1; user < 4; user++)
		assert_int_equal(sends[user], 10);
}

struct sender {
	ebbdsm_t *dsm;
	int i;
};

static void *sends_again(void *data)
{
	const struct sender *s = data;
	uint64_t value = (uint64_t)s->i;
	int r = 0;

	while (!r) {
		r = ebbdsm_send(s->dsm, &shared.channel, &value, 8, -1);
		__atomic_add_fetch(&crowd.turns[s->i], !r, __ATOMIC_RELAXED);
	}
	assert_int_equal(r, -EPIPE);
	return NULL;
}

/* Threads that wait for one channel, of one process or of two, get it by turns. */
static void senders_take_turns(void **state)
{
	enum { MESSAGES = 100 };
	ebbdsm_t *a = join(at), *b = join(world.tcp);

	for (int processes = 1; processes <= 2; processes++) {
		struct sender s[2] = { { a, 0 }, { processes == 1 ? a : b, 1 } };
		uint64_t value;
		pthread_t thread[2];
		size_t size;

		memset(&crowd, 0, sizeof(crowd));
		crowd.is_late = true;
		assert_int_equal(ebbdsm_channel_new(a, 1, 8, &shared.channel), 0);
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_create(&thread[i], NULL, sends_again, &s[i]), 0);
		while (!crowd.turns[0] && !crowd.turns[1])
			usleep(1000);
		usleep(20000);
		for (int i = 0; i < MESSAGES; i++) {
			assert_int_equal(ebbdsm_receive(b, &shared.channel, &value, 8, &size, -1),
					 0);
			usleep(5000);
		}
		print_message("%d process(es): %d and %d messages\n", processes, crowd.turns[0],
			      crowd.turns[1]);
		assert_in_range(crowd.turns[0], MESSAGES / 4, MESSAGES);
		assert_in_range(crowd.turns[1], MESSAGES / 4, MESSAGES);
		assert_int_equal(ebbdsm_channel_close(a, &shared.channel), 0);
		for (int i = 0; i < 2; i++)
			assert_int_equal(pthread_join(thread[i], NULL), 0);
		assert_int_equal(ebbdsm_channel_drop(a, &shared.channel), 0);
	}
	crowd.is_late = false;
	ebbdsm_close(b);
	ebbdsm_close(a);
}

static void boxes_travel(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_channel channel;
	struct ebbdsm_words words;
	struct ebbdsm_box box = { 0 }, got = { 0 };
	const char *p;

	assert_int_equal(ebbdsm_channel_new(a, 1, 16, &channel), 0);
	assert_int_equal(ebbdsm_new(a, "content", 8, &box), 0);
	assert_int_equal(ebbdsm_send_box(a, &channel, &box, 0), 0);
	assert_int_equal(box.at, 0);
	assert_int_equal(ebbdsm_receive_box(b, &channel, &got, 0), 0);
	p = ebbdsm_borrow(b, &got);
	assert_string_equal(p, "content");
	assert_int_equal(ebbdsm_return(b, &got, p), 0);
	/* Full: the box stays. */
	assert_int_equal(ebbdsm_new(a, "another", 8, &box), 0);
	assert_int_equal(ebbdsm_send(a, &channel, "no box", 7, 0), 0);
	assert_int_equal(ebbdsm_send_box(a, &channel, &box, 10), -ETIMEDOUT);
	p = ebbdsm_borrow(a, &box);
	assert_string_equal(p, "another");
	assert_int_equal(ebbdsm_return(a, &box, p), 0);
	assert_int_equal(ebbdsm_receive_box(b, &channel, &got, 0), -EINVAL);
	/* The sender dies. */
	assert_int_equal(ebbdsm_words_new(b, NULL, 1, &words), 0);
	assert_int_equal(ebbdsm_send_box(b, &channel, &got, 0), 0);
	ebbdsm_close(b);
	got = (struct ebbdsm_box){ 0 };
	b = join(world.local);
	use_all(b);
	ebbdsm_close(b);
	becomes_dead(a, &words);
	assert_int_equal(ebbdsm_receive_box(a, &channel, &got, 0), -EOWNERDEAD);
	ebbdsm_close(a);
}

/* A box for which there is no memory is not lost: a later call gets it. */
static void box_without_memory(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_channel channel;
	struct ebbdsm_box box = { 0 }, got = { 0 }, spare = { 0 };
	uint8_t content[100];

	assert_int_equal(ebbdsm_channel_new(a, 3, 16, &channel), 0);
	for (uint8_t i = 1; i <= 3; i++) {
		memset(content, i, sizeof(content));
		assert_int_equal(ebbdsm_new(a, content, sizeof(content), &box), 0);
		assert_int_equal(ebbdsm_send_box(a, &channel, &box, 0), 0);
	}
	assert_int_equal(ebbdsm_new(b, NULL, 65504, &spare), 0);
	use_all(b);
	assert_int_equal(ebbdsm_receive_box(b, &channel, &got, 0), -ENOSPC);
	assert_int_equal(ebbdsm_receive_box(b, &channel, &got, 0), -ENOSPC);
	assert_int_equal(got.stamp, 0);
	assert_int_equal(ebbdsm_drop(b, &spare), 0);
	for (uint8_t i = 1; i <= 3; i++) {
		const uint8_t *p;

		assert_int_equal(ebbdsm_receive_box(b, &channel, &got, 0), 0);
		p = ebbdsm_borrow(b, &got);
		assert_int_equal(*p, i);
		assert_int_equal(ebbdsm_return(b, &got, p), 0);
		got = (struct ebbdsm_box){ 0 };
	}
	assert_int_equal(ebbdsm_receive_box(b, &channel, &got, 0), -EAGAIN);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

/* --- shared ownership ------------------------------------------------------------- */

static void arcs(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp), *c = join(world.local);
	const uint32_t *live = &far_find(world.l->far, "", "p")->in[EBB_FAR_LIVE];
	struct ebbdsm_box box = { 0 };
	struct ebbdsm_arc arc;
	uint64_t before;
	const char *p;

	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), -ESTALE);
	assert_int_equal(ebbdsm_new(a, "shared", 7, &box), 0);
	p = ebbdsm_borrow(a, &box);
	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), -EBUSY);
	assert_int_equal(ebbdsm_return(a, &box, p), 0);
	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), 0);
	assert_int_equal(box.at, 0);
	before = round_trips(b);
	assert_int_equal(ebbdsm_clone(b, &arc), 0);
	assert_int_equal(round_trips(b) - before, 5);
	assert_int_equal(ebbdsm_clone(b, &arc), 0);
	assert_int_equal(round_trips(b) - before, 5);
	assert_int_equal(ebbdsm_clone(c, &arc), 0);
	p = ebbdsm_borrow_view(b, &arc.value, NULL);
	assert_string_equal(p, "shared");
	assert_int_equal(ebbdsm_return_view(b, &arc.value, p), 0);
	assert_int_equal(ebbdsm_unclone(a, &arc), 0);
	assert_int_equal(ebbdsm_unclone(a, &arc), -EINVAL);
	assert_int_equal(places(a), 2);
	assert_int_equal(ebbdsm_clone(a, &arc), 0);
	assert_int_equal(ebbdsm_unclone(a, &arc), 0);
	assert_int_equal(ebbdsm_unclone(b, &arc), 0);
	/* A dead one's reference ends with it, which the donor learns. */
	ebbdsm_close(c);
	for (int i = 0; i < 60000 && __atomic_load_n(live, __ATOMIC_RELAXED) > 2; i++)
		usleep(1000);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(places(a), 2);
		usleep(i < 5 ? 1000 : 0);
	}
	assert_int_equal(ebbdsm_unclone(b, &arc), 0);
	assert_int_equal(places(a), 0);
	assert_int_equal(ebbdsm_clone(b, &arc), -ESTALE);
	assert_int_equal(ebbdsm_clone(a, &arc), -ESTALE);
	/* The maker dies. */
	assert_int_equal(ebbdsm_new(a, "shared", 7, &box), 0);
	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), 0);
	assert_int_equal(ebbdsm_clone(b, &arc), 0);
	ebbdsm_close(a);
	a = join(world.local);
	use_all(a);
	ebbdsm_close(a);
	becomes_dead(b, &(struct ebbdsm_words){ arc.at, arc.stamp });
	assert_int_equal(ebbdsm_unclone(b, &arc), -EOWNERDEAD);
	ebbdsm_close(b);
}

/* Waits until the donor has @n members: a dead one is one until the donor learns of it. */
static void has_members(uint32_t n)
{
	const uint32_t *live = &far_find(world.l->far, "", "p")->in[EBB_FAR_LIVE];

	for (int i = 0; i < 60000 && __atomic_load_n(live, __ATOMIC_RELAXED) > n; i++)
		usleep(1000);
	assert_int_equal(__atomic_load_n(live, __ATOMIC_RELAXED), n);
}

/* Dead users give way to others while the maker has a reference, and live ones do not. */
static void dead_references(void **state)
{
	ebbdsm_t *a = join(at), *all[EBBDSM_USERS];
	struct ebbdsm_box box = { 0 };
	struct ebbdsm_arc arc;

	assert_int_equal(ebbdsm_new(a, "shared", 7, &box), 0);
	assert_int_equal(ebbdsm_arc_new(a, &box, &arc), 0);
	for (uint32_t i = 0; i < EBBDSM_USERS + 8; i++) {
		ebbdsm_t *b = join(world.tcp);

		assert_int_equal(ebbdsm_clone(b, &arc), 0);
		ebbdsm_close(b);
		has_members(1);
		assert_int_equal(ebbdsm_settle(a), 0);
	}
	for (uint32_t i = 0; i < EBBDSM_USERS; i++) {
		all[i] = join(world.tcp);
		assert_int_equal(ebbdsm_clone(all[i], &arc), i < EBBDSM_USERS - 1 ? 0 : -EUSERS);
	}
	assert_int_equal(ebbdsm_unclone(all[0], &arc), 0);
	assert_int_equal(ebbdsm_clone(all[EBBDSM_USERS - 1], &arc), 0);
	assert_int_equal(ebbdsm_unclone(a, &arc), 0);
	for (uint32_t i = 0; i < EBBDSM_USERS; i++)
		ebbdsm_close(all[i]);
	has_members(1);
	assert_int_equal(places(a), 0);
	ebbdsm_close(a);
}

enum { ARCS = 8, SETTLES = 30 };

static void *settles_often(void *data)
{
	for (int i = 0; i < SETTLES; i++)
		if (ebbdsm_settle(data))
			__atomic_add_fetch(&shared.wrong, 1, __ATOMIC_RELAXED);
	return NULL;
}

/* Threads that settle look at each object once in a call. */
static void threads_settle(void **state)
{
	ebbdsm_t *a = join(world.tcp), *b = join(world.tcp);
	ebbdsm_t *const threads[PROCESSES] = { a, a, a };
	struct ebbdsm_arc arc[ARCS];
	uint64_t before, once;

	for (int i = 0; i < ARCS; i++) {
		struct ebbdsm_box box = { 0 };

		assert_int_equal(ebbdsm_new(a, NULL, 8, &box), 0);
		assert_int_equal(ebbdsm_arc_new(a, &box, &arc[i]), 0);
		assert_int_equal(ebbdsm_clone(b, &arc[i]), 0);
		assert_int_equal(ebbdsm_unclone(a, &arc[i]), 0);
	}
	before = round_trips(a);
	assert_int_equal(ebbdsm_settle(a), 0);
	once = round_trips(a) - before;
	assert_true(once >= ARCS);
	before = round_trips(a);
	run_all(threads, settles_often);
	assert_true(round_trips(a) - before <= once * PROCESSES * SETTLES);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

/* --- groups ----------------------------------------------------------------------- */

static void groups(void **state)
{
	ebbdsm_t *a = join(at), *b = join(world.tcp);
	struct ebbdsm_box box = { 0 };
	struct ebbdsm_view view;
	uint32_t list = 0, n = 0;
	uint64_t before, sum = 0;
	size_t size, bytes;
	void *g;

	assert_int_equal(ebbdsm_group_new(a, 31, &box), -EINVAL);
	assert_int_equal(ebbdsm_group_new(a, 4000, &box), 0);
	g = ebbdsm_borrow_mut(a, &box);
	assert_int_equal(ebbdsm_group_add(g, 4000, 0), 0);
	assert_int_equal(ebbdsm_group_add(g, 4000, 4000), 0);
	/* A list; links are numbers. */
	for (uint32_t i = 1;; i++) {
		uint32_t number = ebbdsm_group_add(g, 4000, 20), *node;

		if (!number)
			break;
		node = ebbdsm_member_mut(g, 4000, number, &bytes);
		assert_int_equal(bytes, 20);
		assert_int_equal((uintptr_t)node % 16, 0);
		node[0] = list;
		node[1] = i;
		list = number;
		n = i;
	}
	assert_int_equal(n, (4000 - 16) / 48);
	assert_int_equal(ebbdsm_return_mut(a, &box, g), 0);
	/* One read brings them all. */
	view = ebbdsm_lend(&box);
	before = round_trips(b);
	g = (void *)ebbdsm_borrow_view(b, &view, &size);
	assert_int_equal(size, 4000);
	for (uint32_t number = list; number;) {
		const uint32_t *node = ebbdsm_member(g, size, number, NULL);

		sum += node[1];
		number = node[0];
	}
	assert_int_equal(sum, n * (n + 1) / 2);
	assert_int_equal(round_trips(b) - before, 1);
	assert_int_equal(ebbdsm_return_view(b, &view, g), 0);
	ebbdsm_close(b);
	ebbdsm_close(a);
}

struct link;
struct content;
static bool link_fails;

int __real_link_run(struct link *l, struct dsm_op *op, struct content *content);
int __wrap_link_run(struct link *l, struct dsm_op *op, struct content *content);

int __wrap_link_run(struct link *l, struct dsm_op *op, struct content *content)
{
	return link_fails ? -EIO : __real_link_run(l, op, content);
}

/* A group that could not be made is no box. */
static void no_group(void **state)
{
	ebbdsm_t *a = join(at);
	struct ebbdsm_box box = { 0 };
	int r;

	link_fails = true;
	r = ebbdsm_group_new(a, 100, &box);
	link_fails = false;
	assert_int_equal(r, -EIO);
	assert_int_equal(box.stamp, 0);
	assert_int_equal(places(a), 0);
	ebbdsm_close(a);
}

/* Members of random sizes come and go; each keeps its content, and no byte beside the group. */
static void members_come_and_go(void **state)
{
	enum { SIZE = 3000, MEMBERS = 100 };
	_Alignas(16) uint8_t whole[SIZE + 16];
	ebbdsm_t *a = join(at);
	struct ebbdsm_box box = { 0 };
	struct {
		uint32_t number;
		size_t bytes;
	} all[MEMBERS] = { 0 };
	void *g;
	size_t bytes;

	assert_int_equal(ebbdsm_group_new(a, SIZE, &box), 0);
	g = ebbdsm_borrow_mut(a, &box);
	memcpy(whole, g, SIZE);
	assert_int_equal(ebbdsm_return_mut(a, &box, g), 0);
	ebbdsm_close(a);
	memset(whole + SIZE, 0x5a, 16);
	srand(1);
	for (int turn = 0; turn < 20000; turn++) {
		int i = rand() % MEMBERS, n = 0;
		uint8_t *m;

		if (all[i].number) {
			m = ebbdsm_member_mut(whole, SIZE, all[i].number, &bytes);
			assert_non_null(m);
			assert_int_equal(bytes, all[i].bytes);
			for (size_t k = 0; k < bytes; k++)
				assert_int_equal(m[k], i);
			assert_int_equal(ebbdsm_group_remove(whole, SIZE, all[i].number), 0);
			assert_int_equal(ebbdsm_group_remove(whole, SIZE, all[i].number), -EINVAL);
			assert_null(ebbdsm_member(whole, SIZE, all[i].number, NULL));
			all[i].number = 0;
		} else {
			all[i].bytes = 1 + (size_t)(rand() % 90);
			all[i].number = ebbdsm_group_add(whole, SIZE, all[i].bytes);
			m = ebbdsm_member_mut(whole, SIZE, all[i].number, NULL);
			for (size_t k = 0; m && k < all[i].bytes; k++) {
				assert_int_equal(m[k], 0);
				m[k] = (uint8_t)i;
			}
		}
		for (uint32_t next = 0; (next = ebbdsm_next_member(whole, SIZE, next));)
			n++;
		for (i = 0; i < MEMBERS; i++)
			n -= all[i].number != 0;
		assert_int_equal(n, 0);
	}
	/* All room is one again. */
	for (int i = 0; i < MEMBERS; i++)
		if (all[i].number)
			assert_int_equal(ebbdsm_group_remove(whole, SIZE, all[i].number), 0);
	assert_int_equal(ebbdsm_group_add(whole, SIZE, SIZE - SIZE % 16 - 32), 1);
	/* Whatever it holds. */
	for (int turn = 0; turn < 20000; turn++) {
		whole[rand() % SIZE] = (uint8_t)rand();
		ebbdsm_member(whole, SIZE, (uint32_t)rand() % SIZE, &bytes);
		ebbdsm_next_member(whole, SIZE, (uint32_t)rand() % 4);
		ebbdsm_group_add(whole, SIZE, (size_t)rand() % 200);
		ebbdsm_group_remove(whole, SIZE, (uint32_t)rand() % 200);
		if (turn % 20 == 0) {
			memset(whole, 0, SIZE);
			memcpy(whole, "puorg", 5);
			whole[8] = (uint8_t)(rand() % 190);
		}
	}
	for (int k = 0; k < 16; k++)
		assert_int_equal(whole[SIZE + k], 0x5a);
}

#define BY_BOTH(test)                                                                    \
	{ #test " by TCP", test, by_tcp, end, NULL }, { #test " mapped", test, by_mapping, end, NULL }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_BOTH(atomics),
		BY_BOTH(no_add_is_lost),
		BY_BOTH(old_names_change_nothing),
		BY_BOTH(mutexes),
		BY_BOTH(words_of_a_mutex),
		BY_BOTH(not_locked_here),
		BY_BOTH(ends_without_memory),
		BY_BOTH(one_at_a_time),
		cmocka_unit_test(turns),
		BY_BOTH(threads_take_turns),
		BY_BOTH(dead_holder),
		BY_BOTH(many_users),
		BY_BOTH(channels),
		BY_BOTH(lonely),
		BY_BOTH(a_ring),
		BY_BOTH(woken_beside),
		cmocka_unit_test(passed_on),
		cmocka_unit_test(woken_by_turns),
		BY_BOTH(senders_take_turns),
		BY_BOTH(left_beside_calls),
		BY_BOTH(boxes_travel),
		BY_BOTH(box_without_memory),
		BY_BOTH(arcs),
		BY_BOTH(dead_references),
		cmocka_unit_test_setup_teardown(threads_settle, by_tcp, end),
		BY_BOTH(groups),
		cmocka_unit_test_setup_teardown(no_group, by_tcp, end),
		cmocka_unit_test_setup_teardown(members_come_and_go, by_mapping, end),
	};

	return cmocka_run_group_tests_name("libebbdsm sync", tests, NULL, NULL);
}
