// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Mutexes and the objects that they guard. */
#include <stdlib.h>
#include <string.h>

#include "cell.h"

int ebbdsm_mutex_new(ebbdsm_t *dsm, const void *content, size_t size, struct ebbdsm_mutex *mutex)
{
	uint32_t n = (uint32_t)(SYNC_CONTENT + (size + 7) / 8);
	uint64_t *words;
	int r;

	if (!size || size > EBBDSM_GUARDED_MOST)
		return -EINVAL;
	words = calloc(n, sizeof(*words));
	if (!words)
		return -ENOMEM;
	if (content)
		memcpy(&words[SYNC_CONTENT], content, size);
	r = dsm_enter(dsm);
	if (!r)
		r = dsm_leave(dsm, cell_make(dsm, CELL_MUTEX, words, n, &mutex->at,
					     &mutex->stamp));
	free(words);
	return r;
}

int ebbdsm_mutex_drop(ebbdsm_t *dsm, struct ebbdsm_mutex *mutex)
{
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_drop(dsm, mutex->at, mutex->stamp);
	if (!r)
		*mutex = (struct ebbdsm_mutex){ 0 };
	return dsm_leave(dsm, r);
}

/* Locks, with the turn. */
static int lock(ebbdsm_t *dsm, struct cell *c, int64_t until, bool tries)
{
	struct sync_op op;
	int r = cell_join(dsm, c);

	if (r)
		return r;
	sync_lock(&op, c->me, c->user, c->state, tries);
	dsm_leave(dsm, 0);
	r = cell_run(c, &op, until);
	dsm_enter(dsm);
	c->state = op.word;
	return r;
}

int ebbdsm_lock(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex, int timeout_ms, void **content)
{
	int64_t until = cell_until(timeout_ms);
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_begin(dsm, CELL_MUTEX, mutex->at, mutex->stamp, &c);
	if (r)
		return dsm_leave(dsm, r);
	r = cell_turn(dsm, &c->work, until);
	if (r) {
		cell_end(dsm, c);
		return dsm_leave(dsm, timeout_ms ? -ETIMEDOUT : r);
	}
	r = lock(dsm, c, until, !timeout_ms);
	if (r && r != -EOWNERDEAD) {
		cell_ended(c, r);
		cell_pass(dsm, &c->work);
		cell_end(dsm, c);
		return dsm_leave(dsm, r);
	}
	c->locked = true;
	c->damaged = r != 0;
	c->repaired = false;
	memcpy(c->content, c->before, (c->words - SYNC_CONTENT) * sizeof(*c->content));
	*content = c->content;
	/* The call lasts until the unlock. */
	return dsm_leave(dsm, r);
}

/* Sets *@c to the mutex, which this process has locked. */
static int locked(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex, struct cell **c)
{
	*c = cell_find(dsm, mutex->at, mutex->stamp);
	return *c && (*c)->locked ? 0 : -EINVAL;
}

int ebbdsm_consistent(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex)
{
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = locked(dsm, mutex, &c);
	if (!r && !c->damaged)
		r = -EINVAL;
	if (!r)
		c->repaired = true;
	return dsm_leave(dsm, r);
}

int ebbdsm_unlock(ebbdsm_t *dsm, const struct ebbdsm_mutex *mutex, void *content)
{
	struct sync_op op;
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = locked(dsm, mutex, &c);
	if (!r && content != c->content)
		r = -EINVAL;
	if (r)
		return dsm_leave(dsm, r);
	c->locked = false;
	sync_unlock(&op, c->me, c->user, c->state, c->repaired);
	dsm_leave(dsm, 0);
	r = cell_run(c, &op, INT64_MAX);
	dsm_enter(dsm);
	c->state = op.word;
	cell_ended(c, r);
	cell_pass(dsm, &c->work);
	cell_end(dsm, c);
	return dsm_leave(dsm, r);
}

int ebbdsm_leave(ebbdsm_t *dsm, uint64_t at, uint64_t stamp)
{
	struct sync_op op;
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	c = cell_find(dsm, at, stamp);
	if (!c || !c->joined || c->references)
		return dsm_leave(dsm, c && c->references ? -EBUSY : 0);
	if (c->calls)
		return dsm_leave(dsm, -EBUSY);
	c->calls++;
	/* Until the end: a call that begins meanwhile makes the process a user again. */
	cell_turn(dsm, &c->work, INT64_MAX);
	r = c->kind == CELL_CHANNEL ? channel_leave(dsm, c) : 0;
	if (!r) {
		sync_leave(&op, c->me, c->user);
		dsm_leave(dsm, 0);
		r = cell_run(c, &op, INT64_MAX);
		dsm_enter(dsm);
		c->joined = r != 0;
		cell_ended(c, r);
	}
	cell_pass(dsm, &c->work);
	cell_end(dsm, c);
	return dsm_leave(dsm, r);
}
