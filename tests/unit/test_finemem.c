// SPDX-License-Identifier: GPL-2.0-or-later
/* FineMem's published allocator: what it does, and what interleavings do to it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "lib/base/draw.h"
#include "sim/finemem.h"
#include "sim/finemem_contend.h"

#include <cmocka.h>

#define SECTIONS 2
#define CHUNKS (FINEMEM_SPANS * FINEMEM_CHUNKS)

struct client {
	uint16_t id;
	struct finemem_view view;
	struct finemem_op op;
	struct finemem_verb verb; /* issued, not yet executed */
	uint64_t result[FINEMEM_SPANS];
};

static struct world {
	struct finemem_rule rule;
	uint64_t words[SECTIONS * (1 + FINEMEM_SPANS + CHUNKS)];
	struct client x, y, z;
} w;

static void set_up(enum finemem_update update, bool flush)
{
	struct client *all[] = { &w.x, &w.y, &w.z };

	memset(&w, 0, sizeof(w));
	w.rule = (struct finemem_rule){
		.sections = SECTIONS, .update = update, .flush = flush, .control = true,
		.high = FINEMEM_HIGH, .low = FINEMEM_LOW,
	};
	assert_int_equal(finemem_words(SECTIONS), sizeof(w.words) / sizeof(w.words[0]));
	for (int i = 0; i < 3; i++) {
		all[i]->id = (uint16_t)(i + 1);
		finemem_view_init(&all[i]->view, &w.rule, (uint64_t)i + 1);
		all[i]->view.section = 0;
	}
}

static void next(struct client *c)
{
	c->verb = finemem_next(&c->op, &w.rule, &c->view, c->result);
}

/* Executes the verb that the client has issued; it issues the next one. */
static void step(struct client *c)
{
	const struct finemem_verb *v = &c->verb;

	switch (v->kind) {
	case FINEMEM_READ:
		memcpy(c->result, &w.words[v->at], v->words * sizeof(uint64_t));
		break;
	case FINEMEM_WRITE:
		w.words[v->at] = v->desired;
		break;
	case FINEMEM_SWAP:
		c->result[0] = w.words[v->at];
		if (c->result[0] == v->expect)
			w.words[v->at] = v->desired;
		break;
	case FINEMEM_DONE:
		return;
	}
	next(c);
}

static int finish(struct client *c)
{
	while (c->verb.kind != FINEMEM_DONE)
		step(c);
	return c->op.result;
}

/* Executes verbs until the client has issued one of @kind for word @at. */
static void until(struct client *c, enum finemem_verb_kind kind, uint32_t at)
{
	while (c->verb.kind != kind || c->verb.at != at) {
		assert_int_not_equal(c->verb.kind, FINEMEM_DONE);
		step(c);
	}
}

static void begin_allocate(struct client *c, uint32_t order)
{
	finemem_allocate(&c->op, &w.rule, c->id, order);
	next(c);
}

static void begin_free(struct client *c, uint32_t order, uint32_t section, uint32_t span,
		       uint32_t chunk)
{
	finemem_free(&c->op, &w.rule, c->id, order, section, span, chunk);
	next(c);
}

static int allocate(struct client *c, uint32_t order)
{
	begin_allocate(c, order);
	return finish(c);
}

static int release(struct client *c, uint32_t order, uint32_t section, uint32_t span,
		   uint32_t chunk)
{
	begin_free(c, order, section, span, chunk);
	return finish(c);
}

static struct finemem_header section(uint32_t s)
{
	return finemem_unpack(w.words[finemem_section_word(s)]);
}

static struct finemem_header span(uint32_t s, uint32_t k)
{
	return finemem_unpack(w.words[finemem_span_word(SECTIONS, s, k)]);
}

static enum finemem_state state_of(uint32_t s, uint32_t k)
{
	return finemem_span_state(section(s).map, k);
}

static void headers(void **state)
{
	struct finemem_header all = { UINT32_MAX, 3, 1, 127, 31, 7, 0x3fff }, h;

	/* 32 + 2 + 1 + 7 + 5 + 3 + 14 bits, none twice. */
	assert_true(finemem_pack(&all) == UINT64_MAX);
	h = (struct finemem_header){
		.retry = 2, .stamp = 100, .offset = 17, .size = 5, .id = 9000,
	};
	all = finemem_unpack(finemem_pack(&h));
	assert_int_equal(all.map, 0);
	assert_int_equal(all.retry, 2);
	assert_int_equal(all.in_use, 0);
	assert_int_equal(all.stamp, 100);
	assert_int_equal(all.offset, 17);
	assert_int_equal(all.size, 5);
	assert_int_equal(all.id, 9000);
}

/* One client: verbs are those of the paper, and everything is handed out once. */
static void one_client(void **state)
{
	static uint8_t taken[SECTIONS][FINEMEM_SPANS][FINEMEM_CHUNKS];
	uint32_t n = 0;

	memset(taken, 0, sizeof(taken));
	set_up(FINEMEM_PAPER, false);
	while (!allocate(&w.x, 0)) {
		uint8_t *t = &taken[w.x.op.section][w.x.op.span][w.x.op.chunk];

		assert_int_equal(w.x.op.failed, 0);
		assert_false(*t);
		*t = 1;
		n++;
		/* In a span that is open, with images at hand: one verb. */
		if (n == 2)
			assert_int_equal(w.x.op.swaps + w.x.op.reads + w.x.op.writes, 1);
	}
	assert_int_equal(w.x.op.result, -ENOSPC);
	assert_int_equal(n, SECTIONS * CHUNKS);
	for (uint32_t s = 0; s < SECTIONS; s++)
		assert_int_equal(section(s).map, UINT32_MAX);
	assert_int_equal(allocate(&w.y, FINEMEM_SPAN_ORDER), -ENOSPC);
	assert_int_equal(release(&w.x, 0, 1, 3, 7), 0);
	assert_int_equal(state_of(1, 3), FINEMEM_NORMAL);
	assert_int_equal(release(&w.x, 0, 1, 3, 7), -ENOENT);
	/* Another client, with full images, finds it. */
	assert_int_equal(allocate(&w.y, 0), 0);
	assert_int_equal(w.y.op.section, 1);
	assert_int_equal(w.y.op.span, 3);
	assert_int_equal(w.y.op.chunk, 7);
	for (uint32_t s = 0; s < SECTIONS; s++)
		for (uint32_t k = 0; k < FINEMEM_SPANS; k++)
			for (uint32_t c = 0; c < FINEMEM_CHUNKS; c++)
				assert_int_equal(release(&w.x, 0, s, k, c), 0);
	for (uint32_t s = 0; s < SECTIONS; s++) {
		assert_int_equal(section(s).map, 0);
		assert_int_equal(span(s, 5).map, 0);
		assert_int_equal(span(s, 5).in_use, 0);
	}
	assert_int_equal(allocate(&w.z, FINEMEM_SECTION_ORDER), 0);
	assert_int_equal(section(w.z.op.section).map, UINT32_MAX);
}

static void orders(void **state)
{
	for (uint32_t order = 0; order <= FINEMEM_SECTION_ORDER; order++) {
		uint32_t n = 0;

		set_up(FINEMEM_SWAPS, false);
		while (!allocate(&w.x, order)) {
			uint32_t at = w.x.op.span * FINEMEM_CHUNKS + w.x.op.chunk;

			assert_int_equal(at % (1u << order), 0);
			n++;
			/* Of the first layer: one compare-and-swap. */
			if (order >= FINEMEM_SPAN_ORDER)
				assert_int_equal(w.x.op.swaps, 1);
		}
		assert_int_equal(n, SECTIONS * CHUNKS >> order);
	}
}

/*
 * Lost update: X, which makes a full span normal, reads the section; Y commits 128 KiB in it; X
 * writes the old image back.  Z gets Y's memory.
 */
static bool update_is_lost(enum finemem_update update)
{
	uint32_t at;

	set_up(update, false);
	for (int i = 0; i < FINEMEM_CHUNKS; i++)
		assert_int_equal(allocate(&w.x, 0), 0);
	at = w.x.op.span;
	assert_int_equal(state_of(0, at), FINEMEM_FULL);

	begin_free(&w.x, 0, 0, at, 11);
	until(&w.x, FINEMEM_READ, finemem_section_word(0));
	step(&w.x);
	/* X has the image, and is about to write. */
	assert_int_equal(w.x.verb.at, finemem_section_word(0));
	assert_int_equal(allocate(&w.y, FINEMEM_SPAN_ORDER), 0);
	assert_int_equal(w.y.op.section, 0);
	assert_int_equal(state_of(0, w.y.op.span), FINEMEM_FULL);
	assert_int_equal(finish(&w.x), 0);
	assert_int_equal(state_of(0, at), FINEMEM_NORMAL);
	if (state_of(0, w.y.op.span) == FINEMEM_FULL)
		return false;
	assert_int_equal(allocate(&w.z, FINEMEM_SPAN_ORDER), 0);
	assert_int_equal(w.z.op.section, w.y.op.section);
	assert_int_equal(w.z.op.span, w.y.op.span);
	return true;
}

static void lost_update(void **state)
{
	assert_true(update_is_lost(FINEMEM_PAPER));
	assert_true(update_is_lost(FINEMEM_RELEASED));
	assert_false(update_is_lost(FINEMEM_SWAPS));
}

/*
 * Double allocation: X frees the last chunk of a span; Y, for which the span is normal, takes one;
 * X makes the span empty; Z takes all of it.  No verb fails, and no update is lost.
 */
static void double_allocation(enum finemem_update update)
{
	uint32_t at, tries = 0;

	set_up(update, false);
	assert_int_equal(allocate(&w.x, 0), 0);
	at = w.x.op.span;
	/* Y's images have the span as normal. */
	begin_allocate(&w.y, 0);
	until(&w.y, FINEMEM_SWAP, finemem_span_word(SECTIONS, 0, at));

	begin_free(&w.x, 0, 0, at, w.x.op.chunk);
	until(&w.x, FINEMEM_READ, finemem_section_word(0));
	assert_int_equal(span(0, at).map, 0);
	assert_int_equal(finish(&w.y), 0);
	assert_int_equal(w.y.op.span, at);
	assert_int_equal(finish(&w.x), 0);
	assert_int_equal(state_of(0, at), FINEMEM_EMPTY);

	/* Z takes the empty spans, Y's among them. */
	do {
		assert_int_equal(allocate(&w.z, FINEMEM_SPAN_ORDER), 0);
		assert_true(tries++ < FINEMEM_SPANS);
	} while (w.z.op.span != at);
	assert_int_equal(w.z.op.section, 0);
	assert_true(span(0, at).map & 1u << w.y.op.chunk);
}

static void double_allocations(void **state)
{
	double_allocation(FINEMEM_PAPER);
	double_allocation(FINEMEM_RELEASED);
	/* Compare-and-swaps do not help: the two layers are two words. */
	double_allocation(FINEMEM_SWAPS);
}

/* Has X's compare-and-swap of the span fail @times times: Y allocates and frees in between. */
static void disturb(uint32_t at, uint32_t times)
{
	begin_allocate(&w.x, 0);
	for (uint32_t i = 0; i < times; i++) {
		until(&w.x, FINEMEM_SWAP, finemem_span_word(SECTIONS, 0, at));
		w.words[w.x.verb.at] ^= 1ull << 50; /* another client's log */
		step(&w.x);
	}
	assert_int_equal(finish(&w.x), 0);
	assert_int_equal(w.x.op.span, at);
	assert_int_equal(w.x.op.failed, times);
}

/* Thresholds 10 and 3; preference normal, empty, contended. */
static void contention(void **state)
{
	uint32_t at;

	set_up(FINEMEM_PAPER, false);
	assert_int_equal(allocate(&w.x, 0), 0);
	at = w.x.op.span;
	disturb(at, FINEMEM_HIGH);
	assert_int_equal(state_of(0, at), FINEMEM_NORMAL);
	assert_int_equal(span(0, at).retry, 1);
	disturb(at, FINEMEM_HIGH + 1);
	assert_int_equal(state_of(0, at), FINEMEM_CONTENDED);
	assert_int_equal(span(0, at).retry, 2);
	/* Empty spans come first, */
	assert_int_equal(allocate(&w.y, 0), 0);
	assert_int_not_equal(w.y.op.span, at);
	assert_int_equal(w.y.op.section, 0);
	/* contended ones last: all others are full. */
	for (uint32_t k = 0; k < FINEMEM_SPANS; k++) {
		struct finemem_header h = { .map = UINT32_MAX, .in_use = 1 }, s = section(0);

		if (k == at)
			continue;
		w.words[finemem_span_word(SECTIONS, 0, k)] = finemem_pack(&h);
		s.map = finemem_set_state(s.map, k, FINEMEM_FULL);
		w.words[finemem_section_word(0)] = finemem_pack(&s);
	}
	w.x.view.has_states = w.x.view.has_spans = false;
	disturb(at, FINEMEM_LOW);
	assert_int_equal(state_of(0, at), FINEMEM_CONTENDED);
	assert_int_equal(span(0, at).retry, 1);
	disturb(at, FINEMEM_LOW - 1);
	assert_int_equal(state_of(0, at), FINEMEM_NORMAL);
	assert_int_equal(span(0, at).retry, 0);
}

static struct finemem_log log_of(uint32_t s, uint32_t k, uint32_t c)
{
	return finemem_log_unpack(
		w.words[finemem_log_word(SECTIONS, s, k * FINEMEM_CHUNKS + c)]);
}

/* The log of a header is flushed by the next client; the stamp rises with each change of kind. */
static void logs(void **state)
{
	uint32_t at, first;
	uint8_t stamp;

	set_up(FINEMEM_PAPER, true);
	assert_int_equal(allocate(&w.x, 0), 0);
	at = w.x.op.span;
	first = w.x.op.chunk;
	stamp = span(0, at).stamp;
	assert_int_equal(span(0, at).id, w.x.id);
	assert_int_equal(log_of(0, at, first).id, 0);
	assert_int_equal(allocate(&w.y, 0), 0);
	assert_int_equal(w.y.op.span, at);
	assert_int_equal(log_of(0, at, first).id, w.x.id);
	assert_int_equal(span(0, at).stamp, stamp);
	assert_int_equal(release(&w.x, 0, 0, at, first), 0);
	assert_int_equal(log_of(0, at, w.y.op.chunk).id, w.y.id);
	assert_int_equal(span(0, at).stamp, stamp + 1);
	assert_int_equal(release(&w.y, 0, 0, at, w.y.op.chunk), 0);
	assert_int_equal(log_of(0, at, first).id, 0);
	assert_int_equal(log_of(0, at, first).stamp, stamp + 1);
	/* Of the first layer. */
	assert_int_equal(allocate(&w.z, FINEMEM_SPAN_ORDER + 1), 0);
	assert_int_equal(section(0).id, w.z.id);
	assert_int_equal(section(0).offset, w.z.op.span);
	assert_int_equal(section(0).size, 1);
	assert_int_equal(allocate(&w.y, FINEMEM_SPAN_ORDER), 0);
	assert_int_equal(log_of(0, w.z.op.span, 0).id, w.z.id);
	assert_int_equal(log_of(0, w.z.op.span, 0).section, 1);
}

static struct finemem_contend_config crowd(enum finemem_update update, uint32_t clients)
{
	return (struct finemem_contend_config){
		.rule = { .sections = 64, .update = update, .control = true,
			  .high = FINEMEM_HIGH, .low = FINEMEM_LOW },
		.clients = clients, .rounds = 400, .fill = 0.5, .seed = 7,
	};
}

static struct finemem_contend_result contend(const struct finemem_contend_config *c)
{
	struct finemem_contend_result r;

	assert_int_equal(finemem_contend(c, &r), 0);
	return r;
}

static void crowds(void **state)
{
	struct finemem_contend_config c = crowd(FINEMEM_PAPER, 1);
	struct finemem_contend_result one = contend(&c), many, again;

	assert_int_equal(one.most, 0);
	assert_true(one.swaps == 1);
	assert_int_equal(one.doubles, 0);
	c = crowd(FINEMEM_PAPER, 512);
	many = contend(&c);
	again = contend(&c);
	assert_memory_equal(&many, &again, sizeof(many));
	assert_true(many.allocations > 10000);
	assert_true(many.retries > 0.1);
	/* One that succeeds, and some that open spans. */
	assert_true(many.swaps > 0.999 + many.retries);
	assert_true(many.most > FINEMEM_LOW);
	/* Fewer sections, more of them in each. */
	c.rule.sections = 16;
	assert_true(contend(&c).retries > many.retries);
}

/* Chunks and spans in the same sections: memory is given to two clients, or to none. */
static void crowds_share(void **state)
{
	struct finemem_contend_config c = crowd(FINEMEM_PAPER, 256);

	c.fill = 0;
	c.large = 20;
	c.rounds = 1000;
	assert_true(contend(&c).doubles > 0);
	/* Spans whose release was undone are lost for ever. */
	c.rule.sections = 8;
	assert_true(contend(&c).full > 0);
	c.rule.update = FINEMEM_SWAPS;
	assert_true(contend(&c).doubles > 0);
	/* Of one size, the second layer alone decides. */
	c.large = 0;
	assert_int_equal(contend(&c).doubles, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(headers),
		cmocka_unit_test(one_client),
		cmocka_unit_test(orders),
		cmocka_unit_test(lost_update),
		cmocka_unit_test(double_allocations),
		cmocka_unit_test(contention),
		cmocka_unit_test(logs),
		cmocka_unit_test(crowds),
		cmocka_unit_test(crowds_share),
	};

	return cmocka_run_group_tests_name("finemem", tests, NULL, NULL);
}
