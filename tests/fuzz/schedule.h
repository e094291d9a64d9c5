/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Threads one at a time, in an order that a seed decides, so that a bad one comes again.  What is
 * compiled with `-include tests/fuzz/schedule.h` may lose the processor at every atomic access,
 * lock, condition, sleep and look at the clock, and nowhere else; time is the schedule's own.
 *
 * Priorities as in Burckhardt et al., "A randomized scheduler with probabilistic guarantees of
 * finding bugs" (ASPLOS 2010): the thread with the highest runs, and at random points
 * that of the running one changes.  How far these are apart is the seed's choice, too.
 *
 * ThreadSanitizer sees the program's own locks alone, so that what they do not order is a race to
 * it although nothing ever runs at once.
 */
#ifndef SCHEDULE_H
#define SCHEDULE_H

#include <pthread.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

/* From here to the end the calling thread and those it starts are scheduled. */
void schedule_begin(uint64_t seed);
/* All others have been joined.  Returns a digest of the schedule. */
uint64_t schedule_end(void);

/* Here another thread may come first. */
void schedule_point(void);
int schedule_lock(pthread_mutex_t *mutex);
int schedule_trylock(pthread_mutex_t *mutex);
int schedule_unlock(pthread_mutex_t *mutex);
int schedule_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int schedule_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int schedule_signal(pthread_cond_t *cond);
int schedule_broadcast(pthread_cond_t *cond);
int schedule_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int schedule_join(pthread_t thread, void **result);
int schedule_sleep(const struct timespec *time, struct timespec *left);
int schedule_usleep(useconds_t us);
int schedule_clock(clockid_t clock, struct timespec *time);

#ifndef SCHEDULER
#define pthread_mutex_lock schedule_lock
#define pthread_mutex_trylock schedule_trylock
#define pthread_mutex_unlock schedule_unlock
#define pthread_cond_wait schedule_wait
#define pthread_cond_timedwait schedule_timedwait
#define pthread_cond_signal schedule_signal
#define pthread_cond_broadcast schedule_broadcast
#define pthread_create schedule_create
#define pthread_join schedule_join
#define nanosleep schedule_sleep
#define usleep schedule_usleep
#define clock_gettime schedule_clock

#define __atomic_load_n(...) (schedule_point(), __atomic_load_n(__VA_ARGS__))
#define __atomic_store_n(...) (schedule_point(), __atomic_store_n(__VA_ARGS__))
#define __atomic_exchange_n(...) (schedule_point(), __atomic_exchange_n(__VA_ARGS__))
#define __atomic_compare_exchange_n(...) \
	(schedule_point(), __atomic_compare_exchange_n(__VA_ARGS__))
#define __atomic_fetch_add(...) (schedule_point(), __atomic_fetch_add(__VA_ARGS__))
#define __atomic_add_fetch(...) (schedule_point(), __atomic_add_fetch(__VA_ARGS__))
#define __atomic_fetch_sub(...) (schedule_point(), __atomic_fetch_sub(__VA_ARGS__))
#define __atomic_fetch_or(...) (schedule_point(), __atomic_fetch_or(__VA_ARGS__))
#define __atomic_fetch_and(...) (schedule_point(), __atomic_fetch_and(__VA_ARGS__))
#endif

#endif
