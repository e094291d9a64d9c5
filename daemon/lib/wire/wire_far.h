/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Payloads of frames of far memory (include/ebb/far.h); docs/protocol.md describes them.
 *
 * A connection whose HELLO has WIRE_FAR is one member of at most one pool.  It carries HELLO, PING,
 * BYE and frames of enum wire_far_op.  The donor executes them in the order of sending and replies
 * in that order.  In the header, slab is the number of an arena of the pool, generation is 0, and
 * offset is bytes into the arena.  A refusal has no payload and length 0.
 *
 * Everything here is a pure function over a buffer: no allocation, no I/O.
 */
#ifndef EBB_WIRE_FAR_H
#define EBB_WIRE_FAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire.h"

#define WIRE_FAR_NAME 32 /* of a pool, NUL included */

enum wire_far_verb { WIRE_FAR_CREATE = 1, WIRE_FAR_OPEN, WIRE_FAR_DESTROY };

enum wire_far_pool_flags {
	/* Create: members may access what belongs to another. */
	WIRE_FAR_SHARED = 1,
};

/* What makes a word atomic: the processor of the donor's machine. */
enum wire_far_domain { WIRE_FAR_CPU = 0 };

/* Payload of a POOL request. */
struct wire_far_pool {
	uint32_t verb;   /* enum wire_far_verb */
	uint32_t flags;  /* enum wire_far_pool_flags; 0 unless the verb is CREATE */
	uint32_t domain; /* enum wire_far_domain, or one that this side does not know */
	char name[WIRE_FAR_NAME]; /* printable, without blanks; NUL-padded */
};

/* Payload of the reply to a POOL request; other members are 0 unless the verb was OPEN. */
struct wire_far_opened {
	uint64_t identity;    /* of the pool, random */
	uint32_t member;      /* number, from 1 */
	uint32_t incarnation; /* of that number */
	uint32_t flags;       /* enum wire_far_pool_flags */
	uint32_t arenas;      /* so far */
	uint32_t sections;    /* of each arena */
};

/* One of up to WIRE_FAR_POOLS in the payload of the reply to LIST. */
struct wire_far_listed {
	char name[WIRE_FAR_NAME];
	uint64_t identity;
	uint32_t arenas, flags;
	uint32_t live, away, dead; /* members; dead: not recovered yet */
};

/* One of up to WIRE_FAR_SWAPS in the payload of a CAS request; the reply has their old words. */
struct wire_far_swap {
	uint64_t at, expect, desired;
};

/* Payload of NOTIFY: to @member; of NOTIFIED: from @member; of DEAD, with word 0. */
struct wire_far_word {
	uint32_t member;
	uint64_t word;
};

/* Returns whether @name, of WIRE_FAR_NAME bytes, is a pool's. */
bool wire_far_is_name(const char *name);

/* Payloads; the parsers return 0 or -EPROTO. */
void wire_build_far_pool(uint8_t buf[static WIRE_FAR_POOL_SIZE], const struct wire_far_pool *p);
int wire_parse_far_pool(const void *buf, size_t len, struct wire_far_pool *p);
void wire_build_far_opened(uint8_t buf[static WIRE_FAR_OPENED_SIZE],
			   const struct wire_far_opened *o);
int wire_parse_far_opened(const void *buf, size_t len, struct wire_far_opened *o);
void wire_build_far_listed(uint8_t buf[static WIRE_FAR_LISTED_SIZE],
			   const struct wire_far_listed *l);
int wire_parse_far_listed(const void *buf, size_t len, struct wire_far_listed *l);
void wire_build_far_word(uint8_t buf[static WIRE_FAR_MEMBER_SIZE], const struct wire_far_word *w);
int wire_parse_far_word(const void *buf, size_t len, struct wire_far_word *w);

/* Element @i of a CAS request of frame length / WIRE_FAR_SWAP_SIZE elements. */
void wire_put_far_swap(uint8_t *buf, uint32_t i, const struct wire_far_swap *s);
struct wire_far_swap wire_get_far_swap(const uint8_t *buf, uint32_t i);

#endif
