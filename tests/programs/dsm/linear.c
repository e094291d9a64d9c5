// SPDX-License-Identifier: GPL-2.0-or-later
#include "linear.h"

#include <stdlib.h>
#include <string.h>

/* An invocation or a response, in a list by time. */
struct event {
	uint64_t time;
	uint32_t op;
	struct event *response; /* of an invocation, NULL = pending; of a response, itself */
	struct event *prev, *next;
};

/* An operation that the order has, and the state before it. */
struct chosen {
	struct event *event;
	uint8_t before[LINEAR_STATE];
};

struct search {
	const struct linear_spec *spec;
	const struct linear_op *ops;
	struct event *events, head;
	struct chosen *order;
	uint32_t depth, most, configurations, size;
	uint64_t set[2], (*seen)[2]; /* of the operations in the order; of configurations */
	uint8_t state[LINEAR_STATE];
	struct event *latest; /* of the responses at which the search turned back */
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* --- the list --------------------------------------------------------------------- */

static int by_time(const void *a, const void *b)
{
	const struct event *x = a, *y = b;

	return x->time < y->time ? -1 : x->time > y->time;
}

static void unlink_event(struct event *e)
{
	e->prev->next = e->next;
	if (e->next)
		e->next->prev = e->prev;
}

static void link_event(struct event *e)
{
	e->prev->next = e;
	if (e->next)
		e->next->prev = e;
}

/* Takes an invocation and its response out of the list; or puts them where they were. */
static void lift(struct event *e)
{
	unlink_event(e);
	if (e->response)
		unlink_event(e->response);
}

static void unlift(struct event *e)
{
	if (e->response)
		link_event(e->response);
	link_event(e);
}

/* Returns whether there is memory. */
static bool make_list(struct search *s, uint32_t n)
{
	struct event **invocation = calloc(n ?: 1, sizeof(struct event *));
	uint32_t m = 0;

	s->events = calloc(2 * (size_t)n ?: 1, sizeof(*s->events));
	if (!invocation || !s->events) {
		free(invocation);
		return false;
	}
	for (uint32_t i = 0; i < n; i++) {
		s->events[m++] = (struct event){ .time = s->ops[i].from, .op = i };
		if (s->ops[i].to != LINEAR_PENDING)
			s->events[m++] = (struct event){ .time = s->ops[i].to, .op = i };
	}
	qsort(s->events, m, sizeof(*s->events), by_time);
	for (uint32_t i = 0; i < m; i++) {
		struct event *e = &s->events[i], **first = &invocation[e->op];

		e->prev = i ? e - 1 : &s->head;
		e->next = i + 1 < m ? e + 1 : NULL;
		if (*first)
			(*first)->response = e->response = e;
		else
			*first = e;
	}
	s->head.next = m ? s->events : NULL;
	free(invocation);
	return true;
}

/* --- configurations --------------------------------------------------------------- */

static void toggle(struct search *s, uint32_t op)
{
	s->set[0] ^= mix(op + 1);
	s->set[1] ^= mix(op + 0x5bd1e9955bd1e995ull);
}

/* Returns whether the configuration was not seen before. */
static bool remember(struct search *s, const uint8_t *state)
{
	uint64_t a = s->set[0], b = s->set[1];
	uint32_t i;

	for (size_t k = 0; k < s->spec->size; k++) {
		a = mix(a + state[k] + 1);
		b = mix(b ^ (state[k] + 0x100u + k));
	}
	a |= 1;
	for (i = (uint32_t)a & (s->size - 1); s->seen[i][0]; i = (i + 1) & (s->size - 1))
		if (s->seen[i][0] == a && s->seen[i][1] == b)
			return false;
	s->seen[i][0] = a;
	s->seen[i][1] = b;
	s->configurations++;
	return true;
}

/* --- the search ------------------------------------------------------------------- */

/* Puts the operation of invocation @e next in the order, if that is possible and new. */
static bool choose(struct search *s, struct event *e)
{
	uint8_t state[LINEAR_STATE];

	memcpy(state, s->state, sizeof(state));
	if (!s->spec->step(state, &s->ops[e->op]))
		return false;
	toggle(s, e->op);
	if (!remember(s, state)) {
		toggle(s, e->op);
		return false;
	}
	s->order[s->depth].event = e;
	memcpy(s->order[s->depth++].before, s->state, sizeof(state));
	memcpy(s->state, state, sizeof(state));
	lift(e);
	return true;
}

/* Takes the last operation out of the order; returns its invocation. */
static struct event *turn_back(struct search *s)
{
	struct chosen *c = &s->order[--s->depth];

	memcpy(s->state, c->before, sizeof(s->state));
	toggle(s, c->event->op);
	unlift(c->event);
	return c->event;
}

static bool has_response(const struct search *s)
{
	const struct event *e = s->head.next;

	/* Pending operations need no place in the order. */
	while (e && !e->response)
		e = e->next;
	return e;
}

static enum linear_verdict search(struct search *s)
{
	struct event *e = s->head.next;

	while (has_response(s)) {
		bool is_response = e && e->response == e;

		if (s->configurations >= s->most)
			return LINEAR_UNKNOWN;
		if (e && !is_response) {
			e = choose(s, e) ? s->head.next : e->next;
			continue;
		}
		/* Its operation has to be in the order by now. */
		if (is_response && (!s->latest || s->latest->time < e->time))
			s->latest = e;
		if (!s->depth)
			return LINEAR_NO;
		e = turn_back(s)->next;
	}
	return LINEAR_YES;
}

enum linear_verdict linear_check(const struct linear_spec *spec, const struct linear_op *ops,
				 uint32_t n, uint32_t most, uint32_t *stuck)
{
	struct search s = { .spec = spec, .ops = ops, .most = most, .size = 64 };
	enum linear_verdict verdict = LINEAR_UNKNOWN;

	while (s.size / 2 < most)
		s.size *= 2;
	s.seen = calloc(s.size, sizeof(*s.seen));
	s.order = calloc(n ?: 1, sizeof(*s.order));
	if (s.seen && s.order && make_list(&s, n))
		verdict = search(&s);
	if (verdict == LINEAR_NO && stuck)
		*stuck = s.latest ? s.latest->op : 0;
	free(s.events);
	free(s.order);
	free(s.seen);
	return verdict;
}
