/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Payloads of frames of jobs: tracing and evacuation of a heap's far regions where they are;
 * docs/protocol.md describes them.
 *
 * A connection whose HELLO has WIRE_FAR and WIRE_JOBS also carries frames of enum wire_job_op.  In
 * their header slab, generation and offset are 0.  Everything about them is repeatable: a member
 * that resumes repeats what had no reply.
 *
 * Slots of a region are numbered as in lib/rules/tablet.h.  Where a side does not know the size of
 * a region's slots, an object is named by the granule of 16 bytes at which its slot begins.
 *
 * Everything here is a pure function over a buffer: no allocation, no I/O.
 */
#ifndef EBB_WIRE_JOB_H
#define EBB_WIRE_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

/* Payload of HEAP, before the layouts.  A repeated one adds layouts, and changes nothing else. */
struct wire_job_heap {
	uint64_t base;    /* address of region 0, a multiple of 64 KiB */
	uint64_t mask;    /* the bits of a reference that are its address */
	uint32_t regions; /* of the heap, at most WIRE_JOB_REGIONS */
	uint32_t layouts; /* that follow */
};

/* A layout; its .runs runs follow. */
struct wire_job_layout {
	uint32_t type, size, element_size, length_offset;
	uint8_t length_width, runs;
	uint64_t bitmap;
};

struct wire_job_run {
	uint32_t offset, stride, count;
};

/* Payload of the reply to HEAP. */
struct wire_job_limits {
	uint64_t memory; /* bytes left for tables of this heap */
	uint32_t units;  /* of a turn: objects and references */
	uint32_t bytes;  /* that an EVACUATE copies */
};

enum wire_job_place_flags {
	WIRE_JOB_LEAF = 1, /* no object of the region has references */
};

/* A record of PLACE; .words words of its tablet follow. */
struct wire_job_place {
	uint32_t region, version; /* above that of the region's last record, from 1 */
	uint32_t slot_bytes;      /* 0 = the region is not here any more */
	uint32_t flags;           /* enum wire_job_place_flags */
	uint32_t arena, class;    /* of the extent: EBB_PAGE << class bytes */
	uint64_t at, generation;  /* ... its place in the arena, and its word's generation */
	uint32_t base;            /* of the region in the extent, a multiple of 16 */
	uint32_t words;
};

/* Objects of a region, by granule: bit i of word n is granule 64 * (.first + n) + i. */
struct wire_job_set {
	uint32_t region;
	uint16_t first, words; /* at most 64 together */
	const uint8_t *bits;   /* in the frame */
};

/* Payload of BEGIN; sets of objects that are placed, but live elsewhere, follow. */
struct wire_job_begin {
	uint32_t cycle;
};

/* Payload of TRACE; sets of objects to mark follow. */
struct wire_job_trace {
	uint32_t cycle, batch;
	uint32_t units; /* of work at most; 0 = as many as the donor does in a turn */
};

/* Payload of its reply; sets of objects that are not here follow. */
struct wire_job_traced {
	uint32_t cycle, batch;
	uint64_t visited; /* objects marked in this cycle */
	uint32_t queued;  /* regions with marked objects that are not traced yet */
	uint32_t odd;     /* objects and references that are none, and regions that were freed */
	uint32_t pause;   /* us until the donor works again: it has traced nothing now */
};

enum wire_job_end_verb { WIRE_JOB_COMMIT = 1, WIRE_JOB_ABORT };

/* Payload of END. */
struct wire_job_end {
	uint32_t cycle;
	uint32_t verb;  /* enum wire_job_end_verb */
	uint32_t first; /* region, with COMMIT */
};

/* Payload of the reply to END; with COMMIT regions from .first on, in their order, follow. */
struct wire_job_ended {
	uint32_t cycle;
	uint32_t next; /* region to ask for next, or WIRE_JOB_NO_REGION */
};

/* There, or in EVACUATE: .words words each of a bit a slot: marks and named, or what to keep. */
struct wire_job_bits {
	uint32_t region, version, words;
	const uint8_t *bits; /* in the frame */
};

/* Payload of EVACUATE; regions follow, whose slots are copied to the extent in this order. */
struct wire_job_evacuate {
	uint32_t job;
	uint32_t arena, class; /* of the extent, as in struct wire_job_place */
	uint32_t base;         /* in the extent, a multiple of 16 */
	uint64_t at, generation;
	uint32_t crc;          /* of what was copied before; the reply's continues it */
};

/* Payload of its reply: of the regions, the first .regions are copied. */
struct wire_job_evacuated {
	uint32_t job, regions;
	uint32_t bytes, crc; /* CRC-32C of these bytes, continued */
	uint32_t pause;      /* as in struct wire_job_traced */
};

#define WIRE_JOB_NO_REGION UINT32_MAX
/* us, of .pause.  A member that waits as long as that then has its request done. */
#define WIRE_JOB_PAUSE_MOST 1000000u

/* The parsers of what begins a payload return 0 or -EPROTO; @len may exceed the size. */
void wire_build_job_heap(uint8_t buf[static WIRE_JOB_HEAP_SIZE], const struct wire_job_heap *h);
int wire_parse_job_heap(const void *buf, size_t len, struct wire_job_heap *h);
void wire_build_job_limits(uint8_t buf[static WIRE_JOB_LIMITS_SIZE],
			   const struct wire_job_limits *l);
int wire_parse_job_limits(const void *buf, size_t len, struct wire_job_limits *l);
void wire_build_job_begin(uint8_t buf[static WIRE_JOB_BEGIN_SIZE], const struct wire_job_begin *b);
int wire_parse_job_begin(const void *buf, size_t len, struct wire_job_begin *b);
void wire_build_job_trace(uint8_t buf[static WIRE_JOB_TRACE_SIZE], const struct wire_job_trace *t);
int wire_parse_job_trace(const void *buf, size_t len, struct wire_job_trace *t);
void wire_build_job_traced(uint8_t buf[static WIRE_JOB_TRACED_SIZE],
			   const struct wire_job_traced *t);
int wire_parse_job_traced(const void *buf, size_t len, struct wire_job_traced *t);
void wire_build_job_end(uint8_t buf[static WIRE_JOB_END_SIZE], const struct wire_job_end *e);
int wire_parse_job_end(const void *buf, size_t len, struct wire_job_end *e);
void wire_build_job_ended(uint8_t buf[static WIRE_JOB_ENDED_SIZE], const struct wire_job_ended *e);
int wire_parse_job_ended(const void *buf, size_t len, struct wire_job_ended *e);
void wire_build_job_evacuate(uint8_t buf[static WIRE_JOB_EVACUATE_SIZE],
			     const struct wire_job_evacuate *e);
int wire_parse_job_evacuate(const void *buf, size_t len, struct wire_job_evacuate *e);
void wire_build_job_evacuated(uint8_t buf[static WIRE_JOB_EVACUATED_SIZE],
			      const struct wire_job_evacuated *e);
int wire_parse_job_evacuated(const void *buf, size_t len, struct wire_job_evacuated *e);

/*
 * Elements behind that.  wire_put_*() write one at @to, without its bits, and return its size
 * without them.  wire_next_*() parse the one at *@at of @len bytes and move *@at behind it, bits
 * included; they return 1, 0 at the end, or -EPROTO.
 */
uint32_t wire_put_job_layout(uint8_t *to, const struct wire_job_layout *l,
			     const struct wire_job_run *runs);
int wire_next_job_layout(const uint8_t *buf, size_t len, size_t *at, struct wire_job_layout *l,
			 struct wire_job_run runs[static WIRE_JOB_RUNS]);
uint32_t wire_put_job_place(uint8_t *to, const struct wire_job_place *p);
int wire_next_job_place(const uint8_t *buf, size_t len, size_t *at, struct wire_job_place *p,
			const uint8_t **bits);
uint32_t wire_put_job_set(uint8_t *to, const struct wire_job_set *s);
int wire_next_job_set(const uint8_t *buf, size_t len, size_t *at, struct wire_job_set *s);
uint32_t wire_put_job_bits(uint8_t *to, const struct wire_job_bits *b);
/* @maps: how many bitmaps of .words words an element has. */
int wire_next_job_bits(const uint8_t *buf, size_t len, size_t *at, uint32_t maps,
		       struct wire_job_bits *b);

#endif
