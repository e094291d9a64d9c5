/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * Which pages in swap zswap holds compressed in memory.  They are not prefetched: to decompress one
 * takes the program less than a request for it takes ebbd.
 *
 * While zswap is in use, bpf/zswap.bpf.c keeps a bit for each slot.  A page that was stored before
 * it was attached counts as one on its device.  Belongs to the executor's thread.
 */
#ifndef EBB_ZSWAP_H
#define EBB_ZSWAP_H

#include <stdbool.h>
#include <stdint.h>

#include <ebb/abi.h>

#include "ebbd/plane/plane.h"

enum zswap_state {
	ZSWAP_OFF,     /* disabled and empty, or without swap */
	ZSWAP_ON,
	ZSWAP_NO_HITS, /* on, but the kernel has no hook that counts hits */
	ZSWAP_REFUSED, /* the kernel rejected the programs: pages in zswap are requested, too */
};

struct zswap_slots {
	const uint64_t *held;  /* mapped bits, by ebb_slot_bit(); NULL: zswap holds none */
	uint64_t mask;         /* number of bits - 1 */
};

struct zswap;

/* @plane outlives it.  NULL without memory. */
struct zswap *zswap_new(struct plane *plane);
void zswap_free(struct zswap **z);
/* Twice a second: attaches the programs while zswap is in use. */
enum zswap_state zswap_watch(struct zswap *z);
/* Valid until the next zswap_watch(). */
const struct zswap_slots *zswap_slots(const struct zswap *z);
const char *zswap_state_name(enum zswap_state s);

/* Returns whether zswap holds slot @offset of the swap @type. */
static inline bool zswap_holds(const struct zswap_slots *s, uint32_t type, uint64_t offset)
{
	uint64_t bit = ebb_slot_bit(type, offset) & s->mask;

	return s->held && __atomic_load_n(&s->held[bit / 64], __ATOMIC_RELAXED) >> (bit & 63) & 1;
}

#endif
