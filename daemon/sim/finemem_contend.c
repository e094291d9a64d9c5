// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "finemem_contend.h"
#include "lib/base/draw.h"

#define PER_SECTION (FINEMEM_SPANS * FINEMEM_CHUNKS)
#define FIRST_FILL (FINEMEM_CLIENTS + 1) /* id */

struct client {
	struct finemem_op op;
	struct finemem_view view;
	struct finemem_verb verb;
	uint64_t result[FINEMEM_SPANS];
	uint32_t idle;                    /* rounds until it issues the next verb */
	bool has;                         /* what it allocated last, and frees next: */
	uint8_t order, span, chunk;
	uint32_t section;
};

struct contend {
	const struct finemem_contend_config *config;
	struct finemem_contend_result *result;
	uint64_t *words;
	uint16_t *owners;  /* of chunks; 0 = free */
	struct client *clients;
	uint32_t *turn;
	uint64_t seed, swaps, retries, verbs;
};

static void fill(struct contend *x)
{
	const struct finemem_rule *rule = &x->config->rule;
	uint32_t below = (uint32_t)(x->config->fill * UINT32_MAX);

	for (uint32_t s = 0; s < rule->sections; s++) {
		struct finemem_header section = { 0 };

		for (uint32_t span = 0; span < FINEMEM_SPANS; span++) {
			struct finemem_header h = { 0 };

			for (uint32_t c = 0; c < FINEMEM_CHUNKS; c++) {
				if (draw32(&x->seed) >= below)
					continue;
				h.map |= 1u << c;
				x->owners[s * PER_SECTION + span * FINEMEM_CHUNKS + c] = FIRST_FILL;
			}
			h.in_use = h.map != 0;
			section.map = finemem_set_state(section.map, span,
							!h.map ? FINEMEM_EMPTY :
							h.map == UINT32_MAX ? FINEMEM_FULL :
							FINEMEM_NORMAL);
			x->words[finemem_span_word(rule->sections, s, span)] = finemem_pack(&h);
		}
		x->words[finemem_section_word(s)] = finemem_pack(&section);
	}
}

static void execute(struct contend *x, struct client *c)
{
	const struct finemem_verb *v = &c->verb;

	switch (v->kind) {
	case FINEMEM_READ:
		for (uint32_t i = 0; i < v->words; i++)
			c->result[i] = x->words[v->at + i];
		break;
	case FINEMEM_WRITE:
		x->words[v->at] = v->desired;
		break;
	case FINEMEM_SWAP:
		c->result[0] = x->words[v->at];
		if (c->result[0] == v->expect)
			x->words[v->at] = v->desired;
		break;
	case FINEMEM_DONE:
		break;
	}
}

/* Sets the owner of what the client has; returns whether all of it was free. */
static bool own(struct contend *x, const struct client *c, uint16_t owner)
{
	uint32_t first = c->section * PER_SECTION + c->span * FINEMEM_CHUNKS + c->chunk;
	bool all_free = true;

	for (uint32_t i = first; i < first + (1u << c->order); i++) {
		all_free &= !x->owners[i];
		x->owners[i] = owner;
	}
	return all_free;
}

static void ended(struct contend *x, struct client *c, uint16_t id)
{
	struct finemem_contend_result *r = x->result;

	if (c->op.kind == FINEMEM_FREE)
		return;
	if (c->op.result) {
		r->full++;
		return;
	}
	c->has = true;
	c->order = c->op.order;
	c->section = c->op.section;
	c->span = c->op.span;
	c->chunk = c->op.chunk;
	if (x->config->hold)
		c->idle = draw_below(&x->seed, x->config->hold);
	r->doubles += !own(x, c, id);
	r->allocations++;
	x->swaps += c->op.swaps;
	x->retries += c->op.failed;
	x->verbs += c->op.swaps + c->op.reads + c->op.writes;
	if (c->op.failed > r->most)
		r->most = c->op.failed;
}

static void begin(struct contend *x, struct client *c, uint16_t id)
{
	const struct finemem_rule *rule = &x->config->rule;
	bool large = draw_below(&x->seed, 100) < x->config->large;

	if (c->has) {
		c->has = false;
		own(x, c, 0);
		finemem_free(&c->op, rule, id, c->order, c->section, c->span, c->chunk);
	} else {
		finemem_allocate(&c->op, rule, id, large ? FINEMEM_SPAN_ORDER : 0);
	}
}

/* The verb of client @i takes effect, and the client issues its next one. */
static void step(struct contend *x, uint32_t i)
{
	const struct finemem_rule *rule = &x->config->rule;
	struct client *c = &x->clients[i];
	uint16_t id = (uint16_t)(i + 1);

	if (c->idle) {
		c->idle--;
		return;
	}
	if (c->verb.kind == FINEMEM_DONE)
		begin(x, c, id);
	else
		execute(x, c);
	c->verb = finemem_next(&c->op, rule, &c->view, c->result);
	if (c->verb.kind == FINEMEM_DONE)
		ended(x, c, id);
}

static void run(struct contend *x)
{
	const struct finemem_contend_config *o = x->config;

	fill(x);
	for (uint32_t i = 0; i < o->clients; i++) {
		struct client *c = &x->clients[i];

		x->turn[i] = i;
		finemem_view_init(&c->view, &o->rule, (o->seed + i) * 0x9E3779B97F4A7C15ull | 1);
		begin(x, c, (uint16_t)(i + 1));
		c->verb = finemem_next(&c->op, &o->rule, &c->view, c->result);
	}
	for (uint32_t round = 0; round < o->rounds; round++)
		for (uint32_t i = 0; i < o->clients; i++) {
			uint32_t k = i + draw_below(&x->seed, o->clients - i), turn = x->turn[k];

			x->turn[k] = x->turn[i];
			x->turn[i] = turn;
			step(x, turn);
		}
}

int finemem_contend(const struct finemem_contend_config *config,
		    struct finemem_contend_result *result)
{
	struct finemem_contend_result r = { 0 };
	struct contend x = {
		.config = config, .result = &r, .seed = config->seed,
		.words = calloc(finemem_words(config->rule.sections), sizeof(*x.words)),
		.owners = calloc((size_t)config->rule.sections * PER_SECTION, sizeof(*x.owners)),
		.clients = calloc(config->clients, sizeof(*x.clients)),
		.turn = calloc(config->clients, sizeof(*x.turn)),
	};
	bool made = x.words && x.owners && x.clients && x.turn;

	if (made) {
		run(&x);
		if (r.allocations) {
			r.swaps = (double)x.swaps / (double)r.allocations;
			r.retries = (double)x.retries / (double)r.allocations;
			r.verbs = (double)x.verbs / (double)r.allocations;
		}
		*result = r;
	}
	free(x.words);
	free(x.owners);
	free(x.clients);
	free(x.turn);
	return made ? 0 : -ENOMEM;
}
