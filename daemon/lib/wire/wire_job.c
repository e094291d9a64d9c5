// SPDX-License-Identifier: GPL-2.0-or-later
#include <errno.h>
#include <string.h>

#include "lib/base/bytes.h"
#include "wire_job.h"

#define SET_WORDS 64u /* of a region, by granule; also the most of a tablet */

/* HEAP: 0 base, 8 mask, 16 regions, 20 layouts. */
void wire_build_job_heap(uint8_t buf[static WIRE_JOB_HEAP_SIZE], const struct wire_job_heap *h)
{
	put64(buf, h->base);
	put64(buf + 8, h->mask);
	put32(buf + 16, h->regions);
	put32(buf + 20, h->layouts);
}

int wire_parse_job_heap(const void *buf, size_t len, struct wire_job_heap *h)
{
	const uint8_t *b = buf;

	if (len < WIRE_JOB_HEAP_SIZE)
		return -EPROTO;
	*h = (struct wire_job_heap){ get64(b), get64(b + 8), get32(b + 16), get32(b + 20) };
	return h->base % (1u << 16) || !h->regions || h->regions > WIRE_JOB_REGIONS ||
	       h->layouts > WIRE_JOB_TYPES ? -EPROTO : 0;
}

/* Layout: 0 type, 4 size, 8 element size, 12 length offset, 16 length width, 20 runs, 24 bitmap. */
uint32_t wire_put_job_layout(uint8_t *to, const struct wire_job_layout *l,
			     const struct wire_job_run *runs)
{
	put32(to, l->type);
	put32(to + 4, l->size);
	put32(to + 8, l->element_size);
	put32(to + 12, l->length_offset);
	put32(to + 16, l->length_width);
	put32(to + 20, l->runs);
	put64(to + 24, l->bitmap);
	to += WIRE_JOB_LAYOUT_SIZE;
	/* Run: 0 offset, 4 stride, 8 count, 12 reserved. */
	for (uint32_t i = 0; i < l->runs; i++, to += WIRE_JOB_RUN_SIZE) {
		put32(to, runs[i].offset);
		put32(to + 4, runs[i].stride);
		put32(to + 8, runs[i].count);
		put32(to + 12, 0);
	}
	return WIRE_JOB_LAYOUT_SIZE + l->runs * WIRE_JOB_RUN_SIZE;
}

int wire_next_job_layout(const uint8_t *buf, size_t len, size_t *at, struct wire_job_layout *l,
			 struct wire_job_run runs[static WIRE_JOB_RUNS])
{
	const uint8_t *b = buf + *at;
	size_t left = len - *at;

	if (!left)
		return 0;
	if (left < WIRE_JOB_LAYOUT_SIZE || get32(b + 16) > 8 || get32(b + 20) > WIRE_JOB_RUNS)
		return -EPROTO;
	*l = (struct wire_job_layout){
		.type = get32(b), .size = get32(b + 4), .element_size = get32(b + 8),
		.length_offset = get32(b + 12), .length_width = (uint8_t)get32(b + 16),
		.runs = (uint8_t)get32(b + 20), .bitmap = get64(b + 24),
	};
	left -= WIRE_JOB_LAYOUT_SIZE;
	b += WIRE_JOB_LAYOUT_SIZE;
	if (left < l->runs * WIRE_JOB_RUN_SIZE || l->type >= WIRE_JOB_TYPES)
		return -EPROTO;
	for (uint32_t i = 0; i < l->runs; i++, b += WIRE_JOB_RUN_SIZE) {
		runs[i] = (struct wire_job_run){ get32(b), get32(b + 4), get32(b + 8) };
		if (get32(b + 12))
			return -EPROTO;
	}
	*at += WIRE_JOB_LAYOUT_SIZE + l->runs * WIRE_JOB_RUN_SIZE;
	return 1;
}

/* Reply to HEAP: 0 memory, 8 units, 12 bytes. */
void wire_build_job_limits(uint8_t buf[static WIRE_JOB_LIMITS_SIZE],
			   const struct wire_job_limits *l)
{
	put64(buf, l->memory);
	put32(buf + 8, l->units);
	put32(buf + 12, l->bytes);
}

int wire_parse_job_limits(const void *buf, size_t len, struct wire_job_limits *l)
{
	const uint8_t *b = buf;

	if (len != WIRE_JOB_LIMITS_SIZE)
		return -EPROTO;
	*l = (struct wire_job_limits){ get64(b), get32(b + 8), get32(b + 12) };
	return 0;
}

/*
 * PLACE, each: 0 region, 4 version, 8 slot bytes, 12 flags, 16 arena, 20 class, 24 place,
 * 32 generation, 40 base, 44 words.
 */
uint32_t wire_put_job_place(uint8_t *to, const struct wire_job_place *p)
{
	put32(to, p->region);
	put32(to + 4, p->version);
	put32(to + 8, p->slot_bytes);
	put32(to + 12, p->flags);
	put32(to + 16, p->arena);
	put32(to + 20, p->class);
	put64(to + 24, p->at);
	put64(to + 32, p->generation);
	put32(to + 40, p->base);
	put32(to + 44, p->words);
	return WIRE_JOB_PLACE_SIZE;
}

int wire_next_job_place(const uint8_t *buf, size_t len, size_t *at, struct wire_job_place *p,
			const uint8_t **bits)
{
	const uint8_t *b = buf + *at;
	size_t left = len - *at;

	if (!left)
		return 0;
	if (left < WIRE_JOB_PLACE_SIZE)
		return -EPROTO;
	*p = (struct wire_job_place){
		.region = get32(b), .version = get32(b + 4), .slot_bytes = get32(b + 8),
		.flags = get32(b + 12), .arena = get32(b + 16), .class = get32(b + 20),
		.at = get64(b + 24), .generation = get64(b + 32), .base = get32(b + 40),
		.words = get32(b + 44),
	};
	if (p->words > SET_WORDS || left - WIRE_JOB_PLACE_SIZE < 8 * p->words ||
	    p->flags & ~(uint32_t)WIRE_JOB_LEAF)
		return -EPROTO;
	*bits = b + WIRE_JOB_PLACE_SIZE;
	*at += WIRE_JOB_PLACE_SIZE + 8 * p->words;
	return 1;
}

/* Set: 0 region, 4 first word, 6 words. */
uint32_t wire_put_job_set(uint8_t *to, const struct wire_job_set *s)
{
	put32(to, s->region);
	put32(to + 4, s->first | (uint32_t)s->words << 16);
	return WIRE_JOB_SET_SIZE;
}

int wire_next_job_set(const uint8_t *buf, size_t len, size_t *at, struct wire_job_set *s)
{
	const uint8_t *b = buf + *at;
	size_t left = len - *at;

	if (!left)
		return 0;
	if (left < WIRE_JOB_SET_SIZE)
		return -EPROTO;
	*s = (struct wire_job_set){
		.region = get32(b), .first = (uint16_t)get32(b + 4),
		.words = (uint16_t)(get32(b + 4) >> 16), .bits = b + WIRE_JOB_SET_SIZE,
	};
	if (!s->words || s->first + s->words > SET_WORDS ||
	    left - WIRE_JOB_SET_SIZE < 8u * s->words)
		return -EPROTO;
	*at += WIRE_JOB_SET_SIZE + 8u * s->words;
	return 1;
}

/* Bits of slots: 0 region, 4 version, 8 words, 12 reserved. */
uint32_t wire_put_job_bits(uint8_t *to, const struct wire_job_bits *b)
{
	put32(to, b->region);
	put32(to + 4, b->version);
	put32(to + 8, b->words);
	put32(to + 12, 0);
	return WIRE_JOB_BITS_SIZE;
}

int wire_next_job_bits(const uint8_t *buf, size_t len, size_t *at, uint32_t maps,
		       struct wire_job_bits *out)
{
	const uint8_t *b = buf + *at;
	size_t left = len - *at;

	if (!left)
		return 0;
	if (left < WIRE_JOB_BITS_SIZE || get32(b + 12))
		return -EPROTO;
	*out = (struct wire_job_bits){
		.region = get32(b), .version = get32(b + 4), .words = get32(b + 8),
		.bits = b + WIRE_JOB_BITS_SIZE,
	};
	if (!out->words || out->words > SET_WORDS ||
	    left - WIRE_JOB_BITS_SIZE < 8 * maps * out->words)
		return -EPROTO;
	*at += WIRE_JOB_BITS_SIZE + 8 * maps * out->words;
	return 1;
}

/* BEGIN: 0 cycle, 4 reserved. */
void wire_build_job_begin(uint8_t buf[static WIRE_JOB_BEGIN_SIZE], const struct wire_job_begin *b)
{
	put32(buf, b->cycle);
	put32(buf + 4, 0);
}

int wire_parse_job_begin(const void *buf, size_t len, struct wire_job_begin *b)
{
	if (len < WIRE_JOB_BEGIN_SIZE || get32((const uint8_t *)buf + 4))
		return -EPROTO;
	b->cycle = get32(buf);
	return 0;
}

/* TRACE: 0 cycle, 4 batch, 8 units, 12 reserved. */
void wire_build_job_trace(uint8_t buf[static WIRE_JOB_TRACE_SIZE], const struct wire_job_trace *t)
{
	put32(buf, t->cycle);
	put32(buf + 4, t->batch);
	put32(buf + 8, t->units);
	put32(buf + 12, 0);
}

int wire_parse_job_trace(const void *buf, size_t len, struct wire_job_trace *t)
{
	const uint8_t *b = buf;

	if (len < WIRE_JOB_TRACE_SIZE || get32(b + 12))
		return -EPROTO;
	*t = (struct wire_job_trace){ get32(b), get32(b + 4), get32(b + 8) };
	return 0;
}

/* Reply to TRACE: 0 cycle, 4 batch, 8 visited, 16 queued, 20 odd, 24 pause, 28 reserved. */
void wire_build_job_traced(uint8_t buf[static WIRE_JOB_TRACED_SIZE],
			   const struct wire_job_traced *t)
{
	put32(buf, t->cycle);
	put32(buf + 4, t->batch);
	put64(buf + 8, t->visited);
	put32(buf + 16, t->queued);
	put32(buf + 20, t->odd);
	put32(buf + 24, t->pause);
	put32(buf + 28, 0);
}

int wire_parse_job_traced(const void *buf, size_t len, struct wire_job_traced *t)
{
	const uint8_t *b = buf;

	if (len < WIRE_JOB_TRACED_SIZE || get32(b + 28))
		return -EPROTO;
	*t = (struct wire_job_traced){ get32(b), get32(b + 4), get64(b + 8), get32(b + 16),
				       get32(b + 20), get32(b + 24) };
	return t->pause > WIRE_JOB_PAUSE_MOST ? -EPROTO : 0;
}

/* END: 0 cycle, 4 verb, 8 first region, 12 reserved. */
void wire_build_job_end(uint8_t buf[static WIRE_JOB_END_SIZE], const struct wire_job_end *e)
{
	put32(buf, e->cycle);
	put32(buf + 4, e->verb);
	put32(buf + 8, e->first);
	put32(buf + 12, 0);
}

int wire_parse_job_end(const void *buf, size_t len, struct wire_job_end *e)
{
	const uint8_t *b = buf;

	if (len != WIRE_JOB_END_SIZE || get32(b + 12))
		return -EPROTO;
	*e = (struct wire_job_end){ get32(b), get32(b + 4), get32(b + 8) };
	return e->verb < WIRE_JOB_COMMIT || e->verb > WIRE_JOB_ABORT ||
	       (e->verb == WIRE_JOB_ABORT && e->first) ? -EPROTO : 0;
}

/* Reply to END: 0 cycle, 4 next region. */
void wire_build_job_ended(uint8_t buf[static WIRE_JOB_ENDED_SIZE], const struct wire_job_ended *e)
{
	put32(buf, e->cycle);
	put32(buf + 4, e->next);
}

int wire_parse_job_ended(const void *buf, size_t len, struct wire_job_ended *e)
{
	if (len < WIRE_JOB_ENDED_SIZE)
		return -EPROTO;
	*e = (struct wire_job_ended){ get32(buf), get32((const uint8_t *)buf + 4) };
	return 0;
}

/* EVACUATE: 0 job, 4 arena, 8 class, 12 base, 16 place, 24 generation, 32 sum, 36 reserved. */
void wire_build_job_evacuate(uint8_t buf[static WIRE_JOB_EVACUATE_SIZE],
			     const struct wire_job_evacuate *e)
{
	put32(buf, e->job);
	put32(buf + 4, e->arena);
	put32(buf + 8, e->class);
	put32(buf + 12, e->base);
	put64(buf + 16, e->at);
	put64(buf + 24, e->generation);
	put32(buf + 32, e->crc);
	put32(buf + 36, 0);
}

int wire_parse_job_evacuate(const void *buf, size_t len, struct wire_job_evacuate *e)
{
	const uint8_t *b = buf;

	if (len < WIRE_JOB_EVACUATE_SIZE || get32(b + 36))
		return -EPROTO;
	*e = (struct wire_job_evacuate){
		.job = get32(b), .arena = get32(b + 4), .class = get32(b + 8),
		.base = get32(b + 12),
		.at = get64(b + 16), .generation = get64(b + 24), .crc = get32(b + 32),
	};
	return 0;
}

/* Reply to EVACUATE: 0 job, 4 regions, 8 bytes, 12 sum, 16 pause, 20 reserved. */
void wire_build_job_evacuated(uint8_t buf[static WIRE_JOB_EVACUATED_SIZE],
			      const struct wire_job_evacuated *e)
{
	put32(buf, e->job);
	put32(buf + 4, e->regions);
	put32(buf + 8, e->bytes);
	put32(buf + 12, e->crc);
	put32(buf + 16, e->pause);
	put32(buf + 20, 0);
}

int wire_parse_job_evacuated(const void *buf, size_t len, struct wire_job_evacuated *e)
{
	const uint8_t *b = buf;

	if (len != WIRE_JOB_EVACUATED_SIZE || get32(b + 20))
		return -EPROTO;
	*e = (struct wire_job_evacuated){ get32(b), get32(b + 4), get32(b + 8), get32(b + 12),
					  get32(b + 16) };
	return e->pause > WIRE_JOB_PAUSE_MOST ? -EPROTO : 0;
}
