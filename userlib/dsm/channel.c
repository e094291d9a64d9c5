// SPDX-License-Identifier: LGPL-2.1-or-later OR BSD-2-Clause
/* Channels: a queue that a mutex guards, and calls that sleep outside of that. */
#include <stdlib.h>
#include <string.h>

#include "cell.h"
#include "channel_step.h"

#define LOOK_MS 500

int ebbdsm_channel_new(ebbdsm_t *dsm, uint32_t capacity, size_t size,
		       struct ebbdsm_channel *channel)
{
	uint64_t n = SYNC_CONTENT, *words;
	int r;

	if (!capacity || !size || size > EBBDSM_GUARDED_MOST ||
	    capacity > EBBDSM_GUARDED_MOST / (((size + 7) & ~(size_t)7) + 8))
		return -EINVAL;
	n += channel_words(capacity, size);
	words = calloc(n, sizeof(*words));
	if (!words)
		return -ENOMEM;
	channel_make(&words[SYNC_CONTENT], capacity, (uint32_t)size);
	r = dsm_enter(dsm);
	if (!r)
		r = dsm_leave(dsm, cell_make(dsm, CELL_CHANNEL, words, (uint32_t)n, &channel->at,
					     &channel->stamp));
	free(words);
	return r;
}

int ebbdsm_channel_drop(ebbdsm_t *dsm, struct ebbdsm_channel *channel)
{
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_drop(dsm, channel->at, channel->stamp);
	if (!r)
		*channel = (struct ebbdsm_channel){ 0 };
	return dsm_leave(dsm, r);
}

/* --- one visit -------------------------------------------------------------------- */

/* What a call does while it has the channel. */
struct visit {
	enum { SEND, RECEIVE, CLOSE, LEAVE } what;
	enum channel_side side;
	const void *from;
	void *to;
	size_t room, size;
	bool waits, last; /* wants to be woken; does not wait any longer */
	int64_t look;     /* when to ask which of them are alive */
	uint32_t gone;    /* users to forget, if none has joined since .state */
	uint64_t state;
	uint32_t others;  /* set: users that the call depends on */
	uint64_t entries[SYNC_CONTENT]; /* set: their entry words */
};

/* Changes the content; returns the result of the call. */
static int change(struct cell *c, struct visit *v, struct channel_call *call)
{
	int r = 0;

	if (!c->entered)
		channel_enter(call);
	c->entered = v->what != LEAVE;
	if (v->gone)
		channel_forget(call, v->gone);
	if (v->what == SEND)
		r = channel_send(call, v->from, (uint32_t)v->size);
	else if (v->what == RECEIVE)
		r = channel_receive(call, v->to, v->room, &v->size);
	else if (v->what == CLOSE)
		channel_close(call);
	else
		channel_forget(call, 1u << c->user);
	if (r && !v->waits && !call->keeps)
		channel_withdraw(call);
	v->others = channel_others(call);
	return r;
}

/* With the turn, and without the lock of the handle: locks, changes, unlocks, wakes. */
static int visit(struct cell *c, struct visit *v)
{
	struct channel_call call;
	struct sync_op op;
	int r, result;

	sync_lock(&op, c->me, c->user, c->state, false);
	r = cell_run(c, &op, INT64_MAX);
	c->state = op.word;
	/* Its holder died: what it did is done, or not. */
	if (r && r != -EOWNERDEAD)
		return r;
	memcpy(c->content, c->before, (c->words - SYNC_CONTENT) * sizeof(*c->content));
	call = (struct channel_call){ .content = c->content, .words = c->words - SYNC_CONTENT,
				      .user = c->user, .side = v->side, .waits = v->waits,
				      .keeps = c->sleeps[v->side] > 1 };
	/* An entry may be another's by now. */
	if (c->state >> SYNC_VERSION_SHIFT != v->state >> SYNC_VERSION_SHIFT)
		v->gone = 0;
	result = channel_is_valid(c->content, call.words) ? change(c, v, &call) : -EINVAL;
	sync_unlock(&op, c->me, c->user, c->state, true);
	r = cell_run(c, &op, INT64_MAX);
	c->state = op.word;
	v->state = c->state;
	memcpy(v->entries, op.seen, sizeof(v->entries));
	for (; !r && call.rings; call.rings &= call.rings - 1)
		r = cell_ring(c->link, op.seen[SYNC_ENTRY + __builtin_ctz(call.rings)]);
	return r ?: result;
}

/* --- calls ------------------------------------------------------------------------ */

static int channel_error(int r)
{
	return r == -ENOTRECOVERABLE ? -EOWNERDEAD : r;
}

/* A visit with the turn; @rings: of the bell, before it. */
static int take_turn(ebbdsm_t *dsm, struct cell *c, struct visit *v, uint32_t *rings)
{
	int r;

	cell_turn(dsm, &c->work, INT64_MAX);
	r = cell_join(dsm, c);
	dsm_leave(dsm, 0);
	*rings = bell_rings(&c->link->bell);
	r = r ?: visit(c, v);
	dsm_enter(dsm);
	cell_ended(c, r);
	cell_pass(dsm, &c->work);
	return r;
}

/* Returns which of those that a sleeper depends on are dead, or a negative errno. */
static int64_t find_dead(const struct cell *c, const struct visit *v)
{
	uint32_t dead = 0;

	for (uint32_t left = v->others; left; left &= left - 1) {
		uint32_t user = (uint32_t)__builtin_ctz(left);
		int r = user == c->user ? 1 : cell_is_alive(c->link, v->entries[SYNC_ENTRY + user]);

		if (r < 0)
			return r;
		if (!r)
			dead |= 1u << user;
	}
	return dead;
}

/* Sleeps, without the lock.  Sets v->last or v->gone. */
static int sleep_on(struct cell *c, struct visit *v, uint32_t rings, int64_t until)
{
	int r = bell_wait(&c->link->bell, c->link->far, rings, v->look < until ? v->look : until);
	int64_t now = bell_now(), gone = 0;

	if (r)
		return link_error(r);
	v->last = now >= until;
	if (now >= v->look)
		gone = cell_check(c);
	if (!gone && (now >= v->look || v->last))
		gone = find_dead(c, v);
	if (now >= v->look)
		v->look = now + LOOK_MS;
	v->gone = gone > 0 ? (uint32_t)gone : 0;
	return gone < 0 ? (int)gone : 0;
}

static int call(ebbdsm_t *dsm, struct cell *c, struct visit *v, int timeout_ms, int64_t until)
{
	uint32_t rings;
	int r;

	v->waits = timeout_ms != 0;
	v->look = bell_now() + LOOK_MS;
	c->sleeps[v->side]++;
	for (;;) {
		r = take_turn(dsm, c, v, &rings);
		if (r != -EAGAIN || !timeout_ms || v->last)
			break;
		dsm_leave(dsm, 0);
		r = sleep_on(c, v, rings, until);
		dsm_enter(dsm);
		v->waits = !v->last;
		if (r)
			break;
	}
	c->sleeps[v->side]--;
	return r == -EAGAIN && timeout_ms ? -ETIMEDOUT : channel_error(r);
}

/*
 * As call(); of the threads that wait on a side, one does so for the process, and the others for
 * that: a ring wakes all, and one of them would always be the first.
 */
static int call_by_turns(ebbdsm_t *dsm, struct cell *c, struct visit *v, int timeout_ms)
{
	struct cell_turn *side = &c->sides[v->side];
	int64_t until = cell_until(timeout_ms);
	int r;

	if (!timeout_ms)
		return call(dsm, c, v, 0, until);
	if (cell_turn(dsm, side, until))
		return -ETIMEDOUT;
	r = call(dsm, c, v, timeout_ms, until);
	cell_pass(dsm, side);
	return r;
}

static int enter_call(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, struct visit *v,
		      int timeout_ms)
{
	struct cell *c;
	int r = dsm_enter(dsm);

	if (r)
		return r;
	r = cell_begin(dsm, CELL_CHANNEL, channel->at, channel->stamp, &c);
	if (r)
		return dsm_leave(dsm, r);
	r = call_by_turns(dsm, c, v, timeout_ms);
	cell_end(dsm, c);
	return dsm_leave(dsm, r);
}

int ebbdsm_send(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, const void *bytes, size_t size,
		int timeout_ms)
{
	struct visit v = { .what = SEND, .side = CHANNEL_SENDS, .from = bytes, .size = size };

	if (size > EBBDSM_GUARDED_MOST)
		return -EMSGSIZE;
	return enter_call(dsm, channel, &v, timeout_ms);
}

int ebbdsm_receive(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, void *bytes, size_t room,
		   size_t *size, int timeout_ms)
{
	struct visit v = { .what = RECEIVE, .side = CHANNEL_RECEIVES, .to = bytes, .room = room };
	int r = enter_call(dsm, channel, &v, timeout_ms);

	if (!r)
		*size = v.size;
	return r;
}

int ebbdsm_channel_close(ebbdsm_t *dsm, const struct ebbdsm_channel *channel)
{
	struct visit v = { .what = CLOSE };

	return enter_call(dsm, channel, &v, 0);
}

int channel_leave(ebbdsm_t *dsm, struct cell *c)
{
	struct visit v = { .what = LEAVE };
	int r;

	dsm_leave(dsm, 0);
	r = visit(c, &v);
	dsm_enter(dsm);
	cell_ended(c, r);
	return channel_error(r);
}

/* --- boxes ------------------------------------------------------------------------ */

int ebbdsm_send_box(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, struct ebbdsm_box *box,
		    int timeout_ms)
{
	struct ebbdsm_parcel parcel;
	int r = ebbdsm_give(dsm, box, &parcel), back;

	if (r)
		return r;
	r = ebbdsm_send(dsm, channel, &parcel, sizeof(parcel), timeout_ms);
	if (!r) {
		*box = (struct ebbdsm_box){ 0 };
		return 0;
	}
	back = ebbdsm_reclaim(dsm, box);
	return back && back != -ESTALE ? back : r;
}

/* Takes the oldest of those that were received before, or returns NULL. */
static struct received *received_before(ebbdsm_t *dsm, const struct ebbdsm_channel *channel)
{
	struct received **at, *found = NULL;

	if (dsm_enter(dsm))
		return NULL;
	for (at = &dsm->received; *at && !found;) {
		if ((*at)->at == channel->at && (*at)->stamp == channel->stamp) {
			found = *at;
			*at = found->next;
		} else {
			at = &(*at)->next;
		}
	}
	dsm_leave(dsm, 0);
	return found;
}

/* Receives one.  Its memory is there before: then no parcel is lost for want of it. */
static int receive_parcel(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, int timeout_ms,
			  struct received **got)
{
	struct received *p = calloc(1, sizeof(*p));
	size_t size;
	int r = p ? ebbdsm_receive(dsm, channel, &p->parcel, sizeof(p->parcel), &size,
				   timeout_ms) : -ENOMEM;

	if (!r && size == sizeof(p->parcel)) {
		p->at = channel->at;
		p->stamp = channel->stamp;
		*got = p;
		return 0;
	}
	free(p);
	return r && r != -EMSGSIZE ? r : -EINVAL;
}

static void keep_received(ebbdsm_t *dsm, struct received *p)
{
	struct received **at = &dsm->received;

	pthread_mutex_lock(&dsm->lock);
	while (*at)
		at = &(*at)->next;
	p->next = NULL;
	*at = p;
	dsm_leave(dsm, 0);
}

int ebbdsm_receive_box(ebbdsm_t *dsm, const struct ebbdsm_channel *channel, struct ebbdsm_box *box,
		       int timeout_ms)
{
	struct received *p = received_before(dsm, channel);
	int r = p ? 0 : receive_parcel(dsm, channel, timeout_ms, &p);

	if (r)
		return r;
	r = ebbdsm_accept(dsm, &p->parcel, box);
	if (r == -ENOSPC || r == -ENOBUFS || r == -ENOMEM)
		keep_received(dsm, p);
	else
		free(p);
	return r;
}
