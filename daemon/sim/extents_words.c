// SPDX-License-Identifier: GPL-2.0-or-later
/* Far memory's words: the protocol as members run it. */
#include <stdlib.h>
#include <string.h>

#include "extents.h"
#include "lib/base/draw.h"
#include "lib/rules/far_step.h"

struct client {
	struct far_op op;
	struct far_view view;
	struct far_verb verb;
	struct ebb_far_name name;
	uint64_t last_at;    /* word of the last compare-and-swap */
	uint32_t last_swaps; /* in a row on that word */
	uint32_t posted;
};

struct words {
	uint32_t sections, clients;
	bool blind;
	uint64_t *table;
	struct client *client;
};

static void words_delete(void *world)
{
	struct words *w = world;

	free(w->table);
	free(w->client);
	free(w);
}

static void words_forget(void *world, uint32_t client)
{
	struct words *w = world;
	struct far_view *v = &w->client[client].view;
	uint64_t seed = v->seed;

	far_view_init(v, w->sections, seed);
	v->window = draw_below(&v->seed, (w->sections + EBB_FAR_WINDOW - 1) / EBB_FAR_WINDOW) *
		    EBB_FAR_WINDOW;
}

static void *words_new(const struct extents_config *c)
{
	struct words *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->sections = c->sections;
	w->clients = c->clients;
	w->blind = c->blind;
	w->table = calloc(1, ebb_far_table(c->sections));
	w->client = calloc(c->clients, sizeof(*w->client));
	if (!w->table || !w->client) {
		words_delete(w);
		return NULL;
	}
	/* The table has memory of its own here: a section more or less decides nothing. */
	for (uint32_t s = 0; s < c->sections; s++)
		for (uint32_t i = 0; i < EBB_FAR_SLOTS; i++)
			w->table[ebb_far_slot_at(c->sections, s, i) / 8] = ebb_far_slot(
				EBB_FAR_CLOSED, 0, 0);
	for (uint32_t i = 0; i < c->clients; i++) {
		w->client[i].view.seed = draw_stream(c->seed, extents_stream(i));
		words_forget(w, i);
	}
	return w;
}

static uint32_t member(uint32_t client)
{
	return client % EBB_FAR_MEMBERS + 1;
}

/* Takes the op to its next verb; hints that it writes on the way take effect at once. */
static void go_on(struct words *w, struct client *c)
{
	c->verb = extent_next(&c->op, FAR_OK);
	while (c->verb.kind == FAR_POST) {
		memcpy((uint8_t *)w->table + c->verb.at, &c->verb.word, c->verb.bytes);
		c->posted++;
		c->verb = extent_next(&c->op, FAR_OK);
	}
}

static void words_allocate(void *world, uint32_t client)
{
	struct words *w = world;
	struct client *c = &w->client[client];

	c->posted = c->last_swaps = 0;
	far_allocate(&c->op, &c->view, member(client), 0, &c->name, 1);
	go_on(w, c);
}

static void words_free(void *world, uint32_t client, const struct ebb_far_name *extent)
{
	struct words *w = world;
	struct client *c = &w->client[client];

	c->posted = c->last_swaps = 0;
	c->name = *extent;
	far_free(&c->op, w->blind ? NULL : &c->view, w->sections, member(client), &c->name, 1);
	go_on(w, c);
}

static bool words_step(void *world, uint32_t client, struct extents_meter *m, int *result,
		       struct ebb_far_name *extent)
{
	struct words *w = world;
	struct client *c = &w->client[client];
	const struct far_verb *v = &c->verb;

	m->trips++;
	for (uint32_t i = 0; i < v->swaps; i++) {
		uint64_t *word = &w->table[v->swap[i].at / 8];

		m->swaps++;
		m->bytes += 24;
		c->last_swaps = c->last_at == v->swap[i].at ? c->last_swaps + 1 : 1;
		c->last_at = v->swap[i].at;
		v->old[i] = *word;
		if (*word == v->swap[i].expect)
			*word = v->swap[i].desired;
	}
	for (uint32_t i = 0; i < v->reads; i++) {
		m->bytes += 8 * v->read[i].words;
		memcpy(v->read[i].to, &w->table[v->read[i].at / 8], 8ul * v->read[i].words);
	}
	go_on(w, c);
	if (c->verb.kind != FAR_DONE)
		return false;
	m->last_swaps = c->last_swaps;
	m->posted = c->posted;
	m->bytes += c->posted;
	*result = c->op.result;
	*extent = c->name;
	return true;
}

const struct extents_scheme extents_words = {
	.name = "words",
	.new = words_new,
	.delete = words_delete,
	.forget = words_forget,
	.allocate = words_allocate,
	.free = words_free,
	.step = words_step,
};
