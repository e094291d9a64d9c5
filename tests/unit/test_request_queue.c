// SPDX-License-Identifier: GPL-2.0-or-later
/* Requests spread over the executor's workers: what belongs together stays in order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#undef fail
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "ebbd/executor.h"
#include "ebbd/request_queue.h"

#define WORKERS 4
#define PROCESSES 64
#define REQUESTS 20000

static struct ebb_list_request request(uint32_t tgid, uint64_t number)
{
	return (struct ebb_list_request){ .head = { .tgid = tgid, .first = number, .stride = 1 } };
}

static void first_in_first_out(void **unused)
{
	struct request_queue *q = request_queue_new();
	struct ebb_list_request r;

	/* Round the end of the ring several times. */
	for (uint64_t n = 0; n < 3 * REQUEST_QUEUE_MAX; n += 5) {
		for (uint64_t k = n; k < n + 5; k++) {
			r = request(1, k);
			assert_true(request_queue_put(q, &r));
		}
		for (uint64_t k = n; k < n + 5; k++) {
			assert_int_equal(request_queue_take(q, &r, 0), REQUEST_GOT);
			assert_int_equal(r.head.first, k);
		}
	}
	assert_int_equal(request_queue_take(q, &r, 1), REQUEST_NONE);
	request_queue_free(&q);
	assert_null(q);
}

/* The newest is refused: what is queued is older and is fetched first or not at all. */
static void full_is_said(void **unused)
{
	struct request_queue *q = request_queue_new();
	struct ebb_list_request r;

	for (uint64_t n = 0; n < REQUEST_QUEUE_MAX; n++) {
		r = request(1, n);
		assert_true(request_queue_put(q, &r));
	}
	r = request(1, 999999);
	assert_false(request_queue_put(q, &r));
	for (uint64_t n = 0; n < REQUEST_QUEUE_MAX; n++) {
		assert_int_equal(request_queue_take(q, &r, 0), REQUEST_GOT);
		assert_int_equal(r.head.first, n);
	}
	request_queue_free(&q);
}

struct worker_thread {
	struct request_queue *queue;
	uint32_t index;
	uint64_t taken, wrong;
	uint64_t next[PROCESSES];       /* the number expected of each process */
	pthread_t thread;
};

static void *work(void *data)
{
	struct worker_thread *w = data;
	struct ebb_list_request r;
	enum request_got got;

	while ((got = request_queue_take(w->queue, &r, 10)) != REQUEST_END) {
		if (got == REQUEST_NONE)
			continue;
		w->wrong += request_worker(r.head.tgid, WORKERS) != w->index;
		w->wrong += r.head.first != w->next[r.head.tgid]++;
		__atomic_fetch_add(&w->taken, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Each process' requests are carried out by one worker and in the order they were made. */
static void workers_keep_order(void **unused)
{
	static struct worker_thread w[WORKERS];
	uint64_t put[WORKERS] = { 0 }, number[PROCESSES] = { 0 };
	struct ebb_list_request r;

	for (uint32_t i = 0; i < WORKERS; i++) {
		w[i] = (struct worker_thread){ .queue = request_queue_new(), .index = i };
		assert_int_equal(pthread_create(&w[i].thread, NULL, work, &w[i]), 0);
	}
	for (int i = 0; i < REQUESTS; i++) {
		uint32_t tgid = (uint32_t)(i * 7919) % PROCESSES;
		uint32_t to = request_worker(tgid, WORKERS);

		r = request(tgid, number[tgid]++);
		while (!request_queue_put(w[to].queue, &r))
			usleep(100);
		put[to]++;
	}
	for (uint32_t i = 0; i < WORKERS; i++) {
		while (__atomic_load_n(&w[i].taken, __ATOMIC_ACQUIRE) < put[i])
			usleep(1000);
		request_queue_end(w[i].queue);
		pthread_join(w[i].thread, NULL);
		assert_int_equal(w[i].wrong, 0);
		assert_true(put[i] > 0);
		request_queue_free(&w[i].queue);
	}
}

/* Process ids are handed out one after another; they may not all fall to one worker. */
static void processes_are_spread(void **unused)
{
	for (uint32_t workers = 2; workers <= EXECUTOR_WORKERS_MAX; workers++) {
		for (uint32_t step = 1; step <= 8; step++) {
			uint32_t of[EXECUTOR_WORKERS_MAX] = { 0 };

			for (uint32_t i = 0; i < 1000; i++)
				of[request_worker(4000 + i * step, workers)]++;
			for (uint32_t i = 0; i < workers; i++) {
				assert_true(of[i] > 1000 / workers / 2);
				assert_true(of[i] < 1000 / workers * 2);
			}
		}
	}
	for (uint32_t tgid = 1; tgid < 100; tgid++)
		assert_int_equal(request_worker(tgid, 1), 0);
}

static void *end_later(void *data)
{
	usleep(50000);
	request_queue_end(data);
	return NULL;
}

static void an_end_wakes(void **unused)
{
	struct request_queue *q = request_queue_new();
	struct ebb_list_request r = request(1, 1);
	pthread_t t;

	assert_int_equal(pthread_create(&t, NULL, end_later, q), 0);
	assert_int_equal(request_queue_take(q, &r, 60000), REQUEST_END);
	pthread_join(t, NULL);
	/* What is left is not worth fetching. */
	assert_true(request_queue_put(q, &r));
	assert_int_equal(request_queue_take(q, &r, 0), REQUEST_END);
	request_queue_free(&q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(first_in_first_out),
		cmocka_unit_test(full_is_said),
		cmocka_unit_test(workers_keep_order),
		cmocka_unit_test(processes_are_spread),
		cmocka_unit_test(an_end_wakes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
