// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
#include "bell.h"

#include <errno.h>
#include <time.h>

/* How long a thread listens at most, so that another one that has waited long enough can go. */
#define LISTEN_MS 1000

int64_t bell_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * (int64_t)1000 + t.tv_nsec / 1000000;
}

void bell_begin(struct bell *b)
{
	pthread_mutex_init(&b->lock, NULL);
	pthread_cond_init(&b->rung, NULL);
}

void bell_end(struct bell *b)
{
	pthread_cond_destroy(&b->rung);
	pthread_mutex_destroy(&b->lock);
}

bool bell_ring(struct bell *b)
{
	bool listens;

	pthread_mutex_lock(&b->lock);
	b->rings++;
	listens = b->listens;
	pthread_cond_broadcast(&b->rung);
	pthread_mutex_unlock(&b->lock);
	return listens;
}

uint32_t bell_rings(struct bell *b)
{
	uint32_t rings;

	pthread_mutex_lock(&b->lock);
	rings = b->rings;
	pthread_mutex_unlock(&b->lock);
	return rings;
}

/* With the lock held, which is given up meanwhile. */
static int listen_for_one(struct bell *b, ebbfar_t *far, int64_t left)
{
	uint32_t member;
	uint64_t word;
	int r;

	b->listens = true;
	pthread_mutex_unlock(&b->lock);
	r = ebbfar_wait(far, left < LISTEN_MS ? (int)left : LISTEN_MS, &member, &word);
	pthread_mutex_lock(&b->lock);
	b->listens = false;
	b->rings += !r;
	/* Also so that another thread listens, or learns that the handle has failed. */
	pthread_cond_broadcast(&b->rung);
	return r == -EAGAIN ? 0 : r;
}

int bell_wait(struct bell *b, ebbfar_t *far, uint32_t rings, int64_t until)
{
	int r = 0;

	pthread_mutex_lock(&b->lock);
	while (!r && b->rings == rings) {
		int64_t left = until - bell_now();
		const struct timespec end = { .tv_sec = until / 1000,
					      .tv_nsec = until % 1000 * 1000000 };

		if (left <= 0)
			break;
		if (!b->listens)
			r = listen_for_one(b, far, left);
		else
			pthread_cond_clockwait(&b->rung, &b->lock, CLOCK_MONOTONIC, &end);
	}
	pthread_mutex_unlock(&b->lock);
	return r;
}
