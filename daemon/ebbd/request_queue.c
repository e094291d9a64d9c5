// SPDX-License-Identifier: GPL-2.0-or-later
#include <pthread.h>
#include <stdlib.h>

#include "common/clock.h"
#include "ebbd/request_queue.h"

struct request_queue {
	pthread_mutex_t lock;
	pthread_cond_t came;
	uint32_t first, n;
	bool ended;
	struct ebb_list_request item[REQUEST_QUEUE_MAX];
};

struct request_queue *request_queue_new(void)
{
	struct request_queue *q = calloc(1, sizeof(*q));
	pthread_condattr_t attr;

	if (!q)
		return NULL;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&q->came, &attr);
	pthread_condattr_destroy(&attr);
	pthread_mutex_init(&q->lock, NULL);
	return q;
}

void request_queue_free(struct request_queue **q)
{
	if (!*q)
		return;
	pthread_cond_destroy(&(*q)->came);
	pthread_mutex_destroy(&(*q)->lock);
	free(*q);
	*q = NULL;
}

bool request_queue_put(struct request_queue *q, const struct ebb_list_request *r)
{
	bool room;

	pthread_mutex_lock(&q->lock);
	room = q->n < REQUEST_QUEUE_MAX;
	if (room) {
		q->item[(q->first + q->n++) % REQUEST_QUEUE_MAX] = *r;
		/* With more than one in it, whoever takes is awake. */
		if (q->n == 1)
			pthread_cond_signal(&q->came);
	}
	pthread_mutex_unlock(&q->lock);
	return room;
}

enum request_got request_queue_take(struct request_queue *q, struct ebb_list_request *r, uint32_t ms)
{
	enum request_got got = REQUEST_NONE;
	struct timespec until = clock_in_ms(ms);
	int timed_out = 0;

	pthread_mutex_lock(&q->lock);
	while (!q->n && !q->ended && !timed_out)
		timed_out = pthread_cond_timedwait(&q->came, &q->lock, &until);
	if (q->ended) {
		got = REQUEST_END;
	} else if (q->n) {
		*r = q->item[q->first];
		q->first = (q->first + 1) % REQUEST_QUEUE_MAX;
		q->n--;
		got = REQUEST_GOT;
	}
	pthread_mutex_unlock(&q->lock);
	return got;
}

void request_queue_end(struct request_queue *q)
{
	pthread_mutex_lock(&q->lock);
	q->ended = true;
	pthread_cond_broadcast(&q->came);
	pthread_mutex_unlock(&q->lock);
}

uint32_t request_worker(uint32_t tgid, uint32_t workers)
{
	return (uint32_t)((tgid * 0x9e3779b97f4a7c15ULL) >> 32) % workers;
}
