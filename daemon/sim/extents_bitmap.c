// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * FineMem's bitmaps (OSDI'25, sections 4.2 to 4.4), for 4 KiB extents.  A span of 32 chunks has a
 * word with a bit for each chunk, 16 spans are a section, whose word has a state of 2 bits for each
 * span.  Search and caching follow the released client (chunk_alloc(), find_section(), full_free()
 * of rdma_conn.cc at 6ff8a56); contention control has the thresholds of the paper, which the
 * released code sets out of reach.  The updates of section states and of the redo log are not
 * waited for, which is the paper's intention; the released code waits for the former.
 *
 * Published are 1.33 "CAS retry times" on average and 142 at most, with 512 threads which fill 140
 * of 200 GB, then free half of that at random and allocate as much, again and again (section 6.2).
 * The paper calls the average of its baseline in that table "CAS operations per allocation", and
 * the released counter begins at 1, and again with each span: it counts attempts on the span that
 * gave the chunk, last_swaps here.  With that workload on 2 GiB, the two searches are on either
 * side of the published average, 1.8 and 1.2; so are they with 16 times the memory, and if a client
 * pauses for up to 4 round trips between operations.  At most, an operation has some 30 attempts on
 * one span, and 50 to 400 on all spans that it tries.
 *
 * Four things are better here than in the release.  An update of a section's state takes effect as
 * a whole, at the time of the verb that causes it, so no update is lost and no span is allocated
 * twice.  Nothing waits for logs and updates.  Spans in use are not preferred to empty ones, which
 * the paper wants and the release does not do: it would concentrate clients.  A client that frees
 * in the section at hand sees it.
 */
#include <stdlib.h>
#include <string.h>

#include "extents.h"
#include "lib/base/draw.h"

enum { SPANS = 16, CHUNKS = 32, CONTENDED = 10, CALM = 3, NONE = -1 };
enum { ALL_SPANS = 0xffff };

/* A span's word: the map, and a log that each change replaces. */
struct span {
	uint32_t map;
	uint32_t in_use : 1, retry : 2, log : 29;
};

/* A section's word: states of spans, 00 empty, 01 partial, 10 contended, 11 full. */
struct section {
	uint16_t low, high;
};

enum phase { READ_SPANS, TAKE_SPAN, TAKE_CHUNK, FIND_SECTION, READ_SPAN, FREE_CHUNK };

struct client {
	enum phase phase;
	struct section section; /* image */
	struct span span[SPANS], freed;
	uint32_t at; /* the section of the image; its spans are images of .spans_of */
	int spans_of;
	uint32_t first, tried;	/* span where the search began; spans tried */
	uint32_t swaps;		/* on this word */
	uint32_t scanned;	/* sections read by find_section, in this operation */
	bool slow;		/* contended spans, too */
	uint32_t target, chunk; /* number of the span; chunk to free or taken */
	uint64_t seed;
};

struct bitmap {
	uint32_t sections, clients;
	bool blind;
	bool scatter; /* a search begins at a random section, not at the next one */
	struct section *section;
	struct span *span;
	struct client *client;
};

static void bitmap_delete(void *world)
{
	struct bitmap *w = world;

	free(w->section);
	free(w->span);
	free(w->client);
	free(w);
}

static void bitmap_forget(void *world, uint32_t client)
{
	struct bitmap *w = world;
	struct client *c = &w->client[client];

	c->at = draw_below(&c->seed, w->sections);
	c->section = w->section[c->at];
	c->spans_of = NONE;
}

static void *bitmap_new(const struct extents_config *c)
{
	struct bitmap *w = calloc(1, sizeof(*w));

	if (!w)
		return NULL;
	w->sections = c->sections;
	w->clients = c->clients;
	w->blind = c->blind;
	w->section = calloc(c->sections, sizeof(*w->section));
	w->span = calloc(c->sections, SPANS * sizeof(*w->span));
	w->client = calloc(c->clients, sizeof(*w->client));
	if (!w->section || !w->span || !w->client) {
		bitmap_delete(w);
		return NULL;
	}
	for (uint32_t i = 0; i < c->clients; i++) {
		w->client[i].seed = draw_stream(c->seed, extents_stream(i));
		bitmap_forget(w, i);
	}
	return w;
}

/* The log of a commit is flushed to the chunk's: a READ, and a compare-and-swap. */
static void post_log(struct extents_meter *m)
{
	m->posted += 2;
	m->bytes += 8 + 24;
}

/* --- states of spans -------------------------------------------------------------- */

static uint32_t state_of(struct section s, uint32_t span)
{
	return (s.low >> span & 1u) | (s.high >> span & 1u) << 1;
}

static void set_state(struct section *s, uint32_t span, uint32_t state)
{
	s->low = (uint16_t)((s->low & ~(1u << span)) | (state & 1) << span);
	s->high = (uint16_t)((s->high & ~(1u << span)) | (state >> 1) << span);
}

enum { EMPTY, PARTIAL, BUSY, FULL };

/* Updates the state of a span without waiting. */
static void update(struct bitmap *w, uint32_t span, uint32_t state, struct extents_meter *m)
{
	struct section *s = &w->section[span / SPANS];

	m->posted++;
	m->bytes += 24;
	if (state_of(*s, span % SPANS) != EMPTY)
		set_state(s, span % SPANS, state);
}

/* After an operation on a span's word that took @swaps, as the paper's figure 7. */
static void update_contention(struct bitmap *w, uint32_t span, uint32_t before, uint32_t swaps,
			      struct extents_meter *m)
{
	if (before && swaps < CALM)
		update(w, span, PARTIAL, m);
	else if (before < 2 && swaps > CONTENDED)
		update(w, span, BUSY, m);
}

static uint32_t retry_of(uint32_t swaps)
{
	return swaps > CONTENDED ? 2 : swaps >= CALM;
}

/* --- allocating ------------------------------------------------------------------- */

/* Chooses what the next verb is by the images. */
static void choose(struct client *c)
{
	if (c->spans_of != (int)c->at) {
		c->phase = READ_SPANS;
		return;
	}
	for (; c->tried < SPANS; c->tried++, c->swaps = 0) {
		uint32_t i = (c->first + c->tried) % SPANS;

		if ((!c->slow && state_of(c->section, i) == BUSY) || c->span[i].map == UINT32_MAX)
			continue;
		c->target = c->at * SPANS + i;
		c->phase = c->span[i].in_use ? TAKE_CHUNK : TAKE_SPAN;
		return;
	}
	c->phase = FIND_SECTION;
}

static void start_section(struct client *c)
{
	c->first = draw_below(&c->seed, SPANS);
	c->tried = 0;
	c->swaps = 0;
}

static void bitmap_allocate(void *world, uint32_t client)
{
	struct bitmap *w = world;
	struct client *c = &w->client[client];

	c->scanned = 0;
	c->slow = false;
	start_section(c);
	choose(c);
}

static void read_spans(struct bitmap *w, struct client *c, struct extents_meter *m)
{
	m->bytes += SPANS * sizeof(struct span);
	memcpy(c->span, &w->span[c->at * SPANS], sizeof(c->span));
	c->spans_of = (int)c->at;
	choose(c);
}

/* The next section that is not full, of 16 that one READ fetches. */
static bool find_section(struct bitmap *w, struct client *c, struct extents_meter *m)
{
	uint32_t from = w->scatter ? draw_below(&c->seed, w->sections) : (c->at + 1) % w->sections;
	uint32_t n = w->sections - from < SPANS ? w->sections - from : SPANS;

	m->bytes += n * 8;
	for (uint32_t i = 0; i < n; i++) {
		struct section s = w->section[from + i];

		if ((c->slow ? s.high & s.low : s.high) == ALL_SPANS)
			continue;
		c->scanned += i + 1;
		c->at = from + i;
		c->section = s;
		start_section(c);
		break;
	}
	if (c->at != from + n - 1 && (c->at < from || c->at >= from + n)) {
		c->scanned += n;
		c->at = from + n - 1;
	}
	if (c->scanned >= w->sections) {
		if (c->slow && c->scanned >= 3 * w->sections)
			return false;
		c->slow = true;
	}
	choose(c);
	return true;
}

static void take_span(struct bitmap *w, struct client *c, struct extents_meter *m)
{
	struct section *s = &w->section[c->at];
	uint32_t i = c->target % SPANS;

	m->swaps++;
	m->bytes += 24;
	if (memcmp(s, &c->section, sizeof(*s))) {
		c->section = *s;
		if (state_of(*s, i) == EMPTY)
			return;
		if (state_of(*s, i) == FULL)
			c->span[i].map = UINT32_MAX;
		c->span[i].in_use = state_of(*s, i) != EMPTY;
		choose(c);
		return;
	}
	set_state(s, i, PARTIAL);
	c->section = *s;
	c->phase = TAKE_CHUNK;
}

static bool take_chunk(struct bitmap *w, struct client *c, struct extents_meter *m)
{
	struct span *word = &w->span[c->target], *image = &c->span[c->target % SPANS], new = *image;
	uint32_t before = image->retry;

	m->swaps++;
	c->swaps++;
	m->bytes += 24;
	if (memcmp(word, image, sizeof(*word))) {
		*image = *word;
		/* An empty span that another one has put into use, or not yet. */
		choose(c);
		return false;
	}
	c->chunk = (uint32_t)__builtin_ctz(~image->map);
	new.map |= 1u << c->chunk;
	new.in_use = 1;
	new.retry = retry_of(c->swaps) & 3;
	new.log = draw32(&c->seed) & 0x1fffffff;
	*word = *image = new;
	m->last_swaps = c->swaps;
	post_log(m);
	if (new.map == UINT32_MAX)
		update(w, c->target, FULL, m);
	else
		update_contention(w, c->target, before, c->swaps, m);
	return true;
}

/* --- freeing ---------------------------------------------------------------------- */

static void bitmap_free(void *world, uint32_t client, const struct ebb_far_name *extent)
{
	struct bitmap *w = world;
	struct client *c = &w->client[client];

	c->target = extent->section * SPANS + extent->word / CHUNKS;
	c->chunk = extent->word % CHUNKS;
	c->swaps = 0;
	c->phase = READ_SPAN;
}

static bool free_chunk(struct bitmap *w, struct client *c, struct extents_meter *m)
{
	struct span *word = &w->span[c->target];
	bool full = word->map == UINT32_MAX;
	uint32_t before = c->freed.retry;

	m->swaps++;
	c->swaps++;
	m->bytes += 24;
	if (memcmp(word, &c->freed, sizeof(*word))) {
		c->freed = *word;
		return false;
	}
	word->map &= ~(1u << c->chunk);
	word->in_use = word->map != 0;
	word->retry = retry_of(c->swaps) & 3;
	word->log = draw32(&c->seed) & 0x1fffffff;
	if ((int)(c->target / SPANS) == c->spans_of && !w->blind)
		c->span[c->target % SPANS] = *word;
	m->last_swaps = c->swaps;
	post_log(m);
	if (!word->map)
		update(w, c->target, EMPTY, m);
	else if (full)
		update(w, c->target, PARTIAL, m);
	else
		update_contention(w, c->target, before, c->swaps, m);
	return true;
}

static bool bitmap_step(void *world, uint32_t client, struct extents_meter *m, int *result,
			struct ebb_far_name *extent)
{
	struct bitmap *w = world;
	struct client *c = &w->client[client];
	bool ended = false;

	m->trips++;
	*result = 0;
	switch (c->phase) {
	case READ_SPANS:
		read_spans(w, c, m);
		break;
	case TAKE_SPAN:
		take_span(w, c, m);
		break;
	case TAKE_CHUNK:
		ended = take_chunk(w, c, m);
		*extent = (struct ebb_far_name){
			.section = c->target / SPANS,
			.word = (uint16_t)(c->target % SPANS * CHUNKS + c->chunk),
		};
		break;
	case FIND_SECTION:
		ended = !find_section(w, c, m);
		*result = ended ? -1 : 0;
		break;
	case READ_SPAN:
		m->bytes += sizeof(struct span);
		c->freed = w->span[c->target];
		c->phase = FREE_CHUNK;
		break;
	case FREE_CHUNK:
		ended = free_chunk(w, c, m);
		break;
	}
	return ended;
}

static void *scattered_new(const struct extents_config *c)
{
	struct bitmap *w = bitmap_new(c);

	if (w)
		w->scatter = true;
	return w;
}

const struct extents_scheme extents_scattered = {
	.name = "scattered",
	.new = scattered_new,
	.delete = bitmap_delete,
	.forget = bitmap_forget,
	.allocate = bitmap_allocate,
	.free = bitmap_free,
	.step = bitmap_step,
};

const struct extents_scheme extents_bitmap = {
	.name = "bitmap",
	.new = bitmap_new,
	.delete = bitmap_delete,
	.forget = bitmap_forget,
	.allocate = bitmap_allocate,
	.free = bitmap_free,
	.step = bitmap_step,
};
