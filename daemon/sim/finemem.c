// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <stddef.h>

#include "finemem.h"
#include "lib/base/draw.h"

#ifndef FINEMEM_DRAW
#define FINEMEM_DRAW(seed, below) draw_below(seed, below)
#endif

enum phase {
	START,        /* reads what the view lacks, or chooses */
	GOT_STATES,
	GOT_SPANS,
	OPENED,       /* section's 00 -> 01 */
	GOT_LOG,      /* of the chunk that the header's log names */
	GOT_IN_USE,   /* its span's header, as its two logs are of different layers */
	FLUSHED,
	TAKEN,        /* a span's chunks */
	TAKEN_SPANS,  /* a section's spans */
	GOT_SPAN,     /* to free */
	FREED,
	GOT_SECTION,  /* to free */
	FREED_SPANS,
	GOT_IMAGE,    /* to update a state */
	SET_STATE,
	DONE,
};

/* --- words ---------------------------------------------------------------- */

uint64_t finemem_pack(const struct finemem_header *h)
{
	return h->map | (uint64_t)(h->retry & 3) << 32 | (uint64_t)(h->in_use & 1) << 34 |
	       (uint64_t)(h->stamp & 127) << 35 | (uint64_t)(h->offset & 31) << 42 |
	       (uint64_t)(h->size & 7) << 47 | (uint64_t)(h->id & 0x3fff) << 50;
}

struct finemem_header finemem_unpack(uint64_t word)
{
	return (struct finemem_header){
		.map = (uint32_t)word, .retry = word >> 32 & 3, .in_use = word >> 34 & 1,
		.stamp = word >> 35 & 127, .offset = word >> 42 & 31, .size = word >> 47 & 7,
		.id = word >> 50 & 0x3fff,
	};
}

uint64_t finemem_log_pack(const struct finemem_log *l)
{
	return l->id | (uint64_t)l->stamp << 16 | (uint64_t)l->size << 24 |
	       (uint64_t)l->section << 32;
}

struct finemem_log finemem_log_unpack(uint64_t word)
{
	return (struct finemem_log){
		.id = (uint16_t)word, .stamp = word >> 16 & 255, .size = word >> 24 & 255,
		.section = word >> 32 & 1,
	};
}

/* Returns the bits of 2^@order chunks from @chunk on. */
static uint32_t chunk_mask(uint32_t order, uint32_t chunk)
{
	return (uint32_t)((1ull << (1u << order)) - 1) << chunk;
}

/* Returns the first aligned free run, or -1. */
static int free_chunk(uint32_t map, uint32_t order)
{
	for (uint32_t c = 0; c < FINEMEM_CHUNKS; c += 1u << order)
		if (!(map & chunk_mask(order, c)))
			return (int)c;
	return -1;
}

/* Whether the log of a header is of an allocation: its first chunk, or span, is in use. */
static bool is_allocation(const struct finemem_header *h, bool section)
{
	if (!section)
		return h->map >> h->offset & 1;
	return finemem_span_state(h->map, h->offset & (FINEMEM_SPANS - 1)) != FINEMEM_EMPTY;
}

/* The stamp rises only when an allocation follows a free, or a free an allocation. */
static uint8_t next_stamp(const struct finemem_header *h, bool section, bool allocates)
{
	bool rises = h->id && is_allocation(h, section) != allocates;

	return (uint8_t)((h->stamp + rises) % FINEMEM_STAMPS);
}

/* Whether stamp @a is older than @b, for less than half of all between them. */
static bool older(uint8_t a, uint8_t b)
{
	return a != b && (uint8_t)((b - a) & (FINEMEM_STAMPS - 1)) < FINEMEM_STAMPS / 2;
}

static uint8_t level(const struct finemem_rule *rule, uint32_t failures)
{
	return failures > rule->high ? 2 : failures >= rule->low ? 1 : 0;
}

/* --- verbs ---------------------------------------------------------------- */

static struct finemem_verb issue(struct finemem_op *op, enum phase phase, struct finemem_verb verb)
{
	op->phase = phase;
	op->verb = verb;
	op->reads += verb.kind == FINEMEM_READ;
	op->writes += verb.kind == FINEMEM_WRITE;
	op->swaps += verb.kind == FINEMEM_SWAP;
	return verb;
}

static struct finemem_verb read_words(struct finemem_op *op, enum phase phase, uint32_t at,
				      uint32_t words)
{
	return issue(op, phase, (struct finemem_verb){
		.kind = FINEMEM_READ, .at = at, .words = words,
	});
}

static struct finemem_verb swap(struct finemem_op *op, enum phase phase, uint32_t at,
				uint64_t expect, uint64_t desired)
{
	return issue(op, phase, (struct finemem_verb){
		.kind = FINEMEM_SWAP, .at = at, .words = 1, .expect = expect, .desired = desired,
	});
}

static struct finemem_verb done(struct finemem_op *op, int result)
{
	op->result = result;
	return issue(op, DONE, (struct finemem_verb){ .kind = FINEMEM_DONE });
}

static bool swapped(struct finemem_op *op, uint64_t found)
{
	if (found == op->verb.expect)
		return true;
	op->failed++;
	return false;
}

void finemem_view_init(struct finemem_view *v, const struct finemem_rule *rule, uint64_t seed)
{
	*v = (struct finemem_view){ .seed = seed };
	v->section = FINEMEM_DRAW(&v->seed, rule->sections);
}

void finemem_allocate(struct finemem_op *op, const struct finemem_rule *rule, uint16_t id,
		      uint32_t order)
{
	*op = (struct finemem_op){ .kind = FINEMEM_ALLOCATE, .id = id, .order = (uint8_t)order };
}

void finemem_free(struct finemem_op *op, const struct finemem_rule *rule, uint16_t id,
		  uint32_t order, uint32_t section, uint32_t span, uint32_t chunk)
{
	*op = (struct finemem_op){
		.kind = FINEMEM_FREE, .id = id, .order = (uint8_t)order, .section = section,
		.span = (uint8_t)span, .chunk = (uint8_t)chunk,
	};
}

/* --- the log -------------------------------------------------------------- */

/*
 * Returns the number of the chunk that the log of the header @word names, -1 without a log: of span
 * @span, or of the section.
 */
static int logged_chunk(uint64_t word, int span)
{
	struct finemem_header h = finemem_unpack(word);

	if (!h.id)
		return -1;
	return span < 0 ? (h.offset & (FINEMEM_SPANS - 1)) * FINEMEM_CHUNKS :
			  span * FINEMEM_CHUNKS + h.offset;
}

/* Reads the log of the chunk that @word, the header at hand, names. */
static struct finemem_verb read_log(struct finemem_op *op, const struct finemem_rule *rule,
				    uint64_t word, int span)
{
	struct finemem_header h = finemem_unpack(word);
	uint32_t chunk = (uint32_t)logged_chunk(word, span);

	op->log = (struct finemem_log){
		.id = is_allocation(&h, span < 0) ? h.id : 0, .stamp = h.stamp, .size = h.size,
		.section = span < 0,
	};
	return read_words(op, GOT_LOG, finemem_log_word(rule->sections, op->section, chunk), 1);
}

static bool must_flush(const struct finemem_op *op, const struct finemem_rule *rule, uint64_t word,
		       int span)
{
	return rule->flush && !op->flushed && logged_chunk(word, span) >= 0;
}

/* --- allocation ----------------------------------------------------------- */

/*
 * Whether a span of @state may have chunks for the operation; @word is an image of its header.
 * The header decides if the span is in use as chunks, also if the state is full by mistake.
 */
static bool suits(const struct finemem_op *op, enum finemem_state state, uint64_t word)
{
	struct finemem_header h = finemem_unpack(word);

	return (state != FINEMEM_FULL || h.in_use) && free_chunk(h.map, op->order) >= 0;
}

/* Returns a span by preference 01, 00, 10, 11, from a random one on; -1 if none has free chunks. */
static int choose_span(struct finemem_op *op, struct finemem_view *v)
{
	static const enum finemem_state order[] = {
		FINEMEM_NORMAL, FINEMEM_EMPTY, FINEMEM_CONTENDED, FINEMEM_FULL,
	};
	uint32_t from = FINEMEM_DRAW(&v->seed, FINEMEM_SPANS);
	uint32_t map = finemem_unpack(v->states).map;

	for (int i = 0; i < 4; i++)
		for (uint32_t k = 0; k < FINEMEM_SPANS; k++) {
			uint32_t span = (from + k) % FINEMEM_SPANS;

			if (finemem_span_state(map, span) == order[i] &&
			    suits(op, order[i], v->spans[span]))
				return (int)span;
		}
	return -1;
}

/* Returns the first of an aligned group of empty spans, or -1. */
static int choose_spans(const struct finemem_op *op, uint64_t states)
{
	uint32_t count = 1u << (op->order - FINEMEM_SPAN_ORDER);
	uint32_t map = finemem_unpack(states).map;

	for (uint32_t span = 0; span < FINEMEM_SPANS; span += count) {
		uint32_t mask = (uint32_t)((1ull << 2 * count) - 1) << 2 * span;

		if (!(map & mask))
			return (int)span;
	}
	return -1;
}

static struct finemem_verb choose(struct finemem_op *op, const struct finemem_rule *rule,
				  struct finemem_view *v);

/* Takes the chunks of the span at hand, by its image. */
static struct finemem_verb take_chunks(struct finemem_op *op, const struct finemem_rule *rule,
				       struct finemem_view *v)
{
	uint64_t word = v->spans[op->span];
	struct finemem_header h = finemem_unpack(word);
	int chunk = free_chunk(h.map, op->order);

	if (chunk < 0)
		return choose(op, rule, v);
	if (must_flush(op, rule, word, op->span))
		return read_log(op, rule, word, op->span);
	op->chunk = (uint8_t)chunk;
	op->old_retry = h.retry;
	h.stamp = next_stamp(&h, false, true);
	h.map |= chunk_mask(op->order, op->chunk);
	h.retry = level(rule, op->failures);
	h.in_use |= op->opened;
	h.offset = op->chunk;
	h.size = op->order;
	h.id = op->id;
	return swap(op, TAKEN, finemem_span_word(rule->sections, op->section, op->span), word,
		    finemem_pack(&h));
}

static struct finemem_verb open_span(struct finemem_op *op, const struct finemem_rule *rule,
				     struct finemem_view *v)
{
	struct finemem_header h = finemem_unpack(v->states);

	h.map = finemem_set_state(h.map, op->span, FINEMEM_NORMAL);
	return swap(op, OPENED, finemem_section_word(op->section), v->states, finemem_pack(&h));
}

static struct finemem_verb take_spans(struct finemem_op *op, const struct finemem_rule *rule,
				      struct finemem_view *v)
{
	uint64_t word = v->states;
	struct finemem_header h = finemem_unpack(word);

	if (must_flush(op, rule, word, -1))
		return read_log(op, rule, word, -1);
	h.stamp = next_stamp(&h, true, true);
	for (uint32_t i = 0; i < 1u << (op->order - FINEMEM_SPAN_ORDER); i++)
		h.map = finemem_set_state(h.map, op->span + i, FINEMEM_FULL);
	h.retry = level(rule, op->failures);
	h.offset = op->span;
	h.size = op->order - FINEMEM_SPAN_ORDER;
	h.id = op->id;
	return swap(op, TAKEN_SPANS, finemem_section_word(op->section), word, finemem_pack(&h));
}

/* The section at hand has nothing for the operation. */
static struct finemem_verb next_section(struct finemem_op *op, const struct finemem_rule *rule,
					struct finemem_view *v)
{
	if (op->tried++ >= rule->sections)
		return done(op, -ENOSPC);
	/* The first time, its images were old. */
	if (op->tried > 1)
		v->section = (v->section + 1) % rule->sections;
	v->has_states = v->has_spans = false;
	op->section = v->section;
	return read_words(op, GOT_STATES, finemem_section_word(op->section), 1);
}

static struct finemem_verb choose(struct finemem_op *op, const struct finemem_rule *rule,
				  struct finemem_view *v)
{
	bool large = op->order >= FINEMEM_SPAN_ORDER;
	int span;

	op->section = v->section;
	op->opened = op->flushed = false;
	if (!v->has_states)
		return read_words(op, GOT_STATES, finemem_section_word(op->section), 1);
	if (!large && !v->has_spans)
		return read_words(op, GOT_SPANS,
				  finemem_span_word(rule->sections, op->section, 0), FINEMEM_SPANS);
	span = large ? choose_spans(op, v->states) : choose_span(op, v);
	if (span < 0)
		return next_section(op, rule, v);
	if (op->span != span)
		op->failures = 0;
	op->span = (uint8_t)span;
	op->chunk = 0;
	if (large)
		return take_spans(op, rule, v);
	if (finemem_span_state(finemem_unpack(v->states).map, op->span) == FINEMEM_EMPTY)
		return open_span(op, rule, v);
	return take_chunks(op, rule, v);
}

/* --- states in the section's header --------------------------------------- */

#define FROM(state) (1u << (state))

/* Begins to set the state of the span at hand to @state, if it is one of @from. */
static struct finemem_verb update(struct finemem_op *op, enum finemem_state state, uint32_t from)
{
	op->state = (uint8_t)state;
	op->from_mask = (uint8_t)from;
	return read_words(op, GOT_IMAGE, finemem_section_word(op->section), 1);
}

static struct finemem_verb set_state(struct finemem_op *op, const struct finemem_rule *rule)
{
	struct finemem_header h = finemem_unpack(op->image);
	bool by_swap = rule->update == FINEMEM_SWAPS ||
		       (rule->update == FINEMEM_RELEASED &&
			(op->state == FINEMEM_FULL || op->state == FINEMEM_EMPTY));
	uint32_t at = finemem_section_word(op->section);

	if (!(op->from_mask & FROM(finemem_span_state(h.map, op->span))))
		return done(op, 0);
	h.map = finemem_set_state(h.map, op->span, (enum finemem_state)op->state);
	if (by_swap)
		return swap(op, SET_STATE, at, op->image, finemem_pack(&h));
	return issue(op, SET_STATE, (struct finemem_verb){
		.kind = FINEMEM_WRITE, .at = at, .words = 1, .desired = finemem_pack(&h),
	});
}

/* After a commit in a span; @h is the new header. */
static struct finemem_verb committed(struct finemem_op *op, const struct finemem_rule *rule,
				     const struct finemem_header *h, bool was_full)
{
	uint8_t now = level(rule, op->failures);

	if (h->map == FINEMEM_FULL_MAP)
		return update(op, FINEMEM_FULL, FROM(FINEMEM_NORMAL) | FROM(FINEMEM_CONTENDED));
	if (!h->map)
		return update(op, FINEMEM_EMPTY, FROM(FINEMEM_NORMAL) | FROM(FINEMEM_CONTENDED) |
						 FROM(FINEMEM_FULL));
	if (was_full)
		return update(op, FINEMEM_NORMAL, FROM(FINEMEM_FULL));
	if (rule->control && now == 2 && op->old_retry < 2)
		return update(op, FINEMEM_CONTENDED, FROM(FINEMEM_NORMAL));
	if (rule->control && now == 0 && op->old_retry)
		return update(op, FINEMEM_NORMAL, FROM(FINEMEM_CONTENDED));
	return done(op, 0);
}

/* --- free ----------------------------------------------------------------- */

static struct finemem_verb free_chunks(struct finemem_op *op, const struct finemem_rule *rule)
{
	struct finemem_header h = finemem_unpack(op->image);
	uint32_t mask = chunk_mask(op->order, op->chunk);

	if ((h.map & mask) != mask)
		return done(op, -ENOENT);
	if (must_flush(op, rule, op->image, op->span))
		return read_log(op, rule, op->image, op->span);
	op->old_retry = h.retry;
	h.stamp = next_stamp(&h, false, false);
	h.map &= ~mask;
	h.in_use &= h.map != 0;
	h.retry = level(rule, op->failures);
	h.offset = op->chunk;
	h.size = op->order;
	h.id = op->id;
	return swap(op, FREED, finemem_span_word(rule->sections, op->section, op->span), op->image,
		    finemem_pack(&h));
}

static struct finemem_verb free_spans(struct finemem_op *op, const struct finemem_rule *rule)
{
	struct finemem_header h = finemem_unpack(op->image);

	if (must_flush(op, rule, op->image, -1))
		return read_log(op, rule, op->image, -1);
	h.stamp = next_stamp(&h, true, false);
	for (uint32_t i = 0; i < 1u << (op->order - FINEMEM_SPAN_ORDER); i++) {
		if (finemem_span_state(h.map, op->span + i) != FINEMEM_FULL)
			return done(op, -ENOENT);
		h.map = finemem_set_state(h.map, op->span + i, FINEMEM_EMPTY);
	}
	h.retry = level(rule, op->failures);
	h.offset = op->span;
	h.size = op->order - FINEMEM_SPAN_ORDER;
	h.id = op->id;
	return swap(op, FREED_SPANS, finemem_section_word(op->section), op->image,
		    finemem_pack(&h));
}

/* --- steps ---------------------------------------------------------------- */

/* Continues with the header whose log has been flushed, or is old. */
static struct finemem_verb resume(struct finemem_op *op, const struct finemem_rule *rule,
				  struct finemem_view *v)
{
	bool large = op->order >= FINEMEM_SPAN_ORDER;

	op->flushed = true;
	if (op->kind == FINEMEM_FLUSH)
		return done(op, 0);
	if (op->kind == FINEMEM_FREE)
		return large ? free_spans(op, rule) : free_chunks(op, rule);
	return large ? take_spans(op, rule, v) : take_chunks(op, rule, v);
}

static struct finemem_verb got_log(struct finemem_op *op, const struct finemem_rule *rule,
				   struct finemem_view *v, uint64_t word)
{
	struct finemem_log old = finemem_log_unpack(word);
	uint32_t chunk = op->verb.at - finemem_log_word(rule->sections, op->section, 0);

	op->old_log = word;
	op->log_at = op->verb.at;
	/* Stamps of two layers do not compare. */
	if (word && old.section != op->log.section)
		return read_words(op, GOT_IN_USE,
				  finemem_span_word(rule->sections, op->section,
						    chunk / FINEMEM_CHUNKS), 1);
	if (word && !older(old.stamp, op->log.stamp))
		return resume(op, rule, v);
	return swap(op, FLUSHED, op->log_at, word, finemem_log_pack(&op->log));
}

/* The log of the layer that has the span now is the newer one. */
static struct finemem_verb got_in_use(struct finemem_op *op, const struct finemem_rule *rule,
				      struct finemem_view *v, uint64_t word)
{
	if (finemem_unpack(word).in_use == op->log.section)
		return resume(op, rule, v);
	return swap(op, FLUSHED, op->log_at, op->old_log, finemem_log_pack(&op->log));
}

static struct finemem_verb opened(struct finemem_op *op, const struct finemem_rule *rule,
				  struct finemem_view *v, uint64_t found)
{
	bool first = swapped(op, found);

	v->states = first ? op->verb.desired : found;
	if (!first)
		return choose(op, rule, v);
	op->opened = true;
	return take_chunks(op, rule, v);
}

static struct finemem_verb taken(struct finemem_op *op, const struct finemem_rule *rule,
				 struct finemem_view *v, uint64_t found)
{
	struct finemem_header h;

	if (!swapped(op, found)) {
		op->failures++;
		op->flushed = false;
		v->spans[op->span] = found;
		return take_chunks(op, rule, v);
	}
	v->spans[op->span] = op->verb.desired;
	h = finemem_unpack(op->verb.desired);
	return committed(op, rule, &h, false);
}

static struct finemem_verb taken_spans(struct finemem_op *op, const struct finemem_rule *rule,
				       struct finemem_view *v, uint64_t found)
{
	if (swapped(op, found)) {
		v->states = op->verb.desired;
		return done(op, 0);
	}
	op->failures++;
	v->states = found;
	return choose(op, rule, v);
}

static struct finemem_verb freed(struct finemem_op *op, const struct finemem_rule *rule,
				 struct finemem_view *v, uint64_t found)
{
	struct finemem_header old = finemem_unpack(op->image), h;

	if (!swapped(op, found)) {
		op->failures++;
		op->flushed = false;
		op->image = found;
		return free_chunks(op, rule);
	}
	if (v && v->has_spans && v->section == op->section)
		v->spans[op->span] = op->verb.desired;
	h = finemem_unpack(op->verb.desired);
	return committed(op, rule, &h, old.map == FINEMEM_FULL_MAP);
}

static struct finemem_verb freed_spans(struct finemem_op *op, const struct finemem_rule *rule,
				       struct finemem_view *v, uint64_t found)
{
	if (!swapped(op, found)) {
		op->failures++;
		op->flushed = false;
		op->image = found;
		return free_spans(op, rule);
	}
	if (v && v->has_states && v->section == op->section)
		v->states = op->verb.desired;
	return done(op, 0);
}

static struct finemem_verb state_set(struct finemem_op *op, const struct finemem_rule *rule,
				     struct finemem_view *v, const uint64_t *result)
{
	if (op->verb.kind == FINEMEM_SWAP && !swapped(op, *result)) {
		op->image = *result;
		return set_state(op, rule);
	}
	if (v && v->has_states && v->section == op->section)
		v->states = op->verb.desired;
	return done(op, 0);
}

static struct finemem_verb start(struct finemem_op *op, const struct finemem_rule *rule,
				 struct finemem_view *v)
{
	if (op->kind == FINEMEM_ALLOCATE)
		return choose(op, rule, v);
	if (op->kind == FINEMEM_FLUSH)
		return read_words(op, GOT_IMAGE, op->at, 1);
	if (op->order >= FINEMEM_SPAN_ORDER)
		return read_words(op, GOT_SECTION, finemem_section_word(op->section), 1);
	return read_words(op, GOT_SPAN,
			  finemem_span_word(rule->sections, op->section, op->span), 1);
}

/* Flushes the log of the header that has been read. */
static struct finemem_verb flush(struct finemem_op *op, const struct finemem_rule *rule)
{
	int span = op->at < rule->sections ? -1 : op->span;

	return logged_chunk(op->image, span) < 0 ? done(op, 0) :
						   read_log(op, rule, op->image, span);
}

struct finemem_verb finemem_next(struct finemem_op *op, const struct finemem_rule *rule,
				 struct finemem_view *view, const uint64_t *result)
{
	switch ((enum phase)op->phase) {
	case START:
		return start(op, rule, view);
	case GOT_STATES:
		view->states = *result;
		view->has_states = true;
		return choose(op, rule, view);
	case GOT_SPANS:
		for (int i = 0; i < FINEMEM_SPANS; i++)
			view->spans[i] = result[i];
		view->has_spans = true;
		return choose(op, rule, view);
	case OPENED:
		return opened(op, rule, view, *result);
	case GOT_LOG:
		return got_log(op, rule, view, *result);
	case GOT_IN_USE:
		return got_in_use(op, rule, view, *result);
	case FLUSHED:
		/* If it failed, another client has flushed the same log, or a newer one. */
		swapped(op, *result);
		return resume(op, rule, view);
	case TAKEN:
		return taken(op, rule, view, *result);
	case TAKEN_SPANS:
		return taken_spans(op, rule, view, *result);
	case GOT_SPAN:
		op->image = *result;
		return free_chunks(op, rule);
	case FREED:
		return freed(op, rule, view, *result);
	case GOT_SECTION:
		op->image = *result;
		return free_spans(op, rule);
	case FREED_SPANS:
		return freed_spans(op, rule, view, *result);
	case GOT_IMAGE:
		op->image = *result;
		if (op->kind == FINEMEM_FLUSH)
			return flush(op, rule);
		if (view && view->has_states && view->section == op->section)
			view->states = op->image;
		return set_state(op, rule);
	case SET_STATE:
		return state_set(op, rule, view, result);
	default:
		return done(op, op->result);
	}
}

/* --- recovery ------------------------------------------------------------- */

void finemem_recover(struct finemem_recovery *r, uint16_t dead)
{
	*r = (struct finemem_recovery){ .dead = dead };
}

/* Begins with the next header, or log. */
static struct finemem_verb look(struct finemem_recovery *r, const struct finemem_rule *rule)
{
	uint32_t headers = rule->sections * (1 + FINEMEM_SPANS);
	uint32_t span = r->at - rule->sections;

	r->frees = false;
	r->op = (struct finemem_op){ .kind = FINEMEM_FLUSH, .at = r->at };
	if (r->at >= finemem_words(rule->sections))
		return done(&r->op, 0);
	if (r->at >= headers)
		return read_words(&r->op, DONE, r->at, 1);
	r->op.section = r->at < rule->sections ? r->at : span / FINEMEM_SPANS;
	r->op.span = r->at < rule->sections ? 0 : (uint8_t)(span % FINEMEM_SPANS);
	return finemem_next(&r->op, rule, NULL, NULL);
}

/* Frees what the log @word at .at names, if the dead client has it. */
static struct finemem_verb reclaim(struct finemem_recovery *r, const struct finemem_rule *rule,
				   uint64_t word)
{
	struct finemem_log log = finemem_log_unpack(word);
	uint32_t chunk = r->at - finemem_log_word(rule->sections, 0, 0);
	uint32_t span = chunk / FINEMEM_CHUNKS;

	r->at++;
	if (log.id != r->dead)
		return look(r, rule);
	r->frees = true;
	r->recovered++;
	finemem_free(&r->op, rule, r->dead, log.size + (log.section ? FINEMEM_SPAN_ORDER : 0),
		     span / FINEMEM_SPANS, span % FINEMEM_SPANS, chunk % FINEMEM_CHUNKS);
	return finemem_next(&r->op, rule, NULL, NULL);
}

struct finemem_verb finemem_recover_next(struct finemem_recovery *r,
					 const struct finemem_rule *rule, const uint64_t *result)
{
	uint32_t headers = rule->sections * (1 + FINEMEM_SPANS);
	struct finemem_verb verb;

	if (!result)
		return look(r, rule);
	if (!r->frees && r->at >= headers)
		return reclaim(r, rule, *result);
	verb = finemem_next(&r->op, rule, NULL, result);
	if (verb.kind != FINEMEM_DONE)
		return verb;
	r->at += !r->frees;
	return look(r, rule);
}
