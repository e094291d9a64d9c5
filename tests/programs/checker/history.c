// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "history.h"

int history_init(struct history *h, uint32_t device, uint32_t pages)
{
	*h = (struct history){ .device = device, .pages = pages };
	h->page = calloc(pages, sizeof(*h->page));
	if (!h->page)
		return -ENOMEM;
	h->clock = 1;
	for (uint32_t i = 0; i < pages; i++)
		h->page[i].ops[0] = (struct history_op){
			.start = 1, .end = 1, .seen_from = 1, .seen_to = 1, .kind = STAMP_ZERO,
		};
	for (int i = 0; i < HISTORY_LOCKS; i++)
		pthread_mutex_init(&h->lock[i], NULL);
	return 0;
}

void history_free(struct history *h)
{
	free(h->page);
	for (int i = 0; i < HISTORY_LOCKS; i++)
		pthread_mutex_destroy(&h->lock[i]);
}

static uint64_t tick(struct history *h)
{
	return __atomic_add_fetch(&h->clock, 1, __ATOMIC_SEQ_CST);
}

static struct history_page *lock_page(struct history *h, uint32_t page)
{
	pthread_mutex_lock(&h->lock[page % HISTORY_LOCKS]);
	return &h->page[page];
}

static void unlock_page(struct history *h, uint32_t page)
{
	pthread_mutex_unlock(&h->lock[page % HISTORY_LOCKS]);
}

/* Whether a read that started at @start may still return @op. */
static bool may_be_read(const struct history_page *p, const struct history_op *op, uint64_t start)
{
	if (!op->end)
		return true;
	for (int i = 0; i < HISTORY_OPS; i++) {
		const struct history_op *later = &p->ops[i];

		if (later != op && later->start && later->seen_to && later->seen_from > op->end &&
		    later->seen_to < start)
			return false;
	}
	return true;
}

static struct history_op *find(struct history_page *p, uint32_t generation)
{
	for (int i = 0; i < HISTORY_OPS; i++)
		if (p->ops[i].start && p->ops[i].generation == generation)
			return &p->ops[i];
	return NULL;
}

/* Room for one more: a free one, else the oldest that no read can return any more. */
static struct history_op *room(struct history *h, struct history_page *p)
{
	uint64_t oldest_reader = p->readers ? p->readers_since : tick(h);
	struct history_op *best = NULL;

	for (int i = 0; i < HISTORY_OPS; i++) {
		struct history_op *op = &p->ops[i];

		if (!op->start)
			return op;
		if ((!best || op->start < best->start) && !may_be_read(p, op, oldest_reader))
			best = op;
	}
	return best;
}

bool history_write_start(struct history *h, uint32_t page, struct stamp *s)
{
	struct history_page *p = lock_page(h, page);
	struct history_op *op = room(h, p);

	if (op) {
		s->device = h->device;
		s->page = page;
		s->generation = ++p->generation;
		*op = (struct history_op){
			.start = tick(h), .generation = s->generation,
			.kind = (uint8_t)s->kind, .writer = (uint8_t)s->writer,
		};
	}
	unlock_page(h, page);
	return op;
}

void history_write_cancel(struct history *h, uint32_t page, uint32_t generation)
{
	find(lock_page(h, page), generation)->start = 0;
	unlock_page(h, page);
}

void history_write_end(struct history *h, uint32_t page, uint32_t generation, int error)
{
	struct history_op *op = find(lock_page(h, page), generation);

	op->end = tick(h);
	op->error = (int16_t)error;
	/* A read that saw it already knows better. */
	if (!error && !op->seen_to) {
		op->seen_from = op->start;
		op->seen_to = op->end;
	}
	unlock_page(h, page);
}

bool history_unwritten(struct history *h, uint32_t page)
{
	struct history_page *p = lock_page(h, page);
	bool unwritten = false;

	for (int i = 0; i < HISTORY_OPS; i++)
		if (p->ops[i].start && p->ops[i].generation == p->generation)
			unwritten = !p->ops[i].end || p->ops[i].error;
	unlock_page(h, page);
	return unwritten;
}

uint64_t history_read_start(struct history *h, uint32_t page)
{
	struct history_page *p = lock_page(h, page);
	uint64_t start = tick(h);

	if (!p->readers++)
		p->readers_since = start;
	unlock_page(h, page);
	return start;
}

static void seen(struct history_op *op, uint64_t from, uint64_t to)
{
	if (op->seen_to && op->seen_from >= from)
		return;
	op->seen_from = from;
	op->seen_to = to;
}

static enum history_verdict judge(struct history *h, struct history_page *p, uint32_t page,
				  uint64_t start, const struct stamp *s)
{
	struct history_op *match = NULL;
	int matches = 0;

	if (s->kind == STAMP_BROKEN)
		return HISTORY_ALTERED;
	if (s->kind != STAMP_ZERO) {
		if (s->page != page || !stamp_same_device(s, h->device))
			return HISTORY_EXCHANGED;
		match = find(p, s->generation);
		if (!match)
			return s->generation > p->generation ? HISTORY_ALTERED : HISTORY_STALE;
		if (match->kind != s->kind)
			return HISTORY_ALTERED;
		if (!may_be_read(p, match, start))
			return HISTORY_STALE;
		seen(match, start, tick(h));
		return HISTORY_GOOD;
	}
	for (int i = 0; i < HISTORY_OPS; i++) {
		struct history_op *op = &p->ops[i];

		if (!op->start || op->kind != STAMP_ZERO || !may_be_read(p, op, start))
			continue;
		matches++;
		if (!match || op->end > match->end)
			match = op;
	}
	/*
	 * Zeroes do not say which discard they are of.  The last to end stands for all that
	 * have: what comes after it comes after them.
	 */
	if (match && (match->end || matches == 1))
		seen(match, start, tick(h));
	return match ? HISTORY_GOOD : HISTORY_LOST;
}

enum history_verdict history_read_end(struct history *h, uint32_t page, uint64_t start,
				      const struct stamp *s)
{
	struct history_page *p = lock_page(h, page);
	enum history_verdict v = judge(h, p, page, start, s);

	p->readers--;
	unlock_page(h, page);
	return v;
}

void history_read_failed(struct history *h, uint32_t page)
{
	lock_page(h, page)->readers--;
	unlock_page(h, page);
}

const char *history_verdict_text(enum history_verdict v)
{
	static const char *const texts[] = {
		[HISTORY_GOOD] = "good",
		[HISTORY_STALE] = "stale",
		[HISTORY_LOST] = "lost",
		[HISTORY_EXCHANGED] = "exchanged",
		[HISTORY_ALTERED] = "altered",
	};

	return texts[v];
}

static int by_start(const void *a, const void *b)
{
	const struct history_op *x = a, *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

void history_print(struct history *h, uint32_t page, FILE *to)
{
	struct history_page p = *lock_page(h, page);

	unlock_page(h, page);
	qsort(p.ops, HISTORY_OPS, sizeof(*p.ops), by_start);
	for (int i = 0; i < HISTORY_OPS; i++) {
		const struct history_op *op = &p.ops[i];

		if (!op->start)
			continue;
		fprintf(to, "  %s generation %" PRIu32 " by thread %d, %" PRIu64 "..",
			op->kind == STAMP_ZERO ? op->generation ? "discard" : "never written" :
			op->kind == STAMP_SAME ? "same-filled" : "write",
			op->generation, op->writer, op->start);
		if (!op->end)
			fprintf(to, " in flight");
		else
			fprintf(to, "%" PRIu64 " %s", op->end,
				op->error ? strerror(-op->error) : "acknowledged");
		if (op->seen_to)
			fprintf(to, ", in effect within %" PRIu64 "..%" PRIu64, op->seen_from,
				op->seen_to);
		fputc('\n', to);
	}
}
