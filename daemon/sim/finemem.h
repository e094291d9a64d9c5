/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * FineMem's allocator as published (OSDI'25, sections 4.1 and 4.2), one verb at a time, to compare
 * with and to find its defects: two layers of bitmaps, a log in each header, contention control.
 * Where the paper is silent, the released one-sided code decides (source/rdma_conn.cc,
 * fetch_region_block and free_region_block).
 *
 *   chunk     4 KiB
 *   span      32 chunks, 128 KiB; its header has a bit per chunk
 *   section   16 spans, 2 MiB; its header has a state per span
 *
 * An allocation of 4 to 64 KiB commits by a compare-and-swap of a span's header, one of 128 KiB to
 * 2 MiB by one of a section's header.  After a commit in a span, the state of the span in the
 * section's header is updated by READ and WRITE: "optimistic", as that does not retry.
 *
 * When a client has crashed, the memory node reads all headers and flushes their logs, then frees
 * the chunks whose logs name the client.  The released code (source/free_block_manager.cc) does
 * less: it flushes no log of another client, and erases the logs of all chunks, so what the others
 * have is lost when they crash.
 *
 * Not in the model: keys and windows, batching of several sections.
 *
 * tests/unit/test_model_finemem.c tries every interleaving.  Of one size, with states set by
 * compare-and-swap, the allocator is correct, and recovery frees what a dead client had if the
 * client is fenced.  The states of the first layer are not safe: WRITEs undo each other and
 * allocations of spans; a last free makes a span empty in which others have allocated since; a
 * client that dies between the layers takes a span with it.  Without a fence, what a client
 * allocates late has no owner.
 *
 * Pure: no I/O, clock, allocation; a struct may be copied at any verb.
 */
#ifndef EBB_SIM_FINEMEM_H
#define EBB_SIM_FINEMEM_H

#include <stdbool.h>
#include <stdint.h>

/* The model checker has smaller ones. */
#ifndef FINEMEM_SPANS
#define FINEMEM_SPANS 16        /* of a section */
#define FINEMEM_SPAN_ORDER 5    /* log2 of a span's chunks: the least order of the first layer */
#define FINEMEM_SECTION_ORDER 9
#endif
#define FINEMEM_CHUNKS (1 << FINEMEM_SPAN_ORDER) /* of a span */
#define FINEMEM_FULL_MAP ((uint32_t)((1ull << FINEMEM_CHUNKS) - 1))
#define FINEMEM_HIGH 10         /* failures above which a span is contended */
#define FINEMEM_LOW 3           /* failures below which it is not any more */
#define FINEMEM_STAMPS 128

enum finemem_state { FINEMEM_EMPTY, FINEMEM_NORMAL, FINEMEM_CONTENDED, FINEMEM_FULL };

/*
 * A header: map 32 | retry 2 | in_use 1 | timestamp 7 | last_offset 5 | last_size 3 | last_id 14,
 * from the lowest bit on.  The map of a span has a bit per chunk, that of a section two per span.
 * The log names the last allocation, or free, of anything in it: offset in chunks or spans, size as
 * a power of two.
 */
struct finemem_header {
	uint32_t map;
	uint8_t retry;   /* 0: below FINEMEM_LOW failures, 2: above FINEMEM_HIGH, else 1 */
	uint8_t in_use;
	uint8_t stamp;
	uint8_t offset, size;
	uint16_t id;     /* 0 = no log */
};

uint64_t finemem_pack(const struct finemem_header *h);
struct finemem_header finemem_unpack(uint64_t word);

/* Numbers of words: section headers, span headers, then the chunks' logs. */
static inline uint32_t finemem_section_word(uint32_t section)
{
	return section;
}

static inline uint32_t finemem_span_word(uint32_t sections, uint32_t section, uint32_t span)
{
	return sections + section * FINEMEM_SPANS + span;
}

static inline uint32_t finemem_log_word(uint32_t sections, uint32_t section, uint32_t chunk)
{
	return sections * (1 + FINEMEM_SPANS) +
	       section * FINEMEM_SPANS * FINEMEM_CHUNKS + chunk;
}

static inline uint32_t finemem_words(uint32_t sections)
{
	return sections * (1 + FINEMEM_SPANS + FINEMEM_SPANS * FINEMEM_CHUNKS);
}

/* The log of a chunk: id 0 = free. */
struct finemem_log {
	uint16_t id;
	uint8_t stamp;
	uint8_t size;
	uint8_t section; /* the header that it is from: 1 = section, 0 = span */
};

uint64_t finemem_log_pack(const struct finemem_log *l);
struct finemem_log finemem_log_unpack(uint64_t word);

static inline enum finemem_state finemem_span_state(uint32_t map, uint32_t span)
{
	return (enum finemem_state)(map >> 2 * span & 3);
}

static inline uint32_t finemem_set_state(uint32_t map, uint32_t span, enum finemem_state state)
{
	return (map & ~(3u << 2 * span)) | (uint32_t)state << 2 * span;
}

enum finemem_update {
	FINEMEM_PAPER,    /* states are updated by WRITE */
	FINEMEM_RELEASED, /* full and empty by compare-and-swap, the others by WRITE */
	FINEMEM_SWAPS,    /* all by compare-and-swap */
};

struct finemem_rule {
	uint32_t sections;
	enum finemem_update update;
	bool flush;       /* logs are flushed to the chunks' logs */
	bool control;     /* contention control: failures mark spans */
	uint8_t high, low; /* FINEMEM_HIGH, FINEMEM_LOW */
};

/* What a client remembers between operations: images of one section, which may be old. */
struct finemem_view {
	uint32_t section;
	bool has_states, has_spans;
	uint64_t seed;    /* not 0 */
	uint64_t states, spans[FINEMEM_SPANS];
};

enum finemem_verb_kind { FINEMEM_DONE, FINEMEM_READ, FINEMEM_WRITE, FINEMEM_SWAP };

struct finemem_verb {
	enum finemem_verb_kind kind;
	uint32_t at, words;  /* READ has more than one word */
	uint64_t expect, desired;
};

enum finemem_kind { FINEMEM_ALLOCATE, FINEMEM_FREE, FINEMEM_FLUSH };

struct finemem_op {
	enum finemem_kind kind;
	uint8_t phase;
	uint8_t order;       /* log2 of the chunks */
	uint8_t span, chunk; /* of the section, of the span */
	uint8_t state, old_retry; /* to set, and before */
	uint8_t from_mask;   /* states that may be changed to .state, a bit each */
	uint16_t id;         /* of the client, not 0 */
	bool opened, flushed;
	uint32_t section;
	uint32_t tried;      /* sections without what is wanted */
	uint32_t failures;   /* compare-and-swaps that failed, of the span at hand */
	uint64_t image;      /* of the section, to update a state */
	struct finemem_log log;   /* to flush */
	uint64_t old_log;         /* that it replaces, at word .log_at */
	uint32_t log_at;
	uint32_t at;              /* of FINEMEM_FLUSH: the header */
	struct finemem_verb verb; /* in flight */
	int result;          /* when done: 0, -ENOSPC, -ENOENT (a free of what is free) */
	uint32_t swaps, failed, reads, writes; /* so far */
};

void finemem_view_init(struct finemem_view *v, const struct finemem_rule *rule, uint64_t seed);

/*
 * Begin to allocate 2^@order chunks, up to FINEMEM_SECTION_ORDER, and to free them.  When an
 * allocation is done with result 0, they are at .section, .span, .chunk.
 */
void finemem_allocate(struct finemem_op *op, const struct finemem_rule *rule, uint16_t id,
		      uint32_t order);
void finemem_free(struct finemem_op *op, const struct finemem_rule *rule, uint16_t id,
		  uint32_t order, uint32_t section, uint32_t span, uint32_t chunk);

/* The memory node frees what a client has, by the logs. */
struct finemem_recovery {
	struct finemem_op op; /* flushes, and frees */
	uint16_t dead;
	bool frees;           /* in the second pass, an allocation is being freed */
	uint32_t at;          /* word that is looked at: all headers, then all logs */
	uint32_t recovered;   /* so far */
};

/*
 * Begins to free what client @dead has.  In the end .recovered allocations have been freed.  Of
 * finemem_recover_next(), @result is NULL at first.
 */
void finemem_recover(struct finemem_recovery *r, uint16_t dead);
struct finemem_verb finemem_recover_next(struct finemem_recovery *r,
					 const struct finemem_rule *rule, const uint64_t *result);

/*
 * Returns the next verb of @op.  @result has the words that the last READ has read, or the word
 * that the last compare-and-swap found; it is not used for a WRITE and at first.
 */
struct finemem_verb finemem_next(struct finemem_op *op, const struct finemem_rule *rule,
				 struct finemem_view *view, const uint64_t *result);

#endif
